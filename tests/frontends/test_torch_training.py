"""Fused functions on torch tensors that require gradients, beside eager torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import fusewright as fw
from fusewright.errors import UnsupportedError, UserError

torch = pytest.importorskip("torch")
training = pytest.importorskip("fusewright.frontends.torch.training")


def normal(*shape: int, seed: int = 0, dtype: Any = None) -> Any:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=dtype or torch.float64)


def softmax(x: Any, scale: float) -> Any:
    e = fw.exp(x * scale - fw.max(x * scale, axis=-1, keepdims=True))
    return e / fw.sum(e, axis=-1, keepdims=True)


def layer(p: dict[str, Any], x: Any) -> tuple[dict[str, Any], Any]:
    mean = fw.mean(x, axis=-1, keepdims=True)
    rstd = fw.rsqrt(fw.mean((x - mean) ** 2, axis=-1, keepdims=True) + 1e-5)
    y = fw.nn.gelu((x - mean) * rstd * p["w"] + p["b"])
    return {"y": y, "rstd": rstd}, fw.argmax(x, axis=-1)


def eager_layer(p: dict[str, Any], x: Any) -> tuple[dict[str, Any], Any]:
    rstd = torch.rsqrt(x.var(-1, unbiased=False, keepdim=True) + 1e-5)
    y = torch.nn.functional.gelu((x - x.mean(-1, keepdim=True)) * rstd * p["w"] + p["b"])
    return {"y": y, "rstd": rstd}, x.argmax(-1)


def gradients(fn: Callable[..., Any], *tensors: Any) -> list[Any]:
    """Gradients of a weighted sum of all float results, None for what takes no part."""
    own = [t.detach().clone().requires_grad_(t.requires_grad) for t in tensors]
    made = fn(*own)
    floats = [y for y in (made if isinstance(made, (tuple, list)) else [made]) if y.requires_grad]
    total = sum((y * normal(*y.shape, seed=k)).sum() for k, y in enumerate(floats))
    wanted = [t for t in own if t.requires_grad]
    return list(torch.autograd.grad(total, wanted, allow_unused=True))


def wanted(*shape: int, seed: int = 0) -> Any:
    return normal(*shape, seed=seed).requires_grad_()


def assert_equal(made: list[Any], expected: list[Any]) -> None:
    assert [x is None for x in made] == [x is None for x in expected]
    for a, b in zip(made, expected, strict=True):
        if b is not None:
            torch.testing.assert_close(a, b)


@pytest.mark.parametrize("device", ["auto", "sim"])
def test_gradients_agree_with_eager(device: str) -> None:
    f = fw.fuse(softmax, device=device)
    x = wanted(5, 33)
    assert_equal(
        gradients(lambda x: f(x, 2.0), x), gradients(lambda x: torch.softmax(x * 2, -1), x)
    )


def test_structures_integer_results_and_several_gradients() -> None:
    f = fw.fuse(layer)
    p = {"w": wanted(16, seed=1), "b": wanted(16, seed=2)}
    x = wanted(4, 16)
    made, where = f(p, x)
    expected, there = eager_layer(p, x)
    torch.testing.assert_close(made, expected)
    assert torch.equal(where, there) and not where.requires_grad

    def flat(fn: Callable[..., Any]) -> Callable[..., list[Any]]:
        return lambda w, b, x: list(fn({"w": w, "b": b}, x)[0].values())

    assert_equal(gradients(flat(f), *p.values(), x), gradients(flat(eager_layer), *p.values(), x))


def test_only_what_requires_a_gradient_gets_one() -> None:
    f = fw.fuse(lambda x, y, k: (x * y + k, y * 2.0))
    x, y, k = wanted(3, 4), normal(3, 4, seed=1), torch.arange(4)
    a, b = f(x, y, k)
    assert a.requires_grad and not b.requires_grad
    (g,) = torch.autograd.grad(a.sum(), [x])
    torch.testing.assert_close(g, y)
    with torch.no_grad():
        assert not f(x, y, k)[0].requires_grad


def test_a_backward_pass_of_some_results() -> None:
    f = fw.fuse(lambda x: (fw.exp(x), fw.sin(x)))
    x = wanted(7)
    for k, expected in enumerate((torch.exp(x), torch.cos(x))):
        (g,) = torch.autograd.grad(f(x)[k].sum(), [x])
        torch.testing.assert_close(g, expected.detach())


def test_results_that_are_arguments_or_equal() -> None:
    x = wanted(6)
    a, b, c = fw.fuse(lambda x: (x, x, x * 2))(x)
    (a.sum() + b.sum() + c.sum()).backward()
    torch.testing.assert_close(x.grad, torch.full((6,), 4.0, dtype=torch.float64))


def test_layouts_that_were_asked_for() -> None:
    f = fw.fuse(lambda x: fw.exp(x) * 2, out_layouts=[(1, 0)])
    x = wanted(3, 5)
    y = f(x)
    assert y.stride() == (1, 3)
    y.sum().backward()
    torch.testing.assert_close(x.grad, 2 * torch.exp(x.detach()))


def test_methods_and_modules_train() -> None:
    class Gate(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(normal(8, seed=3))

        def forward(self, x: Any) -> Any:
            return gate(x, self.weight)

    gate = fw.fuse(lambda x, w: x * fw.nn.sigmoid(x * w))
    module = Gate()
    optimiser = torch.optim.SGD(module.parameters(), lr=0.5)
    x, target = normal(64, 8, seed=4), normal(64, 8, seed=5)
    losses = []
    for _ in range(5):
        optimiser.zero_grad()
        loss = torch.nn.functional.mse_loss(module(x), target)
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses == sorted(losses, reverse=True)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_trains_under_torch_compile(backend: str) -> None:
    torch.compiler.reset()
    f = fw.fuse(softmax)
    x = wanted(4, 9)
    run = torch.compile(lambda x: f(x.sin(), 2.0) * 3, backend=backend, fullgraph=True)
    assert_equal(gradients(run, x), gradients(lambda x: torch.softmax(x.sin() * 2, -1) * 3, x))


# --- what is kept -------------------------------------------------------------------------------


def kept(f: Any) -> list[tuple[int, ...]]:
    """The shapes of residuals that are neither arguments nor results."""
    (made,) = f.trainings.values()
    return [tuple(map(int, map(str, t.shape))) for t in made.own]


def test_long_chains_of_elements_keep_their_argument_only() -> None:
    f = fw.fuse(lambda x: fw.sin(fw.exp(fw.tanh(x * 2))) * 3)
    x = wanted(32, 32)
    f(x)
    assert kept(f) == []
    assert_equal(
        gradients(f, x), gradients(lambda x: torch.sin(torch.exp(torch.tanh(x * 2))) * 3, x)
    )


def test_short_statistics_are_kept_and_rows_computed_again() -> None:
    f = fw.fuse(softmax)
    f(wanted(8, 64), 2.0)
    assert all(shape[-1] in (1, 8) for shape in kept(f))


def test_a_product_is_kept_not_computed_again() -> None:
    f = fw.fuse(lambda x, w: fw.tanh(x @ w) ** 2)
    x, w = wanted(16, 24), wanted(24, 8, seed=1)
    f(x, w)
    assert kept(f) == [(16, 8)]
    assert_equal(gradients(f, x, w), gradients(lambda x, w: torch.tanh(x @ w) ** 2, x, w))


def test_one_bit_of_a_condition_is_cheaper_than_its_operands() -> None:
    f = fw.fuse(lambda x, y: fw.where(x + y > 0, x * 2, y * 3))
    x, y = wanted(16, 16), wanted(16, 16, seed=1)
    f(x, y)
    (made,) = f.trainings.values()
    assert [str(t.dtype) for t in made.own] == ["bool"]


# --- refusals -----------------------------------------------------------------------------------


def test_refuses_gradients_of_gradients() -> None:
    x = wanted(4, 8)
    y = fw.fuse(softmax)(x, 2.0)
    with pytest.raises(UserError, match=r"softmax: a gradient of a gradient through a fused call"):
        torch.autograd.grad(y.sum(), x, create_graph=True)


def test_refuses_out_where_gradients_are_recorded() -> None:
    x = wanted(4, 8)
    with pytest.raises(UserError, match=r"out= with arguments that require gradients"):
        fw.fuse(softmax)(x, 2.0, out=torch.empty(4, 8, dtype=torch.float64))


def test_refuses_tangents_beside_gradients() -> None:
    forward = torch.autograd.forward_ad
    with forward.dual_level():
        dual = forward.make_dual(wanted(4, 8), normal(4, 8))
        with pytest.raises(UserError, match=r"tangent of forward mode"):
            fw.fuse(softmax)(dual, 2.0)


def test_refuses_what_has_no_derivative() -> None:
    with pytest.raises(UnsupportedError, match=r"nextafter"):
        fw.fuse(lambda x: fw.nextafter(x, x + 1))(wanted(4))
