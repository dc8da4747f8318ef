"""The litmus kernels without a device: they are right as they stand, wrong without their sync, and
what runs a million times is the same kernel, trial by trial."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "gpu"))
sys.path.insert(0, str(Path(__file__).parents[1] / "sim"))

from async_suite import case_of, run, without
from litmus_kernels import (
    ELEMENTS,
    FIRST_AND_LAST_STORE,
    LITMUS,
    Litmus,
    Loose,
    sources,
    trial_kernel,
    trial_text,
)

from fusewright.cuda.compile import compile_cubin
from fusewright.kir.ir import LaunchWait, MmaFence, RemoteStore, SyncStatement
from fusewright.kir.traverse import walk_statements
from fusewright.sim.machine import simulate
from fusewright.sim.verify import EXEMPT, syncs_of, verify_kernel
from fusewright.target import target_of

TARGET = target_of("sm_90a")
EACH = pytest.mark.parametrize("litmus", LITMUS, ids=lambda c: c.name)


@EACH
def test_verify_needs_what_is_dropped(litmus: Litmus) -> None:
    kernel = litmus.kernel()
    report = verify_kernel(kernel, case_of(kernel))
    assert report.missing == []
    assert set(litmus.drop) <= {s.id for s in report.necessary}
    assert run(without(kernel, litmus.drop)).races


@EACH
def test_what_runs_on_a_device_without_its_sync_comes_to_an_end(litmus: Litmus) -> None:
    """A cluster's rules say which blocks are there, and which phase of an mbarrier bytes fall
    into; other rules that a block breaks do not keep it from its end."""
    kinds = {r.kind for r in run(without(litmus.kernel(), litmus.drop)).races}
    may_hang = "deadlock" in kinds or (litmus.cluster > 1 and "rule" in kinds)
    assert may_hang == (litmus.loose is Loose.MAY_HANG)


@EACH
def test_every_trial_is_the_litmus_kernel(litmus: Litmus) -> None:
    kernel = trial_kernel(litmus, 3, whole=True)
    x = np.random.default_rng(0).random((3, ELEMENTS)).astype(np.float32)
    y = np.full((3, ELEMENTS), -1, np.float32)
    arrays = dict(zip(kernel.params, (x.reshape(-1), y.reshape(-1)), strict=True))
    simulate(kernel, arrays, check_races=False)
    found = sources(litmus)
    assert (found >= 0).sum() >= 32
    np.testing.assert_array_equal(y[:, found >= 0], x[:, found[found >= 0]])


@pytest.mark.parametrize("litmus", [c for c in LITMUS if c.cluster > 1], ids=lambda c: c.name)
def test_a_cluster_kernel_computes_what_numpy_does(litmus: Litmus) -> None:
    """Blocks hand each other what they load, to be read backwards; with 8 of them every block
    gets each eighth element."""
    found = sources(litmus)
    n = int((found >= 0).sum())
    x = np.arange(n).reshape(-1, litmus.cluster, 64)
    if litmus.cluster == 8:
        wanted = x.reshape(64, 8).T[:, ::-1]
    elif litmus.body is FIRST_AND_LAST_STORE:
        wanted = x
    else:
        wanted = x[:, ::-1, ::-1]
    np.testing.assert_array_equal(found[:n], wanted.reshape(-1))


@EACH
def test_a_trial_kernel_compiles_with_and_without_its_sync(litmus: Litmus) -> None:
    ids: list[set[int]] = []
    for whole in (True, False):
        kernel = trial_kernel(litmus, 8, whole=whole)
        text = trial_text(litmus, kernel, TARGET)
        assert text.count("fw_cycles") == 2 and compile_cubin(text, TARGET, name=kernel.name).cubin
        ids.append({s.id for s in walk_statements(kernel) if isinstance(s, SyncStatement)})
    assert ids[0] - ids[1] == set(litmus.drop)


def test_every_kind_of_sync_has_a_litmus_kernel() -> None:
    kinds = {type(s).__name__ for c in LITMUS for s in syncs_of(c.kernel())}
    own = [t for t in SyncStatement.__subclasses__() if t.__module__.startswith("fusewright.")]
    known = {t.__name__ for t in own}  # toy statements of other tests are not the package's
    # A launch that waits for another one takes two (tests/gpu/test_early_launches_gpu.py).
    unseen = {t.__name__ for t in (*EXEMPT, MmaFence, LaunchWait)}
    unseen |= {name for name in known if "Semaphore" in name}
    # Products and blocks that hand over have a table of their own (tests/gpu/product_litmus.py).
    assert kinds == known - unseen
    every = [s for c in LITMUS for s in walk_statements(c.kernel())]
    assert {s.barrier is None for s in every if isinstance(s, RemoteStore)} == {True, False}
