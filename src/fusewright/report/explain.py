"""`Report`: what a program became and why."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

from fusewright.arguments import PATH, takes
from fusewright.errors import UserError
from fusewright.report.facts import Facts, gather
from fusewright.report.html import report_html
from fusewright.report.subject import ProgramLike
from fusewright.report.text import report_text


class Report:
    """A readable account of a compiled program: its kernels, syncs with their reasons, shared
    memory, traffic against the least possible, and what was cut or fell back and why.

    `str(report)` is text; `to_html` writes one self-contained page with pictures. Kernels are
    compiled for their register counts where a compiler is installed.
    """

    def __init__(self, program: ProgramLike, *, title: str = "fusion") -> None:
        self._program = program
        self._title = title

    @cached_property
    def facts(self) -> Facts:
        """What the report says, as data."""
        return gather(self._program, self._title)

    def __str__(self) -> str:
        return report_text(self.facts)

    def __repr__(self) -> str:
        return f"<Report of {self._title}: print it, or write it with .to_html(path)>"

    def _repr_html_(self) -> str:
        return report_html(self.facts)

    @takes(path=PATH)
    def to_html(self, path: str | Path) -> Path:
        """Write the report as one HTML file and return its path.

        Raises UserError when the file cannot be written.
        """
        target = Path(path)
        try:
            target.write_text(report_html(self.facts), encoding="utf-8")
        except OSError as e:
            raise UserError(
                f"Report.to_html: cannot write {target}: {e.strerror}; name a file in a folder "
                "that exists and may be written"
            ) from e
        return target
