"""`python -m bench.run --suite products [--cases a,b] [--peers torch,compile,nvfuser,quack]
[--neighbours] [--save DIR | --load DIR] [--out FILE] [--budget-seconds N]`

Method: operands are random and normal. What is measured is all of a program: a product with what
follows it. Each peer is one CUDA graph of calls, each on the next of several copies of the
operands, which no cache holds together; graphs are replayed in turn, medians of rounds,
microseconds a call, and the quarter and three quarters of the rounds beside them. `torch` is cuBLAS
with 32 MiB of workspace and without sums of 16 bits. The floor of a case is the larger of its
operations over 790 TFLOP/s (twice that in 8 bits, half of it in tf32) and a copy kernel of torch
over its bytes in the same run. Errors are against float64 on the first and last 512 rows. The clock
and the power are those that nvidia-smi tells while our graphs run behind each other. A neighbour
has the first peer alone. Compiling needs no GPU: `--save` keeps the programs, `--load` measures
them elsewhere.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import fusewright as fw
from bench import nvfuser_peer, quack_peer
from bench.graphs import graphed, rounds_us, same_bits
from bench.outcome import Outcome, geometric_mean, kept_share, said_plan
from bench.products import (
    COPIES_NBYTES,
    Product,
    batched,
    error_of,
    float8,
    gated,
    gelu,
    numel,
    plain,
    relu,
    residual,
    torch_dtype,
)
from fusewright.core.substitution import estimate
from fusewright.fusion.passes.narrow_products import narrow_products
from fusewright.host.product_forms import is_swapped, left_dtypes, product_slices, stored_axis
from fusewright.program import Program

ASKED = ("nvidia-smi", "--query-gpu=clocks.sm,power.draw", "--format=csv,noheader,nounits")
TFLOPS = 790.0
"""Of 16 bits, at the power that an H200 gives (the best that its own library reaches)."""
VECTOR_NBYTES = 16
SAME_RUNS_US = 200_000.0
"""Of the runs whose bits are compared."""
WORKSPACE = ":32768:1"
"""CUBLAS_WORKSPACE_CONFIG: one of 32 MiB."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A product of the suite by its sizes; `of` is the name of the one that it is a neighbour of,
    "" for the products of the suite themselves."""

    make: Callable[[int, int, int], Product]
    m: int
    n: int
    k: int
    of: str = ""

    @property
    def product(self) -> Product:
        return self.make(self.m, self.n, self.k)

    @property
    def name(self) -> str:
        return self.product.name

    def neighbours(self) -> Iterable[Entry]:
        """One row more, and rows of operands one vector of 16 bytes longer."""
        itemsize = fw.TensorSpec((1,), self.product.dtype(0)).dtype.nbytes
        yield replace(self, m=self.m + 1, of=self.name)
        yield replace(self, k=self.k + VECTOR_NBYTES // itemsize, of=self.name)


def layout(name: str, dtype: str = "bfloat16") -> Callable[[int, int, int], Product]:
    """A plain product of operands that lie so, by its sizes."""

    def make(m: int, n: int, k: int) -> Product:
        made = plain(name, m, n, k)
        if dtype == "bfloat16":
            return made
        return replace(made, name=f"{dtype} {made.name}", dtypes=(dtype, dtype))

    return make


def _gelu_tanh(m: int, n: int, k: int) -> Product:
    return gelu(m, n, k, "tanh")


def _small(m: int, n: int, k: int) -> Product:
    return batched(64, m, n, k)


TN = layout("TN")
TEN = (
    Entry(TN, 4096, 4096, 4096),
    Entry(TN, 8192, 8192, 8192),
    Entry(_gelu_tanh, 8192, 16384, 4096),
    Entry(residual, 8192, 4096, 16384),
    Entry(layout("NN"), 8192, 8192, 4096),
    Entry(gated, 8192, 14336, 4096),
    Entry(TN, 256, 256, 131072),
    Entry(relu, 512, 1024, 32768),
    Entry(TN, 64, 14336, 4096),
    Entry(_small, 1024, 1024, 128),
)
"""Whose geometric mean counts."""
LONGER = (
    *(Entry(TN, n, n, n) for n in (3072, 5120, 6144, 16384)),
    *(
        Entry(TN, m, n, k)
        for m in (1024, 4096, 8192)
        for n, k in ((6144, 4096), (28672, 4096), (4096, 14336))
    ),
    *(Entry(TN, m, 14336, 4096) for m in (1, 16, 128, 256)),
    Entry(TN, 4097, 4104, 4104),
    Entry(TN, 4096, 4096, 4100),
    *(Entry(layout(name), 8192, 8192, 4096) for name in ("TN", "TT")),
    Entry(layout("TN", "float16"), 8192, 8192, 4096),
    Entry(float8, 8192, 8192, 8192),
)
DEEP = (
    Entry(TN, 64, 4096, 28672),
    Entry(TN, 128, 128, 262144),
    Entry(TN, 1024, 1024, 65536),
    Entry(TN, 16, 8192, 8192),
)
"""Of few tiles and a long depth."""
SUITE = (*TEN, *LONGER, *DEEP)


def entries(wanted: Sequence[str], neighbours: bool) -> list[Entry]:
    """Those with one of these words in their names, all for none, and their neighbours behind all
    of them. Raises ValueError where there are none."""
    chosen = [e for e in SUITE if not wanted or any(w in e.name for w in wanted)]
    if not chosen:
        known = ", ".join(e.name for e in SUITE)
        raise ValueError(f"no product has {' or '.join(wanted)} in its name; there are {known}")
    return [*chosen, *(x for e in chosen for x in e.neighbours())] if neighbours else chosen


def save(chosen: Sequence[Entry], folder: Path) -> None:
    """Programs, and beside each what is known of it without a device. Those that are there stay."""
    folder.mkdir(parents=True, exist_ok=True)
    for e in chosen:
        here = folder / _file(e)
        if here.exists():
            continue
        program = _compiled(e.product)
        known = known_of(e.product, program)
        here.with_suffix(".json").write_text(json.dumps(known) + "\n")
        program.save(here)
        predicted = f"predicted {known['predicted_us']:.1f}"
        print(f"{e.name}: {predicted}, {said_plan(known['plan'])}", flush=True)


def _file(e: Entry) -> str:
    return e.name.translate(str.maketrans(" +()", "____")) + ".fw"


def _compiled(p: Product) -> Program:
    with fw.config(float32_matmul=p.precision):
        return fw.compile(p.fusion(), target="sm_90a")


def known_of(p: Product, program: Program) -> dict[str, Any]:
    """What is known without a device: kernels, the microseconds that all launches are predicted to
    take, and the plan."""
    kernels = [x.kernel for x in program.launches]
    times = [float(k.predicted.us) for k in kernels if k.predicted]
    return {
        "kernels": [str(k.heuristic) for k in kernels],
        "predicted_us": sum(times),
        "plan": plan_of(p, program),
    }


def plan_of(p: Product, program: Program) -> dict[str, Any]:
    """How a product is computed. By number the operands that are stored anew first; whether they
    stand in each other's place; the `mode` by which the depth is shared, and by how many, the
    `factor`: "whole", "two kernels" where a second one sums slices, else the blocks' own; and what
    was planned for each kernel. Products that share an operand have one form."""
    with fw.config(float32_matmul=p.precision):
        t, left = next(iter(left_dtypes(narrow_products(p.fusion())).items()))
        copied = [i for i in (0, 1) if stored_axis(t, i, program.target) is not None]
        slices, exchanged = product_slices(t, program.target), is_swapped(t, program.target, left)
    parts = [k for x in program.launches for k in x.kernel.parts or (x.kernel,)]
    kernels = [{"scheduler": h.scheduler, **dict(h.values)} for k in parts if (h := k.heuristic)]
    shared = next((k for k in kernels if "splits" in k), {"mode": "whole", "splits": 1})
    mode, factor = ("two kernels", slices) if slices > 1 else (shared["mode"], shared["splits"])
    return {
        "copied": copied,
        "exchanged": exchanged,
        "mode": mode,
        "factor": factor,
        "kernels": kernels,
    }


def run(
    chosen: Sequence[Entry],
    peers: Sequence[str],
    folder: Path | None,
    seconds: float,
    keep: Callable[[list[Outcome]], None],
) -> list[Outcome]:
    """Measures products while seconds last; `keep` sees all outcomes after each. One that cannot
    be measured is shown, and left out."""
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = WORKSPACE  # read when a handle is made
    start, longest = time.monotonic(), 0.0
    outcomes: list[Outcome] = []
    for done, e in enumerate(chosen):
        begun = time.monotonic()
        if begun - start + longest > seconds:
            print(f"out of time: {len(chosen) - done} of {len(chosen)} not measured")
            break
        print(f"measuring {e.name}", flush=True)  # so that one that never ends is known
        try:
            outcomes.append(_measured(e, peers, folder))
        except Exception as error:
            print(f"{e.name}: {type(error).__name__}: {error}"[:300], flush=True)
            continue
        finally:
            longest = max(longest, time.monotonic() - begun)
        print(said(outcomes[-1]), flush=True)
        keep(outcomes)
    print(summary(outcomes))
    return outcomes


def said(o: Outcome) -> str:
    """An outcome in one line, and its plan in another."""
    times = ", ".join(f"{k} {v:.1f}" for k, v in o.times_us.items())
    best = best_ratio(o)
    ratio = f", {best:.3f} of the best peer" if best else ""
    wrong = f", failures {o.failures}" if o.failures else ""
    predicted = f", predicted {o.facts['predicted_us']:.1f}" if o.facts.get("predicted_us") else ""
    error = o.errors.get("fusewright", float("nan"))
    first = f"{o.name}: floor {o.floor_us:.1f}, {times}{ratio}{predicted}, error {error:.1e}{wrong}"
    return f"{first}\n    {said_plan(o.facts['plan'])}" if "plan" in o.facts else first


def best_ratio(o: Outcome) -> float | None:
    """The best peer's time over ours; None where either did not run."""
    ours = o.times_us.get("fusewright")
    best = min((v for k, v in o.times_us.items() if k != "fusewright"), default=None)
    return best / ours if ours and best else None


