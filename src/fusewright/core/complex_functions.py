"""Functions whose complex results numpy gets wrong at special values, by the array API standard.

Complex numbers are known data, which the oracle alone computes; of real numbers these are numpy's.
"""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

_CANCELS = 1.0
"""Real parts up to this size lose digits in `exp(x) - 1`."""


def expm1(x: Any) -> Array:
    """`exp(x) - 1`. With x = a + ib the real part is `expm1(a) cos(b) - 2 sin(b / 2)**2` where
    `exp(a) cos(b) - 1` would cancel; elsewhere the exponential knows the infinities."""
    x = cast("Any", np.asarray(x))
    if x.dtype.kind != "c":
        return np.expm1(x)
    out = cast("Any", np.asarray(np.exp(x)))
    out.real -= 1
    near = (np.abs(x.real) <= _CANCELS) & np.isfinite(x.imag)
    a, b = x[near].real, x[near].imag
    out.real[near] = np.expm1(a) * np.cos(b) - 2 * np.sin(b / 2) ** 2 + 0.0  # 0, never -0
    return out


def tanh(x: Any) -> Array:
    """The hyperbolic tangent; at an infinite real part the imaginary one is 0 of its own sign."""
    x = cast("Any", np.asarray(x))
    out = cast("Any", np.asarray(np.tanh(x)))
    if x.dtype.kind != "c":
        return out
    flat = np.isinf(x.real) & np.isfinite(x.imag)
    out.imag[flat] = np.copysign(0.0, x[flat].imag)
    return out
