"""Pooling of aten, and the columns of its windows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fusewright.core.expr import IntLike, as_expr
from fusewright.frontends.torch.library import aten
from fusewright.frontends.torch.places import BACKWARD, WITH_PLACES
from fusewright.frontends.torch.table import Dtypes, lowers, lowers_own
from fusewright.fusion import build, nn, ops
from fusewright.fusion.array import Array
from fusewright.fusion.nn.geometry import pool_windows
from fusewright.fusion.nn.pooling import chosen_cotangents, mean_cotangents, with_place_numbers
from fusewright.fusion.nn.windows import Window

Sizes = Sequence[int]


def _windows(x: Array, sizes: Sequence[Sizes], ceil_mode: bool, axes: int) -> list[Window]:
    """The windows of kernel sizes, strides, paddings and dilations along the last axes."""
    lengths, strides, *rest = map(tuple, sizes)
    return pool_windows(
        "pooling", x, lengths, strides or None, *rest, ceil_mode=ceil_mode, axes=axes
    )


# --- maxima -------------------------------------------------------------------------------------


@lowers(aten.max_pool2d_with_indices.default, aten.max_pool3d_with_indices.default)
def _max_pool(
    out: Dtypes,
    x: Array,
    kernel_size: Sizes,
    stride: Sizes = (),
    padding: Sizes | int = 0,
    dilation: Sizes | int = 1,
    ceil_mode: bool = False,
) -> Any:
    pool = nn.max_pool2d if len(kernel_size) == 2 else nn.max_pool3d
    given = tuple(kernel_size), tuple(stride) or None, _several(padding), _several(dilation)
    return pool(x, *given, ceil_mode, return_indices=True)


def _several(given: Sizes | int) -> Sizes | int:
    return given if isinstance(given, int) else tuple(given)


@lowers_own(WITH_PLACES)
def _max_pool_with_places(
    out: Dtypes,
    x: Array,
    kernel_size: Sizes,
    stride: Sizes,
    padding: Sizes,
    dilation: Sizes,
    ceil_mode: bool,
) -> tuple[Array, Array]:
    sizes = kernel_size, stride, padding, dilation
    largest, numbers = with_place_numbers(x, _windows(x, sizes, ceil_mode, len(kernel_size)))
    return largest, ops.astype(numbers, out[1])


@lowers_own(BACKWARD)
def _max_pool_backward(
    out: Dtypes,
    dy: Array,
    places: Array,
    size: Sequence[IntLike],
    kernel_size: Sizes,
    stride: Sizes,
    padding: Sizes,
    dilation: Sizes,
    ceil_mode: bool,
) -> Array:
    sizes = kernel_size, stride, padding, dilation
    windows = _windows(_like(dy, size), sizes, ceil_mode, len(kernel_size))
    wide = ops.astype(dy, dy.dtype.compute)
    return ops.astype(chosen_cotangents(wide, places, windows), out[0])


def _like(x: Array, size: Sequence[IntLike]) -> Array:
    """An array of x's dtype, of which only the size counts."""
    return Array(build.full(tuple(map(as_expr, size)), 0.0, x.dtype))


# --- averages -----------------------------------------------------------------------------------


@lowers(aten.avg_pool2d.default, aten.avg_pool3d.default)
def _avg_pool(
    out: Dtypes,
    x: Array,
    kernel_size: Sizes,
    stride: Sizes = (),
    padding: Sizes | int = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Array:
    pool = nn.avg_pool2d if len(kernel_size) == 2 else nn.avg_pool3d
    given = tuple(kernel_size), tuple(stride) or None, _several(padding), ceil_mode
    return pool(x, *given, count_include_pad, divisor_override)


@lowers(aten.avg_pool2d_backward.default, aten.avg_pool3d_backward.default)
def _avg_pool_backward(
    out: Dtypes,
    dy: Array,
    x: Array,
    kernel_size: Sizes,
    stride: Sizes,
    padding: Sizes,
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None,
) -> Array:
    axes = len(kernel_size)
    sizes = kernel_size, stride, padding, (1,) * axes
    windows = _windows(x, sizes, ceil_mode, axes)
    return mean_cotangents(dy, windows, count_include_pad, divisor_override)


# --- columns ------------------------------------------------------------------------------------


@lowers(aten.im2col.default)
def _im2col(
    out: Dtypes, x: Array, kernel_size: Sizes, dilation: Sizes, padding: Sizes, stride: Sizes
) -> Array:
    return nn.unfold(x, *map(tuple, (kernel_size, dilation, padding, stride)))


@lowers(aten.col2im.default)
def _col2im(
    out: Dtypes,
    x: Array,
    output_size: Sizes,
    kernel_size: Sizes,
    dilation: Sizes,
    padding: Sizes,
    stride: Sizes,
) -> Array:
    return nn.fold(x, *map(tuple, (output_size, kernel_size, dilation, padding, stride)))
