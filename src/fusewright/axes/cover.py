"""Which axes loops over other axes come by: the question behind sharing a kernel.

y[24] = reshape(x[4, 6])    loops over y come by every x, and loops over x by every y
y[9]  = concat(a[5], b[4])  loops over y come by every a; loops over a do not come by every y
"""

from __future__ import annotations

from collections.abc import Iterable

from fusewright.axes.classes import AxisClass, AxisGraph
from fusewright.axes.values import Table, base_of, find_run
from fusewright.axes.words import Digit, LineAtom
from fusewright.core.expr import ZERO


def covers(graph: AxisGraph, known: Iterable[AxisClass], wanted: Iterable[AxisClass]) -> bool:
    """Whether loops over the known classes come by every value of the wanted ones: each of their
    digits follows from them, without a step along a line to an interval that reaches further."""
    given = tuple(graph.normal(c) for c in known)
    missing = [c for c in map(graph.normal, wanted) if not c.is_unit and c not in given]
    if not missing:
        return True
    by_atom: dict[LineAtom, list[Digit]] = {}
    for c in given:
        for d in c.word:
            by_atom.setdefault(d.atom, []).append(d)
    digits = [
        d
        for c in missing
        for d in c.digits
        if find_run(by_atom.get(d.atom, ()), d.stride, d.extent) is None
    ]
    if not digits:
        return True
    if not all(any(graph.independence.words((d,), c.word) for c in given) for d in digits):
        return False
    table = _table(graph, given)
    return all(table.run(d) is not None for d in digits)


def coincide(graph: AxisGraph, a: Iterable[AxisClass], b: Iterable[AxisClass]) -> bool:
    """Whether loops over either axes come by every value of the others."""
    a, b = tuple(a), tuple(b)
    return covers(graph, a, b) and covers(graph, b, a)


def overlap(graph: AxisGraph, axes: Iterable[AxisClass]) -> bool:
    """Whether some axes hold a part of a line, and a part of a box that this line is a side of:
    y[1248, 16] = reshape(x[64, 312]) makes rows of 39 times 16 of two rows of 312, so that the rows
    of x are one digit of y's rows and one of the box of y."""
    digits = [d for c in axes for d in graph.normal(c).word]
    atoms = {d.atom for d in digits}
    definitions = [graph.lines.definition.get(a) for a in atoms]
    return any(q.atom in atoms for b in definitions if b is not None for q in base_of(b))


def _table(graph: AxisGraph, given: tuple[AxisClass, ...]) -> Table:
    memo = graph.fresh_memo()
    found = memo.get(("covers", given))
    if not isinstance(found, Table):
        found = Table(graph.lines, [(c.word, ZERO) for c in given], widen=False)
        memo["covers", given] = found
    return found
