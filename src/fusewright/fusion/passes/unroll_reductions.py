"""Reductions of a few elements whose results other reductions read are sums of terms.

    d = sum((x[:, None] - c)**2, axis=2)         d = (x[:, None, 0] - c[:, 0])**2 + ..
    min(d, axis=1)                          ->   min(d, axis=1)

A kernel has one set of axes that it reduces. As terms, the few elements are no axis any more, and
what the second reduction reads is computed where it is read, instead of being stored: of distances
between points that is the product of their numbers.
"""

from __future__ import annotations

import itertools
import math
from functools import partial, reduce

from fusewright.core.expr import ZERO, Expr, Int, constant_value
from fusewright.fusion import build
from fusewright.fusion.ir import (
    Constant,
    Fusion,
    Input,
    Iota,
    Pointwise,
    Reduce,
    Scan,
    Size,
    Tensor,
    is_alone,
)
from fusewright.fusion.passes.cse import cse
from fusewright.fusion.passes.index_maps import Map, map_of
from fusewright.fusion.passes.read_at import ReadAt
from fusewright.fusion.passes.rebuild import rebuild

MAX_TERMS = 16
"""Elements that are written as terms: with three operations each they fill half of a kernel."""
MAX_STEPS = 64
"""Elementwise operations of all terms together."""


def unroll_reductions(fusion: Fusion) -> Fusion:
    """Writes short reductions of what is computed as terms, where another reduction reads them.

    rewrite:  f(sum(g(x), axis=1))  ->  f(g(x[:, 0]) + g(x[:, 1]) + ..)    inside of sum(f(..))
    checks:   known sizes; what is reduced is computed of arguments, moves of them and coordinates,
              which can be read at one place
    order:    behind the folds of moves, as another form of the fusion, whose predicted time decides
    """
    read = _read_by_reductions(fusion)
    if not any(t in read and _count(t) for t in fusion.values):
        return fusion
    reader = ReadAt()

    def replace(t: Tensor, operands: tuple[Tensor, ...]) -> Tensor | None:
        count = _count(t) if t in read else 0
        if not count or _steps(operands[0], MAX_STEPS // count) is None:
            return None
        return _terms(t, operands[0], reader)

    return cse(rebuild(fusion, replace))


def _read_by_reductions(fusion: Fusion) -> set[Tensor]:
    """The reductions from which other reductions are computed, or scans."""
    below: set[Tensor] = set()
    for t in reversed(fusion.values):
        if t in below or isinstance(t.op, Reduce | Scan):
            below.update(() if is_alone(t) else t.op.operands)
    return {t for t in below if isinstance(t.op, Reduce)}


def _count(t: Tensor) -> int:
    """How many elements a reduction makes one of; 0 where they are too many, or not known."""
    if not isinstance(t.op, Reduce):
        return 0
    sizes = [constant_value(t.op.operands[0].shape[a]) for a in t.op.axes]
    count = math.prod(n or 0 for n in sizes)
    return count if 1 < count <= MAX_TERMS else 0


def _steps(t: Tensor, most: int) -> int | None:
    """The elementwise operations between a value and the arguments; None where they are more than
    `most`, or none, or where something else lies between."""
    seen: set[Tensor] = set()
    steps = 0
    stack = [t]
    while stack and steps <= most:
        v = stack.pop()
        if v in seen:
            continue
        seen.add(v)
        if is_alone(v) or not (isinstance(v.op, _AT_PLACES) or map_of(v) is not None):
            return None
        steps += isinstance(v.op, Pointwise)
        stack.extend(v.op.operands)
    return steps if 0 < steps <= most else None


_AT_PLACES = (Input, Constant, Size, Iota, Pointwise)
"""What has a value at every place by itself; moves have that of their operand."""


def _terms(t: Tensor, source: Tensor, reader: ReadAt) -> Tensor:
    """A reduction of `source` as a chain of terms, in the order of its elements."""
    assert isinstance(t.op, Reduce)
    op, at = t.op, build.coordinates(t.shape)
    sizes = [range(constant_value(source.shape[a]) or 0) for a in op.axes]
    terms: list[Tensor] = []
    for place in itertools.product(*sizes):
        kept = iter(ZERO if n == Int(1) else c for c, n in zip(at, t.shape, strict=True))
        fixed = dict(zip(op.axes, place, strict=True))
        index: list[Expr] = [
            Int(fixed[a]) if a in fixed else next(kept) for a in range(source.ndim)
        ]
        term = reader.read(source, Map(t.shape, at, tuple(index)))
        terms.append(build.cast(term, t.dtype.compute))
    return build.cast(reduce(partial(build.pointwise, op.fn), terms), t.dtype)
