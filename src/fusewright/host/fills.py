"""Borders are filled by the kernel that makes what they surround.

A pad of what a kernel with a reduction makes is that kernel: its threads, side by side, also write
the vectors of the border, which nobody reads there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fusewright.core.expr import ONE, ZERO, Expr, Var, add, ceildiv, mul
from fusewright.core.substitution import estimate
from fusewright.fusion.ir import Alone, Input
from fusewright.host.moves import (
    Moves,
    loop_of,
    move_parameters,
    move_symbols,
    moved_by,
)
from fusewright.host.segment import Segment
from fusewright.host.subspans import LAUNCH_NBYTES, Subspan
from fusewright.kir.ir import Dim, For, Kernel, Statement


def attach_fills(items: Sequence[Segment | Moves]) -> tuple[Segment | Moves, ...]:
    """Gives fills to the last kernel before them that writes into the same memory.

    rewrite:  k1: c[1:-1] = softmax(x);  fill: c[:1] = c[-1:] = 0
              ->   k1: c[1:-1] = softmax(x); c[:1] = c[-1:] = 0
    checks:   the fill is not larger than what the kernel writes, or than what a launch costs; in
              the memory of an argument fills keep their place, whose old content others may read
    order:    after segments know their sites, before kernels are made
    """
    out = list(items)
    for k, x in enumerate(items):
        if not isinstance(x, Moves) or x.reads or isinstance(x.writes[0].root.op, Input):
            continue
        roots = {s.root for s in x.writes}
        for j in reversed(range(k)):
            maker = out[j]
            if isinstance(maker, Segment) and roots == {s.root for s in maker.writes} & roots:
                is_own = any(isinstance(t.op, Alone) for t in maker.fusion.outputs)
                if maker.fills is None and not is_own and _is_small(x, maker):
                    out[j] = replace(maker, fills=x)
                    out[k] = Moves(())
                break
    return tuple(x for x in out if not (isinstance(x, Moves) and not x.moves))


def _is_small(fills: Moves, maker: Segment) -> bool:
    """Whether the threads that suit a kernel suit the fills beside its own work."""
    nbytes = sum(map(_nbytes, fills.writes))
    return nbytes <= max(LAUNCH_NBYTES, sum(map(_nbytes, maker.writes)))


def _nbytes(s: Subspan) -> int:
    """Bytes of a site, symbols counted at typical sizes."""
    n = s.root.dtype.nbytes
    for e in s.shape:
        n *= estimate(e)
    return n


def with_fills(kernel: Kernel, fills: Moves) -> Kernel:
    """The kernel with fills at its end; its last parameters are their targets. Every thread of the
    grid writes as many vectors of a fill as it takes for all of them to be written."""
    if not fills.moves:
        return kernel
    targets, arguments, values = move_parameters(fills)
    thread, count = _thread(kernel)
    body: list[Statement] = []
    for k, (m, target, value) in enumerate(zip(fills.moves, targets, values, strict=True)):
        x = loop_of(m)
        trips = ceildiv(x.vectors, count)
        if trips == ONE:
            body += moved_by(k, x, target, value, thread)
            continue
        i = Var(f"f{k}", 0, add(trips, -1))
        inner = moved_by(k, x, target, value, add(mul(i, count), thread))
        body.append(For(i, trips, tuple(inner)))
    return replace(
        kernel,
        params=(*kernel.params, *targets),
        arguments=(*kernel.arguments, *arguments),
        symbols=tuple(dict.fromkeys((*kernel.symbols, *move_symbols(fills)))),
        body=(*kernel.body, *body),
    )


def _thread(kernel: Kernel) -> tuple[Expr, Expr]:
    """The number of a thread in the grid, and how many there are."""
    number: Expr = ZERO
    count: Expr = ONE
    for d in (*kernel.block, *kernel.cluster, *kernel.grid):
        number = add(number, mul(_index(d), count))
        count = mul(count, d.extent)
    return number, count


def _index(d: Dim) -> Expr:
    return ZERO if d.extent == ONE else d.var
