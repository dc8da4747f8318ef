"""What readers compute again from values that lie in memory, so that it is not stored itself.

Which kernels hold which ops is known here. A value that one of them makes for another costs its
bytes twice: they are written and read. Its reader may compute it from what it was made of.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence, Set

from fusewright.fusion.ir import (
    Concat,
    Fusion,
    Input,
    Insert,
    Pointwise,
    Reduce,
    Scan,
    Tensor,
    is_alone,
)
from fusewright.fusion.passes.fold_crops import is_crop
from fusewright.fusion.rematerialisable import is_rematerialisable
from fusewright.fusion.sizes import STORED_TRIPS, nbytes_estimate
from fusewright.host.groups import MAX_RECOMPUTED, has_more_ops, is_view
from fusewright.schedule.heuristics.common import SMALL

Group = tuple[Tensor, ...]

_COMPUTING = (Pointwise, Reduce, Scan)
"""Ops of which a kernel that reads more than it moves has one."""


def read_what_is_stored(
    fusion: Fusion, groups: Sequence[Group], hold_together: Callable[[list[Tensor]], bool]
) -> list[Group]:
    """Lets readers of a function of what is stored anyway compute it again for themselves, and of
    results of reductions, which are small and stored instead of it. `hold_together` says whether
    one kernel holds some ops.

    k1: s = f(x), a = abs(s);  k2: m = max(a);  k3: s / m   ->   k1: s;  k2: m = max(abs(s))
    k1: m = max(x, 0), y = x - m;  k2: y / sum(y, 1)   ->   k1: m;  k2: y = x - m, y / sum(y, 1)
    """
    order, cut = {t: i for i, t in enumerate(fusion.values)}, _CutFusion(fusion, groups)
    for i, g in enumerate(groups):
        for t in g:
            readers = cut.readers(t, i)
            compute = all(any(isinstance(x.op, _COMPUTING) for x in cut[j]) for j in readers)
            is_free = readers and compute and t not in cut.outputs and not _is_piece(t, cut.uses)
            again = _recomputed(t, cut, i) if is_free else []
            wider = {
                j: tuple(sorted(dict.fromkeys((*again, *cut[j])), key=lambda v: order[v]))
                for j in readers
                if again
            }
            if wider and all(hold_together(list(h)) for h in wider.values()):
                for j, h in wider.items():
                    cut[j] = h
                cut[i] = cut.live(i)
    return [g for g in cut.groups if g]


class _CutFusion:
    """A fusion in groups, of which each may be replaced."""

    def __init__(self, fusion: Fusion, groups: Sequence[Group]) -> None:
        self.uses = fusion.uses()
        self.outputs = set(fusion.outputs)
        self.groups = list(groups)
        self._homes: dict[Tensor, set[int]] = {}
        for k, g in enumerate(groups):
            for t in g:
                self._homes.setdefault(t, set()).add(k)

    def __getitem__(self, k: int) -> Group:
        return self.groups[k]

    def __setitem__(self, k: int, group: Group) -> None:
        for t in self.groups[k]:
            self._homes[t].discard(k)
        for t in group:
            self._homes[t].add(k)
        self.groups[k] = group

    def has(self, t: Tensor, k: int) -> bool:
        """Whether a group has a value, or computes it again."""
        return k in self._homes.get(t, ())

    def readers(self, t: Tensor, own: int) -> list[int]:
        """The other groups that read what one of them makes."""
        found = {j for u in self.uses[t] for j in self._homes.get(u, ())}
        return sorted(j for j in found if j != own and not self.has(t, j))

    def is_stored(self, t: Tensor, own: int) -> bool:
        """Whether a value that a group has goes to memory, or comes from there."""
        return t in self.outputs or not self.has(t, own) or bool(self.readers(t, own))

    def live(self, own: int) -> Group:
        """What a group makes that is an output or that another one reads, and what that needs."""
        read = {t for t in self.groups[own] if t in self.outputs or self.readers(t, own)}
        needed = needed_of(dict.fromkeys(self.groups[own]), read)
        return tuple(x for x in self.groups[own] if x in needed)


def _is_piece(t: Tensor, uses: Mapping[Tensor, tuple[Tensor, ...]]) -> bool:
    """Whether a value, or a view of it, becomes a piece of a join, which may be made where it ends
    up: it then makes no trip beside the join's."""
    stack = [t]
    while stack:
        for u in uses[stack.pop()]:
            if isinstance(u.op, Concat | Insert):
                return True
            stack += [u] if is_view(u) else []
    return False


