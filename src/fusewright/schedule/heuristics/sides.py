"""The two sides of a reduction: the axes it keeps and those it reduces, as large tensors have them.

Of every tensor with all elements the distances in memory between neighbours along each axis are
known. An axis of a side lies where the largest tensor that is fast along that side has it; the
innermost axes that follow each other there are its run, which tiles are cut out of.

    x[b, m, k] fast along m, sum over k:     kept  b | m        reduced  k
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fusewright.axes.classes import AxisClass
from fusewright.core.expr import ONE, ZERO, Expr, Int, Var, variables
from fusewright.core.substitution import estimate, substitute
from fusewright.fusion.ir import Sym
from fusewright.schedule.graph import Dataflow, Stage
from fusewright.schedule.heuristics.common import global_accesses, merge_all, numel
from fusewright.schedule.nest import computed
from fusewright.schedule.parallel import Loop
from fusewright.schedule.propagate import transform_like

MOST_BEYOND = 1 / 2
"""Of the elements of a run, those by which its tiles may lie beyond it. Lanes that have none read
nothing, and a third of all lanes that are idle are no loss where memory limits; in a run that is
joined with others neighbours lie apart."""


@dataclass(frozen=True, slots=True)
class LargeAccess:
    """A read of an input, or a write of an output, with all elements of a reduction's domain, and
    how many elements of its memory neighbours along the axes of that domain are apart."""

    stage: Stage
    tensor: Stage
    apart: Mapping[AxisClass, int]

    @property
    def is_write(self) -> bool:
        """Whether a stage writes the tensor."""
        return self.stage is self.tensor

    def is_fast_along(self, axes: Sequence[AxisClass]) -> bool:
        """Whether neighbours in memory are neighbours along one of these axes."""
        return any(self.apart.get(c) == 1 for c in axes)


@dataclass(frozen=True, slots=True)
class SideRun:
    """A side: the axes outside of its run, outermost first, and the run."""

    outside: tuple[Loop, ...]
    run: AxisClass


def at_large(flow: Dataflow, reference: Stage) -> list[Stage]:
    """The stages that access a tensor with the elements of a reduction's domain, which parts that
    are not full may exceed."""
    total = numel(reference.operands[0].shape)
    return [
        s
        for s in computed(flow.stages)
        if (s in flow.outputs and not s.is_reduction and is_large(s, total))
        or any(o.is_input and is_large(o, total) for o in s.operands)
    ]


def is_large(t: Stage, total: int) -> bool:
    """Whether a tensor has more than half of so many elements."""
    return 2 * numel(t.shape) > total


def large_accesses(flow: Dataflow, reference: Stage) -> tuple[LargeAccess, ...]:
    """The accesses of tensors with all elements; none where one of them is read at places that the
    axes of the reduction do not tell."""
    total = numel(reference.operands[0].shape)
    domain = [c for c in reference.frame.domain if c.extent != ONE]
    stages = at_large(flow, reference)
    found: list[LargeAccess] = []
    with flow.trial():
        reference.loops = tuple(map(Loop, domain))
        transform_like(flow, reference, align=True)
        for a in global_accesses(flow, None, Var("no lane"), stages):
            if is_large(a.tensor, total):
                own = zip((x.axis for x in a.stage.loops), a.variables, strict=True)
                apart = {c: elements_apart(a.address, v) for c, v in own if isinstance(v, Var)}
                found.append(LargeAccess(a.stage, a.tensor, apart))
    told = all(set(a.apart) == set(domain) for a in found)
    return tuple(found) if told and {a.stage for a in found} == set(stages) else ()


def elements_apart(address: Expr, v: Var) -> int:
    """How far apart two neighbours along a loop lie, all other loops at their first trip."""
    others = {o: ZERO for o in variables(address) if not isinstance(o, Sym)}
    first, second = (substitute(address, {**others, v: n}) for n in (ZERO, Int(1)))
    return abs(estimate(second - first))


def fits_run(run: int, tile: int) -> bool:
    """Whether tiles of so many elements do not lie far beyond a run."""
    return -run % tile <= MOST_BEYOND * run


def run_of(
    flow: Dataflow, axes: Sequence[AxisClass], accesses: Sequence[LargeAccess], tile: int | None
) -> SideRun:
    """A side, its axes in the order of the largest access that is fast along them, cut in tiles of
    so many elements; all in one run for None. A run that tiles exceed by too much takes in the axes
    around it."""
    sized = [c for c in axes if c.extent != ONE]
    fast = [a for a in accesses if a.is_fast_along(sized)]
    apart = max(fast, key=lambda a: a.tensor.dtype.nbytes).apart
    sized.sort(key=lambda c: -apart[c])
    count, size = 1, estimate(sized[-1].extent)
    while count < len(sized):
        follows = apart[sized[-count - 1]] == size
        if tile is not None and not follows and fits_run(size, tile):
            break
        count += 1
        size *= estimate(sized[-count].extent)
    run = merge_all(flow, list(map(Loop, sized[-count:])))
    assert run is not None
    return SideRun(tuple(map(Loop, sized[:-count])), run.axis)
