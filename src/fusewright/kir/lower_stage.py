"""Definitions: what one stage computes, accumulates and writes where it stands."""

from __future__ import annotations

from collections.abc import Sequence

from fusewright.axes.frames import Gathered
from fusewright.core.atoms import minimum
from fusewright.core.conditions import TRUE, Cond, all_of, equal, less, prove
from fusewright.core.expr import ONE, ZERO, Expr, Int, Var, ceildiv, variables
from fusewright.core.identities import reduction_identity, scan_identity
from fusewright.core.substitution import substitute
from fusewright.dtypes import DType, bool_, int64
from fusewright.errors import InternalError, ScheduleError
from fusewright.fusion.ir import (
    Concat,
    Constant,
    Iota,
    Pointwise,
    Reduce,
    Resize,
    Scan,
    Size,
    Sort,
    Take,
    TakeAlong,
    moves_data,
)
from fusewright.kir.ir import (
    WHOLE,
    Buffer,
    CheckIndex,
    Compute,
    For,
    Imm,
    Index,
    Lanes,
    Load,
    Operand,
    Reg,
    RegVar,
    Statement,
    Store,
    ThreadReduce,
    ThreadScan,
)
from fusewright.kir.lower_clusters import SharedOut
from fusewright.kir.lower_operands import OperandReader, literal_as, operand_key
from fusewright.kir.lower_results import loads_of_result
from fusewright.kir.lower_storage import register_dtype
from fusewright.kir.lower_turns import (
    element_in_block,
    is_shared_out_in_cluster,
    kept_lanes,
    one_of_copies,
    part_loops,
    reducing_function,
    threads_reducing,
    vector_of,
)
from fusewright.kir.semaphores import Gathering
from fusewright.kir.symbols import operand_dtype
from fusewright.memory import Memory
from fusewright.schedule.graph import Stage
from fusewright.schedule.nest import reduced_loops, scanning_threads
from fusewright.schedule.parallel import CLUSTER_DIMS, THREAD_DIMS
from fusewright.schedule.views import operand

PARTS_AT_ONCE = 16
"""Vectors on their way to a thread that sums the parts of all blocks: 64 registers, beside the 64
or 128 accumulators of a product. By itself the compiler takes all of up to 66, and spills."""


