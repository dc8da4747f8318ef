"""Where statements stand: paths, enclosing scopes, textual order.

A path names a statement by steps from the kernel's body: an index into a body; below an `If` the
branch (0 then, 1 otherwise) precedes the index, below `Roles` the number of the role. Paths compare
in textual order.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

from fusewright.core.expr import constant_value, lower_bound
from fusewright.errors import InternalError
from fusewright.kir.ir import Body, For, If, Kernel, Role, Roles, Statement

Path: TypeAlias = tuple[int, ...]
KEPT = 4
"""Kernels whose analyses are kept: one pass looks at what the last one has looked at."""


@dataclass(frozen=True, slots=True, eq=False)
class LoopScope:
    """One enclosing loop: `trips` is its extent when constant, `min_trips` what is proved, and
    `most` the greatest number of them for any values of the symbols, where there is one."""

    path: Path
    node: For
    trips: int | None
    min_trips: int
    most: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class BranchScope:
    """One enclosing branch of an `If`; `path` ends with the branch number."""

    path: Path
    node: If
    taken: bool


@dataclass(frozen=True, slots=True, eq=False)
class RoleScope:
    """The enclosing role; `path` ends with its number among the roles that run side by side."""

    path: Path
    node: Role


Scope: TypeAlias = LoopScope | BranchScope | RoleScope


@dataclass(frozen=True, slots=True, eq=False)
class StatementSite:
    """One leaf statement with its path and its scopes, outermost first; of those the `loops`, the
    `branches`, and the `role`, None outside of roles."""

    path: Path
    statement: Statement
    scopes: tuple[Scope, ...]
    loops: tuple[LoopScope, ...]
    branches: tuple[BranchScope, ...]
    role: RoleScope | None


@lru_cache(maxsize=KEPT)
def sites(kernel: Kernel) -> tuple[StatementSite, ...]:
    """Every leaf statement in textual order."""
    out: list[StatementSite] = []
    _note_sites(kernel.body, (), (), out)
    return tuple(out)


def _note_sites(
    body: Body, path: Path, scopes: tuple[Scope, ...], out: list[StatementSite]
) -> None:
    loops = tuple(s for s in scopes if isinstance(s, LoopScope))
    branches = tuple(s for s in scopes if isinstance(s, BranchScope))
    role = next((s for s in scopes if isinstance(s, RoleScope)), None)
    for i, statement in enumerate(body):
        here = (*path, i)
        match statement:
            case For():
                trips = constant_value(statement.extent)
                least = lower_bound(statement.extent) or 0
                least = least if trips is None else trips
                scope = LoopScope(here, statement, trips, least, statement.extent.interval[1])
                _note_sites(statement.body, here, (*scopes, scope), out)
            case If():
                for branch, inner in enumerate((statement.then, statement.otherwise)):
                    at = (*here, branch)
                    taken = BranchScope(at, statement, branch == 0)
                    _note_sites(inner, at, (*scopes, taken), out)
            case Roles():
                for number, part in enumerate(statement.body):
                    if not isinstance(part, Role):
                        raise InternalError(f"{type(part).__name__} stands directly in roles")
                    at = (*here, number)
                    _note_sites(part.body, at, (*scopes, RoleScope(at, part)), out)
            case _:
                out.append(StatementSite(here, statement, scopes, loops, branches, role))


@lru_cache(maxsize=KEPT)
def acting_sites(kernel: Kernel) -> tuple[tuple[int, StatementSite], ...]:
    """The sites of statements that are not private, by their positions among all."""
    return tuple([x for x in enumerate(sites(kernel)) if not x[1].statement.is_private])


def common_loops(a: StatementSite, b: StatementSite) -> tuple[LoopScope, ...]:
    """The loops around both, outermost first."""
    shared: list[LoopScope] = []
    for x, y in zip(a.loops, b.loops, strict=False):
        if x.path != y.path:
            break
        shared.append(x)
    return tuple(shared)


def are_concurrent(a: StatementSite, b: StatementSite) -> bool:
    """Whether the two stand in different roles that run side by side."""
    x, y = a.role, b.role
    return x is not None and y is not None and x.path != y.path and x.path[:-1] == y.path[:-1]


def contains(scope: Path, path: Path) -> bool:
    """Whether the statement or branch at `scope` is, or stands around, `path`."""
    return path[: len(scope)] == scope
