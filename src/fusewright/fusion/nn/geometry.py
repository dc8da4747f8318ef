"""How many windows an axis has: sizes, strides, paddings and dilations as torch counts them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from fusewright.core.conditions import less_equal, prove
from fusewright.core.expr import Expr, add, constant_value, floordiv
from fusewright.errors import UserError
from fusewright.fusion import build
from fusewright.fusion.array import Array
from fusewright.fusion.nn.windows import Window

Sizes: TypeAlias = "int | Sequence[int]"


def per_axis(op: str, what: str, given: object, axes: int, *, least: int) -> tuple[int, ...]:
    """One integer for each axis of a window, from one for all or a sequence of them. UserError for
    another number, and for any below `least`."""
    found = build.integers(op, what, given)
    if len(found) not in (1, axes):
        raise UserError(
            f"{op}: {what}={given!r} has {len(found)} entries for {axes} axes; give one integer, "
            "or one for each axis"
        )
    if min(found) < least:
        raise UserError(f"{op}: {what}={given!r}: entries go from {least} on")
    return found * axes if len(found) == 1 else found


def check_layout(op: str, x: Array, axes: int) -> None:
    """UserError unless x is (batch, channels, ...) or (channels, ...)."""
    if x.ndim not in (axes + 1, axes + 2):
        raise UserError(
            f"{op}: x has shape {build.shape_text(x.shape)} of rank {x.ndim}; its layout is "
            f"(batch, channels, ...) or (channels, ...), with {axes} axes behind the channels: "
            f"rank {axes + 2} or {axes + 1}"
        )


def reach(length: int, dilation: int) -> int:
    """The elements from the first to the last place of a window."""
    return dilation * (length - 1) + 1


def window_count(op: str, axis: int, size: Expr, w: tuple[int, int, int, int, int]) -> Expr:
    """How many windows of (length, stride, padding in front, padding behind, dilation) lie on an
    axis with its padding. UserError where none is known to."""
    length, stride, front, behind, dilation = w
    room = add(size, front + behind - reach(length, dilation))
    if prove(less_equal(0, room)) is not True:
        raise UserError(
            f"{op}: axis {axis} of size {size} with padding {front} and {behind} has no room for "
            f"a window that reaches over {reach(length, dilation)} elements; pad more, use a "
            "smaller window, or declare a larger min for the symbol"
        )
    return add(floordiv(room, stride), 1)


def pool_windows(
    op: str,
    x: Array,
    kernel_size: object,
    stride: object,
    padding: object,
    dilation: object,
    *,
    ceil_mode: bool,
    axes: int,
) -> list[Window]:
    """The windows of a pooling along the last axes of x."""
    check_layout(op, x, axes)
    lengths = per_axis(op, "kernel_size", kernel_size, axes, least=1)
    strides = lengths if _is_left_out(stride) else per_axis(op, "stride", stride, axes, least=1)
    paddings = per_axis(op, "padding", padding, axes, least=0)
    dilations = per_axis(op, "dilation", dilation, axes, least=1)
    found: list[Window] = []
    for k, (n, s, p, d) in enumerate(zip(lengths, strides, paddings, dilations, strict=True)):
        axis = x.ndim - axes + k
        if 2 * p > reach(n, d):
            raise UserError(
                f"{op}: padding {p} on axis {axis} for windows that reach over {reach(n, d)} "
                "elements: at most half of a window may be padding; pad with fw.pad first"
            )
        size = x.tensor.shape[axis]
        count = window_count(op, axis, size, (n, s, p, p, d))
        if ceil_mode:
            count = _with_last(op, axis, size, (n, s, p, d))
        found.append(Window(axis, size, count, n, s, d, p))
    return found


def _is_left_out(stride: object) -> bool:
    """Whether windows stand side by side, which torch also spells as ()."""
    return stride is None or (isinstance(stride, tuple) and not stride)


def _with_last(op: str, axis: int, size: Expr, w: tuple[int, int, int, int]) -> Expr:
    """The count that takes a window that ends behind the padding, if it begins before its end:
    one that begins in the padding behind the elements would hold none."""
    length, stride, padding, dilation = w
    n = constant_value(size)
    if n is None:
        raise UserError(
            f"{op}(ceil_mode=True): axis {axis} has symbolic size {size}, of which the last window "
            "depends; make that size an integer, or pad with fw.pad and leave ceil_mode out"
        )
    room = n + 2 * padding - reach(length, dilation)
    count = -(-room // stride) + 1
    is_behind = (count - 1) * stride >= n + padding
    return build.as_expr(count - 1 if is_behind else count)
