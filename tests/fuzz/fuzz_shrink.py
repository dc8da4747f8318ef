"""Makes a failing program small: fewer outputs, steps and schedule lines, smaller sizes.

A change stays when the failure that the caller names is still there.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace

from fuzz_programs import Leaf, Recipe
from fuzz_schedules import Plan

from fusewright.core.expr import Var, constant_value

Fails = Callable[[Recipe], bool]


def shrink(recipe: Recipe, fails: Fails) -> Recipe:
    """The smallest program found that still fails."""
    changed = True
    while changed:
        changed = False
        for smaller in _smaller(recipe):
            if fails(smaller):
                recipe, changed = smaller, True
                break
    return recipe


def shrink_plan(plan: Plan, fails: Callable[[Plan], bool]) -> Plan:
    """Fewer lines, then a smaller program under the same lines."""
    changed = True
    while changed:
        changed = False
        for i in range(len(plan.lines)):
            fewer = Plan(plan.recipe, (*plan.lines[:i], *plan.lines[i + 1 :]))
            if fails(fewer):
                plan, changed = fewer, True
                break
    return Plan(shrink(plan.recipe, lambda r: fails(Plan(r, plan.lines))), plan.lines)


def kind_of(problem: str) -> str:
    """What must stay the same while shrinking: the kind of failure, without its numbers."""
    return re.sub(r"[\d.]+.*", "", problem)[:60]


def _smaller(r: Recipe) -> Iterator[Recipe]:
    for k in range(len(r.outputs)):
        if len(r.outputs) > 1:
            yield replace(r, outputs=(*r.outputs[:k], *r.outputs[k + 1 :])).used()
    yield from _cut_steps(r)
    yield from _smaller_sizes(r)
    yield from (_plain(r, i) for i in range(len(r.leaves)) if _plain(r, i) != r)


def _cut_steps(r: Recipe) -> Iterator[Recipe]:
    """Outputs moved to operands; steps replaced by new arguments."""
    base = len(r.leaves)
    for k, o in enumerate(r.outputs):
        if o >= base:
            for operand in r.steps[o - base].operands:
                if operand >= base:
                    yield replace(r, outputs=(*r.outputs[:k], operand, *r.outputs[k + 1 :])).used()
    for k in range(len(r.steps)):
        with_leaf = _as_leaf(r, k)
        if with_leaf is not None:
            yield with_leaf


def _as_leaf(r: Recipe, k: int) -> Recipe | None:
    """The program with step `k` turned into an argument."""
    base = len(r.leaves)
    if base + k in r.outputs and len(r.outputs) == 1:
        return None
    try:
        made = replace(r, outputs=(base + k,)).trace().outputs[0]
    except Exception:  # a step that does not trace is what may be wrong
        return None
    sizes = [constant_value(e) if not isinstance(e, Var) else e.name for e in made.shape]
    if None in sizes:
        return None
    leaf = Leaf(tuple(sizes), made.dtype.name)

    def moved(i: int) -> int:
        return base if i == base + k else i if i < base else i + 1

    steps = tuple(replace(s, operands=tuple(map(moved, s.operands))) for s in r.steps)
    outputs = tuple(moved(o) for o in r.outputs)
    return replace(r, leaves=(*r.leaves, leaf), steps=steps, outputs=outputs).used()


def _smaller_sizes(r: Recipe) -> Iterator[Recipe]:
    """Every number that is a size, wherever it stands, made smaller."""
    sizes = sorted({n for leaf in r.leaves for n in leaf.shape if isinstance(n, int) and n > 1})
    for n in reversed(sizes):
        for less in sorted({1, 2, 3, n // 2, n - 1} - {0, n}):
            if less < n:
                yield _resized(r, n, less)
    for name, n in r.sizes:
        if n > 2:
            yield replace(r, sizes=tuple((m, 2 if m == name else k) for m, k in r.sizes))


def _resized(r: Recipe, n: int, less: int) -> Recipe:
    leaves = tuple(
        replace(x, shape=tuple(less if m == n else m for m in x.shape)) for x in r.leaves
    )
    pattern = re.compile(rf"(?<![\w.{{]){n}(?![\w.}}])")
    steps = tuple(replace(s, text=pattern.sub(str(less), s.text)) for s in r.steps)
    return replace(r, leaves=leaves, steps=steps)


def _plain(r: Recipe, i: int) -> Recipe:
    """Argument `i` in C order with ordinary numbers."""
    leaf = r.leaves[i]
    numbers = "any" if leaf.numbers == "special" else leaf.numbers
    plain = replace(leaf, order=None, numbers=numbers)
    return replace(r, leaves=(*r.leaves[:i], plain, *r.leaves[i + 1 :]))
