"""Edges against bytes: every pair of launches that touches a common byte is ordered, no other."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import cache

import pytest

from fusewright.core.expr import Expr, Int, Var
from fusewright.core.substitution import evaluate
from fusewright.host.accesses import bound, overlaps
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
    ViewBox,
)
from fusewright.host.regions import ByteRegion, meet, region
from fusewright.kir.ir import Kernel

R, W, RW = AccessMode.READ, AccessMode.WRITE, AccessMode.READ_WRITE
OUT = Root(RootKind.OUTPUT, 0, "y", Int(1 << 20), 256)
ARENA = Root(RootKind.ARENA, 0, "arena", Int(1 << 20), 256)
N = Var("n", 2)


def kernel(name: str = "k") -> Kernel:
    return Kernel(name, (), (), (), (), (), ())


@cache
def stored(name: str, root: Root) -> Stored:
    return Stored(name, root, root.nbytes)


def at(
    offset: Expr | int,
    nbytes: Expr | int,
    access: AccessMode = W,
    root: Root = OUT,
    tensor: str = "t",
    box: ViewBox | None = None,
) -> Binding:
    total = access is W and box is None
    axes = ((_e(nbytes), Int(1)),) if box is None else tuple(zip(box.extent, box.step, strict=True))
    return Binding(
        root,
        _e(offset),
        _e(nbytes),
        access,
        tensor,
        stored(tensor, root),
        _e(nbytes),
        axes,
        1,
        total,
        box,
    )


def _e(x: Expr | int) -> Expr:
    return Int(x) if isinstance(x, int) else x


def launches(*bindings: Binding | tuple[Binding, ...]) -> list[HostLaunch]:
    return [
        HostLaunch(kernel(f"k{i}"), (), b if isinstance(b, tuple) else (b,))
        for i, b in enumerate(bindings)
    ]


def pairs(*bindings: Binding | tuple[Binding, ...]) -> list[tuple[int, int, str]]:
    found = hazards(launches(*bindings))
    return [(e.producer, e.consumer, e.kind.value) for e in found]


def test_the_four_kinds() -> None:
    assert pairs(at(0, 8), at(0, 8, R)) == [(0, 1, "RAW")]
    assert pairs(at(0, 8, R), at(0, 8)) == [(0, 1, "WAR")]
    assert pairs(at(0, 8), at(4, 8)) == [(0, 1, "WAW")]
    assert pairs(at(0, 8, R), at(0, 8, R)) == []
    assert pairs(at(0, 8), at(0, 8, RW)) == [(0, 1, "RAW")]
    a, b = at(0, 8, root=ARENA, tensor="a"), at(0, 8, root=ARENA, tensor="b")
    assert pairs(a, b) == [(0, 1, "reuse")]


def test_other_roots_and_other_bytes_make_no_edge() -> None:
    assert pairs(at(0, 8), at(8, 8)) == []
    assert pairs(at(8, 8), at(0, 8)) == []
    assert pairs(at(0, 8), at(0, 8, root=ARENA)) == []
    assert pairs(at(0, 8), at(4, 0)) == []


def test_pieces_in_any_order_are_independent() -> None:
    """Writers of disjoint parts of one result wait for nobody, sorted or not."""
    rng = random.Random(0)
    for _ in range(20):
        order = rng.sample(range(16), 16)
        assert pairs(*[at(64 * i, 64) for i in order]) == []


def test_a_third_writer_sees_past_its_neighbour() -> None:
    """[0,10) [10,20) [0,10): the last waits for the first, not for the one between."""
    assert pairs(at(0, 10), at(10, 10), at(0, 10)) == [(0, 2, "WAW")]


def test_a_covered_access_is_no_longer_waited_for() -> None:
    found = pairs(at(0, 8), at(0, 8, R), at(0, 16), at(0, 8, R))
    assert found == [(0, 1, "RAW"), (0, 2, "WAW"), (1, 2, "WAR"), (2, 3, "RAW")]


def test_one_edge_per_pair_of_the_strongest_kind() -> None:
    writer = (at(0, 8, tensor="a"), at(8, 8, tensor="b"))
    reader = (at(0, 8, tensor="c"), at(8, 8, R, tensor="b"))
    assert pairs(writer, reader) == [(0, 1, "RAW")]


def test_boxes_side_by_side_are_disjoint() -> None:
    """Pieces along the inner axis: hulls overlap, boxes do not."""

    def piece(column: int) -> Binding:
        box = ViewBox(Int(0), (Int(0), Int(64 * column)), (Int(16), Int(64)), (Int(256), Int(1)))
        return at(64 * column, 15 * 256 + 64, box=box)

    assert pairs(*[piece(c) for c in (2, 0, 3, 1)]) == []
    assert pairs(piece(1), piece(1)) == [(0, 1, "WAW")]
    assert pairs(piece(1), at(0, 4096)) == [(0, 1, "WAW")]


def pitched(base: int, start: tuple[int, int], extent: tuple[int, int], pitch: int) -> Binding:
    """A box of a value with rows of `pitch` bytes that begins at byte `base` of the arena."""
    box = ViewBox(Int(base), *(tuple(map(Int, x)) for x in (start, extent)), (Int(pitch), Int(1)))
    offset = base + start[0] * pitch + start[1]
    return at(offset, (extent[0] - 1) * pitch + extent[1], R, ARENA, box=box)


def test_boxes_of_other_base_or_pitch_are_compared_byte_by_byte() -> None:
    """Boxes that are apart in their own values share bytes where one value begins elsewhere."""
    left, right = pitched(0, (0, 0), (5, 96), 192), pitched(0, (0, 96), (5, 96), 192)
    assert overlaps(bound(0, left), bound(1, right)) is False
    for base, shared in ((96, True), (192, False), (95, True), (97, True)):
        moved = pitched(base, (0, 0), (5, 96), 192)
        assert overlaps(bound(0, right), bound(1, moved)) is shared, base
    assert (
        overlaps(bound(0, pitched(0, (0, 0), (2, 4), 64)), bound(1, pitched(0, (0, 8), (2, 4), 32)))
        is False
    )
    assert (
        overlaps(bound(0, pitched(0, (0, 0), (2, 4), 64)), bound(1, pitched(0, (0, 0), (3, 4), 32)))
        is True
    )


def test_a_box_of_a_value_waits_for_what_lay_in_other_rows_of_its_bytes() -> None:
    """A read of the right half of one value, a write of the left half of the next one there."""
    read = pitched(512, (0, 96), (5, 96), 192)
    write = replace(
        pitched(0, (0, 0), (5, 96), 192), access=W, tensor="u", memory=stored("u", ARENA)
    )
    assert pairs(read, write) == [(0, 1, "reuse")]
    symbolic = replace(write.box, base=N * 256)
    assert pairs(replace(read, offset=N * 64), replace(write, offset=N * 256, box=symbolic)) == [
        (0, 1, "maybe")
    ]


@pytest.mark.parametrize("seed", range(40))
def test_regions_meet_as_their_bytes_do(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(40):
        a, b = (_random_region(rng) for _ in range(2))
        assert meet(a, b) is bool(_points(a) & _points(b)), (a, b)
        assert len(_points(a)) <= a.nbytes and max(_points(a)) < a.end


def _random_region(rng: random.Random) -> ByteRegion:
    width, axes = rng.choice([1, 2, 4]), []
    step = width
    for _ in range(rng.randrange(4)):
        step *= rng.choice([1, 1, 2, 3]) if rng.random() < 0.8 else 5
        axes.append((rng.randrange(1, 4), step))
        step *= axes[-1][0]
    return region(rng.randrange(60), rng.sample(axes, len(axes)), width)


def _points(r: ByteRegion) -> set[int]:
    points = {r.start + k for k in range(r.width)}
    for n, step in r.axes:
        points = {p + k * step for p in points for k in range(n)}
    return points


def test_a_search_for_common_bytes_that_takes_too_long_is_given_up() -> None:
    a, b = region(0, [(5000, 101 * 97)], 1), region(1, [(5000, 101 * 89)], 1)
    assert meet(a, b) is None


def test_symbolic_ranges() -> None:
    assert pairs(at(0, N * 4), at(N * 4, 8, R)) == [], "prefix and what follows it"
    assert pairs(at(0, N * 4), at(0, 4, R)) == [(0, 1, "RAW")]
    assert pairs(at(0, N * 4), at(N * 4 - 4, 8, R)) == [(0, 1, "RAW")]
    m = Var("m", 2)
    found = hazards(launches(at(N * 4, 8), at(m * 4, 8, R)))
    assert [e.kind for e in found] == [EdgeKind.MAYBE]
    assert "may overlap" in found[0].why


@pytest.mark.parametrize("seed", range(20))
def test_symbolic_overlaps_hold_for_every_size(seed: int) -> None:
    """Never an answer that some size contradicts, and apart where columns of one pitch are."""
    rng = random.Random(seed)
    for _ in range(30):
        a, b = (_random_symbolic(rng) for _ in range(2))
        answer = overlaps(bound(0, a), bound(1, b))
        shared = [bool(_points(_at(a, n)) & _points(_at(b, n))) for n in (2, 3, 4, 7)]
        assert answer is None or shared == [answer] * 4, (a, a.axes, b, b.axes)
    rows = [(N, Int(40)), (Int(3), Int(4))]
    left, right, above = (_symbolic(Int(k), rows, 4) for k in (0, 12, 28))
    behind, across = _symbolic(N * 40 + 12, rows, 4), _symbolic(Int(8), rows, 4)
    pairs = (left, right), (right, above), (left, above), (left, behind)
    assert [overlaps(bound(0, a), bound(1, b)) for a, b in pairs] == [False] * 4
    assert overlaps(bound(0, left), bound(1, across)) is None, "seen to meet where sizes are known"
    wide = [(Int(8), N * 8), (N, Int(4))]
    halves = [_symbolic(at, wide, 4) for at in (Int(0), N * 4)]
    assert overlaps(bound(0, halves[0]), bound(1, halves[1])) is False


def _random_symbolic(rng: random.Random) -> Binding:
    """Axes whose steps are multiples of the faster ones' reach, or one element less or more."""
    axes: list[tuple[Expr, Expr]] = []
    step: Expr = Int(4)
    for _ in range(rng.randrange(1, 4)):
        n = rng.choice([N, Int(2), Int(3), N + 1])
        axes.append((n, step))
        step = rng.choice([step * n, step * n * 2, step * n + 4, step * 5])
    return _symbolic(rng.choice([Int(0), Int(4), Int(12), N * 4, N * 8 + 4]), axes, 4)


