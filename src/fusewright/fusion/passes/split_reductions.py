"""Large reductions with few results become two, so that they fill the chip.

    sum(x, R)  ->  sum(sum(reshape(pad(x), (.., P, Q)), Q), P)
    sum(x, R)  ->  sum(sum(reshape(pad(x), (Q, P, ..)), Q), P)     of rows that are dealt

Parts are contiguous runs. Down the slow axes rows are dealt to them in turn where runs would be
short or unaligned: parts then differ by a row at most, and all rows of a part begin alike. The
number of parts follows from shapes and the target, never from occupancy, so that results are the
same from run to run.
"""

from __future__ import annotations

import math

from fusewright.core.expr import Int, constant_value
from fusewright.core.identities import reduction_identity
from fusewright.fusion import build
from fusewright.fusion.ir import Fusion, Input, Pointwise, Reduce, Tensor
from fusewright.fusion.partition import Partition
from fusewright.fusion.passes.cse import cse
from fusewright.fusion.passes.cuts import parts_of_rows
from fusewright.fusion.passes.large_inputs import large_inputs, period_of_rows
from fusewright.fusion.passes.rebuild import rebuild
from fusewright.target import Target

LEAST_PART = 8192
"""Elements that a part should have at least: below, the second pass costs more than it gains."""
LEAST_ROWS = 512
"""Rows that a part of slow axes should have at least."""
LEAST_TOTAL = 1 << 18
"""Elements that a tensor must have to be worth a second kernel."""
CACHED_TOTAL = 1 << 22
"""Elements that a cache holds: narrow blocks then read them as fast as wide ones."""
BYTES_PER_ROW = 512
"""Bytes of a row that a block takes side by side when the reduced axes are the slow ones: a vector
for every lane."""
EVEN_SHARE = 1 / 8
"""The part of the wanted number by which parts may be more or fewer so that all are full."""
NARROW_COLUMNS = 32
"""The fewest columns of a block that still reads whole lines."""


def split_reductions(fusion: Fusion, target: Target) -> Fusion:
    """Splits reductions that would run in fewer blocks than the target has multiprocessors.

    checks:   constant sizes only; a reduction whose operand is needed again afterwards in the same
              shape is split as well: its operand is then read twice, by more blocks
    order:    after decompose, before the fusion is cut into kernels

    Parts are summed in the compute dtype and stored in it between the two kernels. Reductions of
    one value along the same axes share its parts, so that one kernel reads them once.
    """

    def replace(t: Tensor, operands: tuple[Tensor, ...]) -> Tensor | None:
        if not isinstance(t.op, Reduce):
            return None
        parts = parts_of_reduction(t, target)
        if parts == 1:
            return None
        whole = _split(t, build.cast(operands[0], t.dtype.compute), parts)
        return build.cast(whole, t.dtype)

    return cse(rebuild(fusion, replace))


