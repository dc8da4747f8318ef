"""Products of torch graphs: taken with what follows them, or left, by what they cost."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import fusewright as fw
from fusewright.core.expr import constant_value
from fusewright.errors import UserError

torch = pytest.importorskip("torch")
door = pytest.importorskip("fusewright.frontends.torch")
choice = pytest.importorskip("fusewright.frontends.torch.product_choice")
options = pytest.importorskip("fusewright.frontends.torch.options")
dynamo = pytest.importorskip("fusewright.frontends.torch.dynamo")
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402

aten = torch.ops.aten


def rand(*shape: int, dtype: Any = torch.bfloat16, seed: int = 0) -> Any:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def graph_of(fn: Callable[..., Any], *shapes: tuple[int, ...], dtype: Any = None) -> Any:
    """The graph of a function of tensors on a GPU."""
    with FakeTensorMode():
        arguments = [torch.empty(s, dtype=dtype or torch.bfloat16, device="cuda") for s in shapes]
    return make_fx(fn, tracing_mode="fake")(*arguments).graph


def left(fn: Callable[..., Any], *shapes: tuple[int, ...], dtype: Any = None, **kw: Any) -> Any:
    """Why the products of a function of tensors on a GPU are left to torch."""
    graph = graph_of(fn, *shapes, dtype=dtype)
    chosen = options.options_of({"target": "sm_90a"} | kw)
    return list(choice.left_products(list(graph.nodes), {}, chosen).values())


def mlp(x: Any, w: Any) -> Any:
    return torch.relu(torch.mm(x, w)) * 2


# --- values ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("cpu", ["oracle", "sim"])
@pytest.mark.parametrize(
    "fn",
    [
        lambda x, w, b: torch.nn.functional.gelu(torch.addmm(b, x, w)),
        lambda x, w, b: torch.addmm(b, x, w, beta=0.5, alpha=2).relu(),
        lambda x, w, b: torch.addmm(b, x, w, beta=0).relu() + 1,
        lambda x, w, b: torch.baddbmm(b, x[None], w[None], alpha=3).tanh() * 2,
        lambda x, w, b: torch.nn.functional.linear(x.view(2, 16, 32), w.T, b).sigmoid() + 1,
        lambda x, w, b: torch.bmm(x.view(2, 16, 32), w.expand(2, 32, 48)).relu() - b,
    ],
)
def test_products_agree_with_eager(fn: Callable[..., Any], cpu: str) -> None:
    arguments = rand(32, 32), rand(32, 48, seed=1), rand(48, seed=2)
    torch.compiler.reset()
    run = torch.compile(fn, backend="fusewright", options={"products": "always", "cpu": cpu})
    report = door.explain(fn, *arguments, options={"products": "always", "cpu": cpu})
    assert any("mm" in op for op in report.graphs[0].taken)
    torch.testing.assert_close(run(*arguments), fn(*arguments), rtol=2e-2, atol=5e-2)
    assert not any(r.failures for r in report.regions)


def test_a_model_trains_with_products() -> None:
    model = torch.nn.Sequential(
        torch.nn.Linear(32, 64), torch.nn.GELU(), torch.nn.Linear(64, 32)
    ).to(torch.bfloat16)
    x, g = rand(3, 8, 32).requires_grad_(), rand(3, 8, 32, seed=1)
    torch.compiler.reset()
    run = torch.compile(model, backend="fusewright", options={"products": "always"})
    wanted = [x, *model.parameters()]
    for a, b in zip(
        torch.autograd.grad(run(x), wanted, g),
        torch.autograd.grad(model(x), wanted, g),
        strict=True,
    ):
        torch.testing.assert_close(a, b, rtol=3e-2, atol=6e-2)


def test_a_linear_layer_and_its_function_are_one_kernel() -> None:
    fusion = fw.from_torch(
        lambda x, w, b: torch.nn.functional.gelu(torch.nn.functional.linear(x, w, b)),
        *(rand(4, 96, 256), rand(512, 256), rand(512)),
    )
    assert fw.compile(fusion).host.stats["launches"] == 1


# --- the choice -----------------------------------------------------------------------------------


@pytest.mark.parametrize("chosen", ["auto", "always"])
@pytest.mark.parametrize("rows", [16, 4096])
def test_products_with_something_behind_them_are_taken(chosen: str, rows: int) -> None:
    assert left(mlp, (rows, 4096), (4096, 4096), products=chosen) == []


def test_residuals_and_what_follows_a_cast_are_taken() -> None:
    added = lambda x, w, r: torch.mm(x, w) + r  # noqa: E731
    assert left(added, (12608, 3072), (3072, 768), (12608, 768)) == []
    cast = lambda x, w: torch.relu(torch.mm(x, w).float()) * 2  # noqa: E731
    assert left(cast, (4096, 4096), (4096, 4096)) == []


def test_what_follows_pays_for_copies_of_operands_or_not() -> None:
    """Rows of 772 elements are no multiples of 16 bytes: both operands are copied first."""
    added = lambda x, w, r: torch.mm(x, w) + r  # noqa: E731
    assert left(added, (12608, 772), (772, 3068), (12608, 3068)) == []
    (found,) = left(added, (3068, 12612), (12612, 772), (3068, 772))
    assert "too little to gain" in found


def test_what_is_computed_with_a_product() -> None:
    """Not what waits for its sums on another way, nor what has other places."""

    def fn(x: Any, w: Any, r: Any, u: Any) -> Any:
        y = torch.relu(torch.mm(x, w).view(4, 16, 32) + r)
        other = torch.mm(u, u)
        return (
            y.sigmoid() * 2,
            y - y.sum(),
            torch.ops.aten.slice.Tensor(y.reshape(-1), 0, 0, 5) + 1,
            other,
            y * other.sum(),
        )

    graph = graph_of(fn, (64, 128), (128, 32), (4, 16, 32), (64, 64))
    nodes = list(graph.nodes)
    first = next(n for n in nodes if n.target is aten.mm.default)
    chain = choice.Chain.of(first, {n: k for k, n in enumerate(nodes)}, {})
    names = [n.target.overloadpacket.__name__ for n in chain.members]
    assert names == ["mm", "view", "add", "relu", "sigmoid", "mul", "view", "mul"]
    assert [n.name for n in chain.inputs if n.op == "placeholder"] == ["x_1", "w_1", "r_1"]
    outputs = [n.target.overloadpacket.__name__ for n in chain.outputs]
    assert outputs == ["relu", "mul", "view", "mul"]
    shapes = [tuple(map(constant_value, t.shape)) for t in chain.fusion().inputs]
    assert shapes == [(64, 128), (128, 32), (4, 16, 32), ()]


def test_equal_chains_are_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(choice, "_slower", lambda chain, target: asked.append(chain))

    def fn(x: Any, w: Any, u: Any) -> Any:
        for _ in range(3):
            x = torch.relu(torch.mm(x, w)) * 2
        return torch.sigmoid(torch.mm(x, u)) * 2

    assert left(fn, (256, 128), (128, 128), (128, 128)) == []
    assert len(asked) == 2


def normed(x: Any, w: Any, r: Any) -> Any:
    y = torch.mm(x, w) + r
    return y, torch.rms_norm(y.float(), (y.shape[-1],))


def test_what_is_reduced_afterwards_has_a_kernel_of_its_own_in_any_case() -> None:
    """It may as well read the product and the residual: that writes no more than torch's way."""
    shapes = (4096, 3072), (3072, 1024), (4096, 1024)
    added = lambda x, w, r: torch.mm(x, w) + r  # noqa: E731
    assert left(added, *shapes) == []
    greatest = lambda x, w, r: torch.amax(torch.mm(x, w) + r, 1)  # noqa: E731
    for fn in (normed, greatest):
        (why,) = left(fn, *shapes)
        assert "too little to gain" in why


