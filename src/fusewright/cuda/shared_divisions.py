"""Quotients and remainders that several statements need, so that each is computed once.

    if (i % 12 < 11) a = x[i / 12];          const int row = i / 12, column = i % 12;
    if (i % 12 < 10) b = x[i / 12 + 1];  ->  if (column < 11) a = x[row];
                                             if (column < 10) b = x[row + 1];

A compiler finds what two statements share only where one of them runs whenever the other does.
Behind conditions it computes it anew: a pad of rows of 89 divided by 12 nine times. Divisions by
powers of two are shifts, and cost less than a register that waits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

from fusewright.core.conditions import Cond
from fusewright.core.expr import Division, Expr, Mod, constant_value, variables
from fusewright.core.symbolic import Symbolic, walk
from fusewright.kir.ir import Body, For, Kernel, RegVar, Roles, Statement
from fusewright.kir.traverse import KEPT, bodies_of, own_values

Shared = Mapping[Statement, tuple[Division, ...]]
"""By statement what is computed in front of it; what others contain comes first."""


def shared_divisions(kernel: Kernel) -> Shared:
    """What to compute in front of which statements: in the innermost body that has all users of a
    division, in front of the first of them, if there are several.

    A user is a statement, with all that stands in it; roles share nothing. What follows a loop is
    computed inside of it, and what registers decide is left where it is: they change.
    """
    found: dict[Statement, tuple[Division, ...]] = {}
    _place(kernel.body, (), found)
    return found


def _place(
    body: Body, outside: Sequence[Division], found: dict[Statement, tuple[Division, ...]]
) -> None:
    """Chooses what is computed in a body, where `outside` is known already, and in those in it."""
    users: dict[Division, list[Statement]] = {}
    for s in body:
        for d in _needed(s):
            users.setdefault(d, []).append(s)
    here = [d for d, own in users.items() if d not in outside and _is_shared(d, own)]
    for d in sorted(here, key=lambda d: len(str(d))):
        first = users[d][0]
        found[first] = (*found.get(first, ()), d)
    known = (*outside, *here)
    for s in body:
        for inner in bodies_of(s):
            apart = isinstance(s, Roles)
            for part in (b for role in inner for b in bodies_of(role)) if apart else (inner,):
                _place(part, known, found)


def _is_shared(d: Division, users: Sequence[Statement]) -> bool:
    """Whether several statements, or both branches of one, need a division."""
    if len(users) > 1:
        return True
    (only,) = users
    inside = sum(any(d in _needed(s) for s in b) for b in bodies_of(only))
    return inside + (d in _own(only)) > 1 and not isinstance(only, For)


@lru_cache(maxsize=KEPT)
def _needed(s: Statement) -> dict[Division, None]:
    """The divisions in a statement and below it that could be computed in front of it."""
    found = dict(_own(s))
    if isinstance(s, Roles):
        return found
    for body in bodies_of(s):
        for inner in body:
            found |= _needed(inner)
    if isinstance(s, For):
        found = {d: None for d in found if s.var not in variables(d)}
    return found


@lru_cache(maxsize=KEPT)
def _own(s: Statement) -> dict[Division, None]:
    """The divisions in the expressions and conditions of a statement itself."""
    found: dict[Division, None] = {}
    for value in own_values(s):
        if isinstance(value, Expr | Cond):
            found |= _divisions(value)
    return found


@lru_cache(maxsize=KEPT)
def _divisions(value: Symbolic) -> dict[Division, None]:
    """The divisions that cost several instructions and that no register decides."""
    found = (d for d in walk(value) if isinstance(d, Division) and _is_costly(d.denominator))
    return {d: None for d in found if not any(isinstance(v, RegVar) for v in variables(d))}


def _is_costly(denominator: Expr) -> bool:
    n = constant_value(denominator)
    return n is None or n & (n - 1) != 0


def wish_of(d: Division) -> str:
    """A name for a division: what it is, and the first variable in it."""
    kind = "rest" if isinstance(d, Mod) else "part"
    return "_".join((kind, *(v.name for v in variables(d)[:1])))
