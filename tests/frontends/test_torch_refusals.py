"""What lowerings of torch's operators refuse, so that the call stays torch's: the operator by name
and what about its arguments it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import fusewright as fw  # noqa: E402
from fusewright.core.expr import Expr  # noqa: E402
from fusewright.errors import UnsupportedError  # noqa: E402
from fusewright.frontends.torch.calls import hint, trace_node  # noqa: E402
from fusewright.frontends.torch.promotion import cast_to, torch_dtype  # noqa: E402
from fusewright.fusion.trace import trace  # noqa: E402

aten = torch.ops.aten
X = torch.ones(4, 6)
S = torch.tensor(1.0)
I = torch.zeros(4, 6, dtype=torch.int64)  # noqa: E741
FIRST = torch.tensor([0])

REFUSED: list[tuple[Callable[..., Any], tuple[Any, ...], str]] = [
    (lambda x: aten.split.Tensor(x[:0], 0)[0] * 1, (X,), "axis of size 0 in parts of 0"),
    (lambda s, i: aten.index_select(s, 0, i), (S, FIRST), "index_select of a tensor without axes"),
    (
        lambda s, i: aten.gather(s, 0, i),
        (S, FIRST),
        r"gather along axis 0 of a tensor of rank 0 by indices of rank 1",
    ),
    (lambda x: x[x > 0], (X,), "index by a mask: the result's size depends on its elements"),
    (
        lambda x, i: aten.index.Tensor(x, [i, None, i]),
        (torch.ones(3, 4, 5), FIRST),
        r"index along the axes 0, 2, which are not neighbours",
    ),
    (
        lambda x, m: aten._native_batch_norm_legit_functional(x, None, None, m, m, False, 0.1, 0.1),
        (torch.ones(2, 3), torch.ones(3)),
        "batch norm by running statistics that also returns them",
    ),
    (
        lambda x: x * 1j,
        (X,),
        r"aten\.mul\.Tensor: a tensor of torch\.complex64, which kernels do not compute",
    ),
    (lambda i: torch.full_like(i, float("inf")), (I,), "the scalar inf as int64, which has no suc"),
    (lambda x: aten.any.dims(x, []), (X,), r"aten\.any\.dims: any and all over the empty list"),
    (lambda x: aten.all.dims(x, []), (X,), r"aten\.all\.dims: any and all over the empty list"),
    (lambda x: x.to("meta"), (X,), r"aten\._to_copy\.default: tensors on cpu and on meta"),
    (lambda x: x.to("meta") + 1, (X,), r"aten\.add\.Tensor: a tensor on meta"),
    (
        lambda x: x.sum().item() + x,
        (X,),
        r"aten\.add\.Tensor: _local_scalar_dense is neither a tensor nor an integer",
    ),
    (lambda x: x.to(torch.float8_e5m2fnuz), (X,), r"float8_e5m2fnuz is not supported; use one of"),
    (lambda x: torch.sort(x)[0], (X,), r"aten\.sort\.default: the operator is not in the table"),
]


@pytest.mark.parametrize(
    ("fn", "tensors", "message"), REFUSED, ids=lambda x: x[-30:] if isinstance(x, str) else ""
)
def test_from_torch_names_operator_and_reason(
    fn: Callable[..., Any], tensors: tuple[Any, ...], message: str
) -> None:
    with pytest.raises(UnsupportedError, match="from_torch: cannot fuse .*" + message):
        fw.from_torch(fn, *tensors)


# --- arguments that only a graph with symbolic sizes has ------------------------------------------

ROWS = fw.TensorSpec(("n", 6), "float32")
SQUARE = fw.TensorSpec(("n", "n"), "float32")
PART = fw.TensorSpec((2, 6), "float32")

SYMBOLIC: list[tuple[Any, Callable[..., tuple[Any, ...]], tuple[fw.TensorSpec, ...], str]] = [
    (
        aten.split.Tensor,
        lambda n, x: (x, 2),
        (ROWS,),
        r"split of an axis of size n in parts of 2",
    ),
    (
        aten.diagonal.default,
        lambda n, x: (x,),
        (SQUARE,),
        r"the diagonal of a matrix of symbolic size n x n",
    ),
    (
        aten.constant_pad_nd.default,
        lambda n, x: (x, [1, 1], n),
        (ROWS,),
        r"constant_pad_nd with the symbolic value n",
    ),
    (
        aten.constant_pad_nd.default,
        lambda n, x: (x, [-4, -4], 0.0),
        (ROWS,),
        r"constant_pad_nd that leaves -2 elements",
    ),
    (
        aten.slice_scatter.default,
        lambda n, x, y: (x, y, 0, 1, 3),
        (ROWS, PART),
        r"slice_scatter of 2 elements from 1 on, of n",
    ),
    (
        aten.slice_scatter.default,
        lambda n, x, y: (x, y, 0, n),
        (ROWS, PART),
        r"slice_scatter of 2 elements from n on, of n",
    ),
    (
        aten.div.Tensor_mode,
        lambda n, x: (x, x),
        (ROWS,),
        r"div with rounding_mode='up'",
    ),
    (
        aten.nll_loss_backward.default,
        lambda n, x: (x, fw.expand_dims(x, 0), x, None, 1, -100, x),
        (ROWS,),
        r"nll_loss of rank 3: one or two axes are taken",
    ),
]


@pytest.mark.parametrize(
    ("operator", "arguments", "specs", "message"),
    SYMBOLIC,
    ids=lambda x: x[:30] if isinstance(x, str) else "",
)
def test_lowerings_name_what_they_do_not_take(
    operator: Any,
    arguments: Callable[..., tuple[Any, ...]],
    specs: tuple[fw.TensorSpec, ...],
    message: str,
) -> None:
    kwargs = {"rounding_mode": "up"} if operator is aten.div.Tensor_mode else {}
    n: Expr = fw.Sym("n")

    def called(*arrays: Any) -> Any:
        given = arguments(n, *arrays)
        graph = torch.fx.Graph()
        names = [graph.placeholder(f"a{k}") for k in range(len(given))]
        node = graph.call_function(operator, tuple(names), kwargs)
        node.meta["val"] = X
        return trace_node(node, dict(zip(names, given, strict=True)))

    with pytest.raises(UnsupportedError, match=message):
        trace(called, *specs)


def test_a_lowering_that_disagrees_with_torch_is_not_used() -> None:
    from fusewright.frontends.torch.table import LOWERINGS

    operator = aten.sin.default
    kept = LOWERINGS[operator]
    LOWERINGS[operator] = lambda out, x: x[:2]
    try:
        with pytest.raises(
            UnsupportedError, match=r"lowering gives float32\[2, 6\], torch float32\[4"
        ):
            fw.from_torch(lambda x: aten.sin.default(x), X)
    finally:
        LOWERINGS[operator] = kept


def test_results_that_are_no_tensors_are_left_to_torch() -> None:
    from fusewright.frontends.torch.calls import refusal

    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    node = graph.call_function(aten.sin.default, (x,))
    assert refusal(node) == "the result is not a tensor"
    node.meta["val"] = torch.ones(2).to_sparse()
    assert refusal(node) == "a tensor of layout torch.sparse_coo"
    assert refusal(x) == "placeholder is not a call of an operator"


def test_a_size_that_depends_on_elements_has_no_example() -> None:
    class Node:
        hint = None

    class Size:
        node = Node()

        def __str__(self) -> str:
            return "u0"

    with pytest.raises(UnsupportedError, match="the size u0 depends on the elements of a tensor"):
        hint(Size())
    assert hint(7) == 7


def test_operands_are_tensors_and_real_scalars() -> None:
    from fusewright.dtypes import dtype_of

    with pytest.raises(UnsupportedError, match=r"complex 1j as an operand: only tensors and real"):
        cast_to(1j, dtype_of("float32"))


def test_a_dtype_that_this_torch_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    from fusewright.dtypes import dtype_of

    monkeypatch.delattr(torch, "uint16")
    with pytest.raises(UnsupportedError, match="this torch has no dtype uint16"):
        torch_dtype(dtype_of("uint16"))
