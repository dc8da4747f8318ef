"""Rings of tiles that the copy engine fills by boxes, with or without warps of their own for it."""

from __future__ import annotations

import math
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count

from fusewright.core.conditions import TRUE, And, Cond, Less, less, negate
from fusewright.core.expr import ZERO, Expr, Int, Var, add, constant_value, mod, mul, variables
from fusewright.core.node import Node, rewrite
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
from fusewright.kir.insertion import next_sync_id
from fusewright.kir.ir import (
    Alloc,
    AsyncKind,
    Body,
    BoxLoad,
    Buffer,
    For,
    If,
    Kernel,
    LdMatrix,
    Load,
    Matrix,
    Role,
    Roles,
    Statement,
    StMatrix,
    Store,
)
from fusewright.kir.passes.pack_shared import check_each_fits
from fusewright.kir.passes.ring_protocol import RingProtocol, ring_protocol
from fusewright.kir.passes.specialise_warps import load_role_warps, with_roles
from fusewright.kir.substitute import Substitution, with_fresh_loops
from fusewright.kir.traits import RegisterUse
from fusewright.kir.traverse import own_values, walk_statements
from fusewright.target import WARP_SIZE, Feature, Target


def materialise_rings(kernel: Kernel, target: Target) -> Kernel:
    """Give boxes that nobody counts their mbarriers, one for all boxes of a stage, and run those of
    a ring ahead of their loop, or in warps of their own.

    rewrite:  for k { s <- box k; use s }   ->   for p < ahead { expect p; s[p] <- box p }
                                                 for k { wait k; use s[k];
                                                         expect k + ahead; s[k + ahead] <- ... }
              or, warp specialised,              role { for k { wait empty k; s[k] <- box k } }
                                                 role { for k { wait k; use s[k]; arrive } }
    checks:   tiles of one loop agree on their ring, boxes fill them under no condition, a block has
              room for each, else ScheduleError
    order:    first, while loops stand as scheduled; waits for products, fences and barriers follow
              from data
    """
    if not any(_is_uncounted(s) for s in walk_statements(kernel)):
        return kernel
    if not target.has(Feature.BULK):
        raise ScheduleError(
            f"{kernel.name} copies boxes, which {target} does not do; copy by cp_async"
        )
    new = _Materialiser(kernel).kernel()
    check_each_fits(new, target)
    return new


def _is_uncounted(s: Statement) -> bool:
    return isinstance(s, BoxLoad) and s.barrier is None


def _fills(s: Statement, buffers: Container[Buffer]) -> bool:
    """Whether a statement is, or holds, boxes of some buffers that nobody counts."""
    boxes = (x for x in (s, *walk_statements(s)) if isinstance(x, BoxLoad))
    return any(x.dst in buffers and _is_uncounted(x) for x in boxes)


# --- what is to be made -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class _Stage:
    """The tiles that live in one body, at `home`, with the statements of it that fill them, and
    the loops around, that of the body itself last if it is one's."""

    home: Path
    allocs: tuple[Alloc, ...]
    fills: tuple[Statement, ...]
    loops: tuple[For, ...]
    is_loop: bool
    reads_late: bool
    """Whether what uses the tiles is still under way behind it."""

    @property
    def alloc(self) -> Alloc:
        """One that stands for all."""
        return self.allocs[0]

    @property
    def stages(self) -> int:
        """Places of the ring. Tiles under a condition in the loops around are in a ring, too, where
        warps of their own fill it: those run ahead from one iteration to the next."""
        goes_on = self.alloc.warp_specialized and bool(self.loops)
        return self.alloc.stages if self.is_loop or goes_on else 1

    @property
    def is_used_again(self) -> bool:
        """Whether a place may hold a second tile."""
        trips = [constant_value(loop.extent) for loop in self.loops]
        return None in trips or math.prod(n or 0 for n in trips) > self.stages

    @property
    def is_one_run(self) -> bool:
        """Whether the loop over tiles runs once at most."""
        return all(constant_value(loop.extent) == 1 for loop in self.loops[:-1])

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
        return mul(number, self.loops[-1].extent) if self.is_loop else number

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


