"""What is known of a group of ops, and the rules by which one kernel can hold them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypeAlias

from fusewright.core.expr import Expr, Int, constant_value
from fusewright.fusion.ir import (
    Broadcast,
    Concat,
    IndexMap,
    MatMul,
    Parts,
    Permute,
    Pointwise,
    Reduce,
    Reshape,
    Resize,
    Scan,
    Shape,
    Take,
    TakeAlong,
    Tensor,
)
from fusewright.fusion.partitioning import held_of
from fusewright.fusion.passes.fold_crops import is_crop, only_grows
from fusewright.fusion.rematerialisable import is_rematerialisable
from fusewright.host.products import operand_views, product_problem
from fusewright.host.regroupings import MAX_REGROUPINGS, Regrouped, regrouped

MAX_OPS = 96
MAX_OPERANDS = 24
"""Values that a kernel reads, and places that it may have to choose an element from."""
MAX_DEPTH = 4
"""Reductions in a row: each adds a pass over what is held of a row, which recomputes what came
before, so that code grows with the square."""
MAX_REDUCTIONS = 8
LEAST_PARTS = 64
"""Parts of the rows, a block each, from which row results and those of columns share a kernel."""

Axes: TypeAlias = tuple[int | None, ...]
"""For every axis of a tensor its id in the group; None for axes of size one and unknown ones."""


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a group does not take an op: the op's tensor and the rule."""

    tensor: str
    rule: str

    def __str__(self) -> str:
        return f"{self.tensor}: {self.rule}"


class AxisIds:
    """Which axes of tensors are one axis: union-find over integers, with an undo log."""

    def __init__(self) -> None:
        self.parent: list[int] = []
        self.log: list[tuple[int, int]] = []

    def fresh(self, e: Expr) -> int | None:
        """A new id; None for an axis of size one."""
        if e == Int(1):
            return None
        self.parent.append(len(self.parent))
        return len(self.parent) - 1

    def find(self, a: int) -> int:
        while self.parent[a] != a:
            a = self.parent[a]
        return a

    def found(self, axes: Axes) -> Axes:
        """The representative of every axis."""
        return tuple(None if a is None else self.find(a) for a in axes)

    def join(self, a: int, b: int) -> None:
        a, b = self.find(a), self.find(b)
        if a != b:
            self.log.append((max(a, b), self.parent[max(a, b)]))
            self.parent[max(a, b)] = min(a, b)

    def join_all(self, some: Axes, others: Axes) -> None:
        """Joins axes place by place, where both have ids."""
        for a, b in zip(some, others, strict=True):
            if a is not None and b is not None:
                self.join(a, b)

    def undo(self, mark: int) -> None:
        """Takes back every join since the log had `mark` entries."""
        while len(self.log) > mark:
            index, old = self.log.pop()
            self.parent[index] = old

    def named(self, axes: Iterable[int | None]) -> frozenset[int]:
        """The representatives of the axes that have ids."""
        return frozenset(self.find(a) for a in axes if a is not None)


@dataclass(frozen=True, slots=True)
class Space:
    """The axes that a reduction runs over, their sizes, and those among them that it reduces."""

    all: Axes
    reduced: Axes
    sizes: Shape
    places: tuple[int, ...]

    @property
    def form(self) -> tuple[Shape, tuple[int, ...]]:
        """Equal for reductions that could run along each other's loops."""
        return self.sizes, self.places


@dataclass(frozen=True, slots=True)
class Line:
    """The axes that a scan runs over, and the one that it scans (None for one of size one)."""

    all: Axes
    scanned: int | None


@dataclass(eq=False, slots=True)
class FusionGroup:
    """Ops that become one kernel, and the facts that decide what else may join.

    `moved`: values from before a reshape, pad or concat, whose axes only the axis graph relates to
    those after. `sources`: what the kernel reads that others, or the caller, make. `depths`: how
    many reductions of the group stand one after the other up to a member. `lines`: what its scans
    run along. `widths`: from how many places joins choose an element of a member. `parts`: members
    that cut axes in two.
    `regrouped`: the digits of members, and the regroupings behind them.
    """

    number: int
    members: dict[Tensor, None] = field(default_factory=dict[Tensor, None])
    axes: dict[Tensor, Axes] = field(default_factory=dict[Tensor, Axes])
    spaces: list[Space] = field(default_factory=list[Space])
    sources: dict[Tensor, None] = field(default_factory=dict[Tensor, None])
    successors: set[int] = field(default_factory=set[int])
    depths: dict[Tensor, int] = field(default_factory=dict[Tensor, int])
    lines: list[Line] = field(default_factory=list[Line])
    widths: dict[Tensor, int] = field(default_factory=dict[Tensor, int])
    moved: dict[Tensor, None] = field(default_factory=dict[Tensor, None])
    parts: dict[Tensor, None] = field(default_factory=dict[Tensor, None])
    regrouped: dict[Tensor, Regrouped] = field(default_factory=dict[Tensor, Regrouped])


