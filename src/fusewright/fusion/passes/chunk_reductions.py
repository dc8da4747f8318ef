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
then dealt to chunks in turn, which differ by a row at most, as where they are unaligned. Sources:
Chan, Golub, LeVeque, "Algorithms for computing the sample variance: analysis and recommendations"
(1983); Milakov, Gimelshein, "Online normalizer calculation for softmax" (2018).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from fusewright.core.expr import ZERO, Expr, Int, constant_value, floordiv, mod
from fusewright.dtypes import bool_, int64
from fusewright.fusion import build, ir
from fusewright.fusion.ir import Fusion, Reduce, Tensor
from fusewright.fusion.partition import Partition
from fusewright.fusion.passes.cuts import parts_of_rows_near
from fusewright.fusion.passes.large_inputs import period_of_rows
from fusewright.fusion.passes.match import is_call, is_count, is_reduction, through_spread
from fusewright.fusion.passes.rebuild import rebuild
from fusewright.fusion.passes.split_reductions import (
    is_inner,
    parts_near,
    parts_of_reduction,
)
from fusewright.target import MAX_VECTOR_NBYTES, Target

LEAST_TOTAL = 1 << 20
"""Elements below which reading twice costs less than a second kernel."""
ROW_NBYTES = 200 * 1024
"""Bytes of a row that a block still keeps to itself; longer rows are cut into chunks."""
CHUNK = 8192
"""Elements of a chunk along the fast axis."""
CHUNK_ROWS = 256
"""Rows of a chunk down the slow axes: of exponentials, and of variances of what is computed."""
SHIFTED_ROWS = (128, 1024)
"""The fewest and the most rows of a chunk for variances of what is stored: as many as leave two
blocks for every multiprocessor."""
COLUMNS_PER_BLOCK = 256
WHOLE = 64
"""What the length of chunks is a multiple of where they do not divide the rows."""


@dataclass(frozen=True, slots=True)
class Pair:
    """The first reduction, the second, what both reduce, and which pattern it is."""

    first: Tensor
    second: Tensor
    source: Tensor
    kind: str


def chunk_reductions(fusion: Fusion, target: Target) -> Fusion:
    """Rewrites every such pair whose rows are too long to stay in one block; but where a result of
    the rows' size needs them again, a cluster of blocks holds them, on targets that have those.

    checks:   constant sizes
    order:    after share (the patterns need shared values), before split_reductions
    """
    found = [p for t in fusion.values if (p := _pair(t)) is not None]
    pairs = [p for p in found if _cut(p, target) is not None]
    pairs = [p for p in pairs if not (_is_held_by_cluster(p, target) and _is_read_again(p, fusion))]
    if not pairs:
        return fusion
    made: dict[Tensor, Tensor] = {}
    wanted = {p.first: p for p in pairs}
    seconds = {p.second for p in pairs}

    def replace(t: Tensor, operands: tuple[Tensor, ...]) -> Tensor | None:
        if t in wanted:
            pair = wanted[t]
            cut = _cut(pair, target)
            assert cut is not None
            first, second = _rewrite(pair, operands[0], cut)
            made[pair.second] = second
            return first
        return made[t] if t in seconds else None

    return rebuild(fusion, replace)


def _pair(t: Tensor) -> Pair | None:
    if not isinstance(t.op, Reduce) or t.op.fn != "add":
        return None
    axes = t.op.axes
    body = t.op.operands[0]
    if is_call(body, "mul") and body.op.operands[0] is body.op.operands[1]:
        difference = body.op.operands[0]
        if is_call(difference, "sub"):
            source, shift = difference.op.operands
            mean = through_spread(shift)
            count = math.prod(constant_value(source.shape[a]) or 0 for a in axes)
            if is_call(mean, "div") and is_count(mean.op.operands[1], count):
                total = through_spread(mean.op.operands[0])
                if is_reduction(total, "add", axes, source):
                    return Pair(total, t, source, "variance")
    if is_call(body, "exp") and is_call(body.op.operands[0], "sub"):
        source, shift = body.op.operands[0].op.operands
        largest = through_spread(shift)
        if is_reduction(largest, "max", axes, source):
            return Pair(largest, t, source, "exponentials")
    return None


