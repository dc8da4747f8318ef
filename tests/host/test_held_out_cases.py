"""Forty-three programs of pads, joins, parts and insertions whose least is known by hand (H01 on).

Each is agreed on by oracle, simulator and the host program on bytes in random orders; the figures
are launches, fills, copies and edges.
"""

from __future__ import annotations

from itertools import permutations
from typing import Any

import numpy as np
import pytest
from host_runs import agreed
from tests.fuzz.fuzz_compare import compare
from tests.fuzz.fuzz_orders import problem_of_seed

import fusewright as fw
from fusewright.core.expr import Int, Var, constant_value
from fusewright.errors import UserError
from fusewright.host.arena import ARENA_ALIGNMENT, Lifetime, pack
from fusewright.host.hazards import hazards
from fusewright.host.ir import AccessMode, Binding, HostLaunch, Root, RootKind, Stored

F = "float32"
ROOT = Root(RootKind.ARENA, 0, "arena", Int(1024), 256)
VALUE = Stored("t", ROOT, Int(1024))


def S(*shape: int | str, dtype: str = F) -> fw.TensorSpec:
    return fw.TensorSpec(shape, dtype)


def wrong(program: fw.Program, arrays: list[np.ndarray], outputs: list[np.ndarray]) -> str | None:
    stored = {t.name for x in program.launches for t in x.outputs}
    return compare(program.fusion, arrays, outputs, stored).problem


def soft(x: Any) -> Any:
    return fw.nn.softmax(x, axis=-1)


def figures(p: fw.Program) -> tuple[int, int, int, int]:
    """Launches, fills, copies, edges."""
    s = p.host.stats
    return s["launches"], s["fills"], s["copies"], s["edges"]["total"]


def moved(p: fw.Program) -> int:
    return p.host.stats["bytes_moved"]


def kinds(p: fw.Program) -> list[tuple[int, int, str]]:
    return [(e.producer, e.consumer, e.kind.value) for e in p.host.edges]


def writes(p: fw.Program) -> list[tuple[str, str, str]]:
    """What launches write, in their order: root, first byte, bytes."""
    return [
        (b.root.name, str(b.offset), str(b.nbytes))
        for x in p.host.launches
        for b in x.bindings
        if b.access.writes
    ]


# --- pads and insertions beside what makes them -----------------------------------------------


def test_h01_a_transposed_function_in_a_fill() -> None:
    p = agreed(lambda x: fw.insert(fw.zeros((4, 5)), fw.exp(x).T, (1, 2)), S(3, 2))
    assert figures(p) == (1, 0, 0, 0) and moved(p) == 24 + 80
    (b,) = [b for b in p.host.launches[0].bindings if b.access.writes]
    assert b.total and b.access.value == "W"


def test_h04_a_pad_whose_value_lies_in_memory() -> None:
    def fn(x: Any, v: Any, low: Any) -> Any:
        n, m = x.shape
        whole = fw.full((n + low + 3, m + 2), v)
        return fw.insert(whole, fw.exp(x), (low, 1))

    p = agreed(fn, S("n", 6), S(), fw.Sym("low", min=0), sizes={"n": 5}, numbers=[2])
    assert figures(p) == (1, 0, 0, 0)


def test_h05_a_pad_whose_value_depends_on_the_place() -> None:
    def fn(x: Any) -> Any:
        places = fw.astype(fw.arange(9), F)
        return fw.insert(fw.broadcast_to(places, (7, 9)), x * 2, (1, 2))

    assert figures(agreed(fn, S(4, 5))) == (1, 0, 0, 0)


def test_h06_a_block_in_a_constant() -> None:
    base = np.arange(9, dtype=np.float32).reshape(3, 3)
    p = agreed(lambda x: fw.insert(fw.asarray(base), fw.exp(x), (0, 0)), S(2, 2))
    launches, fills, copies, edges = figures(p)
    assert (launches, fills, edges) == (1, 0, 0) and copies == 0
    assert np.array_equal(base, np.arange(9).reshape(3, 3))


