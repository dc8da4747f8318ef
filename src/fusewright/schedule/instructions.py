"""Loops inside of instructions: of a matrix product, of a box, of a store of matrices."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from fusewright.axes.classes import AxisClass, AxisGraph
from fusewright.core.expr import Int, constant_value
from fusewright.errors import ScheduleError
from fusewright.fusion.ir import MatMul, Pointwise
from fusewright.memory import Memory
from fusewright.schedule.graph import Stage
from fusewright.schedule.parallel import Loop, Parallel
from fusewright.schedule.products import MMA_DTYPES, WARP_MMA_DTYPES, multiplies
from fusewright.target import (
    MATRICES_COLUMNS,
    MAX_MMA_COLUMNS,
    MAX_SET_REGISTERS,
    MAX_THREADS_PER_BLOCK,
    MIN_SET_REGISTERS,
    MMA_COLUMNS_UNIT,
    MMA_DEPTH_NBYTES,
    MMA_PAIR,
    MMA_ROWS,
    REGISTER_UNIT,
    WARP_SIZE,
    WARPGROUP_SIZE,
)

_WARP_ROWS, _GROUP_ROWS = 16, 8
THREADS_BY_LANES = (Parallel.TIDZ, Parallel.TIDY, Parallel.TIDX)
"""What warps, the rows of their lanes and the pairs of columns of these are bound to, where each
has a dimension of its own: threads have the same numbers as along one."""


def check_instruction(s: Stage, i: int, what: str) -> None:
    """Raises ScheduleError for an edit of a loop inside of a matrix instruction."""
    if s.is_mma and s.loops[i].parallel is Parallel.MMA:
        raise ScheduleError(
            f"{what}: loop {i} is inside of a matrix instruction; transform before mma()"
        )


def check_box(s: Stage, i: int) -> None:
    """Raises ScheduleError for a loop that is not to be one of the two of a box."""
    what, extent = f"parallelize({s.name}, axis={i}, Bulk)", s.loops[i].axis.extent
    if s.copied != "bulk":
        raise ScheduleError(
            f"{what}: only the copy engine copies boxes; make the tensor with "
            "cache_after(by='bulk')"
        )
    if not isinstance(extent, Int):
        raise ScheduleError(
            f"{what}: extent {extent} is not constant; split by the size of the box first"
        )
    others = [k for k in s.boxed if k != i]
    if len(others) > 1:
        raise ScheduleError(
            f"{what}: loops {others[0]} and {others[1]} are the rows and columns of its box already"
        )


def check_staging(outputs: Sequence[Stage], s: Stage, by: str) -> None:
    """Raises ScheduleError for what neither stores of matrices take nor those of pairs."""
    copies = isinstance(s.op, Pointwise) and s.op.fn == "copy"
    if s not in outputs or not copies or s.dtype.nbytes not in (2, 4):
        raise ScheduleError(
            f"cache_before({s.name}, by={by!r}): matrices are stored of 2-byte elements, and pairs "
            "of 4-byte elements, that an output copies from registers; call cache_before() of the "
            "output first"
        )


def check_registers(what: str, specialized: bool, registers: tuple[int, ...]) -> None:
    """Raises ScheduleError for registers that no warpgroup can be given."""
    low, high, unit = MIN_SET_REGISTERS, MAX_SET_REGISTERS, REGISTER_UNIT
    if not specialized:
        raise ScheduleError(
            f"{what}: registers move between warps that copy and warps that compute; give "
            "warp_specialized=True, or leave registers out"
        )
    if len(registers) != 2 or any(r % unit or not low <= r <= high for r in registers):
        raise ScheduleError(
            f"{what}, registers={registers}: give two multiples of {unit} from {low} to {high}, of "
            "the warps that copy and of those that compute"
        )


def instructions_across(columns: int) -> int:
    """The instructions of a warpgroup that multiply 64 rows by so many columns, of equal widths."""
    return max(1, -(-columns // MAX_MMA_COLUMNS))


def mma_loops(
    graph: AxisGraph, s: Stage, warpgroups: int | None, *, by_lanes: bool = False
) -> tuple[Loop, ...]:
    """The loops of a product with those of its tile (the last three: rows, columns, depth) inside
    of matrix instructions; with `by_lanes` warps, the rows of their lanes and the pairs of columns
    have a dimension of the block each. Raises ScheduleError, with the numbers, for what no
    instruction does."""
    what = f"mma({s.name})"
    _check_product(s, what, MMA_DTYPES)
    outer, (m, n, k) = _tile(graph, s, what)
    depth = MMA_DEPTH_NBYTES // s.operands[0].dtype.nbytes
    rows, columns = (constant_value(x.axis.extent) or 0 for x in (m, n))
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
    unit = MMA_COLUMNS_UNIT * instructions_across(columns)
    if not columns or columns % unit:
        raise ScheduleError(
            f"{what}: {columns} columns are no multiple of {unit}, {MMA_COLUMNS_UNIT} for each "
            f"instruction of up to {MAX_MMA_COLUMNS}; split the columns by one"
        )
    _check_depth(k, depth, what)
    group, m = graph.split(m.axis, rows // groups)
    several, m = graph.split(m, MMA_ROWS)
    warp, m = graph.split(m, _WARP_ROWS)
    half, row = graph.split(m, _GROUP_ROWS)
    word, n = graph.split(n.axis, MMA_COLUMNS_UNIT)
    pair, element = graph.split(n, MMA_PAIR)
    step, inside = graph.split(k.axis, depth)
    instruction = (step, inside, several, word, half, element)
    if not by_lanes:
        return _bound(graph, outer, (group, warp, row, pair), instruction)
    threads = zip((graph.merge(group, warp), row, pair), THREADS_BY_LANES, strict=True)
    inside = (Loop(c, Parallel.MMA) for c in instruction)
    return (*outer, *(Loop(c, dim) for c, dim in threads), *inside)


def warp_loops(graph: AxisGraph, s: Stage, warps: tuple[int, int]) -> tuple[Loop, ...]:
    """The same for the instructions of single warps, which share rows and columns of the tile."""
    what, (down, across) = f"mma({s.name}, warps={warps})", warps
    _check_product(s, what, WARP_MMA_DTYPES)
    outer, (m, n, k) = _tile(graph, s, what)
    rows, columns = (constant_value(x.axis.extent) or 0 for x in (m, n))
    units = _WARP_ROWS * down, MATRICES_COLUMNS * across
    if not rows or rows % units[0] or not columns or columns % units[1]:
        raise ScheduleError(
            f"{what}: {rows} x {columns} are not {_WARP_ROWS} rows and {MATRICES_COLUMNS} "
            f"columns, or multiples of them, for each of {down} x {across} warps; split rows and "
            "columns by such numbers"
        )
    if down * across * WARP_SIZE > MAX_THREADS_PER_BLOCK:
        raise ScheduleError(
            f"{what}: {down * across} warps are more than {MAX_THREADS_PER_BLOCK} threads; give "
            "each of fewer warps more rows or columns"
        )
    depth = MMA_DEPTH_NBYTES // s.operands[0].dtype.nbytes
    _check_depth(k, depth, what)
    of_rows, m = graph.split(m.axis, rows // down)
    several, m = graph.split(m, _WARP_ROWS)
    half, row = graph.split(m, _GROUP_ROWS)
    of_columns, n = graph.split(n.axis, columns // across)
    word, n = graph.split(n, MMA_COLUMNS_UNIT)
    pair, element = graph.split(n, MMA_PAIR)
    step, inside = graph.split(k.axis, depth)
    instruction = (step, inside, several, word, half, element)
    return _bound(graph, outer, (of_rows, of_columns, row, pair), instruction)


def _bound(
    graph: AxisGraph,
    outer: tuple[Loop, ...],
    threads: Sequence[AxisClass],
    instruction: Sequence[AxisClass],
) -> tuple[Loop, ...]:
    thread = functools.reduce(graph.merge, threads)
    inside = (Loop(c, Parallel.MMA) for c in instruction)
    return (*outer, Loop(thread, Parallel.TIDX), *inside)


def _check_product(s: Stage, what: str, dtypes: Sequence[str]) -> None:
    """Raises ScheduleError for what is no product in registers that instructions for operands of
    these dtypes compute."""
    if not isinstance(s.op, MatMul):
        raise ScheduleError(f"{what}: it is no product; matrix instructions compute fw.matmul")
    kinds = dict.fromkeys(o.dtype for o in s.operands)
    if dtypes == WARP_MMA_DTYPES and (len(kinds) > 1 or any(d.name not in dtypes for d in kinds)):
        raise ScheduleError(
            f"{what}: operands of {', '.join(sorted(d.name for d in kinds))}; the instructions of "
            f"single warps multiply two of {' or '.join(dtypes)}: cast them"
        )
    if len({d.nbytes for d in kinds}) > 1 or not multiplies(s.op, list(kinds)):
        raise ScheduleError(
            f"{what}: operands of {', '.join(sorted(d.name for d in kinds))}; the instructions "
            f"multiply {' or '.join(dtypes)}, and float32 where fw.config(float32_matmul="
            "'tf32') lets it be rounded: cast them"
        )
    if s.memory is not Memory.LOCAL:
        raise ScheduleError(
            f"{what}: results are in registers first; call cache_before() and mma() of what it "
            "returns"
        )


def _check_depth(k: Loop, depth: int, what: str) -> None:
    deep = constant_value(k.axis.extent) or 0
    if not deep or deep % depth:
        raise ScheduleError(
            f"{what}: a depth of {deep} is no multiple of {depth}; split the axis that is summed "
            "over by one"
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
