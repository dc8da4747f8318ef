"""What is known of a group of ops, and the rules by which one kernel can hold them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence, Set
from dataclasses import dataclass, field
from itertools import islice
from typing import TypeAlias

from fusewright.axes.classes import AxisClass, AxisGraph
from fusewright.axes.frames import Frame, OperandAxis, carried_axes, make_frame
from fusewright.core.expr import Int, mul
from fusewright.core.instructions import INSTRUCTIONS
from fusewright.fusion.held_lines import is_scanned, moved_line
from fusewright.fusion.ir import (
    Alone,
    Broadcast,
    Concat,
    IndexMap,
    MatMul,
    Parts,
    Permute,
    Pointwise,
    Reduce,
    Region,
    Reshape,
    Resize,
    Scan,
    Sort,
    Take,
    TakeAlong,
    Tensor,
    is_alone,
)
from fusewright.fusion.passes.fold_crops import is_crop, only_grows
from fusewright.fusion.rematerialisable import is_rematerialisable
from fusewright.fusion.sizes import numel_estimate
from fusewright.host.products import is_held_result, view_of
from fusewright.host.regroupings import MAX_REGROUPINGS, Regrouped, regrouped

MAX_RECOMPUTED = 12
"""Ops that a kernel would rather repeat than read the result of, or meet it at another place: with
four instructions each they are the 48 that a multiprocessor issues while memory brings an element
of 4 bytes (`regroupings`)."""
MAX_OPS = 96
"""Ops of a kernel that compute or choose. Views only say where their readers look."""
MAX_OPERANDS = 24
"""Values that a kernel reads, and places that it may have to choose an element from."""
MAX_DEPTH = 4
"""Reductions in a row: each adds a pass over what is held of a row, which recomputes what came
before, so that code grows with the square."""
MAX_REDUCTIONS = 8
Axes: TypeAlias = tuple[AxisClass, ...]


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a group does not take an op: the op's tensor and the rule."""

    tensor: str
    rule: str

    def __str__(self) -> str:
        return f"{self.tensor}: {self.rule}"


@dataclass(eq=False, slots=True)
class FusionGroup:
    """Ops that become one kernel, and the facts that decide what else may join.

    `axes`: of every member, and of every source that is computed with, its axes in the graph that
    all groups have theirs in. `frames`: of members that move what they read. `loose`: members that
    are read at another place than they are computed at: each such use computes them again.
    `reductions`: reductions and scans. `widest`: the value along whose axes all others run; that of
    reductions is one that they reduce. `sources`: what the kernel reads that others, or the caller,
    make. `depths`: how many reductions of the group stand one after the other up to a member.
    `widths`: from how many places joins choose an element of a member. `regrouped`: the digits of
    members, and the regroupings behind them.
    """

    number: int
    graph: AxisGraph
    members: dict[Tensor, None] = field(default_factory=dict[Tensor, None])
    axes: dict[Tensor, Axes] = field(default_factory=dict[Tensor, Axes])
    frames: dict[Tensor, Frame] = field(default_factory=dict[Tensor, Frame])
    loose: dict[Tensor, None] = field(default_factory=dict[Tensor, None])
    reductions: list[Tensor] = field(default_factory=list[Tensor])
    widest: Tensor | None = None
    sources: dict[Tensor, None] = field(default_factory=dict[Tensor, None])
    successors: set[int] = field(default_factory=set[int])
    depths: dict[Tensor, int] = field(default_factory=dict[Tensor, int])
    widths: dict[Tensor, int] = field(default_factory=dict[Tensor, int])
    regrouped: dict[Tensor, Regrouped] = field(default_factory=dict[Tensor, Regrouped])

    @property
    def has_scans(self) -> bool:
        """Whether the kernel would scan, or sort."""
        return any(isinstance(r.op, Scan | Sort) for r in self.reductions)


def is_view(t: Tensor) -> bool:
    """Values that readers find in their source: every kernel that needs one reads through it."""
    match t.op:
        case Broadcast() | Permute() | Reshape() | Parts() | IndexMap():
            return True
        case Resize():
            return is_crop(t)
        case _:
            return False


