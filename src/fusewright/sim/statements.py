"""The meaning of every statement that is no control flow: a closure over a frame."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, cast

import numpy as np

from fusewright.core.functions import FUNCTIONS, convert, reinterpret
from fusewright.errors import InternalError, SpecError, UnsupportedError, index_error
from fusewright.kir import ir
from fusewright.sim.accesses import compile_alloc, compile_load, compile_store
from fusewright.sim.asynchrony import ASYNCHRONOUS
from fusewright.sim.compute import Array, Mask, Value, narrow
from fusewright.sim.frame import AnyStep, BatchFrame, Blocking, Run, Step
from fusewright.sim.memory import as_scalar
from fusewright.sim.products import PRODUCTS
from fusewright.sim.report import statement_text
from fusewright.sim.semaphores import SEMAPHORES
from fusewright.sim.trace import SyncEvent
from fusewright.sim.tracked import follow_registers
from fusewright.target import WARP_SIZE

OperandFn: TypeAlias = "Callable[[BatchFrame, Mask], tuple[Array, Mask]]"


# --- arithmetic -----------------------------------------------------------------------------------


def _operand(o: ir.Operand, s: ir.Statement, run: Run) -> OperandFn:
    match o:
        case ir.Reg():
            at = run.scope.expression(o.index)
            return lambda f, mask: f.registers.read(o.buffer, f.element(s, o.buffer, at, mask))
        case ir.Imm():
            value = as_scalar(o.value, o.dtype)
            return lambda f, mask: (value, None)
        case ir.Index():
            position = run.scope.expression(o.expr)
            dtype = o.dtype.numpy
            return lambda f, mask: (
                np.atleast_2d(np.asarray(position(f.values))).astype(dtype),
                None,
            )
        case ir.Arg():
            if o.argument not in run.arguments:
                raise SpecError(f"argument {o.argument} is not declared by the kernel")
            given = run.arguments[o.argument]
            return lambda f, mask: (given, None)


def _compute(s: ir.Compute, run: Run) -> Step:
    indices = [o.expr for o in s.operands if isinstance(o, ir.Index)]
    refresh = run.refresh(s, s.predicate, *indices)
    holds = run.scope.condition(s.predicate)
    operands = [_operand(o, s, run) for o in s.operands]
    at = run.scope.expression(s.dst.index)
    dtype = s.dst.buffer.dtype.numpy
    apply = _function(s, dtype)

    def step(f: BatchFrame) -> None:
        for r in refresh:
            r(f)
        mask, some = narrow(f.mask, holds(f.values))
        if not some:
            return
        pairs = [o(f, mask) for o in operands]
        values = [p[0] for p in pairs]
        result = apply(*values)
        if result.dtype != dtype:
            raise SpecError(
                f"`{statement_text(s)}` computes {result.dtype} into a register of "
                f"{s.dst.buffer.dtype}; cast it"
            )
        unknown = _merge(s.fn, values, [p[1] for p in pairs])
        f.registers.write(s.dst.buffer, f.element(s, s.dst.buffer, at, mask), result, unknown, mask)

    return step


def _same(value: Array) -> Array:
    return value


def _function(s: ir.Compute, dtype: np.dtype[Any]) -> Callable[..., Array]:
    if s.fn == "copy":
        return _same
    if s.fn == "cast":
        return functools.partial(convert, dtype=s.dst.buffer.dtype)
    if s.fn == "bitcast":
        return functools.partial(reinterpret, dtype=s.dst.buffer.dtype)
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


def _check_index(s: ir.CheckIndex, run: Run) -> Step:
    refresh = run.refresh(s, s.predicate, s.extent)
    holds, extent = run.scope.condition(s.predicate), run.scope.expression(s.extent)
    inside, index = _operand(s.inside, s, run), _operand(s.index, s, run)

    def step(f: BatchFrame) -> None:
        for r in refresh:
            r(f)
        mask, some = narrow(f.mask, holds(f.values))
        if not some:
            return
        wrong = ~inside(f, mask)[0]
        wrong = wrong if mask is None else wrong & mask
        if wrong.any():
            found = np.broadcast_to(index(f, mask)[0], wrong.shape)[wrong][0]
            size = np.broadcast_to(np.asarray(extent(f.values)), wrong.shape)[wrong][0]
            raise index_error(int(found), s.axis, int(size), s.why, s.merged)

    return step


# --- threads together -----------------------------------------------------------------------------


def _shuffle(s: ir.Shuffle, run: Run) -> Step:
    if s.mode not in ("xor", "down", "up", "index"):
        raise SpecError(f"shuffle mode {s.mode!r} is not xor, down, up or index")
    refresh = run.refresh(s, s.operand)
    amount = run.scope.expression(s.operand)
    source = _operand(s.src, s, run)
    at = run.scope.expression(s.dst.index)

    def step(f: BatchFrame) -> None:
        for r in refresh:
            r(f)
        f.diverged(s, WARP_SIZE)
        if f.run.has_phases:
            f.record(SyncEvent(s, f.mask))
        lanes = _source_threads(s, amount(f.values), f)
        value, unknown = source(f, f.mask)
        value = _permute(value, lanes, f)
        unknown = None if unknown is None else _permute(unknown, lanes, f)
        first = f.element(s, s.dst.buffer, at, f.mask)
        f.registers.write(s.dst.buffer, first, value, unknown, f.mask)

    return step


def _source_threads(s: ir.Shuffle, amount: Value, f: BatchFrame) -> Array:
    """The thread each thread reads from; itself when that lies outside its part of the warp."""
    size = f.trace.block_nthreads
    thread = np.arange(f.nthreads)[None, :]
    own = thread % size
    lane = own % WARP_SIZE
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
    beyond = target >= thread - own + size
    if beyond.any():
        f.run.execution.findings.add(
            "rule",
            f"`{statement_text(s)}` reads lanes beyond the {size} threads of the block; all "
            f"{WARP_SIZE} lanes of a warp must exist",
            statement=s,
        )
        target = np.where(beyond, thread, target)
    return target


def _permute(value: Array, lanes: Array, f: BatchFrame) -> Array:
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
    names = run.block_dims
    axes = tuple(len(names) - names.index(d) for d in s.dims if d in names)
    source = _operand(s.src, s, run)
    at = run.scope.expression(s.dst.index)
    identity = as_scalar(s.identity.value, s.src.buffer.dtype)
    dtype = s.src.buffer.dtype.numpy

    def over(values: Array, by: np.ufunc, f: BatchFrame, as_type: np.dtype[Any]) -> Array:
        full = np.broadcast_to(values, (values.shape[0], f.nthreads))
        shaped = full.reshape(-1, *reversed(run.block_shape))
        result = by.reduce(shaped, axis=axes, keepdims=True, dtype=as_type)
        return np.broadcast_to(result, shaped.shape).reshape(-1, f.nthreads)

    def step(f: BatchFrame) -> None:
        f.diverged(s, None if "cx" in s.dims else f.trace.block_nthreads)
        value, unknown = source(f, f.mask)
        if f.mask is not None:
            value = np.where(f.mask, value, identity)
            unknown = None if unknown is None else unknown & f.mask
        result = over(value, ufunc, f, dtype)
        if unknown is not None:
            unknown = over(unknown, np.logical_or, f, np.dtype(bool))
        f.registers.write(
            s.dst.buffer, f.element(s, s.dst.buffer, at, f.mask), result, unknown, f.mask
        )

    return step


def _thread_scan(s: ir.ThreadScan, run: Run) -> Step:
    ufunc = _ufuncs[s.fn]
    axis = len(run.block_dims) - run.block_dims.index(s.dim)
    source, carried = _operand(s.src, s, run), _operand(s.carry, s, run)
    to, carry = run.scope.expression(s.dst.index), run.scope.expression(s.carry.index)
    identity = as_scalar(s.identity.value, s.src.buffer.dtype)

    def prefixes(values: Array, by: np.ufunc, first: object, f: BatchFrame) -> tuple[Array, Array]:
        """Over the threads before each one, and over all along the dimension."""
        full = np.broadcast_to(values, (values.shape[0], f.nthreads))
        shaped = full.reshape(-1, *reversed(run.block_shape))
        ordered = np.flip(shaped, axis) if s.reverse else shaped
        sums = by.accumulate(ordered, axis=axis, dtype=shaped.dtype)
        before = np.roll(sums, 1, axis)
        np.moveaxis(before, axis, 0)[0] = first
        before = np.flip(before, axis) if s.reverse else before
        total = np.broadcast_to(sums.take([-1], axis), shaped.shape)
        return before.reshape(-1, f.nthreads), total.reshape(-1, f.nthreads)

    def step(f: BatchFrame) -> None:
        f.diverged(s, f.trace.block_nthreads)
        value, unknown = source(f, f.mask)
        start, also = carried(f, f.mask)
        if f.mask is not None:
            value = np.where(f.mask, value, identity)
        before, total = prefixes(value, ufunc, identity, f)
        unsure = None
        if unknown is not None or also is not None:
            missing = np.zeros((1, 1), bool)
            unsure = prefixes(missing if unknown is None else unknown, np.logical_or, False, f)
            unsure = tuple(u | (missing if also is None else also) for u in unsure)
        for reg, at, result, k in ((s.dst, to, before, 0), (s.carry, carry, total, 1)):
            f.registers.write(
                reg.buffer,
                f.element(s, reg.buffer, at, f.mask),
                ufunc(start, result),
                None if unsure is None else unsure[k],
                f.mask,
            )

    return step


def _sync(s: ir.SyncStatement, run: Run) -> Step:
    match s:
        case ir.BlockSync():
            group = run.execution.nthreads // run.execution.row_blocks
        case ir.ClusterArrive() | ir.ClusterWait():
            group = None
        case ir.WarpSync():
            group = WARP_SIZE
        case _:
            raise InternalError(f"{type(s).__name__} is entered in MEANINGS as a sync, and is none")

    def step(f: BatchFrame) -> None:
        f.diverged(s, group)
        f.record(SyncEvent(s, f.mask))

    return step


MEANINGS: Mapping[type[ir.Statement], Callable[[Any, Run], AnyStep]] = {
    ir.Alloc: compile_alloc,
    ir.Load: compile_load,
    ir.Store: compile_store,
    ir.Compute: _compute,
    ir.CheckIndex: _check_index,
    ir.Shuffle: _shuffle,
    ir.ThreadReduce: _thread_reduce,
    ir.ThreadScan: _thread_scan,
    ir.BlockSync: _sync,
    ir.ClusterArrive: _sync,
    ir.ClusterWait: _sync,
    ir.WarpSync: _sync,
    **ASYNCHRONOUS,
    **SEMAPHORES,
    **PRODUCTS,
}
"""By class of statement."""


def _both(first: Step, second: Step) -> Step:
    def step(f: BatchFrame) -> None:
        first(f)
        second(f)

    return step


def compile_statement(s: ir.Statement, run: Run) -> AnyStep:
    """The closure of one statement. Raises SpecError for one that breaks its own contract and
    UnsupportedError for one without a meaning here."""
    compiler = MEANINGS.get(type(s))
    if compiler is None:
        raise UnsupportedError(f"the simulator does not know the statement {type(s).__name__}")
    inner = compiler(cast("Any", s), run)
    totals = run.execution.counters.totals
    if isinstance(inner, Blocking):
        return inner
    follow = None if isinstance(s, ir.Mma | ir.Alloc) else follow_registers(s, run)
    if follow is not None:
        inner = _both(follow, inner)

    def step(f: BatchFrame) -> None:
        totals["statements"] += f.nblocks
        inner(f)

    return step
