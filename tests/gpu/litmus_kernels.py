"""The table of litmus kernels: one for each kind of sync, with the ids to leave out and the place
of a delay; and their variations for trials by the million. Needs no device.

No block of a cluster may exit before what is stored for it has come, and no mbarrier may miss an
arrival or bytes. Where a kernel keeps to that without the sync in question, the device may run it
so; where it does not, the row says that it may hang.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "sim"))

from async_suite import SPLIT, kernel_text, packed, without

from fusewright.cuda.emit import emit
from fusewright.kir import ir
from fusewright.kir.text import parse_kernel
from fusewright.sim.machine import simulate
from fusewright.target import WARP_SIZE, Target

CYCLES = 200_000
"""How long a delayed warp spins; a copy of 16 KB takes a few thousand."""


class Loose(Enum):
    """What a device makes of a kernel without the syncs to drop."""

    FAILS = "it computes wrong elements when the named warp is late"
    MAY_FAIL = "it is wrong by the model, but hardware may never show that"
    MAY_HANG = "not run: threads may wait forever, or stores come to a block that has exited"


@dataclass(frozen=True)
class Litmus:
    """`late` names the warp, counted through the cluster, that spins before the first CUDA line
    that holds `before`; `drop` are the ids of the syncs to leave out. A kernel that MAY_HANG must
    not run without them: the device would not come back."""

    name: str
    body: str
    drop: tuple[int, ...]
    before: str
    late: int
    loose: Loose = Loose.FAILS
    nthreads: int = 64
    cluster: int = 1

    @property
    def nwarps(self) -> int:
        """Warps of a block, or of all blocks of a cluster."""
        return self.nthreads // WARP_SIZE * self.cluster

    def text(self, trials: int = 1) -> str:
        """One block, or one cluster, a trial; all of them on the same elements."""
        return kernel_text(self.body, self.nthreads, trials, cluster=self.cluster)

    def kernel(self) -> ir.Kernel:
        """One trial with all its syncs."""
        return packed(parse_kernel(self.text()))


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

# --- between the blocks of a cluster --------------------------------------------------------------

HANDED = """
  shared s: float32[64] align 16
  cluster_arrive #0 relaxed(true)
  cluster_wait #1
  for (i < 4) {
    r[0] = load x[128*i + 64*cx + tx]
    remote_store s[tx] of block 1 - cx = r[0]
    cluster_arrive #2
    cluster_wait #3
    r[1] = load s[63 - tx]
    cluster_arrive #4
    cluster_wait #5
    store y[128*i + 64*cx + tx] = r[1]
  }
"""
"""Memory that is used again. Either barrier alone keeps blocks from exiting too early."""
FIRST_AND_LAST_STORE = """
  shared s: float32[64] align 16
  r[0] = load x[64*cx + tx]
  cluster_arrive #0 relaxed(true)
  cluster_wait #1
  store y[64*cx + tx] = r[0]
  remote_store s[tx] of block 1 - cx = r[0]
  cluster_arrive #2
  cluster_wait #3
"""
"""Nobody reads what is stored, but the block that it is stored for must be there."""
EXPECT = "mbar_expect #1 f[0] nbytes 256 by thread 0"


def counted(store: str, early: str = EXPECT, late: str = "") -> str:
    """An exchange that mbarriers count, 256 bytes for each block, which are announced before the
    blocks meet or when some may have come."""
    return f"""
  shared s: float32[64] align 16
  shared f: uint64[1]
  mbar_init #0 f[0] count 1 by thread 0
  {early}
  cluster_arrive #2 relaxed(true)
  r[0] = load x[64*cx + tx]
  cluster_wait #3
  remote_store {store} = r[0] on f
  {late}
  mbar_wait #4 f[0] parity 0
  r[1] = load s[63 - tx]
  store y[64*cx + tx] = r[1]
  mbar_wait #5 f[0] parity 0
