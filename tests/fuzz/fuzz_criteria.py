"""What counts as a failure of a random program, as code: one finding with a signature, or none.

Besides wrong values and races: an error that nobody asked for, Python time above a limit, and more
launches than the program's shape explains. A refusal (`UserError`, `UnsupportedError`) is right
where the program is traced, never where it is compiled or run.
"""

from __future__ import annotations

import math
import re
import signal
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import FrameType

import numpy as np
from fuzz_checks import Tally, sync_problem
from fuzz_compare import compare
from fuzz_orders import order_problem
from fuzz_programs import Recipe
from fuzz_wide import BOUND, FAULTS, HOSTILE

import fusewright as fw
from fusewright.core.expr import Var, constant_value
from fusewright.core.substitution import substitute
from fusewright.errors import FusewrightError
from fusewright.fusion import ir
from fusewright.runtime.arrays import describe

COMPILE_SECONDS = 2.0
TOTAL_SECONDS = 60
MAX_RUN_ELEMENTS = 20_000
OPERANDS = 20
ORDERS = 2
ONE_KERNEL = (ir.Input, ir.Constant, ir.Size, ir.Iota, ir.Pointwise, ir.Broadcast)
LAUNCHES = {
    ir.Pointwise: 1,
    ir.Resize: 1,
    ir.IndexMap: 1,
    ir.Concat: 1,
    ir.Take: 1,
    ir.TakeAlong: 1,
    ir.Reduce: 2,
    ir.MatMul: 2,
    ir.Scan: 3,
    ir.Sort: 12,
}


@dataclass(frozen=True)
class Finding:
    """`signature` is the same for failures that look alike; `detail` is for the reader."""

    signature: str
    detail: str


class TimeUp(BaseException):
    """A program that took longer than any should; nothing that handles errors may take it."""


@dataclass(frozen=True)
class Checks:
    """What is done to a program besides running it: its syncs verified, its machine code made.
    `seconds` of Python for compiling it are right."""

    verify: bool = False
    machine_code: bool = False
    seconds: float = COMPILE_SECONDS


def finding_of(
    recipe: Recipe, checks: Checks = Checks(), tally: Tally | None = None
) -> Finding | None:
    """The first thing that is wrong with a program."""
    examination = Examination(recipe, checks, tally or Tally())
    try:
        with time_limit(TOTAL_SECONDS):
            return examination.finding()
    except (Exception, TimeUp) as e:  # every exception is a finding
        stage = examination.stage
        if stage == "trace" and is_refusal(e):
            return None
        return Finding(signature_of(e, stage), f"{type(e).__name__}: {e}")


def is_refusal(e: BaseException) -> bool:
    """Whether a program that is traced may end so."""
    return isinstance(e, FusewrightError) and not isinstance(e, FAULTS)


def signature_of(e: BaseException, stage: str) -> str:
    """The exception's type, the stage, and the last function of the package that saw it."""
    frames = traceback.extract_tb(e.__traceback__)
    ours = [f for f in frames if "fusewright" in f.filename] or list(frames)
    if isinstance(e, TimeUp):
        return f"TimeUp in {stage}"
    where = ours[-1]
    place = where.filename.rpartition("fusewright/")[2].removesuffix(".py")
    return f"{type(e).__name__} in {stage}: {place}.{where.name}"


@dataclass
class Examination:
    """A program on its way through the stages; `stage` is the one it is in."""

    recipe: Recipe
    checks: Checks
    tally: Tally
    stage: str = "trace"

    def finding(self) -> Finding | None:
        fusion = self.recipe.trace()
        self.stage = "compile"
        begin = time.process_time()
        program = fw.compile(fusion)
        took = time.process_time() - begin
        self.tally.add("programs")
        self.tally.add("launches", len(program.launches))
        self.tally.add("cut by lowering", sum("cut in two" in r.rule for r in program.reasons))
        self.stage = "run"
        for at in bindings(self.recipe, fusion):
            found = _wrong_run(program, at, self.tally)
            if found is not None:
                return found
        found = self._of_orders(program) or self._of_kernels(program)
        if found is not None:
            return found
        more = superfluous(program, fusion)
        if more is not None:
            return Finding("superfluous kernel", more)
        if took > self.checks.seconds:
            return Finding("slow compile", f"{took:.1f} s of Python")
        return None

    def _of_orders(self, program: fw.Program) -> Finding | None:
        """What differs when launches run in other orders that the edges allow."""
        if len(program.launches) < 2:
            return None
        self.tally.add("orders", ORDERS)
        found = order_problem(program, self.recipe.arrays(), self.recipe.seed, ORDERS)
        return None if found is None else Finding("order of launches", found)

    def _of_kernels(self, program: fw.Program) -> Finding | None:
        """What is wrong with the syncs and the machine code."""
        self.stage = "verify"
        if self.checks.verify and not any(0 in a.shape for a in self.recipe.arrays()):
            self.tally.add("verified")
            report = fw.verify(program)
            if not report.ok:
                return Finding("syncs", str(report))
        self.stage = "machine code"
        for k in program.kernels if self.checks.machine_code else ():
            self.tally.add("cubins")
            found = sync_problem(k)
            if found is not None:
                return Finding("syncs in machine code", found)
        return None


# --- values -------------------------------------------------------------------------------------


def bindings(recipe: Recipe, fusion: ir.Fusion) -> Iterator[Recipe]:
    """The program at the recipe's sizes, at the least ones, and at two more that are not too
    large; symbols that stand for sizes of the arguments only."""
    yield recipe
    if not recipe.sizes:
        return
    least = tuple((n, 2) for n, _ in recipe.sizes)
    yield replace(recipe, sizes=least)
    rng = np.random.default_rng(recipe.seed)
    for _ in range(2):
        for most in (10_000, 600, 64):
            small = [n for n in BOUND if n <= most]
            picks = tuple((name, int(rng.choice(small))) for name, _ in recipe.sizes)
            if largest_value(fusion, dict(picks)) <= MAX_RUN_ELEMENTS:
                yield replace(recipe, sizes=picks)
                break


