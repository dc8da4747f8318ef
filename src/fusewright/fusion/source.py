"""Which line of the user's program a value comes from."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fusewright.fusion.ir import Fusion

_OWN = ("fusewright.fusion.", "fusewright.frontends.")
"""Modules through which a program calls operations; the frame outside of them is the program's."""


_CHECKS = ("fusewright.arguments", "fusewright.fusion.refused_calls")
"""Modules whose decorators stand between a program and an operation."""


@dataclass(frozen=True, slots=True)
class Source:
    """A line of the user's program, and the function of this package that it called there, such as
    `softmax`; "" where that is an operator or a function of one op."""

    file: str
    line: int
    call: str

    def __str__(self) -> str:
        place = f"{Path(self.file).name}:{self.line}" if self.file else ""
        return f"{place} {self.call}".strip()


_LIBRARIES = ("torch", "jax", "numpy", "cupy")
"""Libraries of arrays, whose functions ask arrays of this package for something."""


def raising_line(error: BaseException) -> str:
    """The innermost line that an exception passed outside of this package and of libraries of
    arrays; "" where there is none."""
    found = ""
    step = error.__traceback__
    while step is not None:
        code, module = step.tb_frame.f_code, str(step.tb_frame.f_globals.get("__name__", ""))
        if module.partition(".")[0] not in ("fusewright", *_LIBRARIES):
            found = f"{Path(code.co_filename).name}:{step.tb_lineno}"
        step = step.tb_next
    return found


def calling_line() -> Source | None:
    """The innermost line that is outside of this package's operations; None where there is none."""
    frame = inspect.currentframe()
    call = ""
    while frame is not None:
        code = frame.f_code
        if frame.f_globals.get("__name__") in _CHECKS:
            frame = frame.f_back
            continue
        if not str(frame.f_globals.get("__name__", "")).startswith(_OWN):
            return Source(code.co_filename, frame.f_lineno, call)
        # Functions that others make, and operators, are called after their value's op.
        is_named = not code.co_name.startswith("_") and "<" not in code.co_qualname
        call = code.co_name if is_named else ""
        frame = frame.f_back
    return None


def lines_of(fusion: Fusion) -> list[str]:
    """Each line of the user's program from which values of a fusion come, with these values and
    what computes them, such as `norm.py:12 softmax: t0 = max, t2 = exp`."""
    found: dict[str, list[str]] = {}
    for t in fusion.values:
        function: str | None = getattr(t.op, "fn", None)
        if t.source is not None and function is not None:
            place = " ".join(str(t.source).split())
            found.setdefault(place, []).append(f"{t.name} = {function}")
    return [f"{place}: {', '.join(values)}" for place, values in found.items()]
