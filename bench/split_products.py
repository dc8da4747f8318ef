"""`python -m bench.split_products [--cases a,b] [--save DIR | --load DIR] [--out FILE]`

Products of few tiles and a long depth in every form: as `fw.compile` makes them ("program"), a
block for each tile ("whole"), slices that a second kernel sums ("two kernels"), and blocks of one
kernel that hand over in each mode, beside torch (cuBLAS). Predicted times stand beside measured
ones.

Method: operands are random and normal, bfloat16; a call works on the next of several copies of
them, so that none stays in the second-level cache. Each form is a CUDA graph of calls; graphs are
replayed in turn, medians of rounds (`bench/graphs.py`). A form is right when its error against
float64 on 64 rows is below a hundredth, and when a hundred runs give the same bits. Compiling needs
no GPU: `--save` keeps the programs, `--load` measures them elsewhere.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import fusewright as fw
from bench.graphs import graphed, medians_us, same_bits
from bench.turns import COPIES_NBYTES, RUNS
from fusewright.fusion.ir import MatMul
from fusewright.fusion.passes.slice_products import slice_products
from fusewright.host.product_forms import sizes_of, two_kernels
from fusewright.program import Program
from fusewright.schedule.heuristics.candidates import Candidate
from fusewright.schedule.heuristics.matmul import MatmulScheduler, schedule_products
from fusewright.schedule.heuristics.product_plans import (
    IN_TURNS,
    ProductPlan,
    in_slices_of_clusters,
    in_split_clusters,
    with_splits,
)
from fusewright.schedule.heuristics.product_times import predicted_us
from fusewright.target import target_of

TARGET = target_of("sm_90a")
LEAST_TILE = 128 * 128
"""Of which one wave is measured whatever its parts take of memory."""
CLUSTERS = 2
"""Plans whose blocks share a depth as a cluster, the ones that are predicted fastest."""
FEW = 8
"""Blocks that take turns, as well as all of a wave: a turn is a hop."""


@dataclass(frozen=True, slots=True)
class Case:
    """`relu(x @ w + b)` with a suffix, else `x @ w`."""

    m: int
    n: int
    k: int
    suffix: bool = False

    @property
    def name(self) -> str:
        return f"{self.m}x{self.n}x{self.k}" + ("+bias+relu" if self.suffix else "")

    def fusion(self) -> fw.Fusion:
        """Of row-major operands."""
        specs = [fw.TensorSpec(s, "bfloat16") for s in ((self.m, self.k), (self.k, self.n))]
        if not self.suffix:
            return fw.trace(fw.matmul, *specs)
        bias = fw.TensorSpec((self.n,), "bfloat16")
        return fw.trace(lambda x, w, b: fw.nn.relu(fw.matmul(x, w) + b), *specs, bias)


CASES = (
    Case(256, 256, 131072),
    Case(512, 1024, 32768, suffix=True),
    Case(128, 128, 262144),
    Case(64, 4096, 28672),
    Case(1024, 1024, 65536),
    Case(16, 8192, 8192),
)


def forms(case: Case) -> Iterator[tuple[str, float, Program]]:
    """Each form of a product: its name, its predicted microseconds, and the program."""
    fusion = case.fusion()
    yield "program", 0.0, fw.compile(fusion)
    product = next(t for t in fusion.values if isinstance(t.op, MatMul))
    us, count = two_kernels(product, TARGET)
    yield f"two kernels {count}", us, fw.compile(slice_products(fusion, lambda t: count))
    scheduler = MatmulScheduler(fw.Schedule(fusion).flow, TARGET)
    rated = [c.plan for c in scheduler.candidates() if isinstance(c, Candidate)]
    plans = [p for p in rated if p.blocks_together == 1]
    whole = next(p for p in plans if p.splits == 1)
    sizes = sizes_of(product)
    yield "whole", predicted_us(sizes, whole, TARGET), by_hand(fusion, whole)
    wave = next((p for p in plans if p.splits > 1), None) or next(
        (q for p in plans for q in with_splits(p, sizes, TARGET)), None
    )
    if wave is None:
        return
    more = {replace(wave, splits=n) for n in (wave.splits // 2, wave.splits * 2) if n > 1}
    for plan in (wave, *sorted(more, key=lambda p: p.splits)):
        if plan.splits <= TARGET.multiprocessors:
            us = predicted_us(sizes, plan, TARGET)
            yield f"slices {plan.splits}", us, by_hand(fusion, plan)
    for plan in dict.fromkeys(replace(p, splits=1, blocks=0, staged=0) for p in plans):
        n = min(TARGET.multiprocessors // plan.tiles(sizes), case.k // plan.depth)
        if n > 1 and plan.rows * plan.columns >= LEAST_TILE:
            fits = replace(plan, splits=n)
            name = f"slices {n} of {plan.rows}x{plan.columns}"
            yield name, predicted_us(sizes, fits, TARGET), by_hand(fusion, fits)
    for form in (in_split_clusters, in_slices_of_clusters):
        clusters = dict.fromkeys(q for p in plans if p.splits == 1 for q in form(p, sizes, TARGET))
        for plan in sorted(clusters, key=lambda p: predicted_us(sizes, p, TARGET))[:CLUSTERS]:
            together = f"slices {plan.splits} in clusters of {plan.first}"
            what = f"cluster {plan.splits}" if plan.mode == "cluster" else together
            name = f"{what} of {plan.rows}x{plan.columns}"
            yield name, predicted_us(sizes, plan, TARGET), by_hand(fusion, plan)
    for mode, n in itertools.product(IN_TURNS, sorted({min(FEW, wave.splits), wave.splits})):
        plan = replace(wave, mode=mode, splits=n, stages=min(wave.stages, 3))
        yield f"{mode} {n}", predicted_us(sizes, plan, TARGET), by_hand(fusion, plan)


def by_hand(fusion: fw.Fusion, plan: ProductPlan) -> Program:
    """The one kernel of a fusion of a product by a plan."""
    s = fw.Schedule(fusion)
    MatmulScheduler(s.flow, TARGET)  # gives both operands of a product views of their own
    schedule_products(s, [t for t in s.flow.stages if isinstance(t.op, MatMul)], plan)
    return fw.compile(s)


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
        rows += _measured(case, _loaded(case, args.load) if args.load else list(forms(case)))
        if args.out is not None:
            write_forms(args.out, __doc__ or "", rows)


def _save(case: Case, folder: Path) -> None:
    """Programs, and a list of their names and predictions."""
    here = folder / case.name
    here.mkdir(parents=True, exist_ok=True)
    listed: list[tuple[str, float]] = []
    for name, us, program in forms(case):
        program.save(here / f"{name.replace(' ', '_')}.fw")
        listed.append((name, us))
        print(f"{case.name} {name}: {us:.1f} us", flush=True)
    (here / "forms.json").write_text(json.dumps(listed) + "\n")


def _loaded(case: Case, folder: Path) -> list[tuple[str, float, Program]]:
    here = folder / case.name
    listed = json.loads((here / "forms.json").read_text())
    return [(name, us, fw.load(here / f"{name.replace(' ', '_')}.fw")) for name, us in listed]


def _measured(case: Case, made: list[tuple[str, float, Program]]) -> list[dict[str, Any]]:
    import torch

    g = torch.Generator(device="cuda").manual_seed(0)
    shapes = ((case.m, case.k), (case.k, case.n), *(((case.n,),) if case.suffix else ()))

    def operands() -> list[Any]:
        return [torch.randn(s, device="cuda", generator=g).to(torch.bfloat16) for s in shapes]

    nbytes = 2 * case.k * (case.m + case.n)
    copies = [operands() for _ in range(max(2, -(-COPIES_NBYTES // nbytes)))]

    def peer(x: Any, w: Any, *b: Any) -> Any:
        return torch.relu(torch.addmm(b[0], x, w)) if b else torch.matmul(x, w)

    def ours(p: Program) -> Any:
        def call(*x: Any) -> Any:
            with fw.config(execution="stream"):
                return p(*x)[0]

        return call

    fns = {name: ours(p) for name, _, p in made} | {"torch": peer}
    x, w, *b = copies[0]
    wanted = x[:64].double() @ w.double()
    wanted = torch.relu(wanted + b[0].double()) if b else wanted
    predicted = {name: us for name, us, _ in made}
    states = {name: _state(fn, copies[0], wanted) for name, fn in fns.items()}
    right = {name: fn for name, fn in fns.items() if "failure" not in states[name]}
    times = medians_us({name: graphed(fn, copies) for name, fn in right.items()})
    rows: list[dict[str, Any]] = []
    for name, us in times.items():
        row = {"case": case.name, "form": name, "us": us, "predicted": predicted.get(name)}
        rows.append(row | {"nbytes": nbytes} | states[name])
        print(
            f"{case.name} {name}: {us:.1f} us, predicted {predicted.get(name, 0):.1f}, "
            f"{nbytes / us / 1e3:.0f} GB/s, {states[name]}",
            flush=True,
        )
    wrong = [{"case": case.name, "form": n} | states[n] for n in fns if n not in times]
    print(*wrong, sep="\n", flush=True)
    return rows + wrong


def _state(fn: Any, arrays: list[Any], wanted: Any) -> dict[str, Any]:
    """The error of a form, whether its bits are the same in all runs, and what fails."""
    try:
        first = fn(*arrays)
        error = float((first[:64].double() - wanted).norm() / wanted.norm())
        same = same_bits(fn, arrays, RUNS)
    except Exception as e:
        return {"failure": f"{type(e).__name__}: {e}"[:200]}
    found = {"error": error, "same": same}
    return found if error < 0.01 and same else found | {"failure": "wrong, or differs"}


def write_forms(path: Path, method: str, rows: list[dict[str, Any]]) -> None:
    """A dated report of forms that were measured on the device at hand."""
    from bench.harness import environment

    report = {
        "date": datetime.date.today().isoformat(),
        "method": " ".join(method.split()),
        "environment": environment(),
        "forms": rows,
    }
    path.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
