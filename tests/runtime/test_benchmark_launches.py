"""fw.benchmark of each launch: events on a device, and the same times on pages and in traces."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_cuda import FakeDriver
from fake_fixtures import gpu, torch

import fusewright as fw
from fusewright.kernel import Kernel
from fusewright.report.predicted import timed
from fusewright.runtime.clock import DeviceClock

__all__ = ["gpu", "torch"]  # fixtures

X = np.random.default_rng(0).normal(size=(48, 96)).astype(np.float32)


def chain(x: Any) -> Any:
    """Three kernels, each of what the one before it made."""
    return fw.nn.softmax(fw.cumulative_sum(fw.sort(x, axis=0), axis=0), axis=-1)


class Clock:
    """Says 10 us of every run, and 1, 2, .. us of launches, and keeps what they computed."""

    device = "a clock"

    def __call__(self, runs: Sequence[Callable[[], object]]) -> list[float]:
        return [10.0 for _ in runs]

    def launches(self, run: Callable[[Callable[[int], None]], object]) -> dict[int, Any]:
        numbers: list[int] = []
        run(numbers.append)
        ends = np.cumsum(np.arange(1.0, len(numbers) + 1))
        return {n: (float(e), k + 1.0) for k, (n, e) in enumerate(zip(numbers, ends, strict=True))}


def measured(gpu: FakeDriver) -> fw.Benchmark:
    program = fw.compile(fw.trace(chain, fw.TensorSpec(X.shape, "float32")))
    assert len(program.launches) >= 2
    return fw.benchmark(program, X, clock=Clock())


def test_every_launch_is_marked_once_in_order(gpu: FakeDriver) -> None:
    found = measured(gpu)
    assert found.program is not None and found.measured is not None
    names = [x.kernel.name for x in found.program.launches]
    spans = list(found.measured.launches.values())
    assert [t.name for t in spans] == names
    assert [t.us for t in spans] == [k + 1.0 for k in range(len(names))]
    assert [t.begin for t in spans] == [sum(range(1, k + 1)) for k in range(len(names))]
    assert found.measured.us == sum(t.us for t in spans)
    assert gpu.calls["cuGraphLaunch"] == 0  # nothing hides in a graph


def test_the_text_has_measured_beside_predicted(gpu: FakeDriver) -> None:
    found = measured(gpu)
    assert found.program is not None
    lines = str(found).splitlines()
    for i, t in enumerate(timed(found.program)):
        (line,) = [x for x in lines if x.startswith(f"#{i} {t.name}")]
        assert line.split()[-2:] == [f"{i + 1:.1f}", f"{t.us:.1f}"]


def test_traces_have_the_run_and_the_prediction(gpu: FakeDriver, tmp_path: Path) -> None:
    found = measured(gpu)
    assert found.program is not None
    record = json.loads(found.to_trace(tmp_path / "t.json").read_text(encoding="utf-8"))
    assert record["otherData"]["measured on"] == "a clock"
    events = record["traceEvents"]
    runs = [e for e in events if e.get("cat") == "measured"]
    expected = timed(found.program)
    assert [(e["name"], e["dur"], e["args"]["predicted us"]) for e in runs] == [
        (t.name, i + 1.0, t.us) for i, t in enumerate(expected)
    ]
    assert all(a["ts"] + a["dur"] == b["ts"] for a, b in pairwise(runs))
    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert names[runs[0]["pid"]].endswith("measured on a clock")
    assert [e["dur"] for e in events if e.get("cat") == "launch"] == [t.us for t in expected]


def test_pages_and_summaries_have_it_too(
    gpu: FakeDriver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nothing(self: Kernel) -> None:
        raise fw.UserError("machine code is none here")

    monkeypatch.setattr(Kernel, "resources", nothing)
    report = measured(gpu).report
    total = sum(range(1, len(report.facts.host.launches) + 1))
    assert f"{total}.0 us on a clock" in str(report)
    assert "measured 2.0 us on a clock" in report.show("host")
    data = report.to_dict()
    assert data["measured_us"] == total
    assert [x["measured_us"] for x in data["host"]["launches"]][:2] == [1.0, 2.0]
    page = report.to_html(tmp_path / "p.html").read_text(encoding="utf-8")
    assert "Launches as measured on a clock" in page and "measured us" in page
    assert page.count(">measured<") == len(report.facts.kernels)  # a bar for each kernel


def test_without_a_measurement_nothing_says_so(tmp_path: Path) -> None:
    report = fw.benchmark(fw.compile(fw.trace(chain, "f32[48,96]"))).report
    record = json.loads(report.to_trace(tmp_path / "t.json").read_text(encoding="utf-8"))
    assert record["otherData"]["measured on"] == "nothing"
    assert not [e for e in record["traceEvents"] if e.get("cat") == "measured"]
    assert report.to_dict()["measured_us"] is None and "  measured  " not in str(report)


def test_a_clock_that_times_no_launches_measures_the_whole(gpu: FakeDriver) -> None:
    class Whole:
        device = "a stop watch"

        def __call__(self, runs: Sequence[Callable[[], object]]) -> list[float]:
            return [7.0 for _ in runs]

    program = fw.compile(fw.trace(chain, "f32[48,96]"))
    found = fw.benchmark(program, X, clock=Whole())
    assert found.us == 7.0 and found.measured is None


def test_the_device_clock_has_events_behind_each_launch(gpu: FakeDriver) -> None:
    program = fw.compile(fw.trace(chain, "f32[48,96]"))
    found = fw.benchmark(program, X, clock=DeviceClock(rounds=3))
    assert found.measured is not None and found.measured.device == "Simulated GPU"
    assert len(found.measured.launches) == len(program.launches)
    assert gpu.open_events == 0


def test_a_region_is_one_launch(gpu: FakeDriver) -> None:
    def halved(x: Any) -> Any:
        return fw.while_loop(lambda v: fw.max(v) > 1.0, lambda v: fw.cumulative_sum(v) * 0.01, x)

    program = fw.compile(fw.trace(lambda x: halved(x) + 1, "f32[64]"))
    found = fw.benchmark(program, np.full(64, 3.0, np.float32), clock=Clock())
    assert found.measured is not None
    assert list(found.measured.launches) == list(range(len(program.launches)))
