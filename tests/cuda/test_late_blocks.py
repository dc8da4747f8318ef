"""Programs with late blocks, without a device: they build, the delay changes nothing else, and
their launches wait for each other in all ways."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "fuzz"))
sys.path.insert(0, str(Path(__file__).parents[1] / "gpu"))

from late_blocks import delayed, with_late_blocks
from late_programs import LATE_PROGRAMS, LateProgram

from fusewright.cuda.emit import emit

TARGET = "sm_90a"


@pytest.mark.parametrize("case", [LATE_PROGRAMS[k] for k in (2, -2)], ids=str)
def test_late_blocks_change_no_kernel(case: LateProgram) -> None:
    for k in with_late_blocks(case.program(TARGET)).kernels:
        plain = emit(k.ir, k.target)
        for seed in (3, None):
            late = delayed(plain, seed)
            begin = late.index("\n  { unsigned long long now, end;")
            end = late.index("(now));", late.index("while (now < end)")) + len("(now)); }\n")
            assert late[:begin] + late[end:] == plain
            spin = late[begin:end]
            assert ("now >> 5" in spin) == (seed is None) and "SEED" not in spin
            assert ("+ 3u;" in spin) == (seed == 3) and "RUN" not in spin
        assert k.resources().registers > 0


def test_launches_wait_in_all_ways() -> None:
    kinds: Counter[str] = Counter()
    for case in LATE_PROGRAMS:
        stats = case.program(TARGET).host.stats
        kinds += Counter(stats["edges"])
        kinds["branched"] += stats["branches"] > 1
    assert all(kinds[k] for k in ("RAW", "WAR", "WAW")) and kinds["branched"] > 5
