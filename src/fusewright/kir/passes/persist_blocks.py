"""Blocks that stay for several pieces of work."""

from __future__ import annotations

from dataclasses import replace

from fusewright.core.conditions import less
from fusewright.core.expr import Expr, Int, Var, add, ceildiv, constant_value, mul
from fusewright.errors import ScheduleError
from fusewright.kir.ir import Alloc, Dim, For, If, Kernel, Memory, PrefetchMap, Statement
from fusewright.kir.substitute import Substitution

PERSISTENT = "persistent"
"""The attribute of a kernel that asks for at most so many blocks."""


def persist_blocks(kernel: Kernel) -> Kernel:
    """Let as many blocks as a kernel asks for do the work of its grid, one block's after another's.

    rewrite:  grid (bx < 512) { work(bx) }   ->   grid (bx < 132) { for t < 4 {
                                                  if (bx + 132 t < 512) { work(bx + 132 t) } } }
    checks:   the grid has one dimension of more than one block and no clusters, else ScheduleError
    order:    first: rings then live across the pieces of work of a block
    """
    wanted = dict(kernel.attributes).get(PERSISTENT)
    if wanted is None:
        return kernel
    x, *others = kernel.grid
    if kernel.cluster or any(constant_value(d.extent) != 1 for d in others):
        raise ScheduleError(
            f"{kernel.name} is to stay on {wanted} blocks, but has clusters or a grid of several "
            "dimensions; count its blocks along one"
        )
    attributes = tuple(a for a in kernel.attributes if a[0] != PERSISTENT)
    kernel = replace(kernel, attributes=attributes)
    nblocks, work = int(wanted), constant_value(x.extent)
    if work is not None and work <= nblocks:
        return kernel
    return _looped(kernel, x, nblocks)


def _looped(kernel: Kernel, x: Dim, nblocks: int) -> Kernel:
    block = Var(x.var.name, 0, nblocks - 1)
    trips: Expr = ceildiv(x.extent, nblocks)
    last = constant_value(trips)
    t = Var("piece", 0, None if last is None else last - 1)
    number = add(block, mul(t, nblocks))
    first = tuple(s for s in kernel.body if _stays(s))
    rest = tuple(s for s in kernel.body if not _stays(s))
    body = Substitution({x.var: number}).body(rest)
    work = constant_value(x.extent)
    if work is None or work % nblocks:
        body = (If(less(number, x.extent), body),)
    grid = (Dim(block, Int(nblocks)), *kernel.grid[1:])
    return replace(kernel, grid=grid, body=(*first, For(t, trips, body)))


def _stays(s: Statement) -> bool:
    """Whether a statement serves all pieces of work."""
    is_shared = isinstance(s, Alloc) and s.buffer.memory is Memory.SHARED
    return is_shared or isinstance(s, PrefetchMap)
