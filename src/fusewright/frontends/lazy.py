"""The array API's namespace around the operations: data in, dtype questions, inspection.

With these the package itself is an array namespace: an array made by `asarray` records what is
done with it and computes when Python asks for a value. Complex numbers and
indices that are arrays exist for such known data only, not in what is traced.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard, cast

import ml_dtypes
import numpy as np

from fusewright import dtypes
from fusewright.core.expr import Expr
from fusewright.dtypes import DType, data_dtype_of, promote
from fusewright.errors import FusewrightError, UserError
from fusewright.fusion.array import Array, Known
from fusewright.fusion.operands import (
    API_VERSIONS,
    DEVICE,
    check_device,
    check_flag,
    check_scalar,
    is_scalar,
)
from fusewright.fusion.ops import astype, full, stack

__array_api_version__ = API_VERSIONS[-1]

MAX_RANK = 64
"""How many axes the arrays of numpy have at most, which hold known data."""

e, inf, nan, pi, newaxis = math.e, math.inf, math.nan, math.pi, None


# --- data in ------------------------------------------------------------------------------------


def asarray(
    obj: object, /, dtype: object = None, *, device: object = None, copy: bool | None = None
) -> Array:
    """An array of the elements of a Python scalar, nested sequences of them, a numpy array, an
    Array, or anything with DLPack or numpy's array interface; in a trace also of a size or a number
    of the call. Sequences of values of a trace are stacked.

    Python floats give float32, ints int64 and complex numbers complex64 without a dtype. Elements
    are copied unless `copy` is False, because they are read when a value is asked for.
    Raises UserError for another device, for elements that the dtype cannot hold, and when
    `copy=False` and the elements must be converted.
    """
    check_device("asarray", device)
    target = None if dtype is None else data_dtype_of(dtype)
    if isinstance(obj, Array) and target in (None, obj.dtype):
        return obj[...] if copy else obj
    if isinstance(obj, Expr):
        return full((), obj, dtype=target)
    if is_scalar(obj):
        return full((), _as_kind(obj, target), dtype=target)
    if _is_nested(obj) and _is_traced(obj):
        return _stacked(obj, target)
    elements = obj if isinstance(obj, Array) else _elements(obj, target)
    if copy is False and (elements is not obj or isinstance(elements, Array)):
        raise UserError(
            f"asarray(copy=False) of {type(obj).__name__}: its elements must be converted; leave "
            "copy out"
        )
    if isinstance(elements, Array):
        return astype(elements, target)
    return Array(Known(elements if copy is False else elements.copy()))


def _is_nested(value: object) -> TypeGuard[Sequence[object]]:
    """Whether a value is a sequence of elements, which a text is not, nor a view of memory, which
    has axes of its own."""
    return isinstance(value, Sequence) and not isinstance(value, str | bytes | memoryview)


def _leaves(obj: Sequence[object], depth: int = MAX_RANK) -> Iterator[object]:
    """What stands in nested sequences, in order; what is nested deeper than an array can be is not
    looked into."""
    for v in obj:
        if _is_nested(v) and depth:
            yield from _leaves(v, depth - 1)
        else:
            yield v


def _is_traced(obj: Sequence[object]) -> bool:
    """Whether a value of a trace stands in nested sequences."""
    return any(isinstance(v, Array) and not v.is_known for v in _leaves(obj))


def _stacked(obj: Sequence[object], target: DType | None) -> Array:
    """Nested sequences of values of a trace, and of scalars, as one array: a sequence is an
    axis."""
    leaves = (v if is_scalar(v) else asarray(v) for v in _leaves(obj))
    dtype = target or result_type(*leaves)
    return stack([_stacked(v, dtype) if _is_nested(v) else asarray(v, dtype) for v in obj])


def _as_kind(scalar: complex, target: DType | None) -> complex:
    """A bool as a number, and an int as a bool, where the dtype asks for it."""
    if target is None or not isinstance(scalar, bool | int):
        return scalar
    return bool(scalar) if target.kind == "bool" else int(scalar)


def _elements(obj: object, target: DType | None) -> np.ndarray[Any, np.dtype[Any]]:
    """The object as a numpy array of a supported dtype."""
    if isinstance(obj, str | bytes) or _is_nested(obj):
        return _nested(cast("Sequence[object]", obj), target)
    try:
        found = np.from_dlpack(cast("Any", obj)) if _is_foreign(obj) else np.asarray(obj)
    except FusewrightError:
        raise
    except Exception as e:  # whatever the other library raises, or numpy of what it gives
        kind = type(obj).__name__
        raise UserError(
            f"asarray of {kind}: numpy makes no array of it ({type(e).__name__}: {e}); pass a "
            "number, nested lists of numbers, or an array"
        ) from e
    own = data_dtype_of(found.dtype.newbyteorder("="))
    return found.astype((target or own).numpy, copy=False)


def _nested(obj: Sequence[object], target: DType | None) -> np.ndarray[Any, np.dtype[Any]]:
    """Nested sequences of scalars, or of arrays of rank 0, as a numpy array."""
    try:
        with np.errstate(over="ignore"):
            found = np.asarray(obj, None if target is None else target.numpy)
            short = {"float64": dtypes.float32, "complex128": dtypes.complex64}
            own = short.get(found.dtype.name) or data_dtype_of(found.dtype)
            return found if target else found.astype(own.numpy, copy=False)
    except (OverflowError, TypeError, ValueError) as e:
        if isinstance(e, UserError):
            raise
        raise UserError(
            f"asarray of a {type(obj).__name__} in {target or 'numbers'}: {e}"
        ) from None


def _is_foreign(obj: object) -> bool:
    return hasattr(obj, "__dlpack__") and not hasattr(obj, "__array__")


def from_dlpack(x: Any, /, *, device: object = None, copy: bool | None = None) -> Array:
    """An array of the elements of an object with DLPack, which must be on the host. Raises
    UserError for what is no such object, or lies elsewhere."""
    check_device("from_dlpack", device)
    if copy is not None:
        check_flag("from_dlpack", "copy", copy)
    if not hasattr(x, "__dlpack__"):
        raise UserError(f"from_dlpack of {type(x).__name__}: it has no __dlpack__; use fw.asarray")
    try:
        elements = np.from_dlpack(x)
    except (BufferError, TypeError, ValueError, RuntimeError) as e:
        raise UserError(f"from_dlpack of {type(x).__name__}: {e}; use fw.asarray") from None
    return Array(Known(elements if copy is False else elements.copy()))


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
    return x.dtype if isinstance(x, Array) else data_dtype_of(x)


def finfo(type: object, /) -> FloatLimits:
    """The limits of a float dtype, of the parts of a complex one, or of an array's. UserError for
    another kind."""
    d = _dtype_in(type).component
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
    "complex floating": ("complex",),
    "numeric": ("int", "uint", "float", "complex"),
}


def isdtype(dtype: object, kind: object) -> bool:
    """Whether a dtype is of a kind: a dtype, one of the standard's names, or a tuple of these.
    Raises UserError for a name that is none of the standard's."""
    d = data_dtype_of(dtype)
    if isinstance(kind, tuple):
        return any(isdtype(d, k) for k in cast("tuple[object, ...]", kind))
    if isinstance(kind, str):
        if kind not in _KINDS:
            raise UserError(f"isdtype: kind {kind!r} is unknown; use one of {', '.join(_KINDS)}")
        return d.kind in _KINDS[kind]
    return d is data_dtype_of(kind)