@pytest.mark.parametrize("donate", [(), ("d",)])
def test_h07_two_blocks_that_are_all_of_an_argument(donate: tuple[str, ...]) -> None:
    def fn(d: Any, a: Any, b: Any) -> Any:
        return fw.insert(fw.insert(d, a, (0, 0)), b, (2, 0))

    p = agreed(fn, S(5, 40), S(2, 40), S(3, 40), donate=donate)
    launches, fills, copies, edges = figures(p)
    assert fills == 0 and edges == 0 and copies == launches <= 2
    assert moved(p) == 2 * 5 * 40 * 4, "nothing of the argument is read: all of it is new"


def test_h08_a_join_of_symbolic_rows() -> None:
    def fn(a: Any, b: Any, c: Any) -> Any:
        return fw.concat([soft(a), soft(b), soft(c)], axis=0)

    p = agreed(fn, S(2, "w"), S("d", "w"), S(4, "w"), sizes={"w": 6, "d": 3})
    assert figures(p) == (3, 0, 0, 0)
    offsets = sorted(at for _, at, _ in writes(p))
    assert offsets == sorted(["0", "8*w", "4*d*w + 8*w"])


def test_h09_a_size_that_two_arguments_tell() -> None:
    """A size that is known of one piece is said of the other, and no call has to find it out."""

    def fn(a: Any, b: Any) -> Any:
        return fw.concat([soft(a), soft(b)], axis=0)

    for wrong_specs in ([S(2, "w"), S("d", 2)], [S(2, "w"), S("d", "v")]):
        with pytest.raises(
            UserError, match=r"\(2, w\).*equals only itself; give both axes one name"
        ):
            fw.trace(fn, *wrong_specs)
    p = agreed(fn, S(2, 2), S("d", 2), sizes={"d": 3})
    assert figures(p) == (2, 0, 0, 0)
    assert {(at, n) for _, at, n in writes(p)} == {("0", "16"), ("16", "8*d")}


def test_h10_a_join_of_columns() -> None:
    p = agreed(lambda *xs: fw.concat([soft(x) for x in xs], axis=1), S(4, 5), S(4, 3), S(4, 8))
    assert figures(p) == (3, 0, 0, 0)


@pytest.mark.parametrize("order", list(permutations(range(4))))
def test_h11_h12_four_pieces_in_any_order(order: tuple[int, ...]) -> None:
    def fn(*xs: Any) -> Any:
        made = {k: soft(xs[k]) for k in order}
        return fw.concat([made[k] for k in range(4)], axis=0)

    specs = [S(4, 3072)] * 4
    p = fw.compile(fw.trace(fn, *specs))
    assert figures(p) == (4, 0, 0, 0)
    found = {(at, n) for _, at, n in writes(p)}
    assert found == {(str(49152 * k), "49152") for k in range(4)}
    assert len({root for root, _, _ in writes(p)}) == 1


def test_h13_writers_with_a_gap_between() -> None:
    def fn(d: Any, a: Any, b: Any) -> Any:
        return fw.insert(fw.insert(d, soft(a), (0, 0)), soft(b), (20, 0))

    p = agreed(fn, S(40, 6), S(10, 6), S(10, 6), donate=("d",))
    assert figures(p) == (2, 0, 0, 0)


def bound(launch: int, start: int, n: int, mode: str) -> Any:
    """One access to [start, start + n) of one root."""
    access = AccessMode(mode)
    total = access is AccessMode.WRITE
    axes = ((Int(n), Int(1)),)
    return Binding(ROOT, Int(start), Int(n), access, "t", VALUE, Int(n), axes, 1, total)


def edges_of(*accesses: tuple[int, int, str]) -> list[tuple[int, int, str]]:
    """The edges of launches that touch [start, end) each, in order."""
    kernel = fw.compile(fw.trace(fw.exp, S(4))).host.launches[0].kernel
    rows = [
        HostLaunch(kernel, (), (bound(k, start, end - start, mode),))
        for k, (start, end, mode) in enumerate(accesses)
    ]
    return [(e.producer, e.consumer, e.kind.value) for e in hazards(rows)]


