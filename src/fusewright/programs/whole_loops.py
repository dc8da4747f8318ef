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
from fusewright.host.control import RegionCall, described
from fusewright.host.laps import Carried, LapPart, Laps, in_one_launch, lap_of
from fusewright.host.one_block import in_one_block
from fusewright.host.subspans import Subspan
from fusewright.host.whole_block import in_whole_block
from fusewright.kernel import Kernel, TensorInfo
from fusewright.kir.analysis.occupancy import (
    blocks_by_memory,
    estimate_registers,
    register_cap,
)
from fusewright.kir.ir import Buffer, Kernel as KernelIr
from fusewright.kir.pipeline import run_pipeline
from fusewright.kir.text import print_kernel
from fusewright.programs.block_loops import NotOneLaunch, block_loop, launches_of
from fusewright.programs.loop_arrays import LoopArrays
from fusewright.programs.model import Dispatch, ProgramModel
from fusewright.programs.regions import region_dispatch
from fusewright.schedule.heuristics import schedule_group
from fusewright.schedule.heuristics.cost import (
    Cost,
    cost,
    held_in_shared_memory,
    repeated,
    together,
)
from fusewright.schedule.heuristics.work import work_of


@dataclass(frozen=True, slots=True)
class _Border:
    """A loop around a kernel, and the arrays of both."""

    laps: Laps
    arrays: LoopArrays


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
    call: RegionCall,
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
    if call.trips is None or len(launches_of(bodies[-1])) > 1:
        found = loop_of_block(call, bodies, reads, writes, loops)
    else:
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
    call: RegionCall,
    body: ProgramModel,
    reads: Sequence[Subspan],
    writes: Sequence[Subspan],
    loops: Loops,
) -> LoopDispatch | str:
    """The launch of a kernel that runs all iterations of a loop over the places of its operands,
    and of its results that are used; or why they are launches of their own."""
    if call.trips is None or prove(less_equal(ZERO, call.trips)) is not True:
        return _NEGATIVE
    if not body.launches:
        return _NO_LAUNCH
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
        kernel = made
        if isinstance(made, KernelIr):
            costs, is_alone = _costs(x.kernel), all(d.extent == ONE for d in made.grid)
            one = None if costs is None else costs[is_alone]
            kernel = _finished(made, (x,), one, border.arrays, loops, call.trips)
        if isinstance(kernel, Kernel):
            used = tuple(reads[k] for k in border.arrays.reads), tuple(writes)
            rule = f"{call.fn} runs all {call.trips} iterations in one launch: {how}"
            return LoopDispatch(Dispatch(kernel, *used, x.values), (rule,))
        assert isinstance(kernel, str)
        why.append(kernel)
    return "; ".join(why)


_NEGATIVE = "a call may ask for a negative number of them"
_NO_LAUNCH = "the body computes nothing: it hands on what it carries, seen in another way"


def loop_of_block(
    call: RegionCall,
    bodies: tuple[ProgramModel, ...],
    reads: Sequence[Subspan],
    writes: Sequence[Subspan],
    loops: Loops,
) -> LoopDispatch | str:
    """The launch of one block that runs all iterations, and asks the condition of a while_loop; or
    why iterations are launches of their own."""
    if call.trips is not None and prove(less_equal(ZERO, call.trips)) is not True:
        return _NEGATIVE
    launches = [x for b in reversed(bodies) for x in launches_of(b)]
    kernels = len(launches_of(bodies[-1]))
    try:
        loop = block_loop(call, bodies, reads, writes)
    except NotOneLaunch as e:
        return str(e)
    if not all(map(_is_one_block, launches)) and not are_faster_alone([x.kernel for x in launches]):
        return "one multiprocessor would take longer than all of them behind its launches"
    target = launches[0].kernel.target
    named = launches[kernels - 1].kernel.lowered
    assert named is not None
    stem = named.name.removeprefix("fw_").rpartition("_")[0]
    made = in_whole_block(loop.stages, f"fw_{call.fn}_{stem}", target)
    if isinstance(made, str):
        return made
    costs = [_costs(x.kernel) for x in launches[:kernels]]
    one = together([c[1] for c in costs if c is not None], target) if all(costs) else None
    kernel = _finished(made, launches, one, loop.arrays, loops, call.trips)
    if isinstance(kernel, str):
        return kernel
    used = tuple(reads[k] for k in loop.arrays.reads), tuple(writes)
    values = tuple(v for x in launches for v in x.values)
    count = "all" if call.trips is None else f"all {call.trips}"
    does = "asks its condition, and keeps" if call.trips is None else "keeps"
    rule = (
        f"{call.fn} runs {count} iterations of {kernels} kernels in one launch: "
        f"one block does the work of all blocks, {does} what they hand on in shared memory"
    )
    return LoopDispatch(Dispatch(kernel, *used, values), (rule,))


