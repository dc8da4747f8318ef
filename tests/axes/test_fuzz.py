"""Random stacks of loop transforms and random op programs against enumeration."""

from __future__ import annotations

import random

import pytest
from brute import Stack, everything, holds, loop_vars, points, size, visits
from programs import Point, Program, Tensor, is_full

from fusewright.axes.checks import check_graph, check_linear
from fusewright.axes.classes import AxisGraph
from fusewright.axes.paths import Path, Refusal, domain_path, value_of
from fusewright.core.substitution import evaluate


def assert_stack_is_exact(seed: int) -> None:
    """Loops made by random transforms visit each point once, and values agree both ways."""
    rng = random.Random(seed)
    graph = AxisGraph()
    domain = [graph.axis(rng.randint(1, 6), n) for n in "abc"[: rng.randint(1, 3)]]
    graph.register_domain(domain)
    stack = Stack(rng, graph, domain, crops=rng.random() < 0.3)
    for _ in range(rng.randint(1, 7)):
        stack.step()
        if stack.total() > 2000:
            break
    if stack.total() > 4000:
        return
    loops = loop_vars(stack.loops)
    path = domain_path(graph, loops, domain)
    if isinstance(path, Path):
        assert visits(path, loops) == everything(domain), seed
        check_linear(graph, loops, domain)
    else:
        assert stack.was_cropped, (seed, path)
    known = loop_vars(domain, "d")
    for k, (cls, _) in enumerate(loops):
        assert_values(graph, known, cls, list(zip(stack.points, stack.index[k], strict=True)), seed)
    rows = [tuple(column[n] for column in stack.index) for n in range(len(stack.points))]
    for k, cls in enumerate(domain):
        assert_values(
            graph, loops, cls, [(r, p[k]) for r, p in zip(rows, stack.points, strict=True)], seed
        )
    check_graph(graph)


def assert_values(graph, known, wanted, cases: list[tuple[Point, int]], seed: int) -> None:
    """`value_of` gives the tabulated index, and its predicates hold there."""
    found = value_of(graph, known, wanted)
    assert found is not None, (seed, wanted)
    for point, expected in cases:
        at = {v: x for (_, v), x in zip(known, point, strict=True)}
        assert holds(found[1], at), (seed, wanted, point)
        assert evaluate(found[0], at) == expected, (seed, wanted, point)


def upstream(t: Tensor):
    """The tensors that fully tied uses lead to, each with its index as a function of t's."""
    found = [(t, lambda x: x)]
    for reader, meaning in found:
        for use in reader.uses:
            tied = all(
                ok or size(c) == 1 for ok, c in zip(use.tied, use.producer.axes, strict=True)
            )
            if tied and len(found) < 8:
                found.append((use.producer, composed(meaning, use.meaning, use.producer.shape)))
    return found


def composed(outer, inner, shape: Point):
    def at(x: Point) -> Point | None:
        y = outer(x)
        z = None if y is None else inner(y)
        inside = z is not None and all(0 <= i < n for i, n in zip(z, shape, strict=True))
        return z if inside else None

    return at


def assert_program_is_exact(seed: int) -> None:
    """After ties no domain is dependent, and loops of the last tensor reach every tensor that is
    tied to it at the index that the ops mean."""
    rng = random.Random(seed)
    program = Program(rng, skip=rng.choice([0, 0, 0.15]))
    program.source(tuple(rng.randint(1, 6) for _ in range(rng.randint(1, 3))))
    for _ in range(rng.randint(1, 6)):
        program.step()
        if len(everything(program.tensors[-1].axes)) > 300:
            break
    graph = program.graph
    check_graph(graph)
    for t in program.tensors:
        assert is_full(graph, t.axes, 4000) is not False, (seed, t.axes)
    last = program.tensors[-1]
    stack = Stack(rng, graph, last.axes, crops=False)
    for _ in range(rng.randint(0, 4)):
        if stack.total() < 500:
            stack.step()
    if stack.total() > 2000:
        return
    loops = loop_vars(stack.loops)
    top = domain_path(graph, loops, last.axes)
    assert isinstance(top, Path), (seed, top)
    for t, meaning in upstream(last):
        path = domain_path(graph, loops, t.axes)
        if isinstance(path, Refusal):
            continue
        assert visits(path, loops) == everything(t.axes), (seed, path)
        for point in points(loops):
            if holds((*top.predicates, *top.free_conditions), point):
                expected = meaning(tuple(evaluate(e, point) for e in top.values))
                if expected is not None:
                    assert holds(path.predicates, point), seed
                    assert tuple(evaluate(e, point) for e in path.values) == expected, seed


@pytest.mark.parametrize("start", range(0, 400, 50))
def test_random_stacks(start: int) -> None:
    for seed in range(start, start + 50):
        assert_stack_is_exact(seed)


@pytest.mark.parametrize("start", range(0, 240, 40))
def test_random_programs(start: int) -> None:
    for seed in range(start, start + 40):
        assert_program_is_exact(seed)
