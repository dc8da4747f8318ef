"""Litmus kernels of matrix products, boxes, and blocks that hand over: each with its syncs, and
with one of them left out, weakened or moved. Needs no device.

Values are small whole numbers, so that every sum is exact and any element that differs is a fault.
A kernel runs in many blocks at once; each writes elements of its own, and its warps are delayed at
random before the line in question. Blocks that hand over do so in groups of three.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from litmus_kernels import Loose, with_random_spin

sys.path.insert(0, str(Path(__file__).parents[1] / "sim"))

import multicast_suite as clusters
import semaphore_suite as turns
from product_kernels import packed

from fusewright.cuda.emit import emit
from fusewright.kir import ir
from fusewright.kir.text import parse_kernel
from fusewright.target import Target
from product_suite import DONE, GENERIC_OPERANDS, READY, STORED, text_of

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Litmus:
    """`whole` is the text of one trial with all its syncs, `broken` the one that lacks something;
    the machine model finds `wrong` in it. `injected` is the message with which ptxas says that it
    puts the missing instruction in. `wanted` gives y for the parameters x and w."""

    name: str
    whole: str
    broken: str
    wrong: tuple[str, ...]
    before: str
    wanted: Callable[[Array, Array], Array]
    loose: Loose = Loose.FAILS
    injected: str = ""

    def kernel(self, trials: int | None = None, *, whole: bool = True) -> ir.Kernel:
        """The kernel as the table has it, or for so many trials side by side."""
        text = self.whole if whole else self.broken
        return packed(parse_kernel(text if trials is None else widened(text, trials)))

    def cuda(self, kernel: ir.Kernel, target: Target) -> str:
        """CUDA text in which every warp spins for a time of its own before the line in question."""
        return with_random_spin(emit(kernel, target), self.before)


def widened(text: str, trials: int) -> str:
    """So many blocks, or groups of blocks, that share operands and write elements of their own."""
    if "semaphores" in text:
        return (
            text.replace("float32[4*", f"float32[{trials}*")
            .replace("uint32[4]", f"uint32[{trials}]")
            .replace("bx < 4", f"bx < {trials}")
        )
    head, size = text.split("param y: float32[", 1)
    size, rest = size.split("]", 1)
    rest = rest.replace("store y[", f"store y[{size}*bx + ").replace("bx < 1", f"bx < {trials}")
    return f"{head}param y: float32[{int(size) * trials}]{rest}"


# --- products -----------------------------------------------------------------------------------


def _one_step(x: Array, w: Array) -> Array:
    """What `STORED` writes of a product of 64 x 16, 16 deep: a thread's registers side by side."""
    full = _tile(x, 64)[:, :16] @ _tile(w, 64)[:16, :16].T
    lane, warp, e = np.arange(128) % 32, np.arange(128) // 32, np.arange(8)
    rows = (16 * warp + lane // 4)[:, None] + 8 * (e // 2 % 2)
    columns = 8 * (e // 4) + (2 * (lane % 4))[:, None] + e % 2
    y = np.full(8192, -1.0)
    y[:1024] = full[rows, columns].reshape(-1)
    return y


def _ring_sums(x: Array, w: Array) -> Array:
    """What each block of a cluster sums of its own rows of x and of all of w."""
    own, trips = x.astype(np.float64).reshape(-1, clusters.TRIPS, 4, 32), clusters.TRIPS
    return np.einsum("bkrc,krhc->bhc", own, w.reshape(trips, 4, 2, 32)).reshape(-1)


def _tile(a: Array, columns: int) -> Array:
    return a.astype(np.float64).reshape(-1, columns)


TIMES = 4
"""How often the products of a stage are made, so that they take longer than a copy of 8 KB."""
_MANY = "".join(
    f"      mma acc[0] = k_major a[{16 * step}] * k_major b[{16 * step}] n 256"
    + (" accumulate (false)\n" if time == step == 0 else "\n")
    for time in range(TIMES)
    for step in range(4)
)
_ROWS = "".join(
    f"      store y[256*(16*(tx//32) + tx % 32 // 4 + {8 * h}) + {8 * j} + 2*(tx % 4)] = "
    f"acc[{4 * j + 2 * h}..{4 * j + 2 * h + 2}]\n"
    for j in range(32)
    for h in range(2)
)
STAGE = f"""kernel stage {{
  param x: bfloat16[8192] align 16
  param w: bfloat16[16384] align 16
  param y: float32[16384] align 16
  map xm: x sizes (64, 128) strides (1, 64) box (64, 64) swizzle 128
  map wm: w sizes (64, 256) strides (1, 64) box (64, 256) swizzle 128
  grid (bx < 1)
  block (tx < 160)
  min_blocks 1
  shared a: bfloat16[4096] tile 64 x 64 swizzle 128
  shared b: bfloat16[16384] tile 256 x 64 swizzle 128
  shared full: uint64[2]
  shared empty: uint64[1]
  mbar_init #0 full[0] count 1 by thread 0
  mbar_init #1 full[1] count 1 by thread 0
  mbar_init #2 empty[0] count 4 by thread 0
  proxy_fence #3 space(shared)
  block_sync #4
  roles {{
    role warps 0..4 {{
      local acc: float32[128]
      mbar_wait #5 full[0] parity 0
      mma_fence #6
{_MANY}      async_commit #7 kind(mma)
      async_wait #8 kind(mma)
      mbar_arrive #9 empty[0] per_warp
      async_wait #10 kind(mma)
{_ROWS}    }}
    role warps 4..5 {{
      mbar_expect #11 full[0] nbytes 40960 by thread 128
      box_load a[0] = xm at (0, 0) on full[0] by thread 128
      box_load b[0] = wm at (0, 0) on full[0] by thread 128
      mbar_wait #12 empty[0] parity 0 by thread 128
      mbar_expect #13 full[1] nbytes 8192 by thread 128
      box_load a[0] = xm at (0, 64) on full[1] by thread 128
      mbar_wait #14 full[1] parity 0
    }}
  }}
}}
"""
"""A stage whose products are made, and into which the next tile is loaded."""


def _stage(x: Array, w: Array) -> Array:
    return (TIMES * _tile(x, 64)[:64] @ _tile(w, 64).T).reshape(-1)


EDGE = """kernel edge {
  param x: float32[64] align 16
  param w: float32[4] align 16
  param y: float32[64] align 16
  map xm: x sizes (8, 8) strides (1, 8) box (8, 8)
  grid (bx < 1)
  block (tx < 64)
  local r: float32[1]
  shared s: float32[64] align 128
  shared f: uint64[1]
  mbar_init #0 f[0] count 1 by thread 0
  proxy_fence #1 space(shared)
  block_sync #2
  mbar_expect #3 f[0] nbytes 256 by thread 0
  box_load s[0] = xm at (0, 5) on f[0] by thread 0
  mbar_wait #4 f[0] parity 0
  r[0] = load s[tx]
  store y[tx] = r[0]
}
"""
"""A box with three rows inside the array and five beyond its edge."""


def _edge(x: Array, w: Array) -> Array:
    return np.concatenate([x[40:], np.zeros(40)])


# --- blocks that hand over ----------------------------------------------------------------------


def _sums(x: Array, w: Array) -> Array:
    return x.reshape(-1, 3, 64).sum(axis=1).reshape(-1)


def _moved(text: str, line: str, behind: str) -> str:
    """The text with one of its lines behind another."""
    return text.replace(line, "", 1).replace(behind, behind + line, 1)


TURN, BULK, ALL = turns.turn(), turns.bulk_turn(), turns.gathering()
MAY_FAIL, HANGS = Loose.MAY_FAIL, Loose.MAY_HANG
PRODUCT = text_of(GENERIC_OPERANDS)
LITMUS = (
    Litmus(
        "accumulators read before the wait",
        PRODUCT,
        text_of(f"{READY}  mma_fence #2\n{GENERIC_OPERANDS.split('mma_fence #2')[1]}").replace(
            f"{DONE}{STORED}", f"  async_commit #3 kind(mma)\n{STORED}  async_wait #4 kind(mma)\n"
        ),
        ("race",),
        "fence.proxy",
        _one_step,
        MAY_FAIL,
        injected="C7517",
    ),
    Litmus(
        "no fence before a product",
        PRODUCT,
        PRODUCT.replace("  mma_fence #2\n", ""),
        ("rule",),
        "fence.proxy",
        _one_step,
        MAY_FAIL,
        injected="C7519",
    ),
    Litmus(
        "no proxy fence before a product",
        PRODUCT,
        PRODUCT.replace("  proxy_fence #0 space(shared)\n", ""),
        ("race",),
        "fw_store<8>(a",
        _one_step,
        MAY_FAIL,
    ),
    Litmus(
        "no barrier before a product",
        PRODUCT,
        PRODUCT.replace("  block_sync #1\n", ""),
        ("race",),
        "fw_store<8>(a",
        _one_step,
        MAY_FAIL,
    ),
    Litmus(
        "a stage released before its products",
        STAGE,
        STAGE.replace("      async_wait #8 kind(mma)\n", ""),
        ("race",),
        "fw-sync 5",
        _stage,
    ),
    Litmus(
        "a stage filled before it is released",
        STAGE,
        STAGE.replace("      mbar_wait #12 empty[0] parity 0 by thread 128\n", ""),
        ("race",),
        "fw-sync 5",
        _stage,
    ),
    Litmus(
        "products before their stage is full",
        STAGE,
        STAGE.replace("      mbar_wait #5 full[0] parity 0\n", ""),
        ("race", "rule", "uninitialised"),
        "fw-sync 11",
        _stage,
    ),
    Litmus(
        "bytes beyond an edge that nobody expects",
        EDGE,
        EDGE.replace("nbytes 256", "nbytes 96"),
        ("deadlock",),
        "fw-sync 3",
        _edge,
        HANGS,
    ),
    Litmus(
        "no turn is waited for",
        TURN,
        TURN.replace(turns.ACQUIRE, ""),
        ("race",),
        "w[bx * 64 + tx] =",
        _sums,
    ),
    Litmus(
        "the others of a block do not wait",
        TURN,
        TURN.replace(turns.ENTER, ""),
        ("race",),
        "r[0] = x[",
        _sums,
    ),
    Litmus(
        "the others of a block are not gathered",
        TURN,
        TURN.replace(turns.LEAVE, ""),
        ("race",),
        "w[bx * 64 + tx] =",
        _sums,
    ),
    Litmus(
        "a turn passed on before the stores",
        TURN,
        _moved(TURN, turns.RELEASE, turns.ENTER),
        ("race",),
        "w[bx * 64 + tx] =",
        _sums,
    ),
    Litmus(
        "a turn passed on for the block alone",
        TURN,
        TURN.replace("size(64) issuer(0)\nstore y", "size(64) issuer(0) scope(block)\nstore y"),
        ("race",),
        "w[bx * 64 + tx] =",
        _sums,
        MAY_FAIL,
    ),
    Litmus(
        "a flag that is not reset",
        TURN,
        TURN.replace("(by + 1) % 3", "by + 1"),
        ("rule",),
        "w[bx * 64 + tx] =",
        _sums,
    ),
    Litmus(
        "a bulk turn passed on before it is complete",
        BULK,
        _moved(BULK, turns.WAIT, turns.RELEASE),
        ("race",),
        "cp.async.bulk.global",
        _sums,
        MAY_FAIL,
    ),
    Litmus(
        "the sources are free, the sum is not there",
        BULK,
        BULK.replace(turns.WAIT, turns.WAIT.replace("\n", " reads_only(true)\n")),
        ("race",),
        "cp.async.bulk.global",
        _sums,
        MAY_FAIL,
    ),
    Litmus(
        "one group is left under way",
        BULK,
        BULK.replace(turns.WAIT, turns.WAIT.replace("\n", " keep(1)\n")),
        ("race", "rule"),
        "cp.async.bulk.global",
        _sums,
        MAY_FAIL,
    ),
    Litmus(
        "no proxy fence behind the acquire",
        BULK,
        BULK.replace(turns.BEFORE, ""),
        ("race",),
        "cp.async.bulk.global",
        _sums,
        MAY_FAIL,
    ),
    Litmus(
        "no proxy fence before a bulk reduce",
        BULK,
        BULK.replace("proxy_fence #4 space(shared)\n", ""),
        ("race",),
        "s[tx] =",
        _sums,
        MAY_FAIL,
    ),
    Litmus(
        "parts are read before they are there",
        ALL,
        ALL.replace(turns.ALL, ""),
        ("race", "uninitialised"),
        "w[bx * 192 + by * 64 + tx] =",
        _sums,
    ),
    Litmus(
        "arrived before the block is gathered",
        ALL,
        ALL.replace(turns.LEAVE, ""),
        ("race",),
        "w[bx * 192 + by * 64 + tx] =",
        _sums,
    ),
    Litmus(
        "blocks of a cluster fill a ring of each other",
        clusters.RING,
        clusters.HALF_EXPECTED,
        ("deadlock", "rule"),
        "mbarrier.arrive.shared::cluster",
        _ring_sums,
        Loose.MAY_HANG,
    ),
    Litmus(
        "four blocks of a cluster fill a ring of each other",
        clusters.ring_text(4),
        clusters.ring_text(4).replace("nbytes 1536", "nbytes 1024"),
        ("deadlock", "rule"),
        "multicast::cluster",
        _ring_sums,
        Loose.MAY_HANG,
    ),
)
"""What MAY_FAIL is wrong by the PTX text; hardware of today may never show it: ptxas puts an mma
wait and an mma fence in where registers need them, that fence may hold the warps of a warpgroup
together, proxies of one multiprocessor see shared memory
in order once a barrier is passed, and bulk writes come to one place in the order of their issue
unless memory is busy."""


def operands(kernel: ir.Kernel, seed: int) -> list[Array]:
    """Small whole numbers for x and w, of the dtypes and sizes of the kernel's parameters."""
    rng = np.random.default_rng(seed)
    arrays = [p for p in kernel.arrays if p.name != "y"]
    return [rng.integers(-3, 4, int(str(p.size))).astype(p.dtype.numpy) for p in arrays]
