"""The litmus kernels without a device: they are right as they stand, wrong without their sync, and
what runs a million times is the same kernel, block by block."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "gpu"))
sys.path.insert(0, str(Path(__file__).parents[1] / "sim"))

from async_suite import kernel_text, packed, run, without
from litmus_kernels import ELEMENTS, LITMUS, Litmus, sources, trial_kernel, trial_text

from fusewright.cuda.compile import compile_cubin
from fusewright.kir.ir import SyncStatement
from fusewright.kir.text import parse_kernel
from fusewright.kir.traverse import walk_statements
from fusewright.sim.machine import simulate
from fusewright.target import target_of

TARGET = target_of("sm_90a")
EACH = pytest.mark.parametrize("litmus", LITMUS, ids=lambda c: c.name)


@EACH
def test_the_machine_model_needs_what_is_dropped(litmus: Litmus) -> None:
    kernel = packed(parse_kernel(kernel_text(litmus.body, litmus.nthreads)))
    assert run(kernel).races == []
    assert run(without(kernel, litmus.drop)).races


@EACH
def test_every_block_of_a_trial_kernel_is_the_litmus_kernel(litmus: Litmus) -> None:
    kernel = trial_kernel(litmus, 3, whole=True)
    x = np.random.default_rng(0).random((3, ELEMENTS)).astype(np.float32)
    y = np.full((3, ELEMENTS), -1, np.float32)
    arrays = dict(zip(kernel.params, (x.reshape(-1), y.reshape(-1)), strict=True))
    simulate(kernel, arrays, check_races=False)
    found = sources(litmus)
    assert (found >= 0).sum() >= 32
    np.testing.assert_array_equal(y[:, found >= 0], x[:, found[found >= 0]])


@EACH
def test_a_trial_kernel_compiles_with_and_without_its_sync(litmus: Litmus) -> None:
    ids: list[set[int]] = []
    for whole in (True, False):
        kernel = trial_kernel(litmus, 8, whole=whole)
        text = trial_text(litmus, kernel, TARGET)
        assert text.count("fw_cycles") == 2 and compile_cubin(text, TARGET, name=kernel.name).cubin
        ids.append({s.id for s in walk_statements(kernel) if isinstance(s, SyncStatement)})
    assert ids[0] - ids[1] == set(litmus.drop)


def test_every_kind_of_block_wide_sync_has_a_litmus_kernel() -> None:
    bodies = "".join(c.body for c in LITMUS)
    kinds = "block_sync warp_sync named_sync barrier_arrive async_commit async_wait proxy_fence"
    for kind in (*kinds.split(), "mbar_init", "mbar_expect", "mbar_arrive", "mbar_wait"):
        assert kind in bodies