def test_h14_a_writer_sees_past_its_neighbour() -> None:
    assert edges_of((0, 10, "W"), (10, 20, "W"), (0, 10, "W")) == [(0, 2, "WAW")]

    def fn(d: Any, a: Any, b: Any, c: Any) -> Any:
        first = fw.insert(d, soft(a), (0, 0))
        seen = fw.sum(first[:10], axis=1)
        second = fw.insert(first, soft(b), (10, 0))
        return fw.insert(second, fw.cumulative_sum(c, axis=1), (0, 0)), seen

    p = agreed(fn, S(40, 6), *[S(10, 6)] * 3, donate=("d",))
    assert p.host.stats["copies"] == 0 and p.host.stats["edges"]["maybe"] == 0


@pytest.mark.parametrize("swapped", [False, True])
def test_h15_two_results_of_one_launch_in_one_target(swapped: bool) -> None:
    def fn(x: Any) -> Any:
        made = [soft(x), x - fw.sum(x, axis=-1, keepdims=True)]
        return fw.concat(made[::-1] if swapped else made, axis=0)

    p = agreed(fn, S(6, 40))
    launches, fills, copies, edges = figures(p)
    assert launches <= 2 and (fills, copies, edges) == (0, 0, 0)
    assert moved(p) <= (launches + 2) * 6 * 40 * 4


def test_h16_one_of_three_results_has_memory_of_its_own() -> None:
    def fn(x: Any, y: Any) -> Any:
        a, b, c = soft(x), fw.sum(x, axis=-1), x - fw.max(x, axis=-1, keepdims=True)
        return fw.concat([a, soft(y), c], axis=0), b

    p = agreed(fn, S(6, 40), S(3, 40))
    assert p.host.stats["copies"] == p.host.stats["fills"] == p.host.stats["edges"]["total"] == 0
    assert len([r for r in p.host.roots if r.kind.value == "output"]) == 2
    assert p.host.stats["peak_bytes"] == 0


def test_h17_a_target_that_derives_from_its_launch() -> None:
    """The kernel that makes the block makes what the target is computed from, too."""

    def fn(x: Any) -> Any:
        block = soft(x)
        dest = fw.cumulative_sum(fw.concat([block * 2, x], axis=0), axis=0)
        return fw.insert(dest, block, (1, 0))

    p = agreed(fn, S(6, 40))
    assert all(e.producer < e.consumer for e in p.host.edges)


def test_h18_a_value_that_replaces_its_argument_and_is_inserted() -> None:
    def fn(d: Any, e: Any) -> Any:
        new = d - fw.max(d, axis=-1, keepdims=True)
        return new, fw.insert(e, new, (3, 0))

    for donate in ((), ("d",), ("e",), ("d", "e")):
        p = agreed(fn, S(6, 40), S(16, 40), donate=donate)
        assert p.host.stats["copies"] <= ("e" not in donate), donate
        kept = 10 * 40 * 4 * 2 if "e" not in donate else 0
        assert moved(p) == 3 * 6 * 40 * 4 + kept


def test_h19_a_place_that_is_known_after_its_block() -> None:
    def fn(d: Any, a: Any, at: Any) -> Any:
        block = soft(a)
        seen = fw.sum(block, axis=0)
        return fw.insert(d, block, (2 * at + 1, 0)), seen

    p = agreed(fn, S(64, 8), S(4, 8), fw.Sym("at", min=0), donate=("d",), numbers=[7])
    assert p.host.stats["copies"] == 0
    assert ("d", "64*at + 32") in [(r, at) for r, at, _ in writes(p)]


def test_h20_a_place_that_the_device_knows() -> None:
    fusion = fw.trace(
        lambda d, a, at: fw.insert(d, soft(a), (at, 0)), S(64, 8), S(4, 8), S(dtype="int32")
    )
    p = fw.compile(fusion, donate=("d",))
    (b,) = [b for x in p.host.launches for b in x.bindings if b.access.writes]
    assert figures(p) == (1, 0, 0, 0) and b.anywhere and moved(p) == 2 * 4 * 8 * 4 + 4
    for k in (-3, 7, 100):
        arrays = [np.zeros((64, 8), "f4"), np.ones((4, 8), "f4"), np.asarray(k, "i4")]
        got, want = p.simulate(*arrays).outputs[0], fw.evaluate(fusion, *arrays)[0]
        np.testing.assert_allclose(got, want, rtol=1e-5)


