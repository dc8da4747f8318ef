"""`python -m bench.ladder [--cases a,b] [--save DIR | --load DIR] [--out FILE]`

The ladder of a product, `x @ w.T` in bfloat16: each rung is the one before it and one thing more,
from fused multiply-adds to tiles in clusters, beside torch (cuBLAS). Predicted times are those that
the cost model gives the rung's schedule.

Method: that of `bench/ping_pong.py`: random normal operands, several copies of them, CUDA graphs of
calls replayed in turn, medians of rounds; a rung is right when its error against float64 on 64 rows
is below a hundredth, into results that held NaN, and when 50 runs give the same bits. Compiling
needs no GPU: `--save` keeps the programs of the rungs, by several processes at once, `--load`
measures them elsewhere.
"""

from __future__ import annotations

import argparse
import json
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import fusewright as fw
from bench.ping_pong import Case, measured, plain
from bench.split_products import write_forms
from fusewright.fusion.ir import MatMul
from fusewright.program import Program
from fusewright.schedule.heuristics.common import Params
from fusewright.schedule.heuristics.cost import cost
from fusewright.schedule.heuristics.matmul import (
    MatmulScheduler,
    schedule_products,
    sizes_of_product,
)
from fusewright.schedule.heuristics.product_plans import ProductPlan, in_order
from fusewright.schedule.heuristics.warp_matmul import schedule_warp_products
from fusewright.schedule.heuristics.warp_plans import WarpPlan
from fusewright.schedule.heuristics.work import work_of
from fusewright.schedule.schedule import ScheduledTensor
from fusewright.target import target_of

TARGET = target_of("sm_90a")
SIZES = (4096, 8192)
"""Of the cubes."""
CHOSEN = "chosen"
SCALARS = "fused multiply-adds"


@dataclass(frozen=True, slots=True)
class Rung:
    """A plan, and what it adds to the one before. Tiles of the copy engine in a ring have warps of
    their own for the copies if `has_roles`, else the first thread of those that multiply copies.
    `is_ordered`: tiles in the order, and on the blocks, that the scheduler takes for the sizes."""

    name: str
    adds: str
    plan: ProductPlan | WarpPlan
    has_roles: bool = True
    is_ordered: bool = False

    def fits(self, case: Case) -> Rung:
        """The rung with what the plan takes from the sizes of a case."""
        if not self.is_ordered or isinstance(self.plan, WarpPlan):
            return self
        product = MatmulScheduler(fw.Schedule(case.fusion()).flow, TARGET).flow
        sizes = sizes_of_product(next(t for t in product.stages if isinstance(t.op, MatMul)))
        return replace(self, plan=in_order(self.plan, sizes, TARGET))


_ONE = ProductPlan(128, 128, 64, 1, 1)
_RING = replace(_ONE, stages=5)
_LARGE = ProductPlan(128, 256, 64, 2, 4)
_BOXES = replace(_LARGE, staged=128)
RUNGS = (
    Rung(
        "single warps", "instructions of single warps, a ring of three tiles by cp.async",
        WarpPlan(128, 128, 32, 2, 4, 3),
    ),
    Rung("copy engine", "instructions of a warpgroup, tiles by the copy engine, one stage", _ONE),
    Rung("ring", "a ring of five stages", _RING, has_roles=False),
    Rung("roles", "a warp of its own for the copies", _RING),
    Rung("large tiles", "128 x 256 by two warpgroups, registers of the warp that copies", _LARGE),
    Rung("in order", "blocks that take several tiles, in groups", _LARGE, is_ordered=True),
    Rung("boxes", "results by stmatrix and boxes", _BOXES, is_ordered=True),
    Rung("clusters", "two blocks that copy for each other", replace(_BOXES, cluster=(2, 1)),
         is_ordered=True),
    Rung("in turn", "without clusters, 128 x 128 of each warpgroup in turn",
         ProductPlan(128, 128, 64, 2, 5, 128, ping_pong=True), is_ordered=True),
)  # fmt: skip
"""All but the first, whose products are a program without matrix instructions, and the last, which
is what the scheduler chooses."""
NAMES = (SCALARS, *(r.name for r in RUNGS), CHOSEN)


def cases() -> list[Case]:
    """The cubes."""
    return [Case(plain, n, n, n) for n in SIZES]


