"""fw.benchmark: predicted without a GPU, and said so; measured by any clock, beside others."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import fusewright as fw
from fusewright.report.predicted import timed
from fusewright.report.summary import summarise

X = np.ones((256, 1024), np.float32)
LEAST = 2 * X.nbytes


@fw.fuse
def softmax(x: Any) -> Any:
    return fw.nn.softmax(x, axis=-1)


class Clock:
    """Microseconds by position, without running anything."""

    device = "a clock"

    def __init__(self, *times: float) -> None:
        self.times = times
        self.runs: Sequence[Callable[[], object]] = ()

    def __call__(self, runs: Sequence[Callable[[], object]]) -> list[float]:
        self.runs = runs
        return list(self.times[: len(runs)])


@pytest.fixture(autouse=True)
def _without_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["fusewright.frontends.benchmark"], "has_gpu", lambda: False)


def test_without_a_gpu_times_are_predicted_and_that_is_said() -> None:
    found = fw.benchmark(softmax, X)
    program = softmax.program(X)
    assert not found.is_measured and found.device == "sm_90a"
    assert found.us == pytest.approx(summarise(program, "x").us)
    assert found.us == pytest.approx(sum(t.us for t in timed(program)))
    assert found.nbytes == LEAST and found.copy_us is not None
    assert found.share == pytest.approx(found.copy_us / found.us)
    assert "predicted for sm_90a: no GPU was found, nothing was measured" in str(found)


def test_a_clock_measures_the_program_others_and_a_copy() -> None:
    clock = Clock(10.0, 40.0, 8.0)
    found = fw.benchmark(softmax, X, beside={"numpy": lambda x: x + 1}, clock=clock)
    assert found.is_measured and found.device == "a clock"
    assert [(t.name, t.us) for t in found.timings] == [("softmax", 10.0), ("numpy", 40.0)]
    assert found.copy_us == 8.0 and found.share == pytest.approx(0.8)
    assert np.array_equal(clock.runs[1](), X + 1)  # what runs is the caller's function
    text = str(found)
    assert "measured on a clock" in text and "80 %" in text and "a copy of as many bytes" in text


def test_programs_and_plain_functions_are_timed_too() -> None:
    program = fw.compile(fw.trace(softmax.fn, fw.TensorSpec(X.shape, "float32")))
    assert fw.benchmark(program).us == pytest.approx(fw.benchmark(softmax.fn, X).us)
    assert fw.benchmark(program, X, clock=Clock(3.0, 2.0)).us == 3.0


def test_symbolic_sizes_have_a_prediction_and_no_share() -> None:
    program = fw.compile(fw.trace(softmax.fn, fw.TensorSpec(("n", 1024), "float32")))
    found = fw.benchmark(program)
    assert found.share is None and found.nbytes is None and "symbolic sizes" in str(found)
    measured = fw.benchmark(program, X, clock=Clock(3.0))
    assert measured.us == 3.0 and measured.share is None


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: fw.benchmark(3), "must be a function, or a program"),
        (lambda: fw.benchmark(softmax, X, beside=[len]), "must be a dict of names and functions"),
        (lambda: fw.benchmark(softmax, X, beside={"a": len}), r"beside=\['a'\] is measured"),
        (lambda: fw.benchmark(softmax, X, clock=3), "must be a clock"),
        (
            lambda: fw.benchmark(softmax.program(X), x=X),
            r"benchmark\(x=\): a program takes arrays by position",
        ),
        (lambda: fw.benchmark(softmax.program(X), X[:2], clock=Clock(1.0)), "must have shape"),
    ],
)
def test_what_cannot_be_timed_is_refused(call: Callable[[], object], message: str) -> None:
    with pytest.raises(fw.UserError, match=message):
        call()
