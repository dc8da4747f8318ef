"""The arena: intermediates of a program packed into one piece of memory.

Tensors whose sizes are known are strips in time and address: first fit under several orders, the
lowest peak wins; where that is above what must live at one time, those at the peak are placed
first. Tensors of symbolic size share slots where one provably fits into the other, and maybe with
some of known size; slots follow the strips that they may not share. Or each lies on top of those
that it meets, where it is known which of them reaches highest. Source of the orders: Pisarchyk and
Lee, "Efficient Memory Management for Deep Neural Net Inference" (2020): by size, by breadth; and
program order, as TFLite and IREE do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, replace

from fusewright.core.atoms import maximum
from fusewright.core.conditions import less_equal, prove
from fusewright.core.expr import ZERO, Expr, Int, as_expr, ceildiv, constant_value
from fusewright.core.substitution import estimate

ARENA_ALIGNMENT = 256


@dataclass(frozen=True, slots=True)
class Lifetime:
    """One tensor: its bytes, and the launches that make it and use it last (both included)."""

    name: str
    nbytes: Expr
    first: int
    last: int

    def meets(self, other: Lifetime) -> bool:
        """Whether there is a launch at which both are alive."""
        return self.first <= other.last and other.first <= self.last


@dataclass(frozen=True, slots=True)
class Arena:
    """Where each tensor lies (bytes, in the order given), the bytes of all, the least that any
    packing of these lifetimes needs, and the name of the order that won."""

    offsets: tuple[Expr, ...]
    nbytes: Expr
    lower_bound: Expr
    order: str


Conflicts = Callable[[int, int], bool]


def pack(tensors: Sequence[Lifetime], conflicts: Conflicts | None = None) -> Arena:
    """Places every tensor; two that conflict (by default: whose lifetimes meet) share no byte."""

    def meet(a: int, b: int) -> bool:
        return tensors[a].meets(tensors[b])

    test = conflicts or meet
    fixed = [i for i, t in enumerate(tensors) if isinstance(t.nbytes, Int)]
    slots = _slots(tensors, [i for i in range(len(tensors)) if i not in fixed], test)
    best = _placed(tensors, fixed, slots, test)
    if slots:
        rest, shared = _shared(tensors, fixed, slots, test)
        others = [_placed(tensors, fixed, slots, test, beside=True)]
        others += [_placed(tensors, rest, shared, test, beside=b) for b in (False, True)]
        stacks = [_stacked(tensors, order, test) for order in _orders_of_stacks(tensors)]
        others += [x for x in stacks if x is not None]
        best = min((best, *others), key=lambda x: estimate(x.nbytes))
    return replace(best, lower_bound=lower_bound(tensors))


def aligned(nbytes: Expr) -> Expr:
    """The bytes rounded up to the arena's alignment."""
    return ceildiv(nbytes, ARENA_ALIGNMENT) * ARENA_ALIGNMENT


def lower_bound(tensors: Sequence[Lifetime]) -> Expr:
    """The most bytes alive at one launch."""
    most: Expr = ZERO
    for step in sorted({t.first for t in tensors}):
        live = [aligned(t.nbytes) for t in tensors if t.first <= step <= t.last]
        most = maximum(most, sum(live, start=as_expr(0)))
    return most


def _placed(
    tensors: Sequence[Lifetime],
    fixed: Sequence[int],
    slots: Sequence[_Slot],
    test: Conflicts,
    *,
    beside: bool = False,
) -> Arena:
    """Tensors of known size as strips, slots above those that conflict with a tensor of one; with
    `beside` these strips lie lowest."""
    near = {i for i in fixed if any(test(i, j) for slot in slots for j in slot.members)}
    order, strips, peak = _pack_fixed(tensors, fixed, test, near if beside else set())
    offsets: dict[int, Expr] = {i: Int(o) for i, o in strips.items()}
    end = as_expr(max((strips[i] + _known_size(tensors[i]) for i in near), default=0))
    for slot in slots:
        offsets |= dict.fromkeys(slot.members, end)
        end = end + aligned(slot.room)
    total = end if prove(less_equal(Int(peak), end)) is True else maximum(Int(peak), end)
    return Arena(tuple(offsets[i] for i in range(len(tensors))), total, ZERO, order)


# --- known sizes --------------------------------------------------------------------------------


def _known_size(t: Lifetime) -> int:
    """The bytes of a tensor of known size, aligned."""
    return constant_value(aligned(t.nbytes)) or 0


def _pack_fixed(
    tensors: Sequence[Lifetime], chosen: Sequence[int], test: Conflicts, low: Set[int]
) -> tuple[str, dict[int, int], int]:
    """The winning order, the offsets, the peak. Those of `low` come first in every order."""
    sizes = {i: _known_size(tensors[i]) for i in chosen}

    def breadth(i: int) -> int:
        steps = {t.first for t in tensors if t.meets(tensors[i])}
        return max(
            sum(sizes[j] for j in chosen if tensors[j].first <= s <= tensors[j].last) for s in steps
        )

    orders: list[tuple[str, Callable[[int], tuple[int, ...]]]] = [
        ("program", lambda i: (i,)),
        ("size", lambda i: (-sizes[i], tensors[i].first, i)),
        ("duration", lambda i: (tensors[i].first - tensors[i].last, -sizes[i], i)),
        ("area", lambda i: (sizes[i] * (tensors[i].first - tensors[i].last - 1), i)),
    ]
    if len(chosen) <= MAX_BREADTH:
        orders.append(("breadth", lambda i: (-breadth(i), -sizes[i], i)))
    least = constant_value(lower_bound([tensors[i] for i in chosen])) or 0
    best: tuple[str, dict[int, int], int] | None = None
    for name, key in orders:
        by_key = sorted(chosen, key=key)
        offsets, peak = _first_fit(sorted(by_key, key=lambda i: i not in low), sizes, test)
        if best is None or peak < best[2]:
            best = (name, offsets, peak)
        if peak == least:
            break
    assert best is not None
    if best[2] == least or low or len(chosen) > MAX_BREADTH:
        return best
    return _peak_first(best, sizes, test, least)


