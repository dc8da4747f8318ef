"""Memory for semaphores: zeroed once, one per stream and per captured call, new after a failure."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
from fake_cuda import FakeDriver
from fake_fixtures import gpu, torch
from fake_torch import FakeTorch, tensor

import fusewright as fw
from fusewright.errors import InternalError
from fusewright.runtime import plan, state

__all__ = ["gpu", "torch"]  # fixtures


def column_sum(splits: int = 3) -> fw.Schedule:
    """A sum over 96 rows by some blocks in turn, of 512 columns."""
    fusion = fw.trace(lambda x: fw.sum(x, axis=0), fw.TensorSpec((96, 512), "float32"))
    s = fw.Schedule(fusion)
    t = s.outputs[0]
    t.split(1, -(-96 // splits)).split(0, 128).reorder({2: 1, 1: 2})
    t.parallelize(0, fw.BIDx).parallelize(1, fw.BIDy).parallelize(2, fw.TIDx)
    t.request_serial_grid_reduction()
    return s


X = np.random.default_rng(0).standard_normal((96, 512)).astype(np.float32)


def states_of(gpu: FakeDriver) -> int:
    return gpu.calls["cuMemAlloc"]


def test_the_program_says_how_much_state_it_keeps() -> None:
    p = fw.compile(column_sum())
    assert p.host.stats["state_bytes"] == 256
    assert p.host.stats["peak_bytes"] == 0
    assert [r.kind.value for r in p.host.roots] == ["input", "output", "state"]
    assert fw.compile(column_sum(1)).host.stats["state_bytes"] == 0


def test_runs_on_a_stream_share_what_is_zeroed_once(gpu: FakeDriver, torch: FakeTorch) -> None:
    p = fw.compile(column_sum())
    x = tensor(X)
    for _ in range(3):
        (y,) = p(x)
        np.testing.assert_allclose(y.array, X.sum(axis=0), rtol=1e-5, atol=1e-5)
    assert states_of(gpu) == 1
    assert gpu.calls["cuMemsetD8Async"] == 1
    torch.stream = 7
    p(x)
    p(x)
    assert states_of(gpu) == 2


def test_host_arrays_take_the_state_of_the_default_stream(gpu: FakeDriver) -> None:
    p = fw.compile(column_sum())
    for _ in range(2):
        (y,) = p(X, device="cuda")
        np.testing.assert_allclose(y, X.sum(axis=0), rtol=1e-5, atol=1e-5)
    assert states_of(gpu) == 1


def test_each_captured_call_has_a_state_of_its_own(gpu: FakeDriver, torch: FakeTorch) -> None:
    p = fw.compile(column_sum())
    x = tensor(X)
    torch.stream = 7
    p(x)
    gpu.capturing.add(7)
    kept = len(state._CAPTURED)
    p(x)
    p(x)
    assert len(set(state._CAPTURED[kept:])) == 2
    assert states_of(gpu) == 3
    gpu.capturing.clear()
    p(x)
    assert states_of(gpu) == 3
    assert gpu.capture_mode == "CU_STREAM_CAPTURE_MODE_GLOBAL"


def test_after_a_failed_launch_there_is_new_state(
    gpu: FakeDriver, torch: FakeTorch, monkeypatch: pytest.MonkeyPatch
) -> None:
    def check(result: tuple[int, ...], call: str) -> None:
        raise InternalError(f"{call} failed with {result[0]}")

    monkeypatch.setattr(plan, "check", check)
    p = fw.compile(column_sum())
    x = tensor(X)
    p(x)
    gpu.refuse = "cuLaunchKernelEx"
    with pytest.raises(InternalError, match="launch of kernel"):
        p(x)
    gpu.refuse = ""
    assert states_of(gpu) == 1
    (y,) = p(x)
    assert states_of(gpu) == 2
    np.testing.assert_allclose(y.array, X.sum(axis=0), rtol=1e-5, atol=1e-5)


def test_kept_and_copied_programs_make_their_own(gpu: FakeDriver, torch: FakeTorch) -> None:
    p = fw.compile(column_sum())
    x = tensor(X)
    p(x)
    for other in (pickle.loads(pickle.dumps(p)), copy.copy(p)):
        before = states_of(gpu)
        assert other.host.stats["state_bytes"] == 256
        (y,) = other(x)
        np.testing.assert_allclose(y.array, X.sum(axis=0), rtol=1e-5, atol=1e-5)
        assert states_of(gpu) == before + 1


def test_programs_without_semaphores_ask_for_nothing(gpu: FakeDriver, torch: FakeTorch) -> None:
    p = fw.compile(fw.trace(lambda x: x * 2, fw.TensorSpec((8,), "float32")))
    p(tensor(np.ones(8, np.float32)))
    assert states_of(gpu) == 0 and gpu.calls["cuStreamIsCapturing"] == 0


def test_host_arrays_of_a_program_without_an_arena(gpu: FakeDriver) -> None:
    """The kernel's sums lie beside its counter, in memory that is zero between runs."""
    fusion = fw.trace(lambda x: fw.sum(x, axis=0), fw.TensorSpec((96, 512), "float32"))
    with fw.config(deterministic=False):
        s = fw.Schedule(fusion)
        t = s.outputs[0]
        t.split(1, 32).split(0, 128).reorder({2: 1, 1: 2})
        t.parallelize(0, fw.BIDy).parallelize(1, fw.BIDx).parallelize(2, fw.TIDx)
        t.request_serial_grid_reduction("arrival")
        p = fw.compile(s)
    assert p.host.stats["peak_bytes"] == 0 and p.host.stats["state_bytes"] > 4 * 512
    for _ in range(3):
        (y,) = p(X)
        np.testing.assert_allclose(y, X.sum(axis=0), rtol=1e-5, atol=1e-5)
    assert states_of(gpu) == 1
