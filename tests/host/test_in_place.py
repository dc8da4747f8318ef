"""Results in the memory of donated arguments: only what changes is written, old content is read
before it is gone, and where that cannot be the result has memory of its own."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from host_runs import agreed, run_on_bytes

import fusewright as fw
from fusewright.errors import UserError
from fusewright.host.assemble import KernelCall
from fusewright.host.in_place import Conflict, in_order

S = fw.TensorSpec
D = S((100, 40), "float32")
X = S((24, 40), "float32")


def soft(x):
    return fw.nn.softmax(x, axis=-1)


def assert_donated_agrees(
    fn, *specs: Any, donate=("d",), sizes: dict[str, int] | None = None
) -> fw.Program:
    """The program; oracle, simulator and host program on bytes, where arguments are written over,
    agree in several orders."""
    fusion = fw.trace(fn, *specs)
    program = fw.compile(fusion, donate=donate)
    rng = np.random.default_rng(0)
    named = [[getattr(e, "name", e) for e in s.shape] for s in specs]
    arrays = [
        rng.standard_normal([(sizes or {}).get(e, e) for e in shape]).astype(s.dtype.numpy)
        for s, shape in zip(specs, named, strict=True)
    ]
    before = [a.copy() for a in arrays]
    wanted = fw.evaluate(fusion, *arrays)
    result = program.simulate(*arrays)
    assert result.races == []
    runs = [result.outputs, *(run_on_bytes(program, *arrays, seed=k) for k in range(4))]
    for outputs in runs:
        for got, want in zip(outputs, wanted, strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
    for a, b in zip(arrays, before, strict=True):
        np.testing.assert_array_equal(a, b, "simulating changes no argument")
    return program


def figures(p: fw.Program) -> tuple[int, int, int]:
    """Launches, copies, bytes moved."""
    s = p.host.stats
    return s["launches"], s["copies"], s["bytes_moved"]


def kinds(p: fw.Program) -> list[tuple[int, int, str]]:
    return [(e.producer, e.consumer, e.kind.value) for e in p.host.edges]


def why(p: fw.Program, name: str = "d") -> str:
    """The reason why an argument holds no result."""
    assert not p.held
    return p.host.stats["not_placed"][name]


@pytest.mark.parametrize("fn", [soft, lambda x: fw.exp(x) * 2, lambda x: x + fw.sum(x, axis=0)])
@pytest.mark.parametrize("start", [(3, 0), (0, 0), (76, 0)])
def test_an_insertion_moves_the_bytes_of_its_block(fn, start: tuple[int, int]) -> None:
    p = assert_donated_agrees(lambda d, x: fw.insert(d, fn(x), start), D, X)
    assert figures(p) == (1, 0, 2 * 24 * 40 * 4)
    assert p.host.stats["not_placed"] == {} and p.host.stats["peak_bytes"] == 0
    assert p.host.outputs == (0,), "the result is the argument"


def test_a_block_in_the_middle_of_rows() -> None:
    p = assert_donated_agrees(
        lambda d, x: fw.insert(d, soft(x), (2, 5)), S((100, 138), "float32"), X
    )
    assert figures(p) == (1, 0, 2 * 24 * 40 * 4)
    (b,) = [b for b in p.host.launches[0].bindings if b.access.writes]
    assert b.box is not None and str(b.root) == "input d"


def test_without_donation_it_is_a_copy() -> None:
    p = fw.compile(fw.trace(lambda d, x: fw.insert(d, soft(x), (3, 0)), D, X))
    assert p.host.stats["copies"] == 1 and not p.held
    assert "belongs to the caller" in next(iter(p.host.stats["not_placed"].values()))


def test_a_block_of_an_argument_is_the_only_copy() -> None:
    p = assert_donated_agrees(lambda d, x: fw.insert(d, x, (3, 0)), D, X)
    assert figures(p) == (1, 1, 2 * 24 * 40 * 4)


def test_a_symbolic_place() -> None:
    n, m = fw.Sym("n", min=8), fw.Sym("m", max=4)
    p = assert_donated_agrees(
        lambda d, x: fw.insert(d, soft(x), (3, 0)),
        S((n, 40), "float32"),
        S((m, 40), "float32"),
        sizes={"n": 9, "m": 3},
    )
    assert figures(p)[:2] == (1, 0) and "n" not in str(p.host.stats["bytes_moved"])


@pytest.mark.parametrize("rows", [3, "m"])
def test_a_place_in_memory_of_any_size(rows: int | str) -> None:
    """That the block fits, which each call checks, says that what is around it stays."""
    specs = [S(("n", 40), "float32"), S((rows, 40), "float32"), fw.Sym("at", min=0)]

    def fn(d, x, at):
        return fw.insert(d, soft(x), (at, 0))

    p = agreed(fn, *specs, donate=("d",), sizes={"n": 30, "m": 3}, numbers=[17])
    assert figures(p)[:2] == (1, 0) and str(figures(p)[2]) in ("960", "320*m")


def test_several_insertions_are_one_memory() -> None:
    def f(d, x, y):
        return fw.insert(fw.insert(d, soft(x), (3, 0)), soft(y), (50, 0))

    p = assert_donated_agrees(f, D, X, X)
    assert figures(p) == (2, 0, 4 * 24 * 40 * 4) and kinds(p) == []


def test_insertions_that_overlap_write_what_stays_of_them() -> None:
    def f(d, x, y):
        return fw.insert(fw.insert(d, soft(x), (3, 0)), soft(y), (20, 0))

    p = assert_donated_agrees(f, D, X, X)
    assert figures(p)[1] == 0 and kinds(p) == []


def test_who_reads_the_old_content_comes_first() -> None:
    p = assert_donated_agrees(lambda d, x: (fw.insert(d, soft(x), (3, 0)), fw.sum(d, axis=0)), D, X)
    assert [x.name.rpartition("_")[0] for x in p.host.launches] == ["fw_sum", "fw_softmax"]
    assert kinds(p) == [(0, 1, "WAR")] and p.host.stats["copies"] == 0


def test_who_reads_the_rest_waits_for_nobody() -> None:
    p = assert_donated_agrees(
        lambda d, x: (fw.insert(d, soft(x), (3, 0)), fw.sum(d[50:], axis=0)), D, X
    )
    assert kinds(p) == [] and p.host.stats["copies"] == 0


def test_who_reads_the_new_content_comes_later() -> None:
    def f(d, x):
        new = fw.insert(d, soft(x), (3, 0))
        return new, soft(new), fw.sum(new[60:], axis=0)

    p = assert_donated_agrees(f, D, X)
    assert kinds(p) == [(0, 1, "RAW")] and p.host.stats["copies"] == 0


@pytest.mark.parametrize("fn", [fw.exp, soft, lambda d: d * 2 + 1, lambda d: d - fw.max(d)])
def test_a_thread_may_write_over_what_it_has_read(fn) -> None:
    p = assert_donated_agrees(lambda d: fn(d), D)
    assert list(p.held.values()) == [p.fusion.inputs[0]]


def test_a_part_is_changed_in_place() -> None:
    p = assert_donated_agrees(lambda d: fw.insert(d, d[4:9] * 2, (4, 0)), D)
    assert figures(p) == (1, 0, 2 * 5 * 40 * 4)


def sums(d: Any) -> Any:
    """A value as large as the argument that a kernel stores, as others read it too."""
    return fw.cumulative_sum(fw.cumulative_sum(d, axis=0)[::-1], axis=0)


@pytest.mark.parametrize(
    "fn",
    [
        lambda d: (fw.insert(d, (s := sums(d))[3:9], (3, 0)), fw.cumulative_max(s[::-1], axis=0)),
        lambda d: (
            fw.concat([(s := sums(d))[:30], (t := sums(d * 2))[30:]]),
            fw.cumulative_max(s[::-1], axis=0),
            fw.cumulative_max(t[::-1], axis=0),
        ),
        lambda d: fw.insert(
            d, fw.fori_loop(0, 3, lambda _, v: v * 0.5 + fw.roll(v, 1), d * 0.1)[3:9], (3, 0)
        ),
    ],
    ids=["argument and value", "two values", "argument and loop"],
)
def test_parts_of_two_values_in_one_memory_are_not_both_there_already(fn) -> None:
    fusion = fw.trace(fn, D)
    x = np.random.default_rng(0).standard_normal((100, 40)).astype(np.float32)
    result = fw.compile(fusion, donate=("d",)).simulate(x)
    assert result.races == []
    for got, want in zip(result.outputs, fw.evaluate(fusion, x), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-3)


def test_an_argument_that_is_returned_costs_nothing() -> None:
    assert figures(assert_donated_agrees(lambda d: d, D)) == (0, 0, 0)


def test_the_result_that_keeps_most_gets_the_memory() -> None:
    p = assert_donated_agrees(lambda d, x: (d * 0.5, fw.insert(d, soft(x), (3, 0))), D, X)
    assert [t.name for t in p.held] == [p.fusion.outputs[1].name]
    assert kinds(p) == [(0, 1, "WAR")]


def test_two_arguments_for_two_results() -> None:
    p = assert_donated_agrees(lambda d, e: (d + e, d - e), D, D, donate=("d", "e"))
    assert len(p.held) == 2 and figures(p)[0] == 1


# --- refusals -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fn", "reason"),
    [
        (lambda d: d.T * 1.0, "in other threads than those that write them"),
        (lambda d: fw.flip(d, axis=0) * 1.0, "in other threads than those that write them"),
        (lambda d: d + d.T, "in other threads than those that write them"),
        (lambda d: fw.roll(d, 1, axis=1) * 1.0, "in other threads than those that write them"),
        (lambda d: fw.insert(d, d[2:5] * 1.5, (3, 0)), "at other places than it writes"),
        (lambda d: d - fw.sum(d, axis=0), ""),
    ],
)
def test_what_others_still_read_is_not_written_over(fn, reason: str) -> None:
    p = assert_donated_agrees(lambda d: fn(d), S((64, 64), "float32"))
    if reason:
        assert "not written in place" in why(p) and reason in why(p)


def test_two_results_that_need_each_others_old_content() -> None:
    """One of them waits for the old content of the other's memory in vain."""

    def f(d, e):
        a, b = fw.nn.softmax(e[:24], axis=1), fw.nn.softmax(d[:24], axis=0)
        return fw.insert(d, a, (0, 0)), fw.insert(e, b, (0, 0))

    p = assert_donated_agrees(f, D, D, donate=("d", "e"))
    assert len(p.held) == 1
    (reason,) = [r for r in p.host.stats["not_placed"].values() if "not written in place" in r]
    assert "needs what" in reason


