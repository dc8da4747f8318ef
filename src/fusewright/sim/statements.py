"""The meaning of every statement that is not control flow, as a closure over a frame."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias, cast

import numpy as np

from fusewright.core.functions import FUNCTIONS
from fusewright.errors import SpecError, UnsupportedError
from fusewright.kir import ir
from fusewright.memory import Cache, Memory
from fusewright.sim.compute import Array, IndexFn, Mask, Value, narrow
from fusewright.sim.frame import Frame, Run, Step
from fusewright.sim.memory import Placement, as_scalar
from fusewright.sim.report import Site, statement_text
from fusewright.sim.trace import Access, SyncEvent, Undefine
from fusewright.target import WARP_SIZE

_NOWHERE: Array = np.zeros((1, 1), np.int64)
OperandFn: TypeAlias = "Callable[[Frame], tuple[Array, Mask]]"


# --- memory -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Reach:
    """A load's or store's static facts: which elements of which buffer it touches."""

    statement: ir.Load | ir.Store
    buffer: ir.Buffer
    index: IndexFn
    width: int
    size: int
    place: Placement
    shared: bool
    writes: bool
    recorded: bool
    latest: list[Value] = field(default_factory=list["Value"])
    """The thread part last recorded: a loop that repeats it keeps one array, not one a trip."""

    def positions(self, f: Frame, mask: Mask) -> tuple[Array, Mask, bool]:
        """Element positions in the flat array (0 for inactive threads), the threads whose access
        is inside the buffer, and whether there are any. Counts and records the access."""
        block, thread = self.index(f.values)
        mask, some = self._inside(f, block, thread, mask)
        if not some:
            return _NOWHERE, mask, False
        itemsize = self.buffer.dtype.nbytes
        at, by = block * itemsize, thread * itemsize
        nbytes = itemsize * self.width
        f.run.execution.counters.access(
            shared=self.shared,
            writes=self.writes,
            block=at,
            thread=by,
            nbytes=nbytes,
            mask=mask,
            nblocks=f.nblocks,
        )
        if self.recorded:
            offset = self.place.offset
            f.trace.events.append(
                Access(
                    self.statement,
                    self.place.space,
                    at + offset,
                    self._kept(by),
                    nbytes,
                    self.writes,
                    mask,
                    self.buffer,
                    offset,
                )
            )
        if self.shared:
            stride = f.run.execution.shared.nbytes // itemsize
            block = block + f.base * stride + self.place.offset // itemsize
        where = np.atleast_2d(np.asarray(block + thread))
        return where if mask is None else np.where(mask, where, 0), mask, True

    def _kept(self, thread: Value) -> Value:
        """The same value, as the array recorded before where that is equal."""
        if not isinstance(thread, int):
            if self.latest and np.array_equal(self.latest[0], thread):
                return self.latest[0]
            self.latest[:] = [thread]
        return thread

    def _inside(self, f: Frame, block: Value, thread: Value, mask: Mask) -> tuple[Mask, bool]:
        """Report accesses outside the buffer, or not aligned to their width; drop the former."""
        low, high = _bounds(block, thread, mask)
        if low < 0 or high + self.width > self.size:
            full = np.atleast_2d(np.asarray(block + thread))
            outside = (full < 0) | (full + self.width > self.size)
            bad = outside if mask is None else outside & mask
            if bad.any():
                self._report(f, full, bad, f"outside its {self.size} elements", "range")
                return narrow(mask, ~outside)
        if self.width > 1 and (np.any(block % self.width) or np.any(thread % self.width)):
            full = np.atleast_2d(np.asarray(block + thread))
            bad = full % self.width != 0
            bad = bad if mask is None else bad & mask
            if bad.any():
                self._report(f, full, bad, f"not a multiple of the width {self.width}", "rule")
        return mask, True

    def _report(self, f: Frame, full: Array, bad: Array, what: str, kind: Any) -> None:
        row, thread = f.first(bad)
        element = int(np.broadcast_to(full, (f.nblocks, f.nthreads))[row, thread])
        itemsize = self.buffer.dtype.nbytes
        site = Site(
            self.statement,
            int(f.trace.blocks[row]),
            thread,
            self.buffer.name,
            element * itemsize,
            self.width * itemsize,
            element,
            self.writes,
        )
        f.run.execution.findings.add(
            kind,
            f"{self.buffer}[{element} : +{self.width}] is {what}",
            first=site,
            statement=self.statement,
            count=int(np.broadcast_to(bad, (f.nblocks, f.nthreads)).sum()),
        )


def _bounds(block: Value, thread: Value, mask: Mask) -> tuple[int, int]:
    """The smallest and largest index of active threads (a hull when the mask is not simple)."""
    if mask is not None and mask.shape[0] == 1 and not isinstance(thread, int):
        if thread.shape[0] == 1:
            thread = thread[mask] if thread.shape[1] == mask.shape[1] else thread
        else:
            mask = np.broadcast_to(mask, thread.shape)
            thread = thread[mask]
    low = (block if isinstance(block, int) else int(block.min())) + (
        thread if isinstance(thread, int) else int(thread.min())
    )
    high = (block if isinstance(block, int) else int(block.max())) + (
        thread if isinstance(thread, int) else int(thread.max())
    )
    return low, high


def _reach(s: ir.Load | ir.Store, buffer: ir.Buffer, run: Run, *, writes: bool) -> Reach:
    shared = buffer.memory is Memory.SHARED
    execution = run.execution
    if shared and buffer not in execution.shared.sizes:
        raise SpecError(f"shared buffer {buffer} has no Alloc, used in `{statement_text(s)}`")
    if not shared and buffer not in execution.memory.places:
        raise SpecError(f"{buffer} is no parameter of the kernel, used in `{statement_text(s)}`")
    if shared:
        place, size = execution.shared.places[buffer], execution.shared.sizes[buffer]
    else:
        place, size = execution.memory.places[buffer], len(execution.memory.arrays[buffer])
    recorded = shared or place.space in execution.memory.written_spaces
    return Reach(
        s, buffer, run.scope.index(s.index), s.width, size, place, shared, writes, recorded
    )


def _load(s: ir.Load, run: Run) -> Step:
    gathered = run.gathered(s, s.index)
    conditions = run.refresh(s, s.predicate)
    holds = run.scope.condition(s.predicate)
    at = run.scope.expression(s.dst.index)
    reach = _reach(s, s.src, run, writes=False)
    fill = None if s.fill is None else as_scalar(s.fill.value, s.dst.buffer.dtype)
    if s.cache is Cache.NON_COHERENT and reach.recorded:
        run.execution.findings.add(
            "rule",
            f"`{statement_text(s)}` reads {s.src} by the non-coherent path, but the kernel writes "
            "that memory (PTX ISA, ld.global.nc); use another cache policy",
            statement=s,
        )
    initialised = run.execution.memory.initialised.get(s.src)

    def step(f: Frame) -> None:
        for r in conditions:
            r(f)
        inside, some = narrow(f.mask, holds(f.values))
        first = f.element(s, s.dst.buffer, at)
        where = _NOWHERE
        if some:
            for g in gathered:
                g.fetch(f, inside)
            where, inside, some = reach.positions(f, inside)
        if not some:
            if fill is not None:
                for k in range(s.width):
                    f.registers.write(s.dst.buffer, first + k, fill, None, f.mask)
            return
        flat = _flat(f, s.src)
        for k in range(s.width):
            places = np.add(where, k)
            value = flat.take(places)
            unknown = _unwritten(f, s, places, inside, initialised)
            target = inside
            if fill is not None and inside is not None and inside is not f.mask:
                value = np.where(inside, value, fill)
                unknown = None if unknown is None else unknown & inside
                target = f.mask
            f.registers.write(s.dst.buffer, first + k, value, unknown, target)

    return step


def _flat(f: Frame, buffer: ir.Buffer) -> Array:
    if buffer.memory is Memory.SHARED:
        return f.run.execution.shared.view(buffer.dtype)
    return f.run.execution.memory.arrays[buffer]


def _unwritten(f: Frame, s: ir.Load, where: Array, mask: Mask, initialised: Array | None) -> Mask:
    """Where a load sees a value that a thread stored from an undefined register; reads of output
    elements nobody wrote are reported here."""
    if s.src.memory is Memory.SHARED:
        if f.shared_unknown is None:
            return None
        unknown = f.shared_unknown.take(where * s.src.dtype.nbytes)
        return unknown if unknown.any() else None
    if initialised is not None:
        missing = ~initialised.take(where)
        missing = missing if mask is None else missing & mask
        if missing.any():
            row, thread = f.first(missing)
            element = int(np.broadcast_to(where, (f.nblocks, f.nthreads))[row, thread])
            f.undefined(s, f"{s.src}[{element}]", missing)
    return None


def _store(s: ir.Store, run: Run) -> Step:
    gathered = run.gathered(s, s.index)
    conditions = run.refresh(s, s.predicate)
    holds = run.scope.condition(s.predicate)
    at = run.scope.expression(s.src.index)
    reach = _reach(s, s.dst, run, writes=True)
    initialised = run.execution.memory.initialised.get(s.dst)

    def step(f: Frame) -> None:
        for r in conditions:
            r(f)
        mask, some = narrow(f.mask, holds(f.values))
        if not some:
            return
        for g in gathered:
            g.fetch(f, mask)
        where, mask, some = reach.positions(f, mask)
        if not some:
            return
        flat = _flat(f, s.dst)
        first = f.element(s, s.src.buffer, at)
        shape = (f.nblocks, f.nthreads)
        for k in range(s.width):
            value, unknown = f.registers.read(s.src.buffer, first + k)
            places = where + k
            if mask is not None:
                chosen = np.broadcast_to(mask, shape)
                places = np.broadcast_to(places, shape)[chosen]
                value = np.broadcast_to(value, shape)[chosen]
            elif places.size < shape[0] * shape[1]:
                places = np.broadcast_to(places, shape)
            flat[places] = value
            _note_store(f, s, places, unknown, mask)
            if initialised is not None:
                initialised[places] = True

    return step


def _note_store(f: Frame, s: ir.Store, places: Array, unknown: Mask, mask: Mask) -> None:
    """Follow undefined values into shared memory; report them on their way to global memory."""
    if unknown is not None and mask is not None:
        unknown = unknown & mask
    if unknown is not None and not unknown.any():
        unknown = None
    if s.dst.memory is not Memory.SHARED:
        if unknown is not None:
            f.undefined(s, f"the stored register {s.src.buffer}", unknown)
        return
    if f.shared_unknown is None:
        if unknown is None:
            return
        f.shared_unknown = np.zeros(f.nblocks * f.run.execution.shared.nbytes, bool)
    shape = (f.nblocks, f.nthreads)
    if unknown is None:
        marks = np.asarray(False)
    else:
        marks = np.broadcast_to(unknown, shape)
        marks = marks if mask is None else marks[np.broadcast_to(mask, shape)]
    for byte in range(s.dst.dtype.nbytes):
        f.shared_unknown[places * s.dst.dtype.nbytes + byte] = marks


def _alloc(s: ir.Alloc, run: Run) -> Step:
    if s.buffer.memory is Memory.LOCAL:
        size = run.locals[s.buffer]
        return lambda f: f.registers.reset(s.buffer, size)
    shared = run.execution.shared
    event = Undefine(s, shared.places[s.buffer].offset, shared.nbytes_of(s.buffer), None)
    return lambda f: f.trace.events.append(event)


# --- arithmetic -----------------------------------------------------------------------------------


def _operand(o: ir.Operand, s: ir.Statement, run: Run) -> OperandFn:
    match o:
        case ir.Reg():
            at = run.scope.expression(o.index)
            return lambda f: f.registers.read(o.buffer, f.element(s, o.buffer, at))
        case ir.Imm():
            value = as_scalar(o.value, o.dtype)
            return lambda f: (value, None)
        case ir.Index():
            position = run.scope.expression(o.expr)
            dtype = o.dtype.numpy
            return lambda f: (np.atleast_2d(np.asarray(position(f.values))).astype(dtype), None)
        case ir.Arg():
            if o.argument not in run.arguments:
                raise SpecError(f"argument {o.argument} is not declared by the kernel")
            given = run.arguments[o.argument]
            return lambda f: (given, None)


def _compute(s: ir.Compute, run: Run) -> Step:
    indices = [o.expr for o in s.operands if isinstance(o, ir.Index)]
    refresh = run.refresh(s, s.predicate, *indices)
    holds = run.scope.condition(s.predicate)
    operands = [_operand(o, s, run) for o in s.operands]
    at = run.scope.expression(s.dst.index)
    dtype = s.dst.buffer.dtype.numpy
    apply = _function(s, dtype)

    def step(f: Frame) -> None:
        for r in refresh:
            r(f)
        mask, some = narrow(f.mask, holds(f.values))
        if not some:
            return
        pairs = [o(f) for o in operands]
        values = [p[0] for p in pairs]
        result = apply(*values)
        if result.dtype != dtype:
            raise SpecError(
                f"`{statement_text(s)}` computes {result.dtype} into a register of "
                f"{s.dst.buffer.dtype}; cast it"
            )
        unknown = _merge(s.fn, values, [p[1] for p in pairs])
        f.registers.write(s.dst.buffer, f.element(s, s.dst.buffer, at), result, unknown, mask)

    return step


def _same(value: Array) -> Array:
    return value


def _converted(dtype: np.dtype[Any], value: Array) -> Array:
    return value.astype(dtype)


def _function(s: ir.Compute, dtype: np.dtype[Any]) -> Callable[..., Array]:
    if s.fn == "copy":
        return _same
    if s.fn == "cast":
        return functools.partial(_converted, dtype)
    found = FUNCTIONS.get(s.fn)
    if found is None:
        raise SpecError(f"no scalar function is named {s.fn!r}, in `{statement_text(s)}`")
    if found.arity != len(s.operands):
        raise SpecError(
            f"{s.fn} takes {found.arity} operands, got {len(s.operands)}, in `{statement_text(s)}`"
        )
    return found.numpy


def _merge(fn: str, values: list[Array], unknown: list[Mask]) -> Mask:
    """Where a result is undefined: where an operand is, but `where` ignores what it discards."""
    masks = [u for u in unknown if u is not None]
    if not masks:
        return None
    if fn == "where":
        nowhere = np.zeros((1, 1), bool)
        chosen, other, third = (nowhere if u is None else u for u in unknown)
        merged = chosen | np.where(values[0], other, third)
    else:
        merged = masks[0]
        for m in masks[1:]:
            merged = merged | m
    return merged if merged.any() else None


# --- threads together -----------------------------------------------------------------------------


def _shuffle(s: ir.Shuffle, run: Run) -> Step:
    if s.mode not in ("xor", "down", "up", "index"):
        raise SpecError(f"shuffle mode {s.mode!r} is not xor, down, up or index")
    refresh = run.refresh(s, s.operand)
    amount = run.scope.expression(s.operand)
    source = _operand(s.src, s, run)
    at = run.scope.expression(s.dst.index)

    def step(f: Frame) -> None:
        for r in refresh:
            r(f)
        f.diverged(s, WARP_SIZE)
        lanes = _source_threads(s, amount(f.values), f)
        value, unknown = source(f)
        value = _permute(value, lanes, f)
        unknown = None if unknown is None else _permute(unknown, lanes, f)
        first = f.element(s, s.dst.buffer, at)
        f.registers.write(s.dst.buffer, first, value, unknown, f.mask)

    return step


def _source_threads(s: ir.Shuffle, amount: Value, f: Frame) -> Array:
    """The thread each thread reads from; itself when that lies outside its part of the warp."""
    thread = np.arange(f.nthreads)[None, :]
    lane = thread % WARP_SIZE
    start = lane // s.width * s.width
    match s.mode:
        case "xor":
            wanted = lane ^ amount
        case "down":
            wanted = lane + amount
        case "up":
            wanted = lane - amount
        case _:
            wanted = start + amount
    inside = (wanted >= start) & (wanted < start + s.width)
    target = np.where(inside, thread - lane + wanted, thread)
    if (target >= f.nthreads).any():
        f.run.execution.findings.add(
            "rule",
            f"`{statement_text(s)}` reads lanes beyond the {f.nthreads} threads of the block; all "
            f"{WARP_SIZE} lanes of a warp must exist",
            statement=s,
        )
        target = np.where(target < f.nthreads, target, thread)
    return target


def _permute(value: Array, lanes: Array, f: Frame) -> Array:
    if value.shape[1] == 1:
        return value
    if lanes.shape[0] == 1:
        return value[:, lanes[0]]
    full = np.broadcast_to(value, (f.nblocks, f.nthreads))
    return np.take_along_axis(full, np.broadcast_to(lanes, full.shape), axis=1)


_ufuncs: Mapping[str, np.ufunc] = {
    "add": np.add,
    "mul": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
    "or": np.logical_or,
    "and": np.logical_and,
}
_BITWISE: Mapping[str, np.ufunc] = {"or": np.bitwise_or, "and": np.bitwise_and}


def _thread_reduce(s: ir.ThreadReduce, run: Run) -> Step:
    table = _ufuncs if s.src.buffer.dtype.kind == "bool" else {**_ufuncs, **_BITWISE}
    if s.fn not in table:
        raise SpecError(f"ThreadReduce cannot {s.fn!r}; use one of {', '.join(table)}")
    ufunc = table[s.fn]
    names = ("tx", "ty", "tz")[: len(run.block_shape)]
    axes = tuple(len(names) - names.index(d) for d in s.dims if d in names)
    source = _operand(s.src, s, run)
    at = run.scope.expression(s.dst.index)
    identity = as_scalar(s.identity.value, s.src.buffer.dtype)
    dtype = s.src.buffer.dtype.numpy

    def over(values: Array, by: np.ufunc, f: Frame, as_type: np.dtype[Any]) -> Array:
        full = np.broadcast_to(values, (values.shape[0], f.nthreads))
        shaped = full.reshape(-1, *reversed(run.block_shape))
        result = by.reduce(shaped, axis=axes, keepdims=True, dtype=as_type)
        return np.broadcast_to(result, shaped.shape).reshape(-1, f.nthreads)

    def step(f: Frame) -> None:
        f.diverged(s, f.nthreads)
        value, unknown = source(f)
        if f.mask is not None:
            value = np.where(f.mask, value, identity)
            unknown = None if unknown is None else unknown & f.mask
        result = over(value, ufunc, f, dtype)
        if unknown is not None:
            unknown = over(unknown, np.logical_or, f, np.dtype(bool))
        f.registers.write(s.dst.buffer, f.element(s, s.dst.buffer, at), result, unknown, f.mask)

    return step


def _sync(s: ir.SyncStatement, run: Run) -> Step:
    match s:
        case ir.BlockSync():
            group = run.execution.nthreads
        case ir.WarpSync():
            group = WARP_SIZE
        case _:
            raise UnsupportedError(f"the simulator does not know the sync {type(s).__name__}")

    def step(f: Frame) -> None:
        f.diverged(s, group)
        f.trace.events.append(SyncEvent(s, f.mask))

    return step


_COMPILERS: Mapping[type[ir.Statement], Callable[[Any, Run], Step]] = {
    ir.Alloc: _alloc,
    ir.Load: _load,
    ir.Store: _store,
    ir.Compute: _compute,
    ir.Shuffle: _shuffle,
    ir.ThreadReduce: _thread_reduce,
    ir.BlockSync: _sync,
    ir.WarpSync: _sync,
}


def compile_statement(s: ir.Statement, run: Run) -> Step:
    """The closure of one statement. Raises SpecError for one that breaks its own contract and
    UnsupportedError for one without a meaning here."""
    compiler = _COMPILERS.get(type(s))
    if compiler is None:
        raise UnsupportedError(f"the simulator does not know the statement {type(s).__name__}")
    inner = compiler(cast("Any", s), run)
    totals = run.execution.counters.totals

    def step(f: Frame) -> None:
        totals["statements"] += f.nblocks
        inner(f)

    return step
