"""Graphs as CUDA graphs: what torch's trees are told of a graph, and why some are not recorded. The
graphs are of tensors without memory, the trees are stood in for; tests/gpu runs them."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch._dynamo.source import ConstantSource  # noqa: E402
from torch._inductor import (  # noqa: E402
    compile_fx,
    cudagraph_trees,
    cudagraph_utils,
    utils as inductor_utils,
)
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402
from torch.fx.experimental.symbolic_shapes import ShapeEnv  # noqa: E402

import fusewright.frontends.torch as door  # noqa: E402
from fusewright.frontends.torch.recording import Recordings  # noqa: E402
from fusewright.frontends.torch.saving import cut, is_kept  # noqa: E402


def graph(fn: Callable[..., Any], *devices: str) -> Any:
    """A graph of aten operators on vectors of four, one a device."""
    with FakeTensorMode():
        return make_fx(fn)(*[torch.empty(4, device=d) for d in devices])


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The facts of every graph that torch is asked to record; replays return their arguments."""
    facts: list[dict[str, Any]] = []

    def cudagraphify(run: Any, **given: Any) -> Any:
        facts.append(given)
        return lambda args: ["replayed", *run(args)]

    monkeypatch.setattr(compile_fx, "cudagraphify", cudagraphify)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: None)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    return facts


def run(args: list[Any]) -> list[Any]:
    return list(args)


def test_a_graph_on_one_gpu_is_recorded(told: list[dict[str, Any]]) -> None:
    module = graph(lambda x, y: [x.add_(y).sin(), x + y], "cuda:0", "cuda:0")
    plan = Recordings().plan(module, "inference")
    assert plan.reason is None
    wrapped: Any = plan.wrap(run)
    assert wrapped([1, 2]) == ["replayed", 1, 2] and wrapped._boxed_call
    (facts,) = told
    assert facts["mutated_input_idxs"] == (0,)
    assert (facts["device_index"], facts["is_inference"], facts["is_backward"]) == (0, True, False)
    assert len(facts["stack_traces"]) == 2
    assert [p.name for p in facts["placeholders"]] == ["x_1", "y_1"]


def test_what_the_forward_graph_kept_stays_where_it_is(told: list[dict[str, Any]]) -> None:
    def joint(primals: list[Any], tangents: list[Any]) -> Any:
        (x, y), (dx, dy) = primals, tangents
        return [x.sin() * y, x @ y, dx * y * x.cos() + dy * y, dx * x.sin() + dy * x]

    with FakeTensorMode():
        x, y, dx, dy = (torch.empty(4, device="cuda:1") for _ in range(4))
        both = make_fx(joint)([x, y], [dx, dy.sum()])
        forward, module = cut(both, [], num_fwd_outputs=2)
    (output,) = (n for n in forward.graph.nodes if n.op == "output")
    kept = [n.name for n in output.args[0][2:]]
    given = [n.name for n in module.graph.nodes if n.op == "placeholder"]
    assert given[: len(kept)] == kept and len(given) == len(kept) + 2
    for n in module.graph.nodes:  # its name says nothing
        n.name = f"tangents_{n.name}" if n.name in kept else n.name.replace("tangents", "kept")
    Recordings().plan(module, "backward").wrap(run)
    assert told[0]["static_input_idxs"] == list(range(len(kept)))
    assert (told[0]["device_index"], told[0]["is_backward"]) == (1, True)


@pytest.mark.parametrize(
    ("fn", "devices", "reason"),
    [
        (lambda x, y: x.cpu() + y, ("cuda:0", "cpu"), "is on the host, which a recording"),
        (lambda x, y: (x + 1, y + 1), ("cuda:0", "cuda:1"), r"on \['cuda:0', 'cuda:1'\], not on"),
        (
            lambda x: x.index_put([x > 0], x.sum()),
            ("cuda:0",),
            "index_put.default cannot be recorded",
        ),
        (lambda x: torch.complex(x, x).conj().imag, ("cuda:0",), "is a conjugate or a negative by"),
    ],
)
def test_what_is_not_recorded(
    fn: Any, devices: tuple[str, ...], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    plan = Recordings().plan(graph(fn, *devices), "forward")
    assert plan.reason is not None
    with pytest.raises(AssertionError, match=reason):
        raise AssertionError(plan.reason)
    assert plan.wrap(run) is run
    assert f"forward: not recorded as a CUDA graph: {plan.reason}" in caplog.text


def test_a_graph_without_tensors_is_not_recorded() -> None:
    plan = Recordings().plan(graph(list), "inference")
    assert plan.reason == "its tensors are on no device, not on one GPU"


def test_changing_sizes_are_left_where_torch_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch._inductor.config.triton, "cudagraph_skip_dynamic_graphs", True)
    module = graph(lambda x: x.sin(), "cuda:0")
    assert Recordings().plan(module, "inference").reason is None
    env = ShapeEnv()
    source = ConstantSource("n")
    size = env.create_symintnode(env.create_symbol(7, source), hint=7, source=source)
    next(iter(module.graph.nodes)).meta["val"] = size
    reason = Recordings().plan(module, "inference").reason
    assert reason is not None and "its sizes change" in reason


