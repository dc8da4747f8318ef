"""Quantisation and dequantisation."""

from __future__ import annotations

import fusewright as fw
from fusewright.corpus.case import case
from fusewright.fusion.array import Array

Several = tuple[Array, ...]


def _quantise_int8(x: Array) -> Several:
    wide = fw.astype(x, fw.float32)
    scale = fw.maximum(fw.max(fw.abs(wide), axis=-1, keepdims=True), 1e-8) * (1 / 127.0)
    return fw.astype(fw.clip(fw.round(wide / scale), -128, 127), fw.int8), scale


def _dequantise_int8(x: Array, scale: Array) -> Array:
    return fw.astype(fw.astype(x, fw.float32) * scale, fw.bfloat16)


def _quantise_float8(x: Array) -> Several:
    wide = fw.astype(x, fw.float32)
    scale = fw.maximum(fw.max(fw.abs(wide), axis=-1, keepdims=True), 1e-12) * (1 / 448.0)
    return fw.astype(fw.clip(wide / scale, -448.0, 448.0), fw.float8_e4m3), scale


def _dequantise_float8(x: Array, scale: Array) -> Array:
    return fw.astype(fw.astype(x, fw.float32) * scale, fw.float16)


def _dequantise_nibbles(packed: Array, scale: Array) -> Array:
    """Two 4-bit integers a byte, the low one first; one scale a row."""
    pair = fw.stack([packed & 15, packed >> 4], axis=-1)
    values = fw.reshape(pair, (packed.shape[0], packed.shape[1] * 2))
    return fw.astype((fw.astype(values, fw.float32) - 8.0) * scale, fw.bfloat16)


QUANTISATION = (
    case("quantise_int8", _quantise_int8, "bfloat16[b, h]",
          full="b=8192 h=4096", small="b=4 h=70"),
    case(
        "dequantise_int8", _dequantise_int8, "int8[b, h]", "float32[b, 1] > 0",
        full="b=8192 h=4096", small="b=4 h=70",
    ),
    case("quantise_float8", _quantise_float8, "bfloat16[b, h]",
          full="b=8192 h=4096", small="b=3 h=128"),
    case(
        "dequantise_float8", _dequantise_float8, "float8_e5m2[b, h]", "float32[] > 0",
        full="b=8192 h=4096", small="b=3 h=100",
    ),
    case(
        "dequantise_nibbles", _dequantise_nibbles, "uint8[b, h]", "float32[b, 1]",
        full="b=4096 h=2048", small="b=3 h=35",
    ),
)  # fmt: skip
