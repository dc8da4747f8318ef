"""Values between kernels in the memory of arguments that the caller gives away.

An argument that holds no result is free once the last launch that reads it has passed: what later
launches store for each other lies there, and takes no bytes of the arena. No launch comes to wait
for that which could run beside others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fusewright.core.conditions import less_equal, prove
from fusewright.core.expr import Expr, as_expr, constant_value
from fusewright.fusion.ir import Input, Tensor
from fusewright.host.arena import aligned
from fusewright.host.sharing import LaunchedCall, Uses, any_pair, uses_of
from fusewright.host.subspans import VECTOR_ALIGNMENT, Subspan, natural, nbytes_of

Place = tuple[Tensor, Expr]
"""An argument, and an offset in bytes."""


def lend(
    inner: Sequence[Subspan],
    calls: Sequence[LaunchedCall],
    before: Sequence[int],
    lenders: Sequence[Tensor],
) -> dict[Tensor, Place]:
    """Which of the intermediates `inner` lie in which of the arguments `lenders`, the largest
    first. `before`: for each launch, as bits, those that the data alone make it wait for."""
    uses = uses_of(inner, calls, before)
    out: dict[Tensor, Place] = {}
    left = sorted(range(len(inner)), key=lambda k: -(constant_value(nbytes_of(inner[k])) or 0))
    for lender in lenders:
        if not _is_dense(lender):
            continue
        readers = [k for k, x in enumerate(calls) if any(s.root is lender for s in x.inputs)]
        later = [k for k in left if _is_later(uses, k, readers, calls)]
        for k, offset in _placed(later, uses, nbytes_of(natural(lender))):
            out[inner[k].root] = (lender, offset)
            left.remove(k)
    return out


def _is_dense(t: Tensor) -> bool:
    """Whether the memory of an argument has no byte that belongs to others, and begins where
    kernels expect intermediates to."""
    op, s = t.op, natural(t)
    assert isinstance(op, Input)
    return op.alignment >= VECTOR_ALIGNMENT and nbytes_of(s) == s.size * t.dtype.nbytes


def _is_later(uses: Uses, k: int, readers: Sequence[int], calls: Sequence[LaunchedCall]) -> bool:
    """Whether an intermediate is made behind all readers of an argument, by launches that wait for
    these anyway, or could not run beside them."""
    return all(
        m > u and (uses.before[m] >> u & 1 or not (calls[m].idle or calls[u].idle))
        for m in uses.makers[k]
        for u in readers
    )


def _placed(chosen: Sequence[int], uses: Uses, room: Expr) -> Iterator[tuple[int, Expr]]:
    """The intermediates that have room, and where: each in the first gap among those that it
    conflicts with. One whose size is not known begins where the argument does, and nothing that
    it conflicts with lies there."""
    conflict = uses.conflicts(any_pair)
    taken: dict[int, tuple[int, int] | None] = {}
    for k in chosen:
        size = uses.lives[k].nbytes
        others = [taken[j] for j in taken if conflict(k, j)]
        known = [x for x in others if x is not None]
        if constant_value(size) is None or len(known) < len(others):
            start = None if others else 0
        else:
            start = _gap(known, constant_value(aligned(size)) or 0)
        if start is None or prove(less_equal(size + start, room)) is not True:
            continue
        end = constant_value(aligned(size))
        taken[k] = None if end is None else (start, start + end)
        yield k, as_expr(start)


def _gap(taken: Sequence[tuple[int, int]], nbytes: int) -> int:
    """The first place of so many bytes among taken ones."""
    end = 0
    for low, high in sorted(taken):
        if low - end >= nbytes:
            break
        end = max(end, high)
    return end
