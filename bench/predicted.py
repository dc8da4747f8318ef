"""`python -m bench.predicted [--cases substring] [--candidates]`: predicted beside measured times.

Method: programs as the rules schedule them, CUDA events around each run, a write of 256 MiB before
it, medians of 11 rounds in which all programs of a case take turns. With --candidates up to six
candidates of every kernel are measured in the same way, each in a program that differs in it alone.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence

import torch

import fusewright as fw
from bench.cases import CASES, Case
from bench.harness import make_inputs
from fusewright.frontends.tune import Session
from fusewright.program import Program
from fusewright.runtime.arrays import describe
from fusewright.runtime.clock import DeviceClock
from fusewright.schedule.heuristics.rating import Rated


def predicted_us(program: Program) -> float:
    """The sum over launches."""
    total = 0.0
    for x in program.launches:
        found = (c for c in x.kernel.candidates if isinstance(c, Rated))
        total += next((c.cost.us for c in found if c.params == x.kernel.heuristic), 0.0)
    return total


def measured_us(program: Program, arrays: Sequence[object]) -> float:
    """The median."""
    return DeviceClock()([program.calls.bind_memory([describe(a) for a in arrays])])[0]


def main() -> None:
    """Prints one line a case, and the error of all."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--cases", default="", help="a substring of case names")
    parser.add_argument("--candidates", action="store_true", help="measure these, too")
    args = parser.parse_args()
    errors: list[float] = []
    for case in (c for c in CASES if args.cases in c.name):
        errors.append(_show(case, candidates=args.candidates))
        torch.cuda.empty_cache()
    if errors:
        rms = math.sqrt(sum(e * e for e in errors) / len(errors))
        print(f"{len(errors)} cases, predicted within a factor of {math.exp(rms):.3f} (rms)")


def _show(case: Case, *, candidates: bool) -> float:
    arrays = make_inputs(case)
    torch.cuda.synchronize()
    specs = [fw.TensorSpec(shape, dtype) for shape, dtype in case.inputs]
    program = fw.compile(fw.trace(case.ours, *specs))
    predicted, measured = predicted_us(program), measured_us(program, arrays)
    ratio = predicted / measured
    print(f"{case.name:36s} predicted {predicted:8.1f} measured {measured:8.1f} {ratio:5.2f}")
    if candidates:
        session = Session(DeviceClock())
        session.measure(fw.trace(case.ours, *specs), program.target, [describe(a) for a in arrays])
        print(session.tuning())
    return math.log(ratio)


if __name__ == "__main__":
    main()
