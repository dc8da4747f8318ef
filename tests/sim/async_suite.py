"""Kernels of asynchronous work and wider syncs whose verdict is known, as text.

A sync listed in `needed` makes a finding when it is left out alone, one in `redundant` does not.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from fusewright.core.node import rewrite
from fusewright.kir import ir
from fusewright.kir.spec import check_kernel
from fusewright.kir.text import parse_kernel, print_kernel
from fusewright.memory import Memory
from fusewright.sim import verify
from fusewright.sim.machine import SimResult, simulate
from fusewright.sim.model import MODEL, Model


@dataclass(frozen=True)
class Case:
    """`wrong` holds the kinds of findings of the whole kernel, empty for a correct one."""

    name: str
    text: str
    needed: tuple[int, ...] = ()
    redundant: tuple[int, ...] = ()
    wrong: tuple[str, ...] = ()

    def kernel(self, drop: Iterable[int] = ()) -> ir.Kernel:
        return without(parse_kernel(self.text), drop)


def without(kernel: ir.Kernel, drop: Iterable[int]) -> ir.Kernel:
    """The kernel without the syncs of these ids."""
    gone = frozenset(drop)

    def edit(n):
        return () if isinstance(n, ir.SyncStatement) and n.id in gone else n

    return rewrite(kernel, edit) if gone else kernel


def packed(kernel: ir.Kernel) -> ir.Kernel:
    """Shared buffers one behind the other."""
    end = 0

    def edit(n):
        nonlocal end
        if isinstance(n, ir.Alloc) and n.buffer.memory is Memory.SHARED:
            start = -(-end // 128) * 128
            end = start + int(str(n.buffer.size)) * n.buffer.dtype.nbytes
            return replace(n, offset=start)
        return n

    return rewrite(kernel, edit)


def arrays_of(kernel: ir.Kernel) -> dict[ir.Buffer, np.ndarray]:
    """Counting numbers for every parameter."""
    return {p: np.arange(int(str(p.size))).astype(p.dtype.numpy) for p in kernel.params}


def run(kernel: ir.Kernel, model: Model = MODEL) -> SimResult:
    return simulate(kernel, arrays_of(kernel), outputs=kernel.params[1:], model=model)


def verdict(kernel: ir.Kernel, model: Model = MODEL) -> frozenset[str]:
    return frozenset(r.kind for r in run(kernel, model).races)


def case_of(kernel: ir.Kernel) -> verify.Case:
    """A witness of counting numbers; all but the first parameter are outputs."""
    return verify.Case(arrays_of(kernel), outputs=kernel.params[1:])


def assert_verdict(case: Case) -> None:
    """The spec holds, the simulator finds what the case says, and the text parses back."""
    kernel = case.kernel()
    check_kernel(kernel, "lowered")
    assert verdict(kernel) == frozenset(case.wrong)
    text = print_kernel(kernel)
    assert print_kernel(parse_kernel(text)) == text


def kernel_text(body: str, nthreads: int = 64, nblocks: int = 1, *, cluster: int = 1) -> str:
    """A kernel of so many blocks, or of so many clusters of `cluster` blocks each."""
    header = f"block (tx < {nthreads})" + (f"\n  cluster (cx < {cluster})" if cluster > 1 else "")
    return f"""kernel k {{
  param x: float32[4096] align 16
  param y: float32[4096] align 16
  grid (bx < {nblocks})
  {header}
  local r: float32[4]
{body}
}}
"""


COPY_NOT_WAITED_FOR = """
  shared s: float32[64] align 16
  cp_async s[tx] = x[tx]
  async_commit #0 kind(cp_async)
"""
COPY = f"""{COPY_NOT_WAITED_FOR}  async_wait #1 kind(cp_async)
  r[0] = load s[tx]
  store y[tx] = r[0]
"""
COPY_EXCHANGED = f"""{COPY_NOT_WAITED_FOR}  async_wait #1 kind(cp_async)
  block_sync #2
  r[0] = load s[63 - tx]
  store y[tx] = r[0]
"""
COPY_WAIT_BEHIND_THE_BARRIER = f"""{COPY_NOT_WAITED_FOR}  block_sync #2
  async_wait #1 kind(cp_async)
  r[0] = load s[63 - tx]
  store y[tx] = r[0]
"""
COPY_RING = """
  shared s: float32[192] align 16
  for (p < 2) {
    cp_async s[64*p + tx] = x[64*p + tx]
    async_commit #0 kind(cp_async)
  }
  for (k < 6) {
    async_wait #1 kind(cp_async) keep(1)
    block_sync #2
    r[0] = load s[64*(k % 3) + 63 - tx]
    store y[64*k + tx] = r[0]
    cp_async s[64*((k + 2) % 3) + tx] = x[64*k + 128 + tx] if (k < 4)
    async_commit #3 kind(cp_async)
  }
