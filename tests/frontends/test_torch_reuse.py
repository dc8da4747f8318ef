"""Results of regions in the memory of earlier ones: what is computed, and when they are not."""

# ruff: noqa: F811 (the fixture is another file's)

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from test_torch_graph_call import (  # noqa: E402
    Machine,
    assert_same,
    machine,  # noqa: F401
    steady,
)

from fusewright.frontends.torch.calls import is_getitem  # noqa: E402
from fusewright.frontends.torch.lying import Lying  # noqa: E402
from fusewright.frontends.torch.reuse import reused  # noqa: E402


def layer(x: Any, w: Any) -> Any:
    return torch.softmax(x * 2 + 1, -1) @ w


def layers(x: Any, w: Any, wide: Any) -> Any:
    """Four equal layers, then what takes more memory than they do."""
    for _ in range(4):
        x = layer(x, w)
    return ((x + 1).relu() @ wide).sigmoid() + 1


def args(rows: int = 6) -> tuple[Any, Any, Any]:
    return torch.randn(rows, 12), torch.randn(12, 12), torch.randn(12, 90)


def lent(machine: Machine) -> list[str]:
    """The lines of the first graph's function that take memory of another result."""
    return [x.strip() for x in machine.text.splitlines() if "if is_own else" in x]


def test_equal_layers_take_turns_in_one_tensor(machine: Machine) -> None:
    called = steady(machine, layers, *args())
    made = "empty((6, 12), (12, 1), float32)"
    assert lent(machine) == [
        f"fused_{k + 1}_0 = fused_{k}_0 if is_own else {made}" for k in range(4)
    ]
    for _ in range(2):
        assert_same(called, layers, *args())


def test_no_more_memory_than_without(machine: Machine) -> None:
    def narrow(x: Any, w: Any, wide: Any) -> Any:
        """As much memory at once between the layers as anywhere."""
        return layer((layer(x, w) @ wide).sum(-1, keepdim=True).expand(6, 12), w)

    steady(machine, narrow, *args())
    assert lent(machine) == []


def kept(x: Any, w: Any, wide: Any) -> Any:
    """The first result is returned, and the second one by a view."""
    a = torch.softmax(x * 2 + 1, -1)
    b = torch.softmax(a @ w * 2 + 1, -1)
    c = torch.softmax(b @ w * 2 + 1, -1)
    return (c @ wide).sigmoid() + 1, a, b.t()


def read_late(x: Any, w: Any, wide: Any) -> Any:
    """The first result is read again behind all others, through a view that torch makes."""
    a = torch.softmax(x * 2 + 1, -1)
    y = layers(a @ w, w, wide)
    return y, a.t() @ a


def copied_where_it_is(x: Any, w: Any, wide: Any) -> Any:
    """An operator that may return what it is given."""
    a = torch.softmax(x * 2 + 1, -1)
    b = torch.softmax(a @ w * 2 + 1, -1)
    return (torch.softmax(b @ w * 2, -1) @ wide).sigmoid() + 1, same(a)


@torch.library.custom_op("fusewright_tests::passing", mutates_args=())
def passing(x: torch.Tensor) -> torch.Tensor:
    """An operator of others, which may be done by another stream later."""
    return x.clone()


passing.register_fake(torch.empty_like)


def same(x: Any) -> Any:
    return torch.ops.fusewright_tests.passing(x)


@pytest.mark.parametrize("fn", [kept, read_late, copied_where_it_is])
def test_what_is_read_later_keeps_its_memory(machine: Machine, fn: Callable[..., Any]) -> None:
    called = steady(machine, fn, *args())
    assert [x for x in lent(machine) if "= fused_0_0 if" in x] == []
    for _ in range(2):
        assert_same(called, fn, *args())


def test_nothing_is_lent_over_an_operator_that_may_change_the_stream(machine: Machine) -> None:
    def f(x: Any, w: Any, wide: Any) -> Any:
        y = layer(layer(x, w), w)
        return layers(same(y), w, wide)

    called = steady(machine, f, *args())
    assert_same(called, f, *args())
    behind = machine.text.index("passing")
    before = [x.split(" = ")[0] for x in machine.text[:behind].splitlines() if "empty(" in x]
    names = {x.strip() for x in before}
    assert lent(machine)
    assert not any(x.split(" = ")[1].split()[0] in names for x in lent(machine)[1:])


def test_what_torch_computes_instead_is_not_lent(machine: Machine) -> None:
    called = steady(machine, layers, *args())
    memory = torch.randn(100)
    for at in (1, 3):  # kernels are not asked for the first region
        own = memory[at : at + 72].view(6, 12)
        before = own.clone()
        assert_same(called, layers, own, *args()[1:])
        torch.testing.assert_close(own, before)
    assert machine.failures == []
    assert machine.text.count("is_own = False") == 2 * len(machine.reports[0].regions)


def test_a_failure_lends_nothing_for_the_rest_of_the_call(machine: Machine) -> None:
    called = steady(machine, layers, *args())
    names: dict[str, Any] = machine.reports[0].call.run.__globals__  # type: ignore[union-attr]
    real = names["empty"]
    asked: list[Any] = []

    def first_fails(*given: Any) -> Any:
        asked.append(given[0])
        if len(asked) == 1:
            raise torch.OutOfMemoryError("no memory is left")
        return real(*given)

    names["empty"] = first_fails
    assert_same(called, layers, *args())
    assert asked == [(6, 12)] * 5 + [(6, 90)]


def test_an_operator_that_gives_its_argument_back_keeps_it(machine: Machine) -> None:
    """Operators of torch whose result was seen in the memory of what they read."""
    steady(machine, layers, *args())
    call = machine.reports[0].call
    assert call is not None and call._observer is not None
    graph, found = call._module.graph, dict(call._observer.found)
    lying = {n: {0: ((6, 12), (12, 1))} for n in graph.nodes if n.name in ("fused_0", "fused_1")}
    assert len(reused(graph, found, lying, lambda _: True)) == 1
    (product,) = (n for n in graph.nodes if n.name == "mm")
    read = next(n for n in product.all_input_nodes if is_getitem(n))
    found[product] = Lying(found[read].memory, (6, 12), (12, 1), 0, torch.float32)
    assert reused(graph, found, lying, lambda _: True) == {}
