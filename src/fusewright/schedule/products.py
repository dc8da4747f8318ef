"""Matrix products in schedules: views that the copy engine reads, loops inside of instructions."""

from __future__ import annotations

from collections.abc import Sequence

from fusewright.axes.classes import AxisGraph
from fusewright.core.expr import constant_value
from fusewright.errors import ScheduleError
from fusewright.fusion.ir import MatMul, Tensor
from fusewright.fusion.strided import Strided, strided_view
from fusewright.memory import Memory
from fusewright.schedule.graph import Dataflow, Stage, strides_of
from fusewright.schedule.parallel import Loop, Parallel
from fusewright.target import (
    MAX_MMA_COLUMNS,
    MAX_THREADS_PER_BLOCK,
    MMA_COLUMNS_UNIT,
    MMA_DEPTH_NBYTES,
    MMA_ROWS,
    WARPGROUP_SIZE,
)

MMA_DTYPES = ("bfloat16", "float16")
_WARP_ROWS, _GROUP_ROWS, _PAIR = 16, 8, 2


def has_instructions(t: Tensor) -> bool:
    """Whether there are matrix instructions for a product: of matrices of 16-bit floats."""
    return isinstance(t.op, MatMul) and all(o.dtype.name in MMA_DTYPES for o in t.op.operands)


def strided_operand(s: Stage) -> Strided[Stage] | None:
    """A stage as strides over an input; None where it is no such view."""
    return strided_view(s, lambda t: t.operands, lambda t: strides_of(t) if t.is_input else None)


def boxed_memory(s: Stage) -> Strided[Stage] | None:
    """What the boxes of a stage are copied from, or for an output to; None where that has no
    strides."""
    if s.memory is Memory.GLOBAL:
        return Strided(s, s.shape, strides_of(s), alignment=s.alignment)
    return strided_operand(s.operands[0])


def view_in_place(flow: Dataflow, s: Stage, readers: Sequence[Stage]) -> Stage | None:
    """The view that copies by boxes read where its input lies, for some of its readers; None, and
    nothing changed, for what is no view by strides. Views that others read, too, are cloned."""
    if s.is_input or strided_operand(s) is None:
        return None
    first: Stage | None = None
    users = list(readers)
    while not s.is_input:
        own = s
        if len(flow.consumers(s)) > len(users):
            own = flow.insert(s, s.name, s.shape, s.dtype, s.op, s.operands)
            flow.attach(own)
            flow.replace_operand(users, s, own)
        own.is_viewed = True
        first = first or own
        users, s = [own], own.operands[0]
    return first


def mma_loops(graph: AxisGraph, s: Stage, warpgroups: int | None) -> tuple[Loop, ...]:
    """The loops of a product with those of its tile (the last three: rows, columns, depth) inside
    of matrix instructions. Raises ScheduleError, with the numbers, for what no instruction does."""
    what = f"mma({s.name})"
    if not isinstance(s.op, MatMul):
        raise ScheduleError(f"{what}: it is no product; matrix instructions compute fw.matmul")
    kinds = {o.dtype.name for o in s.operands}
    if len(kinds) > 1 or not kinds <= set(MMA_DTYPES):
        raise ScheduleError(
            f"{what}: operands of {', '.join(sorted(kinds))}; the instructions multiply "
            f"{' or '.join(MMA_DTYPES)}: cast them, or leave mma() out"
        )
    if s.memory is not Memory.LOCAL:
        raise ScheduleError(
            f"{what}: results are in registers first; call cache_before() and mma() of what it "
            "returns"
        )
    outer, (m, n, k) = _tile(graph, s, what)
    depth = MMA_DEPTH_NBYTES // s.operands[0].dtype.nbytes
    rows, columns, deep = (constant_value(x.axis.extent) or 0 for x in (m, n, k))
    groups = warpgroups if warpgroups is not None else rows // MMA_ROWS
    if not rows or groups < 1 or rows % (MMA_ROWS * groups):
        raise ScheduleError(
            f"{what}: {rows} rows are no multiple of {MMA_ROWS} for each of {groups} warpgroups; "
            f"split the rows by {MMA_ROWS} times the number of warpgroups"
        )
    if groups * WARPGROUP_SIZE > MAX_THREADS_PER_BLOCK:
        raise ScheduleError(
            f"{what}: {groups} warpgroups are more than {MAX_THREADS_PER_BLOCK} threads; give "
            f"warpgroups=2 and more rows to each"
        )
    if not columns or columns > MAX_MMA_COLUMNS or columns % MMA_COLUMNS_UNIT:
        raise ScheduleError(
            f"{what}: {columns} columns are no multiple of {MMA_COLUMNS_UNIT} up to "
            f"{MAX_MMA_COLUMNS}; split the columns by one"
        )
    if not deep or deep % depth:
        raise ScheduleError(
            f"{what}: a depth of {deep} is no multiple of {depth}; split the axis that is summed "
            "over by one"
        )
    group, m = graph.split(m.axis, rows // groups)
    several, m = graph.split(m, MMA_ROWS)
    warp, m = graph.split(m, _WARP_ROWS)
    half, row = graph.split(m, _GROUP_ROWS)
    word, n = graph.split(n.axis, MMA_COLUMNS_UNIT)
    pair, element = graph.split(n, _PAIR)
    step, inside = graph.split(k.axis, depth)
    thread = group
    for c in (warp, row, pair):
        thread = graph.merge(thread, c)
    instruction = (step, inside, several, word, half, element)
    return (
        *outer,
        Loop(thread, Parallel.TIDX),
        *(Loop(c, Parallel.MMA) for c in instruction),
    )


def _tile(graph: AxisGraph, s: Stage, what: str) -> tuple[tuple[Loop, ...], tuple[Loop, ...]]:
    """The loops around the tile, and the three of the tile: rows, columns, depth."""
    m, n = s.frame.output[-2:]
    wanted = (m, n, s.frame.reduced[0])
    tile = s.loops[-3:]
    names = ("rows", "columns", "the axis that is summed over")
    for x, axis, name in zip(tile, wanted, names, strict=False):
        others = [c for c in s.frame.domain if c is not axis and not c.is_unit]
        if x.parallel is not Parallel.SERIAL or graph.depends(x.axis, others):
            raise ScheduleError(
                f"{what}: its last three loops are to be serial ones over a tile's rows, columns "
                f"and depth, but {x.axis}{{{x.axis.extent}}} is none over {name}; split and reorder"
            )
    if len(tile) < len(wanted):
        raise ScheduleError(f"{what}: it has {len(s.loops)} loops; a tile has three")
    threads = [x.parallel.value for x in s.loops[:-3] if x.parallel.is_thread]
    if threads:
        raise ScheduleError(
            f"{what}: {', '.join(threads)} is bound already; mma() binds the threads of a block"
        )
    return s.loops[:-3], tile
