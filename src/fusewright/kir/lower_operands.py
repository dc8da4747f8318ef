"""Lowering of operands: those of one definition as registers, and when the definition runs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fusewright.axes.classes import AxisClass
from fusewright.axes.contiguity import Order, holds_throughout
from fusewright.axes.paths import value_of
from fusewright.axes.pieces import Pieces, places
from fusewright.core.conditions import (
    TRUE,
    Cond,
    all_of,
    equal,
    less,
    less_equal,
    negate,
    prove,
    substitute_condition,
)
from fusewright.core.expr import ZERO, Expr, Int, variables
from fusewright.core.substitution import substitute
from fusewright.dtypes import DType
from fusewright.errors import ScheduleError
from fusewright.fusion.ir import Constant, Parts, Resize, Size, moves_data
from fusewright.fusion.literals import is_parameter, needs_value
from fusewright.kir.choose_lanes import (
    LaneAccess,
    TooNarrow,
    Vector,
    VectorRun,
    choose_lanes,
    choose_runs,
    choose_words,
    condition_at,
    order_of_lanes,
    pieces_of_lanes,
    somewhere,
)
from fusewright.kir.ir import (
    Alloc,
    Arg,
    Argument,
    Buffer,
    Compute,
    If,
    Imm,
    Index,
    Lanes,
    Load,
    Operand,
    Reg,
    RegVar,
    Statement,
)
from fusewright.kir.lower_storage import Storage, register_dtype
from fusewright.kir.lower_turns import at_reader
from fusewright.memory import Cache, Memory
from fusewright.schedule.graph import Stage
from fusewright.schedule.nest import reduced_loops
from fusewright.schedule.parallel import BLOCK_DIMS, THREAD_DIMS, Parallel
from fusewright.schedule.products import strided_operand
from fusewright.schedule.views import OperandView as Access, View, class_value, operand, view
from fusewright.target import MAX_VECTOR_NBYTES


class OperandReader:
    """One stage at one place: its predicates, and its operands as registers, with the statements
    that bring them there collected in `out`."""

    def __init__(self, storage: Storage, s: Stage, values: tuple[Expr, ...]) -> None:
        self.storage = storage
        self.s = s
        self.graph = storage.graph
        self.view: View = view(storage.graph, s, values)
        self.width = storage.width(s)
        self.lane = storage.lane(s) if self.width > 1 else None
        self.results: Buffer | None = None
        self.out: list[Statement] = []

    # --- predicates -----------------------------------------------------------------------------

    def predicates(self, *, writes: bool) -> list[Cond]:
        """When the statement runs. A write to memory that other threads see also needs one copy
        of every dimension that the definition is only repeated over."""
        s = self.s
        conditions = self._guards()
        if not (writes and self.storage.is_filled(s)):
            conditions = [*self.view.path.predicates, *conditions]
        reducing = reduced_loops(self.graph, s)
        if writes:
            across_blocks = s.memory is Memory.GLOBAL
            conditions.extend(
                c for c in self.view.path.free_conditions if self._seen(c, across_blocks)
            )
            conditions.extend(self._one_copy(across_blocks))
        elif reducing:
            # Loops and lanes inside the reduction would add every element again, but for those that
            # have accumulators of their own.
            shared, apart = THREAD_DIMS | BLOCK_DIMS, self.storage.accumulator_loops(s)
            own = {
                v
                for i, x in enumerate(s.loops)
                if i in reducing
                or (i > min(reducing) and x.parallel not in shared and i not in apart)
                for v in variables(self.view.variables[i])
            }
            conditions.extend(
                c for c in self.view.path.free_conditions if own.intersection(variables(c))
            )
        return conditions

    def _seen(self, repeated: Cond, across_blocks: bool) -> bool:
        """Whether copies that a condition leaves out would write memory that another one writes:
        each block has shared memory of its own, and so has each trip of a loop that readers share,
        so that a condition on these alone leaves out whole tiles, whose memory nobody else writes.
        Sizes vary with neither."""
        own = {self.storage.context.dims[name].var for name in BLOCK_DIMS.values()}
        pairs = zip(self.s.loops, self.view.variables[: self.s.inline_depth], strict=False)
        own |= {v for x, e in pairs if x.parallel.is_serial for v in variables(e)}
        sizes = self.storage.context.sizes
        return across_blocks or any(v not in sizes and v not in own for v in variables(repeated))

    def _guards(self) -> list[Cond]:
        out: list[Cond] = []
        for x, v in zip(self.s.loops, self.view.variables, strict=True):
            if (x.parallel.is_thread or x.parallel.is_block) and self.graph.depends(
                x.axis, self.s.frame.domain
            ):
                out.append(less(v, x.axis.extent))
        return [c for c in out if c != TRUE]

    def _one_copy(self, across_blocks: bool) -> list[Cond]:
        bound = {x.parallel for x in self.s.loops if x.axis.extent != Int(1)}
        names = {**THREAD_DIMS, **(BLOCK_DIMS if across_blocks else {})}
        finished = self.storage.context.finished.get(self.s, {})
        out: list[Cond] = []
        for parallel, name in names.items():
            dim = self.storage.context.dims[name]
            if parallel not in bound and dim.extent != Int(1):
                there = finished.get(parallel, equal(dim.var, 0))
                out.append(at_reader(self.storage.context, there, self._places_of_loops()))
        return out

    def _places_of_loops(self) -> list[tuple[AxisClass, Expr]]:
        return [(x.axis, v) for x, v in zip(self.s.loops, self.view.variables, strict=True)]

    # --- reading --------------------------------------------------------------------------------

    def at_lane(self, e: Expr, lane: int) -> Expr:
        return e if self.lane is None else substitute(e, {self.lane: lane})

    def read(
        self, position: int, gathered: Sequence[RegVar] = (), *, only_inside: bool = False
    ) -> list[Operand]:
        """Operand `position`, one value a lane (the same one where it does not depend on it);
        where its own conditions do not hold, a fill, or anything if it is used `only_inside`."""
        p = self.s.operands[position]
        in_text = needs_value(self.s.op, position, p.dtype)
        literal = self.literal(p, in_text=in_text)
        if literal is not None and not isinstance(self.s.op, Resize | Parts):
            return [literal] * self.width
        found = operand(self.graph, self.view, position)
        if literal is not None:
            conditions = () if only_inside else found.predicates
            return self._inside([literal] * self.width, p.dtype.compute, conditions)
        if gathered:
            return self._gather(p, found, gathered)
        p, index = self._stored(p, found)
        if p.memory is Memory.LOCAL:
            conditions = () if only_inside else found.predicates
            return self._read_registers(p, index, conditions)
        own = self.predicates(writes=False)
        conditions = (*own, *found.predicates)
        is_filled = self.storage.is_filled(self.s) and self.s.copied is None
        exact = is_filled or (bool(found.predicates) and not only_inside)
        if not exact or is_filled or not self._needs_parts(p, index, conditions):
            return self._load(p, index, conditions, exact=exact)
        values = self._load(p, index, conditions, exact=False)
        self._fill_outside(values, found.predicates)
        return values

    def literal(self, p: Stage, *, in_text: bool = False) -> Operand | None:
        """The literal that a virtual operand stands for; None for others."""
        if not p.is_virtual or p.is_viewed:
            return None
        while p.operands:
            p = p.operands[0]
        return self.constant(p, in_text=in_text)

    def constant(self, p: Stage, *, in_text: bool = False) -> Operand:
        """A literal in place: a size, a parameter, or an immediate where it stays `in_text`."""
        if isinstance(p.op, Size):
            return Index(p.op.expr, p.dtype)
        assert isinstance(p.op, Constant)
        value, dtype = p.op.value, p.dtype.compute
        if not is_parameter(value):
            return Imm(value, dtype)
        if in_text:
            return Imm(literal_as(value, dtype), dtype)
        arguments = self.storage.context.arguments
        key = (value, dtype)
        if key not in arguments:
            arguments[key] = (Argument(f"s{len(arguments)}", dtype), value)
        return Arg(arguments[key][0])

    def element(self, p: Stage, read: Access) -> Expr:
        """The index, in the buffer of `p`, of the element that is read."""
        if p.memory is Memory.GLOBAL:
            return self._address(p, read.coordinates)
        if p.boxed:
            return self._tile_place(p, read)
        index: Expr = ZERO
        for axis in self.storage.places(p):
            value = class_value(self.graph, self.view, read, axis)
            if value is None:
                raise ScheduleError(
                    f"{self.s.name} reads {p.name} at a place that {axis}, by which {p.name} is "
                    "stored, does not determine; keep it in shared memory under loops of its own "
                    "axes"
                )
            index = index * self.storage.held_extent(p, axis) + value
        return index

    def _stored(self, p: Stage, read: Access) -> tuple[Stage, Expr]:
        """What holds the elements of an operand, of a view that is read in place the input behind
        it, and the place of the element there."""
        if not p.is_viewed:
            return p, self.element(p, read)
        found = strided_operand(p)
        assert found is not None, "what is viewed in place is a view by strides"
        index = found.offset
        for c, stride in zip(read.coordinates, found.strides, strict=True):
            assert c is not None
            index = index + c * stride
        return found.source, index

    def _tile_place(self, p: Stage, read: Access) -> Expr:
        box = self.storage.box(p)
        at = [class_value(self.graph, self.view, read, p.loops[i].axis) for i in box.loops]
        row, column = at
        if row is None or column is None:
            raise ScheduleError(
                f"{self.s.name} reads {p.name} at a place of its tile that is not determined; give "
                "both the same tiles"
            )
        return box.tile.place(box.tile.index(row, column))

    def _address(self, p: Stage, coordinates: Sequence[Expr | None]) -> Expr:
        index: Expr = ZERO
        for c, stride in zip(coordinates, self.storage.strides(p), strict=True):
            assert c is not None
            index = index + c * stride
        return index

    def own_element(self) -> Expr:
        """The index, in the stage's own buffer, of the element that is defined."""
        s = self.s
        if s.memory is Memory.GLOBAL:
            return self._address(s, self.view.output)
        known = [(x.axis, v) for x, v in zip(s.loops, self.view.variables, strict=True)]
        index: Expr = ZERO
        for axis in self.storage.places(s):
            index = index * self.storage.held_extent(s, axis) + self._own_value(known, axis)
        return index

    def _own_value(self, known: Sequence[tuple[AxisClass, Expr]], axis: AxisClass) -> Expr:
        for c, v in known:
            if c is axis:
                return v
        found = value_of(self.graph, known, axis)
        if found is None:
            raise ScheduleError(
                f"the loops of {self.s.name} do not determine {axis}, by which it is stored"
            )
        return found[0]

    def _read_registers(self, p: Stage, index: Expr, conditions: tuple[Cond, ...]) -> list[Operand]:
        buffer = self.storage.context.buffers[p]
        dims = [d.var for d in self.storage.context.dims.values() if d.var in variables(index)]
        if dims:
            raise ScheduleError(
                f"{self.s.name} reads {p.name} at register {index}: registers cannot be indexed "
                f"by {dims[0]}; keep {p.name} in shared memory, or bind its loops like the reader's"
            )
        regs: list[Operand] = [Reg(buffer, self.at_lane(index, k)) for k in range(self.width)]
        if prove(less(index, buffer.size)) is not True:
            # Beyond its domain a padded loop of the reader asks for registers that do not exist.
            conditions = (*self.predicates(writes=False), *conditions)
        return self._inside(regs, buffer.dtype, conditions)

    def _inside(
        self, values: list[Operand], dtype: DType, conditions: tuple[Cond, ...]
    ) -> list[Operand]:
        """The values of the lanes where the conditions hold, the fill elsewhere."""
        if not conditions:
            return values
        tmp = self.temporary(dtype, self.width)
        fill = self._fill(dtype)
        for k, v in enumerate(values):
            self.out.append(Compute("copy", Reg(tmp, Int(k)), (fill,)))
            where = all_of(self.condition_at(c, k) for c in conditions)
            self.out.append(Compute("copy", Reg(tmp, Int(k)), (v,), where))
        return [Reg(tmp, Int(k)) for k in range(self.width)]

    def condition_at(self, c: Cond, lane: int) -> Cond:
        return condition_at(c, self.lane, lane)

    def _fill(self, dtype: DType) -> Imm:
        value = self.s.op.fill if isinstance(self.s.op, Resize | Parts) else 0
        return Imm(literal_as(value, dtype), dtype)

    def _load(
        self, p: Stage, index: Expr, conditions: Sequence[Cond], *, exact: bool
    ) -> list[Operand]:
        """The lanes of an operand in memory; where the conditions do not hold the fill if it is to
        be `exact`, else anything."""
        buffer = self.storage.context.buffers[p]
        lane = self.lane
        depends = lane is not None and lane in variables(index)
        if lane is not None and not depends and any(lane in variables(c) for c in conditions):
            some = somewhere(conditions, lane, range(self.width))
            values = self._load(p, index, [some], exact=exact)
            return self._inside(values, buffer.dtype, tuple(conditions)) if exact else values
        lanes = self.width if depends else 1
        order = self._order(p, index) if depends else None
        if order is not None:
            return self._load_words(p, index, order, conditions, exact=exact)
        pieces = self._pieces(p, index) if depends else None
        if pieces is not None:
            values = self._load_pieces(p, index, pieces, conditions)
            return self._inside(values, buffer.dtype, tuple(conditions)) if exact else values
        target = self._load_target(buffer.dtype, lanes)
        cache = self.s.cache if p.is_input and moves_data(self.s.op) else p.cache
        fill = self._fill(buffer.dtype)

        def load(first: int, width: int, predicate: Cond, lanes: Lanes) -> Load:
            return Load(
                Reg(target.buffer, target.index + first),
                buffer,
                self.at_lane(index, first),
                width,
                predicate,
                None if predicate == TRUE or not lanes.all_exist else fill,
                Cache.DEFAULT if lanes.is_cut else cache,
                lanes,
            )

        found = self.vectors(p, index, conditions, lanes, may_lack=not exact)
        self.out += [v.statement(load) for v in found]
        return [Reg(target.buffer, target.index + (k if depends else 0)) for k in range(self.width)]

    def _order(self, p: Stage, index: Expr) -> Order | None:
        """How the lanes are taken out of words of global memory; None for other accesses."""
        lane, buffer, s = self.lane, self.storage.context.buffers[p], self.s
        if lane is None or buffer.memory is not Memory.GLOBAL or s.copied is not None:
            return None
        access = self._lanes_of(p, index, (), self.width, may_lack=False)
        return order_of_lanes(access)

    def _load_words(
        self, p: Stage, index: Expr, order: Order, conditions: Sequence[Cond], *, exact: bool
    ) -> list[Operand]:
        """The lanes, taken out of the words that they lie in. What is between them is read along,
        as far as it is there."""
        buffer = self.storage.context.buffers[p]
        access = self._lanes_of(p, index, conditions, self.width, may_lack=not exact)
        vectors = choose_words(access, order)
        base = vectors[0].first
        words = self.temporary(buffer.dtype, max(v.first + v.width for v in vectors) - base)
        outside = self._fill(buffer.dtype)
        for v in vectors:
            fill = None if v.predicate == TRUE or not v.lanes.all_exist else outside
            at = (Reg(words, Int(v.first - base)), buffer, order.begin + v.first, v.width)
            self.out.append(Load(*at, v.predicate, fill, Cache.DEFAULT, v.lanes))
        own = self._load_target(buffer.dtype, self.width)
        out = [Reg(own.buffer, own.index + k) for k in range(self.width)]
        for r, place in zip(out, order.places, strict=True):
            self.out.append(Compute("copy", r, (Reg(words, Int(place - base)),)))
        return list(out)

    def _pieces(self, p: Stage, index: Expr) -> Pieces | None:
        """How the lanes end one row and begin another in global memory; None for other accesses."""
        buffer = self.storage.context.buffers[p]
        if self.lane is None or buffer.memory is not Memory.GLOBAL or self.s.copied is not None:
            return None
        return pieces_of_lanes(self._lanes_of(p, index, (), self.width, may_lack=False))

    def _load_pieces(
        self, p: Stage, index: Expr, pieces: Pieces, conditions: Sequence[Cond]
    ) -> list[Operand]:
        """The lanes, each of the row that it is in; anything where the conditions do not hold."""
        buffer = self.storage.context.buffers[p]
        access = self._lanes_of(p, index, conditions, self.width, may_lack=True)
        width = self.width
        if pieces.step:
            width = min(width, MAX_VECTOR_NBYTES // buffer.dtype.nbytes)
        own = self._load_target(buffer.dtype, self.width)
        out = [Reg(own.buffer, own.index + k) for k in range(self.width)]
        for first in range(0, self.width, width):
            runs = choose_runs(access, pieces, first, width)
            row = [self._load_run(buffer, r) for r in runs]
            for k, place in enumerate(places(pieces, width), start=first):
                self.out.append(Compute("copy", out[k], (Reg(row[0], Int(place)),)))
                behind = less_equal(pieces.cut, k)
                self.out.append(Compute("copy", out[k], (Reg(row[1], Int(place)),), behind))
        return list(out)

    def _load_run(self, buffer: Buffer, r: VectorRun) -> Buffer:
        """The registers that hold a vector of one row."""
        row, v = self.temporary(buffer.dtype, r.vector.width), r.vector
        fill = None if v.predicate == TRUE or not v.lanes.all_exist else self._fill(buffer.dtype)
        at = (Reg(row), buffer, r.begin, v.width, v.predicate, fill)
        self.out.append(Load(*at, Cache.DEFAULT, v.lanes))
        return row

    def _needs_parts(self, p: Stage, index: Expr, conditions: Sequence[Cond]) -> bool:
        """Whether an exact read of vectors in global memory would have branches for their parts."""
        if self.lane is None or self.lane not in variables(index) or p.memory is not Memory.GLOBAL:
            return False
        if self._order(p, index) is not None:
            return any(self.lane in variables(c) for c in conditions)
        if self._pieces(p, index) is not None:
            return True
        vectors = self.vectors(p, index, conditions, self.width, may_lack=False)
        return any(v.parts for v in vectors)

    def _fill_outside(self, values: Sequence[Operand], inside: Sequence[Cond]) -> None:
        """Puts the fill into the registers of lanes where conditions do not hold."""
        assert self.lane is not None
        whole = all_of(holds_throughout(c, self.lane) for c in inside)
        fills: list[Statement] = []
        for k, v in enumerate(values):
            assert isinstance(v, Reg)
            lacks = negate(all_of(self.condition_at(c, k) for c in inside))
            here = TRUE if lacks == negate(whole) else lacks
            fills.append(Compute("copy", v, (self._fill(v.buffer.dtype),), here))
        self.out.append(If(negate(whole), tuple(fills)))

    def register(self, lane: int) -> Reg:
        """The register of a lane of a stage that lives in registers."""
        index = self.own_element()
        return Reg(self.storage.context.buffers[self.s], self.at_lane(index, lane))

    def _load_target(self, dtype: DType, lanes: int) -> Reg:
        """Where loaded lanes go: the stage's own registers when it only moves its operand."""
        s = self.s
        own = s.memory is Memory.LOCAL and register_dtype(s) is dtype and len(s.operands) == 1
        if own and moves_data(s.op) and lanes == self.width:
            first = self.register(0)
            if all(self.register(k).index == first.index + k for k in range(lanes)):
                return first
        return Reg(self.temporary(dtype, lanes))

    def vectors(
        self, p: Stage, index: Expr, conditions: Sequence[Cond], lanes: int, *, may_lack: bool
    ) -> tuple[Vector, ...]:
        """The accesses that cover the lanes of the stage's own tensor or an operand, at `index`.
        Raises ScheduleError where the address does not allow them."""
        found = choose_lanes(self._lanes_of(p, index, conditions, lanes, may_lack=may_lack))
        if isinstance(found, TooNarrow):
            raise ScheduleError(
                f"Vectorize({lanes}) on {self.s.name}: its access to {p.name} at {index} allows "
                f"{found.possible} elements at once, not {found.width}; use a narrower vector, or "
                f"cache {p.name} and vectorise that copy along its contiguous axis"
            )
        return found

    def _lanes_of(
        self, p: Stage, index: Expr, conditions: Sequence[Cond], lanes: int, *, may_lack: bool
    ) -> LaneAccess:
        """What is known of the access to the stage's own tensor or an operand."""
        buffer, reads = self.storage.context.buffers[p], p is not self.s
        anywhere = reads and self.s.from_any_address and buffer.memory is Memory.GLOBAL
        is_padded = any(x.parallel is Parallel.VECTORIZE for x in p.loops)
        at = (buffer, index, self.lane, lanes, conditions)
        return LaneAccess(*at, may_lack, anywhere, is_padded)

    def temporary(self, dtype: DType, size: int = 1) -> Buffer:
        tmp = self.storage.temporary(self.s, dtype, size)
        self.out.append(Alloc(tmp))
        return tmp

    def _gather(self, p: Stage, read: Access, gathered: Sequence[RegVar]) -> list[Operand]:
        if p.stored.memory is Memory.LOCAL:
            raise ScheduleError(
                f"{self.s.name} gathers from {p.name}, which is in registers; "
                "keep it in shared memory or read it from global memory"
            )
        conditions = (*self.predicates(writes=False), *read.predicates)
        exact = bool(read.predicates)
        if len(set(gathered)) == 1:
            at = tuple(gathered[0] if c is None else c for c in read.coordinates)
            p, place = self._stored(p, Access(read.position, at, read.predicates))
            return self._load(p, place, conditions, exact=exact)
        out: list[Operand] = []
        lane, width = self.lane, self.width
        assert lane is not None
        for k in range(width):
            at = tuple(gathered[k] if c is None else c for c in read.coordinates)
            source, place = self._stored(p, Access(read.position, at, read.predicates))
            here = [substitute_condition(c, {lane: k}) for c in conditions]
            self.lane, self.width = None, 1
            out.extend(self._load(source, substitute(place, {lane: k}), here, exact=exact))
            self.lane, self.width = lane, width
        return out


def operand_key(o: Operand) -> tuple[object, ...]:
    match o:
        case Reg():
            return ("reg", o.buffer, o.index)
        case Imm():
            return ("imm", repr(o.value), o.dtype)
        case Index():
            return ("index", o.expr, o.dtype)
        case Arg():
            return ("arg", o.argument)


def literal_as(value: bool | int | float, dtype: DType) -> bool | int | float:
    """A literal as a value of a dtype, exactly as numpy would convert it."""
    if dtype.is_float and dtype.nbytes == 8:
        return float(value)
    with np.errstate(all="ignore"):
        return np.asarray(value).astype(dtype.numpy).item() if not dtype.is_float else float(value)
