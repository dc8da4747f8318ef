"""The scalar functions that fusions, the simulator and the emitter share: name, arity, meaning.

`numpy` computes on arrays of one dtype and is the definition. Integer overflow wraps. Division and
remainder of integers by zero give 0. Shifts by the bit width or more give 0 (-1 for a negative
signed left operand of a right shift). `max` and `min` propagate NaN.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Result = Literal["same", "bool"]


@dataclass(frozen=True, slots=True)
class ScalarFunction:
    """One function: `result` is "same" (the operands' dtype) or "bool"."""

    name: str
    arity: int
    result: Result
    numpy: Callable[..., Array]


_erf = np.vectorize(math.erf, otypes=[np.float64])
