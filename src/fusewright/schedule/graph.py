"""The schedule's own copy of the dataflow: mutable tensors over immutable ops.

`Stage` is one definition of a value: its op, its operands, its place in the axis graph, its loops,
its memory, and how deep it is inlined. `Dataflow` owns the stages and keeps operands before users.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from fusewright.axes.classes import AxisClass, AxisGraph, GraphChanges, GraphMark
from fusewright.axes.frames import Frame, make_frame
from fusewright.core.expr import Expr
from fusewright.dtypes import DType
from fusewright.errors import InternalError
from fusewright.fusion.held_results import reads_held_result
from fusewright.fusion.ir import (
    Broadcast,
    Constant,
    Fusion,
    Input,
    MatMul,
    Op,
    Parts,
    Permute,
    Pointwise,
    Reduce,
    Reshape,
    Scan,
    Shape,
    Size,
    Sort,
    Tensor,
    contiguous_strides,
    is_alone,
    topological,
    with_operands,
)
from fusewright.memory import Cache, Memory
from fusewright.schedule.parallel import Loop, Parallel
from fusewright.target import MAX_VECTOR_NBYTES

_NO_FRAME = Frame((), (), ())


@dataclass(slots=True, eq=False, repr=False)
class Stage:
    """One definition: a value of the scheduled dataflow and how it is computed.

    `allocation`: the classes, outer first, by which its buffer in shared memory is indexed; None
    for those of its loops that are stored. `strides` (in elements) and `alignment` (in bytes) are
    those of an output that lies inside of other memory; None for dense outputs; where that
    `begins_anywhere`, only the device knows where in it, and no box of a tensor map lies there.
    `copied`: by which
    asynchronous copies it is filled; `stages` tiles of it are in memory, `ahead` of them before
    they are used, copied by warps of their own where it is `warp_specialized`, with so many
    `registers` for their threads and for others; in `ping_pong` warpgroups compute the tiles of the
    outermost loop in turn. `from_any_address`: vectors that it reads may
    begin between two words.
    `is_rounded`: an output of which 16 bits or fewer are kept in the end, by other kernels.
    `is_viewed`: a view of an input that asynchronous copies read in place. `is_staged`: in shared
    memory, in its own dtype, stored there by matrices, for boxes that copy it on.
    `grid_mode`: how blocks reduce it in turns, None where nobody asked for that; `work_dtype`: in
    which dtype they hand on their parts, None for that of the accumulators; `read_back`: how the
    last one gets what the copy engine added; whether it `streams`, so that blocks share only the
    tiles of the last wave. `warps`: how many warps share the rows and the columns of
    a product's tile, where instructions of single warps compute it; empty where those of warpgroups
    do.
    """

    name: str
    shape: Shape
    dtype: DType
    op: Op
    operands: tuple[Stage, ...]
    memory: Memory = field(init=False)
    loops: tuple[Loop, ...] = ()
    inline_depth: int = 0
    promote: bool = False
    copied: str | None = None
    stages: int = 1
    ahead: int = 0
    warp_specialized: bool = False
    registers: tuple[int, ...] = ()
    ping_pong: bool = False
    from_any_address: bool = False
    begins_anywhere: bool = False
    is_viewed: bool = False
    is_rounded: bool = False
    is_staged: bool = False
    grid_mode: str | None = None
    work_dtype: DType | None = None
    read_back: str = "vector"
    streams: bool = False
    warps: tuple[int, ...] = ()
    cache: Cache = Cache.DEFAULT
    allocation_order: tuple[int, ...] | None = None
    strides: tuple[Expr, ...] | None = None
    alignment: int = field(init=False)
    allocation: tuple[AxisClass, ...] | None = None
    frame: Frame = _NO_FRAME

    def __post_init__(self) -> None:
        self.memory, self.alignment = Memory.LOCAL, MAX_VECTOR_NBYTES
        if isinstance(self.op, Input):
            self.memory, self.alignment = Memory.GLOBAL, self.op.alignment

    def __repr__(self) -> str:
        return self.name

    @property
    def is_input(self) -> bool:
        return isinstance(self.op, Input)

    @property
    def is_virtual(self) -> bool:
        """A literal in registers, or one spread over a shape, or a view that copies read: read in
        place, never computed."""
        if self.memory is not Memory.LOCAL:
            return False
        if self.is_viewed:
            return True
        match self.op:
            case Constant() | Size():
                return True
            case Broadcast() | Reshape() | Permute():
                return self.operands[0].is_virtual
            case _:
                return False

    @property
    def stored(self) -> Stage:
        """The value whose memory is read: of a view that is read in place, the input behind it."""
        s = self
        while s.is_viewed:
            (s,) = s.operands
        return s

    @property
    def is_reduction(self) -> bool:
        return isinstance(self.op, Reduce)

    @property
    def boxed(self) -> tuple[int, ...]:
        """The loops over a box that the copy engine copies, outermost first."""
        return tuple(i for i, x in enumerate(self.loops) if x.parallel is Parallel.BULK)

    @property
    def is_mma(self) -> bool:
        """Whether matrix instructions compute it."""
        inside = any(x.parallel is Parallel.MMA for x in self.loops)
        return inside and isinstance(self.op, MatMul)

    @property
    def is_held_by_thread(self) -> bool:
        """Whether it is a map of a product's results that finds all in the thread's own ones."""
        return any(reads_held_result(self.op, self.shape, o.op, o.shape) for o in self.operands)

    @property
    def axes(self) -> tuple[AxisClass, ...]:
        """The classes of the value's own axes."""
        return self.frame.output