MAX_BREADTH = 256
"""Tensors up to which the order by breadth, quadratic in their number, is tried, and orders in
which those at the peak come first."""
MAX_PEAKS = 32
"""Orders of those. Of 1,200 random programs 28 were above the bound without them, 14 after 8 of
them, 13 after 32 and after 128."""


def _peak_first(
    best: tuple[str, dict[int, int], int], sizes: dict[int, int], test: Conflicts, least: int
) -> tuple[str, dict[int, int], int]:
    """What is left at the peak finds no gap any more: it is placed first, then what is at the peak
    after that, and so on. The best of these packings and the one given."""
    _, offsets, peak = best
    order = sorted(offsets, key=lambda i: (offsets[i], -sizes[i], i))
    for _ in range(MAX_PEAKS):
        top = [i for i in order if offsets[i] + sizes[i] == peak]
        order = [*top, *(i for i in order if i not in top)]
        offsets, peak = _first_fit(order, sizes, test)
        if peak < best[2]:
            best = ("peak", offsets, peak)
        if peak == least:
            break
    return best


def _first_fit(
    order: Sequence[int], sizes: dict[int, int], test: Conflicts
) -> tuple[dict[int, int], int]:
    """Places in order, each in the smallest gap that holds it among what it conflicts with."""
    offsets: dict[int, int] = {}
    for i in order:
        taken = sorted((offsets[j], offsets[j] + sizes[j]) for j in offsets if test(i, j))
        best, best_gap, end = None, None, 0
        for low, high in taken:
            gap = low - end
            if gap >= sizes[i] and (best_gap is None or gap < best_gap):
                best, best_gap = end, gap
            end = max(end, high)
        offsets[i] = end if best is None else best
    return offsets, max((offsets[i] + sizes[i] for i in offsets), default=0)


# --- symbolic sizes -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Slot:
    """Room for the largest of some tensors, none of which conflict."""

    room: Expr
    members: tuple[int, ...]


def _slots(tensors: Sequence[Lifetime], chosen: Sequence[int], test: Conflicts) -> list[_Slot]:
    """Tensors of symbolic size, those together that follow each other and of which the larger one
    is known."""
    slots: list[_Slot] = []
    for i in chosen:
        size = tensors[i].nbytes
        for k, slot in enumerate(slots):
            larger = _larger(slot.room, size)
            if larger is not None and not any(test(i, j) for j in slot.members):
                slots[k] = _Slot(larger, (*slot.members, i))
                break
        else:
            slots.append(_Slot(size, (i,)))
    return slots


def _shared(
    tensors: Sequence[Lifetime], fixed: Sequence[int], slots: Sequence[_Slot], test: Conflicts
) -> tuple[list[int], list[_Slot]]:
    """Tensors of known size in slots that hold them at any size of the call; what is left, and the
    slots."""
    rest: list[int] = []
    out = list(slots)
    for i in fixed:
        size = aligned(tensors[i].nbytes)
        for k, slot in enumerate(out):
            fits = prove(less_equal(size, aligned(slot.room))) is True
            if fits and not any(test(i, j) for j in slot.members):
                out[k] = _Slot(slot.room, (*slot.members, i))
                break
        else:
            rest.append(i)
    return rest, out


def _orders_of_stacks(tensors: Sequence[Lifetime]) -> list[list[int]]:
    """The tensors in program order, and those first that are probably large."""
    program = list(range(len(tensors)))
    return [program, sorted(program, key=lambda i: (-estimate(tensors[i].nbytes), i))]


def _stacked(tensors: Sequence[Lifetime], order: Sequence[int], test: Conflicts) -> Arena | None:
    """Each tensor below all those in front of it with which it conflicts, where it fits there, else
    on top of them, as high as the others happen to reach. None where it is not known which of those
    reaches highest."""
    offsets: dict[int, Expr] = {}
    total: Expr = ZERO
    for i in order:
        size = aligned(tensors[i].nbytes)
        taken = [
            (offsets[j], offsets[j] + aligned(tensors[j].nbytes)) for j in offsets if test(i, j)
        ]
        start: Expr | None = ZERO
        if not all(prove(less_equal(size, low)) is True for low, _ in taken):
            start = _highest([high for _, high in taken])
        if start is None:
            return None
        offsets[i] = start
        total = maximum(total, start + size)
    return Arena(tuple(offsets[i] for i in range(len(tensors))), total, ZERO, "stack")


def _highest(ends: Sequence[Expr]) -> Expr | None:
    """The largest of some ends, where it is known which that is."""
    found: Expr | None = ZERO
    for end in ends:
        found = None if found is None else _larger(found, end)
    return found


def _larger(a: Expr, b: Expr) -> Expr | None:
    if prove(less_equal(b, a)) is True:
        return a
    return b if prove(less_equal(a, b)) is True else None