def is_view(t: Tensor) -> bool:
    """Values that readers find in their source: every kernel that needs one reads through it."""
    match t.op:
        case Broadcast() | Permute() | Reshape() | Parts() | IndexMap():
            return True
        case Resize():
            return is_crop(t)
        case _:
            return False


def union(groups: list[FusionGroup], number: int, ids: AxisIds) -> FusionGroup:
    """The groups as a new one; tensors that several of them know get one set of axes."""
    out = FusionGroup(number)
    for g in groups:
        for t, axes in g.axes.items():
            ids.join_all(axes, out.axes.setdefault(t, axes))
        out.members |= g.members
        out.spaces += g.spaces
        out.successors |= g.successors
        out.lines += g.lines
        out.moved |= g.moved
    for p in (p for g in groups for p in g.parts):
        _add_parts(out, p, ids)
    for t in out.members:
        out.depths[t] = _depth(out, t)
        out.widths[t] = _width(out, t)
        out.regrouped[t] = regrouped(t, out.regrouped)
    out.successors -= {g.number for g in groups}
    out.sources = {o: None for g in groups for o in g.sources if o not in out.members}
    return out


def add(g: FusionGroup, t: Tensor, ids: AxisIds) -> str | None:
    """Puts an op into a group; the rule it breaks when the kernel could not hold it. The group is
    then in no usable state: the caller drops it and takes the joins of ids back. `space_problem`
    is asked once all ops that belong together are in."""
    if len(g.members) >= MAX_OPS:
        return f"the kernel has {MAX_OPS} ops already"
    problem = _move_problem(g, t)
    if problem is not None:
        return problem
    g.axes[t] = _axes(g, t, ids)
    if _is_cut(g, t):
        _add_parts(g, t, ids)
    if any(not _distinct(ids, a) for a in g.axes.values()):
        return "two axes of one tensor would have to run in one loop"
    moves = isinstance(t.op, Reshape | Resize | Concat) and any(
        o in g.members for o in t.op.operands
    )
    if moves and not only_units(t) and cut_axes(t) is None and not g.spaces:
        g.moved |= g.members
    g.members[t] = None
    g.sources |= {
        o: None for o in t.op.operands if o not in g.members and not is_rematerialisable(o)
    }
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
    if len(g.spaces) == MAX_REDUCTIONS and isinstance(t.op, Reduce):
        return f"the kernel has {MAX_REDUCTIONS} reductions already"
    if isinstance(t.op, Reduce):
        source = t.op.operands[0]
        operand = g.axes[source]
        reduced = tuple(operand[a] for a in t.op.axes)
        g.spaces.append(Space(operand, reduced, source.shape, t.op.axes))
    if isinstance(t.op, Scan):
        g.lines.append(Line(g.axes[t], g.axes[t][t.op.axis]))
    return None


def union_problem(g: FusionGroup, parts: Iterable[FusionGroup]) -> str | None:
    """Why groups that became one could not stay it: an op of one of them may not move what another
    one computes."""
    for part in parts:
        inside = {o for o in part.sources if o in g.members}
        for t in part.members if inside else ():
            if not inside.isdisjoint(t.op.operands) and (problem := _move_problem(g, t)):
                return problem
    return None


def relate_spaces(g: FusionGroup, ids: AxisIds) -> str | None:
    """Lets reductions that have no axis in common but the same sizes run along the same loops."""
    for other in g.spaces[1:]:
        first = g.spaces[0]
        if other.form == first.form and ids.named(first.all).isdisjoint(ids.named(other.all)):
            ids.join_all(first.all, other.all)
    if len(g.spaces) > 1 and any(not _distinct(ids, axes) for axes in g.axes.values()):
        return "two axes of one tensor would have to run in one loop"
    return None


def form_of_sums(g: FusionGroup, ids: AxisIds) -> tuple[Shape, tuple[int, ...]] | None:
    """The form of a group's reductions if it has one, all read each element once, and nothing of
    their size is computed from their results; None for other groups."""
    forms = {s.form for s in g.spaces}
    if len(forms) != 1 or g.moved or g.lines or max(g.depths.values()) > 1:
        return None
    reduced = ids.named(a for s in g.spaces for a in s.reduced)
    later = (t for t in g.members if g.depths[t])
    if any(reduced & ids.named(g.axes[t]) for t in later):
        return None
    return next(iter(forms))


