"""Moves that are affine in pieces along their fast axis are joins of their pieces.

    roll(x, 1)                    ->  concat(x[n-1:], x[:n-1])
    pad(x, 4, mode="reflect")     ->  concat(flip(x[1:5]), x, ..)

Inside a piece neighbours of the result are neighbours of the operand, so that a thread reads whole
words there; of an element's place in the whole map nothing tells that.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fusewright.core.expr import ONE, Expr, Int, Var, add, constant_value, mul, variables
from fusewright.core.sampling import Sampler
from fusewright.core.substitution import substitute
from fusewright.fusion import build
from fusewright.fusion.held_lines import is_scanned, moved_line
from fusewright.fusion.ir import (
    Broadcast,
    Fusion,
    IndexMap,
    Input,
    Pointwise,
    Reduce,
    Scan,
    Tensor,
)
from fusewright.fusion.passes.index_maps import MAX_EXTENT, Map, map_of, moved
from fusewright.fusion.passes.rebuild import rebuild
from fusewright.fusion.row_alignment import lanes_of_word

MAX_PIECES = 4
LONG_NBYTES = 256
"""A piece of so many bytes fills most vectors of its thread's neighbours alone; shorter rows have
too many vectors that lie in two pieces."""


@dataclass(frozen=True, slots=True)
class SteppedRun:
    """Coordinates from `start` on, `size` of them, that read `first`, `first + step`, and so on."""

    start: int
    size: int
    first: int
    step: int


def split_maps(fusion: Fusion) -> Fusion:
    """Joins the pieces of maps that are affine in pieces along the axis that is fast in memory.

    rewrite:  x[(i + k) % n]  ->  concat(x[k:], x[:k])
    checks:   few pieces, most of it in a long one that runs forward and that words do not fit yet;
              no reduction or scan needs the value, as its rows are read in its own order, and it
              reads no lines that the kernel which scans them holds
    order:    behind fold_moves and hoist_moves, which compose maps; before the cut
    """
    reduced = _below_reductions(fusion)

    def replace(t: Tensor, operands: tuple[Tensor, ...]) -> Tensor | None:
        if not isinstance(t.op, IndexMap) or t in reduced:
            return None
        line = moved_line(t)
        if line is not None and is_scanned(t.op.operands[0], line):
            return None
        by = map_of(t)
        return None if by is None else _joined(operands[0], by)

    return rebuild(fusion, replace)


def split_results(fusion: Fusion) -> Fusion:
    """Joins the pieces of moved results of reductions and scans, which their kernel then stores
    where they end up, as it makes them.

    rewrite:  roll(scan(x), k, axis)           ->  concat(scan(x)[n-k:], scan(x)[:n-k])
              pad(softmax(x), 1, "reflect")    ->  concat(y[:, 1:2], y, y[:, n-2:n-1])
                                                   y = pad(softmax(x), 1, "reflect") along the rows
    checks:   few pieces along the last axis that is moved, all forward, or most of it in one that
              is; nothing else needs the value, nor a reduction what is moved
    order:    as another form of the fusion, whose predicted time decides: a kernel that holds lines
              in shared memory reads them at other places
    """
    uses, needed, made = fusion.uses(), _below_reductions(fusion), _of_reductions(fusion)

    def replace(t: Tensor, operands: tuple[Tensor, ...]) -> Tensor | None:
        if not isinstance(t.op, IndexMap) or t in needed or t.op.operands[0] not in made:
            return None
        source, by = operands[0], map_of(t)
        if by is None or len(uses[t.op.operands[0]]) > 1 or len(source.shape) != len(by.shape):
            return None
        changed = [a for a, (e, c) in enumerate(zip(by.index, by.at, strict=True)) if e != c]
        extent = constant_value(by.shape[changed[-1]]) if changed else None
        if extent is None or not 1 < extent <= MAX_EXTENT:
            return None
        axis = changed[-1]
        pieces = _forward_first(pieces_of(by.index[axis], by.at[axis], extent) or [])
        if not pieces or not _run_forward(pieces):
            return None
        if len(changed) > 1:
            source, by = _moved_but(source, by, axis), _along(by, axis)
        return build.concat([_piece(source, by, axis, axis, p) for p in pieces], axis)

    return rebuild(fusion, replace)


def _moved_but(source: Tensor, by: Map, axis: int) -> Tensor:
    """What a map reads along all axes but one, of which it takes every place."""
    shape = tuple(source.shape[axis] if k == axis else n for k, n in enumerate(by.shape))
    at = build.coordinates(shape)
    places = dict(zip(by.at, at, strict=True))
    index = [at[k] if k == axis else substitute(e, places) for k, e in enumerate(by.index)]
    return moved(source, Map(shape, at, tuple(index)))


def _along(by: Map, axis: int) -> Map:
    """A map along one of its axes alone, of what the others have moved already."""
    return Map(by.shape, by.at, tuple(by.index[k] if k == axis else c for k, c in enumerate(by.at)))


def _run_forward(pieces: list[SteppedRun]) -> bool:
    """Whether all pieces run forward, or one that does is at least half of what is read."""
    longest = max((p.size for p in pieces if p.step == 1), default=0)
    return all(p.step == 1 for p in pieces) or 2 * longest >= sum(p.size for p in pieces)


def _forward_first(pieces: list[SteppedRun]) -> list[SteppedRun]:
    """Pieces of which those that run forward begin as early as they can:

    3 2 1 0, 1 2 3 ..    ->    3 2 1, 0 1 2 3 ..
    """
    out: list[SteppedRun] = []
    for p in pieces:
        last = out[-1] if out else None
        if last is not None and p.step == 1 and 1 < last.size < p.size:
            end = last.first + (last.size - 1) * last.step
            if end == p.first - 1:
                out[-1] = SteppedRun(last.start, last.size - 1, last.first, last.step)
                p = SteppedRun(p.start - 1, p.size + 1, end, 1)
        out.append(p)
    return out


def _of_reductions(fusion: Fusion) -> set[Tensor]:
    """The values that are computed element by element of results of reductions and scans, or
    are such results."""
    found: set[Tensor] = set()
    for t in fusion.values:
        is_between = isinstance(t.op, Pointwise | Broadcast)
        if isinstance(t.op, Reduce | Scan) or (is_between and found & {*t.op.operands}):
            found.add(t)
    return found


def _below_reductions(fusion: Fusion) -> set[Tensor]:
    """The values that some reduction or scan needs."""
    needed: set[Tensor] = set()
    for t in reversed(fusion.values):
        if isinstance(t.op, Reduce | Scan) or t in needed:
            needed.update(t.op.operands)
    return needed


def _joined(source: Tensor, by: Map) -> Tensor | None:
    """The join of the pieces of a map along the source's fast axis; None where that is no use."""
    fast = _fast_axis(source)
    if fast is None:
        return None
    e = by.index[fast]
    own = variables(e)
    if len(own) != 1 or own[0] not in by.at:  # or it is a symbolic size
        return None
    if any(own[0] in variables(x) for k, x in enumerate(by.index) if k != fast):
        return None
    axis = by.at.index(own[0])
    extent = constant_value(by.shape[axis])
    if extent is None or not 1 < extent <= MAX_EXTENT:
        return None
    pieces = pieces_of(e, own[0], extent)
    if pieces is None or not _is_worth_it(pieces, source.dtype.nbytes):
        return None
    return build.concat([_piece(source, by, fast, axis, p) for p in pieces], axis)


