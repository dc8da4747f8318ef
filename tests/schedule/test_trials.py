"""Trials: what is edited inside of one leaves no trace, in stages and in the graph of axes."""

from __future__ import annotations

import pytest

import fusewright as fw
from fusewright.axes.classes import AxisGraph
from fusewright.axes.paths import domain_path
from fusewright.core.expr import Int
from fusewright.errors import InternalError, ScheduleError
from fusewright.fusion.passes.decompose import decompose
from fusewright.memory import Memory
from fusewright.schedule.copies import tile_before
from fusewright.schedule.edits import set_loops
from fusewright.schedule.graph import Dataflow, Stage
from fusewright.schedule.heuristics import Ways, each_scheduled, schedule_group
from fusewright.schedule.heuristics.candidates import Candidate, Listing, Refused, schedule_with
from fusewright.schedule.heuristics.common import cache_inputs
from fusewright.schedule.heuristics.phases import separate_phases
from fusewright.schedule.heuristics.rating import Rated
from fusewright.schedule.heuristics.transpose import TransposeScheduler
from fusewright.schedule.inline import inline_most
from fusewright.schedule.parallel import Loop, Parallel
from fusewright.schedule.propagate import transform_like
from fusewright.schedule.render import print_schedule
from fusewright.target import target_of


def softmax() -> Dataflow:
    spec = fw.TensorSpec((64, 4096), "float32")
    return Dataflow(decompose(fw.trace(lambda x: fw.nn.softmax(x, axis=-1), spec)))


def state(flow: Dataflow) -> tuple[object, ...]:
    """All that a dataflow and its graph hold."""
    graph = flow.graph
    lines = graph.lines
    return (
        [(s, *(getattr(s, a) for a in Stage.__slots__)) for s in flow.stages],
        (list(flow.outputs), list(flow.log), print_schedule(flow)),
        (graph, lines.version, lines.structure, lines.epoch, len(lines._names)),
        ({k: dict(v) for k, v in lines._atoms.items()}, dict(lines.definition), dict(lines.named)),
        (dict(lines._parent), len(graph.makings), len(graph.domains.words)),
    )


def edit(flow: Dataflow) -> None:
    """Edits of every kind: copies, memory, ties, clones, loops, depths."""
    cache_inputs(flow)
    reference = next(s for s in flow.stages if s.is_reduction)
    outer, inner = flow.graph.split(reference.frame.reduced[0], 100)
    kept = Loop(reference.frame.output[0], Parallel.BIDX)
    set_loops(flow, reference, (kept, Loop(outer), Loop(inner, Parallel.TIDX)))
    transform_like(flow, reference, align=True)
    tile_before(flow, flow.outputs[0])
    flow.stages[-2].memory = Memory.SHARED
    flow.rebuild_axes()
    inline_most(flow)


def test_a_trial_leaves_no_trace() -> None:
    flow = softmax()
    before = state(flow)
    with flow.trial():
        edit(flow)
        assert state(flow) != before
    assert state(flow) == before


def test_a_trial_that_raises_leaves_no_trace() -> None:
    flow = softmax()
    before = state(flow)
    with pytest.raises(ZeroDivisionError), flow.trial() as trial:
        edit(flow)
        trial.keep()
        _ = 1 // 0
    assert state(flow) == before


def edit_loops(flow: Dataflow) -> None:
    """Copies, ties, clones, loops, depths, in the graph that there is."""
    cache_inputs(flow)
    reference = next(s for s in flow.stages if s.is_reduction)
    separate_phases(flow, reference, [])
    outer, inner = flow.graph.split(reference.frame.reduced[0], 100)
    kept = Loop(reference.frame.output[0], Parallel.BIDX)
    set_loops(flow, reference, (kept, Loop(outer), Loop(inner, Parallel.TIDX)))
    transform_like(flow, reference, align=True)
    inline_most(flow)


def test_what_a_trial_did_is_done_again() -> None:
    """Though another one in between has given the same numbers to other lines."""
    flow = softmax()
    before = state(flow)
    with flow.trial() as trial:
        edit_loops(flow)
        after, changes = state(flow), trial.changes()
        answers = [flow.graph.depends(x.axis, s.axes) for s in flow.stages for x in s.loops]
    with flow.trial():
        flow.graph.split(flow.outputs[0].axes[1], 7)
        cache_inputs(flow)
    with flow.trial():
        flow.redo(changes)
        assert state(flow) == after
    assert state(flow) == before
    flow.redo(changes)
    assert state(flow) == after
    assert answers == [flow.graph.depends(x.axis, s.axes) for s in flow.stages for x in s.loops]


def test_what_a_trial_did_is_done_again_in_its_state_only() -> None:
    flow = softmax()
    with flow.trial() as trial:
        edit_loops(flow)
        changes = trial.changes()
    flow.graph.split(flow.outputs[0].axes[1], 7)
    with pytest.raises(InternalError, match="another state"):
        flow.redo(changes)


def test_the_ways_to_schedule_a_group_leave_it_as_the_last_one_kept() -> None:
    """As each would have been scheduled alone, the first one where none is kept."""
    target, wanted = target_of("sm_90a"), list[Candidate[object]]()
    for kept in (None, 0, 2):
        ways, alone = Ways(softmax(), target), softmax()
        params = ways.first()
        for k, c in enumerate(ways.others(lambda _: True)):
            if k == kept:
                ways.keep()
                params = c.params
            wanted.append(c)
        ways.settle()
        assert schedule_group(alone, target, params) == params
        assert print_schedule(ways.flow) == print_schedule(alone)
    assert len(wanted) > 6