def _width(g: FusionGroup, t: Tensor) -> int:
    """From how many places joins choose an element of a tensor: those of all values side by side,
    of several operands the most."""
    widths = [g.widths.get(o, 1) for o in t.op.operands]
    return sum(widths) if isinstance(t.op, Concat) else max(widths, default=1)


def _depth(g: FusionGroup, t: Tensor) -> int:
    """How many reductions of the group stand one after the other up to a tensor."""
    above = max((g.depths.get(o, 0) for o in t.op.operands), default=0)
    return above + isinstance(t.op, Reduce)


def space_problem(g: FusionGroup, ids: AxisIds) -> str | None:
    """Reductions of a kernel run over the same axes, but for results of parts of the rows beside
    reductions of whole rows; and all else runs over no other axes. Without reductions the axes of
    one value are those that all run over. The axis that a broadcast adds is open until something
    with a known axis meets it."""
    if (problem := product_problem(g.members)) is not None:
        return problem
    if g.lines:
        return _line_problem(g, ids)
    if not g.spaces:
        return _loop_problem(g, ids)
    cut = {ids.find(a) for p in g.parts if _leads(p) for a in _cut(g, p)[1] if a is not None}
    reduced = {ids.named(s.reduced) for s in g.spaces}
    rows = {r for r in reduced if not (len(r) == 1 and r <= cut)}
    if len(rows) > 1 or len(reduced) - len(rows) > 1:
        return "the kernel's reductions would run over different axes"
    spaces = [_named(g, s.all, ids) for s in g.spaces]
    largest = max(spaces, key=len)
    if any(not s <= largest for s in spaces):
        return "the kernel's reductions would keep different axes"
    if len(reduced) > 1 and any(s != largest for s in spaces):
        return "the kernel's reductions would run over different axes"
    whole = ids.named(a for p in g.parts for a in _cut(g, p)[0])
    if len(reduced) > 1 and any(whole & r for r in rows):
        return "one of the kernel's reductions would run over what another one has in parts"
    if len(reduced) > 1 and (problem := _parts_problem(g)) is not None:
        return problem
    for t in g.members:
        if isinstance(t.op, Broadcast) or t in g.moved:
            continue
        if not _named(g, g.axes[t], ids) <= largest:
            return f"{t.name} has axes that the kernel's reductions lack"
    return None


def _line_problem(g: FusionGroup, ids: AxisIds) -> str | None:
    """Why no block could walk along the lines of a kernel's scans: they run over the same axes and
    along the same one, beside no reduction, and nothing else runs over other axes."""
    if g.spaces:
        return "a scan stands in no kernel with reductions"
    if g.moved:
        return "a scan stands in no kernel that reshapes, pads or joins what it computes"
    first = g.lines[0]
    whole = ids.named(first.all)
    for line in g.lines[1:]:
        if ids.named(line.all) != whole:
            return "the kernel's scans would run over different axes"
        if ids.named((line.scanned,)) != ids.named((first.scanned,)):
            return "the kernel's scans would run along different axes"
    for t in g.members:
        if not isinstance(t.op, Broadcast) and not ids.named(g.axes[t]) <= whole:
            return f"{t.name} has axes that the kernel's scans lack"
    return None


def _loop_problem(g: FusionGroup, ids: AxisIds) -> str | None:
    """Why threads, an element of one value each, could not compute all others: a value with an axis
    that this one lacks would be computed whole, along that axis, by every one of them. Axes and
    their parts are one where the kernel computes what is cut; sources are read at any place."""
    operands = operand_views(g.members)
    cuts = (t for t in g.members if t not in operands and cut_axes(t) is not None)
    related = all(t.op.operands[0] in g.members for t in cuts)
    named = [
        (_named(g, g.axes[t], ids) if related else ids.named(g.axes[t]), t)
        for t in g.members
        if not isinstance(t.op, Broadcast) and t not in g.moved and t not in operands
    ]
    largest = max((n for n, _ in named), key=len, default=frozenset[int]())
    apart = next((t for n, t in named if not n <= largest), None)
    return None if apart is None else f"{apart.name} has axes that the kernel's largest value lacks"


