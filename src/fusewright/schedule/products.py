"""Matrix products in schedules: which have instructions, and what boxes of them are views of."""

from __future__ import annotations

import math
from collections.abc import Sequence

from fusewright.axes.classes import AxisGraph
from fusewright.core.expr import ONE, constant_value, is_multiple
from fusewright.core.substitution import estimate
from fusewright.dtypes import DType, float32
from fusewright.fusion.ir import MatMul, Take, TakeAlong, Tensor
from fusewright.fusion.strided import Strided, V, fastest_axis, strided_view
from fusewright.memory import Memory
from fusewright.schedule.graph import Dataflow, Stage, strides_of
from fusewright.schedule.parallel import Parallel
from fusewright.target import (
    CP_ASYNC_NBYTES,
    LINE_NBYTES,
    MAX_VECTOR_NBYTES,
    TRANSPOSED_NBYTES,
)

MMA_DTYPES = ("bfloat16", "float16", "float8_e4m3", "float8_e5m2")
"""Of operands that matrix instructions multiply as they are; float32 is rounded to tf32 first."""
WARP_MMA_DTYPES = ("bfloat16", "float16")
"""Of operands that the instructions of single warps multiply."""
PROMOTED_DEPTH = 128
"""Pairs of 8-bit floats that the accumulators of instructions sum before the sum is added to other
registers: they keep about 14 bits (DeepSeek-V3 technical report, 3.3.2, which adds as often)."""


def is_promoted(itemsize: int) -> bool:
    """Whether sums of products of values of so many bytes leave the accumulators of instructions
    for others on the way."""
    return itemsize == 1


def multiplies(op: MatMul, dtypes: Sequence[DType]) -> bool:
    """Whether there are matrix instructions for operands of these dtypes."""
    return all(d.name in MMA_DTYPES or (d is float32 and op.precision == "tf32") for d in dtypes)


def has_instructions(t: Tensor) -> bool:
    """Whether there are matrix instructions for a product: of matrices of floats of 16 or 8 bits,
    or of float32 that may be rounded."""
    return isinstance(t.op, MatMul) and multiplies(t.op, [o.dtype for o in t.op.operands])


def needed_axis(dtype: DType, position: int) -> int | None:
    """Which of its last two axes the first or second operand of an instruction is contiguous along:
    the one that is summed over; None where it may be either."""
    return None if dtype.nbytes == TRANSPOSED_NBYTES else (-1, -2)[position]


def axis_problem(view: Strided[V], dtype: DType, position: int) -> str | None:
    """Why instructions do not read an operand along the axis on which it is contiguous."""
    needed, fastest = needed_axis(dtype, position), fastest_axis(view)
    if needed is None or fastest is None or fastest == len(view.shape) + needed:
        return None
    return f"instructions read {dtype} along the axis that is summed over, on which it lies apart"


def lies_across(view: Strided[V], position: int) -> bool:
    """Whether the first or second operand of a product is contiguous along the rows or columns of
    the result, not along the axis that is summed over."""
    return fastest_axis(view) == len(view.shape) + (-2, -1)[position]


def copy_width(view: Strided[V], itemsize: int) -> int:
    """Elements along the contiguous axis that threads copy together: as many, up to 16 bytes, as
    every row begins aligned to. 0 where neither of the last two axes is contiguous."""
    fastest = fastest_axis(view)
    if fastest is None:
        return 0
    axes = enumerate(zip(view.shape, view.strides, strict=True))
    steps = [stride for a, (extent, stride) in axes if a != fastest and extent != ONE]
    steps.append(view.offset)
    width = MAX_VECTOR_NBYTES // itemsize
    while width > 1 and not (
        view.alignment % (width * itemsize) == 0 and all(is_multiple(e, width) for e in steps)
    ):
        width //= 2
    return width


def rows_copy_problem(view: Strided[V], itemsize: int) -> str | None:
    """Why threads do not copy tiles of a view to shared memory past the registers; None where they
    do."""
    width = copy_width(view, itemsize)
    if width == 0:
        shown = ", ".join(map(str, view.strides))
        return f"none of its last two axes is contiguous (strides {shown})"
    if width * itemsize < CP_ASYNC_NBYTES[0]:
        return f"its rows begin at no multiple of {CP_ASYNC_NBYTES[0]} bytes"
    return None


def strided_operand(s: Stage) -> Strided[Stage] | None:
    """A stage as strides over an input; None where it is no such view."""
    return strided_view(s, lambda t: t.operands, lambda t: strides_of(t) if t.is_input else None)


def lines_of_row(view: Strided[V] | None, itemsize: int) -> float:
    """Lines of the caches that a row of a box of 128 bytes touches in a view, in the mean over
    rows: two, but for the rows that begin at a line. 1 where the distance of rows is not known, or
    the value is no view by strides and has to be stored."""
    if view is None:
        return 1.0
    pitch = constant_value(max(view.strides[-2:], key=estimate))
    if pitch is None:
        return 1.0
    return 2 - math.gcd(pitch * itemsize, LINE_NBYTES) / LINE_NBYTES


def boxed_memory(s: Stage) -> Strided[Stage] | None:
    """What the boxes of a stage are copied from, or for an output to; None where that has no
    strides, or begins anywhere."""
    if s.begins_anywhere:
        return None
    if s.memory is Memory.GLOBAL:
        return Strided(s, s.shape, strides_of(s), alignment=s.alignment)
    return strided_operand(s.operands[0])


def view_in_place(flow: Dataflow, s: Stage, readers: Sequence[Stage]) -> Stage | None:
    """The view that asynchronous copies read where its input lies, for some of its readers; None,
    and nothing changed, for what is no view by strides. Views that others read, too, are cloned."""
    if s.is_input or strided_operand(s) is None:
        return None
    first: Stage | None = None
    users = list(readers)
    while not s.is_input:
        own = s
        if len(flow.consumers(s)) > len(users):
            own = flow.clone(s, users)
        own.is_viewed = True
        first = first or own
        users, s = [own], own.operands[0]
    return first


def gather_in_place(flow: Dataflow) -> None:
    """Lets gathers from views of inputs read these where they lie: only what is gathered is read.

    rewrite:  take(x[2], i)  ->  take of x, at element i of the part of its memory that x[2] is
    """
    for s in tuple(flow.stages):
        if isinstance(s.op, Take | TakeAlong) and s.operands[0] is not s.operands[1]:
            view_in_place(flow, s.operands[0], [s])


def blocks_that_share(graph: AxisGraph, s: Stage) -> int:
    """The blocks of a cluster that need the same tiles of a ring which warps of their own fill, so
    that each can copy a share of them to all; 1 where each block copies its tiles for itself."""
    loop = next((x for x in s.loops if x.parallel is Parallel.CLUSTERX), None)
    if loop is None or not s.warp_specialized or graph.depends(loop.axis, s.frame.output):
        return 1
    return constant_value(loop.axis.extent) or 1
