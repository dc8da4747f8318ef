"""Embedding look-ups, one-hot encodings and rotary position embeddings."""

from __future__ import annotations

from fusewright.core.expr import IntLike, as_expr, constant_value
from fusewright.errors import UserError
from fusewright.fusion import build
from fusewright.fusion.array import Array, check_array
from fusewright.fusion.nn.activations import half_size, halves
from fusewright.fusion.nn.arguments import check_float, check_shape, per_channel, widened
from fusewright.fusion.operands import check_category, check_flag
from fusewright.fusion.ops import (
    arange,
    astype,
    concat,
    equal,
    expand_dims,
    logical_and,
    not_equal,
    reshape,
    stack,
    sum,
    take,
    where,
)
from fusewright.fusion.ops.gather import signed_indices


def _check_indices(op: str, indices: object) -> Array:
    array = check_array(op, indices)
    check_category(f"{op} (indices)", array.dtype, "integer")
    return array


# --- tables -------------------------------------------------------------------------------------


def embedding(indices: Array, weight: Array, *, mode: str = "raise") -> Array:
    """Row `indices[...]` of weight, of shape (rows, width), for every index. What an index outside
    means `mode` says, as for `take`. Raises UserError for a weight that is no table."""
    indices = _check_indices("embedding", indices)
    weight = check_array("embedding (weight)", weight)
    if weight.ndim != 2:
        raise UserError(
            f"embedding: weight has shape {build.shape_text(weight.shape)}; it is a table "
            "(rows, width); reshape it to rank 2"
        )
    return take(weight, indices, axis=0, mode=mode)


def embedding_backward(
    dy: Array, indices: Array, num_embeddings: IntLike, *, padding_idx: int | None = None
) -> Array:
    """The gradient of the table, of shape (num_embeddings, width): for every row the sum of dy
    over the places that read it; 0 for row `padding_idx`. Negative indices count from the end.

    Compares every row with every index, so the order of the sum is fixed and no atomics are needed.
    """
    op = "embedding_backward"
    indices = _check_indices(op, indices)
    dy = check_float(op, dy)
    check_shape(
        op, "dy", dy, (*indices.tensor.shape, *dy.tensor.shape[-1:]), of="the result of embedding"
    )
    places = build.element_count(indices.tensor.shape)
    at = signed_indices(reshape(indices, (places,)))
    count = Array(build.size(num_embeddings, at.dtype))
    rows = expand_dims(arange(num_embeddings, dtype=at.dtype), 1)
    hit = equal(rows, where(at < 0, at + count, at))
    if padding_idx is not None:
        hit = logical_and(hit, not_equal(rows, _check_row(op, padding_idx, num_embeddings)))
    values = reshape(widened(dy), (places, dy.shape[-1]))
    picked = where(expand_dims(hit, 2), values, 0)
    return astype(sum(picked, axis=1), dy.dtype)


def _check_row(op: str, padding_idx: int, num_embeddings: IntLike) -> int:
    known = constant_value(as_expr(num_embeddings))
    if padding_idx < 0 or (known is not None and padding_idx >= known):
        raise UserError(
            f"{op}: padding_idx={padding_idx} is no row of a table of {num_embeddings}; count it "
            "from the front"
        )
    return padding_idx


def one_hot(
    indices: Array, num_classes: IntLike, *, axis: int = -1, dtype: object = "int64"
) -> Array:
    """1 where the coordinate along a new axis of size `num_classes` equals the index, else 0; an
    index outside gives zeros. `axis` is the new one's place in the result."""
    indices = _check_indices("one_hot", indices)
    along = build.axis_of("one_hot", axis, indices.ndim + 1)
    return astype(is_class(indices, num_classes, along), dtype)


def is_class(indices: Array, num_classes: IntLike, axis: int) -> Array:
    """Whether the coordinate along the new axis `axis` is the index."""
    at = signed_indices(indices)
    classes = per_channel(arange(num_classes, dtype=at.dtype), at.ndim + 1, axis)
    return equal(expand_dims(at, axis), classes)


# --- rotary -------------------------------------------------------------------------------------


def rotary_embedding(x: Array, cos: Array, sin: Array, *, interleaved: bool = False) -> Array:
    """x of shape (..., 2k) with each pair of elements turned by an angle; `cos` and `sin`, of a
    shape that broadcasts to (..., k), are the angles' cosines and sines.

    A pair is element j of both halves of the last axis, or 2j and 2j+1 when interleaved.
    Source: Su et al., RoFormer: enhanced transformer with rotary position embedding (2021).
    """
    op = "rotary_embedding"
    check_flag(op, "interleaved", interleaved)
    x, cos, sin = check_float(op, x), check_float(op, cos), check_float(op, sin)
    a, b = _pairs(op, x, interleaved)
    _check_angles(op, a, cos, sin)
    c, s = widened(cos), widened(sin)
    turned = [astype(v, x.dtype) for v in (a * c - b * s, b * c + a * s)]
    return reshape(stack(turned, axis=-1), x.shape) if interleaved else concat(turned, axis=-1)


def rotary_embedding_backward(
    dy: Array, cos: Array, sin: Array, *, interleaved: bool = False
) -> Array:
    """The gradient of x: dy turned back."""
    return rotary_embedding(
        dy, cos, -check_float("rotary_embedding_backward", sin), interleaved=interleaved
    )


def _pairs(op: str, x: Array, interleaved: bool) -> tuple[Array, Array]:
    if not interleaved:
        return halves(op, x, -1)
    pairs = reshape(x, (*x.shape[:-1], half_size(op, x, -1), 2))
    return pairs[..., 0], pairs[..., 1]


def _check_angles(op: str, a: Array, cos: Array, sin: Array) -> None:
    for what, v in (("cos", cos), ("sin", sin)):
        if build.broadcast_shapes(f"{op} ({what})", a.tensor.shape, v.tensor.shape) != (
            a.tensor.shape
        ):
            raise UserError(
                f"{op}: {what} has shape {build.shape_text(v.shape)}, which does not broadcast to "
                f"the halves of x, {build.shape_text(a.shape)}; give one angle per pair of elements"
            )
