"""What cuts lanes of vectors out of words is counted, once for windows that meet."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import fusewright as fw
from fusewright.core.instructions import CODE
from fusewright.cuda.listing import instructions
from fusewright.kernel import Kernel
from fusewright.schedule.heuristics import schedule_group
from fusewright.schedule.heuristics.work import Work, work_of

ROWS = 1500


def _kernel(fn: Callable[..., Any], columns: int, alignment: int = 16) -> Kernel:
    spec = fw.TensorSpec((ROWS, columns), "float16", alignment=alignment)
    (kernel,) = fw.compile(fw.trace(fn, spec)).kernels
    return kernel


def _work(kernel: Kernel) -> Work:
    assert kernel.segment is not None and kernel.heuristic is not None
    flow = kernel.segment.dataflow()
    schedule_group(flow, kernel.target, kernel.heuristic)
    return work_of(flow, kernel.heuristic)


def _code(kernel: Kernel) -> int:
    """Machine instructions of a kernel up to its exit."""
    code = [i.operation for i in instructions(kernel.sass())]
    return len(code) - code[::-1].index("EXIT")


def _taps(count: int) -> Callable[[Any], Any]:
    def fn(x: Any) -> Any:
        n = x.shape[-1] - count + 1
        parts = [x[:, k : k + n] for k in range(count)]
        return sum(parts[1:], parts[0])

    return fn


def test_a_vector_from_anywhere_takes_what_cuts_it_out_of_words() -> None:
    whole, cut = (_work(_kernel(lambda x: -x, 321, n)) for n in (16, 2))
    assert cut.addressing - whole.addressing == CODE.cut


def test_words_and_known_places_take_nothing_of_it() -> None:
    def pair(first: int) -> Callable[[Any], Any]:
        return lambda x: x[:, :320] + x[:, first : first + 320]

    words, known = (_work(_kernel(pair(k), 328)) for k in (8, 3))
    assert known.addressing == words.addressing


def test_windows_that_meet_are_counted_once() -> None:
    two, three = (_work(_kernel(_taps(n), 323)) for n in (2, 3))
    assert three.addressing - two.addressing < CODE.cut
    assert three.addressing >= 2 * CODE.cut  # of two rows


@pytest.mark.parametrize("count", [2, 3, 5])
def test_counts_are_near_the_machine_code_of_stencils(count: int) -> None:
    kernel = _kernel(_taps(count), 323)
    assert 0.7 < _work(kernel).instructions / _code(kernel) < 1.3
