"""`python -m bench.product_sweep [--cases a,b] [--save DIR | --load DIR] [--out FILE]
[--seconds N]`

Every sensible plan of products of few tiles, `x @ w.T` in bfloat16, side by side with torch
(cuBLAS): a block for each tile, alone or in clusters ("whole"), rings of half the memory, so that
two blocks share a multiprocessor ("half"), blocks of one kernel that share the depth of a tile
("cluster", "slices", "vector"), and slices that a second kernel sums ("two kernels"), each with
operands as they are and, of few rows, exchanged. "program" is what `fw.compile` makes.

Method: operands are random and normal. Each form is one CUDA graph of calls on the next of several
copies of the operands, which no cache holds together; graphs are replayed in turn, medians of
rounds, microseconds a call. The program and torch are also timed as single calls on a stream
(`bench/harness.py`), which is what the host lets through. A form is right when its error against
float64 on 64 rows is below a hundredth, and when ten runs give the same bits. Compiling needs no
GPU: `--save` keeps the programs, `--load` measures them elsewhere, case by case within `--seconds`.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import fusewright as fw
from bench.graphs import Graph, graphed, medians_us, same_bits
from bench.split_products import by_hand, write_forms
from fusewright.frontends.tune import build
from fusewright.fusion.ir import MatMul
from fusewright.fusion.passes.slice_products import slice_products
from fusewright.fusion.passes.swap_products import swap_products
from fusewright.host.segment import Segment
from fusewright.program import Program
from fusewright.runtime.tuning_cache import TunedSchedule
from fusewright.schedule.heuristics.product_plans import (
    BARRIERS_NBYTES,
    DEPTH_NBYTES,
    STAGED_ITEMSIZE,
    ProductPlan,
    ProductSizes,
    in_split_clusters,
    menu_plans,
)
from fusewright.schedule.heuristics.product_suffix import PARTS
from fusewright.schedule.heuristics.product_times import predicted_us
from fusewright.target import target_of

TARGET = target_of("sm_90a")
SHAPES = (
    (512, 512, 4096),
    (64, 4096, 4096),
    (64, 4096, 28672),
    (256, 256, 16384),
    (1024, 1024, 4096),
    (128, 14336, 4096),
    (16, 8192, 8192),
)
"""Rows, columns and depth: the most wanted first."""
DEEP = (
    (256, 256, 131072),
    (512, 1024, 32768),
    (128, 128, 262144),
    (1024, 1024, 65536),
)
LARGE = ((5120, 5120, 5120), (4104, 4104, 4096), (256, 14336, 4096))
"""Whose last round of tiles decides: a block for each tile only."""
WITHIN = 1.7
"""Of the least predicted time of a mode: slower plans are not measured."""
MOST = {"whole": 8, "half": 6, "cluster": 10, "slices": 12, "vector": 2, "two kernels": 6}
"""Plans of each mode, the ones that are predicted fastest."""
SPLITS = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
FEW_ROWS = 128
"""With no more than these the operands are exchanged, too."""
LEAST_STEPS = 4
"""Tiles of the depth of a block, where several share it."""
COPIES_NBYTES = 300 << 20
RUNS = 10
ROWS_CHECKED = 64


@dataclass(frozen=True, slots=True)
class Form:
    """A way to compute a product of `sizes`, with the operands exchanged or not; `us` are predicted
    by the ranking of plans, `slices` are summed by a second kernel."""

    mode: str
    exchanged: bool
    plan: ProductPlan
    us: float
    sizes: ProductSizes
    slices: int = 1

    @property
    def name(self) -> str:
        p = self.plan
        words = [self.mode, *(["exchanged"] if self.exchanged else [])]
        words += [f"{p.rows}x{p.columns}", f"{p.stages} stages"]
        words += [f"{p.splits} splits"] if p.splits > 1 else []
        words += [f"{self.slices} slices"] if self.slices > 1 else []
        words += [f"cluster {p.cluster[0]}x{p.cluster[1]}"] if p.cluster_size > 1 else []
        return ", ".join(words)


def product(m: int, n: int, k: int) -> fw.Fusion:
    """`x @ w.T` of bfloat16."""
    specs = [fw.TensorSpec(s, "bfloat16") for s in ((m, k), (n, k))]
    return fw.trace(lambda x, w: fw.matmul(x, w.T), *specs)


def forms(m: int, n: int, k: int) -> list[Form]:
    """The forms of a product that are predicted fastest, of each mode so many as `MOST` says."""
    found: list[Form] = []
    for exchanged in (False, True) if m <= FEW_ROWS else (False,):
        sizes = ProductSizes(1, n, m, k) if exchanged else ProductSizes(1, m, n, k)
        found += _forms(sizes, exchanged)
    out: list[Form] = []
    for mode, most in MOST.items() if (m, n, k) not in LARGE else (("whole", MOST["whole"]),):
        own = sorted((f for f in found if f.mode == mode), key=lambda f: f.us)
        out += [f for f in own[:most] if f.us <= WITHIN * own[0].us]
    return out


def _forms(sizes: ProductSizes, exchanged: bool) -> Iterator[Form]:
    """All of them. Exchanged results leave by threads, across."""
    plans = list(menu_plans(sizes, TARGET, outputs=0 if exchanged else 1))
    for p in plans:
        yield Form("whole", exchanged, p, predicted_us(sizes, p, TARGET), sizes)
        if p.cluster_size > 1:
            continue
        if TARGET.multiprocessors < p.tiles(sizes) <= 2 * TARGET.multiprocessors:
            yield from _half(sizes, exchanged, replace(p, blocks=0, serpentine=False))
        waves = (n * TARGET.multiprocessors // p.tiles(sizes) for n in (1, 2))
        for splits in dict.fromkeys(n for n in (*SPLITS, *waves) if n > 1):
            yield from _split(sizes, exchanged, p, splits)
        for shared in in_split_clusters(p, sizes, TARGET):
            yield Form("cluster", exchanged, shared, predicted_us(sizes, shared, TARGET), sizes)
    for slices in (s for s in SPLITS if sizes.depth % (64 * s) == 0):
        part = replace(sizes, batch=slices, depth=sizes.depth // slices)
        for p in menu_plans(part, TARGET, outputs=0):
            if p.cluster_size == 1:
                us = predicted_us(part, p, TARGET, PARTS) + _sums_us(part)
                yield Form("two kernels", exchanged, p, us, part, slices)


def _half(sizes: ProductSizes, exchanged: bool, p: ProductPlan) -> Iterator[Form]:
    """A plan with a ring of which two fit a multiprocessor, where that is one of some tiles."""
    staged = min(p.staged, 64)
    room = TARGET.shared_nbytes_per_block // 2 - 2 * BARRIERS_NBYTES
    room -= p.rows * staged * STAGED_ITEMSIZE
    stages = min(p.stages, room // ((p.rows + p.columns) * DEPTH_NBYTES))
    if stages >= LEAST_STEPS and p.registers is None:
        half = replace(p, stages=stages, staged=staged)
        yield Form("half", exchanged, half, predicted_us(sizes, half, TARGET), sizes)


def _sums_us(part: ProductSizes) -> float:
    """Microseconds of the kernel that sums slices."""
    moved = 8 * part.batch * part.rows * part.columns
    return TARGET.calibration.sums_launch_us + moved / TARGET.memory_nbytes_per_us


def _split(sizes: ProductSizes, exchanged: bool, p: ProductPlan, splits: int) -> Iterator[Form]:
    """Blocks that share the depth, in at most two waves and at least a third of one."""
    blocks, steps = splits * p.tiles(sizes), sizes.depth // p.depth // splits
    sms = TARGET.multiprocessors
    if not sms // 3 <= blocks <= 2 * sms or steps < LEAST_STEPS or splits > sms:
        return
    ring = min(p.stages, steps)
    plan = replace(p, splits=splits, stages=ring, blocks=0, staged=0, serpentine=False)
    us = predicted_us(sizes, plan, TARGET)
    yield Form("slices", exchanged, plan, us, sizes)
    if blocks > sms:
        yield from _half(sizes, exchanged, plan)
    if splits <= 3:
        turns = replace(plan, mode="vector", stages=min(ring, 6))
        yield Form("vector", exchanged, turns, us + (splits - 2) * TARGET.calibration.hop_us, sizes)


def program_of(fusion: fw.Fusion, form: Form) -> Program | None:
    """The program of a form; None where the compiler makes another one of it."""
    placed = swap_products(fusion, lambda _: form.exchanged)
    if form.slices == 1:
        return by_hand(placed, form.plan)

    def chosen(s: Segment) -> TunedSchedule | None:
        is_product = any(isinstance(t.op, MatMul) for t in s.fusion.values)
        return TunedSchedule(form.plan.params, ()) if is_product else None

    made = build(slice_products(placed, lambda _: form.slices), TARGET, chosen)
    kept = [k for k in made.kernels if k.heuristic == form.plan.params]
    return made if kept and len(made.launches) == 2 else None


def main() -> None:
    """Compiles or measures, prints a table, and writes the JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", default="", help="comma-separated substrings of shapes")
    parser.add_argument("--save", type=Path, help="a folder for programs to be measured elsewhere")
    parser.add_argument("--load", type=Path, help="such a folder: nothing is compiled")
    parser.add_argument("--out", type=Path, help="a JSON file")
    parser.add_argument("--without", default="", help="comma-separated modes that are not measured")
    parser.add_argument("--seconds", type=float, default=600.0, help="no case begins later")
    args = parser.parse_args()
    start, wanted = time.monotonic(), [c for c in args.cases.split(",") if c]
    rows: list[dict[str, Any]] = []
    for m, n, k in (*SHAPES, *LARGE, *DEEP):
        name = f"{m}x{n}x{k}"
        if wanted and not any(w in name for w in wanted):
            continue
        if args.save is not None:
            _save((m, n, k), args.save / name)
            continue
        if time.monotonic() - start > args.seconds:
            print(f"{name}: left out, {args.seconds:.0f} s are over")
            continue
        made = _loaded(args.load / name) if args.load else _made((m, n, k))
        without = args.without.split(",")
        rows += _measured((m, n, k), ((x, p) for x, p in made if x.get("mode") not in without))
        if args.out is not None:
            write_forms(args.out, __doc__ or "", rows)