def test_what_is_computed_and_read_beside_a_product_counts() -> None:
    """The gradients of a gate and of what it lets through: of a gate whose sigmoid nothing else
    needs, which is computed with them."""

    def gated(g: Any, w: Any, gate: Any, up: Any) -> Any:
        s = torch.sigmoid(gate.float())
        y = torch.mm(g, w)
        return (y * up * s * (1 + gate * (1 - s))).bfloat16(), (y * gate * s).bfloat16()

    graph = graph_of(gated, (4096, 1024), (1024, 3072), (4096, 3072), (4096, 3072))
    nodes = list(graph.nodes)
    product = next(n for n in nodes if n.target is aten.mm.default)
    chain = choice.Chain.of(product, {n: k for k, n in enumerate(nodes)}, {})
    assert {n.name for n in chain.inputs} == {"g_1", "w_1", "gate_1", "up_1"}
    assert len(chain.outputs) == 2 and not chain.handed_on
    assert any(n.target is aten.sigmoid.default for n in chain.members)


def test_never_means_never() -> None:
    (why,) = left(mlp, (4096, 4096), (4096, 4096), products="never")
    assert why == "products are left to torch (products='never')"


@pytest.mark.parametrize(
    ("fn", "shapes", "why"),
    [
        (torch.mm, [(4096, 4096), (4096, 4096)], "nothing elementwise follows it"),
        (
            lambda x, w: torch.mm(x, w).sum(0),
            [(4096, 4096), (4096, 4096)],
            "nothing elementwise follows it",
        ),
        (
            lambda x, w: ((y := torch.mm(x, w)), torch.relu(y)),
            [(4096, 4096), (4096, 4096)],
            "its result is stored as well",
        ),
        (
            lambda x, w: torch.mm(x, w).float(),
            [(12000, 768), (768, 3072)],
            "nothing elementwise follows it",
        ),
        (
            lambda x, w: torch.mm(x, w).float().sum(0),
            [(12000, 768), (768, 3072)],
            "nothing elementwise follows it",
        ),
        (mlp, [(4096, 4100), (4100, 4096)], "too little to gain"),
    ],
)
def test_what_stays_torchs(fn: Any, shapes: Any, why: str) -> None:
    (found,) = left(fn, *shapes)
    assert why in found


