"""Lowering of definitions: the statements of each inside the loops it stands in."""

from __future__ import annotations

from collections.abc import Callable

from fusewright.core.conditions import TRUE, all_of, less, negate, prove
from fusewright.core.expr import ONE, ZERO, Expr, Var, variables
from fusewright.core.identities import reduction_identity, scan_identity
from fusewright.fusion.ir import MatMul, Reduce, Scan
from fusewright.kir.ir import (
    Alloc,
    BoxReduce,
    BulkReduce,
    BulkStore,
    Compute,
    For,
    If,
    Imm,
    Statement,
)
from fusewright.kir.lower_block_scans import BlockScan, blocks_scanned
from fusewright.kir.lower_clusters import shared_out
from fusewright.kir.lower_products import (
    box_loads,
    box_stores,
    instructions,
    matrix_stores,
    of_one_copy,
    zeros,
)
from fusewright.kir.lower_stage import Definition
from fusewright.kir.lower_storage import Storage, TurnedResult
from fusewright.kir.lower_turns import (
    at_reader,
    blocks_reduced,
    bulk_read_back,
    check_request,
    fill_of_part,
    gathering_of_stage,
    is_shared_out_in_cluster,
    part_loops,
    reducing_function,
    staged_part,
    turns_of_stage,
)
from fusewright.kir.lower_warp_products import warp_instructions
from fusewright.kir.semaphores import Turns
from fusewright.memory import Memory
from fusewright.schedule.graph import Stage
from fusewright.schedule.nest import Child
from fusewright.schedule.parallel import Parallel


