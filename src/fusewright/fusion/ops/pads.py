"""Elements added at both ends of axes, after numpy.pad."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, TypeAlias, cast

from fusewright import dtypes
from fusewright.core.atoms import maximum as larger, minimum as smaller
from fusewright.core.conditions import less_equal, prove
from fusewright.core.expr import Expr, IntLike, add, as_expr, constant_value, mod, mul
from fusewright.errors import UserError
from fusewright.fusion import build
from fusewright.fusion.array import Array, as_operand, check_array
from fusewright.fusion.call_numbers import is_at_least
from fusewright.fusion.ir import Scalar, Tensor
from fusewright.fusion.operands import check_category, check_scalar
from fusewright.fusion.ops import reductions
from fusewright.fusion.ops.elementwise import astype, floor, round
from fusewright.fusion.ops.manipulation import broadcast_to, concat
from fusewright.fusion.ops.quantiles import median

Amounts: TypeAlias = "IntLike | Sequence[IntLike] | Sequence[Sequence[IntLike]]"
Numbers: TypeAlias = "float | Sequence[float] | Sequence[Sequence[float]]"
PadMode = Literal[
    "constant",
    "edge",
    "empty",
    "linear_ramp",
    "maximum",
    "mean",
    "median",
    "minimum",
    "reflect",
    "symmetric",
    "wrap",
]
_STATISTICS = ("maximum", "mean", "median", "minimum")


def pad(
    x: Array,
    pad_width: Amounts,
    /,
    mode: PadMode = "constant",
    *,
    constant_values: Scalar = 0,
    end_values: Numbers = 0,
    stat_length: Amounts | None = None,
) -> Array:
    """x with elements added at both ends of each axis, after numpy.pad; negative amounts crop.

    `pad_width` is n (both ends of all axes), (before, after), or one pair per axis. Modes:
    constant (`constant_values`), edge, reflect, symmetric, wrap; linear_ramp, from the edge to
    `end_values`, given like `pad_width`; maximum, mean, median, minimum, of the `stat_length`
    elements at an end, all for None; empty, which is 0. Axis after axis, so that corners are pads
    of pads.
    Raises UserError for other modes and widths, for a crop longer than the axis, for modes but
    constant and empty on an axis of size 0, for a `stat_length` below 1, and for `stat_length` or
    `end_values` that the mode does not take.
    """
    x = check_array("pad", x)
    low, high = _pad_amounts("pad_width", pad_width, x.ndim)
    for axis, (a, b, n) in enumerate(zip(low, high, x.tensor.shape, strict=True)):
        rule = f"pad: axis {axis} of size {n} with ({a}, {b}) must not crop more than there is"
        if not is_at_least(0, add(a, b, n), rule):
            raise UserError(
                f"pad: axis {axis} of size {n} with ({a}, {b}) leaves {add(a, b, n)} elements, "
                "which may be negative; crop less, or declare a larger min for the symbol"
            )
    _check_used(mode, end_values, stat_length)
    match str(mode):
        case "constant":
            fill = _fill(x, constant_values)
            return Array(build.resize(x.tensor, low, high, fill))
        case "empty":
            return Array(build.resize(x.tensor, low, high, 0))
        case "linear_ramp":
            ends = _end_values(end_values, x.ndim)
            return _end_by_end(x, low, high, "linear_ramp", lambda y, k: _ramps(y, k, ends[k]))
        case "maximum" | "mean" | "median" | "minimum":
            lengths = _lengths(stat_length, x.ndim)
            check_category(f"pad(mode={mode!r})", x.dtype, "numeric")
            return _end_by_end(x, low, high, mode, lambda y, k: _statistics(y, k, mode, lengths[k]))
        case _:
            return Array(_extended(x.tensor, low, high, mode))


def _is_zero(value: object) -> bool:
    return isinstance(value, int | float) and value == 0


def _check_used(mode: object, end_values: object, stat_length: object) -> None:
    for name, given, modes in (
        ("end_values", not _is_zero(end_values), ("linear_ramp",)),
        ("stat_length", stat_length is not None, _STATISTICS),
    ):
        if given and mode not in modes:
            raise UserError(
                f"pad(mode={mode!r}) takes no {name}: it is for {', '.join(modes)}; leave it out"
            )


def _fill(x: Array, constant_values: Scalar) -> Scalar:
    value = as_operand("pad", constant_values)
    if x.dtype is dtypes.bool_ and type(value) is int and value in (0, 1):
        value = bool(value)  # the default of a mask is False
    if isinstance(value, Array | complex):
        raise UserError(f"pad: constant_values={value!r}: it must be one real Python scalar")
    check_scalar("pad", value, x.dtype)
    return value


def _pair(entry: object) -> tuple[object, ...]:
    is_pair = isinstance(entry, tuple | list)
    return tuple(cast("Sequence[object]", entry)) if is_pair else (entry, entry)


def _pairs(what: str, given: object, rank: int) -> list[tuple[object, ...]]:
    """What is given as n for both ends of all axes, (before, after), or one pair per axis."""
    if not isinstance(given, tuple | list):
        return [(given, given)] * rank
    entries = list(cast("Sequence[object]", given))
    if len(entries) == 2 and not any(isinstance(e, tuple | list) for e in entries):
        entries = [tuple(entries)] * rank
    pairs = [_pair(e) for e in entries]
    if len(pairs) == 1:
        pairs = pairs * rank
    if len(pairs) != rank or any(len(p) != 2 for p in pairs):
        raise UserError(
            f"pad: {what}={given} for an array of rank {rank}: give n, (before, after), or one "
            "(before, after) per axis"
        )
    return pairs


def _pad_amounts(what: str, width: object, rank: int) -> tuple[list[Expr], list[Expr]]:
    pairs = _pairs(what, width, rank)
    low, high = ([build.extent("pad", what, p[k]) for p in pairs] for k in (0, 1))
    return low, high


def _end_values(given: object, rank: int) -> list[tuple[float, float]]:
    pairs = _pairs("end_values", given, rank)
    found = [tuple(build.number("pad", "end_values", v) for v in p) for p in pairs]
    return [(p[0], p[1]) for p in found]


def _lengths(given: object, rank: int) -> list[tuple[Expr | None, Expr | None]]:
    if given is None:
        return [(None, None)] * rank
    low, high = _pad_amounts("stat_length", given, rank)
    for n in (*low, *high):
        if prove(less_equal(1, n)) is not True:
            raise UserError(
                f"pad: stat_length={given}: {n} elements have no statistic; give 1 or more"
            )
    return list(zip(low, high, strict=True))


# --- elements that are there --------------------------------------------------------------------


_EXTENSIONS: dict[str, Callable[[Expr, Expr], Expr]] = {
    "edge": lambda c, n: smaller(larger(c, 0), add(n, -1)),
    "wrap": lambda c, n: mod(c, n),
    "symmetric": lambda c, n: _folded(mod(c, mul(n, 2)), add(mul(n, 2), -1)),
    "reflect": lambda c, n: (
        as_expr(0) if build.is_one(n) else _folded(mod(c, add(mul(n, 2), -2)), add(mul(n, 2), -2))
    ),
}


_MODES = ", ".join((*_EXTENSIONS, "empty", "linear_ramp", *_STATISTICS))


def _folded(c: Expr, last: Expr) -> Expr:
    """c on the way up, last - c on the way down: the lesser of the two."""
    return smaller(c, add(last, mul(c, -1)))


def _extended(t: Tensor, low: list[Expr], high: list[Expr], mode: object) -> Tensor:
    extension = _EXTENSIONS.get(str(mode))
    if extension is None:
        raise UserError(f"pad: mode={mode!r}; use one of constant, {_MODES}")
    touched = [k for k in range(t.ndim) if any(constant_value(e) != 0 for e in (low[k], high[k]))]
    for k in touched:
        if constant_value(t.shape[k]) == 0:
            raise UserError(f"pad: axis {k} has size 0, so mode {mode!r} has nothing to repeat")
    if not touched:
        return t
    shape = tuple(add(a, n, b) for a, n, b in zip(low, t.shape, high, strict=True))
    at = build.coordinates(shape)
    index = [
        extension(add(c, mul(a, -1)), n) if k in touched else c
        for k, (c, a, n) in enumerate(zip(at, low, t.shape, strict=True))
    ]
    return build.index_map(t, shape, at, index)


# --- elements that are computed -----------------------------------------------------------------

Ends: TypeAlias = "tuple[Callable[[Expr], Array], Callable[[Expr], Array]]"
"""What stands in front of and behind an axis, from the number of elements asked for."""


def _end_by_end(
    x: Array,
    low: list[Expr],
    high: list[Expr],
    mode: str,
    ends: Callable[[Array, int], Ends],
) -> Array:
    """Axis after axis the array between what is computed of it for both ends; crops come first."""
    crops = [[smaller(e, 0) for e in side] for side in (low, high)]
    y = Array(build.resize(x.tensor, crops[0], crops[1], 0))
    for k, (a, b) in enumerate(zip(low, high, strict=True)):
        if constant_value(larger(a, 0)) == 0 and constant_value(larger(b, 0)) == 0:
            continue
        if constant_value(y.tensor.shape[k]) == 0:
            raise UserError(f"pad: axis {k} has size 0, so mode {mode!r} has nothing to start from")
        before, behind = ends(y, k)
        parts = [y]
        if constant_value(larger(a, 0)) != 0:
            parts.insert(0, before(larger(a, 0)))
        if constant_value(larger(b, 0)) != 0:
            parts.append(behind(larger(b, 0)))
        y = concat(parts, axis=k)
    return y


def _part(x: Array, axis: int, length: Expr | None, *, is_last: bool) -> Array:
    """The first or last elements of an axis, at most all of them."""
    if length is None:
        return x
    rest = larger(add(x.tensor.shape[axis], mul(length, -1)), 0)
    low: list[IntLike] = [0] * x.ndim
    high: list[IntLike] = [0] * x.ndim
    (low if is_last else high)[axis] = mul(rest, -1)
    return Array(build.resize(x.tensor, low, high, 0))


def _along(x: Array, axis: int, count: Expr) -> tuple[Expr, ...]:
    return (*x.tensor.shape[:axis], count, *x.tensor.shape[axis + 1 :])


def _ramps(x: Array, axis: int, values: tuple[float, float]) -> Ends:
    """Steps of equal size from the end value, which is the outermost, to the edge, which is not
    repeated; of integers, rounded down."""

    def ramp(count: Expr, *, is_last: bool) -> Array:
        wide = dtypes.float64 if x.dtype.is_integer else x.dtype.compute
        edge = astype(_part(x, axis, as_expr(1), is_last=is_last), wide)
        shape = _along(x, axis, count)
        at = astype(Array(build.iota(shape, axis)), wide)
        total = Array(build.size(count, wide))
        at = total - 1.0 - at if is_last else at
        end = float(values[is_last])
        found = (edge - end) / total * at + end
        return astype(floor(found) if x.dtype.is_integer else found, x.dtype)

    check_category("pad(mode='linear_ramp')", x.dtype, "numeric")
    return lambda n: ramp(n, is_last=False), lambda n: ramp(n, is_last=True)


def _statistics(x: Array, axis: int, mode: str, lengths: tuple[Expr | None, Expr | None]) -> Ends:
    """One statistic of each end's elements, repeated; of integers, rounded."""

    def repeated(count: Expr, *, is_last: bool) -> Array:
        found = _statistic(_part(x, axis, lengths[is_last], is_last=is_last), axis, mode)
        return broadcast_to(found, _along(x, axis, count))

    return lambda n: repeated(n, is_last=False), lambda n: repeated(n, is_last=True)


def _statistic(x: Array, axis: int, mode: str) -> Array:
    match mode:
        case "maximum":
            return reductions.max(x, axis=axis, keepdims=True)
        case "minimum":
            return reductions.min(x, axis=axis, keepdims=True)
        case "mean":
            wide = astype(x, dtypes.float64) if x.dtype.is_integer else x
            found = reductions.mean(wide, axis=axis, keepdims=True)
        case _:
            found = median(x, axis=axis, keepdims=True)
    return astype(round(found), x.dtype) if x.dtype.is_integer else found


__all__ = ["pad"]
