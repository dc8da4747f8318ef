"""Memory for semaphores: zeroed once, and left at zero by every run.

A run on a stream finds what the run before on that stream left. Calls that are captured into a
graph get memory of their own each: replays of two graphs may run side by side.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Generator
from typing import Any

from fusewright.runtime.device import capturing, check, driver

_CAPTURED: list[int] = []
"""Memory of captured calls, which graphs may use long after our last reference is gone."""


class States:
    """The memory for the semaphores of one program."""

    def __init__(self) -> None:
        self._addresses: dict[tuple[int, int, int], int] = {}
        self._api = driver()
        weakref.finalize(self, _free, self._api, self._addresses).atexit = False

    def address(self, nbytes: int, stream: int) -> int:
        """Memory for a call on a stream of the current context, at zero when the call begins."""
        if capturing(stream):
            _CAPTURED.append(_zeroed(self._api, nbytes))
            return _CAPTURED[-1]
        key = _context(self._api), stream, nbytes
        found = self._addresses.get(key)
        if found is None:
            found = self._addresses[key] = _zeroed(self._api, nbytes)
        return found

    def forget(self, stream: int) -> None:
        """After a launch that failed nobody knows what semaphores hold; the next call on the stream
        gets other memory."""
        for key in [k for k in self._addresses if k[1] == stream]:
            del self._addresses[key]


def _context(api: Any) -> int:
    return int(check(api.cuCtxGetCurrent(), "cuCtxGetCurrent"))


def _zeroed(api: Any, nbytes: int) -> int:
    """New memory at zero, whatever the streams of this thread are doing."""
    with while_captured(api):
        pointer = int(check(api.cuMemAlloc(nbytes), f"{nbytes} bytes for semaphores"))
        flags = api.CUstream_flags.CU_STREAM_NON_BLOCKING
        stream = check(api.cuStreamCreate(flags), "cuStreamCreate")
        check(api.cuMemsetD8Async(pointer, 0, nbytes, stream), "cuMemsetD8Async")
        check(api.cuStreamSynchronize(stream), "cuStreamSynchronize")
        check(api.cuStreamDestroy(stream), "cuStreamDestroy")
    return pointer


@contextlib.contextmanager
def while_captured(api: Any) -> Generator[None]:
    """Lets this thread allocate while one of its streams is captured (CUDA Driver API,
    cuThreadExchangeStreamCaptureMode: such calls are unsafe in other modes)."""
    relaxed = api.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
    before = check(api.cuThreadExchangeStreamCaptureMode(relaxed), "capture mode")
    try:
        yield
    finally:
        check(api.cuThreadExchangeStreamCaptureMode(before), "capture mode")


def _free(api: Any, addresses: dict[tuple[int, int, int], int]) -> None:
    with while_captured(api):
        for (context, _, _), pointer in addresses.items():
            if context == _context(api):  # memory of a context that is gone is gone with it
                check(api.cuMemFree(pointer), "cuMemFree")
