"""`python -m bench.products [--cases a,b] [--peers torch,compile] [--clusters N]
[--save DIR | --load DIR] [--out FILE]`

Method: operands are random and normal; results are compared with the same function in float64 on
slices of rows. Ours, `torch` (cuBLAS, and kernels of its own for what follows a product) and
torch.compile run in turn on one stream, medians of rounds (`bench/harness.py`); a call works on the
next of several copies of the operands, so that no operand stays in the second-level cache.
With `--clusters N` the N plans in clusters that are predicted fastest run in turn with the program,
where the program's own plan is in none, else the N fastest outside of clusters; one whose results
are not the same bits in ten runs counts as a failure. Compiling needs no GPU: `--save` keeps the
programs, `--load` measures them elsewhere.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import fusewright as fw
from fusewright.frontends.tune import build
from fusewright.host.segment import Segment, structure_of
from fusewright.program import Program
from fusewright.runtime.tuning_cache import TunedSchedule
from fusewright.schedule.heuristics.rating import Rated

DTYPE = "bfloat16"
COPIES_NBYTES = 256 << 20
"""Of the copies of the operands that calls take in turn: several times the second-level cache."""
ROWS_CHECKED = 512

Fn = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Product:
    """`ours` and `torch(torch, ..)` of arrays of these shapes; `flop` of the products in it."""

    name: str
    ours: Fn
    torch: Fn
    shapes: tuple[tuple[int, ...], ...]
    flop: int
    rows: tuple[int, ...] = (0,)
    """The arguments that are cut in rows as the result is, for the check."""
    dtypes: tuple[str, ...] = ()
    """Of the arguments, where not all are bfloat16; products of float32 are tf32, as in torch."""
    precision: str = "tf32"
    """Of products of float32: "tf32" or "ieee"."""
    has_suffix: bool = False
    """Whether something that torch has no one call for follows the product."""
    quack: Fn | None = None
    """The same by one kernel of `quack.gemm_interface`, of which it is given the module."""

    def dtype(self, k: int) -> str:
        """The dtype of argument `k`."""
        return self.dtypes[k] if self.dtypes else DTYPE

    def fusion(self) -> fw.Fusion:
        """The program of ours."""
        return fw.trace(
            self.ours, *(fw.TensorSpec(s, self.dtype(k)) for k, s in enumerate(self.shapes))
        )


def plain(layout: str, m: int, n: int, k: int) -> Product:
    """`layout`: T where an operand is contiguous along k, N where along the other axis; BLAS calls
    a row-major first operand transposed."""
    a, b = layout
    first = (m, k) if a == "T" else (k, m)
    second = (n, k) if b == "N" else (k, n)

    def ours(x: Any, w: Any) -> Any:
        return fw.matmul(x if a == "T" else x.T, w.T if b == "N" else w)

    def torch_(torch: Any, x: Any, w: Any) -> Any:
        return torch.matmul(x if a == "T" else x.T, w.T if b == "N" else w)

    def quack(interface: Any, x: Any, w: Any) -> Any:
        return interface.gemm(x if a == "T" else x.T, w.T if b == "N" else w)

    return Product(
        f"{layout} {m}x{n}x{k}",
        ours,
        torch_,
        (first, second),
        2 * m * n * k,
        (0,) if a == "T" else (),
        quack=quack,
    )


def relu(m: int, n: int, k: int) -> Product:
    """A linear layer and relu."""
    return Product(
        f"linear+relu {m}x{n}x{k}",
        lambda x, w, b: fw.nn.relu(fw.nn.linear(x, w, b)),
        lambda torch, x, w, b: torch.relu(torch.nn.functional.linear(x, w, b)),
        ((m, k), (n, k), (n,)),
        2 * m * n * k,
        has_suffix=True,
        quack=lambda q, x, w, b: _activated(q, x, w.T, b, "relu"),
    )


def _activated(interface: Any, x: Any, w: Any, b: Any, activation: str) -> Any:
    """A function of a product and a bias, by quack: the second of what it returns."""
    return interface.gemm_act(x, w, bias=b, activation=activation, store_preact=False)[1]


def gelu(m: int, n: int, k: int, approximate: str = "none") -> Product:
    """A bias for each column, and the exact gelu or the one by tanh."""
    kind = "" if approximate == "none" else f"({approximate})"
    return Product(
        f"NN+bias+gelu{kind} {m}x{n}x{k}",
        lambda x, w, b: fw.nn.gelu(fw.matmul(x, w) + b, approximate),
        lambda torch, x, w, b: torch.nn.functional.gelu(
            torch.matmul(x, w) + b, approximate=approximate
        ),
        ((m, k), (k, n), (n,)),
        2 * m * n * k,
        has_suffix=True,
        quack=(lambda q, x, w, b: _activated(q, x, w, b, "gelu_tanh_approx"))
        if approximate == "tanh"
        else None,
    )


def residual(m: int, n: int, k: int) -> Product:
    """A tensor of the result's size is added."""
    return Product(
        f"residual {m}x{n}x{k}",
        lambda x, w, r: fw.matmul(x, w.T) + r,
        lambda torch, x, w, r: torch.matmul(x, w.T) + r,
        ((m, k), (n, k), (m, n)),
        2 * m * n * k,
        (0, 2),
        has_suffix=True,
        quack=lambda q, x, w, r: q.gemm_add(x, w.T, r),
    )


