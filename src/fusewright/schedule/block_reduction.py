"""How the partial results of a block meet, in plain numbers: what lowering writes, models count.

Lanes of a warp exchange by shuffles. What then is left of a group, a partial for each warp or part
of one, goes through shared memory. Where a thread has many values to reduce, the threads of a group
share them: each adds up the partials of some, and a second barrier stands before all load the sums.
The blocks of a cluster hand each other all of their partials, or such sums.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

LEAST_SHARED = 4
"""Reductions of one kind, and warps, from which threads add up a part each for all others: one more
barrier, but each partial is loaded once. Three of three warps would take 13 instructions for 21,
four of four take 17 for 36 (`meeting`); a barrier keeps a warp for ten."""
BARRIER_INSTRUCTIONS = 10
"""Instructions for which a barrier keeps a warp: estimated, not measured."""
DIRECT_LOADS = 8
"""Partials that each thread loads itself, instead of a share and a butterfly: two loads of four and
seven operations are fewer than a load and five steps of two between the lanes of a warp, those of
16 are more. Also the most statements written out before a loop takes their place."""


@dataclass(frozen=True, slots=True)
class ExchangeWork:
    """What a thread does to reduce values with others: its instructions, the elements that it
    writes to, and reads from, shared memory, and the barriers in between."""

    instructions: float
    through_shared: float
    barriers: int


def meeting(values: int, lanes: int, partials: int) -> ExchangeWork:
    """Of `values` reductions in groups of `partials` times `lanes` threads, the latter of one warp.
    A step between lanes is a shuffle and an operation, a partial a load and an operation."""
    within = 2 * math.log2(lanes)
    if partials == 1:
        return ExchangeWork(values * within, 0.0, 0)
    if are_shared_out(values, lanes, partials):
        own, pieces = -(-values // partials), pieces_of(values, partials)
        if pieces > 1:
            added = -(-partials // pieces) + pieces
            moved = 2 * values + added + 2
            return ExchangeWork(moved + added, moved, 3)
        moved = 2 * values + own * (partials + 1)
        return ExchangeWork(moved + own * partials, moved, 2)
    loads = partials if partials <= DIRECT_LOADS or lanes == 1 else -(-partials // lanes)
    across = 0.0 if loads == partials else within
    each = within + 1 + 2 * loads + across
    return ExchangeWork(values * each, values * (1 / lanes + loads), 1)


def are_shared_out(values: int, lanes: int, partials: int, nblocks: int = 1) -> bool:
    """Whether the threads of a group share `values` reductions of one kind: each adds up some of
    them for all. `lanes` of a warp hold each of the `partials` that a group has in a block."""
    if nblocks > 1:
        return cluster_meeting(values, lanes, partials, nblocks).barriers > 1
    return lanes == 1 and min(values, partials) >= LEAST_SHARED


def pieces_of(values: int, partials: int) -> int:
    """Of threads that share `values` reductions of so many partials each, how many add up a piece
    of each sum, before one adds up the pieces: as many as there are for each sum, but no more than
    make both steps as long; 1 where one thread adds up all, which is not long or takes all threads.
    """
    pieces = min(partials // values, math.isqrt(partials))
    return pieces if pieces > 1 and partials > 2 * DIRECT_LOADS else 1


def cluster_meeting(values: int, lanes: int, partials: int, nblocks: int) -> ExchangeWork:
    """The same where `nblocks` blocks of a cluster reduce together: every block gets all partials
    of all blocks, or its threads share its own partials first, and it gets a sum of each block. Two
    more barriers stand between the steps of the latter, which therefore has to be shorter both for
    the schedulers, by instructions, and for the banks of shared memory, by what goes through."""
    direct = _all_handed_on(values, lanes, partials, nblocks)
    if partials == 1:
        return direct
    shared = _sums_handed_on(values, lanes, partials, nblocks)
    barriers = (shared.barriers - direct.barriers) * BARRIER_INSTRUCTIONS
    is_shorter = shared.instructions + barriers < direct.instructions
    return shared if is_shorter and shared.through_shared < direct.through_shared else direct


def _all_handed_on(values: int, lanes: int, partials: int, nblocks: int) -> ExchangeWork:
    within, sent = 2 * math.log2(lanes), -(-nblocks // lanes)
    met = partials * nblocks
    loads = met if met <= DIRECT_LOADS or lanes == 1 else -(-met // lanes)
    across = 0.0 if loads == met else within
    each = within + sent + 2 * loads + across
    return ExchangeWork(values * each, values * (nblocks / lanes + loads), 1)


def _sums_handed_on(values: int, lanes: int, partials: int, nblocks: int) -> ExchangeWork:
    own = -(-values // (lanes * partials))
    moved = own * (partials + 2 * nblocks + 1) + values
    added = own * (partials + nblocks)
    instructions = values * (2 * math.log2(lanes) + 1) + moved + added
    return ExchangeWork(instructions, values / lanes + moved, 3)
