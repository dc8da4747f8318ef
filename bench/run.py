"""`python -m bench.run [--cases substring] [--peers a,b] [--neighbours] [--budget-seconds 300]`"""

from __future__ import annotations

import argparse
import datetime
import json
import time
from pathlib import Path

import torch

from bench import harness
from bench.cases import CASES, Case
from bench.outcome import Outcome, table
from bench.page import write_page
from bench.session import Session

PEERS = "fusewright,compile,max_autotune,eager,quack,liger"
NEIGHBOURS_PEERS = ("fusewright",)
"""A neighbour is compared with its case only."""


def main() -> None:
    """Measure cases on this machine's GPU, print the table, and write the JSON and its page."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--cases", default="", help="comma-separated substrings of case names")
    parser.add_argument("--peers", default="fusewright,compile,eager", help=f"of {PEERS}")
    parser.add_argument("--neighbours", action="store_true", help="sizes a little off, too")
    parser.add_argument("--budget-seconds", type=float, default=float("inf"))
    parser.add_argument(
        "--out", type=Path, default=None, help="a JSON file; its page stands beside"
    )
    args = parser.parse_args()
    session = Session(
        tuple(w for w in args.cases.split(",") if w), args.neighbours, args.budget_seconds
    )
    peers = tuple(args.peers.split(","))
    cases = {c.name for c in CASES}

    def measure(case: Case) -> Outcome:
        torch.compiler.reset()
        torch.cuda.empty_cache()
        return harness.measure(case, peers if case.name in cases else NEIGHBOURS_PEERS)

    def keep(outcomes: list[Outcome]) -> None:
        if args.out is not None:
            _write(args.out, outcomes)

    outcomes = session.run(CASES, measure, time.monotonic, keep)
    print(table(outcomes))
    if args.out is not None and outcomes:
        print(write_page(args.out, args.out.with_suffix(".html")))


def _write(path: Path, outcomes: list[Outcome]) -> None:
    report = {
        "date": datetime.date.today().isoformat(),
        "method": " ".join((harness.__doc__ or "").split()),
        "environment": harness.environment(),
        "cases": [o.as_json() for o in outcomes],
    }
    path.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
