"""Clones that only repeat a tensor, and those that do not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from fusewright.frontends.torch import explain  # noqa: E402
from fusewright.frontends.torch.dynamo import compiler  # noqa: E402
from fusewright.frontends.torch.options import Options  # noqa: E402
from fusewright.frontends.torch.plain_clones import plain_clones  # noqa: E402

OPTIONS = {"cpu": "sim", "min_ops": 1}


def operators(f: Callable[..., Any], *args: Any) -> list[str]:
    """All operators of the graphs of a function, in regions and torch's."""
    torch.compiler.reset()
    report = explain(f, *args, options={"cpu": "torch", "min_ops": 1})
    found: list[str] = []
    for g in report.graphs:
        found += [*g.taken, *(op for op, _ in g.left)]
    return found


def clones(f: Callable[..., Any], *args: Any) -> int:
    return operators(f, *args).count("aten.clone.default")


def same(f: Callable[..., Any], *args: Any) -> Any:
    """The results of a compiled function, equal to eager's, on arguments of its own."""
    torch.compiler.reset()
    mine, theirs = ([a.detach().clone() for a in args] for _ in range(2))
    got = torch.compile(f, backend=compiler(Options(**OPTIONS)))(*mine)
    for g, w in zip((*got, *mine), (*f(*theirs), *theirs), strict=True):
        torch.testing.assert_close(g, w, rtol=2e-5, atol=2e-5)
    return got


def weighed(x: Any, w: Any) -> Any:
    s = torch.softmax(x, -1)
    return s, s.clone().view(-1, 7) @ w


def test_a_clone_that_is_only_read_is_what_it_copies() -> None:
    x, w = torch.randn(3, 5, 7), torch.randn(7, 4)
    assert clones(weighed, x, w) == 0
    same(weighed, x, w)


def test_what_a_clone_repeats_is_kept_for_the_way_back() -> None:
    """Once, where the forward graph would keep the clone beside what it repeats."""

    def f(x: Any, w: Any) -> Any:
        s = torch.softmax(x, -1)
        return s.clone().view(-1, 7) @ w

    x, w = torch.randn(3, 5, 7, requires_grad=True), torch.randn(7, 4, requires_grad=True)
    assert clones(f, x, w) == 0


def test_a_result_may_be_written_before_the_way_back() -> None:
    """The product needs the old numbers for the gradient of its weight."""

    def step(f: Callable[..., Any]) -> Any:
        torch.manual_seed(0)
        x, w = torch.randn(3, 7, requires_grad=True), torch.randn(7, 4, requires_grad=True)
        made, product = f(x, w)
        with torch.no_grad():
            made.zero_()
        product.square().sum().backward()
        return x.grad, w.grad

    def f(x: Any, w: Any) -> Any:
        made = x * 2
        return made, made.clone() @ w

    torch.compiler.reset()
    got = step(torch.compile(f, backend=compiler(Options(**OPTIONS))))
    for g, w in zip(got, step(f), strict=True):
        torch.testing.assert_close(g, w)


def test_results_are_tensors_of_their_own() -> None:
    """The caller may write the one and keep the other."""

    def f(x: Any) -> Any:
        s = torch.sin(x)
        return s, s.clone(), x.clone()

    x = torch.randn(3, 5)
    assert clones(f, x) == 2
    s, again, copied = same(f, x)
    assert len({s.data_ptr(), again.data_ptr(), copied.data_ptr()}) == 3


@pytest.mark.parametrize("is_written", [False, True])
def test_what_is_copied_before_it_is_written_is_kept(is_written: bool) -> None:
    aten, graph = torch.ops.aten, torch.fx.Graph()
    x, y = (graph.placeholder(n) for n in "xy")
    old = graph.call_function(aten.clone.default, (x,))
    shown = graph.call_function(aten.t.default, (x,))
    made = [graph.call_function(aten.copy_.default, (shown, y))] if is_written else []
    graph.output((graph.call_function(aten.exp.default, (old,)), *made))
    for n in (x, y, old, shown):
        n.meta["val"] = torch.empty(3, 3)
    plain_clones(graph)
    assert (old in graph.nodes) == is_written


@pytest.mark.parametrize(
    "clone",
    [
        lambda s: s.transpose(0, 1).clone(memory_format=torch.contiguous_format),
        lambda s: s[:2].clone(),
        lambda s: s[:, :1].expand(-1, 4).clone(),
    ],
    ids=["order", "part", "repeated"],
)
def test_clones_that_lie_in_another_way_are_made(clone: Callable[[Any], Any]) -> None:
    def f(x: Any) -> Any:
        s = torch.sin(x)
        c = clone(s)
        return s, c.as_strided((2, 2), (1, 1)) + 1.0

    x = torch.randn(3, 5)
    assert clones(f, x) == 1
