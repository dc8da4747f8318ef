"""Products on matrix instructions: what may stand in their kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fusewright.core.expr import Expr
from fusewright.fusion.held_results import reads_held_result
from fusewright.fusion.ir import (
    Broadcast,
    IndexMap,
    Input,
    MatMul,
    Parts,
    Permute,
    Pointwise,
    Reduce,
    Reshape,
    Resize,
    Take,
    TakeAlong,
    Tensor,
    ViewBase,
    contiguous_strides,
)
from fusewright.fusion.passes.fold_crops import is_crop
from fusewright.fusion.passes.tile_partials import is_of_tiles
from fusewright.fusion.rematerialisable import is_rematerialisable
from fusewright.fusion.strided import Strided, strided_view

MAX_PRODUCTS = 2
"""In a kernel. They share 256 columns of accumulators, and an instruction of fewer than 128 columns
reads shared memory at 90 % of its speed and more (64 + n rows of 32 bytes in n/2 clocks)."""


def view_of(t: Tensor) -> Strided[Tensor] | None:
    """An operand as strides over a value that is stored; None where a view between is none."""

    def strides(v: Tensor) -> tuple[Expr, ...] | None:
        if isinstance(v.op, Input):
            return v.op.strides
        return None if is_reading(v) else contiguous_strides(v.shape)

    return strided_view(t, lambda v: v.op.operands, strides)


def is_reading(t: Tensor) -> bool:
    """Whether a value is only found at other places of its operand."""
    return isinstance(t.op, ViewBase | IndexMap) or is_crop(t)


def is_held_result(t: Tensor) -> bool:
    """Whether a map reads other places of a product's result that the threads of its own places
    hold, where no other value stands between."""
    return any(reads_held_result(t.op, t.shape, o.op, o.shape) for o in t.op.operands)


def has_products(members: Mapping[Tensor, None]) -> bool:
    """Whether a product is among some ops."""
    return any(isinstance(t.op, MatMul) for t in members)


def product_problem(members: Mapping[Tensor, None]) -> str | None:
    """Why no kernel computes these ops with a product among them; None where there is no product or
    one does: elementwise work and transpositions of its result, and of values of its axes, and
    reductions of parts of its tiles."""
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
        case IndexMap() if on_result:
            return is_held_result(t)
        case Broadcast() | Reshape() | IndexMap() | Resize():
            return not on_result and is_reading(t)
        case Parts(partition=cut):
            return on_result and is_of_tiles(cut)
        case Reduce(axes=axes):
            return on_result and set(axes) <= set(_place_axes(t.op.operands[0]))
        case _:
            return False


def _place_axes(t: Tensor) -> list[int]:
    """The axes that count places in parts of a value's axes; none where it is not in parts."""
    found: list[int] = []
    while isinstance(t.op, Parts):
        first = t.op.axes[0]
        found += [first + a for a in t.op.partition.place_axes]
        (t,) = t.op.operands
    return found


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
    """The views that products and gathers among the members read their operands through, and
    nothing else in the kernel: nobody computes them, so that no loop runs over them."""
    readers: dict[Tensor, list[Tensor]] = {}
    for t in members:
        for o in t.op.operands:
            readers.setdefault(o, []).append(t)
    found: set[Tensor] = set()
    for t in reversed(list(members)):
        if not is_reading(t) or is_rematerialisable(t):
            continue
        own = readers.get(t, [])
        if own and all(r in found or reads_in_place(r, t) for r in own):
            found.add(t)
    return found


def reads_in_place(reader: Tensor, t: Tensor) -> bool:
    """Whether an operation finds elements of an operand by strides, in any view of what is stored:
    products, and gathers, whose places data decide."""
    if isinstance(reader.op, Take | TakeAlong):
        data, indices = reader.op.operands
        return data is t and indices is not t
    return isinstance(reader.op, MatMul)


def multiplied_views(members: Mapping[Tensor, None]) -> set[Tensor]:
    """The views, casts too, through which sums of products among the members read their operands:
    tiles of these are copied to shared memory from where an argument of the kernel begins."""
    found: set[Tensor] = set()
    for t in members:
        if isinstance(t.op, Reduce) and t.op.fn == "add":
            times = t.op.operands[0]
            if isinstance(times.op, Pointwise) and times.op.fn == "mul":
                found.update(times.op.operands)
    for t in reversed(list(members)):
        is_cast = isinstance(t.op, Pointwise) and len(t.op.operands) == 1
        if t in found and (is_reading(t) or is_cast):
            found.update(t.op.operands)
    return found
