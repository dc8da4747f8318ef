"""Kernels of matrix products whose verdict is known, as text.

A sync listed in `needed` makes a finding when it is left out alone.
"""

from __future__ import annotations

import numpy as np
from async_suite import Case
from product_kernels import Product, Ring

from fusewright.kir import ir
from fusewright.sim import verify
from fusewright.sim.machine import SimResult, simulate
from fusewright.sim.model import MODEL, Model


def arrays_of(kernel: ir.Kernel) -> dict[ir.Buffer, np.ndarray]:
    """Small counting numbers for every parameter."""
    return {p: (np.arange(int(str(p.size))) % 7).astype(p.dtype.numpy) for p in kernel.params}


def run(kernel: ir.Kernel, model: Model = MODEL) -> SimResult:
    return simulate(kernel, arrays_of(kernel), outputs=kernel.params[-1:], model=model)


def verdict(kernel: ir.Kernel, model: Model = MODEL) -> frozenset[str]:
    return frozenset(r.kind for r in run(kernel, model).races)


def case_of(kernel: ir.Kernel) -> verify.Case:
    """A witness; the last parameter is the output."""
    return verify.Case(arrays_of(kernel), outputs=kernel.params[-1:])


def text_of(body: str, nthreads: int = 128) -> str:
    """A kernel whose operands threads write themselves: x and w are 64 x 64, y 64 x 16."""
    return f"""kernel k {{
  param x: bfloat16[4096] align 16
  param w: bfloat16[4096] align 16
  param y: float32[8192] align 16
  map xm: x sizes (64, 64) strides (1, 64) box (64, 64) swizzle 128
  grid (bx < 1)
  block (tx < {nthreads})
  min_blocks 1
  shared a: bfloat16[4096] tile 64 x 64 swizzle 128
  shared b: bfloat16[1024] tile 16 x 64 swizzle 128
  shared full: uint64[2]
  local acc: float32[8]
  local r: bfloat16[8]
{body}
}}
"""


FILL = """
  for (i < 4) {
    r[0..8] = load x[8*(tx % 128) + 1024*i]
    store a[8*((tx % 128) ^ (tx % 128 // 8 % 8)) + 1024*i] = r[0..8]
  }
  r[0..8] = load w[8*(tx % 128)]
  store b[8*((tx % 128) ^ (tx % 128 // 8 % 8))] = r[0..8]
"""
READY = f"{FILL}  proxy_fence #0 space(shared)\n  block_sync #1\n"
MULTIPLY = "  mma acc[0] = k_major a[0] * k_major b[0] n 16 accumulate (false)\n"
STORED = "".join(f"  store y[8*tx + {4 * i}] = acc[{4 * i}..{4 * i + 4}]\n" for i in range(2))
DONE = "  async_commit #3 kind(mma)\n  async_wait #4 kind(mma)\n"

