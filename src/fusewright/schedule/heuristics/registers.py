"""The registers of a thread, counted on a schedule."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fusewright.axes.classes import AxisClass
from fusewright.core.expr import Int
from fusewright.core.instructions import CODE
from fusewright.fusion.ir import Broadcast, Parts, Pointwise, Scan
from fusewright.fusion.persistent_rows import nbytes_ahead, registers_of_thread
from fusewright.memory import Memory
from fusewright.schedule.graph import Dataflow, Stage
from fusewright.schedule.heuristics.exchanges import exchange_threads
from fusewright.schedule.heuristics.thread_loops import lanes, outer_trips, reads, trips, warps
from fusewright.schedule.parallel import Parallel, trips_of
from fusewright.target import REGISTER_NBYTES, REGISTER_UNIT, REGISTERS_PER_SM, WORD_NBYTES


def registers_of(flow: Dataflow, stages: Sequence[Stage], walk: ReducingWalk) -> int:
    """32-bit registers of a thread: what it loads stays there while the rest is made, and so does
    what it scans of a run, and has summed of it, while threads exchange; where they do so in a
    loop, the loads of its next trip are under way. What later passes read stays there, too."""
    words = _held_between_passes(flow, stages) | dict(walk.words) or _held_for_exchanges(flow)
    held = _held_for_scans(flow)
    passed, looped = 0, 0
    for s in stages:
        if s.memory is Memory.LOCAL:
            kept = trips(s, s.inline_depth) * s.dtype.nbytes
            for o in reads(s):
                before = words.get(o, 0)
                words[o] = max(before, -(-kept // 4))
                if held and outer_trips(s) > 1:
                    words[o] = -(-trips(s) // outer_trips(s) * s.dtype.nbytes // 4)
                passed += words[o] - before if _is_passed_on(flow, s) else 0
                looped += words[o] - before if outer_trips(s) > 1 else 0
            if s in held:
                words[s] = _held_elements(flow, s) * -(-s.dtype.compute.nbytes // 4)
    wanted = CODE.registers + sum(words.values()) - min(passed, max(looped, 0))
    return -(-wanted // REGISTER_UNIT) * REGISTER_UNIT


def _is_passed_on(flow: Dataflow, s: Stage) -> bool:
    """Whether shared memory gets all that a stage loads, before any loop begins: registers of what
    loops load are the same ones."""
    readers = flow.consumers(s)
    return bool(readers) and all(r.memory is Memory.SHARED for r in readers)


def _held_between_passes(flow: Dataflow, stages: Sequence[Stage]) -> dict[Stage, int]:
    """The registers of the largest value that a thread which reduces columns computes in a pass of
    its own, as others that are held follow from it, and of its sums. Elements of 16 bits that were
    loaded in vectors stay as they were loaded: two in a register. Of rows the compiler computes
    again what follows from loads."""
    sums = [s for s in stages if s.is_reduction and _is_of_columns(flow, s)]
    if not sums:
        return {}
    words = {
        s: -(-_held_elements(flow, s) * _held_nbytes(s) // WORD_NBYTES)
        for s in stages
        if s.memory is Memory.LOCAL and s.inline_depth == 0 and not (s.is_reduction or reads(s))
    }
    largest = max(words, key=lambda s: words[s], default=None)
    if largest is None or not words[largest]:
        return {}
    most = max(sums, key=lambda s: _held_elements(flow, s))
    several = 2 * _held_elements(flow, most) * -(-most.dtype.compute.nbytes // WORD_NBYTES)
    return {largest: words[largest], most: several}


def _held_for_exchanges(flow: Dataflow) -> dict[Stage, int]:
    """The registers of what a thread computes of several results, in loops around what it exchanges
    of them, and needs again behind that: the exchanges of all results take place together, so that
    the values of all wait for it.

        for l in 4:  v[l] = ..;  t = sum(v[l])  among threads;  y[l] = v[l] - t      v: 4 registers
    """
    behind: dict[Stage, int] = {}  # so many exchanges
    held: dict[Stage, int] = {}
    several = _results_in_turns(flow)
    for s in flow.stages if several else ():
        before = max((behind[o] for o in s.operands), default=0)
        behind[s] = before + bool(exchange_threads(flow, s))
        for v in s.operands:
            is_made = v.memory is Memory.LOCAL and not (v.is_reduction or v.is_virtual)
            shared = {x.axis for x in v.loops[: v.inline_depth]} if is_made else set[AxisClass]()
            is_own = not isinstance(v.op, Broadcast)  # what is repeated is held once
            if is_own and behind[v] < before and not shared.isdisjoint(several):
                own = (x for x in v.loops if x.parallel in (Parallel.UNROLL, Parallel.VECTORIZE))
                held[v] = trips_of(own) * -(-v.dtype.compute.nbytes // WORD_NBYTES)
    return held


def _results_in_turns(flow: Dataflow) -> set[AxisClass]:
    """The unrolled loops in which threads exchange one of several results."""
    return {
        x.axis
        for s in flow.stages
        if s.is_reduction and exchange_threads(flow, s)
        for x in s.loops
        if x.parallel is Parallel.UNROLL and not flow.graph.depends(x.axis, s.frame.reduced)
    }


def _is_of_columns(flow: Dataflow, s: Stage) -> bool:
    """Whether neighbouring threads, or the lanes of one, have results of their own of a sum."""
    beside = [x for x in s.loops if x.parallel is Parallel.TIDX and x.axis.extent != Int(1)]
    is_down = any(not flow.graph.depends(x.axis, s.frame.reduced) for x in beside)
    return is_down or _held_elements(flow, s) > 1


def _held_nbytes(s: Stage) -> int:
    """Bytes of an element that a thread holds: of a cast, or of parts, those of what these are."""
    source = s
    while isinstance(source.op, Parts) or (
        isinstance(source.op, Pointwise) and source.op.fn == "cast"
    ):
        source = source.operands[0]
    is_packed = source is not s and lanes(s) == 1 and source.dtype.nbytes < WORD_NBYTES
    packed = any(lanes(r) > 1 for r in (source, *source.operands) if not r.is_input)
    return source.dtype.nbytes if is_packed and packed else max(WORD_NBYTES, s.dtype.compute.nbytes)


@dataclass(frozen=True, slots=True)
class ReducingWalk:
    """A loop in each trip of which threads reduce together, and that others reduce. Its trips whose
    loads are under way a trip `ahead`, or 0; how often threads wait for loads; registers for what
    a trip and the next one load, for what all trips share, as it is computed with, and for sums
    over trips, by what is held."""

    ahead: float = 0.0
    waits: float = 0.0
    words: tuple[tuple[Stage, int], ...] = ()


def walk_of(flow: Dataflow, stages: Sequence[Stage], threads: int, min_blocks: int) -> ReducingWalk:
    reductions = [s for s in stages if s.is_reduction]
    walked = {
        x.axis
        for s in reductions
        if len(reductions) > 1 and exchange_threads(flow, s)
        for x in s.loops
        if x.parallel is Parallel.SERIAL and not flow.graph.depends(x.axis, s.frame.reduced)
    }
    sums = [s for s in reductions if any(flow.graph.depends(a, s.frame.reduced) for a in walked)]
    if not sums:
        return ReducingWalk()
    words = {s: _kept(flow, s) * _wide(s) for s in sums}
    nbytes, most = 0, 1
    for s in (s for s in stages if s not in sums and reads(s)):
        if any(x.axis in walked for x in s.loops):
            moved = trips(s) // outer_trips(s) * s.dtype.nbytes
            words[s] = -(-2 * moved // REGISTER_NBYTES)
            nbytes, most = nbytes + moved, max(most, outer_trips(s))
        else:
            words[s] = trips(s) * _wide(s)
    resident = warps(threads) * min_blocks
    registers = registers_of_thread(resident, REGISTERS_PER_SM) if resident else 0
    is_ahead = nbytes <= nbytes_ahead(registers)
    return ReducingWalk(most if is_ahead else 0, 1 if is_ahead else most, tuple(words.items()))


def _wide(s: Stage) -> int:
    """Registers of an element, as it is computed with."""
    return -(-s.dtype.compute.nbytes // REGISTER_NBYTES)


def _held_for_scans(flow: Dataflow) -> set[Stage]:
    """What scans among threads wait for with all of a run, and their results."""
    found: set[Stage] = set()
    waiting = [s for s in flow.stages if isinstance(s.op, Scan) and exchange_threads(flow, s)]
    while waiting:
        s = waiting.pop()
        if s not in found and not s.is_input:
            found.add(s)
            waiting += s.operands
    return found


def _held_elements(flow: Dataflow, s: Stage) -> int:
    """The elements of a value that a thread has together: those of unrolled loops that its readers
    do not share; one at a time is counted with the code."""
    count = _kept(flow, s)
    return count if count > 1 else 0


def _kept(flow: Dataflow, s: Stage) -> int:
    """The same, of results of which there may be one."""
    own = [
        x for x in s.loops[s.inline_depth :] if x.parallel in (Parallel.UNROLL, Parallel.VECTORIZE)
    ]
    return trips_of(x for x in own if not flow.graph.depends(x.axis, s.frame.reduced))
