"""Dispatch formation: any fusion is cut into groups that one kernel can run.

Greedy, in program order, in time proportional to the ops: an op joins the groups of its operands
when the facts kept for them accept it, else it starts a new one and the reason is kept. Views of
values made elsewhere (broadcasts, permutations, slices) are copied into every group that reads
through them. Groups are numbered so that values flow from lower to higher numbers only.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass
from itertools import islice, pairwise

from fusewright.axes.classes import AxisGraph
from fusewright.core.expr import Int
from fusewright.errors import InternalError, ScheduleError
from fusewright.fusion.ir import (
    Alone,
    Concat,
    Fusion,
    Input,
    Insert,
    MatMul,
    OwnKernel,
    Tensor,
)
from fusewright.fusion.passes.fold_crops import is_crop
from fusewright.fusion.rematerialisable import is_rematerialisable
from fusewright.fusion.sizes import numel_estimate
from fusewright.host.groups import (
    MAX_OPERANDS,
    MAX_OPS,
    FusionGroup,
    Reason,
    add,
    closing_problem,
    has_more_ops,
    is_view,
    meeting_problem,
    own_problem,
    union,
)
from fusewright.host.products import is_reading, view_of
from fusewright.host.read_stored import (
    functions_between,
    needed_of,
    read_what_is_stored,
)
from fusewright.host.recomputing import Recomputing
from fusewright.host.regroupings import MAX_REGROUPINGS, Regrouped, regrouped
from fusewright.host.shared_loops import (
    form_of_sums,
    loop_problem,
    relate_reductions,
    runs_along,
    walk_problem,
)

MAX_VISITS = 64
"""Groups that are looked at before a cycle is assumed: formation stays linear in the ops."""
MAX_SUMS = 4
"""Reductions of tensors that have nothing to do with each other in a kernel: a thread holds a
vector of 16 bytes and as many sums for each, of four the 32 registers that 2,048 threads of a
multiprocessor have."""


@dataclass(frozen=True, slots=True)
class Formation:
    """The groups in execution order, each with its tensors, and why it is not larger."""

    groups: tuple[tuple[Tensor, ...], ...]
    reasons: tuple[Reason, ...]


def form(fusion: Fusion, shortest: int = 1, closed: Set[Tensor] = frozenset()) -> Formation:
    """Cuts a decomposed fusion into groups, of which none walks over rows of fewer elements than
    `shortest`, and none has more elements than a `closed` value behind that."""
    former = _Former(fusion, shortest, closed)
    for t in fusion.values:
        former.place(t)
    former.join_siblings()
    return former.result()


class _Former:
    def __init__(self, fusion: Fusion, shortest: int, closed: Set[Tensor]) -> None:
        self.fusion = fusion
        self.shortest = shortest
        self.closed = closed
        self.order = {t: i for i, t in enumerate(fusion.values)}
        self.uses = fusion.uses()
        self.graph = AxisGraph()
        self.groups: dict[int, FusionGroup] = {}
        self.home: dict[Tensor, int] = {}
        self.outputs = frozenset(fusion.outputs)
        self.merged: dict[int, int] = {}
        self.reasons: list[Reason] = []
        self.views: dict[Tensor, Regrouped] = {}
        self.own: list[Tensor] = []
        self.count = 0

    # --- placing --------------------------------------------------------------------------------

    def place(self, t: Tensor) -> None:
        """Puts one op, with the views it reads through, into the union of its operands' groups,
        or of as many of them as accept it."""
        if isinstance(t.op, Input) or is_rematerialisable(t):
            return
        if is_view(t) and t not in self.outputs and self._is_near(t):
            return
        if isinstance(t.op, Alone):
            self._place_own(t, t.op)
            return
        if isinstance(t.op, Insert):
            self._alone(t)
            return
        if self._join_makers(t, slice(1)):
            return
        if isinstance(t.op, Concat):
            self._join_pieces(t)
            self._store_parts(t)
        if self._join_makers(t, slice(1, None)):
            return
        if not self._makes(t):
            self._store_multiplied(t)
            if not self._makes(t):
                self._alone(t)

    def _makes(self, t: Tensor) -> bool:
        """Whether an op, with the views that it reads through, is a kernel. A join of what one
        kernel makes computes nothing of it again: its pieces are stored where they end up."""
        views, sources = self._views(t)
        makers = {self.group_of(o) for o in sources}
        if isinstance(t.op, Concat) and len(makers) == 1 < len(sources) and None not in makers:
            return self._try([], [], [*views, t], self._next()) is None
        return self._try_reading([], [], sources, [*views, t], self._next()) is None

    def _store_multiplied(self, t: Tensor) -> None:
        """Stores the operands of a product that are no views by strides, in kernels of their own,
        so that it reads the other one where it lies.

        k1: flip(a) @ b[1:]   ->   k1: c = flip(a);  k2: c @ b[1:]
        """
        if not isinstance(t.op, MatMul):
            return
        for o in dict.fromkeys(t.op.operands):
            is_far = o not in self.home and is_reading(o) and view_of(o) is None
            if is_far and not self._makes(o):
                self._alone(o)

    def _join_makers(self, t: Tensor, choices: slice) -> bool:
        """Puts an op into a union of the groups that make its operands, of these choices of them;
        whether one accepts it."""
        views, sources = self._views(t)
        producers = list(dict.fromkeys(g for o in sources if (g := self.group_of(o)) is not None))
        producers.sort(key=lambda g: g.number)
        for chosen in _choices(producers)[choices]:
            if self._chains(t, chosen, producers):
                continue
            problem = self._try_reading(chosen, producers, sources, [*views, t])
            if problem is None:
                return True
            self.reasons.append(Reason(t.name, problem))
        return False

    def _place_own(self, t: Tensor, op: Alone) -> None:
        """Puts a result of a kernel of the program's own beside the other results of its call."""
        found = [self.group_of(o) for o in self.own if not own_problem([o, t])]
        chosen = [g for g in found[:1] if g is not None]
        self.own.append(t)
        makers = [g for o in op.operands if (g := self.group_of(o)) is not None]
        number = None if chosen else self._next()
        problem = self._try(chosen, list(dict.fromkeys(makers)), [t], number)
        if problem is not None:
            raise ScheduleError(f"{t.name}: {op.fn} cannot be one kernel: {problem}")
        if isinstance(op, OwnKernel):
            rule = f"{op.fn} is a kernel of its own, as the program asks"
            self.reasons.append(Reason(t.name, rule))

    def _chains(
        self, t: Tensor, chosen: Sequence[FusionGroup], producers: Sequence[FusionGroup]
    ) -> bool:
        """Whether a scalar would make the chosen kernels wait for one that waits for a scalar
        itself. The sums of a list of tensors, added up one by one, do not need each other:

            k1: s1 = sum(g1);  k2: s2 = sum(g2);  k3: s3 = sum(g3), s1 + s2 + s3
        """
        if any(e != Int(1) for e in t.shape):
            return False
        return any(
            all(e == Int(1) for e in o.shape) and self.group_of(o) not in (None, p)
            for p in producers
            if p not in chosen
            for o in p.sources
        )

    def _join_pieces(self, join: Tensor) -> None:
        """Joins kernels that make pieces of a join and read the same tensor, if one reduces: none
        that reduces makes the join, and one that only computes by element would take it without.

            k1: a = 2 * x;  k2: b = softmax(x);  k3: concat(a, b)   ->   k1: a, b;  k2: concat(a, b)
        """
        makers = [g for o in join.op.operands if (g := self._maker(o)) is not None]
        for a, b in pairwise(dict.fromkeys(sorted(makers, key=lambda g: g.number))):
            shared = next((o for o in a.sources if o in b.sources and o.shape), None)
            if shared is not None and bool(a.reductions) != bool(b.reductions):
                self._join(a, b, shared)

    def _maker(self, t: Tensor) -> FusionGroup | None:
        """The group that makes a value, or what it is a view of."""
        while t not in self.home and is_view(t):
            (t,) = t.op.operands
        return self.group_of(t)

    def _store_parts(self, join: Tensor) -> None:
        """Lets kernels store the parts that joins read of values that nobody else reads: these can
        then be made where they end up, and the value needs no memory.

        k1: s = softmax(x);  k2: concat(s[:2], y, s[8:])   ->   k1: s[:2], s[8:];  k2: concat(..)
        """
        for o in join.op.operands:
            g = self.group_of(o.op.operands[0]) if is_crop(o) and o not in self.home else None
            if g is not None and self._is_read_in_parts(o.op.operands[0], g):
                self._try([g], [g], [o])

    def _is_read_in_parts(self, t: Tensor, g: FusionGroup) -> bool:
        """Whether other groups read a value in parts alone, for joins, and no element twice."""
        parts = [u for u in self.uses[t] if u not in g.members or is_crop(u)]
        joined = all(
            is_crop(u) and (u in g.members or all(isinstance(v.op, Concat) for v in self.uses[u]))
            for u in parts
        )
        size = sum(numel_estimate(u.shape) for u in parts)
        return joined and t not in self.outputs and size <= numel_estimate(t.shape)

    def _is_near(self, view: Tensor) -> bool:
        """Whether a view lies fewer regroupings behind what is stored than a kernel may undo. One
        that does not is stored itself."""
        found = regrouped(view, self.views)
        if found.count == MAX_REGROUPINGS:
            return False
        self.views[view] = found
        return True

    def _alone(self, t: Tensor) -> None:
        """A kernel for one op and nothing else, its views made by kernels of their own. Raises
        InternalError for an op that no kernel can hold: without one its value would have no
        memory."""
        for o in t.op.operands:
            if not is_rematerialisable(o) and not isinstance(o.op, Input) and o not in self.home:
                self._alone(o)
        problem = self._try([], [], [t], self._next())
        if problem is not None:
            raise InternalError(f"no kernel can hold {t.name} alone: {problem}")

    def _try_reading(
        self,
        chosen: list[FusionGroup],
        producers: list[FusionGroup],
        sources: list[Tensor],
        items: list[Tensor],
        number: int | None = None,
    ) -> str | None:
        """Adds ops to the chosen groups as one, which then read what other groups make, or repeat
        it where that reads less. Tells what forbids it."""
        far = [o for o in sources if (g := self.group_of(o)) is not None and g not in chosen]
        between = self._between(chosen, far)
        if between and self._try(chosen, producers, [*between, *items], number) is None:
            return None
        near = {*sources, *(x for g in chosen for x in g.sources)} if far else set[Tensor]()
        reader = Recomputing(self.outputs, self.group_of, near)
        again = [t for o in far for t in reader.of(o)]
        if again:
            left = [o for t in (*again, *items) for o in t.op.operands if o not in again]
            read = dict.fromkeys(p for o in left if (p := self.group_of(o)) is not None)
            needed = [p for p in (*producers, *read) if p in chosen or p in read]
            if self._try(chosen, needed, self._in_order([*again, *items]), number) is None:
                return None
        return self._try(chosen, producers, items, number)

    def _between(self, chosen: Sequence[FusionGroup], far: Sequence[Tensor]) -> list[Tensor]:
        """The functions of single elements by which the chosen groups read, in place of some values
        of another one, what they then read, too: they run along the same axes.

        k1: s, a = abs(s);  k2: m = max(a);  k3: s / m   ->   k1: s;  k2: m = max(abs(s)), s / m
        """
        found: dict[Tensor, None] = {}
        reducing = [g for g in chosen if g.reductions]
        for read in (o for g in reducing for o in g.sources if self.group_of(o) not in (None, g)):
            steps = functions_between(read, far)
            found |= dict.fromkeys(steps)
        return self._in_order(list(found))

    def _in_order(self, tensors: list[Tensor]) -> list[Tensor]:
        return sorted(dict.fromkeys(tensors), key=lambda v: self.order[v])

    def _views(self, t: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """The views between an op and the values that are stored, operands first, and those."""
        views: dict[Tensor, None] = {}
        sources: dict[Tensor, None] = {}
        stack = list(t.op.operands)
        while stack:
            o = stack.pop()
            if is_rematerialisable(o):
                continue
            if o in self.home or isinstance(o.op, Input):
                sources[o] = None
            elif o not in views:
                views[o] = None
                stack.extend(o.op.operands)
        return sorted(views, key=lambda v: self.order[v]), sorted(
            sources, key=lambda v: self.order[v]
        )

    def _try(
        self,
        chosen: list[FusionGroup],
        producers: list[FusionGroup],
        items: list[Tensor],
        number: int | None = None,
    ) -> str | None:
        """Adds ops to the chosen groups as one, or tells what forbids it and changes nothing."""
        others = [p.number for p in producers if p not in chosen]
        if number is None:
            number = self._number(chosen)
        if number is None or any(n > number for n in others):
            if any(self._followers(g, chosen) for g in chosen):
                return "another kernel stands between its operands"
            number = self._next()
        mark = self.graph.mark()
        g = self._joined(chosen, number, items)
        if isinstance(g, str):
            self.graph.undo(mark)
            return g
        self.graph.keep()
        self._replace(chosen, g)
        self.home[items[-1]] = number
        for o in g.sources:
            p = self.group_of(o)
            if p is not None:
                p.successors.add(number)
        return None

    def _joined(
        self, chosen: list[FusionGroup], number: int, items: list[Tensor]
    ) -> FusionGroup | str:
        """The chosen groups as one, with further ops; or the rule that forbids it."""
        g = union(chosen, number, self.graph)
        if isinstance(g, str):
            return g
        new = [t for t in items if t not in g.members]
        for t in new:
            if (problem := add(g, t)) is not None:
                return problem
        problem = meeting_problem(g, chosen) or closing_problem(g, self.closed)
        if problem is not None:
            return problem
        if any(isinstance(t.op, Alone) for t in islice(g.members, 1)):
            return g
        relate_reductions(g)
        return loop_problem(g, chosen, new) or walk_problem(g, self.shortest) or g

    def _replace(self, old: list[FusionGroup], new: FusionGroup) -> None:
        for g in old:
            if g.number != new.number:
                self.merged[g.number] = new.number
                del self.groups[g.number]
        self.groups[new.number] = new

    # --- order ----------------------------------------------------------------------------------

    def group_of(self, t: Tensor) -> FusionGroup | None:
        """The group that makes a value; None for inputs, literals and views."""
        number = self.home.get(t)
        return None if number is None else self.groups[self._current(number)]

    def _current(self, number: int) -> int:
        while number in self.merged:
            number = self.merged[number]
        return number

    def _next(self) -> int:
        """A number after all others."""
        self.count += 1
        return self.count - 1

    def _followers(self, g: FusionGroup, chosen: list[FusionGroup]) -> list[int]:
        """The groups, other than the chosen ones, that read what a group makes."""
        mine = {c.number for c in chosen}
        return [n for s in g.successors if (n := self._current(s)) not in mine]

    def _number(self, chosen: list[FusionGroup]) -> int | None:
        """The place of the union in the order: the last one's when nothing stands between, the
        first one's when the others need nothing later; None when neither."""
        if len(chosen) == 1:
            return chosen[0].number
        last, first = chosen[-1], chosen[0]
        if not any(self._reaches(g, last) for g in chosen[:-1]):
            return last.number
        needs = [p for g in chosen[1:] for o in g.sources if (p := self.group_of(o)) is not None]
        if all(p in chosen or p.number <= first.number for p in needs):
            return first.number
        return None

    def _reaches(self, p: FusionGroup, g: FusionGroup) -> bool:
        """Whether values flow from p to g through a third group (True when not soon known), or
        from p to a group before g that could then stand behind its own operands."""
        stack = [self._current(s) for s in p.successors]
        seen: set[int] = set()
        while stack:
            n = stack.pop()
            if n in (g.number, p.number) or n in seen:
                continue
            if n < g.number:
                return True
            seen.add(n)
            if len(seen) > MAX_VISITS:
                return True
        return False

    # --- siblings -------------------------------------------------------------------------------

    def join_siblings(self) -> None:
        """Joins kernels that read the same tensor, which is then read once; where one needs the
        other, if its reductions do not: what came between relates their axes, as a * b does here.
        Neighbours in program order are tried, each pair once.

            k1: s = sum(a * a);  k2: sum(a * b) / (s * sum(b * b))
        """
        readers: dict[Tensor, list[int]] = {}
        for number, g in sorted(self.groups.items()):
            for o in g.sources:
                readers.setdefault(o, []).append(number)
        for t, numbers in readers.items():
            for a, b in pairwise(numbers):
                first, second = sorted((self._current(a), self._current(b)))
                if first != second and t.shape:
                    self._join(self.groups[first], self.groups[second], t)
        self._join_sums()

    def _join_sums(self) -> None:
        """Joins kernels of reductions of equal sizes that neither share a tensor nor need each
        other: they are launched as one."""
        alike: dict[object, list[int]] = {}
        for number, g in sorted(self.groups.items()):
            form = form_of_sums(g)
            if form is not None:
                alike.setdefault(form, []).append(number)
        for numbers in alike.values():
            for a, b in pairwise(numbers):
                first, second = sorted((self._current(a), self._current(b)))
                spaces = sum(len(self.groups[n].reductions) for n in (first, second))
                if first != second and spaces <= MAX_SUMS:
                    self._join(self.groups[first], self.groups[second], None)

    def _join(self, a: FusionGroup, b: FusionGroup, shared: Tensor | None) -> None:
        if has_more_ops([*a.members, *b.members], MAX_OPS):
            return
        is_read = b.number in {self._current(s) for s in a.successors}
        number = None if is_read and shared is None else self._number([a, b])
        if number is None:
            return
        mark = self.graph.mark()
        g = self._joined([a, b], number, [])
        if (
            isinstance(g, str)
            or len(g.sources) > MAX_OPERANDS
            or (shared is not None and not runs_along(g, shared))
            or (is_read and _depth_of(g) > max(map(_depth_of, (a, b))))
        ):
            self.graph.undo(mark)
            return
        self.graph.keep()
        self._replace([a, b], g)

    def result(self) -> Formation:
        """What was found. An op that every reader computes again for itself is in no kernel, and
        what only such ops held together is several."""
        read = set(self.fusion.outputs)
        groups: list[tuple[Tensor, ...]] = []
        for _, g in sorted(self.groups.items(), reverse=True):
            live = self._in_order(needed_of(g.members, read))
            whole = len(live) == len(g.members) or self._hold_together(live)
            groups[:0] = [tuple(live)] if whole and live else connected(live)
            read.update(o for t in live for o in t.op.operands if o not in g.members)
        loose = dict.fromkeys(t for t in self.fusion.outputs if t not in self.home)
        groups = read_what_is_stored(self.fusion, groups, self._hold_together)
        return Formation((*groups, *((t,) for t in loose)), tuple(dict.fromkeys(self.reasons)))

    def _hold_together(self, members: list[Tensor]) -> bool:
        """Whether one kernel holds some ops, and nothing beside them."""
        mark = self.graph.mark()
        found = self._joined([], self._next(), members)
        self.graph.undo(mark)
        return isinstance(found, FusionGroup)


def connected(tensors: Sequence[Tensor]) -> list[tuple[Tensor, ...]]:
    """The tensors, apart into those that operands among them connect, each part in order."""
    order = {t: i for i, t in enumerate(tensors)}
    parts: list[list[Tensor]] = []
    for t in tensors:
        near = [p for p in parts if any(o in p for o in t.op.operands)]
        parts = [p for p in parts if p not in near]
        parts.append([t, *(x for p in near for x in p)])
    return [tuple(sorted(p, key=lambda t: order[t])) for p in parts]


def _choices(producers: list[FusionGroup]) -> list[list[FusionGroup]]:
    """Which unions of the operands' groups to try: all of them, then fewer, the last ones, then
    each of the others alone."""
    alone = [[p] for p in reversed(producers[:-1])] if len(producers) > 1 else []
    return [producers[k:] for k in range(len(producers))] + alone


def _depth_of(g: FusionGroup) -> int:
    """How many reductions of a group stand one after the other."""
    return max(g.depths.values(), default=0)
