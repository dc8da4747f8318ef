"""Convolutions, and windows as columns, under the names and argument order of torch.nn.functional.

x is (batch, channels, ...) or (channels, ...), a weight (channels out, channels of a group, ...).
One weight for each channel is a sum of shifted products in one kernel. All others are one matrix
product: of x itself where a window has one place, else of the columns that its windows read, which
a kernel of its own stores, as many times the bytes of x as a window has places.

Every function raises UserError for arrays that are not floats, and for shapes that do not fit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from fusewright.core.conditions import less_equal, prove
from fusewright.core.expr import Expr, add, as_expr, constant_value, mul
from fusewright.errors import UserError
from fusewright.fusion import build, ops
from fusewright.fusion.array import Array, common_dtype
from fusewright.fusion.derivatives import GivenRule
from fusewright.fusion.ir import Tensor
from fusewright.fusion.nn.arguments import check_float, check_shape, widened
from fusewright.fusion.nn.geometry import Sizes, check_layout, per_axis, reach, window_count
from fusewright.fusion.nn.windows import (
    MAX_UNROLLED,
    Window,
    place_count,
    places,
    read_place,
    read_places,
    write_place,
    write_places,
)
from fusewright.fusion.ops import astype, expand_dims, fma

Padding = Sizes | Literal["valid", "same"]


def conv1d(
    x: Array,
    weight: Array,
    bias: Array | None = None,
    stride: Sizes = 1,
    padding: Padding = 0,
    dilation: Sizes = 1,
    groups: int = 1,
) -> Array:
    """The sums of products of every window along the last axis with each weight, plus the bias.
    "same" pads so that there are as many windows as elements, the odd one behind."""
    return _conv("conv1d", 1, x, weight, bias, (stride, padding, dilation), groups)


def conv2d(
    x: Array,
    weight: Array,
    bias: Array | None = None,
    stride: Sizes = 1,
    padding: Padding = 0,
    dilation: Sizes = 1,
    groups: int = 1,
) -> Array:
    """The sums of products of every window along the last two axes with each weight, plus the
    bias. "same" pads so that there are as many windows as elements, the odd one behind."""
    return _conv("conv2d", 2, x, weight, bias, (stride, padding, dilation), groups)


def conv3d(
    x: Array,
    weight: Array,
    bias: Array | None = None,
    stride: Sizes = 1,
    padding: Padding = 0,
    dilation: Sizes = 1,
    groups: int = 1,
) -> Array:
    """The sums of products of every window along the last three axes with each weight, plus the
    bias. "same" pads so that there are as many windows as elements, the odd one behind."""
    return _conv("conv3d", 3, x, weight, bias, (stride, padding, dilation), groups)


def _conv(
    op: str,
    axes: int,
    x: Array,
    weight: Array,
    bias: Array | None,
    sizes: tuple[object, object, object],
    groups: int,
) -> Array:
    x, weight = _with_weight(op, axes, x, weight, groups)
    out, own = weight.tensor.shape[0], weight.tensor.shape[1]
    if mul(own, groups) != x.tensor.shape[x.ndim - axes - 1]:
        raise UserError(
            f"{op}: weight has shape {build.shape_text(weight.shape)}, x "
            f"{build.shape_text(x.shape)}, groups={groups}: axis 1 of weight is the channels of x "
            "over groups"
        )
    windows = _windows(op, x, _lengths(op, weight), sizes)
    if build.is_one(own) and groups > 1:
        y = _by_channel(op, x, weight, windows)
    else:
        y = _by_product(op, x, weight, windows, groups)
    if bias is None:
        return y
    check_shape(op, "bias", bias, (out,), of="axis 0 of weight")
    return y + expand_dims(bias, tuple(range(1, axes + 1)))


def _with_weight(op: str, axes: int, x: Array, weight: Array, groups: int) -> tuple[Array, Array]:
    """x and a weight of one dtype, whose channels groups divide."""
    x, weight = check_float(op, x), check_float(f"{op} (weight)", weight)
    check_layout(op, x, axes)
    if weight.ndim != axes + 2:
        raise UserError(
            f"{op}: weight has shape {build.shape_text(weight.shape)} of rank {weight.ndim}; it "
            f"has two axes of channels and {axes} of places: rank {axes + 2}"
        )
    count = build.integer(op, "groups", groups)
    divided = (x.tensor.shape[x.ndim - axes - 1], weight.tensor.shape[0])
    for n in divided:
        known = constant_value(n)
        if count < 1 or known is None or known % count:
            raise UserError(
                f"{op}: groups={groups} for {divided[0]} channels of x and {divided[1]} of weight: "
                "it must divide both, which are integers"
            )
    dtype = common_dtype(op, (x, weight))
    return astype(x, dtype), astype(weight, dtype)


def _lengths(op: str, weight: Array) -> tuple[int, ...]:
    found = [constant_value(n) for n in weight.tensor.shape[2:]]
    if any(n is None or n < 1 for n in found):
        raise UserError(
            f"{op}: weight has shape {build.shape_text(weight.shape)}; the sizes of its windows "
            "are integers from 1 on"
        )
    return tuple(n or 0 for n in found)


def _windows(
    op: str, x: Array, lengths: Sequence[int], sizes: tuple[object, object, object]
) -> list[Window]:
    stride, padding, dilation = sizes
    axes = len(lengths)
    strides = per_axis(op, "stride", stride, axes, least=1)
    dilations = per_axis(op, "dilation", dilation, axes, least=1)
    sides = _paddings(op, padding, lengths, strides, dilations)
    found: list[Window] = []
    for k, (n, s, d, (front, behind)) in enumerate(
        zip(lengths, strides, dilations, sides, strict=True)
    ):
        axis = x.ndim - axes + k
        size = x.tensor.shape[axis]
        count = window_count(op, axis, size, (n, s, front, behind, d))
        found.append(Window(axis, size, count, n, s, d, front))
    return found


def _paddings(
    op: str,
    padding: object,
    lengths: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
) -> list[tuple[int, int]]:
    """The padding in front of and behind each axis."""
    if padding == "valid":
        return [(0, 0)] * len(lengths)
    if padding == "same":
        if any(s != 1 for s in strides):
            raise UserError(
                f"{op}(padding='same') with stride={tuple(strides)}: it is for stride 1; give the "
                "padding in numbers"
            )
        totals = [reach(n, d) - 1 for n, d in zip(lengths, dilations, strict=True)]
        return [(t // 2, t - t // 2) for t in totals]
    if isinstance(padding, str):
        raise UserError(f"{op}: padding={padding!r}; use 'valid', 'same' or numbers")
    return [(p, p) for p in per_axis(op, "padding", padding, len(lengths), least=0)]


# --- forms --------------------------------------------------------------------------------------


def _by_channel(op: str, x: Array, weight: Array, windows: Sequence[Window]) -> Array:
    """Every channel with weights of its own: shifted products, summed in the compute dtype."""
    at = x.ndim - len(windows)
    channels = x.tensor.shape[at - 1]
    each = (constant_value(weight.tensor.shape[0]) or 0) // (constant_value(channels) or 1)
    wide = expand_dims(widened(x), at)
    moved = [_moved(w, 1) for w in windows]
    shape = (channels, as_expr(each), *weight.tensor.shape[2:])
    own = Array(build.reshape(op, widened(weight).tensor, shape))
    total = _shifted_products(wide, own, moved)
    total.tensor.rule = GivenRule(
        (wide.tensor, own.tensor), lambda g: _products_back(wide, own, moved, g)
    )
    counts = tuple(w.count for w in windows)
    shape = (*x.tensor.shape[: at - 1], weight.tensor.shape[0], *counts)
    return astype(Array(build.reshape(op, total.tensor, shape)), x.dtype)


def _shifted_products(wide: Array, own: Array, windows: Sequence[Window]) -> Array:
    """The sums over places of what windows of `wide`, (batch.., channels, 1, ...), read times
    `own`, (channels, channels out of each, ...)."""
    if place_count(windows) > MAX_UNROLLED:
        columns = read_places(wide, windows, wide.ndim, 0)
        axes = tuple(range(wide.ndim, columns.ndim))
        return ops.sum(columns * expand_dims(own, _behind(2, windows)), axis=axes)
    total: Array | None = None
    for place in places(windows):
        found, w = read_place(wide, windows, place, 0), _at_place(own, place)
        total = found * w if total is None else fma(found, w, total)
    assert total is not None
    return total


def _at_place(own: Array, place: tuple[int, ...]) -> Array:
    """The weights at a place, with an axis of size 1 for each axis of windows."""
    shape = (*own.tensor.shape[:2], *(as_expr(1) for _ in place))
    at = build.coordinates(shape)
    return Array(build.index_map(own.tensor, shape, at, (*at[:2], *place)))


def _behind(axis: int, windows: Sequence[Window]) -> tuple[int, ...]:
    return tuple(range(axis, axis + len(windows)))


def _products_back(
    wide: Array, own: Array, windows: Sequence[Window], g: Array
) -> tuple[Array, Array]:
    """The cotangents of `_shifted_products`: elements gather the windows that they are in, and the
    weights of all places are one reduction."""
    at = wide.ndim - len(windows)
    if place_count(windows) > MAX_UNROLLED:
        spread = expand_dims(g, _behind(g.ndim, windows))
        of_x = write_places(spread * expand_dims(own, _behind(2, windows)), windows, wide.ndim)
    else:
        of_x = None
        for place in places(windows):
            found, w = write_place(g, windows, place), _at_place(own, place)
            of_x = found * w if of_x is None else fma(found, w, of_x)
        assert of_x is not None
    columns = read_places(wide, windows, wide.ndim, 0)
    products = columns * expand_dims(g, _behind(g.ndim, windows))
    of_weight = ops.sum(products, axis=(*range(at - 2), *_behind(at, windows)))
    return ops.sum(of_x, axis=at - 1, keepdims=True), of_weight


def _moved(w: Window, by: int) -> Window:
    return Window(w.axis + by, w.size, w.count, w.length, w.stride, w.dilation, w.padding)


def _by_product(op: str, x: Array, weight: Array, windows: Sequence[Window], groups: int) -> Array:
    """Weights as rows times what every window reads as columns."""
    at = x.ndim - len(windows)
    batch, counts = x.tensor.shape[: at - 1], tuple(w.count for w in windows)
    columns = _columns(op, x, windows, groups)
    out = weight.tensor.shape[0]
    depth = build.element_count(weight.tensor.shape[1:])
    if groups == 1:
        rows = build.reshape(op, weight.tensor, (out, depth))
    else:
        own = as_expr((constant_value(out) or 0) // groups)
        rows = build.reshape(op, weight.tensor, (as_expr(groups), own, depth))
    made = build.matmul(op, rows, columns)
    return Array(build.reshape(op, made, (*batch, out, *counts)))


def _columns(op: str, x: Array, windows: Sequence[Window], groups: int) -> Tensor:
    """What the windows read, (batch.., groups, depth of a group, windows); no axis for 1 group."""
    at = x.ndim - len(windows)
    if place_count(windows) == 1:
        found = x if _is_whole(windows) else read_place(x, windows, (0,) * len(windows), 0)
    else:
        found = read_places(x, windows, at, 0)
    channels = mul(x.tensor.shape[at - 1], place_count(windows))
    length = build.element_count(tuple(w.count for w in windows))
    lead: tuple[Expr, ...] = (channels,)
    if groups > 1:
        lead = (as_expr(groups), as_expr((constant_value(channels) or 0) // groups))
    return build.reshape(op, found.tensor, (*x.tensor.shape[: at - 1], *lead, length))


def _is_whole(windows: Sequence[Window]) -> bool:
    return all(w.stride == 1 and w.padding == 0 for w in windows)


# --- transposed ---------------------------------------------------------------------------------


def conv_transpose1d(
    x: Array,
    weight: Array,
    bias: Array | None = None,
    stride: Sizes = 1,
    padding: Sizes = 0,
    output_padding: Sizes = 0,
    groups: int = 1,
    dilation: Sizes = 1,
) -> Array:
    """The gradient of `conv1d` by its x as an operation: every element, times each weight of shape
    (channels of x, channels out of a group, length), is added to the window that it stands for."""
    sizes = stride, padding, output_padding, dilation
    return _transposed("conv_transpose1d", 1, x, weight, bias, sizes, groups)


def conv_transpose2d(
    x: Array,
    weight: Array,
    bias: Array | None = None,
    stride: Sizes = 1,
    padding: Sizes = 0,
    output_padding: Sizes = 0,
    groups: int = 1,
    dilation: Sizes = 1,
) -> Array:
    """The gradient of `conv2d` by its x as an operation: every element, times each weight of shape
    (channels of x, channels out of a group, ...), is added to the window that it stands for."""
    sizes = stride, padding, output_padding, dilation
    return _transposed("conv_transpose2d", 2, x, weight, bias, sizes, groups)


def _transposed(
    op: str,
    axes: int,
    x: Array,
    weight: Array,
    bias: Array | None,
    sizes: tuple[object, object, object, object],
    groups: int,
) -> Array:
    x, weight = _with_weight(op, axes, x, weight, groups)
    at = x.ndim - axes
    channels, own = x.tensor.shape[at - 1], weight.tensor.shape[1]
    if weight.tensor.shape[0] != channels:
        raise UserError(
            f"{op}: weight has shape {build.shape_text(weight.shape)}, x "
            f"{build.shape_text(x.shape)}: axis 0 of weight is the channels of x"
        )
    lengths = _lengths(op, weight)
    windows = _target_windows(op, x, lengths, sizes)
    batch, counts = x.tensor.shape[: at - 1], x.tensor.shape[at:]
    depth = build.element_count(weight.tensor.shape[1:])
    group = as_expr((constant_value(channels) or 0) // groups)
    lead = () if groups == 1 else (as_expr(groups),)
    rows = build.swap_last(build.reshape(op, weight.tensor, (*lead, group, depth)))
    elements = build.reshape(op, x.tensor, (*batch, *lead, group, build.element_count(counts)))
    columns = build.matmul(op, rows, elements)
    out = mul(own, groups)
    shape = (*batch, out, *(as_expr(n) for n in lengths), *counts)
    made = Array(build.reshape(op, columns, shape))
    y = astype(write_places(widened(made), windows, at), x.dtype)
    if bias is None:
        return y
    check_shape(op, "bias", bias, (out,), of="the channels out of weight")
    return y + expand_dims(bias, tuple(range(1, axes + 1)))


def _target_windows(
    op: str, x: Array, lengths: Sequence[int], sizes: tuple[object, object, object, object]
) -> list[Window]:
    """The windows of the result that the elements of x stand for."""
    stride, padding, output_padding, dilation = sizes
    axes = len(lengths)
    strides = per_axis(op, "stride", stride, axes, least=1)
    paddings = per_axis(op, "padding", padding, axes, least=0)
    extras = per_axis(op, "output_padding", output_padding, axes, least=0)
    dilations = per_axis(op, "dilation", dilation, axes, least=1)
    found: list[Window] = []
    for k, (n, s, p, e, d) in enumerate(
        zip(lengths, strides, paddings, extras, dilations, strict=True)
    ):
        if e >= max(s, d):
            raise UserError(
                f"{op}: output_padding {e} with stride {s} and dilation {d}: it must be smaller "
                "than either"
            )
        count = x.tensor.shape[x.ndim - axes + k]
        size = add(mul(add(count, -1), s), reach(n, d) + e - 2 * p)
        if prove(less_equal(1, size)) is not True:
            raise UserError(
                f"{op}: axis {x.ndim - axes + k} of size {count} becomes {size} with padding {p}: "
                "a result has one element or more; pad less"
            )
        found.append(Window(x.ndim - axes + k, size, count, n, s, d, p))
    return found


# --- columns ------------------------------------------------------------------------------------


def unfold(
    x: Array,
    kernel_size: Sizes,
    dilation: Sizes = 1,
    padding: Sizes = 0,
    stride: Sizes = 1,
) -> Array:
    """What every window along the last two axes reads, as columns: (batch, channels * places,
    windows), or without the batch."""
    x = check_float("unfold", x)
    check_layout("unfold", x, 2)
    lengths = per_axis("unfold", "kernel_size", kernel_size, 2, least=1)
    windows = _windows("unfold", x, lengths, (stride, padding, dilation))
    return Array(_columns("unfold", x, windows, 1))


def fold(
    x: Array,
    output_size: Sizes,
    kernel_size: Sizes,
    dilation: Sizes = 1,
    padding: Sizes = 0,
    stride: Sizes = 1,
) -> Array:
    """The sums of columns, (batch, channels * places, windows) or without the batch, in the planes
    of `output_size` that their windows read: the gradient of `unfold` as an operation. Raises
    UserError where the columns are not those of that plane."""
    x = check_float("fold", x)
    if x.ndim not in (2, 3):
        raise UserError(
            f"fold: x has shape {build.shape_text(x.shape)} of rank {x.ndim}; columns are (batch, "
            "channels * places, windows), or without the batch"
        )
    lengths = per_axis("fold", "kernel_size", kernel_size, 2, least=1)
    sizes = per_axis("fold", "output_size", output_size, 2, least=1)
    given = constant_value(x.tensor.shape[-2])
    each = lengths[0] * lengths[1]
    if given is None or given % each:
        raise UserError(
            f"fold: axis {x.ndim - 2} of size {x.shape[-2]} is no multiple of the {each} places of "
            f"kernel_size={kernel_size}; it holds the channels times the places"
        )
    batch = x.tensor.shape[:-2]
    plane = (*batch, as_expr(given // each), *map(as_expr, sizes))
    like = Array(build.full(plane, 0.0, x.dtype))
    windows = _windows("fold", like, lengths, (stride, padding, dilation))
    counts = tuple(w.count for w in windows)
    if build.element_count(counts) != x.tensor.shape[-1]:
        raise UserError(
            f"fold: {x.shape[-1]} columns for {counts[0]} x {counts[1]} windows of "
            f"output_size={output_size}; unfold of that plane has {build.element_count(counts)}"
        )
    shape = (*plane[:-2], *map(as_expr, lengths), *counts)
    columns = Array(build.reshape("fold", widened(x).tensor, shape))
    return astype(write_places(columns, windows, len(plane) - 2), x.dtype)


__all__ = [
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_transpose1d",
    "conv_transpose2d",
    "fold",
    "unfold",
]
