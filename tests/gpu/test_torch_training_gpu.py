"""On CUDA tensors: fused functions that train, and products that the torch backend takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import fusewright as fw

torch = pytest.importorskip("torch")
frontend = pytest.importorskip("fusewright.frontends.torch")
backend, explain = frontend.backend, frontend.explain

pytestmark = pytest.mark.gpu
nn = torch.nn.functional


def normal(*shape: int, dtype: Any = torch.float32, seed: int = 0) -> Any:
    generator = torch.Generator("cuda").manual_seed(seed)
    return torch.randn(*shape, generator=generator, device="cuda").to(dtype)


def gradients(fn: Callable[..., Any], *tensors: Any) -> list[Any]:
    own = [t.detach().clone().requires_grad_() for t in tensors]
    y = fn(*own)
    return list(torch.autograd.grad(y, own, normal(*y.shape, dtype=y.dtype, seed=9)))


def softmax(x: Any) -> Any:
    e = fw.exp(x - fw.max(x, axis=-1, keepdims=True))
    return e / fw.sum(e, axis=-1, keepdims=True)


def norm(x: Any, w: Any) -> Any:
    return x * fw.rsqrt(fw.mean(x * x, axis=-1, keepdims=True) + 1e-6) * w


def eager_norm(x: Any, w: Any) -> Any:
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6) * w


CASES = [
    (softmax, lambda x: torch.softmax(x, -1), [(513, 1000)]),
    (norm, eager_norm, [(300, 4096), (4096,)]),
    (
        lambda x, w: fw.tanh(x @ w) * 2,
        lambda x, w: torch.tanh(x @ w) * 2,
        [(256, 512), (512, 384)],
    ),
]


@pytest.mark.parametrize(("fn", "eager", "shapes"), CASES, ids=["softmax", "norm", "product"])
def test_gradients_agree_with_eager_and_repeat_bitwise(fn: Any, eager: Any, shapes: Any) -> None:
    f = fw.fuse(fn)
    tensors = [normal(*s, seed=k) for k, s in enumerate(shapes)]
    made, again = gradients(f, *tensors), gradients(f, *tensors)
    wide = gradients(eager, *(t.double() for t in tensors))
    for a, b, exact in zip(made, again, wide, strict=True):
        assert torch.equal(a, b)
        torch.testing.assert_close(a.double(), exact, rtol=1e-3, atol=1e-3)


def test_a_training_step_is_captured() -> None:
    f = fw.fuse(norm)
    x, w = normal(64, 1024).requires_grad_(), normal(1024, seed=1).requires_grad_()

    def step() -> None:
        x.grad = w.grad = None
        f(x, w).sum().backward()

    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    want = x.grad.clone(), w.grad.clone()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(x.grad, want[0]) and torch.equal(w.grad, want[1])


@pytest.mark.parametrize("products", ["auto", "always"])
def test_models_with_products_agree_with_eager(products: str) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(512, 2048), torch.nn.GELU(), torch.nn.Linear(2048, 512)
    ).to("cuda", torch.bfloat16)
    x = normal(4, 256, 512, dtype=torch.bfloat16)
    torch.compiler.reset()
    run = torch.compile(model, backend=backend, options={"products": products})
    wanted = list(model.parameters())
    g = normal(4, 256, 512, dtype=torch.bfloat16, seed=3)
    y, exact = run(x), model(x)
    torch.testing.assert_close(y, exact, rtol=2e-2, atol=2e-2)
    for a, b in zip(
        torch.autograd.grad(y, wanted, g), torch.autograd.grad(exact, wanted, g), strict=True
    ):
        torch.testing.assert_close(a, b, rtol=3e-2, atol=0.3)


def test_auto_takes_a_large_linear_layer_with_its_function() -> None:

    x = normal(4, 2048, 4096, dtype=torch.bfloat16)
    w, b = normal(4096, 4096, dtype=torch.bfloat16, seed=1), normal(4096, dtype=torch.bfloat16)

    def layer(x: Any, w: Any, b: Any) -> Any:
        return nn.relu(nn.linear(x, w, b))

    report = explain(layer, x, w, b)
    assert any("mm" in op for op in report.graphs[0].taken), str(report)
    torch.compiler.reset()
    run = torch.compile(layer, backend=backend)
    torch.testing.assert_close(run(x, w, b), layer(x, w, b), rtol=2e-2, atol=0.5)
