"""Kernels whose verdict is known: for each kind of hazard one that has its sync and one that lacks
it. A sync listed in `needed` makes a race when it is left out, alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
from sim_kernels import Builder, softmax

from fusewright.core.atoms import xor
from fusewright.core.conditions import equal, less
from fusewright.core.expr import Int, Var
from fusewright.dtypes import float16, float32
from fusewright.kir import ir
from fusewright.sim.machine import SimResult, simulate
from fusewright.sim.model import MODEL, Model

Make = Callable[[Iterable[int]], ir.Kernel]


@dataclass(frozen=True)
class Case:
    """`verdict` is the set of finding kinds of the whole kernel."""

    name: str
    make: Make
    verdict: frozenset[str] = frozenset()
    needed: tuple[int, ...] = ()
    redundant: tuple[int, ...] = ()


def run(kernel: ir.Kernel, model: Model = MODEL) -> SimResult:
    arrays = {p: np.zeros(int(str(p.size)), p.dtype.numpy) for p in kernel.params}
    return simulate(kernel, arrays, model=model)


def verdict(kernel: ir.Kernel, model: Model = MODEL) -> frozenset[str]:
    return frozenset(r.kind for r in run(kernel, model).races)


def _start(drop: Iterable[int], nthreads: int = 64, nblocks: int = 1) -> tuple[Builder, ir.Reg]:
    b = Builder(nblocks, nthreads, drop)
    value = b.reg("v")
    b.compute("copy", value, ir.Imm(1.0, float32))
    return b, value


def write_read(drop: Iterable[int]) -> ir.Kernel:
    b, v = _start(drop)
    s = b.shared("s", 64)
    b.store(s, b.tx, v)
    b.sync()
    b.load(v, s, 63 - b.tx)
    return b.kernel()


def read_write(drop: Iterable[int]) -> ir.Kernel:
    b, v = _start(drop)
    s = b.shared("s", 64)
    b.store(s, b.tx, v)
    b.sync()
    b.load(v, s, 63 - b.tx)
    b.sync()
    b.store(s, b.tx, v)
    return b.kernel()


def write_write(drop: Iterable[int]) -> ir.Kernel:
    b, v = _start(drop)
    s = b.shared("s", 64)
    b.store(s, b.tx, v)
    b.sync()
    b.store(s, 63 - b.tx, v)
    return b.kernel()


def within_warp(drop: Iterable[int]) -> ir.Kernel:
    b, v = _start(drop)
    s = b.shared("s", 64)
    b.store(s, b.tx, v)
    b.sync(ir.WarpSync)
    b.load(v, s, xor(b.tx, 1))
    return b.kernel()


def warp_sync_is_too_weak(drop: Iterable[int]) -> ir.Kernel:
    b, v = _start(drop)
    s = b.shared("s", 64)
    b.store(s, b.tx, v)
    b.sync(ir.WarpSync)
    b.load(v, s, 63 - b.tx)
    return b.kernel()


def shuffle_is_no_fence(drop: Iterable[int]) -> ir.Kernel:
    b, v = _start(drop)
    s = b.shared("s", 64)
    b.store(s, b.tx, v)
    b.add(ir.Shuffle(v, v, "xor", Int(1)))
    b.load(v, s, xor(b.tx, 1))
    return b.kernel()


def sync_of_the_other_warp(drop: Iterable[int]) -> ir.Kernel:
    b, v = _start(drop)
    s = b.shared("s", 64)
    b.store(s, b.tx, v)
    inner = b.nested()
    inner.sync(ir.WarpSync)
    b.add(ir.If(less(b.tx, 32), tuple(inner.body)))
    b.load(v, s, xor(b.tx, 1), predicate=less(31, b.tx))
    return b.kernel()


def _loop(drop: Iterable[int], trips: int, stages: int, syncs: int) -> ir.Kernel:
    b, v = _start(drop)
    s = b.shared("s", 64 * stages)
    i = Var("i", 0, trips - 1)
    inner = b.nested()
    slot = (i % stages) * 64
    inner.store(s, slot + b.tx, v)
    inner.sync()
    inner.load(v, s, slot + 63 - b.tx)
    if syncs > 1:
        inner.sync()
    b.loop(i, trips, inner)
    return b.kernel()


def loop_carried(drop: Iterable[int]) -> ir.Kernel:
    return _loop(drop, 3, 1, 2)


def loop_of_one_trip(drop: Iterable[int]) -> ir.Kernel:
    return _loop(drop, 1, 1, 2)


def double_buffer(drop: Iterable[int]) -> ir.Kernel:
    return _loop(drop, 5, 2, 1)


def double_buffer_too_many_syncs(drop: Iterable[int]) -> ir.Kernel:
    return _loop(drop, 5, 2, 2)


def overlapping_buffers(drop: Iterable[int]) -> ir.Kernel:
    b, v = _start(drop)
    s = b.shared("s", 64, float32, 0)
    h = b.shared("h", 128, float16, 0)
    b.store(s, b.tx, v)
    b.sync()
    half = b.reg("half", dtype=float16)
    b.compute("cast", half, v)
    b.store(h, b.tx + 64, half)
    b.sync()
    b.load(half, h, 127 - b.tx)
    return b.kernel()


def contents_do_not_survive_alloc(drop: Iterable[int]) -> ir.Kernel:
    b, v = _start(drop)
    s = b.shared("s", 64, float32, 0)
    b.store(s, b.tx, v)
    other = b.shared("other", 64, float32, 0)
    b.load(v, other, b.tx)
    return b.kernel()


def one_element_by_all(drop: Iterable[int]) -> ir.Kernel:
    b, v = _start(drop)
    s = b.shared("s", 1)
    b.store(s, 0, v)
    return b.kernel()


def vector_and_scalar(drop: Iterable[int]) -> ir.Kernel:
    b, _ = _start(drop)
    s = b.shared("s", 256)
    v = b.reg("w", 0, 4)
    for k in range(4):
        b.compute("copy", b.reg("w", k, 4), ir.Imm(float(k), float32))
    b.store(s, b.tx * 4, v, 4)
    b.sync()
    b.load(v, s, b.tx + 64)
    return b.kernel()


def exchange_in_global(drop: Iterable[int]) -> ir.Kernel:
    b, v = _start(drop, nblocks=3)
    g = b.param("g", 192)
    b.store(g, b.bx * 64 + b.tx, v)
    b.sync()
    b.load(v, g, b.bx * 64 + 63 - b.tx)
    return b.kernel()


def blocks_write_one_place(drop: Iterable[int]) -> ir.Kernel:
    b, v = _start(drop, nblocks=3)
    g = b.param("g", 64)
    b.store(g, b.tx, v)
    return b.kernel()


def block_reads_its_neighbour(drop: Iterable[int]) -> ir.Kernel:
    b, v = _start(drop, nblocks=3)
    g = b.param("g", 256)
    b.load(v, g, b.bx * 64 + b.tx + 64)
    b.store(g, b.bx * 64 + b.tx, v)
    return b.kernel()


def all_blocks_read_what_one_writes(drop: Iterable[int]) -> ir.Kernel:
    b, v = _start(drop, nblocks=3)
    g = b.param("g", 64)
    b.load(v, g, 0)
    b.store(g, b.tx, v, predicate=equal(b.bx, 2))
    return b.kernel()


SYNCHRONOUS_RULES = (
    "write_then_read", "read_then_write", "write_write", "block_sync_orders", "warp_sync_orders",
    "warp_sync_stays_in_warp", "only_participants_learn", "warps_are_lockstep",
    "blocks_are_unordered", "alloc_forgets",
)  # fmt: skip
"""The rules of the model that kernels with BlockSync and WarpSync show."""

RACE = frozenset({"race"})
SUITE: tuple[Case, ...] = (
    Case("write_read", write_read, needed=(0,)),
    Case("read_write", read_write, needed=(0, 1)),
    Case("write_write", write_write, needed=(0,)),
    Case("within_warp", within_warp, needed=(0,)),
    Case("warp_sync_is_too_weak", warp_sync_is_too_weak, RACE),
    Case("shuffle_is_no_fence", shuffle_is_no_fence, RACE),
    Case("sync_of_the_other_warp", sync_of_the_other_warp, RACE),
    Case("loop_carried", loop_carried, needed=(0, 1)),
    Case("loop_of_one_trip", loop_of_one_trip, needed=(0,), redundant=(1,)),
    Case("double_buffer", double_buffer, needed=(0,)),
    Case("double_buffer_too_many_syncs", double_buffer_too_many_syncs, needed=(0,), redundant=(1,)),
    Case("overlapping_buffers", overlapping_buffers, needed=(0, 1), redundant=()),
    Case(
        "contents_do_not_survive_alloc",
        contents_do_not_survive_alloc,
        frozenset({"uninitialised"}),
    ),
    Case("one_element_by_all", one_element_by_all, RACE),
    Case("vector_and_scalar", vector_and_scalar, needed=(0,)),
    Case("exchange_in_global", exchange_in_global, needed=(0,)),
    Case("blocks_write_one_place", blocks_write_one_place, RACE),
    Case("block_reads_its_neighbour", block_reads_its_neighbour, RACE),
    Case("all_blocks_read_what_one_writes", all_blocks_read_what_one_writes, RACE),
    Case("softmax", lambda drop: softmax(4, 512, 128, 4, drop), needed=(0, 1, 2)),
)
