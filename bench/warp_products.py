"""`python -m bench.warp_products [--cases a,b] [--save DIR | --load DIR] [--out FILE]`

Products on the instructions of single warps, in every tile of the menu, beside what `fw.compile`
makes of the same product ("program": warpgroups, or copies of the operands first) and torch
(cuBLAS). An H200 runs them too, so that the model of other chips can be looked at there. Predicted
times stand beside measured ones.

Method: operands are random and normal, bfloat16; a call works on the next of several copies of
them, so that none stays in the second-level cache. All forms run in turn with each other, medians
of rounds (`bench/harness.py`). A form is right when its error against float64 on 64 rows is below a
hundredth. Compiling needs no GPU: `--save` keeps the programs, `--load` measures them elsewhere.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fusewright as fw
from bench.turns import COPIES_NBYTES
from fusewright.fusion.ir import MatMul
from fusewright.program import Program
from fusewright.schedule.heuristics.candidates import Candidate
from fusewright.schedule.heuristics.matmul import sizes_of_product
from fusewright.schedule.heuristics.warp_matmul import (
    WarpMatmulScheduler,
    copy_widths,
    schedule_warp_products,
)
from fusewright.schedule.heuristics.warp_plans import WarpPlan, warp_us
from fusewright.target import target_of

TARGET = target_of("sm_90a")
ROWS_CHECKED = 64


@dataclass(frozen=True, slots=True)
class Case:
    """`layout` as in `bench.products`: T where the first operand is contiguous along k, and where
    the second one is along its columns."""

    layout: str
    m: int
    n: int
    k: int

    @property
    def name(self) -> str:
        return f"{self.layout} {self.m}x{self.n}x{self.k}"

    @property
    def shapes(self) -> tuple[tuple[int, int], tuple[int, int]]:
        first = (self.m, self.k) if self.layout[0] == "T" else (self.k, self.m)
        return first, (self.n, self.k) if self.layout[1] == "N" else (self.k, self.n)

    def product(self, x: Any, w: Any) -> Any:
        """Of numbers of this program, and of torch's tensors."""
        return (x if self.layout[0] == "T" else x.T) @ (w.T if self.layout[1] == "N" else w)

    def fusion(self) -> fw.Fusion:
        return fw.trace(self.product, *(fw.TensorSpec(s, "bfloat16") for s in self.shapes))


CASES = (
    Case("TN", 4096, 4096, 4096),
    Case("TT", 4096, 4096, 4096),
    Case("TN", 1024, 1024, 1024),
    Case("TN", 64, 4096, 4096),
    Case("TN", 4096, 4096, 4100),
    Case("TN", 4096, 4096, 4098),
    Case("TT", 1028, 1028, 1028),
    Case("TN", 520, 332, 1028),
)


def forms(case: Case) -> Iterator[tuple[str, float, Program]]:
    """Each form of a product: its name, its predicted microseconds, and the program."""
    program = fw.compile(case.fusion())
    yield "program", sum(float(k.predicted.us) for k in program.kernels if k.predicted), program
    scheduler = WarpMatmulScheduler(fw.Schedule(case.fusion()).flow, TARGET)
    for c in scheduler.candidates():
        if isinstance(c, Candidate):
            s = fw.Schedule(case.fusion())
            WarpMatmulScheduler(s.flow, TARGET)
            products = [t for t in s.flow.stages if isinstance(t.op, MatMul)]
            us = warp_us(sizes_of_product(products[0]), c.plan, copy_widths(products[0]), TARGET)
            schedule_warp_products(s, products, c.plan)
            yield _name(c.plan), us, fw.compile(s)


def _name(p: WarpPlan) -> str:
    shared = f", {p.splits} blocks a tile" if p.splits > 1 else ""
    return f"{p.rows}x{p.columns}x{p.depth} by {p.down}x{p.across}, {p.stages} stages{shared}"


