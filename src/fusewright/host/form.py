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
        self.log: list[tuple[int, int]] = []

    def fresh(self) -> int:
        self.parent.append(len(self.parent))
        return len(self.parent) - 1

    def find(self, a: int) -> int:
        while self.parent[a] != a:
            a = self.parent[a]
        return a

    def join(self, a: int, b: int) -> None:
        a, b = self.find(a), self.find(b)
        if a != b:
            self.log.append((max(a, b), self.parent[max(a, b)]))
            self.parent[max(a, b)] = min(a, b)

    def undo(self, mark: int) -> None:
        """Takes back every join since the log had `mark` entries."""
        while len(self.log) > mark:
            index, old = self.log.pop()
            self.parent[index] = old


@dataclass(eq=False, slots=True)
class Group:
    """Ops that become one kernel, and the facts that decide what else may join."""

    number: int
    tensors: list[Tensor] = field(default_factory=list[Tensor])
    axes: dict[Tensor, tuple[int | None, ...]] = field(
        default_factory=dict[Tensor, "tuple[int | None, ...]"]
    )
    spaces: list[Space] = field(default_factory=list["Space"])
    operands: dict[Tensor, None] = field(default_factory=dict[Tensor, None])
    successors: set[int] = field(default_factory=set[int])
    alone: bool = False
    has_moves: bool = False