def test_a_kernel_does_not_write_two_contents_of_an_argument() -> None:
    """Sums of rows over the first column of a softmax: one kernel would make both. Where nobody
    else reads the softmax it stores the other columns alone."""

    def fn(d, e):
        v = soft(e)
        whole = fw.concat([fw.sum(e, axis=1, keepdims=True), v[:, 1:]], axis=1)
        return whole, fw.astype(fw.cumulative_sum(v, axis=0), "float64")

    p = assert_donated_agrees(fn, X, X)
    assert "over a part of" in why(p) and "in no order" in why(p)
    alone = assert_donated_agrees(lambda d, e: fn(d, e)[0], X, X)
    assert figures(alone)[:2] == (1, 0) and alone.held


@pytest.mark.parametrize(
    "fn",
    [
        lambda d: fw.sum(d, axis=0),
        lambda d: fw.astype(d, "float16"),
        lambda d: fw.reshape(d * 1, (40, 100)),
    ],
)
def test_results_of_another_type_get_memory_of_their_own(fn) -> None:
    assert "no result has its shape, dtype and C order" in why(assert_donated_agrees(fn, D))


def test_arguments_with_gaps_or_off_the_grain_hold_nothing() -> None:
    for spec in (
        S((10, 40), "float32", strides=(44, 1)),
        S((10, 40), "float32", strides=(1, 10)),
        S((10, 40), "float32", alignment=4),
    ):
        assert "C order" in why(assert_donated_agrees(lambda d: d * 2, spec))