def largest_value(fusion: ir.Fusion, sizes: dict[str, int]) -> int:
    """Elements of the largest value at some sizes."""

    def size(e: object) -> int:
        values = {v: sizes[v.name] for v in _symbols(fusion) if v.name in sizes}
        n = constant_value(substitute(e, values))  # type: ignore[arg-type]
        return 10**9 if n is None else n

    return max(math.prod(size(e) for e in t.shape) for t in fusion.values)


def _symbols(fusion: ir.Fusion) -> list[Var]:
    return list(dict.fromkeys(e for t in fusion.inputs for e in t.shape if isinstance(e, Var)))


def _wrong_run(program: fw.Program, recipe: Recipe, tally: Tally) -> Finding | None:
    """What the simulated program does wrong at the recipe's sizes, with results of its own and in
    arrays of the caller."""
    arrays = recipe.arrays()
    at = f" at {dict(recipe.sizes)}" if recipe.sizes else ""
    result = program.simulate(*arrays)
    tally.add("runs")
    if result.races:
        return Finding(f"race: {result.races[0].kind}", f"{result.races[0]}{at}")
    stored = {t.name for x in program.launches for t in x.outputs}
    verdict = compare(program.fusion, arrays, result.outputs, stored)
    tally.add("elements", verdict.compared)
    tally.add("elements undecided", verdict.undecided)
    if verdict.problem is not None:
        kind = "nan" if ": got nan, want" in verdict.problem else "other"
        return Finding(f"wrong value: {kind}", f"{verdict.problem}{at}")
    made = [np.empty_like(a, order="F") for a in result.outputs]
    given = [made[program.places.index(p)] for p in program.places]
    program.calls.run([describe(a) for a in arrays], "sim", [describe(a) for a in given])
    for k, (g, w) in enumerate(zip(given, result.outputs, strict=True)):
        if g.tobytes() != w.tobytes():
            return Finding("wrong value in out=", f"output {k} differs from the same alone{at}")
    return None


# --- launches -----------------------------------------------------------------------------------


def superfluous(program: fw.Program, fusion: ir.Fusion) -> str | None:
    """Which launches nothing explains: more than an argued bound, one of which nobody reads
    anything, one that does what another one has done."""
    read = {s.root for x in program.launches for s in x.reads}
    wanted = read | set(program.fusion.outputs) | set(program.held.values())
    seen: dict[object, str] = {}
    for x in program.launches:
        names = ", ".join(t.name for t in x.outputs)
        if not any(s.root in wanted for s in x.writes):
            return f"nobody reads {names}"
        done = (x.kernel, x.reads, x.values)
        if len(x.reads) > 0 and done in seen:
            return f"{names} is computed as {seen[done]} is"
        seen[done] = names
    most = most_launches(fusion)
    if len(program.launches) > most:
        return f"{len(program.launches)} launches, {most} explain the program"
    return None


def most_launches(fusion: ir.Fusion) -> int:
    """Launches that the shape of a program explains.

    Elementwise operations over one iteration space are one launch for each group of values that
    depend on each other and for each result that is filled. No other program takes more than one
    for each operation that moves or computes, which is what running it without fusion takes;
    reductions and products may need a second one for their parts, a long scan one for its parts,
    one for their totals and one that joins them. Twenty operands more are another launch.
    """
    many = math.ceil(max(len(fusion.inputs) + len(fusion.outputs) - OPERANDS, 0) / OPERANDS)
    if is_elementwise(fusion) and not many:
        return components(fusion)
    weights = [w for t in fusion.values for op, w in LAUNCHES.items() if isinstance(t.op, op)]
    return sum(weights) + len(set(fusion.outputs)) + many


def is_elementwise(fusion: ir.Fusion) -> bool:
    """Whether all results come from elementwise operations over the space of one shape."""
    return len({t.shape for t in fusion.outputs}) == 1 and all(
        isinstance(t.op, ONE_KERNEL) for t in fusion.values
    )


def components(fusion: ir.Fusion) -> int:
    """Groups of results that have an argument or a computed value in common. Arguments of rank 0
    tie nothing together: each kernel reads its own few bytes."""
    group: dict[ir.Tensor, frozenset[ir.Tensor]] = {}
    for t in fusion.values:
        below = [group[o] for o in t.op.operands if o in group]
        free = isinstance(t.op, ir.Constant | ir.Size | ir.Iota) or not t.shape
        merged = frozenset[ir.Tensor]().union(*below) if below else frozenset() if free else {t}
        group[t] = frozenset(merged)
    made = [group[t] for t in fusion.outputs]
    filled = sum(not g for g in made)
    apart: list[frozenset[ir.Tensor]] = []
    for g in filter(None, made):
        touching = [x for x in apart if x & g]
        apart = [x for x in apart if not x & g] + [g.union(*touching)]
    return len(apart) + filled


# --- time ---------------------------------------------------------------------------------------


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raises TimeUp in the main thread when the body computes for longer."""

    def up(number: int, frame: FrameType | None) -> None:
        raise TimeUp(f"{seconds} s")

    before = signal.signal(signal.SIGPROF, up)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def has_odd_names(recipe: Recipe) -> bool:
    """Whether names of arguments, sizes or results are among the odd ones."""
    texts = " ".join(s.text for s in recipe.steps)
    named = {x.name for x in recipe.leaves} | {n for n, _ in recipe.sizes}
    return bool(named & set(HOSTILE)) or bool(re.search(r"fw\.name\(", texts))
