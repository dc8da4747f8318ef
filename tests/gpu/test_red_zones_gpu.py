"""No kernel of the corpus writes beside an array: red zones around all of them, on a device."""

from __future__ import annotations

import pytest

import fusewright as fw
from fusewright.corpus import CORPUS, CorpusCase
from red_zones import red_zones


@pytest.mark.parametrize("entry", CORPUS, ids=lambda c: c.name)
def test_nothing_is_written_beside_an_array(entry: CorpusCase) -> None:
    program = fw.compile(fw.trace(entry.fn, *entry.small))
    with red_zones() as written:
        program.run_cuda(*entry.arrays(seed=2))
    assert written == []
