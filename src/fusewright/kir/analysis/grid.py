"""Global memory that several blocks of one launch touch: they have an order in turns and
gatherings only."""

from __future__ import annotations

from collections.abc import Sequence

from fusewright.core.expr import constant_value
from fusewright.errors import UnsupportedError
from fusewright.kir.analysis.accesses import Access, Moment, accesses
from fusewright.kir.analysis.gatherings import gatherings_of
from fusewright.kir.analysis.turns import turns_of
from fusewright.kir.ir import Buffer, Kernel, Memory
from fusewright.kir.semaphores import SEMAPHORE_STATEMENTS


def check_blocks(kernel: Kernel) -> None:
    """Raises UnsupportedError unless each block reads only what no other block writes, proved from
    addresses, or what it has its turn on: a launch that hands data from block to block in no order
    needs another launch behind it."""
    if all(constant_value(d.extent) == 1 for d in kernel.grid):
        return
    found: dict[Buffer, list[Access]] = {}
    for a in accesses(kernel):
        if a.buffer.memory is Memory.GLOBAL and a.moment is not Moment.DONE:
            found.setdefault(a.buffer, []).append(a)
    ordered = (*turns_of(kernel), *gatherings_of(kernel))
    for buffer, uses in found.items():
        if buffer in kernel.semaphores:
            continue
        uses = [a for a in uses if not isinstance(a.site.statement, SEMAPHORE_STATEMENTS)]
        if ordered and all(any(o.holds(a, kernel) for o in ordered) for a in uses):
            continue
        if all(a.writes or a.use.is_atomic for a in uses) or _stay_apart(uses, kernel):
            continue
        read = next(a for a in uses if not a.writes)
        written = next((a for a in uses if a.writes), read)
        places = [".".join(map(str, a.site.path)) for a in (written, read)]
        raise UnsupportedError(
            f"{kernel.name} writes {buffer} at L{places[0]} and reads it at L{places[1]}, where "
            "blocks may meet; blocks of a launch have no order, so make the reader a second "
            "kernel, or let every block keep to its own part of the array, or to its turn"
        )


def _stay_apart(uses: Sequence[Access], kernel: Kernel) -> bool:
    """Whether the bytes of two blocks are always different: seen as digits, the block's number
    moves them further than all that comes behind it."""
    unknown = uses[0].ranges.unknown if uses[0].ranges is not None else ()
    low, high = 0, 0
    for a in uses:
        if a.ranges is None or a.ranges.unknown != unknown or not a.ranges.lo.size:
            return False
        low = min(low, int(a.ranges.lo.min()))
        high = max(high, int(a.ranges.lo.max()) + a.nbytes)
    span = high - low
    moved = {atoms: coefficient * uses[0].buffer.dtype.nbytes for atoms, coefficient in unknown}
    moving = [d for d in kernel.grid if constant_value(d.extent) != 1]
    if set(moved) != {(d.var,) for d in moving}:
        return False
    steps = [(moved[d.var,], constant_value(d.extent)) for d in moving]
    for step, extent in sorted(steps, key=lambda s: s[0]):
        if step < span:
            return False
        span = step << 40 if extent is None else span + step * (extent - 1)
    return True
