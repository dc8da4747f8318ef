"""Places for the vertices of a graph in rows, with room between them for the edges that pass.

Sugiyama, Tagawa and Toda, "Methods for Visual Understanding of Hierarchical System Structures"
(1981): an edge over several rows gets a bend in each row on its way, bends and vertices of a row
are ordered by the mean place of what they are joined to, in sweeps down and up.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)

GAP = 16.0
BEND_WIDTH = 6.0
SWEEPS = 4


@dataclass(frozen=True, slots=True)
class Layered(Generic[K]):
    """`left`: where each vertex begins; `bends`: for each vertex, and each row that its edges
    cross, the x at which they do. Edges of one vertex share their bends."""

    left: Mapping[K, float]
    bends: Mapping[K, Mapping[int, float]]


@dataclass(slots=True, eq=False)
class _LayerSlot:
    """A vertex or a bend in its row; `up` and `down` are what it is joined to."""

    width: float
    up: list[_LayerSlot] = field(default_factory=lambda: list[_LayerSlot]())
    down: list[_LayerSlot] = field(default_factory=lambda: list[_LayerSlot]())
    rank: int = 0
    x: float = 0.0

    @property
    def middle(self) -> float:
        return self.x + self.width / 2


def layered(
    rows: Sequence[Sequence[K]], widths: Mapping[K, float], edges: Sequence[tuple[K, K]]
) -> Layered[K]:
    """The places of the vertices of rows, top row first; edges that do not lead down are left
    aside."""
    row_of = {k: i for i, row in enumerate(rows) for k in row}
    slots = {k: _LayerSlot(widths[k]) for row in rows for k in row}
    lines = [[slots[k] for k in row] for row in rows]
    bends: dict[K, dict[int, _LayerSlot]] = {k: {} for k in slots}
    for a, b in edges:
        if row_of[a] >= row_of[b]:
            continue
        above = slots[a]
        for i in range(row_of[a] + 1, row_of[b]):
            if i not in bends[a]:
                bends[a][i] = _LayerSlot(BEND_WIDTH)
                lines[i].append(bends[a][i])
                _join(above, bends[a][i])
            above = bends[a][i]
        _join(above, slots[b])
    _order(lines)
    _spread(lines)
    crossed = {k: {i: s.middle for i, s in own.items()} for k, own in bends.items()}
    return Layered({k: s.x for k, s in slots.items()}, crossed)


def _join(above: _LayerSlot, below: _LayerSlot) -> None:
    above.down.append(below)
    below.up.append(above)


def _order(lines: Sequence[list[_LayerSlot]]) -> None:
    """Sorts every row by the mean rank of what its slots are joined to."""
    _number(lines)
    for sweep in range(SWEEPS):
        down = sweep % 2 == 0
        for line in lines if down else reversed(lines):
            mean = {s: _mean([n.rank for n in (s.up if down else s.down)], s.rank) for s in line}
            line.sort(key=lambda s: mean[s])
            _number([line])


def _number(lines: Sequence[list[_LayerSlot]]) -> None:
    for line in lines:
        for rank, slot in enumerate(line):
            slot.rank = rank


def _spread(lines: Sequence[Sequence[_LayerSlot]]) -> None:
    """Slots stand below the middle of what they read, as far as their neighbours allow."""
    for line in lines:
        x = 0.0
        for s in line:
            wish = _mean([n.middle for n in s.up], x + s.width / 2)
            s.x = max(x, wish - s.width / 2)
            x = s.x + s.width + GAP


def _mean(values: Sequence[float], otherwise: float) -> float:
    return sum(values) / len(values) if values else otherwise