_slots = operator.attrgetter(*Stage.__slots__)


class Edit(Protocol):
    """One edit of a dataflow, as `edits` records it."""

    def calls(self, flow: Dataflow, /) -> Sequence[object]:
        """The public calls that do the same."""
        ...


@dataclass(frozen=True, slots=True)
class FlowState:
    """A dataflow as a value: what `Dataflow.trial` goes back to. `stages`: each with all that its
    slots hold; `edits`: the length of the log."""

    graph: AxisGraph
    mark: GraphMark
    stages: tuple[tuple[Stage, tuple[object, ...]], ...]
    outputs: tuple[Stage, ...]
    names: Mapping[str, int]
    edits: int


@dataclass(frozen=True, slots=True)
class FlowChanges:
    """What a dataflow became since a state, for `Dataflow.redo`; `log`: the edits since."""

    graph: GraphChanges
    stages: tuple[tuple[Stage, tuple[object, ...]], ...]
    outputs: tuple[Stage, ...]
    names: Mapping[str, int]
    log: tuple[Edit, ...]


class Trial:
    """What is edited inside of `with flow.trial() as t:` is dropped at the end, after exceptions
    too, unless `t.keep()` was called. Trials nest."""

    def __init__(self, flow: Dataflow) -> None:
        self._flow = flow
        self._is_kept = False
        self._before: FlowState | None = None

    def keep(self) -> None:
        """Let the edits stand, if no exception follows."""
        self._is_kept = True

    def changes(self) -> FlowChanges:
        """What was edited so far, for `Dataflow.redo` once it is dropped."""
        assert self._before is not None
        return self._flow.changes(self._before)

    def __enter__(self) -> Trial:
        self._before = self._flow.begin()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        assert self._before is not None
        if self._is_kept and kind is None:
            self._before.graph.keep()
        else:
            self._flow.go_back(self._before)