def _symbolic(offset: Expr, axes: list[tuple[Expr, Expr]], width: int) -> Binding:
    reach, content = Int(width), Int(width)
    for n, step in axes:
        reach, content = reach + (n - 1) * step, content * n
    whole = at(offset, reach)
    return replace(whole, content=content, axes=tuple(axes), width=width)


def _at(b: Binding, n: int) -> ByteRegion:
    def known(e: Expr) -> int:
        return evaluate(e, {N: n})

    return region(known(b.offset), [(known(m), known(step)) for m, step in b.axes], b.width)


@pytest.mark.parametrize("seed", range(30))
def test_random_programs_against_bytes(seed: int) -> None:
    """The closure of the edges is the closure of the true conflicts."""
    rng = random.Random(seed)
    count = rng.randrange(2, 14)
    rows: list[tuple[Binding, ...]] = []
    for _ in range(count):
        rows.append(
            tuple(
                at(rng.randrange(12), rng.randrange(0, 7), rng.choice([R, W, RW]))
                for _ in range(rng.randrange(1, 4))
            )
        )
    program = launches(*rows)
    edges = hazards(program)
    true = [
        Edge(p, c, EdgeKind.MAYBE, "")
        for c in range(count)
        for p in range(c)
        if any(_conflict(a, b) for a in rows[p] for b in rows[c])
    ]
    assert ancestors(edges, count) == ancestors(true, count), seed
    assert {(e.producer, e.consumer) for e in edges} <= {(e.producer, e.consumer) for e in true}


