"""A program as a Chrome trace, which Perfetto (ui.perfetto.dev) and chrome://tracing open.

The format: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU, "JSON
Object Format", complete events ("ph": "X") and flows ("s", "f"); times are microseconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, TypeVar

from fusewright.kir.pipeline import PIPELINE, run_pass
from fusewright.report.predicted import Measured, timed
from fusewright.report.subject import KernelLike, ProgramLike

Event: TypeAlias = "dict[str, Any]"
T = TypeVar("T")

_RUN, _COMPILER, _DEVICE = 1, 2, 3


def trace_record(
    program: ProgramLike, title: str, measured: Measured | None = None
) -> dict[str, Any]:
    """Processes: the launches as they were measured, if they were; as they are predicted, a thread
    for each branch, with an arrow for each edge; and the compiler's passes over each kernel, run
    once more under a clock."""
    device = "nothing" if measured is None else measured.device
    return {
        "displayTimeUnit": "ns",
        "otherData": {"program": title, "target": program.target.arch, "measured on": device},
        "traceEvents": [
            *_measured(program, title, measured),
            _named(_RUN, f"{title}, predicted for {program.target.arch}"),
            *_launches(program),
            _named(_COMPILER, "the compiler's passes, measured again"),
            *_passes(program.kernels),
        ],
    }


def _named(process: int, name: str) -> Event:
    return {"ph": "M", "name": "process_name", "pid": process, "tid": 0, "args": {"name": name}}


def _measured(program: ProgramLike, title: str, measured: Measured | None) -> list[Event]:
    """A slice a launch, beside what was predicted for it, one behind the other."""
    if measured is None:
        return []
    expected = timed(program)
    return [
        _named(_DEVICE, f"{title}, measured on {measured.device}"),
        *(
            {
                "ph": "X", "name": t.name, "cat": "measured", "pid": _DEVICE, "tid": 0,
                "ts": t.begin, "dur": t.us,
                "args": {"launch": i, "predicted us": expected[i].us},
            }
            for i, t in measured.launches.items()
        ),
    ]  # fmt: skip


def _launches(program: ProgramLike) -> list[Event]:
    """A slice a launch, with what it binds; a flow an edge."""
    found = timed(program)
    out: list[Event] = []
    for i, (t, x) in enumerate(zip(found, program.host.launches, strict=True)):
        binds = {f"binding {k}": repr(b) for k, b in enumerate(x.bindings)}
        out.append(
            {
                "ph": "X", "name": t.name, "cat": "launch", "pid": _RUN, "tid": t.branch,
                "ts": t.begin, "dur": t.us, "args": {"launch": i, "time from": t.basis, **binds},
            }
        )  # fmt: skip
    for k, e in enumerate(program.host.edges):
        a, b = found[e.producer], found[e.consumer]
        edge = {"name": e.kind.value, "cat": "edge", "id": k, "pid": _RUN}
        out.append({**edge, "ph": "s", "tid": a.branch, "ts": a.end, "args": {"why": e.why}})
        out.append({**edge, "ph": "f", "bp": "e", "tid": b.branch, "ts": b.begin})
    return out


def _passes(kernels: Sequence[KernelLike]) -> list[Event]:
    """A slice for each pass over each kernel, a thread for each kernel."""
    clock = _SliceClock()
    for i, k in enumerate(kernels):
        if k.lowered is None:
            continue
        kernel = k.lowered
        for p in PIPELINE:
            note = {"why": p.why}
            kernel = clock.timed(
                p.name, i, note, lambda p=p, at=kernel, k=k: run_pass(p, at, k.target, spec=0)
            )
        clock.timed("emit", i, {}, lambda k=k: k.cuda)
    threads = [
        {
            "ph": "M", "name": "thread_name", "pid": _COMPILER, "tid": i,
            "args": {"name": k.name},
        }
        for i, k in enumerate(kernels)
    ]  # fmt: skip
    return [*threads, *clock.events]


class _SliceClock:
    """Slices of work that is done now, from the first on."""

    def __init__(self) -> None:
        self._start = time.perf_counter()
        self.events: list[Event] = []

    def timed(self, name: str, thread: int, note: dict[str, Any], work: Callable[[], T]) -> T:
        """The result of the work, which becomes a slice."""
        began = time.perf_counter()
        made = work()
        ended = time.perf_counter()
        self.events.append(
            {
                "ph": "X", "name": name, "cat": "compiler", "pid": _COMPILER, "tid": thread,
                "ts": 1e6 * (began - self._start), "dur": 1e6 * (ended - began), "args": note,
            }
        )  # fmt: skip
        return made
