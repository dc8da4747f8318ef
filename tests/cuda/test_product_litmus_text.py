"""Litmus kernels of products and of blocks that hand over, without a device: right as they stand,
wrong by the machine model as broken, and what runs in many blocks is the same kernel."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "gpu"))

from product_litmus import LITMUS, Litmus, Loose, operands

from fusewright.cuda.compile import compile_cubin
from fusewright.kir import ir
from fusewright.kir.spec import check_kernel
from fusewright.sim.machine import SimResult, simulate
from fusewright.target import target_of

TARGET = target_of("sm_90a")
EACH = pytest.mark.parametrize("litmus", LITMUS, ids=lambda c: c.name)


def run(kernel: ir.Kernel, seed: int = 0) -> tuple[SimResult, list[np.ndarray]]:
    """The findings of a run, and x, w and y behind it."""
    y = next(p for p in kernel.arrays if p.name == "y")
    others = [p for p in kernel.arrays if p is not y]
    given = dict(zip(others, operands(kernel, seed), strict=True))
    given[y] = np.full(int(str(y.size)), -1, np.float32)
    arrays = dict(given)
    for b in (*kernel.semaphores, *kernel.scratch):
        arrays[b] = np.zeros(int(str(b.size)), b.dtype.numpy)
    values = [given[p] for p in others]
    return simulate(kernel, arrays, outputs=[y]), [*values[:1], *values[1:2], given[y]]


@EACH
def test_the_model_finds_what_is_broken_and_nothing_else(litmus: Litmus) -> None:
    whole = litmus.kernel()
    check_kernel(whole, "packed")
    assert run(whole)[0].races == []
    found = run(litmus.kernel(whole=False))[0].races
    assert {r.kind for r in found} == set(litmus.wrong)
    assert ("deadlock" in litmus.wrong) == (litmus.loose is Loose.MAY_HANG)


@EACH
def test_trials_side_by_side_compute_what_numpy_does(litmus: Litmus) -> None:
    kernel = litmus.kernel(3)
    _, (x, *w, y) = run(kernel, seed=1)
    wanted = litmus.wanted(x, w[0] if w else x)
    written = wanted != -1
    trials = y.reshape(-1, wanted.size)
    assert len(trials) == (1 if kernel.semaphores else 3)
    for trial in trials:
        found = np.where(np.isnan(trial), -1, trial)
        np.testing.assert_array_equal(found[written], wanted[written])


@pytest.mark.parametrize("litmus", [c for c in LITMUS if c.injected], ids=lambda c: c.name)
def test_ptxas_says_what_it_puts_in(litmus: Litmus) -> None:
    """What registers need is never missing from machine code, so that hardware cannot show it."""
    assert_compiles(litmus, whole=True)
    assert_compiles(litmus, whole=False)


@pytest.mark.slow
@EACH
@pytest.mark.parametrize("whole", [True, False])
def test_trials_compile(litmus: Litmus, whole: bool) -> None:
    assert_compiles(litmus, whole=whole)


def assert_compiles(litmus: Litmus, *, whole: bool) -> None:
    kernel = litmus.kernel(8, whole=whole)
    text = litmus.cuda(kernel, TARGET)
    assert text.count("fw_cycles") == 2
    compiled = compile_cubin(text, TARGET, name=kernel.name)
    assert compiled.cubin
    injected = [code for code in ("C7517", "C7519") if code in compiled.log]
    assert injected == ([litmus.injected] if litmus.injected and not whole else [])
