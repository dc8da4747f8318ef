"""Edges against bytes: every pair of launches that touches a common byte is ordered, no other."""

from __future__ import annotations

import random

import pytest

from fusewright.core.expr import Expr, Int, Var
from fusewright.host.graph import ancestors, critical_path, reduce_edges
from fusewright.host.hazards import hazards, overlaps
from fusewright.host.ir import (
    Access,
    Binding,
    Box,
    Edge,
    EdgeKind,
    HostLaunch,
    Root,
    RootKind,
)
from fusewright.kir.ir import Kernel

R, W, RW = Access.READ, Access.WRITE, Access.READ_WRITE
OUT = Root(RootKind.OUTPUT, 0, "y", Int(1 << 20), 256)
ARENA = Root(RootKind.ARENA, 0, "arena", Int(1 << 20), 256)
N = Var("n", 2)


def kernel(name: str = "k") -> Kernel:
    return Kernel(name, (), (), (), (), (), ())


def at(
    offset: Expr | int,
    nbytes: Expr | int,
    access: Access = W,
    root: Root = OUT,
    tensor: str = "t",
    box: Box | None = None,
) -> Binding:
    total = access is W and box is None
    return Binding(root, _e(offset), _e(nbytes), access, tensor, _e(nbytes), total, box)


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
        box = Box((Int(0), Int(64 * column)), (Int(16), Int(64)), (Int(256), Int(1)))
        return at(64 * column, 15 * 256 + 64, box=box)

    assert pairs(*[piece(c) for c in (2, 0, 3, 1)]) == []
    assert pairs(piece(1), piece(1)) == [(0, 1, "WAW")]
    assert pairs(piece(1), at(0, 4096)) == [(0, 1, "WAW")]


def test_boxes_of_other_pitch_are_not_compared() -> None:
    a = at(0, 100, box=Box((Int(0), Int(0)), (Int(2), Int(4)), (Int(64), Int(1))))
    b = at(0, 100, box=Box((Int(0), Int(8)), (Int(2), Int(4)), (Int(32), Int(1))))
    assert overlaps(a, b) is True


def test_symbolic_ranges() -> None:
    assert pairs(at(0, N * 4), at(N * 4, 8, R)) == [], "prefix and what follows it"
    assert pairs(at(0, N * 4), at(0, 4, R)) == [(0, 1, "RAW")]
    assert pairs(at(0, N * 4), at(N * 4 - 4, 8, R)) == [(0, 1, "RAW")]
    m = Var("m", 2)
    found = hazards(launches(at(N * 4, 8), at(m * 4, 8, R)))
    assert [e.kind for e in found] == [EdgeKind.MAYBE]
    assert "may overlap" in found[0].why


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
