"""Two reductions of one tensor, the second needing the first, in one pass over the tensor.

    m = sum(x) / N;  v = sum((x - m)**2)     per chunk: s_c, v_c = sum((x - s_c/Q)**2)
                                        ->   s = sum(s_c);  v = sum(v_c + (s_c - s/P)**2 / Q)
    m = max(x);      s = sum(exp(x - m))     per chunk: m_c, s_c = sum(exp(x - m_c))
                                        ->   m = max(m_c);  s = sum(s_c * exp(m_c - m))

A chunk fits into the registers of a block, so x is read once for both. Down the slow axes the
threads of a block would have to talk for every mean; there, with k the first row of the chunk,

    s_c = Q*k + sum(x - k);  v_c = sum((x - k)**2) - sum(x - k)**2 / Q

needs no second pass. As k is one of the Q rows, v_c >= (k - m_c)**2, and so at most a factor of Q
of the precision is lost, at any data. Where no number of chunks divides the rows well the last one
is short: for exponentials it is filled with -inf, for sums with what adds nothing. Stored rows are
then dealt to chunks in turn, which differ by a row at most, as where they are unaligned. A short
fast axis behind kept ones is left to the second kernel, so that chunks are read in whole lines: the
results of its elements are combined as those of chunks are. Sources:
Chan, Golub, LeVeque, "Algorithms for computing the sample variance: analysis and recommendations"
(1983); Milakov, Gimelshein, "Online normalizer calculation for softmax" (2018).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

from fusewright.core.expr import ZERO, Expr, Int, constant_value, floordiv, mod
from fusewright.dtypes import bool_, int64
from fusewright.fusion import build, ir
from fusewright.fusion.ir import Fusion, Reduce, Tensor
from fusewright.fusion.partition import Partition
from fusewright.fusion.partitioning import (
    PartitionFacts,
    fit_cluster,
    fit_shared_memory,
    in_chunks,
    is_read_again,
    large_inputs,
    might_hold,
)
from fusewright.fusion.passes.match import is_call, is_count, is_reduction, through_spread
from fusewright.fusion.passes.rebuild import rebuild
from fusewright.fusion.passes.split_reductions import as_parts, leaves_little, short_run
from fusewright.target import Target


@dataclass(frozen=True, slots=True)
class ReductionPair:
    """The first reduction, the second, what both reduce, which pattern it is, the facts of the axes
    that are cut in chunks, and the fast axes that chunks keep: short ones behind kept axes, so that
    chunks are read in whole lines."""

    first: Tensor
    second: Tensor
    source: Tensor
    kind: str
    facts: PartitionFacts
    fast: tuple[int, ...] = ()

    @property
    def axes(self) -> tuple[int, ...]:
        """The axes that are cut in chunks."""
        assert isinstance(self.second.op, Reduce)
        return tuple(a for a in self.second.op.axes if a not in self.fast)

    @property
    def is_shifted(self) -> bool:
        """Whether the first row of a chunk is at hand: that of a tensor in memory."""
        is_stored = isinstance(stored_behind(self.source).op, ir.Input)
        return self.kind == "variance" and is_stored and not self.facts.is_inner

    def partition(self, target: Target) -> Partition | None:
        """How the rows are cut; None where the pair stays as it is."""
        nbytes = stored_behind(self.source).dtype.nbytes
        return in_chunks(
            self.facts,
            nbytes,
            target,
            is_shifted=self.is_shifted,
            may_be_whole=bool(self.fast),
        )


def chunk_reductions(
    fusion: Fusion, target: Target, leaves: Collection[Tensor] = (), *, may_hold: bool = False
) -> Fusion:
    """Rewrites every such pair whose rows are too long to stay in one block; but where a result of
    the rows' size needs them again, a cluster of blocks holds them, on targets that have those, or
    the shared memory of a block a few columns. With `may_hold` it is enough that they might. Pairs
    whose first reduction is among those that it `leaves` stay.

    checks:   constant sizes
    order:    after share (the patterns need shared values), before split_reductions
    """
    wanted: dict[Tensor, tuple[ReductionPair, Partition]] = {}
    for t in fusion.values:
        whole = pair_of(t)
        if whole is None or whole.first in leaves:
            continue
        if is_read_again(t, whole.facts.total, fusion) and _is_held(
            whole, target, may_hold=may_hold
        ):
            continue
        pair = _by_lines(whole)
        cut = pair.partition(target)
        if cut is not None:
            wanted[pair.first] = pair, cut
    seconds = {p.second for p, _ in wanted.values()}
    made: dict[Tensor, Tensor] = {}

    def rewritten(t: Tensor, operands: tuple[Tensor, ...]) -> Tensor | None:
        if t in wanted:
            pair, cut = wanted[t]
            first, made[pair.second] = _rewrite(pair, operands[0], cut)
            return first
        return made[t] if t in seconds else None

    return rebuild(fusion, rewritten) if wanted else fusion


def pair_of(t: Tensor) -> ReductionPair | None:
    """The pair whose second reduction this is; None for other values."""
    if not isinstance(t.op, Reduce) or t.op.fn != "add":
        return None
    found = _matched(t.op.operands[0], t.op.axes)
    facts = PartitionFacts.of(found[1], t.op.axes) if found else None
    if found is None or facts is None:
        return None
    first, source, kind = found
    return ReductionPair(first, t, source, kind, facts)


def _by_lines(p: ReductionPair) -> ReductionPair:
    """The pair whose chunks keep a short fast axis that both reduce behind kept ones, where sums of
    the slow axes alone are few; else the same."""
    fast = short_run(p.second)
    slow = tuple(a for a in p.axes if a not in fast)
    facts = PartitionFacts.of(p.source, slow) if fast and leaves_little(p.second, slow, 2) else None
    return p if facts is None or facts.is_inner else replace(p, facts=facts, fast=fast)


def _matched(body: Tensor, axes: tuple[int, ...]) -> tuple[Tensor, Tensor, str] | None:
    """The first reduction, what it reduces and the pattern, where `body` is what the second one
    sums over the same axes."""
    if is_call(body, "mul") and body.op.operands[0] is body.op.operands[1]:
        difference = body.op.operands[0]
        if is_call(difference, "sub"):
            source, shift = difference.op.operands
            mean = through_spread(shift)
            count = math.prod(constant_value(source.shape[a]) or 0 for a in axes)
            if is_call(mean, "div") and is_count(mean.op.operands[1], count):
                total = through_spread(mean.op.operands[0])
                if is_reduction(total, "add", axes, source):
                    return total, source, "variance"
    if is_call(body, "exp") and is_call(body.op.operands[0], "sub"):
        source, shift = body.op.operands[0].op.operands
        largest = through_spread(shift)
        if is_reduction(largest, "max", axes, source):
            return largest, source, "exponentials"
    return None


def _is_held(p: ReductionPair, target: Target, *, may_hold: bool) -> bool:
    """Whether the blocks of a cluster can hold all inputs of a row, and there are rows enough not
    to cut them for more blocks; or whether shared memory holds those of columns."""
    nbytes = sum(x.dtype.nbytes for x in large_inputs(p.source))
    if may_hold:
        return might_hold(p.facts, min(nbytes, p.source.dtype.compute.nbytes), target)
    return (fit_cluster if p.facts.is_inner else fit_shared_memory)(p.facts, nbytes, target)


def stored_behind(t: Tensor) -> Tensor:
    """What is read from memory for a value: the value behind casts and reshapes."""
    while is_call(t, "cast") or isinstance(t.op, ir.Reshape):
        t = t.op.operands[0]
    return t


def _rewrite(p: ReductionPair, source: Tensor, cut: Partition) -> tuple[Tensor, Tensor]:
    place = source.ndim - len(p.axes) if p.facts.is_inner else 0
    fill = -math.inf if p.kind == "exponentials" else 0.0
    spread = as_parts(source, p.axes, cut, fill, last=p.facts.is_inner)
    kept = [a for a in range(source.ndim) if a not in p.axes]
    again = (place, *(place + 1 + kept.index(a) for a in p.fast))
    if p.kind == "exponentials":
        return _exponentials(spread, place, again)
    if p.is_shifted:
        step = 1 if cut.is_interleaved else cut.each
        first = first_rows(p.source, p.axes, cut.count, step)
        return combined(*shifted(spread, first, cut), again, cut)
    return combined(*_around_means(spread, place, cut), again, cut)


def _over(t: Tensor, like: Tensor, *axes: int) -> Tensor:
    """A value without these ascending axes spread along them over the shape of another."""
    for axis in axes:
        t = build.expand(t, axis)
    return build.spread(t, like.shape)


def _number(n: float, like: Tensor) -> Tensor:
    return build.spread(build.constant(n, like.dtype), like.shape)


def _of_each(full: Callable[[int], Tensor], like: Tensor, rank: int, cut: Partition) -> Tensor:
    """What is made of the number of elements of each chunk, the chunks along axis `rank`: the last
    chunk is short, or as many of those that rows are dealt to have one row less as rows are
    missing."""
    if cut.is_even:
        return full(cut.each)
    less = cut.length(cut.count - 1)
    many = (cut.size - less * cut.count) // (cut.each - less)
    most = build.spread(build.constant(many, int64), like.shape)
    is_full = build.pointwise("lt", build.iota(like.shape, rank), most)
    return build.pointwise("where", is_full, full(cut.each), full(less))


def _counts(like: Tensor, rank: int, cut: Partition) -> Tensor:
    """The elements of each chunk."""
    return _of_each(lambda n: _number(n, like), like, rank, cut)


def _existing(d: Tensor, rank: int, cut: Partition) -> Tensor:
    """Differences of chunks along axes `rank` and the next, 0 where a chunk has no element: a
    constant is cut as the elements are, so that no kernel compares what bounds decide."""
    if cut.is_even:
        return d
    shape = (*d.shape[:rank], Int(cut.size), *d.shape[rank + 2 :])
    exists = build.parts(build.spread(build.constant(True, bool_), shape), (rank,), cut, False)
    return build.pointwise("where", exists, d, _number(0.0, d))


def _around_means(x: Tensor, rank: int, cut: Partition) -> tuple[Tensor, Tensor]:
    """Sums, and sums of squares around their means, of chunks along axis `rank`."""
    last = rank + 1
    sums = build.reduce("add", x, (last,))
    means = build.pointwise("div", sums, _counts(sums, rank, cut))
    d = _existing(build.pointwise("sub", x, _over(means, x, last)), rank, cut)
    return sums, build.reduce("add", build.pointwise("mul", d, d), (last,))


def first_rows(source: Tensor, axes: Sequence[int], count: int, step: int) -> Tensor:
    """Of the reduced axes of a stored value the first element and each `step`-th behind it, `count`
    in all, from memory: (count, kept..)."""
    stored = stored_behind(source)
    kept = [a for a in range(source.ndim) if a not in axes]
    shape = (Int(count), *(source.shape[a] for a in kept))
    at = build.coordinates(shape)
    row = _unravelled(at[0] * step, [source.shape[a] for a in axes])
    place = dict(zip((*axes, *kept), (*row, *at[1:]), strict=True))
    index = [place[a] for a in range(source.ndim)]
    if stored.shape != source.shape:
        flat: Expr = ZERO
        for i, extent in zip(index, source.shape, strict=True):
            flat = flat * extent + i
        index = _unravelled(flat, stored.shape)
    return build.cast(build.index_map(stored, shape, at, index), source.dtype)


def _unravelled(flat: Expr, shape: Sequence[Expr]) -> list[Expr]:
    """The coordinates of the element number `flat` in C order."""
    out: list[Expr] = []
    for extent in reversed(shape):
        out.append(mod(flat, extent))
        flat = floordiv(flat, extent)
    return out[::-1]


def shifted(x: Tensor, first: Tensor, cut: Partition) -> tuple[Tensor, Tensor]:
    """The same of x, from sums around the first element of every chunk: the two axes of the
    partition come first."""
    axis = 1 - cut.part_axis
    d = build.pointwise("sub", x, _over(first, x, axis))
    d = _existing(d, 0, cut)
    moved = build.reduce("add", d, (axis,))
    squares = build.reduce("add", build.pointwise("mul", d, d), (axis,))
    counts = _counts(first, 0, cut)
    sums = build.pointwise("add", moved, build.pointwise("mul", first, counts))
    mean = build.pointwise("div", moved, counts)
    around = build.pointwise("sub", squares, build.pointwise("mul", moved, mean))
    return sums, build.pointwise("max", around, _number(0.0, around))


def combined(
    sums: Tensor, squares: Tensor, axes: tuple[int, ...], cut: Partition
) -> tuple[Tensor, Tensor]:
    """The sum, and the sum of squares around the mean, of all chunks, and of what chunks keep apart
    of it: along these axes, the first of which counts chunks."""
    rank, *fast = axes
    several = math.prod(constant_value(sums.shape[a]) or 0 for a in fast)
    total = build.reduce("add", sums, axes)
    mean = build.pointwise("div", total, _number(cut.size * several, total))

    def off_by(n: int) -> Tensor:
        expected = build.pointwise("mul", mean, _number(n, mean))
        return build.pointwise("sub", sums, _over(expected, sums, *axes))

    # The sums again, not the means: the second kernel then reads what its first reduction reads.
    off = _of_each(off_by, sums, rank, cut)
    apart = build.pointwise("div", off, _counts(sums, rank, cut))
    weighted = build.pointwise("mul", apart, off)
    return total, build.reduce("add", build.pointwise("add", squares, weighted), axes)


def _exponentials(x: Tensor, rank: int, axes: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Of x with chunks along axis `rank` and their elements along the next one; the results of
    chunks are reduced along `axes`."""
    last = rank + 1
    highs = build.reduce("max", x, (last,))
    lowest = build.spread(build.constant(-math.inf, x.dtype), highs.shape)
    zero = build.spread(build.constant(0.0, x.dtype), highs.shape)
    shift = build.pointwise("where", build.pointwise("eq", highs, lowest), zero, highs)
    powers = build.pointwise("exp", build.pointwise("sub", x, _over(shift, x, last)))
    sums = build.reduce("add", powers, (last,))
    high = build.reduce("max", highs, axes)
    factor = build.pointwise("exp", build.pointwise("sub", highs, _over(high, highs, *axes)))
    return high, build.reduce("add", build.pointwise("mul", sums, factor), axes)
