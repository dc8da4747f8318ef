"""Litmus kernels: one for each kind of sync, with and without it, while one warp is delayed.

With its syncs a kernel computes what the simulator computes whichever warp is late. Without the
sync the delay shows the fault, where hardware shows it at all: a missing proxy fence may not.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "sim"))

from async_suite import SPLIT, SUITE, Case, kernel_text, packed, without

from fusewright.cuda.compile import compile_cubin
from fusewright.cuda.emit import emit
from fusewright.errors import UnsupportedError
from fusewright.kir import ir
from fusewright.kir.text import parse_kernel
from fusewright.runtime import device
from fusewright.runtime.launch import LoadedKernel, run
from fusewright.sim.machine import simulate
from fusewright.target import target_of

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

LITMUS = (
    Litmus("BlockSync", EXCHANGE, (0,), "s[tx] =", 1),
    Litmus("AsyncWait", COPY, (1,), "cp.async.ca", 1),
    Litmus("AsyncCommit", COPY, (0,), "cp.async.ca", 1, shows=False),
    Litmus("BlockSync behind a copy", COPY, (2,), "cp.async.ca", 1),
    Litmus("BarrierArrive and NamedSync", SPLIT, (0, 1), "s[tx] =", 0),
    Litmus("NamedSync", NAMED, (0, 1), "s[tx] =", 0),
    Litmus("MbarArrive and MbarWait", MBARRIER, (2, 3), "s[tx] =", 1),
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


def outcome(kernel: ir.Kernel, x: np.ndarray, *, before: str = "", late: int = 0) -> np.ndarray:
    """What the kernel writes to y on the device."""
    target = target_of(device.architecture())
    try:
        text = emit(kernel, target)
    except UnsupportedError as error:
        pytest.skip(str(error))
    text = delayed(text, before, late) if before else text
    loaded = LoadedKernel(compile_cubin(text, target, name=kernel.name).cubin, kernel)
    (y,) = run(loaded, [x, np.full(4096, np.nan, np.float32)])
    return y


def expected(kernel: ir.Kernel, x: np.ndarray) -> np.ndarray:
    y = np.empty_like(x)
    found = simulate(
        kernel, dict(zip(kernel.params, (x, y), strict=True)), outputs=kernel.params[1:]
    )
    assert found.races == []
    return found.outputs[0]


def values(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(4096).astype(np.float32)


@pytest.mark.parametrize("litmus", LITMUS, ids=lambda c: c.name)
def test_with_its_syncs_no_delay_matters(litmus: Litmus) -> None:
    kernel = packed(parse_kernel(kernel_text(litmus.body, litmus.nthreads)))
    for late in (litmus.late, 1 - litmus.late):
        x = values(late)
        got = outcome(kernel, x, before=litmus.before, late=late)
        np.testing.assert_array_equal(got, expected(kernel, x))


@pytest.mark.parametrize("litmus", [c for c in LITMUS if c.shows], ids=lambda c: c.name)
def test_without_the_sync_a_delay_shows(litmus: Litmus) -> None:
    kernel = packed(parse_kernel(kernel_text(litmus.body, litmus.nthreads)))
    loose = replace(without(kernel, litmus.drop), name="loose")
    wrong = 0
    for seed in range(4):
        x = values(10 + seed)
        got = outcome(loose, x, before=litmus.before, late=litmus.late)
        wrong += not np.array_equal(got, expected(kernel, x), equal_nan=True)
    assert wrong


WRITING = [c for c in SUITE if not c.wrong and "y[" in c.text and c.name != "reduce"]
"""Correct kernels with an output; a reduction adds to what was there."""


@pytest.mark.parametrize("case", WRITING, ids=lambda c: c.name)
def test_correct_kernels_compute_what_the_simulator_does(case: Case) -> None:
    kernel = packed(case.kernel())
    x = values(3)
    y = expected(kernel, x)
    np.testing.assert_array_equal(outcome(kernel, x), y)
