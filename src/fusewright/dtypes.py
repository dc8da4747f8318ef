"""Element types: names, sizes, numpy counterparts, and the array API's promotion rules."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import ml_dtypes
import numpy as np

from fusewright.errors import UserError

Kind = Literal["bool", "int", "uint", "float", "complex"]


@dataclass(frozen=True, slots=True, eq=False)
class DType:
    """One element type. `nbytes` is its size in memory; `numpy` its numpy counterpart.

    It equals its name, and the dtypes of numpy and torch that mean it: `x.dtype == np.float32`.
    """

    name: str
    kind: Kind
    nbytes: int

    def __repr__(self) -> str:
        return self.name

    __str__ = __repr__

    def __eq__(self, other: object) -> bool:
        if isinstance(other, DType):
            return self.name == other.name
        return _is_spelling(other) and _spells(self, other)

    def __hash__(self) -> int:
        return hash((self.kind, self.name))  # not that of the name, which is another key

    @property
    def numpy(self) -> np.dtype[np.generic]:
        """The dtype of numpy, or of ml_dtypes, whose arrays hold such elements."""
        return _NUMPY[self.name]

    @property
    def is_float(self) -> bool:
        """Whether it is a real floating-point type."""
        return self.kind == "float"

    @property
    def is_integer(self) -> bool:
        """Whether it is a signed or unsigned integer type; bool is none."""
        return self.kind in ("int", "uint")

    @property
    def is_complex(self) -> bool:
        """Whether its elements are pairs of a real and an imaginary part."""
        return self.kind == "complex"

    @property
    def component(self) -> DType:
        """The type of the parts of a complex number; itself otherwise."""
        return {"complex64": float32, "complex128": float64}.get(self.name, self)

    @property
    def integer_range(self) -> tuple[int, int]:
        """The least and the greatest value of an integer dtype."""
        bits = self.nbytes * 8
        if self.kind == "uint":
            return 0, 2**bits - 1
        return -(2 ** (bits - 1)), 2 ** (bits - 1) - 1

    @property
    def outside(self) -> float | int:
        """What a gather reads where its index is outside the axis: NaN, and 0 where there is no
        NaN."""
        return math.nan if self.is_float or self.is_complex else 0

    @property
    def compute(self) -> DType:
        """The type a kernel computes in: float32 for every shorter float, itself otherwise."""
        return float32 if self.is_float and self.nbytes < 4 else self


bool_ = DType("bool", "bool", 1)
int8 = DType("int8", "int", 1)
int16 = DType("int16", "int", 2)
int32 = DType("int32", "int", 4)
int64 = DType("int64", "int", 8)
uint8 = DType("uint8", "uint", 1)
uint16 = DType("uint16", "uint", 2)
uint32 = DType("uint32", "uint", 4)
uint64 = DType("uint64", "uint", 8)
float8_e4m3 = DType("float8_e4m3", "float", 1)
float8_e5m2 = DType("float8_e5m2", "float", 1)
float16 = DType("float16", "float", 2)
bfloat16 = DType("bfloat16", "float", 2)
float32 = DType("float32", "float", 4)
float64 = DType("float64", "float", 8)
complex64 = DType("complex64", "complex", 8)
complex128 = DType("complex128", "complex", 16)

_NUMPY: dict[str, np.dtype[np.generic]] = {
    "bool": np.dtype(np.bool_),
    "float8_e4m3": np.dtype(ml_dtypes.float8_e4m3fn),
    "float8_e5m2": np.dtype(ml_dtypes.float8_e5m2),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    **{
        d.name: np.dtype(d.name) for d in (int8, int16, int32, int64, uint8, uint16, uint32, uint64)
    },
    **{d.name: np.dtype(d.name) for d in (float16, float32, float64, complex64, complex128)},
}

ALL: tuple[DType, ...] = (
    bool_,
    int8,
    int16,
    int32,
    int64,
    uint8,
    uint16,
    uint32,
    uint64,
    float8_e4m3,
    float8_e5m2,
    float16,
    bfloat16,
    float32,
    float64,
)  # what kernels hold
COMPLEX: tuple[DType, ...] = (complex64, complex128)  # what known data may hold besides
_BY_NAME = {d.name: d for d in ALL} | {"float8_e4m3fn": float8_e4m3}
_BY_NUMPY = {d.numpy: d for d in ALL}
_COMPLEX_SPELLINGS = dict[object, DType](
    [(complex, complex64), *((s, d) for d in COMPLEX for s in (d.name, d.numpy, d.numpy.type))]
)
_OF_DATA = _BY_NUMPY | {d.numpy: d for d in COMPLEX}


def dtype_of(spelling: object) -> DType:
    """The DType for a DType, a name, a numpy dtype or scalar type, a Python scalar type, or a
    torch dtype (recognised by its printed name, torch is not imported).

    Raises UserError for anything else, complex numbers included: kernels do not hold them.
    """
    if isinstance(spelling, DType):
        return spelling
    if isinstance(spelling, str) and spelling in _BY_NAME:
        return _BY_NAME[spelling]
    python = {bool: bool_, int: int64, float: float32}
    if isinstance(spelling, type) and spelling in python:
        return python[spelling]
    text = str(spelling)
    if text.startswith("torch."):
        name = text.removeprefix("torch.")
        if name in _BY_NAME:
            return _BY_NAME[name]
    try:
        found = _BY_NUMPY.get(np.dtype(spelling))  # type: ignore[call-overload]
    except (TypeError, ValueError):
        found = None
    if found is None:
        sizes = ", and sizes go into one tuple, (2, 3)" if isinstance(spelling, int) else ""
        raise UserError(
            f"dtype {spelling!r} is not supported; use one of {', '.join(d.name for d in ALL)}"
            + sizes
        )
    return found


def _is_spelling(value: object) -> bool:
    """Whether a value names an element type by what it is: a text, a type, a dtype of numpy or
    torch."""
    return isinstance(value, str | type | np.dtype) or type(value).__module__ == "torch"


def _spells(dtype: DType, value: object) -> bool:
    """Whether a spelling means this dtype; one that means no dtype does not."""
    try:
        return data_dtype_of(value) is dtype
    except UserError:
        return False


def data_dtype_of(spelling: object) -> DType:
    """`dtype_of`, for arrays of known data, which may be complex."""
    try:
        found = _COMPLEX_SPELLINGS.get(spelling)
    except TypeError:  # not hashable
        found = None
    return found or dtype_of(spelling)


def dtype_of_data(data: np.ndarray[Any, np.dtype[Any]]) -> DType:
    """The DType of a numpy array's elements. Raises UserError for one that is not supported."""
    return _OF_DATA.get(data.dtype) or dtype_of(data.dtype)