def _made(shape: tuple[int, int, int]) -> Iterator[tuple[dict[str, Any], Program]]:
    """What is known of each form before it is measured, and its program."""
    fusion = product(*shape)
    whole = fw.compile(fusion, target=TARGET)
    us = sum(float(k.predicted.us) for k in whole.kernels if k.predicted)
    chosen = [str(k.heuristic) for k in whole.kernels]
    yield {"form": "program", "predicted": us, "kernels": chosen}, whole
    for form in forms(*shape):
        made = program_of(fusion, form)
        if made is None:
            continue
        kernels = [k.predicted.us for k in made.kernels if k.predicted]
        known = {"form": form.name, "mode": form.mode, "exchanged": form.exchanged}
        known |= {"predicted": form.us, "kernel_us": float(sum(kernels)), "slices": form.slices}
        yield known | {"plan": asdict(form.plan)}, made


def _save(shape: tuple[int, int, int], folder: Path) -> None:
    """Programs, and what is known of them."""
    folder.mkdir(parents=True, exist_ok=True)
    listed: list[dict[str, Any]] = []
    for known, made in _made(shape):
        made.save(folder / f"{len(listed)}.fw")
        listed.append(known)
        print(f"{folder.name} {known['form']}: {known['predicted']:.1f} us", flush=True)
    (folder / "forms.json").write_text(json.dumps(listed, indent=1) + "\n")


