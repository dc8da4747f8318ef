"""Sums at the places of a permutation, and what is none: results and gradients beside eager, and
the operators that are left to torch."""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from fusewright.frontends.torch import dynamo  # noqa: E402
from fusewright.frontends.torch.dynamo import compiler  # noqa: E402
from fusewright.frontends.torch.options import Options  # noqa: E402

ROWS, EACH, WIDTH = 35, 3, 4
COUNTED = ("index_put", "index_add", "sort")


def compared(
    monkeypatch: pytest.MonkeyPatch, fn: Callable[..., Any], *, trains: bool = True, **modes: Any
) -> dict[str, int]:
    """How many sorts, and writes at indices, the graphs of a function of rows, choices and weights
    have when they are cut into regions; its results and gradients are eager's."""
    torch.compiler.reset()
    found: collections.Counter[str] = collections.Counter()
    real = dynamo.partition

    def counted(graph: Any, options: Options) -> Any:
        for n in graph.nodes:
            name = getattr(getattr(n.target, "overloadpacket", None), "__name__", "")
            adds = name == "index_put" and len(n.args) > 3 and n.args[3]
            found[f"{name} adding" if adds else name] += 1
        return real(graph, options)

    monkeypatch.setattr(dynamo, "partition", counted)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(ROWS, WIDTH, generator=generator)
    choice = torch.randint(0, 5, (ROWS * EACH,), generator=generator)
    w = torch.randn(ROWS * EACH, 1, generator=generator)
    results: list[Any] = []
    for run in (fn, torch.compile(fn, backend=compiler(Options()), **modes)):
        leaves = [x.clone().requires_grad_(trains), w.clone().requires_grad_(trains)]
        torch.manual_seed(0)
        y = run(leaves[0], choice, leaves[1])
        wave = torch.cos(torch.arange(y.numel(), dtype=y.dtype)).reshape(y.shape)
        results.append((y, *(torch.autograd.grad((y * wave).sum(), leaves) if trains else ())))
    torch.testing.assert_close(results[1], results[0])
    return {k: n for k, n in found.items() if k.startswith(COUNTED)}


def experts(x: Any, choice: Any, w: Any) -> Any:
    """Rows in the order of their choices, and back by a written inverse."""
    order = choice.argsort()
    h = x[order // EACH].sin() * w[order]
    back = torch.empty_like(order)
    back[order] = torch.arange(len(order))
    return h[back].view(ROWS, EACH, WIDTH).sum(1)


def sorted_twice(x: Any, choice: Any, w: Any) -> Any:
    order = choice.argsort(stable=True)
    return (x[order // EACH].sin() * w[order])[order.argsort()].cos()


def shuffled(x: Any, choice: Any, w: Any) -> Any:
    return x.sin()[torch.randperm(ROWS)] * w[:ROWS]


def falling(x: Any, choice: Any, w: Any) -> Any:
    order = choice.sort(descending=True)[1].to(torch.int32)
    return x.sin()[order // EACH] * w


def added(x: Any, choice: Any, w: Any) -> Any:
    order = choice.argsort()
    y = torch.ones(ROWS * EACH, 1).index_put((order,), w * 2, accumulate=True)
    return (x * 2).index_add(0, order // EACH, w.expand(-1, WIDTH).sin()) + y[:ROWS]


@pytest.mark.parametrize(
    ("fn", "wanted"),
    [
        (experts, {"sort": 1, "index_put": 1}),
        (sorted_twice, {"sort": 1, "index_put": 1}),
        (shuffled, {"index_put": 1}),
        (falling, {"sort": 1, "index_put": 1}),
        (added, {"sort": 1, "index_put": 1}),
    ],
    ids=["experts", "sorted twice", "shuffled", "falling", "added"],
)
def test_rows_at_a_permutation_are_gathered(
    monkeypatch: pytest.MonkeyPatch, fn: Any, wanted: dict[str, int]
) -> None:
    """Each permutation has one inverse, which is written once; nothing is added by index."""
    assert compared(monkeypatch, fn) == wanted


def test_graphs_without_gradients_are_told_too(monkeypatch: pytest.MonkeyPatch) -> None:
    assert compared(monkeypatch, sorted_twice, trains=False) == {"sort": 1, "index_put": 1}


def test_sizes_that_are_symbols(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing says that there are three places for a row of x; those of w and the way back are
    known to be as many as the permutation has."""
    found = compared(monkeypatch, sorted_twice, dynamic=True)
    assert (found["sort"], found["index_put adding"]) == (1, 1)


def rows_sorted(x: Any, choice: Any, w: Any) -> Any:
    return x.sin()[choice.view(ROWS, EACH).argsort(0).view(-1)] * w


def part(x: Any, choice: Any, w: Any) -> Any:
    order = choice.argsort()[ROWS:]
    return x.sin()[order // EACH] * w[order]


def other_quotient(x: Any, choice: Any, w: Any) -> Any:
    return x.sin()[choice.argsort() // (EACH + 1)] * w


def moved(x: Any, choice: Any, w: Any) -> Any:
    return x.sin()[(choice.argsort() // EACH) % 7] * w


def values_of_a_sort(x: Any, choice: Any, w: Any) -> Any:
    return x.sin()[choice.sort()[0]] * w


@pytest.mark.parametrize("fn", [rows_sorted, part, other_quotient, moved, values_of_a_sort])
def test_what_is_no_permutation_is_added_by_index(monkeypatch: pytest.MonkeyPatch, fn: Any) -> None:
    assert compared(monkeypatch, fn)["index_put adding"] >= 1


def test_a_write_without_an_inverse_at_hand_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """One write of rows costs no more than one of positions."""

    def put(x: Any, choice: Any, w: Any) -> Any:
        return torch.zeros(ROWS * EACH, 1).index_put((choice.argsort(),), w * 2).cos() * x.sum()

    found = compared(monkeypatch, put)
    assert found == {"sort": 1, "index_put": 1}
