"""Forward mode: derivatives in a direction against differences in float64, and against torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from test_gradients import BINARY, UNARY

import fusewright as fw

Function = Callable[..., Any]
STEP = 1e-6


def _trace(fn: Function, *arrays: np.ndarray) -> fw.Fusion:
    return fw.trace(fn, *(fw.TensorSpec(a.shape, a.dtype.name) for a in arrays))


def check(fn: Function, *arrays: np.ndarray, kernels: bool = False) -> None:
    """The results, and their slopes along a random direction, against central differences."""
    rng = np.random.default_rng(11)
    moves = [rng.normal(size=a.shape) for a in arrays]
    n = len(arrays)
    fusion = _trace(lambda *xs: fw.jvp(fn, xs[:n], xs[n:]), *arrays, *moves)
    made = fw.evaluate(fusion, *arrays, *moves)
    plain = _trace(fn, *arrays)
    half = len(plain.outputs)
    for y, found in zip(fw.evaluate(plain, *arrays), made[:half], strict=True):
        np.testing.assert_array_equal(found, y)
    ends = [
        fw.evaluate(plain, *(a + s * STEP * v for a, v in zip(arrays, moves, strict=True)))
        for s in (1, -1)
    ]
    for found, *pair in zip(made[half:], *ends, strict=True):
        slope = (pair[0] - pair[1]) / (2 * STEP)
        np.testing.assert_allclose(found, slope, rtol=2e-5, atol=2e-6)
    if kernels:
        result = fw.compile(fusion).simulate(*arrays, *moves)
        assert result.races == []
        for found, want in zip(result.outputs, made, strict=True):
            np.testing.assert_allclose(found, want, rtol=1e-9, atol=1e-9)


def draw(*shape: int, low: float = -1.0, high: float = 1.0) -> np.ndarray:
    return np.random.default_rng(5).uniform(low, high, shape)


@pytest.mark.parametrize("name", UNARY)
def test_functions_of_one_operand(name: str) -> None:
    fn, low, high = UNARY[name]
    check(fn, draw(7, low=low, high=high))


@pytest.mark.parametrize("name", BINARY)
def test_functions_of_two_operands(name: str) -> None:
    check(BINARY[name], draw(5, low=0.3, high=2), draw(5, low=0.4, high=2.2)[::-1].copy())


ROWS = np.array([2, 0, 2, 1])
OTHERS: dict[str, tuple[Function, tuple[int, ...]]] = {
    "sum": (lambda x: fw.sum(x * x, axis=1), (5, 7)),
    "prod": (lambda x: fw.prod(x, axis=0), (3, 4)),
    "max": (lambda x: fw.max(x, axis=1), (5, 7)),
    "var": (lambda x: fw.var(x, axis=0), (5, 7)),
    "logsumexp": (lambda x: fw.logsumexp(x, axis=1), (5, 7)),
    "softmax": (lambda x: fw.nn.softmax(x, axis=-1), (5, 7)),
    "layer norm": (lambda x: fw.nn.layer_norm(x, (7,)), (5, 7)),
    "gelu": (fw.nn.gelu, (5, 7)),
    "matmul": (lambda x: x @ x.T, (5, 7)),
    "einsum": (lambda x: fw.einsum("ij,kj->ik", x, fw.sin(x)), (5, 3)),
    "scan": (lambda x: fw.cumulative_sum(x, axis=1), (5, 7)),
    "products of a scan": (lambda x: fw.cumulative_prod(x, axis=1), (3, 4)),
    "largest so far": (lambda x: fw.cumulative_max(x, axis=1), (3, 6)),
    "sort": (lambda x: fw.sort(x, axis=1), (3, 6)),
    "largest three": (lambda x: fw.topk(x, 3)[0], (3, 6)),
    "take": (lambda x: fw.take(x, fw.asarray(ROWS), axis=0), (3, 4)),
    "scatter": (lambda x: fw.scatter_add(fw.zeros((3, 2), dtype=fw.float64), fw.asarray(ROWS), x),
                (4, 2)),
    "slices": (lambda x: x[1:, ::2] * x[:-1, 1::2], (5, 6)),
    "pad": (lambda x: fw.pad(x, ((1, 2), (0, 0))), (3, 4)),
    "concat": (lambda x: fw.concat([x, fw.exp(x)], axis=1), (3, 4)),
    "permute": (lambda x: fw.reshape(x.T, (-1,)), (3, 4)),
    "insert": (lambda x: fw.insert(fw.zeros((4, 4), dtype=fw.float64), x * x, (1, 0)), (2, 4)),
    "pool": (lambda x: fw.nn.max_pool2d(x, 2), (1, 2, 4, 6)),
    "convolution": (lambda x: fw.nn.conv1d(x, fw.sin(x[:, :, :3])), (2, 2, 6)),
    "loop": (lambda x: fw.fori_loop(0, 3, lambda i, c: fw.sin(c) + c * x, x), (3, 4)),
    "condition": (
        lambda x: fw.cond(fw.sum(x) > -100.0, lambda y: y * y, lambda y: y, x), (3, 4)
    ),
    "scan over rows": (lambda x: fw.scan(lambda c, r: (c * r, c + r), x[0], x)[1], (4, 3)),
    "a rule": (
        fw.custom_vjp(fw.exp, lambda x: ((y := fw.exp(x)), y), lambda y, g: (g * y,)), (3, 4)
    ),
    "several results": (lambda x: (fw.sin(x), fw.sum(x), x), (3, 4)),
}  # fmt: skip


@pytest.mark.parametrize("name", OTHERS)
def test_operations(name: str) -> None:
    fn, shape = OTHERS[name]
    check(fn, draw(*shape, low=0.2, high=1.3), kernels=True)


def test_structures_constants_and_results_that_are_no_floats() -> None:
    def fn(p: Any, n: Any) -> Any:
        return {"y": p["w"] * n, "at": fw.argmax(p["w"]), "same": n * 2.0}

    def directional(w: Any, n: Any, v: Any) -> Any:
        return fw.jvp(lambda p: fn(p, n), ({"w": w},), ({"w": v},))

    w, n, v = draw(4), draw(4), np.ones(4)
    value, tangent = fw.fuse(directional, device="sim")(w, n, v)
    np.testing.assert_array_equal(value["y"], w * n)
    np.testing.assert_array_equal(tangent["y"], n)
    assert tangent["at"].dtype == value["at"].dtype and tangent["at"] == 0
    np.testing.assert_array_equal(tangent["same"], np.zeros(4))


def test_has_aux() -> None:
    x, v = draw(4), draw(4) + 1
    f = fw.fuse(lambda x, v: fw.jvp(lambda a: (a * a, a + 1), (x,), [v], has_aux=True))
    y, tangent, aux = f(x, v)
    for found, want in ((y, x * x), (tangent, 2 * x * v), (aux, x + 1)):
        np.testing.assert_allclose(found, want)


def test_with_maps_and_gradients() -> None:
    """A map of directions is a Jacobian; a direction of a gradient is a row of second derivatives,
    and the gradient of a slope is the same row."""

    def fn(x: Any) -> Any:
        return fw.sin(x[0] * x[1:]) * x[2]

    x = draw(4, low=0.3, high=1.2)
    jacobian = fw.vmap(lambda v, x: fw.jvp(fn, (x,), (v,))[1], (0, None), 1)
    backward = fw.vmap(lambda g, x: fw.vjp(fn, x)[1](g)[0], (0, None))
    wide = _trace(lambda x: jacobian(fw.eye(4, dtype=x.dtype), x), x)
    tall = _trace(lambda x: backward(fw.eye(3, dtype=x.dtype), x), x)
    (forward,), (reverse,) = fw.evaluate(wide, x), fw.evaluate(tall, x)
    assert forward.shape == (3, 4)
    np.testing.assert_allclose(forward, reverse, rtol=1e-12)
    rows = _trace(lambda x, v: fw.jvp(fw.vmap(fn), (x,), (v,))[1], draw(2, 4), draw(2, 4))
    a, b = draw(2, 4, low=0.3), draw(2, 4, low=0.1)
    each = [fw.evaluate(wide, r)[0] @ d for r, d in zip(a, b, strict=True)]
    np.testing.assert_allclose(fw.evaluate(rows, a, b)[0], each, rtol=1e-12)

    def loss(x: Any) -> Any:
        return fw.sum(fn(x) ** 2)

    v = draw(4) + 2
    over = _trace(lambda x, v: fw.jvp(fw.grad(loss), (x,), (v,))[1], x, v)
    under = _trace(lambda x, v: fw.grad(lambda a: fw.jvp(loss, (a,), (v,))[1])(x), x, v)
    np.testing.assert_allclose(*(fw.evaluate(f, x, v)[0] for f in (over, under)), rtol=1e-10)
    twice = fw.jvp
    second = _trace(lambda x, v: twice(lambda a: twice(loss, (a,), (v,))[1], (x,), (v,))[1], x, v)
    np.testing.assert_allclose(
        fw.evaluate(second, x, v)[0], fw.evaluate(over, x, v)[0] @ v, rtol=1e-10
    )


def test_what_is_computed_of_the_cotangent_is_left_out() -> None:
    """Value and tangent of a softmax are one kernel that reads two arrays and writes two."""
    spec = fw.TensorSpec((64, 1024), "float32")
    pair = fw.trace(
        lambda x, v: fw.jvp(lambda a: fw.nn.softmax(a, axis=-1), (x,), (v,)), spec, spec
    )
    program = fw.compile(pair)
    assert len(program.kernels) == 1 and program.host.stats["bytes_moved"] == 4 * 64 * 1024 * 4


def test_refusals() -> None:
    spec, whole = fw.TensorSpec((4,), "float32"), fw.TensorSpec((4,), "int32")
    refused: list[tuple[Callable[..., Any], fw.TensorSpec, str]] = [
        (lambda x: fw.jvp(fw.sin, x, x), spec, r"jvp: primals is .*must be a tuple with one part"),
        (lambda x: fw.jvp(fw.sin, (x,), x), spec, r"jvp: tangents is .*must be a tuple"),
        (lambda x: fw.jvp(fw.sin, (x,), (x, x)), spec, r"jvp: the tangents .*another structure"),
        (lambda x: fw.jvp(fw.sin, (x,), (x[:2],)), spec, r"a tangent is float32\(2,\), its value"),
        (lambda x: fw.jvp(fw.sin, (x,), (fw.astype(x, "float16"),)), spec, "a tangent is float16"),
        (lambda x: fw.jvp(lambda a: a * 1.0, (x,), (x,)), whole, "with respect to floats"),
        (lambda x: fw.jvp(fw.sin, (x,), (x,), has_aux=True), spec, r"jvp\(has_aux=True\): the"),
        (lambda x: fw.jvp(lambda a: 3, (x,), (x,)), spec, r"returned 3; it must return arrays"),
    ]  # fmt: skip
    for fn, given, message in refused:
        with pytest.raises(fw.UserError, match=message):
            fw.trace(fn, given)

    def doubled(a: Any) -> Any:
        return fw.while_loop(lambda c: fw.sum(c) < 9.0, lambda c: c * 2.0, a)

    with pytest.raises(fw.UnsupportedError, match="while_loop has no derivative"):
        fw.trace(lambda x: fw.jvp(doubled, (x,), (x,)), spec)


@pytest.mark.parametrize("name", ["softmax", "gelu", "matmul", "layer norm", "products of a scan"])
def test_as_torch_has_it(name: str) -> None:
    torch = pytest.importorskip("torch")
    theirs: dict[str, Function] = {
        "softmax": lambda x: torch.nn.functional.softmax(x, dim=-1),
        "gelu": torch.nn.functional.gelu,
        "matmul": lambda x: x @ x.T,
        "layer norm": lambda x: torch.nn.functional.layer_norm(x, (7,)),
        "products of a scan": lambda x: torch.cumprod(x, dim=1),
    }
    ours, shape = OTHERS[name]
    x, v = draw(*shape), draw(*shape) * 2 + 1
    wanted = torch.func.jvp(theirs[name], (torch.asarray(x),), (torch.asarray(v),))
    found = fw.evaluate(_trace(lambda x, v: fw.jvp(ours, (x,), (v,)), x, v), x, v)
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(a, b.numpy(), rtol=1e-10, atol=1e-12)
