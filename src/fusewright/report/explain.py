"""`Report`: what a program became and why."""

from __future__ import annotations

import json
from functools import cached_property
from pathlib import Path
from typing import Any

from fusewright.arguments import PATH, ArgumentRule, Unfit, takes
from fusewright.errors import UserError
from fusewright.report.facts import ReportFacts, gather
from fusewright.report.host_facts import host_facts, host_record
from fusewright.report.html import framed, report_html
from fusewright.report.predicted import Measured
from fusewright.report.subject import ProgramLike
from fusewright.report.summary import Summary, summarise, summary_record, summary_text
from fusewright.report.text import PARTS, part_text, report_text
from fusewright.report.trace_events import trace_record
from fusewright.report.versions import versions_html, versions_text

DETAILS = (
    f"details: .show(part), or --show part: {', '.join(PARTS)}; --json; --html path; --trace path"
)


def _part(value: Any) -> Any:
    if value not in PARTS:
        raise Unfit
    return value


_PART = ArgumentRule(f"one of {', '.join(PARTS)}", _part)


class Report:
    """A readable account of a compiled program: its kernels, syncs with their reasons, shared
    memory, traffic against the least possible, and what was cut or fell back and why.

    `str(report)` is a summary of one screen, `show` gives the details, `to_dict` the summary as
    data; `to_html` writes one self-contained page with pictures. Kernels are
    compiled for their register counts where a compiler is installed. Where times were `measured`
    (`fw.benchmark(...).report`), they stand beside the predicted ones.
    """

    def __init__(
        self, program: ProgramLike, *, title: str = "fusion", measured: Measured | None = None
    ) -> None:
        """Raises UserError for what is no program, and for times that nobody measured."""
        if not all(hasattr(program, name) for name in ("fusion", "launches", "kernels")):
            raise UserError(
                f"Report: the program is {type(program).__name__}; it must be a program, which "
                "fw.compile returns; of a fused function f.explain(*args) makes the report"
            )
        self._program = program
        self._title = title
        self._measured = _times(measured)

    @cached_property
    def facts(self) -> ReportFacts:
        """What the report says, as data."""
        return gather(self._program, self._title, self._measured)

    @cached_property
    def summary(self) -> Summary:
        """What `str` says, as data."""
        return summarise(self._program, self._title, self._measured)

    def __str__(self) -> str:
        return summary_text(self.summary) + "\n\n" + DETAILS

    @takes(what=_PART)
    def show(self, what: str = "all") -> str:
        """A part in full, for each kernel: "nest" (loops), "candidates", "edits" (the calls of a
        schedule by hand that make the same kernel), "syncs", "memory", "registers", "kir", "cuda",
        "passes" (what each pass changed); or of the program: "host" (launches with the bytes they
        bind, edges, the arena, layouts), "graph" (the fusion). "all" is all but the passes."""
        return report_text(self.facts) if what == "all" else part_text(self.facts, what)

    def to_dict(self) -> dict[str, Any]:
        """The summary and the host program as plain data, which `json.dumps` takes."""
        host = host_record(host_facts(self._program, self._measured))
        return {**summary_record(self.summary), "host": host}

    def __repr__(self) -> str:
        return f"<Report of {self._title}: print it, or write it with .to_html(path)>"

    def _repr_html_(self) -> str:
        return framed(report_html(self.facts), self._title)

    def compare(self, other: Report) -> str:
        """This program and another version of it, such as one of a schedule by hand: the figures of
        both, of each pair of kernels, and the lines of loop nests that differ. Raises UserError
        for what is no report."""
        return versions_text(self.facts, _checked("compare", other).facts)

    @takes(path=PATH)
    def to_html(self, path: str | Path, *, beside: Report | None = None) -> Path:
        """Write the report as one HTML file and return its path; with `beside` a page that shows
        both programs side by side: figures, loop nests and CUDA, with the lines that differ.

        Raises UserError when the file cannot be written, and for a `beside` that is no report.
        """
        if beside is None:
            return _written(Path(path), report_html(self.facts), "to_html")
        both = versions_html(self.facts, _checked("to_html", beside).facts)
        return _written(Path(path), both, "to_html")

    @takes(path=PATH)
    def to_trace(self, path: str | Path) -> Path:
        """Write a Chrome trace, which ui.perfetto.dev opens, and return its path: the launches as
        they were measured, if they were, and as they are predicted, with bindings and edges, and
        the compiler's passes over each kernel.

        Raises UserError when the file cannot be written.
        """
        record = trace_record(self._program, self._title, self._measured)
        return _written(Path(path), json.dumps(record, indent=1) + "\n", "to_trace")


def _times(measured: object) -> Measured | None:
    if measured is None or isinstance(measured, Measured):
        return measured
    raise UserError(
        f"Report: measured= is {type(measured).__name__}; it must be what "
        "fw.benchmark(...).measured holds"
    )


def _checked(method: str, other: object) -> Report:
    if isinstance(other, Report):
        return other
    raise UserError(
        f"Report.{method}: the other one is {type(other).__name__}; it must be a report: "
        "fw.Report(program), or f.explain(*args)"
    )


def _written(path: Path, text: str, method: str) -> Path:
    """The path, under which the text lies now."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as e:
        raise UserError(
            f"Report.{method}: cannot write {path}: {e.strerror}; name a file in a folder that "
            "exists and may be written"
        ) from e
    return path
