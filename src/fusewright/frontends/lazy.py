"""The array API's namespace around the operations: data in, dtype questions, inspection.

With these the package itself is an array namespace: an array made by `asarray` records what is
done with it and computes when Python asks for a value. Sorting, sets, and everything else whose
result's size depends on values is absent.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import ml_dtypes
import numpy as np

from fusewright import dtypes
from fusewright.dtypes import DType, dtype_of, promote
from fusewright.errors import UnsupportedError, UserError
from fusewright.fusion.array import DEVICE, Array, Known, check_scalar, is_scalar
from fusewright.fusion.ops import astype, full

__array_api_version__ = "2024.12"

e, inf, nan, pi, newaxis = math.e, math.inf, math.nan, math.pi, None


# --- data in ------------------------------------------------------------------------------------


def asarray(
    obj: object, /, *, dtype: object = None, device: object = None, copy: bool | None = None
) -> Array:
    """An array of the elements of a Python scalar, nested sequences of them, a numpy array, an
    Array, or anything with DLPack or numpy's array interface.

    Python floats give float32 and ints int64 without a dtype. Elements are copied unless `copy` is
    False, because they are read when a value is asked for.
    Raises UserError for another device, and when `copy=False` and the elements must be converted.
    """
    _check_device("asarray", device)
    target = None if dtype is None else dtype_of(dtype)
    if isinstance(obj, Array):
        return obj if target is None else astype(obj, target)
    if is_scalar(obj):
        return full((), obj, dtype=target)
    elements = _elements(obj, target)
    if copy is False and elements is not obj:
        raise UserError(
            f"asarray(copy=False) of {type(obj).__name__}: its elements must be converted; leave "
            "copy out"
        )
    return Array(Known(elements if copy is False else elements.copy()))


def _elements(obj: object, target: DType | None) -> np.ndarray[Any, np.dtype[Any]]:
    """The object as a numpy array of a supported dtype."""
    found = np.from_dlpack(cast("Any", obj)) if _is_foreign(obj) else np.asarray(obj)
    if found.dtype.kind == "c":
        raise UnsupportedError("asarray of complex numbers: use two real arrays")
    if target is None and found.dtype == np.float64 and isinstance(obj, Sequence):
        target = dtypes.float32
    return found if target is None else found.astype(target.numpy, copy=False)


def _is_foreign(obj: object) -> bool:
    return hasattr(obj, "__dlpack__") and not hasattr(obj, "__array__")


def from_dlpack(x: Any, /, *, device: object = None, copy: bool | None = None) -> Array:
    """An array of the elements of an object with DLPack, which must be on the host."""
    _check_device("from_dlpack", device)
    elements = np.from_dlpack(x)
    return Array(Known(elements if copy is False else elements.copy()))


def _check_device(op: str, device: object) -> None:
    if device is not None and device != DEVICE:
        raise UserError(
            f"{op}(device={device!r}): the only device here is {DEVICE!r}; leave it out"
        )


# --- dtypes -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FloatLimits:
    """What a float dtype can hold."""

    bits: int
    eps: float
    max: float
    min: float
    smallest_normal: float
    dtype: DType


@dataclass(frozen=True, slots=True)
class IntegerLimits:
    """What an integer dtype can hold."""

    bits: int
    max: int
    min: int
    dtype: DType


def _dtype_in(x: object) -> DType:
    return x.dtype if isinstance(x, Array) else dtype_of(x)


def finfo(type: object, /) -> FloatLimits:
    """The limits of a float dtype, or of an array's. UserError for another kind."""
    d = _dtype_in(type)
    if not d.is_float:
        raise UserError(f"finfo of {d}: it is not a float dtype; use iinfo")
    limits = cast("Any", ml_dtypes.finfo(d.numpy))
    return FloatLimits(
        d.nbytes * 8,
        float(limits.eps),
        float(limits.max),
        float(limits.min),
        float(limits.smallest_normal),
        d,
    )


def iinfo(type: object, /) -> IntegerLimits:
    """The limits of an integer dtype, or of an array's. UserError for another kind."""
    d = _dtype_in(type)
    if not d.is_integer:
        raise UserError(f"iinfo of {d}: it is not an integer dtype; use finfo")
    low, high = d.integer_range
    return IntegerLimits(d.nbytes * 8, high, low, d)


_KINDS: dict[str, tuple[str, ...]] = {
    "bool": ("bool",),
    "signed integer": ("int",),
    "unsigned integer": ("uint",),
    "integral": ("int", "uint"),
    "real floating": ("float",),
    "complex floating": (),
    "numeric": ("int", "uint", "float"),
}


def isdtype(dtype: object, kind: object) -> bool:
    """Whether a dtype is of a kind: a dtype, one of the standard's names, or a tuple of these."""
    d = dtype_of(dtype)
    if isinstance(kind, tuple):
        return any(isdtype(d, k) for k in cast("tuple[object, ...]", kind))
    if isinstance(kind, str):
        if kind not in _KINDS:
            raise UserError(f"isdtype: kind {kind!r} is unknown; use one of {', '.join(_KINDS)}")
        return d.kind in _KINDS[kind]
    return d is dtype_of(kind)


def result_type(*arrays_and_dtypes: object) -> DType:
    """The dtype that arrays, dtypes and Python scalars promote to; at least one is no scalar."""
    found = [_dtype_in(x) for x in arrays_and_dtypes if not is_scalar(x)]
    if not found:
        raise UserError("result_type of Python scalars only: give at least one array or dtype")
    out = found[0]
    for d in found[1:]:
        out = promote(out, d)
    for x in arrays_and_dtypes:
        if is_scalar(x):
            check_scalar("result_type", x, out)
    return out


def can_cast(from_: object, to: object, /) -> bool:
    """Whether promotion may turn the first dtype, or an array's, into the second."""
    a, b = _dtype_in(from_), dtype_of(to)
    if a is b:
        return True
    if a.kind == b.kind or (a.kind, b.kind) == ("uint", "int"):
        return a.nbytes < b.nbytes
    return False


# --- inspection ---------------------------------------------------------------------------------


class NamespaceInfo:
    """What this namespace can do."""

    def capabilities(self) -> dict[str, Any]:
        """No boolean indexing and no results whose size depends on values."""
        return {
            "boolean indexing": False,
            "data-dependent shapes": False,
            "max dimensions": None,
        }

    def default_device(self) -> str:
        """The only device."""
        return DEVICE

    def devices(self) -> list[str]:
        """All devices."""
        return [DEVICE]

    def default_dtypes(self, *, device: object = None) -> dict[str, DType]:
        """The dtypes that Python scalars and index functions give."""
        return {
            "real floating": dtypes.float32,
            "integral": dtypes.int64,
            "indexing": dtypes.int64,
        }

    def dtypes(self, *, device: object = None, kind: object = None) -> dict[str, DType]:
        """The dtypes, by name, of a kind."""
        return {d.name: d for d in dtypes.ALL if kind is None or isdtype(d, kind)}


def __array_namespace_info__() -> NamespaceInfo:
    """The inspection object of the standard."""
    return NamespaceInfo()


__all__ = [
    "__array_api_version__",
    "__array_namespace_info__",
    "asarray",
    "can_cast",
    "e",
    "finfo",
    "from_dlpack",
    "iinfo",
    "inf",
    "isdtype",
    "nan",
    "newaxis",
    "pi",
    "result_type",
]
