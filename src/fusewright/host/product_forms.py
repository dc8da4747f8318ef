"""How a product is computed: by matrix instructions, with operands that are copied first, in slices
of its rows that a second kernel sums; or as a sum of products."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from fusewright.core.expr import ZERO, Expr, constant_value
from fusewright.core.substitution import estimate
from fusewright.dtypes import DType, float32
from fusewright.fusion.ir import (
    Fusion,
    MatMul,
    Permute,
    Pointwise,
    Reshape,
    Tensor,
    contiguous_strides,
)
from fusewright.fusion.passes.slice_products import slice_products
from fusewright.fusion.passes.store_operands import store_operands
from fusewright.fusion.passes.swap_products import swap_products
from fusewright.fusion.strided import Strided, box_problem
from fusewright.host.products import view_of
from fusewright.schedule.heuristics.product_plans import (
    DEPTH_NBYTES,
    LARGE_TILE,
    STAGED_ITEMSIZE,
    ProductSizes,
)
from fusewright.schedule.heuristics.product_suffix import PARTS, PLAIN, Suffix
from fusewright.schedule.heuristics.product_times import (
    SPLIT_FORMS,
    least_split_us,
    least_us,
)
from fusewright.schedule.heuristics.warp_plans import least_warp_us
from fusewright.schedule.products import (
    WARP_MMA_DTYPES,
    axis_problem,
    copy_width,
    has_instructions,
    lines_of_row,
    needed_axis,
    rows_copy_problem,
)
from fusewright.target import (
    BULK_ALIGNMENT,
    LINE_NBYTES,
    MAX_BOX_RANK,
    MAX_VECTOR_NBYTES,
    MMA_COLUMNS_UNIT,
    MMA_ROWS,
    WARP_SIZE,
    Feature,
    Target,
)

LEAST_EXTENT = 2
"""Rows and columns: with one, no element of the other operand is used twice, and a sum of products
reads both at the speed of memory."""
EXCHANGED = 1.02
"""How much faster a product of many rows has to be predicted with its operands exchanged: one
formula gives both times, so that most of what it is off by cancels: of 5121 x 5120 x 5120 and
1025 x 6144 x 4096 exchanged ones were predicted 1.09 and 1.06 times as fast, and took 0.96 and 0.89
of the time (one H100, 2026-11-26, `bench.run --suite products`). It has to save a launch, too: an
exchanged result is not written into a join."""
FILLED = 4
"""Tiles for each multiprocessor of a product that is not cut in slices: a part of the last round is
less than what its slices leave to be summed. It saves time and decides nothing: by their predicted
times alone none of 2,082 such products, drawn from 7 x 5 x 7 sizes, would be cut either."""
LEAST_DEPTH = BULK_ALIGNMENT // 2
"""Elements of a row: shorter ones are shorter than what separates rows that a map takes."""
LEAST_SIZE = MMA_ROWS * MMA_COLUMNS_UNIT * (DEPTH_NBYTES // 2)
"""Pairs of numbers in the smallest tile; in a smaller product zeros would be multiplied."""


def product_kernels(target: Target) -> Callable[[Tensor], bool]:
    """Which products matrix instructions compute, as `decompose` asks."""
    return lambda t: sum_of_products_reason(t, target) is None


def products_in_place(target: Target) -> Callable[[Tensor], bool]:
    """Which products matrix instructions compute, reading both operands where they lie."""
    return lambda t: (
        sum_of_products_reason(t, target) is None
        and all(stored_axis(t, i, target) is None for i in (0, 1))
    )


def whole_products(target: Target) -> Callable[[Tensor], bool]:
    """Which products warpgroups compute, of sizes that are known."""
    return lambda t: (
        all(constant_value(e) is not None for e in _extents(t))
        and sum_of_products_reason(t, target) is None
        and not is_by_warps(t, target)
    )


def prepare_products(fusion: Fusion, target: Target) -> Fusion:
    """The products of instructions with operands that maps take, long ones in slices, and those
    that are faster so with their operands in each other's place."""
    stored = store_operands(fusion, lambda t, i: stored_axis(t, i, target), LINE_NBYTES)
    sliced = slice_products(stored, lambda t: product_slices(t, target))
    left = left_dtypes(sliced)
    return swap_products(sliced, lambda t: is_swapped(t, target, left.get(t)))


