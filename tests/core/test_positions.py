"""What functions of positions compute, as expressions and conditions."""

from __future__ import annotations

import numpy as np
import pytest

from fusewright import dtypes
from fusewright.core.conditions import Cond
from fusewright.core.expr import Expr, Int, Var, add
from fusewright.core.positions import place_of
from fusewright.core.sampling import Sampler


@pytest.mark.parametrize(("fn", "divisor"), [("rem", 6), ("floordiv", 6), ("rem", 128)])
def test_quotients_and_remainders_of_positions(fn: str, divisor: int) -> None:
    i = Var("i", 0, 299)
    found = place_of(fn, (i, Int(divisor)), dtypes.int64)
    assert isinstance(found, Expr)
    at = np.arange(300)
    wanted = at % divisor if fn == "rem" else at // divisor
    np.testing.assert_array_equal(Sampler({i: at}).value(found), wanted)
    kept = place_of("lt", (found, Int(3)), dtypes.bool_)
    assert isinstance(kept, Cond)
    np.testing.assert_array_equal(Sampler({i: at}).holds(kept), wanted < 3)


def test_quotients_that_may_round_otherwise_are_none() -> None:
    """Those of negative positions, by what is not known, and by nothing."""
    i = Var("i", 0, 299)
    for a, b in ((add(i, -1), Int(6)), (i, i), (i, Int(0)), (i, Int(-6))):
        assert place_of("rem", (a, b), dtypes.int64) is None
        assert place_of("floordiv", (a, b), dtypes.int64) is None