def summary(outcomes: Sequence[Outcome]) -> str:
    """Geometric means and the worst of the ten, of the others, and of neighbours."""
    ten = {e.name for e in TEN}
    parts = {
        "the ten": [o for o in outcomes if o.name in ten and not o.of],
        "the longer list": [o for o in outcomes if o.name not in ten and not o.of],
        "neighbours": [o for o in outcomes if o.of],
    }
    lines: list[str] = []
    for what, own in parts.items():
        ratios = {o.name: r for o in own if (r := best_ratio(o))}
        if ratios:
            worst = min(ratios, key=lambda name: ratios[name])
            mean = geometric_mean(list(ratios.values()))
            least = f"worst {ratios[worst]:.3f} ({worst})"
            lines.append(f"{what}: {mean:.3f} of the best peer, {least}")
    kept = {o.name: k for o in outcomes if o.of and (k := kept_share(o, outcomes, "fusewright"))}
    if kept:
        worst = min(kept, key=lambda name: kept[name])
        mean = geometric_mean(list(kept.values()))
        lines.append(f"neighbours keep {mean:.3f} of the floor, worst {kept[worst]:.3f} ({worst})")
    return "\n".join(lines)


def _measured(e: Entry, peers: Sequence[str], folder: Path | None) -> Outcome:
    import torch

    p = e.product
    torch.backends.cuda.matmul.allow_tf32 = p.precision == "tf32"
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
    torch.compiler.reset()
    fusion = p.fusion()
    program = fw.load(folder / _file(e)) if folder else _compiled(p)
    known = json.loads((folder / _file(e)).with_suffix(".json").read_text()) if folder else None
    copies = _operands(p)
    fns: dict[str, Callable[..., Any]] = {}
    errors: dict[str, float] = {}
    failures: dict[str, str] = {}
    for peer in ("fusewright", *(peers if not e.of else peers[:1])):
        try:
            fn = _peer(peer, p, program, copies[0])
            if fn is None:
                continue
            errors[peer] = error_of(p, copies[0], fn(*copies[0]))
            fns[peer] = fn
        except Exception as error:
            failures[peer] = f"{type(error).__name__}: {error}"[:300]
    nbytes = sum(t.dtype.nbytes * numel([estimate(x) for x in t.shape]) for t in _moved(fusion))
    samples, replay = _times(fns, copies, nbytes)
    facts = _quarters(samples) | (known or known_of(p, program)) | ({} if e.of else _state(replay))
    facts["tflops"] = p.flop / statistics.median(samples["fusewright"]) / 1e6
    runs = int(SAME_RUNS_US / statistics.median(samples["fusewright"]))
    if not same_bits(fns["fusewright"], copies[0], max(10, min(1000, runs))):
        failures["fusewright"] = "its results differ from run to run"
    medians = {k: statistics.median(v) for k, v in samples.items()}
    itemsize = max(t.dtype.nbytes for t in fusion.inputs)
    peak = TFLOPS * {1: 2, 2: 1, 4: 0.5}[itemsize if "fp8" not in p.name else 1]
    floor = max(medians.pop("floor"), p.flop / peak / 1e6)
    return Outcome(
        e.name, nbytes, floor, medians, errors, facts.pop("kernels"), failures, e.of, facts
    )