def test_h21_a_block_of_any_size_at_any_place() -> None:
    def fn(d: Any, a: Any, at: Any) -> Any:
        return fw.insert(d, soft(a), (at, 0))

    p = agreed(
        fn, S(64, 8), S("m", 8), fw.Sym("at", min=0), donate=("d",), sizes={"m": 5}, numbers=[7]
    )
    assert figures(p) == (1, 0, 0, 0)
    assert writes(p) == [("d", "32*at", "32*m")]


@pytest.mark.parametrize("unit", [False, True])
def test_h22_blocks_of_lower_rank(unit: bool) -> None:
    def fn(d: Any, a: Any) -> Any:
        d = d[..., None] if unit else d
        block = soft(a)[None, :, None] if unit else soft(a)[None]
        return fw.insert(d, block, (2, 0, 0) if unit else (2, 0))

    p = agreed(fn, S(5, 40), S(40), donate=() if unit else ("d",))
    assert p.host.stats["edges"]["total"] == 0 and p.host.stats["fills"] == 0
    assert ("320", "160") in [(at, n) for _, at, n in writes(p)]


# --- parts that are read, in memory that is written -------------------------------------------


@pytest.mark.parametrize(
    ("fill", "after", "edges"),
    [
        pytest.param((200, 300), True, [], id="H23"),
        pytest.param((250, 300), True, [], id="H24"),
        pytest.param((0, 200), True, [(0, 1, "WAR")], id="H25"),
    ],
)
def test_a_part_is_read_and_another_written(fill: Any, after: bool, edges: list[Any]) -> None:
    start, end = fill

    def fn(d: Any) -> Any:
        seen = soft(d[100:200])
        return seen, fw.insert(d, fw.zeros((end - start, 4)), (start, 0))

    p = agreed(fn, S(400, 4), donate=("d",))
    assert kinds(p) == edges and p.host.stats["copies"] == 0
    assert moved(p) == 4 * 4 * (200 + end - start)


def test_h26_two_parts_that_overlap_are_read() -> None:
    p = agreed(lambda d: [soft(d[10:30]), fw.cumulative_sum(d[20:40], axis=1)], S(64, 8))
    assert figures(p)[1:] == (0, 0, 0)


def test_h27_a_part_of_a_part() -> None:
    p = agreed(lambda d: soft(d[100:200][10:30] * 2), S(256, 8))
    (b,) = [b for b in p.host.launches[0].bindings if b.access.value == "R"]
    assert (str(b.offset), str(b.nbytes)) == (str(110 * 32), str(20 * 32))


@pytest.mark.parametrize(
    ("second", "rows", "first_stays"),
    [
        pytest.param((0, 8), 8, False, id="H28"),
        pytest.param((8, 16), 16, True, id="H29"),
        pytest.param((0, 16), 16, False, id="H30"),
    ],
)
def test_updates_over_updates(second: Any, rows: int, first_stays: bool) -> None:
    """What is written over before anybody reads it is not written."""
    start, end = second

    def fn(d: Any, a: Any, b: Any) -> Any:
        return fw.insert(fw.insert(d, soft(a), (0, 0)), soft(b), (start, 0))

    p = agreed(fn, S(40, 8), S(8, 8), S(end - start, 8), donate=("d",))
    assert figures(p) == (1 + first_stays, 0, 0, 0)
    assert moved(p) == 2 * 32 * (8 * first_stays + end - start)


def test_h31_a_reader_of_an_argument_and_who_writes_over_it() -> None:
    def fn(d: Any) -> Any:
        return fw.sum(d, axis=0), fw.insert(d, fw.ones((4, 8)), (0, 0))

    p = agreed(fn, S(40, 8), donate=("d",))
    assert {e[2] for e in kinds(p)} <= {"WAR"} and figures(p)[2] == 0
    assert len(p.host.launches) == 1 or kinds(p) == [(0, 1, "WAR")]


