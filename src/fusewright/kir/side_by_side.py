"""Several kernels as one launch: every block does what a block of one of them does.

A list of parameters of a model is many small tensors. A launch for each of them costs more than
its bytes; blocks of one launch, told apart by their number, cost nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate, count

from fusewright.core.conditions import less
from fusewright.core.expr import ZERO, Expr, IntLike, Var, add, as_expr, constant_value
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


def share_blocks(blocks: Collection[tuple[int | None, ...]]) -> bool:
    """Whether parts with these threads can share the block of the largest: threads beyond those of
    a part are whole warps, and parts of each size have a named barrier to meet at."""
    sizes = set(blocks)
    if len(sizes) == 1:
        return True
    is_flat = all(all(n == 1 for n in b[1:]) for b in sizes)
    is_whole = all(b[0] is not None and b[0] % WARP_SIZE == 0 for b in sizes)
    return is_flat and is_whole and len(sizes) <= NAMED_BARRIERS


def side_by_side(kernels: Sequence[Kernel], name: str, ninputs: Sequence[int]) -> Kernel:
    """One kernel over the inputs of all parts, the first `ninputs` parameters of each, then their
    outputs.

    rewrite:  k1<<<40, 128>>>(..):  ..bx..          k<<<49, 128>>>(..):  if bx < 40: ..bx..
              k2<<<9, 128>>>(..):   ..bx..    ->                         else: b = bx - 40;  ..b..
              A part with fewer threads than the largest is the role of the first warps, and its
              threads meet at a named barrier.
    checks:   `stands_apart` of no part, `share_blocks`, equal attributes, else InternalError
    order:    after the pipeline of each part: what it proved of a part holds in its branch
    """
    sizes = sorted({block_of(k) for k in kernels}, reverse=True)
    first = next(k for k in kernels if block_of(k) == sizes[0])
    for k in kernels:
        alike = share_blocks(sizes) and k.attributes == first.attributes
        why = stands_apart(k) or (None if alike else "its blocks are others")
        if why is not None:
            raise InternalError(f"{k.name} cannot run beside {first.name}: {why}")
    counts = [constant_value(k.grid[0].extent) or 0 for k in kernels]
    begins = [0, *accumulate(counts)]
    bx = Var("bx", 0, begins[-1] - 1)
    ids = count()
    parts = [
        _part(k, bx, begins[i], first, ids, sizes.index(block_of(k))) for i, k in enumerate(kernels)
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
            first.block,
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
    for mine, others in ((kernel.grid[1:], first.grid[1:]), (kernel.block, first.block)):
        variables |= {a.var: b.var for a, b in zip(mine, others, strict=True)}
    local = [s.buffer for s in walk_statements(kernel) if isinstance(s, Alloc)]
    buffers = {b: _copy(b) for b in (*kernel.params, *local)}
    arguments = {a: Argument(a.name, a.dtype) for a in kernel.arguments}
    renamed = Substitution(variables, buffers, arguments)
    place: Expr = add(bx, -begin)
    head = (Alloc(number), Compute("copy", Reg(number, ZERO), (Index(place, int32),)))
    own = map_body(renamed.body(kernel.body), lambda s: _numbered(s, ids))
    if barrier:
        n = block_of(kernel)[0] or 1
        inside = map_body(own, lambda s: _met_at(s, barrier, n))
        own = (Roles((Role(0, n // WARP_SIZE, inside),)),)
    return replace(
        kernel,
        params=tuple(buffers[b] for b in kernel.params),
        arguments=tuple(arguments.values()),
        body=(*head, *own),
        stored_once=tuple(buffers[b] for b in kernel.stored_once),
    )


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
