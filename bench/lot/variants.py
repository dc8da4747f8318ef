"""`python -m bench.lot.variants --seeds 9000:9060`: all candidates of draws, measured side by side.

Method: of every draw the costliest kernel is scheduled by each of its candidates, in programs that
differ in nothing else; these take turns, a write of 256 MiB before each run, medians. The table
says how far the chosen one is from the best, and how the model orders them. `--save` and `--load`
part compiling from measuring.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path

import fusewright as fw
from bench.lot.draws import Draw, seeds_of
from bench.lot.families import draw
from bench.lot.forecast import compiled
from fusewright.driver import compile_in_place
from fusewright.host.segment import structure_of
from fusewright.program import Program
from fusewright.runtime.tuning_cache import TunedSchedule
from fusewright.schedule.heuristics.rating import Rated

LOW, HIGH = 32e6, 1e9
MOST = 10
"""Candidates of a draw: the chosen one, and the fastest by prediction."""


@dataclass(frozen=True, slots=True)
class Variant:
    """One candidate of a draw. `rest_us`: what the other kernels are predicted to take."""

    seed: int
    what: str
    params: str
    predicted_us: float
    limit: str
    rest_us: float
    is_chosen: bool
    measured_us: float = math.nan


def variants(d: Draw) -> Iterator[tuple[Variant, Program]]:
    """The programs of a draw that differ in the candidate of its costliest kernel."""
    usual, _ = compiled(d)
    kernels = [k for k in usual.kernels if k.segment is not None and k.predicted is not None]
    kernel = max(kernels, key=lambda k: k.predicted.us if k.predicted else 0.0, default=None)
    if kernel is None or kernel.segment is None or kernel.predicted is None:
        return
    total = sum(x.kernel.predicted.us for x in usual.launches if x.kernel.predicted)
    rated = sorted((c for c in kernel.candidates if isinstance(c, Rated)), key=lambda c: c.cost.us)
    chosen = [c for c in rated if c.params == kernel.heuristic]
    key = structure_of(kernel.segment.fusion)[0]
    for c in [*chosen, *(c for c in rated if c not in chosen)][:MOST]:
        program = usual
        if c not in chosen:
            tuned = TunedSchedule(c.params, ())
            program = compile_in_place(
                usual.fusion,
                usual.target,
                {},
                lambda s, t=tuned: t if structure_of(s.fusion)[0] == key else None,
            )
            if not any(k.heuristic == c.params for k in program.kernels):
                continue
        rest = total - kernel.predicted.us
        yield (
            Variant(
                d.seed, d.program.what, str(c.params), c.cost.us, c.cost.limit, rest, c in chosen
            ),
            program,
        )


def measured(d: Draw, programs: Sequence[Program]) -> list[float]:
    """Microseconds of each."""
    from bench.lot.measure import make_arrays
    from fusewright.runtime.arrays import describe
    from fusewright.runtime.clock import DeviceClock

    arrays = [describe(a) for a in make_arrays(d, "cuda")]
    return DeviceClock()([p.calls.bind_memory(arrays) for p in programs])


def report(found: Sequence[Variant]) -> str:
    """A line for each draw: the chosen candidate over the best one, and what that is."""
    lines: list[str] = []
    for seed in dict.fromkeys(v.seed for v in found):
        own = [v for v in found if v.seed == seed]
        best = min(own, key=lambda v: v.measured_us)
        usual = next((v for v in own if v.is_chosen), best)
        ratio = usual.measured_us / best.measured_us
        lines.append(f"{seed} chosen {ratio:.2f} of the best | {usual.what[:80]}")
        lines += [
            f"    {v.measured_us:8.1f} us, predicted {v.predicted_us + v.rest_us:8.1f} {v.limit:8s}"
            f" {'*' if v.is_chosen else ' '} {v.params}"
            for v in sorted(own, key=lambda v: v.measured_us)
        ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", help="with --load all that were saved, unless said otherwise")
    parser.add_argument("--save", type=Path)
    parser.add_argument("--load", type=Path)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    found: list[Variant] = []
    table = args.load and json.loads((args.load / "variants.json").read_text())
    saved = sorted({v["seed"] for v in table or ()})
    for seed in seeds_of(args.seeds or "9000:9010") if args.seeds or not table else saved:
        d = draw(seed, LOW, HIGH)
        if table:
            own = [Variant(**v) for v in table if v["seed"] == seed]
            programs = [fw.load(args.load / f"{seed}_{k}.fw") for k in range(len(own))]
        else:
            pairs = list(variants(d))
            own, programs = [v for v, _ in pairs], [p for _, p in pairs]
        if args.save:
            args.save.mkdir(parents=True, exist_ok=True)
            for k, p in enumerate(programs):
                p.save(args.save / f"{seed}_{k}.fw")
            found += own
            continue
        for v, us in zip(own, measured(d, programs) if programs else [], strict=True):
            found.append(Variant(**{**asdict(v), "measured_us": us}))
        print(report(found[len(found) - len(own) :]), flush=True)
    rows = [asdict(v) for v in found]
    if args.save:
        (args.save / "variants.json").write_text(json.dumps(rows))
    if args.out:
        args.out.write_text(json.dumps({"date": str(date.today()), "variants": rows}, indent=1))


if __name__ == "__main__":
    main()