def has_more_ops(tensors: Collection[Tensor], most: int) -> bool:
    """Whether more of some values than this are more than views."""
    return len(tensors) > most and sum(not is_view(t) for t in tensors) > most


def union(groups: Sequence[FusionGroup], number: int, graph: AxisGraph) -> FusionGroup | str:
    """The groups as a new one: what several of them know has one set of axes, and what moved a
    source that is now computed beside it runs along its axes. The rule that they break together
    when that cannot be."""
    if len(groups) == 1:
        return _copy(groups[0], number)
    problem = own_problem([t for g in groups for t in _first(g)])
    if problem is not None:
        return problem
    out = FusionGroup(number, graph)
    for g in groups:
        for t, axes in g.axes.items():
            if not tie(graph, axes, out.axes.setdefault(t, axes)):
                return f"{t.name} would be needed at two places of one loop"
        out.members |= g.members
        out.frames |= g.frames
        out.loose |= g.loose
        out.reductions += g.reductions
        out.successors |= g.successors
    for t in out.members:
        out.depths[t] = _depth(out, t)
        out.widths[t] = _width(out, t)
        out.regrouped[t] = regrouped(t, out.regrouped)
    out.successors -= {g.number for g in groups}
    out.sources = {o: None for g in groups for o in g.sources if o not in out.members}
    late = next((o for o in out.loose if out.depths[o]), None)
    if late is not None:
        return f"{late.name} would be computed again for each of its uses, behind a reduction"
    return meeting_problem(out, groups) or out


def _copy(g: FusionGroup, number: int) -> FusionGroup:
    return FusionGroup(
        number,
        g.graph,
        dict(g.members),
        dict(g.axes),
        dict(g.frames),
        dict(g.loose),
        list(g.reductions),
        g.widest,
        dict(g.sources),
        set(g.successors),
        dict(g.depths),
        dict(g.widths),
        dict(g.regrouped),
    )


def meeting_problem(g: FusionGroup, parts: Sequence[FusionGroup]) -> str | None:
    """Why groups that became one could not stay it: an op of one of them may not move what another
    one computes, nor what was added to them, which it read from memory so far, in a view or not."""
    for part in parts:
        met = {o for o in part.sources if o in g.members}
        for t in part.members if met else ():
            if met.isdisjoint(t.op.operands):
                continue
            if is_view(t):
                met.add(t)
            if (problem := _move_problem(g, t)) is not None:
                return problem
            if t in g.frames and (problem := _tie_moved(g, t, g.frames[t])) is not None:
                return problem
    return None


def closing_problem(g: FusionGroup, closed: Set[Tensor]) -> str | None:
    """What is computed at more places than a closed value, of which it is computed, reads that in
    memory."""
    for r in closed & g.members.keys():
        behind, count = {r}, numel_estimate(r.shape)
        for t in g.members:
            if behind.isdisjoint(t.op.operands):
                continue
            if numel_estimate(t.shape) > count:
                return f"{r.name} is read from memory by what is scanned"
            behind.add(t)
    return None