@dataclass(frozen=True, slots=True)
class Space:
    """The axes that a reduction runs over, and those among them that it reduces."""

    all: frozenset[int]
    reduced: frozenset[int]

    @staticmethod
    def of(axes: tuple[int | None, ...], reduced: tuple[int, ...]) -> Space:
        return Space(
            frozenset(a for a in axes if a is not None),
            frozenset(a for j in reduced if (a := axes[j]) is not None),
        )

    def named(self, ids: AxisIds) -> Space:
        """The same with every axis by its representative."""
        return Space(
            frozenset(ids.find(a) for a in self.all), frozenset(ids.find(a) for a in self.reduced)
        )


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
        """Puts one op into the union of its operands' groups, or of as many as accept it."""
        if isinstance(t.op, Input) or is_leaf(t):
            return
        producers = list(
            dict.fromkeys(g for o in t.op.operands if (g := self.group_of(o)) is not None)
        )
        producers.sort(key=lambda g: g.number)
        for chosen in _choices(producers):
            problem = self._try(chosen, producers, t)
            if problem is None:
                return
            self.reasons.append(problem)
        g = Group(len(self.groups) + len(self.merged))
        self.groups[g.number] = g
        self._add(g, t)

    def _try(self, chosen: list[Group], producers: list[Group], t: Tensor) -> Reason | None:
        """Adds `t` to the chosen groups as one, or tells what forbids it."""
        mark = len(self.ids.log)
        number = self._number(chosen)
        if number is None or any(p.number > number for p in producers if p not in chosen):
            return Reason(t.name, "another kernel stands between its operands")
        union = _union(chosen, number, self.ids)
        problem = self.accepts(union, set(chosen), t)
        if problem is not None:
            self.ids.undo(mark)
            return problem
        for g in chosen:
            if g.number != number:
                self.merged[g.number] = number
                del self.groups[g.number]
        self.groups[number] = union
        self._add(union, t)
        return None

    def _number(self, chosen: list[Group]) -> int | None:
        """The place of the union in the order: the last one's when nothing stands between, the
        first one's when the others need nothing later; None when neither."""
        if len(chosen) == 1:
            return chosen[0].number
        last, first = chosen[-1], chosen[0]
        if not any(self._reaches(g, last) for g in chosen[:-1]):
            return last.number
        needs = [p for g in chosen[1:] for o in g.operands if (p := self.group_of(o)) is not None]
        if all(p in chosen or p.number <= first.number for p in needs):
            return first.number
        return None

    # --- acceptance -----------------------------------------------------------------------------

    def accepts(self, g: Group, parts: set[Group], t: Tensor) -> Reason | None:
        """None when the union of groups can take the op, else the rule it breaks. Joins axis ids;
        the caller takes that back on a refusal."""
        if g.alone or isinstance(t.op, Scan):
            return Reason(t.name, "a scan stands in a kernel of its own")
        if len(g.tensors) >= MAX_OPS:
            return Reason(t.name, f"the kernel has {MAX_OPS} ops already")
        inside = [o for o in t.op.operands if self.group_of(o) in parts]
        new = [o for o in t.op.operands if o not in inside and not is_leaf(o)]
        if len(dict.fromkeys([*g.operands, *new])) > MAX_OPERANDS:
            return Reason(t.name, f"the kernel would read more than {MAX_OPERANDS} tensors")
        move = self._move_problem(g, t, inside)
        if move is not None:
            return Reason(t.name, move)
        axes = self._axes(g, t)
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
                if g.spaces:
                    return "it pads a value of a kernel with reductions"
            case Concat():
                if g.spaces:
                    return "it joins values of a kernel with reductions"
            case Reshape():
                if g.spaces and not _only_units(t):
                    return "it reshapes a value of a kernel with reductions"
            case _:
                return None
        return None

    def _reduction_problem(
        self, g: Group, t: Tensor, axes: tuple[int | None, ...]
    ) -> Reason | None:
        """Reductions of a kernel run over the same axes, and all else over no other ones. The axis
        that a broadcast adds is open until something with a known axis meets it."""
        spaces = list(g.spaces)
        if isinstance(t.op, Reduce):
            operand = self._operand_axes(g, t.op.operands[0])
            spaces.append(Space.of(operand, t.op.axes))
        if not spaces:
            return None
        if isinstance(t.op, Reduce) and g.has_moves:
            return Reason(t.name, "the kernel moves elements before this reduction")
        known = list(dict.fromkeys(s.named(self.ids) for s in spaces))
        reduced = list(dict.fromkeys(s.reduced for s in known))
        if len(reduced) > 1:
            return Reason(t.name, "the kernel's reductions would run over different axes")
        space = max((s.all for s in known), key=len)
        if any(not s.all <= space for s in known):
            return Reason(t.name, "the kernel's reductions would keep different axes")
        for other, ids in (*g.axes.items(), (t, axes)):
            named = {self.ids.find(a) for a in ids if a is not None}
            if isinstance(other.op, Broadcast) or (other not in g.tensors and other is not t):
                continue
            if not named <= space:
                return Reason(t.name, f"{other.name} has axes that the kernel's reductions lack")
        return None

    # --- axes -----------------------------------------------------------------------------------

    def _operand_axes(self, g: Group, o: Tensor) -> tuple[int | None, ...]:
        if o not in g.axes:
            g.axes[o] = tuple(None if e == Int(1) else self.ids.fresh() for e in o.shape)
        return g.axes[o]

    def _axes(self, g: Group, t: Tensor) -> tuple[int | None, ...] | None:
        """The axis ids of a result; joins those of its operands. None when two axes of one tensor
        would become one."""
        reads = [o for o in t.op.operands if not is_leaf(o)]
        match t.op:
            case Pointwise():
                return self._unify(g, [self._operand_axes(g, o) for o in reads], t)
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
        self, g: Group, reads: list[tuple[int | None, ...]], t: Tensor
    ) -> tuple[int | None, ...] | None:
        if not reads:
            return tuple(self._fresh(e) for e in t.shape)
        for other in reads[1:]:
            for a, b in zip(reads[0], other, strict=True):
                if a is not None and b is not None:
                    self.ids.join(a, b)
        sane = all(_distinct(self.ids, g.axes[o]) for o in g.axes)
        return reads[0] if sane else None

    # --- membership -----------------------------------------------------------------------------

    def _add(self, g: Group, t: Tensor) -> None:
        axes = self._axes(g, t)
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
        if isinstance(t.op, Reduce):
            g.spaces.append(Space.of(g.axes[t.op.operands[0]], t.op.axes))
        if isinstance(t.op, Reshape | Resize | Concat) and not _only_units(t):
            g.has_moves = g.has_moves or any(self.group_of(o) is g for o in t.op.operands)

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


def _choices(producers: list[Group]) -> list[list[Group]]:
    """Which unions of the operands' groups to try: all of them, all but those before the last,
    the last alone."""
    if not producers:
        return []
    out = [producers]
    for k in range(1, len(producers)):
        out.append(producers[k:])
    return out


def _union(groups: list[Group], number: int, ids: AxisIds) -> Group:
    """The groups as one; tensors that several of them read get one set of axes."""
    if len(groups) == 1:
        return groups[0]
    union = Group(number)
    for g in groups:
        for t, axes in g.axes.items():
            for a, b in zip(axes, union.axes.setdefault(t, axes), strict=True):
                if a is not None and b is not None:
                    ids.join(a, b)
        union.tensors += g.tensors
        union.spaces += g.spaces
        union.successors |= g.successors
        union.alone = union.alone or g.alone
        union.has_moves = union.has_moves or g.has_moves
    union.successors -= {g.number for g in groups}
    members = set(union.tensors)
    union.operands = {o: None for g in groups for o in g.operands if o not in members}
    return union


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
