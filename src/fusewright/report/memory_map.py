"""The map of shared memory, as text and as a picture: time across, bytes up, syncs as lines."""

from __future__ import annotations

from collections.abc import Callable

from fusewright.report.svg import Canvas, colour, text_width
from fusewright.report.table import nbytes_text
from fusewright.report.timeline import SyncMark, Timeline

_STEP = 26.0
_HEIGHT = 240.0
_MAX_COLUMNS = 72
_LABEL = 12.0
"""The height in pixels of a line of text: a box that is less high has its name below the map."""
_ARCS = 16.0
"""The height in pixels of the arcs over the map; the numbers of syncs stand above them."""


def memory_map_text(t: Timeline) -> str:
    """One line a buffer, highest bytes first; `#` where its bytes are needed, `|` at a sync."""
    if not t.boxes:
        return "no shared memory"
    columns = min(t.nsteps, _MAX_COLUMNS)
    scale = columns / t.nsteps
    synced = {int(m.step * scale) for m in t.marks}
    blank = "".join("|" if c in synced else "." for c in range(columns))
    rows: dict[tuple[int, int, str], list[str]] = {}
    for b in sorted(t.boxes, key=lambda b: (-b.offset, b.first)):
        row = rows.setdefault((b.offset, b.nbytes, b.name), list(blank))
        for c in range(int(b.first * scale), int(b.last * scale) + 1):
            row[c] = "|" if c in synced else "#"
    spans = [f"{o}..{o + n - 1}" for o, n, _ in rows]
    wide = max(map(len, spans))
    lines = [
        f"{span.rjust(wide)}  {''.join(row)}  {name}"
        for span, ((_, _, name), row) in zip(spans, rows.items(), strict=True)
    ]
    return "\n".join([f"{'bytes'.rjust(wide)}  program order ->", *lines])


def memory_map_svg(t: Timeline, step: str = "", marks: Callable[[str], str] = lambda _: "") -> str:
    """The picture as one `<svg>` element; boxes overlap only where their bytes are shared. Arcs
    join the accesses that a sync orders. `step`: what a step is called, where it is no statement;
    `marks`: what a buffer is called elsewhere on the page."""
    canvas = Canvas()
    left = 10 + max(text_width(nbytes_text(v)) for v in (t.nbytes, 1023))
    top = 46.0
    high = _HEIGHT / max(t.nbytes, 1)
    bottom, right = top + _HEIGHT, left + _STEP * t.nsteps
    canvas.line(left, bottom, right, bottom, kind="axis")
    canvas.line(left, top, left, bottom, kind="axis")
    canvas.text(left - 6, bottom, "0 B", end=True)
    canvas.text(left - 6, top + 8, nbytes_text(t.nbytes), end=True)
    colours = {name: colour(i) for i, name in enumerate(_names(t))}
    for b in t.boxes:
        x, y = left + _STEP * b.first, bottom - high * (b.offset + b.nbytes)
        tip = f"{b.name}: bytes {b.offset}..{b.offset + b.nbytes - 1} ({nbytes_text(b.nbytes)})"
        wide = _STEP * (b.last - b.first + 1)
        canvas.rect(x, y, wide, high * b.nbytes, kind=colours[b.name], tip=tip, marks=marks(b.name))
    if step:
        for i in range(t.nsteps):
            canvas.text(left + _STEP * i + 3, bottom + 14, f"{step}{i}")
    for m in t.marks:
        _draw_sync(canvas, m, left, top, bottom)
    unnamed = dict.fromkeys(_names(t))
    taken: list[tuple[float, float, float]] = []
    for b in t.boxes:
        x, y = left + _STEP * b.first + 3, bottom - high * (b.offset + b.nbytes) + _LABEL
        end = x + text_width(b.name)
        is_free = all(end <= a or z <= x or abs(y - at) >= _LABEL for a, z, at in taken)
        if is_free and high * b.nbytes >= _LABEL:
            canvas.text(x, y, b.name, on=colours[b.name])
            taken.append((x, end, y))
            unnamed.pop(b.name, None)
    below = [f"#{m.id} {m.kind}: {m.why}" for m in t.marks]
    if unnamed:
        below.append(f"without room for a name: {', '.join(unnamed)}")
    for i, line in enumerate(below):
        canvas.text(left, bottom + (36 if step else 22) + 15 * i, line)
    return canvas.svg()


def _draw_sync(canvas: Canvas, m: SyncMark, left: float, top: float, bottom: float) -> None:
    """A line at the sync's step, and an arc from each access before it to the one behind it."""
    x = left + _STEP * (m.step + 0.5)
    canvas.line(x, top - _ARCS, x, bottom + 6, kind="sync", tip=f"#{m.id} {m.kind}: {m.why}")
    canvas.text(x - 8, top - _ARCS - 4, f"#{m.id}")
    for o in m.orders:
        a, b = (left + _STEP * (s + 0.5) for s in (o.before, o.after))
        canvas.arc(a, b, top, 2 * (_ARCS - 2), kind="order", tip=f"#{m.id} orders {o.what}")


def _names(t: Timeline) -> list[str]:
    return list(dict.fromkeys(b.name for b in t.boxes))