class Statements:
    """Emits the statements of definitions whose values live in a storage."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage

    def stage(self, s: Stage, *, standalone: bool) -> list[Statement]:
        """The statements of a definition inside all its loops."""
        values = self.storage.loop_values(s)
        if s.boxed:
            if s.memory is not Memory.GLOBAL:
                return box_loads(self.storage, s, values)
            copies = self._boxes_out(s, values)
            there = self.storage.context.finished.get(s, {})
            where = [*there.values(), *of_one_copy(self.storage, s, values)]
            return [If(all_of(where), tuple(copies))] if where else copies
        if s.is_staged:
            return matrix_stores(self.storage, s, values)
        if isinstance(s.op, MatMul):
            products = (warp_instructions if s.warps else instructions)(self.storage, s, values)
            if not standalone:
                return products
            return [*self.initialise(s), *products, *self.finish(s)]
        d = Definition(self.storage, s, values)
        if isinstance(s.op, Reduce):
            body = d.accumulate()
            if not standalone:
                return body
            return [*self.initialise(s), *body, *self.finish(s)]
        if isinstance(s.op, Scan):
            first = self.initialise(s) if standalone else []
            if blocks_scanned(self.storage.context, s):
                scan = BlockScan(self.storage, s, self._next_sync())
                return [*first, *scan.statements(d)]
            return [*first, *d.compute()]
        return d.compute()

    def _boxes_out(self, s: Stage, values: tuple[Expr, ...]) -> list[Statement]:
        """Copies of an output's boxes; where blocks in turns add them up, the first one stores."""
        stores, found = box_stores(self.storage, s, values), self.storage.turns_at(s)
        if found is None:
            return list(stores)
        reduced, turns = found
        fn = reducing_function(reduced)
        adds = [BoxReduce(fn, x.map, x.coordinates, x.src, x.src_index, x.issuer) for x in stores]
        return [If(turns.is_first, tuple(stores), tuple(adds))]

    def turns_around(self, child: Child) -> tuple[list[Statement], list[Statement]]:
        """What stands before and behind a child of a loop in which blocks add up a result: the wait
        for their turn, and what passes it on."""
        for s, found in self.storage.context.results.items():
            if isinstance(found, TurnedResult) and found.child is child:
                number, turns = self._next_sync(), turns_of_stage(self.storage, s)
                earlier = [] if s.grid_mode == "tma" else self._stored_earlier(s, found, turns)
                return [turns.acquire(number), *earlier], [turns.release(number + 1)]
        return [], []

    def _stored_earlier(self, s: Stage, found: TurnedResult, turns: Turns) -> list[Statement]:
        """What all but the first block do before they store their sums."""
        adds = self._over_lanes(s, lambda d: d.add_stored(found.result))
        return [If(negate(turns.is_first), tuple(adds))]

    def initialise(self, s: Stage) -> list[Statement]:
        """Sets the accumulators of a reduction or scan to the identity."""
        op = s.op
        if isinstance(op, MatMul):
            return zeros(self.storage, s)
        assert isinstance(op, Reduce | Scan)
        first_of = scan_identity if isinstance(op, Scan) else reduction_identity

        def one(d: Definition) -> list[Statement]:
            value = Imm(first_of(op.fn, s.dtype.compute), s.dtype.compute)
            return [Compute("copy", d.accumulator(lane), (value,)) for lane in range(d.width)]

        return self._over_lanes(s, one)

    def finish(self, s: Stage) -> list[Statement]:
        """Combines the accumulators of the threads that share an output, and writes it."""
        if isinstance(s.op, Scan):
            return []
        check_request(self.storage.context, s)
        over = [] if isinstance(s.op, MatMul) else self._over_lanes(s, Definition.finish)
        is_in_cluster = is_shared_out_in_cluster(self.storage.context, s)
        first = self._by_cluster(s) if is_in_cluster else []
        if not blocks_reduced(self.storage.context, s):
            return [*first, *over]
        found = self.storage.context.results.get(s)
        if isinstance(found, TurnedResult):
            return [*first, *self._in_result(s, found)]
        if s.grid_mode == "all":
            return [*self._by_all(s), *self._over_lanes(s, Definition.store_result)]
        modes = {
            "tma": self._by_copy_engine, "slices": self._by_slices, "arrival": self._by_arrival,
        }  # fmt: skip
        combine = modes.get(s.grid_mode or "", self._by_vectors)
        return [*first, *combine(s), *over]

    def _in_result(self, s: Stage, found: TurnedResult) -> list[Statement]:
        """All blocks store their sums of what earlier ones left in a result and their parts, where
        the reduction itself is one; others are stored behind it."""
        if found.result is not s:
            return []
        number, turns = self._next_sync(), turns_of_stage(self.storage, s)
        if s.grid_mode == "vector":
            return [
                *self._over_lanes(s, Definition.meet),
                turns.acquire(number),
                *self._stored_earlier(s, found, turns),
                *self._over_lanes(s, Definition.store_result),
                turns.release(number + 1),
            ]
        staged = staged_part(s, turns)
        where = (turns.guarded, turns.first, staged, ZERO, turns.size, turns.issuer)
        adds = BulkReduce(reducing_function(s), *where)
        return [
            Alloc(staged),
            *self._over_lanes(s, Definition.meet),
            *self._over_lanes(s, lambda d: d.leave(staged, ZERO)),
            turns.acquire(number),
            If(turns.is_first, (BulkStore(*where),), (adds,)),
            turns.release(number + 1),
        ]

    def _next_sync(self) -> int:
        """The first of three ids that no other sync has."""
        context = self.storage.context
        return 3 * (len(context.orders) + len(context.returned))

    def _by_slices(self, s: Stage) -> list[Statement]:
        """All blocks leave their parts side by side, in a cluster those of the sums that each has
        finished there; each then adds up a share of all parts."""
        number, g = self._next_sync(), gathering_of_stage(self.storage, s)
        mine = self.storage.context.finished[s].get(Parallel.CLUSTERX, TRUE)
        left = self._over_lanes(s, lambda d: d.leave(g.guarded, g.own))
        parts = self._over_share(s, lambda d: d.gather(g))
        return [
            *(left if mine is TRUE else [If(mine, tuple(left))]),
            g.arrive(number),
            g.acquire(number + 1),
            g.leave(number + 2),
            *parts,
        ]

    def _by_all(self, s: Stage) -> list[Statement]:
        """All blocks leave their parts side by side; each then adds up all of them."""
        number, g = self._next_sync(), gathering_of_stage(self.storage, s)
        return [
            *self._over_lanes(s, Definition.meet),
            *self._over_lanes(s, lambda d: d.leave(g.guarded, g.own)),
            g.arrive(number),
            g.acquire(number + 1),
            g.leave(number + 2),
            *self._over_lanes(s, lambda d: d.gather(g)),
            *self._over_lanes(s, Definition.meet),
        ]

    def _by_arrival(self, s: Stage) -> list[Statement]:
        """The copy engine adds the parts of all blocks in the order in which they come; each block
        then takes a share of the sum, and leaves zeros."""
        number, g = self._next_sync(), gathering_of_stage(self.storage, s)
        staged = staged_part(s, g)
        where = (g.guarded, g.first, staged, ZERO, g.size, g.issuer)
        return [
            Alloc(staged),
            *self._over_lanes(s, lambda d: d.leave(staged, ZERO)),
            *fill_of_part(self.storage, s, staged),
            BulkReduce(reducing_function(s), *where),
            g.arrive(number),
            g.acquire(number + 1),
            g.leave(number + 2),
            *self._over_share(s, lambda d: d.take(g)),
            *self._over_share(s, lambda d: d.clear(g)),
        ]

    def _over_share(
        self, s: Stage, one: Callable[[Definition], list[Statement]]
    ) -> list[Statement]:
        """`one` for what this block finishes of a sum."""
        context = self.storage.context
        share = all_of(context.finished[s].values())

        def of_vector(d: Definition) -> list[Statement]:
            loops = zip((x.axis for x in s.loops), d.view.variables, strict=True)
            return [If(at_reader(context, share, tuple(loops)), tuple(one(d)))]

        if context.digits.keys().isdisjoint(variables(share)):
            return [If(share, tuple(self._over_lanes(s, one)))]
        return self._over_lanes(s, of_vector)

    def _by_cluster(self, s: Stage) -> list[Statement]:
        """Each block of a cluster finishes a share, of which the others send it their parts."""
        made = shared_out(self.storage, s)
        share = self.storage.context.finished[s][Parallel.CLUSTERX]
        return [
            Alloc(made.parts),
            *self._over_lanes(s, lambda d: d.send_shares(made)),
            If(share, tuple(self._over_lanes(s, lambda d: d.gather_share(made)))),
        ]

    def _by_vectors(self, s: Stage) -> list[Statement]:
        """Threads add what they find in scratch, and store the sum for the next block."""
        number, turns = self._next_sync(), turns_of_stage(self.storage, s)
        earlier = self._over_lanes(s, lambda d: d.add_earlier(turns.guarded, turns.first))
        later = self._over_lanes(s, lambda d: d.leave(turns.guarded, turns.first))
        return [
            turns.acquire(number),
            If(negate(turns.is_first), tuple(earlier)),
            If(negate(turns.is_last), tuple(later)),
            turns.release(number + 1),
        ]

    def _by_copy_engine(self, s: Stage) -> list[Statement]:
        """The copy engine adds what lies in shared memory to scratch, of the first block it stores
        it; the last one adds what it reads there, or in shared memory once the copy engine has
        brought it back, to what it has."""
        number, turns = self._next_sync(), turns_of_stage(self.storage, s)
        staged = staged_part(s, turns)
        where = (turns.guarded, turns.first, staged, ZERO, turns.size, turns.issuer)
        store, reduce = BulkStore(*where), BulkReduce(reducing_function(s), *where)
        is_short = prove(less(turns.count, 3)) is True
        copied = (store,) if is_short else (If(turns.is_first, (store,), (reduce,)),)
        ready = self._over_lanes(s, lambda d: d.leave(staged, ZERO))
        ready += fill_of_part(self.storage, s, staged)
        if s.read_back == "bulk":
            earlier = bulk_read_back(self.storage, s, turns, staged, self._next_sync())
            earlier += self._over_lanes(s, lambda d: d.add_earlier(staged, ZERO))
        else:
            earlier = self._over_lanes(s, lambda d: d.add_earlier(turns.guarded, turns.first))
        return [
            Alloc(staged),
            If(negate(turns.is_last), tuple(ready)),
            turns.acquire(number),
            If(turns.is_last, tuple(earlier), copied),
            turns.release(number + 1),
        ]

    def _over_lanes(
        self, s: Stage, one: Callable[[Definition], list[Statement]]
    ) -> list[Statement]:
        """`one` inside fresh loops over the kept serial loops that stand inside a carrying one."""
        values = list(self.storage.loop_values(s))
        loops: list[tuple[Var, Expr]] = []
        for i in part_loops(self.storage, s):
            x = s.loops[i]
            v = Var(f"k{i}_{s.name}", 0, x.axis.extent - 1)
            values[i] = ZERO if x.axis.extent == ONE else v
            if x.axis.extent != ONE:
                loops.append((v, x.axis.extent))
        body = tuple(one(Definition(self.storage, s, tuple(values))))
        for v, extent in reversed(loops):
            body = (For(v, extent, body),) if body else ()
        return list(body)