def _conflict(a: Binding, b: Binding) -> bool:
    if not (a.access.writes or b.access.writes):
        return False
    return bool(_bytes(a) & _bytes(b))


def _bytes(b: Binding) -> set[int]:
    assert isinstance(b.offset, Int) and isinstance(b.nbytes, Int)
    return set(range(b.offset.value, b.offset.value + b.nbytes.value))


def edge(p: int, c: int) -> Edge:
    return Edge(p, c, EdgeKind.RAW, "")


def test_implied_edges_are_dropped() -> None:
    edges = [edge(0, 1), edge(0, 2), edge(1, 2), edge(0, 3), edge(2, 3), edge(1, 3)]
    kept = reduce_edges(edges, 4)
    assert [(e.producer, e.consumer) for e in kept] == [(0, 1), (1, 2), (2, 3)]
    assert critical_path(kept, 4) == 4


@pytest.mark.parametrize("seed", range(20))
def test_reduction_is_minimal_and_loses_no_order(seed: int) -> None:
    rng = random.Random(seed)
    n = rng.randrange(2, 12)
    edges = [edge(p, c) for c in range(n) for p in range(c) if rng.random() < 0.4]
    kept = reduce_edges(edges, n)
    assert ancestors(kept, n) == ancestors(edges, n)
    for e in kept:
        rest = [x for x in kept if x is not e]
        assert ancestors(rest, n) != ancestors(edges, n), (seed, e)


def test_a_thousand_readers_of_one_input_are_fast() -> None:
    shared = Root(RootKind.INPUT, 0, "x", Int(1 << 30), 256)
    rows = [(at(0, 1 << 20, R, shared), at(1024 * i, 1024)) for i in range(1024)]
    program = launches(*rows)
    assert hazards(program) == ()


def test_the_critical_path_counts_launches() -> None:
    assert critical_path([], 0) == 0
    assert critical_path([], 5) == 1
    assert critical_path([edge(0, 3), edge(1, 3), edge(3, 4)], 5) == 3
