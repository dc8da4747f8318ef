"""Tensor maps for launches, made by the driver and kept by address, sizes, strides, box, swizzle.

Source: CUDA driver API, `cuTensorMapEncodeTiled`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fusewright.core.expr import Var
from fusewright.core.substitution import evaluate
from fusewright.errors import InternalError
from fusewright.kir.symbols import TensorMap
from fusewright.runtime.device import check, driver
from fusewright.runtime.locks import after_fork
from fusewright.target import BULK_ALIGNMENT, LINE_NBYTES, TENSOR_MAP_NBYTES

MAX_KNOWN = 4096
_TYPES = {
    "uint8": "UINT8",
    "uint16": "UINT16",
    "uint32": "UINT32",
    "int32": "INT32",
    "uint64": "UINT64",
    "int64": "INT64",
    "float16": "FLOAT16",
    "float32": "FLOAT32",
    "float64": "FLOAT64",
    "bfloat16": "BFLOAT16",
}
_ROUNDINGS = {"tf32": "TFLOAT32"}
_OTHERS = {1: "UINT8", 2: "UINT16", 4: "UINT32", 8: "UINT64"}
"""What only moves is moved as unsigned integers of its size."""


@dataclass(frozen=True, slots=True)
class MapShape:
    """What a tensor map says besides an address: sizes in elements and strides in bytes, from the
    fastest dimension on, whose stride is left out."""

    name: str
    dtype: str
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: int


def shape_of(m: TensorMap, sizes: Mapping[Var, int]) -> MapShape:
    """The shape of a tensor map for given values of the shape symbols."""
    dtype = m.buffer.dtype
    known = _ROUNDINGS.get(m.rounding) or _TYPES.get(dtype.name, _OTHERS[dtype.nbytes])
    extents = tuple(evaluate(e, sizes) for e in m.sizes)
    strides = tuple(evaluate(e, sizes) * dtype.nbytes for e in m.strides[1:])
    return MapShape(m.name, known, extents, strides, m.box, m.swizzle)


_known: dict[tuple[int, MapShape], bytes] = {}
after_fork(_known.clear)


def encoded(address: int, shape: MapShape) -> bytes:
    """The bytes of a tensor map. Raises InternalError for an address or strides that none takes."""
    key = (address, shape)
    found = _known.get(key)
    if found is None:
        found = _encode(address, shape)
        if len(_known) >= MAX_KNOWN:
            _known.pop(next(iter(_known)), None)
        _known[key] = found
    return found


def _encode(address: int, shape: MapShape) -> bytes:
    if address % BULK_ALIGNMENT or any(s % BULK_ALIGNMENT for s in shape.strides):
        raise InternalError(
            f"tensor map {shape.name}: the address {address:#x} and the strides {shape.strides} in "
            f"bytes are not all multiples of {BULK_ALIGNMENT}"
        )
    api: Any = driver()
    rank = len(shape.sizes)
    status = api.cuTensorMapEncodeTiled(
        getattr(api.CUtensorMapDataType, f"CU_TENSOR_MAP_DATA_TYPE_{shape.dtype}"),
        rank,
        address,
        [api.cuuint64_t(n) for n in shape.sizes],
        [api.cuuint64_t(n) for n in shape.strides],
        [api.cuuint32_t(n) for n in shape.box],
        [api.cuuint32_t(1)] * rank,
        api.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
        _swizzle(api, shape.swizzle),
        _promotion(api, shape.strides),
        api.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
    )
    made = check(status, f"tensor map {shape}")
    return ctypes.string_at(int(made.getPtr()), TENSOR_MAP_NBYTES)


def _promotion(api: Any, strides: Sequence[int]) -> Any:
    """How much the second-level cache fetches at once for a box: two lines, but one where rows
    begin inside of lines. There 4096 x 4096 x 4104 in tiles of 128 x 256 took 320 us with two and
    274 with one, in clusters of two 222 and 207 (one H100, 2026-11-26, notes/products.md)."""
    nbytes = 256 if all(s % LINE_NBYTES == 0 for s in strides) else LINE_NBYTES
    return getattr(api.CUtensorMapL2promotion, f"CU_TENSOR_MAP_L2_PROMOTION_L2_{nbytes}B")


def _swizzle(api: Any, swizzle: int) -> Any:
    word = f"{swizzle}B" if swizzle else "NONE"
    return getattr(api.CUtensorMapSwizzle, f"CU_TENSOR_MAP_SWIZZLE_{word}")