def test_h32_fills_that_meet_are_one() -> None:
    def over(a: Any) -> Any:
        return fw.insert(fw.zeros((40, 8)), soft(a), (0, 0))

    p = agreed(over, S(40, 8))
    assert figures(p) == (1, 0, 0, 0) and moved(p) == 2 * 40 * 8 * 4

    def beside(d: Any) -> Any:
        d = fw.insert(d, fw.zeros((4, 8)), (0, 0))
        return fw.insert(d, fw.zeros((6, 8)), (4, 0))

    p = agreed(beside, S(40, 8), donate=("d",))
    assert figures(p) == (1, 1, 0, 0) and moved(p) == 10 * 8 * 4


# --- values that are wanted in several places -------------------------------------------------


def test_h33_one_value_in_four_targets() -> None:
    def fn(x: Any, *others: Any) -> Any:
        v = soft(x)
        return [fw.concat([v, soft(o)], axis=0) for o in others]

    p = agreed(fn, S(8, 40), *[S(2, 40)] * 4)
    assert p.host.stats["copies"] == 0 and p.host.stats["edges"]["total"] == 0
    assert moved(p) == 5 * 8 * 160 + 8 * 2 * 160


@pytest.mark.parametrize("axis", [0, 1])
def test_h34_a_value_beside_itself(axis: int) -> None:
    assert figures(agreed(lambda x: fw.concat([x, x], axis=axis), S(6, 40))) == (1, 0, 1, 0)
    assert figures(agreed(lambda x: fw.concat([soft(x)] * 2, axis=axis), S(6, 40))) == (1, 0, 0, 0)


def test_h35_a_piece_that_others_read_before_and_after() -> None:
    def fn(x: Any, y: Any) -> Any:
        v = soft(x)
        before = fw.cumulative_sum(v, axis=0)
        whole = fw.concat([v, soft(y)], axis=0)
        return before, fw.sum(whole, axis=0), fw.cumulative_sum(v, axis=1), whole

    p = agreed(fn, S(8, 40), S(3, 40))
    assert p.host.stats["copies"] == 0 and p.host.stats["peak_bytes"] == 0
    reads = [
        (str(b.offset), str(b.nbytes))
        for x in p.host.launches
        for b in x.bindings
        if not b.access.writes and b.root.kind.value == "output"
    ]
    assert ("0", str(8 * 160)) in reads


def test_h36_a_product_and_its_sum_with_a_row() -> None:
    def fn(a: Any, b: Any, row: Any) -> Any:
        c = a @ b
        return c, c + row

    p = agreed(fn, S(64, 32, dtype="float16"), S(32, 64, dtype="float16"), S(64, dtype="float16"))
    assert figures(p) == (1, 0, 0, 0)
    assert len([b for b in p.host.launches[0].bindings if b.access.writes]) == 2


def test_h37_a_value_that_a_branch_reads_too() -> None:
    def fn(x: Any, y: Any) -> Any:
        v = fw.exp(x)
        chosen = fw.cond(y[0, 0] > 0, lambda v: v * 2, lambda v: v - 1, v)
        return soft(v), chosen + v

    p = agreed(fn, S(8, 40), S(1, 1))
    assert p.host.stats["copies"] == 0


@pytest.mark.parametrize(("behind", "raw"), [(1, 1), (0, 0)])
def test_h38_a_step_of_decoding(behind: int, raw: int) -> None:
    """The cache is written in one place; who reads the prefix alone does not wait."""

    def fn(cache: Any, row: Any, q: Any, at: Any) -> Any:
        new = fw.insert(cache, soft(row), (at, 0))
        scores = soft(fw.sum(new[: at + behind] * q, axis=1)[None])
        return new, scores

    specs = [S(64, 8), S(1, 8), S(8), fw.Sym("at", min=0)]
    p = agreed(fn, *specs, donate=("cache",), numbers=[9])
    stats = p.host.stats
    assert stats["copies"] == 0 and stats["edges"]["maybe"] == 0
    readers = [
        k
        for k, x in enumerate(p.host.launches)
        if any(b.root.name == "cache" and b.access.reads for b in x.bindings)
    ]
    (writer,) = [
        k
        for k, x in enumerate(p.host.launches)
        if any(b.root.name == "cache" and b.access.writes for b in x.bindings)
    ]
    assert sum((writer, k, "RAW") in kinds(p) for k in readers) == raw


