"""Copies that pass by the registers, and rings of tiles that are copied ahead."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count

from fusewright.core.conditions import TRUE, Cond, less
from fusewright.core.expr import ZERO, Expr, Int, Var, add, constant_value, floordiv, mod, mul
from fusewright.core.node import Node, rewrite
from fusewright.dtypes import uint64
from fusewright.errors import ScheduleError
from fusewright.kir.insertion import next_sync_id
from fusewright.kir.ir import (
    WHOLE,
    Alloc,
    AsyncCommit,
    AsyncKind,
    AsyncWait,
    Body,
    Buffer,
    BulkLoad,
    CpAsync,
    For,
    If,
    Kernel,
    LdMatrix,
    Load,
    MbarExpect,
    MbarInit,
    MbarWait,
    Memory,
    Reg,
    Statement,
    Store,
)
from fusewright.kir.passes.bulk_rows import BulkRows, StagedLoad, rows_of
from fusewright.kir.passes.pack_shared import check_each_fits
from fusewright.kir.substitute import Substitution, with_fresh_loops
from fusewright.kir.traverse import own_values, walk_statements
from fusewright.target import CP_ASYNC_NBYTES, MAX_VECTOR_NBYTES, Target

_ISSUER = 0
"""The thread that issues bulk copies and arrives for them."""


def materialise_async(kernel: Kernel, target: Target) -> Kernel:
    """Make the copies that an `Alloc` asks for, and run those of a ring ahead of their loop.

    rewrite:  r = load x[i];  store s[t] = r            ->   s[t] <- x[i]
              for k { s <- x[k]; use s }                ->   for p < ahead { s[p] <- x[p] }
                                                             for k { s[k + ahead] <- x[k + ahead];
                                                                     use s[k] }
    checks:   what is copied is only moved, in sizes that the copies take, into tiles that a block
              has room for, else ScheduleError
    order:    first, while loops stand as scheduled; waits, fences and barriers follow from data,
              but a ring knows how many groups or which phase of its mbarriers a tile waits for
    """
    wanted = [s for s in walk_statements(kernel) if isinstance(s, Alloc) and s.copied is not None]
    if not wanted:
        return kernel
    for a in wanted:
        assert a.copied is not None
        if not target.has(a.copied.feature):
            raise ScheduleError(
                f"{a.buffer} is to be copied by {a.copied.value}, which {target} does not have; "
                "use cache_after() without it"
            )
        if a.warp_specialized:
            raise ScheduleError(
                f"{a.buffer} is not copied as boxes, and warps of their own copy boxes only; bind "
                "the last two loops of the copy to Bulk, or leave warp_specialized out"
            )
    work = _Materialiser(kernel)
    body = work.body(kernel.body, _Around())
    new = replace(kernel, body=(*work.barriers, *body))
    check_each_fits(new, target)
    return new


@dataclass(frozen=True, slots=True)
class _Around:
    """What stands around a body: loops, outermost first, whether a branch does, and whether the
    body is that of the last loop."""

    loops: tuple[For, ...] = ()
    in_branch: bool = False
    is_loop: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class _Tile:
    """A buffer to be filled by copies: the statement of its body that does it, and the pairs of
    loads and stores in it."""

    alloc: Alloc
    nest: Statement
    pairs: tuple[StagedLoad, ...]

    @property
    def buffer(self) -> Buffer:
        """The buffer in shared memory."""
        return self.alloc.buffer


class _Materialiser:
    """Rewrites bodies from the inside out; `barriers` come before everything else."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._ids = count(next_sync_id(kernel))
        self.barriers: list[Statement] = []

    def body(self, body: Body, around: _Around) -> Body:
        """A body whose tiles are copied, rings aside: their loops take care of them."""
        out: list[Statement] = []
        for s in self._gathered(body):
            match s:
                case For():
                    inner = self.body(s.body, _Around((*around.loops, s), around.in_branch, True))
                    out += self._loop(replace(s, body=inner), around)
                case If():
                    inside = replace(around, in_branch=True, is_loop=False)
                    then, rest = self.body(s.then, inside), self.body(s.otherwise, inside)
                    out.append(replace(s, then=then, otherwise=rest))
                case _:
                    out.append(s)
        for alloc in _copied_allocs(out):
            if alloc.stages == 1 or not around.is_loop:
                out = self._copied(out, _tile(alloc, out), around)
        return tuple(out)

    def _gathered(self, body: Body) -> Body:
        """The body with the copies of each tile that stand in it directly as one statement."""
        for a in _copied_allocs(body):
            body = _as_one_copy(body, a.buffer)
        return body

    # --- one tile -------------------------------------------------------------------------------

    def _copied(self, body: Sequence[Statement], tile: _Tile, around: _Around) -> list[Statement]:
        settled = replace(tile.alloc, copied=None, stages=1, ahead=0)
        if tile.alloc.copied is AsyncKind.CP_ASYNC:
            done = {tile.alloc: [settled], tile.nest: [_with_copies(tile.nest, tile)]}
            return [x for s in body for x in done.get(s, [s])]
        ring = self._barriers(tile, around)
        copies = self._bulk(tile, ring, _tile_number(around.loops), ZERO)
        out: list[Statement] = []
        is_copied = False
        for s in body:
            if s is tile.nest:
                out += copies
                is_copied = True
            elif s is tile.alloc:
                out.append(settled)
            else:
                if is_copied and _mentions(s, tile.buffer):
                    out.append(self._wait(tile, ring, _tile_number(around.loops)))
                    is_copied = False
                out.append(s)
        return out

    def _bulk(
        self, tile: _Tile, ring: _RingBarriers, number: Expr, offset: Expr
    ) -> list[Statement]:
        """The copies of one tile, announced to its mbarrier; `offset` of its place in a ring."""
        rows = rows_of(tile.pairs, self._kernel)
        nbytes = rows.count * rows.size * rows.dst.dtype.nbytes
        slot = mod(number, ring.stages)
        why = f"{nbytes} bytes of {tile.buffer}"
        expect = MbarExpect(next(self._ids), why, ring.buffer, slot, nbytes, _ISSUER)
        return [expect, _row_copies(rows, ring.buffer, slot, offset)]

    def _wait(self, tile: _Tile, ring: _RingBarriers, number: Expr) -> MbarWait:
        parity = mod(floordiv(number, ring.stages), 2)
        slot = mod(number, ring.stages)
        return MbarWait(next(self._ids), f"tile of {tile.buffer}", ring.buffer, slot, parity)

    def _barriers(self, tile: _Tile, around: _Around) -> _RingBarriers:
        """New mbarriers, one for each place of the ring, made before everything else."""
        if around.in_branch:
            raise ScheduleError(
                f"{tile.buffer} is filled by bulk copies inside a branch; its mbarrier would lose "
                "count of their phases: let sizes divide, or use cache_after(by='cp_async')"
            )
        stages = tile.alloc.stages
        buffer = Buffer(f"{tile.buffer}_full", uint64, Int(stages), Memory.SHARED, uint64.nbytes)
        v = Var(f"m_{tile.buffer}", 0, stages - 1)
        init = MbarInit(next(self._ids), f"places of {tile.buffer}", buffer, v, 1, _ISSUER)
        self.barriers += [Alloc(buffer), For(v, Int(stages), (init,))]
        return _RingBarriers(buffer, stages)

    # --- rings ----------------------------------------------------------------------------------

    def _loop(self, loop: For, around: _Around) -> list[Statement]:
        """A loop with the copies of its rings run ahead."""
        tiles = [_tile(a, loop.body) for a in _copied_allocs(loop.body)]
        if not tiles:
            return [loop]
        depths = {(t.alloc.stages, t.alloc.ahead) for t in tiles}
        if len(depths) > 1:
            names = ", ".join(str(t.buffer) for t in tiles)
            raise ScheduleError(
                f"{names} are tiles of one loop, over {loop.var}, in rings of different depth; "
                "give them the same stages and prefetch"
            )
        return _Ring(self, loop, around, tiles).statements()

    def tile_copies(
        self, tile: _Tile, ring: _RingBarriers | None, number: Expr, offset: Expr
    ) -> list[Statement]:
        """The copies of one tile of a ring to a place in it."""
        if ring is None:
            return [_moved(_with_copies(tile.nest, tile), tile.buffer, offset)]
        return self._bulk(tile, ring, number, offset)

    def commit(self, why: str) -> AsyncCommit:
        """The end of a tile's group of copies by threads."""
        return AsyncCommit(next(self._ids), why, AsyncKind.CP_ASYNC)

    def waits(
        self, tiles: Sequence[_Tile], rings: Sequence[_RingBarriers | None], number: Expr, keep: int
    ) -> list[Statement]:
        """What a tile waits for before it is used."""
        out: list[Statement] = [
            self._wait(t, r, number) for t, r in zip(tiles, rings, strict=True) if r is not None
        ]
        if None in rings:
            why = f"tile of {', '.join(str(t.buffer) for t in tiles)}"
            out.append(AsyncWait(next(self._ids), why, AsyncKind.CP_ASYNC, keep))
        return out

    def ring_of_barriers(self, tile: _Tile, around: _Around) -> _RingBarriers | None:
        """The mbarriers of a ring that bulk copies fill."""
        if tile.alloc.copied is AsyncKind.CP_ASYNC:
            return None
        return self._barriers(tile, around)