"""


COUNTED = counted("s[tx] of block 1 - cx")
COUNTED_TO_ALL = counted("s[8*cx + tx//8] of block tx % 8")
EXPECTED_LATE = counted("s[tx] of block 1 - cx", early="", late=EXPECT)
COUNTED_APART = """
  shared s: float32[64] align 16
  shared f: uint64[4]
  for (k < 4) {
    mbar_init #0 f[k] count 1 by thread 0
    mbar_expect #1 f[k] nbytes 256 by thread 0
  }
  cluster_arrive #2 relaxed(true)
  cluster_wait #3
  for (i < 4) {
    r[0] = load x[128*i + 64*cx + tx]
    remote_store s[tx] of block 1 - cx = r[0] on f slot i
    mbar_wait #4 f[i] parity 0
    r[1] = load s[63 - tx]
    cluster_arrive #5
    cluster_wait #6
    store y[128*i + 64*cx + tx] = r[1]
  }
"""
"""An mbarrier for each iteration, whose bytes it alone counts however far blocks come apart."""
COUNTED_BY_PHASE = """
  shared s: float32[64] align 16
  shared f: uint64[1]
  mbar_init #0 f[0] count 1 by thread 0
  cluster_arrive #2 relaxed(true)
  cluster_wait #3
  for (i < 4) {
    mbar_expect #1 f[0] nbytes 256 by thread 0
    r[0] = load x[128*i + 64*cx + tx]
    remote_store s[tx] of block 1 - cx = r[0] on f
    mbar_wait #4 f[0] parity i%2
    r[1] = load s[63 - tx]
    cluster_arrive #5
    cluster_wait #6
    store y[128*i + 64*cx + tx] = r[1]
  }
