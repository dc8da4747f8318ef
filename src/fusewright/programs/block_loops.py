"""Loops of one block: several kernels an iteration, or a condition on the device.

`host.whole_block` writes them; here the arrays of the kernels of a body, and of its condition,
become those of the loop and what the block keeps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from fusewright.core.conditions import less_equal, prove
from fusewright.core.expr import ONE, ZERO, Expr, Var, add, constant_value, mul
from fusewright.dtypes import bool_
from fusewright.fusion.build import element_count
from fusewright.fusion.ir import Tensor, contiguous_strides
from fusewright.host.control import RegionCall
from fusewright.host.laps import Carried, LapPart, Laps, lap_of
from fusewright.host.shared_places import SharedPlaces
from fusewright.host.subspans import Subspan
from fusewright.host.whole_block import (
    MOST,
    Part as InnerPart,
    Stages,
    limit_of,
    open_trips,
    private,
)
from fusewright.kir.ir import Argument, Buffer, Kernel as KernelIr
from fusewright.programs.join_launches import apart
from fusewright.programs.loop_arrays import LoopArrays
from fusewright.programs.model import Dispatch, ProgramModel


class NotOneLaunch(Exception):
    """Why the iterations of a loop are launches of their own."""


@dataclass(slots=True)
class BlockLoop:
    """What an iteration consists of, and the arrays of the loop."""

    stages: Stages
    arrays: LoopArrays


def launches_of(body: ProgramModel) -> list[Dispatch]:
    """The launches of a body, one for each kernel that it computes alone."""
    return [y for x in body.launches for y in apart(x)]


def block_loop(
    call: RegionCall,
    bodies: tuple[ProgramModel, ...],
    reads: Sequence[Subspan],
    writes: Sequence[Subspan],
) -> BlockLoop:
    """A loop as kernels whose arrays are its own. Raises NotOneLaunch where it cannot be."""
    launches = [x for b in bodies for x in launches_of(b)]
    if any(x.region is not None or x.kernel.lowered is None for x in launches):
        raise NotOneLaunch("the body is no kernels of one function each")
    waits = (k for x in launches if (k := x.kernel.lowered) is not None)
    if any(k.semaphores or k.scratch or k.maps for k in waits):
        raise NotOneLaunch("its blocks wait for each other, or read boxes")
    return _Reading(call, bodies, reads, writes).loop()


@dataclass(slots=True)
class _Found:
    """What the parameters of kernels are."""

    reads: list[dict[Buffer, Expr]]
    written: dict[int, Buffer] = field(default_factory=dict[int, Buffer])
    parts: dict[Buffer, tuple[LapPart, ...]] = field(
        default_factory=dict[Buffer, tuple[LapPart, ...]]
    )
    made: dict[Buffer, tuple[int, Expr]] = field(default_factory=dict[Buffer, tuple[int, Expr]])
    inner: dict[Buffer, InnerPart] = field(default_factory=dict[Buffer, InnerPart])


class _Reading:
    """Finds what each parameter of each kernel is."""

    def __init__(
        self,
        call: RegionCall,
        bodies: tuple[ProgramModel, ...],
        reads: Sequence[Subspan],
        writes: Sequence[Subspan],
    ) -> None:
        self._call, self._bodies = call, bodies
        taken = {
            b.name
            for body in bodies
            for x in launches_of(body)
            if x.kernel.lowered is not None
            for b in x.kernel.lowered.params
        }
        self._arrays = LoopArrays(call, reads, writes, taken)
        self._limit = limit_of("limit") if call.trips is None else None
        if self._limit is not None:
            trips, lap = open_trips(self._limit), Var("lap", 0, MOST - 1)
        else:
            assert call.trips is not None
            trips, lap = call.trips, lap_of(call.trips)
        self._laps = Laps(trips, call.reverse, call.lap, lap, (), {}, (), ())
        self._found = _Found([{} for _ in range(call.carried)])
        self._places: dict[Tensor, SharedPlaces] = {}
        self._sliced: dict[Tensor, Buffer] = {}

    def loop(self) -> BlockLoop:
        """The kernels of an iteration, and what their parameters are."""
        call, body = self._call, self._bodies[-1]
        stages = self._kernels(body, body, {})
        first: tuple[KernelIr, ...] = ()
        again: tuple[KernelIr, ...] = ()
        goes_on = None
        if self._limit is not None:
            condition = self._bodies[0]
            arguments: dict[int, dict[Argument, Argument]] = {}
            first = self._kernels(condition, body, arguments)
            again = self._kernels(condition, body, arguments)
            goes_on = self._places[condition.fusion.outputs[0]]
        found = self._found
        carried = tuple(self._carried(k) for k in range(call.carried))
        arrays = self._arrays
        laps = Laps(
            self._laps.trips, call.reverse, call.lap, self._laps.lap, carried, found.parts,
            arrays.params, arrays.results,
        )  # fmt: skip
        made = Stages(laps, stages, first, again, found.made, found.inner, goes_on, self._limit)
        return BlockLoop(made, arrays)

    def _kernels(
        self,
        program: ProgramModel,
        body: ProgramModel,
        arguments: dict[int, dict[Argument, Argument]],
    ) -> tuple[KernelIr, ...]:
        """The kernels of a body or a condition, each with symbols of its own."""
        out: list[KernelIr] = []
        for number, x in enumerate(launches_of(program)):
            lowered = x.kernel.lowered
            assert lowered is not None
            own = arguments.setdefault(
                number, {a: Argument(a.name, a.dtype) for a in lowered.arguments}
            )
            kernel = private(lowered, own)
            count = len(x.reads)
            for b, s in zip(kernel.arrays[:count], x.reads, strict=True):
                self._read(b, s, program, is_condition=program is not body)
            for b, s in zip(kernel.arrays[count:], x.writes, strict=True):
                self._write(b, s, program, is_condition=program is not body)
            out.append(kernel)
        return tuple(out)

    def _read(self, b: Buffer, s: Subspan, program: ProgramModel, *, is_condition: bool) -> None:
        call, found = self._call, self._found
        inputs, outputs = program.fusion.inputs, program.fusion.outputs
        # Where an output lies in the memory of an argument, the tensor says which of both it is.
        if not is_condition and s.tensor in outputs and s.tensor not in inputs:
            k = outputs.index(s.tensor)
            if k < call.carried:
                found.made[b] = k, s.offset
            else:  # what is stored in its slice stays in shared memory as well
                found.inner[b] = InnerPart(self._inner(s.tensor), s.offset)
                found.inner[self._sliced[s.tensor]] = InnerPart(self._inner(s.tensor), ZERO)
        elif s.root in inputs:
            k = inputs.index(s.root)
            if k < call.carried and is_condition:
                found.made[b] = k, s.offset
            elif k < call.carried:
                found.reads[k][b] = s.offset
            else:
                self._read_operand(b, s, k)
        else:
            found.inner[b] = InnerPart(self._inner(s.root), s.offset)

    def _read_operand(self, b: Buffer, s: Subspan, k: int) -> None:
        call = self._call
        begins: Expr = s.offset
        if k >= len(call.operands):
            raise NotOneLaunch(f"the body reads a slice {b} that it stacks")
        if k < call.carried + call.sliced:
            begins = add(begins, mul(self._laps.number, element_count(s.root.shape)))
        self._found.parts[b] = (LapPart(self._arrays.operand(k, b.name), begins),)

    def _write(self, b: Buffer, s: Subspan, program: ProgramModel, *, is_condition: bool) -> None:
        outputs = program.fusion.outputs
        dense = s.strides == contiguous_strides(s.shape)
        if not dense:
            raise NotOneLaunch(f"the body writes a part of {b}")
        if is_condition or s.tensor not in outputs:
            if s.root in program.fusion.inputs or (s.root in outputs and s.tensor not in outputs):
                raise NotOneLaunch(f"the body writes a part of {b}")
            self._found.inner[b] = InnerPart(self._inner(s.root), s.offset)
            return
        if not s.is_whole:
            raise NotOneLaunch(f"the body writes a part of {b}")
        k = outputs.index(s.tensor)
        if k < self._call.carried:
            self._found.written[k] = b
            return
        whole = self._arrays.result(self._stacked(k), b.name)
        if whole is None:
            raise NotOneLaunch(f"nothing reads the slices {b} that it stacks")
        begins = mul(self._laps.number, element_count(s.tensor.shape))
        self._found.parts[b] = (LapPart(whole, begins),)
        self._sliced[s.tensor] = b

    def _stacked(self, output: int) -> int:
        """The result of the loop whose slices an output of the body is."""
        return self._call.stacked[output - self._call.carried]

    def _inner(self, t: Tensor) -> SharedPlaces:
        """Where an array lies that only kernels of an iteration have."""
        if t not in self._places:
            count = constant_value(element_count(t.shape))
            if count is None:
                raise NotOneLaunch(f"the size of {t.name} is known to calls only")
            name = "goes_on" if t.dtype is bool_ and not t.ndim else f"{t.name}_kept"
            self._places[t] = SharedPlaces(name, t.dtype, count, 1)
        return self._places[t]

    def _carried(self, k: int) -> Carried:
        call, found = self._call, self._found
        written = found.written.get(k)
        if written is None:
            raise NotOneLaunch("the body hands on an array that it does not write")
        read = found.reads[k]
        asked = any(number == k for number, _ in found.made.values())
        surely = call.trips is not None and prove(less_equal(ONE, call.trips)) is True
        start = None
        if read or not surely or (asked and self._limit is not None):
            start = self._arrays.operand(k, self._bodies[-1].fusion.inputs[k].name)
        return Carried(read, written, start, self._arrays.result(k, written.name))
