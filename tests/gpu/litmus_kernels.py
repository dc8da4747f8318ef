"""The table of litmus kernels: one for each kind of sync, with the ids to leave out and the place
of a delay; and their variations for trials by the million. Needs no device."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "sim"))

from async_suite import SPLIT, kernel_text, packed, without

from fusewright.cuda.emit import emit
from fusewright.kir import ir
from fusewright.kir.text import parse_kernel
from fusewright.sim.machine import simulate
from fusewright.target import Target

CYCLES = 200_000
"""How long a delayed warp spins; a copy of 16 KB takes a few thousand."""


@dataclass(frozen=True)
class Litmus:
    """`late` names the warps that spin before the first CUDA line that holds `before`; `drop` are
    the ids of the syncs to leave out, `shows` whether a device is known to show that."""

    name: str
    body: str
    drop: tuple[int, ...]
    before: str
    late: int
    shows: bool = True
    nthreads: int = 64


EXCHANGE = """
  shared s: float32[64] align 16
  r[0] = load x[tx]
  store s[tx] = r[0]
  block_sync #0
  r[0] = load s[63 - tx]
  store y[tx] = r[0]
"""
COPY = """
  shared s: float32[256] align 16
  cp_async s[4*tx] = x[4*tx] width 4
  async_commit #0 kind(cp_async)
  async_wait #1 kind(cp_async)
  block_sync #2
  r[0..4] = load s[252 - 4*tx]
  store y[4*tx] = r[0..4]
  async_wait #3 kind(cp_async)
"""
NAMED = SPLIT.replace("barrier_arrive #0", "named_sync #0")
MBARRIER = """
  shared s: float32[64] align 16
  shared b: uint64[1]
  mbar_init #0 b[0] count 64 by thread 0
  block_sync #1
  r[0] = load x[tx]
  store s[tx] = r[0]
  mbar_arrive #2 b[0]
  mbar_wait #3 b[0] parity 0
  r[0] = load s[63 - tx]
  store y[tx] = r[0]
  block_sync #4
"""
LOAD = """
  shared s: float32[2048] align 128
  shared b: uint64[1]
  mbar_init #0 b[0] count 1 by thread 0
  proxy_fence #1 space(shared)
  block_sync #2
  mbar_expect #3 b[0] nbytes 8192 by thread 0
  bulk_load s[0] = x[0] size 2048 on b[0] by thread 0
  mbar_wait #4 b[0] parity 0
  for (k < 32) {
    r[0] = load s[64*k + tx]
    store y[64*k + tx] = r[0]
  }
  mbar_wait #5 b[0] parity 0
"""


def stored_by_bulk(rows: int) -> str:
    """Rows of 64 elements through shared memory into one bulk store, which is committed."""
    return f"""
  shared s: float32[{64 * rows}] align 128
  for (i < {rows}) {{
    r[0] = load x[64*i + tx]
    store s[64*i + tx] = r[0]
  }}
  proxy_fence #0 space(shared)
  block_sync #1
  bulk_store y[0] = s[0] size {64 * rows} by thread 0
  async_commit #2 kind(bulk)
"""


STORE = f"""{stored_by_bulk(64)}  async_wait #3 kind(bulk) reads_only(true)
  block_sync #4
  for (j < 64) {{
    r[1] = copy(-1.0:float32)
    store s[4032 - 64*j + tx] = r[1]
  }}
  async_wait #5 kind(bulk)
"""
READ_BACK = f"""{stored_by_bulk(32)}  async_wait #3 kind(bulk)
  block_sync #4
  for (j < 32) {{
    r[0] = load y[64*j + 63 - tx]
    store y[2048 + 64*j + tx] = r[0]
  }}
  async_wait #5 kind(bulk)
"""

LANES = """
  shared s: float32[64] align 16
  r[0] = load x[tx]
  store s[tx] = r[0]
  warp_sync #0
  r[0] = load s[tx ^ 1]
  store y[tx] = r[0]
"""
HALVES = """
  shared s: float32[64] align 16
  shared b: uint64[1]
  mbar_init #0 b[0] count 64 by thread 0
  block_sync #1
  for (i < 4) {
    r[0] = load x[64*i + tx]
    store s[tx] = r[0]
    block_sync #2
    r[1] = load s[63 - tx]
    mbar_arrive #3 b[0]
    store y[64*i + tx] = r[1]
    mbar_wait #4 b[0] parity i%2
  }
