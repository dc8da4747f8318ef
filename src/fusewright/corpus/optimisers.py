"""Optimiser steps."""

from __future__ import annotations

import fusewright as fw
from fusewright.corpus.case import case
from fusewright.fusion.array import Array

Several = tuple[Array, ...]


def _adamw(p: Array, g: Array, m: Array, v: Array, step: Array) -> Several:
    """Loshchilov and Hutter, Decoupled weight decay regularization (2019), algorithm 2."""
    wide = fw.astype(g, fw.float32)
    m = m * 0.9 + wide * 0.1
    v = v * 0.999 + wide * wide * 0.001
    update = (m / (1.0 - 0.9**step)) / (fw.sqrt(v / (1.0 - 0.999**step)) + 1e-8)
    p = p - (update + p * 0.01) * 3e-4
    return p, m, v, fw.astype(p, g.dtype)


def _sgd_momentum(p: Array, g: Array, m: Array) -> Several:
    m = m * 0.9 + (g + p * 1e-4)
    return p - m * 0.1, m


def _lion(p: Array, g: Array, m: Array) -> Several:
    """Chen et al., Symbolic discovery of optimization algorithms (2023)."""
    update = fw.sign(m * 0.9 + g * 0.1)
    return p - (update + p * 0.1) * 1e-4, m * 0.99 + g * 0.01


def _clip_by_global_norm(a: Array, b: Array) -> Several:
    wide = [fw.astype(g, fw.float32) for g in (a, b)]
    norm = fw.sqrt(fw.sum(wide[0] * wide[0]) + fw.sum(wide[1] * wide[1]))
    factor = fw.minimum(1.0 / (norm + 1e-6), 1.0)
    return (norm, *(fw.astype(g * factor, x.dtype) for g, x in zip(wide, (a, b), strict=True)))


OPTIMISERS = (
    case(
        "adamw", _adamw, "float32[n]", "bfloat16[n]", "float32[n]", "float32[n] > 0",
        "float32[] > 0", full="n=16777216", small="n=777",
    ),
    case(
        "sgd_momentum", _sgd_momentum, "float32[n, k]", "float32[n, k]", "float32[n, k]",
        full="n=4096 k=4096", small="n=5 k=51",
    ),
    case("lion", _lion, "float32[n]", "float32[n]", "float32[n]", full="n=16777216", small="n=300"),
    case(
        "clip_by_global_norm", _clip_by_global_norm, "bfloat16[n, k]", "float32[k]",
        full="n=4096 k=4096", small="n=7 k=60",
    ),
)  # fmt: skip
