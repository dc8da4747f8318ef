"""`python -m bench.run [--suite memory] [--cases substring] [--peers a,b] [--neighbours]
[--budget-seconds 300] [--out FILE]`

Suites are "memory", what memory limits, and "products" (`bench/product_suite.py`), whose programs
`--save DIR` compiles without a GPU and `--load DIR` measures.
"""

from __future__ import annotations

import argparse
import datetime
import json
import time
from pathlib import Path

from bench.outcome import Outcome, table
from bench.page import write_page

PEERS = "fusewright,compile,max_autotune,eager,quack,liger"
NEIGHBOURS_PEERS = ("fusewright",)
"""A neighbour is compared with its case only."""


PRODUCT_PEERS = "torch,compile,max_autotune,nvfuser,quack"
SUITES = ("memory", "products")


def main() -> None:
    """Measure a suite on this machine's GPU, print the table, and write the JSON and its page."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--suite", choices=SUITES, default="memory")
    parser.add_argument("--cases", default="", help="comma-separated substrings of case names")
    parser.add_argument("--peers", default="", help=f"of {PEERS}, of products {PRODUCT_PEERS}")
    parser.add_argument("--neighbours", action="store_true", help="sizes a little off, too")
    parser.add_argument("--budget-seconds", type=float, default=float("inf"))
    parser.add_argument("--save", type=Path, help="a folder for products to be measured elsewhere")
    parser.add_argument("--load", type=Path, help="such a folder: no product is compiled")
    parser.add_argument(
        "--out", type=Path, default=None, help="a JSON file; its page stands beside"
    )
    args = parser.parse_args()
    wanted = tuple(w for w in args.cases.split(",") if w)
    outcomes = (_products if args.suite == "products" else _memory)(args, wanted)
    if args.out is not None and outcomes:
        print(write_page(args.out, args.out.with_suffix(".html")))


def _memory(args: argparse.Namespace, wanted: tuple[str, ...]) -> list[Outcome]:
    """The cases that memory limits."""
    import torch

    from bench import harness
    from bench.cases import CASES, Case
    from bench.session import Session

    session = Session(wanted, args.neighbours, args.budget_seconds)
    peers = tuple((args.peers or "fusewright,compile,eager").split(","))
    cases = {c.name for c in CASES}

    def measure(case: Case) -> Outcome:
        torch.compiler.reset()
        torch.cuda.empty_cache()
        return harness.measure(case, peers if case.name in cases else NEIGHBOURS_PEERS)

    def keep(outcomes: list[Outcome]) -> None:
        write_report(args.out, outcomes, harness.__doc__, "Memory-bound cases")

    outcomes = session.run(CASES, measure, time.monotonic, keep)
    print(table(outcomes))
    return outcomes


def _products(args: argparse.Namespace, wanted: tuple[str, ...]) -> list[Outcome]:
    """Products and what follows them; none where they are only compiled."""
    from bench import product_suite

    chosen = product_suite.entries(wanted, args.neighbours)
    if args.save is not None:
        product_suite.save(chosen, args.save)
        return []

    def keep(outcomes: list[Outcome]) -> None:
        write_report(args.out, outcomes, product_suite.__doc__, "Products")

    peers = tuple((args.peers or "torch,compile").split(","))
    return product_suite.run(chosen, peers, args.load, args.budget_seconds, keep)


def write_report(
    path: Path | None, outcomes: list[Outcome], method: str | None, title: str
) -> None:
    from bench.harness import environment

    if path is None:
        return
    report = {
        "title": title,
        "date": datetime.date.today().isoformat(),
        "method": " ".join((method or "").split()),
        "environment": environment(),
        "cases": [o.as_json() for o in outcomes],
    }
    path.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
