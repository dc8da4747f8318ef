"""fw.tune: what is measured, what is kept, who uses it, and what is left aside."""

from __future__ import annotations

import ctypes
import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_cuda import FakeDriver
from fake_fixtures import gpu  # noqa: F401

import fusewright as fw
from fusewright import driver as driver_module
from fusewright.errors import UserError
from fusewright.frontends.tune import LEAST_GAIN, MOST, TrialRun
from fusewright.runtime.arrays import describe
from fusewright.runtime.cache import KernelCache
from fusewright.runtime.clock import ROUNDS, WARM_UP, DeviceClock
from fusewright.runtime.tuning_cache import FOLDER, TunedSchedule, TuningCache
from fusewright.schedule.heuristics.common import Params
from fusewright.target import target_of

tune_module = sys.modules["fusewright.frontends.tune"]
DEVICE = "Simulated GPU"
X = np.random.default_rng(3).normal(size=(64, 2048)).astype(np.float32)


def softmax(x: Any) -> Any:
    return fw.nn.softmax(x, axis=-1)


class Times:
    """A clock that finds one scheduler faster than the others, by a factor."""

    def __init__(self, wanted: str, factor: float = 0.5, device: str = DEVICE) -> None:
        self.wanted = wanted
        self.factor = factor
        self.device = device
        self.runs: list[TrialRun] = []

    def __call__(self, runs: Sequence[Callable[[], object]]) -> list[float]:
        self.runs = [r for r in runs if isinstance(r, TrialRun)]
        assert len(self.runs) == len(runs)
        return [10 * (self.factor if r.params.scheduler == self.wanted else 1) for r in self.runs]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FUSEWRIGHT_CACHE_DIR", str(tmp_path))
    return tmp_path


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Programs are compiled on a machine with the device that was tuned for."""
    monkeypatch.setattr(driver_module, "has_gpu", lambda: True)
    monkeypatch.setattr(driver_module, "architecture", lambda: "sm_90a")
    monkeypatch.setattr(driver_module, "device_name", lambda: DEVICE)
    yield


def compiled() -> fw.Program:
    return fw.compile(fw.trace(softmax, fw.TensorSpec(X.shape, "float32")))


def chosen(p: fw.Program) -> str:
    (kernel,) = p.kernels
    assert kernel.heuristic is not None
    return kernel.heuristic.scheduler


def records(folder: Path) -> list[Path]:
    return sorted((folder / FOLDER).glob("??/*.json"))


# --- what is measured and kept ------------------------------------------------------------------


@pytest.mark.usefixtures("here")
def test_the_fastest_is_kept_and_used(folder: Path) -> None:
    assert chosen(compiled()) == "inner_persistent"
    tuning = fw.tune(softmax, X, clock=Times("inner_shared"))
    assert len(records(folder)) == 1
    program = compiled()
    assert chosen(program) == "inner_shared"
    result = program.simulate(X)
    assert result.races == []
    np.testing.assert_allclose(result.outputs[0], fw.evaluate(program.fusion, X)[0], rtol=1e-5)
    (kept,) = [t for t in tuning.timed if t.is_winner]
    assert (kept.us, kept.is_default) == (5.0, False)
    assert "kept" in str(tuning) and DEVICE in str(tuning)


@pytest.mark.usefixtures("here")
def test_what_was_measured_before_is_not_measured_again() -> None:
    first, again = (fw.fuse(softmax, device="sim") for _ in range(2))
    assert tune_module.tune_rest(first, (X,), Times("inner_shared")).timed
    clock = Times("inner_multi_pass")
    assert tune_module.tune_rest(again, (X,), clock).timed == () and not clock.runs
    assert chosen(first.program(X)) == chosen(again.program(X)) == "inner_shared"


@pytest.mark.usefixtures("here")
def test_explain_says_what_was_measured() -> None:
    fw.tune(softmax, X, clock=Times("inner_shared"))
    text = fw.Report(compiled()).show("candidates")
    assert "tuned: row in shared memory" in text and ": 5.0 us" in text


@pytest.mark.usefixtures("here")
def test_a_gain_within_noise_changes_nothing(folder: Path) -> None:
    tuning = fw.tune(softmax, X, clock=Times("inner_shared", 1 - LEAST_GAIN / 2))
    assert chosen(compiled()) == "inner_persistent"
    assert len(records(folder)) == 1
    assert "kept, by the rules too" in str(tuning)


def test_a_fused_function_uses_the_winner_at_once() -> None:
    f = fw.fuse(softmax, device="sim")
    assert chosen(f.program(X)) == "inner_persistent"
    fw.tune(f, X, clock=Times("inner_multi_pass"))
    assert chosen(f.program(X)) == "inner_multi_pass"
    np.testing.assert_allclose(f(X).sum(axis=-1), 1, rtol=1e-5)


def test_the_rules_choice_and_the_best_by_prediction_are_measured() -> None:
    clock = Times("none")
    fw.tune(softmax, X, clock=clock)
    (kernel,) = compiled().kernels
    assert 2 <= len(clock.runs) <= MOST
    assert clock.runs[0].params == kernel.heuristic
    assert all(r.program.kernels[0].heuristic == r.params for r in clock.runs)


@pytest.mark.usefixtures("launched_apart")
def test_each_kernel_of_a_program_is_tuned() -> None:
    def two(x: Any) -> Any:
        return fw.sum(x, axis=0), softmax(x)

    clock = Times("inner_shared")
    tuning = fw.tune(two, X, clock=clock)
    assert len({r.kernel for r in clock.runs}) == len({t.kernel for t in tuning.timed}) == 2
    assert sum(t.is_winner for t in tuning.timed) == 2


@pytest.mark.usefixtures("here")
def test_tuned_results_are_equal_from_run_to_run() -> None:
    fw.tune(softmax, X, clock=Times("inner_shared"))
    first, again = compiled().simulate(X, seed=1), compiled().simulate(X, seed=2)
    assert first.outputs[0].tobytes() == again.outputs[0].tobytes()


# --- what is left aside -------------------------------------------------------------------------


def test_without_the_device_nothing_is_looked_up() -> None:
    fw.tune(softmax, X, clock=Times("inner_shared"))
    assert chosen(compiled()) == "inner_persistent"


@pytest.mark.usefixtures("here")
def test_winners_of_another_device_are_not_used() -> None:
    fw.tune(softmax, X, clock=Times("inner_shared", device="Other GPU"))
    assert chosen(compiled()) == "inner_persistent"


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("name", ["FUSEWRIGHT_TUNED", "FUSEWRIGHT_CACHE"])
def test_a_knob_leaves_winners_aside(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fw.tune(softmax, X, clock=Times("inner_shared"))
    monkeypatch.setenv(name, "0")
    assert chosen(compiled()) == "inner_persistent"


def damaged(path: Path) -> None:
    text = path.read_text()
    path.write_text(text[: len(text) // 2])


def with_other(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """The record with the right checksum over something else."""
    kept = KernelCache(path.parent.parent)
    entry = kept.get(path.stem)
    assert entry is not None
    change(entry.meta)
    kept.put(path.stem, entry.cubin, entry.meta)


def of_another_version(path: Path) -> None:
    with_other(path, lambda meta: meta.update(tuned=99))


def with_a_list(path: Path) -> None:
    with_other(path, lambda meta: meta["winner"].update(values=[["vector", [1, 2]]]))


def unknown(path: Path) -> None:
    with_other(path, lambda meta: meta["winner"].update(values=[["vector", 5]]))


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (damaged, "is damaged and was removed"),
        (of_another_version, "version 99, not 1"),
        (with_a_list, "is no parameter"),
        (unknown, "is not among the candidates for this group"),
    ],
)
def test_records_of_no_use_are_ignored_with_a_reason(
    change: Callable[[Path], None], reason: str, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fw.tune(softmax, X, clock=Times("inner_shared"))
    (path,) = records(folder)
    change(path)
    with caplog.at_level(logging.WARNING):
        assert chosen(compiled()) == "inner_persistent"
    assert reason in caplog.text


def test_tuning_needs_a_gpu_or_a_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tune_module, "has_gpu", lambda: False)
    with pytest.raises(UserError, match=r"no CUDA device was found; explain\(\) gives predicted"):
        fw.tune(softmax, X)


def test_tuning_needs_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSEWRIGHT_CACHE", "0")
    with pytest.raises(UserError, match="FUSEWRIGHT_CACHE=0 turns off; unset it"):
        fw.tune(softmax, X, clock=Times("inner_shared"))


def test_a_cache_that_others_can_write_is_refused(folder: Path) -> None:
    (folder / FOLDER).mkdir()
    (folder / FOLDER).chmod(0o777)
    with pytest.raises(UserError, match="can be written by other users"):
        fw.tune(softmax, X, clock=Times("inner_shared"))


def test_a_disk_that_takes_nothing_is_named(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.setattr(KernelCache, "put", lambda *_: False)
    message = rf"tune: {folder}.* cannot be written; set FUSEWRIGHT_CACHE_DIR to a folder of your"
    with pytest.raises(UserError, match=message):
        fw.tune(softmax, X, clock=Times("inner_shared"))


def test_a_winner_comes_back_as_it_was_kept() -> None:
    (kernel,) = compiled().kernels
    assert kernel.segment is not None
    params = Params("inner_shared", (("vector", 4), ("tile", "1x2")), min_blocks=3)
    kept = TuningCache(target_of("sm_90a"), DEVICE)
    assert kept.get(kernel.segment) is None
    kept.put(kernel.segment, TunedSchedule(params, ((params, 12.5),)))
    assert kept.get(kernel.segment) == TunedSchedule(params, ((params, 12.5),))
    assert TuningCache(target_of("sm_80"), DEVICE).get(kernel.segment) is None


# --- on a device --------------------------------------------------------------------------------


def test_events_surround_each_call_of_each_round(gpu: FakeDriver) -> None:  # noqa: F811
    small = X[:4, :64].copy()
    tuning = fw.tune(softmax, small, clock=DeviceClock())
    n = len(tuning.timed)
    assert tuning.device == DEVICE
    assert gpu.calls["cuMemsetD8Async"] == gpu.calls["cuEventElapsedTime"] == n * ROUNDS
    assert gpu.calls["cuEventDestroy"] == 2
    names = [name for name, _ in gpu.launched]
    measured = names[n * WARM_UP :]
    assert measured[::2] == ["memset"] * (n * ROUNDS)
    assert measured[1 : 2 * n : 2] == measured[2 * n + 1 : 4 * n : 2]
    assert [t.us for t in tuning.timed] == sorted(t.us for t in tuning.timed)


def test_a_measured_call_computes_the_result(gpu: FakeDriver) -> None:  # noqa: F811
    program = compiled()
    call = program.calls.bind_memory([describe(X)])
    call()
    assert len(gpu.launched) == 1
    got = np.frombuffer((ctypes.c_char * X.nbytes).from_address(call.results[0]), np.float32)
    np.testing.assert_allclose(got.reshape(X.shape), fw.evaluate(program.fusion, X)[0], rtol=1e-5)
    owned = len(gpu.memory)
    del call
    assert owned == 2 and not gpu.memory
