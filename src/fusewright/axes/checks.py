"""The invariants of the axis graph, checked where a schedule is lowered (`FUSEWRIGHT_SPEC`).

I1 frame and I2 coherence: the axes of every registered domain are pairwise independent (those that
no tie has looked at, by the same approximation as the ties) and no line lies below itself.
I3 canonical: what the graph stores is its own normal form. I4 linear: loops reach a domain and
consume every digit at most once.
"""

from __future__ import annotations

from collections.abc import Sequence

from fusewright.axes.classes import AxisClass, AxisGraph
from fusewright.axes.paths import Known, Refusal, domain_path
from fusewright.errors import InternalError


def check_graph(graph: AxisGraph) -> None:
    """Raise InternalError when I1, I2 or I3 is broken."""
    _check_lines(graph)
    _check_domains(graph)
    _check_definitions(graph)


def check_linear(graph: AxisGraph, loops: Known, domain: Sequence[AxisClass]) -> None:
    """Raise InternalError when loops do not reach a domain linearly (I4)."""
    path = domain_path(graph, loops, domain)
    if isinstance(path, Refusal):
        shown = ", ".join(str(graph.normal(c)) for c, _ in loops)
        raise InternalError(f"axis graph, I4: the loops ({shown}) are not linear: {path.reason}")


def _check_lines(graph: AxisGraph) -> None:
    lines = graph.lines
    for atom in lines.definition:
        root = lines.root(atom.line)
        if root in lines.closure(lines.root(d.atom.line) for d in lines.below(root)):
            raise InternalError(f"axis graph, I2: the line of {atom} is defined by itself")


def _check_domains(graph: AxisGraph) -> None:
    domains = graph.domains
    for number, axes in enumerate(domains.words):
        for y in range(len(axes)):
            for x in range(y):
                pair = (number, x, y)
                if pair not in domains.proved and domains.is_dependent(*pair):
                    a, b = ("*".join(map(str, graph.lines.normal(axes[k]))) for k in (x, y))
                    raise InternalError(f"axis graph, I1: {a} and {b} of one domain depend")


def _check_definitions(graph: AxisGraph) -> None:
    lines = graph.lines
    for atom, definition in lines.definition.items():
        if lines.canonical(atom) is not atom or lines.normal_definition(definition) != definition:
            raise InternalError(f"axis graph, I3: the definition of {atom} is not in normal form")
        if lines.named.get(definition) is not atom:
            raise InternalError(f"axis graph, I3: two atoms have the definition of {atom}")