@dataclass(frozen=True, slots=True, eq=False)
class _RingBarriers:
    """An mbarrier for each of the places of a ring."""

    buffer: Buffer
    stages: int


class _Ring:
    """A loop over tiles, `stages` of which are in memory. Iteration k waits for its tile, starts
    the copies of tile k + ahead to where tile k - 1, or an earlier one, was, and computes."""

    def __init__(
        self, work: _Materialiser, loop: For, around: _Around, tiles: Sequence[_Tile]
    ) -> None:
        self._work, self._loop, self._tiles = work, loop, tiles
        self._stages, self._ahead = tiles[0].alloc.stages, tiles[0].alloc.ahead
        self._first = mul(_tile_number(around.loops), loop.extent)
        self._barriers = [work.ring_of_barriers(t, around) for t in tiles]
        self._strides = [_place_size(t.buffer) for t in tiles]
        for t in tiles:
            _check_independent(t, loop)

    def statements(self) -> list[Statement]:
        """The rings' memory, the copies before the loop, and the loop."""
        names = ", ".join(str(t.buffer) for t in self._tiles)
        rings = [self._enlarged(t, n) for t, n in zip(self._tiles, self._strides, strict=True)]
        buffers = {t.buffer: a.buffer for t, a in zip(self._tiles, rings, strict=True)}
        p = Var(f"p_{self._loop.var}", 0, self._ahead - 1)
        early = self._copies(p, f"tile of {names}, ahead of its loop")
        k = self._loop.var
        late = self._copies(add(k, self._ahead), f"tile of {names}, {self._ahead} ahead")
        body = [
            *self._work.waits(self._tiles, self._barriers, self._number(k), self._ahead - 1),
            *late,
            *self._uses(),
        ]
        whole = (For(p, Int(self._ahead), tuple(early)), replace(self._loop, body=tuple(body)))
        return [*rings, *Substitution(buffers=buffers).body(whole)]

    def _enlarged(self, tile: _Tile, stride: int) -> Alloc:
        b = tile.buffer
        ring = Buffer(b.name, b.dtype, Int(stride * self._stages), b.memory, b.alignment)
        return replace(tile.alloc, buffer=ring, copied=None, stages=1, ahead=0)

    def _number(self, k: Expr) -> Expr:
        return add(self._first, k)

    def _copies(self, k: Expr, why: str) -> list[Statement]:
        """The copies of tile `k`, if there is one, as a group."""
        number = self._number(self._loop.var)
        copies: list[Statement] = []
        for tile, ring, stride in zip(self._tiles, self._barriers, self._strides, strict=True):
            offset = mul(mod(number, self._stages), stride)
            copies += self._work.tile_copies(tile, ring, number, offset)
        there = with_fresh_loops(copies, {self._loop.var: k})
        exists: Cond = less(k, self._loop.extent)
        out: list[Statement] = [If(exists, there)]
        if None in self._barriers:
            out.append(self._work.commit(why))
        return out

    def _uses(self) -> Iterator[Statement]:
        """What the loop does beside the copies, with every tile at its place in the ring."""
        number = self._number(self._loop.var)
        gone = {t.alloc for t in self._tiles} | {t.nest for t in self._tiles}
        for s in self._loop.body:
            if s in gone:
                continue
            for tile, stride in zip(self._tiles, self._strides, strict=True):
                s = _moved(s, tile.buffer, mul(mod(number, self._stages), stride))
            yield s


