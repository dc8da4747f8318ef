"""What a program has to show: the oracle's values, no race, and no sync missing or too many."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

import fusewright as fw


def assert_right_by_the_syncs_it_needs(
    program: fw.Program, arrays: Sequence[np.ndarray], *, rtol: float, atol: float
) -> None:
    found = program.simulate(*arrays)
    assert not found.races
    for got, want in zip(found.outputs, fw.evaluate(program.fusion, *arrays), strict=True):
        np.testing.assert_allclose(
            np.asarray(got, np.float64), np.asarray(want, np.float64), rtol=rtol, atol=atol
        )
    report = fw.verify(program, *arrays)
    assert not report.missing and not report.redundant
