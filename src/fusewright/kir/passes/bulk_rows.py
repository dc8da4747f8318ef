"""What threads copy element by element, as rows that one bulk copy moves each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fusewright.core.conditions import And, all_of
from fusewright.core.expr import Expr, Var, add, mul
from fusewright.errors import ScheduleError
from fusewright.kir.analysis.lanes import (
    Array,
    Known,
    evaluate_lanes,
    holds,
    is_known,
    split_unknown,
    thread_values,
)
from fusewright.kir.ir import Buffer, For, Kernel, Load, Store
from fusewright.target import BULK_ALIGNMENT


@dataclass(frozen=True, slots=True, eq=False)
class StagedLoad:
    """A load from global memory that a store to shared memory follows, inside `loops`."""

    load: Load
    store: Store
    loops: tuple[For, ...]


@dataclass(frozen=True, slots=True, eq=False)
class BulkRows:
    """`count` rows of `size` elements: row `i` goes from `source + i*source_step` of `src` to
    `target + i*target_step` of `dst`."""

    dst: Buffer
    src: Buffer
    count: int
    size: int
    target: int
    target_step: int
    source: Expr
    source_step: int


def rows_of(pairs: Sequence[StagedLoad], kernel: Kernel) -> BulkRows:
    """The rows that the copies of one buffer make up, over all threads of a block.

    Raises ScheduleError when they are no rows of equal size at equal distances, when a row is not
    a multiple of 16 bytes, or when which elements are copied is not known at compile time.
    """
    dst, src = pairs[0].store.dst, pairs[0].load.src
    found = [_elements(p, kernel) for p in pairs]
    rest = found[0].rest
    if any(p.load.src is not src or f.rest != rest for p, f in zip(pairs, found, strict=True)):
        raise _refusal(dst, "its elements come from several places")
    targets = np.concatenate([f.targets for f in found])
    sources = np.concatenate([f.sources for f in found])
    moves: Array = np.unique(np.stack((targets, sources), axis=1), axis=0)
    if not len(moves) or np.unique(moves[:, 0]).size != len(moves):
        raise _refusal(dst, "an element is copied twice, or none is")
    breaks = np.flatnonzero(np.any(np.diff(moves, axis=0) != 1, axis=1)) + 1
    starts = np.concatenate(([0], breaks))
    sizes = np.diff(np.concatenate((starts, [len(moves)])))
    steps: Array = np.unique(np.diff(moves[starts], axis=0), axis=0)
    if np.unique(sizes).size != 1 or len(steps) > 1:
        raise _refusal(dst, f"its {len(starts)} rows differ in length or distance")
    to, source = (int(x) for x in moves[0])
    to_step, source_step = (int(x) for x in steps[0]) if len(steps) else (0, 0)
    nbytes = int(sizes[0]) * dst.dtype.nbytes
    if nbytes % BULK_ALIGNMENT:
        raise _refusal(dst, f"its rows are {nbytes} bytes, not a multiple of {BULK_ALIGNMENT}")
    start = add(source, rest)
    return BulkRows(dst, src, len(starts), int(sizes[0]), to, to_step, start, source_step)


@dataclass(frozen=True, slots=True, eq=False)
class _Elements:
    """The elements copied, in shared memory and in global memory; `rest` is to be added to the
    latter, the same for all threads and iterations."""

    targets: Array
    sources: Array
    rest: Expr


def _elements(p: StagedLoad, kernel: Kernel) -> _Elements:
    known: dict[Var, Array] = thread_values(kernel)
    for i, loop in enumerate(p.loops):
        extent = loop.extent.interval[1]
        if extent is None or loop.extent.interval[0] != extent:
            raise _refusal(p.store.dst, f"the loop over {loop.var} has the extent {loop.extent}")
        shape = [1] * (len(p.loops) + 1)
        shape[i] = extent
        known[loop.var] = np.arange(extent, dtype=np.int64).reshape(shape)
    inside = frozenset(loop.var for loop in p.loops)
    split = split_unknown(p.load.index, known, inside)
    if split is None or not is_known(p.store.index, known):
        raise _refusal(p.store.dst, f"where it is copied from, {p.load.index}, is not affine")
    where = _where(p, known)
    shape = np.broadcast_shapes(where.shape, (1,) * len(p.loops) + (kernel.nthreads,))
    shape = np.broadcast_shapes(shape, *(known[loop.var].shape for loop in p.loops))
    chosen = np.broadcast_to(where, shape)
    lanes = np.arange(p.load.width)
    out: list[Array] = []
    for e in (p.store.index, split[0]):
        values = np.broadcast_to(evaluate_lanes(e, known), shape)[chosen]
        out.append((values[:, None] + lanes).reshape(-1))
    return _Elements(out[0], out[1], add(p.load.index, mul(split[0], -1)))


def _where(p: StagedLoad, known: Known) -> Array:
    """Which threads and iterations copy anything."""
    if p.load.predicate != p.store.predicate and p.load.fill is not None:
        raise _refusal(p.store.dst, "some elements are filled in, not copied")
    condition = all_of((p.load.predicate, p.store.predicate))
    for part in condition.parts if isinstance(condition, And) else (condition,):
        if not is_known(part, known):
            raise _refusal(p.store.dst, f"which elements are copied depends on '{part}'")
    return np.asarray(holds(condition, known).may)


def _refusal(buffer: Buffer, what: str) -> ScheduleError:
    return ScheduleError(
        f"{buffer} cannot be filled by bulk copies: {what}; they move whole rows of a multiple of "
        f"{BULK_ALIGNMENT} bytes, so let sizes divide, or use cache_after(by='cp_async')"
    )
