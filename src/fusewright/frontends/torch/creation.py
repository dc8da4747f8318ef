"""Tensors that aten makes from nothing: fills, ranges, masks."""

from __future__ import annotations

import math
from collections.abc import Sequence

from fusewright import dtypes
from fusewright.core.expr import Expr, IntLike, add, as_expr, constant_value, floordiv, mul
from fusewright.errors import UnsupportedError
from fusewright.frontends.torch.library import aten, prims
from fusewright.frontends.torch.promotion import Operand, Scalar, cast_to
from fusewright.frontends.torch.table import Dtypes, lowers, lowers_creation
from fusewright.fusion import build, ops
from fusewright.fusion.array import Array

Sizes = Sequence[IntLike]


def _filled(shape: tuple[int | Expr, ...], value: Operand, out: Dtypes) -> Array:
    return ops.broadcast_to(cast_to(value, out[0]), shape)


@lowers_creation(aten.full.default)
def _full(out: Dtypes, size: Sizes, value: Scalar, **_options: object) -> Array:
    return _filled(tuple(size), value, out)


@lowers_creation(aten.full_like.default)
def _full_like(out: Dtypes, x: Array, value: Scalar, **_options: object) -> Array:
    return _filled(x.shape, value, out)


@lowers_creation(aten.new_full.default)
def _new_full(out: Dtypes, x: Array, size: Sizes, value: Scalar, **_options: object) -> Array:
    return _filled(tuple(size), value, out)


@lowers_creation(aten.zeros.default)
def _zeros(out: Dtypes, size: Sizes, **_options: object) -> Array:
    return _filled(tuple(size), 0, out)


@lowers_creation(aten.ones.default)
def _ones(out: Dtypes, size: Sizes, **_options: object) -> Array:
    return _filled(tuple(size), 1, out)


@lowers_creation(aten.zeros_like.default)
def _zeros_like(out: Dtypes, x: Array, **_options: object) -> Array:
    return _filled(x.shape, 0, out)


@lowers_creation(aten.ones_like.default)
def _ones_like(out: Dtypes, x: Array, **_options: object) -> Array:
    return _filled(x.shape, 1, out)


@lowers_creation(aten.scalar_tensor.default)
def _scalar_tensor(out: Dtypes, value: Scalar, **_options: object) -> Array:
    return cast_to(value, out[0])


@lowers_creation(aten.new_empty_strided.default, aten.empty_strided.default)
def _empty(out: Dtypes, *args: Array | Sizes, **_options: object) -> Array:
    """Memory without contents, which somebody writes to: zeros, which cost nothing where it is
    written whole. The strides are those of the result, which the region is told."""
    sizes = args[1] if isinstance(args[0], Array) else args[0]
    assert not isinstance(sizes, Array)
    return _filled(tuple(sizes), 0, out)


@lowers(aten.fill.Scalar, aten.fill.Tensor)
def _fill(out: Dtypes, x: Array, value: Operand) -> Array:
    return _filled(x.shape, value, out)


# --- ranges -------------------------------------------------------------------------------------


@lowers_creation(prims.iota.default)
def _iota(
    out: Dtypes, length: IntLike, *, start: IntLike, step: IntLike, **_options: object
) -> Array:
    along = Array(build.iota((as_expr(length),), 0))
    scaled = along if constant_value(step) == 1 else along * cast_to(step, along.dtype)
    moved = scaled if constant_value(start) == 0 else scaled + cast_to(start, along.dtype)
    return cast_to(moved, out[0])


@lowers_creation(aten.arange.start_step, aten.arange.start, aten.arange.default)
def _arange(out: Dtypes, *limits: Scalar, **_options: object) -> Array:
    start, end, step = (0, *limits, 1) if len(limits) == 1 else (*limits, 1)[:3]
    real = any(isinstance(v, float) for v in (start, end, step))
    if isinstance(step, Expr) or (real and any(isinstance(v, Expr) for v in (start, end))):
        given = ", ".join(map(str, (start, end, step)))
        raise UnsupportedError(f"arange by a symbolic step, or real and symbolic limits: {given}")
    if isinstance(start, float) or isinstance(end, float) or isinstance(step, float):
        assert not isinstance(start, Expr) and not isinstance(end, Expr)
        return _stepped(out, start, end, step)
    distance = add(end, mul(start, -1), step - 1 if step > 0 else step + 1)
    length = floordiv(distance if step > 0 else mul(distance, -1), abs(step))
    known = constant_value(length)
    return _iota(out, length if known is None else max(known, 0), start=start, step=step)


def _stepped(out: Dtypes, start: float, end: float, step: float) -> Array:
    """Numbers a step apart, each from its position, in the wider type that torch counts in."""
    length = max(math.ceil((end - start) / step), 0)
    wide = dtypes.float64 if out[0] is dtypes.float64 else dtypes.float32
    along = ops.astype(Array(build.iota((as_expr(length),), 0)), wide)
    return cast_to(along * cast_to(step, wide) + cast_to(start, wide), out[0])


# --- triangles ----------------------------------------------------------------------------------


@lowers(aten.tril)
def _tril(out: Dtypes, x: Array, diagonal: int = 0) -> Array:
    return ops.where(_distance(x) <= diagonal, x, cast_to(0, x.dtype))


@lowers(aten.triu)
def _triu(out: Dtypes, x: Array, diagonal: int = 0) -> Array:
    return ops.where(_distance(x) >= diagonal, x, cast_to(0, x.dtype))


def _distance(x: Array) -> Array:
    """Column minus row."""
    shape = x.tensor.shape
    return Array(build.iota(shape, x.ndim - 1)) - Array(build.iota(shape, x.ndim - 2))
