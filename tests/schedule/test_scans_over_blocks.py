"""Lines that several blocks scan together: they gather the totals of their parts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import fusewright as fw
from fusewright import forms
from fusewright.errors import ScheduleError
from fusewright.finish import finish
from fusewright.forms import prepare
from fusewright.kernel import Kernel
from fusewright.kir.ir import Imm, Reg
from fusewright.kir.lower_block_scans import BlockScan
from fusewright.kir.lower_stage import Definition
from fusewright.schedule.graph import Dataflow
from fusewright.schedule.heuristics import candidates_of, schedule_group
from fusewright.schedule.heuristics.candidates import Candidate
from fusewright.target import target_of

T = fw.TensorSpec
TARGET = target_of("sm_90a")
CHIP = replace(TARGET, multiprocessors=4)
"""A chip that few blocks fill."""
NARROW = replace(CHIP, shared_nbytes_per_block=24 * 1024)
"""One that brings few rows of a part at a time."""


def suffixes(x: fw.Array) -> fw.Array:
    return fw.flip(fw.cumulative_sum(fw.flip(x, axis=0), axis=0), axis=0)


CASES: dict[str, tuple[Callable[..., Any], tuple[fw.TensorSpec, ...], Any]] = {
    "columns": (
        lambda x: fw.cumulative_sum(x, axis=0),
        (T((1301, 24), "float64"),),
        CHIP,
    ),
    "suffixes": (suffixes, (T((2003, 32), "float32"),), CHIP),
    "functions around": (
        lambda x: fw.exp(fw.cumulative_sum(fw.abs(x) * 0.001, axis=0) * -1.0),
        (T((999, 64), "float16"),),
        CHIP,
    ),
    "products": (lambda x: fw.cumulative_prod(x, axis=0), (T((1111, 16), "int32"),), CHIP),
    "short rows": (lambda x: fw.cumulative_sum(x, axis=0), (T((15011, 6), "bfloat16"),), CHIP),
    "short rows in trips": (
        lambda x: fw.cumulative_sum(x * 2, axis=0) - x,
        (T((12002, 5), "float32"),),
        NARROW,
    ),
    "short rows of several groups": (
        lambda x: fw.cumulative_sum(x, axis=1),
        (T((2, 3002, 3), "int32"),),
        CHIP,
    ),
    "short rows of one element": (
        lambda x: fw.cumulative_sum(x, axis=1),
        (T((2, 16006), "float32"),),
        CHIP,
    ),
    "short rows of suffixes": (suffixes, (T((9004, 3), "float32"),), NARROW),
}


def kernel_of(name: str, patch: pytest.MonkeyPatch) -> tuple[fw.Fusion, Kernel]:
    f, specs, target = CASES[name]
    patch.setattr(forms, "split_scans", lambda fusion, _: fusion)
    fusion = prepare(fw.trace(f, *specs), TARGET)
    found = candidates_of(Dataflow(fusion), target)
    plan = next(c for c in found if isinstance(c, Candidate) and "parts" in str(c.params))
    flow = Dataflow(fusion)
    schedule_group(flow, target, plan.params)
    return fusion, finish(flow, "scan", target, plan.params)


def arrays_of(name: str) -> list[Any]:
    rng = np.random.default_rng(5)
    _, specs, _ = CASES[name]
    kinds = [s.dtype.numpy for s in specs]
    shapes = [tuple(int(str(n)) for n in s.shape) for s in specs]
    if name == "products":
        return [rng.choice([-1, 1], n).astype(k) for n, k in zip(shapes, kinds, strict=True)]
    return [rng.integers(-3, 4, n).astype(k) for n, k in zip(shapes, kinds, strict=True)]


@pytest.mark.parametrize("name", CASES)
def test_lines_are_right_whoever_comes_first(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fusion, kernel = kernel_of(name, monkeypatch)
    assert ("staged" in str(kernel.heuristic)) == name.startswith("short")
    assert [s.kind for s in kernel.syncs].count("SemaphoreAcquire") == 1
    arrays = arrays_of(name)
    wanted = fw.evaluate(fusion, *arrays)[0]
    found = [kernel.simulate(*arrays, seed=seed) for seed in range(2)]
    assert all(r.races == [] for r in found)
    assert found[0].outputs[0].tobytes() == found[1].outputs[0].tobytes()
    error = np.abs(np.asarray(found[0].outputs[0], "f8") - np.asarray(wanted, "f8"))
    assert error.max() <= 2e-3 * (name == "functions around")


@pytest.mark.parametrize("name", ["suffixes", "short rows of suffixes"])
def test_each_sync_is_needed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _, kernel = kernel_of(name, monkeypatch)
    report = fw.verify(kernel, *arrays_of(name))
    assert report.ok and report.redundant == [] and report.missing == []


def by_hand(*, along: int = 8, parts: int = 3) -> fw.Schedule:
    """Prefixes of 24 columns of 96 rows, whose runs of 4 rows are dealt to so many threads of so
    many blocks."""
    s = fw.Schedule(fw.trace(lambda x: fw.cumulative_sum(x, axis=0), T((96, 24), "float32")))
    y = s.outputs[0]
    y.block_scan(4)
    before = next(t for t in s.tensors if t.name.endswith("_before"))
    before.request_serial_grid_reduction("slices")
    y.split(0, 4).split(0, along).split(0, parts)
    y.parallelize(1, fw.BIDx).parallelize(2, fw.TIDy).parallelize(3, fw.Unroll)
    y.reorder({4: 0}).parallelize(0, fw.TIDx)
    s.transform_like(y)
    s.inline_most()
    return s


def test_by_hand() -> None:
    kernel = by_hand().lower("sm_90a")
    x = np.random.default_rng(0).integers(-9, 9, (96, 24)).astype(np.float32)
    found = kernel.simulate(x)
    assert found.races == [] and int(str(kernel.launch.grid[0])) == 3
    np.testing.assert_array_equal(found.outputs[0], np.cumsum(x, axis=0))


def test_blocks_that_scan_together_gather() -> None:
    s = fw.Schedule(fw.trace(lambda x: fw.cumulative_sum(x, axis=0), T((96, 24), "float32")))
    with pytest.raises(ScheduleError, match="gather the totals of all; use mode 'slices'"):
        s.outputs[0].request_serial_grid_reduction("vector")


def test_blocks_scan_with_threads_along_their_lines() -> None:
    with pytest.raises(ScheduleError, match="with one thread of each along its axis"):
        by_hand(along=1).lower("sm_90a")


def test_no_more_blocks_share_a_line_than_run_at_once() -> None:
    s = fw.Schedule(fw.trace(lambda x: fw.cumulative_sum(x, axis=0), T((1600, 2), "float32")))
    y = s.outputs[0]
    y.block_scan(4)
    next(t for t in s.tensors if t.name.endswith("_before")).request_serial_grid_reduction("slices")
    y.split(0, 4).split(0, 2).parallelize(0, fw.BIDx).parallelize(1, fw.TIDy)
    s.transform_like(y)
    s.inline_most()
    with pytest.raises(ScheduleError, match="200 blocks wait for each other"):
        s.lower("sm_90a")


@pytest.mark.parametrize("lost", ["earlier blocks", "earlier trips"])
def test_without_what_is_before_the_result_is_wrong(
    lost: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    gathered = BlockScan._gathered

    def without(self: BlockScan, d: Definition, identity: Imm) -> list[Reg]:
        if lost == "earlier blocks":
            return self._filled(d, identity)
        self._has_carry = False
        return gathered(self, d, identity)

    monkeypatch.setattr(BlockScan, "_gathered", without)
    name = "short rows in trips"
    fusion, kernel = kernel_of(name, monkeypatch)
    (x,) = arrays_of(name)
    assert not np.array_equal(kernel.simulate(x).outputs[0], fw.evaluate(fusion, x)[0])
