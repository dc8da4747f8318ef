"""Measures cases on a GPU: correctness first, then all peers interleaved in one run, medians.

Method: inputs are random; outputs are checked against the same function in float64. A round times
every peer once, each with enough repetitions to fill a few milliseconds between two CUDA events
after one untimed call and a sleep in which the host gets ahead; the median over rounds counts. The
floor of a case is a copy kernel of torch (or a read: a sum) over as many bytes as the case has to
move, measured in the same rounds.
"""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

import fusewright as fw
from bench.cases import Case, Spec
from bench.outcome import Outcome
from bench.peers import make
from fusewright.core.expr import constant_value
from fusewright.runtime.launch import LoadedKernel, launch_of

ROUNDS = 7
TARGET_MS = 4.0
AHEAD_CYCLES = 10_000_000
"""Of the device, about 6 ms: more than the host takes for the calls of one timing."""


def make_inputs(case: Case, device: str = "cuda", seed: int = 0) -> list[Any]:
    """Random arrays for a case."""
    return random_inputs(case.inputs, case.high, device, seed)


def random_inputs(
    inputs: Sequence[Spec], high: int, device: str = "cuda", seed: int = 0
) -> list[Any]:
    """Random arrays of the shapes and dtypes; integers below `high`."""
    generator = torch.Generator(device=device).manual_seed(seed)
    out: list[Any] = []
    for shape, dtype in inputs:
        kind = getattr(torch, dtype)
        if not kind.is_floating_point:
            found = torch.randint(0, high, shape, device=device, generator=generator)
            out.append(found.to(kind))
        else:
            x = torch.randn(shape, device=device, generator=generator)
            out.append((x.abs() + 0.5 if shape[-1:] == (1,) else x).to(kind))
    return out


class Launcher:
    """A compiled program on torch tensors, launch by launch on the current stream; outputs and
    intermediates are allocated once, so that device time is what is measured."""

    def __init__(self, program: fw.Program) -> None:
        self.program = program
        self.steps: list[tuple[LoadedKernel, tuple[Any, ...], Any]] = []
        self.tensors: dict[Any, Any] = {}
        for x in self.program.launches:
            loaded = LoadedKernel(x.kernel.cubin(), x.kernel.ir)
            for t in x.outputs:
                shape = [constant_value(e) or 0 for e in t.shape]
                kind = getattr(torch, t.dtype.name)
                self.tensors[t] = torch.full(shape, -7, device="cuda").to(kind)
            self.steps.append((loaded, (*x.inputs, *x.outputs), launch_of(x.kernel.ir, {})))

    def __call__(self, *arrays: Any) -> list[Any]:
        table = {**self.tensors, **dict(zip(self.program.fusion.inputs, arrays, strict=True))}
        stream = torch.cuda.current_stream().cuda_stream
        for x, (loaded, tensors, launch) in zip(self.program.launches, self.steps, strict=True):
            values = [table[t].data_ptr() for t in tensors]
            loaded.launch([*values, *x.kernel.argument_values], launch, stream=stream)
        return [table[t] for t in self.program.fusion.outputs]


def relative_error(got: Any, want: Any) -> float:
    """Norm of the difference over the norm of the float64 reference."""
    g, w = got.double(), want.double()
    if not torch.isfinite(g).all():
        return math.inf
    norm = float(w.norm())
    return float((g - w).norm()) / (norm or 1.0)


def reference(case: Case, arrays: list[Any]) -> list[Any]:
    """The case in float64, on slices of the leading axis where it is too large at once."""
    wide = [a.double() if a.is_floating_point() else a for a in arrays]
    result = case.torch(_DoubleTorch(), *wide)
    return list(result) if isinstance(result, tuple) else [result]


