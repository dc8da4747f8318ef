"""`python -m bench.run [--cases substring] [--peers a,b] [--out file.json]` measures cases."""

from __future__ import annotations

import argparse
import datetime
import json
import time
from pathlib import Path

import torch

from bench import harness
from bench.cases import CASES


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", default="", help="comma-separated substrings of case names")
    parser.add_argument("--peers", default="fusewright,compile,eager")
    parser.add_argument("--out", type=Path, default=None)
    parser.add_argument("--seconds", type=float, default=1e9, help="start no case after this")
    args = parser.parse_args()
    wanted = [w for w in args.cases.split(",") if w]
    start = time.monotonic()
    outcomes: list[harness.Outcome] = []
    for case in CASES:
        if wanted and not any(w in case.name for w in wanted):
            continue
        if time.monotonic() - start > args.seconds:
            print(f"out of time before {case.name}")
            break
        torch.compiler.reset()
        torch.cuda.empty_cache()
        outcomes.append(harness.measure(case, tuple(args.peers.split(","))))
        print(harness.table(outcomes[-1:]).splitlines()[1], flush=True)
        if args.out is not None:
            _write(args.out, outcomes)
    print(harness.table(outcomes))


def _write(path: Path, outcomes: list[harness.Outcome]) -> None:
    report = {
        "date": datetime.date.today().isoformat(),
        "method": " ".join((harness.__doc__ or "").split()),
        "environment": harness.environment(),
        "cases": [o.as_json() for o in outcomes],
    }
    path.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
