"""Ways to use torch.compile that change what is traced or asked from call to call: each beside
eager, by the oracle, and by functions of graphs whose kernels run in the simulator."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from test_torch_graph_call import Machine, machine  # noqa: E402, F401

from fusewright.frontends.torch.dynamo import compiler  # noqa: E402
from fusewright.frontends.torch.options import Options  # noqa: E402
from fusewright.frontends.torch.report import GraphReport  # noqa: E402

Compile = Callable[..., Any]
"""`torch.compile` by a backend, and its keywords."""


@pytest.fixture(params=["oracle", "functions of graphs"])
def compiled(request: pytest.FixtureRequest) -> Iterator[Compile]:
    """Compiles; no region may have failed in the end."""
    if request.param != "oracle":
        there: Machine = request.getfixturevalue("machine")
        yield there.compile
        assert there.failures == []
        return
    reports: list[GraphReport] = []

    def compile(fn: Any, **modes: Any) -> Any:
        torch.compiler.reset()
        return torch.compile(fn, backend=compiler(Options(min_ops=1), reports.append), **modes)

    yield compile
    assert [f for g in reports for r in g.regions for f in r.failures] == []
    assert reports


def rand(*shape: int) -> Any:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape) + len(shape)))


def assert_same(called: Any, fn: Any, *args: Any) -> None:
    """Equal results, arguments and gradients; results require gradients alike."""
    pairs = [[_like(a) for a in args] for _ in range(2)]
    made = [f(*own) for f, own in zip((called, fn), pairs, strict=True)]
    leaves = [torch.utils._pytree.tree_leaves(m) for m in made]
    assert [x.requires_grad for x in leaves[0]] == [x.requires_grad for x in leaves[1]]
    torch.testing.assert_close(*leaves)
    torch.testing.assert_close(*pairs)
    if not torch.is_grad_enabled():
        return
    for found in leaves:
        total = sum(x.float().square().sum() for x in found if x.requires_grad)
        if isinstance(total, torch.Tensor):
            total.backward()
    for a, b in zip(*pairs, strict=True):
        assert (a.grad is None) == (b.grad is None)
        if a.grad is not None:
            torch.testing.assert_close(a.grad, b.grad)


def _like(a: Any) -> Any:
    """A copy of a tensor with its strides; a clone is contiguous where a tensor is not."""
    base = torch.empty_strided(a.shape, a.stride(), dtype=a.dtype)
    base.copy_(a.detach())
    return base.requires_grad_(a.requires_grad)


def mixed(x: Any, w: Any) -> Any:
    y = torch.softmax(x * 2 + 1, -1) @ w
    return y.sigmoid() * y


# --- switches of what is recorded -----------------------------------------------------------------


def test_recording_is_switched_between_calls(compiled: Compile) -> None:
    called = compiled(mixed)
    x, w = rand(6, 20), rand(20, 12)
    ways: list[Callable[[], AbstractContextManager[Any]]] = [
        nullcontext, torch.no_grad, torch.inference_mode, torch.no_grad, nullcontext,
        torch.enable_grad, torch.inference_mode,
    ]  # fmt: skip
    for around in ways * 2:
        with around():
            assert_same(
                called, mixed, x, w.detach().requires_grad_(not torch.is_inference_mode_enabled())
            )


def test_requires_grad_is_flipped_between_calls(compiled: Compile) -> None:
    called = compiled(mixed)
    for flips in (0, 3, 1, 2, 3, 0, 2, 1, 3, 3):
        x, w = rand(6, 20), rand(20, 12)
        assert_same(
            called, mixed, x.requires_grad_(bool(flips & 1)), w.requires_grad_(bool(flips & 2))
        )


def test_parameters_are_frozen_and_thawed(compiled: Compile) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU(), torch.nn.LayerNorm(8))
    called = compiled(model)
    x = rand(5, 8)
    for frozen in (False, True, False, True, False):
        model[0].requires_grad_(not frozen)
        found: list[Any] = []
        for run in (called, model):
            model.zero_grad()
            made = run(x)
            made.square().sum().backward()
            found.append([made.detach(), *(p.grad for p in model.parameters())])
        assert (found[0][1] is None) == frozen
        for a, b in zip(*found, strict=True):
            assert (a is None) == (b is None)
            if a is not None:
                torch.testing.assert_close(a, b, rtol=2e-5, atol=2e-5)


def test_autocast_is_switched_between_calls(compiled: Compile) -> None:
    called = compiled(mixed)
    for dtype in (None, torch.bfloat16, None, torch.float16, torch.bfloat16):
        around = torch.autocast("cpu", dtype) if dtype else nullcontext()
        x, w = rand(6, 20), rand(20, 12)
        with around:
            made, want = called(x, w), mixed(x, w)
        assert made.dtype == want.dtype
        close = {} if made.dtype == torch.float32 else {"rtol": 2e-2, "atol": 2e-2}
        torch.testing.assert_close(made, want, **close)


def test_gradients_of_gradients_are_refused_as_by_other_backends(compiled: Compile) -> None:
    x = rand(4, 6).requires_grad_()
    (g,) = torch.autograd.grad(compiled(lambda x: (x.sin() * x).sum())(x), x, create_graph=True)
    with pytest.raises(RuntimeError, match="does not currently support double backward"):
        g.sum().backward()


# --- sizes and memory -----------------------------------------------------------------------------


@pytest.mark.parametrize("dynamic", [None, True])
def test_sizes_change_and_are_0_and_1(compiled: Compile, dynamic: bool | None) -> None:
    def f(x: Any, w: Any) -> Any:
        return torch.layer_norm(x, x.shape[-1:]) @ w + x.shape[0], (x * 2).amax(1) + x.sum(1).exp()

    called = compiled(f, dynamic=dynamic)
    for rows in (3, 5, 1, 0, 2, 7, 0, 1):
        assert_same(called, f, rand(rows, 6).requires_grad_(), rand(6, 4))


def test_arguments_lie_in_other_orders(compiled: Compile) -> None:
    called = compiled(mixed)
    whole = rand(40, 80)
    for x in (whole[:6, :20], whole[:20, :6].t(), whole[::2][:6, 3:23], whole[:6, 1:41:2]):
        for w in (whole[:20, :12], whole[:12, :20].t(), whole[5:25, 7:19]):
            assert_same(called, mixed, x, w)


def test_views_are_written_in_place(compiled: Compile) -> None:
    def f(x: Any, y: Any) -> Any:
        head = x[1:3]
        head.mul_(y[0]).add_(1)
        x.t()[2:4].copy_(y[:2, :4] * 2)
        z = y.clone()
        z.view(-1)[::3] = x.sum()
        z.diagonal().zero_()
        return head + 1, z, x[:, 0] * 2

    called = compiled(f)
    for _ in range(3):
        assert_same(called, f, rand(4, 6), rand(3, 6))


def test_what_aliases_an_argument_still_does(compiled: Compile) -> None:
    def f(x: Any) -> Any:
        x.mul_(2).add_(1)
        return x.view(-1), x[0], (x * 3).sin()

    called = compiled(f)
    for _ in range(3):
        own, x = rand(3, 4), rand(3, 4)
        made, want = called(own), f(x)
        own.zero_()
        x.zero_()
        torch.testing.assert_close(made, want)
        assert made[0].data_ptr() == own.data_ptr()


def test_weights_are_tied(compiled: Compile) -> None:
    class Tied(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = torch.nn.Embedding(11, 8)
            self.norm = torch.nn.LayerNorm(8)
            self.out = torch.nn.Linear(8, 11, bias=False)
            self.out.weight = self.words.weight

        def forward(self, tokens: Any) -> Any:
            return self.out(self.norm(self.words(tokens)).relu() * 2)

    torch.manual_seed(0)
    model = Tied()
    called = compiled(model)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    for k in range(4):
        tokens = torch.randint(0, 11, (2, 5), generator=torch.Generator().manual_seed(k))
        found: list[list[Any]] = []
        for run in (called, model):
            optimiser.zero_grad()
            loss = run(tokens).square().mean()
            loss.backward()
            found.append([loss.detach(), *(p.grad.clone() for p in model.parameters())])
        torch.testing.assert_close(*found, rtol=2e-5, atol=2e-5)
        optimiser.step()
        if k == 1:
            model.out.weight.data = model.out.weight.data * 2


# --- code -----------------------------------------------------------------------------------------


def test_graphs_break(compiled: Compile) -> None:
    seen: list[float] = []

    def f(x: Any) -> Any:
        y = (x * 2).softmax(-1)
        torch._dynamo.graph_break()
        if y.sum() > 0:  # asks for a value
            y = y + x.sin()
        seen.append(float(y.detach().mean()))
        return y.exp() * x

    called = compiled(f)
    for _ in range(3):
        assert_same(called, f, rand(4, 9).requires_grad_())
    assert len(seen) == 6


def test_hooks_see_and_change_gradients(compiled: Compile) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(6, 6), torch.nn.SiLU(), torch.nn.LayerNorm(6))
    notes: list[Any] = []
    model[0].register_full_backward_hook(lambda m, given, made: notes.append(made[0].clone()))
    model[1].register_forward_hook(lambda m, given, made: made * 2 + 1)
    model[2].weight.register_hook(lambda g: g * 3)
    called = compiled(model)
    x = rand(4, 6)
    for _ in range(3):
        found: list[list[Any]] = []
        for run in (called, model):
            model.zero_grad()
            notes.clear()
            leaf = x.clone().requires_grad_()
            leaf.register_hook(lambda g: g + 1)
            made = run(leaf)
            made.register_hook(lambda g: g * 0.5)
            made.square().sum().backward()
            found.append([made.detach(), leaf.grad, *notes, *(p.grad for p in model.parameters())])
        torch.testing.assert_close(*found, rtol=2e-5, atol=2e-5)


def test_saved_tensors_are_packed_by_hooks(compiled: Compile) -> None:
    called = compiled(mixed)
    packed: list[Any] = []

    def pack(t: Any) -> Any:
        packed.append(t)
        return t.clone()

    for _ in range(3):
        packed.clear()
        grads: list[Any] = []
        for run in (called, mixed):
            x, w = rand(6, 20).requires_grad_(), rand(20, 12).requires_grad_()
            with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
                made = run(x, w)
            made.sum().backward()
            grads.append([x.grad, w.grad])
        assert packed
        torch.testing.assert_close(*grads)


def test_transforms_are_compiled(compiled: Compile) -> None:
    func = torch.func

    def loss(w: Any, x: Any) -> Any:
        return ((x @ w).sigmoid() * 2).square().sum()

    transformed: list[Callable[..., Any]] = [
        func.grad(loss),
        func.vmap(func.grad(loss), (None, 0)),
        func.vmap(lambda w, x: torch.softmax(w * x.sum(), 0), (1, 0), out_dims=1),
        func.jacrev(lambda w, x: (x @ w).tanh().sum(0)),
        func.jacfwd(lambda w, x: (x @ w).sin().sum(0)),
        func.hessian(lambda w, x: (x @ w).cos().sum()),
    ]
    w, x = rand(3, 5), rand(5, 4, 3)
    for f in transformed:
        called = compiled(f)
        for _ in range(3):
            torch.testing.assert_close(called(w, x), f(w, x), rtol=2e-5, atol=2e-5)


def test_compiled_functions_are_transformed(compiled: Compile) -> None:
    def f(x: Any) -> Any:
        return (x.sin() * x + 1).exp()

    called = compiled(f)
    assert_same(called, f, rand(3, 4))
    for run in (torch.func.vmap, torch.func.jacrev):
        torch.testing.assert_close(run(called)(rand(3, 4)), run(f)(rand(3, 4)))
    tangent = rand(3, 4) + 1
    made = torch.func.jvp(called, (rand(3, 4),), (tangent,))
    torch.testing.assert_close(made, torch.func.jvp(f, (rand(3, 4),), (tangent,)))
