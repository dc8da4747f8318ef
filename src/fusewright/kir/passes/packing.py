"""Offsets for buffers in one memory, of the smallest total size.

The classic problem of dynamic storage allocation, with one addition: some pairs may overlap only
at certain distances. Exact by branch and bound up to `MAX_EXACT` buffers, best fit beyond.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

MAX_EXACT = 12
_MAX_NODES = 2_000
"""Steps of the search where pairs overlap at certain distances only."""


class Overlap(Enum):
    """Whether two buffers may share bytes: always, never, or at some distances."""

    FREE = "free"
    NEVER = "never"
    SOMETIMES = "sometimes"


@dataclass(frozen=True, slots=True)
class Item:
    """A buffer: its size, and what its offset must be a multiple of (a power of two)."""

    nbytes: int
    alignment: int


@dataclass(frozen=True, slots=True, eq=False)
class Rules:
    """`overlap[i][j]` for every pair; for SOMETIMES, `fits(i, j, d)` says whether `j` may lie `d`
    bytes after `i`, and `distances(i, j)` lists the `d` worth trying."""

    overlap: Sequence[Sequence[Overlap]]
    fits: Callable[[int, int, int], bool]
    distances: Callable[[int, int], Sequence[int]]


def pack(items: Sequence[Item], rules: Rules) -> tuple[int, ...]:
    """An offset for each item, in bytes from an aligned base."""
    best = _best_fit(items, rules)
    if len(items) > MAX_EXACT:
        return best
    bound = lower_bound(items, rules)
    if total_nbytes(items, best) == bound:
        return best
    best = _search_stacked(items, rules, best, bound, free={Overlap.FREE})
    if not any(o is Overlap.SOMETIMES for row in rules.overlap for o in row):
        return best
    relaxed = _search_stacked(items, rules, best, bound, free={Overlap.FREE, Overlap.SOMETIMES})
    return _Search(items, rules, best, total_nbytes(items, relaxed)).run()


def total_nbytes(items: Sequence[Item], offsets: Sequence[int]) -> int:
    """Bytes from the base to the end of the last item."""
    return max((o + i.nbytes for i, o in zip(items, offsets, strict=True)), default=0)


def align_up(n: int, alignment: int) -> int:
    """The next multiple of the alignment."""
    return -(-n // alignment) * alignment


def lower_bound(items: Sequence[Item], rules: Rules) -> int:
    """Bytes that any packing needs: those of the largest set in which no two may overlap."""
    best = 0
    for clique in _cliques(len(items), rules):
        unit = min(items[i].alignment for i in clique)
        padded = [align_up(items[i].nbytes, unit) for i in clique]
        slack = max(p - items[i].nbytes for p, i in zip(padded, clique, strict=True))
        best = max(best, sum(padded) - slack)
    return best


def _cliques(n: int, rules: Rules) -> Iterator[list[int]]:
    stack = [([i], list(range(i + 1, n))) for i in range(n)]
    while stack:
        clique, rest = stack.pop()
        joined = [j for j in rest if rules.overlap[clique[-1]][j] is Overlap.NEVER]
        if not joined:
            yield clique
        stack.extend(([*clique, j], [k for k in joined if k > j]) for j in joined)


# --- best fit -----------------------------------------------------------------------------------


def _best_fit(items: Sequence[Item], rules: Rules) -> tuple[int, ...]:
    """The best of three orders, each item at its lowest place."""
    n = range(len(items))
    orders = (
        sorted(n, key=lambda i: (-items[i].nbytes, i)),
        sorted(n, key=lambda i: (-items[i].alignment, -items[i].nbytes, i)),
        list(n),
    )
    packed = [_place_lowest(items, rules, order) for order in orders]
    return min(packed, key=lambda offsets: total_nbytes(items, offsets))


def _place_lowest(items: Sequence[Item], rules: Rules, order: Sequence[int]) -> tuple[int, ...]:
    placed: dict[int, int] = {}
    for i in order:
        placed[i] = next(places(i, placed, items, rules))
    return tuple(placed[i] for i in range(len(items)))


def places(i: int, placed: dict[int, int], items: Sequence[Item], rules: Rules) -> Iterator[int]:
    """Offsets for item `i` beside those placed, lowest first: the base, on top of another, or at
    a distance at which the two may overlap."""
    step = items[i].alignment
    floors = {0}
    candidates: set[int] = set()
    for j, offset in placed.items():
        if rules.overlap[i][j] is Overlap.FREE:
            continue
        floors.add(align_up(offset + items[j].nbytes, step))
        if rules.overlap[i][j] is Overlap.SOMETIMES:
            candidates.update(offset + d for d in rules.distances(j, i))
    for k in range(len(items)):
        if k not in placed and rules.overlap[i][k] is Overlap.SOMETIMES:
            wide = items[k].alignment
            ahead = rules.distances(i, k) if wide > step else ()
            candidates.update(align_up(f + d, wide) - d for f in floors for d in ahead)
    for o in sorted(floors | {c for c in candidates if c >= 0 and c % step == 0}):
        if all(_may_stand(i, o, j, p, items, rules) for j, p in placed.items()):
            yield o


def _may_stand(
    i: int, offset: int, j: int, other: int, items: Sequence[Item], rules: Rules
) -> bool:
    if offset >= other + items[j].nbytes or other >= offset + items[i].nbytes:
        return True
    match rules.overlap[i][j]:
        case Overlap.FREE:
            return True
        case Overlap.NEVER:
            return False
        case Overlap.SOMETIMES:
            return rules.fits(j, i, offset - other)


# --- exact --------------------------------------------------------------------------------------


def _search_stacked(
    items: Sequence[Item],
    rules: Rules,
    best: tuple[int, ...],
    bound: int,
    *,
    free: Collection[Overlap],
) -> tuple[int, ...]:
    """The optimum, or `best`, when pairs in `free` may always overlap and no others ever.

    Some optimum places the items one after another, each on the highest of the earlier ones that
    it may not overlap. A partial packing is as good as another of the same items whose top and
    whose floors under the items left are nowhere lower.
    """
    n = len(items)
    apart = [[rules.overlap[i][j] not in free for j in range(n)] for i in range(n)]
    least = total_nbytes(items, best)
    known: dict[int, list[tuple[int, ...]]] = {}
    stack: list[tuple[dict[int, int], tuple[int, ...], int]] = [({}, (0,) * n, 0)]
    while stack and least > bound:
        placed, floors, top = stack.pop()
        if top >= least:
            continue
        if len(placed) == n:
            best, least = tuple(placed[i] for i in range(n)), top
            continue
        for i in reversed([k for k in range(n) if k not in placed]):
            offset = align_up(floors[i], items[i].alignment)
            end = offset + items[i].nbytes
            raised = tuple(max(f, end) if apart[i][j] else f for j, f in enumerate(floors))
            state = ({**placed, i: offset}, raised, max(top, end))
            if _is_promising(state, items, least, known):
                stack.append(state)
    return best


def _is_promising(
    state: tuple[dict[int, int], tuple[int, ...], int],
    items: Sequence[Item],
    least: int,
    known: dict[int, list[tuple[int, ...]]],
) -> bool:
    """Whether a partial packing may lead to less than `least` and is not worse than a known one."""
    placed, floors, top = state
    left = [i for i in range(len(items)) if i not in placed]
    ends = [align_up(floors[i], items[i].alignment) + items[i].nbytes for i in left]
    if max([top, *ends]) >= least:
        return False
    key = sum(1 << i for i in placed)
    mine = (top, *(floors[i] for i in left))
    others = known.setdefault(key, [])
    if any(all(x <= y for x, y in zip(o, mine, strict=True)) for o in others):
        return False
    others[:] = [o for o in others if not all(y <= x for x, y in zip(o, mine, strict=True))]
    others.append(mine)
    return True


class _Search:
    """Depth-first search over all orders and all places, for pairs that overlap sometimes."""

    def __init__(
        self, items: Sequence[Item], rules: Rules, best: tuple[int, ...], bound: int
    ) -> None:
        self.items, self.rules = items, rules
        self.best, self.bound = best, bound
        self.least = total_nbytes(items, best)
        self.seen: set[tuple[tuple[int, int], ...]] = set()

    def run(self) -> tuple[int, ...]:
        """The best packing found."""
        self._place({}, 0)
        return self.best

    def _place(self, placed: dict[int, int], top: int) -> None:
        if top >= self.least or self.least <= self.bound or len(self.seen) > _MAX_NODES:
            return
        if len(placed) == len(self.items):
            self.best = tuple(placed[i] for i in range(len(self.items)))
            self.least = top
            return
        key = tuple(sorted(placed.items()))
        if key in self.seen:
            return
        self.seen.add(key)
        left = [i for i in range(len(self.items)) if i not in placed]
        if any(self._least_end(i, placed) >= self.least for i in left):
            return
        for i in left:
            for o in places(i, placed, self.items, self.rules):
                self._place({**placed, i: o}, max(top, o + self.items[i].nbytes))

    def _least_end(self, i: int, placed: dict[int, int]) -> int:
        """Where item `i` ends at best, given only what it may never overlap."""
        item, row = self.items[i], self.rules.overlap[i]
        taken = [
            (o, o + self.items[j].nbytes) for j, o in placed.items() if row[j] is Overlap.NEVER
        ]
        start = 0
        for low, high in sorted(taken):
            if start + item.nbytes > low:
                start = max(start, align_up(high, item.alignment))
        return start + item.nbytes
