"""Column reductions beside row reductions: partial results of parts of the rows come first.

    c = sum(f(x), 1);  dx = g(x, c);  dw = sum(h(x), 0)
        ->   dw_p = sum(parts(h(x)), 0);  dw = sum(dw_p, 0)     parts of the rows, interleaved

A block that walks over the rows p, p + P, .. makes their part of dx and of dw_p from one read of x
(the backward of every normalisation); a second, small kernel sums the P parts in fixed order.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from fusewright.core.expr import ONE, constant_value
from fusewright.fusion.inputs_behind import MAX_VISITS, fast_kept, in_memory_order
from fusewright.fusion.ir import Fusion, Reduce, Tensor, constant_shape
from fusewright.fusion.partition import Partition
from fusewright.fusion.partitioning import (
    LEAST_TOTAL,
    PartitionFacts,
    beside_rows,
    held_of,
    inputs_of,
    is_read_again,
    large_inputs,
)
from fusewright.fusion.passes.match import reduced_axes
from fusewright.fusion.passes.rebuild import rebuild
from fusewright.fusion.passes.split_reductions import in_two_steps, is_held
from fusewright.target import Target


def row_partials(
    fusion: Fusion, target: Target, shortest: int = 1, *, max_cluster: int = 1
) -> Fusion:
    """Splits reductions over leading axes in two where a reduction over the other axes, of at least
    `shortest` elements, reads the same tensors.

    checks:   constant sizes; the registers of a block, or of a cluster of up to `max_cluster` of
              them, hold a row and the partial results
    order:    after share (common values), before split_reductions, which then finds them short
    """
    alike: dict[tuple[int, ...], list[Tensor]] = {}
    for t in fusion.values:
        sizes = constant_shape(t.op.operands[0]) if isinstance(t.op, Reduce) else None
        if sizes is not None and t.ndim:
            alike.setdefault(sizes, []).append(t)
    wanted: dict[Tensor, Partition] = {}
    for reductions in alike.values():
        wanted |= _partitions(reductions, fusion, target, shortest, max_cluster)

    def replace(t: Tensor, operands: tuple[Tensor, ...]) -> Tensor | None:
        if t not in wanted or not isinstance(t.op, Reduce):
            return None
        return in_two_steps(t, operands[0], wanted[t], t.op.axes)

    return rebuild(fusion, replace) if wanted else fusion


def _partitions(
    reductions: list[Tensor], fusion: Fusion, target: Target, shortest: int, max_cluster: int
) -> dict[Tensor, Partition]:
    """How column reductions among those of values of one shape are cut. Columns that are needed
    again once they are reduced are not cut where shared memory holds them, nor is what is reduced
    from them, and they are never one part: the walk over its rows would begin anew."""
    beside = _beside(reductions)
    inputs = {x for t in (*beside, *beside.values()) for x in inputs_of(t.op.operands[0])}
    out: dict[Tensor, Partition] = {}
    for t, row in beside.items():
        facts = PartitionFacts.of(t.op.operands[0], reduced_axes(t))
        length = _numel(row, _row_axes(row))
        if facts is None or is_held(t, facts, fusion, target):
            continue
        if any(r not in out for r in _behind(t, beside)):
            continue
        if facts.total >= LEAST_TOTAL and length >= shortest:
            held = held_of(inputs, facts.total, length, len(beside))
            once = not is_read_again(t, facts.total, fusion)
            fast = _numel(row, fast_kept(row, lambda v: v.op.operands))
            partition = beside_rows(
                facts,
                held,
                length,
                target,
                fast=fast,
                may_be_whole=once,
                max_cluster=max_cluster,
            )
            out |= {} if partition is None else {t: partition}
    return out


def _behind(t: Tensor, reductions: Collection[Tensor]) -> set[Tensor]:
    """Those of some reductions that the operand of one is computed from."""
    found: set[Tensor] = set()
    seen = {t}
    stack = [t]
    while stack and len(seen) <= MAX_VISITS:
        new = [o for o in stack.pop().op.operands if o not in seen]
        seen.update(new)
        stack += new
        found.update(o for o in new if o in reductions)
    return found


def _beside(reductions: Sequence[Tensor]) -> dict[Tensor, Tensor]:
    """For each reduction the last one that reduces rows which it keeps, where both read a large
    input. Rows are looked up by their axes and their inputs, as pairs are many in a long program.
    """
    last: dict[tuple[int, ...], dict[Tensor, int]] = {}
    large = [large_inputs(t.op.operands[0]) for t in reductions]
    for k, row in enumerate(reductions):
        fast = _fast_axes(row)
        if fast is not None:
            last.setdefault(fast, {}).update(dict.fromkeys(large[k], k))
    beside: dict[Tensor, Tensor] = {}
    for t, inputs in zip(reductions, large, strict=True):
        kept = [rows for fast, rows in last.items() if not set(fast) & set(reduced_axes(t))]
        numbers = [rows[x] for rows in kept for x in inputs if x in rows]
        if numbers:
            beside[t] = reductions[max(numbers)]
    return beside


def _fast_axes(row: Tensor) -> tuple[int, ...] | None:
    """The axes of a row that are longer than one, if they are the fast ones in memory."""
    (source,) = row.op.operands
    sized = [a for a, e in enumerate(source.shape) if e != ONE]
    order = in_memory_order(source, sized, lambda v: v.op.operands)
    fast = [a for a in _row_axes(row) if a in sized]
    return tuple(fast) if sorted(order[len(order) - len(fast) :]) == fast else None


def _row_axes(row: Tensor) -> list[int]:
    """The axes of a row: those that are reduced, and those kept that are faster in memory."""
    return sorted((*reduced_axes(row), *fast_kept(row, lambda v: v.op.operands)))


def _numel(row: Tensor, axes: Sequence[int]) -> int:
    """The elements along some axes of what is reduced, 0 where they are not known."""
    return math.prod(constant_value(row.op.operands[0].shape[a]) or 0 for a in axes)
