"""Loops whose bodies ask which iteration it is: the index is a number that the host knows, so that
one place is read and written. Oracle, simulator, text, files, gradients and runtime agree."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from fake_cuda import FakeDriver
from fake_fixtures import gpu as gpu
from test_control_flow import (
    S,
    agree,
    close,
    draw,
    loops as loops,
    numbers as numbers,
    on_device,
    witnessed,
)

import fusewright as fw
from fusewright.fusion.text import parse_fusion

X = draw(9, 5)
TWICE = np.concatenate([X[:1] * 2, X[1:]])


def rows(f: Callable[[np.ndarray, int], np.ndarray], trips: int) -> np.ndarray:
    c = X.copy()
    for i in range(trips):
        c = f(c, i)
    return c


def put(c: np.ndarray, i: int, row: np.ndarray) -> np.ndarray:
    c = c.copy()
    c[i] = row
    return c


def test_a_block_at_the_index_is_written_in_place(gpu: FakeDriver) -> None:
    def fn(x: fw.Array) -> fw.Array:
        return fw.fori_loop(0, 8, lambda i, c: fw.insert(c, c[i : i + 1] * 2, (i + 1, 0)), x)

    program = agree(gpu, fn, [rows(lambda c, i: put(c, i + 1, c[i] * 2), 8)], X)
    (region,) = program.host.launches
    assert region.role == "region" and len(program.kernels) == 1
    assert not any("second place" in r.rule for r in program.reasons)
    (kernel,) = program.kernels
    assert str(kernel.outputs[0].shape) == "(1, 5)"  # the block, nothing around it


@pytest.mark.parametrize(
    ("read", "want"),
    [
        (lambda x, i: x[i], lambda i: X[i]),
        (lambda x, i: x[i + 1] * i, lambda i: X[i + 1] * i),
        (lambda x, i: x[8 - i], lambda i: X[8 - i]),
        (lambda x, i: x[i // 2], lambda i: X[i // 2]),
        (lambda x, i: x[i % 3], lambda i: X[i % 3]),
        (lambda x, i: x[fw.minimum(i, 2)], lambda i: X[min(i, 2)]),
        (lambda x, i: fw.tanh(fw.concat([x[:1] * 2, x[1:]]))[i], lambda i: np.tanh(TWICE[i])),
        (lambda x, i: fw.sum(x[i : i + 2], axis=0), lambda i: X[i : i + 2].sum(0)),
        (lambda x, i: fw.roll(x, i, axis=0)[3], lambda i: np.roll(X, i, axis=0)[3]),
        (lambda x, i: fw.pad(x[0, 2:], ((1, 1),))[:5] * i, lambda i: np.pad(X[0, 2:], 1) * i),
        (lambda x, i: fw.take(x, i, axis=0), lambda i: X[i]),
        (lambda x, i: fw.where(i < 3, x[0], x[1]), lambda i: X[0 if i < 3 else 1]),
        (lambda x, i: fw.sum(x[: i + 1], axis=0), lambda i: X[: i + 1].sum(0)),
        (lambda x, i: fw.cumulative_sum(x[i:], axis=0)[-1], lambda i: X[i:].sum(0)),
    ],
)
def test_what_is_read_at_the_index(gpu: FakeDriver, read: Any, want: Any) -> None:
    def fn(x: fw.Array) -> fw.Array:
        return fw.fori_loop(0, 8, lambda i, c: c * 0.5 + read(x, i), fw.zeros(5))

    c = np.zeros(5)
    for i in range(8):
        c = c * 0.5 + want(i)
    agree(gpu, fn, [c.astype(np.float32)], X)


def test_a_block_of_a_loop_inside_is_all_that_is_inserted(gpu: FakeDriver) -> None:
    def fn(x: fw.Array) -> fw.Array:
        def body(i: Any, c: Any) -> Any:
            inner = fw.fori_loop(0, 3, lambda _, v: v * 0.5 + 0.1, c * 0.1)
            return fw.insert(c, inner[i : i + 1], (i, 0))

        return fw.fori_loop(0, 9, body, x)

    agree(gpu, fn, [rows(lambda c, i: put(c, i, c[i] * 0.0125 + 0.175), 9)], X)


@pytest.mark.parametrize(("rows_of", "first"), [(1, 0), (3, 2)])
def test_the_index_of_a_single_trip_is_a_number(gpu: FakeDriver, rows_of: int, first: int) -> None:
    def fn(x: fw.Array) -> fw.Array:
        def body(i: Any, c: Any) -> Any:
            return fw.insert(c, c[i : i + 1] * 0.5 + fw.sum(c[:i], axis=0), (i, 0))

        return fw.fori_loop(first, first + 1, body, x)

    x = X[:rows_of]
    agree(gpu, fn, [put(x, first, x[first] * 0.5 + x[:first].sum(0))], x)


def test_bounds_may_be_symbols(gpu: FakeDriver) -> None:
    def fn(x: fw.Array, y: fw.Array) -> fw.Array:
        n = x.shape[0]
        return fw.fori_loop(1, n, lambda i, c: fw.insert(c, x[i : i + 1] + c[i - 1], (i, 0)), y)

    fusion = fw.trace(fn, S(("n", 5), "float32"), S(("n", 5), "float32"))
    assert str(parse_fusion(str(fusion))) == str(fusion)
    for n in (2, 3, 9):
        x, y = draw(n, 5), draw(n, 5)
        c = y.copy()
        for i in range(1, n):
            c[i] = x[i] + c[i - 1]
        witnessed(gpu, fusion, [c], x, y)


def test_loops_in_loops(gpu: FakeDriver) -> None:
    """The inner loop runs as often as the outer index says, and reads at both."""

    def outer(x: fw.Array, i: fw.Array, c: fw.Array) -> fw.Array:
        def inner(j: fw.Array, d: fw.Array) -> fw.Array:
            return fw.insert(d, fw.expand_dims(x[i] * 0.5 + d[j], 0), (i, 0))

        return fw.fori_loop(0, i + 1, inner, c)

    def fn(x: fw.Array) -> fw.Array:
        return fw.fori_loop(0, 4, lambda i, c: outer(x, i, c), x)

    c = X.copy()
    for i in range(4):
        for j in range(i + 1):
            c = put(c, i, X[i] * 0.5 + c[j])
    agree(gpu, fn, [c], X)


def test_loops_side_by_side_share_kernels(loops: str) -> None:
    def fn(x: fw.Array) -> list[fw.Array]:
        def sums(first: int, last: int) -> fw.Array:
            return fw.fori_loop(first, last, lambda i, c: c + x[i], x[0])

        return [sums(0, 4), sums(0, 4) * 2, sums(0, 7), sums(2, 6)]

    fusion = fw.trace(fn, S(X.shape, "float32"))
    laps = {f"lap{k}" for k in range(4) if f"lap{k} <" in str(fusion)}
    assert laps == {"lap0", "lap1"}  # four trips, and seven
    program = fw.compile(fusion)
    role = "region" if loops == "launches" else "kernel"
    of_loops = [x for x in program.launches if (x.region is None) == (role == "kernel")]
    assert len(of_loops) >= 4 and len({k.name for k in program.kernels}) < 8
    if role == "kernel":
        named = [k.name for k in program.kernels if k.name.startswith("fw_fori_loop_add")]
        assert len(named) == len(set(named)) == 3  # two loops are equal
    want = [X[0] + X[a:b].sum(0) for a, b in ((0, 4), (0, 4), (0, 7), (2, 6))]
    want[1] = want[1] * 2
    close(program.simulate(X).outputs, want)


def test_a_temporary_as_long_as_the_index_says_has_room(gpu: FakeDriver) -> None:
    """What lies between launches of a body has the bytes of its largest iteration."""

    def body(x: fw.Array, i: fw.Array, c: fw.Array) -> fw.Array:
        return c + fw.nn.softmax(x[: i + 2] @ x[: i + 2].T, axis=-1)[0, 0]

    def fn(x: fw.Array) -> fw.Array:
        return fw.fori_loop(0, 7, lambda i, c: body(x, i, c), fw.zeros(()))

    def softmax(z: np.ndarray) -> np.ndarray:
        e = np.exp(z - z.max(-1, keepdims=True))
        return e / e.sum(-1, keepdims=True)

    want = sum(softmax(X[: i + 2] @ X[: i + 2].T)[0, 0] for i in range(7))
    agree(gpu, fn, [np.float32(want)], X)


def test_gradients_go_back_through_the_index() -> None:
    def loss(x: fw.Array) -> fw.Array:
        def body(i: fw.Array, c: fw.Array) -> fw.Array:
            return fw.insert(c, fw.sin(c[i : i + 1]) * x[i + 1], (i + 1, 0))

        return fw.sum(fw.fori_loop(0, 8, body, x) * fw.arange(5))

    def value(x: np.ndarray) -> float:
        c = x.astype(np.float64)
        for i in range(8):
            c = put(c, i + 1, np.sin(c[i]) * x[i + 1])
        return float((c * np.arange(5)).sum())

    program = fw.compile(fw.trace(fw.grad(loss), S(X.shape, "float32")))
    result = program.simulate(X)
    step = 1e-5
    want = np.zeros_like(X, np.float64)
    for at in np.ndindex(*X.shape):
        d = np.zeros_like(X, np.float64)
        d[at] = step
        want[at] = (value(X + d) - value(X - d)) / (2 * step)
    assert result.races == []
    np.testing.assert_allclose(result.outputs[0], want, atol=1e-4)


def test_a_program_that_was_pickled(gpu: FakeDriver) -> None:
    def fn(x: fw.Array) -> fw.Array:
        c = fw.fori_loop(0, 8, lambda i, c: fw.insert(c, c[i : i + 1] * 2, (i + 1, 0)), x)
        return fw.fori_loop(0, 3, lambda i, c: c + x[i], c)

    program = fw.compile(fw.trace(fn, S(X.shape, "float32")))
    loaded = pickle.loads(pickle.dumps(program))
    want = rows(lambda c, i: put(c, i + 1, c[i] * 2), 8) + X[:3].sum(0)
    close(loaded.simulate(X).outputs, [want])
    close(on_device(loaded, X), [want])


def test_every_sync_of_a_body_is_judged() -> None:
    def fn(x: fw.Array) -> fw.Array:
        return fw.fori_loop(0, 3, lambda i, c: c + fw.nn.softmax(x[i], axis=-1), fw.zeros(700))

    program = fw.compile(fw.trace(fn, S((4, 700), "float32")))
    report = fw.verify(program)
    assert report.missing == [] and report.redundant == []


REFUSED: dict[str, tuple[Callable[[fw.Array], Any], str]] = {
    "a row behind the last one": (
        lambda x: fw.fori_loop(0, 9, lambda i, c: c + x[i + 1], x[0]),
        r"index lap \+ 1 may be outside size 9",
    ),
    "a block that does not fit": (
        lambda x: fw.fori_loop(0, 9, lambda i, c: fw.insert(c, c[:2], (i, 0)), x),
        "may not fit size 9",
    ),
    "a state that grows": (
        lambda x: fw.fori_loop(0, 9, lambda i, c: x[: i + 1], x),
        "shapes and dtypes stay",
    ),
    "an index that got away": (
        lambda x: _escaped(x),
        "depends on the index of a loop that has ended",
    ),
    "a size that has the name of an index": (
        lambda x: fw.trace(lambda y: y, fw.TensorSpec(("lap0",), "float32")),
        "which count iterations",
    ),
}


def _escaped(x: fw.Array) -> fw.Array:
    kept: list[fw.Array] = []

    def body(i: fw.Array, c: fw.Array) -> fw.Array:
        kept.append(i)
        return c + i

    return fw.fori_loop(0, 4, body, x) + kept[0]


@pytest.mark.parametrize("case", list(REFUSED))
def test_it_is_refused(case: str) -> None:
    fn, message = REFUSED[case]
    with pytest.raises(fw.FusewrightError, match=message):
        fw.trace(fn, S(X.shape, "float32"))


@pytest.mark.parametrize("put", ["lap1 < 4", "lap0 < 5"])
def test_a_text_that_is_wrong(put: str) -> None:
    text = str(
        fw.trace(lambda x: fw.fori_loop(0, 4, lambda i, c: c + x[i], x[0]), S(X.shape, "float32"))
    )
    assert "for lap0 < 4:" in text
    with pytest.raises(fw.SpecError):
        parse_fusion(text.replace("lap0 < 4", put))
