"""Adjoints of scalar functions: from the cotangent of a result to those of its operands.

Each rule gets the cotangent, the result and the operands, and returns one cotangent for each
operand. Where a function has a kink the rule is torch's: 0 for abs and sign at 0, halves for the
maximum and minimum of equal values. Functions that are constant between their jumps pass nothing
on.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias

from fusewright.fusion.array import Array
from fusewright.fusion.ops import (
    astype,
    cos,
    cosh,
    equal,
    exp,
    greater,
    less,
    log,
    sign,
    sin,
    sinh,
    where,
    zeros_like,
)

Rule: TypeAlias = Callable[..., tuple[Array | None, ...]]
"""`rule(cotangent, result, *operands)`; None for an operand to which nothing flows."""

FLAT = frozenset({"sign", "floor", "ceil", "trunc", "round"})
"""Functions whose derivative is 0 wherever they have one."""


def adjoint_of(fn: str) -> Rule | None:
    """The rule of a function of floats; None for one that has none."""
    if fn in FLAT:
        return _nothing
    if fn in UNARY:
        return lambda *args: (UNARY[fn](*args),)
    return BINARY.get(fn) or TERNARY.get(fn)


def _nothing(g: Array, y: Array, x: Array) -> tuple[None]:
    return (None,)


def _power(g: Array, y: Array, a: Array, b: Array) -> tuple[Array, Array]:
    is_one = equal(b, 0.0)  # a ** 0 is 1; its slope must not become 0 * a ** -1 when derived again
    of_base = where(is_one, zeros_like(a), b * a ** where(is_one, b + 1.0, b - 1.0))
    positive = where(greater(a, 0.0), a, a * 0.0 + 1.0)
    return g * of_base, g * where(greater(a, 0.0), y * log(positive), zeros_like(a))


def _chosen(g: Array, a: Array, b: Array, a_wins: Array) -> tuple[Array, Array]:
    """Of a maximum or a minimum: the operand that is the result takes all, equal ones a half."""
    of_a = where(equal(a, b), g * 0.5, where(a_wins, g, zeros_like(g)))
    return of_a, g - of_a


def _ratio(g: Array, y: Array, a: Array, b: Array) -> tuple[Array, Array]:
    of_a = g / b
    return of_a, -of_a * y


def _angle(g: Array, y: Array, a: Array, b: Array) -> tuple[Array, Array]:
    scaled = g / (a * a + b * b)
    return scaled * b, -scaled * a


def _copied_sign(g: Array, y: Array, a: Array, b: Array) -> tuple[Array, None]:
    turned = where(equal(y, a), g, -g)
    return where(equal(a, 0.0), zeros_like(g), turned), None


def _shared(g: Array, y: Array, a: Array, b: Array) -> tuple[Array, Array]:
    of_a = g * exp(a - y)
    return of_a, g * exp(b - y)


def _chosen_by(g: Array, y: Array, c: Array, a: Array, b: Array) -> tuple[None, Array, Array]:
    return None, where(c, g, zeros_like(g)), where(c, zeros_like(g), g)


UNARY: dict[str, Callable[[Array, Array, Array], Array]] = {
    "neg": lambda g, y, x: -g,
    "abs": lambda g, y, x: g * sign(x),
    "sqrt": lambda g, y, x: g * (0.5 / y),
    "rsqrt": lambda g, y, x: g * (-0.5 * y * y * y),
    "exp": lambda g, y, x: g * y,
    "exp2": lambda g, y, x: g * (y * math.log(2)),
    "expm1": lambda g, y, x: g * (y + 1.0),
    "log": lambda g, y, x: g * (1.0 / x),
    "log2": lambda g, y, x: g * (1.0 / (x * math.log(2))),
    "log10": lambda g, y, x: g * (1.0 / (x * math.log(10))),
    "log1p": lambda g, y, x: g * (1.0 / (x + 1.0)),
    "sin": lambda g, y, x: g * cos(x),
    "cos": lambda g, y, x: g * -sin(x),
    "tan": lambda g, y, x: g * (1.0 + y * y),
    "asin": lambda g, y, x: g * (1.0 / (1.0 - x * x) ** 0.5),
    "acos": lambda g, y, x: g * (-1.0 / (1.0 - x * x) ** 0.5),
    "atan": lambda g, y, x: g * (1.0 / (1.0 + x * x)),
    "sinh": lambda g, y, x: g * cosh(x),
    "cosh": lambda g, y, x: g * sinh(x),
    "tanh": lambda g, y, x: g * (1.0 - y * y),
    "asinh": lambda g, y, x: g * (1.0 / (x * x + 1.0) ** 0.5),
    "acosh": lambda g, y, x: g * (1.0 / (x * x - 1.0) ** 0.5),
    "atanh": lambda g, y, x: g * (1.0 / (1.0 - x * x)),
    "erf": lambda g, y, x: g * (exp(-x * x) * (2 / math.sqrt(math.pi))),
    "reciprocal": lambda g, y, x: g * (-y * y),
    "cast": lambda g, y, x: astype(g, x.dtype),
    "copy": lambda g, y, x: g,
}
"""The cotangent of x for y = f(x), from that of y."""

BINARY: dict[str, Callable[[Array, Array, Array, Array], tuple[Array | None, ...]]] = {
    "add": lambda g, y, a, b: (g, g),
    "sub": lambda g, y, a, b: (g, -g),
    "mul": lambda g, y, a, b: (g * b, g * a),
    "div": _ratio,
    "pow": _power,
    "rem": lambda g, y, a, b: (g, -g * ((a - y) / b)),
    "floordiv": lambda g, y, a, b: (None, None),
    "atan2": _angle,
    "max": lambda g, y, a, b: _chosen(g, a, b, greater(a, b)),
    "min": lambda g, y, a, b: _chosen(g, a, b, less(a, b)),
    "hypot": lambda g, y, a, b: (g * (a / y), g * (b / y)),
    "copysign": _copied_sign,
    "logaddexp": _shared,
}
TERNARY: dict[str, Callable[[Array, Array, Array, Array, Array], tuple[Array | None, ...]]] = {
    "where": _chosen_by,
    "fma": lambda g, y, a, b, c: (g * b, g * a, g),
}
RULES = frozenset({*UNARY, *BINARY, *TERNARY})
