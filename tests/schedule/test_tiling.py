"""Tilings: axes cut into levels, the loops that makes, and predictions that follow memory alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import fusewright as fw
from fusewright.core.substitution import estimate
from fusewright.fusion.passes.decompose import decompose
from fusewright.schedule.graph import Dataflow
from fusewright.schedule.heuristics import candidates_of, schedule_group
from fusewright.schedule.heuristics.candidates import Candidate
from fusewright.schedule.heuristics.common import merge_all
from fusewright.schedule.heuristics.cost import Cost, cost
from fusewright.schedule.heuristics.tiling import (
    Cut,
    blocks,
    cluster,
    lanes,
    loops_of,
    steps,
    threads,
    trips,
)
from fusewright.schedule.heuristics.work import work_of
from fusewright.schedule.parallel import Loop, Parallel
from fusewright.target import target_of

TARGET = target_of("sm_90a")
Fn = Callable[..., Any]
Specs = tuple[tuple[int, ...], ...]


# --- loops --------------------------------------------------------------------------------------


def flat(n: int) -> tuple[Dataflow, Loop]:
    """A dataflow over one axis of so many elements, and its loop."""
    flow = Dataflow(fw.trace(fw.exp, fw.TensorSpec((n,), "float32")))
    whole = merge_all(flow, flow.outputs[0].loops)
    assert whole is not None
    return flow, whole


def spelled(loops: tuple[Loop, ...]) -> str:
    return " ".join(f"{x.parallel.value}:{estimate(x.axis.extent)}" for x in loops)


@pytest.mark.parametrize(
    ("levels", "expected"),
    [
        pytest.param((blocks(),), "BIDx:4096", id="blocks alone"),
        pytest.param((blocks(), threads(128)), "BIDx:32 TIDx:128", id="threads"),
        pytest.param(
            (blocks(), trips(count=2), threads(128), lanes(4)),
            "BIDx:4 TIDx:128 Unroll:2 Unroll:4",
            id="threads stand outside of their trips",
        ),
        pytest.param(
            (cluster(2), trips(), threads(128), lanes(4)),
            "ClusterX:2 TIDx:128 Unroll:4 Unroll:4",
            id="a cluster is counted from outside",
        ),
        pytest.param(
            (steps(), threads(8, across=True)), "Serial:512 TIDy:8", id="steps of a block"
        ),
        pytest.param(
            (blocks(), trips(count=1), threads(128), lanes(1)),
            "BIDx:32 TIDx:128",
            id="a level of one step makes no loop",
        ),
        pytest.param(
            (blocks(), trips(count=2), blocks(4), threads(128)),
            "BIDx:16 TIDx:128 Unroll:2",
            id="levels that are bound alike are one loop",
        ),
    ],
)
def test_levels_become_loops_by_place(levels: Any, expected: str) -> None:
    flow, whole = flat(4096)
    assert spelled(loops_of(flow, [Cut(whole, levels)])) == expected


def test_threads_are_neighbours_on_their_axis() -> None:
    """The trips of a thread lie a block of threads apart, as splits by hand say."""
    flow, whole = flat(4096)
    found = loops_of(flow, [Cut(whole, (blocks(), trips(count=2), threads(128)))])
    outer, inner = flow.graph.split(whole.axis, 128)
    rest, several = flow.graph.split(outer, 2)
    assert [x.axis for x in found] == [rest, inner, several]


def test_the_last_block_of_a_cluster_has_the_remainder() -> None:
    flow, whole = flat(1000)
    found = loops_of(flow, [Cut(whole, (cluster(8), trips(), threads(64)))])
    assert spelled(found) == "ClusterX:8 TIDx:64 Unroll:2"  # 125 elements each


def test_an_axis_of_one_element_has_no_loops() -> None:
    flow, whole = flat(64)
    found = loops_of(
        flow, [Cut(None, (blocks(), threads(8))), Cut(whole, (trips(Parallel.SERIAL),))]
    )
    assert spelled(found) == "Serial:64"


# --- predictions --------------------------------------------------------------------------------


def rows_of(x: Any) -> tuple[int, ...]:
    return tuple(range(x.ndim - 1))


PROGRAMS: dict[str, tuple[Fn, Specs]] = {
    "pointwise": (lambda x: fw.exp(x) * 2.0 + 1.0, ((2048, 4096),)),
    "two operands": (lambda x, y: fw.nn.silu(x) + y, ((2048, 4096), (2048, 4096))),
    "odd rows": (lambda x: fw.exp(x), ((2047, 4093),)),
    "softmax": (lambda x: fw.nn.softmax(x, axis=-1), ((4096, 2048),)),
    "sum of rows": (lambda x: fw.sum(x, axis=-1), ((8192, 2048),)),
    "odd sum of rows": (lambda x: fw.sum(x, axis=-1), ((8191, 1999),)),
    "sum of columns": (lambda x: fw.sum(x, axis=rows_of(x)), ((512, 65536),)),
    "short rows": (lambda x: fw.nn.softmax(x, axis=-1), ((1 << 20, 8),)),
    "odd short rows": (lambda x: fw.max(x, axis=-1), ((1 << 20, 7),)),
    "one short row a thread": (lambda x: fw.sum(x, axis=-1), ((1 << 18, 6),)),
    "scan of rows": (lambda x: fw.cumulative_sum(x, axis=x.ndim - 1), ((4096, 2048),)),
}
by_name = pytest.mark.parametrize("name", PROGRAMS)


def predicted(fn: Fn, *shapes: tuple[int, ...]) -> tuple[str, Cost]:
    """The first candidate of a program that is one group, and its predicted time."""
    specs = [fw.TensorSpec(s, "bfloat16") for s in shapes]
    (kernel,) = fw.compile(fw.trace(fn, *specs), "sm_90a").kernels
    assert kernel.heuristic is not None
    found = next(c for c in kernel.candidates if getattr(c, "params", None) == kernel.heuristic)
    return str(kernel.heuristic), found.cost  # type: ignore[union-attr]


@by_name
def test_loops_of_one_step_change_no_prediction(name: str) -> None:
    fn, shapes = PROGRAMS[name]

    def flow_of() -> Dataflow:
        from_trace = fw.trace(fn, *(fw.TensorSpec(s, "bfloat16") for s in shapes))
        return Dataflow(decompose(from_trace))

    first = next(c for c in candidates_of(flow_of(), TARGET) if isinstance(c, Candidate))
    flow = flow_of()
    schedule_group(flow, TARGET, first.params)
    before = cost(work_of(flow, first.params), TARGET)
    for s in flow.stages:
        if s.loops and s.loops[-1].parallel is not Parallel.VECTORIZE and not s.is_input:
            _, one = flow.graph.split(s.loops[-1].axis, 1)
            s.loops = (*s.loops, Loop(one, Parallel.UNROLL))
    assert cost(work_of(flow, first.params), TARGET) == before


@by_name
def test_names_change_no_plan(name: str) -> None:
    fn, shapes = PROGRAMS[name]

    def renamed(*args: Any) -> Any:
        named = [fw.name(a * 1.0, f"block_{k}") for k, a in enumerate(args)]
        return fn(*named)

    assert predicted(renamed, *shapes) == predicted(fn, *shapes)


@by_name
@pytest.mark.parametrize("lead", [(1,), (1, 1)])
def test_axes_of_size_one_change_no_plan(name: str, lead: tuple[int, ...]) -> None:
    fn, shapes = PROGRAMS[name]
    assert predicted(fn, *((*lead, *s) for s in shapes)) == predicted(fn, *shapes)


@pytest.mark.parametrize("name", [n for n, (_, s) in PROGRAMS.items() if not s[0][0] % 2])
def test_rows_on_two_axes_change_no_plan(name: str) -> None:
    fn, shapes = PROGRAMS[name]
    apart = [(2, s[0] // 2, *s[1:]) for s in shapes]
    assert predicted(fn, *apart) == predicted(fn, *shapes)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        pytest.param(lambda x, y: x * y + x, lambda x, y: x + y * x, id="order of operands"),
        pytest.param(
            lambda x, y: fw.exp(x)[:1024] + y[:1024],
            lambda x, y: fw.exp(x[:1024]) + y[:1024],
            id="slice before or after",
        ),
        pytest.param(
            lambda x, y: x * y[0],
            lambda x, y: x * fw.broadcast_to(y[:1], x.shape),
            id="implicit and explicit broadcast",
        ),
    ],
)
def test_spellings_change_no_predicted_time(one: Fn, other: Fn) -> None:
    shapes = ((2048, 4096), (2048, 4096))
    (a, first), (b, second) = predicted(one, *shapes), predicted(other, *shapes)
    assert a == b
    assert first.us == pytest.approx(second.us, rel=0.01)


@by_name
def test_twice_the_rows_take_at_most_so_much_more(name: str) -> None:
    fn, shapes = PROGRAMS[name]
    twice = [(2 * s[0], *s[1:]) for s in shapes]
    assert predicted(fn, *twice)[1].us <= 2.1 * predicted(fn, *shapes)[1].us


REMAINDER = 1.05
"""One more row is one more block at most, in a round of blocks that may be a new one."""


@by_name
def test_one_more_row_takes_its_bytes_and_a_remainder(name: str) -> None:
    fn, shapes = PROGRAMS[name]
    more = [(s[0] + 1, *s[1:]) for s in shapes]
    assert predicted(fn, *more)[1].us <= REMAINDER * predicted(fn, *shapes)[1].us
