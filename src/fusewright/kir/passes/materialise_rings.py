"""Rings of tiles that the copy engine fills by boxes, with or without warps of their own for it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import count

from fusewright.core.conditions import less
from fusewright.core.expr import ZERO, Expr, Int, Var, add, constant_value, mod, mul
from fusewright.core.node import Node, rewrite
from fusewright.core.substitution import substitute
from fusewright.errors import ScheduleError
from fusewright.kir.analysis.sites import (
    Path,
)
from fusewright.kir.insertion import next_sync_id
from fusewright.kir.ir import (
    Body,
    BoxLoad,
    Buffer,
    For,
    If,
    Kernel,
    LdMatrix,
    Load,
    Matrix,
    Statement,
    StMatrix,
    Store,
)
from fusewright.kir.passes.pack_shared import check_each_fits
from fusewright.kir.passes.ping_pong import (
    check_turns,
    computed_in_turn,
    copied_in_turn,
    round_of,
)
from fusewright.kir.passes.ring_protocol import GROUPS, RingProtocol, ring_protocol
from fusewright.kir.passes.ring_stages import RingStage, is_uncounted, ring_stages
from fusewright.kir.passes.specialise_warps import load_role_warps, with_groups, with_roles
from fusewright.kir.substitute import Substitution, with_fresh_loops
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
              or, in ping-pong, two of the latter, for every other tile (`kir/passes/ping_pong.py`)
    checks:   tiles of one loop agree on their ring, boxes fill them under no condition, a block has
              room for each, else ScheduleError
    order:    first, while loops stand as scheduled; waits for products, fences and barriers follow
              from data
    """
    if not any(is_uncounted(s) for s in walk_statements(kernel)):
        return kernel
    if not target.has(Feature.BULK):
        raise ScheduleError(
            f"{kernel.name} copies boxes, which {target} does not do; copy by cp_async"
        )
    new = _RingMaterialiser(kernel).kernel()
    check_each_fits(new, target)
    return new


# --- making it ----------------------------------------------------------------------------------


