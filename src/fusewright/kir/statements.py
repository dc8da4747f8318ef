"""The statements of one definition: reading operands, computing, accumulating, writing.

A definition stands in its loops; `Statements` turns it into KIR there. Values are kept in the type
they are stored in when they were only moved, and in the compute type of their dtype otherwise.
A Vectorize loop becomes lanes: computation is repeated per lane, memory is accessed once, wide.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from fusewright.axes.contiguity import vector_width
from fusewright.axes.frames import Gathered
from fusewright.core.expr import (
    TRUE,
    ZERO,
    Cond,
    Expr,
    Int,
    Var,
    all_of,
    constant_value,
    equal,
    less,
    substitute,
    substitute_condition,
    variables,
)
from fusewright.core.functions import APPROXIMATE
from fusewright.core.identities import reduction_identity
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
    Take,
    TakeAlong,
)
from fusewright.kir.ir import (
    Alloc,
    Arg,
    Argument,
    Buffer,
    Compute,
    Dim,
    For,
    Imm,
    Index,
    Load,
    Operand,
    Reg,
    RegVar,
    Statement,
    Store,
    ThreadReduce,
)
from fusewright.memory import Memory
from fusewright.schedule.graph import Dataflow, Stage, moves_data
from fusewright.schedule.nest import LoopNode, Nest, reduced_loops
from fusewright.schedule.parallel import BLOCK_DIMS, THREAD_DIMS, Parallel
from fusewright.schedule.views import Operand as Access
from fusewright.schedule.views import View, loop_value, operand, view
from fusewright.target import MAX_VECTOR_NBYTES

Strides: TypeAlias = Callable[[Stage], tuple[Expr, ...]]
UNNAMED = (0, 1, -1, math.inf, -math.inf)
"""Literals that stay in the kernel's text; all others are parameters, so that programs that
differ in them share one kernel."""


@dataclass(frozen=True, slots=True)
class Context:
    """What all definitions of a kernel share."""

    flow: Dataflow
    nest: Nest
    dims: dict[str, Dim]
    nodes: dict[LoopNode, Var]
    buffers: dict[Stage, Buffer]
    arguments: dict[object, tuple[Argument, bool | int | float]]
    approximable: set[Stage]
    lanes: dict[Stage, Var] = field(default_factory=dict[Stage, Var])
    carries: dict[Stage, Buffer] = field(default_factory=dict[Stage, Buffer])
    temporaries: list[int] = field(default_factory=list[int])


def carrying_loops(context: Context, s: Stage) -> tuple[int, ...]:
    """The loops across which a reduction or a scan carries its accumulator."""
    if isinstance(s.op, Scan):
        axis = s.frame.output[s.op.axis]
        return tuple(
            i for i, x in enumerate(s.loops) if context.flow.graph.depends(x.axis, [axis])
        )
    return reduced_loops(context.flow.graph, s)


def register_dtype(s: Stage) -> DType:
    """The type a value has in registers and shared memory: as stored when it was only moved or
    cast, else the compute type of its dtype."""
    if s.is_input or isinstance(s.op, Iota):
        return s.dtype
    if isinstance(s.op, Pointwise) and s.op.fn == "cast":
        return s.dtype
    if isinstance(s.op, Take | TakeAlong):
        return register_dtype(s.operands[0])
    if moves_data(s.op):
        kinds = list(dict.fromkeys(register_dtype(o) for o in s.operands))
        return kinds[0] if len(kinds) == 1 else s.dtype.compute
    return s.dtype.compute


class Statements:
    """Emits the statements of definitions in a context."""

    def __init__(self, context: Context, strides: Strides) -> None:
        self.context = context
        self.graph = context.flow.graph
        self.strides = strides

    # --- storage --------------------------------------------------------------------------------

    def allocate(self, s: Stage) -> Buffer | None:
        """The LOCAL or SHARED buffer of a stage; None for those in global memory."""
        if s.memory is Memory.GLOBAL:
            return None
        size: Expr = Int(1)
        for i in self.stored_loops(s):
            size = size * s.loops[i].axis.extent
        if constant_value(size) is None:
            raise ScheduleError(
                f"{s.name} would need {size} elements of {s.memory.value} memory; the size must "
                "be constant: inline it deeper, or split its loops by constants and bind the outer"
            )
        wide = any(x.parallel is Parallel.VECTORIZE for x in s.loops)
        dtype = register_dtype(s)
        alignment = MAX_VECTOR_NBYTES if wide or s.memory is Memory.SHARED else dtype.nbytes
        buffer = Buffer(s.name, dtype, size, s.memory, alignment)
        self.context.buffers[s] = buffer
        return buffer

    def stored_loops(self, s: Stage) -> tuple[int, ...]:
        """The loops that a stage's buffer is indexed by: its own, but those that reduce, that are
        repeated for nothing, or whose copies have memory of their own."""
        carried = reduced_loops(self.graph, s)
        out: list[int] = []
        for i, x in enumerate(s.loops):
            separate = x.parallel.is_block or (
                x.parallel.is_thread and s.memory is Memory.LOCAL
            )
            shared = x.parallel.is_serial and i < s.inline_depth
            if i in carried or separate or shared or x.axis.extent == Int(1):
                continue
            if self.graph.depends(x.axis, s.frame.domain):
                out.append(i)
        return tuple(out)

    def carry(self, s: Stage) -> Buffer | None:
        """The register accumulator of a scan, or of a reduction that is not itself in registers."""
        scan = isinstance(s.op, Scan)
        if not scan and (not s.is_reduction or s.memory is Memory.LOCAL):
            return None
        size: Expr = Int(1)
        for i in self._carried_lanes(s):
            size = size * s.loops[i].axis.extent
        if constant_value(size) is None:
            raise ScheduleError(f"{s.name} would carry {size} accumulators; the count must be constant")
        dtype = s.dtype.compute
        buffer = Buffer(f"{s.name}_acc", dtype, size, Memory.LOCAL, dtype.nbytes)
        self.context.carries[s] = buffer
        return buffer

    def _carried_lanes(self, s: Stage) -> tuple[int, ...]:
        """The kept loops inside the outermost carrying loop: one accumulator for each point."""
        carrying = carrying_loops(self.context, s)
        first = self._first_carrying(s)
        return tuple(
            i
            for i, x in enumerate(s.loops)
            if i not in carrying
            and x.axis.extent != Int(1)
            and (x.parallel is Parallel.VECTORIZE or (x.parallel.is_serial and i > first))
        )

    def _first_carrying(self, s: Stage) -> int:
        nodes = self.context.nest.nodes[s]
        found = [i for i in carrying_loops(self.context, s) if nodes[i] is not None]
        return found[0] if found else len(s.loops)

    # --- loop variables -------------------------------------------------------------------------

    def loop_values(self, s: Stage) -> tuple[Expr, ...]:
        """The expression that each loop of a stage has where the stage stands."""
        out: list[Expr] = []
        for i, x in enumerate(s.loops):
            if x.axis.extent == Int(1):
                out.append(ZERO)
            elif x.parallel.is_serial:
                node = self.context.nest.nodes[s][i]
                assert node is not None
                out.append(self.context.nodes[node])
            elif x.parallel is Parallel.VECTORIZE:
                out.append(self.lane(s))
            else:
                out.append(self.context.dims[(BLOCK_DIMS | THREAD_DIMS)[x.parallel]].var)
        return tuple(out)

    def lane(self, s: Stage) -> Var:
        """The variable that stands for the lane of a wide access."""
        if s not in self.context.lanes:
            extent = next(x.axis.extent for x in s.loops if x.parallel is Parallel.VECTORIZE)
            self.context.lanes[s] = Var("lane", 0, extent - 1)
        return self.context.lanes[s]

    def width(self, s: Stage) -> int:
        """The number of lanes of a stage."""
        for x in s.loops:
            if x.parallel is Parallel.VECTORIZE:
                n = constant_value(x.axis.extent)
                assert n is not None
                return n
        return 1

    def temporary(self, dtype: DType, size: int = 1) -> Buffer:
        """A fresh register buffer."""
        self.context.temporaries.append(0)
        name = f"t{len(self.context.temporaries) - 1}"
        return Buffer(name, dtype, Int(size), Memory.LOCAL, dtype.nbytes)

    # --- definitions ----------------------------------------------------------------------------

    def stage(self, s: Stage, *, standalone: bool) -> list[Statement]:
        """The statements of a definition inside all its loops."""
        d = Definition(self, s, self.loop_values(s))
        if isinstance(s.op, Reduce):
            body = d.accumulate()
            if not standalone:
                return body
            return [*self.initialise(s), *body, *self.finish(s)]
        return d.compute()

    def initialise(self, s: Stage) -> list[Statement]:
        """Sets the accumulators of a reduction or scan to the identity."""
        assert isinstance(s.op, Reduce | Scan)

        def one(d: Definition) -> list[Statement]:
            value = Imm(reduction_identity(d.s.op.fn, s.dtype.compute), s.dtype.compute)  # type: ignore[union-attr]
            return [Compute("copy", d.accumulator(lane), (value,)) for lane in range(d.width)]

        return self._over_lanes(s, one)

    def finish(self, s: Stage) -> list[Statement]:
        """Combines the accumulators of the threads that share an output, and writes it."""
        if isinstance(s.op, Scan):
            return []
        return self._over_lanes(s, Definition.finish)

    def _over_lanes(
        self, s: Stage, one: Callable[[Definition], list[Statement]]
    ) -> list[Statement]:
        """`one` inside fresh loops over the kept serial loops that stand inside a carrying one."""
        values = list(self.loop_values(s))
        loops: list[tuple[Var, Expr]] = []
        for i in self._carried_lanes(s):
            x = s.loops[i]
            if x.parallel.is_serial:
                v = Var(f"k{i}_{s.name}", 0, x.axis.extent - 1)
                values[i] = v
                loops.append((v, x.axis.extent))
        body = tuple(one(Definition(self, s, tuple(values))))
        for v, extent in reversed(loops):
            body = (For(v, extent, body),) if body else ()
        return list(body)


class Definition:
    """One stage at one place: collects the statements that define it there."""

    def __init__(self, emit: Statements, s: Stage, values: tuple[Expr, ...]) -> None:
        self.emit = emit
        self.s = s
        self.graph = emit.graph
        self.view: View = view(emit.graph, s, values)
        self.width = emit.width(s)
        self.lane = emit.lane(s) if self.width > 1 else None
        self.results: Buffer | None = None
        self.out: list[Statement] = []

    # --- predicates -----------------------------------------------------------------------------

    def predicates(self, *, writes: bool) -> list[Cond]:
        """When the statement runs. A write to memory that other threads see also needs one copy
        of every dimension that the definition is only repeated over."""
        s = self.s
        conditions = [*self.view.path.predicates, *self._guards()]
        reducing = reduced_loops(self.graph, s)
        if writes:
            conditions.extend(self.view.path.free_conditions)
            conditions.extend(self._one_copy(s.memory is Memory.GLOBAL))
        elif reducing:
            own = {v for i in reducing for v in variables(self.view.variables[i])}
            conditions.extend(
                c for c in self.view.path.free_conditions if own.intersection(variables(c))
            )
        return conditions

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
        out: list[Cond] = []
        for parallel, name in names.items():
            dim = self.emit.context.dims[name]
            if parallel not in bound and dim.extent != Int(1):
                out.append(equal(dim.var, 0))
        return out

    # --- reading --------------------------------------------------------------------------------

    def at_lane(self, e: Expr, lane: int) -> Expr:
        return e if self.lane is None else substitute(e, {self.lane: lane})

    def read(self, position: int, gathered: Sequence[RegVar] = ()) -> list[Operand]:
        """Operand `position`, one value a lane (the same one where it does not depend on it)."""
        p = self.s.operands[position]
        literal = self.literal(p)
        if literal is not None:
            return [literal] * self.width
        found = operand(self.graph, self.view, position)
        if gathered:
            return self._gather(p, found, gathered)
        index = self.element(p, found)
        if p.memory is Memory.LOCAL:
            return self._read_registers(p, index, found.predicates)
        return self._load(p, index, found.predicates)

    def literal(self, p: Stage) -> Operand | None:
        """A literal in place: an immediate, a parameter, or a size."""
        if not p.is_virtual:
            return None
        while p.operands:
            p = p.operands[0]
        if isinstance(p.op, Size):
            return Index(p.op.expr, p.dtype)
        assert isinstance(p.op, Constant)
        value, dtype = p.op.value, p.dtype.compute
        if isinstance(value, bool) or value in UNNAMED or value != value:
            return Imm(value, dtype)
        arguments = self.emit.context.arguments
        key = (value, dtype)
        if key not in arguments:
            arguments[key] = (Argument(f"s{len(arguments)}", dtype), value)
        return Arg(arguments[key][0])

    def element(self, p: Stage, read: Access) -> Expr:
        """The index, in the buffer of `p`, of the element that is read."""
        if p.memory is Memory.GLOBAL:
            return self._address(p, read.coordinates)
        index: Expr = ZERO
        for i in self.emit.stored_loops(p):
            value = loop_value(self.graph, self.view, read, i)
            if value is None:
                raise ScheduleError(
                    f"{self.s.name} reads {p.name} at a place that loop {i} of {p.name} does not "
                    "determine; keep it in shared memory under loops of its own axes"
                )
            index = index * p.loops[i].axis.extent + value
        return index

    def _address(self, p: Stage, coordinates: Sequence[Expr | None]) -> Expr:
        index: Expr = ZERO
        for c, stride in zip(coordinates, self.emit.strides(p), strict=True):
            assert c is not None
            index = index + c * stride
        return index

    def own_element(self) -> Expr:
        """The index, in the stage's own buffer, of the element that is defined."""
        s = self.s
        if s.memory is Memory.GLOBAL:
            return self._address(s, self.view.output)
        index: Expr = ZERO
        for i in self.emit.stored_loops(s):
            index = index * s.loops[i].axis.extent + self.view.variables[i]
        return index

    def _read_registers(
        self, p: Stage, index: Expr, conditions: tuple[Cond, ...]
    ) -> list[Operand]:
        buffer = self.emit.context.buffers[p]
        dims = [d.var for d in self.emit.context.dims.values() if d.var in variables(index)]
        if dims:
            raise ScheduleError(
                f"{self.s.name} reads {p.name} at register {index}: registers cannot be indexed "
                f"by {dims[0]}; keep {p.name} in shared memory, or bind its loops like the reader's"
            )
        regs: list[Operand] = [Reg(buffer, self.at_lane(index, k)) for k in range(self.width)]
        if not conditions:
            return regs
        tmp = self._temporary(buffer.dtype, self.width)
        fill = self._fill(buffer.dtype)
        for k, r in enumerate(regs):
            self.out.append(Compute("copy", Reg(tmp, Int(k)), (fill,)))
            where = all_of(self._condition_at(c, k) for c in conditions)
            self.out.append(Compute("copy", Reg(tmp, Int(k)), (r,), where))
        return [Reg(tmp, Int(k)) for k in range(self.width)]

    def _condition_at(self, c: Cond, lane: int) -> Cond:
        return c if self.lane is None else substitute_condition(c, {self.lane: lane})

    def _fill(self, dtype: DType) -> Imm:
        value = self.s.op.fill if isinstance(self.s.op, Resize) else 0
        return Imm(_as_dtype(value, dtype), dtype)

    def _load(self, p: Stage, index: Expr, extra: tuple[Cond, ...]) -> list[Operand]:
        buffer = self.emit.context.buffers[p]
        conditions = [*self.predicates(writes=False), *extra]
        depends = self.lane is not None and (
            self.lane in variables(index)
            or any(self.lane in variables(c) for c in conditions)
        )
        lanes = self.width if depends else 1
        target = self._load_target(buffer.dtype, lanes)
        for first, width in self._chunks(p, buffer, index, conditions, lanes):
            predicate = all_of(self._condition_at(c, first) for c in conditions)
            self.out.append(
                Load(
                    Reg(target.buffer, target.index + first),
                    buffer,
                    self.at_lane(index, first),
                    width,
                    predicate,
                    None if predicate == TRUE else self._fill(buffer.dtype),
                    self.s.cache if p.is_input and moves_data(self.s.op) else p.cache,
                )
            )
        return [
            Reg(target.buffer, target.index + (k if depends else 0)) for k in range(self.width)
        ]

    def _load_target(self, dtype: DType, lanes: int) -> Reg:
        """Where loaded lanes go: the stage's own registers when it only moves its operand."""
        s = self.s
        own = s.memory is Memory.LOCAL and register_dtype(s) is dtype and len(s.operands) == 1
        if own and moves_data(s.op) and lanes == self.width:
            first = self.register(0)
            if all(self.register(k).index == first.index + k for k in range(lanes)):
                return first
        return Reg(self._temporary(dtype, lanes))

    def _chunks(
        self, s: Stage, buffer: Buffer, index: Expr, conditions: Sequence[Cond], lanes: int
    ) -> list[tuple[int, int]]:
        """(first lane, width) of the accesses that cover the lanes, at most 16 bytes each."""
        if lanes == 1 or self.lane is None:
            return [(0, 1)]
        width = min(lanes, MAX_VECTOR_NBYTES // buffer.dtype.nbytes)
        width = min(width, buffer.alignment // buffer.dtype.nbytes or 1)
        possible = vector_width(index, self.lane, conditions, width)
        if possible < width:
            raise ScheduleError(
                f"Vectorize({lanes}) on {self.s.name}: its access to {s.name} at {index} allows "
                f"{possible} elements at once, not {width}; use a narrower vector, or cache "
                f"{s.name} and vectorise that copy along its contiguous axis"
            )
        return [(k, width) for k in range(0, lanes, width)]

    def _temporary(self, dtype: DType, size: int = 1) -> Buffer:
        tmp = self.emit.temporary(dtype, size)
        self.out.append(Alloc(tmp))
        return tmp

    def _gather(self, p: Stage, read: Access, gathered: Sequence[RegVar]) -> list[Operand]:
        if p.memory is Memory.LOCAL:
            raise ScheduleError(
                f"{self.s.name} gathers from {p.name}, which is in registers; "
                "keep it in shared memory or read it from global memory"
            )
        if len(set(gathered)) == 1:
            at = tuple(gathered[0] if c is None else c for c in read.coordinates)
            place = self.element(p, Access(read.position, at, read.predicates))
            return self._load(p, place, read.predicates)
        out: list[Operand] = []
        lane, width = self.lane, self.width
        assert lane is not None
        for k in range(width):
            at = tuple(gathered[k] if c is None else c for c in read.coordinates)
            place = self.element(p, Access(read.position, at, read.predicates))
            conditions = tuple(substitute_condition(c, {lane: k}) for c in read.predicates)
            self.lane, self.width = None, 1
            out.extend(self._load(p, substitute(place, {lane: k}), conditions))
            self.lane, self.width = lane, width
        return out

    # --- computing ------------------------------------------------------------------------------

    def as_type(self, value: Operand, dtype: DType) -> Operand:
        """The value converted to a register type."""
        have = dtype_of_operand(value)
        if have is dtype:
            return value
        if isinstance(value, Imm):
            return Imm(_as_dtype(value.value, dtype), dtype)
        if isinstance(value, Index):
            return Index(value.expr, dtype)
        tmp = Reg(self._temporary(dtype))
        self.out.append(Compute("cast", tmp, (value,)))
        return tmp

    def compute(self) -> list[Statement]:
        """The statements of a definition that is no reduction."""
        s = self.s
        match s.op:
            case Pointwise(fn="copy") | Resize():
                values = self.read(0)
            case Concat():
                values = self._concat()
            case Pointwise():
                values = self._pointwise(s.op.fn)
            case Iota():
                at = self.view.output[s.op.axis]
                values: list[Operand] = [
                    Index(self.at_lane(at, k), s.dtype) for k in range(self.width)
                ]
            case Take() | TakeAlong():
                values = self._take()
            case Scan():
                values = self._scan(s.op.fn)
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
        if s in self.emit.context.approximable:
            fn = APPROXIMATE.get(fn, fn)
        out: list[Operand] = []
        known: dict[tuple[object, ...], Reg] = {}
        for lane in range(self.width):
            inputs = tuple(
                self.as_type(values[lane], p.dtype.compute)
                for values, p in zip(operands, s.operands, strict=True)
            )
            key = tuple(_key(i) for i in inputs)
            if key not in known:
                known[key] = self._result(lane, s.dtype.compute)
                self.out.append(Compute(fn, known[key], inputs))
            out.append(known[key])
        return out

    def _result(self, lane: int, dtype: DType) -> Reg:
        """Where a computed lane goes: its register when the stage lives in registers."""
        if self.s.memory is Memory.LOCAL and register_dtype(self.s) is dtype:
            return self.register(lane)
        if self.results is None or self.results.dtype is not dtype:
            self.results = self._temporary(dtype, self.width)
        return Reg(self.results, Int(lane))

    def register(self, lane: int) -> Reg:
        """The register of a lane of a stage that lives in registers."""
        index = self.own_element()
        return Reg(self.emit.context.buffers[self.s], self.at_lane(index, lane))

    def _concat(self) -> list[Operand]:
        s = self.s
        dtype = register_dtype(s)
        tmp = self._temporary(dtype, self.width)
        for k in range(self.width):
            self.out.append(Compute("copy", Reg(tmp, Int(k)), (Imm(_as_dtype(0, dtype), dtype),)))
        for position in range(len(s.operands)):
            conditions = operand(self.graph, self.view, position).predicates
            values = self.read(position)
            for k, v in enumerate(values):
                where = all_of(self._condition_at(c, k) for c in conditions)
                self.out.append(Compute("copy", Reg(tmp, Int(k)), (self.as_type(v, dtype),), where))
        return [Reg(tmp, Int(k)) for k in range(self.width)]

    def _take(self) -> list[Operand]:
        read = self.s.frame.operands[0]
        extent = next(i.extent for i in read if isinstance(i, Gathered))
        size = Index(extent, int64)
        zero = Imm(0, int64)
        picked: list[RegVar] = []
        valid: list[Reg] = []
        known: dict[tuple[object, ...], tuple[RegVar, Reg]] = {}
        for value in self.read(1):
            key = _key(value)
            if key not in known:
                index = self.as_type(value, int64)
                wrapped = self._call("add", int64, index, size)
                negative = self._call("lt", bool_, index, zero)
                index = self._call("where", int64, negative, wrapped, index)
                low = self._call("ge", bool_, index, zero)
                high = self._call("lt", bool_, index, size)
                inside = self._call("and", bool_, low, high)
                safe = self._call("where", int64, inside, index, zero)
                known[key] = (RegVar(safe, 0, extent - 1), inside)
            picked.append(known[key][0])
            valid.append(known[key][1])
        out: list[Operand] = []
        for value, inside in zip(self.read(0, picked), valid, strict=True):
            dtype = dtype_of_operand(value)
            fill = Imm(_as_dtype(0, dtype), dtype)
            out.append(self._call("where", dtype, inside, value, fill))
        return out

    def _call(self, fn: str, dtype: DType, *operands: Operand) -> Reg:
        result = Reg(self._temporary(dtype))
        self.out.append(Compute(fn, result, operands))
        return result

    def _scan(self, fn: str) -> list[Operand]:
        dtype = self.s.dtype.compute
        out: list[Operand] = []
        for lane, value in enumerate(self.read(0)):
            acc = self.accumulator(lane)
            x = self.as_type(value, dtype)
            where = all_of(self._condition_at(c, lane) for c in self.predicates(writes=False))
            self.out.append(Compute(fn, acc, (acc, x), where))
            out.append(acc)
        return out

    # --- reductions -----------------------------------------------------------------------------

    def accumulator(self, lane: int) -> Reg:
        """The register that a lane of a reduction or scan accumulates in."""
        carry = self.emit.context.carries.get(self.s)
        if carry is None:
            return self.register(lane)
        index: Expr = ZERO
        for i in self.emit._carried_lanes(self.s):  # noqa: SLF001
            index = index * self.s.loops[i].axis.extent + self.view.variables[i]
        return Reg(carry, self.at_lane(index, lane))

    def accumulate(self) -> list[Statement]:
        """`acc = fn(acc, operand)` for every lane."""
        assert isinstance(self.s.op, Reduce)
        dtype = self.s.dtype.compute
        conditions = self.predicates(writes=False)
        for lane, value in enumerate(self.read(0)):
            acc = self.accumulator(lane)
            where = all_of(self._condition_at(c, lane) for c in conditions)
            x = self.as_type(value, dtype)
            self.out.append(Compute(self.s.op.fn, acc, (acc, x), where))
        return self.out

    def finish(self) -> list[Statement]:
        """Across the threads that reduce, then to memory."""
        s = self.s
        assert isinstance(s.op, Reduce)
        reducing = reduced_loops(self.graph, s)
        bound = [s.loops[i].parallel for i in reducing if s.loops[i].axis.extent != Int(1)]
        blocks = [p.value for p in bound if p.is_block]
        if blocks:
            raise ScheduleError(
                f"{s.name} reduces over {', '.join(blocks)}; blocks cannot combine their sums in "
                "one kernel: rfactor it and make the partial result an output"
            )
        dims = tuple(sorted(THREAD_DIMS[p] for p in bound if p.is_thread))
        dtype = s.dtype.compute
        identity = Imm(reduction_identity(s.op.fn, dtype), dtype)
        lanes = self.width if self._lanes_are_kept() else 1
        accs = [self.accumulator(k) for k in range(lanes)]
        if dims:
            self.out.extend(ThreadReduce(s.op.fn, a, a, dims, identity) for a in accs)
        if s.memory is not Memory.LOCAL:
            self._store(list(accs), self._kept_conditions(reducing))
        return self.out

    def _lanes_are_kept(self) -> bool:
        reducing = reduced_loops(self.graph, self.s)
        return any(
            x.parallel is Parallel.VECTORIZE and i not in reducing
            for i, x in enumerate(self.s.loops)
        )

    def _kept_conditions(self, reducing: tuple[int, ...]) -> list[Cond]:
        own = {v for i in reducing for v in variables(self.view.variables[i])}
        kept = [c for c in self.predicates(writes=True) if not own.intersection(variables(c))]
        for i in reducing:
            if self.s.loops[i].parallel.is_thread and isinstance(self.view.variables[i], Var):
                kept.append(equal(self.view.variables[i], 0))
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
            fn = "copy" if dtype_of_operand(value) is dtype else "cast"
            self.out.append(Compute(fn, target, (value,)))

    def _store(self, values: Sequence[Operand], conditions: Sequence[Cond]) -> None:
        s = self.s
        buffer = self.emit.context.buffers[s]
        lanes = len(values)
        index = self.own_element()
        source = self._gathered_registers(values, buffer.dtype)
        for first, width in self._chunks(s, buffer, index, conditions, lanes):
            predicate = all_of(self._condition_at(c, first) for c in conditions)
            place = self.at_lane(index, first)
            register = Reg(source.buffer, source.index + first)
            self.out.append(Store(buffer, place, register, width, predicate, s.cache))

    def _gathered_registers(self, values: Sequence[Operand], dtype: DType) -> Reg:
        """The lanes in consecutive registers of the buffer's type."""
        first = values[0]
        if isinstance(first, Reg) and all(
            isinstance(v, Reg) and v.buffer is first.buffer and v.index == first.index + k
            for k, v in enumerate(values)
        ) and first.buffer.dtype is dtype:
            return first
        tmp = self._temporary(dtype, len(values))
        for k, v in enumerate(values):
            fn = "copy" if dtype_of_operand(v) is dtype else "cast"
            self.out.append(Compute(fn, Reg(tmp, Int(k)), (v,)))
        return Reg(tmp)


def dtype_of_operand(o: Operand) -> DType:
    """The register type of an operand."""
    match o:
        case Reg():
            return o.buffer.dtype
        case Imm() | Index():
            return o.dtype
        case Arg():
            return o.argument.dtype


def _key(o: Operand) -> tuple[object, ...]:
    match o:
        case Reg():
            return ("reg", o.buffer, o.index)
        case Imm():
            return ("imm", repr(o.value), o.dtype)
        case Index():
            return ("index", o.expr, o.dtype)
        case Arg():
            return ("arg", o.argument)


def _as_dtype(value: bool | int | float, dtype: DType) -> bool | int | float:
    """A literal as a value of a dtype, exactly as numpy would convert it."""
    if dtype.is_float and dtype.nbytes == 8:
        return float(value)
    with np.errstate(all="ignore"):
        return np.asarray(value).astype(dtype.numpy).item() if not dtype.is_float else float(value)
