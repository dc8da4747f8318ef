"""Tiles of shared memory that boxes fill, and where: what rings are made of."""

from __future__ import annotations

import math
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, replace

from fusewright.core.conditions import TRUE, And, Cond, Less, negate
from fusewright.core.expr import ZERO, Expr, Var, add, constant_value, mul, variables
from fusewright.core.substitution import substitute
from fusewright.errors import ScheduleError
from fusewright.kir.analysis.sites import (
    BranchScope,
    LoopScope,
    Path,
    Scope,
    StatementSite,
    contains,
    sites,
)
from fusewright.kir.analysis.uniformity import is_block_uniform, is_cluster_agreed
from fusewright.kir.ir import (
    Alloc,
    AsyncKind,
    Body,
    BoxLoad,
    Buffer,
    For,
    If,
    Kernel,
    Role,
    Roles,
    Statement,
)
from fusewright.kir.traits import RegisterUse
from fusewright.kir.traverse import walk_statements


def is_uncounted(s: Statement) -> bool:
    return isinstance(s, BoxLoad) and s.barrier is None


def _fills(s: Statement, buffers: Container[Buffer]) -> bool:
    """Whether a statement is, or holds, boxes of some buffers that nobody counts."""
    boxes = (x for x in (s, *walk_statements(s)) if isinstance(x, BoxLoad))
    return any(x.dst in buffers and is_uncounted(x) for x in boxes)


@dataclass(frozen=True, slots=True, eq=False)
class RingStage:
    """The tiles that live in one body, at `home`, with the statements of it that fill them, and
    the loops around, that of the body itself last if it is one's. Where the same tiles are filled
    in several bodies one behind the other, they are those of one ring, which goes on: `before` of
    them were copied by then, and `more` follow."""

    home: Path
    allocs: tuple[Alloc, ...]
    fills: tuple[Statement, ...]
    loops: tuple[For, ...]
    is_loop: bool
    reads_late: bool
    """Whether what uses the tiles is still under way behind it."""
    is_guarded: bool
    """Whether a condition may leave tiles out."""
    before: int = 0
    more: int = 0

    @property
    def alloc(self) -> Alloc:
        """One that stands for all."""
        return self.allocs[0]

    @property
    def stages(self) -> int:
        """Places of the ring. Tiles under a condition in the loops around are in a ring, too, where
        warps of their own fill it: those run ahead from one iteration to the next."""
        goes_on = self.alloc.warp_specialized and bool(self.loops or self.before or self.more)
        return self.alloc.stages if self.is_loop or goes_on else 1

    @property
    def is_used_again(self) -> bool:
        """Whether a place may hold a second tile."""
        return self._fills_beyond(self.before + self.more)

    @property
    def is_refilled(self) -> bool:
        """Whether a tile of these may lie where another one lay."""
        return self._fills_beyond(self.before)

    @property
    def is_overwritten(self) -> bool:
        """Whether another tile may come to where one of these lies."""
        return self._fills_beyond(self.more)

    def _fills_beyond(self, others: int) -> bool:
        own = self.copied
        return own is None or own + others > self.stages

    @property
    def copied(self) -> int | None:
        """The tiles of all iterations, None where their number is not known."""
        trips = [constant_value(loop.extent) for loop in self.loops]
        return None if None in trips else math.prod(n or 0 for n in trips)

    @property
    def is_one_run(self) -> bool:
        """Whether the loop over tiles runs once at most, and no other follows."""
        return not self.more and all(constant_value(loop.extent) == 1 for loop in self.loops[:-1])

    @property
    def names(self) -> str:
        return ", ".join(str(a.buffer) for a in self.allocs)

    @property
    def nbytes(self) -> int:
        """The bytes of all boxes of one filling, those from other blocks included."""
        return sum(_box_nbytes(s) for s in self.fills)

    @property
    def blocks(self) -> int:
        """The blocks of a cluster that copy for each other."""
        inside = (x for s in self.fills for x in (s, *walk_statements(s)))
        return max(x.blocks for x in inside if isinstance(x, BoxLoad))

    @property
    def first(self) -> Expr:
        """The number of the tile in the first iteration of the innermost loop, among all."""
        outer, number = self.loops[: -1 if self.is_loop else None], ZERO
        for loop in outer:
            number = add(mul(number, loop.extent), loop.var)
        own = mul(number, self.loops[-1].extent) if self.is_loop else number
        return add(own, self.before % (2 * self.stages))  # slots and phases repeat

    def number(self, k: Expr) -> Expr:
        """The number of the tile of iteration `k`."""
        return add(self.first, k) if self.is_loop else self.first


