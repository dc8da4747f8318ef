"""torch's control flow through torch.compile and `fw.from_torch`: regions of programs, or torch's
own operators over bodies that are fused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
control = pytest.importorskip("torch._higher_order_ops")
functorch = pytest.importorskip("functorch.experimental.control_flow")

import fusewright as fw  # noqa: E402
from fusewright.frontends.torch import oracle  # noqa: E402
from fusewright.frontends.torch.dynamo import compiler  # noqa: E402
from fusewright.frontends.torch.explaining import explain  # noqa: E402
from fusewright.frontends.torch.library import fx  # noqa: E402
from fusewright.frontends.torch.options import Options  # noqa: E402
from fusewright.frontends.torch.product_choice import slower_in_loops  # noqa: E402
from fusewright.frontends.torch.report import TorchReport  # noqa: E402

fake = torch._subclasses.fake_tensor


def branches(x: Any) -> Any:
    y = torch.sin(x) * 2
    z = torch.cond(
        x.sum() > 0, lambda a: torch.exp(a) * 2 + 1, lambda a: (a - 1) * torch.cos(a), (y,)
    )
    return torch.softmax(z, -1) * 3


def doubled(x: Any) -> Any:
    def more(n: Any, v: Any) -> Any:
        return v.sum() < 100

    def step(n: Any, v: Any) -> Any:
        return n + 1, v * 2 + 1

    n, v = control.while_loop(more, step, (torch.zeros((), dtype=torch.int64), x.abs() + 0.1))
    return torch.tanh(v) * n


def recurrent(x: Any) -> Any:
    def step(c: Any, a: Any) -> Any:
        c = torch.tanh(c + a) * 0.5
        return c.clone(), c * 2

    c, y = control.scan(step, torch.zeros(8), x)
    return c * 2 + y


def drawn(sign: int = 1) -> Any:
    return sign * torch.rand(4, 8, generator=torch.Generator().manual_seed(4)) + sign * 0.1


CASES = [(branches, 1), (branches, -1), (doubled, 1), (recurrent, 1)]


@pytest.mark.parametrize(("f", "sign"), CASES)
def test_results_are_torchs(f: Callable[[Any], Any], sign: int) -> None:
    torch._dynamo.reset()
    x = drawn(sign)
    torch.testing.assert_close(torch.compile(f, backend="fusewright")(x), f(x))


@pytest.mark.parametrize("f", [branches, recurrent])
def test_gradients_are_torchs(f: Callable[[Any], Any]) -> None:
    torch._dynamo.reset()
    x, y = (drawn().requires_grad_() for _ in range(2))
    torch.compile(f, backend="fusewright")(x).square().sum().backward()
    f(y).square().sum().backward()
    torch.testing.assert_close(x.grad, y.grad, rtol=1e-5, atol=1e-4)


def gates(h: Any, xs: Any, w: Any) -> Any:
    def step(h: Any, x: Any) -> Any:
        h = torch.tanh(h @ w + x)
        return h, h * 2

    return control.scan(step, h, xs)


def backwards(x: Any) -> Any:
    def step(c: Any, a: Any) -> Any:
        c = torch.cond(c.sum() > 0, lambda v: torch.tanh(v + a), lambda v: v.sin() - a, (c,))
        return c, c * 2

    return control.scan(step, torch.zeros(8), x, reverse=True)


def mapped(x: Any) -> Any:
    return functorch.map(lambda r, w: torch.sin(r) * w + 1, x, x[0] * 2)


def cast(x: Any) -> Any:
    """A condition that is no bool, and a branch that reads a view of what is around it."""
    last = x[1:2] * 2
    return torch.cond(
        last.sum(-1) > 0,
        lambda v: (v.transpose(0, 1) * 2).transpose(0, 1) + last,
        lambda v: v.view(-1)[:32].reshape(v.shape).clone(),
        (x,),
    )


def arguments(f: Callable[..., Any]) -> tuple[Any, ...]:
    if f is not gates:
        return (drawn(),)
    w = torch.randn(8, 8, generator=torch.Generator().manual_seed(5))
    return drawn()[:2], drawn().reshape(2, 2, 8), w


PROGRAMS = [branches, doubled, recurrent, gates, backwards, mapped, cast]


def operators(report: Any) -> list[list[str]]:
    """The operators of each region of each graph."""
    return [[str(n.target) for n in r.part.owned] for r in report.regions]


def watched(f: Callable[..., Any], options: Options) -> tuple[Callable[..., Any], TorchReport]:
    """The compiled function, and what is said of its graphs once they are made."""
    torch._dynamo.reset()
    report = TorchReport([])
    return torch.compile(f, backend=compiler(options, report.graphs.append)), report


@pytest.mark.parametrize("cpu", ["oracle", "sim"])
@pytest.mark.parametrize("f", PROGRAMS)
def test_control_flow_is_in_regions(f: Callable[..., Any], cpu: str) -> None:
    args = arguments(f)
    compiled, report = watched(f, Options(cpu=cpu, products="always"))
    torch.testing.assert_close(compiled(*args), f(*args), rtol=1e-5, atol=1e-5)
    assert not any(r.failures for r in report.regions)
    assert len(report.regions) == 1 and not report.graphs[0].bodies
    names = {"cond", "while_loop", "scan", "map_impl"}
    assert len(names.intersection(operators(report)[0])) == 1
    assert not any(op in names for op, _ in report.graphs[0].left)


@pytest.mark.parametrize("f", [branches, recurrent, gates, backwards])
def test_their_gradients_are_in_regions(f: Callable[..., Any]) -> None:
    args, wanted = ([x.clone().requires_grad_() for x in arguments(f)] for _ in range(2))
    compiled, report = watched(f, Options(cpu="sim", products="always"))
    for call, given in ((compiled, args), (f, wanted)):
        made = call(*given)
        sum(y.square().sum() for y in (made if isinstance(made, tuple) else (made,))).backward()
    for x, y in zip(args, wanted, strict=True):
        torch.testing.assert_close(x.grad, y.grad, rtol=1e-4, atol=1e-4)
    assert [g.name for g in report.graphs] == ["forward", "backward"]
    for g in report.graphs:
        assert not any(op in ("cond", "scan") for op, _ in g.left), str(g)


@pytest.mark.parametrize("f", PROGRAMS)
def test_a_torch_function_with_control_flow_is_a_fusion(f: Callable[..., Any]) -> None:
    args = arguments(f)
    made = fw.evaluate(fw.from_torch(f, *args), *(x.numpy() for x in args))
    wanted = f(*args)
    several = wanted if isinstance(wanted, tuple) else (wanted,)
    for y, t in zip(made, several, strict=True):
        torch.testing.assert_close(torch.from_numpy(y.copy()), t, rtol=1e-5, atol=1e-5)


def test_sizes_of_a_loop_may_be_symbolic() -> None:
    torch._dynamo.reset()
    graphs: list[Any] = []
    compiled = torch.compile(
        lambda x: control.scan(lambda c, a: (torch.tanh(c + a), c * x.shape[1]), x[0] * 0, x),
        backend=compiler(Options(cpu="sim"), graphs.append),
        dynamic=True,
    )
    for n in (3, 5):
        x = torch.rand(n, n + 2)
        c, ys = torch.zeros(n + 2), []
        for a in x:
            ys.append(c * (n + 2))
            c = torch.tanh(c + a)
        torch.testing.assert_close(compiled(x), (c, torch.stack(ys)))
    (graph,) = graphs
    (region,) = graph.regions
    assert not region.failures and "scan" in graph.taken


def convolved(x: Any) -> Any:
    """A branch that stays torch's."""
    return torch.cond(
        x.sum() > 0,
        lambda v: torch.nn.functional.conv1d(v[None], torch.ones(4, 4, 1))[0],
        lambda v: torch.exp(v) * 2 + 1,
        (x,),
    )


