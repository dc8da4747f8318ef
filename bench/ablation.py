"""What each part of the memory pipeline buys in time: `python -m bench.ablation --out FILE.json`.

Method: demonstrations first, then the cases of the bench and of the corpus at full size. Each is
compiled once while the passes are watched; for every switch that changes the code of one of its
kernels it is compiled without that part. Both variants run interleaved in one process, in rounds
that time each between two CUDA events after an untimed call; medians over rounds count. Results
of the two must be equal bit by bit. Looking for changed kernels stops when half of the budget is
spent, measuring when all of it is; what was not looked at is listed.
"""

from __future__ import annotations

import argparse
import datetime
import json
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

import fusewright as fw
from bench import harness
from bench.cases import CASES
from bench.switches import DEMONSTRATIONS, Fusion, Row, memory_of, show, switched_off, switches_of
from fusewright.corpus import CORPUS
from fusewright.cuda.compile import compile_cubin
from fusewright.cuda.emit import emit
from fusewright.kir.ir import Kernel
from fusewright.runtime.launch import LoadedKernel, launch_of
from fusewright.target import target_of

ROUNDS = 9
TARGET_MS = 3.0


def every_fusion() -> list[Fusion]:
    """Demonstrations, cases of the bench, entries of the corpus."""
    found = list(DEMONSTRATIONS)
    for c in CASES:
        specs = [fw.TensorSpec(shape, dtype) for shape, dtype in c.inputs]
        found.append(Fusion(c.name, _compiling(c.ours, specs), c.inputs, c.high))
    for e in CORPUS:
        if all(_is_plain(s) for s in e.specs):
            inputs = tuple((tuple(s.shape), str(s.dtype)) for s in e.specs)
            found.append(Fusion(e.name, _compiling(e.fn, e.specs), inputs))
    return found


def _is_plain(s: fw.TensorSpec) -> bool:
    """Whether torch can make such an array without more being said."""
    is_fixed = all(isinstance(n, int) for n in s.shape)
    return is_fixed and s.strides is None and hasattr(torch, str(s.dtype))


def _compiling(fn: Callable[..., Any], specs: Sequence[fw.TensorSpec]) -> Callable[[], fw.Program]:
    return lambda: fw.compile(fw.trace(fn, *specs))


class _Launcher:
    """A kernel, launched on the current stream; its last parameter is the output."""

    def __init__(self, kernel: Kernel) -> None:
        target = target_of("sm_90a")
        cubin = compile_cubin(emit(kernel, target), target, name=kernel.name).cubin
        self._loaded = LoadedKernel(cubin, kernel)
        self._launch = launch_of(kernel, {})
        size = int(str(kernel.params[-1].size))
        self._out = torch.zeros(size, dtype=torch.float32, device="cuda")

    def __call__(self, *arrays: Any) -> list[Any]:
        stream = torch.cuda.current_stream().cuda_stream
        pointers = [a.data_ptr() for a in (*arrays, self._out)]
        self._loaded.launch(pointers, self._launch, stream=stream)
        return [self._out]


def launcher(program: fw.Program | Kernel) -> Callable[..., list[Any]]:
    """What runs a program, or a kernel."""
    return _Launcher(program) if isinstance(program, Kernel) else harness.Launcher(program)


def measure(fusion: Fusion, switch: str) -> Row:
    """Times a fusion with and without one part. Raises ValueError where results differ."""
    arrays = harness.random_inputs(fusion.inputs, fusion.high)
    on = fusion.program()
    with switched_off(switch):
        off = fusion.program()
    runs = [launcher(on), launcher(off)]
    results = [run(*arrays) for run in runs]
    for a, b in zip(*results, strict=True):
        if not torch.equal(*(x.reshape(-1).view(torch.uint8) for x in (a, b))):
            raise ValueError(f"{fusion.name} computes something else without {switch}")
    once = max(harness.time_us(lambda run=run: run(*arrays), 2) for run in runs)
    count = max(2, min(200, int(TARGET_MS * 1000 / once)))
    samples: list[list[float]] = [[], []]
    for _ in range(ROUNDS):
        for kept, run in zip(samples, runs, strict=True):
            kept.append(harness.time_us(lambda run=run: run(*arrays), count))
    on_us, off_us = map(statistics.median, samples)
    return Row(fusion.name, switch, on_us, off_us, *_memory(on, off))


def _memory(on: fw.Program | Kernel, off: fw.Program | Kernel) -> tuple[int, int, int, int]:
    (on_nbytes, on_blocks), (off_nbytes, off_blocks) = memory_of(on), memory_of(off)
    return on_nbytes, off_nbytes, on_blocks, off_blocks


def main() -> None:
    """Measure on this machine's GPU, print the table, and write the JSON."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--budget-seconds", type=float, default=50.0)
    parser.add_argument("--out", type=Path, default=None)
    args = parser.parse_args()
    start = time.monotonic()

    def spent() -> float:
        return (time.monotonic() - start) / args.budget_seconds

    rows: list[Row] = []
    left_out: list[str] = []
    failed: list[str] = []
    unchanged = 0
    for fusion in every_fusion():
        if spent() > (1.0 if fusion in DEMONSTRATIONS else 0.5):
            left_out.append(fusion.name)
            continue
        switches = switches_of(fusion.program)
        unchanged += not switches
        for switch in switches:
            if spent() > 1.0:
                left_out.append(f"{fusion.name} without {switch}")
                continue
            try:
                rows.append(measure(fusion, switch))
            except Exception as e:
                failed.append(f"{fusion.name} without {switch}: {type(e).__name__}: {e}"[:300])
            torch.cuda.empty_cache()
    print(show(rows))
    print(
        f"{unchanged} fusions that no switch changes; not looked at: {', '.join(left_out) or '-'}"
    )
    if args.out is not None:
        report = {
            "date": datetime.date.today().isoformat(),
            "method": " ".join((__doc__ or "").split()),
            "environment": harness.environment(),
            "unchanged": unchanged,
            "left_out": left_out,
            "failed": failed,
            "rows": [r.as_json() for r in rows],
        }
        args.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
