"""Embedding look-ups and position encodings."""

from __future__ import annotations

import fusewright as fw
from fusewright import nn
from fusewright.corpus.case import case
from fusewright.fusion.array import Array

Several = tuple[Array, ...]


def _embed(tokens: Array, table: Array, positions: Array, w: Array, b: Array) -> Array:
    x = nn.embedding(tokens, table) + positions
    return nn.layer_norm(x, x.shape[-1:], w, b)


def _rotate_query_and_key(q: Array, k: Array, cos: Array, sin: Array) -> Several:
    c, s = cos[:, None, :], sin[:, None, :]
    return nn.rotary_embedding(q, c, s), nn.rotary_embedding(k, c, s)


def _relative_buckets(x: Array) -> Array:
    """T5: near distances one by one, far ones by their logarithm, in 32 buckets."""
    n = fw.abs(x)
    apart = fw.astype(n, fw.float32) + 0.125  # keeps whole powers off the edges of their buckets
    far = fw.log(apart * (1 / 8.0)) * 2.885390
    bucket = fw.where(n < 8, n, fw.minimum(fw.astype(far, fw.int32) + 8, 15))
    return bucket + fw.where(x > 0, fw.full_like(x, 16), 0)


EMBEDDINGS = (
    case(
        "embedding", nn.embedding, "int32[b, s] < v", "bfloat16[v, h]",
        full="b=8 s=2048 v=32000 h=4096", small="b=2 s=5 v=13 h=48",
    ),
    case(
        "embedding_layer_norm", _embed, "int64[b, s] < v", "float32[v, h]", "float32[s, h]",
        "float32[h]", "float32[h]", full="b=16 s=512 v=30522 h=768", small="b=2 s=4 v=11 h=40",
    ),
    case(
        "embedding_backward", lambda dy, i: nn.embedding_backward(dy, i, 16),
        "float32[n, h]", "int32[n] < 16", full="n=4096 h=1024", small="n=21 h=12",
    ),
    case(
        "one_hot", lambda i: nn.one_hot(i, 10, dtype=fw.float32), "int32[n] < 10",
        full="n=65536", small="n=29",
    ),
    case(
        "rotary", _rotate_query_and_key, "bfloat16[b, s, n, d]", "bfloat16[b, s, k, d]",
        "float32[s, e]", "float32[s, e]",
        full="b=2 s=4096 n=32 k=8 d=128 e=64", small="b=1 s=4 n=3 k=2 d=16 e=8",
    ),
    case(
        "rotary_interleaved", lambda x, c, s: nn.rotary_embedding(x, c, s, interleaved=True),
        "float16[b, n, s, d]", "float32[s, e]", "float32[s, e]",
        full="b=4 n=16 s=2048 d=64 e=32", small="b=1 n=2 s=5 d=12 e=6",
    ),
    case(
        "rotary_backward", nn.rotary_embedding_backward,
        "bfloat16[b, n, s, d]", "float32[s, e]", "float32[s, e]",
        full="b=2 n=32 s=4096 d=128 e=64", small="b=1 n=2 s=7 d=8 e=4",
    ),
    case("relative_buckets", _relative_buckets, "int32[s, t]",
          full="s=4096 t=4096", small="s=9 t=13"),
)  # fmt: skip
