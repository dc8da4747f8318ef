"""The facts of a reduction: which way it runs, how long, how wide, and what is held of a row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import fusewright as fw
from fusewright.core.expr import constant_value
from fusewright.errors import InternalError, ScheduleError
from fusewright.schedule.clone_untied_uses import clone_untied_uses
from fusewright.schedule.graph import Dataflow
from fusewright.schedule.heuristics.common import by_stride, cache_inputs, merge_all, relate
from fusewright.schedule.heuristics.reduction import MAX_ALONE, _check_shared_loops
from fusewright.schedule.heuristics.reduction_facts import (
    facts_of,
    is_inner,
    reference_of,
    widest_vectors,
)


def flow_of(fn: Callable[..., Any], *shapes: tuple[int | str, ...]) -> Dataflow:
    return Dataflow(fw.trace(fn, *[fw.TensorSpec(s, "float32") for s in shapes]))


@pytest.mark.parametrize(
    ("axis", "inner"), [(1, True), (0, False), ((0, 1), True), (-1, True), (-2, False)]
)
def test_a_reduction_of_the_fast_axis_is_an_inner_one(axis: Any, inner: bool) -> None:
    flow = flow_of(lambda x: fw.sum(x, axis=axis), (64, 128))
    assert is_inner(reference_of(flow)) is inner


def test_the_largest_operand_tells_which_axes_are_fast() -> None:
    def fn(x, v):
        return fw.sum(x * fw.expand_dims(v, axis=1), axis=0)

    flow = flow_of(fn, (512, 64), (512,))
    assert not is_inner(reference_of(flow))


def test_an_axis_of_size_one_tells_nothing() -> None:
    flow = flow_of(lambda x: fw.sum(x, axis=0), (64, 1))
    assert is_inner(reference_of(flow))


def test_strides_tell_not_the_order_of_axes() -> None:
    spec = fw.TensorSpec((64, 128), "float32", strides=(1, 64))
    flow = Dataflow(fw.trace(lambda x: fw.sum(x, axis=1), spec))
    assert not is_inner(reference_of(flow))


@pytest.mark.parametrize(
    ("shape", "inner", "expected"),
    [
        ((64, 128), True, (8, 8)),
        ((64, 128), False, (8, 8)),
        ((63, 129), True, (1, 8)),
        ((63, 129), False, (1, 8)),
        ((6, 130), True, (2, 8)),
        ((6, 130), False, (2, 8)),
        ((5, 7, 12), True, (4, 8)),
        ((5, 7, 12), False, (4, 8)),
    ],
)
def test_vectors_of_whole_words_and_of_reads_cut_out_of_several(
    shape: tuple[int, ...], inner: bool, expected: tuple[int, int]
) -> None:
    spec = fw.TensorSpec(shape, "bfloat16")
    flow = Dataflow(fw.trace(lambda x: fw.sum(x, axis=-1 if inner else 0), spec))
    cache_inputs(flow)
    reference = reference_of(flow)
    kept = merge_all(flow, by_stride(flow, reference.frame.output))
    reduced = merge_all(flow, by_stride(flow, reference.frame.reduced))
    assert widest_vectors(flow, reference, kept, reduced, inner=inner) == expected


def test_rejects_a_group_without_reductions() -> None:
    with pytest.raises(InternalError, match="a reduction schedule for a group without reductions"):
        reference_of(flow_of(fw.exp, (4, 4)))


@pytest.mark.parametrize("length", [MAX_ALONE, MAX_ALONE + 1])
def test_rejects_a_long_reduction_that_follows_no_loop_of_the_reference(length: int) -> None:
    """Each thread would run it alone; a short one may."""
    flow = flow_of(lambda x, y: (fw.sum(x, axis=1), fw.sum(y, axis=0)), (64, 4096), (length,))
    rows, other = (s for s in flow.stages if s.is_reduction)
    if length == MAX_ALONE:
        _check_shared_loops(flow, rows)
        assert rows.loops and other.loops
        return
    message = f"{other.name} cannot run along the loops of {rows.name}"
    with pytest.raises(ScheduleError, match=message):
        _check_shared_loops(flow, rows)


@pytest.mark.parametrize(
    ("fn", "operands", "held"),
    [
        (lambda x, r: softmax(x + r), 2, 4),  # all passes read the sum
        (lambda x, r: softmax(x + r) + x, 2, 8),  # one reads an operand by itself
        (lambda x: softmax(x), 1, 4),
    ],
)
def test_what_is_held_of_a_row_is_what_stays_between_its_passes(
    fn: Callable[..., Any], operands: int, held: int
) -> None:
    flow = flow_of(fn, *[(64, 4096)] * operands)
    copies = cache_inputs(flow)
    reference = reference_of(flow)
    relate(flow, reference)
    kept, reduced = (
        merge_all(flow, by_stride(flow, c))
        for c in (reference.frame.output, reference.frame.reduced)
    )
    assert facts_of(flow, reference, kept, reduced, copies).held == held


def softmax(x: Any) -> Any:
    e = fw.exp(x - fw.max(x, axis=-1, keepdims=True))
    return e / fw.sum(e, axis=-1, keepdims=True)


def test_the_reference_has_loops_for_all_rows() -> None:
    """The first reduction has four of the fifteen rows of the second one."""

    def fn(x):
        y = x + x
        some, whole = fw.exp(y[1:]), fw.concat([y, y, x], axis=0)
        return fw.sum(some, axis=1), fw.max(whole, axis=1)

    flow = flow_of(fn, (5, 8))
    clone_untied_uses(flow)
    cache_inputs(flow)
    first = next(s for s in flow.stages if s.is_reduction)
    assert [constant_value(s.shape[0]) for s in (first, reference_of(flow))] == [4, 15]
