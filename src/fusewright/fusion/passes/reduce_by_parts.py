"""Reductions of rows that are read in equal parts behind them reduce what the parts combine to.

    s = sum(x * x, axis=1)                       a, b = x[:, :n/2], x[:, n/2:]
    y = x / s                             ->     s = sum(a * a + b * b, axis=1)
    y[:, :n/2] * y[:, n/2:]                      (a / s) * (b / s)

Where a row is gated by its other half, what is computed behind the reduction has half as many
places as a row, and no loops over the row come by both. In parts all runs over the places of one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from functools import partial, reduce
from typing import NamedTuple

from fusewright.core.expr import ONE, Expr, Int, add, constant_value
from fusewright.fusion import build
from fusewright.fusion.ir import Fusion, Reduce, Resize, Tensor
from fusewright.fusion.passes.cse import cse
from fusewright.fusion.passes.fold_crops import is_crop
from fusewright.fusion.passes.index_maps import Map, map_of
from fusewright.fusion.passes.read_at import ReadAt
from fusewright.fusion.passes.rebuild import rebuild
from fusewright.fusion.passes.reduce_runs import COMBINES

MAX_PARTS = 4
"""Of a row: halves of gated units, thirds of queries, keys and values, four gates of a cell."""


class _Cut(NamedTuple):
    """An axis that is read in parts of so many elements."""

    axis: int
    each: int


def reduce_by_parts(fusion: Fusion) -> Fusion:
    """Reduces the parts of rows together, where values of the rows' size that are computed of the
    result are read in these parts alone.

    rewrite:  f(sum(g(x), 1), x)[:, p*h:(p+1)*h]  ->
              f(sum(g(x[:, :h]) + g(x[:, h:]), 1), x[:, p*h:(p+1)*h])
    checks:   known sizes; two to four equal parts, along an axis that is reduced
    order:    behind the folds of moves, as another form of the fusion, whose predicted time decides
    """
    cuts, read = _cuts(fusion)
    if not cuts:
        return fusion
    reader = ReadAt()

    def replace(t: Tensor, operands: tuple[Tensor, ...]) -> Tensor | None:
        if t in cuts:
            return _in_parts(t, operands[0], cuts[t], reader)
        by = map_of(t) if is_crop(t) and t.op.operands[0] in read else None
        return None if by is None else reader.read(operands[0], by)

    return cse(rebuild(fusion, replace))


def _cuts(fusion: Fusion) -> tuple[dict[Tensor, _Cut], set[Tensor]]:
    """The reductions in parts, each with its cut, and the values behind them that are read so."""
    uses, outputs = fusion.uses(), set(fusion.outputs)
    behind: dict[Tensor, set[Tensor]] = {}
    found: dict[Tensor, _Cut] = {}
    read: set[Tensor] = set()
    for t in fusion.values:
        own = {r for o in t.op.operands for r in behind.get(o, ())}
        behind[t] = own | {t} if isinstance(t.op, Reduce) and t.op.fn in COMBINES else own
        cut = _read_in_parts(t, uses[t]) if own and t not in outputs else None
        if cut is None:
            continue
        for r in own:
            if r.op.operands[0].shape == t.shape and _reduces(r, cut.axis):
                read.add(t)
                found.setdefault(r, cut)
    return found, read


def _reduces(r: Tensor, axis: int) -> bool:
    return isinstance(r.op, Reduce) and axis in r.op.axes


def _read_in_parts(t: Tensor, readers: Collection[Tensor]) -> _Cut | None:
    """How a value is read in equal parts along one axis, each of some reader, by nobody whole."""
    cuts = {_part(u, t) for u in readers}
    (cut,) = cuts if len(cuts) == 1 else (None,)
    return cut


def _part(u: Tensor, t: Tensor) -> _Cut | None:
    """The axis and the size of the part that a reader takes of a value; None for other readers."""
    if not isinstance(u.op, Resize) or not is_crop(u):
        return None
    changed = [a for a, (m, n) in enumerate(zip(u.shape, t.shape, strict=True)) if m != n]
    if len(changed) != 1:
        return None
    (axis,) = changed
    each, whole = constant_value(u.shape[axis]), constant_value(t.shape[axis])
    first = constant_value(u.op.low[axis])
    if each is None or whole is None or first is None or each < 2:
        return None
    is_even = whole % each == 0 and first % each == 0 and whole <= MAX_PARTS * each
    return _Cut(axis, each) if is_even else None


def _in_parts(t: Tensor, source: Tensor, cut: _Cut, reader: ReadAt) -> Tensor:
    """A reduction over what its parts combine to, element by element."""
    assert isinstance(t.op, Reduce)
    terms = [build.cast(x, t.dtype.compute) for x in _parts_of(source, cut, reader)]
    joined = reduce(partial(build.pointwise, t.op.fn), terms)
    return build.cast(build.reduce(t.op.fn, joined, t.op.axes), t.dtype)


def _parts_of(source: Tensor, cut: _Cut, reader: ReadAt) -> Iterator[Tensor]:
    shape = tuple(Int(cut.each) if a == cut.axis else n for a, n in enumerate(source.shape))
    at = build.coordinates(shape)
    for first in range(0, constant_value(source.shape[cut.axis]) or 0, cut.each):
        index: list[Expr] = [Int(0) if n == ONE else c for c, n in zip(at, shape, strict=True)]
        index[cut.axis] = add(at[cut.axis], first)
        yield reader.read(source, Map(shape, at, tuple(index)))