def _stages(kernel: Kernel) -> list[_Stage]:
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
    homes: dict[Path, list[Buffer]] = {}
    for b, users in filled.items():
        homes.setdefault(_home(users), []).append(b)
    return [
        _stage(path, [allocs[b] for b in found], [s for b in found for s in filled[b]], kernel)
        for path, found in sorted(homes.items())
    ]


def _home(users: Sequence[StatementSite]) -> Path:
    """The deepest body that holds all users."""
    shared: list[Scope] = list(users[0].scopes)
    for site in users[1:]:
        paths = {s.path for s in site.scopes}
        shared = [s for s in shared if s.path in paths]
    return shared[-1].path if shared else ()


def _stage(home: Path, allocs: list[Alloc], users: list[StatementSite], kernel: Kernel) -> _Stage:
    depths = {(a.stages, a.ahead, a.warp_specialized, a.registers) for a in allocs}
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
    found = _Stage(home, tuple(allocs), fills, loops, is_loop, late)
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


def _check_counted(s: _Stage, c: Cond, outer: Sequence[For]) -> None:
    """A ring counts the tiles of all iterations: those that are left out come last, or are whole
    turns of its phases."""
    inside = s.loops[len(outer) :]
    trips = [constant_value(loop.extent) for loop in inside]
    if None not in trips and math.prod(n or 0 for n in trips) % (2 * s.stages) == 0:
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


def _check_depth(s: _Stage) -> None:
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


# --- making it ----------------------------------------------------------------------------------


