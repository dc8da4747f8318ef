"""The fusion graph as a picture: one band a kernel, layers of values in it, edges downward."""

from __future__ import annotations

from dataclasses import dataclass

from fusewright.fusion.ir import Tensor
from fusewright.report.cut import Band, Cut, op_text, type_text
from fusewright.report.svg import PALETTE, Canvas, text_width

_NODE_HEIGHT = 42.0
_ROW = 66.0
_GAP = 16.0
_MARGIN = 12.0
_TITLE = 22.0


@dataclass(frozen=True, slots=True)
class Place:
    """Where a value is drawn: the box's left top corner and its width, in pixels."""

    x: float
    y: float
    width: float

    @property
    def middle(self) -> float:
        """The x at which edges arrive and leave."""
        return self.x + self.width / 2


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


def place(cut: Cut) -> tuple[dict[Tensor, Place], list[tuple[float, float]]]:
    """A place for every value, and each band's top and height.

    Within a row values stand in the order of the mean place of what they read (Sugiyama's
    barycentre rule, one sweep downward), which leaves few crossings in graphs of this size.
    """
    places: dict[Tensor, Place] = {}
    extents: list[tuple[float, float]] = []
    y = _MARGIN
    for band in cut.bands:
        rows = layers(band)
        height = _TITLE + len(rows) * _ROW
        for i, row in enumerate(rows):
            _place_row(row, y + _TITLE + i * _ROW, places)
        extents.append((y, height))
        y += height + _GAP
    return places, extents


def _place_row(row: list[Tensor], y: float, places: dict[Tensor, Place]) -> None:
    wish = {t: _wish(t, places) for t in row}
    x = 2 * _MARGIN
    for t in sorted(row, key=lambda t: wish[t]):
        width = max(map(text_width, _lines(t))) + 14
        x = max(x, wish[t] - width / 2)
        places[t] = Place(x, y, width)
        x += width + _GAP


def _wish(t: Tensor, places: dict[Tensor, Place]) -> float:
    above = [places[o].middle for o in t.op.operands if o in places]
    return sum(above) / len(above) if above else 0.0


def _lines(t: Tensor) -> tuple[str, str]:
    return f"{t.name} = {op_text(t)}", type_text(t)


def _tip(t: Tensor) -> str:
    return repr(t) if t.source is None else f"{t!r}\n{t.source}"


def graph_svg(cut: Cut) -> str:
    """The picture as one `<svg>` element."""
    places, extents = place(cut)
    width = max((p.x + p.width for p in places.values()), default=0.0)
    canvas = Canvas()
    for i, (band, (y, height)) in enumerate(zip(cut.bands, extents, strict=True)):
        canvas.rect(_MARGIN, y, width, height, fill=PALETTE[i % len(PALETTE)])
        canvas.text(_MARGIN + 8, y + 15, band.label, bold=True)
    for t, at in places.items():
        for operand in dict.fromkeys(t.op.operands):
            if operand in places:
                source = places[operand]
                canvas.flow(source.middle, source.y + _NODE_HEIGHT, at.middle, at.y)
    for t, at in places.items():
        canvas.rect(at.x, at.y, at.width, _NODE_HEIGHT, fill="#ffffff", tip=_tip(t))
        for i, content in enumerate(_lines(t)):
            canvas.text(at.x + 7, at.y + 17 + 15 * i, content)
    return canvas.svg()