def gated(m: int, n: int, k: int) -> Product:
    """Two products of equal sizes, one of which gates the other."""
    return Product(
        f"gated {m}x{n}x{k}",
        lambda x, g, u: fw.nn.silu(fw.matmul(x, g.T)) * fw.matmul(x, u.T),
        lambda torch, x, g, u: torch.nn.functional.silu(x @ g.T) * (x @ u.T),
        ((m, k), (n, k), (n, k)),
        4 * m * n * k,
        has_suffix=True,
    )


def _stacked(m: int, n: int, k: int) -> Product:
    """The gated pair with one weight, whose halves are gate and up."""
    return Product(
        f"stacked {m}x{n}x{k}",
        lambda x, w: fw.nn.silu(fw.matmul(x, w.T)[:, :n]) * fw.matmul(x, w.T)[:, n:],
        lambda torch, x, w: torch.nn.functional.silu((h := x @ w.T)[:, :n]) * h[:, n:],
        ((m, k), (2 * n, k)),
        4 * m * n * k,
        has_suffix=True,
    )


def batched(b: int, m: int, n: int, k: int) -> Product:
    """Matrices, the second operand's transposed."""
    return Product(
        f"batch {b}x{m}x{n}x{k}",
        lambda x, w: fw.matmul(x, fw.permute_dims(w, (0, 2, 1))),
        lambda torch, x, w: torch.matmul(x, w.transpose(-1, -2)),
        ((b, m, k), (b, n, k)),
        2 * b * m * n * k,
        (0, 1),
        quack=lambda q, x, w: q.gemm(x, w.transpose(-1, -2)),
    )


def _tf32(layout: str, m: int, n: int, k: int) -> Product:
    own = plain(layout, m, n, k)
    return replace(own, name=f"tf32 {own.name}", dtypes=("float32", "float32"))


def float8(m: int, n: int, k: int) -> Product:
    """With a scale for each operand, and a result of bfloat16."""

    def ours(x: Any, w: Any, a: Any, b: Any) -> Any:
        wide = (fw.astype(v, "float32") for v in (x, w.T))
        return fw.astype(fw.matmul(*wide) * a * b, "bfloat16")

    def torch_(torch: Any, x: Any, w: Any, a: Any, b: Any) -> Any:
        if x.dtype is torch.float64:
            return x @ w.T * a * b
        return torch._scaled_mm(x, w.T, scale_a=a, scale_b=b, out_dtype=torch.bfloat16)

    dtypes = ("float8_e4m3", "float8_e4m3", "float32", "float32")
    shapes = ((m, k), (n, k), (), ())
    return Product(f"fp8 {m}x{n}x{k}", ours, torch_, shapes, 2 * m * n * k, dtypes=dtypes)


