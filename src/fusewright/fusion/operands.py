"""What operations take: categories of element types, Python scalars, devices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeGuard

import numpy as np

from fusewright.core.expr import Expr
from fusewright.dtypes import DType
from fusewright.errors import UserError
from fusewright.fusion.call_numbers import is_at_least
from fusewright.fusion.ir import Scalar

API_VERSIONS = ("2021.12", "2022.12", "2023.12", "2024.12")
MOST_BITS = 1023  # integers below 2**1023 are floats of 64 bits, and Python prints them
DEVICE = "host"  # where the standard's `device` says that recorded arrays are

Category = Literal[
    "any", "numeric", "float", "integer", "bool", "integer or bool"
]  # which element types an operation takes


def check_device(op: str, device: object) -> None:
    """UserError for a device other than the only one that recorded arrays have."""
    if device is not None and not (isinstance(device, str) and device == DEVICE):
        raise UserError(
            f"{op}(device={device!r}): the only device here is {DEVICE!r}; leave it out"
        )


def check_no_stream(op: str, stream: object) -> None:
    """UserError for a stream."""
    if stream is not None:
        raise UserError(f"{op}(stream={stream!r}): values on the host have no stream")


def check_version(api_version: object) -> None:
    """UserError for a version of the array API standard that the namespace does not follow."""
    if api_version not in (None, *API_VERSIONS):
        raise UserError(
            f"__array_namespace__(api_version={api_version!r}): the versions here are "
            f"{', '.join(API_VERSIONS)}; leave it out"
        )


def check_flag(op: str, name: str, flag: object) -> None:
    """UserError for anything but True or False."""
    if not isinstance(flag, bool | np.bool_):
        raise UserError(f"{op}({name}={flag!r}): use True or False")


def is_scalar(x: object) -> TypeGuard[bool | int | float | complex]:
    """Whether a value is a Python scalar, which takes the dtype of the arrays it meets."""
    return isinstance(x, bool | int | float | complex)


def _accepts(category: Category, dtype: DType) -> bool:
    match category:
        case "any":
            return True
        case _ if dtype.is_complex:
            return False
        case "numeric":
            return dtype.kind != "bool"
        case "float":
            return dtype.is_float
        case "integer":
            return dtype.is_integer
        case "bool":
            return dtype.kind == "bool"
        case "integer or bool":
            return not dtype.is_float


_ASK = {
    "numeric": "cast with fw.astype, or use fw.where and the logical functions",
    "float": "cast with fw.astype(x, fw.float32) first",
    "integer": "cast with fw.astype to an integer type first",
    "bool": "compare first, for example x != 0",
    "integer or bool": "cast with fw.astype to an integer type first",
}


OF_COMPLEX = frozenset(
    """acos acosh add asin asinh atan atanh copy cos cosh div exp expm1 isfinite isinf isnan log
    log10 log1p log2 mul neg pow reciprocal round rsqrt sign sin sinh sqrt sub tan tanh""".split()  # noqa: SIM905
)  # functions of numbers or floats that complex numbers have too


def check_category(op: str, dtype: DType, category: Category, *, of_complex: bool = False) -> None:
    """UserError when the operation does not take the dtype; `of_complex` says whether one that
    takes numbers or floats takes complex ones."""
    if dtype.is_complex and category in ("numeric", "float"):
        if not of_complex:
            raise UserError(
                f"{op} of {dtype}: complex numbers have no {op}; take fw.real, fw.imag or fw.abs "
                "of them first"
            )
    elif not _accepts(category, dtype):
        raise UserError(f"{op} of {dtype}: it takes {category} arrays; {_ASK[category]}")


def check_factors(op: str, factors: Sequence[DType]) -> None:
    """UserError for 8-bit floats beside integers: as 8-bit floats the integers would keep 3 or 4
    bits."""
    short = next((d for d in factors if d.is_float and d.nbytes == 1), None)
    whole = next((d for d in factors if d.is_integer), None)
    if short is not None and whole is not None:
        raise UserError(
            f"{op} of {factors[0]} and {factors[1]}: {short} keeps no more than 4 bits of an "
            f"integer; cast both, as in fw.astype(x, 'float32'), or the {short} operand to {whole}"
        )


def check_scalar(op: str, scalar: Scalar | complex, dtype: DType) -> None:
    """UserError when a Python scalar cannot take an array's dtype: the kinds must agree, an int
    may meet a float array and either a complex one, and an int must fit."""
    match scalar:
        case bool():
            kind, fits = "bool", dtype.kind == "bool"
        case int():
            kind, fits = "int", dtype.kind != "bool"
        case float():
            kind, fits = "float", dtype.is_float or dtype.is_complex
        case _:
            kind, fits = "complex", dtype.is_complex
    if not fits:
        raise UserError(
            f"{op}: the Python {kind} {scalar!r} with an array of {dtype}: a scalar takes the "
            "array's dtype, and this one cannot; cast the array with fw.astype, or the scalar in "
            "Python"
        )
    if isinstance(scalar, int):
        check_bits(f"{op}: a scalar", scalar)
    if dtype.is_integer and isinstance(scalar, int):
        low, high = dtype.integer_range
        if not low <= scalar <= high:
            raise UserError(
                f"{op}: {scalar} does not fit {dtype} ({low} to {high}); cast the array with "
                "fw.astype first"
            )


def check_bits(what: str, number: int) -> None:
    """UserError for an integer that is no float either; its digits may be too many to print."""
    if number.bit_length() > MOST_BITS:
        raise UserError(
            f"{what} is an integer of {number.bit_length()} bits, which fits no dtype and counts "
            f"nothing; use one below 2**{MOST_BITS}"
        )


def check_size(op: str, size: Expr, dtype: DType) -> None:
    """UserError when a size, or a number of the call, which counts as a Python integer, cannot take
    an array's dtype. Whether a number fits an integer type of 32 bits or fewer is checked at every
    call; sizes fit 32 bits."""
    if dtype.kind == "bool":
        check_scalar(op, 0, dtype)
    if not dtype.is_integer:
        return
    low, high = dtype.integer_range
    rule = f"{op}: {size} must fit {dtype} ({low} to {high})"
    inside = is_at_least(low, size, rule) and is_at_least(size, high, rule)
    if not inside and dtype.nbytes < 4:
        raise UserError(f"{rule}; cast the array with fw.astype first")


NUMPY_OPERATORS = {
    "add": "__radd__",
    "subtract": "__rsub__",
    "multiply": "__rmul__",
    "divide": "__rtruediv__",
    "floor_divide": "__rfloordiv__",
    "remainder": "__rmod__",
    "power": "__rpow__",
    "matmul": "__rmatmul__",
    "bitwise_and": "__rand__",
    "bitwise_or": "__ror__",
    "bitwise_xor": "__rxor__",
    "left_shift": "__rlshift__",
    "right_shift": "__rrshift__",
    "equal": "__eq__",
    "not_equal": "__ne__",
    "less": "__gt__",
    "less_equal": "__ge__",
    "greater": "__lt__",
    "greater_equal": "__le__",
}  # what numpy calls for an operator with one of its own on the left, and what answers
