"""Ways over all elements of a pointwise group whose tensors lie in different orders of their axes:
the lanes of a thread run along the fast axis of the results, blocks and threads in the order of
another tensor.

    y[a, b, c, 8] = x[a, b, c, 8] + z[b, 8, c, a]      x and y by vectors of 8

    in the order of y    a warp has 32 neighbours of (b, c) at one a: of z elements as far apart as
                         a is long, whose sectors others ask for again a whole array later
    in that of z         a warp has 32 neighbours of (c, a), for each of the 8 lanes side by side

Where the fast axis of one tensor is long in both orders tiles are better; where it has few elements
no tile has sides of whole vectors.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from fusewright.core.expr import Var, is_multiple
from fusewright.core.substitution import estimate
from fusewright.schedule.graph import Dataflow, Stage
from fusewright.schedule.heuristics.common import (
    accessors,
    global_accesses,
    merge_all,
    numel,
    split,
)
from fusewright.schedule.heuristics.sides import elements_apart
from fusewright.schedule.heuristics.space import joined_axes
from fusewright.schedule.parallel import Loop
from fusewright.schedule.propagate import transform_like

MOST_VECTORS = 4
"""Vectors of the fast axis of the results: of more, tiles have whole vectors on both sides."""


@dataclass(frozen=True, slots=True)
class _Layout:
    """A large tensor: how many of its elements neighbours along each axis are apart."""

    steps: Mapping[int, int]

    @property
    def order(self) -> tuple[int, ...]:
        """The axes, outermost in memory first."""
        return tuple(sorted(self.steps, key=lambda k: -self.steps[k]))

    @property
    def fast(self) -> int | None:
        """The axis along which neighbours are adjacent."""
        return next((k for k, step in self.steps.items() if step == 1), None)


def crossed_orders(flow: Dataflow, reference: Stage, width: int) -> Iterator[tuple[Loop, int]]:
    """Loops over all elements with the lanes that they end in, at most `width` of them, which run
    along the fast axis of the results: stores of single elements, 32 bytes a warp, took twice what
    was predicted (uint8, one H100, 2026-11-27)."""
    axes = joined_axes(flow, reference, reference.loops)
    layouts = _layouts(flow, reference, axes)
    lanes = layouts[0].fast if layouts else None
    if lanes is None or estimate(axes[lanes].axis.extent) > MOST_VECTORS * width:
        return
    for order in dict.fromkeys(x.order for x in layouts if x.fast not in (lanes, None)):
        own = next((w for w in _widths(width) if is_multiple(axes[lanes].axis.extent, w)), 1)
        if own > 1:
            outer, vector = split(flow, axes[lanes], own)
            around = [outer if k == lanes else axes[k] for k in order]
            loop = merge_all(flow, [*around, vector])
            assert loop is not None
            yield loop, own


def _widths(most: int) -> Iterator[int]:
    while most > 1:
        yield most
        most //= 2


def _layouts(flow: Dataflow, reference: Stage, axes: list[Loop]) -> list[_Layout]:
    """How large tensors lie in memory, the results first; none where places are not told by one
    variable for each axis, or several accesses read parts of one tensor, each under a condition of
    its own for every lane."""
    size = numel(reference.shape)
    own = [x.axis for x in axes]
    tables: list[dict[int, int]] = []
    with flow.trial():
        reference.loops = tuple(axes)
        transform_like(flow, reference, accessors(flow), align=True)
        found = global_accesses(flow, None, Var("no lane"))
        if len({a.tensor for a in found}) < len(found):
            return []
        for a in sorted(found, key=lambda a: a.tensor is not a.stage):
            if 2 * min(numel(a.tensor.shape), numel(a.stage.shape)) > size:
                told = [x.axis for x in a.stage.loops] == own
                places = enumerate(a.variables) if told else ()
                tables.append(
                    {k: elements_apart(a.address, v) for k, v in places if isinstance(v, Var)}
                )
    is_told = all(len(t) == len(own) for t in tables)
    return [_Layout(t) for t in tables] if is_told else []
