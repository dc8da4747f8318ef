"""Divide branches that threads take differently, so that a sync can stand between their parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from fusewright.core.conditions import Cond, all_of, negate
from fusewright.core.expr import variables
from fusewright.core.node import walk
from fusewright.errors import InternalError
from fusewright.kir.analysis.hazards import hazards
from fusewright.kir.analysis.order import Hazard, SyncScope, sync_points, unordered_by
from fusewright.kir.analysis.sites import Path
from fusewright.kir.analysis.uniformity import (
    is_cluster_uniform,
    is_role_uniform,
    is_warp_uniform,
)
from fusewright.kir.ir import (
    Alloc,
    Body,
    Compute,
    For,
    If,
    Kernel,
    Load,
    RegVar,
    Role,
    Roles,
    Shuffle,
    Statement,
)


@dataclass(frozen=True, slots=True, eq=False)
class Divided:
    """A kernel whose unordered hazards (`pending`) can all be ordered where control is uniform;
    `conditions` are those of the branches that were divided for it."""

    kernel: Kernel
    conditions: tuple[Cond, ...]
    pending: tuple[Hazard, ...]


def split_branches(kernel: Kernel) -> Divided:
    """Divide every divergent branch around a hazard that no sync orders yet.

    rewrite:  if (c) { s[t] = a; b = s[t+1] }   ->   if (c) { s[t] = a }  if (c) { b = s[t+1] }
    checks:   the branch does not change a register of its own condition, else InternalError
    order:    first step of place_syncs, which puts its syncs between the parts
    """
    divided: list[Cond] = []
    while True:
        points = [p for _, p in sync_points(kernel)]
        found = unordered_by(points, hazards(kernel))
        pending = tuple(h for h in found if not h.is_simultaneous)
        targets = {p: None for p in (_divergent(kernel, h) for h in pending) if p is not None}
        if not targets:
            return Divided(kernel, tuple(divided), pending)
        kernel = replace(kernel, body=_divide_in(kernel.body, (), tuple(targets), divided))


def _divergent(kernel: Kernel, h: Hazard) -> Path | None:
    """The outermost `If` in which a sync for the hazard would have to stand and may not."""
    body: Body = kernel.body
    role: Role | None = None
    at = 0
    while True:
        statement = body[h.before[at]]
        match statement:
            case For():
                if h.before[at] != h.after[at]:
                    return None
                if h.carried is not None and len(h.carried) == at + 1:
                    return None
                body, at = statement.body, at + 1
            case If():
                if h.before[at] != h.after[at]:
                    return None
                branches = h.before[at + 1], h.after[at + 1]
                if h.scope is SyncScope.WARP:
                    is_uniform = is_warp_uniform(statement.condition, kernel)
                elif h.scope is SyncScope.CLUSTER:
                    is_uniform = is_cluster_uniform(statement.condition, kernel)
                else:
                    is_uniform = is_role_uniform(statement.condition, kernel, role)
                if not is_uniform:
                    return h.before[: at + 1]
                if branches[0] != branches[1]:
                    return None
                body, at = (statement.otherwise if branches[0] else statement.then), at + 2
            case Roles():
                if h.before[: at + 2] != h.after[: at + 2]:
                    return None
                found = statement.body[h.before[at + 1]]
                assert isinstance(found, Role)
                role, body, at = found, found.body, at + 2
            case _:
                return None


def _divide_in(body: Body, path: Path, targets: Sequence[Path], divided: list[Cond]) -> Body:
    out: list[Statement] = []
    for i, statement in enumerate(body):
        here = (*path, i)
        inside = [t for t in targets if t[: len(here)] == here]
        if not inside:
            out.append(statement)
            continue
        match statement:
            case If() if here in inside:
                out.extend(_divide(statement, divided))
            case If():
                then = _divide_in(statement.then, (*here, 0), inside, divided)
                otherwise = _divide_in(statement.otherwise, (*here, 1), inside, divided)
                out.append(replace(statement, then=then, otherwise=otherwise))
            case For():
                inner = _divide_in(statement.body, here, inside, divided)
                out.append(replace(statement, body=inner))
            case Roles():
                roles: list[Statement] = []
                for number, role in enumerate(statement.body):
                    assert isinstance(role, Role)
                    part = _divide_in(role.body, (*here, number), inside, divided)
                    roles.append(replace(role, body=part))
                out.append(replace(statement, body=tuple(roles)))
            case _:
                raise InternalError(f"{type(statement).__name__} holds no branch to divide")
    return tuple(out)


def _divide(node: If, divided: list[Cond]) -> list[Statement]:
    """One `If` for each statement below; a lone loop or branch below changes place with it."""
    _check_condition_is_stable(node)
    out: list[Statement] = []
    for c, body in ((node.condition, node.then), (negate(node.condition), node.otherwise)):
        if body:
            divided.append(c)
        for statement in body:
            match statement:
                case Alloc():
                    out.append(statement)
                case For() if len(body) == 1:
                    out.append(replace(statement, body=(If(c, statement.body),)))
                case If() if len(body) == 1:
                    out.extend(_merged(c, statement, divided))
                case _:
                    out.append(If(c, (statement,)))
    return out


def _merged(c: Cond, inner: If, divided: list[Cond]) -> list[Statement]:
    _check_condition_is_stable(inner)
    out: list[Statement] = []
    for d, body in ((inner.condition, inner.then), (negate(inner.condition), inner.otherwise)):
        if body:
            both = all_of((c, d))
            divided.append(both)
            out.append(If(both, body))
    return out


def _check_condition_is_stable(node: If) -> None:
    read = {v.reg.buffer for v in variables(node.condition) if isinstance(v, RegVar)}
    for below in walk(node):
        if isinstance(below, Load | Compute | Shuffle) and below.dst.buffer in read:
            raise InternalError(
                f"the branch on {node.condition} writes {below.dst.buffer}, which its condition "
                "reads, so it cannot be divided for a sync inside; copy the register first"
            )


def join_branches(kernel: Kernel, conditions: Sequence[Cond]) -> Kernel:
    """Join neighbouring branches on one of the conditions again: no sync came between them."""
    body = _join(kernel.body, {id(c) for c in conditions}) if conditions else kernel.body
    return kernel if body is kernel.body else replace(kernel, body=body)


def _join(body: Body, conditions: set[int]) -> Body:
    out: list[Statement] = []
    for statement in body:
        match statement:
            case For() | Role() | Roles():
                out.append(replace(statement, body=_join(statement.body, conditions)))
            case If():
                then = _join(statement.then, conditions)
                last = out[-1] if out else None
                mine = id(statement.condition) in conditions and not statement.otherwise
                if mine and isinstance(last, If) and last.condition is statement.condition:
                    out[-1] = replace(last, then=(*last.then, *then))
                else:
                    rest = _join(statement.otherwise, conditions)
                    out.append(replace(statement, then=then, otherwise=rest))
            case _:
                out.append(statement)
    return tuple(out)