def test_h39_a_join_in_memory_of_the_caller() -> None:
    p = agreed(lambda x, y: fw.concat([soft(x), soft(y)], axis=1), S(6, 40), S(6, 8))
    out = np.full((6, 48), np.nan, "f4")
    x, y = np.ones((6, 40), "f4"), np.ones((6, 8), "f4")
    assert figures(p) == (2, 0, 0, 0) and {r for r, _, _ in writes(p)} == {p.results[0].name}
    fused = fw.fuse(
        lambda x, y: fw.concat([fw.nn.softmax(x), fw.nn.softmax(y)], axis=1), device="sim"
    )
    fused(x, y, out=out)
    np.testing.assert_allclose(out[:, :40], 1 / 40, rtol=1e-5)
    np.testing.assert_allclose(out[:, 40:], 1 / 8, rtol=1e-5)


def test_h40_two_copies_of_one_source_into_one_target() -> None:
    p = agreed(lambda x: fw.concat([x[:16], x[16:144]]), S(144))
    assert figures(p) == (1, 0, 1, 0) and p.host.stats["peak_bytes"] == 0
    p = agreed(
        lambda d, x: fw.insert(fw.insert(d, x[:16], (0,)), x[16:], (64,)),
        S(256),
        S(144),
        donate=("d",),
    )
    assert figures(p) == (1, 0, 1, 0) and moved(p) == 2 * 144 * 4


# --- memory -------------------------------------------------------------------------------------


def test_h41_strips_of_the_reference() -> None:
    rows = [(100, 0, 1), (100, 1, 2), (100, 2, 3), (200, 0, 4), (200, 5, 6), (100, 5, 8)]
    arena = pack([Lifetime(f"t{k}", Int(16 * n), a, b) for k, (n, a, b) in enumerate(rows)])
    assert constant_value(arena.nbytes) == 16 * 432


def test_h42_strips_of_sizes_that_calls_know() -> None:
    a, b = Var("a", 1), Var("b", 1)
    unit = ARENA_ALIGNMENT
    rows = [("x", a, 0, 1), ("y", b, 1, 2), ("z", a, 2, 3)]
    arena = pack([Lifetime(n, e * unit, s, t) for n, e, s, t in rows])
    assert str(arena.nbytes) == str(a * unit + b * unit)
    assert arena.offsets[0] == arena.offsets[2] != arena.offsets[1]


def test_h43_an_access_outside_is_refused() -> None:
    with pytest.raises(UserError, match="384 elements from 128 on may not fit size 256"):
        fw.trace(lambda x: fw.slice(x, (128,), (384,)), S(256))
    with pytest.raises(UserError, match="384 elements from 128 on may not fit size 256"):
        fw.trace(lambda d, x: fw.insert(d, x, (128,)), S(256), S(384))


def test_h45_an_odd_first_piece_of_narrow_elements() -> None:
    narrow = "bfloat16"
    p = agreed(lambda x, y: fw.concat([soft(x), soft(y)]), S(3, dtype=narrow), S(64, dtype=narrow))
    assert figures(p) == (2, 0, 0, 0)
    assert ("6", "128") in [(at, n) for _, at, n in writes(p)]
    (behind,) = [x for x in p.host.launches if str(x.bindings[-1].offset) == "6"]
    assert behind.kernel.params[-1].alignment == 2


@pytest.mark.parametrize("seed", range(400, 406))
def test_h48_random_programs(seed: int) -> None:
    """Results of ten random orders have the same bytes, and are what the oracle says."""
    assert problem_of_seed(seed, 10, wrong) is None, seed
