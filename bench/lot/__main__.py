"""`python -m bench.lot --seeds 0:300 [--peers compile,eager,nvfuser] [--predict]
[--save DIR | --load DIR]`

Method: the seed alone makes a draw (`bench/lot/families.py`). On a GPU its results are compared
with float64 on the device, in outputs that hold NaN before; then ours, the peers and a copy of the
least bytes (a read where nearly all of them are read) run in turn as CUDA graphs, medians of 7
rounds. The least is every argument read once, as far as it is needed, and every result written
once; what no cluster of blocks can hold until its reduction is known is read twice. Results lie in
memory as a call of the fused function returns them, which is also where the peers have them: what
is made of a permuted array keeps its order.
"""

from __future__ import annotations

import argparse
import datetime
import gc
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.lot.draws import Draw, seeds_of
from bench.lot.families import draw
from bench.lot.forecast import Forecast, compiled, forecast, from_json
from bench.lot.report import Row, page, text
from fusewright import load
from fusewright.program import Program
from fusewright.runtime.device import has_gpu

INDEX = "index.json"


def main() -> None:
    """Predicts or measures draws, prints tables, and writes the JSON and its page."""
    args = _arguments()
    seeds = seeds_of(args.seeds)
    low, high = (float(x) * 1e6 for x in args.mb.split(":"))
    draws = [draw(s, low, high) for s in seeds]
    begun = time.monotonic()
    rows: list[Row] = []
    forecasts: list[Forecast] = []
    predict_only = args.predict or args.save is not None or not has_gpu()
    for done, (d, program, f) in enumerate(_programs(draws, args)):
        forecasts.append(f)
        rows.append(Row(f) if predict_only else _measured(d, program, f, args.peers))
        if args.save is not None:
            program.save(args.save / f"{d.seed}.fw")
        _tell(rows[-1])
        if args.out is not None:
            _write(args.out, rows, measured=not predict_only)
        if time.monotonic() - begun > args.seconds:
            print(f"out of time: {len(draws) - done - 1} of {len(draws)} draws are left")
            break
    if args.save is not None:
        index = {"mb": args.mb, "draws": [f.as_json() for f in forecasts]}
        (args.save / INDEX).write_text(json.dumps(index, indent=1) + "\n")
    print(text(rows, draws=False))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--seeds", default="0:21", help="such as 0:300, or 3,17,40:60")
    parser.add_argument("--mb", default="32:1000", help="megabytes that a draw moves, from:to")
    parser.add_argument("--peers", default="", help="of compile,eager,nvfuser")
    parser.add_argument("--predict", action="store_true", help="measure nothing")
    parser.add_argument("--sectors", action="store_true", help="ask the machine model, too")
    parser.add_argument("--save", type=Path, help="a folder for programs to be measured elsewhere")
    parser.add_argument("--load", type=Path, help="such a folder: nothing is compiled")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="then it stops")
    parser.add_argument("--out", type=Path, help="a JSON file; its page stands beside")
    args = parser.parse_args()
    args.peers = tuple(p for p in args.peers.split(",") if p)
    if args.save is not None:
        args.save.mkdir(parents=True, exist_ok=True)
    return args


def _programs(
    draws: list[Draw], args: argparse.Namespace
) -> Iterator[tuple[Draw, Program, Forecast]]:
    """The draws with their programs: compiled here, or from a folder. What cannot be had is said,
    and left out."""
    known: dict[int, Forecast] = {}
    if args.load is not None:
        index = json.loads((args.load / INDEX).read_text())
        if index["mb"] != args.mb:
            sys.exit(f"{args.load} holds draws of --mb {index['mb']}, not {args.mb}")
        known = {f["seed"]: from_json(f) for f in index["draws"]}
    else:
        compiled(draw(0, 1e6, 2e6))  # what is only done once is not the first draw's
    for d in draws:
        try:
            if args.load is not None:
                yield d, load(args.load / f"{d.seed}.fw"), known[d.seed]
            else:
                program, seconds = compiled(d)
                yield d, program, forecast(d, program, seconds, with_machine=args.sectors)
        except Exception as e:
            print(f"{d.name}: {type(e).__name__}: {e}"[:400], flush=True)


def _measured(d: Draw, program: Program, f: Forecast, peers: tuple[str, ...]) -> Row:
    import torch

    from bench.lot.measure import measure

    torch.compiler.reset()
    found = measure(d, program, peers)
    gc.collect()
    torch.cuda.empty_cache()
    return Row(f, found.outcome, found.is_right)


def _tell(r: Row) -> None:
    """One line a draw, while a run goes on."""
    f, o = r.forecast, r.outcome
    head = f"{f.seed:4d} {f.family:13s} {f.nbytes / 1e6:7.1f} MB {f.launches}/{f.launches_least}"
    figures = f"bytes {f.bytes_ratio:5.2f} predicted {f.share:4.2f} {f.limit:8s}"
    if o is None:
        figures += f" {f.predicted_us:8.1f} us, sectors {f.sectors:4.2f}, Python {f.seconds:4.2f} s"
    else:
        peers = [p for p in o.times_us if p != "fusewright"]
        figures += f" share {r.share or 0:4.2f}" + "".join(
            f" {p} {r.speedup(p) or 0:4.2f}x" for p in peers
        )
        figures += "" if r.is_right else f" WRONG {o.errors}"
        figures += f" {o.failures}" if o.failures else ""
    print(f"{head} {figures} | {f.what[:80]}", flush=True)


def _write(path: Path, rows: list[Row], *, measured: bool) -> None:
    environment: dict[str, str] = {"python": sys.version.split()[0]}
    if measured:
        from bench.harness import environment as of_torch

        environment = of_torch()
    report: dict[str, Any] = {
        "date": datetime.date.today().isoformat(),
        "method": " ".join((__doc__ or "").split("Method: ")[1].split()),
        "environment": environment,
    }
    full = {**report, "draws": [r.as_json() for r in rows]}
    path.write_text(json.dumps(full, indent=1) + "\n")
    path.with_suffix(".html").write_text(page(report, rows))


if __name__ == "__main__":
    main()