class _RingMaterialiser:
    """Rewrites the bodies in which tiles live; their memory and mbarriers come before all else."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._ids = count(next_sync_id(kernel))
        self._stages = {s.home: s for s in ring_stages(kernel)}
        self._special = any(s.alloc.warp_specialized for s in self._stages.values())
        self._rings: dict[Path, RingProtocol] = {}
        self._buffers: dict[Buffer, Buffer] = {}
        self._gone = {a for s in self._stages.values() for a in s.allocs}
        self._in_turn = self._tiles_in_turn()
        groups = 1 if self._in_turn is None else GROUPS
        self._load_warps = (
            load_role_warps(kernel, self._registers, groups) if self._special else range(0)
        )

    @property
    def _registers(self) -> tuple[int, ...]:
        found = {s.alloc.registers for s in self._stages.values() if s.alloc.warp_specialized}
        if len(found) > 1:
            raise ScheduleError("rings of one kernel ask for different registers of its roles")
        return next(iter(found), ())

    def _tiles_in_turn(self) -> For | None:
        """The loop over tiles of which warpgroups take one after the other, None for no such."""
        for s in self._stages.values():
            if s.alloc.ping_pong:
                loop = s.loops[0] if s.loops else For(Var("none", 0, 0), Int(1), ())
                check_turns(self._kernel, loop, s.names)
                return loop
        return None

    def kernel(self) -> Kernel:
        """The kernel with its rings."""
        shared: list[Statement] = []
        own: list[Statement] = []
        for home, stage in self._stages.items():
            part = shared if self._in_turn is None or self._is_special(stage) else own
            part += self._make(home, stage)
        math = self._body(self._kernel.body, (), loads=False)
        rename = Substitution(buffers=self._buffers)
        made = (*shared, *own)
        if not self._special:
            return replace(self._kernel, body=(*made, *rename.body(math)))
        load = self._body(self._kernel.body, (), loads=True)
        math, load = rename.body(math), rename.body(load)
        warps, registers = self._load_warps, self._registers
        if self._in_turn is None:
            load = with_fresh_loops(load, {})
            return with_roles(self._kernel, made, load, math, warps, registers)
        groups = computed_in_turn(math, tuple(own), self._in_turn, self._ids)
        made = (*shared, *(s for g in groups for s in g.made))
        load = copied_in_turn(load, self._in_turn, self._ids)
        return with_groups(self._kernel, made, load, [g.body for g in groups], warps, registers)

    def _make(self, home: Path, s: RingStage) -> list[Statement]:
        if s.alloc.buffer in self._buffers:  # the ring of an earlier body, which goes on
            same = next(p for p, x in self._stages.items() if x.alloc.buffer is s.alloc.buffer)
            self._rings[home] = self._rings[same]
            return []
        special = s.alloc.warp_specialized
        consumers = self._kernel.nthreads // WARP_SIZE if special and s.is_used_again else 0
        self._rings[home] = ring = ring_protocol(
            s.alloc.buffer.name if len(s.allocs) == 1 else "ring",
            stages=s.stages,
            nbytes=s.nbytes,
            issuer=self._load_warps.start * WARP_SIZE if special else _issuer(s),
            consumers=consumers,
            blocks=s.blocks,
            in_turn=special and self._share_slots(s),
        )
        out: list[Statement] = []
        for a in s.allocs:
            b = a.buffer
            size = Int(_size(b) * s.stages)
            whole = Buffer(b.name, b.dtype, size, b.memory, b.alignment, b.tile)
            self._buffers[b] = whole
            out.append(replace(a, buffer=whole, copied=None, stages=1, ahead=0,
                               warp_specialized=False, registers=(), ping_pong=False))  # fmt: skip
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

    def _is_special(self, s: RingStage) -> bool:
        return s.alloc.warp_specialized

    def _k(self, s: RingStage) -> Expr:
        return s.loops[-1].var if s.is_loop else ZERO

    def _number(self, s: RingStage, k: Expr) -> Expr:
        """The number of the tile of iteration `k` among those of its ring: each group has those
        that it copies for itself in one of its own."""
        number, loop = s.number(k), self._in_turn
        if loop is None or self._is_special(s):
            return number
        return substitute(number, {loop.var: round_of(loop.var)})

    def _filled(self, s: RingStage, k: Expr) -> list[Statement]:
        """Tile `k`, announced and copied."""
        ring = self._rings[s.home]
        number = self._number(s, self._k(s))
        fills = [_counted(x, ring, number) for x in self._placed(s, s.fills)]
        out = [*ring.acquire(number, self._ids, refills=s.is_refilled), *fills]
        return out if k is self._k(s) else list(with_fresh_loops(out, {s.loops[-1].var: k}))

    def _placed(self, s: RingStage, body: Sequence[Statement]) -> list[Statement]:
        """The statements at the place of their tile in the ring."""
        ring = self._rings[s.home]
        slot = ring.slot(self._number(s, self._k(s)))
        offsets = {a.buffer: mul(slot, _size(a.buffer)) for a in s.allocs}
        return [_moved(x, offsets) for x in body] if s.stages > 1 else list(body)

    def _used(self, s: RingStage, out: Sequence[Statement]) -> Iterator[Statement]:
        """The body that uses a tile: it waits for it, and has another copied to where one was that
        is used no more, or hands it back."""
        ring, number = self._rings[s.home], self._number(s, self._k(s))
        ready = ring.ready(number, self._ids)
        uses = self._placed(s, [x for x in out if x not in s.fills])
        tiles = {a.buffer for a in s.allocs}
        if self._is_special(s):
            is_run = not self._is_in_loop(s)
            behind = 1 + max((i for i, x in enumerate(uses) if _mentions(x, tiles)), default=-1)
            yield from self._begin(s) if is_run else []
            yield ready
            yield from uses[:behind]
            yield from self._pass_on(s) if is_run else []
            yield from uses[behind:]
            if not (ring.consumers and s.is_overwritten):
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
            user = next((i for i, x in enumerate(later) if _mentions(x, tiles)), len(later))
            yield from (*later[:user], ready, *later[user:])

    def _lags(self, s: RingStage) -> bool:
        """Whether a tile is handed back one iteration later, when those that were being read have
        been, while the next ones are."""
        return s.reads_late and s.stages > 1

    def _ahead(self, home: Path) -> list[Statement]:
        """The copies before the loop at a path."""
        s = self._stages.get(home)
        if s is not None and self._is_special(s):
            return self._begin(s) if self._is_in_loop(s) else []
        if s is None or s.stages == 1:
            return []
        loop, ahead = s.loops[-1], s.alloc.ahead
        p = Var(f"p_{loop.var}", 0, ahead - 1)
        return [For(p, Int(ahead), (If(less(p, loop.extent), tuple(self._filled(s, p))),))]

    def _behind(self, home: Path) -> list[Statement]:
        """What is handed back behind the loop at a path."""
        s = self._stages.get(home)
        if s is None or not self._is_special(s):
            return []
        turn = self._pass_on(s) if self._is_in_loop(s) else []
        is_awaited = self._rings[home].consumers and s.is_overwritten
        if not self._lags(s) or s.is_one_run or not is_awaited:
            return turn  # nobody waits for the last one
        extent = s.loops[-1].extent
        last = self._rings[home].release(self._number(s, add(extent, -1)), self._ids)
        return [*turn, *(last if constant_value(extent) else [If(less(ZERO, extent), tuple(last))])]

    def _is_in_loop(self, s: RingStage) -> bool:
        """Whether a ring is used in a loop of its own, one run of it for each tile."""
        return s.is_loop and s.loops[-1] is not self._in_turn

    def _share_slots(self, s: RingStage) -> bool:
        """Whether two groups that take tiles in turn use the same slots: not where a ring holds
        whole rounds of all their steps."""
        steps = constant_value(s.loops[-1].extent) if self._is_in_loop(s) else 1
        return self._in_turn is not None and not (steps and s.stages % (GROUPS * steps) == 0)

    def _begin(self, s: RingStage) -> list[Statement]:
        loop = self._in_turn
        return [] if loop is None else self._rings[s.home].begin(loop.var, self._ids)

    def _pass_on(self, s: RingStage) -> list[Statement]:
        loop = self._in_turn
        return [] if loop is None else self._rings[s.home].pass_on(loop.var, self._ids)


def _issuer(s: RingStage) -> int:
    return next(x.issuer for f in s.fills for x in (f, *walk_statements(f)) if is_uncounted(x))  # type: ignore[attr-defined]


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
