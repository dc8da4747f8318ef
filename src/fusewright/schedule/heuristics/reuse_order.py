"""The order of blocks where several accesses read the same bytes far apart.

    y[i, j] = x[i, j] + x[i + 1, j]      rows of 10 MB

In the order of memory a row is read again when the cache holds others by then. Blocks that follow
each other along `i` instead, each a piece of a row, find what the one before has read:

    blocks    (i, 0) (i, 1) .. (i, 5040) (i + 1, 0) ..     ->     (0, j) (1, j) .. (0, j + 1) ..
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from fusewright.core.expr import Expr, Var, is_multiple
from fusewright.core.substitution import estimate, evaluate
from fusewright.schedule.graph import Dataflow, Stage
from fusewright.schedule.heuristics.aligned_rows import aligned
from fusewright.schedule.heuristics.common import (
    GlobalAccess,
    accessors,
    global_accesses,
    merge_all,
    numel,
    split,
)
from fusewright.schedule.heuristics.space import joined_axes
from fusewright.schedule.parallel import Loop
from fusewright.schedule.propagate import transform_like
from fusewright.target import Target


@dataclass(frozen=True, slots=True)
class ReadAgain:
    """The joined axes of results, and the accesses of a group by loops over these, of which several
    read one tensor."""

    axes: tuple[Loop, ...]
    accesses: tuple[GlobalAccess, ...]


def read_again(flow: Dataflow, reference: Stage) -> ReadAgain | None:
    """How a group reads tensors several times; None where it reads each once."""
    reads = [o for s in accessors(flow) for o in s.operands if o.is_input or o.is_viewed]
    if len(dict.fromkeys(o.stored for o in reads)) == len(reads):
        return None
    axes = joined_axes(flow, reference, reference.loops)
    with flow.trial():
        reference.loops = tuple(axes)
        transform_like(flow, reference, accessors(flow), align=True)
        found = global_accesses(flow, None, Var("no lane"))
        own = [a for a in found if tuple(x.axis for x in a.stage.loops) == _axes(axes)]
    return ReadAgain(tuple(axes), tuple(own))


def reuse_first(
    flow: Dataflow, reference: Stage, read: ReadAgain, width: int, block: int, target: Target
) -> Loop | None:
    """A loop over all elements in which blocks of so many elements, in vectors of `width`, run one
    behind the other along the axis that lies between accesses to the same bytes; None where the
    cache keeps them anyway."""
    axes = list(read.axes)
    far = _far_reads(read.accesses, axes, target)
    if far is None:
        return None
    k, period = far
    if k + 1 == len(axes):  # one axis in memory: rows of what lies between the accesses
        axes = [*axes[:k], *split(flow, axes[k], period)]
    inner = merge_all(flow, axes[k + 1 :])
    rows = merge_all(flow, axes[: k + 1])
    if inner is None or rows is None:
        return None
    if not is_multiple(inner.axis.extent, width):
        inner = aligned(flow, rows, inner, inner.axis.extent, width)
    outside, chunk = split(flow, inner, block)
    return merge_all(flow, [*axes[:k], outside, axes[k], chunk])


def _axes(loops: Sequence[Loop]) -> tuple[object, ...]:
    return tuple(x.axis for x in loops)


def _far_reads(
    found: Sequence[GlobalAccess], axes: Sequence[Loop], target: Target
) -> tuple[int, int] | None:
    """The axis along which reads of one tensor are farthest apart, of those that are so far that
    the cache does not hold what a launch touches in between; and what divides all distances."""
    tensors = dict.fromkeys(a.tensor for a in found)
    total = sum(numel(t.shape) * t.dtype.nbytes for t in tensors)
    most = target.calibration.cached_share * target.l2_nbytes
    middle = [2 * estimate(x.axis.extent) // 3 for x in axes]
    out: tuple[int, int] | None = None
    for t in tensors:
        reads = [a for a in found if a.tensor is t and a.tensor is not a.stage and not a.data]
        places = sorted({place_of(a, middle) for a in reads})
        size = max((numel(a.stage.shape) for a in reads), default=0)
        apart = [b - a for a, b in pairwise(places) if b - a < size]  # others read other bytes
        touched = sum(apart) / numel(t.shape) * total
        if not apart or touched <= most:
            continue
        steps = [step_of(reads[0], middle, k) for k in range(len(axes))]
        near = [k for k, step in enumerate(steps) if 0 < step <= sum(apart)]
        if near:
            most = touched
            out = max(near, key=lambda k: steps[k]), math.gcd(*apart)
    return out


def place_of(a: GlobalAccess, values: Sequence[int]) -> int:
    """The place of an access for these values of its loops."""
    known = zip(a.variables, values, strict=True)
    places: dict[Var, int] = {v: n for v, n in known if isinstance(v, Var)}
    return _value(a.address, places)


def step_of(a: GlobalAccess, values: Sequence[int], k: int) -> int:
    """How far an access moves with one step of a loop."""
    ahead = [n - (i == k) for i, n in enumerate(values)]
    return abs(place_of(a, values) - place_of(a, ahead))


def _value(e: Expr, places: dict[Var, int]) -> int:
    try:
        return evaluate(e, places)
    except KeyError:
        return 0  # a size that is not known
