"""Column reductions beside row reductions: partial results of parts of the rows come first.

    c = sum(f(x), 1);  dx = g(x, c);  dw = sum(h(x), 0)
        ->   dw_p = sum(reshape(h(x), (Q, P, C)), 0);  dw = sum(dw_p, 0)

A block that walks over the rows p, p + P, .. makes their part of dx and of dw_p from one read of x
(the backward of every normalisation); a second, small kernel sums the P parts in fixed order. P
follows from shapes and the target, so that results are the same from run to run.
"""

from __future__ import annotations

import math

from fusewright.core.identities import reduction_identity
from fusewright.fusion import build
from fusewright.fusion.ir import Fusion, Reduce, Tensor
from fusewright.fusion.partition import Partition
from fusewright.fusion.passes.cuts import parts_of_rows
from fusewright.fusion.passes.large_inputs import constant_sizes, large_inputs, period_of_rows
from fusewright.fusion.passes.rebuild import rebuild
from fusewright.fusion.persistent_rows import Row, persistent_rows
from fusewright.target import MAX_VECTOR_NBYTES, REGISTER_NBYTES, Target

LEAST_TOTAL = 1 << 18
"""Elements below which the rows are not worth a loop."""
LEAST_ROWS = 4
"""Rows that a block should walk over at least."""


def row_partials(fusion: Fusion, target: Target) -> Fusion:
    """Splits reductions over leading axes in two where the kernel that makes a reduction over the
    trailing axes reads the same tensors.

    checks:   constant sizes; the registers of a block hold a row and the partial results
    order:    after share (common values), before split_reductions, which then finds them short
    """
    rows: dict[tuple[int, ...], list[Tensor]] = {}
    columns: dict[tuple[int, ...], list[Tensor]] = {}
    for t in fusion.values:
        if isinstance(t.op, Reduce):
            sizes = constant_sizes(t.op.operands[0])
            if sizes is not None and math.prod(sizes) >= LEAST_TOTAL:
                leading = t.op.axes == tuple(range(len(t.op.axes))) and t.ndim > 0
                trailing = t.op.axes[-1] == len(sizes) - 1 and len(t.op.axes) < len(sizes)
                if leading or trailing:
                    (columns if leading else rows).setdefault(sizes, []).append(t)
    wanted: dict[Tensor, Partition] = {}
    for sizes, reductions in columns.items():
        chosen = _beside_rows(reductions, rows.get(sizes, []))
        inputs = {x for t in (*chosen, *rows.get(sizes, [])) for x in large_inputs(t)}
        for t in chosen:
            nbytes = sorted(x.dtype.nbytes for x in inputs)
            cut = _cut(t, sizes, len(chosen), nbytes, target)
            if cut is not None:
                wanted[t] = cut
    if not wanted:
        return fusion

    def replace(t: Tensor, operands: tuple[Tensor, ...]) -> Tensor | None:
        return _split(t, operands[0], wanted[t]) if t in wanted else None

    return rebuild(fusion, replace)


def _beside_rows(columns: list[Tensor], rows: list[Tensor]) -> list[Tensor]:
    """The column reductions that read a large input that a row reduction over the other axes reads
    too."""
    found: list[Tensor] = []
    for t in columns:
        assert isinstance(t.op, Reduce)
        first = len(t.op.axes)
        for r in rows:
            assert isinstance(r.op, Reduce)
            if r.op.axes == tuple(range(first, t.op.operands[0].ndim)) and large_inputs(
                t
            ).intersection(large_inputs(r)):
                found.append(t)
                break
    return found


def _cut(
    t: Tensor, sizes: tuple[int, ...], beside: int, inputs: list[int], target: Target
) -> Partition | None:
    """One part of the rows for every block that the chip holds; None where a row of `inputs` (bytes
    an element) and `beside` partial results are too long for the registers of a block, or where
    there are too few rows."""
    assert isinstance(t.op, Reduce)
    count = len(t.op.axes)
    number, length = math.prod(sizes[:count]), math.prod(sizes[count:])
    blocks = blocks_of_rows(length, inputs, beside)
    most = min(blocks * target.multiprocessors, number // LEAST_ROWS)
    parts = parts_of_rows(sizes[:count], most, period_of_rows(length, min(inputs)))
    return Partition.by_count(number, parts, is_interleaved=True) if parts > 1 else None


def blocks_of_rows(length: int, inputs: list[int], beside: int) -> int:
    """Blocks that walk over rows of `length` elements on a multiprocessor: registers hold `beside`
    partial results, the inputs (bytes an element) of this row and the next, and a vector that all
    rows share. 0 where they do not."""
    words = beside + (2 * sum(inputs) + max(inputs)) / REGISTER_NBYTES
    width = MAX_VECTOR_NBYTES // min(inputs)
    vector = math.gcd(length, width)
    is_skewed = 4 * vector <= width
    if is_skewed:
        vector, length = width, -(-(length - 1) // width) * width + width
    ways = persistent_rows(Row(length, min(inputs), words, is_skewed), vector)
    return ways[0].blocks if ways else 0


def _split(t: Tensor, source: Tensor, cut: Partition) -> Tensor:
    assert isinstance(t.op, Reduce)
    fill = reduction_identity(t.op.fn, t.dtype.compute)
    parts = build.parts(build.cast(source, t.dtype.compute), t.op.axes, cut, fill)
    partial = build.reduce(t.op.fn, parts, (0,))
    return build.cast(build.reduce(t.op.fn, partial, (0,)), t.dtype)