class _DoubleTorch:
    """torch, as the cases see it."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


def time_us(fn: Callable[[], Any], repetitions: int) -> float:
    """Microseconds per call between two events. The device sleeps while the host gets ahead, so
    that what is measured is the device's time (bench/host_overhead.py measures the host's)."""
    start = torch.cuda.Event(enable_timing=True)
    stop = torch.cuda.Event(enable_timing=True)
    fn()
    torch.cuda._sleep(AHEAD_CYCLES)
    start.record()
    for _ in range(repetitions):
        fn()
    stop.record()
    stop.synchronize()
    return start.elapsed_time(stop) * 1000 / repetitions


def moved_bytes(case: Case, arrays: list[Any], outputs: list[Any]) -> int:
    """The bytes that any implementation has to move."""
    read = sum(a.numel() * a.element_size() for a in arrays)
    again = sum(arrays[i].numel() * arrays[i].element_size() for i in case.twice)
    return read + again + sum(o.numel() * o.element_size() for o in outputs)


def floor_of(nbytes: int, *, read_mostly: bool) -> Callable[[], Any]:
    """A kernel of torch that moves as many bytes: a copy, or a sum for read-mostly cases."""
    if read_mostly:
        x = torch.ones(nbytes // 4, dtype=torch.float32, device="cuda")
        return x.sum
    source = torch.ones(nbytes // 2, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return lambda: target.copy_(source)


def measure(case: Case, peers: tuple[str, ...]) -> Outcome:
    """Checks and times one case."""
    arrays = make_inputs(case)
    fns: dict[str, Callable[[], Any]] = {}
    failures: dict[str, str] = {}
    kernels: list[str] = []
    for peer in peers:
        try:
            fns[peer] = _peer(peer, case, arrays, kernels)
            fns[peer]()
            torch.cuda.synchronize()
        except Exception as e:
            failures[peer] = f"{type(e).__name__}: {e}"[:300]
            fns.pop(peer, None)
    errors = _errors(case, arrays, fns)
    outputs = case.torch(torch, *arrays)
    outputs = list(outputs) if isinstance(outputs, tuple) else [outputs]
    nbytes = moved_bytes(case, arrays, outputs)
    del outputs
    fns["floor"] = floor_of(nbytes, read_mostly=case.read_mostly)
    medians = interleaved(fns)
    floor = medians.pop("floor")
    return Outcome(case.name, nbytes, floor, medians, errors, kernels, failures)


def interleaved(fns: Mapping[str, Callable[[], Any]]) -> dict[str, float]:
    """Median microseconds of each function; all of them take turns."""
    once = {k: time_us(f, 2) for k, f in fns.items()}
    counts = {k: max(2, min(200, int(TARGET_MS * 1000 / t))) for k, t in once.items()}
    samples: dict[str, list[float]] = {k: [] for k in fns}
    for _ in range(ROUNDS):
        for k, f in fns.items():
            samples[k].append(time_us(f, counts[k]))
    return {k: statistics.median(v) for k, v in samples.items()}


def _errors(case: Case, arrays: list[Any], fns: dict[str, Callable[[], Any]]) -> dict[str, float]:
    try:
        wanted = reference(case, arrays)
    except torch.cuda.OutOfMemoryError:
        return {}
    errors: dict[str, float] = {}
    for peer, f in fns.items():
        got = f()
        found = list(got) if isinstance(got, tuple | list) else [got]
        errors[peer] = max(relative_error(g, w) for g, w in zip(found, wanted, strict=True))
    return errors


def _peer(peer: str, case: Case, arrays: list[Any], kernels: list[str]) -> Callable[[], Any]:
    match peer:
        case "eager":
            return lambda: case.torch(torch, *arrays)
        case "compile" | "max_autotune":
            mode = "default" if peer == "compile" else "max-autotune-no-cudagraphs"
            compiled = torch.compile(lambda *a: case.torch(torch, *a), dynamic=False, mode=mode)
            return lambda: compiled(*arrays)
        case "fusewright":
            specs = [fw.TensorSpec(shape, dtype) for shape, dtype in case.inputs]
            launcher = Launcher(fw.compile(fw.trace(case.ours, *specs)))
            kernels.extend(f"{k.name}: {k.heuristic}" for k in launcher.program.kernels)
            return lambda: launcher(*arrays)
        case _:
            return make(peer, case, arrays)


def environment() -> dict[str, str]:
    """What a figure depends on."""
    return {
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "cuda": str(torch.version.cuda),
        "python": sys.version.split()[0],
    }