def left_dtypes(fusion: Fusion) -> dict[Tensor, DType]:
    """For each product the widest dtype in which it, or what is computed of its elements, leaves
    for memory: a sum of 8-bit floats in float32 that is scaled and rounded leaves in 16 bits."""
    uses, found = fusion.uses(), dict[Tensor, DType]()
    for t in reversed(fusion.values):
        readers = uses[t]
        kept = [found[r] for r in readers if r in found]
        if len(kept) < len(readers) or t in fusion.outputs:
            kept.append(t.dtype)
        if isinstance(t.op, MatMul | Pointwise | Permute | Reshape) and kept:
            found[t] = max(kept, key=lambda d: d.nbytes)
    return {t: found[t] for t in fusion.values if isinstance(t.op, MatMul)}


def product_forms(fusion: Fusion, target: Target) -> Iterator[tuple[str, str]]:
    """What `explain` says of the products that are not one kernel that reads its operands where
    they lie: the name of each, and the rule."""
    left = left_dtypes(fusion)
    for t in left:
        why = sum_of_products_reason(t, target)
        if why is not None:
            yield t.name, sum_rule(t, why, target)
            continue
        if is_by_warps(t, target):
            yield from _warp_forms(t, target)
            continue
        if is_swapped(t, target, left[t]):
            few = sizes_of(t).rows <= MMA_ROWS
            why = "it has no more rows than an instruction has"
            rest = "its rows end in the middle of a tile, its columns fit tiles of another width"
            yield t.name, f"its operands are exchanged: {why if few else rest}"
        fast = copied_for_speed(t, target)
        for i, o in enumerate(t.op.operands):
            if (wrong := map_problem(o)) is not None:
                yield t.name, f"its operand {o.name} is copied first, as no map takes it: {wrong}"
            elif (wrong := unread_axis(t, i)) is not None:
                yield t.name, _transposed(o, wrong, target)
            elif i in fast:
                yield t.name, f"its operand {o.name} is copied first, into rows of whole lines"
        if (said := _shared_depth(t, target)) is not None:
            yield t.name, said


def _warp_forms(t: Tensor, target: Target) -> Iterator[tuple[str, str]]:
    """What `explain` says of a product on the instructions of single warps."""
    times = _times_in_place(t, target) if target.has(Feature.WGMMA) else None
    if times is not None:
        own, copied = times
        yield (
            t.name,
            f"single warps multiply it in {own:.1f} us, reading its operands in place; copies for "
            f"tensor maps and warpgroups take {copied:.1f} us",
        )
    for o, wrong in unfit_operands(t, target):
        yield t.name, f"its operand {o.name} is copied first: {wrong}"
    if (said := _shared_depth(t, target)) is not None:
        yield t.name, said


def _transposed(o: Tensor, wrong: str, target: Target) -> str:
    nbytes, us = 2 * _nbytes(o), _copy_us(o, target)
    return f"its operand {o.name} is transposed first ({nbytes} bytes, {us:.1f} us): {wrong}"


def _shared_depth(t: Tensor, target: Target) -> str | None:
    """What `explain` says of a product whose tiles are too few for the chip, with the predicted
    times of all forms; None for others."""
    count = product_slices(t, target)
    if count == 1:
        return None
    sliced, slices = two_kernels(t, target)
    times = [
        (_product_us(t, 1, target), "whole"),
        (sliced, f"{slices} slices and a second kernel"),
        *((_split_us(t, form, target), f"in one kernel {form}") for form in SPLIT_FORMS),
    ]
    said = ", ".join(f"{what} {us:.1f} us" for us, what in times if us < math.inf)
    form = f"{count} slices of its rows are multiplied, then summed"
    return f"{form}: its tiles are too few for the chip ({said}; fw.tune tries all of them)"


def sum_rule(t: Tensor, why: str, target: Target) -> str:
    """What `explain` says of a product that no matrix instruction computes: how much slower that
    is, too, where it is."""
    sizes = sizes_of(t)
    known = target.has(Feature.WGMMA) and sizes.batch * sizes.rows * sizes.columns > 0
    times = sums_us(sizes, target) / least_us(sizes, target) if known else 0
    slower = f", {times:.0f} times slower than matrix instructions" if times >= 2 else ""
    return f"it is a sum of products{slower}: {why}"