@pytest.mark.parametrize("dynamic", [False, True])
def test_backward_graphs_know_what_is_kept(*, dynamic: bool) -> None:
    """Of a graph as torch hands it to the compiler: sizes and tensors that are kept come first."""
    found: list[list[tuple[bool, Any]]] = []

    def compile_graph(name: str) -> Callable[[Any, Any], Any]:
        def compiled(module: Any, example_inputs: Any) -> Any:
            nodes = [n for n in module.graph.nodes if n.op == "placeholder"]
            if name == "backward":
                found.append([(is_kept(n), n.meta["val"]) for n in nodes])
            return nop(module, example_inputs)

        return compiled

    common = importlib.import_module("torch._dynamo.backends.common")
    nop = importlib.import_module("torch._functorch.compilers").nop
    backend = common.aot_autograd(
        fw_compiler=compile_graph("forward"), bw_compiler=compile_graph("backward"),
        partition_fn=cut,
    )  # fmt: skip
    torch.compiler.reset()

    def f(tangents: Any, w: Any) -> Any:
        y = (tangents @ w).sin()
        return y.exp(), y.sum(0)

    x, w = torch.randn(5, 3, requires_grad=True), torch.randn(3, 7, requires_grad=True)
    a, b = torch.compile(f, backend=backend, dynamic=dynamic)(x, w)
    (a.sum() + b.square().sum()).backward()
    (arguments,) = found
    assert [kept for kept, _ in arguments][-2:] == [False, False]
    assert all(kept for kept, _ in arguments[:-2]) and len(arguments) >= 4
    assert any(isinstance(v, torch.SymInt) for _, v in arguments) == dynamic
    assert [tuple(map(int, v.shape)) for _, v in arguments[-2:]] == [(5, 7), (7,)]


def test_a_backward_graph_follows_its_forward_graph(
    told: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[int] = []
    manager = SimpleNamespace(set_to_running_backward=lambda: ended.append(1))
    managers = {0: manager}
    monkeypatch.setattr(
        cudagraph_trees, "get_manager", lambda k, create_if_none_exists: managers.get(k)
    )
    on_host = graph(lambda x: x.cpu().sin(), "cuda:0")
    on_gpu = graph(lambda x: x.sin(), "cuda:0")
    first = Recordings()
    assert first.plan(on_gpu, "forward").reason is None
    wrapped = first.plan(on_host, "backward").wrap(run)
    assert wrapped([3]) == [3] and ended == [1]
    managers.clear()
    assert wrapped([3]) == [3] and ended == [1]
    other = Recordings()
    assert other.plan(on_host, "forward").reason is not None
    assert other.plan(on_gpu, "backward").reason == "its forward graph is not recorded"
    assert len(told) == 0  # nothing was wrapped


@pytest.mark.parametrize(
    ("room", "name"),
    [
        (cudagraph_utils, "get_placeholder_info"),
        # Raises for a kernel of the user's in Triton, whose node has a dict of results.
        (inductor_utils, "get_first_incompatible_cudagraph_node"),
    ],
)
def test_a_torch_that_records_nothing_is_a_reason(
    room: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(graph: Any) -> Any:
        raise RuntimeError("no such thing")

    monkeypatch.setattr(room, name, fails)
    plan = Recordings().plan(graph(lambda x: x.sin(), "cuda:0"), "inference")
    assert plan.reason == "torch does not record it (RuntimeError: no such thing)"
    assert plan.wrap(run) is run


class Stream:
    """Stands in for torch.cuda in a recording that fails, or not."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.current, self.is_capturing, self.calls = "caller's", False, 0
        monkeypatch.setattr(compile_fx, "cudagraphify", self.cudagraphify)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda: self.current)
        monkeypatch.setattr(torch.cuda, "set_stream", self.set)
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: self.is_capturing)

    def set(self, stream: str) -> None:
        self.current = stream

    def cudagraphify(self, run: Any, **given: Any) -> Any:
        """As torch: the first call is a plain one, the second one is recorded with copies."""

        def call(args: list[Any]) -> Any:
            self.calls += 1
            if self.calls == 1:
                return run(args)
            self.current, self.is_capturing = "recording's", True
            copies = list(args)
            args.clear()
            try:
                return run(copies)
            finally:
                self.is_capturing = False

        return call


def test_a_recording_that_fails_leaves_both_graphs_as_they_are(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    stream = Stream(monkeypatch)
    monkeypatch.setattr(cudagraph_trees, "get_manager", lambda k, create_if_none_exists: None)

    def fails(args: list[Any]) -> list[Any]:
        found = list(args)
        args.clear()
        if stream.is_capturing:
            raise RuntimeError("no copies from the host")
        return found

    on_gpu = graph(lambda x: x.sin(), "cuda:0")
    recordings = Recordings()
    forward, backward = (recordings.plan(on_gpu, k).wrap(fails) for k in ("forward", "backward"))
    assert [forward([1, 2]), forward([3, 4])] == [[1, 2], [3, 4]]
    assert "forward: not recorded as a CUDA graph: RuntimeError: no copies from" in caplog.text
    assert stream.current == "caller's"
    assert [forward([5]), backward([6])] == [[5], [6]] and stream.calls == 2


def test_what_a_graph_raises_outside_of_a_recording_is_the_callers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    Stream(monkeypatch)

    def fails(args: list[Any]) -> Any:
        raise IndexError(f"no element {args[0]}")

    wrapped = Recordings().plan(graph(lambda x: x.sin(), "cuda:0"), "inference").wrap(fails)
    with pytest.raises(IndexError, match="no element 1"):
        wrapped([1])


def test_explain_says_whether_a_graph_is_recorded(told: list[dict[str, Any]]) -> None:
    x = torch.ones(4, 4)
    report = door.explain(lambda x: (x * 2 + 1).sin(), x, options={"cudagraphs": True})
    assert "not recorded as a CUDA graph: " in str(report)
    assert "is on the host, which a recording does not see" in str(report)
    assert "recorded" not in str(door.explain(lambda x: (x * 2 + 1).sin(), x))
    assert not told
