"""Pairs of accesses that must happen in program order although different threads make them.

For every pair the conflicting instances fall into few classes: which loop carries the pair (none
when both happen in the same iteration of all common loops), whether it does so over one iteration
or more, and, for the loops inside, whether the first access is made in an iteration after which
another follows and the second in one that follows another. All instances of a class are ordered
by the same syncs, so a class is a `Hazard`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from fusewright.kir.analysis.lanes import Array
from fusewright.kir.analysis.order import (
    Example,
    Hazard,
    Kind,
    SyncScope,
    ordered_by,
    sync_points,
    unordered_by,
)
from fusewright.kir.analysis.ownership import Footprint, Space, contested, spaces
from fusewright.kir.analysis.sites import BranchScope, LoopScope, Path, Site, common_loops
from fusewright.kir.analysis.uniformity import is_block_uniform
from fusewright.kir.ir import Kernel, Memory
from fusewright.target import WARP_SIZE

_MAX_PAIRS = 1 << 21


def hazards(kernel: Kernel) -> tuple[Hazard, ...]:
    """Every hazard of the kernel whether or not a sync orders it, in order of (after, before)."""
    return hazards_in(spaces(kernel), kernel)


def unordered(kernel: Kernel) -> tuple[Hazard, ...]:
    """The hazards that the syncs present do not order; empty for a kernel fit to ship."""
    return unordered_by([p for _, p in sync_points(kernel)], hazards(kernel))


def sync_orders(kernel: Kernel) -> dict[int, tuple[Hazard, ...]]:
    """For each sync, by id, the hazards that it orders (others may order them too)."""
    return ordered_by(kernel, hazards(kernel))


def hazards_in(found: Sequence[Space], kernel: Kernel) -> tuple[Hazard, ...]:
    """`hazards`, for given footprints."""
    out = [h for space in found for h in _space_hazards(space, kernel)]
    out.sort(key=lambda h: (h.after, h.before, h.carried or (), h.distance))
    return tuple(out)


def _space_hazards(space: Space, kernel: Kernel) -> Iterator[Hazard]:
    prints = space.footprints
    if all(f.cells is not None for f in prints) and len({f.unknown for f in prints}) == 1:
        prints = tuple(f for f in contested(prints) if f.cells is None or f.cells.size)
    for a in prints:
        for b in prints:
            if a.access.writes or b.access.writes:
                yield from _pair_hazards(space, a, b, kernel)


def _pair_hazards(space: Space, a: Footprint, b: Footprint, kernel: Kernel) -> Iterator[Hazard]:
    """The hazards with `a` first."""
    loops = common_loops(a.access.site, b.access.site)
    if a.access.order <= b.access.order and not are_exclusive(a.access.site, b.access.site, kernel):
        yield from _level_hazards(space, a, b, len(loops), carried=False)
    for level, loop in enumerate(loops):
        if loop.trips is None or loop.trips > 1:
            yield from _level_hazards(space, a, b, level, carried=True)


def are_exclusive(a: Site, b: Site, kernel: Kernel) -> bool:
    """Whether the two stand in different branches of one `If` that all threads take alike."""
    for x, y in zip(a.scopes, b.scopes, strict=False):
        if isinstance(x, BranchScope) and isinstance(y, BranchScope) and x.node is y.node:
            if x.path != y.path:
                return is_block_uniform(x.node.condition, kernel)
        elif x.path != y.path:
            return False
    return False


@dataclass(frozen=True, slots=True, eq=False)
class _Pairs:
    """Conflicting rows of two footprints: indices into each; None where nothing is known."""

    a: Array
    b: Array


def _level_hazards(
    space: Space, a: Footprint, b: Footprint, level: int, *, carried: bool
) -> Iterator[Hazard]:
    """Hazards in the same iteration of the first `level` common loops: of the rest too, or
    carried by the next one."""
    simultaneous = a.access is b.access and not carried
    kind: Kind = "WAW" if a.access.writes and b.access.writes else "RAW"
    kind = kind if a.access.writes else "WAR"
    carrier = a.access.site.loops[level] if carried else None
    inner = level + 1 if carried else level
    known = a.cells is not None and b.cells is not None and a.unknown == b.unknown
    assumed = not known or not (a.is_exact and b.is_exact)
    if simultaneous and assumed:
        return
    if not known:
        if kind == "WAW" and space.memory is Memory.GLOBAL:
            return
        yield _hazard(space, a, b, kind, carrier, _WORST, simultaneous=False)
        return
    for c in _classes(space, a, b, level, inner, carried=carried, simultaneous=simultaneous):
        yield _hazard(space, a, b, kind, carrier, c, simultaneous=simultaneous)


@dataclass(frozen=True, slots=True)
class _Class:
    """Instances that the same syncs order; see `Hazard` for the fields."""

    scope: SyncScope
    is_far: bool
    more_before: tuple[Path, ...]
    more_after: tuple[Path, ...]
    example: Example | None


_WORST = _Class(SyncScope.BLOCK, False, (), (), None)


def _hazard(
    space: Space,
    a: Footprint,
    b: Footprint,
    kind: Kind,
    carrier: LoopScope | None,
    c: _Class,
    *,
    simultaneous: bool,
) -> Hazard:
    return Hazard(
        kind=kind,
        space=space.name,
        before=a.access.site.path,
        after=b.access.site.path,
        before_buffer=a.access.buffer,
        after_buffer=b.access.buffer,
        scope=c.scope,
        carried=None if carrier is None else carrier.path,
        distance=0 if carrier is None else 2 if c.is_far else 1,
        more_before=c.more_before,
        more_after=c.more_after,
        is_simultaneous=simultaneous,
        example=c.example,
    )


def _classes(
    space: Space,
    a: Footprint,
    b: Footprint,
    level: int,
    inner: int,
    *,
    carried: bool,
    simultaneous: bool,
) -> Iterator[_Class]:
    """The classes of conflicting instances of two footprints with known cells."""
    pairs = _join(a, b, level, inner, simultaneous=simultaneous)
    if pairs is None:
        yield _WORST
        return
    far = np.zeros(pairs.a.size, dtype=np.int64)
    keep = (
        (a.first[pairs.a] != a.last[pairs.a])
        | (b.first[pairs.b] != b.last[pairs.b])
        | (a.first[pairs.a] != b.first[pairs.b])
    )
    if carried:
        valid, far = _carried(a, b, pairs, level)
        keep = keep & valid
    if not keep.any():
        return
    pairs, far = _Pairs(pairs.a[keep], pairs.b[keep]), far[keep]
    before, more_before = _more(a, pairs.a, inner, at_end=True)
    after, more_after = _more(b, pairs.b, inner, at_end=False)
    code = (far << (len(before) + len(after))) | (more_before << len(after)) | more_after
    warps = [x // WARP_SIZE for x in (a.first[pairs.a], a.last[pairs.a], b.first[pairs.b])]
    last = b.last[pairs.b] // WARP_SIZE
    crosses = (warps[0] != warps[1]) | (warps[0] != warps[2]) | (warps[0] != last)
    for value in sorted(set(code.tolist())):
        chosen = code == value
        wide = chosen & crosses
        at = int(np.argmax(wide if wide.any() else chosen))
        yield _Class(
            scope=SyncScope.BLOCK if wide.any() else SyncScope.WARP,
            is_far=bool(value >> (len(before) + len(after))),
            more_before=_bits(before, value >> len(after)),
            more_after=_bits(after, value),
            example=_example(space, a, b, int(pairs.a[at]), int(pairs.b[at])),
        )


def _bits(loops: list[Path], value: int) -> tuple[Path, ...]:
    return tuple(p for i, p in enumerate(loops) if value >> i & 1)


def _example(space: Space, a: Footprint, b: Footprint, i: int, j: int) -> Example:
    assert a.cells is not None
    before, after = int(a.first[i]), int(b.last[j])
    if before == after:
        before, after = int(a.last[i]), int(b.first[j])
    return Example(before, after, int(a.cells[i]) * space.cell_nbytes)


def _join(
    a: Footprint, b: Footprint, level: int, inner: int, *, simultaneous: bool
) -> _Pairs | None:
    """All pairs of rows that share a cell and the iteration of the loops that must be equal;
    None when there are too many."""
    assert a.cells is not None and b.cells is not None
    if not a.cells.size or not b.cells.size:
        empty = np.zeros(0, dtype=np.int64)
        return _Pairs(empty, empty)
    equal = [i for i in a.loops if i in b.loops and i < level]
    if simultaneous:
        rows = np.arange(a.cells.size)
        return _Pairs(rows, rows)
    ka, kb = a.cells, b.cells
    for i in equal:
        n = a.access.trips[i]
        ka = ka * n + a.coords[a.loops.index(i)]
        kb = kb * n + b.coords[b.loops.index(i)]
    order = np.argsort(kb, kind="stable")
    ordered = kb[order]
    start, stop = np.searchsorted(ordered, ka, "left"), np.searchsorted(ordered, ka, "right")
    counts = stop - start
    total = int(counts.sum())
    if total > _MAX_PAIRS:
        return None
    rows = np.repeat(np.arange(ka.size), counts)
    within = np.arange(total) - np.repeat(np.cumsum(counts) - counts, counts)
    return _Pairs(rows, order[np.repeat(start, counts) + within])


def _carried(a: Footprint, b: Footprint, pairs: _Pairs, level: int) -> tuple[Array, Array]:
    """Which pairs the loop at `level` can carry, and which of them over two iterations or more."""
    loop = a.access.site.loops[level]
    p = a.coords[a.loops.index(level)][pairs.a] if level in a.loops else None
    q = b.coords[b.loops.index(level)][pairs.b] if level in b.loops else None
    near = np.zeros(pairs.a.size, dtype=np.int64)
    if p is not None and q is not None:
        return q > p, (q - p > 1).astype(np.int64)
    if p is not None:
        whole = loop.trips == a.access.trips[level]
        return (p < a.access.trips[level] - 1) | (not whole), near
    if q is not None:
        return q >= 1, near
    return np.ones(pairs.a.size, dtype=bool), near


def _more(f: Footprint, rows: Array, inner: int, *, at_end: bool) -> tuple[list[Path], Array]:
    """For loops from position `inner` on: bit i is set where a further iteration of loop i
    follows (`at_end`) or precedes the row."""
    bits = np.zeros(rows.size, dtype=np.int64)
    paths: list[Path] = []
    for i in f.loops:
        loop = f.access.site.loops[i]
        trips = f.access.trips[i]
        if i < inner or (at_end and loop.trips != trips):
            continue
        at = f.coords[f.loops.index(i)][rows]
        more = at < trips - 1 if at_end else at > 0
        bits |= more.astype(np.int64) << len(paths)
        paths.append(loop.path)
    return paths, bits
