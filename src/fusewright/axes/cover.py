"""Which axes loops over other axes come by: the question behind sharing a kernel.

    y[24] = reshape(x[4, 6])    loops over y come by every x, and loops over x by every y
    y[9]  = concat(a[5], b[4])  loops over y come by every a; loops over a do not come by every y
"""

from __future__ import annotations

from collections.abc import Iterable

from fusewright.axes.classes import AxisClass, AxisGraph
from fusewright.axes.values import Table
from fusewright.core.expr import ZERO


def covers(graph: AxisGraph, known: Iterable[AxisClass], wanted: Iterable[AxisClass]) -> bool:
    """Whether loops over the known classes come by every value of the wanted ones: each of their
    digits follows from them, without a step along a line to an interval that reaches further."""
    words = tuple(graph.normal(c).word for c in known)
    given = {d for word in words for d in word}
    missing = [d for c in wanted for d in graph.normal(c).digits if d not in given]
    if not missing:
        return True
    if not any(graph.independence.digits(d, g) for d in missing for g in given):
        return False
    memo = graph.fresh_memo()
    table = memo.get(("covers", words))
    if not isinstance(table, Table):
        table = Table(graph.lines, [(word, ZERO) for word in words], widen=False)
        memo["covers", words] = table
    return all(table.run(d) is not None for d in missing)


def coincide(graph: AxisGraph, a: Iterable[AxisClass], b: Iterable[AxisClass]) -> bool:
    """Whether loops over either axes come by every value of the others."""
    a, b = tuple(a), tuple(b)
    return covers(graph, a, b) and covers(graph, b, a)
