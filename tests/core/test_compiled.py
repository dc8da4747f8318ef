"""Compiled expressions: the same values as evaluation in normal form, and what they refuse."""

from __future__ import annotations

import random

import pytest

from fusewright.core import atoms, expr
from fusewright.core.compiled import compiled
from fusewright.core.expr import Expr, Int, Var
from fusewright.core.substitution import evaluate

N, M, TWIN = Var("n", 2), Var("m", 2), Var("n", 2)


def random_expression(rng: random.Random, depth: int) -> Expr:
    if depth == 0:
        return rng.choice([N, M, TWIN, Int(rng.randrange(-9, 10))])
    a, b = random_expression(rng, depth - 1), random_expression(rng, depth - 1)
    match rng.randrange(7):
        case 0:
            return expr.add(a, b)
        case 1:
            return expr.mul(a, b)
        case 2:
            return expr.floordiv(a, rng.randrange(1, 9))
        case 3:
            return expr.mod(a, rng.choice([N, Int(7)]))
        case 4:
            return atoms.minimum(a, b)
        case 5:
            return atoms.maximum(a, b)
        case _:
            return atoms.xor(expr.mod(a, 8), expr.mod(b, 16))


@pytest.mark.parametrize("seed", range(30))
def test_random_expressions(seed: int) -> None:
    rng = random.Random(seed)
    expressions = [random_expression(rng, 3) for _ in range(6)]
    run = compiled(expressions, [N, M, TWIN])
    for _ in range(5):
        sizes = {v: rng.randrange(2, 100) for v in (N, M, TWIN)}
        assert run(*sizes.values()) == tuple(evaluate(e, sizes) for e in expressions), seed


def test_one_and_none() -> None:
    assert compiled([N * 4], [N])(3) == (12,)
    assert compiled([], [N])(3) == ()
    assert compiled([Int(5)], [])() == (5,)


def test_a_variable_without_a_value_is_named() -> None:
    with pytest.raises(KeyError, match="no value for m in"):
        compiled([N + M], [N])
    with pytest.raises(KeyError, match="no value for n in 4"):
        compiled([TWIN * 4], [N])


def test_what_is_no_expression_is_refused() -> None:
    with pytest.raises(TypeError, match="not an expression"):
        compiled([Expr()], [N])
