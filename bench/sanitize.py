"""Small kernels of every kind for compute-sanitizer: `compute-sanitizer --tool racecheck python -m
bench.sanitize`. Runs the demo's fusions at reduced sizes and the corpus' normalisations."""

from __future__ import annotations

import fusewright as fw
from fusewright.corpus import CORPUS

NAMES = ("softmax", "norm", "sum", "transpose", "gelu")


def main() -> None:
    ran = 0
    for case in CORPUS:
        if any(n in case.name for n in NAMES):
            program = fw.compile(fw.trace(case.fn, *case.small))
            program.run_cuda(*case.arrays())
            ran += len(program.launches)
    print(f"{ran} launches")


if __name__ == "__main__":
    main()
