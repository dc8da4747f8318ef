"""Products on matrix instructions: which there are, and what may stand in their kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from fusewright.core.expr import Expr
from fusewright.core.substitution import estimate
from fusewright.fusion.ir import (
    Broadcast,
    Fusion,
    IndexMap,
    Input,
    MatMul,
    Permute,
    Pointwise,
    Reshape,
    Resize,
    Tensor,
    contiguous_strides,
)
from fusewright.fusion.passes.fold_crops import is_crop
from fusewright.fusion.rematerialisable import is_rematerialisable
from fusewright.fusion.strided import Strided, box_problem, strided_view
from fusewright.schedule.products import has_instructions
from fusewright.target import Feature, Target

LEAST_EXTENT = 8
"""Rows, columns and depth from which matrix instructions, 64 rows each, beat sums of products."""
MAX_PRODUCTS = 2
LEAST_SIZE = 1 << 15
"""Pairs of numbers that are worth the mbarriers and maps of a kernel."""


def product_kernels(target: Target) -> Callable[[Tensor], bool]:
    """Which products matrix instructions compute, as `decompose` asks."""
    return lambda t: sum_of_products_reason(t, target) is None


def refused_products(fusion: Fusion, target: Target) -> Iterator[tuple[str, str]]:
    """The products that are computed as sums of products, each with the rule."""
    for t in fusion.values:
        if isinstance(t.op, MatMul) and (why := sum_of_products_reason(t, target)) is not None:
            yield t.name, f"it is a sum of products: {why}"


def sum_of_products_reason(t: Tensor, target: Target) -> str | None:
    """Why a product is computed as a sum of products; None where matrix instructions do it."""
    if not isinstance(t.op, MatMul) or not has_instructions(t):
        return f"there are no matrix instructions for {t.op.operands[0].dtype} here"
    if not target.has(Feature.WGMMA):
        return f"{target} has no products by warpgroups"
    m, n, k = (estimate(e) for e in (*t.shape[-2:], t.op.operands[0].shape[-1]))
    if min(m, n, k) < LEAST_EXTENT or m * n * k < LEAST_SIZE:
        return f"{m} x {n} x {k} is too small for matrix instructions"
    for o in t.op.operands:
        source = view_of(o) or Strided(o, o.shape, contiguous_strides(o.shape))
        wrong = box_problem(source, o.dtype.nbytes, is_bound=True)
        if wrong is not None:
            return f"no tensor map takes its operand {o.name}: {wrong}"
    return None


def view_of(t: Tensor) -> Strided[Tensor] | None:
    """An operand as strides over a value that is stored; None where a view between is none."""

    def strides(v: Tensor) -> tuple[Expr, ...] | None:
        if isinstance(v.op, Input):
            return v.op.strides
        return None if is_reading(v) else contiguous_strides(v.shape)

    return strided_view(t, lambda v: v.op.operands, strides)


def is_reading(t: Tensor) -> bool:
    """Whether a value is only found at other places of its operand."""
    return isinstance(t.op, Broadcast | Permute | Reshape | IndexMap) or is_crop(t)


def has_products(members: Mapping[Tensor, None]) -> bool:
    """Whether a product is among some ops."""
    return any(isinstance(t.op, MatMul) for t in members)


def product_problem(members: Mapping[Tensor, None]) -> str | None:
    """Why no kernel computes these ops with a product among them; None where there is no product or
    one does: elementwise work and transpositions of its result, and of values of its axes."""
    products = [t for t in members if isinstance(t.op, MatMul)]
    if not products:
        return None
    if (problem := _pair_problem(products)) is not None:
        return problem
    operands = operand_views(members)
    for o in (o for p in products for o in p.op.operands):
        if o in members and o not in operands:
            return f"it multiplies {o.name}, which the same kernel computes"
        if o in members and view_of(o) is None:
            return f"its operand {o.name} is no view by strides"
    results: set[Tensor] = set(products)
    for t in members:
        if t in results or t in operands:
            continue
        on_result = any(o in results for o in t.op.operands)
        if not _may_follow(t, on_result=on_result):
            return f"a {type(t.op).__name__.lower()} reads the stored result of a product"
        if on_result:
            results.add(t)
    return None


def _pair_problem(products: Sequence[Tensor]) -> str | None:
    """Why products share no kernel: a gated pair has one operand in common, and one shape."""
    if len(products) > MAX_PRODUCTS:
        return f"the kernel has {MAX_PRODUCTS} products already"
    first = products[0]
    for p in products[1:]:
        common = [a is b for a, b in zip(first.op.operands, p.op.operands, strict=True)]
        if sum(common) != 1 or first.op.operands[0] is first.op.operands[1]:
            return "the kernel has a product already, with which it shares no operand"
        if p.shape != first.shape or p.dtype is not first.dtype:
            return "the kernel has a product already, of another shape"
    return None


def _may_follow(t: Tensor, *, on_result: bool) -> bool:
    match t.op:
        case Pointwise() | Permute():
            return True
        case Broadcast() | Reshape() | IndexMap() | Resize():
            return not on_result and is_reading(t)
        case _:
            return False


def behind_product(values: Sequence[Tensor]) -> int | None:
    """Where to cut a kernel that lowering refused: how many of its values, operands first, make the
    product. None where there is no product, or nothing behind it. The product and what it needs
    come first in `product_first`."""
    product = next((t for t in values if isinstance(t.op, MatMul)), None)
    if product is None:
        return None
    needed = len(_needed(product, values))
    return needed if needed < len(values) else None


def product_first(values: Sequence[Tensor]) -> list[Tensor]:
    """The values with the product, and what it needs of them, before all others."""
    product = next((t for t in values if isinstance(t.op, MatMul)), None)
    if product is None:
        return list(values)
    needed = _needed(product, values)
    return [*(t for t in values if t in needed), *(t for t in values if t not in needed)]


def _needed(product: Tensor, values: Sequence[Tensor]) -> dict[Tensor, None]:
    known = set(values)
    found: dict[Tensor, None] = {}
    stack = [product]
    while stack:
        t = stack.pop()
        if t in known and t not in found:
            found[t] = None
            stack.extend(t.op.operands)
    return found


def operand_views(members: Mapping[Tensor, None]) -> set[Tensor]:
    """The views that a product among the members reads its operands through, and nothing else in
    the kernel."""
    readers: dict[Tensor, list[Tensor]] = {}
    for t in members:
        for o in t.op.operands:
            readers.setdefault(o, []).append(t)
    found: set[Tensor] = set()
    for t in reversed(list(members)):
        if not is_reading(t) or is_rematerialisable(t):
            continue
        own = readers.get(t, [])
        if own and all(r in found or isinstance(r.op, MatMul) for r in own):
            found.add(t)
    return found