class Dataflow:
    """The stages of one schedule, the axis graph over them, and the outputs. `log`: the edits that
    have led here, operations of schedules in the order in which they were done."""

    def __init__(self, fusion: Fusion) -> None:
        self.graph = AxisGraph()
        self.stages: list[Stage] = []
        self.inputs: list[Stage] = []
        self.outputs: list[Stage] = []
        self.log: list[Edit] = []
        self._names: dict[str, int] = {}
        made: dict[Tensor, Stage] = {}
        for t in topological(fusion.outputs, fusion.inputs):
            op = Pointwise((), "copy") if is_alone(t) else t.op
            made[t] = self.append(t.name, t.shape, t.dtype, op, [made[o] for o in t.op.operands])
        self.inputs = [made[t] for t in fusion.inputs]
        uses = {o for t in made for o in t.op.operands}
        for t in fusion.outputs:
            stage = made[t]
            literal = isinstance(t.op, Constant | Size)
            several = fusion.outputs.count(t) > 1
            if t in uses or stage.is_input or literal or several:
                stage = self.append(
                    stage.name, stage.shape, stage.dtype, Pointwise((), "copy"), [stage]
                )
            stage.memory = Memory.GLOBAL
            self.outputs.append(stage)
        self.rebuild_axes()

    def trial(self) -> Trial:
        """A context whose edits are dropped unless they are kept; see `Trial`."""
        return Trial(self)

    def begin(self) -> FlowState:
        """The state, and the mark in its graph that `go_back` undoes."""
        return FlowState(
            self.graph,
            self.graph.mark(),
            tuple((s, _slots(s)) for s in self.stages),
            tuple(self.outputs),
            dict(self._names),
            len(self.log),
        )

    def go_back(self, state: FlowState) -> None:
        """Everything as it was in a state, the last one that was begun."""
        state.graph.undo(state.mark)
        self.graph = state.graph
        self._set(state)
        del self.log[state.edits :]

    def changes(self, state: FlowState) -> FlowChanges:
        """What has become of a state, the axis graph of which is still the same one."""
        if self.graph is not state.graph:
            raise InternalError("changes: the axis graph was built again since that state")
        return FlowChanges(
            self.graph.changes(state.mark),
            tuple((s, _slots(s)) for s in self.stages),
            tuple(self.outputs),
            dict(self._names),
            tuple(self.log[state.edits :]),
        )

    def redo(self, changes: FlowChanges) -> None:
        """Everything as it was when changes were asked for, in the state before them."""
        self.graph.redo(changes.graph)
        self._set(changes)
        self.log.extend(changes.log)

    def _set(self, known: FlowState | FlowChanges) -> None:
        self.stages = [s for s, _ in known.stages]
        self.outputs = list(known.outputs)
        self._names = dict(known.names)
        for s, values in known.stages:
            for slot, value in zip(Stage.__slots__, values, strict=True):
                setattr(s, slot, value)

    def _unique(self, name: str) -> str:
        count = self._names.get(name, 0)
        self._names[name] = count + 1
        return name if not count else self._unique(f"{name}_{count}")

    def append(
        self, name: str, shape: Shape, dtype: DType, op: Op, operands: Sequence[Stage]
    ) -> Stage:
        """A new stage after all others."""
        self.stages.append(Stage(self._unique(name), shape, dtype, op, tuple(operands)))
        return self.stages[-1]

    def insert(
        self, after: Stage, name: str, shape: Shape, dtype: DType, op: Op, operands: Sequence[Stage]
    ) -> Stage:
        """A new stage right after another."""
        stage = Stage(self._unique(name), shape, dtype, op, tuple(operands))
        self.stages.insert(self.stages.index(after) + 1, stage)
        return stage

    def clone(self, s: Stage, readers: Iterable[Stage] = ()) -> Stage:
        """A stage like another one, right after it, which these readers read instead; without
        ties."""
        c = self.insert(s, s.name, s.shape, s.dtype, s.op, s.operands)
        c.cache = s.cache
        self.attach(c)
        self.replace_operand(readers, s, c)
        return c

    def remove(self, stage: Stage) -> None:
        """Drops a stage that nothing reads and that is no output."""
        if self.consumers(stage) or stage in self.outputs:
            raise InternalError(f"{stage.name} is still used")
        self.stages.remove(stage)

    def consumers(self, stage: Stage) -> list[Stage]:
        """The stages that read this one, in program order."""
        return [s for s in self.stages if stage in s.operands]

    def replace_operand(self, users: Iterable[Stage], old: Stage, new: Stage) -> None:
        """Makes the users read `new` where they read `old`."""
        for user in users:
            user.operands = tuple(new if o is old else o for o in user.operands)

    def sort(self) -> None:
        """Restores operands-before-users, keeping the order otherwise."""
        done: dict[Stage, None] = {}

        def visit(s: Stage) -> None:
            stack: list[tuple[Stage, bool]] = [(s, False)]
            while stack:
                stage, ready = stack.pop()
                if stage in done:
                    continue
                if ready:
                    done[stage] = None
                    continue
                stack.append((stage, True))
                stack.extend((o, False) for o in reversed(stage.operands))

        for s in self.stages:
            visit(s)
        self.stages = list(done)

    def rebuild_axes(self) -> None:
        """Frames for all stages and ties between them; loops start as the op's own domain."""
        self.graph = AxisGraph()
        for s in self.stages:
            s.frame = make_frame(
                self.graph, s.op, s.shape, tuple(o.shape for o in s.operands), s.name
            )
            self.graph.register_domain(s.frame.domain)
            s.loops, s.inline_depth = (), 0  # the new graph knows no class of the old one
        self.retie()
        for s in self.stages:
            if not s.is_input:
                s.loops = tuple(Loop(c) for c in s.frame.domain)

    def attach(self, stage: Stage) -> None:
        """A frame and ties for one new stage; the frames of its users are not touched."""
        stage.frame = make_frame(
            self.graph,
            stage.op,
            stage.shape,
            tuple(o.shape for o in stage.operands),
            stage.name,
        )
        self.graph.register_domain(stage.frame.domain)

    def retie(self) -> None:
        """Ties again whatever is not tied yet and brings every stored class to normal form. Of ties
        of one kind those come first that read what no reader can make again for itself: one that is
        refused costs a clone then, and not the kernel."""
        late = self._behind_reductions()
        is_cheap = {s: late.isdisjoint(s.operands) for s in self.stages}
        ranked = sorted(self.stages, key=lambda s: (_tie_rank(s.op), is_cheap[s]))
        first = next((k for k, s in enumerate(ranked) if isinstance(s.op, Parts)), len(ranked))
        for s in ranked[:first]:
            self._tie(s)
        self._tie_alike(ranked[first:])
        for s in ranked[first:]:
            self._tie(s)
        for s in self.stages:
            self._normalise(s)

    def _behind_reductions(self) -> set[Stage]:
        """The results of reductions, scans, sorts and products, and what is computed of them."""
        found: set[Stage] = set()
        for s in self.stages:
            if isinstance(s.op, Reduce | Scan | Sort | MatMul) or not found.isdisjoint(s.operands):
                found.add(s)
        return found

    def _tie_alike(self, stages: Sequence[Stage]) -> None:
        """Lets cuts of several axes in the same parts have these in common, where what they cut has
        the same axes: each would have a run of its own over the axes otherwise."""
        cuts: dict[object, Stage] = {}
        for s in stages:
            if not isinstance(s.op, Parts) or len(s.op.axes) < 2:
                continue
            (operand,) = s.operands
            along = tuple(self.graph.normal(c) for c in operand.frame.output if not c.is_unit)
            key = (s.op.partition, s.op.axes, operand.shape, along)
            for own, other in zip(
                s.frame.output, cuts.setdefault(key, s).frame.output, strict=True
            ):
                self.graph.tie(own, other)

    def _tie(self, s: Stage) -> None:
        for read, operand in zip(s.frame.operands, s.operands, strict=True):
            if operand.is_input or operand.is_virtual:
                continue
            for index, axis in zip(read, operand.frame.output, strict=True):
                if isinstance(index, AxisClass) and not axis.is_unit and not index.is_unit:
                    self.graph.tie(index, axis)
            if s.is_held_by_thread:
                self.graph.tie(s.frame.output[-1], operand.frame.output[-1])

    def _normalise(self, s: Stage) -> None:
        normal = self.graph.normal
        s.frame = Frame(
            tuple(normal(c) for c in s.frame.output),
            tuple(normal(c) for c in s.frame.reduced),
            tuple(
                tuple(normal(i) if isinstance(i, AxisClass) else i for i in read)
                for read in s.frame.operands
            ),
        )
        s.loops = tuple(Loop(normal(x.axis), x.parallel) for x in s.loops)

    def fusion(self) -> Fusion:
        """The dataflow as a Fusion again."""
        made: dict[Stage, Tensor] = {}
        for s in self.stages:
            op = with_operands(s.op, tuple(made[o] for o in s.operands))
            made[s] = Tensor(s.name, s.shape, s.dtype, op)
        return Fusion(
            tuple(made[s] for s in self.inputs),
            tuple(made[s] for s in self.outputs),
            tuple(made.values()),
        )


def _tie_rank(op: Op) -> int:
    """Elementwise uses are tied first, then broadcasts and reductions, then cuts into parts, then
    what moves indices otherwise. Axes that are cut are digits of the parts, which a reshape may
    join again; the other way round they would be parts of an axis that is joined already."""
    match op:
        case Pointwise() | Scan() | Sort():
            return 0
        case Reduce() | Broadcast() | MatMul():
            return 1
        case Parts():
            return 2
        case _:
            return 3


def strides_of(s: Stage) -> tuple[Expr, ...]:
    """Element strides of a tensor in global memory."""
    if isinstance(s.op, Input):
        return s.op.strides
    if s.strides is not None:
        return s.strides
    if s.allocation_order is None:
        return contiguous_strides(s.shape)
    dense = contiguous_strides(tuple(s.shape[a] for a in s.allocation_order))
    place = {a: k for k, a in enumerate(s.allocation_order)}
    return tuple(dense[place[a]] for a in range(len(s.shape)))