def _ieee(layout: str, m: int, n: int, k: int) -> Product:
    """A product of float32 that nothing rounds, here or in torch."""
    own = plain(layout, m, n, k)
    return replace(own, name=f"ieee {own.name}", dtypes=("float32", "float32"), precision="ieee")


def _ieee_gelu(m: int, n: int, k: int) -> Product:
    own = gelu(m, n, k)
    return replace(own, name=f"ieee {own.name}", dtypes=("float32",) * 3, precision="ieee")


PRODUCTS: tuple[Product, ...] = (
    plain("TN", 4096, 4096, 4096),
    plain("TN", 8192, 8192, 8192),
    plain("TT", 8192, 8192, 4096),
    gelu(8192, 16384, 4096),
    relu(4096, 4096, 4096),
    relu(8192, 8192, 8192),
    gated(8192, 14336, 4096),
    plain("TN", 128, 4096, 4096),
    plain("TN", 4097, 4104, 4104),
    plain("NN", 4096, 4096, 4096),
    plain("NT", 4096, 4096, 4096),
    _stacked(8192, 14336, 4096),
    plain("TT", 4100, 4100, 4100),
    plain("TN", 4096, 4096, 4100),
    *(plain("TN", m, 4096, 4096) for m in (1, 2, 3, 7, 16, 32, 64)),
    *(plain("TN", m, 14336, 4096) for m in (16, 64)),
    plain("TN", 64, 4096, 28672),
    batched(64, 1024, 1024, 128),
    plain("TN", 4096, 4096, 4104),
    plain("TT", 3, 4096, 4096),
    plain("TN", 256, 256, 131072),
    plain("TN", 512, 512, 4096),
    plain("TN", 256, 4096, 4096),
    _tf32("TN", 4096, 4096, 4096),
    _tf32("TT", 4096, 4096, 4096),
    _tf32("TN", 8192, 8192, 8192),
    float8(4096, 4096, 4096),
    float8(8192, 8192, 8192),
    _ieee("TN", 4096, 4096, 4096),
    _ieee("TT", 4096, 4096, 4096),
    _ieee("TN", 1024, 1024, 1024),
    _ieee("TT", 4097, 4099, 4101),
    _ieee_gelu(8192, 4096, 4096),
    plain("TN", 4096, 4096, 4099),
    plain("TN", 520, 332, 1028),
    plain("TT", 1028, 1028, 1028),
)
"""Row-major products are TT here: x @ w with both as they are."""


def main() -> None:
    """Compiles or measures products, prints a table, and writes the JSON."""
    args = _arguments()
    chosen = [p for p in PRODUCTS if not args.cases or any(c in p.name for c in args.cases)]
    rows: list[dict[str, Any]] = []
    for p in chosen:
        program = _program(p, args)
        clusters = _clusters(p, program, args) if args.clusters else {}
        if args.save is not None:
            program.save(args.save / _file(p))
            kernels = ", ".join(str(k.heuristic) for k in program.kernels)
            print(f"{p.name}: {kernels}", *program.reasons, *clusters, sep="\n    ")
            continue
        rows.append(_measured(p, program, args.peers, clusters))
        print(line_of(rows[-1]), flush=True)
        if args.out is not None:
            _write(args.out, rows)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--cases", default="", help="comma-separated substrings of names")
    parser.add_argument("--peers", default="torch,compile", help="of torch,compile")
    parser.add_argument("--save", type=Path, help="a folder for programs to be measured elsewhere")
    parser.add_argument("--load", type=Path, help="such a folder: nothing is compiled")
    parser.add_argument("--out", type=Path, help="a JSON file")
    parser.add_argument("--clusters", type=int, default=0, help="plans with clusters, beside ours")
    parser.add_argument("--target", help="sm_90: as a chip without instructions of warpgroups")
    args = parser.parse_args()
    args.cases = [c for c in args.cases.split(",") if c]
    args.peers = [p for p in args.peers.split(",") if p]
    if args.save is not None:
        args.save.mkdir(parents=True, exist_ok=True)
    return args


