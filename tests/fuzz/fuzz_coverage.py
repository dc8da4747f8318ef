"""Writes docs/coverage.md: what random programs and schedules reach, and what came of it.

Run as `python tests/fuzz/fuzz_coverage.py`; it compiles and simulates some thousands of kernels and
takes minutes. An empty cell where there should be a mark is a finding.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from pathlib import Path

import fuzz_ops
from fuzz_checks import Tally, problem_of
from fuzz_criteria import COMPILE_SECONDS
from fuzz_motifs import MOTIFS
from fuzz_programs import Builder, Recipe, draw, makers
from fuzz_schedules import check_seed

PAGE = Path(__file__).parent.parent.parent / "docs" / "coverage.md"
PROGRAMS = 300
SCHEDULES = 300
TRIES = 12
SHORT = {
    "float32": "f32", "float16": "f16", "bfloat16": "bf16", "float64": "f64",
    "float8_e4m3": "e4m3", "float8_e5m2": "e5m2", "int8": "i8", "int16": "i16", "int32": "i32",
    "int64": "i64", "uint8": "u8", "uint16": "u16", "uint32": "u32", "uint64": "u64",
    "bool": "bool",
}  # fmt: skip

INTRO = f"""# Coverage

Written by `python tests/fuzz/fuzz_coverage.py`. Every mark is a program that was compiled, run in
the simulator without a race or a read of unwritten memory, and compared with the oracle: **y**
right, **x** not. A dot is a type that the operation does not take, or that random programs do not
give it.

The tables of schedulers and primitives count {PROGRAMS} random programs and {SCHEDULES} random
schedules by hand, of seeds that are always the same. Many more run in `make fuzz`.
"""

CAMPAIGN = f"""## The wider campaign

`make campaign SEEDS=0:20000` draws programs of another kind: one or two of these motifs, which
compose families and stress one decision each.

{{motifs}}
Arguments have rank 0 to 5, sizes from 0 on, and symbolic sizes that are bound to several sizes, the
least one among them; every sixteenth program has odd names for arguments, sizes and results. These
are failures, counted by a signature and shrunk to a few lines:

- a value that differs from the oracle's by more than rounding does, also in an array of `out=`;
- a race, a read of what nobody wrote, a sync that is missing or of no use;
- an error that is no `UserError` or `UnsupportedError` while the program is traced, and any error
  after that;
- a launch that nobody reads, that another one has done, or one more than the program explains: one
  for elementwise operations over one space, never more than one for each operation;
- more than {COMPILE_SECONDS:g} s of Python to compile it.
"""


def main() -> None:
    PAGE.write_text(render(), encoding="utf-8")
    print(PAGE)


def render() -> str:
    tally = Tally()
    sections = [
        INTRO,
        "## Operations and element types\n\n" + _operations(),
        "## Pairs of views\n\nThe view of the row is read through the one of the column.\n\n"
        + _pairs(),
        "## Automatic schedules and syncs\n\n" + _programs(tally),
        CAMPAIGN.format(motifs=_motifs()),
        "## Schedule primitives\n\nA refusal is a `ScheduleError` and leaves the schedule as it "
        "was.\n\n" + _primitives(tally),
    ]
    return "\n".join(sections)


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    head = list(head)
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(row)} |\n" for row in lines)


def _motifs() -> str:
    rows = ([f"`{name}`", inspect.getdoc(make) or ""] for name, (make, _) in MOTIFS.items())
    return table(["motif", "what it is"], ([n, text.replace("\n", " ")] for n, text in rows))


# --- operations ---------------------------------------------------------------------------------


def _operations() -> str:
    rows = [[f"`{op}`", *(operation(op, d) for d in SHORT)] for op in sorted(makers())]
    return table(["", *SHORT.values()], rows)


def operation(op: str, dtype: str) -> str:
    """The mark of an operation on values of a dtype."""
    for seed in range(TRIES):
        recipe = typed(op, dtype, seed)
        if recipe is not None:
            return "y" if problem_of(recipe) is None else "x"
    return "."


def typed(op: str, dtype: str, seed: int) -> Recipe | None:
    """A program of one call whose first operand has the dtype."""
    b = Builder(seed)
    b.base = [(5,), (3, 4), (2, 4, 6), (1, 6)][seed % 4]
    b.only = dtype
    if not b.step(op, makers()[op]):
        return None
    made = b.recipe()
    types = [x.dtype for x in made.leaves]
    return made if dtype in types else None


# --- views --------------------------------------------------------------------------------------


def _pairs() -> str:
    views = list(fuzz_ops.VIEWS)
    rows = [[f"`{outer}`", *(pair(inner, outer) for inner in views)] for outer in views]
    return table(["", *(f"`{v}`" for v in views)], rows)


def pair(inner: str, outer: str) -> str:
    """The mark of `outer(inner(exp(x)))`."""
    for seed in range(TRIES):
        b = Builder(seed)
        b.base, b.only = (4, 6), "float32"
        b.value("float", 2)
        if all(b.on_last(name) for name in ("exp", inner, outer)):
            return "y" if problem_of(b.recipe()) is None else "x"
    return " "


# --- campaigns ----------------------------------------------------------------------------------


def _programs(tally: Tally) -> str:
    wrong = [s for s in range(PROGRAMS) if problem_of(draw(s), tally=tally) is not None]
    rows = [
        [kind, str(n)]
        for kind, n in sorted(tally.counts.items())
        if kind.startswith(("scheduler", "sync"))
    ]
    kernels = tally.counts["kernels"]
    done = f"{tally.counts['programs']} programs, {kernels} kernels, wrong: {wrong or 'none'}.\n\n"
    return done + table(["", "kernels or syncs"], rows)


def _primitives(tally: Tally) -> str:
    tally = Tally()
    wrong = [s for s in range(SCHEDULES) if check_seed(s, tally, verify=s % 10 == 0)[1] is not None]
    names = sorted({k.split(" ", 1)[1] for k in tally.counts if k.startswith(("accept", "refus"))})
    rows = [
        [f"`{n}`", str(tally.counts[f"accepted {n}"]), str(tally.counts[f"refused {n}"])]
        for n in names
    ]
    syncs = ", ".join(f"{n} {k[5:]}" for k, n in sorted(tally.counts.items()) if k[:4] == "sync")
    done = f"{tally.counts['schedules']} schedules lowered, wrong: {wrong or 'none'}; {syncs}.\n\n"
    return done + table(["", "accepted", "refused"], rows)


if __name__ == "__main__":
    main()