# --- finding copies -----------------------------------------------------------------------------


def _copied_allocs(body: Sequence[Statement]) -> list[Alloc]:
    return [s for s in body if isinstance(s, Alloc) and s.copied is not None]


def _tile(alloc: Alloc, body: Sequence[Statement]) -> _Tile:
    """The copies of a buffer in the body of its allocation."""
    b = alloc.buffer
    nests = [s for s in body if any(_writes(x, b) for x in (s, *walk_statements(s)))]
    if len(nests) != 1:
        raise ScheduleError(
            f"{b} is filled by {len(nests)} statements of the body it lives in, not by one copy; "
            "inline it where all of it is copied at once"
        )
    pairs = tuple(_pairs(nests, alloc, ()))
    return _Tile(alloc, nests[0], pairs)


def _as_one_copy(body: Body, buffer: Buffer) -> Body:
    """The stores to a buffer that stand in the body itself, with what loads for them, together."""
    stores = [s for s in body if isinstance(s, Store) and s.dst is buffer]
    registers = {s.src.buffer for s in stores}
    group = [
        s
        for s in body
        if s in stores
        or (isinstance(s, Alloc) and s.buffer in registers)
        or (isinstance(s, Load) and s.dst.buffer in registers)
    ]
    if not stores:
        return body
    out: list[Statement] = []
    for s in body:
        if s is stores[-1]:
            out.append(_once(tuple(group)))
        elif s not in group:
            out.append(s)
    return tuple(out)


