"""Loops that are one launch: which are, how, and why others are not.

Values are compared by the oracle, the simulator with races, and the driver, as in
`test_control_flow`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from fake_cuda import FakeDriver
from fake_fixtures import gpu as gpu
from test_control_flow import S, close, draw, numbers as numbers, on_device, witnessed

import fusewright as fw
from fusewright.core.expr import mod
from fusewright.host import one_block
from fusewright.kir.ir import For
from fusewright.kir.traverse import walk_statements
from fusewright.programs import whole_loops

REGISTERS = "each keeps its elements in registers"
BLOCK = "its threads fit a block"


def rule_of(p: fw.Program) -> str:
    (rule,) = [r.rule for r in p.reasons if "iterations" in r.rule]
    return rule


def one_launch(
    gpu: FakeDriver, how: str, fn: Callable[..., Any], *arrays: np.ndarray, launches: int = 1
) -> fw.Program:
    """The program of a function that is one launch, with a loop over the iterations in it, and
    computes what the oracle does."""
    fusion = fw.trace(fn, *(S(a.shape, a.dtype.name) for a in arrays))
    p = witnessed(gpu, fusion, fw.evaluate(fusion, *arrays), *arrays)
    assert len(p.launches) == launches and all(x.region is None for x in p.launches)
    assert how in rule_of(p), rule_of(p)
    return p


def loops_of(p: fw.Program) -> list[For]:
    return [s for s in walk_statements(p.kernels[-1].ir) if isinstance(s, For)]


def launches(fn: Callable[..., Any], why: str, *specs: fw.TensorSpec) -> fw.Program:
    """The program of a function whose iterations are launches of their own, for a reason."""
    p = fw.compile(fw.trace(fn, *specs))
    assert any(x.region is not None for x in p.launches)
    assert why in rule_of(p), rule_of(p)
    return p


def halved(i: Any, v: Any) -> Any:
    return v * 0.5 + 0.25


def turned(i: Any, v: Any) -> Any:
    return v * 0.5 - fw.roll(v, 1, axis=0) * 0.25


# --- in registers --------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(1,), (7,), (5, 13), (33, 130), (3, 4, 5), (4100,)])
def test_elements_of_a_thread_stay_in_registers(gpu: FakeDriver, shape: tuple[int, ...]) -> None:
    x = draw(*shape)
    p = one_launch(gpu, REGISTERS, lambda x: fw.fori_loop(0, 5, halved, x), x)
    assert p.host.stats["copies"] == 0 and p.host.stats["bytes_moved"] == 2 * x.nbytes
    assert [str(s.extent) for s in loops_of(p)] == ["5"]


@pytest.mark.parametrize("shape", [(9, 130), (70, 32), (3, 5000), (2, 70000)])
def test_rows_that_are_reduced(gpu: FakeDriver, shape: tuple[int, int]) -> None:
    """Threads of a block meet in each iteration, those of the longest rows in clusters."""

    def body(i: Any, v: Any) -> Any:
        return v * 0.75 - fw.mean(v, axis=1, keepdims=True) + fw.max(v, axis=1, keepdims=True) * 0.1

    p = one_launch(gpu, REGISTERS, lambda x: fw.fori_loop(0, 3, body, x), draw(*shape))
    assert bool(p.kernels[0].ir.cluster) == (shape[1] == 70000)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("width", [4, 5, 131])
def test_slices_are_read_and_stacked_where_they_lie(
    gpu: FakeDriver, reverse: bool, width: int
) -> None:
    def fn(c: Any, xs: Any) -> Any:
        def step(c: Any, x: Any) -> Any:
            new = fw.tanh(c * 0.5 + x)
            return new, (new, c, x * 2)

        return fw.scan(step, c, xs, reverse=reverse)

    c, xs = draw(3, width), draw(6, 3, width)
    p = one_launch(gpu, REGISTERS, fn, c, xs)
    assert p.host.stats["bytes_moved"] == 2 * c.nbytes + 4 * xs.nbytes


def test_values_that_take_each_others_place(gpu: FakeDriver) -> None:
    def fn(a: Any, b: Any) -> Any:
        return fw.fori_loop(0, 5, lambda i, s: (s[1] * 0.5, s[0] + s[1]), (a, b))

    one_launch(gpu, REGISTERS, fn, draw(5, 3), draw(5, 3))


def test_one_value_that_replaces_several(gpu: FakeDriver) -> None:
    def fn(a: Any) -> Any:
        return fw.fori_loop(0, 3, lambda i, s: (s[0] * s[1] + s[2],) * 3, (a, a * 2, a * 3))

    p = one_launch(gpu, REGISTERS, fn, draw(5, 3) * 0.1, launches=2)
    assert p.host.stats["copies"] == 0


@pytest.mark.parametrize("dtype", ["float16", "float64", "int8", "int32"])
def test_types(gpu: FakeDriver, dtype: str) -> None:
    x = (draw(5, 37) * 3).astype(dtype)
    one_launch(gpu, REGISTERS, lambda x: fw.fori_loop(0, 4, lambda i, v: v * 2 - v // 2, x), x)
    one_launch(gpu, BLOCK, lambda x: fw.fori_loop(0, 4, lambda i, v: v - fw.flip(v, axis=1), x), x)


def test_what_is_read_at_the_index(gpu: FakeDriver) -> None:
    def fn(x: Any, a: Any) -> Any:
        return fw.fori_loop(
            0,
            6,
            lambda i, v: v * 0.5 + a[i] + fw.sum(a[: i + 1], axis=0) * fw.astype(i, v.dtype),
            x,
        )

    one_launch(gpu, REGISTERS, fn, draw(33), draw(6, 33))


def test_only_what_is_read_of_the_results_is_stored(gpu: FakeDriver) -> None:
    def fn(c: Any, xs: Any) -> Any:
        return fw.scan(lambda c, x: (c * 0.5 + x, c), c, xs)

    c, xs = draw(40), draw(5, 40)
    both = one_launch(gpu, REGISTERS, fn, c, xs)
    last = one_launch(gpu, REGISTERS, lambda c, xs: fn(c, xs)[0], c, xs)
    stacked = one_launch(gpu, REGISTERS, lambda c, xs: fn(c, xs)[1], c, xs)
    counts = [len(p.launches[0].writes) for p in (both, last, stacked)]
    assert counts == [2, 1, 1]


def test_sizes_and_trips_that_calls_know(gpu: FakeDriver) -> None:
    fusion = fw.trace(
        lambda c, xs: fw.scan(lambda c, x: (c * 0.5 + x, c), c, xs),
        S(("m",), "float32"),
        S(("n", "m"), "float32"),
    )
    for n, m in ((2, 3), (5, 130)):
        c, xs = draw(m), draw(n, m)
        p = witnessed(gpu, fusion, fw.evaluate(fusion, c, xs), c, xs)
        assert REGISTERS in rule_of(p) and "all n iterations" in rule_of(p)


def test_a_number_of_a_call_may_be_zero_iterations() -> None:
    fusion = fw.trace(lambda x, n: fw.fori_loop(0, n, halved, x), S((4, 6), "float32"), fw.Sym("n"))
    p, x = fw.compile(fusion), draw(4, 6)
    assert REGISTERS in rule_of(p)
    for n in (0, 1, 6):
        close(p.simulate(x, n).outputs, fw.evaluate(fusion, x, n))


def test_a_loop_in_a_loop_is_one_launch(gpu: FakeDriver) -> None:
    def body(i: Any, v: Any) -> Any:
        return fw.fori_loop(0, i + 1, lambda j, u: u * 0.5 + fw.astype(i * 3 + j, "float32"), v)

    fusion = fw.trace(lambda x: fw.fori_loop(0, 4, body, x), S((7, 9), "float32"))
    x = draw(7, 9)
    p = witnessed(gpu, fusion, fw.evaluate(fusion, x), x)
    assert len(p.launches) == 1 and p.launches[0].region is None
    assert len(loops_of(p)) == 2


def test_names_of_arguments_are_not_those_of_what_is_kept(gpu: FakeDriver) -> None:
    one_launch(
        gpu, REGISTERS, lambda lap, kept0_0: fw.fori_loop(0, 3, lambda i, v: v * kept0_0, lap),
        draw(5), draw(5),
    )  # fmt: skip
    one_launch(
        gpu, BLOCK,
        lambda carried0, turn: fw.fori_loop(
            0, 3, lambda i, v: fw.flip(v, axis=0) * turn, carried0
        ),
        draw(5), draw(5),
    )  # fmt: skip


@pytest.mark.parametrize("body", [halved, turned])
def test_memory_that_is_given_away_is_written_over(gpu: FakeDriver, body: Any) -> None:
    fusion = fw.trace(lambda x: fw.fori_loop(0, 3, body, x), S((6, 4), "float32"))
    p, x = fw.compile(fusion, donate=("x",)), draw(6, 4)
    want = fw.evaluate(fusion, x)
    assert "one launch" in rule_of(p) and p.held
    for found in (p.simulate(x.copy()).outputs, p.run_cuda(x.copy()), on_device(p, x)):
        close(found, want)


# --- in one block --------------------------------------------------------------------------------


@pytest.mark.parametrize("trips", [1, 2, 7])
@pytest.mark.parametrize("shape", [(2,), (7,), (700,), (20, 35), (128, 8)])
def test_threads_of_a_block_read_what_others_write(
    gpu: FakeDriver, shape: tuple[int, ...], trips: int
) -> None:
    x = draw(*shape)
    p = one_launch(gpu, BLOCK, lambda x: fw.fori_loop(0, trips, turned, x), x)
    assert p.host.stats["peak_bytes"] == 0 and p.host.stats["bytes_moved"] == 2 * x.nbytes


BODIES: dict[str, Callable[[Any], Any]] = {
    "sum": lambda v: v / (1 + fw.sum(v * v)),
    "scan": lambda v: fw.cumulative_sum(v, axis=0) * 0.1,
    "sort": lambda v: fw.sort(v, axis=0) * 0.9 + fw.flip(v, axis=1),
    "rows and columns": lambda v: v - fw.mean(v, axis=0, keepdims=True) * 0.5,
    "transposition": lambda v: v.T * 0.5 + v,
    "stencil": lambda v: fw.pad(v[:-2, 1:-1] + v[2:, 1:-1] - v[1:-1, :-2], ((1, 1), (1, 1))) * 0.3,
}


@pytest.mark.parametrize("body", BODIES.values(), ids=list(BODIES))
def test_bodies_in_one_block(gpu: FakeDriver, body: Callable[[Any], Any]) -> None:
    x = draw(16, 16)
    p = one_launch(gpu, "", lambda x: fw.fori_loop(0, 3, lambda i, v: body(v), x), x)
    assert p.host.stats["bytes_moved"] == 2 * x.nbytes


def test_a_small_recurrent_network(gpu: FakeDriver) -> None:
    def fn(h: Any, xs: Any, w: Any) -> Any:
        def step(h: Any, x: Any) -> Any:
            h = fw.tanh(h @ w + x)
            return h, h

        return fw.scan(step, h, xs)

    p = one_launch(gpu, BLOCK, fn, draw(3, 17), draw(5, 3, 17), draw(17, 17) * 0.2)
    assert p.kernels[0].ir.nthreads > 32  # the body's blocks stand side by side


@pytest.mark.parametrize("shape", [(700,), (20, 35)])
def test_every_barrier_between_iterations_is_needed(shape: tuple[int, ...]) -> None:
    p = fw.compile(fw.trace(lambda x: fw.fori_loop(0, 4, turned, x), S(shape, "float32")))
    report = fw.verify(p, draw(*shape))
    assert report.ok and len(p.kernels[0].syncs) == 2
    inside = [s for s in p.kernels[0].syncs if "RAW smem carried0" in s.why]
    assert inside


# --- launches of their own -----------------------------------------------------------------------


def test_why_iterations_are_launches() -> None:
    wide = S((640, 640), "float32")
    launches(
        lambda x: fw.fori_loop(0, 3, turned, x),
        "carried value 0 is read by other threads than those that write it; one multiprocessor "
        "would take longer",
        wide,
    )
    launches(
        lambda x: fw.fori_loop(
            0, 3, lambda i, v: v / fw.sqrt(fw.sum(fw.sum(v, axis=0) ** 2)) - fw.max(v, axis=1), x
        ),
        "one multiprocessor would take longer than all of them behind its launches",
        wide,
    )
    launches(
        lambda x: fw.fori_loop(0, 8, lambda i, c: fw.insert(c, c[i : i + 1] * 2, (i + 1, 0)), x),
        "the body writes a part of",
        S((9, 5), "float32"),
    )
    launches(
        lambda x: fw.fori_loop(5, x.shape[0], halved, x),
        "a call may ask for a negative number of them",
        S(("n",), "float32"),
    )


def test_a_state_that_no_block_holds_is_not_put_into_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the model says of one block, it has no room for two places of 120,000 bytes."""
    monkeypatch.setattr(whole_loops, "are_faster_alone", lambda *_: True)
    fusion = fw.trace(lambda x: fw.fori_loop(0, 3, turned, x), S((30000,), "float32"))
    assert "two places of what it carries take 240000 bytes" in rule_of(fw.compile(fusion))


