"""Graphs on disk: another process finds them, by all that shapes them, and computes the same."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch._dynamo.utils import counters  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402

from fusewright.frontends.torch import kept_graphs  # noqa: E402
from fusewright.frontends.torch.dynamo import compiler  # noqa: E402
from fusewright.frontends.torch.options import Options  # noqa: E402
from fusewright.frontends.torch.report import GraphReport  # noqa: E402

pytestmark = pytest.mark.stores


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Caches of the test's own, torch's and ours."""
    monkeypatch.setenv("FUSEWRIGHT_CACHE", "1")
    monkeypatch.setenv("FUSEWRIGHT_CACHE_DIR", str(tmp_path / "ours"))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "torch"))


class Process:
    """A function as another process compiles it: nothing is known but what is on disk."""

    def __init__(self, fn: Callable[..., Any], *, cpu: str = "oracle", **how: Any) -> None:
        torch.compiler.reset()
        counters.clear()
        self.reports: list[GraphReport] = []
        self.run = torch.compile(fn, backend=compiler(Options(cpu=cpu), self.reports.append), **how)

    @property
    def graphs(self) -> list[str]:
        """The graphs that were fused."""
        return [r.name for r in self.reports]

    @property
    def hits(self) -> int:
        """The functions that torch found."""
        return counters["aot_autograd"]["autograd_cache_hit"]

    @property
    def saved(self) -> int:
        """The functions that torch stored."""
        return counters["aot_autograd"]["autograd_cache_saved"]


class Net(torch.nn.Module):
    """A norm whose statistics are updated, a view that is a result, and a product."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.norm, self.out = torch.nn.BatchNorm1d(12), torch.nn.Linear(12, 8)

    def forward(self, x: Any) -> Any:
        y = torch.relu(self.norm(x)) * 1.5
        return torch.softmax(self.out(y), -1), y.view(2, -1)


def step(net: Any, run: Callable[..., Any]) -> list[Any]:
    """Results, gradients and statistics of a step."""
    torch.manual_seed(1)
    x = torch.randn(6, 12, requires_grad=True)
    a, b = run(x)
    (a[:, 0].sum() + b.square().sum()).backward()
    return [a, b, x.grad, *(p.grad for p in net.parameters()), *net.buffers()]


def test_another_process_finds_a_step_of_training() -> None:
    found: list[list[Any]] = []
    processes: list[Process] = []
    for hits in (0, 1):
        net = Net()
        processes.append(Process(net, cpu="sim"))
        found.append(step(net, processes[-1].run))
        assert (processes[-1].hits, processes[-1].saved) == (hits, 1 - hits)
    first, second = processes
    assert first.graphs == second.graphs == ["forward", "backward"]
    for mine, other in zip(first.reports, second.reports, strict=True):
        assert [r.part.structure() for r in mine.regions] == [
            r.part.structure() for r in other.regions
        ]
    net = Net()
    for one, other, eager in zip(*found, step(net, net), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)
        torch.testing.assert_close(one, eager)


def softened(x: Any) -> Any:
    return torch.softmax(x.sin() * 2, -1)


def test_a_backward_graph_is_fused_in_its_first_call() -> None:
    for hits in (0, 1):
        process = Process(softened)
        y = process.run(torch.ones(4, 8, requires_grad=True))
        assert (process.hits, process.graphs) == (hits, ["forward"])
        y.sum().backward()
        assert process.graphs == ["forward", "backward"]


def test_other_sources_find_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.ones(4, 8)
    Process(softened).run(x)
    monkeypatch.setattr(kept_graphs, "package_digest", lambda: "another version")
    process = Process(softened)
    torch.testing.assert_close(process.run(x), softened(x))
    assert (process.hits, process.saved) == (0, 1)


def test_what_torch_is_told_holds_while_our_graphs_are_compiled() -> None:
    Process(softened).run(torch.ones(4, 8))
    assert not torch._functorch.config.bundled_autograd_cache
    assert not torch._functorch.config.force_non_lazy_backward_lowering
    assert torch.compiler.config.cache_key_tag == ""


def test_without_a_cache_nothing_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSEWRIGHT_CACHE", "0")
    for _ in range(2):
        process = Process(softened)
        process.run(torch.ones(4, 8))
        assert (process.hits, process.saved, process.graphs) == (0, 0, ["inference"])


def test_graphs_of_symbolic_sizes_are_traced_again() -> None:
    x = torch.ones(4, 8)
    for _ in range(2):
        process = Process(softened, dynamic=True)
        torch.testing.assert_close(process.run(x), softened(x))
        assert (process.hits, process.saved) == (0, 0)


def test_what_torch_finds_and_cannot_be_read_is_traced_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    net = Net()
    first = step(net, Process(net).run)

    def damaged(content: str, mode: Any) -> Any:
        raise ValueError("damaged")

    monkeypatch.setattr(kept_graphs, "unpacked", damaged)
    net = Net()
    process = Process(net)
    for one, other in zip(first, step(net, process.run), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)
    assert (process.hits, process.graphs) == (0, ["forward", "backward"])


def graph_of(fn: Callable[..., Any], *args: Any) -> Any:
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        given = [mode.from_tensor(x) for x in args]
        module = make_fx(fn)(*given)
    return module.graph


def test_what_is_no_operator_is_not_packed() -> None:
    graph = torch.fx.symbolic_trace(lambda x: x + 1).graph
    with pytest.raises(ValueError, match="built-in function add"):
        kept_graphs.packed(graph)


def test_an_entry_is_text() -> None:
    """Reading what is on disk makes tensors and operators, and runs nothing else."""
    graph = graph_of(lambda x: x[1:, None] * 1e-3, torch.ones(4, 3))
    rows = json.loads(kept_graphs.packed(graph))
    assert all(isinstance(row, list) for row in rows)
    with pytest.raises(KeyError, match="system"):
        kept_graphs.unpacked(json.dumps([["list", ["function", "system"]]]), FakeTensorMode())


def test_text_holds_calls_and_types() -> None:
    def fn(x: Any, y: Any) -> Any:
        z = torch.ops.aten.cat.default([x.t()[1:], y.to(torch.bfloat16).float()], 0)
        parts = torch.ops.aten.split.Tensor(z, 3, 1)
        return parts[0].sum(-1, dtype=torch.float64), torch.full((2,), float("inf")), z[:, ::2]

    graph = graph_of(fn, torch.randn(6, 4), torch.randn(3, 6))
    mode = FakeTensorMode()
    again = kept_graphs.unpacked(kept_graphs.packed(graph), mode).graph
    assert str(again) == str(graph)
    for a, b in zip(graph.nodes, again.nodes, strict=True):
        assert a.target is b.target or a.op in ("placeholder", "output")
        mine, other = a.meta.get("val"), b.meta.get("val")
        assert type(mine) is type(other)
        if isinstance(mine, torch.Tensor):
            assert (mine.shape, mine.stride(), mine.dtype, mine.device) == (
                other.shape,
                other.stride(),
                other.dtype,
                other.device,
            )
            assert mine.storage_offset() == other.storage_offset()
            assert other.fake_mode is mode


def test_a_graph_with_a_tensor_of_its_own_is_not_packed() -> None:
    held = torch.arange(4.0)
    graph = graph_of(lambda x: x + 1, torch.ones(4))
    (call,) = (n for n in graph.nodes if n.op == "call_function")
    call.args = (call.args[0], held)
    with pytest.raises(ValueError, match="an example is a Tensor"):
        kept_graphs.packed(graph)
