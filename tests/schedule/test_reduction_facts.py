"""The facts of a reduction: which way it runs, how long, how wide, and what is held of a row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import fusewright as fw
from fusewright.errors import InternalError, ScheduleError
from fusewright.schedule.graph import Dataflow
from fusewright.schedule.heuristics.reduction import _check_shared_loops
from fusewright.schedule.heuristics.reduction_facts import is_inner, reference_of


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


def test_rejects_a_group_without_reductions() -> None:
    with pytest.raises(InternalError, match="a reduction schedule for a group without reductions"):
        reference_of(flow_of(fw.exp, (4, 4)))


def test_rejects_a_long_reduction_that_follows_no_loop_of_the_reference() -> None:
    """Each thread would run it alone; a short one may."""
    flow = flow_of(lambda x, y: (fw.sum(x, axis=1), fw.sum(y, axis=0)), (64, 4096), (4096,))
    rows, other = (s for s in flow.stages if s.is_reduction)
    with pytest.raises(
        ScheduleError, match=f"{other.name} cannot run along the loops of {rows.name}"
    ):
        _check_shared_loops(flow, rows)
    short = flow_of(lambda x, y: (fw.sum(x, axis=1), fw.sum(y, axis=0)), (64, 4096), (4,))
    _check_shared_loops(short, next(s for s in short.stages if s.is_reduction))