"""
COPY_DOUBLE_BUFFER = """
  shared s: float32[128] align 16
  cp_async s[tx] = x[tx]
  async_commit #0 kind(cp_async)
  for (k < 5) {
    cp_async s[64*((k + 1) % 2) + tx] = x[64*k + 64 + tx] if (k < 4)
    async_commit #1 kind(cp_async)
    async_wait #2 kind(cp_async) keep(1)
    block_sync #3
    r[0] = load s[64*(k % 2) + 63 - tx]
    store y[64*k + tx] = r[0]
    block_sync #4
  }
"""
COPY_ZERO_FILL = """
  shared s: float32[256] align 16
  cp_async s[4*tx] = x[4*tx] width 4 if (tx < 50) zero_fill .no_allocate
  async_commit #0 kind(cp_async)
  async_wait #1 kind(cp_async)
  r[0..4] = load s[4*tx]
  store y[4*tx] = r[0..4]
"""
TWO_COPIES_TO_ONE_PLACE = """
  shared s: float32[64] align 16
  cp_async s[tx] = x[tx]
  cp_async s[tx] = x[tx + 64]
  async_commit #0 kind(cp_async)
  async_wait #1 kind(cp_async)
"""
COPY_OVER_WHAT_IS_READ = """
  shared s: float32[64] align 16
  r[0] = load x[tx]
  store s[tx] = r[0]
  block_sync #0
  r[0] = load s[63 - tx]
  store y[tx] = r[0]
  block_sync #1
  cp_async s[tx] = x[tx]
  async_commit #2 kind(cp_async)
  async_wait #3 kind(cp_async)
"""

NAMED = """
  shared s: float32[32] align 16
  roles {
    role warps 0..1 {
      for (k < 4) {
        r[0] = load x[32*k + tx]
        named_sync #0 barrier(2) nthreads(64)
        store s[tx] = r[0]
        barrier_arrive #1 barrier(1) nthreads(64)
      }
    }
    role warps 1..2 {
      for (j < 4) {
        barrier_arrive #2 barrier(2) nthreads(64)
        named_sync #3 barrier(1) nthreads(64)
        r[0] = load s[63 - tx]
        store y[32*j + tx - 32] = r[0]
      }
    }
  }
"""
SPLIT = """
  shared s: float32[64] align 16
  r[0] = load x[tx]
  roles {
    role warps 0..1 {
      store s[tx] = r[0]
      barrier_arrive #0 barrier(1) nthreads(64)
    }
    role warps 1..2 {
      named_sync #1 barrier(1) nthreads(64)
      r[0] = load s[tx - 32]
      store y[tx] = r[0]
    }
  }
"""
ARRIVAL_LEARNS_NOTHING = """
  shared s: float32[64] align 16
  r[0] = load x[tx]
  roles {
    role warps 0..1 {
      store s[tx] = r[0]
      named_sync #1 barrier(1) nthreads(64)
    }
    role warps 1..2 {
      barrier_arrive #0 barrier(1) nthreads(64)
      r[1] = load s[tx - 32]
      store y[tx] = r[1]
    }
  }
"""
NAMED_BY_UNORDERED_GROUPS = """
  roles {
    role warps 0..1 {
      barrier_arrive #0 barrier(1) nthreads(64)
      barrier_arrive #1 barrier(1) nthreads(64)
    }
    role warps 1..2 {
      named_sync #2 barrier(1) nthreads(64)
      named_sync #3 barrier(1) nthreads(64)
    }
  }
"""
NAMED_LACKS_A_WARP = """
  roles {
    role warps 0..1 {
      named_sync #0 barrier(1) nthreads(64)
    }
  }
"""

LOAD_NOT_WAITED_FOR = """
  shared s: float32[64] align 128
  shared b: uint64[1]
  mbar_init #0 b[0] count 1 by thread 0
  proxy_fence #1 space(shared)
  block_sync #2
  mbar_expect #3 b[0] nbytes 256 by thread 0
  bulk_load s[0] = x[0] size 64 on b[0] by thread 0
"""
BULK_ONCE = f"""{LOAD_NOT_WAITED_FOR}  mbar_wait #4 b[0] parity 0
  r[0] = load s[63 - tx]
  store y[tx] = r[0]
