"""The corpus on the third witness: a device, against the oracle, outputs poisoned before."""

from __future__ import annotations

import pytest

import fusewright as fw
from corpus_checks import assert_agrees
from fusewright.corpus import CORPUS, CorpusCase


@pytest.mark.parametrize("entry", CORPUS, ids=lambda c: c.name)
def test_device_agrees_with_the_oracle(entry: CorpusCase) -> None:
    fusion = fw.trace(entry.fn, *entry.small)
    program = fw.compile(fusion)
    for seed in (2, 3):
        arrays = entry.arrays(seed=seed)
        for got, want in zip(program.run_cuda(*arrays), fw.evaluate(fusion, *arrays), strict=True):
            assert_agrees(got, want)
