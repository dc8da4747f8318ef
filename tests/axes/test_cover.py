"""Which axes loops over others come by, attempts that nest, and axes that results carry on."""

from __future__ import annotations

import random

import pytest

from fusewright.axes.checks import check_graph
from fusewright.axes.classes import AxisClass, AxisGraph
from fusewright.axes.cover import coincide, covers
from fusewright.axes.frames import carried_axes, make_frame
from fusewright.core.expr import Int
from fusewright.dtypes import dtype_of
from fusewright.fusion.ir import (
    Broadcast,
    Input,
    Op,
    Permute,
    Pointwise,
    Reduce,
    Reshape,
    Resize,
    Scan,
    Tensor,
    contiguous_strides,
)


@pytest.fixture
def graph() -> AxisGraph:
    return AxisGraph()


def axes(graph: AxisGraph, name: str, *shape: int) -> tuple[AxisClass, ...]:
    out = tuple(graph.axis(n, f"{name}{k}") for k, n in enumerate(shape))
    graph.register_domain(out)
    return out


def tensor(name: str, *shape: int) -> Tensor:
    sizes = tuple(map(Int, shape))
    return Tensor(name, sizes, dtype_of("float32"), Input((), 0, contiguous_strides(sizes), 16))


def placed(graph: AxisGraph, op: Op, *shape: int) -> tuple[AxisClass, ...]:
    """The axes of a result whose first operand is tied, and those of the operand."""
    x = op.operands[0]
    own = tuple(graph.axis(e, f"x{j}") for j, e in enumerate(x.shape))
    graph.register_domain(own)
    frame = make_frame(graph, op, tuple(map(Int, shape)), (x.shape,), "t")
    graph.register_domain(frame.domain)
    for index, axis in zip(frame.operands[0], own, strict=True):
        if isinstance(index, AxisClass) and not axis.is_unit:
            assert graph.tie(index, axis)
    return tuple(map(graph.normal, (*frame.output, *own)))


# --- what covers what ---------------------------------------------------------------------------


def test_a_reshape_and_its_operand_come_by_each_other(graph: AxisGraph) -> None:
    out, *own = placed(graph, Reshape((tensor("x", 4, 6),)), 24)
    assert coincide(graph, [out], own)
    assert covers(graph, [out], own[:1]) and not covers(graph, own[:1], [out])


def test_radices_that_do_not_nest_come_by_each_other_together(graph: AxisGraph) -> None:
    a, b, *own = placed(graph, Reshape((tensor("x", 5, 7),)), 7, 5)
    assert coincide(graph, [a, b], own)
    assert not covers(graph, [a], own) and not covers(graph, own[:1], [a, b])


def test_a_padded_axis_comes_by_what_it_pads_only(graph: AxisGraph) -> None:
    x = tensor("x", 8)
    op = Resize((x,), (Int(2),), (Int(3),), 0.0)
    out, own = placed(graph, op, 13)
    assert covers(graph, [out], [own])
    assert not covers(graph, [own], [out])


def test_pieces_side_by_side_do_not_come_by_each_other(graph: AxisGraph) -> None:
    (whole,) = axes(graph, "w", 10)
    first, second = graph.resize(whole, 0, -4), graph.resize(whole, -6, 0)
    assert covers(graph, [whole], [first, second])
    assert not covers(graph, [first], [second]) and not covers(graph, [first], [whole])


def test_digits_of_one_axis(graph: AxisGraph) -> None:
    (a,) = axes(graph, "a", 24)
    high, low = graph.split(a, 6)
    assert coincide(graph, [high, low], [a])
    assert covers(graph, [low], [graph.split(low, 3)[1]])
    assert not covers(graph, [low], [a]) and not covers(graph, [high], [low])


def test_units_ask_for_nothing_and_give_nothing(graph: AxisGraph) -> None:
    one, many = axes(graph, "x", 1, 4)
    assert covers(graph, [], [one]) and covers(graph, [many], [one])
    assert not covers(graph, [one], [many])


