"""What is computed of a reshaped product is computed of the product, and reshaped behind it."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from fusewright.core.expr import constant_value
from fusewright.fusion import build
from fusewright.fusion.ir import (
    Broadcast,
    Fusion,
    IndexMap,
    MatMul,
    Pointwise,
    Reshape,
    Shape,
    Tensor,
    constant_shape,
    with_operands,
)
from fusewright.fusion.passes.rebuild import rebuild


def sink_reshapes(fusion: Fusion, wanted: Callable[[Tensor], bool]) -> Fusion:
    """Keep what is elementwise in the axes of a product, so that its kernel can compute it.

    rewrite:  f(reshape(x @ w, s) + b, y)  ->  reshape(f(x @ w + b', reshape(y)), s)
    checks:   the product is `wanted`, and nothing but elementwise functions stand between it and
              the reshape; sizes are constant
    order:    behind crop_products, whose crops are of a product's own axes; before moves are moved
              to arguments, as the reshapes of other operands then are
    """
    results: set[Tensor] = set()

    def replace(t: Tensor, operands: tuple[Tensor, ...]) -> Tensor | None:
        if isinstance(t.op, MatMul):
            made = t.with_op(with_operands(t.op, operands))
            if wanted(made):
                results.add(made)
            return made
        if isinstance(t.op, Reshape) and _is_reshaped(operands[0], results):
            return build.reshape("sink_reshapes", operands[0].op.operands[0], t.shape)
        if isinstance(t.op, IndexMap) and operands[0] in results:
            made = t.with_op(with_operands(t.op, operands))
            if made.shape == operands[0].shape:
                results.add(made)
            return made
        if not isinstance(t.op, Pointwise):
            return None
        flat = next((o.op.operands[0] for o in operands if _is_reshaped(o, results)), None)
        if flat is None:
            made = t.with_op(with_operands(t.op, operands))
            if any(o in results for o in operands):
                results.add(made)
            return made
        back = tuple(_reshaped(o, flat.shape) for o in operands)
        inner = build.value(flat.shape, t.dtype, with_operands(t.op, back))
        results.add(inner)
        return build.reshape("sink_reshapes", inner, t.shape)

    return rebuild(fusion, replace)


def _is_reshaped(t: Tensor, results: set[Tensor]) -> bool:
    """Whether a value is the result of a product, or what is computed of it, in other axes."""
    return (
        isinstance(t.op, Reshape) and t.op.operands[0] in results and constant_shape(t) is not None
    )


def _reshaped(t: Tensor, shape: Shape) -> Tensor:
    """The elements of a value in the axes of a product."""
    if isinstance(t.op, Reshape) and t.op.operands[0].shape == shape:
        return t.op.operands[0]
    if isinstance(t.op, Broadcast):
        axes = _axes(t.op, t.shape, shape)
        if axes is not None:
            return build.value(shape, t.dtype, Broadcast(t.op.operands, axes))
    return build.reshape("sink_reshapes", t, shape)


def _axes(op: Broadcast, old: Shape, new: Shape) -> tuple[int | None, ...] | None:
    """The axes of a broadcast to another shape of as many elements; None where an axis of the
    operand is no axis there, or has one element."""
    source = {_place(old, k): a for k, a in enumerate(op.axes) if a is not None}
    places = [_place(new, k) for k in range(len(new))]
    if any(p not in places or p[0] == 1 for p in source):
        return None
    return tuple(source.get(p) for p in places)


def _place(shape: Shape, axis: int) -> tuple[int, int]:
    """An axis by its size and the elements between neighbours along it."""
    sizes = [constant_value(e) or 0 for e in shape[axis:]]
    return sizes[0], prod(sizes[1:])
