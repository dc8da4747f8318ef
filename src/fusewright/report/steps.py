"""A kernel's text after each pass, as differences from the pass before."""

from __future__ import annotations

import difflib
from dataclasses import dataclass

from fusewright.kir.ir import Kernel
from fusewright.kir.pipeline import PIPELINE, run_pass
from fusewright.kir.text import print_kernel
from fusewright.target import Target

_CONTEXT = 2


@dataclass(frozen=True, slots=True)
class PassStep:
    """One pass and the lines that it changed, as a unified difference, empty for no change."""

    name: str
    why: str
    changes: tuple[str, ...]

    @property
    def counts(self) -> tuple[int, int]:
        """Lines that are new, and lines that are gone."""
        return (
            sum(line.startswith("+") for line in self.changes),
            sum(line.startswith("-") for line in self.changes),
        )


def steps(lowered: Kernel, target: Target) -> list[PassStep]:
    """Every pass of the pipeline over a kernel as lowering made it."""
    out: list[PassStep] = []
    text = print_kernel(lowered).splitlines()
    kernel = lowered
    for p in PIPELINE:
        after = run_pass(p, kernel, target, spec=0)
        new = text if after is kernel else print_kernel(after).splitlines()
        changes = difflib.unified_diff(text, new, lineterm="", n=_CONTEXT)
        out.append(PassStep(p.name, p.why, tuple(changes)[2:]))
        kernel, text = after, new
    return out
