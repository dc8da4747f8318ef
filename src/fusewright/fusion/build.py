"""Constructors of fusion values: each makes one op, or the few that a rule needs, and its shape.

They work on `ir.Tensor`, check what the op's contract asks for, and raise `UserError` naming the
operation `op` that the program called.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import SupportsIndex, cast as cast_type

import numpy as np

from fusewright import dtypes
from fusewright.arguments import shown
from fusewright.core.expr import Expr, Int, IntLike, Var, add, as_expr, constant_value, mul
from fusewright.core.functions import FUNCTIONS
from fusewright.dtypes import DType
from fusewright.errors import AxisError, UserError
from fusewright.fusion import ir
from fusewright.fusion.ir import Op, Scalar, Shape, Tensor
from fusewright.fusion.operands import check_bits
from fusewright.fusion.partition import Partition
from fusewright.fusion.positions import expression_of


def value(shape: Shape, dtype: DType, op: Op) -> Tensor:
    """A new value; the trace names it unless the program did."""
    return Tensor("", shape, dtype, op)


def shape_text(shape: Sequence[IntLike]) -> str:
    """A shape as the messages print it."""
    return f"({', '.join(map(str, shape))}{',' if len(shape) == 1 else ''})"


def element_count(shape: Shape) -> Expr:
    """The number of elements."""
    total: Expr = as_expr(1)
    for s in shape:
        total = mul(total, s)
    return total


# --- leaves -------------------------------------------------------------------------------------


def compute_value(scalar: Scalar, dtype: DType) -> Scalar:
    """The scalar as a kernel holds it: rounded to the compute dtype, converted to its kind."""
    if dtype.is_float or dtype.is_complex:
        with np.errstate(over="ignore"):
            return float(dtype.component.compute.numpy.type(scalar))
    return bool(scalar) if dtype.kind == "bool" else int(scalar)


def constant(scalar: Scalar, dtype: DType) -> Tensor:
    """A 0-d literal; a float is rounded to the compute dtype, no further."""
    return value((), dtype, ir.Constant((), compute_value(scalar, dtype)))


def full(shape: Shape, scalar: Scalar, dtype: DType) -> Tensor:
    """A literal in every element of a shape."""
    return spread(constant(scalar, dtype), shape)


def size(expr: IntLike, dtype: DType) -> Tensor:
    """A shape expression as a 0-d value: a literal when it is known."""
    known = constant_value(expr)
    if known is not None:
        return constant(known, dtype)
    return cast(value((), dtypes.int64, ir.Size((), as_expr(expr))), dtype)


def iota(shape: Shape, axis: int, dtype: DType = dtypes.int64) -> Tensor:
    """The coordinate along `axis`."""
    return value(shape, dtype, ir.Iota((), axis))


# --- pointwise ----------------------------------------------------------------------------------


def pointwise(fn: str, *operands: Tensor) -> Tensor:
    """`fn` of operands of one shape; their dtypes are what the function takes."""
    match FUNCTIONS[fn].result:
        case "bool":
            dtype = dtypes.bool_
        case "uint32":
            dtype = dtypes.uint32
        case "same":
            dtype = operands[-1].dtype
    return value(operands[0].shape, dtype, ir.Pointwise(operands, fn))


def bitcast(t: Tensor, dtype: DType) -> Tensor:
    """The bits of the value as another dtype of as many bytes."""
    return value(t.shape, dtype, ir.Pointwise((t,), "bitcast"))


def cast(t: Tensor, dtype: DType) -> Tensor:
    """The value rounded to a dtype; the same value when it has it."""
    if t.dtype is dtype:
        return t
    return value(t.shape, dtype, ir.Pointwise((t,), "cast"))


# --- broadcasting -------------------------------------------------------------------------------


ONE_NAME = "equals only itself; give both axes one name in their specs, or make the size an integer"
"""What is said of a symbolic size beside another size."""


def is_one(extent: IntLike) -> bool:
    """Whether an extent is the constant 1, the only one that broadcasts."""
    return constant_value(extent) == 1


def broadcast_shapes(op: str, *shapes: Shape) -> Shape:
    """The common shape: sizes of an axis are equal or the constant 1.

    Raises UserError with the axis and the sizes when there is none.
    """
    rank = max((len(s) for s in shapes), default=0)
    out: list[Expr] = [as_expr(1)] * rank
    for shape in shapes:
        for k, extent in enumerate(shape, rank - len(shape)):
            if is_one(out[k]):
                out[k] = extent
            elif not is_one(extent) and extent != out[k]:
                raise UserError(_mismatch(op, k, out[k], extent, shapes))
    return tuple(out)


def _mismatch(op: str, axis: int, a: Expr, b: Expr, shapes: Sequence[Shape]) -> str:
    listed = " and ".join(map(shape_text, shapes))
    symbolic = constant_value(a) is None or constant_value(b) is None
    rule = (
        f"a symbolic size broadcasts with nothing and {ONE_NAME}"
        if symbolic
        else "sizes must be equal or 1; reshape, slice or repeat one of them"
    )
    return f"{op}: axis {axis} has sizes {a} and {b} (shapes {listed}): {rule}"


def spread(t: Tensor, shape: Shape) -> Tensor:
    """The value broadcast to a shape that is known to fit; trailing axes align."""
    if t.shape == shape:
        return t
    new = len(shape) - t.ndim
    axes = tuple(None if j < new else j - new for j in range(len(shape)))
    return value(shape, t.dtype, ir.Broadcast((t,), axes))


def along(t: Tensor, shape: Shape, axis: int) -> Tensor:
    """A value of rank 1 along `axis` of a shape, repeated over the others."""
    axes = tuple(0 if j == axis else None for j in range(len(shape)))
    return value(shape, t.dtype, ir.Broadcast((t,), axes))


def broadcast_to(op: str, t: Tensor, shape: Shape) -> Tensor:
    """The value broadcast to a shape, which must be the common shape of both."""
    if len(shape) < t.ndim or broadcast_shapes(op, t.shape, shape) != shape:
        raise UserError(
            f"{op}: shape {shape_text(t.shape)} does not broadcast to {shape_text(shape)}: each "
            "size must be equal or 1, and no axis may vanish; reshape or reduce first"
        )
    return spread(t, shape)


def broadcast_all(op: str, *tensors: Tensor) -> tuple[Tensor, ...]:
    """All values in their common shape."""
    shape = broadcast_shapes(op, *(t.shape for t in tensors))
    return tuple(spread(t, shape) for t in tensors)


def expand(t: Tensor, position: int) -> Tensor:
    """The value with a new axis of size 1 at `position`."""
    shape = (*t.shape[:position], as_expr(1), *t.shape[position:])
    axes = (*range(position), None, *range(position, t.ndim))
    return value(shape, t.dtype, ir.Broadcast((t,), axes))


# --- axes ---------------------------------------------------------------------------------------


def integer(op: str, what: str, given: object) -> int:
    """An argument that must be a Python integer (or have `__index__`); UserError otherwise."""
    t = getattr(given, "tensor", None)
    if isinstance(t, Tensor) and (t.ndim or not t.dtype.is_integer):
        pair = {
            "max": "; of two arrays it is fw.maximum",
            "min": "; of two arrays it is fw.minimum",
        }
        raise UserError(
            f"{op}: {what} is an array, {given!r}; it must be an integer{pair.get(op, '')}"
        )
    try:
        if not isinstance(given, bool):
            found = operator.index(cast_type("SupportsIndex", given))
            check_bits(f"{op}: {what}", found)
            return found
    except TypeError:
        pass
    raise UserError(f"{op}: {what}={shown(given)} is {type(given).__name__}; it must be an integer")


def integers(op: str, what: str, given: object) -> tuple[int, ...]:
    """An argument that must be an integer or a sequence of them."""
    if isinstance(given, tuple | list):
        return tuple(integer(op, what, n) for n in cast_type("Sequence[object]", given))
    return (integer(op, what, given),)


def extent(op: str, what: str, given: object) -> Expr:
    """An argument that must be an integer, an expression in the sizes of arrays, or an array that
    is one."""
    t = getattr(given, "tensor", None)
    known = expression_of(t) if isinstance(t, Tensor) else given
    return known if isinstance(known, Expr) else as_expr(integer(op, what, given))


def extents(op: str, what: str, given: object) -> tuple[Expr, ...]:
    """An argument that must be an `extent` or a sequence of them."""
    if isinstance(given, tuple | list):
        return tuple(extent(op, what, n) for n in cast_type("Sequence[object]", given))
    return (extent(op, what, given),)


def number(op: str, what: str, given: object) -> float:
    """An argument that must be a finite real number, which an int stays."""
    value = cast_type("object", given.item()) if isinstance(given, np.generic) else given
    if isinstance(value, int):
        check_bits(f"{op}: {what}", value)
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < math.inf:
        raise UserError(f"{op}: {what}={given!r} must be a finite real number")
    return value


def axis_of(op: str, axis: object, ndim: int) -> int:
    """The axis counted from the front; UserError when the rank has no such axis."""
    axis = integer(op, "axis", axis)
    if not ndim:
        raise AxisError(
            f"{op}: axis {axis} of an array of rank 0, which has none; expand_dims first"
        )
    if not -ndim <= axis < ndim:
        raise AxisError(
            f"{op}: axis {axis} of an array of rank {ndim}: axes go from -{ndim} to {ndim - 1}"
        )
    return axis % ndim


def axes_of(op: str, axes: int | Sequence[int] | None, ndim: int) -> tuple[int, ...]:
    """The axes counted from the front, sorted, all for None; UserError for one given twice."""
    if axes is None:
        return tuple(range(ndim))
    listed = integers(op, "axis", axes)
    out = [axis_of(op, a, ndim) for a in listed]
    for k, a in enumerate(out):
        if a in out[:k]:
            raise UserError(f"{op}: axis {a} is given twice in axis={listed}; give each axis once")
    return tuple(sorted(out))


def permute(t: Tensor, axes: Sequence[int]) -> Tensor:
    """Result axis j is operand axis `axes[j]`."""
    if tuple(axes) == tuple(range(t.ndim)):
        return t
    shape = tuple(t.shape[a] for a in axes)
    return value(shape, t.dtype, ir.Permute((t,), tuple(axes)))


def swap_last(t: Tensor) -> Tensor:
    """The value with its last two axes exchanged."""
    order = list(range(t.ndim))
    order[-2:] = [t.ndim - 1, t.ndim - 2]
    return permute(t, order)


def reshape(op: str, t: Tensor, shape: Shape) -> Tensor:
    """The same elements in C order; UserError unless the sizes are known to be equal."""
    if t.shape == shape:
        return t
    old, new = element_count(t.shape), element_count(shape)
    if old != new:
        raise UserError(
            f"{op}: shape {shape_text(t.shape)} has {old} elements and {shape_text(shape)} has "
            f"{new}: a reshape keeps the number of elements; give -1 for one size to have it "
            "computed, or slice or pad first"
        )
    return value(shape, t.dtype, ir.Reshape((t,)))


def resize(t: Tensor, low: Sequence[IntLike], high: Sequence[IntLike], fill: Scalar) -> Tensor:
    """The value with `low` and `high` elements added at both ends of each axis, or cropped."""
    lows = tuple(as_expr(a) for a in low)
    highs = tuple(as_expr(a) for a in high)
    shape = tuple(add(a, s, b) for a, s, b in zip(lows, t.shape, highs, strict=True))
    if shape == t.shape and all(constant_value(a) == 0 for a in lows):
        return t
    return value(shape, t.dtype, ir.Resize((t,), lows, highs, compute_value(fill, t.dtype)))


def parts(t: Tensor, axes: Sequence[int], partition: Partition, fill: Scalar) -> Tensor:
    """The value with a run of axes cut in parts, `fill` where a part has no element. Even parts,
    which need none, are one value whatever it is."""
    shape = (*t.shape[: axes[0]], *partition.shape, *t.shape[axes[-1] + 1 :])
    number = compute_value(0 if partition.is_even else fill, t.dtype)
    return value(shape, t.dtype, ir.Parts((t,), tuple(axes), partition, number))


def coordinates(shape: Shape) -> tuple[Var, ...]:
    """Fresh variables over a shape, `i0`, `i1`, ... in `[0, extent)`."""
    return tuple(Var(f"i{k}", 0, add(s, -1)) for k, s in enumerate(shape))


def index_map(t: Tensor, shape: Shape, at: tuple[Var, ...], index: Sequence[IntLike]) -> Tensor:
    """`result[at] = t[index]` over a shape."""
    return value(shape, t.dtype, ir.IndexMap((t,), at, tuple(as_expr(e) for e in index)))


def concat(tensors: Sequence[Tensor], axis: int) -> Tensor:
    """The values, of one dtype and equal other axes, one after the other."""
    first = tensors[0]
    if len(tensors) == 1:
        return first
    total = add(*(t.shape[axis] for t in tensors))
    shape = (*first.shape[:axis], total, *first.shape[axis + 1 :])
    return value(shape, first.dtype, ir.Concat(tuple(tensors), axis))


# --- reductions and products --------------------------------------------------------------------


def reduce(fn: str, t: Tensor, axes: tuple[int, ...], *, keepdims: bool = False) -> Tensor:
    """`fn` over axes counted from the front; reduced axes vanish, or stay with size 1."""
    if not axes:
        return t
    shape = tuple(s for k, s in enumerate(t.shape) if k not in axes)
    out = value(shape, t.dtype, ir.Reduce((t,), fn, axes))
    if keepdims:
        for a in axes:
            out = expand(out, a)
    return out


def scan(
    fn: str, t: Tensor, axis: int, *, exclusive: bool = False, reverse: bool = False
) -> Tensor:
    """Prefix `fn` along an axis, without the element itself if `exclusive`; suffixes in
    `reverse`."""
    return value(t.shape, t.dtype, ir.Scan((t,), fn, axis, exclusive, reverse))


def sort(t: Tensor, axis: int) -> Tensor:
    """Unsigned integers in ascending order along an axis."""
    return value(t.shape, t.dtype, ir.Sort((t,), axis))


def matmul(op: str, a: Tensor, b: Tensor) -> Tensor:
    """The array API's matmul of operands of one dtype: vectors gain an axis for the product,
    leading axes broadcast. UserError for rank 0 and unequal inner sizes."""
    if not a.ndim or not b.ndim:
        raise UserError(f"{op}: operands of rank {a.ndim} and {b.ndim}; rank 0 needs fw.multiply")
    left = expand(a, 0) if a.ndim == 1 else a
    right = expand(b, 1) if b.ndim == 1 else b
    if left.shape[-1] != right.shape[-2]:
        raise UserError(
            f"{op}: the last axis of {shape_text(a.shape)} has size {left.shape[-1]}, the axis it "
            f"meets in {shape_text(b.shape)} has size {right.shape[-2]}: they must be equal; "
            "transpose one operand, or give both axes one symbolic name"
        )
    lead = broadcast_shapes(op, left.shape[:-2], right.shape[:-2])
    left = spread(left, (*lead, *left.shape[-2:]))
    right = spread(right, (*lead, *right.shape[-2:]))
    out = value((*lead, left.shape[-2], right.shape[-1]), a.dtype, ir.MatMul((left, right)))
    rows = () if a.ndim == 1 else (out.shape[-2],)
    columns = () if b.ndim == 1 else (out.shape[-1],)
    return reshape(op, out, (*lead, *rows, *columns))


def known_shape(shape: Shape) -> tuple[int | Expr, ...]:
    """The shape with constant extents as integers."""
    return tuple(s.value if isinstance(s, Int) else s for s in shape)