def is_bitcast(source: DType, target: DType) -> bool:
    """Whether the bits of one are the other: floats and unsigned integers of 32 or 64 bits."""
    kinds = {source.kind, target.kind}
    return kinds == {"float", "uint"} and source.nbytes == target.nbytes and target.nbytes >= 4


def promote(a: DType, b: DType) -> DType:
    """The array API's type promotion, extended: float16 with bfloat16 gives float32, an 8-bit
    float with another float gives the wider one, an integer or bool with a float the float.
    A complex number with anything gives the complex type of both their parts.

    Raises UserError for uint64 with a signed integer, which has no common type.
    """
    if a is b:
        return a
    if a.kind == "bool":
        return b
    if b.kind == "bool":
        return a
    if a.is_complex or b.is_complex:
        return complex128 if promote(a.component, b.component) is float64 else complex64
    if a.is_float and b.is_float:
        if a.nbytes == b.nbytes:
            return float32 if a.nbytes == 2 else float16
        return a if a.nbytes > b.nbytes else b
    if a.is_float:
        return a
    if b.is_float:
        return b
    if a.kind == b.kind:
        return a if a.nbytes > b.nbytes else b
    signed, unsigned = (a, b) if a.kind == "int" else (b, a)
    if signed.nbytes > unsigned.nbytes:
        return signed
    if unsigned.nbytes == 8:
        raise UserError(
            f"{a} and {b} have no common integer type; cast one of them with fw.astype first"
        )
    return {1: int16, 2: int32, 4: int64}[unsigned.nbytes]


def scalar_text(x: object) -> str:
    """What `repr` gives for a Python scalar, and `-nan` for a NaN whose sign bit is set: texts are
    equal for equal bits only."""
    is_negative_nan = isinstance(x, float) and math.isnan(x) and math.copysign(1.0, x) < 0
    return "-nan" if is_negative_nan else repr(x)
