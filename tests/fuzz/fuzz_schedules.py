"""Random schedules by hand over random small programs.

A schedule is a list of lines over `s = fw.Schedule(fusion)`. A line that the schedule refuses with
ScheduleError is dropped; when lowering refuses, lines are taken back until it accepts.
"""

from __future__ import annotations

import random
import re
import traceback
from collections.abc import Sequence
from dataclasses import dataclass

import fuzz_ops
from fuzz_checks import Tally
from fuzz_compare import compare
from fuzz_programs import Builder, Recipe

import fusewright as fw
from fusewright.schedule.nest import reduced_loops

OPS = (
    "add",
    "multiply",
    "exp",
    "negative",
    "maximum",
    "where",
    "subtract",
    "sum",
    "sum",
    "max",
    "mean",
    "cumulative_sum",
    "reshape",
    "permute_dims",
    "pad",
    "slice",
    "concat",
    "broadcast_to",
    "flip",
    "expand_dims",
    "take",
    "matmul",
    "astype",
    "count_nonzero",
)
DIMS = ("BIDx", "BIDy", "TIDx", "TIDx", "TIDy", "TIDz", "Unroll", "Vectorize", "Serial")
LOOSENINGS = 40
REFUSALS = (fw.ScheduleError, fw.UserError)


@dataclass(frozen=True)
class Plan:
    """A program and the lines of its schedule."""

    recipe: Recipe
    lines: tuple[str, ...]

    def source(self) -> str:
        body = "\n".join(self.lines)
        head = self.recipe.reproducer()
        return f"{head}\ns = fw.Schedule(fw.trace(program, *specs))\n{body}\n"

    def apply(self) -> fw.Schedule:
        s = fw.Schedule(self.recipe.trace())
        for line in self.lines:
            perform(s, line)
        return s


def perform(s: fw.Schedule, line: str) -> None:
    exec(line, {"fw": fw, "s": s})


def small_program(seed: int) -> Recipe:
    """A program of one to six operations over few elements."""
    b = Builder(seed)
    b.base = tuple(
        b.rng.choice([1, 2, 3, 4, 5, 7, 8, 10]) for _ in range(b.rng.choice([1, 2, 2, 3]))
    )
    b.home = b.rng.choice(["float32", "float32", "float32", "float16", "int32", "float64"])
    b.value("numeric")
    wanted = b.rng.randint(1, 6)
    for _ in range(60):
        if len(b.steps) >= wanted:
            break
        name = b.rng.choice(OPS)
        b.step(name, fuzz_ops.MAKERS[name])
    return b.recipe()


