"""Large reductions with few results become two, so that they fill the chip.

sum(x, R)  ->  sum(sum(parts(x, R), Q), P)
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from fusewright.core.expr import ONE
from fusewright.core.identities import reduction_identity
from fusewright.fusion import build
from fusewright.fusion.inputs_behind import MAX_VISITS, in_memory_order, whole_inputs
from fusewright.fusion.ir import Fusion, Parts, Pointwise, Reduce, Scalar, Tensor, constant_shape
from fusewright.fusion.partition import Partition
from fusewright.fusion.partitioning import (
    LEAST_TOTAL,
    PartitionFacts,
    fit_cluster,
    fit_shared_memory,
    is_read_again,
    large_inputs,
    might_hold,
    to_fill,
)
from fusewright.fusion.passes.cse import cse
from fusewright.fusion.passes.rebuild import rebuild
from fusewright.target import LINE_NBYTES, SECTOR_NBYTES, Target

STORED_SHARE = 1 / 8
"""Of the bytes of an operand, what its slow axes' results may take between two kernels: as much as
runs of 8 bytes, a quarter of a sector, lose at the very least."""


def split_reductions(fusion: Fusion, target: Target, *, may_hold: bool = False) -> Fusion:
    """Splits reductions that would run in fewer blocks than the target has multiprocessors.

    checks:   constant sizes only; a reduction whose operand is needed again afterwards in the same
              shape is split as well, unless shared memory holds it, with `may_hold` unless blocks
              of a cluster might: its operand is then read twice, by more blocks
    order:    after decompose, before the fusion is cut into kernels

    Parts are summed in the compute dtype and stored in it between the two kernels. Reductions of
    one value along the same axes share its parts, so that one kernel reads them once.
    """

    def replace(t: Tensor, operands: tuple[Tensor, ...]) -> Tensor | None:
        if not isinstance(t.op, Reduce) or is_of_parts(t.op.operands[0]):
            return None
        (source,) = operands
        if isinstance(source.op, Parts) and source.op.partition.is_interleaved:
            return None
        again = _at_once(t, source, target)
        if again is not None:
            return again
        axes = _memory_order(t.op.operands[0], t.op.axes)
        facts = PartitionFacts.of(t.op.operands[0], axes)
        partition = None if facts is None else to_fill(facts, target)
        if facts is None or partition is None:
            return None
        if is_held(t, facts, fusion, target, may_hold=may_hold):
            return None
        return in_two_steps(t, operands[0], partition, axes, parts_last=facts.is_inner)

    return cse(rebuild(_slow_axes_first(fusion, target), replace))


def _memory_order(source: Tensor, axes: tuple[int, ...]) -> tuple[int, ...]:
    sized = [a for a in axes if source.shape[a] != ONE]
    ordered = iter(in_memory_order(source, sized, lambda v: v.op.operands))
    return tuple(next(ordered) if a in sized else a for a in axes)


def is_held(
    t: Tensor, facts: PartitionFacts, fusion: Fusion, target: Target, *, may_hold: bool = False
) -> bool:
    """Whether the operand of a reduction is needed again, and shared memory, that of a cluster for
    rows, holds it together with what others reduce along the same axes; with `may_hold`, whether
    blocks of a cluster might."""
    if not is_read_again(t, facts.total, fusion):
        return False
    beside = (v for v in fusion.values if isinstance(v.op, Reduce) and _run_alike(v, t))
    inputs = {x for v in beside for x in large_inputs(v.op.operands[0])}
    nbytes = sum(x.dtype.nbytes for x in inputs)
    if may_hold:
        return might_hold(facts, min(nbytes, t.op.operands[0].dtype.compute.nbytes), target)
    fits = fit_cluster if facts.is_inner else fit_shared_memory
    return fits(facts, nbytes, target)


def _run_alike(a: Tensor, b: Tensor) -> bool:
    """Whether two reductions have operands of one shape and reduce the same axes of them."""
    assert isinstance(a.op, Reduce) and isinstance(b.op, Reduce)
    return a.op.axes == b.op.axes and a.op.operands[0].shape == b.op.operands[0].shape


def _at_once(t: Tensor, source: Tensor, target: Target) -> Tensor | None:
    """A reduction of what results of parts were reduced to, as one reduction of these, where they
    are few; None for other values."""
    assert isinstance(t.op, Reduce)
    first = source.op
    if not isinstance(first, Reduce) or first.fn != t.op.fn or not is_of_parts(first.operands[0]):
        return None
    (partial,) = first.operands
    kept = [a for a in range(partial.ndim) if a not in first.axes]
    axes = tuple(sorted((*first.axes, *(kept[a] for a in t.op.axes))))
    facts = PartitionFacts.of(partial, axes)
    is_small = facts is not None and to_fill(facts, target) is None
    return build.reduce(t.op.fn, partial, axes) if is_small else None


def _slow_axes_first(fusion: Fusion, target: Target) -> Fusion:
    """Reduces slow axes before the fast ones where axes that are kept lie between them and the run
    in memory that is reduced is shorter than a line: neighbours are read side by side then, and
    the few results of the slow axes are reduced again. The same where inputs are fast along
    different axes that are reduced: of what is fast along those that the first step keeps, and what
    is not, tiles can be read. Where the reduction is not split anyway, and nothing needs its
    operand again, the results of the first step have to be few beside what is read.

    rewrite:  sum(x, (0, 2))      ->  sum(sum(x, 0), 1)          x of (100000, 124, 4)
              sum(x * y, (0, 1))  ->  sum(sum(x * y, 0), 0)      x of strides (1, m)
    """

    def replace(t: Tensor, operands: tuple[Tensor, ...]) -> Tensor | None:
        fast = short_run(t) or _one_of_crossed(t)
        if not fast or not isinstance(t.op, Reduce) or _is_reduced_part(t):
            return None
        facts = PartitionFacts.of(t.op.operands[0], t.op.axes)
        slow = tuple(a for a in t.op.axes if a not in fast)
        if facts is None or not (
            to_fill(facts, target)
            or (leaves_little(t, slow, 1) and not is_read_again(t, facts.total, fusion))
        ):
            return None
        first = build.reduce(t.op.fn, build.cast(operands[0], t.dtype.compute), slow)
        left = [a for a in range(t.op.operands[0].ndim) if a not in slow]
        again = tuple(left.index(a) for a in fast)
        return build.cast(build.reduce(t.op.fn, first, again), t.dtype)

    return rebuild(fusion, replace)


def leaves_little(t: Tensor, axes: Sequence[int], results: int) -> bool:
    """Whether what so many reductions like this one store over these axes of the operand alone, and
    another kernel reads, is little beside the operand, which is worth a second kernel."""
    (source,) = t.op.operands
    sizes = constant_shape(source)
    if sizes is None or math.prod(sizes) < LEAST_TOTAL:
        return False
    moved = 2 * results * t.dtype.compute.nbytes
    return moved <= STORED_SHARE * source.dtype.nbytes * math.prod(sizes[a] for a in axes)


def short_run(t: Tensor) -> tuple[int, ...]:
    """The last axes of a reduction that a run in memory spans, where kept axes part them from
    others that are reduced and the run is shorter than a line; none otherwise. Axes of one element
    neither make a run nor part others."""
    sizes = constant_shape(t.op.operands[0]) if isinstance(t.op, Reduce) else None
    if sizes is None or not isinstance(t.op, Reduce):
        return ()
    (source,) = t.op.operands
    sized = [a for a, n in enumerate(sizes) if n != 1]
    reduced = [a for a in sized if a in t.op.axes]
    fast: list[int] = []
    while sized and sized[-1] in reduced:
        fast.insert(0, sized.pop())
    if not fast or len(fast) == len(reduced):
        return ()
    nbytes = math.prod(sizes[a] for a in fast) * source.dtype.nbytes
    return tuple(fast) if nbytes < LINE_NBYTES else ()


def _one_of_crossed(t: Tensor) -> tuple[int, ...]:
    """The shortest axis of a reduction along which an input with all axes of its operand is fast
    and has a sector of elements, where another one is fast along another reduced axis; none
    otherwise."""
    sizes = constant_shape(t.op.operands[0]) if isinstance(t.op, Reduce) else None
    if sizes is None or not isinstance(t.op, Reduce):
        return ()
    (source,) = t.op.operands
    whole = whole_inputs(source, lambda v: v.op.operands)
    crossed = {b.fast: SECTOR_NBYTES // b.source.dtype.nbytes for b in whole}
    axes = [a for a, n in crossed.items() if a in t.op.axes and sizes[a] >= n]
    return (min(axes, key=lambda a: sizes[a]),) if len(axes) > 1 else ()


def is_of_parts(t: Tensor) -> bool:
    """Whether a value is computed from results of parts: a few for every multiprocessor."""
    return any(_is_reduced_part(v) for v in _elementwise_behind(t))


def _is_reduced_part(t: Tensor) -> bool:
    source = t.op.operands[0] if isinstance(t.op, Reduce) else None
    return source is not None and any(isinstance(v.op, Parts) for v in _elementwise_behind(source))


def _elementwise_behind(t: Tensor) -> set[Tensor]:
    """A value and those that its elements are computed from by functions of single elements."""
    found, stack = {t}, [t]
    while stack and len(found) <= MAX_VISITS:
        v = stack.pop()
        new = [o for o in v.op.operands if isinstance(v.op, Pointwise) and o not in found]
        found.update(new)
        stack += new
    return found


def in_two_steps(
    t: Tensor,
    source: Tensor,
    partition: Partition,
    axes: tuple[int, ...],
    *,
    parts_last: bool = False,
) -> Tensor:
    """A reduction as one of parts and one of their results, its axes cut in this order. The parts
    come first in the partial result, so that it is stored in runs, or last where the fast axis is
    cut."""
    assert isinstance(t.op, Reduce)
    fn = t.op.fn
    wide = build.cast(source, t.dtype.compute)
    parts = as_parts(wide, axes, partition, reduction_identity(fn, wide.dtype), last=parts_last)
    return build.cast(reduce_in_parts(fn, parts), t.dtype)


def reduce_in_parts(fn: str, parts: Tensor) -> Tensor:
    """Reduces every part, then their results; of one part there is nothing left to reduce."""
    assert isinstance(parts.op, Parts)
    place = parts.op.axes[0]
    axes = tuple(place + a for a in parts.op.partition.place_axes)
    partial = build.reduce(fn, parts, axes)
    if parts.op.partition.count == 1:
        shape = (*partial.shape[:place], *partial.shape[place + 1 :])
        return build.reshape("split_reductions", partial, shape)
    return build.reduce(fn, partial, (place,))


def as_parts(
    t: Tensor, axes: tuple[int, ...], partition: Partition, fill: Scalar, *, last: bool
) -> Tensor:
    """A value with these axes cut in parts and moved before all others, or behind them."""
    kept = tuple(a for a in range(t.ndim) if a not in axes)
    moved = build.permute(t, (*kept, *axes) if last else (*axes, *kept))
    place = len(kept) if last else 0
    return build.parts(moved, range(place, place + len(axes)), partition, fill)