"""
RING = """
  shared s: float32[256] align 128
  shared full: uint64[2]
  shared empty: uint64[2]
  for (i < 2) {
    mbar_init #0 full[i] count 1 by thread 0
    mbar_init #1 empty[i] count 4 by thread 0
  }
  proxy_fence #2 space(shared)
  block_sync #3
  roles {
    role warps 0..4 {
      for (k < 5) {
        mbar_wait #4 full[k % 2] parity (k//2) % 2
        r[0] = load s[128*(k % 2) + tx]
        warp_sync #5
        mbar_arrive #6 empty[k % 2] per_warp
        store y[128*k + tx] = r[0]
      }
    }
    role warps 4..5 {
      for (j < 5) {
        mbar_wait #7 empty[j % 2] parity (j//2 + 1) % 2 by thread 128
        mbar_expect #8 full[j % 2] nbytes 512 by thread 128
        bulk_load s[128*(j % 2)] = x[128*j] size 128 on full[j % 2] by thread 128
      }
    }
  }
"""
RING_OF_A_WARP = RING.replace(
    "parity (j//2 + 1) % 2 by thread 128\n", "parity (j//2 + 1) % 2\n        warp_sync #9\n"
)
RING_OF_A_LOOSE_WARP = RING.replace(" % 2 by thread 128\n", " % 2\n")
MBARRIER_AS_BARRIER = """
  shared s: float32[64] align 16
  shared b: uint64[1]
  mbar_init #0 b[0] count 64 by thread 0
  block_sync #1
  for (k < 3) {
    r[0] = load x[64*k + tx]
    store s[tx] = r[0]
    mbar_arrive #2 b[0]
    mbar_wait #3 b[0] parity 0
    r[0] = load s[63 - tx]
    store y[64*k + tx] = r[0]
    mbar_arrive #4 b[0]
    mbar_wait #5 b[0] parity 1
  }
"""
WRONG_PARITY = BULK_ONCE.replace("mbar_wait #4 b[0] parity 0", "mbar_wait #4 b[0] parity 1")
WRONG_BYTES = BULK_ONCE.replace("nbytes 256", "nbytes 512")
WRONG_COUNT = BULK_ONCE.replace("count 1", "count 2")
TWO_PHASES_AT_ONCE = """
  shared b: uint64[1]
  mbar_init #0 b[0] count 32 by thread 0
  block_sync #1
  roles {
    role warps 0..1 {
      mbar_arrive #2 b[0]
      mbar_arrive #3 b[0]
    }
    role warps 1..2 {
      mbar_wait #4 b[0] parity 0
    }
  }
"""
PARITY_GUARANTEES_LESS = """
  shared s: float32[32] align 16
  shared b: uint64[1]
  mbar_init #0 b[0] count 32 by thread 0
  block_sync #1
  roles {
    role warps 0..1 {
      mbar_wait #5 b[0] parity 1
      r[0] = load s[tx]
      store y[tx] = r[0]
    }
    role warps 1..2 {
      r[0] = load x[tx]
      mbar_arrive #2 b[0]
      mbar_wait #3 b[0] parity 0
      store s[tx - 32] = r[0]
      mbar_arrive #4 b[0]
    }
  }
"""

STORE = """
  shared s: float32[64] align 128
  r[0] = load x[tx]
  store s[tx] = r[0]
  proxy_fence #0 space(shared)
  block_sync #1
  bulk_store y[0] = s[0] size 64 by thread 0
  async_commit #2 kind(bulk)
  async_wait #3 kind(bulk) reads_only(true)
"""
STORE_RING = """
  shared s: float32[128] align 128
  for (k < 5) {
    r[0] = load x[64*k + tx]
    async_wait #0 kind(bulk) keep(1) reads_only(true)
    block_sync #1
    store s[64*(k % 2) + tx] = r[0]
    proxy_fence #2 space(shared)
    block_sync #3
    bulk_store y[64*k] = s[64*(k % 2)] size 64 by thread 0
    async_commit #4 kind(bulk)
  }
  async_wait #5 kind(bulk) reads_only(true)
"""
STORE_READ_BACK = f"""{STORE.replace(" reads_only(true)", "")}  block_sync #4
  r[0] = load y[63 - tx]
  store y[64 + tx] = r[0]
"""
STORE_READ_BACK_TOO_EARLY = STORE_READ_BACK.replace(
    "#3 kind(bulk)", "#3 kind(bulk) reads_only(true)"
)
FENCE_BEHIND_THE_BARRIER = """
  shared s: float32[64] align 128
  r[0] = load x[tx]
  store s[tx] = r[0]
  block_sync #1
  proxy_fence #0 space(shared)
  bulk_store y[0] = s[0] size 64 by thread 0
  async_commit #2 kind(bulk)
  async_wait #3 kind(bulk)
