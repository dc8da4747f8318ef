"""Random schedules by hand whose inputs are copied to shared memory ahead of their use.

A program walks along rows, once or twice; a schedule gives each walk tiles, threads down and along,
and copies by threads or by the copy engine, in rings of any depth, some by warps of their own. As
in `fuzz_schedules` a schedule is a list of lines, of which those that are refused are dropped.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np
from fuzz_checks import Tally
from fuzz_schedules import REFUSALS, perform

import fusewright as fw
from fusewright.dtypes import dtype_of
from fusewright.verify import random_values

DTYPES = ("float32", "float32", "bfloat16", "float16", "int32", "float64")

WALKS = {
    "sum": "return fw.name(fw.sum(m, axis=1), 'r')",
    "max": "return fw.name(fw.max(m, axis=1), 'r')",
    "two sums": "return fw.name(fw.sum(m, axis=1), 'r'), fw.name(fw.max(m, axis=1), 'q')",
    "sum and map": "return fw.name(fw.sum(m, axis=1), 'r'), m * 3",
    "centred": "return m - fw.name(fw.max(m, axis=1, keepdims=True), 'r')",
    "sum of centred": (
        "return fw.name(fw.sum(fw.name(x - fw.name(fw.max(m, axis=1, keepdims=True), 'q'), 'c'), "
        "axis=1), 'r')"
    ),
    "map": "return fw.name(m * 2, 'r')",
    "flipped": "return fw.name(fw.flip(m, axis=1) * 2, 'r')",
    "columns": "return fw.name(fw.sum(m, axis=0), 'r')",
}


@dataclass(frozen=True)
class RingProgram:
    """`m`, a function of `x` and where it is there `y`, and what a walk along its rows gives."""

    seed: int
    walk: str
    shape: tuple[int, int]
    dtype: str
    inputs: int

    def source(self) -> str:
        names = ("x", "y")[: self.inputs]
        value = "fw.name(x + y, 'm')" if self.inputs == 2 else "fw.name(x + x, 'm')"
        lines = [f"def program({', '.join(names)}):", f"    m = {value}", f"    {WALKS[self.walk]}"]
        return "\n".join(lines)

    def trace(self) -> fw.Fusion:
        scope: dict[str, object] = {"fw": fw}
        exec(self.source(), scope)
        return fw.trace(scope["program"], *[fw.TensorSpec(self.shape, self.dtype)] * self.inputs)

    def arrays(self) -> list[np.ndarray]:
        rng = np.random.default_rng(self.seed)
        return [random_values(rng, self.shape, dtype_of(self.dtype)) for _ in range(self.inputs)]

    def reproducer(self) -> str:
        specs = f"specs = [fw.TensorSpec({self.shape}, {self.dtype!r})] * {self.inputs}"
        return f"# seed {self.seed}\n{self.source()}\n\n{specs}"


@dataclass(frozen=True)
class RingPlan:
    """A program and the lines of its schedule."""

    recipe: RingProgram
    lines: tuple[str, ...]

    def source(self) -> str:
        head = f"{self.recipe.reproducer()}\ns = fw.Schedule(fw.trace(program, *specs))"
        return "\n".join([head, *self.lines])

    def apply(self) -> fw.Schedule:
        s = fw.Schedule(self.recipe.trace())
        for line in self.lines:
            perform(s, line)
        return s


def ring_program(r: random.Random, seed: int) -> RingProgram:
    width = r.choice([4, 8, 8, 16, 32])
    columns = r.choice([width * r.randint(1, 40), width * r.randint(1, 40), r.randint(3, 300)])
    rows = r.choice([1, 2, 3, 5, 8, 12])
    return RingProgram(
        seed, r.choice(list(WALKS)), (rows, columns), r.choice(DTYPES), r.randint(1, 2)
    )


class RingDrawer:
    """Draws a schedule line by line on a live one; `accepted` are those that were not refused."""

    def __init__(self, program: RingProgram, r: random.Random, tally: Tally) -> None:
        self.r, self.tally = r, tally
        self.program = program
        self.s = fw.Schedule(program.trace())
        self.lines: list[str] = []

    def attempt(self, line: str) -> bool:
        try:
            perform(self.s, line)
        except REFUSALS:
            self.tally.add("refused")
            return False
        self.lines.append(line)
        return True

    def run(self) -> tuple[str, ...]:
        r = self.r
        copies = [c for n in ("x", "y")[: self.program.inputs] for c in self._copies(n)]
        depth = self._walk()
        self.attempt("s.transform_like(s['r'])")
        wide = r.random() < 0.85
        for c in copies if wide else ():
            self.attempt(f"s[{c!r}].parallelize(-1, fw.Vectorize)")
        self.attempt("s.inline_most()")
        ring = self._ring_of()
        for c in copies:
            self.attempt(f"s[{c!r}].inline_at(s['m'], {depth})")
            if ring and r.random() < 0.9:
                self.attempt(f"s[{c!r}].{ring}")
        if r.random() < 0.1:
            self.attempt("s['m'].set_memory(fw.SHARED)")
        return tuple(self.lines)

    def _copies(self, name: str) -> list[str]:
        r = self.r
        by = r.choice([None, "cp_async", "cp_async", "cp_async", "bulk", "bulk"])
        before = {t.name for t in self.s.tensors}
        self.attempt(f"s[{name!r}].cache_after(by={by!r})")
        found = [t.name for t in self.s.tensors if t.name not in before]
        for c in found:
            if by is None and r.random() < 0.6:
                self.attempt(f"s[{c!r}].set_memory(fw.SHARED)")
        return found

    def _walk(self) -> int:
        """Loops of the result; the number of those around a tile."""
        r = self.r
        width, threads = r.choice([1, 2, 4, 4, 8]), r.choice([1, 8, 32, 32, 64])
        axis = len(self.s["r"].axes) - 1
        if self.program.walk == "columns":
            return self._down(width, threads)
        rows = axis
        self.attempt(f"s['r'].split({axis}, {width * threads}).split({axis + 1}, {width})")
        self.attempt(f"s['r'].parallelize({axis + 1}, fw.TIDx)")
        if r.random() < 0.25:
            self.attempt(f"s['r'].rfactor([{axis}, {axis + 2}])")
        if not rows:
            return axis + 1
        way = r.choice(["block", "block", "persistent", "persistent", "serial", "down", "cluster"])
        if way == "block":
            self.attempt("s['r'].parallelize(0, fw.BIDx)")
        if way not in ("persistent", "down", "cluster"):
            return axis + 1
        self.attempt(f"s['r'].split(0, {r.choice([2, 3, 4])})")
        bound = {"persistent": "Serial", "down": "TIDy", "cluster": "ClusterX"}[way]
        outer, inner = (1, 0) if way == "persistent" and r.random() < 0.5 else (0, 1)
        self.attempt(f"s['r'].parallelize({outer}, fw.BIDx).parallelize({inner}, fw.{bound})")
        return axis + 2

    def _down(self, width: int, threads: int) -> int:
        """Columns over threads, rows in tiles one after the other."""
        self.attempt(f"s['r'].split(0, {width}).split(0, {threads}).parallelize(1, fw.TIDx)")
        self.attempt("s['r'].parallelize(0, fw.BIDx)")
        self.attempt(f"s['r'].split(3, {self.r.choice([1, 2, 4])}).reorder([0, 3, 4, 1, 2])")
        return 2

    def _ring_of(self) -> str | None:
        r = self.r
        stages = r.choice([1, 2, 2, 3, 4, 6])
        if stages == 1:
            return None
        ahead = r.choice([None, None, r.randint(1, stages - 1)])
        return f"circular_buffer({stages}, {ahead})"


def draw_ring(seed: int, tally: Tally) -> RingPlan:
    r = random.Random(f"ring {seed}")
    program = ring_program(r, seed)
    return RingPlan(program, RingDrawer(program, r, tally).run())
