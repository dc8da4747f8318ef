"""Statements inserted at places of a kernel, and the numbers that new syncs take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from fusewright.kir.analysis.sites import Path
from fusewright.kir.ir import Body, For, If, Kernel, Role, Roles, Statement, SyncStatement
from fusewright.kir.traverse import walk_statements


def next_sync_id(kernel: Kernel) -> int:
    """One more than the largest sync id in use."""
    found = (s.id for s in walk_statements(kernel) if isinstance(s, SyncStatement))
    return 1 + max(found, default=-1)


def insert(kernel: Kernel, added: Mapping[tuple[Path, int], Sequence[Statement]]) -> Kernel:
    """The kernel with statements inserted before statement `index` of the body at `path`, by
    (path, index)."""
    body = _insert(kernel.body, (), added)
    return kernel if body is kernel.body else replace(kernel, body=body)


def _insert(body: Body, path: Path, added: Mapping[tuple[Path, int], Sequence[Statement]]) -> Body:
    out: list[Statement] = []
    for i, statement in enumerate(body):
        out.extend(added.get((path, i), ()))
        out.append(_insert_below(statement, (*path, i), added))
    out.extend(added.get((path, len(body)), ()))
    if len(out) == len(body) and all(x is y for x, y in zip(out, body, strict=True)):
        return body
    return tuple(out)


def _insert_below(
    s: Statement, here: Path, added: Mapping[tuple[Path, int], Sequence[Statement]]
) -> Statement:
    match s:
        case For():
            inner = _insert(s.body, here, added)
            return s if inner is s.body else replace(s, body=inner)
        case If():
            then = _insert(s.then, (*here, 0), added)
            otherwise = _insert(s.otherwise, (*here, 1), added)
            if then is s.then and otherwise is s.otherwise:
                return s
            return replace(s, then=then, otherwise=otherwise)
        case Roles():
            roles: list[Statement] = []
            for number, role in enumerate(s.body):
                assert isinstance(role, Role)
                inner = _insert(role.body, (*here, number), added)
                roles.append(role if inner is role.body else replace(role, body=inner))
            if all(x is y for x, y in zip(roles, s.body, strict=True)):
                return s
            return replace(s, body=tuple(roles))
        case _:
            return s
