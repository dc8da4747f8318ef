"""Data movement: transposes, pads, joins, insertions, shifts."""

from __future__ import annotations

import fusewright as fw
from fusewright.corpus.case import case
from fusewright.fusion.array import Array

Several = tuple[Array, ...]


def _patches(x: Array) -> Array:
    """Vision transformers: each 4 x 4 patch of an image as one row."""
    b, c, y, z = x.shape
    cut = fw.reshape(x, (b, c, y // 4, 4, z // 4, 4))
    rows = fw.permute_dims(cut, (0, 2, 4, 1, 3, 5))
    return fw.reshape(rows, (b, (y // 4) * (z // 4), c * 16))


def _split_heads(x: Array) -> Several:
    """A packed projection (batch, sequence, 3 * heads * 8) as query, key and value by head."""
    b, s, width = x.shape
    cut = fw.permute_dims(fw.reshape(x, (b, s, 3, width // 24, 8)), (2, 0, 3, 1, 4))
    return cut[0], cut[1], cut[2]


def _token_shift(x: Array, mix: Array) -> Array:
    """RWKV: every token mixed with the one before."""
    before = fw.pad(x, ((0, 0), (1, -1), (0, 0)))
    return x * mix + before * (1.0 - mix)


def _insert_into_cache(cache: Array, new: Array) -> Array:
    return fw.insert(cache, new, (0, 2, 0))


def _skip_connection(x: Array, skip: Array) -> Array:
    """U-nets: the upsampled map joined with the cropped one of its way down."""
    wide = fw.repeat(fw.repeat(x, 2, axis=2), 2, axis=3)
    return fw.concat([wide, skip[:, :, 1:-1, 1:-1]], axis=1)


MOVEMENT = (
    case(
        "transpose", fw.matrix_transpose, "float32[m, n]",
        full="m=8192 n=8192", small="m=33 n=70",
    ),
    case(
        "transpose_heads", lambda x: fw.permute_dims(x, (0, 2, 1, 3)), "bfloat16[b, s, n, d]",
        full="b=8 s=2048 n=32 d=128", small="b=2 s=5 n=3 d=16",
    ),
    case(
        "channels_last", lambda x: fw.permute_dims(x, (0, 2, 3, 1)), "float16[b, c, y, x]",
        full="b=64 c=64 y=56 x=56", small="b=2 c=5 y=4 x=7",
    ),
    case(
        "symmetrise", lambda x: (x + x.T) * 0.5, "float32[n, n]", full="n=8192", small="n=45",
    ),
    case("patches", _patches, "float32[b, c, y, x]",
         full="b=64 c=3 y=224 x=224", small="b=2 c=3 y=8 x=12"),
    case("split_heads", _split_heads, "bfloat16[b, s, w]",
         full="b=8 s=1024 w=3072", small="b=2 s=5 w=48"),
    case(
        "pad_image", lambda x: fw.pad(x, ((0, 0), (0, 0), (1, 1), (2, 3))), "float32[b, c, y, x]",
        full="b=64 c=64 y=112 x=112", small="b=2 c=2 y=5 x=6",
    ),
    case(
        "pad_reflect", lambda x: fw.pad(x, ((0, 0), (3, 3)), "reflect"), "float16[b, n]",
        full="b=4096 n=4096", small="b=5 n=40",
    ),
    case(
        "concat_features", lambda a, b, c: fw.concat([a, b, c], axis=-1),
        "bfloat16[b, m]", "bfloat16[b, n]", "bfloat16[b, k]",
        full="b=65536 m=256 n=128 k=64", small="b=7 m=20 n=9 k=3",
    ),
    case(
        "token_shift", _token_shift, "bfloat16[b, s, h]", "bfloat16[h]",
        full="b=8 s=2048 h=2048", small="b=2 s=5 h=32",
    ),
    case(
        "insert_into_cache", _insert_into_cache, "float16[b, s, d]", "float16[b, 3, d]",
        full="b=512 s=1024 d=128", small="b=2 s=9 d=16",
    ),
    case(
        "skip_connection", _skip_connection, "float32[b, c, y, y]", "float32[b, c, z, z]",
        full="b=8 c=64 y=64 z=130", small="b=1 c=3 y=4 z=10",
    ),
)  # fmt: skip
