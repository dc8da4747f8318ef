"""Regions of many tensors, operators and results: nothing is too wide, nothing raises."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tests.work import calls  # noqa: E402

import fusewright as fw  # noqa: E402
from fusewright.frontends.torch.dynamo import compiler  # noqa: E402
from fusewright.frontends.torch.options import Options  # noqa: E402
from fusewright.frontends.torch.report import GraphReport  # noqa: E402
from fusewright.host.groups import MAX_OPERANDS  # noqa: E402


def check(fn: Callable[..., Any], *args: Any, cpu: str = "sim") -> list[int]:
    """Compares with eager torch; the launches of each region, none of which may have failed."""
    torch.compiler.reset()
    reports: list[GraphReport] = []
    found = torch.compile(fn, backend=compiler(Options(cpu=cpu), reports.append))(*args)
    torch.testing.assert_close(found, fn(*args), rtol=1e-4, atol=1e-4)
    regions = [r for g in reports for r in g.regions]
    assert regions and [f for r in regions for f in r.failures] == []
    assert [left for g in reports for left in g.left] == []
    programs = [c.program for r in regions for c in getattr(r.fused, "_programs", {}).values()]
    return [len(p.launches) for p in programs]


def total(*xs: Any) -> Any:
    s = xs[0]
    for x in xs[1:]:
        s = s + x * 2
    return s


def tensors(count: int, *shape: int) -> list[Any]:
    torch.manual_seed(0)
    return [torch.randn(shape) for _ in range(count)]


@pytest.mark.parametrize(
    ("count", "launches"), [(MAX_OPERANDS, 1), (MAX_OPERANDS + 1, 2), (300, 13)]
)
def test_a_sum_of_many_tensors(count: int, launches: int) -> None:
    """A kernel reads so many; beyond them the next one goes on with what was summed."""
    assert check(total, *tensors(count, 4, 33)) == [launches]


def test_many_tensors_are_joined_and_many_are_given_back() -> None:
    def parts(*xs: Any) -> Any:
        whole = torch.cat([x.exp() for x in xs])
        return [*(whole * 2).split(3), whole.sum(1)]

    check(parts, *tensors(60, 3, 7))


def test_the_largest_of_many_stacked_tensors() -> None:
    check(lambda *xs: torch.stack([x.sin() for x in xs]).amax(0) * 2, *tensors(100, 4, 9))


def chain(x: Any, y: Any, length: int, every: int) -> list[Any]:
    """Two operators a turn, each `every`-th of whose results is returned."""
    results: list[Any] = []
    h = x
    for k in range(length):
        h = (h * y).sin() if k % 3 else h.tanh() * y
        if k % every == 0:
            results.append(h)
    return results


def test_a_region_of_many_operators_and_results() -> None:
    x, y = torch.randn(3, 17), torch.randn(17)
    check(lambda x, y: chain(x, y, 150, 3), x, y)


@pytest.mark.slow
def test_a_region_of_three_thousand_operators_and_five_hundred_results() -> None:
    x, y = torch.randn(3, 17), torch.randn(17)
    check(lambda x, y: chain(x, y, 1500, 3), x, y)


def test_a_long_program_costs_no_more_for_each_operator() -> None:
    """Twice the operators are twice the work, but for a quarter."""

    def compiling(length: int) -> int:
        def fn(x: Any) -> Any:
            for k in range(length):
                x = fw.sin(x * 2.0) if k % 3 else fw.tanh(x) + 1.0
            return x

        fusion = fw.trace(fn, fw.TensorSpec((64, 48), "float32"))
        return calls(lambda: fw.compile(fusion))

    assert compiling(400) <= 2.5 * compiling(200)