GENERIC_OPERANDS = f"{READY}  mma_fence #2\n{MULTIPLY}{DONE}{STORED}"
FENCE_BEHIND_THE_BARRIER = GENERIC_OPERANDS.replace(
    "  proxy_fence #0 space(shared)\n  block_sync #1\n",
    "  block_sync #1\n  proxy_fence #0 space(shared)\n",
)
NO_FENCE = GENERIC_OPERANDS.replace("  mma_fence #2\n", "")
READ_TOO_EARLY = f"{READY}  mma_fence #2\n{MULTIPLY}  async_commit #3 kind(mma)\n{STORED}" + (
    "  async_wait #4 kind(mma)\n"
)
WRITTEN_UNDER_WAY = f"{READY}  mma_fence #2\n{MULTIPLY}  acc[3] = copy(0.0:float32)\n{DONE}{STORED}"
NOT_WAITED_FOR = f"{READY}  mma_fence #2\n{MULTIPLY}  async_commit #3 kind(mma)\n"
NOT_COMMITTED = f"{READY}  mma_fence #2\n{MULTIPLY}  async_wait #4 kind(mma)\n{STORED}"
ZEROED = "".join(f"  acc[{i}] = copy(0.0:float32)\n" for i in range(8))
SUM = f"{READY}{ZEROED}  mma_fence #2\n{MULTIPLY.replace(' accumulate (false)', '')}{DONE}{STORED}"
ZEROED_BEHIND_THE_FENCE = SUM.replace(f"{ZEROED}  mma_fence #2\n", f"  mma_fence #2\n{ZEROED}")
TWICE = f"""{READY}  mma_fence #2
{MULTIPLY}{DONE}  r[0] = cast(acc[0])
  mma_fence #5
{MULTIPLY.replace(" accumulate (false)", "")}  async_commit #6 kind(mma)
  async_wait #7 kind(mma)
{STORED}"""
TWO_GROUPS = f"""{READY}  local other: float32[8]
  mma_fence #2
{MULTIPLY}  async_commit #3 kind(mma)
{MULTIPLY.replace("acc[", "other[").replace("a[0] *", "a[16] *")}  async_commit #5 kind(mma)
  async_wait #4 kind(mma) keep(1)
{STORED}  async_wait #6 kind(mma)
  store y[4096 + 8*tx] = other[0..4]
"""
FRAGMENT = f"""{READY}  mma_fence #2
  mma acc[0] = r[0] * k_major b[0] n 16 accumulate (false)
{DONE}  r[0..8] = load x[8*tx]
{STORED}  r[1] = cast(acc[0])
"""
FRAGMENT_OVERWRITTEN = FRAGMENT.replace(
    f"{DONE}  r[0..8] = load x[8*tx]\n",
    "  async_commit #3 kind(mma)\n  r[0..8] = load x[8*tx]\n  async_wait #4 kind(mma)\n",
)
RELEASED = f"""  if (tx < 128) {{{FILL}  }}
  mbar_init #5 full[0] count COUNT by thread 0
  mbar_init #6 full[1] count 1 by thread 0
  proxy_fence #0 space(shared)
  block_sync #8
  roles {{
    role warps 0..4 {{
      mma_fence #2
    {MULTIPLY}{DONE}      RELEASE
      store y[tx] = acc[0]
    }}
    role warps 4..5 {{
      mbar_wait #10 full[0] parity 0 by thread 128
      mbar_expect #11 full[1] nbytes 8192 by thread 128
      box_load a[0] = xm at (0, 0) on full[1] by thread 128
      mbar_wait #12 full[1] parity 0
    }}
  }}
"""
RELEASED_BY_EACH_WARP = RELEASED.replace("COUNT", "4").replace(
    "RELEASE\n", "mbar_arrive #9 full[0] per_warp\n"
)
RELEASED_BY_ONE_WARP = RELEASED.replace("COUNT", "1").replace(
    "RELEASE\n", "if (tx < 32) {\n mbar_arrive #9 full[0] per_warp\n}\n"
)
RELEASING = (0, 2, 3, 4, 5, 6, 8, 9, 10, 11, 12)
MORE_REGISTERS = """
  roles {
    role warps 0..4 {
      set_max_registers 40
    }
    role warps 4..8 {
      set_max_registers 232 grows
    }
    role warps 8..12 {
      set_max_registers 232 grows
    }
  }
"""
TOO_MANY_REGISTERS = MORE_REGISTERS.replace("set_max_registers 40", "prefetch_map xm by thread 0")

SUITE: tuple[Case, ...] = (
    Case("one_tile", Product().text(), needed=tuple(range(8))),
    Case("ring", Ring(128, 128, 320, 1, 3, 64).text(), needed=(*range(6), *range(10, 20))),
    Case("generic_operands", text_of(GENERIC_OPERANDS), needed=tuple(range(5))),
    Case("fence_behind_the_barrier", text_of(FENCE_BEHIND_THE_BARRIER), wrong=("race",)),
    Case("no_fence", text_of(NO_FENCE), wrong=("rule",)),
    Case("read_too_early", text_of(READ_TOO_EARLY), wrong=("race",)),
    Case("written_under_way", text_of(WRITTEN_UNDER_WAY), wrong=("race",)),
    Case("not_waited_for", text_of(NOT_WAITED_FOR), wrong=("rule",)),
    Case("not_committed", text_of(NOT_COMMITTED), wrong=("race", "rule")),
    Case("sum", text_of(SUM), needed=tuple(range(5))),
    Case("zeroed_behind_the_fence", text_of(ZEROED_BEHIND_THE_FENCE), wrong=("race",)),
    Case("twice", text_of(TWICE), needed=tuple(range(8))),
    Case("two_groups", text_of(TWO_GROUPS), needed=tuple(range(7))),
    Case("fragment", text_of(FRAGMENT), needed=tuple(range(5))),
    Case("fragment_overwritten", text_of(FRAGMENT_OVERWRITTEN), wrong=("race",)),
    Case("released_by_each_warp", text_of(RELEASED_BY_EACH_WARP, 160), needed=RELEASING),
    Case("released_by_one_warp", text_of(RELEASED_BY_ONE_WARP, 160), wrong=("race",)),
    Case("more_registers", text_of(MORE_REGISTERS, 384)),
    Case("too_many_registers", text_of(TOO_MANY_REGISTERS, 384), wrong=("deadlock",)),
)

PRODUCT_RULES = (
    "mma_is_asynchronous",
    "mma_waits_stay_in_warp",
    "mma_needs_fence",
    "registers_are_counted",
)
