"""The greatest of rows, counts by bins, and scatters into constants: beside eager, and what is left
to torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch_checks as checks  # noqa: E402

from fusewright.frontends.torch.dynamo import compiler  # noqa: E402
from fusewright.frontends.torch.options import Options  # noqa: E402
from fusewright.frontends.torch.plain_scatters import MOST  # noqa: E402
from fusewright.frontends.torch.report import GraphReport  # noqa: E402


def rand(*shape: int) -> Any:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def numbers(end: int, *shape: int) -> Any:
    return torch.randint(0, end, shape, generator=torch.Generator().manual_seed(end))


def as_eager(fn: Callable[..., Any], x: Any, *rest: Any, cpu: str = "oracle") -> list[GraphReport]:
    """The function and its gradient, where it has one, beside eager; the reports."""
    torch.compiler.reset()
    reports: list[GraphReport] = []
    run = torch.compile(fn, backend=compiler(Options(min_ops=1, cpu=cpu), reports.append))
    got, want = (f(x, *rest) for f in (run, fn))
    checks.assert_close([got], [want])
    if want.requires_grad:
        checks.assert_close(*(torch.autograd.grad(y.sin().sum(), x) for y in (got, want)))
    assert [r.failures for g in reports for r in g.regions if r.failures] == []
    return reports


def left(reports: list[GraphReport]) -> list[tuple[str, str]]:
    return [pair for g in reports for pair in g.left]


def routed(x: Any) -> Any:
    values, chosen = torch.softmax(x, -1).topk(2, -1)
    return values / values.sum(-1, keepdim=True) * (chosen + 1)


def chosen_class(x: Any, target: Any) -> Any:
    return torch.log_softmax(x * 2, -1).gather(-1, target[:, None])[:, 0]


def greatest(x: Any) -> Any:
    values, at = (x * 2).max(1)
    return values * 3 + at


@pytest.mark.parametrize("cpu", ["oracle", "sim"])
@pytest.mark.parametrize(
    ("fn", "args"),
    [
        (routed, (rand(37, 8).requires_grad_(),)),
        (chosen_class, (rand(6, 33).requires_grad_(), numbers(33, 6))),
        (greatest, (rand(5, 7).requires_grad_(),)),
        (lambda x: (x * 2).topk(3, 0, largest=False)[0].cos(), (rand(9, 5).requires_grad_(),)),
        (lambda x: torch.histc(x.floor(), 8, 0, 7).cumsum(0), (rand(101) * 4,)),
        (lambda x: torch.histc(x * 2, 5, -1.5, 2), (rand(3, 17),)),
    ],
    ids=["experts", "class", "max", "least", "whole numbers", "ranges"],
)
def test_one_region_each_way(fn: Any, args: Any, cpu: str) -> None:
    """A softmax, its greatest elements and what is computed of them; and their gradient."""
    reports = as_eager(fn, *args, cpu=cpu)
    assert left(reports) == []
    assert [len(g.regions) for g in reports] == [1] * (1 + args[0].requires_grad)


@pytest.mark.parametrize("entries", [1, 3, MOST, MOST + 1])
@pytest.mark.parametrize("how", ["src", "value", "add"])
def test_scatters_into_constants(how: str, entries: int) -> None:
    """The last of equal places counts, as on a host; what is added, adds up. More entries than
    `MOST` are torch's."""
    index = numbers(9, 5, entries)

    def put(x: Any, index: Any) -> Any:
        if how == "src":
            return torch.full((5, 9), 2.0).scatter(1, index, x * 2)
        if how == "value":
            return torch.zeros(5, 9).scatter(-1, index, 3.0) * x[:, :1]
        return torch.zeros(5, 9).scatter_add(1, index, x * 2)

    reports = as_eager(put, rand(6, entries + 1)[:5], index)
    assert ("scatter" in str(left(reports))) == (entries > MOST)


def test_scatters_that_stay() -> None:
    """What is scattered into an argument, or sums that do not begin at 0."""
    index = numbers(9, 5, 2)

    def into(x: Any, index: Any) -> Any:
        return x.scatter(1, index, 1.0) * 2

    def above(x: Any, index: Any) -> Any:
        return torch.ones(5, 9).scatter_add(1, index, x[:, :2]) * 2

    for fn in (into, above):
        assert "scatter" in str(left(as_eager(fn, rand(5, 9), index)))


@pytest.mark.parametrize(
    ("fn", "reason"),
    [
        (lambda x: x.topk(5)[0], "topk of 5: a maximum each is faster up to 4 only"),
        (lambda x: x.double().topk(2)[0], "topk of float64: floats of at most 32 bits"),
        (lambda x: torch.histc(x, 4), "histc from 0 to 0: the limits depend on the elements"),
        (lambda x: torch.histc(x, 2**20, 0, 1), "torch counts by atomics"),
    ],
)
def test_refusals(fn: Any, reason: str) -> None:
    assert reason in str(left(as_eager(fn, rand(4, 9))))
