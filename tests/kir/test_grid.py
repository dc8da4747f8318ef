"""Blocks have no order: a launch in which one reads what another writes is refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from sync_kernels import kernel

from fusewright.core.expr import Int
from fusewright.errors import UnsupportedError
from fusewright.kir.passes.place_syncs import place_syncs
from fusewright.kir.pipeline import PipelineOptions, run_pipeline
from fusewright.sim.machine import simulate
from fusewright.target import target_of

TARGET = target_of("sm_90a")
MEETING = {
    "the next block's part": "store y[64*bx + tx] = r[0]\nr[1] = load y[(64*bx + tx + 64) % 256]",
    "a neighbour across the border": "store y[64*bx + tx] = r[0]\nr[1] = load y[64*bx + tx + 1]",
    "one place": "store y[0] = r[0] if (tx == 0)\nr[1] = load y[0]",
    "overlapping parts": "store y[32*bx + tx] = r[0]\nr[1] = load y[32*bx + tx]",
}
APART = {
    "its own part": "store y[64*bx + tx] = r[0]\nr[1] = load y[64*bx + 63 - tx]",
    "its own row": "store y[128*bx + tx] = r[0]\nr[1] = load y[128*bx + (tx ^ 1)]",
}


LAST = {
    "its own part": "store y[64*bx + tx] = r[1]",
    "its own row": "store y[128*bx + tx + 64] = r[1]",
}


@pytest.mark.parametrize("name", MEETING)
def test_blocks_that_meet_are_refused(name: str) -> None:
    k = kernel(f"r[0] = load x[tx]\n{MEETING[name]}")
    with pytest.raises(UnsupportedError, match=r"writes y at L.*make the reader a second kernel"):
        place_syncs(k, TARGET)


@pytest.mark.parametrize("name", APART)
def test_blocks_that_keep_to_their_part_are_ordered_inside(name: str) -> None:
    k = kernel(f"r[0] = load x[tx]\n{APART[name]}\nstore y[64*bx + tx + 2048] = r[1]")
    with pytest.raises(UnsupportedError, match="where blocks may meet"):
        place_syncs(k, TARGET)  # the last store may lie in another block's part
    mine = kernel(f"r[0] = load x[tx]\n{APART[name]}\n{LAST[name]}")
    final = run_pipeline(mine, TARGET, PipelineOptions(spec=3))
    x, y = np.arange(4096, dtype=np.float32), np.zeros(4096, np.float32)
    assert not simulate(final, dict(zip(final.params, (x, y), strict=True))).races


def test_one_block_meets_nobody() -> None:
    k = kernel(f"r[0] = load x[tx]\n{MEETING['one place']}\nstore y[tx + 64] = r[1]")
    alone = replace(k, grid=tuple(replace(d, extent=Int(1)) for d in k.grid))
    assert len(place_syncs(alone, TARGET).body) == len(alone.body) + 1