def sum_of_products_reason(t: Tensor, target: Target) -> str | None:
    """Why a product is computed as a sum of products; None where matrix instructions do it."""
    if not isinstance(t.op, MatMul) or not has_instructions(t):
        return _no_instructions(t, target)
    if not target.has(Feature.WGMMA) and not multiplied_by_warps(t, target):
        names = " and ".join(dict.fromkeys(o.dtype.name for o in t.op.operands))
        return f"{target} has no matrix instructions for {names}"
    sizes = sizes_of(t)
    m, n, k = sizes.rows, sizes.columns, sizes.depth
    if min(m, n) < LEAST_EXTENT or k < LEAST_DEPTH or m * n * k < LEAST_SIZE:
        return f"{m} x {n} x {k} is too small for matrix instructions"
    unfit = unfit_operands(t, target)
    for o, wrong in unfit:
        if any(constant_value(e) is None for e in o.shape[-2:]):
            return f"no instruction reads its operand {o.name}, of unknown size: {wrong}"
    if unfit and sum(_copy_us(o, target) for o, _ in unfit) >= sums_us(sizes, target):
        names = " and ".join(f"{o.name} ({wrong})" for o, wrong in unfit)
        return f"it is done before {names} would be copied to where a tensor map takes it"
    return None


def unfit_operands(t: Tensor, target: Target) -> list[tuple[Tensor, str]]:
    """The operands that a product does not read where they lie, and why."""
    if is_by_warps(t, target):
        found = ((o, rows_problem(o)) for o in t.op.operands)
    else:
        found = ((o, map_problem(o) or unread_axis(t, i)) for i, o in enumerate(t.op.operands))
    return [(o, wrong) for o, wrong in found if wrong is not None]


def _no_instructions(t: Tensor, target: Target) -> str:
    """Why there are no matrix instructions for a product, and what would change that."""
    names = " and ".join(dict.fromkeys(o.dtype.name for o in t.op.operands))
    why = f"there are no matrix instructions for {names} here"
    if target.has(Feature.WGMMA) and all(o.dtype is float32 for o in t.op.operands):
        return f"{why}; fw.config(float32_matmul='tf32') lets them round its operands"
    return why


def sizes_of(t: Tensor) -> ProductSizes:
    """The sizes of a product; symbolic ones are estimated."""
    o = t.op.operands[0]
    m, n, k = (estimate(e) for e in (*t.shape[-2:], o.shape[-1]))
    first, second = (_lines(t, i) for i in (0, 1))
    down, along = (_is_across(t, i) for i in (0, 1))
    batch = math.prod(map(estimate, t.shape[:-2]))
    return ProductSizes(batch, m, n, k, o.dtype.nbytes, (first, second), (down, along))


def _is_across(t: Tensor, position: int) -> bool:
    """Whether a product reads an operand along an axis of the result: one that lies so, and that
    instructions take so."""
    o = t.op.operands[position]
    return needed_axis(o.dtype, position) is None and fastest_of(o) == (-2, -1)[position]


def _lines(t: Tensor, position: int) -> float:
    """Lines that a row of a box touches in an operand: in one that is stored for the product, 1."""
    o = t.op.operands[position]
    if map_problem(o) is not None or unread_axis(t, position) is not None:
        return 1.0
    return lines_of_row(_lying(o), o.dtype.nbytes)


def sums_us(sizes: ProductSizes, target: Target) -> float:
    """Microseconds of a sum of products at best: a pair takes two loads, and a multiprocessor loads
    for one warp a clock."""
    return 2 * sizes.pairs / (target.multiprocessors * WARP_SIZE * target.clock_mhz)


def _copy_us(o: Tensor, target: Target) -> float:
    """Microseconds of a kernel that stores an operand in other rows."""
    return target.calibration.launch_us + 2 * _nbytes(o) / target.memory_nbytes_per_us


def _nbytes(o: Tensor) -> int:
    """Bytes of an operand, what is repeated along an axis counted once."""
    source = _lying(o)
    once = (e for e, stride in zip(o.shape, source.strides, strict=True) if stride != ZERO)
    return o.dtype.nbytes * math.prod(map(estimate, once))


