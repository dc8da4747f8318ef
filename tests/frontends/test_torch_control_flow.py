"""torch's control flow through torch.compile: torch's results, and bodies that are fused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
control = pytest.importorskip("torch._higher_order_ops")

from fusewright.frontends.torch.explaining import explain  # noqa: E402


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

    n, v = control.while_loop(more, step, (torch.tensor(0), x.abs() + 0.1))
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


@pytest.mark.parametrize(
    ("f", "taken"),
    [
        (branches, {"true_graph_0": "exp, mul.Tensor, add.Tensor", "false_graph_0": "sub.Tensor"}),
        (doubled, {"while_loop_cond_graph_0": "sum, lt.Scalar"}),
        (recurrent, {"scan_combine_graph_0": "add.Tensor, tanh"}),
    ],
)
def test_bodies_are_graphs_of_their_own(f: Callable[[Any], Any], taken: dict[str, str]) -> None:
    torch._dynamo.reset()
    report = explain(f, drawn())
    text = str(report)
    assert "it is control flow, which torch runs; its graphs are fused one by one" in text
    for name, operators in taken.items():
        assert f"inference, {name}: " in text and f"fused_0: {operators}" in text
    assert not any(r.failures for r in report.regions)
    assert len(report.regions) > len(report.graphs[0].regions)
