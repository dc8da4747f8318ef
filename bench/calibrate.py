"""Measures the figures of `Target.calibration` on the GPU of this machine, in less than a minute.

    python -m bench.calibrate [--out calibration.json]

Each figure is what one short kernel of ours shows, timed between two events in the medians of
`ROUNDS` rounds, as all of the bench is. Figures that were fitted are kept as they are, and marked.
The JSON has the measured figures beside those in use.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from bench.harness import time_us
from fusewright.calibration import FITTED, Calibration
from fusewright.cuda.compile import compile_cubin
from fusewright.cuda.emit import emit
from fusewright.kir.text import parse_kernel
from fusewright.runtime.device import architecture
from fusewright.runtime.launch import LoadedKernel, launch_of
from fusewright.target import WARP_SIZE, Target, target_of

ROUNDS = 5
LARGE = 1 << 28
"""Elements of 4 bytes: a gibibyte, many times the cache."""
HOPS = 1 << 15
"""Loads in a row, each at the address that the one before has read: with a warp on each of a
hundred multiprocessors they touch more sectors than the second-level cache holds, so that the next
round finds none of them there."""
TURN = 37
"""Blocks by which a pass over cached memory turns: no multiprocessor reads the same part twice, so
that its first-level cache helps nowhere."""
TRIPS = 2048
WORDS = 4
"""Elements of 4 bytes of the widest access."""
THREADS = 256
LINE_WORDS = 32


class Probe:
    """A kernel from its text, on tensors; calling it launches it on the current stream."""

    def __init__(self, text: str, target: Target, *tensors: Any) -> None:
        kernel = parse_kernel(text)
        compiled = compile_cubin(emit(kernel, target), target, name=kernel.name, contract=True)
        self._loaded = LoadedKernel(compiled.cubin, kernel)
        self._launch = launch_of(kernel, {})
        self._tensors = tensors

    def __call__(self) -> None:
        stream = torch.cuda.current_stream().cuda_stream
        self._loaded.launch([t.data_ptr() for t in self._tensors], self._launch, stream=stream)

    def us(self, repetitions: int = 4) -> float:
        """Microseconds of a launch, the median of rounds."""
        return statistics.median(time_us(self, repetitions) for _ in range(ROUNDS))


def kernel_text(name: str, params: str, blocks: int, threads: int, body: str) -> str:
    """The text of a kernel over a line of blocks and threads."""
    return (
        f"kernel {name} {{\n{params}\n  grid (bx < {blocks})\n  block (tx < {threads})\n{body}\n}}"
    )


def _param(name: str, kind: str, size: int) -> str:
    return f"  param {name}: {kind}[{size}] align 16"


def empty(target: Target, blocks: int, threads: int = 32) -> Probe:
    """A kernel whose blocks do nothing but one store by one thread."""
    y = torch.zeros(4, device="cuda")
    body = "  store y[0] = 0.0:float32 if (tx == 0 && bx == 0)"
    body = "  local r: float32[1]\n  r[0] = copy(0.0:float32)\n" + body.replace(
        "0.0:float32", "r[0]"
    )
    return Probe(kernel_text("empty", _param("y", "float32", 4), blocks, threads, body), target, y)


def streaming(target: Target, elements: int, passes: int, *, writes: bool = False) -> Probe:
    """All of an array, read `passes` times in vectors; copied to another one where it `writes`."""
    step = WORDS * THREADS
    blocks = min(elements // step, 8 * target.multiprocessors)
    trips = elements // (blocks * step)
    at = f"{step}*((bx + {TURN}*p) % {blocks} + {blocks}*i) + {WORDS}*tx"
    add = "\n".join(f"      a[0] = add(a[0], r[{k}])" for k in range(WORDS))
    use = f"      store y[{at}] = r[0..{WORDS}]" if writes else add
    body = (
        f"  local r: float32[{WORDS}] align 16\n  local a: float32[1]\n  a[0] = copy(0.0:float32)\n"
        f"  for (p < {passes}) {{\n    for (i < {trips}) {{\n"
        f"      r[0..{WORDS}] = load x[{at}]\n{use}\n    }}\n  }}\n"
        f"  store z[{THREADS}*bx + tx] = a[0]"
    )
    x = torch.ones(elements, device="cuda")
    y = torch.empty_like(x) if writes else torch.empty(4, device="cuda")
    z = torch.empty(blocks * THREADS, device="cuda")
    params = "\n".join(
        _param(n, "float32", len(t))
        for n, t in (("x", x), ("y", y), ("z", z))
        if n != "y" or writes
    )
    text = kernel_text("streaming", params, blocks, THREADS, body)
    return Probe(text, target, *((x, y, z) if writes else (x, z)))


def chase(target: Target) -> Probe:
    """One warp on every multiprocessor walks through a gibibyte, a sector at a time."""
    sectors = LARGE // 8
    order = torch.randperm(sectors, device="cuda", dtype=torch.int32)
    following = torch.empty(LARGE, device="cuda", dtype=torch.int32)
    following[order.long() * 8] = torch.roll(order, -1) * 8
    z = torch.empty(target.multiprocessors * 32, device="cuda", dtype=torch.int32)
    body = (
        f"  local p: int32[1]\n  p[0] = load x[{sectors // target.multiprocessors}*8*bx]\n"
        f"  for (i < {HOPS}) {{\n"
        f"    given p[0] in [0, {LARGE - 1}]: p[0] = load x[p[0]]\n  }}\n"
        "  store z[32*bx + tx] = p[0]"
    )
    params = f"{_param('x', 'int32', LARGE)}\n{_param('z', 'int32', len(z))}"
    return Probe(
        kernel_text("chase", params, target.multiprocessors, 32, body), target, following, z
    )


def exchanges(target: Target, count: int, *, lanes_alone: bool = False) -> Probe:
    """A block of 512 threads that hands values around in shared memory `count` times, or between
    the lanes of its warps alone."""
    z = torch.empty(512, device="cuda")
    across = (
        "    store s[tx] = r[0]\n    block_sync #0\n    r[0] = load s[511 - tx]\n"
        "    block_sync #1\n"
    )
    shared = "  shared s: float32[512] align 16 offset 0\n"
    body = (
        f"  local r: float32[1]\n  local q: float32[1]\n{'' if lanes_alone else shared}"
        f"  r[0] = copy(1.0:float32)\n  for (i < {count}) {{\n"
        + "".join(
            f"    q[0] = shuffle.xor(r[0], {k})\n    r[0] = add(r[0], q[0])\n"
            for k in (1, 2, 4, 8, 16)
        )
        + ("" if lanes_alone else across)
        + "  }\n  store z[tx] = r[0]"
    )
    name = "lane_exchanges" if lanes_alone else "exchanges"
    return Probe(kernel_text(name, _param("z", "float32", 512), 1, 512, body), target, z)


def cached_reads(target: Target, apart: int) -> Probe:
    """Every lane of a warp reads an element of 4 bytes from the first-level cache, so many elements
    from that of the next lane: neighbours, or lines of their own."""
    size, blocks = 16 * 1024, 4 * target.multiprocessors
    x, z = torch.ones(size, device="cuda"), torch.empty(blocks * THREADS, device="cuda")
    body = (
        "  local r: float32[1]\n  local a: float32[1]\n  a[0] = copy(0.0:float32)\n"
        f"  for (i < {TRIPS}) {{\n    r[0] = load x[({apart}*tx + 37*i) % {size}]\n"
        f"    a[0] = add(a[0], r[0])\n  }}\n  store z[{THREADS}*bx + tx] = a[0]"
    )
    params = f"{_param('x', 'float32', size)}\n{_param('z', 'float32', len(z))}"
    return Probe(kernel_text(f"reads_{apart}_apart", params, blocks, THREADS, body), target, x, z)


def measured(target: Target) -> dict[str, float]:
    """The figures that kernels show."""
    sms, clock = target.multiprocessors, target.clock_mhz
    launch = empty(target, 1).us(200)
    read = streaming(target, LARGE, 1).us() - launch
    copied = streaming(target, LARGE, 1, writes=True).us() - launch
    read_share = 4 * LARGE / (read * target.memory_nbytes_per_us)
    cached, passes = target.l2_nbytes // 16, 32
    near = streaming(target, cached, passes).us() - launch
    waves, resident = 64, target.threads_per_sm // 1024 * sms
    blocks = empty(target, waves * resident, 1024).us() - launch
    exchanged = exchanges(target, TRIPS).us() - launch
    lanes = exchanges(target, TRIPS, lanes_alone=True).us() - launch
    lines = cached_reads(target, LINE_WORDS).us() - launch
    narrow = cached_reads(target, 1).us() - launch
    return {
        "read_share": read_share,
        "write_weight": copied / read - 1.0,
        "memory_latency_us": (chase(target).us(1) - launch) / HOPS,
        "l2_nbytes_per_clock": 4 * cached * passes / (near * sms * clock),
        "exchange_us": exchanged / TRIPS,
        "lanes_share": lanes / exchanged,
        "start_us": blocks / waves,
        "launch_us": launch,
        "narrow_clocks": narrow * clock / (4 * THREADS // WARP_SIZE * TRIPS),
        "lines_per_clock": 4 * sms * THREADS * TRIPS / (lines * sms * clock),
    }


def report(found: dict[str, float], known: Calibration, chip: str) -> dict[str, Any]:
    """What is written: every figure as measured or, where it was fitted, as it is, with its use."""
    fields = [f.name for f in dataclasses.fields(Calibration) if f.type == "float"]
    assert sorted((*found, *FITTED)) == sorted(fields)
    return {
        "chip": chip,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "source": "python -m bench.calibrate",
        "figures": {
            n: {
                "measured": round(found[n], 4) if n in found else None,
                "in use": getattr(known, n),
            }
            for n in fields
        },
    }


def table(made: dict[str, Any]) -> str:
    """The figures as text."""
    lines = [f"{made['chip']}, {made['date']}", f"{'figure':22}{'measured':>12}{'in use':>10}"]
    for n, f in made["figures"].items():
        shown = "fitted" if f["measured"] is None else f"{f['measured']:.3f}"
        lines.append(f"{n:22}{shown:>12}{f['in use']:>10}")
    return "\n".join(lines)


def main(arguments: list[str], measure: Callable[[Target], dict[str, float]] = measured) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="the JSON file to write")
    options = parser.parse_args(arguments)
    target = target_of(architecture())
    made = report(measure(target), target.calibration, torch.cuda.get_device_name())
    print(table(made))
    if options.out is not None:
        options.out.write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
