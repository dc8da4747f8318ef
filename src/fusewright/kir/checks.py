"""What the checks of the kernel spec look at: every statement with what is in scope there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple, TypeAlias, get_args

from fusewright.core.conditions import Cond
from fusewright.core.expr import Var
from fusewright.dtypes import DType
from fusewright.kir import rules
from fusewright.kir.ir import Alloc, Body, Buffer, For, If, Kernel, Role, Statement
from fusewright.kir.traverse import bodies_of, body_fields
from fusewright.target import Target

Stage: TypeAlias = Literal["lowered", "expanded", "synced", "packed", "final"]
STAGES: tuple[Stage, ...] = get_args(Stage)


class Place(NamedTuple):
    """A statement with what is in scope there; `conditions` are those of enclosing Ifs, `role` is
    the enclosing Role, `parent` the statement around it. Of allocations that follow each other
    `buffers` are those before the first."""

    statement: Statement
    variables: frozenset[Var]
    buffers: frozenset[Buffer]
    conditions: tuple[Cond, ...]
    role: Role | None
    parent: Statement | None


@dataclass(frozen=True)
class KernelFacts:
    """What checks look at; `target` is None when the kernel is for no target in particular.
    `acting`: the places but those of statements that are private."""

    kernel: Kernel
    target: Target | None
    places: tuple[Place, ...]

    @cached_property
    def acting(self) -> tuple[Place, ...]:
        return tuple([p for p in self.places if not p.statement.is_private])


Problem: TypeAlias = "tuple[Statement | None, str]"


@dataclass(frozen=True, slots=True)
class Check:
    """A named rule that holds from a stage on; `find` yields where it is broken and how."""

    name: str
    since: Stage
    find: Callable[[KernelFacts], Iterator[Problem]]


def places_of(kernel: Kernel) -> tuple[Place, ...]:
    """All statements in textual order, outer ones first."""
    dims = (d.var for d in (*kernel.grid, *kernel.block, *kernel.cluster))
    top = _Scope(frozenset((*kernel.symbols, *dims)), frozenset(kernel.params), (), None, None)
    out: list[Place] = []
    _walk(kernel.body, top, out)
    return tuple(out)


class _Scope(NamedTuple):
    variables: frozenset[Var]
    buffers: frozenset[Buffer]
    conditions: tuple[Cond, ...]
    role: Role | None
    parent: Statement | None


def _walk(body: Body, scope: _Scope, out: list[Place]) -> None:
    allocated: list[Buffer] = []
    for s in body:
        if type(s) is Alloc:
            out.append(Place(s, *scope))
            allocated.append(s.buffer)
            continue
        if allocated:
            scope = scope._replace(buffers=scope.buffers.union(allocated))
            allocated.clear()
        out.append(Place(s, *scope))
        if not body_fields(type(s)):
            continue
        inner = scope._replace(parent=s)
        match s:
            case For():
                _walk(s.body, inner._replace(variables=scope.variables | {s.var}), out)
            case If():
                inner = inner._replace(conditions=(*scope.conditions, s.condition))
                _walk(s.then, inner, out)
                _walk(s.otherwise, inner, out)
            case Role():
                _walk(s.body, inner._replace(role=s), out)
            case _:
                for part in bodies_of(s):
                    _walk(part, inner, out)


# --- what several checks ask ------------------------------------------------------------------


def same_dtype(s: Statement, a: DType, b: DType, rule: str) -> Iterator[Problem]:
    """The problem of two dtypes that should be one."""
    yield from ((s, problem) for problem in rules.same_dtype(a, b, rule))
