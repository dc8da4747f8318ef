"""Sums of every kind by blocks that hand over, in every mode: right whoever comes first, and no
sync is missing, redundant, or stronger than it has to be."""

from __future__ import annotations

import functools

import pytest
from turn_cases import CASES, MODES, TurnCase

import fusewright as fw
from fusewright.sim.verify import weakenings_of
from fusewright.verify import case_of


def is_quick(case: TurnCase) -> bool:
    """Those with a function hold what those without it do, but for results that blocks add to."""
    return case.is_typical and ("function" in case.name or case.name.startswith("wide product"))


EACH = pytest.mark.parametrize(
    "case",
    [pytest.param(c, marks=() if is_quick(c) else pytest.mark.slow, id=str(c)) for c in CASES],
)


@functools.cache
def kernel_of(case: TurnCase) -> fw.Kernel:
    return case.lower()


@EACH
def test_the_same_bits_whoever_comes_first(case: TurnCase) -> None:
    """Of the first order the races are those that the next test looks for."""
    kernel, arrays = kernel_of(case), case.arrays()
    results = [kernel.simulate(*arrays, seed=seed, check_races=seed > 0) for seed in range(2)]
    for r in results:
        assert r.races == []
        case.assert_right(r.outputs[0])
    is_alike = results[0].outputs[0].tobytes() == results[1].outputs[0].tobytes()
    assert is_alike or (case.mode == "arrival" and case.splits > 2)
    blocks = [s for s in kernel.syncs if s.kind.startswith(("Semaphore", "Cluster"))]
    assert bool(blocks) == (case.splits > 1)


@EACH
def test_no_sync_is_missing_and_none_redundant(case: TurnCase) -> None:
    report = fw.verify(kernel_of(case), *case.arrays())
    assert report.missing == []
    assert [(s.kind, s.why) for s in report.redundant] == []


@EACH
def test_a_weaker_sync_is_caught(case: TurnCase) -> None:
    """Waits for one group less, or for reads only; semaphores for the block, and arrivals at
    cluster barriers that hand on no memory."""
    kernel = kernel_of(case)
    found = weakenings_of(kernel.ir, case_of(kernel, case.arrays()))
    assert [str(w.weaker) for w in found if w.race is None] == []
    kinds = {type(w.sync).__name__ for w in found}
    if case.splits > 1 and case.mode != "cluster":
        assert "SemaphoreAcquire" in kinds


def test_every_mode_has_every_kind_of_sum() -> None:
    """What cannot be is refused with the reason elsewhere: more than 8 blocks of a cluster, tiles
    of a product in turn by a cluster."""
    found = {(c.name.split(",")[0], c.mode, c.splits) for c in CASES}
    for mode in MODES:
        for kind in ("product", "column sum", "full sum"):
            for end in ("", " and a function"):
                counts = {n for k, m, n in found if (k, m) == (kind + end, mode)}
                if mode == "cluster":
                    assert counts >= ({2} if kind == "product" else {2, 3, 5})
                else:
                    assert counts >= {2, 3, 5, 33}