def add(g: FusionGroup, t: Tensor) -> str | None:
    """Puts an op into a group; the rule it breaks when the kernel could not hold it. The group is
    then in no usable state: the caller drops it and takes back what the graph did. Whether loops of
    one value reach all others is asked once all ops that belong together are in."""
    if has_more_ops(g.members, MAX_OPS - 1):
        return f"the kernel has {MAX_OPS} ops already"
    read = g.axes.get(t)
    problem = own_problem([*_first(g), t]) or _move_problem(g, t) or _place(g, t)
    if problem is not None:
        return problem
    if read is not None and not tie(g.graph, read, g.axes[t]):
        return f"{t.name} would be needed at two places of one loop"
    g.members[t] = None
    g.sources.pop(t, None)
    g.sources |= {
        o: None for o in t.op.operands if o not in g.members and not is_rematerialisable(o)
    }
    if isinstance(t.op, Region):
        g.widths[t], g.depths[t], g.regrouped[t] = 1, 0, regrouped(t, g.regrouped)
        return None
    if len(g.sources) > MAX_OPERANDS:
        return f"the kernel would read more than {MAX_OPERANDS} tensors"
    g.widths[t] = _width(g, t)
    if g.widths[t] > MAX_OPERANDS:
        return f"its elements would be chosen from more than {MAX_OPERANDS} places"
    g.regrouped[t] = regrouped(t, g.regrouped)
    if g.regrouped[t].count > MAX_REGROUPINGS:
        return f"its elements would be regrouped more than {MAX_REGROUPINGS} times in a row"
    g.depths[t] = _depth(g, t)
    if max(g.depths.values()) > MAX_DEPTH:
        return f"the kernel has {MAX_DEPTH} reductions in a row already"
    if isinstance(t.op, Reduce) and len(g.reductions) == MAX_REDUCTIONS:
        return f"the kernel has {MAX_REDUCTIONS} reductions already"
    if isinstance(t.op, Sort) and g.reductions:
        return "the kernel has a scan, a sort or a reduction already"
    if isinstance(t.op, Reduce | Scan | Sort):
        g.reductions.append(t)
    return None


def own_problem(members: Sequence[Tensor]) -> str | None:
    """Why ops, of each group one, are no kernel: one of them is a result of a kernel of the
    program's own, which holds the results of that call and nothing else; or it is stored alone."""
    alone = [t for t in members if is_alone(t)]
    if alone and len(members) > 1:
        return f"{alone[0].name} is stored in the order of the program by a kernel of its own"
    own = [t.op for t in members if isinstance(t.op, Alone)]
    if not own or (len(own) == len(members) and all(_is_one_call(own[0], o) for o in own)):
        return None
    if isinstance(own[0], Region):
        return f"{own[0].fn} is launches of its own, which nothing joins"
    return f"{own[0].fn} is a kernel of the program's own, which nothing joins"


def _first(g: FusionGroup) -> Iterator[Tensor]:
    """The first member that is no view."""
    return islice((t for t in g.members if not is_view(t)), 1)


def _is_one_call(a: Alone, b: Alone) -> bool:
    if isinstance(a, Region) or isinstance(b, Region):
        same = isinstance(a, Region) and isinstance(b, Region) and a.bodies == b.bodies
    else:
        same = a.body is b.body
    return same and a.operands == b.operands


def _place(g: FusionGroup, t: Tensor) -> str | None:
    """Gives a result its axes: those of what it is computed from, or fresh ones that are tied to
    them. Moves of sources get axes of their own: sources are read at any place."""
    is_reduction = isinstance(t.op, Reduce | Scan | Sort)
    operands = {
        k: o for k, o in enumerate(t.op.operands) if is_reduction or not is_rematerialisable(o)
    }
    if is_reduction or isinstance(t.op, Pointwise):
        for o in operands.values():
            axes_of_source(g, o)
    else:
        operands = {k: o for k, o in operands.items() if o in g.members}
    carried = carried_axes(t.op, g.axes[operands[min(operands)]]) if operands else None
    if carried is not None:
        g.axes[t] = carried
        for o in list(operands.values())[1:]:
            if tie(g.graph, g.axes[o], carried):
                continue
            if g.has_scans or not _is_made_again(g, o, t):
                return f"it reads {o.name} at another place of a loop than its other operands"
            g.loose[o] = None
        return None
    alike = _cut_alike(g, t)
    if alike is not None:
        g.axes[t], g.frames[t] = g.axes[alike], g.frames[alike]
        return None
    frame = make_frame(g.graph, t.op, t.shape, tuple(o.shape for o in t.op.operands), t.name)
    g.graph.register_domain(frame.domain)
    g.axes[t] = frame.output
    g.frames[t] = frame
    if is_held_result(t) and not tie(g.graph, frame.output[-1:], g.axes[t.op.operands[0]][-1:]):
        return f"it reads {t.op.operands[0].name} at other places of another axis"
    return _tie_moved(g, t, frame)


