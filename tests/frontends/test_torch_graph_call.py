"""A graph as one function: what it computes, what it asks, and what becomes of it where the answers
are others. Kernels run in the simulator, on host tensors that stand for those of a device."""

from __future__ import annotations

import gc
import logging
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

sys.path.insert(0, str(Path(__file__).parent.parent / "runtime"))

from bench.stand_in import HostApi, stand_in  # noqa: E402
from fake_cuda import FakeDriver  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402

import fusewright as fw  # noqa: E402
from fusewright.frontends.torch.dynamo import compiler, fuse_graph  # noqa: E402
from fusewright.frontends.torch.graph_call import MAX_TEXTS  # noqa: E402
from fusewright.frontends.torch.lying import moves_memory  # noqa: E402
from fusewright.frontends.torch.options import Options  # noqa: E402
from fusewright.frontends.torch.report import GraphReport  # noqa: E402


class Driver(FakeDriver):
    """Knows the kernels that are loaded."""

    def cubin(self, kernel: Any) -> bytes:
        self.register(kernel.ir)
        return b"code"


@dataclass
class Machine:
    """A device that is a simulator, and what is compiled for it."""

    gpu: Driver
    api: HostApi
    reports: list[GraphReport] = field(default_factory=list)

    def compile(self, fn: Callable[..., Any], **modes: Any) -> Any:
        torch.compiler.reset()
        self.reports.clear()
        options = Options(cpu="sim", target="sm_90a")
        return torch.compile(fn, backend=compiler(options, self.reports.append), **modes)

    @property
    def text(self) -> str:
        """The function of the first graph."""
        return self.reports[0].function or ""

    @property
    def failures(self) -> list[str]:
        return [f for g in self.reports for r in g.regions for f in r.failures]


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    monkeypatch.setenv("FUSEWRIGHT_CACHE", "0")
    torch.manual_seed(0)
    driver = Driver()
    with stand_in(driver) as api:
        yield Machine(driver, api)
    torch.compiler.reset()


def mixed(x: Any, w: Any) -> Any:
    """Two regions around a product."""
    y = torch.softmax(x * 2 + 1, -1) @ w
    return (y.sigmoid() * y).t()


def tensors() -> tuple[Any, Any]:
    return torch.randn(6, 20), torch.randn(20, 12)


def steady(machine: Machine, fn: Callable[..., Any], *args: Any, **modes: Any) -> Any:
    """The compiled function, called until its graphs are functions."""
    called = machine.compile(fn, **modes)
    for _ in range(3):
        called(*args)
    assert machine.failures == [] and machine.text
    return called


def assert_same(called: Any, fn: Callable[..., Any], *args: Any) -> None:
    """Equal results, and arguments changed alike."""
    own = [a.clone() for a in args]
    torch.testing.assert_close(called(*args), fn(*own))
    torch.testing.assert_close(list(args), own)


def test_a_graph_is_one_function(machine: Machine) -> None:
    called = steady(machine, mixed, *tensors())
    assert_same(called, mixed, *tensors())
    lines = [line.strip() for line in machine.text.splitlines()]
    assert [line for line in lines if line.startswith(("pack", "status", "mm ="))] == [
        "pack_fused_0(buffer_fused_0, 0, arg0_1_at, fused_0_0.data_ptr())",
        "status = launch_fused_0(config0_fused_0, kernel0_fused_0, table0_fused_0, 0)",
        "mm = mm_0(fused_0_0, arg1_1)",
        "pack_fused_1(buffer_fused_1, 0, mm_at, t.data_ptr())",
        "status = launch_fused_1(config0_fused_1, kernel0_fused_1, table0_fused_1, 0)",
    ]