def test_unrelated_axes_do_not_cover(graph: AxisGraph) -> None:
    a, b = axes(graph, "a", 4, 4)
    assert not covers(graph, [a], [b])
    (c,) = axes(graph, "c", 4)
    assert graph.tie(c, b)
    assert covers(graph, [b], [c]) and not covers(graph, [a], [c])


# --- attempts -----------------------------------------------------------------------------------


def test_an_attempt_takes_back_every_tie_since_it_began(graph: AxisGraph) -> None:
    a, b, c = (axes(graph, n, 12)[0] for n in "abc")
    outer = graph.mark()
    assert graph.tie(a, b)
    inner = graph.mark()
    assert graph.tie(b, c) and covers(graph, [a], [c])
    graph.undo(inner)
    assert covers(graph, [a], [b]) and not covers(graph, [a], [c])
    graph.undo(outer)
    assert not covers(graph, [a], [b])
    check_graph(graph)


def test_a_refused_tie_inside_of_an_attempt_leaves_the_rest_of_it(graph: AxisGraph) -> None:
    a, b = axes(graph, "a", 6, 6)
    (c,) = axes(graph, "c", 6)
    graph.mark()
    assert graph.tie(c, a)
    assert not graph.tie(c, b)
    graph.keep()
    assert graph.normal(c) is graph.normal(a) and graph.normal(c) is not graph.normal(b)


def test_a_domain_of_an_attempt_that_failed_forbids_nothing(graph: AxisGraph) -> None:
    (a,), (b,) = axes(graph, "a", 6), axes(graph, "b", 6)
    mark = graph.mark()
    graph.register_domain([a, b])
    assert not graph.tie(a, b)
    graph.undo(mark)
    assert graph.tie(a, b)
    check_graph(graph)


@pytest.mark.parametrize("seed", range(20))
def test_attempts_that_fail_leave_the_graph_as_if_they_had_not_been(seed: int) -> None:
    """The same ties, with and without attempts between them that are taken back."""

    def run(with_attempts: bool) -> list[str]:
        rng, graph = random.Random(seed), AxisGraph()
        tensors = [axes(graph, f"t{i}", 4, 6) for i in range(5)]
        found: list[str] = []
        for _ in range(12):
            x, y = rng.sample(tensors, 2)
            a, b = (graph.merge(*x), graph.merge(*y)) if rng.random() < 0.4 else (x[0], y[0])
            trial, other = rng.sample(tensors, 2)
            if with_attempts:
                mark = graph.mark()
                graph.tie(graph.merge(*trial), graph.merge(*reversed(other)))
                graph.tie(trial[1], other[1])
                graph.undo(mark)
            found.append(str(graph.tie(a, b)))
        check_graph(graph)
        everything = [c for t in tensors for c in t]
        return found + [str(covers(graph, [c], [d])) for c in everything for d in everything]

    assert run(True) == run(False)


# --- axes that results carry on -----------------------------------------------------------------

X = tensor("x", 4, 6, 5)
CARRIED: list[tuple[Op, tuple[int, ...]]] = [
    (Pointwise((X,), "sin"), (4, 6, 5)),
    (Scan((X,), "add", 1, False), (4, 6, 5)),
    (Permute((X,), (2, 0, 1)), (5, 4, 6)),
    (Reduce((X,), "add", (1,)), (4, 5)),
    (Reduce((X,), "max", (0, 2)), (6,)),
]


@pytest.mark.parametrize(("op", "shape"), CARRIED)
def test_carried_axes_are_what_the_ties_of_a_frame_come_to(
    graph: AxisGraph, op: Op, shape: tuple[int, ...]
) -> None:
    found = placed(graph, op, *shape)
    out, own = found[: len(shape)], found[len(shape) :]
    assert carried_axes(op, own) == out


def test_what_moves_indices_carries_no_axes(graph: AxisGraph) -> None:
    own = axes(graph, "x", 4, 6, 5)
    for op in (
        Reshape((X,)),
        Broadcast((X,), (None, 0, 1, 2)),
        Resize((X,), (Int(0),) * 3, (Int(1),) * 3, 0.0),
    ):
        assert carried_axes(op, own) is None
