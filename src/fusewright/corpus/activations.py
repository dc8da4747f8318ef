"""Activations with what stands around them, gates, dropout."""

from __future__ import annotations

import fusewright as fw
from fusewright import nn
from fusewright.corpus.case import case
from fusewright.fusion.array import Array

Several = tuple[Array, ...]


def _bias_gelu(x: Array, b: Array) -> Array:
    return nn.gelu(x + b, "tanh")


def _bias_gelu_backward(dy: Array, x: Array, b: Array) -> Several:
    dx = nn.gelu_backward(dy, x + b, "tanh")
    return dx, fw.astype(fw.sum(fw.astype(dx, fw.float32), axis=0), b.dtype)


def _bias_dropout_residual(x: Array, b: Array, residual: Array) -> Array:
    return residual + nn.dropout(x + b, 0.1, seed=2024)


def _scale_bias_relu(x: Array, scale: Array, bias: Array) -> Array:
    return nn.relu(x * scale[:, None, None] + bias[:, None, None])


def _swiglu_backward(dy: Array, gate: Array, up: Array) -> Several:
    return nn.silu_backward(dy * up, gate), dy * nn.silu(gate)


def _geglu(x: Array) -> Array:
    half = x.shape[-1] // 2
    return nn.gelu(x[..., :half]) * x[..., half:]


ACTIVATIONS = (
    case(
        "bias_gelu", _bias_gelu, "bfloat16[b, h]", "bfloat16[h]",
        full="b=8192 h=16384", small="b=3 h=200",
    ),
    case(
        "bias_gelu_backward", _bias_gelu_backward, "bfloat16[b, h]", "bfloat16[b, h]",
        "bfloat16[h]", full="b=8192 h=6400", small="b=13 h=40",
    ),
    case("gelu_erf", nn.gelu, "float32[n]", full="n=33554432", small="n=517"),
    case(
        "bias_dropout_residual", _bias_dropout_residual, "float16[b, h]", "float16[h]",
        "float16[b, h]", full="b=8192 h=4096", small="b=5 h=67",
    ),
    case("dropout", lambda x: nn.dropout(x, 0.2, seed=1), "float32[n]",
          full="n=16777216", small="n=1023"),
    case(
        "scale_bias_relu", _scale_bias_relu, "float16[b, c, y, x]", "float16[c]", "float16[c]",
        full="b=64 c=64 y=112 x=112", small="b=2 c=3 y=4 x=9",
    ),
    case(
        "swiglu", nn.swiglu, "bfloat16[b, h]", "bfloat16[b, h]",
        full="b=8192 h=14336", small="b=3 h=88",
    ),
    case("swiglu_packed", nn.swiglu, "bfloat16[b, h]", full="b=8192 h=28672", small="b=4 h=90"),
    case(
        "swiglu_backward", _swiglu_backward, "bfloat16[b, h]", "bfloat16[b, h]", "bfloat16[b, h]",
        full="b=8192 h=14336", small="b=3 h=88",
    ),
    case("geglu", _geglu, "float16[b, s, h]", full="b=8 s=1024 h=10240", small="b=2 s=3 h=50"),
)  # fmt: skip
