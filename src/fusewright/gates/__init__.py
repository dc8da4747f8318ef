"""The gates of the corpus: every sync is needed, none is missing; no kernel moves much more than
it has to; machine code is what schedules claim."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import fusewright as fw
from fusewright.errors import FusewrightError, UserError
from fusewright.gates.code import code_problems
from fusewright.gates.traffic import traffic_problems
from fusewright.report.table import plural, table

HEADER = ("fusion", "kernels", "syncs", "necessary", "redundant", "missing", "seconds")


class Entry(Protocol):
    """One fusion of a corpus: arguments of real sizes, and small ones for the simulator."""

    @property
    def name(self) -> str: ...
    @property
    def fn(self) -> Callable[..., Any]: ...
    @property
    def specs(self) -> Sequence[Any]: ...
    @property
    def small(self) -> Sequence[Any]: ...


def run(corpus: Sequence[Entry], *, target: str, cubin: bool, only: str = "") -> int:
    """Verify every entry of the corpus whose name contains `only`, and print the table; with
    `cubin`, compile its kernels at full size, and look at their code and traffic. Names go to
    stderr as work proceeds. Returns 1 when a gate is broken.

    Raises UserError when no entry has such a name.
    """
    entries = [e for e in corpus if only in e.name]
    if not entries:
        names = ", ".join(e.name for e in corpus)
        raise UserError(f"no fusion of the corpus has {only!r} in its name; there are {names}")
    rows: list[tuple[str, ...]] = []
    problems: list[str] = []
    full = {e.name: _Attempt(e, target) for e in entries} if cubin else {}
    for entry in entries:
        print(f"{entry.name} ...", file=sys.stderr, flush=True)
        try:
            row, found = _check(entry, target, full.get(entry.name))
        except Exception as e:  # a crash is one more problem; the other entries are still checked
            row, found = (entry.name, *["0"] * 5, "0.00"), [_crash(e)]
        rows.append(row)
        problems += [f"{entry.name}: {p}" for p in found]
    print(table(HEADER, [*rows, _total(rows)]))
    for problem in problems:
        print(problem)
    print(f"\n{plural(len(entries), 'fusion')}, {plural(len(problems), 'problem')}")
    return 1 if problems else 0


class _Attempt:
    """An entry's program at full size, whose machine code is made in the background while others
    are looked at; or the error that came instead, for when the entry's turn comes."""

    def __init__(self, entry: Entry, target: str) -> None:
        self._found: fw.Program | Exception
        try:
            self._found = fw.compile(fw.trace(entry.fn, *entry.specs), target=target)
            for k in self._found.kernels[:1]:
                k.start_compiling(self._found.kernels)
        except Exception as e:
            self._found = e

    @property
    def kernels(self) -> Sequence[fw.Kernel]:
        """Its kernels. Raises the error."""
        if isinstance(self._found, Exception):
            raise self._found
        return self._found.kernels


def _check(entry: Entry, target: str, full: _Attempt | None) -> tuple[tuple[str, ...], list[str]]:
    """The line of an entry under HEADER, and what is wrong with it."""
    program = fw.compile(fw.trace(entry.fn, *entry.small), target=target)
    report = fw.verify(program)
    problems = [f"redundant {s}" for s in report.redundant]
    problems += [f"missing {r}" for r in report.missing]
    for k in full.kernels if full is not None else ():
        problems += code_problems(k) + traffic_problems(entry.name, k)
    return _row(entry.name, program, report), problems


def _crash(e: Exception) -> str:
    """What went wrong; for an error that is not raised on purpose, where too."""
    text = f"{type(e).__name__}: {e}"
    if isinstance(e, FusewrightError):
        return text
    frame = traceback.extract_tb(e.__traceback__)[-1]
    return f"{text} at {Path(frame.filename).name}:{frame.lineno} in {frame.name}"


def _row(name: str, program: fw.Program, report: fw.VerifyReport) -> tuple[str, ...]:
    numbers = (
        len(program.kernels),
        sum(len(k.syncs) for k in program.kernels),
        len(report.necessary),
        len(report.redundant),
        len(report.missing),
    )
    return (name, *map(str, numbers), f"{report.seconds:.2f}")


def _total(rows: list[tuple[str, ...]]) -> tuple[str, ...]:
    columns = list(zip(*rows, strict=True))[1:]
    *counts, seconds = columns
    return ("total", *(str(sum(map(int, c))) for c in counts), f"{sum(map(float, seconds)):.2f}")
