"""`python -m bench.layouts [--out FILE]`: channels-last programs of several kernels.

Without a GPU: launches, bytes and predicted times of each program as an image in channels-last
memory, and of the same program where its axes lie in C order. On a GPU: the channels-last program
beside torch.compile, both captured as CUDA graphs, in turn with a copy of the least bytes; medians
of 7 rounds, and the error against float64.
"""

from __future__ import annotations

import argparse
import datetime
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fusewright as fw
from fusewright.report.predicted import serial_us, timed
from fusewright.runtime.device import has_gpu

Function = Callable[[Any, Any], Any]
"""Of a namespace, fw or torch, and an image as (n, c, h, w)."""
LAST, SHAPE = (0, 2, 3, 1), (32, 256, 56, 56)


def norm(xp: Any, x: Any, axes: tuple[int, ...]) -> Any:
    """Mean 0 and variance 1 along axes."""
    d = x - mean(xp, x, axes)
    return d * (mean(xp, d * d, axes) + 1e-5) ** -0.5


def mean(xp: Any, x: Any, axes: tuple[int, ...]) -> Any:
    """Along axes, which stay with size 1."""
    if xp is fw:
        return fw.mean(x, axis=axes, keepdims=True)
    return x.mean(axes, keepdim=True)


def scanned(xp: Any, x: Any, axis: int) -> Any:
    """Prefix sums."""
    return fw.cumulative_sum(x, axis=axis) if xp is fw else xp.cumsum(x, axis)


CASES: dict[str, Function] = {
    "norm over c, then n, h, w": lambda xp, x: norm(xp, norm(xp, x, (1,)), (0, 2, 3)),
    "norm over h, w, then c": lambda xp, x: norm(xp, norm(xp, x, (2, 3)), (1,)),
    "norm over n, h, w, then c": lambda xp, x: norm(xp, norm(xp, x, (0, 2, 3)), (1,)),
    "norm over c, scan along w": lambda xp, x: scanned(xp, norm(xp, x, (1,)), 3),
    "norm over c, scan along c": lambda xp, x: scanned(xp, norm(xp, x, (1,)), 1),
    "norm over n, h, w, and skip": lambda xp, x: xp.exp(norm(xp, x, (0, 2, 3))) + x,
    "sums of a norm": lambda xp, x: mean(xp, xp.exp(norm(xp, x, (1,))), (2, 3)),
}


def program_of(fn: Function, shape: tuple[int, ...], *, last: bool) -> fw.Program:
    """The program of an image in channels-last memory, with results like it; or in C order."""
    _, c, h, w = shape
    strides = (c * h * w, 1, w * c, c) if last else None

    def stored(x: Any) -> Any:
        made = fn(fw, x)
        return fw.permute_dims(made, LAST) if last else made

    return fw.compile(fw.trace(stored, fw.TensorSpec(shape, "float32", strides=strides)))


def predicted(name: str) -> dict[str, Any]:
    """What the model says of a case, channels last and in C order."""
    out: dict[str, Any] = {"case": name}
    for what, last in (("channels last", True), ("C order", False)):
        program = program_of(CASES[name], SHAPE, last=last)
        stats = program.host.stats
        out[what] = {
            "us": round(float(serial_us(timed(program))), 1),
            "launches": stats["launches"],
            "mb": round(stats["bytes_moved"] / 1e6),
        }
    return out


def measured(name: str) -> dict[str, Any]:
    """Microseconds of a case on a GPU, by peer, and errors."""
    import torch

    from bench.harness import interleaved
    from bench.lot.measure import error_of, floor_of, graphed

    x = torch.randn(*SHAPE, device="cuda").contiguous(memory_format=torch.channels_last)
    program = program_of(CASES[name], SHAPE, last=True)
    compiled = torch.compile(lambda x: CASES[name](torch, x), dynamic=False)
    peers: dict[str, Callable[[], Any]] = {
        "fusewright": lambda: program(x, device="cuda")[0],
        "inductor": lambda: compiled(x),
    }
    want = CASES[name](torch, x.double())
    found = {k: f() for k, f in peers.items()}
    found["fusewright"] = found["fusewright"].permute(0, 3, 1, 2)
    errors = {k: error_of(v, want) for k, v in found.items()}
    nbytes = sum(v.numel() * 4 for v in (x, found["inductor"]))
    failures: dict[str, str] = {}
    with fw.config(execution="stream"):
        fns = {k: graphed(f, failures, k) for k, f in peers.items()}
    fns["floor"] = graphed(floor_of(nbytes, read_mostly=False), failures, "floor")
    times = {k: round(v, 1) for k, v in interleaved(fns).items()}
    return {"case": name, "us": times, "errors": errors, "failures": failures}


def main() -> None:
    """Prints a line a case; writes all as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    look = measured if has_gpu() else predicted
    rows: list[dict[str, Any]] = []
    for name in CASES:
        rows.append(look(name))
        print(rows[-1], flush=True)
        if args.out is not None:
            method = " ".join((__doc__ or "").split())
            report = {"date": datetime.date.today().isoformat(), "method": method, "cases": rows}
            args.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
