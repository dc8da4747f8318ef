"""Clean-up: trivial loops, decided conditions, copies between registers, what nobody reads."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from itertools import cycle
from operator import is_

from fusewright.core.conditions import (
    FALSE,
    TRUE,
    And,
    Cond,
    Or,
    Truth,
    all_of,
    any_of,
    negate,
    prove,
)
from fusewright.core.expr import constant_value, variables
from fusewright.kir.ir import Body, For, Guarded, If, Kernel, RegVar, Statement
from fusewright.kir.passes.copy_propagation import propagate_copies
from fusewright.kir.passes.dce import remove_dead
from fusewright.kir.substitute import Substitution
from fusewright.kir.traverse import OfClasses, with_bodies


class _Conditional(dict[type[Statement], bool]):
    """Whether the predicate is all that conditions decide of statements of a class."""

    def __missing__(self, cls: type[Statement]) -> bool:
        self[cls] = issubclass(cls, Guarded) and cls.where is Guarded.where
        return self[cls]


_ASKED, _CONDITIONAL = OfClasses(Guarded), _Conditional()


def simplify(kernel: Kernel) -> Kernel:
    """Make the kernel shorter without changing what it computes.

    rewrite:  for (i < 1) { a[i] = load x[i] if (true) }   ->   a[0] = load x[0]
              b = copy(a);  store y[i] = b                 ->   store y[i] = a
    checks:   nothing
    order:    whenever something was substituted; twice in the pipeline
    """
    steps = settle_conditions, propagate_copies, remove_dead
    turns, left = cycle(steps), len(steps)
    while left:  # until each has left alone what the others did
        new = next(turns)(kernel)
        left = left - 1 if new is kernel else len(steps)
        kernel = new
    return kernel


def settle_conditions(kernel: Kernel) -> Kernel:
    """Decide what bounds and enclosing conditions decide; drop empty and trivial structure."""
    return with_bodies(kernel, lambda body: settle_body(body, frozenset()))


def settle_body(body: Body, known: frozenset[Cond]) -> Body:
    """A body in which conditions hold throughout, without what they and bounds decide."""
    out: list[Statement] = []
    for s in body:
        is_settled = not _ASKED[type(s)]
        if _CONDITIONAL[type(s)]:
            is_settled = s.predicate is TRUE  # type: ignore[attr-defined]
        if is_settled:
            out.append(s)
            continue
        new = _statement(s, known)
        out += (new,) if isinstance(new, Statement) else new
    return body if len(out) == len(body) and all(map(is_, out, body)) else tuple(out)


def _statement(s: Statement, known: frozenset[Cond]) -> Statement | Iterable[Statement]:
    if isinstance(s, Guarded):
        predicate = settle(s.predicate, known)
        return s.where_false() if predicate == FALSE else s.where(predicate)
    match s:
        case For():
            return _for(s, known)
        case If():
            return _if(s, known)
        case _:
            return with_bodies(s, lambda body: settle_body(body, known))


def _for(s: For, known: frozenset[Cond]) -> Iterable[Statement]:
    trips = constant_value(s.extent)
    if trips == 1:
        return settle_body(Substitution({s.var: 0}).body(s.body), known)
    body = settle_body(s.body, known)
    if not body or (trips is not None and trips <= 0):
        return ()
    return (s if body is s.body else dataclasses.replace(s, body=body),)


def _if(s: If, known: frozenset[Cond]) -> Iterable[Statement]:
    condition = settle(s.condition, known)
    if isinstance(condition, Truth):
        return settle_body(s.then if condition.value else s.otherwise, known)
    then = settle_body(s.then, known | _facts(condition))
    otherwise = settle_body(s.otherwise, known | _facts(negate(condition)))
    if not then and not otherwise:
        return ()
    if not then:
        return (If(negate(condition), otherwise),)
    if then is s.then and otherwise is s.otherwise and condition == s.condition:
        return (s,)
    return (If(condition, then, otherwise),)


def _facts(c: Cond) -> frozenset[Cond]:
    """What a branch may rely on all through: conditions on registers may change inside."""
    parts = c.parts if isinstance(c, And) else (c,)
    lasting = [p for p in parts if not any(isinstance(v, RegVar) for v in variables(p))]
    return frozenset(lasting)


def settle(c: Cond, known: frozenset[Cond]) -> Cond:
    """The condition, shorter by what `known` conditions and bounds decide."""
    if c in known:
        return TRUE
    match c:
        case Truth():
            return c
        case And():
            return all_of(settle(p, known) for p in c.parts)
        case Or():
            return any_of(settle(p, known) for p in c.parts)
        case _:
            value = FALSE if negate(c) in known else prove(c)
            return c if value is None else (TRUE if value is True else FALSE)
