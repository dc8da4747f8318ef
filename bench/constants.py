"""`python -m bench.constants --modules fusewright.fusion.partitioning [--draws 60] [--out FILE]`

What the numbers that stand in the deciding half decide. Needs no GPU.

Method: every module-level number (names in capitals) is set to half and to twice its value, one at
a time, in its module and in those that import it; draws of the lot (`bench.lot.families`, the sizes
of the gate) and the fusions of the corpus at full size are compiled for sm_90a, and their times
predicted (`bench.lot.forecast`). Printed for each number, and both ways: how many programs get
other kernels, the geometric mean of the predicted times over those of now, the best and the worst
of them. A number whose mean is below one would be better the other way, by the model; one that
changes nothing on so many programs decides little.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import fusewright as fw
from bench.lot.families import draw
from bench.lot.forecast import predicted_us
from bench.lot.gate import HIGH, LOW
from fusewright.corpus import CORPUS
from fusewright.program import Program
from fusewright.target import target_of

TARGET = target_of("sm_90a")
FIRST_SEED = 8000
"""Of the draws, which no rule was made on."""


@dataclass(frozen=True, slots=True)
class Effect:
    """Of a number at another value: programs with other kernels, and their predicted times over
    those of now."""

    name: str
    value: float
    tried: float
    changed: int
    failed: int
    mean: float
    best: float
    worst: float
    worst_program: str


def programs(draws: int) -> Iterator[tuple[str, Callable[[], fw.Fusion]]]:
    """Draws, and the corpus."""
    for seed in range(FIRST_SEED, FIRST_SEED + draws):
        d = draw(seed, LOW, HIGH)
        yield f"{seed} {d.name}", d.trace
    for case in CORPUS:
        yield case.name, lambda c=case: fw.trace(c.fn, *c.specs)


def numbers(module: ModuleType) -> dict[str, float]:
    """The numbers that a module names in capitals itself."""
    own = Path(module.__file__ or "").read_text()
    found = {k: v for k, v in vars(module).items() if k.isupper() and f"\n{k} = " in own}
    return {k: v for k, v in found.items() if type(v) in (int, float) and v}


def holders(name: str, value: Any) -> list[ModuleType]:
    """The modules of the package that know a number by a name."""
    loaded = [m for k, m in sys.modules.items() if k.startswith("fusewright")]
    return [m for m in loaded if vars(m).get(name) is value or vars(m).get(name) == value]


def measured(trace: Callable[[], fw.Fusion]) -> tuple[tuple[str, ...], float]:
    """The texts of a program's kernels, and its predicted microseconds."""
    program: Program = fw.compile(trace(), TARGET.arch)
    return tuple(str(k.ir) for k in program.kernels), predicted_us(program, TARGET)


def effect(
    module: ModuleType,
    name: str,
    tried: float,
    chosen: list[tuple[str, Callable[[], fw.Fusion]]],
    now: dict[str, tuple[tuple[str, ...], float]],
) -> Effect:
    """What another value of one number does to the programs."""
    value = vars(module)[name]
    places = holders(name, value)
    ratios: dict[str, float] = {}
    failed = 0
    for m in places:
        setattr(m, name, tried)
    try:
        for text, trace in chosen:
            try:
                kernels, us = measured(trace)
            except Exception:
                failed += 1
                continue
            if kernels != now[text][0]:
                ratios[text] = us / now[text][1]
    finally:
        for m in places:
            setattr(m, name, value)
    worst = max(ratios, key=lambda t: ratios[t], default="")
    logs = [math.log(r) for r in ratios.values()]
    mean = math.exp(sum(logs) / len(logs)) if logs else 1.0
    best = min(ratios.values(), default=1.0)
    return Effect(
        name, value, tried, len(ratios), failed, mean, best, ratios.get(worst, 1.0), worst
    )


def main() -> None:
    """Prints a line a number and way."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--modules", nargs="+", required=True)
    parser.add_argument("--draws", type=int, default=60)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    chosen = list(programs(options.draws))
    now = {text: measured(trace) for text, trace in chosen}
    found: list[Effect] = []
    for path in options.modules:
        module = importlib.import_module(path)
        for name, value in numbers(module).items():
            for tried in (value / 2, value * 2):
                whole = max(1, round(tried)) if isinstance(value, int) else tried
                e = effect(module, name, whole, chosen, now)
                found.append(e)
                print(
                    f"{path.rpartition('.')[2]}.{name} = {value:g} -> {whole:g}: {e.changed} of "
                    f"{len(chosen)} change, mean {e.mean:.3f}, best {e.best:.3f}, worst "
                    f"{e.worst:.3f} {e.worst_program}{f', {e.failed} fail' * bool(e.failed)}",
                    flush=True,
                )
    if options.out is not None:
        options.out.write_text(json.dumps([asdict(e) for e in found], indent=1) + "\n")


if __name__ == "__main__":
    main()
