"""Scans read what they scan where a move of the result would read it."""

from __future__ import annotations

from dataclasses import replace

from fusewright.core.conditions import less, prove
from fusewright.core.expr import Var, add, mul, variables
from fusewright.fusion import build
from fusewright.fusion.ir import Fusion, Pointwise, Scan, Tensor, is_alone, with_operands
from fusewright.fusion.passes.fold_moves import is_move
from fusewright.fusion.passes.index_maps import Map, map_of, moved
from fusewright.fusion.passes.rebuild import rebuild


def turn_scans(fusion: Fusion) -> Fusion:
    """Moves what is scanned instead of the result, which would have to be in memory before it is
    read at other places.

    rewrite:  flip(scan(x))                   ->  suffixes of flip(x)
              flip(scan(flip(x)))             ->  suffixes of x, when moves are folded again
              roll(relu(scan(x)), k, axis=1)  ->  relu(scan(roll(x, k, axis=1)))
    checks:   lines are read whole, in one direction, and no more of them than there are; nothing
              else reads what is between the scans and the move
    order:    behind fold_moves, which leaves one move of each value; before hoist_moves, which
              takes the moves further, and folds them again
    """
    uses = fusion.uses()
    outputs = frozenset(fusion.outputs)

    def turned(t: Tensor, operands: tuple[Tensor, ...]) -> Tensor | None:
        by = map_of(t) if is_move(t) else None
        if by is None:
            return None
        region = _region(t.op.operands[0])
        inside = {t, *region}
        is_own = all(inside.issuperset(uses[v]) and v not in outputs for v in region)
        if not region or not is_own or not all(_keeps_lines(v, by) for v in region):
            return None
        return _moved(operands[0], by)

    return rebuild(fusion, turned)


def _region(v: Tensor) -> list[Tensor]:
    """A value, the scans that it is computed of element by element, and what is between them,
    operands first; nothing where there are no scans."""
    order: dict[Tensor, None] = {}
    stack = [(v, False)]
    while stack:
        t, is_done = stack.pop()
        if is_done:
            order[t] = None
        elif t not in order:
            stack.append((t, True))
            if isinstance(t.op, Pointwise) and not is_alone(t):
                stack.extend((o, False) for o in t.op.operands)
    found: dict[Tensor, None] = {}
    for t in order:
        reads = isinstance(t.op, Pointwise) and not found.keys().isdisjoint(t.op.operands)
        if reads or isinstance(t.op, Scan):
            found[t] = None
    return list(found)


def _keeps_lines(t: Tensor, by: Map) -> bool:
    """Whether a map reads all lines of a scan whole, and no more elements than it has."""
    if not isinstance(t.op, Scan):
        return True
    more = less(build.element_count(t.shape), build.element_count(by.shape))
    return _line(t.op, t, by) is not None and prove(more) is False


def _line(op: Scan, t: Tensor, by: Map) -> tuple[Var, bool] | None:
    """The coordinate of a map that runs along a scanned axis and along no other, and whether it
    does so backwards; None where the map does not walk over that axis as it is."""
    place, last = by.index[op.axis], add(t.shape[op.axis], -1)
    for c, extent in zip(by.at, by.shape, strict=True):
        others = (e for a, e in enumerate(by.index) if a != op.axis)
        if extent != t.shape[op.axis] or any(c in variables(e) for e in others):
            continue
        if place == c:
            return c, False
        if place == add(last, mul(c, -1)):
            return c, True
    return None


def _moved(v: Tensor, by: Map) -> Tensor:
    """A value at the places of a map, with what its scans read there."""
    made: dict[Tensor, Tensor] = {}

    def at_places(o: Tensor) -> Tensor:
        return made[o] if o in made else moved(o, by)

    for t in _region(v):
        operands = tuple(at_places(o) for o in t.op.operands)
        op = with_operands(t.op, operands)
        if isinstance(t.op, Scan):
            line = _line(t.op, t, by)
            assert line is not None, "checked before"
            c, is_backward = line
            reverse = t.op.reverse != is_backward
            op = replace(t.op, operands=operands, axis=by.at.index(c), reverse=reverse)
        made[t] = build.value(by.shape, t.dtype, op)
    return made[v]
