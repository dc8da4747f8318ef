"""Branches in a caller's capture: a stream for each, forked and joined by events.

A stream that waits for an event of a captured stream is captured too, and what both were given
before becomes an edge (CUDA Programming Guide, "Cross-stream Dependencies and Events"). So the
caller's graph gets the edges of the program, not one chain of its launches.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from fusewright.host.branches import Branches
from fusewright.runtime.device import check, driver
from fusewright.runtime.locks import after_fork
from fusewright.runtime.state import while_captured


class _Streams(threading.local):
    """The streams of a thread beside the caller's, by context: two threads may capture at once."""

    def __init__(self) -> None:
        self.of: dict[int, list[int]] = {}


_streams = [_Streams()]


@after_fork
def forget_streams() -> None:
    """Leaves streams of all threads to those who have them: a child of a fork cannot use them."""
    _streams[0] = _Streams()


def side_streams(count: int) -> list[int]:
    """So many streams of the current context that this thread alone uses, and nobody else waits
    for."""
    api = driver()
    context = int(check(api.cuCtxGetCurrent(), "cuCtxGetCurrent"))
    found = _streams[0].of.setdefault(context, [])
    with while_captured(api):
        while len(found) < count:
            flags = api.CUstream_flags.CU_STREAM_NON_BLOCKING
            found.append(int(check(api.cuStreamCreate(flags), "cuStreamCreate")))
    return found[:count]


def launch_on_branches(
    launches: Sequence[Callable[[int], None]], branches: Branches, stream: int
) -> None:
    """Gives each launch to the stream of its branch, the first branch's being the caller's, which
    in the end waits for all others."""
    streams = [stream, *side_streams(branches.count - 1)]
    awaited = {p for waits in branches.waits for p in waits}
    events = _Events()
    try:
        begun = events.record(stream)
        marks: dict[int, Any] = {}
        forked = {0}
        for k, launch in enumerate(launches):
            own = streams[branches.of[k]]
            if branches.of[k] not in forked:
                forked.add(branches.of[k])
                events.wait(own, begun)
            for p in branches.waits[k]:
                events.wait(own, marks[p])
            launch(own)
            if k in awaited:
                marks[k] = events.record(own)
        for other in streams[1:]:
            events.wait(stream, events.record(other))
    finally:
        events.destroy()


class _Events:
    """Events of one call: captured ones are edges from then on, and the events may go."""

    def __init__(self) -> None:
        self._api = driver()
        self._made: list[Any] = []

    def record(self, stream: int) -> Any:
        """An event behind what a stream has been given."""
        api = self._api
        flags = api.CUevent_flags.CU_EVENT_DISABLE_TIMING
        self._made.append(check(api.cuEventCreate(flags), "cuEventCreate"))
        check(api.cuEventRecord(self._made[-1], stream), "cuEventRecord")
        return self._made[-1]

    def wait(self, stream: int, event: Any) -> None:
        """Makes a stream wait for an event."""
        check(self._api.cuStreamWaitEvent(stream, event, 0), "cuStreamWaitEvent")

    def destroy(self) -> None:
        """Gives the events back."""
        for event in self._made:
            check(self._api.cuEventDestroy(event), "cuEventDestroy")