"""
"""One mbarrier for all iterations. Without the barrier in the loop the bytes of two iterations mix,
and a warp may look for a phase after the next one is complete, and wait forever."""

HANGS = Loose.MAY_HANG
REMOTE, COUNTING, MADE = "st.shared::cluster", "st.async", "mbarrier.init"
LITMUS = (
    Litmus("BlockSync", EXCHANGE, (0,), "s[tx] =", 1),
    Litmus("AsyncWait", COPY, (1,), "cp.async.ca", 1),
    Litmus("AsyncCommit", COPY, (0,), "cp.async.ca", 1, loose=Loose.MAY_FAIL),
    Litmus("BlockSync behind a copy", COPY, (2,), "cp.async.ca", 1),
    Litmus("BarrierArrive and NamedSync", SPLIT, (0, 1), "s[tx] =", 0),
    Litmus("NamedSync", NAMED, (0, 1), "s[tx] =", 0),
    Litmus("MbarArrive and MbarWait", MBARRIER, (2, 3), "s[tx] =", 1),
    Litmus("WarpSync", LANES, (0,), "s[tx] =", 1, loose=Loose.MAY_FAIL),
    Litmus("split barrier in a loop", HALVES, (3, 4), "= s[", 1),
    Litmus("BlockSync beside a split barrier", HALVES, (2,), "s[tx] =", 1),
    Litmus("MbarWait for a bulk load", LOAD, (4,), "cp.async.bulk.shared", 0),
    Litmus("ProxyFence", STORE, (0,), "s[i * 64", 1, loose=Loose.MAY_FAIL),
    Litmus("BlockSync before a bulk store", STORE, (1,), "s[i * 64", 1),
    Litmus("AsyncWait for reads", STORE, (3,), "cp.async.bulk.global", 1, loose=Loose.MAY_FAIL),
    Litmus(
        "AsyncWait for writes", READ_BACK, (3,), "cp.async.bulk.global", 0, loose=Loose.MAY_FAIL
    ),
    Litmus("ClusterArrive and ClusterWait", HANDED, (2, 3), REMOTE, 3, cluster=2),
    Litmus("cluster barrier before reuse", HANDED, (4, 5), "= s[", 3, cluster=2),
    Litmus("MbarWait for remote stores", COUNTED, (4,), COUNTING, 3, cluster=2),
    Litmus("MbarWait for stores of 8 blocks", COUNTED_TO_ALL, (4,), COUNTING, 15, cluster=8),
    Litmus("cluster barrier beside mbarriers", COUNTED_APART, (5, 6), "= s[", 3, cluster=2),
    Litmus("START of a cluster", FIRST_AND_LAST_STORE, (0, 1), "= x[", 3, HANGS, cluster=2),
    Litmus("EXIT of a cluster", FIRST_AND_LAST_STORE, (2, 3), REMOTE, 3, HANGS, cluster=2),
    Litmus("cluster barrier behind MbarInit", COUNTED_TO_ALL, (2, 3), MADE, 14, HANGS, cluster=8),
    Litmus("MbarExpect", EXPECTED_LATE, (1,), COUNTING, 2, HANGS, cluster=2),
    Litmus("cluster barrier between phases", COUNTED_BY_PHASE, (5, 6), "= s[", 3, HANGS, cluster=2),
)


def delayed(litmus: Litmus, text: str, warp: int) -> str:
    """The CUDA text with a spin of one warp of the cluster where the kernel has its delay."""
    rank = f"blockIdx.x % {litmus.cluster} * {litmus.nthreads}"
    spin = (
        f"if (({rank} + threadIdx.x) / {WARP_SIZE} == {warp}) {{ "
        "const long long fw_start = clock64(); "
        f"while (clock64() - fw_start < {CYCLES}) {{}} }}"
    )
    return _with_line(text, litmus.before, spin)


def _with_line(text: str, before: str, added: str) -> str:
    """The text with a line more, before the first line of the kernel that holds `before`."""
    prelude, kernel = text.split('extern "C"', 1)
    lines = kernel.splitlines()
    at = next(i for i, line in enumerate(lines) if before in line)
    return prelude + 'extern "C"' + "\n".join((*lines[:at], added, *lines[at:], ""))


# --- trials ---------------------------------------------------------------------------------------

ELEMENTS = 4096
"""Elements of x and of y that one trial, a block or a cluster, has to itself."""
MOST_CYCLES = 4096


def trial_kernel(litmus: Litmus, trials: int, *, whole: bool) -> ir.Kernel:
    """The kernel with so many trials side by side, with its syncs or without those to drop."""
    text = litmus.text(trials)
    for array in "xy":
        one, all_ = (f"param {array}: float32[{n}]" for n in (ELEMENTS, ELEMENTS * trials))
        text = text.replace(one, all_)
    text = text.replace("x[", f"x[{ELEMENTS}*bx + ").replace("y[", f"y[{ELEMENTS}*bx + ")
    kernel = packed(parse_kernel(text))
    return kernel if whole else replace(without(kernel, litmus.drop), name="loose")


def trial_text(litmus: Litmus, kernel: ir.Kernel, target: Target) -> str:
    """CUDA text in which every warp spins for a time of its own, drawn from clock and block, where
    the litmus kernel has its delay."""
    return with_random_spin(emit(kernel, target), litmus.before)


RANDOM_SPIN = (
    "{ const long long fw_start = clock64(); const unsigned fw_draw = ((unsigned)fw_start + "
    "(blockIdx.x + blockIdx.y * gridDim.x) * 7919u + threadIdx.x / 32 * 104729u) "
    "* 2654435761u >> 8; "
    f"const long long fw_cycles = fw_draw % 4 ? fw_draw / 4 % {MOST_CYCLES} : 0; "
    "while (clock64() - fw_start < fw_cycles) {} }"
)
"""A warp spins for a time of its own, drawn from clock and block."""


def with_random_spin(text: str, before: str) -> str:
    """CUDA text with a random spin before the first line of the kernel that holds `before`."""
    return _with_line(text, before, RANDOM_SPIN)


def with_spins_at_syncs(text: str) -> str:
    """CUDA text with a random spin before every wait, arrival, barrier and bulk copy of the kernel.
    None stands among the instructions of a product, which ptxas would then take one by one."""
    prelude, kernel = text.split('extern "C"', 1)
    lines: list[str] = []
    for line in kernel.splitlines():
        lines += [RANDOM_SPIN] * any(word in line for word in DELAYED)
        lines.append(line)
    return prelude + 'extern "C"' + "\n".join([*lines, ""])


DELAYED = (
    "mbarrier.try_wait", "mbarrier.arrive", "bar.sync", "cp.async.bulk", "cp.async.wait",
    "ld.acquire", "st.release", "barrier.cluster",
)  # fmt: skip


def sources(litmus: Litmus) -> np.ndarray:
    """For each element of y the element of x that belongs there, -1 where none is written."""
    kernel = litmus.kernel()
    x, y = np.arange(ELEMENTS, dtype=np.float32), np.full(ELEMENTS, -1, np.float32)
    simulate(kernel, dict(zip(kernel.params, (x, y), strict=True)), check_races=False)
    return y.astype(np.int64)