def parts_of_reduction(t: Tensor, target: Target) -> int:
    """How many parts a reduction is split into; 1 for none."""
    assert isinstance(t.op, Reduce)
    source = t.op.operands[0]
    sizes = [constant_value(e) for e in source.shape]
    if any(n is None or n == 0 for n in sizes):
        return 1
    reduced = math.prod(sizes[a] or 1 for a in t.op.axes)
    kept = math.prod(n or 1 for a, n in enumerate(sizes) if a not in t.op.axes)
    side_by_side = BYTES_PER_ROW // _nbytes(t)
    if reduced * kept <= CACHED_TOTAL:
        side_by_side = NARROW_COLUMNS
    blocks = kept if is_inner(source, t.op.axes) else -(-kept // side_by_side)
    wanted = 2 * target.multiprocessors // max(blocks, 1)
    least = LEAST_PART if is_inner(source, t.op.axes) else LEAST_ROWS
    if reduced * kept < LEAST_TOTAL:
        return 1
    lengths = [sizes[a] or 1 for a in t.op.axes]
    wanted = max(1, min(wanted, reduced // least))
    near = parts_near(lengths, wanted)
    is_close = abs(near - wanted) <= wanted * EVEN_SHARE
    if is_inner(source, t.op.axes) or (is_close and not _are_dealt(t, near)):
        return near
    step = _period(t)
    step = step if step <= 2 * wanted else 1
    return parts_of_rows(lengths, max(wanted, step), step)


def _are_dealt(t: Tensor, parts: int) -> bool:
    """Whether rows go to so many parts in turn: down the slow axes, where a run would be short
    or begin where vectors cannot. Runs that are neither take fewer instructions to address."""
    assert isinstance(t.op, Reduce)
    source = t.op.operands[0]
    if parts == 1 or is_inner(source, t.op.axes):
        return False
    number = math.prod(constant_value(source.shape[a]) or 1 for a in t.op.axes)
    return number % parts != 0 or _period(t) > 1


def _period(t: Tensor) -> int:
    """After how many rows of slow axes vectors begin where they did."""
    assert isinstance(t.op, Reduce)
    behind = t.op.operands[0].shape[t.op.axes[-1] + 1 :]
    return period_of_rows(math.prod(constant_value(e) or 1 for e in behind), _nbytes(t))


def _nbytes(t: Tensor) -> int:
    """Bytes of an element of the narrowest large input behind a reduction."""
    source = t.op.operands[0]
    return min((x.dtype.nbytes for x in large_inputs(t)), default=source.dtype.nbytes)


def parts_near(sizes: list[int], wanted: int) -> int:
    """A number of parts within a factor of two of `wanted` that divides the product of the sizes,
    so that no part is padded; where possible one whose parts are whole slices of the first axes
    that the part's length reaches, so that they need no division to address. `wanted` when none
    is."""
    if wanted <= 1:
        return 1
    total = math.prod(sizes)
    for candidates in (whole_slices(sizes), range(-(-wanted // 2), 2 * wanted + 1)):
        near = [d for d in candidates if wanted <= 2 * d and d <= 2 * wanted and total % d == 0]
        if near:
            return min(near, key=lambda d: (abs(d - wanted), d))
    return wanted


def whole_slices(sizes: list[int]) -> list[int]:
    """The numbers of parts that are whole slices of the first axes that a part's length reaches."""
    total = math.prod(sizes)
    parts: list[int] = []
    inner = 1
    for size in reversed(sizes):
        parts += [total // (inner * d) for d in divisors(size)]
        inner *= size
    return parts


def divisors(n: int) -> list[int]:
    """The divisors of a positive number, ascending."""
    low = [d for d in range(1, math.isqrt(n) + 1) if n % d == 0]
    return low + [n // d for d in reversed(low) if d * d != n]


def is_inner(source: Tensor, axes: tuple[int, ...]) -> bool:
    """Whether the fastest axis of the operand in memory is reduced."""
    behind = source
    while isinstance(behind.op, Pointwise) and behind.op.fn == "cast":
        behind = behind.op.operands[0]
    sized = [a for a, e in enumerate(source.shape) if e != Int(1)]
    if not sized:
        return True
    if not isinstance(behind.op, Input):
        return sized[-1] in axes
    strides = behind.op.strides
    fastest = min(sized, key=lambda a: constant_value(strides[a]) or 1 << 60)
    return fastest in axes


def _split(t: Tensor, source: Tensor, parts: int) -> Tensor:
    """Parts of the slow axes come first in the partial result, so that it is stored in runs."""
    assert isinstance(t.op, Reduce)
    fn, axes = t.op.fn, t.op.axes
    kept = [a for a in range(source.ndim) if a not in axes]
    size = math.prod(constant_value(source.shape[a]) or 1 for a in axes)
    cut = Partition.by_count(size, parts, is_interleaved=_are_dealt(t, parts))
    inner = is_inner(source, axes)
    place = len(kept) if inner else 0
    moved = build.permute(source, (*kept, *axes) if inner else (*axes, *kept))
    run = range(place, place + len(axes))
    spread = build.parts(moved, run, cut, reduction_identity(fn, source.dtype))
    partial = build.reduce(fn, spread, (place + 1 - cut.part_axis,))
    return build.reduce(fn, partial, (place,))