"""
STORE_OF_ONE_THREAD = """
  shared s: float32[4] align 128
  if (tx == 0) {
    r[0..4] = load x[0]
    store s[0] = r[0..4]
    proxy_fence #0 space(shared)
  }
  bulk_store y[0] = s[0] size 4 by thread 0
  async_commit #1 kind(bulk)
  async_wait #2 kind(bulk) reads_only(true)
"""
REDUCE = STORE.replace("bulk_store y", "bulk_reduce.add y")
TIME_IS_NOT_MEMORY = """
  shared b: uint64[1]
  mbar_init #0 b[0] count 1 by thread 0
  warp_sync #1
  roles {
    role warps 0..1 {
      r[0] = load x[tx]
      mbar_arrive #2 b[0] per_warp
      mbar_wait #3 b[0] parity 0
      r[0] = shuffle.xor(r[0], 1)
      mbar_arrive #4 b[0] per_warp
      mbar_wait #5 b[0] parity 1
    }
  }
"""

SUITE: tuple[Case, ...] = (
    Case("copy", kernel_text(COPY), needed=(0, 1)),
    Case("copy_exchanged", kernel_text(COPY_EXCHANGED), needed=(0, 1, 2)),
    Case("wait_behind_barrier", kernel_text(COPY_WAIT_BEHIND_THE_BARRIER), wrong=("race",)),
    Case("copy_ring", kernel_text(COPY_RING), needed=(0, 1, 2, 3)),
    Case("copy_double_buffer", kernel_text(COPY_DOUBLE_BUFFER), needed=(0, 1, 2, 3, 4)),
    Case("copy_zero_fill", kernel_text(COPY_ZERO_FILL), needed=(0, 1)),
    Case("copy_not_waited_for", kernel_text(COPY_NOT_WAITED_FOR), wrong=("rule",)),
    Case("two_copies_to_one_place", kernel_text(TWO_COPIES_TO_ONE_PLACE), wrong=("race",)),
    Case("copy_over_what_is_read", kernel_text(COPY_OVER_WHAT_IS_READ), needed=(0, 1, 2, 3)),
    Case("named", kernel_text(NAMED), needed=(0, 1, 2, 3)),
    Case("split_barrier", kernel_text(SPLIT), needed=(0, 1)),
    Case("arrival_learns_nothing", kernel_text(ARRIVAL_LEARNS_NOTHING), wrong=("race",)),
    Case(
        "named_by_unordered_groups",
        kernel_text(NAMED_BY_UNORDERED_GROUPS),
        wrong=("deadlock", "rule"),
    ),
    Case("named_lacks_a_warp", kernel_text(NAMED_LACKS_A_WARP), wrong=("deadlock",)),
    Case("bulk_once", kernel_text(BULK_ONCE), needed=(0, 1, 2, 3, 4)),
    Case("ring", kernel_text(RING, 160), needed=tuple(range(9))),
    Case("ring_of_a_warp", kernel_text(RING_OF_A_WARP, 160), needed=tuple(range(10))),
    Case("ring_of_a_loose_warp", kernel_text(RING_OF_A_LOOSE_WARP, 160), wrong=("rule",)),
    Case("mbarrier_as_barrier", kernel_text(MBARRIER_AS_BARRIER), needed=tuple(range(6))),
    Case("wrong_parity", kernel_text(WRONG_PARITY), wrong=("deadlock",)),
    Case("wrong_bytes", kernel_text(WRONG_BYTES), wrong=("deadlock",)),
    Case("wrong_count", kernel_text(WRONG_COUNT), wrong=("deadlock",)),
    Case("load_not_waited_for", kernel_text(LOAD_NOT_WAITED_FOR), wrong=("rule",)),
    Case("two_phases_at_once", kernel_text(TWO_PHASES_AT_ONCE), wrong=("deadlock", "rule")),
    Case(
        "parity_guarantees_less",
        kernel_text(PARITY_GUARANTEES_LESS),
        wrong=("race", "rule", "uninitialised"),
    ),
    Case("store", kernel_text(STORE), needed=(0, 1, 2, 3)),
    Case("store_ring", kernel_text(STORE_RING), needed=tuple(range(6))),
    Case("store_read_back", kernel_text(STORE_READ_BACK), needed=tuple(range(5))),
    Case("store_read_back_too_early", kernel_text(STORE_READ_BACK_TOO_EARLY), wrong=("race",)),
    Case("fence_behind_the_barrier", kernel_text(FENCE_BEHIND_THE_BARRIER), wrong=("race",)),
    Case("store_of_one_thread", kernel_text(STORE_OF_ONE_THREAD), needed=(0, 1, 2)),
    Case("reduce", kernel_text(REDUCE), needed=(0, 1, 2, 3)),
    Case("time_is_not_memory", kernel_text(TIME_IS_NOT_MEMORY), needed=(1,)),
)
