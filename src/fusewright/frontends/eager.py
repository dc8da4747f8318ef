"""Functions of known data that no kernel computes: sets, and results whose size depends on values.

They exist for the package as an array namespace. Each asks for the values of its operands, computes
with numpy at once, and gives known data; of an array that is traced they raise UnsupportedError.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fusewright.errors import UnsupportedError, UserError
from fusewright.fusion.array import Array, Known, as_operand, as_tensor, check_array, common_dtype

Data = npt.NDArray[Any]


def _data(op: str, x: Array) -> Data:
    x = check_array(op, x)
    if not x.is_known:
        raise UnsupportedError(
            f"{op} of the traced array {x!r}: no kernel computes it; call it on known data, "
            "outside of what is traced, and pass the result as an argument"
        )
    return x.numpy(op)


def _known(data: Data) -> Array:
    return Array(Known(data))


def _positions(data: Data) -> Array:
    return _known(data.astype(np.int64))


# --- selection ----------------------------------------------------------------------------------


def nonzero(x: Array, /) -> tuple[Array, ...]:
    """The positions of the elements that are not 0, one int64 array an axis, in C order. UserError
    for an array of rank 0."""
    data = _data("nonzero", x)
    if not data.ndim:
        raise UserError("nonzero of an array of rank 0, which has no axis; expand_dims first")
    return tuple(_positions(p) for p in np.nonzero(data))


def isin(x1: Array | float, x2: Array | float, /, *, invert: bool = False) -> Array:
    """Whether each element of x1 is one of x2's; the opposite for `invert`. NaN is in nothing."""
    both = (as_operand("isin", x1), as_operand("isin", x2))
    dtype = common_dtype("isin", both)
    a, b = (_data("isin", Array(as_tensor(x, dtype))) for x in both)
    return _known(np.asarray(np.isin(a, b, invert=invert)))


# --- sets ---------------------------------------------------------------------------------------


class UniqueAll(NamedTuple):
    """The distinct elements in order; where each is first, in C order; for every element of x the
    position of its value; how often each value occurs."""

    values: Array
    indices: Array
    inverse_indices: Array
    counts: Array


class UniqueCounts(NamedTuple):
    """The distinct elements in order, and how often each occurs."""

    values: Array
    counts: Array


class UniqueInverse(NamedTuple):
    """The distinct elements in order, and for every element of x the position of its value."""

    values: Array
    inverse_indices: Array


def unique_all(x: Array, /) -> UniqueAll:
    """The distinct elements of the flat array with their first positions, the positions of all
    elements among them, and counts. Every NaN is distinct."""
    data = _data("unique_all", x)
    values, first, inverse, counts = np.unique(
        data, return_index=True, return_inverse=True, return_counts=True, equal_nan=False
    )
    return UniqueAll(
        _known(values),
        _positions(first),
        _positions(inverse.reshape(data.shape)),
        _positions(counts),
    )


def unique_counts(x: Array, /) -> UniqueCounts:
    """The distinct elements of the flat array and their counts. Every NaN is distinct."""
    values, counts = np.unique(_data("unique_counts", x), return_counts=True, equal_nan=False)
    return UniqueCounts(_known(values), _positions(counts))


def unique_inverse(x: Array, /) -> UniqueInverse:
    """The distinct elements of the flat array and the position of each element among them. Every
    NaN is distinct."""
    data = _data("unique_inverse", x)
    values, inverse = np.unique(data, return_inverse=True, equal_nan=False)
    return UniqueInverse(_known(values), _positions(inverse.reshape(data.shape)))


def unique_values(x: Array, /) -> Array:
    """The distinct elements of the flat array, in order. Every NaN is distinct."""
    return _known(np.unique(_data("unique_values", x), equal_nan=False))


__all__ = [
    "isin",
    "nonzero",
    "unique_all",
    "unique_counts",
    "unique_inverse",
    "unique_values",
]
