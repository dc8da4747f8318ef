"""Normalisations and their gradients."""

from __future__ import annotations

from typing import Any

from fusewright import nn
from fusewright.corpus.case import case
from fusewright.fusion.array import Array

Several = tuple[Array, ...]


def _layer_norm(x: Array, w: Array, b: Array) -> Array:
    return nn.layer_norm(x, x.shape[-1:], w, b)


def _layer_norm_training(x: Array, w: Array, b: Array) -> Several:
    return nn.layer_norm_forward(x, x.shape[-1:], w, b)


def _residual_layer_norm(x: Array, residual: Array, w: Array, b: Array) -> Several:
    h = x + residual
    return h, nn.layer_norm(h, h.shape[-1:], w, b)


def _layer_norm_backward(dy: Array, m: Array, r: Array, x: Array, w: Array) -> Several:
    return nn.layer_norm_backward(dy, m, r, x, x.shape[-1:], w)


def _rms_norm(x: Array, w: Array) -> Array:
    return nn.rms_norm(x, x.shape[-1:], w, 1e-6)


def _residual_rms_norm(x: Array, residual: Array, w: Array) -> Several:
    h = x + residual
    return h, nn.rms_norm(h, h.shape[-1:], w, 1e-6)


def _rms_norm_backward(dy: Array, r: Array, x: Array, w: Array) -> Several:
    return nn.rms_norm_backward(dy, r, x, x.shape[-1:], w)


def _adaptive_layer_norm(x: Array, shift: Array, scale: Array) -> Array:
    """Diffusion transformers: the condition shifts and scales every token of a sample."""
    y = nn.layer_norm(x, x.shape[-1:], eps=1e-6)
    return y * (scale[:, None, :] + 1.0) + shift[:, None, :]


def _batch_norm_relu(x: Array, m: Array, v: Array, w: Array, b: Array) -> Array:
    return nn.relu(nn.batch_norm(x, m, v, w, b))


def _batch_norm_training(x: Array, m: Array, v: Array, w: Array, b: Array) -> Any:
    return nn.batch_norm_forward(x, m, v, w, b, training=True)


def _group_norm_silu(x: Array, w: Array, b: Array) -> Array:
    return nn.silu(nn.group_norm(x, 4, w, b))


def _group_norm_backward(dy: Array, m: Array, r: Array, x: Array, w: Array) -> Several:
    return nn.group_norm_backward(dy, m, r, x, 4, w)


NORMALISATIONS = (
    case(
        "layer_norm", _layer_norm, "bfloat16[b, h]", "bfloat16[h]", "bfloat16[h]",
        full="b=8192 h=4096", small="b=5 h=96",
    ),
    case(
        "layer_norm_training", _layer_norm_training, "float32[b, h]", "float32[h]", "float32[h]",
        full="b=4096 h=1023", small="b=7 h=33",
    ),
    case(
        "layer_norm_residual", _residual_layer_norm,
        "float16[b, s, h]", "float16[b, s, h]", "float32[h]", "float32[h]",
        full="b=8 s=1024 h=1600", small="b=2 s=3 h=100",
    ),
    case(
        "layer_norm_backward", _layer_norm_backward,
        "bfloat16[b, h]", "float32[b, 1]", "float32[b, 1] > 0", "bfloat16[b, h]", "bfloat16[h]",
        full="b=8192 h=4096", small="b=9 h=64",
    ),
    case(
        "adaptive_layer_norm", _adaptive_layer_norm,
        "bfloat16[b, s, h]", "bfloat16[b, h]", "bfloat16[b, h]",
        full="b=32 s=256 h=1152", small="b=2 s=5 h=72",
    ),
    case(
        "rms_norm", _rms_norm, "bfloat16[b, h]", "bfloat16[h]",
        full="b=16384 h=8192", small="b=3 h=257",
    ),
    case(
        "rms_norm_heads", _rms_norm, "bfloat16[b, s, n, d]", "bfloat16[d]",
        full="b=4 s=4096 n=32 d=128", small="b=1 s=5 n=3 d=32",
    ),
    case(
        "rms_norm_residual", _residual_rms_norm,
        "bfloat16[b, h]", "bfloat16[b, h]", "bfloat16[h]",
        full="b=4096 h=5120", small="b=4 h=130",
    ),
    case(
        "rms_norm_backward", _rms_norm_backward,
        "bfloat16[b, h]", "float32[b, 1] > 0", "bfloat16[b, h]", "bfloat16[h]",
        full="b=8192 h=4096", small="b=6 h=80",
    ),
    case(
        "batch_norm_relu", _batch_norm_relu, "float16[b, c, y, x]",
        "float32[c]", "float32[c] > 0", "float32[c]", "float32[c]",
        full="b=128 c=256 y=28 x=28", small="b=2 c=3 y=5 x=7",
    ),
    case(
        "batch_norm_training", _batch_norm_training, "float32[b, c, y, x]",
        "float32[c]", "float32[c] > 0", "float32[c]", "float32[c]",
        full="b=64 c=128 y=28 x=28", small="b=3 c=4 y=3 x=5",
    ),
    case(
        "batch_norm_backward", nn.batch_norm_backward,
        "float32[b, c, p]", "float32[c]", "float32[c] > 0", "float32[b, c, p]", "float32[c]",
        full="b=64 c=128 p=784", small="b=3 c=5 p=14",
    ),
    case(
        "group_norm_silu", _group_norm_silu, "float16[b, c, y, x]", "float16[c]", "float16[c]",
        full="b=8 c=320 y=64 x=64", small="b=2 c=8 y=3 x=5",
    ),
    case(
        "group_norm_backward", _group_norm_backward,
        "float32[b, c, p]", "float32[b, 4]", "float32[b, 4] > 0", "float32[b, c, p]", "float32[c]",
        full="b=8 c=320 p=1024", small="b=2 c=8 p=11",
    ),
    case(
        "instance_norm", nn.instance_norm, "float32[b, c, y, x]",
        full="b=8 c=64 y=128 x=128", small="b=2 c=3 y=6 x=9",
    ),
)  # fmt: skip
