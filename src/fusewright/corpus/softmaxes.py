"""Softmaxes, masks and attention."""

from __future__ import annotations

import fusewright as fw
from fusewright import nn
from fusewright.corpus.case import case
from fusewright.fusion.array import Array

Several = tuple[Array, ...]


def _softmax_rows(x: Array) -> Array:
    return nn.softmax(x, -1)


def _softmax_backward(dy: Array, y: Array) -> Array:
    return nn.softmax_backward(dy, y, -1)


def _causal_softmax(scores: Array) -> Array:
    rows, columns = scores.shape[-2:]
    seen = fw.arange(rows)[:, None] >= fw.arange(columns)
    scaled = fw.astype(scores, fw.float32) * 0.125
    return fw.astype(nn.softmax(fw.where(seen, scaled, -1e30), -1), scores.dtype)


def _masked_softmax(scores: Array, keep: Array) -> Array:
    return nn.softmax(fw.where(keep[:, None, None, :], scores, -1e4), -1)


def _alibi_softmax(scores: Array, slopes: Array) -> Array:
    rows, columns = scores.shape[-2:]
    distance = fw.arange(columns) - fw.arange(rows)[:, None]
    bias = slopes[:, None, None] * fw.astype(distance, fw.float32)
    return fw.astype(nn.softmax(scores + bias, -1), scores.dtype)


def _softcapped_softmax(scores: Array) -> Array:
    return nn.softmax(fw.tanh(scores * (1 / 50.0)) * 50.0, -1)


def _softmax_dropout(scores: Array, seed: Array) -> Array:
    return nn.dropout(nn.softmax(scores, -1), 0.1, seed=seed)


def _window_mask(lengths: Array, keep: Array) -> Array:
    """Which keys each query sees: not padded, not later, and at most four back."""
    columns = keep.shape[-1]
    j = fw.arange(columns, dtype=fw.int32)
    i = j[:, None]
    band = (i >= j) & (i - j <= 4)
    return band & (j < lengths[:, None])[:, None, :] & keep[:, None, :]


def _causal_attention(q: Array, k: Array, v: Array) -> Array:
    return nn.scaled_dot_product_attention(q, k, v, is_causal=True)


def _router(logits: Array) -> Several:
    p = nn.softmax(logits, -1)
    return fw.argmax(p, axis=-1), fw.max(p, axis=-1), fw.mean(p, axis=0)


SOFTMAXES = (
    case("softmax", _softmax_rows, "float32[b, v]", full="b=8192 v=4096", small="b=5 v=77"),
    case("softmax_long", _softmax_rows, "bfloat16[b, v]", full="b=64 v=131072", small="b=1 v=999"),
    case(
        "softmax_columns", lambda x: nn.softmax(x, 0), "float32[b, v]",
        full="b=4096 v=4096", small="b=31 v=10",
    ),
    case(
        "log_softmax", lambda x: nn.log_softmax(x, -1), "bfloat16[b, v]",
        full="b=4096 v=32000", small="b=3 v=65",
    ),
    case(
        "softmax_backward", _softmax_backward, "bfloat16[b, v]", "bfloat16[b, v] < 1",
        full="b=8192 v=4096", small="b=4 v=50",
    ),
    case(
        "log_softmax_backward", lambda dy, y: nn.log_softmax_backward(dy, y, -1),
        "float32[b, v]", "float32[b, v]", full="b=4096 v=32000", small="b=2 v=129",
    ),
    case(
        "causal_softmax", _causal_softmax, "bfloat16[b, n, s, s]",
        full="b=4 n=32 s=1024", small="b=1 n=2 s=17",
    ),
    case(
        "masked_softmax", _masked_softmax, "float16[b, n, s, s]", "bool[b, s]",
        full="b=16 n=12 s=512", small="b=2 n=2 s=12",
    ),
    case(
        "alibi_softmax", _alibi_softmax, "float16[b, n, s, s]", "float32[n] > 0",
        full="b=4 n=16 s=1024", small="b=1 n=3 s=16",
    ),
    case(
        "softcapped_softmax", _softcapped_softmax, "bfloat16[b, n, s, t]",
        full="b=1 n=16 s=2048 t=4096", small="b=1 n=2 s=5 t=40",
    ),
    case(
        "softmax_dropout", _softmax_dropout, "float16[b, n, s, s]", "int64[] < 7",
        full="b=8 n=16 s=512", small="b=1 n=2 s=15",
    ),
    case(
        "window_mask", _window_mask, "int32[b] < s", "bool[b, s]",
        full="b=16 s=2048", small="b=3 s=19",
    ),
    case(
        "causal_attention", _causal_attention, "float32[b, s, d]", "float32[b, s, d]",
        "float32[b, s, d]", full="b=16 s=256 d=64", small="b=2 s=9 d=16",
    ),
    case("router", _router, "float32[t, e]", full="t=16384 e=64", small="t=20 e=8"),
)  # fmt: skip
