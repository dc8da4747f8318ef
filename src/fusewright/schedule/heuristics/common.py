"""What every automatic schedule needs: sizes, vector widths, caches of inputs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from fusewright.axes.classes import AxisClass
from fusewright.axes.contiguity import Fit, fit_of, lanes_where
from fusewright.axes.frames import Gathered
from fusewright.axes.paths import Refusal, domain_path
from fusewright.axes.pieces import pieces_of
from fusewright.core.conditions import Cond
from fusewright.core.expr import ONE, ZERO, Expr, Int, Var, constant_value, variables
from fusewright.core.substitution import estimate
from fusewright.fusion.ir import Pointwise, Scan, Take, TakeAlong, contiguous_strides, moves_data
from fusewright.memory import Memory
from fusewright.schedule.clone_untied_uses import is_loose
from fusewright.schedule.edits import edit
from fusewright.schedule.graph import Dataflow, Stage, strides_of
from fusewright.schedule.nest import computed
from fusewright.schedule.parallel import Loop, Parallel
from fusewright.schedule.products import strided_operand
from fusewright.schedule.views import OperandView, View, operand
from fusewright.target import MAX_VECTOR_NBYTES

MOST_LANES = 8
"""Lanes of a thread where some large tensor is wider than 8 bits: 16 lanes of 32 bits would be four
accesses and 16 registers for each value that a thread holds."""
SMALL = 16
"""A tensor with so many times fewer elements than the largest is read from a cache."""


@dataclass(frozen=True, slots=True)
class Params:
    """What a heuristic decided, for `explain`: its name and named numbers, and how many blocks a
    multiprocessor must hold (0: no matter)."""

    scheduler: str
    values: tuple[tuple[str, object], ...]
    min_blocks: int = 0

    @staticmethod
    def of(scheduler: str, *, min_blocks: int = 0, **values: object) -> Params:
        """Those that have a value: None stands for what is as usual."""
        given = tuple((name, v) for name, v in values.items() if v is not None)
        return Params(scheduler, given, min_blocks)

    def __str__(self) -> str:
        return f"{self.scheduler}({', '.join(f'{k}={v}' for k, v in self.values)})"


def numel(shape: Sequence[Expr]) -> int:
    """The product of the sizes, estimated."""
    return math.prod(map(estimate, shape))


def full_width(narrow: Sequence[Stage], tensors: Sequence[Stage]) -> int:
    """Lanes of a thread that accesses some tensors: elements of the smallest type among the
    `narrow` ones that 16 bytes hold, which are more than `MOST_LANES` only where all large tensors
    are of that size."""
    most = max((numel(t.shape) for t in tensors), default=1)
    large = [t.dtype.nbytes for t in tensors if numel(t.shape) * SMALL > most]
    smallest = min((t.dtype.nbytes for t in narrow), default=4)
    lanes = max(MOST_LANES, MAX_VECTOR_NBYTES // max(large, default=4))
    return min(MAX_VECTOR_NBYTES // smallest, lanes)


def reference_output(flow: Dataflow) -> Stage:
    """The output with the most elements, the first of those."""
    return max(flow.outputs, key=lambda s: (numel(s.shape), -flow.outputs.index(s)))


def merge_all(flow: Dataflow, loops: Sequence[Loop]) -> Loop | None:
    """One loop over all of these, the first outermost; None for no loops."""
    sized = [x for x in loops if x.axis.extent != ONE]
    if not sized:
        return None
    axis = sized[0].axis
    for x in sized[1:]:
        axis = flow.graph.merge(axis, x.axis)
    return Loop(axis)


def _largest_read(flow: Dataflow) -> tuple[Stage, int] | None:
    """The stage that reads the largest input, and which of its operands that is."""
    reads = [
        (numel(p.shape), -i, s, k)
        for i, s in enumerate(computed(flow.stages))
        for k, p in enumerate(s.operands)
        if p.is_input
    ]
    return max(reads, key=lambda found: found[:2])[2:] if reads else None


def fast_axis(flow: Dataflow) -> AxisClass | None:
    """The axis by which neighbours in the largest input are read."""
    largest = _largest_read(flow)
    if largest is None:
        return None
    s, k = largest
    for index, stride in zip(s.frame.operands[k], strides_of(s.operands[k]), strict=True):
        if isinstance(index, AxisClass) and stride == ONE and index.extent != ONE:
            return flow.graph.normal(index)
    return None


def by_stride(flow: Dataflow, axes: tuple[AxisClass, ...]) -> list[Loop]:
    """Loops over the axes, the one that is fastest in the largest input innermost. An axis along
    which that input is read in other steps than its own counts as in the result of the read."""
    largest = _largest_read(flow)
    strides: dict[AxisClass, int] = {}
    if largest is not None:
        s, k = largest
        natural = zip(s.frame.output, contiguous_strides(s.shape), strict=False)
        strides = {c: estimate(stride) for c, stride in natural if not s.is_reduction}
        for index, stride in zip(s.frame.operands[k], strides_of(s.operands[k]), strict=True):
            if isinstance(index, AxisClass):
                for c in axes:
                    if c is index or flow.graph.depends(c, [index]):
                        strides[c] = estimate(stride)
    order = sorted(range(len(axes)), key=lambda i: (-strides.get(axes[i], 1 << 40), i))
    return [Loop(axes[i]) for i in order]


def split(flow: Dataflow, loop: Loop, factor: int) -> tuple[Loop, Loop]:
    """(outer, inner of extent `factor`)."""
    outer, inner = flow.graph.split(loop.axis, factor)
    return Loop(outer), Loop(inner)


@edit("cache_inputs")
def cache_inputs(flow: Dataflow, through: Sequence[Stage] = ()) -> list[Stage]:
    """Reads every input once: a register copy of each input that is computed with.

    Moves of inputs (broadcasts, slices, gathers) read global memory themselves, but for those in
    `through`, which read the copy. A copy is one of the users, so that all run along the same axes,
    but for those that fill tiles of shared memory, which have loops of their own; an input that is
    copied once, and else not read, is read so already. Returns the stages that hold inputs in
    registers: the copies and the moves.
    """
    copies: list[Stage] = []
    for s in list(flow.inputs):
        kept = [r for r in flow.consumers(s) if _is_copy(r) and not _fills_tiles(flow, r)]
        users = [r for r in flow.consumers(s) if r in kept or not _moves(r) or r in through]
        if not s.shape or len(users) == len(kept) < 2:
            continue
        c = flow.insert(s, f"{s.name}_c", s.shape, s.dtype, Pointwise((), "copy"), [s])
        flow.replace_operand(users, s, c)
        flow.attach(c)
        copies.append(c)
    flow.retie()
    copies = _copies_by_place(flow, copies)
    for c in copies:
        c.loops = tuple(Loop(a) for a in c.frame.output)
    moved = [
        s
        for s in computed(flow.stages)
        if s not in copies and any(o.is_input for o in s.operands) and s.memory is Memory.LOCAL
    ]
    return [*copies, *moved]


@edit("relate")
def relate(flow: Dataflow, reference: Stage) -> None:
    """Ties the axes of reductions, or of scans, that have none in common with the reference but the
    same sizes, so that they may run along its loops."""
    for s in flow.stages:
        if not (s.is_reduction or isinstance(s.op, Scan)) or s is reference:
            continue
        (own,), (other,) = reference.frame.operands, s.frame.operands
        pairs = [
            (a, b)
            for a, b in zip(own, other, strict=len(own) == len(other))
            if isinstance(a, AxisClass) and isinstance(b, AxisClass)
        ]
        same = len(pairs) == len(own) == len(other) and all(a.extent == b.extent for a, b in pairs)
        if same and not any(flow.graph.depends(b, reference.frame.domain) for _, b in pairs):
            for a, b in pairs:
                flow.graph.tie(a, b)
    flow.retie()


def _copies_by_place(flow: Dataflow, copies: Sequence[Stage]) -> list[Stage]:
    """The copies, and further ones for the readers that need an input at another place: registers
    hold what a thread reads at one place only.

        x_c = copy(x); y = concat(x_c * a, x_c + b)   ->   the second half reads x_c_1 = copy(x)
    """
    found = list(copies)
    for c in found:  # grows on the way: readers of a new copy may need several places, too
        readers = flow.consumers(c)
        apart = [r for r in readers if is_loose(r, r.operands.index(c))]
        if apart and len(apart) < len(readers):
            own = flow.clone(c, apart)
            flow.retie()
            found.append(own)
    return found


def _is_copy(s: Stage) -> bool:
    return isinstance(s.op, Pointwise) and s.op.fn == "copy"


def _fills_tiles(flow: Dataflow, s: Stage) -> bool:
    """Whether a copy lies in shared memory, or on the way there."""
    return any(r.memory is Memory.SHARED for r in (s, *flow.consumers(s)))


def _moves(s: Stage) -> bool:
    return moves_data(s.op) or isinstance(s.op, Take | TakeAlong)


@dataclass(frozen=True, slots=True)
class GlobalAccess:
    """One access to global memory by a stage: the tensor, the address as a function of the loops'
    variables, and the conditions under which the element is accessed. Where data is part of the
    address, it is a variable of its own; `data` tells at which element it is found. `own`: the
    lanes, where the stage lacks an axis that some of them differ in."""

    stage: Stage
    tensor: Stage
    variables: tuple[Expr, ...]
    address: Expr
    conditions: tuple[Cond, ...]
    data: tuple[tuple[Var, Expr], ...] = ()
    own: Var | None = None

    def lanes(self, lane: Var, width: int) -> tuple[Var, int]:
        """The lanes that it has of these, and how many they are."""
        if self.own is None or self.own.upper is None:
            return lane, width
        return self.own, estimate(self.own.upper) + 1

    def fit(self, lane: Var, width: int) -> Fit:
        """How its lanes lie in words of memory; only reads take elements out of these. Lanes of two
        rows are not put together where those that exist are no range of them, as inside of a pad or
        a piece of a join: to fill the others takes more than to read these one by one. Nor of a
        small tensor, whose elements are near, and the same for several vectors of a thread."""
        p, (lane, width) = self.tensor, self.lanes(lane, width)
        found = fit_of(self.address, lane, width, p.dtype.nbytes, p.alignment)
        if found is Fit.PIECES and not self._is_put_together(lane, width):
            return Fit.NARROW
        return Fit.NARROW if found is not Fit.WORDS and p is self.stage else found

    def _is_put_together(self, lane: Var, width: int) -> bool:
        """Whether lanes that are in two rows are read as two runs: where that spares accesses."""
        found = pieces_of(self.address, lane, width)
        is_large = numel(self.tensor.shape) * SMALL > numel(self.stage.shape)
        is_less = found is not None and (found.step == 0 or is_large)
        return is_less and lanes_where(self.conditions, lane) is not None


def accessors(flow: Dataflow) -> list[Stage]:
    """The computed stages that access global memory; others have no part in `global_accesses`."""
    return [
        s
        for s in computed(flow.stages)
        if s.memory is Memory.GLOBAL
        or any(p.is_viewed or p.memory is Memory.GLOBAL for p in s.operands)
    ]


def global_accesses(
    flow: Dataflow,
    lane_axis: object,
    lane: Var,
    stages: Sequence[Stage] | None = None,
    *,
    by_data: bool = False,
) -> list[GlobalAccess]:
    """Every access to an input or output by the stages (default all), with the loop whose class is
    `lane_axis` as `lane`; with `by_data` also those that go where data says, unless each lane has
    data of its own."""
    found: list[GlobalAccess] = []
    for s in computed(flow.stages if stages is None else stages):
        values: list[Expr] = []
        own = own_lanes(flow, s, lane_axis)
        for i, x in enumerate(s.loops):
            if x.axis is lane_axis:
                values.append(lane)
            elif own is not None and x is s.loops[-1]:
                values.append(own)
            else:
                unit = x.axis.extent == ONE
                values.append(ZERO if unit else flow.graph.variable(f"i{i}", x.axis.extent))
        loops = [(x.axis, v) for x, v in zip(s.loops, values, strict=True)]
        path = domain_path(flow.graph, loops, s.frame.domain)
        if isinstance(path, Refusal):
            continue
        v = View(s, tuple(values), path)
        for k, p in enumerate(s.operands):
            if (p.is_viewed and not s.boxed) or p.memory is Memory.GLOBAL:
                read = operand(flow.graph, v, k)
                coordinates, data = _with_data(flow, v, read)
                if by_data >= bool(data) and not any(lane in variables(at) for _, at in data):
                    conditions = (*v.path.predicates, *read.predicates)
                    address = _address(p, coordinates)
                    found.append(
                        GlobalAccess(s, p.stored, v.variables, address, conditions, data, own)
                    )
        if s.memory is Memory.GLOBAL:
            address, conditions = _address(s, v.output), v.path.predicates
            found.append(GlobalAccess(s, s, v.variables, address, conditions, (), own))
    return found


def own_lanes(flow: Dataflow, s: Stage, lane_axis: object) -> Var | None:
    """The lanes of a stage that lacks an axis of those that all lanes run over, as the pieces that
    are interleaved do; None where it has all of them, or none."""
    if not s.loops or not isinstance(lane_axis, AxisClass):
        return None
    last, graph = s.loops[-1], flow.graph
    count = constant_value(last.axis.extent) or 0
    if last.axis is lane_axis or not last.parallel.is_serial or count < 2 or count & (count - 1):
        return None
    is_part = graph.depends(last.axis, [lane_axis]) and (
        graph.project(lane_axis, s.frame.domain) is last.axis
    )
    return graph.variable("own lane", last.axis.extent) if is_part else None


def _with_data(
    flow: Dataflow, v: View, read: OperandView
) -> tuple[tuple[Expr, ...], tuple[tuple[Var, Expr], ...]]:
    """The coordinates at which an operand is read, those that data supplies as variables, and for
    each of these the place of that data."""
    coordinates: list[Expr] = []
    data: list[tuple[Var, Expr]] = []
    for c, index in zip(read.coordinates, v.stage.frame.operands[read.position], strict=True):
        if c is None:
            assert isinstance(index, Gathered)
            supplier = v.stage.operands[index.position]
            place, nested = _with_data(flow, v, operand(flow.graph, v, index.position))
            c = flow.graph.variable(f"data of {supplier.name}", index.extent)
            data += [*nested, (c, _address(supplier, place))]
        coordinates.append(c)
    return tuple(coordinates), tuple(data)


def _address(p: Stage, coordinates: Sequence[Expr]) -> Expr:
    """The place of an element in memory, of a view in place in that of the input behind it."""
    view = strided_operand(p) if p.is_viewed else None
    address, strides = (ZERO, strides_of(p)) if view is None else (view.offset, view.strides)
    for c, stride in zip(coordinates, strides, strict=True):
        address = address + c * stride
    return address


@edit("vectorize")
def vectorize_accesses(flow: Dataflow, t: Stage, in_shared: Sequence[Stage] = ()) -> None:
    """Binds the loop over the lanes, which is the innermost one of `t`, to Vectorize in every stage
    that accesses global memory, or one of the tensors in shared memory, and may do so at full
    width; in others it is unrolled."""
    lane_axis = t.loops[-1].axis
    width = constant_value(lane_axis.extent) or 1
    for s in computed(flow.stages):
        last = s.loops[-1] if s.loops else None
        if last is None or last.parallel.is_inside:
            continue
        part = own_lanes(flow, s, lane_axis)
        if last.axis is not lane_axis and part is None:
            continue
        lane = flow.graph.variable("lane", Int(width)) if part is None else part
        count = estimate(last.axis.extent)
        own = [a for a in global_accesses_of(flow, s, lane) if _mentions(a.address, lane)]
        fits = {a.fit(lane, count) for a in own}
        wide = bool(own) and Fit.NARROW not in fits
        s.from_any_address = wide and not fits.isdisjoint((Fit.CUT, Fit.TAKEN, Fit.PIECES))
        shared = part is None and any(o in in_shared for o in (s, *s.operands))
        kind = Parallel.VECTORIZE if wide or (shared and not own) else Parallel.UNROLL
        s.loops = (*s.loops[:-1], Loop(s.loops[-1].axis, kind))


def global_accesses_of(flow: Dataflow, s: Stage, lane: Var) -> list[GlobalAccess]:
    """The accesses of one stage, its innermost loop as `lane`."""
    return global_accesses(flow, s.loops[-1].axis, lane, [s], by_data=True)


def _mentions(e: Expr, v: Var) -> bool:
    return v in variables(e)