def test_types_and_targets_without_matrix_instructions_stay_torchs() -> None:
    shapes = (4096, 4096), (4096, 4096)
    (found,) = left(mlp, *shapes, dtype=torch.float32)
    assert "no matrix instructions for float32" in found
    (found,) = left(mlp, *shapes, target="sm_80")
    assert "sm_80 has no products by warpgroups" in found


@pytest.fixture
def allowed() -> Iterator[None]:
    """torch allows tf32 for products of float32."""
    old = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    yield
    torch.set_float32_matmul_precision(old)


@pytest.mark.usefixtures("allowed")
def test_products_of_float32_are_taken_where_torch_rounds_them() -> None:
    square = (4096, 4096)
    linear = lambda x, w: torch.relu(torch.mm(x, w.t())) * 2  # noqa: E731
    assert left(linear, (4096, 1024), (4096, 1024), dtype=torch.float32) == []
    (found,) = left(mlp, square, square, dtype=torch.float32)
    assert "too little to gain" in found
    (found,) = left(mlp, square, square, dtype=torch.float64)
    assert "no matrix instructions for float64" in found


def test_regions_on_a_device_round_what_torch_rounds(allowed: None) -> None:
    def chosen(device: str) -> str | None:
        with FakeTensorMode():
            x, w = (torch.empty(64, 64, device=device) for _ in range(2))
        graph = make_fx(lambda x, w: torch.relu(torch.mm(x, w.t())), tracing_mode="fake")(x, w)
        seen: list[Any] = []
        wanted = options.Options(cpu="sim", products="always", target="sm_90a")
        dynamo.fuse_graph(graph, wanted, observe=seen.append)
        (region,) = seen[0].regions
        return region.fused.float32_matmul

    assert (chosen("cuda"), chosen("cpu")) == ("tf32", "ieee")
    torch.set_float32_matmul_precision("highest")
    assert chosen("cuda") == "ieee"


