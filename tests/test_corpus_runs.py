"""The corpus on two witnesses: the simulator, with race detection, against the oracle."""

from __future__ import annotations

import numpy as np
import pytest

import fusewright as fw
from corpus_checks import assert_agrees
from fusewright.corpus import CORPUS, CorpusCase


@pytest.mark.parametrize("entry", CORPUS, ids=lambda c: c.name)
def test_simulator_agrees_with_the_oracle(entry: CorpusCase) -> None:
    fusion = fw.trace(entry.fn, *entry.small)
    arrays = entry.arrays(seed=1)
    result = fw.compile(fusion).simulate(*arrays)
    assert result.races == []
    for got, want in zip(result.outputs, fw.evaluate(fusion, *arrays), strict=True):
        assert_agrees(got, want)


def test_the_comparison_can_fail() -> None:
    x = np.linspace(1, 2, 64, dtype=np.float32)
    assert_agrees(x * np.float32(1 + 1e-6), x)
    with pytest.raises(AssertionError):
        assert_agrees(x * np.float32(1.01), x)
