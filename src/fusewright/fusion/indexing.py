"""Basic indexing: integers, slices with steps, None and Ellipsis, on sizes that may be symbolic."""

from __future__ import annotations

from collections.abc import Sequence
from types import EllipsisType
from typing import TypeAlias, cast

from fusewright.arguments import shown
from fusewright.core.atoms import maximum, minimum
from fusewright.core.conditions import less, prove
from fusewright.core.expr import (
    Expr,
    IntLike,
    add,
    as_expr,
    ceildiv,
    constant_value,
    mul,
    variables,
)
from fusewright.errors import AxisError, UserError
from fusewright.fusion import build
from fusewright.fusion.call_numbers import is_at_least
from fusewright.fusion.ir import Tensor

Item: TypeAlias = "int | Expr | slice | None"


def index(t: Tensor, key: object) -> Tensor:
    """`t[key]`. Unit steps become a Resize, other steps an IndexMap.

    Raises UserError for keys that are not basic, too many of them, or integers outside the axis.
    """
    starts: list[IntLike] = []
    stops: list[IntLike] = []
    steps: list[int] = []
    kept: list[bool] = []
    items = items_of(t, key)
    axis = 0
    for item in items:
        if item is None:
            continue
        extent = t.shape[axis]
        start, stop, step = _range_of(item, axis, extent)
        starts.append(start)
        stops.append(stop)
        steps.append(step)
        kept.append(isinstance(item, slice))
        axis += 1
    out = _strided(_cropped(t, starts, stops), steps)
    return _reshaped(out, items, kept)


def is_basic(item: object) -> bool:
    """Whether numpy reads a key as this package does."""
    if isinstance(item, slice):
        limits = cast("slice[object, object, object]", item)
        return all(x is None or type(x) is int for x in (limits.start, limits.stop, limits.step))
    return item is None or item is Ellipsis or type(item) is int


def items_of(t: Tensor, key: object, *, also: tuple[type, ...] = ()) -> list[Item]:
    """The key with Ellipsis and missing axes spelled out as full slices; items of the classes in
    `also` stand for one axis each.

    Raises UserError for other items, and AxisError for too many.
    """
    given = cast("tuple[object, ...]", key) if isinstance(key, tuple) else (key,)
    for item in given:
        if not (item is None or isinstance(item, (int, Expr, slice, EllipsisType, *also))) or (
            isinstance(item, bool)
        ):
            raise UserError(
                f"x[{_key_text(item)}]: keys are integers, slices, None, Ellipsis, arrays of "
                "integers and known masks; take a block at an integer array with fw.slice, choose "
                "by a condition with fw.where, or with fw.compress and a size="
            )
    ellipses = [k for k, item in enumerate(given) if item is Ellipsis]
    used = sum(1 for item in given if item is not None and item is not Ellipsis)
    if len(ellipses) > 1 or used > t.ndim:
        raise AxisError(
            f"x[{key_text(given)}]: {used} axes and {len(ellipses)} Ellipsis for "
            f"an array of rank {t.ndim}: give at most one key per axis and one Ellipsis"
        )
    full: list[object] = [slice(None)] * (t.ndim - used)
    position = ellipses[0] if ellipses else len(given)
    spelled = [*given[:position], *full, *given[position + len(ellipses) :]]
    return cast("list[Item]", spelled)


def key_text(items: Sequence[object]) -> str:
    """A key as the messages print it."""
    return ", ".join(map(_key_text, items))


def _key_text(item: object) -> str:
    if isinstance(item, slice):
        limits = cast("slice[object, object, object]", item)
        parts = [limits.start, limits.stop] + ([limits.step] if limits.step is not None else [])
        return ":".join("" if p is None else str(p) for p in parts)
    return "..." if item is Ellipsis else shown(item)


def _range_of(item: int | Expr | slice, axis: int, extent: Expr) -> tuple[IntLike, IntLike, int]:
    """The interval of the axis that the key reads, and the signed step through it."""
    if not isinstance(item, slice):
        at = _position(item, axis, extent)
        return at, add(at, 1), 1
    if not isinstance(item.step, int | None) or item.step == 0:
        raise UserError(f"x[{_key_text(item)}] on axis {axis}: the step is a nonzero integer")
    step = item.step or 1
    if step > 0:
        start = _limit(item.start, 0, item, axis, extent)
        stop = _limit(item.stop, extent, item, axis, extent)
    else:
        # x[a:b:-s] reads a, a-s, ... down to b+1, so the interval is [b+1, a+1).
        start = _after(item.stop, 0, item, axis, extent)
        stop = _after(item.start, extent, item, axis, extent)
    return start, _ordered(start, stop, item, axis, extent), step


def _position(item: IntLike, axis: int, extent: Expr) -> Expr:
    at = _from_front(item, extent)
    rule = f"x[{item}] on axis {axis}: the index must lie inside size {extent}"
    if not is_at_least(0, at, rule) or not is_at_least(add(at, 1), extent, rule):
        is_known = constant_value(extent) is not None and constant_value(at) is not None
        known_text = "is outside" if is_known else "may be outside"
        raise AxisError(
            f"x[{item}] on axis {axis}: index {item} {known_text} size {extent}; use an index "
            "inside the axis, or declare a larger min for the symbol"
        )
    return at