def main() -> None:
    """Compiles or measures, prints a table, and writes the JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", default="", help="comma-separated substrings of names")
    parser.add_argument("--save", type=Path, help="a folder for programs to be measured elsewhere")
    parser.add_argument("--load", type=Path, help="such a folder: nothing is compiled")
    parser.add_argument("--out", type=Path, help="a JSON file")
    args = parser.parse_args()
    wanted = [c for c in args.cases.split(",") if c]
    rows: list[dict[str, Any]] = []
    for case in CASES:
        if wanted and not any(w in case.name for w in wanted):
            continue
        if args.save is not None:
            _save(case, args.save)
            continue
        rows.append(_measured(case, args.load))
        if args.out is not None:
            _write(args.out, rows)


def _save(case: Case, folder: Path) -> None:
    place = folder / case.name.replace(" ", "_")
    place.mkdir(parents=True, exist_ok=True)
    listed: list[dict[str, Any]] = []
    for number, (name, us, program) in enumerate(forms(case)):
        program.save(place / f"{number}.fw")
        listed.append({"name": name, "predicted_us": us})
        print(f"{case.name}: {name}: {us:.1f} us predicted")
    (place / "forms.json").write_text(json.dumps(listed, indent=1) + "\n")


def _loaded(case: Case, folder: Path) -> Iterator[tuple[str, float, Program]]:
    place = folder / case.name.replace(" ", "_")
    for number, row in enumerate(json.loads((place / "forms.json").read_text())):
        yield row["name"], row["predicted_us"], fw.load(place / f"{number}.fw")


def _measured(case: Case, folder: Path | None) -> dict[str, Any]:
    import torch

    from bench.harness import interleaved

    generator = torch.Generator(device="cuda").manual_seed(0)
    count = max(2, -(-COPIES_NBYTES // (2 * case.k * (case.m + case.n))))
    copies = [
        [torch.randn(s, device="cuda", generator=generator).bfloat16() for s in case.shapes]
        for _ in range(count)
    ]
    predicted: dict[str, float] = {}
    errors: dict[str, float] = {}
    fns: dict[str, Callable[[], Any]] = {"torch": _in_turn(case.product, copies)}
    for name, us, program in forms(case) if folder is None else _loaded(case, folder):
        predicted[name] = us
        errors[name] = _error(case, copies[0], program(*copies[0])[0])
        fns[name] = _in_turn(_streamed(program), copies)
    times = interleaved(fns)
    print(case.name, f"torch {times['torch']:.1f} us", flush=True)
    for name, us in predicted.items():
        tflops = 2e-6 * case.m * case.n * case.k / times[name]
        wrong = "" if errors[name] < 1e-2 else f"  WRONG by {errors[name]:.3g}"
        found = f"{times[name]:.1f} us, {tflops:.0f} TFLOP/s, {us:.1f} predicted"
        print(f"    {name}: {found}{wrong}", flush=True)
    return {"name": case.name, "us": times, "predicted_us": predicted, "errors": errors}


def _streamed(program: Program) -> Callable[..., Any]:
    def run(*arrays: Any) -> Any:
        with fw.config(execution="stream"):
            return program(*arrays)[0]

    return run


def _in_turn(fn: Callable[..., Any], copies: list[list[Any]]) -> Callable[[], Any]:
    turn = itertools.cycle(copies)
    return lambda: fn(*next(turn))


def _error(case: Case, arrays: list[Any], got: Any) -> float:
    """Norm of the difference over the norm of the result in float64, of the last rows."""
    want = case.product(*(a.double() for a in arrays))[-ROWS_CHECKED:]
    return float((got[-ROWS_CHECKED:].double() - want).norm() / want.norm())


def _write(path: Path, rows: list[dict[str, Any]]) -> None:
    from bench.harness import environment

    report = {
        "date": datetime.date.today().isoformat(),
        "method": " ".join((__doc__ or "").split()),
        "environment": environment(),
        "products": rows,
    }
    path.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