def test_a_trial_that_is_kept_stays() -> None:
    flow, other = softmax(), softmax()
    with flow.trial() as trial:
        edit(flow)
        trial.keep()
    edit(other)
    assert print_schedule(flow) == print_schedule(other)
    assert [str(e) for e in flow.log[:1]] == [str(e) for e in other.log[:1]]


def test_trials_nest() -> None:
    flow = softmax()
    before = state(flow)
    with flow.trial():
        cache_inputs(flow)
        middle = state(flow)
        with flow.trial():
            edit(flow)
        assert state(flow) == middle
        with flow.trial() as inner:
            edit(flow)
            inner.keep()
        assert state(flow) != middle
    assert state(flow) == before


def test_what_is_asked_in_a_trial_is_not_answered_from_it() -> None:
    """A class that the trial has made is gone; the same edge afterwards makes a new one, and what
    was found before the trial is still known."""
    graph = AxisGraph()
    a = graph.axis(30)
    path = domain_path(graph, [(a, graph.variable("i", Int(30)))], [a])
    mark = graph.mark()
    first = graph.split(a, 4)
    graph.undo(mark)
    assert domain_path(graph, [(a, graph.variable("i", Int(30)))], [a]) is path
    again = graph.split(a, 4)
    assert again[0] is not first[0] and str(again[0]) == str(first[0])


def test_ties_of_a_trial_are_undone() -> None:
    graph = AxisGraph()
    a, b = graph.axis(8), graph.axis(8)
    mark = graph.mark()
    assert graph.tie(a, b)
    assert graph.normal(a) is graph.normal(b)
    graph.undo(mark)
    assert graph.normal(a) is a and graph.normal(b) is b and not graph.depends(a, [b])


def test_a_refused_tie_leaves_no_trace() -> None:
    graph = AxisGraph()
    a = graph.axis(8)
    moved = graph.resize(a, 1, -1)
    before = (graph.lines.version, len(graph.lines._names), dict(graph.lines._parent))
    assert not graph.tie(moved, a)
    assert (graph.lines.version, len(graph.lines._names), dict(graph.lines._parent)) == before


def test_tiles_that_do_not_fit_leave_no_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    fusion = fw.trace(lambda x: fw.permute_dims(x, (1, 0)), fw.TensorSpec((512, 1024), "float32"))
    flow = Dataflow(decompose(fusion))
    scheduler = TransposeScheduler(flow, target_of("sm_90a"))
    listed = list(scheduler.candidates())
    assert isinstance(listed[0], Candidate)
    monkeypatch.setattr(scheduler, "candidates", lambda: iter(listed))
    before = state(flow)
    module = "fusewright.schedule.heuristics.transpose"
    monkeypatch.setattr(f"{module}._is_apart", lambda s, near: True)
    assert schedule_with(Listing(scheduler)) is None
    assert state(flow) == before


def test_an_edit_that_is_refused_half_way_leaves_no_trace() -> None:
    s = fw.Schedule(fw.trace(lambda x: fw.sum(x, axis=0), fw.TensorSpec((8, 8), "float32")))
    before = state(s.flow)
    total = s.outputs[0]
    with pytest.raises(ScheduleError, match="run over a reduced and a kept axis"):
        total.merge(0)  # the graph has merged the axes by then
    assert state(s.flow) == before


def test_schedules_are_the_same_beside_trials() -> None:
    """Other groups' trials, and trials of this one before, change nothing."""
    first = softmax()
    schedule_group(first, target_of("sm_90a"))
    second = softmax()
    with second.trial():
        schedule_group(second, target_of("sm_90a"))
    schedule_group(second, target_of("sm_90a"))
    assert print_schedule(first) == print_schedule(second)


def test_what_a_trial_finds_is_forgotten_with_it() -> None:
    """Lines that a trial makes leave their numbers to others: a tile was tried, then a flat loop
    that was taken for one of the tile's, so that every thread walked over all elements."""
    spec = fw.TensorSpec((35773, 5120), "bfloat16")
    (kernel,) = fw.compile(fw.trace(lambda x: fw.permute_dims(x, (1, 0)), spec)).kernels
    rated = [c for c in kernel.candidates if isinstance(c, Rated)]
    assert {c.params.scheduler for c in rated} == {"transpose", "pointwise"}
    assert all(c.cost.us < 1e4 for c in rated)


def test_a_value_that_a_vector_of_results_needs_whole_stands_behind_what_it_needs() -> None:
    """`probe` is stored in a vector and read by what decides about it, so that it needs loops of
    its own between those of `end`, which both sides read."""

    def ranks(x: fw.Array) -> fw.Array:
        at = fw.broadcast_to(fw.arange(4096, dtype="int32"), (3, 4096))
        end = fw.minimum(at // 7, 512)
        low = at - end
        probe = low + 8
        first = fw.take_along_axis(x, probe, axis=1)
        found = first <= fw.take_along_axis(x, at + end - probe, axis=1)
        return fw.where(found, probe, low)

    fusion = decompose(fw.trace(ranks, fw.TensorSpec((3, 8192), "float32")))
    program = fw.compile(fusion)
    assert len(program.kernels) == 1
    listed = each_scheduled(Dataflow(fusion), target_of("sm_90a"))
    assert not [c.why for c in listed if isinstance(c, Refused) and "each other" in c.why]
