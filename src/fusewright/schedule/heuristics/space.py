"""The space of a group: its axes, joined wherever every access walks over them as one.

    y[4096, 2247, 4] = x[2:, :, :] - x[:-2, :, :]      rows of 8988 elements, not of 4

How a program spells its axes is no fact about memory. Rows, their alignment and their vectors are
decided on joined axes, so that axes which are cut or merged in the program change no schedule.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fusewright.axes.classes import AxisClass
from fusewright.axes.paths import Refusal, domain_path
from fusewright.core.conditions import Cond, substitute_condition
from fusewright.core.expr import ZERO, Expr, Int, Var, variables
from fusewright.core.substitution import substitute
from fusewright.fusion.ir import Iota
from fusewright.schedule.graph import Dataflow, Stage
from fusewright.schedule.heuristics.common import global_accesses, merge_all
from fusewright.schedule.nest import computed
from fusewright.schedule.parallel import Loop
from fusewright.schedule.propagate import transform_like


@dataclass(frozen=True, slots=True)
class _Place:
    """Where something is found, or whether, as a function of loops; and the loops' variables."""

    where: Expr | Cond
    own: tuple[tuple[AxisClass, Expr], ...]

    def is_one(self, outer: AxisClass, inner: AxisClass, joined: Var) -> bool:
        """Whether two loops matter only as the loop over both, whose variable is `joined`."""
        a, b = (next((v for c, v in self.own if c is axis), None) for axis in (outer, inner))
        used = variables(self.where)
        if b not in used:
            return a not in used
        if not isinstance(a, Var) or not isinstance(b, Var):
            return False
        values = {b: joined - a * inner.extent}
        if isinstance(self.where, Expr):
            return a not in variables(substitute(self.where, values))
        return a not in variables(substitute_condition(self.where, values))


def joined_axes(
    flow: Dataflow, reference: Stage, loops: Sequence[Loop], others: Sequence[Loop] = ()
) -> list[Loop]:
    """Loops over axes of the reference, the first outermost, neighbours as one loop where every
    access to global memory, and every number that is made of its own place, walks over both as
    over one. `others`: loops over the rest of the reference's domain. Loops of one element are
    left out; those of stages are as they were."""
    sized = [x for x in loops if x.axis.extent != Int(1)]
    if len(sized) < 2:
        return sized
    with flow.trial():
        reference.loops = (*sized, *others)
        transform_like(flow, reference, align=True)
        places = list(_places(flow))
    groups = [[sized[0]]]
    for x in sized[1:]:
        last = groups[-1][-1].axis
        whole = flow.graph.variable("joined", last.extent * x.axis.extent)
        assert isinstance(whole, Var)
        if all(p.is_one(last, x.axis, whole) for p in places):
            groups[-1].append(x)
        else:
            groups.append([x])
    merged = (merge_all(flow, group) for group in groups)
    return [x for x in merged if x is not None]


def _places(flow: Dataflow) -> Iterator[_Place]:
    """The addresses of all accesses, where data says so those of the data, with the conditions
    under which they exist; and the places that values are counted from."""
    stages = computed(flow.stages)
    for a in global_accesses(flow, None, Var("no lane"), stages, by_data=True):
        own = tuple(zip((x.axis for x in a.stage.loops), a.variables, strict=True))
        for where in (a.address, *a.conditions, *(place for _, place in a.data)):
            yield _Place(where, own)
    for s in stages:
        if isinstance(s.op, Iota):
            own = tuple((x.axis, _variable(flow, i, x)) for i, x in enumerate(s.loops))
            path = domain_path(flow.graph, own, s.frame.domain)
            if not isinstance(path, Refusal):
                yield _Place(path.values[s.op.axis], own)


def _variable(flow: Dataflow, i: int, loop: Loop) -> Expr:
    one = loop.axis.extent == Int(1)
    return ZERO if one else flow.graph.variable(f"i{i}", loop.axis.extent)