def test_rejects_names_that_are_no_inputs() -> None:
    fusion = fw.trace(lambda d: d * 2, D)
    with pytest.raises(UserError, match=r"donate: there is no input 'y'; use some of d"):
        fw.compile(fusion, donate=("y",))
    with pytest.raises(UserError, match="a schedule by hand writes results of its own"):
        fw.compile(fw.Schedule(fusion), donate=("d",))


def test_a_kernel_that_would_lose_what_it_reads_is_caught() -> None:
    """The order of launches is a check of its own: a kernel made for other places is refused."""
    p = fw.compile(fw.trace(lambda d: fw.flip(d, axis=0) * 1.0, S((64, 64), "float32")))
    (x,) = p.launches
    (d,), (y,) = p.fusion.inputs, p.fusion.outputs
    there = replace(x.reads[0], tensor=y)
    found = in_order([KernelCall(x.kernel.ir, x.values, x.reads, (there,))], {(y, d): 0})
    assert isinstance(found, Conflict) and found.argument is d


# --- against copies -----------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(40))
def test_random_programs_on_donated_arguments(seed: int) -> None:
    """Insertions of functions of old and new content of two arguments, in any order."""
    rng = random.Random(seed)
    rows, columns = rng.randrange(4, 9), rng.randrange(4, 9)

    def part(x):
        a, b = rng.randrange(rows - 2), rng.randrange(columns - 2)
        return x[a : a + 2, b : b + 2]

    def step(values):
        kind = rng.choice(["insert", "map", "soft", "mix", "flip", "insert", "insert"])
        v, w = rng.choice(values), rng.choice(values)
        if kind == "map":
            return v * 0.5
        if kind == "soft":
            return soft(v)
        if kind == "mix":
            return v + w
        if kind == "flip":
            return fw.flip(v, axis=rng.randrange(2))
        block = rng.choice([lambda: soft(part(w)), lambda: part(w) * 2, lambda: 1.5 + part(w)])()
        return fw.insert(v, block, (rng.randrange(rows - 2), rng.randrange(columns - 2)))

    def f(d, e):
        values = [d, e]
        for _ in range(rng.randrange(1, 6)):
            values.append(step(values))
        return tuple(rng.sample(values, min(len(values), rng.randrange(1, 4))))

    spec = S((rows, columns), "float32")
    state = rng.getstate()

    def replayed(d, e):
        rng.setstate(state)
        return f(d, e)

    assert_donated_agrees(replayed, spec, spec, donate=rng.choice([("d",), ("e",), ("d", "e")]))
