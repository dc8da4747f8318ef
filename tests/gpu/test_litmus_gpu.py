"""Litmus kernels: one for each kind of sync, with and without it, while one warp is delayed.

With its syncs a kernel computes what the simulator computes whichever warp is late. Without the
sync the delay shows the fault, where hardware shows it at all: a missing proxy fence may not. What
may hang without its syncs runs with them only.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "sim"))

from async_suite import SUITE, Case, packed, without
from litmus_kernels import LITMUS, Litmus, Loose, delayed

from fusewright.cuda.compile import compile_cubin
from fusewright.cuda.emit import emit
from fusewright.errors import UnsupportedError
from fusewright.kir import ir
from fusewright.runtime import device
from fusewright.runtime.launch import LoadedKernel, run
from fusewright.sim.machine import simulate
from fusewright.target import target_of


def outcome(kernel: ir.Kernel, x: np.ndarray, edit: Callable[[str], str] = str) -> np.ndarray:
    """What the kernel writes to y on the device, its CUDA text edited."""
    target = target_of(device.architecture())
    try:
        text = edit(emit(kernel, target))
    except UnsupportedError as error:
        pytest.skip(str(error))
    loaded = LoadedKernel(compile_cubin(text, target, name=kernel.name).cubin, kernel)
    (y,) = run(loaded, [x, np.full(4096, np.nan, np.float32)])
    return y


def expected(kernel: ir.Kernel, x: np.ndarray) -> np.ndarray:
    y = np.empty_like(x)
    found = simulate(
        kernel, dict(zip(kernel.params, (x, y), strict=True)), outputs=kernel.params[1:]
    )
    assert found.races == []
    return found.outputs[0]


def values(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(4096).astype(np.float32)


@pytest.mark.parametrize("litmus", LITMUS, ids=lambda c: c.name)
def test_with_its_syncs_no_delay_matters(litmus: Litmus) -> None:
    kernel = litmus.kernel()
    for late in sorted({litmus.late, 0, litmus.nwarps - 1}):
        x = values(late)
        got = outcome(kernel, x, lambda text, late=late: delayed(litmus, text, late))
        np.testing.assert_array_equal(got, expected(kernel, x))


FAILING = [c for c in LITMUS if c.loose is Loose.FAILS]


@pytest.mark.parametrize("litmus", FAILING, ids=lambda c: c.name)
def test_without_the_sync_a_delay_shows(litmus: Litmus) -> None:
    kernel = litmus.kernel()
    loose = replace(without(kernel, litmus.drop), name="loose")
    wrong = 0
    for seed in range(4):
        x = values(10 + seed)
        got = outcome(loose, x, lambda text: delayed(litmus, text, litmus.late))
        wrong += not np.array_equal(got, expected(kernel, x), equal_nan=True)
    assert wrong


WRITING = [c for c in SUITE if not c.wrong and "y[" in c.text and c.name != "reduce"]
"""Correct kernels with an output; a reduction adds to what was there."""


@pytest.mark.parametrize("case", WRITING, ids=lambda c: c.name)
def test_correct_kernels_compute_what_the_simulator_does(case: Case) -> None:
    kernel = packed(case.kernel())
    x = values(3)
    y = expected(kernel, x)
    np.testing.assert_array_equal(outcome(kernel, x), y)