def _box_nbytes(s: Statement) -> int:
    match s:
        case BoxLoad():
            return s.map.box_nbytes * s.blocks
        case For():
            trips = constant_value(s.extent)
            if trips is not None:
                return trips * sum(_box_nbytes(x) for x in s.body)
        case _:
            pass
    raise ScheduleError(
        f"boxes fill a tile within {type(s).__name__}; their number is not known then: copy whole "
        "boxes, what they have beyond an edge is zero"
    )


def ring_stages(kernel: Kernel) -> list[RingStage]:
    places = sites(kernel)
    allocs = {s.buffer: s for s in walk_statements(kernel) if isinstance(s, Alloc)}
    filled: dict[Buffer, list[StatementSite]] = {
        s.statement.dst: [] for s in places if isinstance(s.statement, BoxLoad)
        and s.statement.barrier is None
    }  # fmt: skip
    for site in places:
        for b in dict.fromkeys(u.buffer for u in site.statement.memory_uses()):
            if b in filled:
                filled[b].append(site)
    homes: dict[Path, dict[Buffer, list[StatementSite]]] = {}
    for b, users in filled.items():
        for path, own in _homes(users):
            homes.setdefault(path, {})[b] = own
    found = [
        _stage_at(path, [allocs[b] for b in own], [s for x in own.values() for s in x], kernel)
        for path, own in sorted(homes.items())
    ]
    return _going_on(found)


def _homes(users: Sequence[StatementSite]) -> Iterator[tuple[Path, list[StatementSite]]]:
    """The deepest body that holds all users of a tile; where each statement of it that uses the
    tile fills it anew, those bodies instead."""
    home = _home(users)
    parts: dict[int, list[StatementSite]] = {}
    for site in users:
        parts.setdefault(site.path[len(home)], []).append(site)
    is_filled = (any(is_uncounted(s.statement) for s in own) for own in parts.values())
    if len(parts) == 1 or not all(is_filled):
        yield home, list(users)
        return
    for own in parts.values():
        yield from _homes(own)


def _going_on(found: Sequence[RingStage]) -> list[RingStage]:
    """The stages, of which those with the same tiles know how many of them others copy. Raises
    ScheduleError where a ring does not go on from one to the next."""
    rings: dict[frozenset[Buffer], list[RingStage]] = {}
    for s in found:
        rings.setdefault(frozenset(a.buffer for a in s.allocs), []).append(s)
    known = [b for tiles in rings for b in tiles]
    out: list[RingStage] = []
    for same in rings.values():
        counts = [s.copied for s in same]
        first = same[0]
        if len(same) == 1 and len(known) == len(set(known)):
            out.append(first)
            continue
        is_counted = None not in counts and not any(s.is_guarded for s in same[:-1])
        is_alike = {(s.nbytes, s.blocks) for s in same} == {(first.nbytes, first.blocks)}
        if not is_counted or not is_alike:
            raise ScheduleError(
                f"{first.names}: the tiles of one ring are filled in {len(same)} loops one behind "
                "the other; let all of them copy as many bytes, and a known number of tiles"
            )
        numbers = [n or 0 for n in counts]
        for i, s in enumerate(same):
            out.append(replace(s, before=sum(numbers[:i]), more=sum(numbers[i + 1 :])))
    return out


def _home(users: Sequence[StatementSite]) -> Path:
    """The deepest body that holds all users."""
    shared: list[Scope] = list(users[0].scopes)
    for site in users[1:]:
        paths = {s.path for s in site.scopes}
        shared = [s for s in shared if s.path in paths]
    return shared[-1].path if shared else ()


def _stage_at(
    home: Path, allocs: list[Alloc], users: list[StatementSite], kernel: Kernel
) -> RingStage:
    depths = {(a.stages, a.ahead, a.warp_specialized, a.registers, a.ping_pong) for a in allocs}
    if len(depths) > 1:
        names = ", ".join(str(a.buffer) for a in allocs)
        raise ScheduleError(
            f"{names} are tiles of one loop in rings of different kind; give them the same stages, "
            "prefetch and registers"
        )
    body, scopes = _body_at(kernel, home), tuple(
        s for s in users[0].scopes if contains(s.path, home)
    )  # fmt: skip
    for s in scopes:
        if not isinstance(s, LoopScope):
            condition = getattr(s.node, "condition", None)
            if condition is None or not is_block_uniform(condition, kernel):
                raise ScheduleError(
                    f"{allocs[0].buffer} is filled by boxes under '{condition}', on which the "
                    "threads of a block may disagree; its mbarrier would lose count"
                )
    loops = tuple(s.node for s in scopes if isinstance(s, LoopScope))
    _check_blocks_agree(allocs[0], users, scopes, kernel)
    fills = tuple(s for s in body if _fills(s, [a.buffer for a in allocs]))
    late = any(
        u.completes.kind is AsyncKind.MMA
        for site in users
        for u in site.statement.memory_uses()
        if not u.writes
    ) and not _takes_results(body, [site.statement for site in users])
    is_loop = bool(scopes) and isinstance(scopes[-1], LoopScope)
    guarded = any(isinstance(s, BranchScope) for s in scopes)
    found = RingStage(home, tuple(allocs), fills, loops, is_loop, late, guarded)
    _check_depth(found)
    for s in scopes:
        if isinstance(s, BranchScope):
            outer = tuple(x.node for x in scopes[: scopes.index(s)] if isinstance(x, LoopScope))
            _check_counted(found, s.node.condition if s.taken else negate(s.node.condition), outer)
    return found


