"""Shared memory over time: which bytes each buffer needs when, and where the syncs stand.

Time is the kernel's text: the statements that touch shared memory or synchronise, one step each.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from fusewright.kir.analysis.accesses import accesses
from fusewright.kir.analysis.liveness import intervals_of
from fusewright.kir.analysis.order import Hazard
from fusewright.kir.analysis.sites import Path, sites
from fusewright.kir.ir import Kernel, Memory, SyncStatement
from fusewright.report.subject import SmemLike, SyncLike


@dataclass(frozen=True, slots=True)
class LifetimeBox:
    """Bytes `offset .. offset + nbytes` belong to `name` from step `first` to step `last`."""

    name: str
    offset: int
    nbytes: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Ordered:
    """What a sync orders: an access at step `before`, and a later one at step `after`, which may
    stand above where a loop carries it."""

    before: int
    after: int
    what: str


@dataclass(frozen=True, slots=True)
class SyncMark:
    """A sync at a step."""

    step: int
    id: int
    kind: str
    why: str
    orders: tuple[Ordered, ...] = ()


@dataclass(frozen=True, slots=True)
class Timeline:
    """`nsteps` steps over `nbytes` bytes. A buffer has a box for each stretch it is needed in."""

    nsteps: int
    nbytes: int
    boxes: tuple[LifetimeBox, ...]
    marks: tuple[SyncMark, ...]


def timeline(kernel: Kernel, smem: Sequence[SmemLike], syncs: Sequence[SyncLike]) -> Timeline:
    """The shared memory of a kernel whose buffers have been placed."""
    found = [a for a in accesses(kernel) if a.buffer.memory is Memory.SHARED]
    touched = {a.site.path for a in found}
    known = {s.id: s for s in syncs}
    points = [
        s for s in sites(kernel) if s.path in touched or isinstance(s.statement, SyncStatement)
    ]
    step_of = {s.path: i for i, s in enumerate(points)}
    lives: dict[str, list[int]] = {}
    for life in intervals_of(kernel, found):
        used = {a.site.path for a in found if a.buffer is life.buffer}
        lives[life.buffer.name] = _steps(used | life.live_after, step_of)
    boxes = [
        LifetimeBox(b.name, b.offset, b.nbytes, first, last)
        for b in smem
        for first, last in _stretches(lives.get(b.name, []))
    ]
    marks = [
        SyncMark(
            step_of[s.path],
            s.statement.id,
            known[s.statement.id].kind,
            s.statement.why,
            _ordered(known[s.statement.id].orders, step_of),
        )
        for s in points
        if isinstance(s.statement, SyncStatement) and s.statement.id in known
    ]
    top = max((b.offset + b.nbytes for b in smem), default=0)
    return Timeline(len(points), top, tuple(boxes), tuple(marks))


def _ordered(hazards: Sequence[object], step_of: Mapping[Path, int]) -> tuple[Ordered, ...]:
    """The hazards between steps of the map, those of equal steps as one."""
    out: dict[tuple[int, int], Ordered] = {}
    for h in hazards:
        if isinstance(h, Hazard) and h.before in step_of and h.after in step_of:
            ends = step_of[h.before], step_of[h.after]
            out.setdefault(ends, Ordered(*ends, str(h)))
    return tuple(out.values())


def _steps(paths: Iterable[Path], step_of: dict[Path, int]) -> list[int]:
    return sorted(step_of[p] for p in paths if p in step_of)


def _stretches(steps: Sequence[int]) -> list[tuple[int, int]]:
    """Runs of consecutive steps, as (first, last)."""
    out: list[tuple[int, int]] = []
    for step in steps:
        if out and step == out[-1][1] + 1:
            out[-1] = (out[-1][0], step)
        else:
            out.append((step, step))
    return out