"""

LITMUS = (
    Litmus("BlockSync", EXCHANGE, (0,), "s[tx] =", 1),
    Litmus("AsyncWait", COPY, (1,), "cp.async.ca", 1),
    Litmus("AsyncCommit", COPY, (0,), "cp.async.ca", 1, shows=False),
    Litmus("BlockSync behind a copy", COPY, (2,), "cp.async.ca", 1),
    Litmus("BarrierArrive and NamedSync", SPLIT, (0, 1), "s[tx] =", 0),
    Litmus("NamedSync", NAMED, (0, 1), "s[tx] =", 0),
    Litmus("MbarArrive and MbarWait", MBARRIER, (2, 3), "s[tx] =", 1),
    Litmus("WarpSync", LANES, (0,), "s[tx] =", 1, shows=False),
    Litmus("split barrier in a loop", HALVES, (3, 4), "= s[", 1),
    Litmus("BlockSync beside a split barrier", HALVES, (2,), "s[tx] =", 1),
    Litmus("MbarWait for a bulk load", LOAD, (4,), "cp.async.bulk.shared", 0),
    Litmus("ProxyFence", STORE, (0,), "s[i * 64", 1, shows=False),
    Litmus("BlockSync before a bulk store", STORE, (1,), "s[i * 64", 1),
    Litmus("AsyncWait for reads", STORE, (3,), "cp.async.bulk.global", 1, shows=False),
    Litmus("AsyncWait for writes", READ_BACK, (3,), "cp.async.bulk.global", 0, shows=False),
)


def delayed(text: str, before: str, warp: int) -> str:
    """The CUDA text with a spin of one warp before the first line that holds `before`."""
    lines = text.splitlines()
    at = next(i for i, line in enumerate(lines) if before in line)
    spin = (
        f"if (threadIdx.x / 32 == {warp}) {{ const long long fw_start = clock64(); "
        f"while (clock64() - fw_start < {CYCLES}) {{}} }}"
    )
    return "\n".join((*lines[:at], spin, *lines[at:], ""))


# --- trials ---------------------------------------------------------------------------------------

ELEMENTS = 4096
"""Elements of x and of y that one trial, a block, has to itself."""
MOST_CYCLES = 4096


def trial_kernel(litmus: Litmus, blocks: int, *, whole: bool) -> ir.Kernel:
    """The kernel with a trial in each of its blocks, with its syncs or without those to drop."""
    text = kernel_text(litmus.body, litmus.nthreads, blocks)
    for array in "xy":
        one, all_ = (f"param {array}: float32[{n}]" for n in (ELEMENTS, ELEMENTS * blocks))
        text = text.replace(one, all_)
    text = text.replace("x[", f"x[{ELEMENTS}*bx + ").replace("y[", f"y[{ELEMENTS}*bx + ")
    kernel = packed(parse_kernel(text))
    return kernel if whole else replace(without(kernel, litmus.drop), name="loose")


def trial_text(litmus: Litmus, kernel: ir.Kernel, target: Target) -> str:
    """CUDA text in which every warp spins for a time of its own, drawn from clock and block, where
    the litmus kernel has its delay."""
    lines = emit(kernel, target).splitlines()
    at = next(i for i, line in enumerate(lines) if litmus.before in line)
    spin = (
        "{ const long long fw_start = clock64(); const unsigned fw_draw = ((unsigned)fw_start + "
        "blockIdx.x * 7919u + threadIdx.x / 32 * 104729u) * 2654435761u >> 8; "
        f"const long long fw_cycles = fw_draw % 4 ? fw_draw / 4 % {MOST_CYCLES} : 0; "
        "while (clock64() - fw_start < fw_cycles) {} }"
    )
    return "\n".join((*lines[:at], spin, *lines[at:], ""))


def sources(litmus: Litmus) -> np.ndarray:
    """For each element of y the element of x that belongs there, -1 where none is written."""
    kernel = packed(parse_kernel(kernel_text(litmus.body, litmus.nthreads)))
    x, y = np.arange(ELEMENTS, dtype=np.float32), np.full(ELEMENTS, -1, np.float32)
    simulate(kernel, dict(zip(kernel.params, (x, y), strict=True)), check_races=False)
    return y.astype(np.int64)
