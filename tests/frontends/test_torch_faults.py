"""Faults on the way from a torch graph to a result: torch computes what is left, a warning names a
file that shows the fault again, and nothing else is lost."""

from __future__ import annotations

import importlib
import logging
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import fusewright as fw  # noqa: E402
from fusewright.errors import InternalError  # noqa: E402
from fusewright.frontends.torch import dynamo, region  # noqa: E402
from fusewright.frontends.torch.dynamo import compiler  # noqa: E402
from fusewright.frontends.torch.options import Options  # noqa: E402
from fusewright.frontends.torch.report import GraphReport  # noqa: E402
from fusewright.frontends.torch.table import LOWERINGS  # noqa: E402
from fusewright.programs import calls  # noqa: E402
from fusewright.programs.calls import Calls  # noqa: E402
from fusewright.programs.model import ProgramModel  # noqa: E402
from fusewright.programs.simulation import simulate_program  # noqa: E402
from fusewright.runtime import builds  # noqa: E402
from fusewright.sim.machine import SimResult  # noqa: E402

driver = importlib.import_module("fusewright.driver")
finish = importlib.import_module("fusewright.finish")
reproducer_module = importlib.import_module("fusewright.frontends.torch.reproducer")
forms = importlib.import_module("fusewright.forms")
rating = importlib.import_module("fusewright.schedule.heuristics.rating")


class Fault(RuntimeError):
    """No error of this package."""


def fail(*args: Any, **options: Any) -> Any:
    raise Fault('injected \\ with """ quotes')


def f(x: Any, y: Any) -> Any:
    return torch.softmax(x * 2 + y, dim=-1) + y.sin()


