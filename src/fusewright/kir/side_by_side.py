"""Several kernels as one launch: every block does what a block of one of them does.

A list of parameters of a model is many small tensors. A launch for each of them costs more than
its bytes; blocks of one launch, told apart by their number, cost nothing.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate, count

from fusewright.core.conditions import less
from fusewright.core.expr import (
    ZERO,
    Expr,
    IntLike,
    Var,
    add,
    as_expr,
    constant_value,
    floordiv,
    mod,
)
from fusewright.dtypes import int32
from fusewright.errors import InternalError
from fusewright.kir.ir import (
    Alloc,
    Argument,
    BlockSync,
    Body,
    Buffer,
    Compute,
    Dim,
    If,
    Index,
    Kernel,
    Memory,
    NamedSync,
    Reg,
    RegVar,
    Role,
    Roles,
    Statement,
    SyncStatement,
    WarpSync,
)
from fusewright.kir.names import name_symbols
from fusewright.kir.substitute import Substitution
from fusewright.kir.traverse import map_body, walk_statements, with_bodies
from fusewright.target import NAMED_BARRIERS, WARP_SIZE


def stands_apart(kernel: Kernel) -> str | None:
    """Why a kernel cannot run beside others in one launch; None where it can. Its blocks must be
    numbered along one dimension, know their count, and wait for nothing but their own threads."""
    if kernel.symbols or any(constant_value(d.extent) is None for d in kernel.grid):
        return "its grid has symbolic sizes"
    if any(constant_value(d.extent) != 1 for d in kernel.grid[1:]):
        return "its grid has more than one dimension"
    if kernel.cluster or kernel.maps or kernel.min_blocks:
        return "it asks for a cluster, for tensor maps, or for a number of blocks"
    syncs = (s for s in walk_statements(kernel) if isinstance(s, SyncStatement))
    if any(not isinstance(s, BlockSync | WarpSync) for s in syncs):
        return "its threads wait for more than each other"
    return None


def block_of(kernel: Kernel) -> tuple[int | None, ...]:
    """The threads of a block along each dimension."""
    return tuple(constant_value(d.extent) for d in kernel.block)


def threads_of(block: tuple[int | None, ...]) -> int | None:
    """The threads of a block in all; None where they are not known."""
    return None if None in block else math.prod(n for n in block if n is not None)


def share_blocks(blocks: Collection[tuple[int | None, ...]]) -> bool:
    """Whether parts with these threads can share the block of the largest: threads beyond those of
    a part are whole warps, and parts of each size have a named barrier to meet at. Parts of other
    dimensions find theirs from the number of a thread."""
    if len(set(blocks)) == 1:
        return True
    sizes = set(map(threads_of, blocks))
    is_whole = all(n is not None and n % WARP_SIZE == 0 for n in sizes)
    return is_whole and len(sizes) <= NAMED_BARRIERS


def side_by_side(kernels: Sequence[Kernel], name: str, ninputs: Sequence[int]) -> Kernel:
    """One kernel over the inputs of all parts, the first `ninputs` parameters of each, then their
    outputs.

    rewrite:  k1<<<40, 128>>>(..):  ..bx..          k<<<49, 128>>>(..):  if bx < 40: ..bx..
              k2<<<9, 128>>>(..):   ..bx..    ->                         else: b = bx - 40;  ..b..
              A part with fewer threads than the largest is the role of the first warps, and its
              threads meet at a named barrier. Parts of other dimensions stand in a flat block:
              tx, ty  ->  t % 32, t // 32 % 4
    checks:   `stands_apart` of no part, `share_blocks`, equal attributes, else InternalError
    order:    after the pipeline of each part: what it proved of a part holds in its branch
    """
    first = max(kernels, key=lambda k: threads_of(block_of(k)) or 0)
    shapes = {block_of(k) for k in kernels}
    for k in kernels:
        alike = share_blocks(shapes) and k.attributes == first.attributes
        why = stands_apart(k) or (None if alike else "its blocks are others")
        if why is not None:
            raise InternalError(f"{k.name} cannot run beside {first.name}: {why}")
    block = (
        first.block if len(shapes) == 1 else _flat(first.block, threads_of(block_of(first)) or 1)
    )
    sizes = sorted({threads_of(b) or 0 for b in shapes}, reverse=True)
    counts = [constant_value(k.grid[0].extent) or 0 for k in kernels]
    begins = [0, *accumulate(counts)]
    bx = Var("bx", 0, begins[-1] - 1)
    ids = count()
    frame = replace(first, block=block)
    parts = [
        _part(k, bx, begins[i], frame, ids, sizes.index(threads_of(block_of(k)) or 0))
        for i, k in enumerate(kernels)
    ]
    grid = (Dim(bx, as_expr(begins[-1])), *first.grid[1:])
    return name_symbols(
        Kernel(
            name,
            (
                *(b for p, n in zip(parts, ninputs, strict=True) for b in p.params[:n]),
                *(b for p, n in zip(parts, ninputs, strict=True) for b in p.params[n:]),
            ),
            tuple(a for p in parts for a in p.arguments),
            (),
            grid,
            block,
            _chosen(bx, begins, [p.body for p in parts]),
            stored_once=tuple(b for p in parts for b in p.stored_once),
            attributes=first.attributes,
        )
    )


def _part(
    kernel: Kernel, bx: Var, begin: int, first: Kernel, ids: Iterator[int], barrier: int
) -> Kernel:
    """A kernel with symbols and numbers of syncs of its own, but for the symbols of threads; its
    blocks are counted from `begin`. `barrier`: the one at which its threads meet, 0 for all threads
    of the block."""
    number = Buffer("block", int32, as_expr(1), Memory.LOCAL)
    last = (constant_value(kernel.grid[0].extent) or 1) - 1
    variables: dict[Var, IntLike] = {kernel.grid[0].var: RegVar(Reg(number), 0, last)}
    variables |= {a.var: b.var for a, b in zip(kernel.grid[1:], first.grid[1:], strict=True)}
    variables |= _threads(kernel, first.block)
    local = [s.buffer for s in walk_statements(kernel) if isinstance(s, Alloc)]
    buffers = {b: _copy(b) for b in (*kernel.params, *local)}
    arguments = {a: Argument(a.name, a.dtype) for a in kernel.arguments}
    renamed = Substitution(variables, buffers, arguments)
    place: Expr = add(bx, -begin)
    head = (Alloc(number), Compute("copy", Reg(number, ZERO), (Index(place, int32),)))
    own = map_body(renamed.body(kernel.body), lambda s: _numbered(s, ids))
    if barrier:
        n = threads_of(block_of(kernel)) or 1
        inside = map_body(own, lambda s: _met_at(s, barrier, n))
        own = (Roles((Role(0, n // WARP_SIZE, inside),)),)
    return replace(
        kernel,
        params=tuple(buffers[b] for b in kernel.params),
        arguments=tuple(arguments.values()),
        body=(*head, *own),
        stored_once=tuple(buffers[b] for b in kernel.stored_once),
    )


def _flat(block: tuple[Dim, ...], nthreads: int) -> tuple[Dim, ...]:
    """A block of so many threads along its first dimension."""
    extents = (nthreads, *(1 for _ in block[1:]))
    return tuple(
        Dim(Var(d.var.name, 0, n - 1), as_expr(n)) for d, n in zip(block, extents, strict=True)
    )


def _threads(kernel: Kernel, block: tuple[Dim, ...]) -> dict[Var, IntLike]:
    """Where the threads of a kernel's own block are, in a block that is like it, or flat."""
    if block_of(kernel) == tuple(constant_value(d.extent) for d in block):
        return {a.var: b.var for a, b in zip(kernel.block, block, strict=True)}
    rest: Expr = block[0].var
    found: dict[Var, IntLike] = {}
    for d in kernel.block:
        n = constant_value(d.extent) or 1
        found[d.var] = mod(rest, n)
        rest = floordiv(rest, n)
    return found


def _numbered(s: Statement, ids: Iterator[int]) -> Statement:
    if isinstance(s, SyncStatement):
        return replace(s, id=next(ids))
    return with_bodies(s, lambda body: map_body(body, lambda inner: _numbered(inner, ids)))


def _met_at(s: Statement, barrier: int, nthreads: int) -> Statement:
    """A statement in which the barriers of a block are those of its first threads."""
    if isinstance(s, BlockSync):
        return NamedSync(s.id, s.why, barrier, nthreads)
    return with_bodies(s, lambda body: map_body(body, lambda x: _met_at(x, barrier, nthreads)))


def _copy(b: Buffer) -> Buffer:
    return Buffer(b.name, b.dtype, b.size, b.memory, b.alignment, b.tile)


def _chosen(bx: Var, begins: Sequence[int], bodies: Sequence[Body]) -> Body:
    """The body of the part that a block belongs to, found by halving."""
    if len(bodies) == 1:
        return bodies[0]
    half = len(bodies) // 2
    low, high = _chosen(bx, begins, bodies[:half]), _chosen(bx, begins[half:], bodies[half:])
    return (If(less(bx, begins[half]), low, high),)