def _limit(given: object, default: IntLike, item: slice, axis: int, extent: Expr) -> Expr:
    """One end of a slice with a positive step, clamped to `[0, extent]` as Python clamps it; one
    that depends on a number of the call must lie there, whatever the size, and each call checks
    it."""
    if given is None:
        return as_expr(default)
    if not isinstance(given, int | Expr):
        raise _no_limit(given, item, axis)
    return _clamped(_signed(given, item, axis, extent), item, axis, extent)


def _no_limit(given: object, item: slice, axis: int) -> UserError:
    return UserError(
        f"x[{_key_text(item)}] on axis {axis}: the limits of a slice are integers; {given} is "
        f"{type(given).__name__}"
    )


def _after(given: object, default: IntLike, item: slice, axis: int, extent: Expr) -> Expr:
    """One past an end of a slice with a negative step, clamped to `[0, extent]`."""
    if given is None:
        return as_expr(default)
    if not isinstance(given, int | Expr):
        raise _no_limit(given, item, axis)
    return _clamped(add(_signed(given, item, axis, extent), 1), item, axis, extent)


def _from_front(given: IntLike, extent: Expr) -> Expr:
    """A position that is always negative counts from the end."""
    return add(extent, given) if prove(less(given, 0)) is True else as_expr(given)


def _signed(given: IntLike, item: slice, axis: int, extent: Expr) -> Expr:
    rule = f"x[{_key_text(item)}] on axis {axis}: {given} must not be negative"
    if prove(less(given, 0)) is None and not is_at_least(0, given, rule):
        raise UserError(
            f"x[{_key_text(item)}] on axis {axis} of size {extent}: whether {given} is negative, "
            "and counts from the end, depends on the size; declare bounds on the symbol, or write "
            "the limit so that its sign is known"
        )
    return _from_front(given, extent)


def _depends_on_call(gap: Expr) -> bool:
    """Whether it is a number of the call that decides how large a difference is."""
    return any(v.is_number for v in variables(gap))


def _clamped(at: Expr, item: slice, axis: int, extent: Expr) -> Expr:
    """A limit inside of the axis. Which limits are clamped, and which are refused, does not depend
    on the size: none whose distance from the end a number of the call decides is clamped, so that a
    block `x[at : at + n]` never has fewer than `n` elements.
    """
    inside = minimum(maximum(at, 0), extent)
    if inside == at:
        return at
    of_call = _depends_on_call(add(extent, mul(at, -1)))
    if inside in (as_expr(0), extent) and not of_call:
        return inside
    rule = f"x[{_key_text(item)}] on axis {axis}: {at} must lie inside size {extent}"
    if is_at_least(0, at, rule) and is_at_least(at, extent, rule):
        return at
    if of_call and inside in (as_expr(0), extent):
        raise AxisError(
            f"{rule}, and lies outside of it for every number of a call; take a block that fits, "
            "or write a limit that is no number of the call, which is clamped"
        )
    raise UserError(
        f"x[{_key_text(item)}] on axis {axis} of size {extent}: whether {at} lies inside the axis "
        "depends on the size; declare bounds, for example "
        f"fw.Sym({str(extent)!r}, min=...), so that it is always or never inside"
    )


def _ordered(start: Expr, stop: Expr, item: slice, axis: int, extent: Expr) -> Expr:
    """`stop`, or `start` when the interval is empty."""
    last = maximum(start, stop)
    if last == stop or (last == start and not _depends_on_call(add(stop, mul(start, -1)))):
        return as_expr(last)
    rule = f"x[{_key_text(item)}] on axis {axis}: it must not end before it begins"
    if is_at_least(start, stop, rule):
        return as_expr(stop)
    if last == start:
        return as_expr(start)
    raise UserError(
        f"x[{_key_text(item)}] on axis {axis} of size {extent}: whether the slice is empty depends "
        "on the size; declare bounds on the symbol so that it is always or never empty"
    )


def _cropped(t: Tensor, starts: list[IntLike], stops: list[IntLike]) -> Tensor:
    low = [mul(s, -1) for s in starts]
    high = [add(e, mul(n, -1)) for e, n in zip(stops, t.shape, strict=True)]
    return build.resize(t, low, high, 0)


def _strided(t: Tensor, steps: list[int]) -> Tensor:
    if all(s == 1 for s in steps):
        return t
    shape = tuple(ceildiv(n, abs(s)) for n, s in zip(t.shape, steps, strict=True))
    at = build.coordinates(shape)
    where = [
        mul(c, s) if s > 0 else add(n, -1, mul(c, s))
        for c, n, s in zip(at, t.shape, steps, strict=True)
    ]
    return build.index_map(t, shape, at, where)


def _reshaped(t: Tensor, items: list[Item], kept: list[bool]) -> Tensor:
    """Drop the axes that integers selected, then add the new ones."""
    shape = tuple(s for s, k in zip(t.shape, kept, strict=True) if k)
    out = build.reshape("index", t, shape)
    position = 0
    for item in items:
        if item is None:
            out = build.expand(out, position)
        if item is None or isinstance(item, slice):
            position += 1
    return out
