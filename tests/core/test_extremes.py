"""The largest that an expression is while a variable moves, against all its values."""

from __future__ import annotations

import numpy as np
import pytest

from fusewright.core.atoms import maximum, minimum
from fusewright.core.expr import Expr, Var, add, ceildiv, floordiv, mod, mul, variables
from fusewright.core.extremes import largest
from fusewright.core.substitution import evaluate

N = Var("n", 2, 40)
LAP = Var("lap0", 0, add(N, -1))


def drawn(rng: np.random.Generator, depth: int) -> Expr:
    """A random expression that is never negative, as sizes are."""
    if not depth:
        return [LAP, N, add(N, -1, mul(LAP, -1)), add(LAP, 3)][int(rng.integers(4))]
    a, b = drawn(rng, depth - 1), drawn(rng, depth - 1)
    k = int(rng.integers(2, 9))
    made = (
        add(mul(a, k), b), floordiv(a, k), mod(a, k), minimum(a, b), maximum(a, b), mul(a, b),
        ceildiv(a, k),
    )  # fmt: skip
    return made[int(rng.integers(len(made)))]


@pytest.mark.parametrize("seed", range(60))
def test_nothing_is_larger(seed: int) -> None:
    e = drawn(np.random.default_rng(seed), 3)
    found = largest(e, LAP)
    assert LAP not in variables(found)
    for n in (2, 3, 7, 40):
        values = [evaluate(e, {N: n, LAP: lap}) for lap in range(n)]
        assert max(values) <= evaluate(found, {N: n}), (e, found, n)


@pytest.mark.parametrize(
    ("e", "want"),
    [
        (add(mul(LAP, 4), 16), add(mul(N, 4), 12)),
        (add(N, mul(LAP, -1)), N),
        (floordiv(add(LAP, 255), 256), floordiv(add(N, 254), 256)),
        (N, N),
    ],
)
def test_the_least_that_is_not_smaller(e: Expr, want: Expr) -> None:
    assert largest(e, LAP) == want
