"""The fusion graph as a picture: one band a kernel, layers of values in it, arrows downward."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fusewright.fusion.ir import Fusion, Tensor
from fusewright.report.cut import Band, Cut, op_text, type_text
from fusewright.report.layered import Layered, layered
from fusewright.report.svg import Canvas, colour, text_width

NODE_HEIGHT = 42.0
_ROW = 70.0
_GAP = 16.0
_MARGIN = 12.0
_TITLE = 24.0
_BELOW = 8.0
FAR = 40
"""Rows over which an edge is still drawn: a longer one is a name at its end. A graph of a model has
thousands of rows, and its inputs would have lines through all of them."""


@dataclass(frozen=True, slots=True)
class DrawnPlace:
    """Where a value is drawn: the box's left top corner and its width, in pixels."""

    x: float
    y: float
    width: float

    @property
    def middle(self) -> float:
        """The x at which edges arrive and leave."""
        return self.x + self.width / 2


@dataclass(frozen=True, slots=True)
class Drawing:
    """Where everything is: boxes, of each band top and height, and for each edge the points that it
    passes, which lie beside all boxes; `far`: what values read from so far above that no edge is
    drawn."""

    places: Mapping[Tensor, DrawnPlace]
    bands: Sequence[tuple[float, float]]
    edges: Mapping[tuple[Tensor, Tensor], Sequence[tuple[float, float]]]
    far: Mapping[Tensor, Sequence[Tensor]]


def layers(band: Band) -> list[list[Tensor]]:
    """The band's values by their longest distance from a value outside the band."""
    depth: dict[Tensor, int] = {}
    rows: list[list[Tensor]] = []
    for t in band.values:
        above = [depth[o] for o in t.op.operands if o in depth]
        depth[t] = max(above, default=-1) + 1
        while len(rows) <= depth[t]:
            rows.append([])
        rows[depth[t]].append(t)
    return rows


def place(cut: Cut) -> Drawing:
    """A place for every value, for each band, and for the edges between values."""
    rows: list[list[Tensor]] = []
    tops: list[float] = []
    extents: list[tuple[float, float]] = []
    y = _MARGIN
    for band in cut.bands:
        found = layers(band)
        tops += [y + _TITLE + i * _ROW for i in range(len(found))]
        height = _TITLE + len(found) * _ROW - _BELOW
        extents.append((y, height))
        rows += found
        y += height + _GAP
    row_of = {t: i for i, row in enumerate(rows) for t in row}
    widths = {t: max(map(text_width, _lines(t))) + 14 for t in row_of}
    reads = [(o, t) for t in row_of for o in dict.fromkeys(t.op.operands) if o in row_of]
    edges = [(o, t) for o, t in reads if row_of[t] - row_of[o] <= FAR]
    far: dict[Tensor, list[Tensor]] = {}
    for o, t in reads:
        if row_of[t] - row_of[o] > FAR:
            far.setdefault(t, []).append(o)
    found = layered(rows, widths, edges)
    places = {
        t: DrawnPlace(2 * _MARGIN + found.left[t], tops[i], widths[t]) for t, i in row_of.items()
    }
    routes = {(a, b): _route(a, b, places, row_of, tops, found) for a, b in edges}
    return Drawing(places, extents, routes, far)


def _route(
    a: Tensor,
    b: Tensor,
    places: Mapping[Tensor, DrawnPlace],
    row_of: Mapping[Tensor, int],
    tops: Sequence[float],
    found: Layered[Tensor],
) -> list[tuple[float, float]]:
    """From below one box to above another, straight down through the rows between."""
    points = [(places[a].middle, places[a].y + NODE_HEIGHT)]
    for i in range(row_of[a] + 1, row_of[b]):
        x = 2 * _MARGIN + found.bends[a][i]
        points += [(x, tops[i]), (x, tops[i] + NODE_HEIGHT)]
    return [*points, (places[b].middle, places[b].y)]


def _lines(t: Tensor) -> tuple[str, str]:
    return f"{t.name} = {op_text(t)}", type_text(t)


def _tip(t: Tensor) -> str:
    return repr(t) if t.source is None else f"{t!r}\n{t.source}"


def graph_svg(cut: Cut, fusion: Fusion, marks: Mapping[Tensor, str] | None = None) -> str:
    """The picture as one `<svg>` element; `marks`: what values are called elsewhere on the page."""
    marks = marks or {}
    drawing = place(cut)
    places = drawing.places
    passes = [x for points in drawing.edges.values() for x, _ in points]
    width = max([*passes, *(p.x + p.width for p in places.values())], default=0.0)
    canvas = Canvas()
    for i, (y, height) in enumerate(drawing.bands):
        canvas.rect(_MARGIN, y, width, height, kind=colour(i))
    for (a, b), points in drawing.edges.items():
        canvas.flow(points, tip=f"{a.name} -> {b.name}")
    for i, (band, (y, _)) in enumerate(zip(cut.bands, drawing.bands, strict=True)):
        canvas.text(_MARGIN + 8, y + 15, band.label, bold=True, on=colour(i))
    results = {t: k for k, t in enumerate(fusion.outputs)}
    for t, at in places.items():
        canvas.begin(marks.get(t, ""))
        kind = "node result" if t in results else "node"
        canvas.rect(at.x, at.y, at.width, NODE_HEIGHT, kind=kind, tip=_tip(t))
        for i, content in enumerate(_lines(t)):
            canvas.text(at.x + 7, at.y + 17 + 15 * i, content)
        canvas.end()
        if t in drawing.far:
            names = ", ".join(o.name for o in drawing.far[t])
            canvas.text(at.x + 4, at.y - 4, f"from {names}, far above", kind="weak")
        if t in results:
            content = "result" if len(results) == 1 else f"result {results[t]}"
            canvas.text(at.x, at.y + NODE_HEIGHT + 12, content, bold=True)
    return canvas.svg()