@pytest.fixture
def on_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has the simulated path compile, load and launch as the one of a device does."""

    def run(self: Calls, arrays: list[Any], device: str, sizes: Any) -> list[Any]:
        for loaded in self._load():
            loaded.launch()
        return calls.simulate_program(self._program, arrays, check_races=True, seed=0).outputs

    class Loaded:
        def __init__(self, code: bytes, ir: Any) -> None:
            assert code[:4] == b"\x7fELF"

        def launch(self) -> None:
            pass

    monkeypatch.setattr(Calls, "_on_host", run)
    monkeypatch.setattr(calls, "LoadedKernel", Loaded)
    monkeypatch.setenv("FUSEWRIGHT_CACHE", "0")
    builds.BUILDER.forget()


def run(fn: Callable[..., Any], *args: Any, **options: Any) -> tuple[Any, list[GraphReport]]:
    torch.compiler.reset()
    reports: list[GraphReport] = []
    compiled = torch.compile(fn, backend=compiler(Options(**options), reports.append))
    return compiled(*args), reports


def reproducer(caplog: pytest.LogCaptureFixture) -> Path:
    """The file that the only warning names."""
    (message,) = [r.getMessage() for r in caplog.records if r.name == "fusewright.torch"]
    found = re.search(r"run 'python (.*\.py)' to see it again", message)
    assert found, message
    return Path(found[1])


def arguments() -> tuple[Any, Any]:
    torch.manual_seed(0)
    return torch.randn(6, 40), torch.randn(40)


STAGES: dict[str, tuple[Any, str]] = {
    "trace": (region.GraphPart, "trace"),
    "form": (forms, "formed"),
    "place": (driver, "place"),
    "schedule": (rating, "work_of"),
    "lower": (finish, "lower"),
    "passes": (finish, "run_pipeline"),
    "compile": (builds, "compile_cubin"),
    "load": (calls.LoadedKernel, "__init__"),
    "launch": (calls.LoadedKernel, "launch"),
    "simulate": (calls, "simulate_program"),
    "ways": (region, "_by_size"),
}


@pytest.mark.usefixtures("on_device")
@pytest.mark.parametrize("stage", list(STAGES))
def test_a_fault_at_any_stage_leaves_the_region_to_torch(
    stage: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    owner, name = STAGES[stage]
    owner = calls.LoadedKernel if stage in ("load", "launch") else owner  # the fixture's
    monkeypatch.setattr(owner, name, fail)
    x, y = arguments()
    with caplog.at_level(logging.WARNING):
        found, reports = run(f, x, y, cpu="sim")
    torch.testing.assert_close(found, f(x, y))
    (failure,) = [m for g in reports for r in g.regions for m in r.failures]
    assert "Fault: injected" in failure
    text = reproducer(caplog).read_text()
    assert "Fault: injected" in text and "tensor((6, 40), (40, 1), torch.float32, 'cpu')" in text
    compile(text, "reproducer", "exec")


@dataclass
class Stage:
    """A stage that works until it is told to fail."""

    fails: bool = False
    met: int = 0

    def inject(self, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        owner, attribute = STAGES[name]
        owner = calls.LoadedKernel if name in ("load", "launch") else owner  # the fixture's
        real = getattr(owner, attribute)

        def staged(*args: Any, **options: Any) -> Any:
            if not self.fails:
                return real(*args, **options)
            self.met += 1
            return fail()

        monkeypatch.setattr(owner, attribute, staged)


@pytest.mark.usefixtures("on_device")
@pytest.mark.parametrize("name", list(STAGES))
def test_a_fault_at_any_stage_of_the_backward_graph_leaves_its_region_to_torch(
    name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    stage, real = Stage(), dynamo.fuse_graph
    stage.inject(name, monkeypatch)

    def fuse_graph(module: Any, options: Any, name: str, *rest: Any) -> Any:
        before, stage.fails = stage.fails, name == "backward"
        try:
            return real(module, options, name, *rest)
        finally:
            stage.fails = before

    monkeypatch.setattr(dynamo, "fuse_graph", fuse_graph)
    x, y = arguments()
    x.requires_grad_()
    with caplog.at_level(logging.WARNING):
        found, reports = run(lambda x, y: f(x, y).square().sum(), x, y, cpu="sim")
        stage.fails = True
        found.backward()
    grad, x.grad = x.grad, None
    f(x, y).square().sum().backward()
    torch.testing.assert_close(grad, x.grad)
    assert stage.met
    forward, backward = ([m for r in g.regions for m in r.failures] for g in reports)
    assert forward == [] and [("Fault: injected" in m) for m in backward] == [True]
    compile(reproducer(caplog).read_text(), "reproducer", "exec")


class NoSymbols(region._Symbolic):
    """No program for many sizes."""

    def __init__(self, *args: Any) -> None:
        raise ValueError("sizes do not follow")


AT_EVERY_CALL = ("load", "launch", "simulate")
"""Stages that every call comes through on the fixture's device; others are behind a program's
first call."""


@pytest.mark.usefixtures("on_device")
@pytest.mark.parametrize("name", list(STAGES))
def test_a_fault_at_the_second_call_leaves_the_region_to_torch(
    name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    stage = Stage()
    stage.inject(name, monkeypatch)
    torch.compiler.reset()
    reports: list[GraphReport] = []
    compiled = torch.compile(f, backend=compiler(Options(cpu="sim"), reports.append))
    x, y = arguments()
    torch.testing.assert_close(compiled(x, y), f(x, y))
    stage.fails = True
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            torch.testing.assert_close(compiled(x, y), f(x, y))
    failures = [m for g in reports for r in g.regions for m in r.failures]
    assert [("Fault: injected" in m) for m in failures] == [True] * (name in AT_EVERY_CALL)
    assert stage.met == len(failures)


@pytest.mark.usefixtures("on_device")
@pytest.mark.parametrize("name", [n for n in STAGES if n != "ways"])
def test_a_fault_at_another_size_leaves_the_region_to_torch(
    name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    """The first size works; the second one has a way of its own to fail."""
    stage = Stage()
    stage.inject(name, monkeypatch)
    monkeypatch.setattr(region, "_Symbolic", NoSymbols)
    torch.compiler.reset()
    reports: list[GraphReport] = []
    compiled = torch.compile(f, backend=compiler(Options(cpu="sim"), reports.append), dynamic=True)
    x, y = arguments()
    torch.testing.assert_close(compiled(x, y), f(x, y))
    stage.fails = True
    with caplog.at_level(logging.WARNING):
        x, y = torch.randn(5, 37), torch.randn(37)
        torch.testing.assert_close(compiled(x, y), f(x, y))
    (failure,) = [m for g in reports for r in g.regions for m in r.failures]
    assert "Fault: injected" in failure
    assert len(reports) == 1


def test_a_fault_that_no_file_can_show_is_a_warning_too(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(dynamo, "partition", fail)
    monkeypatch.setattr(reproducer_module.tempfile, "mkdtemp", fail)
    x, y = arguments()
    with caplog.at_level(logging.WARNING):
        found, _ = run(f, x, y)
    torch.testing.assert_close(found, f(x, y))
    assert "is left to torch: Fault: injected" in caplog.text
    assert "no file shows it again (Fault: injected" in caplog.text


def test_no_memory_is_no_fault_of_a_region(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    """torch computes the call without memory, and says so if it has none either; the next one is
    fused again."""

    def exhausted(*args: Any, **options: Any) -> Any:
        raise torch.OutOfMemoryError("no memory is left")

    x, y = arguments()
    torch.compiler.reset()
    reports: list[GraphReport] = []
    compiled = torch.compile(f, backend=compiler(Options(cpu="sim"), reports.append))
    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING):
        patch.setattr(calls, "simulate_program", exhausted)
        torch.testing.assert_close(compiled(x, y), f(x, y))
    assert "no memory is left; torch computes this call" in caplog.text
    torch.testing.assert_close(compiled(x, y), f(x, y))
    (own,) = reports[0].regions
    assert own.failures == [] and own.fused is not None


def test_a_call_without_memory_writes_to_its_arguments_too(monkeypatch: pytest.MonkeyPatch):
    def step(p: Any, m: Any, g: Any) -> None:
        m.mul_(0.9).add_(g * g)
        p.sub_(m.sqrt() * 0.1)

    def exhausted(*args: Any, **options: Any) -> Any:
        raise torch.OutOfMemoryError("no memory is left")

    torch.manual_seed(0)
    own = [torch.rand(5, 8) for _ in range(3)]
    expected = [x.clone() for x in own]
    torch.compiler.reset()
    compiled = torch.compile(step, backend=compiler(Options(cpu="sim")))
    monkeypatch.setattr(calls, "simulate_program", exhausted)
    compiled(*own)
    step(*expected)
    torch.testing.assert_close(own, expected)


@pytest.mark.usefixtures("on_device")
def test_without_a_fault_nothing_is_left(caplog: pytest.LogCaptureFixture):
    x, y = arguments()
    found, reports = run(f, x, y, cpu="sim")
    torch.testing.assert_close(found, f(x, y))
    assert [r.failures for g in reports for r in g.regions] == [[]]
    assert [r for r in caplog.records if r.name == "fusewright.torch"] == []


@pytest.mark.parametrize("stage", ["partition", "parts_of", "rewrite"])
def test_a_fault_in_cutting_a_graph_leaves_it_to_torch(
    stage: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    real = getattr(dynamo, stage)

    def late(*args: Any, **options: Any) -> Any:
        real(*args, **options)
        fail()

    monkeypatch.setattr(dynamo, stage, late)
    x, y = arguments()
    x.requires_grad_()
    with caplog.at_level(logging.WARNING):
        found, reports = run(lambda x, y: f(x, y).sum(), x, y)
        found.backward()
    grad, x.grad = x.grad, None
    f(x, y).sum().backward()
    torch.testing.assert_close(grad, x.grad)
    assert reports == []
    messages = [r.getMessage() for r in caplog.records if r.name == "fusewright.torch"]
    assert [m.split(" is left")[0] for m in messages] == ["forward", "backward"]


def test_a_fault_of_one_lowering_leaves_its_operator_to_torch(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setitem(LOWERINGS, torch.ops.aten.sin.default, fail)
    x, y = arguments()
    found, reports = run(f, x, y)
    torch.testing.assert_close(found, f(x, y))
    assert any("Fault: injected" in why for g in reports for _, why in g.left)
    assert "aten.sin.default is left to torch: Fault: injected" in caplog.text


def test_a_region_is_left_once_for_all_calls(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(calls, "simulate_program", fail)
    torch.compiler.reset()
    compiled = torch.compile(f, backend=compiler(Options(cpu="sim")))
    x, y = arguments()
    for _ in range(3):
        torch.testing.assert_close(compiled(x, y), f(x, y))
    assert len([r for r in caplog.records if r.name == "fusewright.torch"]) == 1


def test_what_torch_raises_is_the_callers(caplog: pytest.LogCaptureFixture):
    """An index that is too large is no fault of the region, which computes the next call."""

    def gather(x: Any, i: Any) -> Any:
        return torch.nn.functional.embedding(i, x) * 2 + 1

    torch.compiler.reset()
    reports: list[GraphReport] = []
    compiled = torch.compile(gather, backend=compiler(Options(), reports.append))
    x, i = torch.randn(4, 8), torch.tensor([1, 3])
    with pytest.raises(IndexError, match="out of range"):
        compiled(x, torch.tensor([1, 7]))
    torch.testing.assert_close(compiled(x, i), gather(x, i))
    (own,) = reports[0].regions
    assert own.failures == [] and own.fused is not None
    assert [r for r in caplog.records if r.name == "fusewright.torch"] == []


@pytest.mark.parametrize(
    ("fn", "wrong", "raised"),
    [
        (lambda x, i: torch.nn.functional.embedding(i, x) * 2 + 1, [-1, 2], IndexError),
        (lambda x, i: (x * 2).gather(0, i[:, None]) + 1, [-1, 2], RuntimeError),
        (lambda x, i: torch.nn.functional.cross_entropy(x[:2] * 2, i), [-1, 2], RuntimeError),
        (lambda x, i: (x.long() * 2) // i[:1] + 1, [0, 2], RuntimeError),
        (lambda x, i: torch.remainder(x.long() * 2, i[:1]) + 1, [0, 2], RuntimeError),
        (lambda x, i: torch.fmod(x.long() * 2, i[:1]) + 1, [0, 2], RuntimeError),
    ],
    ids=["embedding", "gather", "cross_entropy", "quotient", "remainder", "fmod"],
)
def test_torch_raises_for_elements_on_the_host(
    fn: Any, wrong: list[int], raised: type[Exception], caplog: pytest.LogCaptureFixture
):
    """Negative indices and integer divisors of 0, which kernels do not ask about, are refused as
    torch does; the region computes the next call."""
    torch.compiler.reset()
    reports: list[GraphReport] = []
    compiled = torch.compile(fn, backend=compiler(Options(min_ops=1), reports.append))
    x, i = torch.randn(4, 8), torch.tensor([1, 3])
    with pytest.raises(raised):
        compiled(x, torch.tensor(wrong))
    torch.testing.assert_close(compiled(x, i), fn(x, i))
    assert all(r.failures == [] and r.fused is not None for r in reports[0].regions)
    assert [r for r in caplog.records if r.name == "fusewright.torch"] == []


def raced(program: ProgramModel, arrays: Any, **options: Any) -> SimResult:
    found = simulate_program(program, arrays, **options)
    found.races.append("a write of thread 3 and a read of thread 4")  # type: ignore[arg-type]
    return found


def test_a_race_is_a_failure(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture):
    monkeypatch.setattr(calls, "simulate_program", raced)
    x, y = arguments()
    found, reports = run(f, x, y, cpu="sim")
    torch.testing.assert_close(found, f(x, y))
    (failure,) = reports[0].regions[0].failures
    assert "InternalError: the program: the simulator found 1 races, the first: a write" in failure
    assert reproducer(caplog).exists()
    with pytest.raises(InternalError, match="the simulator found 1 races, the first: a write"):
        fw.fuse(lambda x: x + 1, device="sim")(np.ones(3, np.float32))


def test_the_file_runs_the_region_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    with monkeypatch.context() as patch:
        patch.setattr(calls, "simulate_program", fail)

        def mixed(x: Any, i: Any, mask: Any) -> Any:
            filled = torch.where(mask, x.t(), torch.inf)
            return filled.clamp(max=3.0)[i] * 2, (x * 0.5).half().sum(0)

        x = torch.randn(5, 4)
        run(mixed, x, torch.tensor([2, 1]), torch.ones(4, 5, dtype=torch.bool), cpu="sim")
    again = {p: None for r in caplog.records for p in re.findall(r"python (.*?\.py)'", r.message)}
    for path in again:
        made = subprocess.run(
            [sys.executable, path], capture_output=True, text=True, timeout=200, check=False
        )
        assert made.returncode == 0, made.stderr
        assert "is left to torch" not in made.stderr
    assert again
