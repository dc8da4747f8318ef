"""An independent, slow detector: every thread by itself, every pair of accesses, reachability.

It interprets addresses with `core.substitution.evaluate`, one thread at a time, builds the graph of
"before" among segments of threads and sync instances, and tests all pairs of accesses of each
element byte. An asynchronous copy is a segment of its own, after what its thread did before and
before what it does behind the wait for its group. No clocks, no strands, no runs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from fusewright.core import conditions, substitution
from fusewright.core.expr import Var
from fusewright.kir import ir
from fusewright.memory import Memory


@dataclass(frozen=True)
class Touch:
    thread: int
    segment: int
    statement: ir.Statement
    writes: bool
    is_async: bool = False


@dataclass
class Threads:
    """The touches of one block, and which segment comes after which."""

    nthreads: int
    segment: list[int] = field(default_factory=list)
    ancestors: list[int] = field(default_factory=list)
    touches: dict[tuple[str, int], list[Touch]] = field(default_factory=lambda: defaultdict(list))

    open_groups: list[list[int]] = field(default_factory=list)
    closed_groups: list[list[list[int]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.open_groups = [[] for _ in range(self.nthreads)]
        self.closed_groups = [[] for _ in range(self.nthreads)]
        self.segment = list(range(self.nthreads))
        self.ancestors = [0] * self.nthreads

    def join(self, members: Iterable[int]) -> None:
        """The members wait for each other: their next segments come after all these."""
        members = list(members)
        before = 0
        for t in members:
            s = self.segment[t]
            before |= self.ancestors[s] | (1 << s)
        for t in members:
            self.segment[t] = len(self.ancestors)
            self.ancestors.append(before)

    def after(self, *segments: int) -> int:
        """A new segment behind others."""
        before = 0
        for s in segments:
            before |= self.ancestors[s] | (1 << s)
        self.ancestors.append(before)
        return len(self.ancestors) - 1

    def issue(self, t: int) -> int:
        """The segment of a copy that thread t issues."""
        copy = self.after(self.segment[t])
        self.segment[t] = self.after(self.segment[t])
        self.open_groups[t].append(copy)
        return copy

    def commit(self, t: int) -> None:
        self.closed_groups[t].append(self.open_groups[t])
        self.open_groups[t] = []

    def wait(self, t: int, keep: int) -> None:
        groups = self.closed_groups[t]
        done = [c for g in groups[: len(groups) - keep] for c in g] if keep < len(groups) else []
        self.segment[t] = self.after(self.segment[t], *done)

    def ordered(self, a: Touch, b: Touch) -> bool:
        def earlier(x: int, y: int) -> bool:
            return bool(self.ancestors[y] >> x & 1)

        return earlier(a.segment, b.segment) or earlier(b.segment, a.segment)


def racing_pairs(
    kernel: ir.Kernel, without: frozenset[ir.Statement] = frozenset()
) -> set[frozenset[int]]:
    """Unordered conflicting statement pairs (as sets of object ids) of a kernel of one block."""
    threads = Threads(kernel.nthreads)
    offsets: dict[ir.Buffer, int] = {}
    var = kernel.block[0].var
    base: dict[Var, int] = {d.var: 0 for d in kernel.grid}
    everyone = list(range(kernel.nthreads))
    _run(kernel.body, everyone, base, var, threads, offsets, without)
    found: set[frozenset[int]] = set()
    for touches in threads.touches.values():
        for i, a in enumerate(touches):
            for b in touches[i + 1 :]:
                apart = a.thread != b.thread or a.is_async or b.is_async
                same = a.segment == b.segment and a.is_async
                if apart and not same and (a.writes or b.writes) and not threads.ordered(a, b):
                    found.add(frozenset((id(a.statement), id(b.statement))))
    return found


def _run(
    body: ir.Body,
    active: list[int],
    values: Mapping[Var, int],
    var: Var,
    threads: Threads,
    offsets: dict[ir.Buffer, int],
    without: frozenset[ir.Statement],
) -> None:
    def bound(t: int) -> dict[Var, int]:
        return {**values, var: t}

    def holds(c: conditions.Cond, t: int) -> bool:
        decided = conditions.prove(conditions.substitute_condition(c, bound(t)))
        assert decided is not None
        return decided

    for s in body:
        match s:
            case ir.Alloc():
                offsets[s.buffer] = s.offset if s.offset is not None else 100000 * len(offsets)
            case ir.For():
                for k in range(substitution.evaluate(s.extent, values)):
                    inner = {**values, s.var: k}
                    _run(s.body, active, inner, var, threads, offsets, without)
            case ir.If():
                yes = [t for t in active if holds(s.condition, t)]
                no = [t for t in active if not holds(s.condition, t)]
                _run(s.then, yes, values, var, threads, offsets, without)
                _run(s.otherwise, no, values, var, threads, offsets, without)
            case ir.Load() | ir.Store():
                buffer = s.src if isinstance(s, ir.Load) else s.dst
                for t in active:
                    if holds(s.predicate, t):
                        index = substitution.evaluate(s.index, bound(t))
                        _touch(threads, offsets, buffer, index, s, t)
            case ir.CpAsync():
                for t in active:
                    inside = holds(s.predicate, t)
                    if inside or s.zero_fill:
                        copy = threads.issue(t)
                        to = substitution.evaluate(s.index, bound(t))
                        _touch(threads, offsets, s.dst, to, s, t, copy, writes=True)
                        if inside:
                            source = substitution.evaluate(s.src_index, bound(t))
                            _touch(threads, offsets, s.src, source, s, t, copy)
            case ir.AsyncCommit():
                for t in active if s not in without else ():
                    threads.commit(t)
            case ir.AsyncWait():
                for t in active if s not in without else ():
                    threads.wait(t, s.keep)
            case ir.BlockSync():
                if active and s not in without:
                    threads.join(active)
            case ir.WarpSync():
                if s not in without:
                    for w in sorted({t // 32 for t in active}):
                        threads.join(t for t in active if t // 32 == w)
            case _:
                pass


def _touch(
    threads: Threads,
    offsets: dict[ir.Buffer, int],
    buffer: ir.Buffer,
    index: int,
    s: ir.Load | ir.Store | ir.CpAsync,
    t: int,
    copy: int = -1,
    *,
    writes: bool = False,
) -> None:
    size = buffer.dtype.nbytes
    shared = buffer.memory is Memory.SHARED
    space, offset = ("shared", offsets[buffer]) if shared else (buffer.name, 0)
    segment = threads.segment[t] if copy < 0 else copy
    touch = Touch(t, segment, s, writes or isinstance(s, ir.Store), copy >= 0)
    for byte in range(offset + index * size, offset + (index + s.width) * size):
        if byte % 2 == 0:  # no element is narrower than two bytes in these kernels
            threads.touches[space, byte].append(touch)