def result_type(*arrays_and_dtypes: object) -> DType:
    """The dtype that arrays, dtypes and Python scalars promote to; at least one is no scalar.
    Raises UserError where there are scalars only."""
    found = [_dtype_in(x) for x in arrays_and_dtypes if not is_scalar(x)]
    if not found:
        raise UserError("result_type of Python scalars only: give at least one array or dtype")
    out = found[0]
    for d in found[1:]:
        out = promote(out, d)
    if out.is_float and any(isinstance(x, complex) for x in arrays_and_dtypes):
        out = promote(out, dtypes.complex64)
    for x in arrays_and_dtypes:
        if is_scalar(x):
            check_scalar("result_type", x, out)
    return out


def can_cast(from_: object, to: object, /) -> bool:
    """Whether promotion may turn the first dtype, or an array's, into the second."""
    a, b = _dtype_in(from_), data_dtype_of(to)
    if a is b:
        return True
    if a.kind == b.kind or (a.kind, b.kind) == ("uint", "int"):
        return a.nbytes < b.nbytes
    return b.is_complex and a.is_float and a.nbytes <= b.component.nbytes


# --- inspection ---------------------------------------------------------------------------------


_STANDARD = """bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float32 float64 complex64
complex128""".split()  # noqa: SIM905


class NamespaceInfo:
    """What this namespace can do."""

    def capabilities(self) -> dict[str, Any]:
        """Known data may be indexed by bools; it is held by numpy, whose rank goes up to 64."""
        return {"boolean indexing": True, "data-dependent shapes": True, "max dimensions": MAX_RANK}

    def default_device(self) -> str:
        """The only device."""
        return DEVICE

    def devices(self) -> list[str]:
        """All devices."""
        return [DEVICE]

    def default_dtypes(self, *, device: object = None) -> dict[str, DType]:
        """The dtypes that Python scalars and index functions give."""
        check_device("default_dtypes", device)
        return {
            "real floating": dtypes.float32,
            "complex floating": dtypes.complex64,
            "integral": dtypes.int64,
            "indexing": dtypes.int64,
        }

    def dtypes(self, *, device: object = None, kind: object = None) -> dict[str, DType]:
        """The standard's dtypes, by name, of a kind. There are four more: float16, bfloat16,
        float8_e4m3 and float8_e5m2."""
        check_device("dtypes", device)
        found = {name: data_dtype_of(name) for name in _STANDARD}
        return {n: d for n, d in found.items() if kind is None or isdtype(d, kind)}


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