def functions_between(t: Tensor, values: Collection[Tensor]) -> list[Tensor]:
    """The functions of single elements that make a value of some others and of nothing else; none
    where something else makes it, or where it is one of them."""
    found: dict[Tensor, None] = {}
    stack = [t]
    while stack:
        x = stack.pop()
        if x in values or is_rematerialisable(x):
            continue
        if not isinstance(x.op, Pointwise) or is_alone(x):
            return []
        found[x] = None
        if len(found) > MAX_RECOMPUTED:
            return []
        stack.extend(x.op.operands)
    return list(found)


def _recomputed(t: Tensor, cut: _CutFusion, own: int) -> list[Tensor]:
    """The elementwise ops and views of a group between a value and what is stored without it, or
    results of reductions, which are then stored, if these make fewer trips to memory than the value
    does; none otherwise. Of what is cropped first no more than the crop is read."""
    found: dict[Tensor, None] = {}
    trips: dict[Tensor, int] = {}
    stack = [t]
    while stack:
        x = stack.pop()
        if is_rematerialisable(x):
            continue
        if x is not t and cut.is_stored(x, own):
            trips[x] = 1
            continue
        if x is not t and (isinstance(x.op, Reduce) or _is_of_reductions(x, t)):
            trips[x] = STORED_TRIPS
            continue
        is_cheap = isinstance(x.op, Pointwise) or is_view(x)
        if not (is_cheap and cut.has(x, own)) or is_alone(x):
            return []
        found[x] = None
        if has_more_ops(found, MAX_RECOMPUTED):
            return []
        if is_crop(x) and cut.is_stored(x.op.operands[0], own):
            trips[x] = 1
            continue
        stack.extend(x.op.operands)
    if all(isinstance(x.op, Input) or _crops_input(x) for x in trips):
        return []
    own_nbytes = nbytes_estimate(t)
    large = [n * k for x, k in trips.items() if (n := nbytes_estimate(x)) * SMALL > own_nbytes]
    return list(found) if sum(large) < STORED_TRIPS * own_nbytes else []


def _is_of_reductions(x: Tensor, t: Tensor) -> bool:
    """Whether a function of results of reductions, and of nothing else, is small beside a value: it
    is stored in place of them, as each of its readers would compute it for every element of `t`.

    k1: v = sum(x * x), s = sqrt(v / n);  k2: x / s   ->   stored is s, not v
    """
    if not isinstance(x.op, Pointwise) or nbytes_estimate(x) * SMALL > nbytes_estimate(t):
        return False
    stack, reduced, seen = [x], 0, 0
    while stack:
        v = stack.pop()
        if isinstance(v.op, Reduce):
            reduced += nbytes_estimate(v)
        elif isinstance(v.op, Pointwise) or is_view(v):
            seen += 1
            stack += [o for o in v.op.operands if not is_rematerialisable(o)]
        else:
            return False
        if seen > MAX_RECOMPUTED:
            return False
    return 0 < nbytes_estimate(x) <= reduced


def _crops_input(t: Tensor) -> bool:
    return is_crop(t) and isinstance(t.op.operands[0].op, Input)


def needed_of(members: Mapping[Tensor, None], read: Set[Tensor]) -> list[Tensor]:
    """The members that are read elsewhere, and those that they are computed from."""
    known = set(members)
    found: dict[Tensor, None] = {}
    stack = [t for t in members if t in read]
    while stack:
        t = stack.pop()
        if t in known and t not in found:
            found[t] = None
            stack.extend(t.op.operands)
    return list(found)