# --- operands -------------------------------------------------------------------------------------


def _lying(o: Tensor) -> Strided[Tensor]:
    """How an operand lies in memory: a view by strides where it is read, or stored in C order."""
    return view_of(o) or Strided(o, o.shape, contiguous_strides(o.shape))


def map_problem(o: Tensor) -> str | None:
    """Why no tensor map takes an operand where it lies; None where one does."""
    return box_problem(_lying(o), o.dtype.nbytes, is_bound=True)


def unread_axis(t: Tensor, position: int) -> str | None:
    """Why instructions do not read an operand along the axis on which it is contiguous."""
    o = t.op.operands[position]
    return axis_problem(_lying(o), o.dtype, position)


def stored_axis(t: Tensor, position: int, target: Target) -> int | None:
    """Which of the last two axes of an operand is to be the fastest where it is stored for a
    product; None for an operand that is read where it lies."""
    o = t.op.operands[position]
    if is_by_warps(t, target):
        return None if rows_problem(o) is None else fastest_of(o)
    needed = needed_axis(o.dtype, position)
    if map_problem(o) or unread_axis(t, position) or position in copied_for_speed(t, target):
        return fastest_of(o) if needed is None else needed
    return None


def fastest_of(o: Tensor) -> int:
    """Which of the last two axes of an operand is the fastest in memory."""
    source = view_of(o)
    rows, columns = (0, 0) if source is None else map(estimate, source.strides[-2:])
    return -2 if 0 < rows < columns else -1


def copied_for_speed(t: Tensor, target: Target) -> tuple[int, ...]:
    """The positions of the operands that maps take, and that are copied into rows of whole lines
    nevertheless, as the product gains more than the copies take: the fewest that are as good as
    the best."""
    extents = (*t.shape, *(e for o in t.op.operands for e in o.shape))
    if any(constant_value(e) is None for e in extents):
        return ()
    sizes = sizes_of(t)
    apart = [i for i in (0, 1) if sizes.lines[i] > 1]
    if not apart:
        return ()
    margin = target.calibration.product_margin
    us = {copied: _with_copies_us(t, sizes, copied, target) for copied in _subsets(apart)}
    return next(copied for copied in us if us[copied] <= margin * min(us.values()))


def _subsets(positions: Sequence[int]) -> list[tuple[int, ...]]:
    """All of them, small ones first."""
    return [c for n in range(len(positions) + 1) for c in itertools.combinations(positions, n)]


def _with_copies_us(
    t: Tensor, sizes: ProductSizes, copied: tuple[int, ...], target: Target
) -> float:
    """Microseconds of a product, and of copies of some operands into rows of whole lines, each a
    launch more on a stream."""
    first, second = (1.0 if i in copied else n for i, n in enumerate(sizes.lines))
    own = replace(sizes, lines=(first, second))
    product = min(_sliced_us(own, n, target) for n in _counts(own, target))
    copies = sum(_copy_us(t.op.operands[i], target) for i in copied)
    return product + copies + len(copied) * target.calibration.stream_launch_us


# --- single warps ---------------------------------------------------------------------------------


def multiplied_by_warps(t: Tensor, target: Target) -> bool:
    """Whether the instructions of single warps multiply values like a product's operands."""
    kinds = {o.dtype for o in t.op.operands}
    known = len(kinds) == 1 and all(d.name in WARP_MMA_DTYPES for d in kinds)
    return known and target.has(Feature.CP_ASYNC)


def rows_problem(o: Tensor) -> str | None:
    """Why threads do not copy an operand's tiles from where it lies; None where they do."""
    return rows_copy_problem(_lying(o), o.dtype.nbytes)


def is_by_warps(t: Tensor, target: Target) -> bool:
    """Whether the instructions of single warps compute a product: where there are no others, and
    where these read both operands in place, boxes do not, and copies of the operands with the
    instructions of warpgroups are predicted to take longer."""
    if not multiplied_by_warps(t, target):
        return False
    if not target.has(Feature.WGMMA):
        return True
    return _times_in_place(t, target) is not None


