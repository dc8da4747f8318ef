"""Measuring programs on a GPU: interleaved, from a cold second-level cache, medians."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, TypeAlias, runtime_checkable

from fusewright.runtime.device import check, current, device_name, driver
from fusewright.runtime.memory import allocate, free

ROUNDS = 11
WARM_UP = 2
FLUSH_NBYTES = 256 * 1024 * 1024
"""Bytes that are written before every run: more than the second-level cache of any device, and
work enough that the host has enqueued the run by the time the device gets to it."""


class Clock(Protocol):
    """Times calls on one device."""

    @property
    def device(self) -> str:
        """The device's name: tuned schedules are kept for it."""
        ...

    def __call__(self, runs: Sequence[Callable[[], object]]) -> list[float]:
        """Microseconds of each of these calls, which enqueue work on the legacy default stream."""
        ...


Span: TypeAlias = "tuple[float, float]"
"""When something ended after a start, and how long after what was before it, in microseconds."""


@runtime_checkable
class LaunchClock(Protocol):
    """Times the launches of one run, each by itself."""

    def launches(self, run: Callable[[Callable[[int], None]], object]) -> dict[int, Span]:
        """The spans of the launches that `run` enqueues on the legacy default stream, by number: it
        calls what it is given with the number of each, behind it."""
        ...


class DeviceClock:
    """CUDA events around each call. A round makes every call once, in turn, each after a write that
    leaves nothing of its arrays in the second-level cache; the median over rounds counts."""

    def __init__(self, index: int = 0, rounds: int = ROUNDS) -> None:
        self._index = index
        self._rounds = rounds

    @property
    def device(self) -> str:
        """The device's name."""
        return device_name(self._index)

    def __call__(self, runs: Sequence[Callable[[], object]]) -> list[float]:
        """Medians in microseconds."""
        api = driver()
        with current(self._index), _flush(self._index) as cold, _events(2) as (start, end):
            for run in runs:
                for _ in range(WARM_UP):
                    run()
            samples: list[list[float]] = [[] for _ in runs]
            for _ in range(self._rounds):
                for run, own in zip(runs, samples, strict=True):
                    check(api.cuMemsetD8Async(cold, 0, FLUSH_NBYTES, 0), "cuMemsetD8Async")
                    check(api.cuEventRecord(start, 0), "cuEventRecord")
                    run()
                    check(api.cuEventRecord(end, 0), "cuEventRecord")
                    check(api.cuEventSynchronize(end), "cuEventSynchronize")
                    ms = check(api.cuEventElapsedTime(start, end), "cuEventElapsedTime")
                    own.append(1000 * float(ms))
        return [statistics.median(own) for own in samples]

    def launches(self, run: Callable[[Callable[[int], None]], object]) -> dict[int, Span]:
        """Medians over rounds, each from a cold cache, of events behind each launch."""
        numbers: list[int] = []
        run(numbers.append)
        api, count = driver(), len(numbers)
        samples: list[list[float]] = []
        with current(self._index), _flush(self._index) as cold, _events(count + 1) as events:

            def record(_: int) -> None:
                check(api.cuEventRecord(next(behind), 0), "cuEventRecord")

            for _ in range(self._rounds):
                behind = iter(events[1:])
                check(api.cuMemsetD8Async(cold, 0, FLUSH_NBYTES, 0), "cuMemsetD8Async")
                check(api.cuEventRecord(events[0], 0), "cuEventRecord")
                run(record)
                check(api.cuEventSynchronize(events[-1]), "cuEventSynchronize")
                ends = (check(api.cuEventElapsedTime(events[0], e), "elapsed") for e in events[1:])
                samples.append([1000 * float(ms) for ms in ends])
        return _spans(numbers, samples)


def _spans(numbers: Sequence[int], samples: Sequence[Sequence[float]]) -> dict[int, Span]:
    """Medians of ends, and of what passed between an end and the one before it."""
    out: dict[int, Span] = {}
    for k, number in enumerate(numbers):
        ends = [row[k] for row in samples]
        us = [row[k] - (row[k - 1] if k else 0.0) for row in samples]
        out[number] = statistics.median(ends), statistics.median(us)
    return out


class Copying:
    """A call that copies bytes on the device, on the legacy default stream; a context that holds
    their memory, which the first call asks for."""

    def __init__(self, nbytes: int, index: int = 0) -> None:
        self._nbytes = nbytes
        self._index = index
        self._held: list[int] = []

    def __enter__(self) -> Copying:
        return self

    def __exit__(self, *error: object) -> None:
        while self._held:
            free(self._held.pop(), self._index)

    def __call__(self) -> None:
        if not self._nbytes:
            return
        api = driver()
        with current(self._index):
            while len(self._held) < 2:
                self._held.append(allocate(self._nbytes, self._index))
            to, source = self._held
            check(api.cuMemcpyDtoDAsync(to, source, self._nbytes, 0), "cuMemcpyDtoDAsync")


@contextmanager
def _flush(index: int) -> Generator[int]:
    """Memory to write before a run."""
    pointer = allocate(FLUSH_NBYTES, index)
    try:
        yield pointer
    finally:
        free(pointer, index)


@contextmanager
def _events(count: int) -> Generator[list[Any]]:
    api = driver()
    made: list[Any] = []
    try:
        for _ in range(count):
            made.append(check(api.cuEventCreate(0), "cuEventCreate"))
        yield made
    finally:
        for event in made:
            check(api.cuEventDestroy(event), "cuEventDestroy")
