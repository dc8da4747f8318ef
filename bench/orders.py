"""`python -m bench.orders`: sorts, searches and sums by segment beside torch, on one GPU.

Prints for every case microseconds of ours and of torch's (medians of interleaved rounds, as
`bench.harness` has them), kernels, and the time of a copy of the operands and results.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

import fusewright as fw
from bench.harness import Launcher, floor_of, interleaved, random_inputs

SORTED = ((65536, 64), (16384, 256), (4096, 1024), (1024, 4096), (64, 65536), (1, 1 << 20))


@dataclass(frozen=True, slots=True)
class Case:
    """A program, the same for torch, and the operands; integers are below `high`."""

    name: str
    ours: Callable[..., Any]
    torchs: Callable[..., Any]
    operands: tuple[tuple[tuple[int, ...], str], ...]
    high: int = 1 << 20


def cases() -> list[Case]:
    """Rows from 64 to a million elements, and few and many segments."""
    out: list[Case] = []
    for rows, size in SORTED:
        operand = (((rows, size), "float32"),)
        shape = f"{rows}x{size}"
        out += [
            Case(f"sort {shape}", fw.sort, lambda x: torch.sort(x).values, operand),
            Case(f"argsort {shape}", fw.argsort, lambda x: torch.argsort(x, stable=True), operand),
            Case(f"topk 4 {shape}", lambda x: tuple(fw.topk(x, 4)), lambda x: x.topk(4), operand),
        ]
    for segments in (16, 1024, 65536):
        operands = (((1 << 18, 32), "float32"), ((1 << 18,), "int64"))

        def add(v: Any, i: Any, n: int = segments) -> Any:
            return torch.zeros(n, v.shape[1], device=v.device).index_add_(0, i, v)

        def ours(v: Any, i: Any, n: int = segments) -> Any:
            return fw.segment_sum(v, i, n)

        out.append(Case(f"segment_sum {segments}", ours, add, operands, segments))
    return out


def main() -> None:
    """Every case, one line each."""
    print(f"{torch.cuda.get_device_name()}: microseconds")
    print(f"{'case':28} {'ours':>9} {'torch':>9} {'copy':>9}  kernels")
    for c in cases():
        arrays = random_inputs(c.operands, c.high)
        specs = [fw.TensorSpec(tuple(a.shape), str(a.dtype).removeprefix("torch.")) for a in arrays]
        program = fw.compile(fw.trace(c.ours, *specs))
        launcher = Launcher(program)
        nbytes = 2 * sum(a.numel() * a.element_size() for a in arrays)
        fns: dict[str, Callable[[], Any]] = {
            "ours": lambda launcher=launcher, arrays=arrays: launcher(*arrays),
            "torch": lambda c=c, arrays=arrays: c.torchs(*arrays),
            "copy": floor_of(nbytes, read_mostly=False),
        }
        found = interleaved(fns)
        times = " ".join(f"{found[k]:9.1f}" for k in ("ours", "torch", "copy"))
        print(f"{c.name:28} {times}  {len(program.launches)}", flush=True)


if __name__ == "__main__":
    main()
