"""Which launches must wait for which, from what they bind. Exact where bytes can be compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fusewright.core.conditions import less_equal, prove
from fusewright.core.expr import constant_value
from fusewright.host.ir import Binding, Box, Edge, EdgeKind, HostLaunch, Root, RootKind


@dataclass(frozen=True, slots=True)
class _Live:
    """An access that later launches may still have to wait for, and its bytes where they are
    known numbers."""

    launch: int
    binding: Binding
    range: tuple[int, int] | None


def hazards(launches: Sequence[HostLaunch]) -> tuple[Edge, ...]:
    """The edges that the bindings require, in order of consumer; one per pair, the strongest kind.

    Per root the accesses that no later total write has covered are kept; a launch is compared with
    those only, because whoever covered an access already waits for it.
    """
    written = {b.root for x in launches for b in x.bindings if b.access.writes}
    live: dict[Root, list[_Live]] = {r: [] for r in written}
    edges: list[Edge] = []
    for c, launch in enumerate(launches):
        found: dict[int, Edge] = {}
        touched = [_Live(c, b, _range(b)) for b in launch.bindings if b.root in written]
        for b in touched:
            for p in live[b.binding.root]:
                edge = None if _surely_apart(p, b) else _edge(p, c, b.binding)
                known = found.get(p.launch)
                if edge is not None and (known is None or _RANK[edge.kind] < _RANK[known.kind]):
                    found[p.launch] = edge
        edges += [found[p] for p in sorted(found)]
        for b in touched:
            held = live[b.binding.root]
            kept = [
                p
                for p in held
                if p.launch == c or _surely_apart(p, b) or not _covers(b.binding, p.binding)
            ]
            live[b.binding.root] = [*kept, b]
    return tuple(edges)


_RANK = {k: i for i, k in enumerate(EdgeKind)}


def _range(b: Binding) -> tuple[int, int] | None:
    start, nbytes = constant_value(b.offset), constant_value(b.nbytes)
    return None if start is None or nbytes is None else (start, start + nbytes)


def _surely_apart(a: _Live, b: _Live) -> bool:
    if a.range is None or b.range is None:
        return False
    return a.range[1] <= b.range[0] or b.range[1] <= a.range[0]


def _edge(p: _Live, c: int, b: Binding) -> Edge | None:
    a = p.binding
    if not (a.access.writes or b.access.writes):
        return None
    overlap = overlaps(a, b)
    if overlap is False:
        return None
    where = f"{a.tensor} and {b.tensor} in {a.root}" if a.tensor != b.tensor else a.tensor
    if overlap is None:
        return Edge(p.launch, c, EdgeKind.MAYBE, f"{where}: {a} may overlap {b}")
    return Edge(p.launch, c, _kind(a, b), where)


def _kind(a: Binding, b: Binding) -> EdgeKind:
    if a.root.kind is RootKind.ARENA and a.tensor != b.tensor:
        return EdgeKind.REUSE
    if a.access.writes and b.access.reads:
        return EdgeKind.RAW
    return EdgeKind.WAW if a.access.writes else EdgeKind.WAR


def overlaps(a: Binding, b: Binding) -> bool | None:
    """Whether two bindings touch a common byte; None when it depends on sizes not known."""
    if a.root is not b.root or _before(a, b) is True or _before(b, a) is True:
        return False
    if constant_value(a.nbytes) == 0 or constant_value(b.nbytes) == 0:
        return False
    if a.box is not None and b.box is not None and _boxes_apart(a.box, b.box):
        return False
    if _before(a, b) is None or _before(b, a) is None:
        return None
    return True


def _before(a: Binding, b: Binding) -> bool | None:
    return prove(less_equal(a.offset + a.nbytes, b.offset))


def _boxes_apart(a: Box, b: Box) -> bool:
    if len(a.step) != len(b.step) or any(x != y for x, y in zip(a.step, b.step, strict=True)):
        return False
    axes = zip(a.start, a.extent, b.start, b.extent, strict=True)
    return any(
        prove(less_equal(s + n, t)) is True or prove(less_equal(t + m, s)) is True
        for s, n, t, m in axes
    )


def _covers(b: Binding, p: Binding) -> bool:
    """Whether the later access replaces the earlier one: it writes every byte of it."""
    if not (b.total and b.access.writes) or b.box is not None:
        return False
    starts = prove(less_equal(b.offset, p.offset))
    ends = prove(less_equal(p.offset + p.nbytes, b.offset + b.nbytes))
    return starts is True and ends is True
