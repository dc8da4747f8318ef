"""Graphs of several launches on a device, whose blocks begin late: what a launch reads was written,
and what it writes over was read, by the edges alone."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "fuzz"))

from late_blocks import with_late_blocks
from late_programs import LATE_PROGRAMS, LateProgram

from fusewright.runtime import device
from fusewright.runtime.config import config

torch = pytest.importorskip("torch")

REPLAYS = 1000


@pytest.mark.parametrize("case", LATE_PROGRAMS, ids=str)
def test_a_thousand_late_replays_give_the_bits_of_one_stream(case: LateProgram) -> None:
    target = device.architecture()
    given = [torch.from_numpy(a).cuda() for a in case.arrays()]
    with config(execution="stream"):
        found = case.program(target)(*(x.clone() for x in given))
        want = [y.clone() for y in found]
    late = with_late_blocks(case.program(target))
    with config(execution="graph"):
        wrong = torch.zeros((), dtype=torch.int64, device="cuda")
        for _ in range(REPLAYS):
            got = late(*(x.clone() for x in given))
            for a, b in zip(got, want, strict=True):
                wrong += (a.view(torch.int32) != b.view(torch.int32)).sum()
    assert int(wrong) == 0
