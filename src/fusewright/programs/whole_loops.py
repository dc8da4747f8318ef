"""Loops that are one launch: a kernel that runs all iterations, in the place of a region.

`host.laps` says which bodies allow it. Here the arrays of a body become those of the loop: carried
values are what they start from and what is left of them, slices lie in the arrays they are of.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from fusewright.core.conditions import less_equal, prove
from fusewright.core.expr import ONE, ZERO, Expr, add, constant_value, mul
from fusewright.core.substitution import estimate
from fusewright.cuda.parameters import shared_nbytes
from fusewright.errors import UnsupportedError
from fusewright.fusion.build import element_count
from fusewright.fusion.ir import contiguous_strides
from fusewright.host.control import Call, described
from fusewright.host.laps import Carried, Laps, Part, in_one_launch, lap_of
from fusewright.host.one_block import in_one_block
from fusewright.host.subspans import Subspan
from fusewright.kernel import Kernel, TensorInfo
from fusewright.kir.analysis.occupancy import (
    blocks_by_memory,
    estimate_registers,
    register_cap,
)
from fusewright.kir.ir import Buffer, Kernel as KernelIr, Memory
from fusewright.kir.pipeline import run_pipeline
from fusewright.kir.text import print_kernel
from fusewright.programs.model import Dispatch, ProgramModel
from fusewright.programs.regions import region_dispatch
from fusewright.schedule.heuristics import schedule_group
from fusewright.schedule.heuristics.cost import Cost, cost, held_in_shared_memory, repeated
from fusewright.schedule.heuristics.work import work_of


@dataclass(frozen=True, slots=True)
class _Border:
    """The arrays of a loop: positions of the operands that it `reads`, and of its results."""

    laps: Laps
    reads: tuple[int, ...]
    writes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Loops:
    """The kernels of loops that one call of `compile` makes: by their text, and with whatever else
    their machine code is made with."""

    together: list[Kernel]
    known: dict[str, Kernel] = field(default_factory=dict[str, Kernel])


@dataclass(frozen=True, slots=True)
class LoopDispatch:
    """The launch of a region, or of the kernel in its place, and what it does, in words."""

    dispatch: Dispatch
    rules: tuple[str, ...]


def loop_dispatch(
    call: Call,
    bodies: tuple[ProgramModel, ...],
    reads: tuple[Subspan, ...],
    writes: tuple[Subspan, ...],
    loops: Loops,
) -> LoopDispatch:
    """The launch of a loop or a branch over the places of its operands, and of its results that
    are used: one kernel where `host.laps` or `host.one_block` allow it."""
    if call.fn == "cond":
        region = region_dispatch(call, bodies, reads, writes)
        assert region.region is not None
        return LoopDispatch(region, tuple(described(region.region.host)))
    found = whole_loop(call, bodies[-1], reads, writes, loops)
    if isinstance(found, LoopDispatch):
        return found
    region = region_dispatch(call, bodies, reads, writes)
    assert region.region is not None
    rule = f"{call.fn}: its iterations are not one launch: {found}"
    return LoopDispatch(region, (*described(region.region.host), rule))


_IN_REGISTERS = "no thread reads what another one writes, and each keeps its elements in registers"
_IN_ONE_BLOCK = "its threads fit a block, which keeps what they hand on in shared memory"


def whole_loop(
    call: Call,
    body: ProgramModel,
    reads: Sequence[Subspan],
    writes: Sequence[Subspan],
    loops: Loops,
) -> LoopDispatch | str:
    """The launch of a kernel that runs all iterations of a loop over the places of its operands,
    and of its results that are used; or why they are launches of their own."""
    if call.trips is None:
        return "only the device knows how many there are"
    if prove(less_equal(ZERO, call.trips)) is not True:
        return "a call may ask for a negative number of them"
    if len(body.launches) != 1:
        return f"the body is {len(body.launches)} launches"
    (x,) = body.launches
    lowered = x.kernel.lowered
    if x.region is not None or lowered is None:
        return "the body is no kernel of one function"
    border = _Arrays(call, body, reads, writes).border()
    if isinstance(border, str):
        return border
    name = f"fw_{call.fn}_{lowered.name.removeprefix('fw_').rpartition('_')[0]}"
    why: list[str] = []
    for how, make in (
        (_IN_REGISTERS, lambda: in_one_launch(lowered, border.laps, name)),
        (_IN_ONE_BLOCK, lambda: _in_one_block(x.kernel, lowered, border.laps, name)),
    ):
        made = make()
        kernel = made if isinstance(made, str) else _finished(made, x, border, call, loops)
        if isinstance(kernel, Kernel):
            used = tuple(reads[k] for k in border.reads), tuple(writes[k] for k in border.writes)
            rule = f"{call.fn} runs all {call.trips} iterations in one launch: {how}"
            return LoopDispatch(Dispatch(kernel, *used, x.values), (rule,))
        why.append(kernel)
    return "; ".join(why)


def _in_one_block(kernel: Kernel, lowered: KernelIr, laps: Laps, name: str) -> KernelIr | str:
    """The kernel of one block; or why there is none, or none that pays."""
    if any(constant_value(d.extent) != 1 for d in lowered.grid) and not is_faster_alone(kernel):
        return "one multiprocessor would take longer than all of them behind a launch"
    return in_one_block(lowered, laps, name, kernel.target)


def is_faster_alone(kernel: Kernel) -> bool:
    """Whether one multiprocessor is predicted to do the work of a kernel, on what it has in shared
    memory, before a launch behind another one in a graph has its first bytes."""
    known = kernel.target.calibration
    costs = _costs(kernel)
    return costs is not None and costs[1].us <= known.start_us + known.memory_latency_us


def _costs(kernel: Kernel) -> tuple[Cost, Cost] | None:
    """What a launch costs, and what its work does on a single multiprocessor that has its arrays
    in shared memory."""
    target = kernel.target
    if kernel.segment is None or kernel.heuristic is None:
        return None
    flow = kernel.segment.dataflow()
    schedule_group(flow, target, kernel.heuristic)
    work = work_of(flow, kernel.heuristic)
    whole, alone = cost(work, target), cost(work, replace(target, multiprocessors=1))
    return whole, held_in_shared_memory(alone, whole, target)


class _Arrays:
    """Finds which arrays of a loop those of its body are."""

    def __init__(
        self, call: Call, body: ProgramModel, reads: Sequence[Subspan], writes: Sequence[Subspan]
    ) -> None:
        (x,) = body.launches
        assert x.kernel.lowered is not None
        arrays = x.kernel.lowered.arrays
        n = len(x.reads)
        self._call, self._body, self._x = call, body, x
        self._taken = {b.name for b in x.kernel.lowered.params}
        self._outer = reads, writes
        self._read = list(zip(arrays[:n], x.reads, strict=True))
        self._written = list(zip(arrays[n:], x.writes, strict=True))
        self._operands: dict[int, Buffer] = {}
        self._results: dict[int, Buffer] = {}

    def border(self) -> _Border | str:
        """The arrays of the loop; or why an array of the body is none of its."""
        why = self._unlike()
        if why is not None:
            return why
        call = self._call
        assert call.trips is not None
        lap = lap_of(call.trips)
        bare = Laps(call.trips, call.reverse, call.lap, lap, (), {}, (), ())
        carried = tuple(self._carried(k) for k in range(call.carried))
        parts = self._parts(bare)
        reads = tuple(sorted(self._operands))
        writes = tuple(range(len(call.used)))
        results = tuple(self._results[k] for k in writes)
        params = (*(self._operands[k] for k in reads), *results)
        laps = replace(bare, carried=carried, parts=parts, params=params, results=results)
        return _Border(laps, reads, writes)

    def _unlike(self) -> str | None:
        inputs, count = self._body.fusion.inputs, len(self._call.operands)
        outputs = {t: k for k, t in enumerate(self._body.fusion.outputs)}
        for b, s in self._read:
            if s.root not in inputs[:count]:
                return f"the body reads {b}, which it makes"
        for b, s in self._written:
            dense = s.strides == contiguous_strides(s.shape)
            if s.tensor not in outputs or not s.is_whole or not dense:
                return f"the body writes a part of {b}"
        if {s.tensor for _, s in self._written} != set(outputs):
            return "the body hands on an array that it does not write"
        return None

    def _operand(self, k: int, name: str) -> Buffer:
        if k not in self._operands:
            shape, dtype = self._call.operands[k]
            alignment = max(self._outer[0][k].alignment, dtype.nbytes)
            size, name = element_count(shape), self._free(name)
            self._operands[k] = Buffer(name, dtype, size, Memory.GLOBAL, alignment)
        return self._operands[k]

    def _result(self, k: int, name: str) -> Buffer | None:
        """The parameter of result `k` of the loop; None where nothing reads it."""
        if k not in self._call.used:
            return None
        place = self._call.used.index(k)
        if place not in self._results:
            shape, dtype = self._call.results[k]
            alignment = max(self._outer[1][place].alignment, dtype.nbytes)
            size, name = element_count(shape), self._free(name)
            self._results[place] = Buffer(name, dtype, size, Memory.GLOBAL, alignment)
        return self._results[place]

    def _free(self, name: str) -> str:
        """A name that no other array of the loop has."""
        given = {b.name for found in (self._operands, self._results) for b in found.values()}
        out, count = name, 0
        while out in given or (count and out in self._taken):
            out, count = f"{name}_{count}", count + 1
        return out

    def _carried(self, k: int) -> Carried:
        call = self._call
        assert call.trips is not None
        output = self._body.fusion.outputs[k]
        written = next(b for b, s in self._written if s.tensor is output)
        given = self._body.fusion.inputs[k]
        found = {b: s.offset for b, s in self._read if s.root is given}
        surely = prove(less_equal(ONE, call.trips)) is True
        start = None
        if found or not surely:
            name = next((b.name for b in found), None) or given.name
            start = self._operand(k, name)
        return Carried(found, written, start, self._result(k, written.name))

    def _parts(self, laps: Laps) -> dict[Buffer, tuple[Part, ...]]:
        call, inputs = self._call, self._body.fusion.inputs
        parts: dict[Buffer, tuple[Part, ...]] = {}
        for b, s in self._read:
            k = inputs.index(s.root)
            if k < call.carried:
                continue
            begins: Expr = s.offset
            if k < call.carried + call.sliced:
                begins = add(begins, mul(laps.number, element_count(s.root.shape)))
            parts[b] = (Part(self._operand(k, b.name), begins),)
        outputs = self._body.fusion.outputs[call.carried :]
        for k, t in zip(call.stacked, outputs, strict=True):
            written = next(b for b, s in self._written if s.tensor is t)
            whole = self._result(k, written.name)
            assert whole is not None
            begins = mul(laps.number, element_count(t.shape))
            parts[written] = (*parts.get(written, ()), Part(whole, begins))
        return parts


def _finished(
    lowered: KernelIr, x: Dispatch, border: _Border, call: Call, loops: Loops
) -> Kernel | str:
    """The kernel behind all passes; or why it is none."""
    target, text = x.kernel.target, print_kernel(lowered)
    if text in loops.known:
        return loops.known[text]
    digest = hashlib.blake2b(text.encode(), digest_size=2).hexdigest()
    lowered = replace(lowered, name=f"{lowered.name}_{digest}")
    try:
        final = run_pipeline(lowered, target)
    except UnsupportedError as e:
        return str(e)
    held = blocks_by_memory(target, final.nthreads, shared_nbytes(final))
    if not held or estimate_registers(final, target) > register_cap(target, final.nthreads, 1):
        return "its threads have too few registers, or too little memory, for what they would keep"
    types = [*(call.operands[k] for k in border.reads)]
    types += [call.results[call.used[k]] for k in border.writes]
    infos = [
        TensorInfo(b.name, shape, dtype, contiguous_strides(shape))
        for b, (shape, dtype) in zip(final.arrays, types, strict=True)
    ]
    n = len(border.reads)
    costs, is_alone = _costs(x.kernel), all(d.extent == ONE for d in final.grid)
    moved = sum(d.nbytes * estimate(element_count(shape)) for shape, d in types)
    trips = estimate(border.laps.trips)
    made = Kernel(
        final, target, tuple(infos[:n]), tuple(infos[n:]), x.kernel.argument_values,
        x.kernel.schedule, companions=loops.together, lowered=lowered,
        cost=None if costs is None else repeated(costs[is_alone], trips, moved, target),
    )  # fmt: skip
    loops.known[text] = made
    return made