def _parts_problem(g: FusionGroup) -> str | None:
    """Why no block could walk over parts of the rows with their partial results in registers."""
    sums = (t.op for t in g.members if isinstance(t.op, Reduce))
    cuts = [p.op for op in sums if isinstance((p := op.operands[0]).op, Parts) and _leads(p)]
    if not cuts:
        return "the kernel's reductions would run over different axes"
    parts, (source,) = cuts[0].partition, cuts[0].operands
    length = _numel(source.shape[len(cuts[0].axes) :])
    if not length:
        return "parts of rows of unknown size have no partial results"
    if parts.count < LEAST_PARTS:
        return f"{parts.count} parts of the rows are too few blocks"
    if not held_of(g.sources, _numel(source.shape), length, len(cuts)).blocks(length):
        return "the registers of a block do not hold a row and the partial results of its columns"
    return None


def _numel(shape: Shape) -> int:
    """The product of constant sizes, 0 where one is not known."""
    return math.prod(constant_value(e) or 0 for e in shape)


def _named(g: FusionGroup, axes: Axes, ids: AxisIds) -> frozenset[int]:
    """The representatives of axes; of those that were cut, the two that they became."""
    named = ids.named(axes)
    for p in g.parts:
        whole, two = (ids.named(axes) for axes in _cut(g, p))
        if named & whole:
            named = (named - whole) | two
    return named


def cut_axes(t: Tensor) -> tuple[int, ...] | None:
    """The run of axes that an op makes two of: those of a partition, or the leading ones that a
    reshape of a program cuts, (r.., c..) -> (a, b, c..). None for other ops."""
    if isinstance(t.op, Parts):
        return t.op.axes
    if not isinstance(t.op, Reshape) or t.ndim < 2 or only_units(t):
        return None
    (source,) = t.op.operands
    count = source.ndim - (t.ndim - 2)
    stays = count > 0 and source.shape[count:] == t.shape[2:]
    return tuple(range(count)) if stays and Int(1) not in (*t.shape, *source.shape) else None


def _leads(t: Tensor) -> bool:
    """Whether the axes that an op cuts are the first ones."""
    axes = cut_axes(t)
    return axes is not None and axes[0] == 0


def _is_cut(g: FusionGroup, t: Tensor) -> bool:
    """Whether an op cuts axes that are known."""
    return cut_axes(t) is not None and not _is_unknown(o := t.op.operands[0], g.axes[o])


def _cut(g: FusionGroup, t: Tensor) -> tuple[Axes, Axes]:
    """The axes that an op cuts, and the two that they become."""
    axes = cut_axes(t)
    assert axes is not None
    first = axes[0]
    return g.axes[t.op.operands[0]][first : axes[-1] + 1], g.axes[t][first : first + 2]


def _add_parts(g: FusionGroup, new: Tensor, ids: AxisIds) -> None:
    """Notes that axes were cut in two; axes that already were so get the same two."""
    whole, two = _cut(g, new)
    for p in g.parts:
        old, parts = _cut(g, p)
        if p.shape == new.shape and ids.found(old) == ids.found(whole):
            ids.join_all(parts, two)
            break
    g.parts[new] = None


def same_axes(g: FusionGroup, shared: Tensor, ids: AxisIds) -> bool:
    """Whether all members run over axes of one shared source, each tensor's axes apart."""
    allowed = _named(g, g.axes[shared], ids)
    return all(
        _named(g, axes, ids) <= allowed or t not in g.members for t, axes in g.axes.items()
    ) and all(_distinct(ids, axes) for axes in g.axes.values())


def _move_problem(g: FusionGroup, t: Tensor) -> str | None:
    inside = [o for o in t.op.operands if o in g.members]
    computed = [o for o in inside if not _reads_source(g, o)]
    match t.op:
        case MatMul() if computed:
            return "it multiplies a value that the same kernel computes"
        case Take() | TakeAlong() if t.op.operands[0] in inside:
            return "it gathers from a value that the same kernel computes"
        case IndexMap() if computed:
            return "it reads a computed value at other places than it is computed at"
        case Resize() if computed and not all(only_grows(e) for e in (*t.op.low, *t.op.high)):
            return "it crops a value that the same kernel computes"
        case Resize() if computed and (g.spaces or g.lines):
            return "it pads a value of a kernel with reductions or scans"
        case Concat() if computed and (g.spaces or g.lines):
            return "it joins values of a kernel with reductions or scans"
        case Reshape() if computed and g.lines and not only_units(t):
            return "it reshapes a value of a kernel with scans"
        case IndexMap() | Resize() | Take() | TakeAlong() if inside and not computed:
            return "it moves a value that is itself a move"
        case _:
            return None


def _reads_source(g: FusionGroup, t: Tensor) -> bool:
    """Whether a member is a chain of moves from a source."""
    while t in g.members:
        if not is_view(t):
            return False
        t = t.op.operands[0]
    return True


