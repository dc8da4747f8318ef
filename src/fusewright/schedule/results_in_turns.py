"""Results in which blocks that take turns add up a sum, instead of in scratch.

    part = sum of this block's elements        ->   y[..] += part, one block after the other
    last block: y = sum of all parts

Every block but the first adds to what the result holds, so that its elements have to be sums that
nobody rounds on the way, and nothing else may be computed of them in the kernel.
"""

from __future__ import annotations

from collections.abc import Iterator

from fusewright.fusion.ir import Pointwise, ViewBase
from fusewright.schedule.graph import Dataflow, Stage

IN_TURN_MODES = ("vector", "tma")
"""Modes of requests in which one block after the other adds its part."""


def result_in_turns(flow: Dataflow, s: Stage) -> Stage | str:
    """The result in which the blocks that reduce a stage in turns add up their parts; where scratch
    holds them, why."""
    if s.grid_mode not in IN_TURN_MODES:
        return f"blocks in mode {s.grid_mode!r} leave each a part of its own"
    if s.streams:
        return "whole tiles of it are stored in no turn"
    if s.read_back == "bulk":
        return "the copy engine brings the sum back to shared memory"
    if s.work_dtype is not None:
        return f"parts are rounded to {s.work_dtype} on the way"
    return stored_sum(flow, s)


def stored_sum(flow: Dataflow, s: Stage) -> Stage | str:
    """The result that shows the sums of a stage as they are; where there is none, why."""
    *_, last = same = list(_behind(flow, s))
    if readers := flow.consumers(last):
        return f"{readers[0].name} is computed of the sum in the same kernel"
    rounded = next((x for x in [*same[1:], last] if x.dtype is not s.dtype.compute), None)
    if rounded is not None:
        of = s.dtype.compute
        return f"{rounded.name} of {rounded.dtype} would round the sum of {of} at each turn"
    return last


def _behind(flow: Dataflow, s: Stage) -> Iterator[Stage]:
    """A stage, and those that show the same elements, each of which is all that reads the one
    before."""
    yield s
    while s not in flow.outputs and len(readers := flow.consumers(s)) == 1:
        (s,) = readers
        is_same = isinstance(s.op, Pointwise) and s.op.fn in ("copy", "cast")
        if not (is_same or isinstance(s.op, ViewBase)):
            return
        yield s
