"""Memory traffic as the hardware would count it: sectors of global memory, shared wavefronts.

Source: CUDA C++ Programming Guide, "Global Memory" (32-byte sectors of one warp's request) and
"Shared Memory" (32 banks of 4 bytes; 8- and 16-byte accesses go by half and quarter warps).
"""

from __future__ import annotations

import numpy as np

from fusewright.kir.ir import Buffer
from fusewright.memory import Memory
from fusewright.sim.compute import Array, Mask, Value
from fusewright.target import SECTOR_NBYTES, SHARED_BANK_NBYTES, SHARED_BANKS, WARP_SIZE

_PATTERNS, _PATTERN_SIZE = 1024, 1024
"""How many counted address patterns are remembered, of how many threads at most."""


class Counters:
    """Totals over everything executed; `as_stats` gives them by name."""

    def __init__(self, nthreads: int, *, counts: bool = True) -> None:
        self.nthreads = nthreads
        self.counts = counts
        """Whether somebody looks at the totals of accesses, which stay 0 otherwise."""
        self.totals: dict[str, int | float] = dict.fromkeys(
            (
                "blocks",
                "threads",
                "statements",
                "loads",
                "stores",
                "global_bytes_read",
                "global_bytes_written",
                "sectors_read",
                "sectors_written",
                "sectors_least",
                "shared_bytes_read",
                "shared_bytes_written",
                "shared_wavefronts",
                "shared_wavefronts_least",
            ),
            0,
        )
        self.moved: dict[Buffer, int] = {}
        """Bytes of each array in global memory that were read or written."""
        self._patterns: dict[tuple[object, ...], tuple[int, int, int]] = {}

    def add(self, name: str, amount: int) -> None:
        self.totals[name] += amount

    def access(
        self,
        *,
        buffer: Buffer,
        writes: bool,
        block: Value,
        thread: Value,
        nbytes: int,
        mask: Mask,
        nblocks: int,
    ) -> None:
        """Count one access of `nbytes` bytes per active thread at byte `block + thread`."""
        shared = buffer.memory is Memory.SHARED
        unit = SHARED_BANK_NBYTES if shared else SECTOR_NBYTES
        aligned = block % unit == 0 if isinstance(block, int) else bool((block % unit == 0).all())
        alike = aligned and (mask is None or mask.shape[0] == 1)
        if alike and (isinstance(thread, int) or thread.shape[0] == 1):
            row, times = np.atleast_2d(np.asarray(thread)), nblocks
        else:
            row, times = np.atleast_2d(np.asarray(block + thread)), 1
        active, units, least = self._pattern(row, mask, nbytes, shared, nblocks // times)
        verb = "written" if writes else "read"
        where = "shared" if shared else "global"
        self.totals[f"{where}_bytes_{verb}"] += active * nbytes * times
        self.totals["stores" if writes else "loads"] += active * times
        if shared:
            self.totals["shared_wavefronts"] += units * times
            self.totals["shared_wavefronts_least"] += least * times
        else:
            self.totals[f"sectors_{verb}"] += units * times
            self.totals["sectors_least"] += least * times
            self.moved[buffer] = self.moved.get(buffer, 0) + active * nbytes * times

    def _pattern(
        self, row: Array, mask: Mask, nbytes: int, shared: bool, nblocks: int
    ) -> tuple[int, int, int]:
        """Active threads, sectors or wavefronts, and the fewest that the bytes allow."""
        if row.size > _PATTERN_SIZE:
            return self._packed(*self._lanes(row, mask, nblocks), nbytes, shared)
        bits = b"" if mask is None else mask.tobytes()
        key = (row.tobytes(), bits, nbytes, shared, nblocks)
        found = self._patterns.get(key)
        if found is None:
            found = self._packed(*self._lanes(row, mask, nblocks), nbytes, shared)
            self._remember(key, found)
        return found

    def _packed(
        self, lanes: Array, active: Array, nbytes: int, shared: bool
    ) -> tuple[int, int, int]:
        """The same of warps, which other blocks and trips may have counted elsewhere in memory."""
        lanes, active = _moved_to_front(lanes, active)
        counted = _wavefronts if shared else _sectors
        if lanes.size > _PATTERN_SIZE:
            return (int(active.sum()), *counted(lanes, active, nbytes))
        key = (lanes.tobytes(), active.tobytes(), nbytes, shared)
        found = self._patterns.get(key)
        if found is None:
            found = (int(active.sum()), *counted(lanes, active, nbytes))
            self._remember(key, found)
        return found

    def _remember(self, key: tuple[object, ...], found: tuple[int, int, int]) -> None:
        if len(self._patterns) >= _PATTERNS:
            self._patterns.clear()
        self._patterns[key] = found

    def _lanes(self, row: Array, mask: Mask, nblocks: int) -> tuple[Array, Array]:
        """Addresses and activity as (warps, 32)."""
        padded = -(-self.nthreads // WARP_SIZE) * WARP_SIZE
        addresses = np.zeros((nblocks, padded), np.int64)
        active = np.zeros((nblocks, padded), bool)
        addresses[:, : self.nthreads] = row
        active[:, : self.nthreads] = True if mask is None else mask
        return addresses.reshape(-1, WARP_SIZE), active.reshape(-1, WARP_SIZE)


def _moved_to_front(lanes: Array, active: Array) -> tuple[Array, Array]:
    """The warps that have active lanes, all moved by whole sectors to the front of memory,
    where banks are others, and as many meet in each. Lanes that are not active are at 0."""
    some = active.any(axis=1)
    if not some.all():
        lanes, active = lanes[some], active[some]
    if not lanes.size:
        return lanes, active
    first = int(lanes.min(where=active, initial=np.iinfo(np.int64).max))
    return np.where(active, lanes - first // SECTOR_NBYTES * SECTOR_NBYTES, 0), active


def _distinct(values: Array) -> tuple[Array, Array]:
    """Rows sorted, and where each row's distinct non-negative values first occur."""
    steps = values[:, 1:] - values[:, :-1]
    ordered = values if (steps >= 0).all() else np.sort(values, axis=1)
    first = np.ones(ordered.shape, bool)
    first[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    return ordered, first & (ordered >= 0)


def _sectors(lanes: Array, active: Array, nbytes: int) -> tuple[int, int]:
    """Distinct 32-byte sectors of each warp, summed, and the fewest its distinct addresses would
    fill; an aligned access lies in one sector."""
    start = lanes // SECTOR_NBYTES
    wanted = np.where(active, start, -1)
    if nbytes > SECTOR_NBYTES or (lanes % nbytes).any():
        end = np.where(active, (lanes + nbytes - 1) // SECTOR_NBYTES, -1)
        wanted = np.concatenate([wanted, end], axis=1)
    addresses = _distinct(np.where(active, lanes, -1))[1].sum(axis=1)
    return int(_distinct(wanted)[1].sum()), int((-(-addresses * nbytes // SECTOR_NBYTES)).sum())


def _wavefronts(lanes: Array, active: Array, nbytes: int) -> tuple[int, int]:
    """Passes through the banks that each warp needs, and the fewest its bytes allow."""
    words = max(1, nbytes // SHARED_BANK_NBYTES)
    group = WARP_SIZE // words
    start = np.where(active, lanes // SHARED_BANK_NBYTES, -words)
    each = (start[:, :, None] + np.arange(words)).reshape(-1, group * words)
    ordered, first = _distinct(each)
    bank = ordered % SHARED_BANKS + np.arange(len(ordered))[:, None] * SHARED_BANKS
    load = np.bincount(bank[first], minlength=len(ordered) * SHARED_BANKS)
    passes = int(load.reshape(len(ordered), SHARED_BANKS).max(axis=1).sum())
    distinct = first.sum(axis=1)
    return passes, int((-(-distinct // SHARED_BANKS)).sum())
