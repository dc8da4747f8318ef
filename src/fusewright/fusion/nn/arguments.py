"""What the functions of `nn` ask of their arguments, and the dtype they compute in."""

from __future__ import annotations

from fusewright.core.expr import IntLike, as_expr, mul
from fusewright.dtypes import DType
from fusewright.errors import UserError
from fusewright.fusion import build
from fusewright.fusion.array import Array, check_array
from fusewright.fusion.ir import Shape
from fusewright.fusion.operands import check_category
from fusewright.fusion.ops import astype, expand_dims


def check_float(op: str, x: object) -> Array:
    """`x`, which must be an array of floats."""
    array = check_array(op, x)
    check_category(op, array.dtype, "float")
    return array


def check_shape(op: str, what: str, x: object, shape: Shape, *, of: str) -> Array:
    """`x`, which must be an array of exactly this shape, that of `of`."""
    array = check_array(f"{op} ({what})", x)
    if array.tensor.shape != shape:
        raise UserError(
            f"{op}: {what} has shape {build.shape_text(array.shape)}, {of} has "
            f"{build.shape_text(shape)}: they must be equal; reshape or broadcast {what} first"
        )
    return array


def check_choice(op: str, what: str, value: object, choices: tuple[str, ...]) -> None:
    """UserError unless the value is one of the choices."""
    if not isinstance(value, str) or value not in choices:
        listed = ", ".join(map(repr, choices))
        raise UserError(f"{op}: {what}={value!r}; use one of {listed}")


def check_rank(op: str, x: Array, least: int, layout: str) -> None:
    """UserError when x has fewer axes than its layout, for example "(batch, channels, ...)"."""
    if x.ndim < least:
        raise UserError(
            f"{op}: x has shape {build.shape_text(x.shape)} of rank {x.ndim}; its layout is "
            f"{layout}, at least {least} axes; add them with fw.expand_dims"
        )


def widened(x: Array) -> Array:
    """x in the compute dtype, so that what is stored between kernels keeps its precision."""
    array = check_array("nn", x)
    return astype(array, array.dtype.compute)


def per_channel(v: Array, ndim: int, axis: int) -> Array:
    """A vector along `axis` of an array of rank `ndim`."""
    return expand_dims(v, tuple(k for k in range(ndim) if k != axis))


def element_count(x: Array, axes: tuple[int, ...], dtype: DType) -> Array:
    """The number of elements along axes, as a 0-d array; a literal when it is known."""
    total: IntLike = as_expr(1)
    for a in axes:
        total = mul(total, x.tensor.shape[a])
    return Array(build.size(total, dtype))
