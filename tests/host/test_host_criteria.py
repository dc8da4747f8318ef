"""What a host program is held to: formation (A), placement (B), ranges, edges (C), memory (Y)."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from functools import cache
from itertools import permutations
from typing import Any

import numpy as np
import pytest
from host_runs import agreed, memory_of, random_order, run_launch
from tests.fuzz.fuzz_orders import Drawn, order_problem

import fusewright as fw
from fusewright.core.expr import Int, Var, as_expr, constant_value, variables
from fusewright.core.substitution import evaluate
from fusewright.dtypes import float32
from fusewright.fusion import build
from fusewright.host.arena import ARENA_ALIGNMENT, Lifetime, pack
from fusewright.host.graph import ancestors, critical_path, reduce_edges
from fusewright.host.hazards import hazards
from fusewright.host.ir import (
    AccessMode,
    Binding,
    Edge,
    EdgeKind,
    HostLaunch,
    Root,
    RootKind,
    Stored,
)
from fusewright.host.subspans import natural, nbytes_of
from fusewright.sim.machine import simulate

F, H = "float32", "float16"


def S(*shape: int | str, dtype: str = F) -> fw.TensorSpec:
    return fw.TensorSpec(shape, dtype)


def soft(x: Any) -> Any:
    return fw.nn.softmax(x, axis=-1)


def relu(x: Any) -> Any:
    return fw.maximum(x, 0)


def figures(p: fw.Program) -> tuple[int, int, int, int]:
    """Launches, fills, copies, edges."""
    s = p.host.stats
    return s["launches"], s["fills"], s["copies"], s["edges"]["total"]


def written(p: fw.Program) -> list[Binding]:
    return [b for x in p.host.launches for b in x.bindings if b.access.writes]


def reads(p: fw.Program) -> list[Binding]:
    return [b for x in p.host.launches for b in x.bindings if not b.access.writes]


# --- A: formation -------------------------------------------------------------------------------

PADDED: dict[str, tuple[Callable[..., Any], list[fw.TensorSpec]]] = {
    "elementwise": (relu, [S("n", 20)]),
    "reduction": (lambda x: fw.sum(x, axis=-1)[:, None], [S("n", 40)]),
    "norm": (soft, [S("n", 20)]),
    "product": (lambda a, b: relu(a @ b), [S(48, 32, dtype=H), S(32, 24, dtype=H)]),
}


@pytest.mark.parametrize("kind", PADDED)
def test_a1_a_pad_belongs_to_what_makes_the_inside(kind: str) -> None:
    fn, specs = PADDED[kind]
    p = agreed(
        lambda *xs: fw.pad(fn(*xs), ((1, 3), (2, 2)), constant_values=1.5), *specs, sizes={"n": 6}
    )
    assert figures(p) == (1, 0, 0, 0) and p.host.stats["peak_bytes"] == 0
    total = sum(evaluate(b.content, _sizes(p, {"n": 6})) for b in written(p))
    (out,) = p.results
    assert total == out.dtype.nbytes * np.prod(
        [evaluate(e, _sizes(p, {"n": 6})) for e in out.shape]
    )


def _sizes(p: fw.Program, named: dict[str, int]) -> dict[Var, int]:
    return {v: named[v.name] for v in p.symbols}


@pytest.mark.parametrize("make", [fw.exp, soft])
def test_a2_a_pad_beside_its_inside(make: Callable[..., Any]) -> None:
    def fn(x: Any) -> Any:
        v = make(x)
        return fw.pad(v, ((1, 1), (2, 2))), v

    p = agreed(fn, S(6, 40))
    assert figures(p) == (1, 0, 0, 0) and p.host.stats["bytes_moved"] == 4 * (480 + 8 * 44)


@pytest.mark.parametrize(
    "read",
    [
        lambda x, w: fw.pad(x, ((0, 0), (8, 8))) @ w,
        lambda x, w: fw.sum(fw.pad(x, ((0, 0), (8, 8)), constant_values=2.0), axis=1),
        lambda x, w: fw.nn.max_pool2d(fw.pad(x, 1)[None, None], 3, stride=1),
    ],
)
def test_a3_a_pad_belongs_to_what_reads_it(read: Callable[..., Any]) -> None:
    specs = [S(16, 16, dtype=H), S(32, 24, dtype=H)]
    fusion = fw.trace(read, *specs)
    p = fw.compile(fusion)
    used = sum(16 * 16 if t is fusion.inputs[0] else 32 * 24 for t in p.fusion.inputs)
    assert figures(p) == (1, 0, 0, 0) and p.host.stats["peak_bytes"] == 0
    assert sum(evaluate(b.content, {}) for b in reads(p)) <= 2 * used


MODES = ["reflect", "edge", "symmetric", "wrap", "linear_ramp"]


@pytest.mark.parametrize("mode", MODES)
def test_a4_pads_that_are_no_fill(mode: str) -> None:
    p = agreed(lambda x: fw.pad(fw.exp(x * 0.1), ((2, 1), (3, 2)), mode=mode), S(6, 9))
    assert p.host.stats["fills"] == 0
    assert p.host.stats["launches"] == 1 or mode == "linear_ramp"  # whose corners follow from edges


def test_a4_crops_steps_and_values_in_memory() -> None:
    assert figures(agreed(lambda x: fw.pad(fw.exp(x), ((-1, 2), (3, -2))), S(6, 9))) == (1, 0, 0, 0)

    def between(x: Any) -> Any:
        """Zeros between the elements."""
        wide = fw.pad(fw.exp(x)[:, :, None], ((0, 0), (0, 0), (0, 2)))
        return fw.reshape(wide, (6, 27))

    assert figures(agreed(between, S(6, 9))) == (1, 0, 0, 0)
    p = agreed(lambda x, v: fw.insert(fw.full((9, 9), v), soft(x), (1, 2)), S(4, 5), S())
    results = [b for b in written(p) if b.root.kind is RootKind.OUTPUT]
    assert p.host.stats["launches"] <= 2
    assert sum(evaluate(b.content, {}) for b in results) == 9 * 9 * 4, "each byte once"


def test_a5_odd_shapes_and_types() -> None:
    both = {
        "unit axes": lambda x: fw.insert(fw.zeros((4, 1, 5)), soft(x)[None, None], (2, 0, 0)),
        "no rows": lambda x: fw.concat([soft(fw.stack([x, x]))[:0], fw.stack([x, x])], axis=0),
        "rank zero": lambda x: fw.stack([fw.sum(x), fw.max(x)]),
        "bools": lambda x: fw.concat([x > 0, fw.stack([fw.any(x > 1)])]),
    }
    for name, fn in both.items():
        assert agreed(fn, S(5)).host.stats["copies"] <= (name == "no rows")
    narrow = S(3, 7, dtype="bfloat16")
    p = agreed(lambda x, y: fw.concat([soft(x), soft(y)], axis=1), narrow, narrow)
    assert figures(p) == (2, 0, 0, 0)
    for x in p.host.launches:
        for buffer, b in zip(x.kernel.params, x.bindings, strict=True):
            steps = [evaluate(e, {}) for e in (b.offset, *(s for n, s in b.axes))]
            assert steps[0] % buffer.alignment == 0


@pytest.mark.parametrize("rows", [30, 2])
def test_a6_the_rest_of_a_fill(rows: int) -> None:
    """What is written over is not filled, however much that is."""
    p = agreed(lambda x: fw.insert(fw.zeros((40, 16)), soft(x), (3, 0)), S(rows, 16))
    stats = p.host.stats
    assert stats["copies"] == 0 and sum(evaluate(b.content, {}) for b in written(p)) == 40 * 64
    assert stats["edges"]["total"] == 0


def _touched(launch: HostLaunch, arrays: list[np.ndarray]) -> list[np.ndarray]:
    """What a launch writes over arrays for its read bindings; zeros where it does not."""
    given = iter(arrays)
    views: dict[Any, np.ndarray] = {}
    for p, b in zip(launch.kernel.params, launch.bindings, strict=True):
        n = evaluate(b.nbytes, {}) // b.width
        views[p] = np.zeros(n, p.dtype.numpy) if b.access.writes else next(given)
    outputs = [
        p for p, b in zip(launch.kernel.params, launch.bindings, strict=True) if b.access.writes
    ]
    found = simulate(
        launch.kernel,
        views,
        arguments=dict(zip(launch.kernel.arguments, launch.values, strict=True)),
        outputs=outputs,
        check_races=False,
    )
    for w in found.written:
        assert w[0] and w[-1], "the ends of what is bound for writing are written"
    return [np.where(w, o, 0) for o, w in zip(found.outputs, found.written, strict=True)]


@pytest.mark.parametrize("seed", range(900, 904))
def test_a7_bindings_are_no_wider_than_what_is_touched(seed: int) -> None:
    """The first and the last element of every binding are written, or decide what is written."""
    drawn = Drawn(seed)
    host = fw.compile(fw.trace(drawn, *drawn.specs)).host
    if drawn.sizes:
        return
    rng = np.random.default_rng(seed)
    for x in dict.fromkeys(host.launches):
        bound = [b for b in x.bindings if not b.access.writes]
        arrays = [
            rng.standard_normal(evaluate(b.nbytes, {}) // b.width).astype(np.float32) for b in bound
        ]
        base = _touched(x, arrays)
        for k, array in enumerate(arrays):
            for end in (0, -1):
                bent = array.copy()
                bent[end] = np.nan
                after = _touched(x, [*arrays[:k], bent, *arrays[k + 1 :]])
                same = all(
                    np.array_equal(a, b, equal_nan=True) for a, b in zip(base, after, strict=True)
                )
                assert not same, (seed, x.name, bound[k], end)


@pytest.mark.parametrize("kind", PADDED)
def test_a8_a_strided_block_is_written_by_what_makes_it(kind: str) -> None:
    """Its kernel writes at the pitch of what is around it, which is filled beside it."""
    make, specs = PADDED[kind]

    def fn(*xs: Any) -> Any:
        y = make(*xs)
        return fw.insert(fw.zeros((y.shape[0] + 5, y.shape[1] + 7), y.dtype), y, (2, 3))

    p = agreed(fn, *specs, sizes={"n": 9})
    inside, around = figures(p)[0], figures(p)[2]
    assert inside <= 2 and around == 0 and not p.host.stats["not_placed"]


def test_a8_what_is_only_copied_is_the_callers_or_has_a_reason() -> None:
    copies = 0
    for seed in (*SEEDS, *range(300, 306)):
        drawn = Drawn(seed)
        program = fw.compile(fw.trace(drawn, *drawn.specs))
        reasons = {str(r).partition(":")[0] for r in program.reasons}
        for x in program.host.launches:
            if x.role != "copy":
                continue
            copies += 1
            callers = (RootKind.INPUT, RootKind.CONSTANT)
            own = [b for b in x.bindings if b.access.reads and b.root.kind not in callers]
            made = {b.tensor for b in x.bindings if b.access.writes}
            assert not own or made & reasons or {b.tensor for b in own} <= reasons, (seed, x.name)
    assert copies > 1


# --- B: placement -------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [2, 4, 8, 16, 64])
@pytest.mark.parametrize("axis", [pytest.param(0, id="B1"), pytest.param(1, id="B2")])
def test_pieces_in_any_order(axis: int, count: int) -> None:
    rng = random.Random(count)
    order = rng.sample(range(count), count)

    def fn(*xs: Any) -> Any:
        made, beside = {}, []
        for k in order:
            made[k] = soft(xs[k])
            if k % 8 == 0:
                beside.append(fw.cumulative_sum(xs[k], axis=0))
        return fw.concat([made[k] for k in range(count)], axis=axis), *beside

    p = fw.compile(fw.trace(fn, *[S(16, 64)] * count))
    assert p.host.stats["copies"] == p.host.stats["fills"] == 0
    assert p.host.stats["edges"]["total"] == 0 and p.host.stats["critical_path"] == 1


def test_b3_joins_of_joins_and_of_arguments() -> None:
    def nested(x: Any, y: Any, z: Any) -> Any:
        return fw.concat([fw.concat([soft(x), soft(y)], axis=1), soft(z)], axis=0)

    assert figures(agreed(nested, S(4, 6), S(4, 10), S(3, 16))) == (3, 0, 0, 0)

    def pad_of_join(x: Any, y: Any) -> Any:
        return fw.pad(fw.concat([soft(x), soft(y)], axis=1), ((1, 1), (0, 2)))

    p = agreed(pad_of_join, S(4, 6), S(4, 10))
    assert p.host.stats["copies"] == 0 and p.host.stats["edges"]["total"] == 0

    def join_of_pads(x: Any, y: Any) -> Any:
        return fw.concat([fw.pad(soft(v), ((1, 1), (0, 2))) for v in (x, y)], axis=0)

    assert figures(agreed(join_of_pads, S(4, 6), S(5, 6))) == (2, 0, 0, 0)

    def of_argument(x: Any, y: Any) -> Any:
        return fw.concat([fw.concat([x, soft(y)], axis=0), soft(x)], axis=0)

    p = agreed(of_argument, S(4, 64), S(5, 64))
    assert p.host.stats["copies"] <= 1 and p.host.stats["edges"]["total"] == 0


def test_b4_pieces_with_readers_and_several_results() -> None:
    def readers(x: Any, y: Any) -> Any:
        v = soft(x)
        return fw.concat([v, soft(y)], axis=0), fw.cumulative_sum(v, axis=0), v

    p = agreed(readers, S(8, 40), S(3, 40))
    assert p.host.stats["copies"] == 0

    def depends(x: Any) -> Any:
        """The target needs another result of the kernel that makes the block."""
        v = soft(x)
        total = fw.cumulative_sum(x - fw.max(x, axis=-1, keepdims=True), axis=0)
        return fw.insert(total, v[:2], (3, 0)), v

    p = agreed(depends, S(8, 40))
    assert all(e.producer < e.consumer for e in p.host.edges)


def test_b5_a_value_in_several_places() -> None:
    def round_trip(x: Any) -> Any:
        return fw.concat([soft(x[:4]), fw.cumulative_sum(x[4:], axis=1)], axis=0)

    p = agreed(round_trip, S(8, 40))
    assert figures(p) == (2, 0, 0, 0)
    assert sorted(str(b.nbytes) for b in reads(p)) == ["640", "640"], "parts are read, no more"


def test_b6_chains_of_updates() -> None:
    """Writes that nobody sees are not made; those that stay in part write that part."""

    def chain(*blocks: tuple[int, int]) -> tuple[int, int]:
        def fn(d: Any, *xs: Any) -> Any:
            for x, (start, _) in zip(xs, blocks, strict=True):
                d = fw.insert(d, soft(x), (start, 0))
            return d

        specs = [S(end - start, 8) for start, end in blocks]
        p = agreed(fn, S(40, 8), *specs, donate=("d",))
        rows = [b for b in written(p) if b.root.name == "d"]
        assert p.host.stats["copies"] == p.host.stats["peak_bytes"] == 0
        return p.host.stats["launches"], sum(evaluate(b.content, {}) for b in rows) // 32

    assert chain((0, 8), (0, 8)) == (1, 8)
    assert chain((0, 8), (8, 16)) == (2, 16)
    assert chain((2, 8), (0, 16)) == (1, 16)
    assert chain((0, 16), (2, 8)) == (2, 16), "two parts of the first stay, of one launch"


def test_b7_arguments_are_written_only_where_they_are_given() -> None:
    def fn(d: Any, x: Any) -> Any:
        return fw.insert(d, soft(x), (1, 0))

    kept = agreed(fn, S(40, 8), S(4, 8))
    assert not [b for b in written(kept) if b.root.kind is RootKind.INPUT]
    given = agreed(fn, S(40, 8), S(4, 8), donate=("d",))
    assert [b.root.name for b in written(given)] == ["d"]


def test_b8_loops_and_branches() -> None:
    def appended(c: Any, x: Any) -> Any:
        return fw.fori_loop(
            0, 4, lambda i, c: fw.insert(c, soft(x + fw.astype(i, F)), (2 * i, 0)), c
        )

    p = agreed(appended, S(16, 8), S(2, 8), donate=("c",))
    (region,) = [x for x in p.launches if x.region is not None]
    (body,) = region.region.bodies
    moved = body.host.stats["bytes_moved"]
    assert moved <= 2 * 64 + 8, "an iteration writes its block"
    assert p.host.stats["copies"] == 0

    def branched(x: Any, y: Any) -> Any:
        return fw.cond(y[0] > 0, lambda v: soft(v), lambda v: fw.cumulative_sum(v, axis=1), x)

    p = agreed(branched, S(6, 40), S(1))
    (region,) = [x for x in p.launches if x.region is not None]
    assert all(b.host.stats["copies"] == 0 for b in region.region.bodies)

    def carried(x: Any) -> Any:
        """What an iteration reads last lies in memory until the next one has read it."""

        def body(i: Any, s: Any) -> Any:
            return fw.cumulative_sum(s[0] * 0.5, axis=0), soft(s[0]) + s[1] * 0.5

        return fw.fori_loop(0, 5, body, (x, x * 2))

    agreed(carried, S(6, 40))


# --- C: ranges and edges ------------------------------------------------------------------------


def test_c1_hulls_of_boxes() -> None:
    """Of boxes in axes in any order: the bytes from the first element to behind the last."""
    rng = random.Random(0)
    n = fw.Sym("n")
    for _ in range(2000):
        shape = [rng.randint(1, 4) for _ in range(rng.randint(1, 5))]
        order = rng.sample(range(len(shape)), len(shape))
        starts = [rng.randrange(e) for e in shape]
        counts = [rng.randint(1, e - a) for e, a in zip(shape, starts, strict=True)]
        extents: list[Any] = [Int(e) for e in shape]
        if shape[-1] > 1:
            extents[-1] = n
        t = build.full(tuple(extents), 0.0, float32)
        ranges = [(Int(a), Int(m)) for a, m in zip(starts, counts, strict=True)]
        s = natural(t).part(ranges).permuted(order)
        places = np.arange(np.prod(shape)).reshape(shape)
        inside = places[tuple(slice(a, a + m) for a, m in zip(starts, counts, strict=True))]
        assert evaluate(s.offset, {n: shape[-1]}) == inside.min()
        assert evaluate(nbytes_of(s), {n: shape[-1]}) == 4 * (inside.max() - inside.min() + 1)


def _binding(k: int, start: Any, nbytes: Any, mode: str) -> Binding:
    access, start, nbytes = AccessMode(mode), as_expr(start), as_expr(nbytes)
    axes = ((nbytes, Int(1)),)
    total = access is AccessMode.WRITE
    return Binding(ROOT, start, nbytes, access, f"t{k}", VALUE, nbytes, axes, 1, total)


ROOT = Root(RootKind.ARENA, 0, "arena", Int(1 << 20), 256)
VALUE = Stored("t", ROOT, Int(1 << 20))


@pytest.fixture(scope="module")
def kernel() -> Any:
    return fw.compile(fw.trace(fw.exp, S(4))).host.launches[0].kernel


def _launches(kernel: Any, *rows: list[tuple[Any, Any, str]]) -> list[HostLaunch]:
    return [
        HostLaunch(kernel, (), tuple(_binding(k, *r) for r in row)) for k, row in enumerate(rows)
    ]


def test_c2_edges_of_gaps_permutations_and_third_writers(kernel: Any) -> None:
    def edges(*accesses: tuple[int, int, str]) -> list[tuple[int, int]]:
        return [
            (e.producer, e.consumer) for e in hazards(_launches(kernel, *[[a] for a in accesses]))
        ]

    assert edges((0, 10, "W"), (20, 10, "W")) == []
    for order in permutations([(10 * k, 10, "W") for k in range(4)]):
        assert edges(*order) == []
    assert edges((0, 10, "W"), (10, 10, "W"), (0, 10, "W")) == [(0, 2)]


SEEDS = range(2000, 2010)


@cache
def drawn_host(seed: int) -> tuple[fw.HostProgram, dict[Any, int]]:
    """The host program of a seed, and the sizes of its symbols."""
    drawn = Drawn(seed)
    host = fw.compile(fw.trace(drawn, *drawn.specs)).host
    found = {v for r in host.roots for v in variables(r.nbytes)}
    return host, {v: drawn.sizes[v.name] for v in found}


@pytest.mark.parametrize("seed", SEEDS)
def test_c2_edges_are_those_of_the_bytes(seed: int) -> None:
    """Of compiled programs: launches are ordered exactly where they conflict on bytes, or what
    joins them does; every edge is of two that conflict."""
    host, sizes = drawn_host(seed)
    count = len(host.launches)
    touched = [[(b, _bytes(b, sizes)) for b in x.bindings] for x in host.launches]
    true = [
        Edge(p, c, EdgeKind.RAW, "")
        for c in range(count)
        for p in range(c)
        if any(_conflict(a, b) for a in touched[p] for b in touched[c])
    ]
    sure = [e for e in host.edges if e.kind is not EdgeKind.MAYBE]
    pairs = {(e.producer, e.consumer) for e in true}
    assert {(e.producer, e.consumer) for e in sure} <= pairs
    assert all(e.why for e in host.edges)
    if len(sure) == len(host.edges):
        assert ancestors(host.edges, count) == ancestors(true, count)
    assert all(ancestors(host.edges, count)[e.consumer] >> e.producer & 1 for e in true)


def _bytes(b: Binding, sizes: dict[Any, int]) -> set[int]:
    out = {evaluate(b.offset, sizes) + k for k in range(b.width)}
    for n, step in b.axes:
        at = evaluate(step, sizes)
        out = {p + at * k for p in out for k in range(evaluate(n, sizes))}
    return out


def _conflict(a: tuple[Binding, set[int]], b: tuple[Binding, set[int]]) -> bool:
    (x, mine), (y, others) = a, b
    return x.root is y.root and (x.access.writes or y.access.writes) and bool(mine & others)


def test_c3_ranges_over_symbols(kernel: Any) -> None:
    n, i, at, m = Var("n", 1), Var("i", 0), Var("at", 0), Var("m", 2)

    def kind(*accesses: tuple[Any, Any, str]) -> list[str]:
        return [e.kind.value for e in hazards(_launches(kernel, *[[a] for a in accesses]))]

    assert kind((0, 4 * n, "W"), (4 * n, 8, "R")) == []
    assert kind((i * n, n, "W"), (i * n + n, n, "W")) == []
    assert kind((0, 4 * at, "R"), (4 * at, 4, "W")) == []
    assert kind((4 * at, 4, "W"), (0, 4 * at + 4, "R")) == ["RAW"]
    assert kind((0, 4 * at, "W"), (0, 4 * at, "R")) == ["RAW"], "whatever the size is"
    assert kind((4 * n, 8, "W"), (4 * m, 8, "R")) == ["maybe"]


def test_c3_blocks_where_the_device_says() -> None:
    def fn(d: Any, x: Any, at: Any) -> Any:
        return fw.sum(d[:4], axis=1), fw.insert(d, soft(x), (at, 0))

    p = fw.compile(fw.trace(fn, S(64, 8), S(4, 8), S(dtype="int32")), donate=("d",))
    assert all(e.kind is EdgeKind.MAYBE and "the device decides" in e.why for e in p.host.edges)


def test_c4_many_launches_take_little_time(kernel: Any) -> None:
    shared = Root(RootKind.INPUT, 0, "x", Int(1 << 30), 256)
    read = Binding(shared, Int(0), Int(1 << 20), AccessMode.READ, "x", VALUE, Int(1), (), 1)
    rows = [HostLaunch(kernel, (), (read, _binding(k, 1024 * k, 1024, "W"))) for k in range(1024)]
    reader = HostLaunch(kernel, (), (_binding(0, 0, 1 << 20, "R"),))
    start = time.process_time()
    edges = reduce_edges(hazards([*rows, reader]), 1025)
    assert time.process_time() - start < 1
    assert len(edges) == 1024 and critical_path(edges, 1025) == 2


@pytest.mark.parametrize("seed", SEEDS)
def test_c4_waits_between_branches_are_needed(seed: int) -> None:
    """An event is recorded only where no branch and no other event implies it."""
    host, _ = drawn_host(seed)
    count = len(host.launches)
    of, waits = host.branches.of, host.branches.waits
    assert sum(map(len, waits)) <= sum(of[e.producer] != of[e.consumer] for e in host.edges)
    for e in host.edges:
        rest = [x for x in host.edges if x is not e]
        assert ancestors(rest, count) != ancestors(host.edges, count), e
    last: dict[int, int] = {}
    order = []
    for k, b in enumerate(of):
        order += [
            Edge(p, k, EdgeKind.RAW, "") for p in (*waits[k], *([last[b]] if b in last else []))
        ]
        last[b] = k
    before = ancestors(order, count)
    assert all(before[e.consumer] >> e.producer & 1 for e in host.edges)


def test_c5_kernels_stay_between_red_zones() -> None:
    """Bytes around each binding, and those in it that nobody writes, stay what they were."""
    for seed in range(4000, 4003):
        drawn = Drawn(seed)
        program, arrays = fw.compile(fw.trace(drawn, *drawn.specs)), drawn.arrays()
        host, sizes = program.host, program.symbol_values(arrays)
        memory = memory_of(program, arrays, sizes)
        for k in random_order(host, random.Random(seed)):
            before = {r: m.copy() for r, m in memory.items()}
            run_launch(host.launches[k], memory, sizes)
            for r, m in memory.items():
                made = [b for b in host.launches[k].bindings if b.root is r and b.access.writes]
                own = np.zeros(len(m), bool)
                for b in made:
                    own[sorted(_bytes(b, sizes))] = True
                assert np.array_equal(m[~own], before[r][~own]), (seed, k, r)


@pytest.mark.parametrize("seed", range(5000, 5002))
def test_c6_results_are_the_same_in_a_hundred_orders(seed: int) -> None:
    drawn = Drawn(seed)
    program = fw.compile(fw.trace(drawn, *drawn.specs))
    assert order_problem(program, drawn.arrays(), seed, 100) is None


# --- Y: memory ----------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
def test_y1_the_arena_is_as_large_as_it_says(seed: int) -> None:
    """Its last byte is used and no launch goes further. Without memory for branches, which these
    launches of few blocks get, it is near the least that values in use at one time need."""
    host, sizes = drawn_host(seed)
    inside = [b for x in host.launches for b in x.bindings if b.root.kind is RootKind.ARENA]
    peak = evaluate(host.arena.nbytes, sizes)
    reached = max((evaluate(b.offset + b.nbytes, sizes) for b in inside), default=0)
    assert reached <= peak <= reached + ARENA_ALIGNMENT - 1
    assert peak >= evaluate(host.arena.lower_bound, sizes)
    tight = pack(_lifetimes(host, sizes))
    least, most = constant_value(tight.lower_bound), constant_value(tight.nbytes)
    assert least is not None and most is not None and least <= most <= 1.05 * least
    assert peak >= least


def _lifetimes(host: fw.HostProgram, sizes: dict[Any, int]) -> list[Lifetime]:
    """The values in the arena, from the launch that makes each to the last one that reads it."""
    users: dict[Stored, list[int]] = {}
    for k, x in enumerate(host.launches):
        for b in x.bindings:
            if b.root.kind is RootKind.ARENA:
                users.setdefault(b.memory, []).append(k)
    return [
        Lifetime(v.name, Int(evaluate(v.content, sizes)), u[0], u[-1]) for v, u in users.items()
    ]


def test_y2_known_symbolic_and_empty_values_share_memory() -> None:
    def fn(x: Any, y: Any) -> Any:
        a, b = soft(x), soft(y)
        empty = soft(x)[:, :0]
        return fw.sum(a, axis=0), fw.sum(b, axis=0), fw.cumulative_sum(a, axis=1), fw.sum(empty)

    p = agreed(fn, S(6, 40), S("n", 40), sizes={"n": 5})
    assert p.host.stats["copies"] == 0


def test_y3_constants_are_held_once() -> None:
    table = np.arange(40, dtype=np.float32)

    def fn(x: Any) -> Any:
        return soft(x + fw.asarray(table)) * fw.asarray(table), x * fw.asarray(table.copy())

    p = agreed(fn, S(6, 40))
    constants = [t for t in p.fusion.inputs if t.name != "x"]
    assert len(constants) == 1
    assert p.host.roots[1].alignment >= 16


@pytest.mark.parametrize("count", [26, 64])
def test_pieces_that_are_left_over_are_one_kernel_in_place(count: int) -> None:
    """A kernel reads 24 tensors; the join of the rest is made where it ends up, too."""
    widths = [3 + k % 5 for k in range(count)]
    p = agreed(
        lambda *xs: fw.concat([fw.exp(x) for x in xs], axis=1), *[S(6, n) for n in widths], orders=1
    )
    stats = p.host.stats
    assert stats["launches"] == -(-count // 24) and stats["edges"]["total"] == 0
    assert stats["bytes_moved"] == 2 * 6 * 4 * sum(widths) and not stats["not_placed"]
