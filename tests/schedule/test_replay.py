"""The log of a schedule: replayed on a fresh dataflow it makes the same kernel, byte for byte."""

from __future__ import annotations

from typing import Any

import pytest

import fusewright as fw
from fusewright.corpus import CORPUS
from fusewright.driver import finish
from fusewright.errors import ScheduleError
from fusewright.kernel import Kernel
from fusewright.schedule.edits import Call, calls_of
from fusewright.schedule.heuristics import schedule_group
from fusewright.schedule.heuristics.passes import PassedSchedule


def log_of(kernel: Kernel) -> tuple[Call, ...]:
    """The calls behind a kernel that a heuristic has scheduled."""
    assert kernel.segment is not None
    flow = kernel.segment.dataflow()
    schedule_group(flow, kernel.target, kernel.heuristic)
    return calls_of(flow)


def replayed(kernel: Kernel) -> Kernel:
    """The kernel that the log makes of a fresh dataflow."""
    assert kernel.segment is not None
    s = PassedSchedule.of(kernel.segment.dataflow())
    log = log_of(kernel)
    s.replay(log)
    assert s.log == log
    fills = kernel.segment.fills
    return finish(s.flow, kernel.name, kernel.target, kernel.heuristic, fills=fills)


@pytest.mark.parametrize("case", CORPUS, ids=lambda c: c.name)
def test_of_the_corpus(case: Any) -> None:
    for kernel in fw.compile(fw.trace(case.fn, *case.specs)).kernels:
        if kernel.segment is not None:
            assert str(replayed(kernel).ir) == str(kernel.ir)