def _cut_alike(g: FusionGroup, t: Tensor) -> Tensor | None:
    """A member that cuts the same axes of another value in the same parts: both have these. Several
    axes that are one run of parts would have a run for each cut."""
    if not isinstance(t.op, Parts) or len(t.op.axes) < 2:
        return None
    own = _sized(g, t.op.operands[0])
    for u in g.frames if own else ():
        if not isinstance(u.op, Parts) or u.op.operands[0].shape != t.op.operands[0].shape:
            continue
        is_alike = u.op.partition == t.op.partition and u.op.axes == t.op.axes
        if is_alike and own == _sized(g, u.op.operands[0]):
            return u
    return None


def _sized(g: FusionGroup, t: Tensor) -> list[AxisClass]:
    """The axes of a value that have several elements; none for one without axes yet."""
    return [g.graph.normal(c) for c in g.axes.get(t, ()) if not c.is_unit]


def _is_made_again(g: FusionGroup, o: Tensor, reader: Tensor) -> bool:
    """Whether a reader that finds a member at another place than others makes it again there: few
    functions and moves of sources. Where it is repeated along axes of the reader that is at most
    one instruction for each element read, as many as reading it takes."""
    if _crops_computed(g, o):
        return False
    found: set[Tensor] = set()
    stack = [o]
    count, repeated = numel_estimate(reader.shape), 0.0
    while stack:
        t = stack.pop()
        if t in found or t not in g.members:
            continue
        if isinstance(t.op, Reduce | Scan | Sort | MatMul | Concat) or len(found) == MAX_RECOMPUTED:
            return False
        if isinstance(t.op, Pointwise) and numel_estimate(t.shape) < count:
            repeated += INSTRUCTIONS.get(t.op.fn, (1.0, 1.0))[0]
        found.add(t)
        stack.extend(t.op.operands)
    return repeated <= 1.0


def _crops_computed(g: FusionGroup, t: Tensor) -> bool:
    """Whether a value is a crop of what the kernel computes, or made of one. Nobody can have a
    clone of it: the clone of what is cropped would have places that no loop comes by.

    y = exp(x); z = y[:64] * y[64:]    the loops of z are those of y[:64]: they miss exp(x)[:64]
    """
    found: set[Tensor] = set()
    stack = [t]
    while stack:
        v = stack.pop()
        if is_crop(v) and is_computed(g, v.op.operands[0]):
            return True
        found.add(v)
        stack.extend(o for o in v.op.operands if o in g.members and o not in found)
    return False


def axes_of_source(g: FusionGroup, o: Tensor) -> Axes:
    """The axes of an operand, fresh ones for a source that nothing computed with yet."""
    if o not in g.axes:
        g.axes[o] = tuple(g.graph.axis(e, f"{o.name}.{j}") for j, e in enumerate(o.shape))
        g.graph.register_domain(g.axes[o])
    return g.axes[o]


def _tie_moved(g: FusionGroup, t: Tensor, frame: Frame) -> str | None:
    """Ties the members that an op moves to where it reads them. One that is also needed elsewhere
    along the same axis is computed again for this use, which no reduction is."""
    if isinstance(t.op, MatMul):
        return None
    for o, read in zip(t.op.operands, frame.operands, strict=True):
        if o not in g.members or tie(g.graph, read, g.axes[o]):
            continue
        if g.depths[o] or g.has_scans or _crops_computed(g, t):
            return f"it reads {o.name} at another place than it is computed at"
        g.loose[o] = None
    return None


def tie(graph: AxisGraph, read: Sequence[OperandAxis], axes: Axes) -> bool:
    """Whether every axis could be read where it is computed; those that can be are tied."""
    tied = True
    for index, axis in zip(read, axes, strict=True):
        if index is axis or not isinstance(index, AxisClass):
            continue
        if not axis.is_unit and not index.is_unit:
            tied = graph.tie(index, axis) and tied
    return tied


def _width(g: FusionGroup, t: Tensor) -> int:
    """From how many places joins choose an element of a tensor: those of all values side by side,
    of several operands the most."""
    widths = [g.widths.get(o, 1) for o in t.op.operands]
    return sum(widths) if isinstance(t.op, Concat) else max(widths, default=1)


