"""Ping-pong: warpgroups that compute take the tiles of a loop in turn, each in registers and shared
memory of its own, while warps that copy fill one ring for all of them.

    for t < T { tile t }   ->   role { for p < ceil(T / 2) { tile 2 p } }
                                role { for p < ceil(T / 2) { if 2 p + 1 < T { tile 2 p + 1 } } }
                                role { for p < ceil(T / 2) { copy 2 p; if .. { copy 2 p + 1 } } }

What one warpgroup does behind the last step of a tile then stands beside the steps of the other's.
All roles have one loop over rounds, so that the iterations that stand for it are the same in all.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from fusewright.core.conditions import Cond, all_of, less, prove
from fusewright.core.expr import Expr, Int, IntLike, Var, add, floordiv, mul
from fusewright.core.node import Node, rewrite
from fusewright.errors import ScheduleError
from fusewright.kir.ir import (
    Alloc,
    Body,
    Buffer,
    For,
    If,
    Kernel,
    Memory,
    PrefetchMap,
    Statement,
    SyncStatement,
)
from fusewright.kir.passes.ring_protocol import GROUPS
from fusewright.kir.substitute import Substitution, with_fresh_loops
from fusewright.kir.traverse import walk_statements
from fusewright.target import WARPGROUP_SIZE


def round_of(tile: IntLike) -> Expr:
    """The round in which a group computes a tile."""
    return floordiv(tile, GROUPS)


def check_turns(kernel: Kernel, loop: For, names: str) -> None:
    """Raises ScheduleError where iterations of a loop are not all that a warpgroup does."""
    x, *others = (d.extent for d in kernel.block)
    if x != Int(WARPGROUP_SIZE) or any(e != Int(1) for e in others):
        shape = " x ".join(str(d.extent) for d in kernel.block)
        raise ScheduleError(
            f"{names}: warpgroups take tiles in turn, but a tile is computed by {shape} threads; "
            f"give it {WARPGROUP_SIZE} along x, those of mma(warpgroups=1)"
        )
    apart = [s for s in kernel.body if s is not loop and not isinstance(s, PrefetchMap)]
    if loop not in kernel.body or not all(_is_shared(s) for s in apart):
        raise ScheduleError(
            f"{names}: warpgroups take the iterations of a loop over tiles in turn, but there is "
            "none around all that a block does; split the tiles over blocks and a serial loop, "
            "and inline what follows a tile into it"
        )


def _is_shared(s: Statement) -> bool:
    return isinstance(s, Alloc) and s.buffer.memory is Memory.SHARED


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """One group: its number, what it does, and its copies of what is `made` for it beforehand."""

    number: int
    body: Body
    made: Body


def copied_in_turn(body: Body, loop: For, ids: Iterator[int]) -> Body:
    """What the warps that copy do: tiles of all groups, in their order."""
    return _rounds(body, loop, range(GROUPS), ids)


def computed_in_turn(body: Body, made: Body, loop: For, ids: Iterator[int]) -> tuple[Group, ...]:
    """What each group does of a body whose `loop` runs over tiles, and what is `made` for each
    before all else. Groups are numbered in the order in which they begin."""
    out: list[Group] = []
    for g in range(GROUPS):
        mine = _rounds(body, loop, (g,), ids)
        if g:
            names = Substitution(buffers=_own_buffers((*made, *mine)))
            mine = _issued_by(names.body(mine), g, ids)
            own = _issued_by(names.body(with_fresh_loops(made, {})), 0, ids)
        else:
            own = made
        out.append(Group(g, mine, own))
    return tuple(out)


def _rounds(body: Body, loop: For, turns: Sequence[int], ids: Iterator[int]) -> Body:
    """The body with a loop over rounds for one over tiles, of which each runs some."""
    out: list[Statement] = []
    for s in body:
        if not isinstance(s, For) or s.var is not loop.var:
            out.append(s)
            continue
        count = floordiv(add(s.extent, GROUPS - 1), GROUPS)
        p = Var(s.var.name, 0, add(count, -1))
        inside: list[Statement] = []
        for turn in turns:
            tile = add(mul(p, GROUPS), turn)
            mine = with_fresh_loops(s.body, {s.var: tile})
            mine = mine if turn == turns[0] else _issued_by(mine, 0, ids)
            inside += _where(less(tile, s.extent), mine)
        out.append(replace(s, var=p, extent=count, body=tuple(inside)))
    return tuple(out)


def _where(exists: Cond, body: Body) -> Body:
    """The statements under a condition, or a narrower one if they stand under one already."""
    match body:
        case _ if prove(exists):
            return body
        case (If(condition=c, then=then, otherwise=()),):
            return (If(all_of((exists, c)), then),)
        case _:
            return (If(exists, body),)


def _own_buffers(body: Iterable[Statement]) -> dict[Buffer, Buffer]:
    """Buffers of a further group for those that come into being in statements."""
    found = [a.buffer for s in body for a in (s, *walk_statements(s)) if isinstance(a, Alloc)]
    return {
        b: Buffer(b.name, b.dtype, b.size, b.memory, b.alignment, b.tile)
        for b in dict.fromkeys(found)
    }


def _issued_by(body: Body, group: int, ids: Iterator[int]) -> Body:
    """The statements with numbers of their own, issued by the threads of a group."""

    def edit(node: Node) -> Node:
        changed: dict[str, object] = {}
        if isinstance(node, SyncStatement):
            changed["id"] = next(ids)
        issuer = getattr(node, "issuer", None)
        if isinstance(issuer, int) and group:
            changed["issuer"] = issuer + group * WARPGROUP_SIZE
        return replace(node, **changed) if changed else node  # type: ignore[type-var]

    return rewrite(For(Var("once", 0, 0), Int(1), body), edit).body
