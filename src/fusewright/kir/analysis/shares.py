"""Which accesses keep to a share of a part of memory that belongs to their block, from their
conditions and indices alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fusewright.core.conditions import And, Cond, Equal, Less
from fusewright.core.expr import Expr, constant_value, parts_of, variables
from fusewright.kir.analysis.accesses import Access
from fusewright.kir.analysis.turns import in_role, number_of, product_of
from fusewright.kir.ir import Dim, Kernel


@dataclass(frozen=True, slots=True)
class Share:
    """What an access may touch of a part: of every `size` elements block number `p` of `n` the
    `p`-th of `n` equal shares, by whole accesses of `width`; or anything, where `block` alone makes
    it. Accesses of equal shares never meet those of other blocks."""

    size: int
    width: int
    block: int | None = None


def share_of(
    access: Access, first: Expr, size: int, order: Sequence[Dim], kernel: Kernel
) -> Share | None:
    """The share of a part of `size` elements from `first` on that an access keeps to, by the number
    of its block along the dimensions `order` of the grid; None where it may touch another one's.

    It is made for a number `e`, `k p <= e < k (p + 1)` in block `p`, and touches what lies as far
    into the elements as `e` into the `n k` numbers, or behind that within one number's elements; or
    one block alone makes it. Accesses of one width begin at multiples of it, so that those that
    begin in different shares do not meet.
    """
    number, n = number_of(order), constant_value(product_of(d.extent for d in order))
    if n is None:
        return None
    width, at = access.use.width, access.use.index - first
    where = [*_conditions(access)]
    gaps = [c.gap for c in where if isinstance(c, Less)]
    block = _only_block(where, gaps, number, n)
    if block is not None:
        low, high = in_role(at, access, kernel).interval
        if low is None or high is None or low * n < block * size:
            return Share(size, width, block)
        is_mine = (high + width) * n <= (block + 1) * size
        return Share(size, width, None if is_mine else block)
    inside = {d.var for d in order}
    for since in gaps:
        for until in gaps:
            each = constant_value(since + until + 1)
            e = since if each is None else since + each * number
            if each is None or each <= 0 or inside & set(variables(e)) or not variables(e):
                continue
            found = _ratio(at * (each * n), e)
            if found is None or found % width:
                continue
            rest = at * (each * n) - e * found
            least, most = in_role(rest, access, kernel).interval
            if least is None or most is None or least % (each * n * found):
                continue
            if least == most or most + width * each * n <= least + found:
                return Share(found, width)
    return None


def _conditions(access: Access) -> Iterator[Cond]:
    """All that hold where an access is made."""
    for b in access.site.branches:
        if b.taken:
            yield from _parts(b.node.condition)
    yield from _parts(access.use.predicate)


def _parts(c: Cond) -> tuple[Cond, ...]:
    return c.parts if isinstance(c, And) else (c,)


def _only_block(where: Sequence[Cond], gaps: Sequence[Expr], number: Expr, n: int) -> int | None:
    """The number of the one block in which conditions hold; None where several may be."""
    equal = [e for c in where if isinstance(c, Equal) for e in (c.left - c.right, c.right - c.left)]
    least, most = 0, n - 1
    for gap in (*gaps, *equal):
        below, above = constant_value(gap + number), constant_value(gap - number)
        most = most if below is None else min(most, below)
        least = least if above is None else max(least, -above)
    return least if least == most else None


def _ratio(a: Expr, b: Expr) -> int | None:
    """How many times the terms of one expression another one has, by the first that both have."""
    (_, mine), (_, theirs) = parts_of(a), parts_of(b)
    for t in theirs:
        for s in mine:
            if s.atoms == t.atoms and s.coefficient % t.coefficient == 0:
                return s.coefficient // t.coefficient
    return None
