"""Instructions of a thread for the addresses and conditions of what it accesses, and for taking the
lanes of a vector out of the words that they lie in."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

from fusewright.axes.contiguity import Fit
from fusewright.core.conditions import Equal, Less
from fusewright.core.expr import (
    Expr,
    FloorDiv,
    Int,
    Mod,
    Sum,
    Var,
    constant_value,
    mod,
    parts_of,
    variables,
)
from fusewright.core.instructions import CODE
from fusewright.core.substitution import substitute
from fusewright.core.symbolic import Symbolic
from fusewright.core.terms import Term
from fusewright.schedule.heuristics.common import GlobalAccess
from fusewright.schedule.parallel import Loop, Parallel, trips_of
from fusewright.target import MAX_VECTOR_NBYTES

Parts: TypeAlias = dict[Symbolic | tuple[object, ...], float]
"""What takes instructions with how many: expressions, divisions for both results, and windows of
arrays."""


def instructions_of(roots: Sequence[Symbolic], trips: Mapping[Var, int], parts: Parts) -> float:
    """Instructions of a thread for addresses or conditions of an access, but for those that are in
    `parts`: every term of them once for the trips of the loops that it follows."""
    before = sum(parts.values())
    for root in roots:
        _collect(root, trips, parts)
    return sum(parts.values()) - before


def _collect(e: Symbolic, trips: Mapping[Var, int], parts: Parts) -> None:
    """Adds what an expression takes to `parts`, unless it is there, or known when loops are
    unrolled."""
    if e in parts or isinstance(e, Int | Var) or all(v in trips for v in variables(e)):
        return
    match e:
        case Sum():
            parts[e] = sum(_times(t.atoms, trips) for t in e.terms if not _is_offset(t, trips))
            inside: Sequence[Symbolic] = [x for t in e.terms for x in t.atoms]
        case FloorDiv() | Mod():
            inside = (e.numerator,)
            shared = (e.numerator, e.denominator)
            parts.setdefault(shared, _division(e.denominator) * _times(inside, trips))
            parts[e] = _times(inside, trips) if isinstance(e, Mod) else 0.0
        case Less() | Equal():
            inside = e.children
            parts[e] = _times(inside, trips)
        case _:
            inside = e.children
            parts[e] = _times(inside, trips) if isinstance(e, Expr) else 0.0
    for x in inside:
        _collect(x, trips, parts)


def _times(parts: Iterable[Symbolic], trips: Mapping[Var, int]) -> float:
    """Trips of the loops that expressions follow."""
    own = dict.fromkeys(v for e in parts for v in variables(e) if v in trips)
    return float(math.prod(trips[v] for v in own))


def _is_offset(t: Term, trips: Mapping[Var, int]) -> bool:
    """Whether a term is a known distance from one unrolled element to the next, which accesses
    take for nothing."""
    return len(t.atoms) == 1 and t.atoms[0] in trips


def _division(denominator: Expr) -> float:
    n = constant_value(denominator)
    if n is None:
        return CODE.run_time_division
    return 1.0 if n & (n - 1) == 0 else CODE.index_division


def cut_instructions(a: GlobalAccess, loops: Sequence[tuple[Loop, Expr]], parts: Parts) -> float:
    """Instructions of a thread that take the lanes of an access out of words at places that are not
    known, of two rows those of both and which lanes are of which: none where they are words. Of
    windows of one array that lie beside each other the first is counted: others are cut out of its
    words, and what is chosen of them is counted as what moves."""
    loop, lane = loops[-1] if loops else (None, None)
    if loop is None or not isinstance(lane, Var) or loop.parallel is not Parallel.VECTORIZE:
        return 0.0
    if not a.stage.from_any_address or a.tensor is a.stage:
        return 0.0
    lane, width = a.lanes(lane, trips_of((loop,)))
    fit = a.fit(lane, width)
    rows = {Fit.CUT: 1, Fit.TAKEN: 1, Fit.PIECES: 2}.get(fit, 0)
    window = (a.tensor, a.address - parts_of(a.address)[0], rows)
    if not rows or window in parts or _begins_known(a, lane, width):
        return 0.0
    words = -(-width * a.tensor.dtype.nbytes // MAX_VECTOR_NBYTES)
    chosen = 2 * width if fit is Fit.PIECES else 0
    trips = trips_of(x for x, _ in loops if x.parallel in (Parallel.UNROLL, Parallel.SERIAL))
    parts[window] = trips * (CODE.cut * rows * words + chosen)
    return parts[window]


def _begins_known(a: GlobalAccess, lane: Var, width: int) -> bool:
    """Whether the compiler knows where in a word the lanes of all vectors begin."""
    nbytes = a.tensor.dtype.nbytes
    each = min(width, MAX_VECTOR_NBYTES // nbytes)
    if a.tensor.alignment % (each * nbytes):
        return False
    return constant_value(mod(substitute(a.address, {lane: 0}), each)) is not None
