"""How often a thread computes a stage, and what one statement of it accesses."""

from __future__ import annotations

from fusewright.core.substitution import estimate
from fusewright.memory import Memory
from fusewright.schedule.graph import Stage
from fusewright.schedule.parallel import Loop, Parallel, trips_of
from fusewright.target import WARP_SIZE


def trips(s: Stage, start: int = 0) -> int:
    """How often a thread computes a stage, within its loops from `start` on."""
    return trips_of(filter(is_own, s.loops[start:]))


def is_own(x: Loop) -> bool:
    """Whether a thread itself goes through the trips of a loop."""
    return x.parallel.is_serial or x.parallel in (Parallel.VECTORIZE, Parallel.BULK)


def outer_trips(s: Stage) -> int:
    """Trips of the loops that really are loops, not unrolled."""
    return trips_of(x for x in s.loops if x.parallel is Parallel.SERIAL)


def lanes(s: Stage) -> int:
    """Elements that one instruction of a stage accesses."""
    last = s.loops[-1] if s.loops else None
    return estimate(last.axis.extent) if last and last.parallel is Parallel.VECTORIZE else 1


def reads(s: Stage) -> list[Stage]:
    return [o.stored for o in s.operands if o.stored.memory is Memory.GLOBAL]


def warps(threads: int) -> int:
    """Whole warps of so many threads."""
    return -(-threads // WARP_SIZE)