def _depth(g: FusionGroup, t: Tensor) -> int:
    """How many reductions of the group stand one after the other up to a tensor."""
    above = max((g.depths.get(o, 0) for o in t.op.operands), default=0)
    return above + isinstance(t.op, Reduce)


def _move_problem(g: FusionGroup, t: Tensor) -> str | None:
    inside = [o for o in t.op.operands if o in g.members]
    computed = [o for o in inside if is_computed(g, o)]
    match t.op:
        case MatMul() if computed:
            return "it multiplies a value that the same kernel computes"
        case Take() | TakeAlong() if t.op.operands[0] in computed:
            return "it gathers from a value that the same kernel computes"
        case Take() | TakeAlong() if t.op.operands[0] in inside:
            is_strided = view_of(t.op.operands[0]) is not None
            return None if is_strided else "it gathers from a view that is not one by strides"
        case IndexMap() if computed and not (_reads_held_line(g, t) or is_held_result(t)):
            return "it reads a computed value at other places than it is computed at"
        case Resize() if computed and g.reductions and (joins_parts(g, t) or _leaves_rows(t)):
            return None
        case Resize() if computed and not _only_pads(t.op):
            return "it crops a value that the same kernel computes"
        case Resize() if computed and g.reductions:
            return "it pads a value of a kernel with reductions or scans"
        case Concat() if computed and g.reductions:
            return "it joins values of a kernel with reductions or scans"
        case Reshape() if computed and g.has_scans and not (only_units(t) or joins_parts(g, t)):
            return "it reshapes a value of a kernel with scans"
        case Resize() if _only_pads(t.op):
            return None
        case IndexMap() | Resize() if inside and not computed:
            return "it moves a value that is itself a move"
        case _:
            return None


def joins_parts(g: FusionGroup, t: Tensor) -> bool:
    """Whether a move makes lines of parts of them, which the kernel scans, or leaves out what the
    last part has too many: loops over the parts come by all of its elements."""
    if not isinstance(t.op, Resize | Reshape):
        return False
    (source,) = t.op.operands
    if isinstance(t.op, Resize):
        return is_crop(t) and isinstance(source.op, Reshape) and joins_parts(g, source)
    for r in g.reductions:
        cut = r.op.operands[0].op
        if isinstance(r.op, Scan) and isinstance(cut, Parts) and source.shape == r.shape:
            whole = mul(*source.shape[r.op.axis - 1 : r.op.axis + 1])
            joined = (*source.shape[: r.op.axis - 1], whole, *source.shape[r.op.axis + 1 :])
            return r.op.axis == cut.axes[0] + 1 and t.shape == joined
    return False


def _reads_held_line(g: FusionGroup, t: Tensor) -> bool:
    """Whether a map reads other places of the lines that the kernel scans, which a block holds."""
    axis, (source,) = moved_line(t), t.op.operands
    scans = (r for r in g.reductions if isinstance(r.op, Scan))
    lines = [g.axes[r][r.op.axis] for r in scans if isinstance(r.op, Scan)]
    return (
        axis is not None
        and is_scanned(source, axis)
        and g.graph.depends(g.axes[source][axis], lines)
    )


def _leaves_rows(t: Tensor) -> bool:
    """Whether a resize is a crop whose elements are met by loops over its operand: along each axis
    it leaves more than one, so that it is an axis of its own."""
    return is_crop(t) and Int(1) not in t.shape


def _only_pads(op: Resize) -> bool:
    """Whether a resize has all elements of its operand."""
    return all(only_grows(e) for e in (*op.low, *op.high))


def is_computed(g: FusionGroup, t: Tensor) -> bool:
    """Whether a value is computed by a kernel: no chain of moves from what it reads."""
    while t in g.members:
        if not is_view(t):
            return True
        t = t.op.operands[0]
    return False


def only_units(t: Tensor) -> bool:
    """Whether a reshape only adds or drops axes of size one."""
    if not isinstance(t.op, Reshape):
        return False
    one = Int(1)
    before = [e for e in t.op.operands[0].shape if e != one]
    return before == [e for e in t.shape if e != one]
