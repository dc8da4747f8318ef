"""Loops and branches: what numpy computes, the oracle, the simulator and the runtime compute too.

The runtime runs on a driver whose kernels are simulated: it binds, copies and launches as on a GPU.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_cuda import FakeDriver
from fake_fixtures import gpu as gpu

import fusewright as fw
from fusewright.fusion.text import parse_fusion
from fusewright.kernel import shaped_view
from fusewright.programs import whole_loops
from fusewright.runtime.executor import span
from fusewright.runtime.graphs import MAX_EXECUTABLES

S = fw.TensorSpec
RNG = np.random.default_rng(16)


@pytest.fixture(autouse=True, params=["launches", "kernel"])
def loops(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Loops as launches of their bodies, and as one kernel wherever that is possible."""
    how: str = request.param
    if how == "launches":
        by_launches(monkeypatch)
    return how


def by_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has iterations be launches."""
    for name in ("whole_loop", "loop_of_block"):
        monkeypatch.setattr(whole_loops, name, lambda *_: "a test asks for launches")


@pytest.fixture(autouse=True)
def numbers() -> None:
    """Each test draws the same numbers, whichever ran before it."""
    RNG.bit_generator.state = np.random.default_rng(16).bit_generator.state


def draw(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def agree(
    gpu: FakeDriver, fn: Callable[..., Any], want: list[np.ndarray], *arrays: np.ndarray
) -> fw.Program:
    """The program of a function that computes what is wanted, by all witnesses."""
    fusion = fw.trace(fn, *(S(a.shape, a.dtype.name) for a in arrays))
    assert str(parse_fusion(str(fusion))) == str(fusion)
    return witnessed(gpu, fusion, want, *arrays)


def witnessed(
    gpu: FakeDriver, fusion: fw.Fusion, want: list[np.ndarray], *arrays: np.ndarray
) -> fw.Program:
    close(fw.evaluate(fusion, *arrays), want)
    program = fw.compile(fusion)
    result = program.simulate(*arrays)
    assert result.races == []
    close(result.outputs, want)
    close(program.run_cuda(*arrays), want)
    close(on_device(program, *arrays), want)
    return program


def on_device(program: fw.Program, *arrays: np.ndarray) -> list[np.ndarray]:
    """The results of a replayed graph, in which conditions are nodes: of the second call, as the
    host launches the first one."""
    calls = program.calls
    sizes = program.symbol_values(arrays)
    executor, held = calls.executor, []
    plan = executor.plan(sizes)
    if any(x.region for x in program.launches):
        assert plan.replays("graph") and plan.replays("auto") and not plan.replays("stream")
    types = executor.result_types(sizes)
    own = [np.empty(span(s, t), d.numpy) for s, t, d in types]
    read = [np.array(a) for a in calls._flat(list(arrays), sizes)]
    roots = [aligned(a, held) for a in read]
    places: list[int] = []
    for a, h in zip(own, executor.holders, strict=True):
        places.append(aligned(a, held) if h is None else roots[h])
    roots += [p for p, h in zip(places, executor.holders, strict=True) if h is None]
    if plan.arena_nbytes:
        roots.append(aligned(np.full(plan.arena_nbytes, 0xFF, np.uint8), held))
    given = [(p, ctypes.string_at(p, a.nbytes)) for p, a in zip(roots, read, strict=False)]
    for _ in range(2):
        for p, content in given:
            ctypes.memmove(p, content, len(content))
        plan.enqueue(roots, 0, 0, graph=True)
    for a, p in zip(own, places, strict=True):
        ctypes.memmove(a.ctypes.data, p, a.nbytes)
    shaped = [shaped_view(a, i, sizes) for a, i in zip(own, program.results, strict=True)]
    return [shaped[k] for k in program.places]


def aligned(a: np.ndarray, held: list[Any]) -> int:
    """The address of a copy that begins at a multiple of 256 bytes; `held` keeps it."""
    raw = np.empty(a.nbytes + 256, np.uint8)
    held.append(raw)
    address = -(-raw.ctypes.data // 256) * 256
    ctypes.memmove(address, a.ctypes.data, a.nbytes)
    return address


def close(found: list[Any], want: list[np.ndarray]) -> None:
    for a, b in zip(found, want, strict=True):
        assert a.shape == np.shape(b)
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-6)


# --- loops of known trips -----------------------------------------------------------------------


@pytest.mark.parametrize("trips", [0, 1, 2, 5])
def test_a_loop_that_can_change_its_value_in_place(gpu: FakeDriver, trips: int) -> None:
    x, w = draw(7, 13), draw(13)
    want = x.astype(np.float64)
    for i in range(3, 3 + trips):
        want = want * 0.5 + w * i

    def f(x, w):
        return fw.fori_loop(3, 3 + trips, lambda i, v: v * 0.5 + w * fw.astype(i, "float32"), x)

    p = agree(gpu, f, [want], x, w)
    assert not [b for b in p.host.launches[-1].bindings if b.tensor.endswith(".s0")]


@pytest.mark.parametrize("trips", [0, 1, 2, 5])
def test_a_loop_that_reads_what_it_has_written_has_a_second_buffer(
    gpu: FakeDriver, loops: str, trips: int
) -> None:
    x = draw(6, 9)
    want = x.astype(np.float64)
    for _ in range(trips):
        want = np.roll(want, 1, 1) - 0.25 * want

    def f(x):
        return fw.fori_loop(0, trips, lambda i, v: fw.roll(v, 1, axis=1) - 0.25 * v, x)

    p = agree(gpu, f, [want], x)
    scratch = [b for b in p.host.launches[-1].bindings if b.tensor.endswith(".s0")]
    is_stored = loops == "launches" and trips > 1
    assert len(scratch) == is_stored
    assert p.host.stats["peak_bytes"] == (256 if is_stored else 0)


def test_values_that_no_iteration_changes_are_not_carried(gpu: FakeDriver, loops: str) -> None:
    x, w = draw(4, 8), draw(8)

    def f(x, w):
        return fw.fori_loop(0, 3, lambda i, s: (s[0] * s[1], s[1]), (x, w))

    p = agree(gpu, f, [x * w**3, w], x, w)
    if loops == "launches":
        (region,) = [x for x in p.host.launches if x.role == "region"]
        assert region.region is not None and region.region.carried == 1


def test_values_that_change_places(gpu: FakeDriver) -> None:
    a, b = draw(5, 3), draw(5, 3)

    def f(a, b):
        return fw.fori_loop(0, 3, lambda i, s: (s[1], s[0] + 1), (a, b))

    agree(gpu, f, [b + 1, a + 2], a, b)


def test_a_value_twice(gpu: FakeDriver) -> None:
    a = draw(5, 3)

    def f(a):
        def body(i, s):
            y = s[0] * s[1]
            return y, y, y

        return fw.fori_loop(0, 3, body, (a, a + 1, a))

    s = a.astype(np.float64), a + 1.0
    for _ in range(3):
        s = s[0] * s[1], s[0] * s[1]
    agree(gpu, f, [s[0]] * 3, a)


def test_bodies_of_several_kernels_have_memory_of_their_own(gpu: FakeDriver) -> None:
    x = draw(33, 65)
    want = x.astype(np.float64)
    for _ in range(3):
        want = want - want.mean(0, keepdims=True)
        want = want / np.abs(want).max(1, keepdims=True)

    def step(i, v):
        v = v - fw.mean(v, axis=0, keepdims=True)
        return v / fw.max(fw.abs(v), axis=1, keepdims=True)

    p = agree(gpu, lambda x: fw.fori_loop(0, 3, step, x), [want], x)
    assert len(p.kernels) > 1 and fw.verify(p, x).ok


def test_a_loop_between_kernels(gpu: FakeDriver, loops: str) -> None:
    x = draw(8, 16)
    want = np.exp(x.astype(np.float64))
    for _ in range(4):
        want = np.sin(want)
    want = want.sum(0)

    def f(x):
        return fw.sum(fw.fori_loop(0, 4, lambda i, v: fw.sin(v), fw.exp(x)), axis=0)

    p = agree(gpu, f, [want], x)
    inside = "region" if loops == "launches" else "kernel"
    assert [x.role for x in p.host.launches] == ["kernel", inside, "kernel"]
    assert [(e.producer, e.consumer) for e in p.host.edges] == [(0, 1), (1, 2)]


def test_bounds_are_symbols(gpu: FakeDriver) -> None:
    fusion = fw.trace(
        lambda x: fw.fori_loop(1, x.shape[0], lambda i, v: v + fw.astype(i, "float32") * v, x),
        S(("n", 5), "float32"),
    )
    for n in (2, 3, 6):
        x = draw(n, 5)
        want = x.astype(np.float64)
        for i in range(1, n):
            want = want + i * want
        witnessed(gpu, fusion, [want], x)


def test_a_negative_number_of_iterations_is_seen_at_the_call() -> None:
    p = fw.compile(
        fw.trace(lambda x: fw.fori_loop(5, x.shape[0], lambda i, v: v * 2, x), S(("n",), "float32"))
    )
    with pytest.raises(fw.UserError, match=r"n - 5 is -2 iterations where n = 3; the upper bound"):
        p.simulate(draw(3))


# --- scan ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("width", [4, 5])
def test_scan_slices_and_stacks_in_place(gpu: FakeDriver, reverse: bool, width: int) -> None:
    h, xs, w = draw(3, width), draw(6, 3, width), draw(width, width)
    state, ys = h.astype(np.float64), np.empty(xs.shape)
    for t in reversed(range(6)) if reverse else range(6):
        state = np.tanh(state @ w + xs[t])
        ys[t] = state * 2

    def f(h, xs, w):
        def step(h, x):
            h = fw.tanh(h @ w + x)
            return h, h * 2

        return fw.scan(step, h, xs, reverse=reverse)

    p = agree(gpu, f, [state, ys], h, xs, w)
    assert p.host.stats["copies"] == 0


def test_scan_without_slices_and_of_nothing(gpu: FakeDriver) -> None:
    x = draw(5)

    def f(x):
        def step(c, _):
            c = c * 0.5
            return c, (c + 1, None, fw.sum(c))

        return fw.scan(step, x, None, length=4)

    states = [x.astype(np.float64) * 0.5**k for k in range(1, 5)]
    want = [states[-1], np.stack(states) + 1, np.stack(states).sum(1)]
    agree(gpu, f, want, x)


def test_what_a_scan_stacks_and_carries_may_be_one_value(gpu: FakeDriver) -> None:
    x, xs = draw(7), draw(5, 7)

    def f(x, xs):
        def step(c, a):
            c = c + a
            return c, c

        return fw.scan(step, x, xs)

    sums = x + np.cumsum(xs.astype(np.float64), 0)
    agree(gpu, f, [sums[-1], sums], x, xs)
    agree(gpu, lambda x, xs: f(x, xs)[0], [sums[-1]], x, xs)
    agree(gpu, lambda x, xs: f(x, xs)[1], [sums], x, xs)


def test_a_scan_of_no_slices(gpu: FakeDriver) -> None:
    x = draw(7)
    agree(gpu, lambda x: fw.scan(lambda c, _: (c + 1, None), x, length=0)[0], [x], x)


def test_a_scan_of_symbolic_length(gpu: FakeDriver) -> None:
    fusion = fw.trace(
        lambda c, xs: fw.scan(lambda c, x: (c * 0.5 + x, c), c, xs),
        S((5,), "float32"),
        S(("n", 5), "float32"),
    )
    for n in (2, 5):
        c, xs = draw(5), draw(n, 5)
        state, ys = c.astype(np.float64), []
        for x in xs:
            ys.append(state)
            state = state * 0.5 + x
        witnessed(gpu, fusion, [state, np.stack(ys)], c, xs)


def test_loops_in_loops(gpu: FakeDriver) -> None:
    x, xs = draw(3, 5), draw(4, 3, 5)
    state, ys = x.astype(np.float64), []
    for a in xs:
        state = state + a
        inner = state
        for k in range(3):
            inner = np.roll(inner, 1, 1) * 0.5 + a * k
        ys.append(inner)
    want = [state, np.stack(ys)]

    def f(x, xs):
        def step(c, a):
            c = c + a
            inner = fw.fori_loop(
                0, 3, lambda k, v: fw.roll(v, 1, axis=1) * 0.5 + a * fw.astype(k, "float32"), c
            )
            return c, inner

        return fw.scan(step, x, xs)

    p = agree(gpu, f, want, x, xs)
    assert fw.verify(p, x, xs).ok


# --- conditions on the device -------------------------------------------------------------------


@pytest.mark.parametrize("start", [0.5, 90.0, 200.0])
def test_a_while_loop(gpu: FakeDriver, start: float) -> None:
    x = np.full((3, 5), start, np.float32)
    want, count = x.astype(np.float64), 0
    while want.max() < 100:
        want, count = np.roll(want, 1, 0) * 2, count + 1

    def f(x):
        return fw.while_loop(
            lambda s: fw.max(s[1]) < 100, lambda s: (s[0] + 1, fw.roll(s[1], 1, axis=0) * 2), (0, x)
        )

    p = agree(gpu, f, [np.int64(count), want], x)
    found = fw.verify(p, x)
    assert not found.missing
    if count:  # what orders iterations cannot show where there is none
        assert found.ok


def test_a_while_loop_in_place(gpu: FakeDriver) -> None:
    x = draw(7, 3) + 3
    want = x.astype(np.float64)
    while want.sum() > 1:
        want = want / 2
    agree(gpu, lambda x: fw.while_loop(lambda v: fw.sum(v) > 1, lambda v: v / 2, x), [want], x)


def test_bounds_on_the_device(gpu: FakeDriver) -> None:
    x, n = draw(4), np.array(3, np.int32)

    def f(x, n):
        return fw.fori_loop(1, n, lambda i, v: v + fw.astype(i, "float32"), x)

    agree(gpu, f, [x + 3], x, n)


@pytest.mark.parametrize("sign", [1, -1])
def test_only_one_branch_of_a_cond_runs(gpu: FakeDriver, sign: int) -> None:
    x, y = sign * np.abs(draw(3, 5)), draw(3, 5)

    def f(x, y):
        z = y * 2
        return fw.cond(fw.sum(x) > 0, lambda a: (fw.exp(a) + z, z), lambda a: (a - fw.sum(a), a), x)

    wide = x.astype(np.float64)
    want = [np.exp(wide) + y * 2, y * 2] if sign > 0 else [wide - wide.sum(), wide]
    p = agree(gpu, f, want, x, y)
    (region,) = [x for x in p.launches if x.region is not None]
    names = {k.name for b in region.region.bodies for k in b.kernels}
    before = len(gpu.launched)
    p.run_cuda(x, y)
    ran = {name for name, _ in gpu.launched[before:]} & names
    chosen = {k.name for k in region.region.bodies[0 if sign > 0 else 1].kernels}
    assert ran == chosen


def test_a_cond_in_a_loop(gpu: FakeDriver) -> None:
    x = draw(5, 4)
    want = x.astype(np.float64)
    for _ in range(5):
        want = want * 0.5 if want.sum() > 0 else want + 1

    def f(x):
        return fw.fori_loop(
            0, 5, lambda i, v: fw.cond(fw.sum(v) > 0, lambda a: a * 0.5, lambda a: a + 1, v), x
        )

    agree(gpu, f, [want], x)


def test_a_graph_is_kept_for_its_addresses(
    gpu: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_launches(monkeypatch)
    x = draw(5, 4)
    p = fw.compile(
        fw.trace(
            lambda x: fw.while_loop(lambda v: fw.sum(v) > 1, lambda v: v / 2, x),
            S((5, 4), "float32"),
        )
    )
    plan = p.calls.executor.plan({})
    held: list[Any] = []
    roots = [aligned(a, held) for a in (x, x, np.zeros(plan.arena_nbytes, np.uint8))]
    for _ in range(4):
        plan.enqueue(roots, 0, 0, graph=True)
    assert (gpu.calls["cuGraphInstantiate"], gpu.calls["cuGraphLaunch"]) == (1, 3)
    for _ in range(6):
        plan.enqueue([aligned(x, held), *roots[1:]], 0, 0, graph=True)
    assert gpu.calls["cuGraphInstantiate"] == 1  # addresses that come once are not recorded
    assert MAX_EXECUTABLES < 6
    plan.enqueue(roots, 0, 0, graph=True)
    assert gpu.calls["cuGraphInstantiate"] == 1  # forgotten meanwhile
    plan.enqueue(roots, 0, 0, graph=True)
    assert (gpu.calls["cuGraphInstantiate"], gpu.calls["cuGraphLaunch"]) == (2, 4)


def test_a_long_loop_is_not_written_out(gpu: FakeDriver) -> None:
    p = fw.compile(
        fw.trace(lambda x: fw.fori_loop(0, 5000, lambda i, v: v * 0.5, x), S((4,), "float32"))
    )
    assert not p.calls.executor.plan({}).replays("graph")


def test_bodies_with_semaphores_are_launched_by_the_host(gpu: FakeDriver) -> None:
    def in_turns(s: fw.Schedule) -> None:
        t = s.outputs[0]
        t.split(1, 32).split(0, 128).reorder({2: 1, 1: 2})
        t.parallelize(0, fw.BIDx).parallelize(1, fw.BIDy).parallelize(2, fw.TIDx)
        t.request_serial_grid_reduction()

    columns = fw.kernel(lambda x: fw.sum(x, axis=0), schedule=in_turns)

    x = draw(96, 512)
    fusion = fw.trace(
        lambda x: fw.fori_loop(0, 2, lambda i, v: v * 0.5 + columns(x), fw.zeros(512)),
        S((96, 512), "float32"),
    )
    p = fw.compile(fusion)
    close(p.run_cuda(x), [x.astype(np.float64).sum(0) * 1.5])
    assert not p.calls.executor.plan({}).replays("graph")


def test_a_condition_is_refused_under_capture(
    gpu: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_launches(monkeypatch)
    p = fw.compile(
        fw.trace(
            lambda x: fw.while_loop(lambda v: fw.sum(v) > 1, lambda v: v / 2, x), S((5,), "float32")
        )
    )
    plan = p.calls.executor.plan({})
    gpu.capturing.add(77)
    held: list[Any] = []
    roots = [aligned(a, held) for a in (draw(5), draw(5), np.zeros(plan.arena_nbytes, np.uint8))]
    with pytest.raises(fw.UserError, match="while_loop: the host reads its condition and waits"):
        plan.enqueue(roots, 77, 0, graph=False)


# --- memory -------------------------------------------------------------------------------------


@pytest.mark.parametrize("trips", [1, 2, 3])
@pytest.mark.parametrize("in_place", [True, False])
def test_a_donated_argument_is_the_state(gpu: FakeDriver, trips: int, in_place: bool) -> None:
    x = draw(6, 4)
    body = (lambda i, v: v * 2) if in_place else (lambda i, v: fw.flip(v, axis=0) * 2)
    p = fw.compile(
        fw.trace(lambda x: fw.fori_loop(0, trips, body, x), S((6, 4), "float32")), donate=("x",)
    )
    want = x * 2.0**trips
    if not in_place and trips % 2:
        want = want[::-1]
    assert p.held
    for found in (p.simulate(x).outputs, p.run_cuda(x)):
        close(found, [want])


def test_a_donated_argument_that_every_iteration_reads_is_kept(gpu: FakeDriver, loops: str) -> None:
    x = draw(6, 4)
    p = fw.compile(
        fw.trace(
            lambda x: fw.fori_loop(0, 3, lambda i, v: v + x, fw.zeros_like(x)),
            S((6, 4), "float32"),
        ),
        donate=("x",),
    )
    assert not p.held
    why = "reads x in every iteration" if loops == "launches" else "or more often"
    assert why in p.host.stats["not_placed"]["x"]
    close(p.run_cuda(x), [x * 3])


def test_values_without_elements(gpu: FakeDriver) -> None:
    x, e = draw(6, 4), draw(3, 0)

    def f(x, e):
        return fw.fori_loop(0, 2, lambda i, s: (s[0] * 2, s[1] + fw.sum(e * 2)), (x, x))

    agree(gpu, f, [x * 4, x], x, e)


# --- files --------------------------------------------------------------------------------------


def test_a_saved_program(gpu: FakeDriver, tmp_path: Path, monkeypatch: Any) -> None:
    import pickle

    def f(x, xs):
        c, ys = fw.scan(lambda c, a: (fw.roll(c, 1) + a, c * 2), x, xs)
        return fw.while_loop(lambda v: fw.sum(v * v) > 1, lambda v: v / 2, c), ys

    p = fw.compile(fw.trace(f, S((5,), "float32"), S(("n", 5), "float32")))
    again = pickle.loads(pickle.dumps(p))
    x, xs = draw(5), draw(4, 5)
    close(again.simulate(x, xs).outputs, p.simulate(x, xs).outputs)
    assert str(again.host) == str(p.host)
    assert [k.name for k in again.kernels] == [k.name for k in p.kernels]