def _times_in_place(t: Tensor, target: Target) -> tuple[float, float] | None:
    """Where single warps read operands in place that no map takes and are faster: their
    microseconds, and those of copies and warpgroups; None where they are not."""
    unfit = [o for i, o in enumerate(t.op.operands) if map_problem(o) or unread_axis(t, i)]
    if not unfit or any(rows_problem(o) is not None for o in t.op.operands):
        return None
    sizes, widths = sizes_of(t), _widths(t)
    counts = _counts(sizes, target)
    copied = sum(_copy_us(o, target) for o in unfit)
    copied += min(_sliced_us(sizes, n, target) for n in counts)
    own = min(_by_warps_us(sizes, n, widths, target) for n in counts)
    return (own, copied) if own < copied else None


def _widths(t: Tensor) -> tuple[int, int]:
    """Elements of each operand of a product that threads copy together, 16 bytes of one that is
    stored in rows of whole lines first."""
    found: list[int] = []
    for o in t.op.operands:
        source = _lying(o)
        whole = MAX_VECTOR_NBYTES // o.dtype.nbytes
        found.append(whole if rows_problem(o) else copy_width(source, o.dtype.nbytes))
    first, second = found
    return first, second


def _by_warps_us(sizes: ProductSizes, count: int, widths: tuple[int, int], target: Target) -> float:
    written = STAGED_ITEMSIZE if count == 1 else 0
    return _in_slices_us(sizes, count, target, lambda s: least_warp_us(s, widths, target, written))


# --- operands in each other's place ---------------------------------------------------------------


def is_swapped(t: Tensor, target: Target, left: DType | None = None) -> bool:
    """Whether a product, or each slice of it, is faster with its operands in each other's place:
    tiles have 64 or 128 rows, but any number of columns. So one of no more rows than an instruction
    has reads none that do not exist, and one whose rows end soon behind the beginning of a tile has
    columns that end with theirs. What is computed of it is `left` in that dtype, in its own where
    nothing is said."""
    if not _may_swap(t, target):
        return False
    count = product_slices(t, target)
    is_boxed = (left or t.dtype).nbytes == STAGED_ITEMSIZE
    suffix = PLAIN if count == 1 and is_boxed else PARTS
    return _placed_us(_part(sizes_of(t), count), suffix, target)[1]


def _may_swap(t: Tensor, target: Target) -> bool:
    """Whether all sizes that the choice rests on are known, and warpgroups multiply."""
    known = [constant_value(e) is not None for e in _extents(t)]
    if constant_value(t.shape[-2]) is None or not (sizes_of(t).rows <= MMA_ROWS or all(known)):
        return False
    return sum_of_products_reason(t, target) is None and not is_by_warps(t, target)


def _placed_us(sizes: ProductSizes, suffix: Suffix, target: Target) -> tuple[float, bool]:
    """Microseconds of a product with the operands in those places that are faster, and whether they
    are exchanged: by a margin, but where there are fewer rows than a tile has."""
    own, other = (least_us(s, target, suffix) for s in (sizes, _exchanged(sizes)))
    few = sizes.rows <= MMA_ROWS
    least = other if few else max(EXCHANGED * other, other + target.calibration.launch_us)
    return (other, True) if least < own else (own, False)


def _exchanged(sizes: ProductSizes) -> ProductSizes:
    lines, across = sizes.lines[::-1], sizes.across[::-1]
    return replace(sizes, rows=sizes.columns, columns=sizes.rows, lines=lines, across=across)


# --- slices ---------------------------------------------------------------------------------------


def product_slices(t: Tensor, target: Target) -> int:
    """The slices whose predicted time is the least, 1 for none where that is as good. It follows
    from shapes and the target, so that results are the same from run to run."""
    if any(constant_value(e) is None for e in _extents(t)) or t.ndim + 1 > MAX_BOX_RANK:
        return 1
    us = {n: _product_us(t, n, target) for n in _counts(sizes_of(t), target)}
    best = min(us, key=lambda count: us[count])
    return 1 if us[1] <= target.calibration.product_margin * us[best] else best


