"""Passes over a row: each reduction, and the outputs, with values of its own to compute."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fusewright.memory import Memory
from fusewright.schedule.edits import edit
from fusewright.schedule.graph import Dataflow, Stage
from fusewright.schedule.inline import consumers_of


@edit("separate_phases")
def separate_phases(flow: Dataflow, reference: Stage, held: Sequence[Stage]) -> None:
    """Gives the reductions of each depth, and the outputs together, their own clones of the values
    that have reduced axes, so that each pass recomputes them in a loop of its own, from the inputs
    or from what is held in registers. Where nothing is held, outputs stand in the first pass that
    has all they need: inputs are read once less."""

    def is_cloned(s: Stage) -> bool:
        return s not in held and is_wide(flow, reference, s)

    for phase in _passes(flow, early=not held):
        cloned: dict[Stage, Stage] = {}
        for root in phase:
            _clone_into(flow, root, is_cloned, cloned)
    used = consumers_of(flow)
    for s in reversed(list(flow.stages)):
        if is_cloned(s) and not used[s]:
            flow.remove(s)
            used = consumers_of(flow)
    flow.sort()
    flow.retie()


def is_wide(flow: Dataflow, reference: Stage, s: Stage) -> bool:
    """Whether a value in registers has the axes that the reference reduces."""
    return (
        not s.is_input
        and not s.is_virtual
        and not s.is_reduction
        and s.memory is Memory.LOCAL
        and any(flow.graph.depends(c, reference.frame.reduced) for c in s.frame.output)
    )


def pass_numbers(flow: Dataflow) -> dict[Stage, int]:
    """In which pass over a row that is held each reduction, or output, is made."""
    passes = _passes(flow, early=False)
    return {s: k for k, stages in enumerate(passes) for s in stages}


def _passes(flow: Dataflow, *, early: bool) -> list[list[Stage]]:
    """The reductions by how many of them stand before, and the outputs: those of one depth need no
    other's result, so that one pass makes them all. `early`: outputs by depth too, not all last."""
    depths: dict[Stage, int] = {}
    passes: list[list[Stage]] = [[]]
    for s in flow.stages:
        depth = max((depths[o] for o in s.operands), default=0)
        if s.is_reduction:
            passes[depth].append(s)
            depth += 1
            passes += [[] for _ in range(depth + 1 - len(passes))]
        depths[s] = depth
    for s in flow.outputs:
        if not s.is_reduction:
            passes[depths[s] if early else -1].append(s)
    return passes


def _clone_into(
    flow: Dataflow, user: Stage, is_wide: Callable[[Stage], bool], cloned: dict[Stage, Stage]
) -> None:
    for o in dict.fromkeys(user.operands):
        if not is_wide(o):
            continue
        if o not in cloned:
            cloned[o] = flow.clone(o)
            _clone_into(flow, cloned[o], is_wide, cloned)
        flow.replace_operand([user], o, cloned[o])