def _file(p: Product) -> str:
    return p.name.replace(" ", "_").replace("+", "_") + ".fw"


def _program(p: Product, args: argparse.Namespace) -> Program:
    if args.load is not None:
        return fw.load(args.load / _file(p))
    with fw.config(float32_matmul=p.precision):
        return fw.compile(p.fusion(), target=args.target)


def _clusters(p: Product, program: Program, args: argparse.Namespace) -> dict[str, Program]:
    """By name, with its predicted time, the program with the product in clusters."""
    names = (args.load or args.save or Path()) / _file(p).replace(".fw", ".clusters.json")
    if args.load is not None:
        listed = json.loads(names.read_text())
        return {name: fw.load(args.load / file) for name, file in listed.items()}
    found: dict[str, Program] = {}
    with fw.config(float32_matmul=p.precision):
        for plan, made in plans_in_clusters(p.fusion(), program, args.clusters):
            us = sum(float(k.predicted.us) for k in made.kernels if k.predicted)
            found[f"{plan} ({us:.1f} us predicted)"] = made
    if args.save is not None:
        files = {name: _file(p).replace(".fw", f".{k}.fw") for k, name in enumerate(found)}
        for name, made in found.items():
            made.save(args.save / files[name])
        names.write_text(json.dumps(files, indent=1) + "\n")
    return found


def plans_in_clusters(
    fusion: fw.Fusion, program: Program, count: int
) -> Iterator[tuple[str, Program]]:
    """The candidates of a program's product whose blocks stand in clusters, or outside of them
    where those of its plan do, the ones that are predicted fastest first, and the program with
    each."""
    found = (k for k in program.kernels if k.heuristic and k.heuristic.scheduler == "matmul")
    kernel = next(found, None)
    if kernel is None or kernel.segment is None:
        return
    segment = kernel.segment
    rated = [c for c in kernel.candidates if isinstance(c, Rated)]
    own = "cluster" in dict(kernel.heuristic.values) if kernel.heuristic else False
    apart = [c for c in rated if ("cluster" in dict(c.params.values)) != own]
    for c in sorted(apart, key=lambda c: c.cost.us)[:count]:
        kept = TunedSchedule(c.params, ())

        def tuned(s: Segment, kept: TunedSchedule = kept) -> TunedSchedule | None:
            return kept if structure_of(s.fusion)[0] == structure_of(segment.fusion)[0] else None

        yield str(c.params), build(fusion, program.target, tuned)