class Drawer:
    """Draws lines one after the other, each tried on a live schedule."""

    def __init__(self, recipe: Recipe, seed: int, tally: Tally) -> None:
        self.rng = random.Random(seed)
        self.s = fw.Schedule(recipe.trace())
        self.tally = tally
        self.lines: list[str] = []

    def run(self) -> tuple[str, ...]:
        """The lines; raises AssertionError when a refused one changed the schedule."""
        if self.rng.random() < 0.6:
            self.alike()
        for _ in range(self.rng.randint(1, 10)):
            self.attempt(self.any_line())
        return tuple(self.lines)

    def attempt(self, line: str | None) -> bool:
        if line is None:
            return False
        name = (
            re.findall(r"\.(\w+)\(", line)[0]
            if "parallelize" not in line
            else line[:-1].rpartition(".")[2]
        )
        before = str(self.s) if self.rng.random() < 0.2 else None
        try:
            perform(self.s, line)
        except REFUSALS:
            self.tally.add(f"refused {name}")
            if before is not None:
                assert str(self.s) == before, f"refused, but it changed the schedule: {line}"
            return False
        self.tally.add(f"accepted {name}")
        self.lines.append(line)
        return True

    # --- what schedules usually look like ---------------------------------------------------------

    def alike(self) -> None:
        """Transforms one tensor, gives its loops to all others, inlines."""
        if self.rng.random() < 0.4 and self.s.inputs:
            for t in self.s.inputs:
                if self.rng.random() < 0.7:
                    self.attempt(f's["{t.name}"].cache_after()')
        t = self.rng.choice(self.s.outputs if self.rng.random() < 0.6 else self.computed())
        for _ in range(self.rng.randint(0, 5)):
            self.attempt(self.loop_line(t.name))
        if self.rng.random() < 0.3:
            self.attempt(self.rfactor_line(t.name))
        for _ in range(self.rng.randint(0, 3)):
            self.attempt(self.bind_line(t.name))
        self.attempt(f's.transform_like(s["{t.name}"])')
        for _ in range(self.rng.randint(0, 2)):
            self.attempt(self.any_line())
        if self.rng.random() < 0.7:
            self.attempt("s.inline_most()")

    def computed(self) -> list:
        found = [t for t in self.s.tensors if t not in self.s.inputs]
        return found or list(self.s.tensors)

    # --- lines ------------------------------------------------------------------------------------

    def any_line(self) -> str | None:
        t = self.rng.choice(self.computed())
        makers = [
            (8, self.loop_line),
            (5, self.bind_line),
            (3, self.inline_line),
            (2, self.memory_line),
            (2, self.cache_line),
            (3, self.rfactor_line),
            (1, self.promote_line),
            (1, self.whole_line),
        ]
        weights = [w for w, _ in makers]
        (chosen,) = self.rng.choices([m for _, m in makers], weights)
        return chosen(t.name)

    def _loops(self, name: str) -> int:
        return len(self.s[name].axes)

    def loop_line(self, name: str) -> str | None:
        n = self._loops(name)
        if not n:
            return None
        i = self.rng.randrange(-n, n)
        kind = self.rng.random()
        if kind < 0.45:
            inner = self.rng.random() < 0.7
            factor = self.rng.choice([1, 2, 2, 3, 4, 5, 8, 32])
            return f's["{name}"].split({i}, {factor}, inner={inner})'
        if kind < 0.7:
            j = self.rng.randrange(n)
            return f's["{name}"].merge({i}{"" if self.rng.random() < 0.6 else f", {j}"})'
        if kind < 0.93:
            order = list(range(n))
            self.rng.shuffle(order)
            if self.rng.random() < 0.5:
                return f's["{name}"].reorder({order})'
            return f's["{name}"].reorder({{{i}: {self.rng.randrange(n)}}})'
        return f's["{name}"].swizzle({i}, {self.rng.randrange(n)})'

    def bind_line(self, name: str) -> str | None:
        n = self._loops(name)
        if not n:
            return None
        dim = self.rng.choice(DIMS)
        i = -1 if dim == "Vectorize" else self.rng.randrange(n)
        return f's["{name}"].parallelize({i}, fw.{dim})'

    def inline_line(self, name: str) -> str | None:
        readers = self.readers(name)
        if not readers:
            return None
        reader = self.rng.choice(readers)
        return f's["{name}"].inline_at(s["{reader}"], {self.rng.randint(-1, self._loops(reader))})'

    def readers(self, name: str) -> list[str]:
        stage = self.s[name].stage
        return [c.name for c in self.s.flow.consumers(stage)]

    def memory_line(self, name: str) -> str:
        return f's["{name}"].set_memory(fw.{self.rng.choice(["SHARED", "SHARED", "LOCAL"])})'

    def cache_line(self, name: str) -> str:
        inputs = [t.name for t in self.s.inputs]
        if inputs and self.rng.random() < 0.5:
            return f's["{self.rng.choice(inputs)}"].cache_after()'
        return f's["{name}"].{self.rng.choice(["cache_after", "cache_before", "recompute"])}()'

    def rfactor_line(self, name: str) -> str | None:
        sums = [t for t in self.computed() if t.stage.is_reduction]
        if not sums:
            return None
        t = self.rng.choice(sums)
        reducing = reduced_loops(self.s.flow.graph, t.stage)
        if len(reducing) < 2:
            if not reducing:
                return None
            return f's["{t.name}"].split({reducing[0]}, {self.rng.choice([2, 3, 4])})'
        axes = sorted(self.rng.sample(reducing, self.rng.randint(1, len(reducing) - 1)))
        return f's["{t.name}"].rfactor({axes})'

    def promote_line(self, name: str) -> str:
        shared = [t.name for t in self.computed() if t.memory.value == "shared"]
        name = self.rng.choice(shared) if shared else name
        return f's["{name}"].promote_reuse()'

    def whole_line(self, name: str) -> str:
        picked = [f's["{t.name}"]' for t in self.computed() if self.rng.random() < 0.5]
        choices = [
            "s.inline_most()",
            f"s.inline_most([{', '.join(picked)}])",
            f's.transform_like(s["{name}"])',
            f's.transform_like(s["{name}"], [{", ".join(picked)}])',
            f's["{name}"].set_allocation_order({self._order(name)})',
        ]
        return self.rng.choice(choices)

    def _order(self, name: str) -> list[int]:
        order = list(range(len(self.s[name].stage.shape)))
        self.rng.shuffle(order)
        return order


