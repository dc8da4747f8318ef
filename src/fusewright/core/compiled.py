"""Expressions as one Python function: for values that are asked for again and again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from fusewright.core.atoms import Max, Min, Xor
from fusewright.core.expr import Expr, FloorDiv, Int, Mod, Sum, Var, variables

Evaluator: TypeAlias = Callable[..., tuple[int, ...]]
"""Takes the value of every symbol, in order; gives the value of every expression."""


def compiled(expressions: Sequence[Expr], symbols: Sequence[Var]) -> Evaluator:
    """A function of the symbols' values that evaluates all expressions: a microsecond for a dozen,
    where `evaluate` rebuilds each in normal form.

    Raises KeyError for a variable that is not among the symbols.
    """
    names = {v: f"v{i}" for i, v in enumerate(symbols)}
    for e in expressions:
        for v in variables(e):
            if v not in names:
                raise KeyError(f"no value for {v.name} in {e}")
    body = "".join(f"{_text(e, names)}, " for e in expressions)
    made: Evaluator = eval(  # the text is made of integers, operators and the names above
        f"lambda {', '.join(names.values())}: ({body})",
        {"__builtins__": {}, "min": min, "max": max},
    )
    return made


def _text(e: Expr, names: Mapping[Var, str]) -> str:
    match e:
        case Int():
            return f"({e.value})"
        case Var():
            return names[e]
        case Sum():
            products = (
                "*".join([f"({t.coefficient})", *(_text(a, names) for a in t.atoms)])
                for t in e.terms
            )
            return f"({e.constant} + {' + '.join(products)})"
        case FloorDiv():
            return f"({_text(e.numerator, names)} // {_text(e.denominator, names)})"
        case Mod():
            return f"({_text(e.numerator, names)} % {_text(e.denominator, names)})"
        case Min():
            return f"min({_text(e.left, names)}, {_text(e.right, names)})"
        case Max():
            return f"max({_text(e.left, names)}, {_text(e.right, names)})"
        case Xor():
            return f"({_text(e.left, names)} ^ {_text(e.right, names)})"
        case _:
            raise TypeError(f"not an expression: {type(e).__name__}")
