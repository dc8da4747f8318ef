"""Column reductions beside row reductions: partial results of parts of the rows come first.

    c = sum(f(x), 1);  dx = g(x, c);  dw = sum(h(x), 0)
        ->   dw_p = sum(parts(h(x)), 0);  dw = sum(dw_p, 0)     parts of the rows, interleaved

A block that walks over the rows p, p + P, .. makes their part of dx and of dw_p from one read of x
(the backward of every normalisation); a second, small kernel sums the P parts in fixed order.
"""

from __future__ import annotations

from fusewright.fusion.ir import Fusion, Reduce, Tensor, constant_shape
from fusewright.fusion.partition import Partition
from fusewright.fusion.partitioning import (
    LEAST_TOTAL,
    PartitionFacts,
    beside_rows,
    held_of,
    inputs_of,
    large_inputs,
)
from fusewright.fusion.passes.rebuild import rebuild
from fusewright.fusion.passes.split_reductions import in_two_steps
from fusewright.target import Target


def row_partials(fusion: Fusion, target: Target) -> Fusion:
    """Splits reductions over leading axes in two where a reduction over the other axes reads the
    same tensors.

    checks:   constant sizes; the registers of a block hold a row and the partial results
    order:    after share (common values), before split_reductions, which then finds them short
    """
    alike: dict[tuple[int, ...], list[Tensor]] = {}
    for t in fusion.values:
        sizes = constant_shape(t.op.operands[0]) if isinstance(t.op, Reduce) else None
        if sizes is not None and t.ndim:
            alike.setdefault(sizes, []).append(t)
    wanted: dict[Tensor, Partition] = {}
    for reductions in alike.values():
        wanted |= _partitions(reductions, target)

    def replace(t: Tensor, operands: tuple[Tensor, ...]) -> Tensor | None:
        return in_two_steps(t, operands[0], wanted[t]) if t in wanted else None

    return rebuild(fusion, replace) if wanted else fusion


def _partitions(reductions: list[Tensor], target: Target) -> dict[Tensor, Partition]:
    """How column reductions among those of values of one shape are cut."""
    rows = [t for t in reductions if _axes(t)[-1] == t.op.operands[0].ndim - 1]
    columns = [t for t in reductions if any(_are_beside(t, r) for r in rows)]
    inputs = {x for t in (*columns, *rows) for x in inputs_of(t.op.operands[0])}
    out: dict[Tensor, Partition] = {}
    for t in columns:
        facts = PartitionFacts.of(t.op.operands[0], _axes(t))
        if facts is not None and facts.total >= LEAST_TOTAL:
            held = held_of(inputs, facts.total, facts.kept, len(columns))
            partition = beside_rows(facts, held.blocks(facts.kept), target)
            out |= {} if partition is None else {t: partition}
    return out


def _are_beside(t: Tensor, row: Tensor) -> bool:
    """Whether a reduction is over the leading axes, another one over all others, and both read a
    large input."""
    (source,), first = t.op.operands, len(_axes(t))
    across = _axes(t) == tuple(range(first)) and _axes(row) == tuple(range(first, source.ndim))
    return across and not large_inputs(source).isdisjoint(large_inputs(row.op.operands[0]))


def _axes(t: Tensor) -> tuple[int, ...]:
    assert isinstance(t.op, Reduce)
    return t.op.axes
