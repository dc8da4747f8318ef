"""`fw.benchmark`: how long a function takes, what it moves, and how near to a copy that is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, cast

from fusewright.arguments import ArgumentRule, Unfit, optional, takes
from fusewright.core.expr import constant_value
from fusewright.errors import UserError
from fusewright.frontends.fuse import Fused
from fusewright.frontends.tune import CLOCK
from fusewright.fusion.call_numbers import without_numbers
from fusewright.program import Program
from fusewright.report.explain import Report
from fusewright.report.predicted import (
    Measured,
    basis_note,
    copy_us,
    is_symbolic,
    measured,
    serial_us,
    timed,
)
from fusewright.report.table import nbytes_text, table
from fusewright.report.traffic import traffic
from fusewright.runtime.arrays import ArrayInfo, describe
from fusewright.runtime.clock import Clock, Copying, DeviceClock, LaunchClock
from fusewright.runtime.device import has_gpu


@dataclass(frozen=True, slots=True)
class Timing:
    """What was timed: a name, microseconds (of measured ones the median over rounds), and the share
    of the speed of the device's own copy of the least bytes that the function must move; None
    where sizes are symbols."""

    name: str
    us: float
    share: float | None


@dataclass(frozen=True, slots=True)
class Benchmark:
    """The times of a function and of what it was held against; `str` of it is a table. `nbytes`:
    the least bytes, arguments read once and results written once; `copy_us`: a copy of so many.
    Where nothing `is_measured`, times are predictions for `device`, which is then a target; `note`
    says of how many launches they follow from bytes alone. `program` is what was timed, `measured`
    what each of its launches took, where a clock measures launches."""

    device: str
    is_measured: bool
    launches: int
    nbytes: int | None
    copy_us: float | None
    timings: tuple[Timing, ...]
    note: str = ""
    program: Program | None = field(default=None, repr=False, compare=False)
    measured: Measured | None = field(default=None, repr=False, compare=False)

    @property
    def report(self) -> Report:
        """What `explain` says of the program, with the times of its launches that were measured
        beside the predicted ones: `.report.to_html(path)`, `.report.to_trace(path)`."""
        assert self.program is not None
        return Report(self.program, title=self.timings[0].name, measured=self.measured)

    def to_trace(self, path: str | Path) -> Path:
        """Write the launches as a Chrome trace, which ui.perfetto.dev opens, and return its path:
        as measured, where a clock measured them, and as predicted. Raises UserError when the file
        cannot be written."""
        return self.report.to_trace(path)

    @property
    def us(self) -> float:
        """Microseconds of the function."""
        return self.timings[0].us

    @property
    def share(self) -> float | None:
        """The share of a copy's speed that the function reaches."""
        return self.timings[0].share

    def __str__(self) -> str:
        head = (
            f"measured on {self.device}, medians from a cold cache"
            if self.is_measured
            else f"predicted for {self.device}: no GPU was found, nothing was measured{self.note}"
        )
        moved = "bytes of symbolic sizes" if self.nbytes is None else nbytes_text(self.nbytes)
        rows = [
            (t.name, f"{t.us:.1f}", "-" if t.share is None else f"{100 * t.share:.0f} %")
            for t in self.timings
        ]
        if self.copy_us is not None:
            rows.append(("a copy of as many bytes", f"{self.copy_us:.1f}", "100 %"))
        blocks = [head, f"least bytes {moved}", table(("", "us", "of a copy's speed"), rows)]
        return "\n".join([*blocks, *self._by_launch()])

    def _by_launch(self) -> list[str]:
        """The launches of a program of several, measured beside predicted."""
        if self.measured is None or self.program is None or len(self.measured.launches) < 2:
            return []
        expected = timed(self.program)
        rows = [
            (f"#{i} {t.name}", f"{t.us:.1f}", f"{expected[i].us:.1f}")
            for i, t in self.measured.launches.items()
        ]
        return ["", table(("launches, one by one", "us", "predicted us"), rows)]


def _timeable(value: Any) -> Any:
    if not isinstance(value, Program) and not callable(value):
        raise Unfit
    return value