def _part(sizes: ProductSizes, count: int) -> ProductSizes:
    """The sizes of a product's slices, if they are more than one, as matrices of a batch."""
    return replace(sizes, batch=sizes.batch * count, depth=sizes.depth // count)


def _extents(t: Tensor) -> tuple[Expr, ...]:
    """Of a product: those of its result and of the axis that is summed over."""
    return (*t.shape, t.op.operands[0].shape[-1])


def _split_us(t: Tensor, form: str, target: Target) -> float:
    """Microseconds where blocks of one kernel share the depth so; infinite where none can."""
    if any(constant_value(e) is None for e in _extents(t)) or is_by_warps(t, target):
        return math.inf
    sizes = sizes_of(t)
    return least_split_us(_exchanged(sizes) if is_swapped(t, target) else sizes, form, target)


def two_kernels(t: Tensor, target: Target) -> tuple[float, int]:
    """Microseconds of the best number of slices that a second kernel sums, and that number;
    infinite where there are none."""
    counts = [n for n in _counts(sizes_of(t), target) if n > 1 and t.ndim + 1 <= MAX_BOX_RANK]
    return min(((_product_us(t, n, target), n) for n in counts), default=(math.inf, 1))


def _counts(sizes: ProductSizes, target: Target) -> list[int]:
    """Numbers of slices that begin where a tensor map may, are no shorter than a tile is deep, and
    are no more than there are multiprocessors: one where tiles fill all of these several times."""
    unit = BULK_ALIGNMENT // sizes.itemsize
    tiles = sizes.batch * sizes.rows * sizes.columns / LARGE_TILE
    if sizes.depth % unit or tiles > FILLED * target.multiprocessors:
        return [1]
    most = min(target.multiprocessors, max(1, sizes.itemsize * sizes.depth // DEPTH_NBYTES))
    return [d for d in range(1, most + 1) if sizes.depth // unit % d == 0]


def _product_us(t: Tensor, count: int, target: Target) -> float:
    """Microseconds of a product by its instructions, in so many slices."""
    sizes = sizes_of(t)
    if is_by_warps(t, target):
        return _by_warps_us(sizes, count, _widths(t), target)
    return _sliced_us(sizes, count, target)


def fused_us(t: Tensor, suffix: Suffix, target: Target) -> float:
    """Microseconds of a product with what is computed of it, as `prepare_products` has it: copies
    of operands that are stored first, and the product, in slices where the kernel that sums them
    computes the rest."""
    assert isinstance(t.op, MatMul)
    stored = [i for i in (0, 1) if stored_axis(t, i, target) is not None]
    copies = sum(_copy_us(t.op.operands[i], target) for i in stored)
    count, own = product_slices(t, target), sizes_of(t)
    if count > 1 or is_by_warps(t, target):
        return copies + _product_us(t, count, target)
    first, second = (1.0 if i in stored else n for i, n in enumerate(own.lines))
    sizes = replace(own, lines=(first, second))
    return copies + least_us(_exchanged(sizes) if is_swapped(t, target) else sizes, target, suffix)


def aligned_us(t: Tensor, target: Target) -> float:
    """Microseconds of a product alone, in the best number of slices, whose operands would lie in
    rows of whole lines that instructions read in place."""
    sizes = replace(sizes_of(t), lines=(1.0, 1.0))
    return min(_sliced_us(sizes, n, target) for n in _counts(sizes, target))


def _sliced_us(sizes: ProductSizes, count: int, target: Target) -> float:
    """The same of warpgroups, with the operands in those places that are faster: threads store the
    parts that slices leave."""
    suffix = PLAIN if count == 1 else PARTS
    return _in_slices_us(sizes, count, target, lambda s: _placed_us(s, suffix, target)[0])


def _in_slices_us(
    sizes: ProductSizes, count: int, target: Target, us: Callable[[ProductSizes], float]
) -> float:
    """Microseconds of the products of slices, each of which takes `us`, and of the kernel that sums
    them: a slice's products are written and read as float32, the result is written, and what
    follows waits for a launch on a stream, instead of being computed where the products are."""
    if count == 1:
        return us(sizes)
    places = sizes.batch * sizes.rows * sizes.columns
    moved = (2 * float32.nbytes * count + STAGED_ITEMSIZE) * places
    known = target.calibration
    sums = known.sums_launch_us + known.stream_launch_us + moved / target.memory_nbytes_per_us
    return us(_part(sizes, count)) + sums
