"""Draws on a GPU: results against float64 in outputs poisoned before, then times beside a copy.

Everything runs as CUDA graphs, peers and floor too: programs of many launches would else measure
the host. The floor is a kernel: a graph runs a copy between two arrays as a node of its own kind,
which takes 1.19 times as long as a kernel on an H200 (2026-11-22).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

import fusewright as fw
from bench import nvfuser_peer
from bench.harness import interleaved
from bench.lot.draws import Argument, Draw
from bench.lot.spaces import ExactSpace, TorchSpace, kind_of, widened
from bench.outcome import Outcome
from bench.peers import Absent
from fusewright.core.expr import constant_value
from fusewright.program import Program

TOLERANCES = {"float16": 5e-3, "bfloat16": 2e-2, "float32": 1e-3, "float64": 1e-3}
"""Of the norm of the difference over the norm, by dtype of the result; others 6e-2 (8 bits)."""
NARROW = 6e-2
POISON = -7


@dataclass(frozen=True, slots=True)
class Found:
    """What measuring a draw gave; `is_right`: whether our results are those of the reference."""

    outcome: Outcome
    is_right: bool


def make_array(a: Argument, device: str, generator: Any) -> Any:
    """A tensor as the argument describes it; what lies between its elements is random, too."""
    numel = a.start + a.span
    kind = kind_of(a.dtype)
    if a.values == "index" or not kind.is_floating_point:
        flat = torch.randint(0, a.high, (numel,), device=device, generator=generator).to(kind)
    else:
        flat = torch.randn(numel, device=device, generator=generator)
        if a.values == "positive":
            flat = flat.abs() + 0.5
        if a.values == "near one":
            flat = flat / 64 / math.sqrt(max(a.shape)) + 1
        flat = flat.to(kind)
    return flat.as_strided(a.shape, a.steps, a.start)


def make_arrays(draw: Draw, device: str) -> list[Any]:
    """The arguments of a draw, the same in every run."""
    generator = torch.Generator(device=device).manual_seed(draw.seed)
    return [make_array(a, device, generator) for a in draw.program.arguments]


def poisoned(program: Program, device: str) -> list[Any]:
    """An array for every output of a program, full of what no result should be; one array where
    outputs are one result. It lies in memory as the program stores it."""
    made: list[Any] = []
    for r in program.results:
        shape, strides = (tuple(constant_value(n) or 0 for n in x) for x in (r.shape, r.strides))
        kind = kind_of(r.dtype.name)
        fill = math.nan if kind.is_floating_point else POISON
        one = torch.empty_strided(shape, strides, device=device, dtype=kind)
        made.append(one.copy_(torch.full(shape, fill, device=device).to(kind)))
    return [made[k] for k in program.places]


def wanted(draw: Draw, arrays: Sequence[Any], device: str) -> list[Any]:
    """The results in float64."""
    result = draw.program.fn(ExactSpace(device), *map(widened, arrays))
    return list(result) if isinstance(result, tuple) else [result]


def error_of(got: Any, want: Any) -> float:
    """Norm of the difference over the norm of the reference in the result's dtype; infinities and
    NaN have to stand in the same places."""
    kept = want.to(got.dtype).double()
    found = got.double()
    odd = ~torch.isfinite(kept)
    if not torch.equal(found[odd].nan_to_num(), kept[odd].nan_to_num()):
        return math.inf
    exact = torch.where(odd, 0.0, want.double())
    rest = torch.where(odd, 0.0, found)
    if not torch.isfinite(rest).all():
        return math.inf
    norm = float(exact.norm())
    return float((rest - exact).norm()) / (norm or 1.0)


def is_right(errors: Sequence[float], dtypes: Sequence[str]) -> bool:
    """Whether all results are as good as their dtypes allow."""
    pairs = zip(errors, dtypes, strict=True)
    return all(e <= TOLERANCES.get(d, NARROW) for e, d in pairs)


def measure(draw: Draw, program: Program, peers: Sequence[str]) -> Found:
    """Checks and times one draw, with peers that can be had."""
    arrays = make_arrays(draw, "cuda")
    least = draw.least(program.fusion)
    outputs = poisoned(program, "cuda")
    fns: dict[str, Callable[[], Any]] = {}
    failures: dict[str, str] = {}
    for peer in ("fusewright", *peers):
        try:
            fn = _peer(peer, draw, program, arrays, outputs)
            got = fn()
            torch.cuda.synchronize()
            if peer == "nvfuser":
                _check_as_told(got, arrays, outputs, program)
            fns[peer] = graphed(fn, failures, peer)
        except Exception as e:
            failures[peer] = f"{type(e).__name__}: {e}"[:300]
    errors = _errors(draw, arrays, outputs) if "fusewright" in fns else []
    floor_fn = floor_of(least.nbytes, read_mostly=least.is_read_mostly)
    fns["floor"] = graphed(floor_fn, failures, "floor")
    times = interleaved(fns)
    floor = times.pop("floor")
    kernels = [f"{k.name}" for k in program.kernels]
    worst = {"fusewright": max(errors)} if errors else {}
    dtypes = [t.dtype.name for t in program.fusion.outputs]
    right = is_right(errors, dtypes) if errors else "fusewright" in fns
    outcome = Outcome(draw.name, least.nbytes, floor, times, worst, kernels, failures)
    return Found(outcome, right)


def floor_of(nbytes: int, *, read_mostly: bool, device: str = "cuda") -> Callable[[], Any]:
    """A kernel of torch that moves so many bytes: negation in words, which the compiler of torch's
    kernels loads and stores by 16 bytes, or a sum where nearly all of them are read."""
    if read_mostly:
        x = torch.ones(nbytes // 4, dtype=torch.float32, device=device)
        return x.sum
    source = torch.ones(-(-nbytes // 8), dtype=torch.float32, device=device)
    target = torch.empty_like(source)
    return lambda: torch.neg(source, out=target)


def _errors(draw: Draw, arrays: Sequence[Any], outputs: Sequence[Any]) -> list[float]:
    """The errors of our results; none where the reference does not fit the memory."""
    try:
        want = wanted(draw, arrays, "cuda")
        return [error_of(g, w) for g, w in zip(outputs, want, strict=True)]
    except torch.cuda.OutOfMemoryError:
        return []


def _check_as_told(
    got: Sequence[Any], arrays: Sequence[Any], outputs: Sequence[Any], program: Program
) -> None:
    """That results of a peer, whose program this bench has written, are those of ours, and are not
    the arguments under other strides."""
    given = {a.untyped_storage().data_ptr() for a in arrays}
    if any(g.untyped_storage().data_ptr() in given for g in got):
        raise Absent("it returns a view of an argument, and moves nothing")
    errors = [error_of(g, o.double()) for g, o in zip(got, outputs, strict=True)]
    if not is_right(errors, [t.dtype.name for t in program.fusion.outputs]):
        raise ValueError(f"other results than ours, {errors}")


def _peer(
    peer: str, draw: Draw, program: Program, arrays: Sequence[Any], outputs: Sequence[Any]
) -> Callable[[], Any]:
    match peer:
        case "fusewright":

            def ours() -> Any:
                with fw.config(execution="stream"):
                    return program(*arrays, out=outputs)

            return ours
        case "eager":
            return lambda: draw.program.fn(TorchSpace(), *arrays)
        case "compile":
            space = TorchSpace()
            compiled = torch.compile(lambda *a: draw.program.fn(space, *a), dynamic=False)
            return lambda: compiled(*arrays)
        case "nvfuser":
            fused = nvfuser_peer.make(draw.trace(), arrays)
            return lambda: fused(*arrays)
        case _:
            raise Absent(f"there is no peer {peer!r}; use compile, eager, nvfuser")


def graphed(fn: Callable[[], Any], failures: dict[str, str], peer: str) -> Callable[[], Any]:
    """A replay of what the function enqueues; the function itself, noted, where that fails."""
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            fn()
    except Exception as e:
        failures[f"graph of {peer}"] = f"{type(e).__name__}: {e}"[:300]
        torch.cuda.synchronize()
        return fn
    return graph.replay