def _named(value: Any) -> Any:
    if not isinstance(value, Mapping):
        raise Unfit
    found = cast("Mapping[Any, Any]", value)
    if not all(isinstance(k, str) and callable(f) for k, f in found.items()):
        raise Unfit
    return found


_TIMEABLE = ArgumentRule("a function, or a program, which fw.compile returns", _timeable)
_BESIDE = ArgumentRule("a dict of names and functions, such as {'torch': torch.softmax}", _named)


@takes(fn=_TIMEABLE, beside=optional(_BESIDE), clock=optional(CLOCK))
def benchmark(
    fn: Callable[..., Any],
    *args: Any,
    beside: Mapping[str, Callable[..., Any]] | None = None,
    clock: Clock | None = None,
    **kwargs: Any,
) -> Benchmark:
    """Times a function that `fw.fuse` made (or can make), or a program, on these arguments.

    With a GPU: its launches, a copy of the least bytes that they must move, and the functions of
    `beside` with the same arguments, one after the other in rounds, each from a cold second-level
    cache, between two CUDA events on the legacy default stream; medians over rounds. Without one
    times are predicted, and the result says so. `clock` measures instead of CUDA events.

    Raises UserError for `beside` where nothing measures.
    """
    program, infos, numbers = _program_of(fn, args, kwargs)
    least = constant_value(traffic(program).least)
    name = "the program" if isinstance(fn, Program) else str(getattr(fn, "__name__", "function"))
    if clock is None and has_gpu():
        clock = DeviceClock()
    if clock is None:
        return _predicted(program, name, least, beside)
    names = [name, *(beside or {})]
    runs: list[Callable[[], object]] = [_launches(program, infos, numbers)]
    runs += [_call(f, args, kwargs) for f in (beside or {}).values()]
    if least is None:
        times, copy = clock(runs), None
    else:
        with Copying(least // 2) as copied:
            *times, copy = clock([*runs, copied])
    timings = [
        Timing(n, us, None if copy is None else copy / us)
        for n, us in zip(names, times, strict=True)
    ]
    each = None
    if isinstance(clock, LaunchClock) and program.launches:
        spans = clock.launches(program.calls.bind_memory(infos, numbers).marked)
        each = measured(program, clock.device, spans)
    count = len(program.launches)
    return Benchmark(
        clock.device, True, count, least, copy, tuple(timings), program=program, measured=each
    )


def _launches(
    program: Program, infos: Sequence[ArrayInfo], numbers: Sequence[int]
) -> Callable[[], object]:
    """What enqueues the program's launches; the first call asks for their memory."""
    bound = cache(lambda: program.calls.bind_memory(infos, numbers))
    return lambda: bound()()


def _call(f: Callable[..., Any], args: Any, kwargs: Any) -> Callable[[], object]:
    return lambda: f(*args, **kwargs)


def _program_of(
    fn: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[Program, list[ArrayInfo], Sequence[int]]:
    """The program that a call runs, its arrays and its numbers."""
    if isinstance(fn, Program):
        if kwargs:
            raise UserError(
                f"benchmark({', '.join(kwargs)}=): a program takes arrays by position; leave the "
                "names out"
            )
        if not args and not has_gpu():
            return fn, [], ()
        arrays, numbers = without_numbers(fn.fusion, args)
        infos = [describe(a) for a in arrays]
        fn.check_arguments(infos, numbers)
        return fn, infos, tuple(numbers.values())
    fused = fn if isinstance(fn, Fused) else Fused(fn)
    return fused.program_and_arguments(args, kwargs)


def _predicted(
    program: Program, name: str, least: int | None, beside: Mapping[str, Any] | None
) -> Benchmark:
    """What the cost model says."""
    if beside:
        raise UserError(
            f"benchmark: beside={sorted(beside)} is measured, and no CUDA device was found; leave "
            "it out for a prediction, or give times by clock="
        )
    launches = timed(program)
    us = serial_us(launches)
    copy = None if least is None or is_symbolic(program) else copy_us(least, program.target)
    share = None if copy is None else copy / us
    timing = Timing(name, us, share)
    return Benchmark(
        program.target.arch,
        False,
        len(program.launches),
        least,
        copy,
        (timing,),
        basis_note(launches),
        program=program,
    )
