"""Operators by their fastest function: which one, and where there is none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402

from fusewright.frontends.torch.direct import Directly  # noqa: E402

aten = torch.ops.aten


def functions(fn: Callable[..., Any], *args: Any, mode: str = "fake") -> list[tuple[Any, Any]]:
    """The operators of a function's graph, each with what is called for it."""
    module = make_fx(fn, tracing_mode=mode)(*args)
    directly = Directly()
    return [(n.target, directly.of(n)) for n in module.graph.nodes if n.op == "call_function"]


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: aten.mm.default(x, x),
        lambda x: aten.add.Tensor(x, x, alpha=2),
        lambda x: aten.add.Tensor(x, 1),
        lambda x: aten.sum.dim_IntList(x, [0], True),
        lambda x: aten.sum.default(x),
        lambda x: aten.div.Tensor_mode(x, x, rounding_mode="floor"),
        lambda x: aten.cat.default([x, x], 1),
        lambda x: aten.view.default(x, [2, 8]),
        lambda x: aten.transpose.int(x, 0, 1),
        lambda x: aten.cumsum.default(x, 0),
    ],
)
def test_a_function_that_calls_exactly_the_operator_is_taken(fn: Callable[..., Any]) -> None:
    ((target, function),) = functions(fn, torch.randn(4, 4))
    assert function is not target and function is not target._op
    assert function.__name__ == target._schema.name.split("::")[1]
    x = torch.randn(4, 4)
    (node,) = (
        n for n in make_fx(fn, tracing_mode="fake")(x).graph.nodes if n.op == "call_function"
    )
    args = torch.fx.node.map_arg(node.args, lambda n: x)
    torch.testing.assert_close(function(*args, **node.kwargs), fn(x))


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: aten._to_copy.default(x, dtype=torch.float64),  # no function has its name
        lambda x: aten.linalg_vector_norm.default(x),
        lambda x: aten.slice.Tensor(x, 0, 1, 3),
        lambda x: aten.empty_like.default(x).new_zeros(3),
    ],
)
def test_another_operator_goes_by_its_overload(fn: Callable[..., Any]) -> None:
    for target, function in functions(fn, torch.randn(4, 4)):
        assert function is target._op or function.__name__ in target._schema.name


def test_a_function_of_another_operator_is_not_taken() -> None:
    module = make_fx(lambda x: aten.mm.default(x, x), tracing_mode="fake")(torch.randn(4, 4))
    (node,) = (n for n in module.graph.nodes if n.op == "call_function")
    node.target = aten.matmul.default  # torch.matmul calls mm
    assert Directly().of(node) is aten.matmul.default._op


def test_sizes_that_are_symbols_are_not_tried() -> None:
    for target, function in functions(
        lambda x: aten.mm.default(x, x), torch.randn(4, 4), mode="symbolic"
    ):
        assert function is getattr(target, "_op", target)


def test_what_is_no_operator_is_itself() -> None:
    module = make_fx(lambda x: x.sin(), tracing_mode="fake")(torch.randn(4))
    node = module.graph.call_function(max, (1, 2))
    assert Directly().of(node) is max


def test_an_operator_that_returns_nothing_is_called_directly() -> None:
    def checked(x: Any) -> Any:
        aten._assert_async.msg(aten.all.default(x), "all of it")
        return aten._foreach_copy_.default([x, x], [x, x])

    found = {str(target): f for target, f in functions(checked, torch.ones(4))}
    function = found["aten._assert_async.msg"]
    assert function is not aten._assert_async.msg._op
    function(torch.tensor(True), "not raised")
    with pytest.raises(RuntimeError, match="all of it"):
        function(torch.tensor(False), "all of it")


def test_a_node_that_reads_something_without_an_example_is_an_operator_as_it_is() -> None:
    module = make_fx(lambda x, y: aten.mm.default(x, y), tracing_mode="fake")(
        torch.randn(4, 4), torch.randn(4, 4)
    )
    (node,) = (n for n in module.graph.nodes if n.op == "call_function")
    node.args[1].meta.pop("val")
    assert Directly().of(node) is aten.mm.default._op