def test_the_function_runs_nothing_else(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    called = steady(machine, mixed, *tensors())
    monkeypatch.setattr(type(machine.reports[0].regions[0]), "__call__", None)
    before = len(machine.gpu.launched)
    assert_same(called, mixed, *tensors())
    assert len(machine.gpu.launched) == before + 2


def test_before_the_first_call_there_is_no_function(machine: Machine) -> None:
    called = machine.compile(lambda x: (x * 2).sin())
    called(torch.ones(4))
    torch.compiler.reset()
    assert GraphReport("graph", (), {}).function is None


# --- views --------------------------------------------------------------------------------------


def heads(x: Any, w: Any, c: Any) -> Any:
    """Parts of a product, turned, by halves."""
    q, k = (x @ w).view(3, 5, 2, 2, 4).unbind(2)
    q, k = q.transpose(1, 2), k.transpose(1, 2)
    return q * c + k, q[..., 2:] * k[..., :2]


def test_views_that_kernels_read_are_addresses(machine: Machine) -> None:
    args = torch.randn(15, 7), torch.randn(7, 16), torch.randn(3, 2, 5, 4)
    called = steady(machine, heads, *args)
    assert_same(called, heads, *args)
    assert "mm_at + 32" in machine.text and "mm_at + 8" in machine.text
    assert "transpose" not in machine.text and "slice" not in machine.text


def test_views_that_operators_read_are_made_without_a_call(machine: Machine) -> None:
    def f(x: Any, w: Any) -> Any:
        y = (x * 2).exp().view(3, 8)
        return (y @ w.t()).relu() + 1

    called = steady(machine, f, torch.randn(2, 12), torch.randn(5, 8))
    assert_same(called, f, torch.randn(2, 12), torch.randn(5, 8))
    assert "t = reinterpret(arg1_1, (8, 5), (1, 8), 0)" in machine.text
    assert "view = empty((3, 8), (8, 1), float32)" in machine.text


def turned(x: Any, w: Any) -> Any:
    """A product of what a region makes in another shape."""
    y = (x * 2).exp().view(3, 8)
    return (y @ w).relu() + 1, (y.t() @ y).sigmoid() * 2


def test_results_are_made_as_the_view_that_is_read_first(machine: Machine) -> None:
    called = steady(machine, turned, torch.randn(2, 12), torch.randn(8, 5))
    assert_same(called, turned, torch.randn(2, 12), torch.randn(8, 5))
    lines = [line.strip() for line in machine.text.splitlines()]
    assert lines.count("view = empty((3, 8), (8, 1), float32)") == 1
    assert [line for line in lines if "= reinterpret" in line and "relu" not in line] == [
        "view = reinterpret(view, (3, 8), (8, 1), 0)",  # what the region's call makes
        "view = reinterpret(view, (3, 8), (8, 1), 0)",  # what is made where its launch fails
        "t = reinterpret(view, (8, 3), (1, 8), 0)",
    ]
    memory = torch.randn(200)
    assert_same(called, turned, memory[1:25].view(2, 12), torch.randn(8, 5))
    assert machine.failures == []
    machine.gpu.refuse = "cuLaunchKernelEx"
    assert_same(called, turned, torch.randn(2, 12), torch.randn(8, 5))


def test_a_result_that_is_read_as_it_is_is_made_as_it_is(machine: Machine) -> None:
    def read_twice(x: Any, w: Any) -> Any:
        y = (x * 2).exp() + 1
        return y @ w, (y.t() @ x).relu() + 1

    def returned(x: Any, w: Any) -> Any:
        y = (x * 2).exp() + 1
        return y, y.view(-1, 8) @ w

    def shown_in_part(x: Any, w: Any) -> Any:
        y = (x * 2).exp() + 1
        return y[:2] @ w

    args = torch.randn(4, 16), torch.randn(8, 5)
    for f, own in (
        (read_twice, (args[0], torch.randn(16, 5))),
        (returned, args),
        (shown_in_part, (args[0], torch.randn(16, 5))),
    ):
        called = steady(machine, f, *own)
        assert_same(called, f, *own)
        assert "fused_0_0 = empty((4, 16), (16, 1), float32)" in machine.text


def test_a_region_reads_a_result_that_is_made_as_a_view(machine: Machine) -> None:
    def f(x: Any, w: Any) -> Any:
        y = (x * 2).sigmoid() + 1
        z = y.view(8, 8) @ w
        return (z.view(4, 16) * y).sigmoid() + y.t().reshape(4, 16)

    called = steady(machine, f, torch.randn(4, 16), torch.randn(8, 8))
    assert "view = empty((8, 8), (8, 1), float32)" in machine.text
    assert_same(called, f, torch.randn(4, 16), torch.randn(8, 8))
    machine.gpu.refuse = "cuLaunchKernelEx"
    assert_same(called, f, torch.randn(4, 16), torch.randn(8, 8))


def test_equal_views_are_made_once(machine: Machine) -> None:
    def f(x: Any, w: Any) -> Any:
        y = (x * 2).exp() + 1
        return (y @ w.t()).relu() + 1, (w.t() @ x).sin() * 2

    called = steady(machine, f, torch.randn(4, 4), torch.randn(4, 4))
    assert_same(called, f, torch.randn(4, 4), torch.randn(4, 4))
    assert machine.text.count("= reinterpret(arg1_1") == 1


def test_equal_views_that_the_caller_is_given_stay_apart(machine: Machine) -> None:
    module = graph(lambda x: [(x * 2).exp() + 1, x.t(), x.t()], ("x",), torch.randn(4, 4))
    run = fuse_graph(module, Options(cpu="sim", target="sm_90a"))
    with torch.no_grad():
        _, a, b = run([torch.randn(4, 4)])
    assert a is not b
    torch.testing.assert_close(a, b)


def test_results_show_the_memory_that_they_would(machine: Machine) -> None:
    def f(x: Any) -> Any:
        y = x * 2 + 1
        return x.t(), y, y[1:], x[:, 1]

    called = steady(machine, f, torch.randn(3, 4))
    x = torch.randn(3, 4)
    turned, y, rest, column = called(x)
    x.add_(1)
    torch.testing.assert_close([turned, column], [x.t(), x[:, 1]])
    y.zero_()
    assert rest.abs().sum() == 0


def test_a_view_that_alone_shows_new_memory_is_returned_without_a_call(machine: Machine) -> None:
    def f(x: Any) -> Any:
        a, b = (x * 2 + 1).exp(), (x - 3).sin() * x
        return a.t(), b, b[1:], x.t()

    called = steady(machine, f, torch.randn(3, 4))
    assert_same(called, f, torch.randn(3, 4))
    assert "t = empty((4, 3), (1, 4), float32)" in machine.text and "transpose" not in machine.text
    x = torch.randn(3, 4)
    turned, b, rest, argument = called(x)
    versions = [t._version for t in (turned, rest, argument)]
    for t in (turned, b, x):
        t.add_(1)
    after = [t._version for t in (turned, rest, argument)]
    assert [new - old for old, new in zip(versions, after, strict=True)] == [1, 1, 1]


def test_a_view_of_an_argument_may_begin_anywhere(machine: Machine) -> None:
    def f(x: Any, w: Any) -> Any:
        return (x[1:] * 2 + x[:-1]) @ w.t()

    whole = torch.randn(60)
    called = steady(machine, f, whole[:20].view(5, 4), torch.randn(3, 4))
    assert_same(called, f, whole[20:40].view(5, 4), whole[40:52].view(3, 4))


# --- what is written ----------------------------------------------------------------------------


def test_arguments_are_written_in_order(machine: Machine) -> None:
    def step(p: Any, m: Any, g: Any) -> Any:
        before = (p @ m.t()).sum()
        m.mul_(0.5).add_(g * g)
        p.sub_(m.sqrt() * 0.1)
        return before, p @ m.t()

    def args() -> tuple[Any, ...]:
        return tuple(torch.rand(5, 8) for _ in range(3))

    called = steady(machine, step, *args())
    own = args()
    versions = [x._version for x in own]
    assert_same(called, step, *own)
    assert [x._version > v for x, v in zip(own, versions, strict=True)] == [True, True, False]
    assert "changed([" in machine.text


def test_statistics_of_a_norm_are_kept(machine: Machine) -> None:
    norm = torch.nn.BatchNorm1d(6)
    twin = torch.nn.BatchNorm1d(6)
    called = machine.compile(lambda x: norm(x).relu() @ x.t())
    for _ in range(4):
        x = torch.randn(7, 6)
        torch.testing.assert_close(called(x), twin(x).relu() @ x.t())
    torch.testing.assert_close(norm.running_var, twin.running_var)
    assert machine.failures == []


def test_gradients_are_those_of_torch(machine: Machine) -> None:
    def loss(x: Any, w: Any) -> Any:
        return (torch.softmax(x * 2, -1) @ w).sigmoid().square().sum()

    called = machine.compile(loss)
    for _ in range(4):
        given = [t.requires_grad_() for t in tensors()]
        own = [t.detach().clone().requires_grad_() for t in given]
        called(*given).backward()
        loss(*own).backward()
        torch.testing.assert_close([t.grad for t in given], [t.grad for t in own])
    assert [bool(g.function) for g in machine.reports] == [True, True]


def test_a_graph_that_asserts_is_one_function(machine: Machine) -> None:
    def f(x: Any) -> Any:
        torch._assert_async(((x > -1) & (x < 1)).all(), "within bounds")
        return (x * 2 + 1).sin()

    called = steady(machine, f, torch.rand(8))
    assert_same(called, f, torch.rand(8))
    with pytest.raises(RuntimeError, match="within bounds"):
        called(torch.rand(8) + 3)


# --- other calls --------------------------------------------------------------------------------


def test_an_address_that_kernels_do_not_take(machine: Machine) -> None:
    called = steady(machine, mixed, *tensors())
    memory = torch.randn(400)
    for at in (1, 2, 4):
        assert_same(called, mixed, memory[at : at + 120].view(6, 20), torch.randn(20, 12))
    assert machine.failures == []


def test_kernels_for_an_address_that_is_not_aligned(machine: Machine) -> None:
    memory = torch.randn(400)
    called = steady(machine, mixed, memory[1:121].view(6, 20), torch.randn(20, 12))
    assert "if (arg0_1_at + 12) & 15:" in machine.text
    assert_same(called, mixed, memory[5:125].view(6, 20), torch.randn(20, 12))
    assert_same(called, mixed, *tensors())


def test_a_thread_has_a_first_call_of_its_own(machine: Machine) -> None:
    called = steady(machine, mixed, *tensors())
    call = machine.reports[0].call
    assert call is not None
    machine.gpu.context = 0
    machine.gpu.calls.clear()

    def work() -> None:
        for _ in range(4):
            x, w = tensors()
            with torch.no_grad():
                (y,) = call.run([x, w])
            found.append((y, mixed(x, w)))

    found: list[tuple[Any, Any]] = []
    threads = [threading.Thread(target=work) for _ in range(2)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(found) == 8
    torch.testing.assert_close([a for a, _ in found], [b for _, b in found])
    assert machine.gpu.calls["cuCtxGetCurrent"] > 0 and machine.failures == []
    assert_same(called, mixed, *tensors())


def test_one_thread_at_a_time_is_inside(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    steady(machine, mixed, *tensors())
    call = machine.reports[0].call
    assert call is not None
    names = call.run.__globals__  # type: ignore[attr-defined]
    nodes: list[int] = []
    forward = call._module.forward
    monkeypatch.setattr(call._module, "forward", lambda boxed: nodes.append(1) or forward(boxed))

    def checked() -> int:
        """Calls of the graph node by node that one call took."""
        nodes.clear()
        x, w = tensors()
        with torch.no_grad():
            torch.testing.assert_close(call.run([x, w])[0], mixed(x, w))
        return len(nodes)

    product = names["mm_0"]
    with ThreadPoolExecutor(1) as other:
        assert [other.submit(checked).result() for _ in range(2)] == [1, 0]
        inside: list[int] = []

        def interrupted(*args: Any) -> Any:
            names["mm_0"] = product
            inside.append(other.submit(checked).result())
            return product(*args)

        names["mm_0"] = interrupted
        checked()
        assert inside == [1] and checked() == 0 and other.submit(checked).result() == 0

    def refused(*_: Any) -> Any:
        raise RuntimeError("no product")

    names["mm_0"] = refused
    with pytest.raises(RuntimeError, match="no product"):
        checked()
    names["mm_0"] = product
    assert checked() == 0
    assert len({id(v) for k, v in names.items() if k.startswith("buffer")}) == 2


def test_the_function_asks_what_regions_would_ask(machine: Machine) -> None:
    steady(machine, mixed, *tensors())
    call = machine.reports[0].call
    assert call is not None
    ways: list[str] = []
    real = type(call._module).forward

    def forward(self: Any, boxed: list[Any]) -> Any:
        ways.append("graph")
        return real(self, boxed)

    type(call._module).forward = forward

    def run() -> int:
        ways.clear()
        x, w = tensors()
        with torch.no_grad():
            torch.testing.assert_close(call.run([x, w])[0], mixed(x, w))
        return len(ways)

    assert run() == 0
    with fw.config(execution="stream"):
        assert run() == 1
        assert run() == 0  # written again for these choices
    assert [run(), run()] == [1, 0]
    names = call.run.__globals__  # type: ignore[attr-defined]
    for name, value in (("modes", lambda: 1), ("current_device", lambda: 1)):
        before = names[name]
        names[name] = value
        assert run() == 1
        names[name] = before
        run()
    with torch.autograd.forward_ad.dual_level():
        assert run() == 1


def test_callers_that_switch_choices_do_not_have_texts_written_for_ever(machine: Machine) -> None:
    called = steady(machine, mixed, *tensors())
    texts: list[Any] = []
    for k in range(2 * MAX_TEXTS):
        with fw.config(execution="stream" if k % 2 else "graph"):
            assert_same(called, mixed, *tensors())
        texts.append(machine.reports[0].call.written)  # type: ignore[union-attr]
    assert 2 < len(set(map(id, texts))) <= MAX_TEXTS
    assert_same(called, mixed, *tensors())


def test_launches_go_to_the_current_stream(machine: Machine) -> None:
    called = steady(machine, mixed, *tensors())
    for number in (77, 12, 5, 77):
        machine.api.number = number
        machine.gpu.launched.clear()
        called(*tensors())
        assert {s for _, s in machine.gpu.launched} == {number}


def sums(x: Any) -> Any:
    """A region of several launches."""
    for k in range(4):
        x = x - x.sum(k % 2, keepdim=True) * 0.25
    return x


def test_a_region_of_many_launches_replays_but_not_in_a_capture(machine: Machine) -> None:
    called = steady(machine, sums, torch.randn(24, 40))
    machine.gpu.calls.clear()
    x = torch.randn(24, 40)
    torch.testing.assert_close(called(x), sums(x), rtol=1e-3, atol=1e-3)
    assert machine.gpu.calls["cuGraphLaunch"] == 1
    machine.gpu.capturing.add(77)
    torch.testing.assert_close(called(x), sums(x), rtol=1e-3, atol=1e-3)
    assert machine.gpu.calls["cuGraphLaunch"] == 1
    assert machine.gpu.calls["cuLaunchKernelEx"] >= 3
    with fw.config(execution="stream"):
        for _ in range(3):
            torch.testing.assert_close(called(x), sums(x), rtol=1e-3, atol=1e-3)
        assert "scratch = empty(" in machine.text


def test_sizes_that_change(machine: Machine) -> None:
    called = machine.compile(mixed, dynamic=True)
    for n in (6, 9, 6, 13, 9):
        assert_same(called, mixed, torch.randn(n, 20), torch.randn(20, 12))
    assert machine.failures == [] and len(machine.reports) == 1


@pytest.mark.parametrize("around", [torch.no_grad, torch.inference_mode])
def test_without_gradients(machine: Machine, around: Any) -> None:
    with around():
        called = machine.compile(mixed)
        for _ in range(4):
            assert_same(called, mixed, *tensors())
    assert "launch_fused_1(" in machine.text


def test_autocast(machine: Machine) -> None:
    with torch.autocast("cpu", torch.bfloat16):
        called = machine.compile(mixed)
        for _ in range(4):
            args = tensors()
            torch.testing.assert_close(called(*args), mixed(*args), rtol=2e-2, atol=2e-2)
    assert "launch_fused_1(" in machine.text and machine.failures == []


# --- faults -------------------------------------------------------------------------------------


def test_a_region_that_fails_later_is_replaced(
    machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    called = steady(machine, mixed, *tensors())
    real = machine.gpu._run

    def refuses(kernel: Any, values: list[Any]) -> None:
        if "sigmoid" in kernel.name:
            raise RuntimeError("no launch")
        real(kernel, values)

    machine.gpu._run = refuses  # type: ignore[method-assign]
    with caplog.at_level(logging.WARNING):
        assert_same(called, mixed, *tensors())
    (failure,) = machine.failures
    assert "RuntimeError: no launch" in failure
    assert "launch_fused_0" in machine.text and "launch_fused_1" not in machine.text
    assert "fused_1 = call_fused_1(mm)" in machine.text
    for _ in range(3):
        assert_same(called, mixed, *tensors())
    assert len(machine.failures) == 1


def test_a_launch_that_the_driver_refuses(machine: Machine) -> None:
    called = steady(machine, mixed, *tensors())
    machine.gpu.refuse = "cuLaunchKernelEx"
    assert_same(called, mixed, *tensors())
    assert len(machine.failures) == 2
    assert machine.reports[0].function is None


def test_no_memory_is_no_fault(machine: Machine, caplog: pytest.LogCaptureFixture) -> None:
    called = steady(machine, mixed, *tensors())
    text = machine.text
    names = machine.reports[0].call.run.__globals__  # type: ignore[union-attr]
    real = names["empty"]

    def exhausted(*args: Any) -> Any:
        names["empty"] = real
        raise torch.OutOfMemoryError("no memory is left")

    names["empty"] = exhausted
    with caplog.at_level(logging.WARNING):
        assert_same(called, mixed, *tensors())
    assert "no memory is left; torch computes this call" in caplog.text
    assert machine.failures == [] and machine.text == text
    assert_same(called, mixed, *tensors())


def test_what_torch_raises_is_the_callers(machine: Machine) -> None:
    def gather(x: Any, i: Any) -> Any:
        return (torch.nn.functional.embedding(i, x * 2 + 1) @ x.t()).relu() + 1

    good, bad = torch.tensor([1, 3]), torch.tensor([1, 7])
    for options in ({}, {"dynamic": False}):
        called = steady(machine, gather, torch.randn(4, 8), good, **options)
        if "embedding_0(" in machine.text:
            with pytest.raises(IndexError, match="out of range"):
                called(torch.randn(4, 8), bad)
        assert_same(called, gather, torch.randn(4, 8), good)


def test_a_function_that_cannot_be_written_leaves_the_graph(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*args: Any, **options: Any) -> Any:
        raise RuntimeError("no text")

    monkeypatch.setattr("fusewright.frontends.torch.graph_call.written", fails)
    called = machine.compile(mixed)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert_same(called, mixed, *tensors())
    said = [r.getMessage() for r in caplog.records if r.name == "fusewright.torch"]
    assert said == ["no function is written for a graph: RuntimeError: no text"]


# --- memory -------------------------------------------------------------------------------------


def test_names_are_freed_behind_their_last_reader(machine: Machine) -> None:
    steady(machine, mixed, *tensors())
    lines = machine.text.splitlines()
    freed = {k: line.strip()[4:].split(", ") for k, line in enumerate(lines) if "del " in line}
    assert sum(len(names) for names in freed.values()) >= 4
    for k, names in freed.items():
        rest = "\n".join(lines[k + 1 :])
        assert [n for n in names if f"({n}," in rest or f"({n})" in rest] == []


def test_no_call_keeps_what_it_made(machine: Machine) -> None:
    called = machine.compile(mixed)
    for _ in range(4):
        x, w = tensors()
        made = [weakref.ref(t) for t in (x, w, called(x, w))]
        del x, w
        gc.collect()
        assert [r() for r in made] == [None, None, None]


def test_arguments_are_freed_during_the_call(machine: Machine) -> None:
    alive: list[bool] = []
    kept: list[Any] = []

    @torch.library.custom_op("fusewright_tests::look", mutates_args=())
    def look(x: torch.Tensor) -> torch.Tensor:
        alive.extend(r() is not None for r in kept)
        return x.clone()

    look.register_fake(torch.empty_like)

    def f(x: Any, w: Any) -> Any:
        return look((x * 2 + 1).exp() @ w).relu() * 2

    steady(machine, f, *tensors())
    call = machine.reports[0].call
    assert call is not None
    boxed = list(tensors())
    kept.append(weakref.ref(boxed[0]))
    gc.disable()
    try:
        with torch.no_grad():
            call.run(boxed)
    finally:
        gc.enable()
    assert (boxed, alive) == ([], [False])


# --- names, and graphs that stay torch's --------------------------------------------------------


def graph(fn: Callable[..., Any], names: Sequence[str], *args: Any) -> Any:
    """The aten graph of a function whose arguments have these names."""
    made = make_fx(fn, tracing_mode="fake")(*args)
    for n, name in zip(made.graph.nodes, names, strict=False):
        n._rename(name)
    made.recompile()
    return made


def run_twice(fn: Callable[..., Any], module: Any, *args: Any) -> GraphReport:
    """The report of a graph whose function was called."""
    reports: list[GraphReport] = []
    run = fuse_graph(module, Options(cpu="sim", target="sm_90a"), observe=reports.append)
    with torch.no_grad():
        for _ in range(3):
            made = run([a.clone() for a in args])
            torch.testing.assert_close(made, fn(*args), rtol=1e-5, atol=1e-5)
    return reports[0]


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize(
    "names", [("empty", "stream"), ("boxed", "config"), ("fused_0_0", "mm_0"), ("error", "hasattr")]
)
def test_arguments_may_be_called_as_what_the_function_uses(names: tuple[str, str]) -> None:
    def f(x: Any, w: Any) -> Any:
        return [(x * 2 + 1).exp() @ w, (w * 2).sin()]

    args = tensors()
    report = run_twice(f, graph(f, names, *args), *args)
    assert report.function is not None and "launch_fused_0" in report.function


@pytest.mark.usefixtures("machine")
def test_arguments_of_all_kinds() -> None:
    def f(x: Any, i: Any) -> Any:
        y = (x * 2 + 1).exp()
        z = torch.ops.aten.index_put.default(y, [None, i], x[:, :2])
        low = torch.ops.aten.clamp_min.default(z.cumsum(0), float("-inf"))
        return [low, torch.ops.aten._to_copy.default(z.cumsum(1), dtype=torch.float64), None, 3]

    x, i = torch.randn(4, 5), torch.tensor([3, 1])
    report = run_twice(f, graph(f, ("x", "i"), x, i), x, i)
    assert report.function is not None and report.regions


@pytest.mark.usefixtures("machine")
def test_constants_of_a_graph() -> None:
    table = torch.randn(20)

    def f(x: Any, w: Any) -> Any:
        return [(x * table + 1).exp() @ w]

    args = tensors()
    module = make_fx(f, tracing_mode="real")(*args)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        for n in module.graph.nodes:
            if "val" not in n.meta and n.op == "get_attr":
                n.meta["val"] = mode.from_tensor(getattr(module, n.target))
    report = run_twice(f, module, *args)
    assert report.function is not None and "launch_fused_0" in report.function


@pytest.mark.usefixtures("machine")
def test_a_graph_that_gives_tensors_other_memory_has_no_function() -> None:
    def f(x: Any, w: Any) -> Any:
        y = (x * 2 + 1).exp()
        y.resize_(3, 40)
        return [y @ y.t(), w + 1]

    args = tensors()
    module = make_fx(f, tracing_mode="fake")(*args)
    assert moves_memory(module.graph)
    report = run_twice(f, module, *args)
    assert report.function is None


@pytest.mark.usefixtures("machine")
def test_another_number_of_arguments_is_refused() -> None:
    args = tensors()
    reports: list[GraphReport] = []
    module = graph(lambda x, w: [(x * 2 + 1).exp() @ w], ("x", "w"), *args)
    run = fuse_graph(module, Options(cpu="sim", target="sm_90a"), observe=reports.append)
    with torch.no_grad():
        with pytest.raises(ValueError, match="zip"):
            run([args[0]])
        for _ in range(2):
            run(list(args))
        with pytest.raises(ValueError, match="not enough values to unpack"):
            run([args[0]])


@pytest.mark.usefixtures("machine")
def test_a_call_that_records_gradients_is_not_the_functions() -> None:
    """Where torch records, the graph is run as before: what kernels compute has no gradient."""

    def f(x: Any, w: Any) -> Any:
        return [(x * 2 + 1).exp() @ w]

    x, w = (a.requires_grad_() for a in tensors())
    reports: list[GraphReport] = []
    module = graph(f, ("x", "w"), x.detach(), w.detach())
    run = fuse_graph(module, Options(cpu="sim", target="sm_90a"), observe=reports.append)
    with torch.no_grad():
        for _ in range(3):
            run([x, w])
    text = reports[0].function
    assert text is not None and "is_grad_enabled()" in text
    (made,) = run([x, w])
    torch.testing.assert_close(made, f(x, w)[0], rtol=1e-5, atol=1e-5)
    made.sum().backward()
    assert x.grad is not None and x.grad.abs().sum() > 0


class Mixer(torch.nn.Module):
    """A depthwise convolution, and a network over channels with its axes last."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.spatial = torch.nn.Conv2d(channels, channels, 3, padding=1, groups=channels)
        self.norm = torch.nn.LayerNorm(channels)
        self.up = torch.nn.Linear(channels, 2 * channels)
        self.down = torch.nn.Linear(2 * channels, channels)

    def forward(self, x: Any) -> Any:
        y = self.norm(self.spatial(x).permute(0, 2, 3, 1))
        y = self.down(torch.nn.functional.gelu(self.up(y)))
        return x + y.permute(0, 3, 1, 2)


def test_equal_layers_with_channels_last_agree_with_eager(machine: Machine) -> None:
    """Their regions share kernels, whose results are called otherwise, and lie in other orders."""
    model = torch.nn.Sequential(*(Mixer(4) for _ in range(3)))
    model = model.to(memory_format=torch.channels_last)
    x = torch.randn(2, 4, 5, 3).to(memory_format=torch.channels_last)
    model(x).square().mean().backward()
    wanted = [p.grad.clone() for p in model.parameters()]
    called = machine.compile(model)
    for _ in range(3):
        model.zero_grad()
        called(x).square().mean().backward()
        for p, g in zip(model.parameters(), wanted, strict=True):
            torch.testing.assert_close(p.grad, g, rtol=1e-4, atol=1e-5)
    assert machine.failures == []
