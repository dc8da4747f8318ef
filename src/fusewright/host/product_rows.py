"""Results of products whose rows no box holds: which are stored in longer rows."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from fusewright.core.expr import constant_value
from fusewright.fusion.ir import Fusion, MatMul, Pointwise, Reduce, Tensor
from fusewright.fusion.passes.store_results import store_results
from fusewright.host.product_forms import (
    is_by_warps,
    product_forms,
    product_slices,
    sum_of_products_reason,
)
from fusewright.schedule.heuristics.product_plans import STAGED_ITEMSIZE
from fusewright.target import BULK_ALIGNMENT, SECTOR_NBYTES, Target

ROW_UNIT = BULK_ALIGNMENT // STAGED_ITEMSIZE
"""Elements of which a row has whole ones where boxes store it."""
QUAD = 4
"""Lanes that hold neighbours in a row of an instruction's sums, two each."""
ASKED = 3
"""Times that a sector passes the second-level cache of which a store fills a part: it is read,
merged and written."""


def store_in_longer_rows(fusion: Fusion, target: Target) -> Fusion:
    """The fusion with such results in rows of a multiple of `ROW_UNIT` elements."""
    chosen = in_longer_rows(fusion, target)
    return store_results(fusion, chosen, ROW_UNIT) if chosen else fusion


def product_reasons(fusion: Fusion, target: Target) -> Iterator[tuple[str, str]]:
    """What `explain` says of products: the name of each, or of what is stored of it, and the
    rule."""
    yield from product_forms(fusion, target)
    chosen = in_longer_rows(fusion, target)
    for t in fusion.values:
        if t in chosen:
            then = "copied" if t in fusion.outputs else "read"
            why = f"boxes hold no rows of {t.shape[-1]} elements"
            yield t.name, f"it is stored in longer rows, and {then} from there: {why}"


def in_longer_rows(fusion: Fusion, target: Target) -> frozenset[Tensor]:
    """The values of two bytes, each a product or a function of its elements, that are results or
    that reductions read, and whose rows begin inside of words: threads would store single elements
    of 1707. Of even rows they store two, and a copy gains nothing (4096 x 8194 x 1024: 128 us for
    93 and 35 on an H200). They are stored in longer rows where the model says
    that this saves more than a copy takes: a result is copied from there, and where a reduction
    reads them parts of it might have been made in the product's kernel."""
    uses = fusion.uses()
    found: set[Tensor] = set()
    for t in fusion.values:
        if not isinstance(t.op, MatMul) or not _is_whole(t, target):
            continue
        sizes = [constant_value(e) or 0 for e in t.shape]
        y = _left(t, fusion, uses)
        if y is not None and all(sizes) and sizes[-1] % 2 and _saves(math.prod(sizes), target):
            found.add(y)
    return frozenset(found)


def _is_whole(t: Tensor, target: Target) -> bool:
    """Whether warpgroups multiply, and leave all of a product's sums."""
    if sum_of_products_reason(t, target) is not None or is_by_warps(t, target):
        return False
    return product_slices(t, target) == 1


def _left(t: Tensor, fusion: Fusion, uses: Mapping[Tensor, Sequence[Tensor]]) -> Tensor | None:
    """What a product's kernel leaves, if it has two bytes: the one value of what is computed of
    each element that is a result, or what such values that a reduction reads are functions of."""
    inside, behind = {t}, {t}
    for v in fusion.values:
        operands = v.op.operands
        if v is t or behind.isdisjoint(operands):
            continue
        behind.add(v)
        is_function = isinstance(v.op, Pointwise) and v.shape == t.shape
        if is_function and all(o in inside or o not in behind for o in operands):
            inside.add(v)
    ends = [v for v in fusion.values if v in inside and not inside.issuperset(uses[v])]
    ends += [v for v in fusion.outputs if v in inside and v not in ends]
    if len(ends) != 1:
        return None
    (y,) = ends
    if y in fusion.outputs:
        return y if not uses[y] and y.dtype.nbytes == STAGED_ITEMSIZE else None
    if not any(isinstance(u.op, Reduce) for u in uses[y]):
        return None
    while y.dtype.nbytes != STAGED_ITEMSIZE:
        before = [o for o in y.op.operands if o in inside]
        if len(before) != 1 or y is t:
            return None
        (y,) = before
    return y


def _saves(places: int, target: Target) -> bool:
    """Whether a copy takes less than what threads ask the second-level cache for beyond what boxes
    do, by the margin of the model: each lane of a quad stores one value of a row."""
    sectors = 1 + 2 * (QUAD - 1) * STAGED_ITEMSIZE / SECTOR_NBYTES
    known = target.calibration
    asked = ASKED * sectors * SECTOR_NBYTES * places / QUAD
    direct = asked / (known.l2_nbytes_per_clock * target.multiprocessors * target.clock_mhz)
    moved = 2 * STAGED_ITEMSIZE * places / target.memory_nbytes_per_us
    return known.margin * (known.stream_launch_us + moved) < direct