@pytest.mark.parametrize(("side", "is_one"), [(32, True), (64, True), (160, False)])
def test_one_block_has_what_it_does_before_a_launch_has_begun(side: int, is_one: bool) -> None:
    """An iteration in one block, and as a launch of a graph (one H100, 2026-11-27): 0.06 and 0.97
    us for 32 x 32 elements, 0.21 and 1.00 for 64 x 64, 2.28 and 1.09 for 160 x 160."""
    fusion = fw.trace(lambda x: fw.fori_loop(0, 50, turned, x), S((side, side), "float32"))
    p = fw.compile(fusion)
    assert (p.launches[0].region is None) == is_one
    if not is_one:
        assert "one multiprocessor would take longer" in rule_of(p)


def test_a_block_in_which_blocks_follow_each_other(
    gpu: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More threads than a block has are several rounds of it."""
    monkeypatch.setattr(whole_loops, "are_faster_alone", lambda *_: True)
    one_launch(gpu, BLOCK, lambda x: fw.fori_loop(0, 3, turned, x), draw(67, 67))
    one_launch(gpu, BLOCK, lambda x: fw.fori_loop(0, 3, lambda i, v: v @ v * 0.1, x), draw(16, 16))


@pytest.mark.parametrize("offset", [0, 1])
def test_every_half_of_the_state_is_needed(
    gpu: FakeDriver, monkeypatch: pytest.MonkeyPatch, offset: int
) -> None:
    """Where an iteration writes over what it reads, the simulator finds the race."""
    written = one_block._State.stores

    def stored(self: Any, s: Any) -> Any:
        (made,), size = written(self, s), self.places.size
        return [replace(made, index=mod(made.index + offset * size, 2 * size))]

    monkeypatch.setattr(one_block._State, "stores", stored)
    fusion = fw.trace(lambda x: fw.fori_loop(0, 2, turned, x), S((300,), "float32"))
    x = draw(300)
    found = fw.compile(fusion).simulate(x)
    same = np.allclose(found.outputs[0], fw.evaluate(fusion, x)[0], atol=1e-5)
    assert same == (offset == 0)


@pytest.mark.parametrize(("body", "how"), [(halved, REGISTERS), (turned, BLOCK)])
def test_explain_says_how_a_loop_runs_and_what_it_will_take(body: Any, how: str) -> None:
    f = fw.fuse(lambda x: fw.fori_loop(0, 1000, body, x), device="sim")
    x = draw(300)
    text = str(f.explain(x))
    assert how in text and "fori_loop of mul, " in text
    (kernel,) = f.program(x).kernels
    few = fw.compile(fw.trace(lambda x: fw.fori_loop(0, 10, body, x), S((300,), "float32")))
    assert kernel.predicted is not None and few.kernels[0].predicted is not None
    assert 2 * few.kernels[0].predicted.us < kernel.predicted.us < 1000 * 3


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("swap", [False, True])
def test_a_body_that_computes_nothing(gpu: FakeDriver, count: int, swap: bool) -> None:
    """Its values are those that it was given, though the program sees them through operations."""

    def program(x: Any, y: Any) -> Any:
        def body(i: Any, c: Any) -> Any:
            return fw.stop_gradient(c[swap]), fw.stop_gradient(c[not swap])

        only = fw.fori_loop(0, count, lambda i, c: fw.stop_gradient(c), x)
        return fw.fori_loop(0, count, body, (x, y)), only, fw.fori_loop(0, 2, body, (x * 2, y))

    x, y = draw(3, 5), draw(3, 5) + 1
    changed = (y, x) if swap and count % 2 else (x, y)
    fusion = fw.trace(program, "f32[3,5]", "f32[3,5]")
    witnessed(gpu, fusion, [*changed, x, x * 2, y], x, y)


def test_a_loop_whose_body_computes_nothing_says_so() -> None:
    program = fw.compile(
        fw.trace(lambda x: fw.fori_loop(0, 2, lambda i, c: fw.stop_gradient(c), x), "f32[4,8]")
    )
    assert any("the body computes nothing" in r.rule for r in program.reasons)
    assert repr(program.launches) == "(<Dispatch of fori_loop: (x) -> (t0)>,)"
    other = fw.compile(fw.trace(lambda x: fw.exp(x), "f32[4,8]"))
    assert repr(other.launches).startswith("(<Dispatch of <Kernel fw_exp")
