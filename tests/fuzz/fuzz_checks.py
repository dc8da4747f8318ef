"""What must hold of a random program: traced, compiled, simulated, verified."""

from __future__ import annotations

import re
import traceback
from collections import Counter
from dataclasses import dataclass, field

import numpy as np
from fuzz_compare import compare
from fuzz_programs import Recipe

import fusewright as fw
from fusewright.runtime.arrays import describe


@dataclass
class Tally:
    """What a campaign saw."""

    counts: Counter[str] = field(default_factory=Counter)

    def add(self, name: str, n: int = 1) -> None:
        self.counts[name] += n

    def __str__(self) -> str:
        return ", ".join(f"{n} {k}" for k, n in sorted(self.counts.items()))


def problem_of(
    recipe: Recipe, *, verify: bool = False, cubins: bool = False, tally: Tally | None = None
) -> str | None:
    """What is wrong with the compiled program, in one line that starts with its kind."""
    try:
        return _problem(recipe, verify, cubins, tally or Tally())
    except Exception as e:  # every exception is a finding
        frame = traceback.extract_tb(e.__traceback__)[-1]
        return f"{type(e).__name__} in {frame.name}: {e}"


def _problem(recipe: Recipe, verify: bool, cubins: bool, tally: Tally) -> str | None:
    program = fw.compile(recipe.trace())
    tally.add("programs")
    tally.add("kernels", len(program.kernels))
    for k in program.kernels:
        tally.add(f"scheduler {k.heuristic.scheduler}" if k.heuristic else "scheduler none")
        for s in k.syncs:
            tally.add(f"sync {s.kind}")
    for at in (recipe, *recipe.other_sizes()):
        found = _wrong_values(program, at, tally)
        if found is not None:
            return found
    arrays = recipe.arrays()
    if verify and not any(0 in a.shape for a in arrays):
        report = fw.verify(program)
        tally.add("verified")
        if not report.ok:
            return f"syncs: {report}"
    if cubins:
        for k in program.kernels:
            tally.add("cubins")
            found = sync_problem(k)
            if found is not None:
                return found
    return None


def _wrong_values(program: fw.Program, recipe: Recipe, tally: Tally) -> str | None:
    """What simulated kernels do wrong at the recipe's sizes, with results of their own and in
    arrays of the caller."""
    arrays = recipe.arrays()
    at = f" at {dict(recipe.sizes)}" if recipe.sizes else ""
    result = program.simulate(*arrays)
    if result.races:
        return f"race: {result.races[0]}{at}"
    stored = {t.name for x in program.launches for t in x.outputs}
    verdict = compare(program.fusion, arrays, result.outputs, stored)
    tally.add("elements", verdict.compared)
    tally.add("elements undecided", verdict.undecided)
    if verdict.problem is not None:
        return f"wrong: {verdict.problem}{at}"
    made = [np.empty_like(a, order="F") for a in result.outputs]
    given = [made[program.places.index(p)] for p in program.places]
    program.calls.run([describe(a) for a in arrays], "sim", [describe(a) for a in given])
    tally.add("results in given arrays", len(given))
    for k, (g, w) in enumerate(zip(given, result.outputs, strict=True)):
        if g.tobytes() != w.tobytes():
            return f"wrong: output {k} in an array of out= differs from the same output alone{at}"
    return None


def sync_problem(kernel: fw.Kernel) -> str | None:
    """Whether the machine code holds other syncs than the kernel lists, or failed to compile."""
    kernel.cubin()
    barriers = len(re.findall(r"\bbar(?:rier)?\.sync\b", kernel.ptx()))
    listed = sum(1 for s in kernel.syncs if s.kind == "BlockSync")
    if (barriers == 0) != (listed == 0):
        return f"cubin: {barriers} barriers in the PTX, {listed} in kernel.syncs"
    return None
