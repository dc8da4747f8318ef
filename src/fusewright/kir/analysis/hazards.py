"""Pairs of accesses that must happen in program order although different threads make them.

For every pair the conflicting instances fall into few classes, which differ in three answers:

- Which loop carries the pair? None, when both happen in the same iteration of all common loops.
- Over one iteration of that loop, or over more?
- For each loop inside: does an iteration follow the one with the first access, and does one come
  before the one with the second?

All instances of a class are ordered by the same syncs, so a class is a `Hazard`. In this loop, the
load of an iteration meets the store of the next one, so that one sync at the end orders all:

    for i:  s[t] = a;  BlockSync;  b = s[t+1]      ->   WAR, carried by i, over one iteration
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import lru_cache

import numpy as np

from fusewright.core.expr import Term, sum_of
from fusewright.kir.analysis.accesses import Access, Moment
from fusewright.kir.analysis.async_run import agent_of
from fusewright.kir.analysis.batches import (
    Batch,
    InOrder,
    Pairs,
    batches_of,
    join_carried,
    single,
    singles,
)
from fusewright.kir.analysis.gatherings import gatherings_of
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
from fusewright.kir.analysis.places import are_of_different_blocks, is_conditional
from fusewright.kir.analysis.ring_order import ordered_by_rings
from fusewright.kir.analysis.sites import (
    KEPT,
    BranchScope,
    LoopScope,
    Path,
    StatementSite,
    are_concurrent,
    common_loops,
)
from fusewright.kir.analysis.uniformity import is_cluster_uniform
from fusewright.kir.ir import Kernel, Memory
from fusewright.kir.traits import Act
from fusewright.target import WARP_SIZE


class Rule(Enum):
    """Which pairs are looked for: those that different threads make, or writes by threads and what
    the async proxy does with the same bytes, whoever issues it."""

    THREADS = "threads"
    PROXIES = "proxies"


@lru_cache(maxsize=KEPT)
def hazards(kernel: Kernel) -> tuple[Hazard, ...]:
    """The hazards of the kernel, whether or not a sync orders them, but for those that a write
    between their accesses implies; in order of (after, before)."""
    return hazards_in(spaces(kernel), kernel)


def unordered(kernel: Kernel) -> tuple[Hazard, ...]:
    """The hazards that neither the syncs present nor loops over rings order; empty for a kernel fit
    to ship."""
    left = unordered_by([p for _, p in sync_points(kernel)], hazards(kernel))
    return tuple(h for h in left if not ordered_by_rings(kernel, (h,)))


def sync_orders(kernel: Kernel) -> dict[int, tuple[Hazard, ...]]:
    """For each sync, by id, the hazards that it orders (others may order them too)."""
    return ordered_by(kernel, hazards(kernel))


def hazards_in(
    found: Sequence[Space], kernel: Kernel, rule: Rule = Rule.THREADS
) -> tuple[Hazard, ...]:
    """`hazards`, for given footprints, or the other hazards of a rule."""
    out = [h for space in found for h in _space_hazards(space, kernel, rule)]
    if rule is Rule.THREADS:
        out += [h for space in found for h in _lifetimes(space, kernel)]
    out.sort(key=lambda h: (h.after, h.before, h.carried or (), h.distance))
    return tuple(out)


def _space_hazards(space: Space, kernel: Kernel, rule: Rule) -> Iterator[Hazard]:
    """Accesses that are at known places of one another are compared, others are assumed to meet."""
    yield from _assumed_hazards(space, kernel, rule)
    groups: dict[object, list[Footprint]] = {}
    for f in space.footprints:
        if f.cells is not None:
            groups.setdefault(f.unknown, []).append(f)
    for prints in groups.values():
        yield from _known_hazards(space, prints, kernel, rule)


def _known_hazards(
    space: Space, prints: Sequence[Footprint], kernel: Kernel, rule: Rule
) -> Iterator[Hazard]:
    if rule is Rule.THREADS:
        prints = contested(prints)
        for f in prints:
            yield from _simultaneous(space, f)
    batches = batches_of([f for f in prints if f.first.size], kernel)
    in_order = InOrder(batches, leaves_out=rule is Rule.THREADS)
    for a in batches:
        for b in batches:
            if not a.is_apart_from(b) and _is_meant(a.sample, b.sample, rule):
                yield from _batch_hazards(space, a, b, in_order, kernel, rule)


def _is_meant(before: Access, after: Access, rule: Rule) -> bool:
    """Whether the rule is about such a pair."""
    if not can_conflict(before, after):
        return False
    if rule is Rule.THREADS:
        return before.writes or after.writes
    return before.writes and not before.use.in_async_proxy and after.use.in_async_proxy


def can_conflict(before: Access, after: Access) -> bool:
    """Whether syncs are to order the first before the second. Roles order themselves, by what they
    arrive at and wait for."""
    if not before.can_precede or not after.can_follow or before.use.ends_turn:
        return False
    if before.is_public and agent_of(before.site) == agent_of(after.site):
        return False
    if after.use.ends_turn and not before.use.is_wait:
        return False
    return not are_concurrent(before.site, after.site)


def are_exclusive(a: StatementSite, b: StatementSite, kernel: Kernel) -> bool:
    """Whether the two stand in different branches of one `If` that all threads of a block take
    alike, in a kernel with clusters all threads of a cluster."""
    for x, y in zip(a.scopes, b.scopes, strict=False):
        if isinstance(x, BranchScope) and isinstance(y, BranchScope) and x.node is y.node:
            if x.path != y.path:
                return is_cluster_uniform(x.node.condition, kernel)
        elif x.path != y.path:
            return False
    return False


def _carriers(loops: Sequence[LoopScope]) -> list[int]:
    """Positions of the loops that can carry a pair, because they may run twice."""
    return [i for i, loop in enumerate(loops) if loop.trips is None or loop.trips > 1]


# --- lives of blocks ----------------------------------------------------------------------------


def _lifetimes(space: Space, kernel: Kernel) -> Iterator[Hazard]:
    """Other blocks write only into blocks that have begun and do not exit before. What a mbarrier
    counts of a delivery is over when the block that it goes to has waited for the bytes."""
    for f in space.footprints:
        if f.access.use.rank is None or f.access.moment is Moment.DONE:
            continue
        a, at = f.access, f.access.site.path
        ends: list[tuple[Kind, Path, Path]] = [("START", (-1,), at)]
        delivered = a.site.statement.mbarrier_use()
        is_awaited = delivered is not None and delivered.act is Act.DELIVER
        if f.access.moment is Moment.WHOLE and not is_awaited:
            ends.append(("EXIT", at, (len(kernel.body),)))
        worst = replace(_worst(a, a), example=None)
        for kind, before, after in ends:
            h = _hazard(space, a, a, None, worst)
            yield replace(h, kind=kind, before=before, after=after, is_simultaneous=False)


# --- addresses that cannot be compared ----------------------------------------------------------


def _assumed_hazards(space: Space, kernel: Kernel, rule: Rule) -> Iterator[Hazard]:
    """All pairs of unlike places that may overlap. Two stores to global memory are trusted: a
    kernel writes each element once, and parts of blocks that gather are new ones in every
    iteration."""
    unlike = {None if f.cells is None else f.unknown for f in space.footprints}
    if None not in unlike and len(unlike) < 2:
        return
    gathered = gatherings_of(kernel) if kernel.semaphores else ()
    for a in space.footprints:
        for b in space.footprints:
            if a.cells is not None and b.cells is not None and a.unknown == b.unknown:
                continue
            both = a.access.writes and b.access.writes
            if rule is Rule.THREADS and _is_one_thread(a.access, b.access):
                continue
            if (both and space.memory is Memory.GLOBAL) or not _is_meant(a.access, b.access, rule):
                continue
            if _lie_apart(a, b):
                continue
            sites = a.access.site, b.access.site
            if a.access.order < b.access.order and not are_exclusive(*sites, kernel):
                yield _hazard(space, a.access, b.access, None, _worst(a.access, b.access))
            loops = common_loops(*sites)
            if any(g.holds(a.access, kernel) and g.holds(b.access, kernel) for g in gathered):
                continue
            for level in _carriers(loops):
                yield _hazard(space, a.access, b.access, loops[level], _worst(a.access, b.access))


def _lie_apart(a: Footprint, b: Footprint) -> bool:
    """Whether bounds on what is unknown of their addresses keep two accesses apart."""
    x, y = _bounds(a), _bounds(b)
    return x is not None and y is not None and (x[1] <= y[0] or y[1] <= x[0])


def _bounds(f: Footprint) -> tuple[int, int] | None:
    """The first byte of its buffer that an access may touch, and the one behind the last."""
    ranges = f.access.ranges
    if f.cells is None or ranges is None or not ranges.starts.size:
        return None
    low, high = sum_of(0, [Term(atoms, n) for atoms, n in f.unknown]).interval
    if low is None or high is None:
        return None
    nbytes = f.access.buffer.dtype.nbytes
    first, last = int(ranges.starts[0]), int(ranges.starts[-1])
    return first + low * nbytes, last + high * nbytes + f.access.nbytes


def _is_one_thread(a: Access, b: Access) -> bool:
    """Whether one thread of a block makes both, whatever the bytes."""
    is_alone = a.use.issuer is not None and a.use.issuer == b.use.issuer
    return is_alone and max(a.ncopies, b.ncopies) == 1


# --- classes of instances -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Class:
    """Instances that the same syncs order; see `Hazard` for the fields."""

    scope: SyncScope
    is_far: bool
    more_before: tuple[Path, ...]
    more_after: tuple[Path, ...]
    example: Example | None


_SCOPES = (SyncScope.CLUSTER, SyncScope.BLOCK, SyncScope.WARP, SyncScope.THREAD)


def _worst(a: Access, b: Access) -> _Class:
    """What all threads that make the accesses have to wait for."""
    scope = SyncScope.BLOCK
    if max(a.ncopies, b.ncopies) > 1:
        scope = SyncScope.CLUSTER
    elif max(a.nthreads, b.nthreads) <= WARP_SIZE:
        scope = SyncScope.WARP
    return _Class(scope, False, (), (), None)


def _hazard(space: Space, a: Access, b: Access, carrier: LoopScope | None, c: _Class) -> Hazard:
    kind: Kind = "WAW" if a.writes and b.writes else "RAW" if a.writes else "WAR"
    if a.use.makes_mbarrier and a.ncopies > 1:
        kind = "INIT"
    return Hazard(
        kind=kind,
        space=space.name,
        before=a.site.path,
        after=b.site.path,
        before_buffer=a.buffer,
        after_buffer=b.buffer,
        scope=c.scope,
        carried=None if carrier is None else carrier.path,
        distance=0 if carrier is None else 2 if c.is_far else 1,
        more_before=c.more_before,
        more_after=c.more_after,
        is_simultaneous=carrier is None and a is b,
        example=c.example,
    )


def _simultaneous(space: Space, f: Footprint) -> Iterator[Hazard]:
    """Threads that write one place in one statement: certain ones only, no sync helps."""
    rows = np.flatnonzero(f.first != f.last)
    if f.access.can_follow and f.access.writes and f.is_exact and rows.size:
        alone, at = single(f), int(rows[0])
        example = _example(space, alone, alone, at, at)
        c = replace(_worst(f.access, f.access), example=example)
        yield _hazard(space, f.access, f.access, None, c)


def _batch_hazards(
    space: Space, a: Batch, b: Batch, in_order: InOrder, kernel: Kernel, rule: Rule
) -> Iterator[Hazard]:
    """The hazards with a member of `a` first, in the same iteration or carried by a loop."""
    loops = common_loops(a.sample.site, b.sample.site)
    for level in (None, *_carriers(loops)):
        if level is None:
            pairs = in_order.join(a, b)
        else:
            pairs = join_carried(a, b, level)
        if pairs is None and len(a.members) + len(b.members) > 2:
            for x in singles(a):
                for y in singles(b):
                    yield from _batch_hazards(space, x, y, in_order, kernel, rule)
            return
        carrier = None if level is None else loops[level]
        if pairs is None:
            if carrier is not None or _follows(a.sample, b.sample, kernel):
                yield _hazard(space, a.sample, b.sample, carrier, _worst(a.sample, b.sample))
            continue
        inner = len(loops) if level is None else level + 1
        keep, far = np.ones(pairs.a.size, dtype=bool), np.zeros(pairs.a.size, dtype=np.int64)
        if rule is Rule.THREADS:
            keep = _crosses_threads(a, b, pairs)
        if level is None:
            if keep.any():
                keep &= _in_one_run(a, b, pairs, keep, kernel)
        else:
            valid, far = _carried(a, b, pairs, level)
            keep &= valid
        if keep.any():
            pairs = Pairs(pairs.a[keep], pairs.b[keep])
            nthreads = kernel.nthreads
            yield from _classes(space, a, b, pairs, far[keep], inner, carrier, nthreads)


def _follows(a: Access, b: Access, kernel: Kernel) -> bool:
    """Whether the second may come behind the first in one iteration."""
    return a.order < b.order and not _are_of_different_runs(a, b, kernel)


def _are_of_different_runs(a: Access, b: Access, kernel: Kernel) -> bool:
    """Whether no run of the branches around makes both."""
    if not (is_conditional(a) and is_conditional(b)):
        return False
    return are_exclusive(a.site, b.site, kernel) or are_of_different_blocks(a, b, kernel)


def _in_one_run(a: Batch, b: Batch, pairs: Pairs, keep: Array, kernel: Kernel) -> Array:
    """Which pairs of rows one run of the branches around may make both, of those to keep."""
    code = a.member[pairs.a] * len(b.members) + b.member[pairs.b]
    found = np.zeros(len(a.members) * len(b.members), dtype=bool)
    found[code[keep]] = True
    for k in np.flatnonzero(found).tolist():
        x, y = divmod(k, len(b.members))
        found[k] = not _are_of_different_runs(a.members[x].access, b.members[y].access, kernel)
    return found[code]


def _crosses_threads(a: Batch, b: Batch, pairs: Pairs) -> Array:
    """Which pairs of rows are not all one thread."""
    first, last = a.first[pairs.a], b.last[pairs.b]
    return (first != a.last[pairs.a]) | (b.first[pairs.b] != last) | (first != last)


def _crosses(a: Batch, b: Batch, pairs: Pairs, size: int) -> Array:
    """1 for each pair of rows whose threads are not all among the same `size` neighbours, else 0:
    one warp, or one block of a cluster."""
    first, last = a.first[pairs.a] // size, b.last[pairs.b] // size
    inside = (first == a.last[pairs.a] // size) & (b.first[pairs.b] // size == last)
    return (~inside | (first != last)).astype(np.int64)


def _carried(a: Batch, b: Batch, pairs: Pairs, level: int) -> tuple[Array, Array]:
    """Which pairs the loop at `level` can carry, and which of them over two iterations or more."""
    trips = a.sample.trips[level]
    p = a.coords[a.loops.index(level)][pairs.a] if level in a.loops else None
    q = b.coords[b.loops.index(level)][pairs.b] if level in b.loops else None
    near = np.zeros(pairs.a.size, dtype=np.int64)
    if p is not None and q is not None:
        return q > p, (q - p > 1).astype(np.int64)
    if p is not None:
        return (p < trips - 1) | (not a.sample.stands_for_all[level]), near
    if q is not None:
        return q >= 1, near
    return np.ones(pairs.a.size, dtype=bool), near


def _more(batch: Batch, rows: Array, inner: int, *, at_end: bool) -> tuple[list[Path], Array]:
    """For loops from position `inner` on: bit i is set where a further iteration of loop i
    follows (`at_end`) or precedes the row."""
    bits = np.zeros(rows.size, dtype=np.int64)
    paths: list[Path] = []
    for at, i in enumerate(batch.loops):
        loop, trips = batch.sample.site.loops[i], batch.sample.trips[i]
        if i < inner or (at_end and not batch.sample.stands_for_all[i]):
            continue
        now = batch.coords[at][rows]
        more = now < trips - 1 if at_end else now > 0
        bits |= more.astype(np.int64) << len(paths)
        paths.append(loop.path)
    return paths, bits


def _classes(
    space: Space,
    a: Batch,
    b: Batch,
    pairs: Pairs,
    far: Array,
    inner: int,
    carrier: LoopScope | None,
    nthreads: int,
) -> Iterator[Hazard]:
    """One hazard for each class of the given conflicting rows, of each pair of members, in blocks
    of `nthreads` threads."""
    before, more_before = _more(a, pairs.a, inner, at_end=True)
    after, more_after = _more(b, pairs.b, inner, at_end=False)
    width = len(before) + len(after)
    code = a.member[pairs.a] * len(b.members) + b.member[pairs.b]
    code = (((code << 1) | far) << width) | (more_before << len(after)) | more_after
    within = 3 - _crosses_threads(a, b, pairs) - _crosses(a, b, pairs, WARP_SIZE)
    within -= _crosses(a, b, pairs, nthreads)
    found, chosen = np.unique((code << 2) | within, return_index=True)
    classes, leading = np.unique(found >> 2, return_index=True)
    i, j = pairs.a[chosen[leading]], pairs.b[chosen[leading]]
    columns = (classes, found[leading] & 3, i, j, a.member[i], b.member[j])
    table: list[list[int]] = np.stack(columns, axis=1).tolist()
    for value, inside, row_a, row_b, x, y in table:
        c = _Class(
            scope=_SCOPES[inside],
            is_far=bool(value >> width & 1),
            more_before=_bits(before, value >> len(after)) if before else (),
            more_after=_bits(after, value) if after else (),
            example=_example(space, a, b, row_a, row_b),
        )
        yield _hazard(space, a.members[x].access, b.members[y].access, carrier, c)


def _bits(loops: list[Path], value: int) -> tuple[Path, ...]:
    return tuple(p for i, p in enumerate(loops) if value >> i & 1)


def _example(space: Space, a: Batch, b: Batch, i: int, j: int) -> Example:
    before, after = int(a.first[i]), int(b.last[j])
    if before == after:
        before, after = int(a.last[i]), int(b.first[j])
    return Example(before, after, int(space.edges[a.cells[i]]))