def _measured(
    p: Product, program: Program, peers: Sequence[str], clusters: Mapping[str, Program]
) -> dict[str, Any]:
    import torch

    from bench.harness import interleaved

    torch.backends.cuda.matmul.allow_tf32 = p.precision == "tf32"
    dtypes = [torch_dtype(torch, p.dtype(k)) for k in range(len(p.shapes))]
    kinds = list(zip(p.shapes, dtypes, strict=True))
    nbytes = sum(d.itemsize * numel(s) for s, d in kinds)
    count = max(2, -(-COPIES_NBYTES // nbytes))
    generator = torch.Generator(device="cuda").manual_seed(0)
    copies = [
        [torch.randn(s, device="cuda", generator=generator).to(d) for s, d in kinds]
        for _ in range(count)
    ]
    fns, errors, failures = {}, {}, {}
    for peer in ("fusewright", *peers):
        try:
            fn = _peer(peer, p, program)
            errors[peer] = error_of(p, copies[0], fn(*copies[0]))
            torch.cuda.synchronize()
            fns[peer] = in_turn(fn, copies)
        except Exception as e:
            failures[peer] = f"{type(e).__name__}: {e}"[:300]
    for name, made in clusters.items():
        fn = _streamed(made)
        errors[name] = error_of(p, copies[0], fn(*copies[0]))
        if _repeats(fn, copies[0]):
            fns[name] = in_turn(fn, copies)
        else:
            failures[name] = "its results differ from run to run"
    times = interleaved(fns)
    return {
        "name": p.name,
        "us": times,
        "tflops": {k: p.flop / t / 1e6 for k, t in times.items()},
        "errors": errors,
        "failures": failures,
        "clusters": list(clusters),
        "kernels": [f"{k.name}: {k.heuristic}" for k in program.kernels],
    }


def torch_dtype(torch: Any, name: str) -> Any:
    return getattr(torch, {"float8_e4m3": "float8_e4m3fn"}.get(name, name))


def numel(shape: Sequence[int]) -> int:
    n = 1
    for s in shape:
        n *= s
    return n


def in_turn(fn: Fn, copies: Sequence[Sequence[Any]]) -> Callable[[], Any]:
    turn = itertools.cycle(copies)
    return lambda: fn(*next(turn))


def _streamed(program: Program) -> Fn:
    def ours(*arrays: Any) -> Any:
        with fw.config(execution="stream"):
            return program(*arrays)[0]

    return ours


def _repeats(fn: Fn, arrays: Sequence[Any]) -> bool:
    """Whether ten runs give the same bits."""
    first = fn(*arrays).clone()
    return all(bool((fn(*arrays) == first).all()) for _ in range(10))


def _peer(peer: str, p: Product, program: Program) -> Fn:
    import torch

    match peer:
        case "fusewright":
            return _streamed(program)
        case "torch":
            return lambda *arrays: p.torch(torch, *arrays)
        case "compile":
            return torch.compile(lambda *arrays: p.torch(torch, *arrays), dynamic=False)
        case _:
            raise ValueError(f"there is no peer {peer!r}; use torch, compile")


def error_of(p: Product, arrays: Sequence[Any], got: Any) -> float:
    """Norm of the difference over the norm of the result in float64, of the first and last rows."""
    import torch

    worst = 0.0
    total = got.shape[0]
    for start in (0, max(0, total - ROWS_CHECKED)):
        part = slice(start, start + ROWS_CHECKED)
        wide = [a[part].double() if k in p.rows else a.double() for k, a in enumerate(arrays)]
        want = p.torch(torch, *wide)
        want = want if p.rows else want[part]
        found = got[part].double()
        if not torch.isfinite(found).all():
            return float("inf")
        worst = max(worst, float((found - want).norm() / want.norm()))
        del wide, want
    return worst


def line_of(row: dict[str, Any]) -> str:
    apart = set(row["clusters"])
    us = {k: v for k, v in row["us"].items() if k not in apart}
    ours = us.get("fusewright")
    cells = [f"{k} {v:.1f} us {row['tflops'][k]:.0f} TF" for k, v in us.items()]
    best = min((v for k, v in us.items() if k != "fusewright"), default=None)
    ratio = f"  {best / ours:.3f}x the best peer" if ours and best else ""
    wrong = f"  errors {row['errors']}" if row["errors"] else ""
    plans = [
        f"    {k}: {v:.1f} us {row['tflops'][k]:.0f} TF"
        + (f"  {ours / v:.3f}x ours" if ours else "")
        for k, v in row["us"].items()
        if k in apart
    ]
    first = f"{row['name']}: {', '.join(cells)}{ratio}{wrong} {row['failures'] or ''}"
    return "\n".join([first, *plans])


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