def _moved(fusion: fw.Fusion) -> list[Any]:
    return [*fusion.inputs, *fusion.outputs]


def _operands(p: Product) -> list[list[Any]]:
    """Copies of random operands."""
    import torch

    kinds = [(s, torch_dtype(torch, p.dtype(k))) for k, s in enumerate(p.shapes)]
    nbytes = sum(d.itemsize * numel(s) for s, d in kinds)
    generator = torch.Generator(device="cuda").manual_seed(0)
    return [
        [torch.randn(s, device="cuda", generator=generator).to(d) for s, d in kinds]
        for _ in range(max(2, -(-COPIES_NBYTES // nbytes)))
    ]


def _peer(
    peer: str, p: Product, program: Program, arrays: Sequence[Any]
) -> Callable[..., Any] | None:
    """None where torch has one call for all of a product, which its compiler calls, too."""
    import torch

    def ours(*arrays: Any) -> Any:
        with fw.config(execution="stream"):
            return program(*arrays)[0]

    def eager(*arrays: Any) -> Any:
        return p.torch(torch, *arrays)

    modes = {"compile": "default", "max_autotune": "max-autotune-no-cudagraphs"}
    if peer == "fusewright":
        return ours
    if peer == "torch":
        return eager
    if peer == "compile" and not p.has_suffix:
        return None
    if peer in modes:
        return torch.compile(eager, dynamic=False, mode=modes[peer])
    if peer == "nvfuser":
        fused = nvfuser_peer.make(p.fusion(), arrays)
        return lambda *a: fused(*a)[0]
    if peer == "quack":
        return quack_peer.make(p, arrays)
    raise ValueError(f"there is no peer {peer!r}; use torch, compile, max_autotune, nvfuser, quack")


def _times(
    fns: Mapping[str, Callable[..., Any]], copies: Sequence[Any], nbytes: int
) -> tuple[dict[str, list[float]], Callable[[], None]]:
    """Microseconds a call of each round, of the functions and a copy of bytes; and a replay of
    our graph."""
    import torch

    source = torch.ones(nbytes // 2, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    graphs = {name: graphed(fn, copies) for name, fn in fns.items()}
    graphs["floor"] = graphed(lambda *_: target.copy_(source), copies)
    return rounds_us(graphs), graphs["fusewright"].replay


def _quarters(samples: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    cuts = {name: statistics.quantiles(us, n=4) for name, us in samples.items()}
    return {"quarters_us": {name: (round(q[0], 2), round(q[2], 2)) for name, q in cuts.items()}}


def _state(replay: Callable[[], None]) -> dict[str, Any]:
    """The clock of multiprocessors and the power while graphs run for some tenths of a second."""
    import torch

    start = time.monotonic()
    for _ in range(60):
        replay()
    try:
        told = subprocess.run(ASKED, capture_output=True, text=True, timeout=5, check=True).stdout
        is_running = not torch.cuda.current_stream().query()
        clock, power = (float(x) for x in told.splitlines()[0].split(","))
    except (OSError, subprocess.SubprocessError, ValueError):
        return {}
    finally:
        torch.cuda.synchronize()
    seconds = round(time.monotonic() - start, 3)
    return {"clock_mhz": clock, "power_w": power, "was_running": is_running, "seconds": seconds}
