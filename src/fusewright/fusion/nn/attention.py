"""Scaled dot product attention as a composition: the scores are values of the program."""

from __future__ import annotations

import math

from fusewright.core.expr import constant_value
from fusewright.errors import UserError
from fusewright.fusion import build
from fusewright.fusion.array import Array, check_array
from fusewright.fusion.derivatives import without_gradient
from fusewright.fusion.nn.arguments import check_float, check_rank, widened
from fusewright.fusion.nn.dropouts import dropout
from fusewright.fusion.operands import check_flag
from fusewright.fusion.ops import (
    arange,
    astype,
    broadcast_to,
    equal,
    exp,
    expand_dims,
    matmul,
    max,
    reshape,
    rsqrt,
    sum,
    where,
)

_OP = "scaled_dot_product_attention"
_ROUNDED_NBYTES = 2
"""Of the floats that weights are rounded to: with fewer bits most weights of a long row are 0."""


def scaled_dot_product_attention(
    query: Array,
    key: Array,
    value: Array,
    attn_mask: Array | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    seed: int | Array | None = None,
    offset: int | Array = 0,
) -> Array:
    """softmax(query @ key.T * scale + mask) @ value over the last two axes, in the compute dtype.

    Of a query and a value that are both bfloat16, or both float16, the weights are rounded to that
    dtype before they multiply value, as torch rounds them; scores and sums are not.

    query is (..., L, E), key (..., S, E), value (..., S, Ev); the result (..., L, Ev) in query's
    dtype. `attn_mask` broadcasts to (..., L, S): a bool one tells what takes part, a float one is
    added. `is_causal` lets row i see columns up to i. `scale` is 1 / sqrt(E) unless given. With
    `enable_gqa` axis -3 of key and value divides that of query, and each of their heads serves
    adjacent heads of query. A row that sees nothing gives zeros. `dropout_p` drops weights as
    `nn.dropout` does, and needs a seed.
    Source: Vaswani et al., Attention is all you need (2017), section 3.2.1.
    """
    check_flag(_OP, "is_causal", is_causal)
    check_flag(_OP, "enable_gqa", enable_gqa)
    query, key, value = _sequence("query", query), _sequence("key", key), _sequence("value", value)
    if enable_gqa:
        key, value = _repeated(query, key, "key"), _repeated(query, value, "value")
    _check_widths(query, key, value)
    scores = _scores(widened(query), widened(key), scale)
    scores = _masked(scores, attn_mask, is_causal)
    weights = _weights(scores)
    if build.number(_OP, "dropout_p", dropout_p):
        weights = dropout(weights, dropout_p, seed=_given(seed), offset=offset)
    if query.dtype is value.dtype and query.dtype.nbytes == _ROUNDED_NBYTES:
        weights = widened(astype(weights, query.dtype))
    return astype(matmul(weights, widened(value)), query.dtype)


def _sequence(what: str, x: Array) -> Array:
    """An argument, which must be an array of vectors along an axis."""
    array = check_float(f"{_OP} ({what})", x)
    check_rank(f"{_OP} ({what})", array, 2, "(..., length, width)")
    return array


def _given(seed: int | Array | None) -> int | Array:
    if seed is None:
        raise UserError(f"{_OP}: dropout_p needs seed=, an int or an integer array of rank 0")
    return seed


def _check_widths(query: Array, key: Array, value: Array) -> None:
    q, k, v = query.tensor.shape, key.tensor.shape, value.tensor.shape
    if q[-1] != k[-1] or k[-2] != v[-2]:
        raise UserError(
            f"{_OP}: query {build.shape_text(q)}, key {build.shape_text(k)} and value "
            f"{build.shape_text(v)}: query and key must agree in their last axis, key and value in "
            "the one before; transpose or slice them to fit"
        )


def _repeated(query: Array, x: Array, what: str) -> Array:
    """x with each head as often as query has heads for it."""
    check_rank(f"{_OP} ({what})", x, 3, "(..., heads, length, width)")
    check_rank(f"{_OP} (query)", query, 3, "(..., heads, length, width)")
    wanted, found = constant_value(query.tensor.shape[-3]), constant_value(x.tensor.shape[-3])
    if wanted is None or found is None or not found or wanted % found:
        raise UserError(
            f"{_OP}: enable_gqa with {query.shape[-3]} heads in query and {x.shape[-3]} in {what}: "
            "both are integers, and the second divides the first"
        )
    lead, (length, width) = x.shape[:-3], x.shape[-2:]
    spread = broadcast_to(expand_dims(x, -3), (*lead, found, wanted // found, length, width))
    return reshape(spread, (*lead, wanted, length, width))


def _scores(query: Array, key: Array, scale: float | None) -> Array:
    products = matmul(query, key.mT)
    if scale is not None:
        return products * float(build.number(_OP, "scale", scale))
    width = query.tensor.shape[-1]
    known = constant_value(width)
    if known is None:
        return products * rsqrt(Array(build.size(width, products.dtype)))
    return products * (1.0 / math.sqrt(known))


def _masked(scores: Array, attn_mask: Array | None, is_causal: bool) -> Array:
    if is_causal:
        rows, columns = scores.shape[-2:]
        seen = expand_dims(arange(rows), 1) >= arange(columns)
        scores = where(seen, scores, -math.inf)
    if attn_mask is None:
        return scores
    mask = check_array(f"{_OP} (attn_mask)", attn_mask)
    build.broadcast_to(f"{_OP} (attn_mask)", mask.tensor, scores.tensor.shape)
    if mask.dtype.kind == "bool":
        return where(mask, scores, -math.inf)
    return scores + widened(check_float(f"{_OP} (attn_mask)", mask))


def _weights(scores: Array) -> Array:
    """softmax over the last axis; zeros where all scores are -inf."""
    top = without_gradient(max(scores, axis=-1, keepdims=True))
    e = exp(scores - where(equal(top, -math.inf), 0, top))
    total = sum(e, axis=-1, keepdims=True)
    return e / where(equal(total, 0), 1, total)
