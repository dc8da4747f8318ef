"""Tiles whose reductions run along different axes, and which the threads of a block hold.

Formation asks before it puts such reductions into one kernel, and the scheduler shares the sides of
a tile out among threads by the same numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from fusewright.fusion.sizes import power_of_two
from fusewright.target import WARP_SIZE

MOST_THREADS = WARP_SIZE
"""Threads that share a tile. Lanes of a warp exchange by shuffles: tiles of 9 by 30, 32 by 16 and
32 by 32 halves, scaled and then normalised across, take 0.56, 0.58 and 0.61 of the time of two
launches. Through shared memory the many results of a thread cost more than a second launch: tiles
of 64 by 64 in 256 threads take 1.26 (one H100, 2026-11-27)."""
MOST_OF_THREAD = 32
"""Elements of a tile in registers of a thread: with three values that passes share they take 96 of
the 128 that it has where a multiprocessor holds four blocks of four tiles."""
MOST_SIDES = 3
"""Sides of a tile: a block has so many dimensions of threads."""


def is_held(sides: Sequence[int]) -> bool:
    """Whether a block holds a tile of these sides in registers, each filled up to a power of two,
    as lanes exchange by such."""
    filled = math.prod(map(power_of_two, sides))
    return 0 < len(sides) <= MOST_SIDES and filled <= MOST_THREADS * MOST_OF_THREAD
