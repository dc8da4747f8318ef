"""Copies of tensors, put between what makes them and what reads them.

    copy_after     t -> c = copy(t)                                     for some readers
    copy_before    t = op(..) -> c = op(..); t = copy(c)
    tile_after     x -> far = copy(x); tile = copy(far); near = copy(tile)
    tile_before    y = op(..) -> near = op(..); tile = cast(near); y = copy(tile)

A tile is in shared memory: threads write it by some loops and read it by others.
"""

from __future__ import annotations

from collections.abc import Sequence

from fusewright.axes.classes import AxisClass, AxisGraph
from fusewright.core.substitution import estimate
from fusewright.fusion.ir import Pointwise
from fusewright.memory import Memory
from fusewright.schedule.edits import edit
from fusewright.schedule.graph import Dataflow, Stage
from fusewright.schedule.parallel import Loop
from fusewright.target import LINE_NBYTES


@edit("cache_after", of_tensor=True)
def copy_after(
    flow: Dataflow,
    s: Stage,
    *,
    readers: Sequence[Stage] | None = None,
    memory: Memory = Memory.LOCAL,
) -> Stage:
    """A copy that all readers of a stage, or those given, read instead of it."""
    users = flow.consumers(s) if readers is None else readers
    suffix = "s" if memory is Memory.SHARED else "c"
    c = flow.insert(s, f"{s.name}_{suffix}", s.shape, s.dtype, Pointwise((), "copy"), [s])
    c.memory = memory
    flow.replace_operand(users, s, c)
    flow.attach(c)
    flow.retie()
    _start_over(c)
    return c


@edit("cache_before", of_tensor=True)
def copy_before(flow: Dataflow, t: Stage) -> Stage:
    """What computes a stage in registers, with its loops; the stage itself is a copy of that."""
    c = flow.insert(t, f"{t.name}_c", t.shape, t.dtype, t.op, t.operands)
    c.loops, c.frame = t.loops, t.frame
    t.op, t.operands = Pointwise((), "copy"), (c,)
    t.inline_depth = 0
    flow.attach(t)
    flow.sort()
    flow.retie()
    t.loops = tuple(Loop(a) for a in t.frame.output)
    return c


@edit("tile_after", of_tensor=True)
def tile_after(flow: Dataflow, x: Stage, readers: Sequence[Stage]) -> tuple[Stage, Stage, Stage]:
    """The copies `far`, `tile` and `near` of a stage; the readers read the last of them."""
    chain: list[Stage] = [x]
    for suffix in ("far", "tile", "near"):
        last = chain[-1]
        copy = Pointwise((), "copy")
        chain.append(flow.insert(last, f"{x.name}_{suffix}", x.shape, x.dtype, copy, [last]))
        flow.attach(chain[-1])
    flow.replace_operand(readers, x, chain[-1])
    _, far, tile, near = chain
    tile.memory = Memory.SHARED
    flow.sort()
    flow.retie()
    _start_over(far, tile, near)
    return far, tile, near


@edit("tile_before", of_tensor=True)
def tile_before(flow: Dataflow, y: Stage) -> tuple[Stage, Stage]:
    """The stages `near`, which computes what `y` was, and `tile`, which `y` is a copy of now."""
    near = flow.insert(y, f"{y.name}_near", y.shape, y.dtype, y.op, y.operands)
    near.frame = y.frame
    tile = flow.insert(near, f"{y.name}_tile", y.shape, y.dtype, Pointwise((), "cast"), [near])
    tile.memory = Memory.SHARED
    y.op, y.operands = Pointwise((), "copy"), (tile,)
    flow.attach(tile)
    flow.attach(y)
    flow.sort()
    flow.retie()
    _start_over(near, tile, y)
    return near, tile


@edit("recompute", of_tensor=True)
def recompute(flow: Dataflow, s: Stage) -> list[Stage]:
    """A clone of a stage for each of its readers, the stage itself for the first of them."""
    clones = [s, *(flow.clone(s, [reader]) for reader in flow.consumers(s)[1:])]
    flow.retie()
    for c in clones[1:]:
        c.memory = s.memory
        c.loops = tuple(Loop(a) for a in c.frame.domain)
    return clones


@edit("put_first")
def put_first(flow: Dataflow, stages: Sequence[Stage]) -> None:
    """Moves stages that compute from inputs alone to the front of the program, so that what they
    load is under way before anything else is done. The views that they read come along."""
    front = dict.fromkeys(s for s in flow.stages if s.is_input or s.is_virtual)
    for stage in stages:
        front |= dict.fromkeys([*_behind(flow, stage), stage])
    flow.stages = [*front, *(s for s in flow.stages if s not in front)]


def _behind(flow: Dataflow, stage: Stage) -> list[Stage]:
    """What a stage is computed from, in program order."""
    found: set[Stage] = set()
    stack = [stage]
    while stack:
        new = [o for o in stack.pop().operands if o not in found]
        found.update(new)
        stack += new
    return [s for s in flow.stages if s in found]


def _start_over(*stages: Stage) -> None:
    """Loops over the stages' own domains."""
    for s in stages:
        s.loops = tuple(Loop(c) for c in s.frame.domain)
        s.inline_depth = 0


def exchanged(
    graph: AxisGraph, slow: AxisClass, fast: AxisClass, chunk: int, nbytes: int
) -> tuple[AxisClass, ...]:
    """Where the elements of a tile of rows along `fast` lie in shared memory: the chunks, of so
    many elements and bytes, of each line of the banks exchanged by the number of the line, so that
    loads of neighbouring rows at one place meet every bank once. Chunks of 16 bytes:

        64 elements of 2 bytes a row:    chunk c of row r lies at    c ^ r % 8
        32, so that a line has two:      chunk c of row r lies at    (4 (r % 2) + c) ^ r // 2 % 8
    """
    chunks, within = graph.split(fast, chunk)
    of_line, count = LINE_NBYTES // nbytes, estimate(chunks.extent)
    if count >= of_line:
        panels, own = graph.split(chunks, of_line)
        _, by = graph.split(slow, min(of_line, estimate(slow.extent)))
        return slow, panels, graph.swizzle(by, own)[1], within
    lines, row = graph.split(slow, of_line // count)
    _, by = graph.split(lines, min(of_line, estimate(lines.extent)))
    return lines, graph.swizzle(by, graph.merge(row, chunks))[1], within