class Definition(OperandReader):
    """One stage at one place: collects the statements that define it there.

    Values are kept in the type they are stored in when they were only moved, and in the compute
    type of their dtype otherwise. A Vectorize loop becomes lanes: computation is repeated per lane,
    memory is accessed once, wide.
    """

    # --- computing ------------------------------------------------------------------------------

    def as_type(self, value: Operand, dtype: DType) -> Operand:
        """The value converted to a register type."""
        have = operand_dtype(value)
        if have is dtype:
            return value
        if isinstance(value, Imm):
            return Imm(literal_as(value.value, dtype), dtype)
        if isinstance(value, Index):
            return Index(value.expr, dtype)
        tmp = Reg(self.temporary(dtype))
        self.out.append(Compute("cast", tmp, (value,)))
        return tmp

    def compute(self) -> list[Statement]:
        """The statements of a definition that is no reduction."""
        s = self.s
        match s.op:
            case Pointwise(fn="copy") | Resize() | Sort():
                values = self.read(0)
            case Concat():
                values = self._concat()
            case Pointwise():
                values = self._pointwise(s.op.fn)
            case Constant() | Size():
                values: list[Operand] = [self.constant(s)] * self.width
            case Iota():
                at = self.view.output[s.op.axis]
                values = [Index(self.at_lane(at, k), s.dtype) for k in range(self.width)]
            case Take() | TakeAlong():
                values = self._take()
            case Scan():
                values = self._scan(s.op)
            case _ if moves_data(s.op):
                values = self.read(0)
            case _:
                raise InternalError(f"{type(s.op).__name__} has no statements")
        self.write(values)
        return self.out

    def _pointwise(self, fn: str) -> list[Operand]:
        s = self.s
        operands = [self.read(k) for k in range(len(s.operands))]
        if fn == "cast":
            return operands[0]
        fn = self.storage.context.fast_forms.get(s, fn)
        out: list[Operand] = []
        known: dict[tuple[object, ...], Reg] = {}
        for lane in range(self.width):
            inputs = tuple(
                self.as_type(values[lane], p.dtype.compute)
                for values, p in zip(operands, s.operands, strict=True)
            )
            key = tuple(operand_key(i) for i in inputs)
            if key not in known:
                known[key] = self.result(lane, s.dtype.compute)
                self.out.append(Compute(fn, known[key], inputs))
            out.append(known[key])
        return out

    def result(self, lane: int, dtype: DType) -> Reg:
        """Where a computed lane goes: its register when the stage lives in registers."""
        if self.s.memory is Memory.LOCAL and register_dtype(self.s) is dtype:
            return self.register(lane)
        if self.results is None or self.results.dtype is not dtype:
            self.results = self.temporary(dtype, self.width)
        return Reg(self.results, Int(lane))

    def _concat(self) -> list[Operand]:
        s = self.s
        dtype = register_dtype(s)
        tmp = self.temporary(dtype, self.width)
        for k in range(self.width):
            self.out.append(Compute("copy", Reg(tmp, Int(k)), (Imm(literal_as(0, dtype), dtype),)))
        for position in range(len(s.operands)):
            conditions = operand(self.graph, self.view, position).predicates
            values = self.read(position, only_inside=True)
            for k, v in enumerate(values):
                where = all_of(self.condition_at(c, k) for c in conditions)
                self.out.append(Compute("copy", Reg(tmp, Int(k)), (self.as_type(v, dtype),), where))
        return [Reg(tmp, Int(k)) for k in range(self.width)]

    def _take(self) -> list[Operand]:
        assert isinstance(self.s.op, Take | TakeAlong)
        read = self.s.frame.operands[0]
        extent = next(i.extent for i in read if isinstance(i, Gathered))
        size = Index(extent, int64)
        zero = Imm(0, int64)
        picked: list[RegVar] = []
        valid: list[Reg] = []
        known: dict[tuple[object, ...], tuple[RegVar, Reg]] = {}
        for value in self.read(1):
            key = operand_key(value)
            if key not in known:
                index = self.as_type(value, int64)  # of uint64, what is negative now is outside
                if operand_dtype(value).kind == "int":
                    wrapped = self._call("add", int64, index, size)
                    negative = self._call("lt", bool_, index, zero)
                    index = self._call("where", int64, negative, wrapped, index)
                low = self._call("ge", bool_, index, zero)
                high = self._call("lt", bool_, index, size)
                inside = self._call("and", bool_, low, high)
                safe = self._call("where", int64, inside, index, zero)
                known[key] = (RegVar(safe, 0, extent - 1), inside)
            if self.s.op.mode == "raise":
                self._check_index(value, known[key][1], extent, len(picked))
            picked.append(known[key][0])
            valid.append(known[key][1])
        out: list[Operand] = []
        for value, inside in zip(self.read(0, picked), valid, strict=True):
            dtype = operand_dtype(value)
            fill = Imm(literal_as(self.s.dtype.outside, dtype), dtype)
            out.append(self._call("where", dtype, inside, value, fill))
        return out

    def _check_index(self, given: Operand, inside: Reg, extent: Expr, lane: int) -> None:
        """Looks whether the index of a lane is inside, where the lane has one; once for lanes that
        share it and exist together."""
        op = self.s.op
        assert isinstance(op, Take | TakeAlong)
        here = all_of(self.condition_at(c, lane) for c in self.predicates(writes=False))
        looks = (s for s in self.out if isinstance(s, CheckIndex))
        if any(s.inside is inside and s.predicate == here for s in looks):
            return
        index = self._call("cast", int64, given)
        self.out.append(CheckIndex(inside, index, extent, op.axis, here, op.place, op.merged))

    def _call(self, fn: str, dtype: DType, *operands: Operand) -> Reg:
        result = Reg(self.temporary(dtype))
        self.out.append(Compute(fn, result, operands))
        return result

    def _scan(self, op: Scan) -> list[Operand]:
        threads = scanning_threads(self.graph, self.s)
        if threads is not None:
            return self._scan_by_threads(op, THREAD_DIMS[threads])
        dtype = self.s.dtype.compute
        out: list[Operand] = []
        for lane, value in self._in_order(op, self.read(0)):
            acc = self.accumulator(lane)
            x = self.as_type(value, dtype)
            where = all_of(self.condition_at(c, lane) for c in self.predicates(writes=False))
            step = Compute(op.fn, acc, (acc, x), where)
            if self.width == 1 and not op.exclusive:
                self.out.append(step)
                return [acc]
            here = Reg(self.temporary(dtype))  # the lanes that follow go on from `acc`
            kept = Compute("copy", here, (acc,))
            self.out += [kept, step] if op.exclusive else [step, kept]
            out.append(here)
        return out[::-1] if op.reverse else out

    def _in_order(self, op: Scan, values: list[Operand]) -> list[tuple[int, Operand]]:
        """The lanes with their values, as they follow each other in a scan."""
        lanes = list(enumerate(values))
        return lanes[::-1] if op.reverse else lanes

    def _scan_by_threads(self, op: Scan, dim: str) -> list[Operand]:
        """Threads hold neighbours: each gets what is before its own from the others."""
        identity = Imm(scan_identity(op.fn, self.s.dtype.compute), self.s.dtype.compute)
        out: list[Operand] = []
        for lane, own in enumerate(self.own_of_scan(identity)):
            before, carry = self.result(lane, self.s.dtype.compute), self.accumulator(lane)
            self.out.append(ThreadScan(op.fn, before, own, carry, dim, identity, op.reverse))
            if not op.exclusive:
                self.out.append(Compute(op.fn, before, (before, own)))
            out.append(before)
        return out

    def own_of_scan(self, identity: Imm) -> list[Reg]:
        """What a thread has of each lane that threads scan together; `identity` where nothing is
        there."""
        dtype = self.s.dtype.compute
        conditions = self.predicates(writes=False)
        out: list[Reg] = []
        for lane, value in enumerate(self.read(0)):
            own = Reg(self.temporary(dtype))
            where = all_of(self.condition_at(c, lane) for c in conditions)
            if where != TRUE:
                self.out.append(Compute("copy", own, (identity,)))
            self.out.append(Compute("copy", own, (self.as_type(value, dtype),), where))
            out.append(own)
        return out

    # --- reductions -----------------------------------------------------------------------------

    def accumulator(self, lane: int) -> Reg:
        """The register that a lane of a reduction or scan accumulates in."""
        carry = self.storage.context.carries.get(self.s)
        if carry is None:
            return self.register(lane)
        index: Expr = ZERO
        for i in self.storage.carried_lanes(self.s):
            index = index * self.s.loops[i].axis.extent + self.view.variables[i]
        return Reg(carry, self.at_lane(index, lane))

    def accumulate(self) -> list[Statement]:
        """`acc = fn(acc, operand)` for every lane."""
        assert isinstance(self.s.op, Reduce)
        dtype = self.s.dtype.compute
        conditions = self.predicates(writes=False)
        for lane, value in enumerate(self.read(0)):
            acc = self.accumulator(lane)
            where = all_of(self.condition_at(c, lane) for c in conditions)
            x = self.as_type(value, dtype)
            self.out.append(Compute(self.s.op.fn, acc, (acc, x), where))
        return self.out

    def finish(self) -> list[Statement]:
        """Across the threads that reduce, then to memory."""
        self.meet()
        return self.store_result()

    def meet(self) -> list[Statement]:
        """Combines the accumulators of the threads that reduce together, in all of them."""
        s = self.s
        assert isinstance(s.op, Reduce)
        reducing = reduced_loops(self.graph, s)
        bound = [s.loops[i].parallel for i in reducing if s.loops[i].axis.extent != Int(1)]
        named = THREAD_DIMS | CLUSTER_DIMS
        dims = tuple(sorted(named[p] for p in bound if p in named))
        if is_shared_out_in_cluster(self.storage.context, s):
            dims = ()
        dtype = s.dtype.compute
        identity = Imm(reduction_identity(s.op.fn, dtype), dtype)
        if dims:
            accs = self.accumulators()
            self.out.extend(ThreadReduce(s.op.fn, a, a, dims, identity) for a in accs)
        return self.out

    def store_result(self) -> list[Statement]:
        """Writes the accumulators, unless registers hold the result."""
        if self.s.memory is not Memory.LOCAL:
            reducing = reduced_loops(self.graph, self.s)
            self._store(list(self.accumulators()), self._kept_conditions(reducing))
        return self.out

    def accumulators(self) -> list[Reg]:
        """The accumulators of the lanes that are outputs of their own."""
        lanes = range(kept_lanes(self.storage, self.s))
        if isinstance(self.s.op, Reduce):
            return [self.accumulator(k) for k in lanes]
        vector: Expr = ZERO
        for i in part_loops(self.storage, self.s):
            vector = vector * self.s.loops[i].axis.extent + self.view.variables[i]
        buffer = self.storage.context.buffers[self.s]
        return [Reg(buffer, vector * len(lanes) + k) for k in lanes]

    def add_earlier(self, source: Buffer, begin: Expr) -> list[Statement]:
        """Adds what earlier blocks left to the accumulators, from where it begins in a buffer."""
        s = self.s
        fn = reducing_function(s)
        for first, at in self._places(begin).items():
            width = vector_of(self.storage, s)
            tmp = self.temporary(source.dtype, width)
            self.out.append(Load(Reg(tmp), source, at, width))
            parts = self._as_accumulators(tmp, width)
            for part, acc in zip(parts, self.accumulators()[first : first + width], strict=True):
                self.out.append(Compute(fn, acc, (part, acc)))
        return self.out

    def add_stored(self, result: Stage) -> list[Statement]:
        """Adds what earlier blocks have stored in a result to the accumulators."""
        s, fn, dtype = self.s, reducing_function(self.s), self.s.dtype.compute
        nothing = Imm(reduction_identity(fn, dtype), dtype)
        buffer, accs = self.storage.context.buffers[result], self.accumulators()
        there = self.temporary(dtype, len(accs))

        def load(lane: int, at: Expr, width: int, predicate: Cond) -> Statement:
            return Load(Reg(there, Int(lane)), buffer, at, width, predicate, fill=nothing)

        self.out += loads_of_result(self.storage, s, result, self.view.variables, load)
        self.out += [Compute(fn, a, (Reg(there, Int(k)), a)) for k, a in enumerate(accs)]
        return self.out

    def leave(self, to: Buffer, begin: Expr) -> list[Statement]:
        """Stores the accumulators to where the block's parts begin in a buffer."""
        source = self._gathered_registers(self.accumulators(), to.dtype)
        copy = all_of(one_of_copies(self.storage, self.s))
        width = vector_of(self.storage, self.s)
        for first, at in self._places(begin).items():
            reg = Reg(source.buffer, source.index + first)
            self.out.append(Store(to, at, reg, width, copy))
        return self.out

    def gather(self, g: Gathering) -> list[Statement]:
        """The parts of all blocks, in their order, into the accumulators: of threads that reduce
        together each loads every so many, before they meet again."""
        s = self.s
        fn = reducing_function(s)
        identity = Imm(reduction_identity(fn, s.dtype.compute), s.dtype.compute)
        accs, width = self.accumulators(), vector_of(self.storage, s)
        self.out.extend(Compute("copy", a, (identity,)) for a in accs)
        thread, threads = threads_reducing(self.storage.context, s)
        trips = ceildiv(g.count, threads)
        trip = Var(f"part_{s.name}", 0, trips - 1)
        part = trip * threads + thread
        exists = less(part, g.count)
        there = part if threads == ONE else minimum(part, g.count - 1)
        before, self.out = self.out, []
        for first, at in self._places(g.first + there * g.size).items():
            tmp = self.temporary(g.guarded.dtype, width)
            self.out.append(Load(Reg(tmp), g.guarded, at, width))
            parts = self._as_accumulators(tmp, width)
            for one, acc in zip(parts, accs[first : first + width], strict=True):
                self.out.append(Compute(fn, acc, (acc, one), exists))
        adds, self.out = self.out, before
        self.out.append(For(trip, trips, tuple(adds), overlap=PARTS_AT_ONCE))
        return self.out

    def take(self, g: Gathering) -> list[Statement]:
        """What all blocks have added to the accumulators' places."""
        accs = self.accumulators()
        for first, at in self._places(g.first).items():
            width = vector_of(self.storage, self.s)
            tmp = self.temporary(g.guarded.dtype, width)
            self.out.append(Load(Reg(tmp), g.guarded, at, width))
            parts = self._as_accumulators(tmp, width)
            for one, acc in zip(parts, accs[first : first + width], strict=True):
                self.out.append(Compute("copy", acc, (one,)))
        return self.out

    def clear(self, g: Gathering) -> list[Statement]:
        """Zeros for the next launch in the accumulators' places."""
        width, dtype = vector_of(self.storage, self.s), g.guarded.dtype
        zeros = self.temporary(dtype, width)
        zero = Imm(reduction_identity("add", dtype), dtype)
        self.out.extend(Compute("copy", Reg(zeros, Int(k)), (zero,)) for k in range(width))
        copy = all_of(one_of_copies(self.storage, self.s))
        for at in self._places(g.first).values():
            self.out.append(Store(g.guarded, at, Reg(zeros), width, copy))
        return self.out

    def _as_accumulators(self, parts: Buffer, width: int) -> list[Reg]:
        """What blocks handed on, in the dtype of the accumulators."""
        dtype = self.s.dtype.compute
        if parts.dtype is dtype:
            return [Reg(parts, Int(k)) for k in range(width)]
        wide = self.temporary(dtype, width)
        for k in range(width):
            self.out.append(Compute("cast", Reg(wide, Int(k)), (Reg(parts, Int(k)),)))
        return [Reg(wide, Int(k)) for k in range(width)]

    def send_shares(self, to: SharedOut) -> list[Statement]:
        """Stores the accumulators in the blocks of the cluster that finish them."""
        self.out.extend(to.send(self.accumulators(), self.view.variables))
        return self.out

    def gather_share(self, found: SharedOut) -> list[Statement]:
        """The parts of all blocks of the cluster, in the order of ranks, into the accumulators."""
        s, dtype = self.s, found.parts.dtype
        fn = reducing_function(s)
        identity = Imm(reduction_identity(fn, dtype), dtype)
        accs, width = self.accumulators(), vector_of(self.storage, s)
        self.out.extend(Compute("copy", a, (identity,)) for a in accs)
        adds: list[Statement] = []
        for rank in range(found.nblocks):
            for first, at in found.places(Int(rank), self.view.variables).items():
                tmp = self.temporary(dtype, width)
                self.out.append(Load(Reg(tmp), found.parts, at, width))
                for k, acc in enumerate(accs[first : first + width]):
                    adds.append(Compute(fn, acc, (acc, Reg(tmp, Int(k)))))
        self.out.extend(adds)
        return self.out

    def _places(self, begin: Expr) -> dict[int, Expr]:
        """Where the vectors of accumulators lie, by their first lanes."""
        storage, s = self.storage, self.s
        values = dict(enumerate(self.view.variables))
        lanes = range(0, kept_lanes(storage, s), vector_of(storage, s))
        return {k: begin + element_in_block(storage, s, values, k) for k in lanes}

    def _kept_conditions(self, reducing: tuple[int, ...]) -> list[Cond]:
        own = {v for i in reducing for v in variables(self.view.variables[i])}
        kept = [c for c in self.predicates(writes=True) if not own.intersection(variables(c))]
        for i in reducing:
            parallel = self.s.loops[i].parallel
            is_copied = parallel.is_thread or (parallel.is_block and self.s.memory is Memory.GLOBAL)
            if is_copied and isinstance(self.view.variables[i], Var):
                finished = self.storage.context.finished.get(self.s, {})
                kept.append(finished.get(parallel, equal(self.view.variables[i], 0)))
        return kept

    # --- writing --------------------------------------------------------------------------------

    def write(self, values: Sequence[Operand]) -> None:
        """Puts the lanes where the stage lives."""
        s = self.s
        if s.memory is not Memory.LOCAL:
            self._store(values, self.predicates(writes=True))
            return
        dtype = register_dtype(s)
        for lane, value in enumerate(values):
            target = self.register(lane)
            if (
                isinstance(value, Reg)
                and value.buffer is target.buffer
                and value.index == target.index
            ):
                continue
            fn = "copy" if operand_dtype(value) is dtype else "cast"
            self.out.append(Compute(fn, target, (value,)))

    def _store(self, values: Sequence[Operand], conditions: Sequence[Cond]) -> None:
        s = self.s
        buffer = self.storage.context.buffers[s]
        lanes = len(values)
        index = self.own_element()
        if self.storage.is_filled(s):
            self._check_filled(index, buffer)
        source = self._gathered_registers(values, buffer.dtype)

        def store(first: int, width: int, predicate: Cond, lanes: Lanes) -> Statement:
            assert lanes == WHOLE, "stores begin at words, and write lanes that exist"
            register = Reg(source.buffer, source.index + first)
            return Store(buffer, self.at_lane(index, first), register, width, predicate, s.cache)

        found = self.vectors(s, index, conditions, lanes, may_lack=False)
        self.out += [v.statement(store) for v in found]

    def _check_filled(self, index: Expr, buffer: Buffer) -> None:
        """Raises ScheduleError where a tile that is stored beyond the edges of its tensor, by
        threads that its loops have, has no room for that."""
        pairs = zip(self.s.loops, self.view.variables, strict=True)
        own = {v: Var(v.name, 0, x.axis.extent - 1) for x, v in pairs if isinstance(v, Var)}
        if prove(less(substitute(index, own), buffer.size)) is not True:
            raise ScheduleError(
                f"{self.s.name} is a tile that is filled beyond the edges of the tensor, but its "
                f"loops go beyond the tile, too (to {index} of {buffer.size}); split by divisors "
                "of it"
            )

    def _gathered_registers(self, values: Sequence[Operand], dtype: DType) -> Reg:
        """The lanes in consecutive registers of the buffer's type."""
        first = values[0]
        if (
            isinstance(first, Reg)
            and all(
                isinstance(v, Reg) and v.buffer is first.buffer and v.index == first.index + k
                for k, v in enumerate(values)
            )
            and first.buffer.dtype is dtype
        ):
            return first
        tmp = self.temporary(dtype, len(values))
        for k, v in enumerate(values):
            fn = "copy" if operand_dtype(v) is dtype else "cast"
            self.out.append(Compute(fn, Reg(tmp, Int(k)), (v,)))
        return Reg(tmp)
