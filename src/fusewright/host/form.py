"""Dispatch formation: any fusion is cut into groups that one kernel can run.

Greedy, in program order, in time proportional to the ops: an op joins the group of its operands
when the facts kept for that group accept it, else it starts a new one and the reason is kept.
Groups are numbered so that values flow from lower to higher numbers only.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from fusewright.core.expr import Expr, Int
from fusewright.fusion.ir import (
    Broadcast,
    Concat,
    Constant,
    Fusion,
    IndexMap,
    Input,
    Iota,
    Permute,
    Pointwise,
    Reduce,
    Reshape,
    Resize,
    Scan,
    Size,
    Take,
    TakeAlong,
    Tensor,
)

MAX_OPS = 96
MAX_OPERANDS = 24
MAX_VISITS = 64


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a group does not take an op: the op's tensor and the rule."""

    tensor: str
    rule: str

    def __str__(self) -> str:
        return f"{self.tensor}: {self.rule}"


class AxisIds:
    """Which axes of a group's tensors are one axis: union-find over integers."""

    def __init__(self) -> None:
        self.parent: list[int] = []

    def fresh(self) -> int:
        self.parent.append(len(self.parent))
        return len(self.parent) - 1

    def find(self, a: int) -> int:
        while self.parent[a] != a:
            self.parent[a] = self.parent[self.parent[a]]
            a = self.parent[a]
        return a

    def join(self, a: int, b: int) -> None:
        a, b = self.find(a), self.find(b)
        if a != b:
            self.parent[max(a, b)] = min(a, b)


@dataclass(eq=False, slots=True)
class Group:
    """Ops that become one kernel, and the facts that decide what else may join."""

    number: int
    tensors: list[Tensor] = field(default_factory=list[Tensor])
    axes: dict[Tensor, tuple[int | None, ...]] = field(
        default_factory=dict[Tensor, "tuple[int | None, ...]"]
    )
    reduced: frozenset[int] | None = None
    space: frozenset[int] = frozenset()
    operands: dict[Tensor, None] = field(default_factory=dict[Tensor, None])
    successors: set[int] = field(default_factory=set[int])
    alone: bool = False
    has_moves: bool = False


@dataclass(frozen=True, slots=True)
class Cut:
    """The groups in execution order, each with its tensors, and why it is not larger."""

    groups: tuple[tuple[Tensor, ...], ...]
    reasons: tuple[Reason, ...]


def form(fusion: Fusion) -> Cut:
    """Cuts a decomposed fusion into groups."""
    former = _Former(fusion)
    for t in fusion.values:
        former.place(t)
    return former.result()


def is_leaf(t: Tensor) -> bool:
    """Values that every kernel makes for itself: literals, sizes, coordinates, and their spreads."""
    match t.op:
        case Constant() | Size() | Iota():
            return True
        case Broadcast() | Reshape() | Permute():
            return is_leaf(t.op.operands[0])
        case _:
            return False