class _Materialiser:
    """Rewrites the bodies in which tiles live; their memory and mbarriers come before all else."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._ids = count(next_sync_id(kernel))
        self._stages = {s.home: s for s in _stages(kernel)}
        self._special = any(s.alloc.warp_specialized for s in self._stages.values())
        self._rings: dict[Path, RingProtocol] = {}
        self._buffers: dict[Buffer, Buffer] = {}
        self._gone = {a for s in self._stages.values() for a in s.allocs}
        self._load_warps = load_role_warps(kernel, self._registers) if self._special else range(0)

    @property
    def _registers(self) -> tuple[int, ...]:
        found = {s.alloc.registers for s in self._stages.values() if s.alloc.warp_specialized}
        if len(found) > 1:
            raise ScheduleError("rings of one kernel ask for different registers of its roles")
        return next(iter(found), ())

    def kernel(self) -> Kernel:
        """The kernel with its rings."""
        made: list[Statement] = []
        for home, stage in self._stages.items():
            made += self._make(home, stage)
        math = self._body(self._kernel.body, (), loads=False)
        rename = Substitution(buffers=self._buffers)
        if not self._special:
            return replace(self._kernel, body=(*made, *rename.body(math)))
        load = with_fresh_loops(self._body(self._kernel.body, (), loads=True), {})
        return with_roles(
            self._kernel, tuple(made), rename.body(load), rename.body(math), self._load_warps,
            self._registers,
        )  # fmt: skip

    def _make(self, home: Path, s: _Stage) -> list[Statement]:
        special = s.alloc.warp_specialized
        consumers = self._kernel.nthreads // WARP_SIZE if special and s.is_used_again else 0
        self._rings[home] = ring = ring_protocol(
            s.alloc.buffer.name if len(s.allocs) == 1 else "ring",
            stages=s.stages,
            nbytes=s.nbytes,
            issuer=self._load_warps.start * WARP_SIZE if special else _issuer(s),
            consumers=consumers,
            blocks=s.blocks,
        )
        out: list[Statement] = []
        for a in s.allocs:
            b = a.buffer
            size = Int(_size(b) * s.stages)
            whole = Buffer(b.name, b.dtype, size, b.memory, b.alignment, b.tile)
            self._buffers[b] = whole
            out.append(replace(a, buffer=whole, copied=None, stages=1, ahead=0,
                               warp_specialized=False, registers=()))  # fmt: skip
        return [*out, *ring.make(self._ids)]

    def _body(self, body: Body, path: Path, *, loads: bool) -> Body:
        """What the threads that compute do in a body, or the part that has tiles copied."""
        stage = self._stages.get(path)
        out: list[Statement] = []
        for i, s in enumerate(body):
            here = (*path, i)
            if s in self._gone or (stage is not None and s in stage.fills):
                out += [s] if s not in self._gone and not loads else []
                continue
            match s:
                case For():
                    inner = self._body(s.body, here, loads=loads)
                    if not loads or inner:
                        ahead = [] if loads else self._ahead(here)
                        behind = [] if loads else self._behind(here)
                        loop = replace(s, body=inner, overlap=self._overlap(here, s))
                        out += [*ahead, loop, *behind]
                case If():
                    then = self._body(s.then, (*here, 0), loads=loads)
                    rest = self._body(s.otherwise, (*here, 1), loads=loads)
                    if not loads or then or rest:
                        out.append(replace(s, then=then, otherwise=rest))
                case _ if not loads:
                    out.append(s)
                case _:
                    pass
        if stage is None or (loads and not self._is_special(stage)):
            return tuple(out)
        if loads:
            return tuple(self._filled(stage, self._k(stage)))
        return tuple(self._used(stage, out))

    def _overlap(self, home: Path, loop: For) -> int:
        """How many iterations are written out: whole laps of a ring whose tiles begin a lap with
        the loop, so that slots and phases are literals in all of them."""
        s = self._stages.get(home)
        if s is None or loop.overlap <= 1:
            return loop.overlap
        if not s.is_one_run and constant_value(mod(s.first, s.stages)) is None:
            return loop.overlap
        return s.stages * max(1, loop.overlap // s.stages)

    def _is_special(self, s: _Stage) -> bool:
        return s.alloc.warp_specialized

    def _k(self, s: _Stage) -> Expr:
        return s.loops[-1].var if s.is_loop else ZERO

    def _filled(self, s: _Stage, k: Expr) -> list[Statement]:
        """Tile `k`, announced and copied."""
        ring = self._rings[s.home]
        number = s.number(self._k(s))
        fills = [_counted(x, ring, number) for x in self._placed(s, s.fills)]
        out = [*ring.acquire(number, self._ids), *fills]
        return out if k is self._k(s) else list(with_fresh_loops(out, {s.loops[-1].var: k}))

    def _placed(self, s: _Stage, body: Sequence[Statement]) -> list[Statement]:
        """The statements at the place of their tile in the ring."""
        ring = self._rings[s.home]
        slot = ring.slot(s.number(self._k(s)))
        offsets = {a.buffer: mul(slot, _size(a.buffer)) for a in s.allocs}
        return [_moved(x, offsets) for x in body] if s.stages > 1 else list(body)

    def _used(self, s: _Stage, out: Sequence[Statement]) -> Iterator[Statement]:
        """The body that uses a tile: it waits for it, and has another copied to where one was that
        is used no more, or hands it back."""
        ring, number = self._rings[s.home], s.number(self._k(s))
        ready = ring.ready(number, self._ids)
        uses = self._placed(s, [x for x in out if x not in s.fills])
        if self._is_special(s):
            yield ready
            yield from uses
            if not ring.consumers:
                pass
            elif not self._lags(s):
                yield from ring.release(number, self._ids)
            else:
                k = self._k(s)
                yield If(less(ZERO, k), tuple(ring.release(add(number, -1), self._ids)))
        elif s.stages > 1:
            loop, ahead = s.loops[-1], s.alloc.ahead
            k = add(loop.var, ahead)
            late = If(less(k, loop.extent), tuple(self._filled(s, k)))
            yield ready
            yield from (*uses, late) if s.reads_late else (late, *uses)
        else:
            first = next((i for i, x in enumerate(out) if x in s.fills), 0)
            early = [x for x in out[:first] if x not in s.fills]
            later = [x for x in out[first:] if x not in s.fills]
            yield from (*early, *self._filled(s, self._k(s)))
            buffers = {a.buffer for a in s.allocs}
            user = next((i for i, x in enumerate(later) if _mentions(x, buffers)), len(later))
            yield from (*later[:user], ready, *later[user:])

    def _lags(self, s: _Stage) -> bool:
        """Whether a tile is handed back one iteration later, when those that were being read have
        been, while the next ones are."""
        return s.reads_late and s.stages > 1

    def _ahead(self, home: Path) -> list[Statement]:
        """The copies before the loop at a path."""
        s = self._stages.get(home)
        if s is None or s.stages == 1 or self._is_special(s):
            return []
        loop, ahead = s.loops[-1], s.alloc.ahead
        p = Var(f"p_{loop.var}", 0, ahead - 1)
        return [For(p, Int(ahead), (If(less(p, loop.extent), tuple(self._filled(s, p))),))]

    def _behind(self, home: Path) -> list[Statement]:
        """What is handed back behind the loop at a path."""
        s = self._stages.get(home)
        if s is None or not self._is_special(s) or not self._lags(s):
            return []
        if s.is_one_run or not self._rings[home].consumers:
            return []  # nobody waits for the last one
        extent = s.loops[-1].extent
        last = self._rings[home].release(s.number(add(extent, -1)), self._ids)
        return last if constant_value(extent) else [If(less(ZERO, extent), tuple(last))]


def _issuer(s: _Stage) -> int:
    return next(x.issuer for f in s.fills for x in (f, *walk_statements(f)) if _is_uncounted(x))  # type: ignore[attr-defined]


def _size(b: Buffer) -> int:
    """Elements from one place of a ring to the next: whole tiles at their alignment."""
    size = constant_value(b.size)
    assert size is not None, "sizes in shared memory are constant"
    unit = max(1, b.alignment // b.dtype.nbytes)
    if b.tile is not None and size % unit:
        raise ScheduleError(
            f"a tile of {b} has {size * b.dtype.nbytes} bytes, not a multiple of its alignment of "
            f"{b.alignment}; a ring of it needs more rows"
        )
    return -(-size // unit) * unit


def _counted(s: Statement, ring: RingProtocol, number: Expr) -> Statement:
    def edit(node: Node) -> Node:
        if not isinstance(node, BoxLoad) or node.barrier is not None:
            return node
        slot = ring.slot(number)
        return replace(node, barrier=ring.full, slot=slot, issuer=ring.issuer)

    return rewrite(For(Var("once", 0, 0), Int(1), (s,)), edit).body[0]


_PLACES: dict[type[Node], tuple[str, str]] = {
    Load: ("src", "index"),
    Store: ("dst", "index"),
    LdMatrix: ("src", "index"),
    StMatrix: ("dst", "index"),
    BoxLoad: ("dst", "index"),
    Matrix: ("buffer", "index"),
}


def _moved(s: Statement, offsets: dict[Buffer, Expr]) -> Statement:
    """The statement with its accesses to some buffers further by an offset each."""

    def edit(node: Node) -> Node:
        names = _PLACES.get(type(node))
        if names is None or getattr(node, names[0]) not in offsets:
            return node
        index = add(getattr(node, names[1]), offsets[getattr(node, names[0])])
        return replace(node, **{names[1]: index})  # type: ignore[type-var]

    return rewrite(For(Var("once", 0, 0), Int(1), (s,)), edit).body[0]


def _mentions(s: Statement, buffers: set[Buffer]) -> bool:
    return any(v in buffers for x in (s, *walk_statements(s)) for v in own_values(x)
               if isinstance(v, Buffer))  # fmt: skip
