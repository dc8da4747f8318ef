"""Loops and branches on a device: launched by the host, and as graphs with conditions in them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fusewright as fw

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.gpu

RNG = np.random.default_rng(7)


def draw(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def recurrent(h: Any, xs: Any, w: Any) -> Any:
    def step(h: Any, x: Any) -> Any:
        h = fw.tanh(h @ w + x)
        return h, h * 2

    return fw.scan(step, h, xs)


def moved(x: Any) -> Any:
    return fw.fori_loop(0, 7, lambda i, v: fw.roll(v, 1, axis=1) * 0.5 + fw.astype(i, "float32"), x)


def nested(x: Any, xs: Any) -> Any:
    def step(c: Any, a: Any) -> Any:
        c = c + a
        return c, fw.fori_loop(0, 3, lambda k, v: fw.roll(v, 1, axis=1) * 0.5 + a, c)

    return fw.scan(step, x, xs, reverse=True)


def halved(x: Any) -> Any:
    return fw.while_loop(lambda s: fw.sum(s[1]) > 1, lambda s: (s[0] + 1, s[1] / 2), (0, x))


def rolled(x: Any) -> Any:
    return fw.while_loop(lambda v: fw.max(v) < 100, lambda v: fw.roll(v, 1, axis=1) * 2, x)


def branched(x: Any, y: Any) -> Any:
    z = y * 2
    return fw.cond(fw.sum(x) > 0, lambda a: (fw.exp(a) + z, z), lambda a: (a - fw.sum(a), a), x)


def alternating(x: Any) -> Any:
    return fw.fori_loop(
        0, 9, lambda i, v: fw.cond(fw.sum(v) > 0, lambda a: a * 0.5 - 1, lambda a: a + 1, v), x
    )


def searched(x: Any) -> Any:
    def step(c: Any, a: Any) -> Any:
        return c, fw.while_loop(lambda v: fw.max(v) < 50, lambda v: fw.flip(v, axis=0) * 3, a)

    return fw.scan(step, fw.sum(x), x)[1]


CASES: list[tuple[Callable[..., Any], tuple[np.ndarray, ...]]] = [
    *((recurrent, (draw(3, n), draw(6, 3, n), draw(n, n))) for n in (64, 5)),
    (moved, (draw(33, 129),)),
    (nested, (draw(3, 5), draw(4, 3, 5))),
    (halved, (np.abs(draw(7, 33)) + 1,)),
    (halved, (np.zeros((7, 33), np.float32),)),
    (rolled, (np.abs(draw(17, 31)),)),
    (branched, (np.abs(draw(9, 31)), draw(9, 31))),
    (branched, (-np.abs(draw(9, 31)), draw(9, 31))),
    (alternating, (draw(64, 65),)),
    (searched, (np.abs(draw(4, 5, 7)) + 0.1,)),
]


@pytest.mark.parametrize("execution", ["stream", "graph"])
@pytest.mark.parametrize("number", range(len(CASES)))
def test_the_device_computes_what_the_oracle_does(number: int, execution: Any) -> None:
    fn, arrays = CASES[number]
    fusion = fw.trace(fn, *(fw.TensorSpec(a.shape, a.dtype.name) for a in arrays))
    program = fw.compile(fusion)
    want = fw.evaluate(fusion, *arrays)
    given = [torch.from_numpy(a).cuda() for a in arrays]
    with fw.config(execution=execution):
        for _ in range(6):  # in two places in turn: the third and fourth call record
            found = program(*given)
            for a, b in zip(found, want, strict=True):
                np.testing.assert_allclose(a.cpu().numpy(), b, rtol=2e-4, atol=2e-4)


def test_loops_of_known_trips_are_captured() -> None:
    x = torch.randn(33, 129, device="cuda")
    f = fw.fuse(moved)
    want = f(x)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        f(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = f(x)
    graph.replay()
    torch.testing.assert_close(y, want, rtol=0, atol=0)


def test_a_condition_under_capture_is_refused() -> None:
    """That of a loop whose state no block holds; smaller ones are a launch, and recorded as one."""
    x = torch.ones(700, 330, device="cuda")
    f = fw.fuse(halved)
    f(x)
    with (
        pytest.raises(fw.UserError, match="the host reads its condition"),
        torch.cuda.graph(torch.cuda.CUDAGraph()),
    ):
        f(x)
    assert int(f(x)[0]) > 0