def _writes(s: Statement, buffer: Buffer) -> bool:
    return isinstance(s, Store) and s.dst is buffer


def _pairs(body: Sequence[Statement], alloc: Alloc, loops: tuple[For, ...]) -> Iterator[StagedLoad]:
    buffer = alloc.buffer
    loads: dict[Buffer, Load] = {}
    for s in body:
        match s:
            case Alloc():
                pass
            case For():
                yield from _pairs(s.body, alloc, (*loops, s))
            case Load() if s.src.memory is Memory.GLOBAL:
                loads[s.dst.buffer] = s
            case Store() if s.dst is buffer and _is_same(loads.get(s.src.buffer), s):
                _check_whole(loads[s.src.buffer], alloc)
                yield StagedLoad(loads[s.src.buffer], s, loops)
            case _:
                raise ScheduleError(
                    f"{buffer} is to be filled by asynchronous copies, but beside its elements "
                    f"{type(s).__name__} happens; let the cache only copy, element for element, "
                    "and inline nothing into it"
                )


def _is_same(load: Load | None, store: Store) -> bool:
    """Whether the store stores just what the load loaded."""
    if load is None:
        return False
    same: Reg = load.dst
    return same.index == store.src.index and load.width == store.width


def _check_whole(load: Load, alloc: Alloc) -> None:
    """Copies by threads count the bytes that they read, from the first one on; others do not."""
    counts = alloc.copied is AsyncKind.CP_ASYNC
    if load.lanes == WHOLE or (counts and not load.lanes.is_cut and load.lanes.first == ZERO):
        return
    raise ScheduleError(
        f"{alloc.buffer} is to be filled by asynchronous copies of {load.width} elements of "
        f"{load.src} at once, of which the last ones do not all exist; such copies move all or "
        "none, so let the sizes divide, or vectorise the copy by a divisor of them"
    )