def _axes(g: FusionGroup, t: Tensor, ids: AxisIds) -> Axes:
    """The axis ids of a result; joins those of its operands.

    Moves of sources get axes of their own: sources are read at any place. The axes of a reshaped
    value of a group with reductions are not known: the axis graph relates them in scheduling.
    """
    known = [o for o in t.op.operands if not is_rematerialisable(o)]
    inside = [o for o in t.op.operands if o in g.members]
    match t.op:
        case Pointwise() if known:
            reads = [_operand_axes(g, o, ids) for o in known]
            if any(o in g.members and _is_unknown(o, a) for o, a in zip(known, reads, strict=True)):
                _relate_by_graph(g, known, ids)
                return (None,) * t.ndim
            for other in reads[1:]:
                ids.join_all(reads[0], other)
            return tuple(
                next((r[j] for r in reads if r[j] is not None), None) for j in range(t.ndim)
            )
        case Broadcast() if inside:
            own = g.axes[t.op.operands[0]]
            return tuple(
                own[a] if a is not None and own[a] is not None else ids.fresh(e)
                for a, e in zip(t.op.axes, t.shape, strict=True)
            )
        case Permute() if inside:
            own = g.axes[t.op.operands[0]]
            return tuple(own[a] for a in t.op.axes)
        case Scan():
            return _operand_axes(g, t.op.operands[0], ids)
        case Reduce():
            own = _operand_axes(g, t.op.operands[0], ids)
            return tuple(a for j, a in enumerate(own) if j not in t.op.axes)
        case Reshape() if inside and only_units(t):
            return _renamed_units(g.axes[t.op.operands[0]], t)
        case Reshape() | Parts() if (cut := _part_axes(g, t, ids)) is not None:
            return cut
        case Reshape() | Parts() if inside and g.spaces:
            _relate_by_graph(g, inside, ids)
            return (None,) * t.ndim
        case Take() | TakeAlong() if t.op.operands[1] in inside:
            source, at = t.op.operands
            _operand_axes(g, source, ids)
            found = [ids.fresh(e) for e in t.shape]
            first = t.op.axis if isinstance(t.op, Take) else 0
            found[first : first + at.ndim] = g.axes[at]
            return tuple(found)
        case _:
            for o in known:
                _operand_axes(g, o, ids)
            return tuple(ids.fresh(e) for e in t.shape)


def _part_axes(g: FusionGroup, t: Tensor, ids: AxisIds) -> Axes | None:
    """The axes of an op that makes two of a run of axes; None for other ops."""
    axes = cut_axes(t)
    if axes is None:
        return None
    own, first = _operand_axes(g, t.op.operands[0], ids), axes[0]
    if not _is_cut(g, t):
        return None
    two = (ids.fresh(e) for e in t.shape[first : first + 2])
    return (*own[:first], *two, *own[axes[-1] + 1 :])


def _is_unknown(t: Tensor, axes: Axes) -> bool:
    return any(a is None and e != Int(1) for a, e in zip(axes, t.shape, strict=True))


def _relate_by_graph(g: FusionGroup, operands: list[Tensor], ids: AxisIds) -> None:
    """Leaves to the axis graph the members behind operands that meet a value of unknown axes and
    have axes that the reductions lack: spreads of vectors, as a rule."""
    spaces = [ids.named(s.all) for s in g.spaces]
    stack = [o for o in operands if o in g.members]
    while stack:
        o = stack.pop()
        named = ids.named(g.axes[o])
        if named and not any(named <= s for s in spaces):
            g.moved[o] = None
            stack.extend(p for p in o.op.operands if p in g.members)


def _operand_axes(g: FusionGroup, o: Tensor, ids: AxisIds) -> Axes:
    if o not in g.axes:
        g.axes[o] = tuple(ids.fresh(e) for e in o.shape)
    return g.axes[o]


def _renamed_units(axes: Axes, t: Tensor) -> Axes:
    one = Int(1)
    sized = iter([a for a, e in zip(axes, t.op.operands[0].shape, strict=True) if e != one])
    return tuple(None if e == one else next(sized) for e in t.shape)


def _distinct(ids: AxisIds, axes: Axes) -> bool:
    found = [ids.find(a) for a in axes if a is not None]
    return len(found) == len(set(found))


def only_units(t: Tensor) -> bool:
    """Whether a reshape only adds or drops axes of size one."""
    if not isinstance(t.op, Reshape):
        return False
    one = Int(1)
    before = [e for e in t.op.operands[0].shape if e != one]
    return before == [e for e in t.shape if e != one]
