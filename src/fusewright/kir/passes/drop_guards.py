"""Choices of a value that need no condition, since nobody looks at it where that fails."""

from __future__ import annotations

from dataclasses import replace

from fusewright.core.conditions import TRUE
from fusewright.kir.analysis.needs import demands, is_choice
from fusewright.kir.ir import Body, Compute, Kernel, Load, Statement
from fusewright.kir.traverse import map_bodies


def drop_guards(kernel: Kernel) -> Kernel:
    """Make the first of several choices unconditional where the others cover the rest.

    rewrite:  r = copy(0);  r = copy(a) if c;  r = copy(b) if !c
         ->   r = copy(a);  r = copy(b) if !c
    checks:   nothing; a register keeps its value wherever somebody looks at it
    order:    after sink_branches, which finds the pieces of a value by their conditions
    """
    return map_bodies(kernel, _unguarded)


def _unguarded(body: Body) -> Body:
    if not any(is_choice(s) for s in body):
        return body
    out: list[Statement] = []
    for s, d in zip(body, demands(body), strict=True):
        if isinstance(s, Compute | Load) and not d.needed:
            continue
        if is_choice(s) and all(r.implies(s.predicate) for r in d.seen):
            s = replace(s, predicate=TRUE)
        out.append(s)
    same = len(out) == len(body) and all(a is b for a, b in zip(out, body, strict=True))
    return body if same else tuple(out)
