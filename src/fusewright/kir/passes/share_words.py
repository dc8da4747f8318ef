"""Windows that lie beside each other in memory are cut out of the same words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from fusewright.core.atoms import maximum, minimum
from fusewright.core.conditions import TRUE, any_of
from fusewright.core.expr import ZERO, Expr, Int, constant_value, mod
from fusewright.kir.ir import (
    Alloc,
    Body,
    Buffer,
    Compute,
    If,
    Kernel,
    Lanes,
    Load,
    Memory,
    Reg,
    Statement,
)
from fusewright.kir.passes.copy_propagation import Slot, propagate_copies
from fusewright.kir.passes.share_loads import without_unread
from fusewright.kir.rules import MAX_SPAN_NBYTES
from fusewright.kir.traverse import map_bodies, positions, walk_statements
from fusewright.target import WORD_NBYTES

Key: TypeAlias = tuple[object, ...]
"""What loads have in common that one load may take the place of."""


def share_words(kernel: Kernel) -> Kernel:
    """Load once the elements that several windows of a thread have in common, where each would be
    cut out of two words by itself: taps of a stencil along rows that begin anywhere.

    rewrite:  a = load x[9*r .. 9*r + 8];  b = load x[9*r + 1 .. 9*r + 9]
                  ->   s = load x[9*r .. 9*r + 10];  a = copy(s[0 .. 8]);  b = copy(s[1 .. 9])
    checks:   nothing but arithmetic between the loads; where in a word they begin is not known, as
              for others the compiler sees that words are the same; what exists of a window where
              its condition does not hold may be anything; buffers that the kernel writes are left
              alone
    order:    behind share_loads, which leaves one load for equal ones; what reads the copies reads
              the original
    """
    loads = [s for s in walk_statements(kernel) if isinstance(s, Load) and s.lanes.is_cut]
    if len(loads) < 2:
        return kernel
    written = {u.buffer for s in walk_statements(kernel) for u in s.memory_uses() if u.writes}
    keys = {s: key for s in loads if s.src not in written and (key := _key(s)) is not None}
    if len(set(keys.values())) == len(keys):
        return kernel
    found = _Found(keys, set(), 0)
    new = map_bodies(kernel, lambda body: tuple(found.shared(body)))
    return without_unread(propagate_copies(new), found.copied) if found.copied else kernel


def _key(s: Load) -> Key | None:
    """None for loads whose elements are no run of neighbours at a place that is not known, or that
    bring something else where they do not take place."""
    if constant_value(s.dst.index) is None or positions(s) or s.src.memory is not Memory.GLOBAL:
        return None
    is_aligned = s.src.alignment % (s.width * s.src.dtype.nbytes) == 0
    if is_aligned and constant_value(mod(s.index, s.width)) is not None:
        return None
    if s.lanes.all_exist and s.predicate != TRUE:
        return None
    return s.src, s.width, s.cache, s.lanes.all_exist, s.dst.buffer.dtype


@dataclass(slots=True)
class _Found:
    """Loads that may share words, the registers that are copies of what is shared, and how many
    spans of words there are."""

    keys: dict[Load, Key]
    copied: set[Slot]
    count: int

    def shared(self, body: Body) -> Iterator[Statement]:
        """A body in which loads that share words are one."""
        spans = {s: span for run in self._runs(body) for span in _spans(run) for s in span}
        made: dict[int, Buffer] = {}
        for s in body:
            span = spans.get(s) if isinstance(s, Load) else None
            if not isinstance(s, Load) or span is None:
                yield s
                continue
            if id(span) not in made:
                buffer = made[id(span)] = self._buffer(s, span)
                yield Alloc(buffer)
                yield _whole(span, buffer)
            yield from self._copies(s, span, made[id(span)])

    def _runs(self, body: Body) -> Iterator[list[Load]]:
        """Loads of one kind with nothing but arithmetic between them."""
        runs: dict[Key, list[Load]] = {}
        for s in body:
            if isinstance(s, Load) and s in self.keys:
                runs.setdefault(self.keys[s], []).append(s)
            elif not _is_arithmetic(s):
                yield from runs.values()
                runs = {}
        yield from runs.values()

    def _buffer(self, s: Load, span: Sequence[Load]) -> Buffer:
        self.count += 1
        size, dtype = Int(_width(span)), s.dst.buffer.dtype
        return Buffer(f"{s.src.name}_span{self.count}", dtype, size, Memory.LOCAL)

    def _copies(self, s: Load, span: Sequence[Load], buffer: Buffer) -> Iterator[Statement]:
        begin, at = constant_value(s.dst.index) or 0, _apart(span[0], s) or 0
        for k in range(s.width):
            self.copied.add((s.dst.buffer, begin + k))
            yield Compute("copy", Reg(s.dst.buffer, s.dst.index + k), (Reg(buffer, Int(at + k)),))


def _is_arithmetic(s: Statement) -> bool:
    """Whether a statement changes registers alone: so do the fills of what lies outside."""
    if isinstance(s, If):
        return all(map(_is_arithmetic, (*s.then, *s.otherwise)))
    return isinstance(s, Load | Compute | Alloc)


def _spans(run: Sequence[Load]) -> Iterator[tuple[Load, ...]]:
    """Loads that follow each other in memory, each at an element of the one before, in as many
    bytes as one load brings."""
    rest = list(run)
    while rest:
        apart = [(n, s) for s in rest if (n := _apart(rest[0], s)) is not None]
        rest = [s for s in rest if all(s is not known for _, known in apart)]
        apart.sort(key=lambda x: x[0])
        span = [apart[0]]
        for n, s in apart[1:]:
            nbytes = (n + s.width - span[0][0]) * s.src.dtype.nbytes
            if n - span[-1][0] < s.width and nbytes <= MAX_SPAN_NBYTES:
                span.append((n, s))
                continue
            if len(span) > 1:
                yield tuple(s for _, s in span)
            span = [(n, s)]
        if len(span) > 1:
            yield tuple(s for _, s in span)


def _apart(first: Load, s: Load) -> int | None:
    """How many elements a load begins behind another, if that is known."""
    return constant_value(s.index - first.index)


def _width(span: Sequence[Load]) -> int:
    """The elements of a span, in whole words of a register."""
    each = max(1, WORD_NBYTES // span[0].src.dtype.nbytes)
    count = (_apart(span[0], span[-1]) or 0) + span[-1].width
    return -(-count // each) * each


def _whole(span: Sequence[Load], buffer: Buffer) -> Load:
    """The load of all elements of a span: those exist that exist for one of its loads, or lie
    between such; under several conditions, of which each has its own, those that the source has."""
    first, width = span[0], _width(span)
    conditions = dict.fromkeys(s.predicate for s in span)
    some = any_of(conditions)
    low, high = _bounds(span)
    if len(conditions) > 1:
        low = maximum(ZERO, -first.index)
        high = minimum(Int(width), first.src.size - first.index)
    lanes = Lanes(None, low, high)
    lanes = lanes.everywhere(width) if some == TRUE else lanes
    return Load(Reg(buffer), first.src, first.index, width, some, None, first.cache, lanes)


def _bounds(span: Sequence[Load]) -> tuple[Expr, Expr]:
    """From which lane of a span on, and up to which, lanes of its loads exist."""
    first, last = span[0], span[-1]
    if first.lanes.all_exist:
        return ZERO, Int((_apart(first, last) or 0) + last.width)
    low, high = first.lanes.first, first.lanes.stop
    for s in span[1:]:
        assert low is not None and high is not None
        assert s.lanes.first is not None and s.lanes.stop is not None
        at = _apart(first, s) or 0
        low, high = minimum(low, s.lanes.first + at), maximum(high, s.lanes.stop + at)
    assert low is not None and high is not None
    return low, high