def divided(x: Any) -> Any:
    n = (x * 10).to(torch.int32)
    return torch.cond(x.sum() > 0, lambda v: v // (v - 1) + 2, lambda v: v * 2 + 1, (n,))


def counted(x: Any) -> Any:
    return control.while_loop(lambda n, v: n < 3, lambda n, v: (n + 1, v.sin() * 2), (0, x))[1]


def multiplied(x: Any) -> Any:
    return torch.cond(
        x.sum() > 0,
        lambda v: v @ v.transpose(0, 1) + 1,
        lambda v: v @ (v * 2).transpose(0, 1),
        (x,),
    )


@pytest.mark.parametrize(
    ("f", "operator", "why"),
    [
        (convolved, "cond", "aten.convolution.default in it: the operator is not in the table"),
        (divided, "cond", "in it: torch looks at elements on the host"),
        (counted, "while_loop", "lt> in it"),
        (multiplied, "cond", "aten.mm.default in it: a product on the host is torch's"),
    ],
)
def test_what_stays_torchs_says_why(f: Callable[[Any], Any], operator: str, why: str) -> None:
    compiled, report = watched(f, Options())
    torch.testing.assert_close(compiled(drawn() + 2), f(drawn() + 2))
    (found,) = (reason for op, reason in report.graphs[0].left if op == operator)
    assert found.startswith("torch runs it, and its graphs are fused one by one") and why in found


def test_bodies_of_what_stays_torchs_are_graphs_of_their_own() -> None:
    torch._dynamo.reset()
    report = explain(convolved, drawn())
    assert "inference, false_graph_0: 3 operators in 1 fused regions" in str(report)
    assert "fused_0: exp, mul.Tensor, add.Tensor" in str(report)
    assert not any(r.failures for r in report.regions)


def test_a_product_in_a_loop_may_take_as_much_longer_as_an_iteration_saves() -> None:
    def left(rows: int) -> str | None:
        with fake.FakeTensorMode():
            x, w = torch.empty(rows, 256, device="cuda"), torch.empty(256, 256, device="cuda")
            graph = fx.Graph()
            a, b = graph.placeholder("a"), graph.placeholder("b")
            product = graph.call_function(torch.ops.aten.mm.default, (a, b))
            a.meta["val"], b.meta["val"], product.meta["val"] = x, w, x @ w
        found = slower_in_loops([a, b, product], Options(target="sm_90a"))
        return found.get(product)

    assert left(32) is None
    why = left(1 << 16)
    assert why is not None and "more than an iteration saves" in why


def test_a_region_with_control_flow_that_fails_is_torchs(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    torch._dynamo.reset()

    def fail(*args: Any, **options: Any) -> Any:
        raise RuntimeError("injected")

    monkeypatch.setattr(oracle, "evaluate", fail)
    compiled = torch.compile(backwards, backend="fusewright")
    torch.testing.assert_close(compiled(drawn()), backwards(drawn()))
    (message,) = [r.getMessage() for r in caplog.records if r.name == "fusewright.torch"]
    assert "injected" in message and "its control flow calls graphs" in message