def _fast_axis(t: Tensor) -> int | None:
    """The axis along which neighbours are neighbours in memory, as far as that is known."""
    if isinstance(t.op, Input):
        sized = [k for k, n in enumerate(t.shape) if n != ONE]
        return next((k for k in sized if t.op.strides[k] == ONE), None)
    return t.ndim - 1 if t.ndim else None


def pieces_of(e: Expr, at: Var, extent: int) -> list[SteppedRun] | None:
    """The fewest pieces, from the left, of an expression in one coordinate; None for more than
    `MAX_PIECES`, and for expressions of anything else."""
    places = np.broadcast_to(Sampler({at: np.arange(extent)}).value(e), (extent,))
    steps = np.diff(places)
    out: list[SteppedRun] = []
    start = 0
    while start < extent:
        if len(out) == MAX_PIECES:
            return None
        step = int(steps[start]) if start + 1 < extent else 1
        other = np.flatnonzero(steps[start:] != step)
        size = int(other[0]) + 1 if len(other) else extent - start
        out.append(SteppedRun(start, size, int(places[start]), step))
        start += size
    return out


def _is_worth_it(pieces: list[SteppedRun], nbytes: int) -> bool:
    """Whether most is in one long piece that runs forward, and vectors cross the pieces' ends or
    begin between words."""
    width = lanes_of_word(nbytes)
    forward = [p for p in pieces if p.step == 1]
    longest = max((p.size for p in forward), default=0)
    whole = sum(p.size for p in pieces)
    if len(pieces) == 1 or longest * nbytes < LONG_NBYTES or 2 * longest < whole:
        return False
    return any(n % width for p in pieces for n in (p.start, p.size, p.first))


def _piece(source: Tensor, by: Map, fast: int, axis: int, p: SteppedRun) -> Tensor:
    """What a piece of the coordinates along `axis` reads."""
    shape = tuple(Int(p.size) if k == axis else n for k, n in enumerate(by.shape))
    at = build.coordinates(shape)
    places = dict(zip(by.at, at, strict=True))
    index = [substitute(x, places) for x in by.index]
    index[fast] = add(p.first, mul(at[axis], p.step))
    if p.size == 1:
        index[fast] = Int(p.first)
    return moved(source, Map(shape, at, tuple(index)))
