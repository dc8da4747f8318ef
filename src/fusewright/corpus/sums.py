"""Reductions that stand alone: sums, norms, extremes, counts."""

from __future__ import annotations

import fusewright as fw
from fusewright.corpus.case import case
from fusewright.fusion.array import Array

Several = tuple[Array, ...]


def _masked_mean(x: Array, keep: Array) -> Array:
    """The mean over the tokens that are kept."""
    weight = fw.astype(keep, fw.float32)[:, :, None]
    total = fw.sum(fw.astype(x, fw.float32) * weight, axis=1)
    return fw.astype(total / fw.maximum(fw.sum(weight, axis=1), 1), x.dtype)


def _wide_sum(x: Array, axis: int | None) -> Array:
    return fw.sum(fw.astype(x, fw.float32), axis=axis)


def _range(x: Array) -> Several:
    return fw.min(x), fw.max(x)


SUMS = (
    case("sum_all", fw.sum, "float32[n]", full="n=67108864", small="n=4099"),
    case(
        "sum_rows", lambda x: _wide_sum(x, 1), "bfloat16[m, n]",
        full="m=8192 n=8192", small="m=5 n=301",
    ),
    case(
        "sum_columns", lambda x: _wide_sum(x, 0), "bfloat16[m, n]",
        full="m=16384 n=4096", small="m=65 n=37",
    ),
    case(
        "sum_middle", lambda x: fw.sum(x, axis=1), "float32[b, s, h]",
        full="b=64 s=1024 h=512", small="b=3 s=20 h=18",
    ),
    case("norm", lambda x: fw.sqrt(_wide_sum(x * x, None)), "float32[n]",
         full="n=16777216", small="n=2000"),
    case("range", _range, "float32[m, n]", full="m=4096 n=4096", small="m=9 n=55"),
    case("masked_mean", _masked_mean, "bfloat16[b, s, h]", "bool[b, s]",
         full="b=64 s=512 h=1024", small="b=2 s=7 h=40"),
    case("argmax", lambda x: fw.argmax(x, axis=-1), "float32[b, v]",
         full="b=512 v=32000", small="b=3 v=75"),
    case("count_tokens", lambda t: fw.count_nonzero(t, axis=1), "int32[b, s] < 5",
         full="b=1024 s=4096", small="b=4 s=66"),
    case("all_finite", lambda x: fw.all(fw.isfinite(x)), "float16[n]",
         full="n=67108864", small="n=1000"),
    case("cumulative_sum", lambda x: fw.cumulative_sum(x, axis=-1), "float32[b, n]",
         full="b=4096 n=1024", small="b=3 n=40"),
)  # fmt: skip
