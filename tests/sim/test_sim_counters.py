"""Counts of memory traffic against sets of sectors and words: a pattern that was counted elsewhere
in memory counts the same."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

import fusewright as fw
from fusewright.core.expr import Int
from fusewright.dtypes import dtype_of
from fusewright.kir.ir import Buffer
from fusewright.memory import Memory
from fusewright.sim.counters import Counters

NTHREADS, WARP = 80, 32


def sectors(at: list[int], nbytes: int) -> int:
    return len({(a + k) // 32 for a in at for k in range(nbytes)})


def wavefronts(at: list[int], nbytes: int) -> int:
    words = {a // 4 + k for a in at for k in range(nbytes // 4)}
    return max(Counter(w % 32 for w in words).values(), default=0)


@pytest.mark.parametrize("memory", [Memory.SHARED, Memory.GLOBAL])
def test_patterns_at_many_places(memory: Memory) -> None:
    """Few distances, so that most patterns come again at other places, with other lanes."""
    rng = np.random.default_rng(0)
    buffer = Buffer("b", dtype_of("float32"), Int(1 << 20), memory)
    name = "shared_wavefronts" if memory is Memory.SHARED else "sectors_read"
    counters = Counters(NTHREADS)
    for _ in range(300):
        nbytes = int(rng.choice([4, 8, 16]))
        lanes = np.arange(NTHREADS) * nbytes * int(rng.choice([0, 1, 2, 8]))
        at = lanes + nbytes * int(rng.integers(0, 200))
        mask = np.arange(NTHREADS) // int(rng.choice([1, 16, 32])) % 3 == rng.integers(0, 3)
        before, loads = counters.totals[name], counters.totals["loads"]
        counters.access(
            buffer=buffer,
            writes=False,
            block=0,
            thread=at[None],
            nbytes=nbytes,
            mask=mask[None],
            nblocks=1,
        )
        size = WARP * 4 // nbytes if memory is Memory.SHARED else WARP
        groups = [
            [int(a) for a, m in zip(at[k : k + size], mask[k : k + size], strict=True) if m]
            for k in range(0, NTHREADS, size)
        ]
        assert counters.totals["loads"] - loads == mask.sum()
        count = wavefronts if memory is Memory.SHARED else sectors
        assert counters.totals[name] - before == sum(count(g, nbytes) for g in groups)


def test_verification_counts_no_accesses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody looks at the counts of witnesses; a simulation has them, also of the same kernel."""
    program = fw.compile(fw.trace(lambda x: fw.nn.softmax(x, axis=-1), "f32[3, 4096]"))
    x = np.random.default_rng(0).standard_normal((3, 4096), np.float32)
    assert program.simulate(x).stats["loads"] > 0
    counted: list[object] = []
    monkeypatch.setattr(Counters, "access", lambda self, **_: counted.append(self))
    report = fw.verify(program, x)
    assert report.necessary and not report.missing and not report.redundant and not counted
    program.simulate(x)
    assert counted
