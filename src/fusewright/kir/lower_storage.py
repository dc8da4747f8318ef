"""Where the values of a kernel live: buffers and accumulators of definitions, loop variables."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from fusewright.axes.classes import AxisClass
from fusewright.axes.paths import Refusal, domain_path
from fusewright.core.conditions import Cond
from fusewright.core.expr import ZERO, Expr, Int, Var, constant_value
from fusewright.dtypes import DType
from fusewright.errors import ScheduleError
from fusewright.fusion.ir import Iota, Pointwise, Scan, Take, TakeAlong, moves_data
from fusewright.kir.boxes import Box, box_of
from fusewright.kir.ir import Argument, Buffer, Dim, Statement, TensorMap
from fusewright.kir.semaphores import Gathering, GuardedBox, Turns
from fusewright.memory import Memory
from fusewright.schedule.graph import Dataflow, Stage
from fusewright.schedule.nest import Child, LoopNode, Nest, reduced_loops
from fusewright.schedule.parallel import BLOCK_DIMS, THREAD_DIMS, Parallel
from fusewright.schedule.products import is_promoted
from fusewright.target import MAX_VECTOR_NBYTES

Strides: TypeAlias = Callable[[Stage], tuple[Expr, ...]]


@dataclass(frozen=True, slots=True)
class Context:
    """What all definitions of a kernel share. `ranges`: the iterations of some loops that are run,
    of all others all; `kept`: the buffers of statements before, which go on."""

    flow: Dataflow
    nest: Nest
    dims: dict[str, Dim]
    nodes: dict[LoopNode, Var]
    buffers: dict[Stage, Buffer]
    arguments: dict[object, tuple[Argument, bool | int | float]]
    sizes: tuple[Var, ...]
    fast_forms: Mapping[Stage, str]
    at_once: int
    backward: frozenset[LoopNode] = frozenset()
    lanes: dict[Stage, Var] = field(default_factory=dict[Stage, Var])
    carries: dict[Stage, Buffer] = field(default_factory=dict[Stage, Buffer])
    sums: dict[Stage, Buffer] = field(default_factory=dict[Stage, Buffer])
    temporaries: list[int] = field(default_factory=list[int])
    inside: dict[tuple[Stage, int], Var] = field(default_factory=dict[tuple[Stage, int], Var])
    maps: dict[object, TensorMap] = field(default_factory=dict[object, TensorMap])
    boxes: dict[Stage, Box] = field(default_factory=dict[Stage, Box])
    orders: dict[Stage, Turns | Gathering] = field(default_factory=dict[Stage, "Turns | Gathering"])
    returned: dict[Stage, tuple[Statement, ...]] = field(
        default_factory=dict[Stage, "tuple[Statement, ...]"]
    )
    results: dict[Stage, TurnedResult | str] = field(
        default_factory=dict[Stage, "TurnedResult | str"]
    )
    ranges: Mapping[AxisClass, range] = field(default_factory=dict["AxisClass", range])
    kept: frozenset[Buffer] = frozenset()
    digits: dict[Var, AxisClass] = field(default_factory=dict[Var, "AxisClass"])
    finished: dict[Stage, dict[Parallel, Cond]] = field(
        default_factory=dict[Stage, dict[Parallel, Cond]]
    )

    def trips(self, node: LoopNode) -> Expr:
        """How many iterations of a loop are run."""
        assert node.axis is not None
        some = self.ranges.get(node.axis)
        return node.axis.extent if some is None else Int(len(some))

    def iteration(self, node: LoopNode) -> Expr:
        """Which iteration of its axis a loop is in."""
        assert node.axis is not None
        v, some = self.nodes[node], self.ranges.get(node.axis)
        if some is not None:
            return v + some.start
        return node.axis.extent - 1 - v if node in self.backward else v


@dataclass(frozen=True, slots=True, eq=False)
class TurnedResult:
    """The result in which the parts of a reduction are added up, what a block covers of it, and the
    child of the loop behind the sum in which it is stored: None where the reduction itself is."""

    result: Stage
    box: GuardedBox
    child: Child | None


def carrying_loops(context: Context, s: Stage) -> tuple[int, ...]:
    """The loops across which a reduction or a scan carries its accumulator."""
    if isinstance(s.op, Scan):
        axis = s.frame.output[s.op.axis]
        return tuple(i for i, x in enumerate(s.loops) if context.flow.graph.depends(x.axis, [axis]))
    return reduced_loops(context.flow.graph, s)


def register_dtype(s: Stage) -> DType:
    """The type a value has in registers and shared memory: as stored when it was only moved or
    cast, else the compute type of its dtype."""
    while not _is_as_stored(s):
        if isinstance(s.op, Take | TakeAlong) or (moves_data(s.op) and len(s.operands) == 1):
            s = s.operands[0]
        elif moves_data(s.op):
            kinds = list(dict.fromkeys(register_dtype(o) for o in s.operands))
            return kinds[0] if len(kinds) == 1 else s.dtype.compute
        else:
            return s.dtype.compute
    return s.dtype


def _is_as_stored(s: Stage) -> bool:
    is_cast = isinstance(s.op, Pointwise) and s.op.fn == "cast"
    return s.is_input or s.is_staged or is_cast or isinstance(s.op, Iota)


class Storage:
    """Where the values of a kernel's definitions live, and what their loops are called."""

    def __init__(self, context: Context, strides: Strides) -> None:
        self.context = context
        self.graph = context.flow.graph
        self.strides = strides

    # --- storage --------------------------------------------------------------------------------

    def allocate(self, s: Stage) -> Buffer | None:
        """The LOCAL or SHARED buffer of a stage; None for those in global memory."""
        if s.memory is Memory.GLOBAL:
            return None
        if (known := self.context.buffers.get(s)) in self.context.kept:
            return known
        size: Expr = Int(1)
        for axis in self.places(s):
            size = size * self.held_extent(s, axis)
        if constant_value(size) is None:
            has_most = (
                ", or have a maximum, as of fw.Sym(max=)" if s.memory is Memory.SHARED else ""
            )
            raise ScheduleError(
                f"{s.name} would need {size} elements of {s.memory.value} memory; the size must "
                f"be constant{has_most}: inline it deeper, or split its loops by constants and "
                "bind the outer"
            )
        wide = any(x.parallel is Parallel.VECTORIZE for x in s.loops)
        dtype = register_dtype(s)
        if s.boxed or s.is_staged:
            tile = self.box(s if s.boxed else self.boxed_reader(s)).tile
            buffer = Buffer(s.name, dtype, Int(tile.size), s.memory, tile=tile)
            self.context.buffers[s] = buffer
            return buffer
        alignment = MAX_VECTOR_NBYTES if wide or s.memory is Memory.SHARED else dtype.nbytes
        buffer = Buffer(s.name, dtype, size, s.memory, alignment)
        self.context.buffers[s] = buffer
        return buffer

    def held_extent(self, s: Stage, axis: AxisClass) -> Expr:
        """Elements of a stage's buffer along an axis: in shared memory the most that there are for
        any values of the symbols, so that one allocation, with constant steps, serves all sizes."""
        most = axis.extent.interval[1]
        return Int(most) if s.memory is Memory.SHARED and most is not None else axis.extent

    def box(self, s: Stage) -> Box:
        """The box of a stage that the copy engine fills."""
        if s not in self.context.boxes:
            self.context.boxes[s] = box_of(self.graph, s)
        return self.context.boxes[s]

    def is_filled(self, s: Stage) -> bool:
        """Whether a stage is a tile that matrix instructions read whole: what lies beyond an edge
        is zero, as copies by cp.async leave it."""
        if s.memory is not Memory.SHARED or s.boxed:
            return False
        return any(r.warps for r in self.context.flow.consumers(s))

    def boxed_reader(self, s: Stage) -> Stage:
        """The output that boxes copy a staged value to."""
        found = [r for r in self.context.flow.consumers(s) if r.boxed]
        if len(found) != 1:
            raise ScheduleError(
                f"{s.name} is staged by stmatrix for {len(found)} tensors with Bulk loops; bind "
                "the last two loops of the one that reads it to Bulk"
            )
        return found[0]

    def places(self, s: Stage) -> tuple[AxisClass, ...]:
        """The classes, outer first, that a stage's buffer is indexed by. Raises ScheduleError when
        an allocation that was asked for does not hold every element once."""
        if s.allocation is None:
            return tuple(s.loops[i].axis for i in self.stored_loops(s))
        stored = self.stored_loops(s)
        outside = [x.axis for i, x in enumerate(s.loops) if i not in stored]
        axes = [*outside, *s.allocation]
        known = [(a, Var(f"a{k}", 0, a.extent - 1)) for k, a in enumerate(axes)]
        path = domain_path(self.graph, known, s.frame.domain)
        if isinstance(path, Refusal):
            shown = ", ".join(map(str, s.allocation))
            raise ScheduleError(
                f"{s.name} cannot be stored by ({shown}): {path.reason}; its allocation and the "
                "loops that share its memory must determine every element once"
            )
        return s.allocation

    def stored_loops(self, s: Stage) -> tuple[int, ...]:
        """The loops that a stage's buffer is indexed by: its own, but those that reduce, that are
        repeated for nothing, or whose copies have memory of their own."""
        carried = reduced_loops(self.graph, s)
        out: list[int] = []
        for i, x in enumerate(s.loops):
            separate = x.parallel.is_block or (x.parallel.is_thread and s.memory is Memory.LOCAL)
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
        for i in self.carried_lanes(s):
            size = size * s.loops[i].axis.extent
        if constant_value(size) is None:
            raise ScheduleError(
                f"{s.name} would carry {size} accumulators; the count must be constant: put its "
                "reduced loops innermost, or split the others by constants"
            )
        dtype = s.dtype.compute
        buffer = Buffer(f"{s.name}_acc", dtype, size, Memory.LOCAL, dtype.nbytes)
        self.context.carries[s] = buffer
        return buffer

    def sums(self, s: Stage) -> Buffer | None:
        """What instructions sum before it is added to the accumulators of a product, which keep
        more. It is one buffer for all trips, so that these share its registers."""
        if not s.is_mma or not is_promoted(s.operands[0].dtype.nbytes):
            return None
        total = self.context.buffers[s]
        if s in self.context.sums:
            return self.context.sums[s]
        found = Buffer(f"{s.name}_sums", total.dtype, total.size, Memory.LOCAL, total.alignment)
        self.context.sums[s] = found
        return found

    def carried_lanes(self, s: Stage) -> tuple[int, ...]:
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

    def accumulator_loops(self, s: Stage) -> frozenset[int]:
        """The loops over the axes of a reduction at each iteration of which it has an accumulator
        of its own."""
        held = self.stored_loops(s) if s.memory is Memory.LOCAL else self.carried_lanes(s)
        domain = s.frame.domain
        return frozenset(i for i in held if self.graph.depends(s.loops[i].axis, domain))

    def _first_carrying(self, s: Stage) -> int:
        nodes = self.context.nest.nodes[s]
        found = [i for i in carrying_loops(self.context, s) if nodes[i] is not None]
        return found[0] if found else len(s.loops)

    def turns_at(self, result: Stage) -> tuple[Stage, Turns] | None:
        """The reduction whose parts blocks add up in a result, and their turns."""
        for s, found in self.context.results.items():
            if isinstance(found, TurnedResult) and found.result is result:
                turns = self.context.orders[s]
                assert isinstance(turns, Turns)
                return s, turns
        return None

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
                out.append(self.context.iteration(node))
            elif x.parallel is Parallel.VECTORIZE:
                out.append(self.lane(s))
            elif x.parallel.is_inside:
                out.append(self.inside(s, i))
            else:
                out.append(self.context.dims[(BLOCK_DIMS | THREAD_DIMS)[x.parallel]].var)
        return tuple(out)

    def inside(self, s: Stage, i: int) -> Var:
        """The variable that stands for a loop inside of a box or an instruction."""
        table = self.context.inside
        if (s, i) not in table:
            table[s, i] = Var(f"inside{i}", 0, s.loops[i].axis.extent - 1)
        return table[s, i]

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

    def temporary(self, s: Stage, dtype: DType, size: int = 1) -> Buffer:
        """A fresh register buffer, named after the stage whose statements use it."""
        self.context.temporaries.append(0)
        name = f"{s.name}_v{len(self.context.temporaries) - 1}"
        return Buffer(name, dtype, Int(size), Memory.LOCAL, dtype.nbytes)