def _check_blocks_agree(
    alloc: Alloc, users: list[StatementSite], scopes: tuple[Scope, ...], kernel: Kernel
) -> None:
    """What blocks of a cluster copy for each other all of them copy, and hand back."""
    blocks = max(u.statement.blocks for u in users if isinstance(u.statement, BoxLoad))
    for s in scopes if blocks > 1 else ():
        steered = s.node.extent if isinstance(s, LoopScope) else getattr(s.node, "condition", TRUE)
        if not is_cluster_agreed(steered, kernel):
            raise ScheduleError(
                f"{alloc.buffer}: {blocks} blocks of a cluster copy shares of it for each other, "
                f"but may disagree on '{steered}' around it; let the loops over tiles be whole "
                f"clusters, that is multiples of {blocks}"
            )


def _takes_results(body: Sequence[Statement], products: Sequence[Statement]) -> bool:
    """Whether a body itself uses what products in it sum, and so waits until they are done."""
    sums = {u.reg.buffer for p in products for u in p.register_uses() if _is_under_way(u)}
    uses = (u for s in body for x in (s, *walk_statements(s)) for u in x.register_uses())
    return any(u.reg.buffer in sums and not _is_under_way(u) for u in uses)


def _is_under_way(u: RegisterUse) -> bool:
    return u.completes.kind is AsyncKind.MMA


def _check_counted(s: RingStage, c: Cond, outer: Sequence[For]) -> None:
    """A ring counts the tiles of all iterations: those that are left out come last, or are whole
    turns of its phases."""
    inside = s.loops[len(outer) :]
    trips = [constant_value(loop.extent) for loop in inside]
    is_whole = None not in trips and math.prod(n or 0 for n in trips) % (2 * s.stages) == 0
    if is_whole and not s.alloc.ping_pong:  # nobody takes a turn that is left out
        return
    for loop in outer:
        is_repeated = constant_value(loop.extent) != 1 and loop.var in variables(c)
        if is_repeated and not _holds_first(c, loop.var):
            raise ScheduleError(
                f"{s.names}: '{c}' may leave out tiles between others along {loop.var}, and a ring "
                f"of {s.stages} counts them; let every group of tiles be whole, or their steps "
                f"along the sum be a multiple of {2 * s.stages}"
            )


def _holds_first(c: Cond, v: Var) -> bool:
    """Whether a condition that fails for one value of a variable fails for all larger ones: it
    bounds from above what grows with the variable."""
    match c:
        case And():
            return all(_holds_first(p, v) for p in c.parts)
        case Less():
            grows = add(c.left, mul(c.right, -1))
            step = add(substitute(grows, {v: add(v, 1)}), mul(grows, -1))
            least = step.interval[0]
            return least is not None and least >= 0
        case _:
            return v not in variables(c)


def _check_depth(s: RingStage) -> None:
    stages, ahead = s.alloc.stages, s.alloc.ahead
    if s.is_loop and stages > 1 and not s.alloc.warp_specialized and not 1 <= ahead < stages:
        raise ScheduleError(
            f"{s.names}: {ahead} tiles of a ring of {stages} are copied ahead; copy at least 1 "
            f"and at most {stages - 1}"
        )


def _body_at(kernel: Kernel, path: Path) -> Body:
    body: Body = kernel.body
    steps = list(path)
    while steps:
        s = body[steps.pop(0)]
        match s:
            case For():
                body = s.body
            case If():
                body = s.otherwise if steps.pop(0) else s.then
            case Roles():
                role = s.body[steps.pop(0)]
                assert isinstance(role, Role)
                body = role.body
            case _:
                raise AssertionError("a path leads through bodies")
    return body