def _loaded(folder: Path) -> Iterator[tuple[dict[str, Any], Program]]:
    for k, known in enumerate(json.loads((folder / "forms.json").read_text())):
        yield known, fw.load(folder / f"{k}.fw")


def _measured(
    shape: tuple[int, int, int], forms_made: Iterable[tuple[dict[str, Any], Program]]
) -> list[dict[str, Any]]:
    import torch

    from bench.harness import interleaved

    m, n, k = shape
    generator = torch.Generator(device="cuda").manual_seed(0)

    def operand(rows: int) -> Any:
        return torch.randn((rows, k), device="cuda", generator=generator).to(torch.bfloat16)

    count = max(2, -(-COPIES_NBYTES // (2 * k * (m + n))))
    copies = [(operand(m), operand(n)) for _ in range(count)]
    wanted = copies[0][0][:ROWS_CHECKED].double() @ copies[0][1].double().T
    fns: dict[str, Callable[..., Any]] = {"torch": lambda x, w: torch.matmul(x, w.T)}
    rows: list[dict[str, Any]] = [{"form": "torch"}]
    programs: dict[str, Program] = {}
    for known, made in forms_made:
        programs[known["form"]], fns[known["form"]] = made, _ours(made)
        rows.append(known)
    for row in rows:
        _check(row, fns, programs, copies[0], wanted)
    graphs: dict[str, Graph] = {}
    for row in (r for r in rows if r["form"] in fns):
        try:
            graphs[row["form"]] = graphed(fns[row["form"]], copies)
        except Exception as e:
            row["failure"] = f"graph: {type(e).__name__}: {e}"[:200]
    times = medians_us(graphs)
    turn = itertools.cycle(copies)
    alone = [f for f in ("torch", "program") if f in graphs]
    streamed = interleaved({f: lambda f=f: fns[f](*next(turn)) for f in alone})
    for row in rows:
        row["case"] = f"{m}x{n}x{k}"
        row["us"] = times.get(row["form"])
        row["stream_us"] = streamed.get(row["form"])
    for row in sorted(rows, key=lambda r: r["us"] or 1e9):
        print(_line(row), flush=True)
    return rows


def _clusters_at_once(program: Program) -> dict[str, int]:
    """How many clusters of a program of one kernel the device says that it runs at once."""
    from cuda.bindings import driver as api

    from fusewright.runtime.launch import LoadedKernel

    kernel = program.kernels[0]
    size = kernel.ir.cluster_size
    if size == 1 or len(program.kernels) > 1:
        return {}
    loaded, shape = LoadedKernel(kernel.cubin(), kernel.ir), api.CUlaunchConfig()
    launch = loaded.constant_shape
    loaded.allow_shared(launch.shared_nbytes, 0)
    shape.gridDimX, shape.gridDimY, shape.gridDimZ = size * TARGET.multiprocessors, 1, 1
    shape.blockDimX, shape.blockDimY, shape.blockDimZ = launch.block
    shape.sharedMemBytes = launch.shared_nbytes
    status, count = api.cuOccupancyMaxActiveClusters(loaded.handle, shape)
    return {"clusters_at_once": int(count)} if status == api.CUresult.CUDA_SUCCESS else {}


def _line(row: dict[str, Any]) -> str:
    said = f"{row['case']} {row['form']}: {row['us'] or 0:.2f} us"
    said += f", predicted {row['predicted']:.1f}" if "predicted" in row else ""
    said += f", as calls on a stream {row['stream_us']:.2f}" if row["stream_us"] else ""
    return said + (f", {row['failure']}" if "failure" in row else "")


def _ours(program: Program) -> Callable[..., Any]:
    def call(*arrays: Any) -> Any:
        with fw.config(execution="stream"):
            return program(*arrays)[0]

    return call


def _check(
    row: dict[str, Any],
    fns: dict[str, Any],
    programs: dict[str, Program],
    arrays: Any,
    wanted: Any,
) -> None:
    """Notes the error of a form, and takes those out that are wrong. Its name comes first, so that
    one that never ends is known."""
    print(f"checking {row['form']}", flush=True)
    try:
        row |= _clusters_at_once(programs[row["form"]]) if row["form"] in programs else {}
        fn = fns[row["form"]]
        first = fn(*arrays).clone()
        row["error"] = float((first[:ROWS_CHECKED].double() - wanted).norm() / wanted.norm())
        row["same"] = same_bits(fn, arrays, RUNS)
    except Exception as e:
        row["failure"] = f"{type(e).__name__}: {e}"[:200]
    if "failure" in row or not (row["error"] < 0.01 and row["same"]):
        row.setdefault("failure", "wrong, or differs from run to run")
        fns.pop(row["form"])


if __name__ == "__main__":
    main()
