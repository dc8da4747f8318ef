"""`interpolate` of torch.nn.functional: rows and planes of other sizes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import cast

from fusewright import dtypes
from fusewright.core.atoms import maximum as larger, minimum as smaller
from fusewright.core.expr import Expr, add, as_expr, constant_value, floordiv, mul
from fusewright.errors import UnsupportedError, UserError
from fusewright.fusion import build, ops
from fusewright.fusion.array import Array
from fusewright.fusion.nn.arguments import check_choice, check_float, widened
from fusewright.fusion.nn.pooling import axis_means
from fusewright.fusion.operands import check_flag
from fusewright.fusion.ops import astype

_MODES = ("nearest", "nearest-exact", "linear", "bilinear", "trilinear", "area")
_AXES = {"linear": 1, "bilinear": 2, "trilinear": 3}
_PRECISION = 10**6
"""The denominator up to which a scale is a ratio: factors are written as decimals or as ratios of
sizes, which have fewer elements."""


def interpolate(
    x: Array,
    size: int | Sequence[int] | None = None,
    scale_factor: float | Sequence[float] | None = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> Array:
    """x, (batch, channels, ...), read on a grid of `size`, or of floor(n * scale_factor) elements
    along each axis behind the channels.

    Modes: nearest, nearest-exact, linear, bilinear and trilinear (one name for each number of
    axes), area (means of windows). Positions are exact ratios; with `align_corners` the first and
    last elements stay where they are. `recompute_scale_factor` takes the scale from the sizes,
    also where a factor is given.

    Raises UserError for sizes and modes that do not fit, UnsupportedError for `antialias` and
    symbolic sizes under a factor that is no integer.
    """
    op = "interpolate"
    x = check_float(op, x)
    check_choice(op, "mode", mode, _MODES)
    if align_corners is not None:
        check_flag(op, "align_corners", align_corners)
    if recompute_scale_factor is not None:
        check_flag(op, "recompute_scale_factor", recompute_scale_factor)
    check_flag(op, "antialias", antialias)
    if antialias:
        raise UnsupportedError(
            "interpolate(antialias=True): pool first, for example by mode='area'"
        )
    _check_mode(x, mode, align_corners)
    grids = _grids(x, size, scale_factor, by_size=bool(recompute_scale_factor))
    if mode == "area":
        out = widened(x)
        for g in grids:
            out = axis_means(op, out, g.axis, constant_value(g.count) or 0)
        return astype(out, x.dtype)
    changed = [g for g in grids if g.size != g.count or g.scale != 1]
    if mode.startswith("nearest"):
        return _nearest(x, changed, is_exact=mode != "nearest")
    return astype(_linear(widened(x), changed, is_aligned=bool(align_corners)), x.dtype)


@dataclass(frozen=True, slots=True)
class _Grid:
    """`count` places along an axis of `size` elements, `scale` elements apart."""

    axis: int
    size: Expr
    count: Expr
    scale: Fraction


def _check_mode(x: Array, mode: str, align_corners: bool | None) -> None:
    axes = _AXES.get(mode)
    if x.ndim not in (3, 4, 5) or axes not in (None, x.ndim - 2):
        wanted = "3 to 5" if axes is None else str(axes + 2)
        raise UserError(
            f"interpolate(mode={mode!r}) of shape {build.shape_text(x.shape)} of rank {x.ndim}: "
            f"the layout is (batch, channels, ...), of rank {wanted}; linear, bilinear and "
            "trilinear are for one, two and three axes"
        )
    if align_corners is not None and axes is None:
        raise UserError(
            f"interpolate(align_corners={align_corners}, mode={mode!r}): it is for linear, "
            "bilinear and trilinear; leave it out"
        )


def _grids(x: Array, size: object, scale_factor: object, *, by_size: bool) -> list[_Grid]:
    if (size is None) == (scale_factor is None):
        raise UserError("interpolate: give either size or scale_factor")
    axes = range(2, x.ndim)
    if size is not None:
        counts = _per_axis("size", build.integers("interpolate", "size", size), len(axes))
        return [_sized(x, a, int(n)) for a, n in zip(axes, counts, strict=True)]
    is_listed = isinstance(scale_factor, tuple | list)
    listed = cast("Sequence[object]", scale_factor) if is_listed else (scale_factor,)
    factors = [build.number("interpolate", "scale_factor", f) for f in listed]
    found: list[_Grid] = []
    for a, f in zip(axes, _per_axis("scale_factor", factors, len(axes)), strict=True):
        grid = _scaled(x, a, f)
        known = constant_value(grid.count)
        found.append(_sized(x, a, known) if by_size and known is not None else grid)
    return found


def _per_axis(what: str, given: Sequence[float], axes: int) -> Sequence[float]:
    if len(given) not in (1, axes) or any(not n > 0 for n in given):
        raise UserError(
            f"interpolate: {what}={given} for {axes} axes: give one positive number, or one for "
            "each axis"
        )
    return list(given) * axes if len(given) == 1 else given


def _sized(x: Array, axis: int, count: int) -> _Grid:
    n = constant_value(x.tensor.shape[axis])
    if n is None:
        raise UnsupportedError(
            f"interpolate(size=...) of axis {axis} of symbolic size {x.shape[axis]}: its scale is "
            "not known; give an integer scale_factor, or make the size an integer"
        )
    return _Grid(axis, as_expr(n), as_expr(count), Fraction(n, count))


def _scaled(x: Array, axis: int, factor: float) -> _Grid:
    size = x.tensor.shape[axis]
    ratio = Fraction(factor).limit_denominator(_PRECISION)
    n = constant_value(size)
    if n is None and ratio.denominator != 1:
        raise UnsupportedError(
            f"interpolate(scale_factor={factor}) of axis {axis} of symbolic size {size}: only "
            "integer factors are taken there; make the size an integer"
        )
    count = mul(size, ratio.numerator) if n is None else as_expr(int(n * factor))
    if constant_value(count) == 0:
        raise UserError(f"interpolate(scale_factor={factor}) leaves nothing of axis {axis} of {n}")
    return _Grid(axis, size, count, 1 / ratio)


# --- reading ------------------------------------------------------------------------------------


def _shape(x: Array, grids: Sequence[_Grid]) -> tuple[Expr, ...]:
    counts = {g.axis: g.count for g in grids}
    return tuple(counts.get(k, n) for k, n in enumerate(x.tensor.shape))


def _nearest(x: Array, grids: Sequence[_Grid], *, is_exact: bool) -> Array:
    shape = _shape(x, grids)
    at = build.coordinates(shape)
    index: list[Expr] = [as_expr(c) for c in at]
    for g in grids:
        a, b, c = g.scale.numerator, g.scale.denominator, at[g.axis]
        place = floordiv(mul(add(mul(c, 2), 1), a), 2 * b) if is_exact else floordiv(mul(c, a), b)
        index[g.axis] = smaller(place, add(g.size, -1))
    return Array(build.index_map(x.tensor, shape, at, index))


def _linear(x: Array, grids: Sequence[_Grid], *, is_aligned: bool) -> Array:
    """Two neighbours along each axis, weighted by how near they are to the place between them:
    rows of the last axis first."""
    shape = _shape(x, grids)
    positions = [_positions(g, is_aligned=is_aligned) for g in grids]
    shares: list[Array] = []
    for g, (step, first, unit) in zip(grids, positions, strict=True):
        along = Array(build.iota(shape, g.axis, dtypes.int64)) * step + first
        shares.append(astype(ops.maximum(along, 0) % unit, x.dtype) / float(unit))

    def between(chosen: tuple[bool, ...]) -> Array:
        if len(chosen) == len(grids):
            return _neighbour(x, grids, positions, chosen)
        share = shares[len(chosen)]
        return between((*chosen, False)) * (1.0 - share) + between((*chosen, True)) * share

    return between(())


def _neighbour(
    x: Array,
    grids: Sequence[_Grid],
    positions: Sequence[tuple[int, int, int]],
    is_above: Sequence[bool],
) -> Array:
    """The element below each place, or the one above it, along each axis."""
    shape = _shape(x, grids)
    at = build.coordinates(shape)
    index: list[Expr] = [as_expr(c) for c in at]
    for g, (step, first, unit), above in zip(grids, positions, is_above, strict=True):
        place = floordiv(larger(add(mul(at[g.axis], step), first), 0), unit)
        index[g.axis] = smaller(add(place, 1) if above else place, add(g.size, -1))
    return Array(build.index_map(x.tensor, shape, at, index))


def _positions(g: _Grid, *, is_aligned: bool) -> tuple[int, int, int]:
    """A step, a first position, and how many of their unit one element is."""
    if not is_aligned:
        a, b = g.scale.numerator, g.scale.denominator
        return 2 * a, a - b, 2 * b  # (c + 1/2) * a/b - 1/2
    n, m = constant_value(g.size), constant_value(g.count)
    if n is None or m is None:
        raise UnsupportedError(
            f"interpolate(align_corners=True) of axis {g.axis} of symbolic size {g.size}: make the "
            "size an integer"
        )
    return (n - 1, 0, m - 1) if m > 1 else (0, 0, 1)


__all__ = ["interpolate"]
