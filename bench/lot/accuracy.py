"""`python -m bench.lot.accuracy bench/lot-2026-11-23-h200.json`: predicted beside measured times.

Method: the draws of measured runs are compiled anew, without a GPU, and what the cost model says of
them today is compared with what was measured then. The memory is that of the GPU that measured, as
what it does not limit takes no longer on an H100 than on an H200. A draw counts where today's
launches have the schedulers of the measured ones. Draws whose arrays the second-level cache keeps
from one replay to the next stand apart, as the model knows nothing of an earlier launch. Runs of
before 2026-11-23 10:00 were scheduled by the rules' first candidates: `--first`.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from bench.lot.draws import ARCHITECTURE
from bench.lot.families import draw
from bench.lot.forecast import Forecast, compiled, forecast, from_json
from bench.lot.report import WITHIN
from bench.measured_products import H100_NBYTES_PER_US
from fusewright.schedule.heuristics import rating
from fusewright.target import Target, target_of

LOW, HIGH = 32e6, 1e9
WORST = 12


@dataclass(frozen=True, slots=True)
class Compared:
    """A draw with its measured time, as it was predicted then and as it is now."""

    now: Forecast
    then: Forecast
    measured_us: float

    @property
    def is_cached(self) -> bool:
        """Whether the arrays of a replay are still in the cache at the next one."""
        return self.now.nbytes <= target_of(ARCHITECTURE).l2_nbytes

    @property
    def error(self) -> float:
        """The logarithm of predicted over measured."""
        return math.log(self.now.predicted_us / self.measured_us)

    @property
    def error_then(self) -> float:
        """The same of the prediction of the measured run, times what a copy takes longer on the
        GPU that measured."""
        here = self.now.floor_us / self.then.floor_us
        return math.log(self.then.predicted_us * here / self.measured_us)


def compared(path: Path) -> Iterator[Compared]:
    """The measured draws of a run that are scheduled today as they were."""
    run = json.loads(path.read_text())
    target = _machine(run["environment"]["gpu"])
    for row in run["draws"]:
        us = row["outcome"] and row["outcome"]["times_us"].get("fusewright")
        then = from_json(row["forecast"])
        d = draw(then.seed, LOW, HIGH)
        if us and d.program.what == then.what:
            program, seconds = compiled(d)
            now = forecast(d, program, seconds, target=target)
            if _schedulers(now) == _schedulers(then):
                yield Compared(now, then, us)


def _machine(gpu: str) -> Target:
    """The target with the memory of a GPU."""
    target = target_of(ARCHITECTURE)
    is_h100 = "H100" in gpu
    return replace(target, memory_nbytes_per_us=H100_NBYTES_PER_US) if is_h100 else target


def _schedulers(f: Forecast) -> list[str]:
    return [k.split(" ")[0] for k in f.kernels]


def summary(rows: Sequence[Compared]) -> str:
    """How far predictions are off, in one line."""
    errors = [r.error for r in rows]
    close = sum(abs(math.exp(e) - 1) <= WITHIN for e in errors)
    return (
        f"{len(rows)} draws, {close} within {WITHIN:.0%}; root mean square of the logarithm "
        f"{_rms(errors):.3f}, as predicted then {_rms([r.error_then for r in rows]):.3f}"
    )


def _rms(values: Sequence[float]) -> float:
    return math.sqrt(sum(v * v for v in values) / len(values)) if values else 0.0


def main() -> None:
    """Prints a line for each run, and the farthest draws."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("runs", nargs="+", type=Path, help="JSON files of measured runs")
    parser.add_argument(
        "--first", action="store_true", help="kernels by the rules' first candidates"
    )
    args = parser.parse_args()
    if args.first:
        rating.is_faster = lambda other, first, known: False
    for path in args.runs:
        rows = list(compared(path))
        print(f"{path.name}: {summary([r for r in rows if not r.is_cached])}")
        print(f"  in the cache from replay to replay: {summary([r for r in rows if r.is_cached])}")
        for r in sorted(rows, key=lambda r: -abs(r.error))[:WORST]:
            f = r.now
            print(
                f"  {math.exp(r.error):5.2f} {f.limit:8s} {f.predicted_us:7.1f} "
                f"{r.measured_us:7.1f} us  {f.seed} {f.family}: {f.what[:80]}"
            )


if __name__ == "__main__":
    main()