# --- checking -------------------------------------------------------------------------------------


def draw_plan(seed: int, tally: Tally) -> Plan:
    recipe = small_program(seed)
    return Plan(recipe, Drawer(recipe, seed, tally).run())


def problem_of_plan(plan: Plan, *, verify: bool = False, tally: Tally | None = None) -> str | None:
    """What is wrong with the kernel of a schedule; None also when lowering refuses it."""
    try:
        return _problem(plan, verify, tally or Tally())
    except REFUSALS:
        return None
    except Exception as e:  # every other exception is a finding
        frame = traceback.extract_tb(e.__traceback__)[-1]
        return f"{type(e).__name__} in {frame.name}: {e}"


def _problem(plan: Plan, verify: bool, tally: Tally) -> str | None:
    s = plan.apply()
    derived = s.fusion()
    program = fw.compile(s)
    tally.add("schedules")
    arrays = plan.recipe.arrays()
    try:
        return checked(program, plan.recipe.trace(), derived, arrays, verify, tally)
    except REFUSALS as e:
        return f"refused to run: {e}"


def checked(
    program: fw.Program,
    fusion: fw.Fusion,
    derived: fw.Fusion,
    arrays: Sequence,
    verify: bool,
    tally: Tally,
) -> str | None:
    """Whether the kernel computes what the fusion and the schedule's own dataflow mean."""
    (kernel,) = program.kernels
    for x in kernel.syncs:
        tally.add(f"sync {x.kind}")
    result = program.simulate(*arrays)
    if result.races:
        return f"race: {result.races[0]}"
    meaning = fw.evaluate(derived, *arrays)
    for name, found, got in (
        ("wrong", compare(derived, arrays, result.outputs), result.outputs),
        ("dataflow", compare(fusion, arrays, meaning), meaning),
        ("wrong", compare(fusion, arrays, result.outputs), result.outputs),
    ):
        del got
        if found.problem is not None:
            return f"{name}: {found.problem}"
    if verify:
        report = fw.verify(kernel)
        if not report.ok:
            return f"syncs: {report}"
    return None


def legal(plan: Plan, tally: Tally) -> Plan | None:
    """The plan with lines taken back until lowering accepts it."""
    rng = random.Random(plan.recipe.seed)
    for _ in range(LOOSENINGS):
        try:
            plan.apply().lower()
        except REFUSALS:
            tally.add("loosened")
            if not plan.lines:
                return None
            drop = rng.randrange(len(plan.lines))
            plan = Plan(plan.recipe, (*plan.lines[:drop], *plan.lines[drop + 1 :]))
        except Exception:  # a finding: problem_of_plan reports it
            return plan
        else:
            return plan
    tally.add("not legalised")
    return None


def check_seed(seed: int, tally: Tally, *, verify: bool = False) -> tuple[Plan | None, str | None]:
    """Draws, loosens and checks the schedule of a seed."""
    try:
        drawn = draw_plan(seed, tally)
    except Exception as e:
        frame = traceback.extract_tb(e.__traceback__)[-1]
        return None, f"{type(e).__name__} in {frame.name} while drawing: {e}"
    plan = legal(drawn, tally)
    if plan is None:
        return None, None
    return plan, problem_of_plan(plan, verify=verify, tally=tally)
