"""Channels that become places and places that become channels, under their torch.nn.functional
names. x is (..., channels, height, width); every function raises UserError for sizes that do not
divide."""

from __future__ import annotations

from fusewright.core.expr import Expr, add, as_expr, floordiv, mul
from fusewright.errors import UserError
from fusewright.fusion import build, ops
from fusewright.fusion.array import Array, check_array
from fusewright.fusion.nn.arguments import check_rank

_LAYOUT = "(..., channels, height, width)"


def pixel_shuffle(x: Array, upscale_factor: int) -> Array:
    """Channel c * r**2 + i * r + j at (h, w) becomes channel c at (h * r + i, w * r + j), with
    r = upscale_factor."""
    x, r = _checked("pixel_shuffle", x, "upscale_factor", upscale_factor)
    *lead, channels, h, w = x.tensor.shape
    c = _divided("pixel_shuffle", channels, r * r, "channels")
    parts = build.reshape("pixel_shuffle", x.tensor, (*lead, c, as_expr(r), as_expr(r), h, w))
    n = len(lead)
    order = [*range(n + 1), n + 3, n + 1, n + 4, n + 2]
    made = build.permute(parts, order)
    return Array(build.reshape("pixel_shuffle", made, (*lead, c, mul(h, r), mul(w, r))))


def pixel_unshuffle(x: Array, downscale_factor: int) -> Array:
    """The inverse of `pixel_shuffle`."""
    x, r = _checked("pixel_unshuffle", x, "downscale_factor", downscale_factor)
    *lead, c, height, width = x.tensor.shape
    h, w = (_divided("pixel_unshuffle", e, r, "rows or columns") for e in (height, width))
    parts = build.reshape("pixel_unshuffle", x.tensor, (*lead, c, h, as_expr(r), w, as_expr(r)))
    n = len(lead)
    made = build.permute(parts, [*range(n + 1), n + 2, n + 4, n + 1, n + 3])
    return Array(build.reshape("pixel_unshuffle", made, (*lead, mul(c, r * r), h, w)))


def channel_shuffle(x: Array, groups: int) -> Array:
    """Channel g * n + k, of axis 1, becomes channel k * groups + g."""
    op = "channel_shuffle"
    x = check_array(op, x)
    check_rank(op, x, 3, "(batch, channels, ...)")
    count = _positive(op, "groups", groups)
    batch, channels, *rest = x.tensor.shape
    each = _divided(op, channels, count, "channels")
    parts = build.reshape(op, x.tensor, (batch, as_expr(count), each, *rest))
    return Array(build.reshape(op, ops.moveaxis(Array(parts), 1, 2).tensor, x.tensor.shape))


def _checked(op: str, x: Array, what: str, factor: int) -> tuple[Array, int]:
    x = check_array(op, x)
    check_rank(op, x, 3, _LAYOUT)
    return x, _positive(op, what, factor)


def _positive(op: str, what: str, given: int) -> int:
    found = build.integer(op, what, given)
    if found < 1:
        raise UserError(f"{op}: {what}={given} must be positive")
    return found


def _divided(op: str, size: Expr, by: int, what: str) -> Expr:
    part = floordiv(size, by)
    if mul(part, by) != size:
        raise UserError(
            f"{op}: {add(size, 0)} {what} are not known to be a multiple of {by}; pad first, or "
            f"declare multiple_of={by} on the symbol"
        )
    return part


__all__ = ["channel_shuffle", "pixel_shuffle", "pixel_unshuffle"]