def _mentions(s: Statement, buffer: Buffer) -> bool:
    return any(v is buffer for x in (s, *walk_statements(s)) for v in own_values(x))


def _check_independent(tile: _Tile, loop: For) -> None:
    before = loop.body[: loop.body.index(tile.nest)]
    if any(_mentions(s, tile.buffer) for s in before if s is not tile.alloc):
        raise ScheduleError(
            f"{tile.buffer} is read in an iteration over {loop.var} before it is copied; a ring "
            "hands each tile to the iteration that copies it"
        )


# --- making copies ------------------------------------------------------------------------------


def _with_copies(nest: Statement, tile: _Tile) -> Statement:
    """The statement with copies instead of pairs of loads and stores."""
    copies: dict[Node, Statement | None] = {}
    for p in tile.pairs:
        copies[p.store] = _copy(p)
        copies[p.load] = None
    temporaries = {p.load.dst.buffer for p in tile.pairs}

    def edit(node: Node) -> Node | tuple[Node, ...]:
        if isinstance(node, Alloc) and node.buffer in temporaries:
            return ()
        new = copies.get(node, node)
        return () if new is None else new

    return rewrite(nest, edit)


def _copy(p: StagedLoad) -> Statement:
    load, store = p.load, p.store
    nbytes = load.width * load.src.dtype.nbytes
    if nbytes not in CP_ASYNC_NBYTES:
        known = ", ".join(map(str, CP_ASYNC_NBYTES))
        raise ScheduleError(
            f"{store.dst} is copied {nbytes} bytes at once, cp_async takes {known}; vectorise the "
            "copy along its contiguous axis"
        )
    copy = CpAsync(store.dst, store.index, load.src, load.index, load.width, store.predicate)
    stop = load.lanes.stop
    if stop is None and load.predicate in (TRUE, store.predicate):
        return copy
    if load.fill is not None and load.fill.value != 0:
        raise ScheduleError(
            f"{store.dst} is filled with {load.fill.value} where there is nothing to copy; "
            "cp_async fills with zeros only: copy first, and choose what to use afterwards"
        )
    fills = load.fill is not None or stop is not None
    copy = replace(copy, predicate=load.predicate, zero_fill=fills, stop=stop)
    is_whole = store.predicate == TRUE or not fills
    return copy if is_whole else If(store.predicate, (copy,))


def _row_copies(rows: BulkRows, barrier: Buffer, slot: Expr, offset: Expr) -> Statement:
    i = Var(f"row_{rows.dst}", 0, rows.count - 1)
    load = BulkLoad(
        dst=rows.dst,
        index=add(add(rows.target, mul(i, rows.target_step)), offset),
        src=rows.src,
        src_index=add(rows.source, mul(i, rows.source_step)),
        size=rows.size,
        barrier=barrier,
        slot=slot,
        issuer=_ISSUER,
    )
    return For(i, Int(rows.count), (load,))


def _moved(s: Statement, buffer: Buffer, offset: Expr) -> Statement:
    """The statement with its accesses to a buffer `offset` elements further."""

    def edit(node: Node) -> Node:
        match node:
            case Load() | LdMatrix() if node.src is buffer:
                return replace(node, index=add(node.index, offset))
            case CpAsync() if node.dst is buffer:
                return replace(node, index=add(node.index, offset))
            case _:
                return node

    return rewrite(_once((s,)), edit).body[0]


def _once(body: Body) -> For:
    """The statements as one, until trivial loops go."""
    return For(Var("once", 0, 0), Int(1), body)


def _tile_number(loops: Sequence[For]) -> Expr:
    """How many iterations of the loops came before this one."""
    number: Expr = ZERO
    for loop in loops:
        number = add(mul(number, loop.extent), loop.var)
    return number


def _place_size(buffer: Buffer) -> int:
    """Elements from one place of a ring to the next, a multiple of the widest access."""
    size = constant_value(buffer.size)
    assert size is not None, "sizes in shared memory are constant"
    step = max(1, MAX_VECTOR_NBYTES // buffer.dtype.nbytes)
    return -(-size // step) * step
