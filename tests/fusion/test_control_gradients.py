"""Gradients of loops and branches: differences of the oracle, and the kernels of the backward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fusewright as fw

RNG = np.random.default_rng(5)
STEP = 1e-3


def draw(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape) * 0.5


def recurrent(h: Any, xs: Any, w: Any) -> Any:
    def step(h: Any, x: Any) -> Any:
        h = fw.tanh(h @ w + x)
        return h, h * h

    h, ys = fw.scan(step, h, xs)
    return fw.sum(h * 2) + fw.sum(ys * ys)


def counted(x: Any, w: Any) -> Any:
    def body(i: Any, v: Any) -> Any:
        return fw.roll(v, 1, axis=0) * w + fw.astype(i, "float64") * v * v

    return fw.sum(fw.fori_loop(1, 4, body, x))


def branched(x: Any, y: Any) -> Any:
    return fw.sum(fw.cond(fw.sum(x) > 0, lambda a: fw.exp(a) * y, lambda a: a * a, x))


def nested(x: Any, xs: Any) -> Any:
    def step(c: Any, a: Any) -> Any:
        c = fw.sin(c + a)
        return c, fw.fori_loop(0, 2, lambda k, v: v * v * 0.5 + a, c)

    c, ys = fw.scan(step, x, xs, reverse=True)
    return fw.sum(c) + fw.sum(ys)


def counter_beside(x: Any) -> Any:
    def step(s: Any, _: Any) -> Any:
        n, v = s
        return (n + 1, v * fw.astype(n, "float64")), None

    return fw.sum(fw.scan(step, (1, x), None, length=3)[0][1])


def not_at_all(x: Any, y: Any) -> Any:
    return fw.sum(fw.fori_loop(0, 2, lambda i, v: v * 0.5 + fw.round(y), x))


CASES: list[tuple[Callable[..., Any], tuple[np.ndarray, ...]]] = [
    (recurrent, (draw(2, 3), draw(4, 2, 3), draw(3, 3))),
    (counted, (draw(5), draw(5))),
    (branched, (np.abs(draw(3)), draw(3))),
    (branched, (-np.abs(draw(3)), draw(3))),
    (nested, (draw(3), draw(2, 3))),
    (counter_beside, (draw(3),)),
]


def differences(f: Callable[..., Any], arrays: tuple[np.ndarray, ...], k: int) -> np.ndarray:
    fusion = fw.trace(f, *(fw.TensorSpec(a.shape, "float64") for a in arrays))
    out = np.zeros(arrays[k].shape)
    for at in np.ndindex(*out.shape):
        moved = [[a.copy() for a in arrays] for _ in range(2)]
        moved[0][k][at] += STEP
        moved[1][k][at] -= STEP
        high, low = (fw.evaluate(fusion, *given)[0] for given in moved)
        out[at] = (high - low) / (2 * STEP)
    return out


@pytest.mark.parametrize("number", range(len(CASES)))
def test_a_gradient_is_what_differences_show(number: int) -> None:
    f, arrays = CASES[number]
    specs = [fw.TensorSpec(a.shape, "float64") for a in arrays]
    fusion = fw.trace(fw.grad(f, tuple(range(len(arrays)))), *specs)
    found = fw.evaluate(fusion, *arrays)
    for k, g in enumerate(found):
        np.testing.assert_allclose(g, differences(f, arrays, k), rtol=1e-4, atol=1e-5)
    result = fw.compile(fusion).simulate(*arrays)
    assert result.races == []
    for a, b in zip(result.outputs, found, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)


def test_results_of_one_loop_go_back_in_one_loop() -> None:
    specs = [fw.TensorSpec(a.shape, "float64") for a in CASES[0][1]]
    values = fw.trace(fw.grad(recurrent, (0, 1, 2)), *specs).values
    calls = {t.op.bodies for t in values if type(t.op).__name__ == "Region"}
    assert len(calls) == 3  # forward, forward once more to keep the states, backward


def test_names_outside_of_a_loop_stay() -> None:
    def f(x: Any) -> Any:
        n = fw.name(fw.astype(x, "int64") + 1, "counts")
        return fw.sum(fw.fori_loop(0, 2, lambda i, v: v * fw.astype(n, "float32"), x))

    assert "counts: " in str(fw.trace(fw.grad(f), "f32[4]"))


def test_what_rounds_has_no_gradient_here_either() -> None:
    x, y = draw(3), draw(3)
    specs = [fw.TensorSpec((3,), "float64")] * 2
    found = fw.evaluate(fw.trace(fw.grad(not_at_all, (0, 1)), *specs), x, y)
    np.testing.assert_allclose(found[0], np.full(3, 0.25))
    np.testing.assert_array_equal(found[1], np.zeros(3))


def _stopped(x: Any) -> Any:
    return x * fw.stop_gradient(fw.sin(x)) + x


def _hundredfold(x: Any) -> Any:
    rule = fw.custom_vjp(lambda v: v * v, lambda v: (v * v, v), lambda v, g: (g * v * 100.0,))
    return rule(x)


RULED: dict[str, Callable[[Any], Any]] = {
    "a constant": _stopped,
    "a rule of the program": _hundredfold,
    "a sort": lambda x: fw.sort(fw.sin(x)) * x,
    "the largest": lambda x: x * fw.sum(fw.topk(fw.cos(x), 2)[0]),
    "a softmax": lambda x: fw.nn.softmax(x, axis=0),
    "a rule in a map": lambda x: fw.vmap(_hundredfold)(x),
}


@pytest.mark.parametrize("name", RULED)
@pytest.mark.parametrize("way", ["fori_loop", "scan", "cond", "a loop in a loop"])
def test_rules_that_values_have_hold_inside_of_bodies(name: str, way: str) -> None:
    """Against the same program with its loop written out."""
    fn = RULED[name]

    def looped(x: Any) -> Any:
        if way == "fori_loop":
            return fw.sum(fw.fori_loop(0, 3, lambda i, v: fn(v), x) * x)
        if way == "scan":
            c, y = fw.scan(lambda c, v: (fn(c) + v, fn(c)), x, fw.stack([x, x * 2, x * 3]))
            return fw.sum(c) + fw.sum(y)
        if way == "cond":
            return fw.sum(fw.cond(fw.sum(x) < 1e9, fn, lambda v: v, x) * x)
        inner: Callable[[Any], Any] = lambda v: fw.fori_loop(0, 2, lambda i, v: fn(v), v)  # noqa: E731
        return fw.sum(fw.fori_loop(0, 2, lambda i, v: inner(v), x))

    def written_out(x: Any) -> Any:
        if way == "fori_loop":
            return fw.sum(fn(fn(fn(x))) * x)
        if way == "scan":
            c, total = x, fw.sum(fw.zeros_like(x))
            for k in (1, 2, 3):
                y = fn(c)
                c, total = y + x * k, total + fw.sum(y)
            return fw.sum(c) + total
        return fw.sum(fn(x) * x) if way == "cond" else fw.sum(fn(fn(fn(fn(x)))))

    x = np.array([0.3, -0.4, 0.9])
    spec = fw.TensorSpec((3,), "float64")
    fusion = fw.trace(fw.grad(looped), spec)
    (found,) = fw.evaluate(fusion, x)
    (want,) = fw.evaluate(fw.trace(fw.grad(written_out), spec), x)
    np.testing.assert_allclose(found, want, rtol=1e-9)
    (simulated,) = fw.compile(fusion).simulate(x).outputs
    np.testing.assert_allclose(simulated, want, rtol=1e-9)


def test_a_rule_reads_what_lies_around_its_loop() -> None:
    """Its way back uses an array that the way forward does not."""

    def loss(x: Any, w: Any) -> Any:
        rule = fw.custom_vjp(lambda v: v * 2.0, lambda v: (v * 2.0, None), lambda _, g: (g * w,))
        return fw.sum(fw.fori_loop(0, 2, lambda i, v: rule(v), x))

    x, w = draw(3), draw(3)
    spec = fw.TensorSpec((3,), "float64")
    (g,) = fw.evaluate(fw.trace(fw.grad(loss), spec, spec), x, w)
    np.testing.assert_allclose(g, w * w)


def test_a_length_that_is_a_symbol() -> None:
    fusion = fw.trace(
        fw.grad(recurrent, (0, 1, 2)),
        fw.TensorSpec((2, 3), "float64"),
        fw.TensorSpec(("n", 2, 3), "float64"),
        fw.TensorSpec((3, 3), "float64"),
    )
    program = fw.compile(fusion)
    for n in (2, 5):
        arrays = draw(2, 3), draw(n, 2, 3), draw(3, 3)
        found = fw.evaluate(fusion, *arrays)
        np.testing.assert_allclose(
            found[2], differences(recurrent, arrays, 2), rtol=1e-4, atol=1e-5
        )
        for a, b in zip(program.simulate(*arrays).outputs, found, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-9)