def scheduled(case: Case, rung: Rung) -> fw.Schedule:
    """The product of a case by a rung, by public calls."""
    s = fw.Schedule(case.fusion())
    MatmulScheduler(s.flow, TARGET)  # gives both operands of a product views of their own
    products = [t for t in s.flow.stages if isinstance(t.op, MatMul)]
    if isinstance(rung.plan, WarpPlan):
        schedule_warp_products(s, products, rung.plan)
        return s
    schedule_products(s, products, rung.plan)
    if not rung.has_roles:
        for t in (t for t in s.flow.stages if t.stages > 1):
            ScheduledTensor(s, t).circular_buffer(rung.plan.stages)
    return s


def by_scalars(x: Any, w: Any) -> Any:
    """`x @ w.T` as sums of products of float32, which no matrix instruction computes."""
    x, w = (fw.astype(t, "float32") for t in (x, w))
    return fw.astype(fw.sum(x[:, None, :] * w[None, :, :], axis=-1), "bfloat16")


def program_of(case: Case, name: str) -> tuple[Program, str, float]:
    """The program of a rung, its plan, and predicted microseconds."""
    specs = [fw.TensorSpec(s, "bfloat16") for s in case.shapes]
    if name in (SCALARS, CHOSEN):
        program = fw.compile(fw.trace(by_scalars if name == SCALARS else case.fn, *specs))
        kernel = program.kernels[0]
        assert kernel.predicted is not None, "the scheduler made it"
        return program, str(kernel.heuristic), kernel.predicted.us
    rung = next(r for r in RUNGS if r.name == name).fits(case)
    s = scheduled(case, rung)
    is_warps = isinstance(rung.plan, WarpPlan)
    params = Params.of("warp_matmul" if is_warps else "matmul", min_blocks=1)
    us = cost(work_of(s.flow, params), TARGET).us
    return fw.compile(s), str(rung.plan.params), us


def save(case: Case, name: str, folder: Path) -> tuple[str, str, float]:
    """Keeps the program of a rung of a case: its name, plan and prediction."""
    program, plan, us = program_of(case, name)
    program.save(folder / case.folder / f"{NAMES.index(name)}.fw")
    return name, plan, us


def save_all(folder: Path, wanted: list[Case], processes: int) -> None:
    """Keeps the programs of all rungs of cases, and by case a list of them."""
    for case in wanted:
        (folder / case.folder).mkdir(parents=True, exist_ok=True)
    with ProcessPoolExecutor(processes) as pool:
        made = {c: [pool.submit(save, c, name, folder) for name in NAMES] for c in wanted}
        for case, found in made.items():
            listed = [f.result() for f in found]
            (folder / case.folder / "forms.json").write_text(json.dumps(listed) + "\n")
            for name, plan, us in listed:
                print(f"{case.name:24} {name:20} {us:8.1f} us predicted, {plan}", flush=True)


def table(case: Case, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows of a case with the rate, the share of cuBLAS, and what each rung adds."""
    adds = {r.name: r.adds for r in RUNGS}
    peer = next(r["us"] for r in rows if r["form"] == "torch")
    for r in rows:
        if r["us"] is not None:
            r["tflops"] = 2 * case.m * case.n * case.k / r["us"] / 1e6
            r["of_torch"] = peer / r["us"]
        r["adds"] = adds.get(r["form"], "")
    return rows


def main() -> None:
    """Compiles or measures, prints a table, and writes the JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", default="", help="comma-separated substrings of names")
    parser.add_argument("--save", type=Path, help="a folder for programs to be measured elsewhere")
    parser.add_argument("--load", type=Path, help="such a folder: nothing is compiled")
    parser.add_argument("--processes", type=int, default=1, help="that compile")
    parser.add_argument("--out", type=Path, help="a JSON file")
    args = parser.parse_args()
    named = [w for w in args.cases.split(",") if w]
    wanted = [c for c in cases() if not named or any(w in c.name for w in named)]
    if args.save is not None:
        save_all(args.save, wanted, args.processes)
    if args.load is None:
        return
    found: list[dict[str, Any]] = []
    for case in wanted:
        found += table(case, list(measured(case, args.load)))
        for r in found[-len(NAMES) - 1 :]:
            us = " ".join(f"{r.get(k) or 0:9.1f}" for k in ("predicted", "us", "tflops"))
            share = f"{r.get('of_torch', 0):7.3f} {r.get('failure', '')}"
            print(f"{case.name:22} {r['form']:20} {us} {share}", flush=True)
        if args.out is not None:
            write_forms(args.out, __doc__ or "", found)


if __name__ == "__main__":
    main()