def test_the_backward_pass_rounds_what_the_forward_pass_rounded() -> None:
    """Gradients are asked for where another choice holds, as in threads of torch."""
    fused = fw.fuse(lambda x, w: x @ w.T, target="sm_90a", device="sim")
    shape = 256, 256
    x, w, g = (rand(*s, dtype=torch.float32, seed=k) for k, s in enumerate((shape, shape, shape)))
    x.requires_grad_()

    def gradient(forward: str, backward: str) -> Any:
        with fw.config(float32_matmul=forward):
            y = fused(x, w)
        with fw.config(float32_matmul=backward):
            return torch.autograd.grad(y, x, g)[0]

    exact, rounded = gradient("ieee", "tf32"), gradient("tf32", "ieee")
    wanted = g.double() @ w.double()
    assert (exact - wanted).abs().max() < 1e-4
    assert (rounded - wanted).abs().max() > 1e-3
    assert torch.equal(gradient("ieee", "ieee"), exact)


def test_products_on_the_host_and_of_integers_are_torchs() -> None:
    x, w = rand(32, 32), rand(32, 32, seed=1)
    report = door.explain(lambda x, w: torch.mm(x, w).relu() + 1, x, w)
    assert ("aten.mm.default", "a product on the host is torch's") in report.graphs[0].left
    numbers = torch.ones(4, 4, dtype=torch.int32)
    report = door.explain(lambda a: torch.mm(a, a) * 2 + 1, numbers, options={"products": "always"})
    assert "a product of int32 is no float's" in str(report)


def test_refuses_other_choices() -> None:
    with pytest.raises(UserError, match=r"option products='some': use one of"):
        door.explain(mlp, rand(8, 8), rand(8, 8), options={"products": "some"})


# --- parts of a result that are joined again ------------------------------------------------------


def _heads(x: Any, w: Any) -> Any:
    return torch.mm(x, w).view(2, -1, w.shape[1] // 64, 64).transpose(1, 2)


def rotated(x: Any, w: Any, c: Any, s: Any) -> Any:
    """Queries as models turn them: heads in front of positions, halves of each exchanged."""
    q = _heads(x, w)
    turned = torch.cat((-aten.slice.Tensor(q, 3, 32, 64), aten.slice.Tensor(q, 3, 0, 32)), dim=-1)
    return q * c.unsqueeze(1) + turned * s.unsqueeze(1)


def rolled(x: Any, w: Any, c: Any, s: Any) -> Any:
    """The columns of each head moved by one: those of another lane."""
    q = _heads(x, w)
    turned = torch.cat((aten.slice.Tensor(q, 3, 1, 64), aten.slice.Tensor(q, 3, 0, 1)), dim=-1)
    return q * c.unsqueeze(1) + turned * s.unsqueeze(1)


def summed_part(x: Any, w: Any, c: Any, s: Any) -> Any:
    """A part is read for something else, too."""
    q = _heads(x, w)
    first = -aten.slice.Tensor(q, 3, 32, 64)
    turned = torch.cat((first, aten.slice.Tensor(q, 3, 0, 32)), dim=-1)
    return turned * s.unsqueeze(1), first.sum(dim=-1)


def test_rotated_heads_are_taken_with_their_product() -> None:
    table = (2, 2048, 64)
    shapes = ((4096, 4096), (4096, 4096), table, table)
    (why,) = left(rotated, *shapes)
    assert "with what follows it takes" in why  # threads wait for the tables
    (why,) = left(rolled, *shapes)
    assert "no thread of its kernel holds all of them" in why
    (why,) = left(summed_part, *shapes)
    assert "its result is stored as well" in why or "too little to gain" in why
    graph = graph_of(rotated, *shapes)
    (product,) = (n for n in graph.nodes if n.target is aten.mm.default)
    place = {n: k for k, n in enumerate(graph.nodes)}
    chain = choice.Chain.of(product, place, {})
    assert [n.target for n in chain.outputs] == [aten.add.Tensor]
    assert aten.cat.default in [n.target for n in chain.members]


@pytest.mark.parametrize("fn", [rotated, rolled])
def test_rotated_heads_agree_with_eager(fn: Callable[..., Any]) -> None:
    arguments = (
        rand(64, 32),
        rand(32, 128, seed=1),
        rand(2, 32, 64, seed=2),
        rand(2, 32, 64, seed=3),
    )
    torch.compiler.reset()
    run = torch.compile(
        fn, backend="fusewright", options={"products": "always", "cpu": "sim", "target": "sm_90a"}
    )
    torch.testing.assert_close(run(*arguments), fn(*arguments), rtol=2e-2, atol=0.2)
