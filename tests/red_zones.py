"""Memory around each array of a call that nobody may write: red zones."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import numpy as np

from fusewright.runtime import executor
from fusewright.runtime.device import check

ZONE = 4096
"""Bytes on both sides of each array: a multiple of every alignment, and more than a block's tile is
wide beyond an end."""


@contextmanager
def red_zones() -> Iterator[list[str]]:
    """Has calls on host arrays put each array, and what lies between launches, between two zones
    of a pattern; in the end the list says which of them was written over."""
    allocate, free = executor.allocate, executor.free
    pattern = np.frombuffer(np.random.default_rng(7).bytes(ZONE), np.uint8).copy()
    sizes: dict[int, int] = {}
    found: list[str] = []

    def allocated(nbytes: int, device: int = 0) -> int:
        base = allocate(nbytes + 2 * ZONE, device)
        for place in (base, base + ZONE + nbytes):
            check(executor.driver().cuMemcpyHtoD(place, pattern.ctypes.data, ZONE), "a red zone")
        sizes[base + ZONE] = nbytes
        return base + ZONE

    def freed(pointer: int, device: int = 0) -> None:
        if pointer not in sizes:
            return free(pointer, device)
        nbytes = sizes.pop(pointer)
        read = np.empty(ZONE, np.uint8)
        for side, place in (("before", pointer - ZONE), ("behind", pointer + nbytes)):
            check(executor.driver().cuMemcpyDtoH(read.ctypes.data, place, ZONE), "a red zone")
            changed = np.flatnonzero(read != pattern)
            if len(changed):
                found.append(f"{side} an array of {nbytes} bytes, byte {changed[0]} of {ZONE}")
        return free(pointer - ZONE, device)

    with mock.patch.multiple(executor, allocate=allocated, free=freed):
        yield found