def _is_one_block(x: Dispatch) -> bool:
    return all(d.extent == ONE for d in x.kernel.ir.grid)


def are_faster_alone(kernels: Sequence[Kernel]) -> bool:
    """Whether one multiprocessor is predicted to do the work of kernels one after the other, on
    what it has in shared memory, before launches behind each other have their first bytes."""
    costs = [_costs(k) for k in kernels]
    known = kernels[0].target.calibration
    waits = len(kernels) * (known.start_us + known.memory_latency_us)
    return all(costs) and sum(c[1].us for c in costs if c is not None) <= waits


def _in_one_block(kernel: Kernel, lowered: KernelIr, laps: Laps, name: str) -> KernelIr | str:
    """The kernel of one block; or why there is none, or none that pays."""
    if any(constant_value(d.extent) != 1 for d in lowered.grid) and not are_faster_alone([kernel]):
        return "one multiprocessor would take longer than all of them behind a launch"
    return in_one_block(lowered, laps, name, kernel.target)


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
        self,
        call: RegionCall,
        body: ProgramModel,
        reads: Sequence[Subspan],
        writes: Sequence[Subspan],
    ) -> None:
        (x,) = body.launches
        assert x.kernel.lowered is not None
        arrays = x.kernel.lowered.arrays
        n = len(x.reads)
        self._call, self._body, self._x = call, body, x
        taken = {b.name for b in x.kernel.lowered.params}
        self._arrays = LoopArrays(call, reads, writes, taken)
        self._read = list(zip(arrays[:n], x.reads, strict=True))
        self._written = list(zip(arrays[n:], x.writes, strict=True))

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
        arrays = self._arrays
        params, results = arrays.params, arrays.results
        laps = replace(bare, carried=carried, parts=parts, params=params, results=results)
        return _Border(laps, arrays)

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
            start = self._arrays.operand(k, name)
        return Carried(found, written, start, self._arrays.result(k, written.name))

    def _parts(self, laps: Laps) -> dict[Buffer, tuple[LapPart, ...]]:
        call, inputs = self._call, self._body.fusion.inputs
        parts: dict[Buffer, tuple[LapPart, ...]] = {}
        for b, s in self._read:
            k = inputs.index(s.root)
            if k < call.carried:
                continue
            begins: Expr = s.offset
            if k < call.carried + call.sliced:
                begins = add(begins, mul(laps.number, element_count(s.root.shape)))
            parts[b] = (LapPart(self._arrays.operand(k, b.name), begins),)
        outputs = self._body.fusion.outputs[call.carried :]
        for k, t in zip(call.stacked, outputs, strict=True):
            written = next(b for b, s in self._written if s.tensor is t)
            whole = self._arrays.result(k, written.name)
            assert whole is not None
            begins = mul(laps.number, element_count(t.shape))
            parts[written] = (*parts.get(written, ()), LapPart(whole, begins))
        return parts


def _finished(
    lowered: KernelIr,
    launches: Sequence[Dispatch],
    one: Cost | None,
    arrays: LoopArrays,
    loops: Loops,
    trips: Expr | None,
) -> Kernel | str:
    """The kernel behind all passes, of which an iteration costs as much as is predicted; or why it
    is none."""
    x = launches[0]
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
    types = arrays.types
    infos = [
        TensorInfo(b.name, shape, dtype, contiguous_strides(shape))
        for b, (shape, dtype) in zip(final.arrays, types, strict=True)
    ]
    n = len(arrays.reads)
    moved = sum(d.nbytes * estimate(element_count(shape)) for shape, d in types)
    times = 1 if trips is None else estimate(trips)
    made = Kernel(
        final, target, tuple(infos[:n]), tuple(infos[n:]),
        tuple(v for y in launches for v in y.kernel.argument_values),
        x.kernel.schedule, companions=loops.together, lowered=lowered,
        cost=None if one is None else repeated(one, times, moved, target),
    )  # fmt: skip
    loops.known[text] = made
    return made
