"""`python -m bench.ping_pong [--cases a,b] [--save DIR | --load DIR] [--out FILE]`

Products whose tiles two warpgroups compute in turn, beside the plan that ranks first without and
beside torch (cuBLAS and torch's kernel of what follows): short depths, with and without functions.

Method: operands are random and normal, bfloat16, `x @ w.T`. A call works on the next of several
copies of them, so that none stays in the second-level cache; each form is a CUDA graph of calls,
graphs are replayed in turn, medians of rounds (`bench/graphs.py`). A form is right when its error
against float64 on 64 rows spread over all is below a hundredth, into results that held NaN, and
when 50 runs give the same bits. Compiling needs no GPU: `--save` keeps programs, `--load`
measures them.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fusewright as fw
from bench.graphs import Fn, graphed, medians_us
from bench.split_products import by_hand, write_forms
from fusewright.fusion.ir import MatMul
from fusewright.program import Program
from fusewright.schedule.heuristics.candidates import Candidate
from fusewright.schedule.heuristics.matmul import MatmulScheduler, sizes_of_product
from fusewright.schedule.heuristics.product_plans import ProductPlan
from fusewright.schedule.heuristics.product_suffix import suffix_of
from fusewright.schedule.heuristics.product_times import predicted_us
from fusewright.target import target_of

TARGET = target_of("sm_90a")
COPIES_NBYTES = 150 << 20
FORMS = 7
"""Of a case: without turns, and three tiles with turns, alone and in clusters."""
RUNS = 50
ROWS = 64
MOST_ERROR = 0.01


def plain(x: Any, w: Any) -> Any:
    return fw.matmul(x, w.T)


def bias_gelu(x: Any, w: Any, b: Any) -> Any:
    return fw.nn.gelu(fw.matmul(x, w.T) + b, approximate="tanh")


def gelu_backward(x: Any, w: Any, saved: Any) -> Any:
    return fw.nn.gelu_backward(fw.matmul(x, w.T), saved)


@dataclass(frozen=True, slots=True)
class Case:
    """What is computed, and the rows, columns and depth of its product."""

    fn: Callable[..., Any]
    m: int
    n: int
    k: int

    @property
    def name(self) -> str:
        return f"{self.fn.__name__} {self.m}x{self.n}x{self.k}"

    @property
    def folder(self) -> str:
        return self.name.replace(" ", "_")

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        extra = {"bias_gelu": [(self.n,)], "gelu_backward": [(self.m, self.n)]}
        return [(self.m, self.k), (self.n, self.k), *extra.get(self.fn.__name__, [])]

    def fusion(self) -> fw.Fusion:
        return fw.trace(self.fn, *[fw.TensorSpec(s, "bfloat16") for s in self.shapes])


CASES = (
    Case(gelu_backward, 12608, 3072, 768),
    Case(bias_gelu, 8192, 16384, 4096),
    *(Case(bias_gelu, 8192, 8192, k) for k in (512, 768, 1024)),
    *(Case(plain, 4096, 4096, k) for k in (512, 1024, 4096)),
    Case(gelu_backward, 8192, 16384, 4096),
    *(Case(bias_gelu, 8192, 8192, k) for k in (2048, 8192)),
)


def plans(case: Case) -> Iterator[tuple[str, ProductPlan, float]]:
    """The plan that ranks first without turns, and of those with turns the first of each tile, in
    clusters and alone, with predicted microseconds."""
    flow = fw.Schedule(case.fusion()).flow
    scheduler = MatmulScheduler(flow, TARGET)
    product = next(s for s in flow.stages if isinstance(s.op, MatMul))
    sizes, suffix = sizes_of_product(product), suffix_of(flow, product)
    listed = scheduler.candidates()
    found = [c.plan for c in listed if isinstance(c, Candidate) and c.plan.splits == 1]

    def us(p: ProductPlan) -> float:
        return predicted_us(sizes, p, TARGET, suffix)

    first = next(p for p in found if not p.ping_pong)
    yield "without", first, us(first)
    seen: set[tuple[int, bool]] = set()
    for p in found:
        key = p.columns, p.cluster_size > 1
        if p.ping_pong and key not in seen:
            seen.add(key)
            yield f"turns {p.rows}x{p.columns}{' clusters' if key[1] else ''}", p, us(p)


def save(case: Case, number: int, folder: Path) -> tuple[str, str, float] | None:
    """Keeps the program of a form of a case: its name, plan and prediction; None for no such."""
    found = list(plans(case))
    if number >= len(found):
        return None
    name, plan, us = found[number]
    by_hand(case.fusion(), plan).save(folder / case.folder / f"{number}.fw")
    return name, str(plan.params), us


def save_all(cases: Sequence[Case], folder: Path, processes: int, forms: int) -> None:
    """Keeps the programs of the first forms of cases, and by case a list of them, as each is
    made."""
    for case in cases:
        (folder / case.folder).mkdir(parents=True, exist_ok=True)
    with ProcessPoolExecutor(processes) as pool:
        made = {c: [pool.submit(save, c, n, folder) for n in range(forms)] for c in cases}
        for case, found in made.items():
            listed = [f.result() for f in found]
            (folder / case.folder / "forms.json").write_text(json.dumps(listed) + "\n")


def torch_fn(case: Case) -> Fn:
    """The same by torch."""
    import torch
    from torch.nn import functional

    def product(x: Any, w: Any) -> Any:
        return x @ w.T

    def forward(x: Any, w: Any, b: Any) -> Any:
        return functional.gelu(functional.linear(x, w, b), approximate="tanh")

    def backward(x: Any, w: Any, saved: Any) -> Any:
        return torch.ops.aten.gelu_backward(x @ w.T, saved)

    fns: dict[str, Fn] = {"plain": product, "bias_gelu": forward, "gelu_backward": backward}
    return fns[case.fn.__name__]


def measured(case: Case, folder: Path) -> Iterator[dict[str, Any]]:
    """A row for each form of a case that was saved."""
    import torch

    here = folder / case.folder
    listed = [x for x in json.loads((here / "forms.json").read_text()) if x is not None]
    g = torch.Generator(device="cuda").manual_seed(0)
    nbytes = sum(2 * a * (b[0] if b else 1) for a, *b in case.shapes)
    count = max(2, -(-COPIES_NBYTES // nbytes))
    copies = [
        [torch.randn(s, device="cuda", generator=g).to(torch.bfloat16) for s in case.shapes]
        for _ in range(count)
    ]
    rows = torch.linspace(0, case.m - 1, ROWS, device="cuda").long()
    x, w, *extra = (a.double() for a in copies[0])
    extra = [e[rows] if e.ndim == 2 else e for e in extra]
    wanted = torch_fn(case)(x[rows], w, *extra)
    fns: dict[str, Fn] = {"torch": torch_fn(case)}
    about: dict[str, dict[str, Any]] = {"torch": {}}
    for number, (name, params, us) in enumerate(listed):
        fns[name] = _ours(fw.load(here / f"{number}.fw"))
        about[name] = {"plan": params, "predicted": us}
        about[name] |= _state(fns[name], copies[0], wanted, rows, (case.m, case.n))
    right = {n: f for n, f in fns.items() if "failure" not in about[n]}
    times = medians_us({name: graphed(fn, copies) for name, fn in right.items()})
    for name in fns:
        yield {"case": case.name, "form": name, "us": times.get(name)} | about[name]


def _ours(p: Program) -> Fn:
    def call(*arrays: Any, out: Any = None) -> Any:
        with fw.config(execution="stream"):
            return p(*arrays, out=[out])[0]

    return call


def _state(fn: Fn, arrays: list[Any], wanted: Any, rows: Any, shape: Any) -> dict[str, Any]:
    """The error of a form into results that held NaN, and whether its bits stay the same."""
    import torch

    try:
        first = fn(*arrays, out=torch.full(shape, torch.nan, dtype=torch.bfloat16, device="cuda"))
        differs = first.isnan().any()
        for _ in range(RUNS):
            poisoned = torch.full_like(first, torch.nan)
            differs |= (fn(*arrays, out=poisoned) != first).any()
        error = float((first[rows].double() - wanted).norm() / wanted.norm())
    except Exception as e:
        return {"failure": f"{type(e).__name__}: {e}"[:200]}
    found = {"error": error, "same": not bool(differs)}
    return found if error < MOST_ERROR and found["same"] else found | {"failure": "wrong"}


def main() -> None:
    """Compiles or measures, prints a table, and writes the JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", default="", help="comma-separated substrings of names")
    parser.add_argument("--forms", type=int, default=FORMS, help="of each case, to be saved")
    parser.add_argument("--save", type=Path, help="a folder for programs to be measured elsewhere")
    parser.add_argument("--load", type=Path, help="such a folder: nothing is compiled")
    parser.add_argument("--processes", type=int, default=1, help="that compile")
    parser.add_argument("--out", type=Path, help="a JSON file")
    args = parser.parse_args()
    wanted = [w for w in args.cases.split(",") if w]
    cases = [c for c in CASES if not wanted or any(w in c.name for w in wanted)]
    if args.save is not None:
        save_all(cases, args.save, args.processes, args.forms)
        return
    found: list[dict[str, Any]] = []
    for case in cases:
        for row in measured(case, args.load):
            found.append(row)
            us = "-" if row["us"] is None else f"{row['us']:.1f}"
            print(f"{row['case']:32} {row['form']:24} {us:>8} us ", end="")
            print(f"{row.get('predicted', 0.0):8.1f} {row.get('failure', '')}", flush=True)
        if args.out is not None:
            write_forms(args.out, __doc__ or "", found)


if __name__ == "__main__":
    main()
