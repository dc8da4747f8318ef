"""The values that reductions and scans start from."""

from __future__ import annotations

import numpy as np

from fusewright.dtypes import DType
from fusewright.errors import InternalError


def reduction_identity(fn: str, dtype: DType) -> bool | int | float:
    """`e` with `fn(e, x) == x` for every x of `dtype`; `fn` in add, mul, max, min, or, and."""
    match fn:
        case "add" | "mul":
            one = fn == "mul"
            if dtype.kind == "bool":
                return one
            return float(one) if dtype.is_float else int(one)
        case "or":
            return False
        case "and":
            return True
        case "max" | "min":
            sign = -1 if fn == "max" else 1
            if dtype.is_float:
                return sign * float("inf")
            if dtype.kind == "bool":
                return fn == "min"
            limits = np.iinfo(dtype.name)
            return int(limits.min if fn == "max" else limits.max)
        case _:
            raise InternalError(f"{fn} is no reduction")


def scan_identity(fn: str, dtype: DType) -> bool | int | float:
    """The same for prefixes, which keep the sign of zeros: for the sum of floats it is -0, because
    0 + -0 is 0."""
    return -0.0 if fn == "add" and dtype.is_float else reduction_identity(fn, dtype)