def _is_held_by_cluster(p: Pair, target: Target) -> bool:
    """Whether the blocks of a cluster can hold all inputs of a row, and there are rows enough not
    to cut them for more blocks."""
    assert isinstance(p.second.op, Reduce)
    axes = p.second.op.axes
    if not is_inner(p.source, axes) or parts_of_reduction(p.second, target) > 1:
        return False
    reduced = math.prod(constant_value(p.source.shape[a]) or 1 for a in axes)
    return reduced * _read_nbytes(p.source) <= target.cluster_shared_nbytes


def _is_read_again(p: Pair, fusion: Fusion) -> bool:
    """Whether anything of the size of the rows is computed from the second reduction."""
    size = math.prod(constant_value(e) or 1 for e in p.source.shape)
    after = {p.second}
    for t in fusion.values:
        if any(o in after for o in t.op.operands):
            after.add(t)
            if math.prod(constant_value(e) or 1 for e in t.shape) >= size:
                return True
    return False


def _read_nbytes(t: Tensor) -> int:
    """Bytes an element of the inputs as large as a value that it is computed from."""
    seen: dict[Tensor, None] = {}
    stack = [t]
    while stack:
        for o in stack.pop().op.operands:
            if o not in seen:
                seen[o] = None
                stack.append(o)
    inputs = [o for o in (t, *seen) if isinstance(o.op, ir.Input)]
    return sum(o.dtype.nbytes for o in inputs if _numel(o) == _numel(t))


def _numel(t: Tensor) -> int:
    """The elements of a tensor, 0 where they are not constant."""
    return math.prod(constant_value(e) or 0 for e in t.shape)


