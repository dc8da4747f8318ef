"""The wider random campaign: `make campaign SEEDS=0:20000`.

Without make, `PYTHONPATH=. python tests/fuzz/fuzz_campaign.py --seeds 0:20000 --jobs 2`.

Every seed is one program: traced, compiled, simulated at several sizes, compared with the oracle.
Failures are counted by signature; of each the smallest program found is printed.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from fuzz_checks import Tally
from fuzz_criteria import COMPILE_SECONDS, Checks, Finding, finding_of, has_odd_names
from fuzz_motifs import draw_wide
from fuzz_programs import Recipe
from fuzz_shrink import shrink

SHRINK_SECONDS = 20.0


@dataclass(frozen=True)
class Outcome:
    """What came of a seed."""

    seed: int
    motifs: tuple[str, ...]
    finding: Finding | None
    counts: Counter[str]
    seconds: float


@dataclass
class Report:
    """Outcomes by signature."""

    programs: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    motifs: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    failed: dict[str, list[Outcome]] = field(default_factory=dict)

    def add(self, o: Outcome) -> None:
        self.programs += 1
        self.seconds += o.seconds
        self.counts += o.counts
        self.motifs.update(o.motifs)
        if o.finding is not None:
            self.failed.setdefault(o.finding.signature, []).append(o)

    def table(self) -> str:
        total = sum(map(len, self.failed.values()))
        lines = [
            f"{self.programs} programs, {total} failed, {self.seconds:.0f} s of "
            f"Python; {Tally(self.counts)}"
        ]
        for signature, found in sorted(self.failed.items(), key=lambda x: -len(x[1])):
            seeds = ", ".join(str(o.seed) for o in found[:6])
            lines.append(f"{len(found):5}  {signature}  (seeds {seeds})")
        return "\n".join(lines)


def outcome(seed: int) -> Outcome:
    """Draws and checks the program of a seed. Every 25th has its syncs verified; programs with odd
    names, and a few others, are compiled down to machine code."""
    begin, tally = time.process_time(), Tally()
    recipe, motifs = draw_wide(seed)
    found = checked(recipe, tally)
    return Outcome(seed, motifs, found, tally.counts, time.process_time() - begin)


def checked(
    recipe: Recipe, tally: Tally | None = None, *, seconds: float = COMPILE_SECONDS
) -> Finding | None:
    """What is wrong with a program of the campaign."""
    seed = recipe.seed
    machine_code = seed % 100 == 0 or (has_odd_names(recipe) and seed % 2 == 0)
    return finding_of(recipe, Checks(seed % 25 == 0, machine_code, seconds), tally)


def smallest(recipe: Recipe, signature: str, seconds: float = SHRINK_SECONDS) -> Recipe:
    """The smallest program found within a time that fails with the same signature."""
    end = time.monotonic() + seconds

    def fails(r: Recipe) -> bool:
        if time.monotonic() > end:
            return False
        found = checked(r)
        return found is not None and found.signature == signature

    return shrink(recipe, fails)


def campaign(seeds: range, jobs: int) -> Iterator[Outcome]:
    """Outcomes of all seeds, in any order."""
    if jobs == 1:
        yield from map(outcome, seeds)
        return
    with multiprocessing.get_context("fork").Pool(jobs, maxtasksperchild=400) as pool:
        yield from pool.imap_unordered(outcome, seeds, chunksize=4)


def seeds_of(text: str) -> range:
    """`a:b`, or one seed."""
    first, _, last = text.partition(":")
    return range(int(first), int(last) if last else int(first) + 1)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=seeds_of, default=range(1000), help="first:last")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--no-shrink", action="store_true")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as cache:
        os.environ["FUSEWRIGHT_CACHE_DIR"] = cache
        return run(options.seeds, options.jobs, shrinking=not options.no_shrink)


def run(seeds: range, jobs: int, *, shrinking: bool) -> int:
    """Runs a campaign and prints what came of it; 1 when something failed."""
    report, begin = Report(), time.monotonic()
    for o in campaign(seeds, jobs):
        report.add(o)
        if o.finding is not None:
            print(f"seed {o.seed}: {o.finding.signature}", flush=True)
        if report.programs % 1000 == 0:
            print(f"... {report.programs} in {time.monotonic() - begin:.0f} s", flush=True)
    for signature, found in report.failed.items() if shrinking else ():
        small = smallest(draw_wide(found[0].seed)[0], signature)
        again = checked(small)
        detail = (again or found[0].finding or Finding("", "")).detail
        print(f"\n--- {signature} ({len(found)})\n{detail[:600]}\n{small.reproducer()}", flush=True)
    print(f"\nseeds {seeds.start}:{seeds.stop}, {time.monotonic() - begin:.0f} s, {jobs} jobs")
    print(report.table())
    return 1 if report.failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
