"""Random loops, some in others, against numpy: by the oracle, the simulator, and the runtime."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from fake_cuda import FakeDriver
from fake_fixtures import gpu as gpu
from test_control_flow import S, close, draw, loops as loops, numbers as numbers, on_device

import fusewright as fw

SHAPES = [(), (1,), (5,), (7, 3), (3, 7), (2, 5, 3), (17, 33)]

Op = Callable[[Any, Any], Any]
"""A function of the namespace, fw or numpy, and an array; bounded, so that loops stay finite."""
SAME: list[Op] = [
    lambda xp, a: xp.sin(a),
    lambda xp, a: a * 0.5 - 0.25,
    lambda xp, a: xp.tanh(a),
    lambda xp, a: a / (1 + xp.abs(a)),
    lambda xp, a: xp.where(a > 0, a * 0.5, -a),
    lambda xp, a: xp.cos(a + xp.sum(a) * 0.01),
]
WIDE: list[Op] = [
    lambda xp, a: xp.roll(a, 1, axis=-1),
    lambda xp, a: xp.flip(a, axis=0),
    lambda xp, a: a * 0.5 - xp.mean(a, axis=-1, keepdims=True),
    lambda xp, a: a * 0.5 - xp.max(a, axis=0, keepdims=True) * 0.25,
    lambda xp, a: xp.concat([a[1:], a[:1] * 0.5], axis=0),
]


@dataclass
class Draw:
    """A random function of carried values, slices and one shared array."""

    rng: np.random.Generator
    shapes: list[tuple[int, ...]]

    def pick(self, shape: tuple[int, ...]) -> Op:
        table = SAME + (WIDE if shape else [])
        return table[int(self.rng.integers(len(table)))]

    def body(self) -> Callable[..., list[Any]]:
        """Makes of carried values new ones: functions of each, some added up, some exchanged."""
        steps = [[self.pick(s) for _ in range(int(self.rng.integers(1, 4)))] for s in self.shapes]
        mixes = [int(self.rng.integers(len(self.shapes))) for _ in self.shapes]
        kept = int(self.rng.integers(0, 6))

        def made(xp: Any, state: list[Any], extra: Any) -> list[Any]:
            out: list[Any] = []
            for k, chain in enumerate(steps):
                a = state[k]
                for f in chain:
                    a = f(xp, a)
                other = state[mixes[k]]
                like = self.shapes[mixes[k]] == self.shapes[k]
                a = a + other * 0.125 if like else a + xp.sum(other) * 0.01
                out.append(a + extra * 0.5 if extra is not None else a)
            if kept < len(out):
                out[kept] = state[kept]
            return out

        return made


def drawn(seed: int) -> tuple[Callable[..., Any], list[np.ndarray], list[np.ndarray]]:
    """A program, its arguments, and what numpy computes in float64."""
    rng = np.random.default_rng(seed)
    d = Draw(rng, [SHAPES[int(k)] for k in rng.integers(0, len(SHAPES), rng.integers(1, 4))])
    outer, inner = d.body(), d.body()
    trips, laps = int(rng.integers(0, 5)), int(rng.integers(0, 4))
    is_scan, reverse, nests = (bool(b) for b in rng.integers(0, 2, 3))
    start = [np.asarray(draw(*s) * 0.5, np.float32) for s in d.shapes]
    xs = draw(max(trips, 1), 5)[:trips] if trips else draw(1, 5)[:0]

    def lap(xp: Any, state: list[Any], extra: Any) -> list[Any]:
        state = outer(xp, state, extra)
        if not nests:
            return state
        if xp is np:
            for _ in range(laps):
                state = inner(xp, state, extra)
            return state
        return fw.fori_loop(0, laps, lambda i, s: inner(fw, s, extra), state)

    def program(xs: Any, *values: Any) -> Any:
        if not is_scan:
            found = fw.fori_loop(
                0, trips, lambda i, s: lap(fw, s, fw.astype(i, "float32") * 0.1), list(values)
            )
            return [*found, xs]

        def step(state: Any, x: Any) -> Any:
            state = lap(fw, state, x[0])
            return state, (state[0], x * 2)

        found, ys = fw.scan(step, list(values), xs, reverse=reverse)
        return [*found, *ys]

    state: list[Any] = [a.astype(np.float64) for a in start]
    ys = np.zeros((trips, *d.shapes[0])), xs * 2.0
    for n in range(trips):
        i = trips - 1 - n if is_scan and reverse else n
        state = lap(np, state, float(xs[i, 0]) if is_scan else i * 0.1)
        ys[0][i] = state[0]
    return program, [xs, *start], [*state, *ys] if is_scan else [*state, xs]


def check(gpu: FakeDriver, seed: int) -> None:
    program, arrays, want = drawn(seed)
    fusion = fw.trace(program, *(S(a.shape, "float32") for a in arrays))
    close(fw.evaluate(fusion, *arrays), want)
    p = fw.compile(fusion)
    result = p.simulate(*arrays)
    assert result.races == []
    close(result.outputs, want)
    close(p.run_cuda(*arrays), want)
    close(on_device(p, *arrays), want)


@pytest.mark.parametrize("seed", range(8))
def test_a_random_loop(gpu: FakeDriver, seed: int) -> None:
    check(gpu, seed)


@pytest.mark.fuzz
@pytest.mark.parametrize("seed", range(100, 300))
def test_many_random_loops(gpu: FakeDriver, seed: int) -> None:
    check(gpu, seed)