def _cut(p: Pair, target: Target) -> Partition | None:
    """How the rows are cut; None where the pair stays as it is."""
    assert isinstance(p.second.op, Reduce)
    axes = p.second.op.axes
    sizes = [constant_value(e) for e in p.source.shape]
    if any(not n for n in sizes):
        return None
    reduced = math.prod(sizes[a] or 1 for a in axes)
    total = math.prod(n or 1 for n in sizes)
    stored = _stored(p.source)
    if total < LEAST_TOTAL:
        return None
    if is_inner(p.source, axes):
        if reduced * stored.dtype.nbytes <= ROW_NBYTES:
            return None
        wanted = -(-reduced // CHUNK)
    else:
        if reduced <= 4 * CHUNK_ROWS:
            return None
        wanted = -(-reduced // CHUNK_ROWS)
        if _is_shifted(p):
            least, most = SHIFTED_ROWS
            filling = 2 * target.multiprocessors * COLUMNS_PER_BLOCK * reduced // total
            wanted = max(-(-reduced // most), min(filling, reduced // least))
    lengths = [sizes[a] or 1 for a in axes]
    chunks = parts_near(lengths, wanted)
    if _is_shifted(p) and (reduced % chunks or _period(p) > 1):
        chunks = parts_of_rows_near(lengths, wanted, _period(p))
        deals = reduced % chunks != 0 or _period(p) > 1
        return Partition.by_count(reduced, chunks, is_interleaved=deals) if chunks > 1 else None
    each = reduced // chunks
    if chunks > 1 and reduced % chunks == 0 and not _misaligns(p, each):
        return Partition(reduced, chunks, each)
    each = _rounded_up(-(-reduced // max(wanted, 1)), WHOLE)
    return Partition.by_length(reduced, each) if each < reduced else None


def _misaligns(p: Pair, each: int) -> bool:
    """Whether chunks of that length start where vectors cannot, although the rows do."""
    assert isinstance(p.second.op, Reduce)
    lanes = MAX_VECTOR_NBYTES // _stored(p.source).dtype.nbytes
    rows = constant_value(p.source.shape[-1]) or 1
    return is_inner(p.source, p.second.op.axes) and each % lanes != 0 and rows % lanes == 0


def _rounded_up(n: int, step: int) -> int:
    return -(-n // step) * step


def _is_shifted(p: Pair) -> bool:
    """Whether the first row of a chunk is at hand: that of a tensor in memory."""
    assert isinstance(p.second.op, Reduce)
    stored = isinstance(_stored(p.source).op, ir.Input)
    return p.kind == "variance" and stored and not is_inner(p.source, p.second.op.axes)


def _period(p: Pair) -> int:
    """After how many rows of slow axes vectors begin where they did."""
    assert isinstance(p.second.op, Reduce)
    behind = p.source.shape[p.second.op.axes[-1] + 1 :]
    row = math.prod(constant_value(e) or 1 for e in behind)
    return period_of_rows(row, _stored(p.source).dtype.nbytes)


def _stored(t: Tensor) -> Tensor:
    """What is read from memory for a value: the value behind casts and reshapes."""
    while is_call(t, "cast") or isinstance(t.op, ir.Reshape):
        t = t.op.operands[0]
    return t


def _rewrite(p: Pair, source: Tensor, cut: Partition) -> tuple[Tensor, Tensor]:
    assert isinstance(p.second.op, Reduce)
    axes = p.second.op.axes
    kept = [a for a in range(source.ndim) if a not in axes]
    inner = is_inner(p.source, axes)
    place = len(kept) if inner else 0
    ordered = build.permute(source, (*kept, *axes) if inner else (*axes, *kept))
    fill = -math.inf if p.kind == "exponentials" else 0.0
    spread = build.parts(ordered, range(place, place + len(axes)), cut, fill)
    if p.kind == "exponentials":
        return _exponentials(spread, place)
    if _is_shifted(p):
        return _combined(*_shifted(spread, _first_rows(p.source, axes, cut), cut), 0, cut)
    return _combined(*_around_means(spread, place, cut), place, cut)


def _over(t: Tensor, like: Tensor, axis: int) -> Tensor:
    """A value without `axis` spread along it over the shape of another."""
    return build.spread(build.expand(t, axis), like.shape)


def _number(n: float, like: Tensor) -> Tensor:
    return build.spread(build.constant(n, like.dtype), like.shape)


def _counts(like: Tensor, rank: int, cut: Partition) -> Tensor:
    """The elements of each chunk, the chunks along axis `rank`: the last chunk is short, or as many
    of those that rows are dealt to have one row less as rows are missing."""
    if cut.is_even:
        return _number(cut.each, like)

    def whole(n: int) -> Tensor:
        return build.spread(build.constant(n, int64), like.shape)

    chunk = build.iota(like.shape, rank)
    if cut.is_interleaved:
        full = build.pointwise("lt", chunk, whole(cut.size - (cut.each - 1) * cut.count))
        less = _number(cut.each - 1, like)
        return build.pointwise("where", full, _number(cut.each, like), less)
    left = build.pointwise("sub", whole(cut.size), build.pointwise("mul", chunk, whole(cut.each)))
    return build.cast(build.pointwise("min", left, whole(cut.each)), like.dtype)


def _existing(d: Tensor, rank: int, cut: Partition) -> Tensor:
    """Differences of chunks along axis `rank`, 0 where the last one has no element."""
    if cut.is_even:
        return d

    def whole(n: int) -> Tensor:
        return build.spread(build.constant(n, int64), d.shape)

    begin = build.pointwise("mul", build.iota(d.shape, rank), whole(cut.each))
    at = build.pointwise("add", begin, build.iota(d.shape, rank + 1))
    return build.pointwise("where", build.pointwise("lt", at, whole(cut.size)), d, _number(0.0, d))


def _existing_rows(d: Tensor, cut: Partition) -> Tensor:
    """Differences (each, chunks, kept..) of rows that are dealt, 0 where a chunk has a row less: a
    constant is padded as the rows are, so that no kernel compares what bounds decide."""
    if cut.is_even:
        return d
    rows = build.spread(build.constant(True, bool_), (Int(cut.size), *d.shape[2:]))
    return build.pointwise("where", build.parts(rows, (0,), cut, False), d, _number(0.0, d))


def _around_means(x: Tensor, rank: int, cut: Partition) -> tuple[Tensor, Tensor]:
    """Sums, and sums of squares around their means, of chunks along axis `rank`."""
    last = rank + 1
    sums = build.reduce("add", x, (last,))
    means = build.pointwise("div", sums, _counts(sums, rank, cut))
    d = _existing(build.pointwise("sub", x, _over(means, x, last)), rank, cut)
    return sums, build.reduce("add", build.pointwise("mul", d, d), (last,))


def _first_rows(source: Tensor, axes: tuple[int, ...], cut: Partition) -> Tensor:
    """The first element of every chunk of the reduced axes, from memory: (chunks, kept..)."""
    stored = _stored(source)
    kept = [a for a in range(source.ndim) if a not in axes]
    shape = (Int(cut.count), *(source.shape[a] for a in kept))
    at = build.coordinates(shape)
    row = _unravelled(
        at[0] * (1 if cut.is_interleaved else cut.each), [source.shape[a] for a in axes]
    )
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


def _shifted(x: Tensor, first: Tensor, cut: Partition) -> tuple[Tensor, Tensor]:
    """The same of x, from sums around the first element of every chunk: the two axes of the
    partition come first."""
    axis = 1 - cut.part_axis
    d = build.pointwise("sub", x, _over(first, x, axis))
    d = _existing_rows(d, cut) if cut.is_interleaved else _existing(d, 0, cut)
    moved = build.reduce("add", d, (axis,))
    squares = build.reduce("add", build.pointwise("mul", d, d), (axis,))
    counts = _counts(first, 0, cut)
    sums = build.pointwise("add", moved, build.pointwise("mul", first, counts))
    mean = build.pointwise("div", moved, counts)
    around = build.pointwise("sub", squares, build.pointwise("mul", moved, mean))
    return sums, build.pointwise("max", around, _number(0.0, around))


def _combined(sums: Tensor, squares: Tensor, rank: int, cut: Partition) -> tuple[Tensor, Tensor]:
    """The sum, and the sum of squares around the mean, of all chunks along axis `rank`."""
    total = build.reduce("add", sums, (rank,))
    counts = _counts(sums, rank, cut)
    # The sums again, not the means: the second kernel then reads what its first reduction reads.
    if cut.is_even:
        typical = build.pointwise("div", total, _number(cut.count, total))
        expected = _over(typical, sums, rank)
    else:
        mean = build.pointwise("div", total, _number(cut.size, total))
        expected = build.pointwise("mul", _over(mean, sums, rank), counts)
    off = build.pointwise("sub", sums, expected)
    apart = build.pointwise("div", off, counts)
    weighted = build.pointwise("mul", apart, off)
    return total, build.reduce("add", build.pointwise("add", squares, weighted), (rank,))


def _exponentials(x: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """Of x with chunks along axis `rank` and their elements along the next one."""
    last = rank + 1
    highs = build.reduce("max", x, (last,))
    lowest = build.spread(build.constant(-math.inf, x.dtype), highs.shape)
    zero = build.spread(build.constant(0.0, x.dtype), highs.shape)
    shift = build.pointwise("where", build.pointwise("eq", highs, lowest), zero, highs)
    powers = build.pointwise("exp", build.pointwise("sub", x, _over(shift, x, last)))
    sums = build.reduce("add", powers, (last,))
    high = build.reduce("max", highs, (rank,))
    factor = build.pointwise("exp", build.pointwise("sub", highs, _over(high, highs, rank)))
    return high, build.reduce("add", build.pointwise("mul", sums, factor), (rank,))
