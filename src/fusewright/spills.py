"""Kernels whose values do not fit into registers are made in another way, if one is as fast.

How many registers a thread wants is counted before there is machine code, and what the compiler
makes of it is known only then. Where more values are alive than a thread has registers for, a
kernel is compiled at once, in a module of its own, and the compiler's report is looked at: what it
keeps in memory (spills) is a fact of the kernel that no count before has. These ways are tried in
turn until one spills nothing:

    fewer blocks    of the same schedule on a multiprocessor, so that threads have more registers
    another         candidate of the group, by predicted time, where one block has them all already

Without a compiler kernels stay as they are scheduled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from fusewright.cuda.resources import Resources, Spilled
from fusewright.errors import ScheduleError, UserError
from fusewright.finish import Made
from fusewright.fusion.ir import MatMul
from fusewright.host.segment import Segment
from fusewright.kernel import Kernel
from fusewright.kir.analysis.occupancy import spare_registers
from fusewright.runtime.builds import BUILDER
from fusewright.schedule.heuristics import schedule_group
from fusewright.schedule.heuristics.common import Params
from fusewright.schedule.heuristics.cost import Cost, cost
from fusewright.schedule.heuristics.rating import Rated, rate
from fusewright.schedule.heuristics.work import Work, work_of
from fusewright.target import REGISTER_NBYTES


@dataclass(frozen=True, slots=True)
class Way:
    """A way to make the kernel of a group, in words: the parameters of its schedule, None for those
    that it has, and the blocks that a multiprocessor is to hold, 0 for what the schedule says."""

    what: str
    params: Params | None = None
    min_blocks: int = 0


Remade = Callable[[Segment, Way], Made]
"""Makes the kernel of a segment in another way. Raises ScheduleError where that is refused."""


def without_spills(first: Made, remade: Remade) -> Made:
    """The kernel as it was made, or the way in which the compiler spills least, if that is little
    enough slower: of the same schedule where it is predicted to take no longer than the model errs,
    of another one where it is predicted to take no longer. Predicted times count what is spilled.
    """
    kernel, segment = first.kernel, first.kernel.segment
    found = _report(kernel)
    if segment is None or found is None or not found.spill_stores:
        return first
    best, chosen, least = first, _in_words(kernel), found.spill_stores
    spilled = {chosen: least}
    for way, predicted in _ways(kernel, found):
        try:
            made = remade(segment, way)
        except ScheduleError:
            continue
        own = _report(made.kernel)
        nbytes, expected = 0 if own is None else own.spill_stores, predicted(own)
        spilled |= {way.what: nbytes} if nbytes else {}
        is_better = expected is not None and nbytes < least
        if is_better:
            made.kernel.cost = expected
            best, made, chosen, least = made, best, way.what, nbytes
        _drop(made.kernel)
        if not least:
            break
    best.kernel.spilled = tuple(Spilled(w, n, is_kept=w == chosen) for w, n in spilled.items())
    return best


_Predicted = Callable[[Resources | None], Cost | None]
"""What a way is predicted to cost, by what the compiler reports of it; None where that is too
long."""


def _ways(kernel: Kernel, found: Resources) -> Iterator[tuple[Way, _Predicted]]:
    """The other ways to make a kernel of which the compiler reported spills."""
    assert kernel.segment is not None
    assert kernel.heuristic is not None
    known = kernel.target.calibration
    flow = kernel.segment.dataflow()
    work = work_of(flow, schedule_group(flow, kernel.target, kernel.heuristic))
    spilling = cost(_as_compiled(work, found), kernel.target).us

    def with_blocks(blocks: int) -> _Predicted:
        def predicted(own: Resources | None) -> Cost | None:
            fewer = replace(work, min_blocks=blocks)
            c = cost(fewer if own is None else _as_compiled(fewer, own), kernel.target)
            return c if c.us <= known.kin_margin * spilling else None

        return predicted

    for blocks in reversed(range(1, kernel.ir.min_blocks)):
        predicted = with_blocks(blocks)
        if predicted(None) is None:
            return  # fewer are slower still
        yield Way(_blocks_in_words(blocks), min_blocks=blocks), predicted
    if kernel.ir.min_blocks > 1:
        return
    rated = [c for c in rate(kernel.segment.dataflow(), kernel.target) if isinstance(c, Rated)]
    for c in sorted(rated, key=lambda c: c.cost.us):
        if c.params != kernel.heuristic and c.cost.us <= spilling:
            yield Way(c.what, c.params), lambda _, own=c.cost: own


def _as_compiled(work: Work, found: Resources) -> Work:
    """The work of a kernel with what the compiler reports: its registers, and what it spills, which
    passes the first-level cache word by word."""
    nbytes = found.spill_stores + found.spill_loads
    return replace(
        work,
        registers=max(1, found.registers),
        instructions=work.instructions + nbytes / REGISTER_NBYTES,
        through_shared=work.through_shared + work.threads * nbytes,
    )


def _report(kernel: Kernel) -> Resources | None:
    """What the compiler reports of a kernel that may spill; None for others, and without one."""
    segment = kernel.segment
    if segment is None or kernel.heuristic is None:
        return None
    is_product = any(isinstance(t.op, MatMul) for t in segment.fusion.values)
    if is_product or spare_registers(kernel.ir, kernel.target):
        return None
    try:
        (build,) = BUILDER.submit([kernel.ir], kernel.target)
    except UserError:
        return None
    kernel.adopt(build.result())
    return kernel.resources()


def _drop(kernel: Kernel) -> None:
    """Takes a kernel that is not used from those that are compiled together."""
    kernel.companions.remove(kernel)


def _in_words(kernel: Kernel) -> str:
    """The way that a kernel was made in first."""
    return _blocks_in_words(kernel.ir.min_blocks) if kernel.ir.min_blocks > 1 else "as scheduled"


def _blocks_in_words(blocks: int) -> str:
    return f"{blocks} blocks a multiprocessor" if blocks > 1 else "one block a multiprocessor"
