"""Values of expressions and conditions at many points at once."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from typing import Any

import numpy as np
import numpy.typing as npt

from fusewright.core.atoms import Max, Min, Xor
from fusewright.core.conditions import And, Cond, Equal, Less, Not, Or, Truth
from fusewright.core.expr import Expr, FloorDiv, Int, Mod, Sum, Var

Points = npt.NDArray[Any]


class Sampler:
    """Evaluates at points: for each variable its values there, as arrays that broadcast."""

    def __init__(self, points: Mapping[Var, Points]) -> None:
        self._known: dict[Expr, Points] = {**points}

    def value(self, e: Expr) -> Points:
        """The values of an expression. Raises KeyError for a variable without values."""
        found = self._known.get(e)
        if found is None:
            found = self._known[e] = self._value(e)
        return found

    def _value(self, e: Expr) -> Points:
        match e:
            case Int():
                return np.array(e.value)
            case Sum():
                products = [
                    reduce(np.multiply, map(self.value, t.atoms), np.array(t.coefficient))
                    for t in e.terms
                ]
                return reduce(np.add, products, np.array(e.constant))
            case FloorDiv():
                return self.value(e.numerator) // np.maximum(self.value(e.denominator), 1)
            case Mod():
                return self.value(e.numerator) % np.maximum(self.value(e.denominator), 1)
            case Min():
                return np.minimum(self.value(e.left), self.value(e.right))
            case Max():
                return np.maximum(self.value(e.left), self.value(e.right))
            case Xor():
                return np.bitwise_xor(self.value(e.left), self.value(e.right))
            case _:
                raise KeyError(f"no value for {e}")

    def holds(self, c: Cond) -> Points:
        """Where a condition holds."""
        match c:
            case Truth():
                return np.array(c.value)
            case Less():
                return self.value(c.left) < self.value(c.right)
            case Equal():
                return self.value(c.left) == self.value(c.right)
            case And():
                return reduce(np.logical_and, map(self.holds, c.parts))
            case Or():
                return reduce(np.logical_or, map(self.holds, c.parts))
            case Not():
                return np.logical_not(self.holds(c.part))
            case _:
                raise KeyError(f"no value for {c}")