class _Former:
    def __init__(self, fusion: Fusion) -> None:
        self.fusion = fusion
        self.ids = AxisIds()
        self.groups: dict[int, Group] = {}
        self.home: dict[Tensor, int] = {}
        self.merged: dict[int, int] = {}
        self.reasons: list[Reason] = []

    def group_of(self, t: Tensor) -> Group | None:
        number = self.home.get(t)
        if number is None:
            return None
        while number in self.merged:
            number = self.merged[number]
        return self.groups[number]

    def place(self, t: Tensor) -> None:
        """Puts one op into a group."""
        if isinstance(t.op, Input) or is_leaf(t):
            return
        producers = list(
            dict.fromkeys(g for o in t.op.operands if (g := self.group_of(o)) is not None)
        )
        producers.sort(key=lambda g: g.number)
        for g in reversed(producers):
            rest = [p for p in producers if p is not g]
            if any(p.number > g.number for p in rest):
                break
            problem = self.accepts(g, t)
            if problem is None:
                self._add(g, t)
                self._merge_into(g, rest, t)
                return
            self.reasons.append(problem)
        self._start(t)

    def _start(self, t: Tensor) -> None:
        g = Group(len(self.groups) + len(self.merged))
        self.groups[g.number] = g
        self._add(g, t)

    def _merge_into(self, g: Group, rest: list[Group], t: Tensor) -> None:
        for p in reversed(rest):
            problem = self._merge_problem(p, g)
            if problem is None:
                self._merge(p, g)
            else:
                self.reasons.append(Reason(t.name, problem))

    # --- acceptance -----------------------------------------------------------------------------

    def accepts(self, g: Group, t: Tensor) -> Reason | None:
        """None when the group can take the op, else the rule it breaks."""
        if g.alone or isinstance(t.op, Scan):
            return Reason(t.name, "a scan stands in a kernel of its own")
        if len(g.tensors) >= MAX_OPS:
            return Reason(t.name, f"the kernel has {MAX_OPS} ops already")
        new = [o for o in t.op.operands if self.group_of(o) is not g and not is_leaf(o)]
        if len(g.operands) + len(new) > MAX_OPERANDS:
            return Reason(t.name, f"the kernel would read {MAX_OPERANDS} tensors or more")
        inside = [o for o in t.op.operands if self.group_of(o) is g]
        move = self._move_problem(g, t, inside)
        if move is not None:
            return Reason(t.name, move)
        axes = self._axes(g, t, join=False)
        if axes is None:
            return Reason(t.name, "two axes of one tensor would have to run in one loop")
        return self._reduction_problem(g, t, axes)

    def _move_problem(self, g: Group, t: Tensor, inside: list[Tensor]) -> str | None:
        if not inside:
            return None
        match t.op:
            case Take() | TakeAlong():
                if t.op.operands[0] in inside:
                    return "it gathers from a value that the same kernel computes"
            case IndexMap():
                return "it reads a computed value at other places than it is computed at"
            case Resize():
                if any(_crops(e) for e in (*t.op.low, *t.op.high)):
                    return "it crops a value that the same kernel computes"
                if g.reduced is not None:
                    return "it pads a value of a kernel with reductions"
            case Concat():
                if g.reduced is not None:
                    return "it joins values of a kernel with reductions"
            case Reshape():
                if g.reduced is not None and not _only_units(t):
                    return "it reshapes a value of a kernel with reductions"
            case _:
                return None
        return None

    def _reduction_problem(
        self, g: Group, t: Tensor, axes: tuple[int | None, ...]
    ) -> Reason | None:
        find = self.ids.find
        if isinstance(t.op, Reduce):
            operand = self._operand_axes(g, t.op.operands[0])
            reduced = frozenset(find(operand[a]) for a in t.op.axes if operand[a] is not None)  # type: ignore[arg-type]
            space = frozenset(find(a) for a in operand if a is not None)
            if g.reduced is not None:
                mine = frozenset(find(a) for a in g.reduced)
                if reduced != mine:
                    return Reason(t.name, "it reduces other axes than the kernel's reductions")
                if not space <= frozenset(find(a) for a in g.space):
                    return Reason(t.name, "it runs over axes that the kernel's reductions lack")
                return None
            if g.has_moves:
                return Reason(t.name, "the kernel moves elements before this reduction")
            for other in g.tensors:
                if not {find(a) for a in g.axes[other] if a is not None} <= space:
                    return Reason(t.name, f"{other.name} has axes that this reduction lacks")
            return None
        if g.reduced is not None:
            allowed = {find(a) for a in g.space}
            if not {find(a) for a in axes if a is not None} <= allowed:
                return Reason(t.name, "it has axes that the kernel's reductions lack")
        return None

    # --- axes -----------------------------------------------------------------------------------

    def _operand_axes(self, g: Group, o: Tensor) -> tuple[int | None, ...]:
        if o not in g.axes:
            g.axes[o] = tuple(None if e == Int(1) else self.ids.fresh() for e in o.shape)
        return g.axes[o]

    def _axes(self, g: Group, t: Tensor, *, join: bool) -> tuple[int | None, ...] | None:
        """The axis ids of a result; joins those of its operands when asked, else only tells
        whether they could be. None when two axes of one tensor would become one."""
        reads = [o for o in t.op.operands if not is_leaf(o)]
        match t.op:
            case Pointwise():
                return self._unify(g, [self._operand_axes(g, o) for o in reads], t, join=join)
            case Broadcast():
                own = self._operand_axes(g, t.op.operands[0])
                return tuple(
                    own[a] if a is not None and own[a] is not None else self._fresh(e)
                    for a, e in zip(t.op.axes, t.shape, strict=True)
                )
            case Permute():
                own = self._operand_axes(g, t.op.operands[0])
                return tuple(own[a] for a in t.op.axes)
            case Reduce():
                own = self._operand_axes(g, t.op.operands[0])
                return tuple(a for j, a in enumerate(own) if j not in t.op.axes)
            case Reshape() if _only_units(t):
                own = iter(
                    [
                        a
                        for a, e in zip(
                            self._operand_axes(g, t.op.operands[0]),
                            t.op.operands[0].shape,
                            strict=True,
                        )
                        if e != Int(1)
                    ]
                )
                return tuple(None if e == Int(1) else next(own) for e in t.shape)
            case _:
                return tuple(self._fresh(e) for e in t.shape)

    def _fresh(self, e: Expr) -> int | None:
        return None if e == Int(1) else self.ids.fresh()

    def _unify(
        self, g: Group, reads: list[tuple[int | None, ...]], t: Tensor, *, join: bool
    ) -> tuple[int | None, ...] | None:
        if not reads:
            return tuple(self._fresh(e) for e in t.shape)
        saved = list(self.ids.parent)
        for other in reads[1:]:
            for a, b in zip(reads[0], other, strict=True):
                if a is not None and b is not None:
                    self.ids.join(a, b)
        sane = all(_distinct(self.ids, g.axes[o]) for o in g.axes)
        if not join or not sane:
            self.ids.parent = saved
        return reads[0] if sane else None

    # --- membership -----------------------------------------------------------------------------

    def _add(self, g: Group, t: Tensor) -> None:
        axes = self._axes(g, t, join=True)
        g.axes[t] = axes if axes is not None else tuple(self._fresh(e) for e in t.shape)
        g.tensors.append(t)
        self.home[t] = g.number
        for o in t.op.operands:
            p = self.group_of(o)
            if p is not g and not is_leaf(o):
                g.operands[o] = None
                if p is not None:
                    p.successors.add(g.number)
        if isinstance(t.op, Scan):
            g.alone = True
        if isinstance(t.op, Reduce) and g.reduced is None:
            operand = g.axes[t.op.operands[0]]
            g.reduced = frozenset(operand[a] for a in t.op.axes if operand[a] is not None)  # type: ignore[misc]
            g.space = frozenset(a for a in operand if a is not None)
        if isinstance(t.op, Reshape | Resize | Concat) and not _only_units(t):
            g.has_moves = g.has_moves or any(self.group_of(o) is g for o in t.op.operands)

    def _merge_problem(self, p: Group, g: Group) -> str | None:
        if p.alone or g.alone:
            return "a scan stands in a kernel of its own"
        if p.reduced is not None or p.has_moves or g.has_moves:
            return "its operands come from kernels whose loops differ"
        if len(p.tensors) + len(g.tensors) > MAX_OPS:
            return f"the kernel would have more than {MAX_OPS} ops"
        if len(p.operands) + len(g.operands) > MAX_OPERANDS:
            return f"the kernel would read more than {MAX_OPERANDS} tensors"
        if self._reaches(p, g):
            return "another kernel stands between its operands"
        if g.reduced is not None:
            find = self.ids.find
            allowed = {find(a) for a in g.space}
            for axes in p.axes.values():
                if not {find(a) for a in axes if a is not None} <= allowed:
                    return "an operand has axes that the kernel's reductions lack"
        return None

    def _reaches(self, p: Group, g: Group) -> bool:
        """Whether values flow from p to g through a third group (True when not soon known)."""
        stack = [self._current(s) for s in p.successors]
        seen: set[int] = set()
        while stack:
            n = stack.pop()
            if n == g.number or n in seen or n > g.number:
                continue
            seen.add(n)
            if len(seen) > MAX_VISITS:
                return True
            after = {self._current(s) for s in self.groups[n].successors}
            if g.number in after:
                return True
            stack.extend(after)
        return False

    def _current(self, number: int) -> int:
        while number in self.merged:
            number = self.merged[number]
        return number

    def _merge(self, p: Group, g: Group) -> None:
        for t, axes in p.axes.items():
            if t in g.axes:
                for a, b in zip(axes, g.axes[t], strict=True):
                    if a is not None and b is not None:
                        self.ids.join(a, b)
            else:
                g.axes[t] = axes
        g.tensors = p.tensors + g.tensors
        g.operands = {
            o: None
            for o in (*p.operands, *g.operands)
            if o not in g.tensors
        }
        g.successors |= p.successors
        g.successors.discard(g.number)
        self.merged[p.number] = g.number
        del self.groups[p.number]

    def result(self) -> Cut:
        order = {t: i for i, t in enumerate(self.fusion.values)}
        groups = tuple(
            tuple(sorted(g.tensors, key=lambda t: order[t]))
            for _, g in sorted(self.groups.items())
        )
        placed = {t for g in groups for t in g}
        loose = tuple(t for t in self.fusion.outputs if t not in placed)
        extra = tuple((t,) for t in dict.fromkeys(loose))
        return Cut((*groups, *extra), tuple(dict.fromkeys(self.reasons)))


def _distinct(ids: AxisIds, axes: tuple[int | None, ...]) -> bool:
    found = [ids.find(a) for a in axes if a is not None]
    return len(found) == len(set(found))


def _crops(e: Expr) -> bool:
    low = e.interval[0]
    return low is None or low < 0


def _only_units(t: Tensor) -> bool:
    """Whether a reshape only adds or drops axes of size one."""
    if not isinstance(t.op, Reshape):
        return False
    one = Int(1)
    before = [e for e in t.op.operands[0].shape if e != one]
    return before == [e for e in t.shape if e != one]
