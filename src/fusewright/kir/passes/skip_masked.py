"""What lanes that a mask by position drops have in common is computed once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from fusewright.core.conditions import FALSE
from fusewright.core.expr import Int
from fusewright.core.instructions import INSTRUCTIONS
from fusewright.kir.analysis.masked_lanes import Chunk, Masked, masked_lanes, slot_of
from fusewright.kir.analysis.needs import Slot, slots_read
from fusewright.kir.analysis.uniformity import meeting_share, parting_share
from fusewright.kir.ir import (
    Alloc,
    Body,
    Buffer,
    Compute,
    For,
    If,
    Imm,
    Kernel,
    Load,
    Reg,
    Statement,
)
from fusewright.kir.passes.sink_branches import UNIFORM_WORK
from fusewright.kir.passes.sinking import Clusters, Sinking, SunkBranch
from fusewright.kir.traverse import map_body, with_bodies
from fusewright.memory import Memory

LEAST_SPARED = 1 / 4
"""Of the instructions of masked chunks, what branches have to spare. Elementwise kernels of rows of
which hardly anything is kept, 0.7, take 0.90 of the time with them. Causal softmaxes in float16,
which memory limits, take 1.02 with rows of 1024 positions, 0.2, and 1.06 with rows of 777 of 1000
positions, 0.16 (one H100, 2026-11-27)."""


def skip_masked(kernel: Kernel) -> Kernel:
    """Compute what dropped lanes of a vector hold once, and add it as often as there are lanes.

    rewrite:  a = where(i <= n, x, -inf);  b = where(i + 1 <= n, y, -inf)
              s = add(s, exp(a));  s = add(s, exp(b))
         ->   if (i <= n) { the same } else { a = copy(-inf);  s = add(s, mul(exp(a), 2)) }
    checks:   a chunk is the lanes of one load; what is skipped is written by one statement and
              read behind it, in the same body; sums may be taken in another order
    order:    behind guard_masked, whose loads start in front of all branches; before syncs are
              placed
    """
    return with_bodies(kernel, lambda body: _skipped(body, kernel))


def _skipped(body: Body, kernel: Kernel, *, is_loop: bool = False) -> Body:
    """The body and those below it. Loads of the next trip of a loop would wait for its branches."""

    def below(s: Statement) -> Statement:
        return with_bodies(s, lambda b: _skipped(b, kernel, is_loop=isinstance(s, For)))

    body = map_body(body, below)
    if is_loop and any(isinstance(s, Load) and s.src.memory is Memory.GLOBAL for s in body):
        return body
    masked = masked_lanes(body, kernel)
    while masked:
        chunks = [masked[k].chunk if k in masked else None for k in range(len(body))]
        plan = [(s, c and SunkBranch(c.region)) for s, c in zip(body, chunks, strict=True)]
        halves = _Halves(body, masked)
        found = Sinking(plan, halves.place, takes_allocs=False).run()
        poor = halves.poor(kernel)
        if not poor:
            return found
        masked = {k: m for k, m in masked.items() if m.chunk not in poor}
    return body


class _Halves:
    """Spells clusters of statements as branches: all of them where a lane is kept, else what the
    lanes have in common; and weighs that."""

    def __init__(self, body: Body, masked: Mapping[int, Masked]) -> None:
        self._masked = {body[k]: m for k, m in masked.items()}
        self._leaders: dict[tuple[Chunk, int], Reg] = {}
        self._alias: dict[Slot, Reg] = {}
        self._work: dict[Chunk, list[tuple[float, float]]] = {}
        self._seen = _seen_elsewhere(body, masked)

    def place(self, clusters: Clusters) -> Body:
        """One branch after the other."""
        out: list[Statement] = []
        for _, body in clusters:
            chunk = self._masked[body[0]].chunk
            common = self._common(body)
            self._work.setdefault(chunk, []).append((_work(body), _work(common)))
            out += common if chunk.kept == FALSE else [If(chunk.kept, body, common)]
        return tuple(out)

    def poor(self, kernel: Kernel) -> set[Chunk]:
        """The chunks whose branches do not pay: of which few warps drop all lanes, or which skip
        little; all of them where they spare too little together."""
        branched = {c: own for c, own in self._work.items() if c.kept != FALSE}
        gains = {c: _gain(c, own, kernel) for c, own in branched.items()}
        work = sum(all_ for own in branched.values() for all_, _ in own)
        spared = sum(max(gain, 0.0) for gain in gains.values())
        return {c for c, gain in gains.items() if gain < 0 or spared < LEAST_SPARED * work}

    def _common(self, body: Body) -> Body:
        """What the lanes of a cluster have in common where all are dropped."""
        out: list[Statement] = []
        times: list[int] = []
        for s in body:
            own = self._masked[s]
            if own.for_kept or not isinstance(s, Compute) or self._is_known(s, own):
                continue
            new = self._for_dropped(s, own)
            if out and own.value is None and _adds_again(out[-1], new):
                times[-1] += 1
            else:
                out.append(new)
                times.append(1)
        counted = (x for s, n in zip(out, times, strict=True) for x in _added(s, n))
        return (*counted, *self._copies(body))

    def _is_known(self, s: Compute, own: Masked) -> bool:
        """Whether another lane holds what a statement computes; if none does, its own does."""
        if own.value is None:
            return False
        slot = slot_of(s.dst)
        leader = self._leaders.setdefault((own.chunk, own.value), s.dst)
        if slot is None or leader is s.dst:
            return False
        self._alias[slot] = leader
        return True

    def _for_dropped(self, s: Compute, own: Masked) -> Compute:
        if own.instead is not None:
            return replace(s, fn="copy", operands=(own.instead,))
        operands = tuple(self._leader(o) if isinstance(o, Reg) else o for o in s.operands)
        return replace(s, operands=operands)

    def _leader(self, r: Reg) -> Reg:
        slot = slot_of(r)
        return r if slot is None else self._alias.get(slot, r)

    def _copies(self, body: Body) -> Iterator[Compute]:
        """What others see of lanes that hold what another lane does."""
        for s in body:
            if isinstance(s, Compute) and self._masked[s].value is not None:
                slot = slot_of(s.dst)
                if slot in self._alias and slot in self._seen:
                    yield Compute("copy", s.dst, (self._alias[slot],))


def _seen_elsewhere(body: Body, masked: Mapping[int, Masked]) -> set[Slot]:
    """The registers of chunks that others than statements of their chunk may read."""
    own = {s.buffer for s in body if isinstance(s, Alloc)}
    chunks: dict[Slot, Chunk] = {}
    for k, m in masked.items():
        s = body[k]
        slot = slot_of(s.dst) if isinstance(s, Compute) and m.value is not None else None
        if slot is not None:
            chunks[slot] = m.chunk
    seen = {slot for slot in chunks if slot[0] not in own}
    for k, s in enumerate(body):
        chunk = masked[k].chunk if k in masked else None
        seen |= {x for x in slots_read(s) if x in chunks and chunks[x] is not chunk}
    return seen


# --- sums ---------------------------------------------------------------------------------------


def _adds_again(before: Statement, s: Compute) -> bool:
    """Whether a statement adds the same to the same sum as the one before it."""
    if not isinstance(before, Compute) or s.fn not in REPEATED or before.fn != s.fn:
        return False
    if before.predicate != s.predicate or slot_of(before.dst) != slot_of(s.dst):
        return False
    total, term = s.operands
    same = [
        isinstance(a, Reg) and isinstance(b, Reg) and slot_of(a) == slot_of(b)
        for a, b in zip(before.operands, s.operands, strict=True)
    ]
    is_sum = isinstance(total, Reg) and slot_of(total) == slot_of(s.dst) and total is not term
    return is_sum and all(same)


REPEATED = ("add", "max", "min", "and", "or")
"""What can be added several times at once."""


def _added(s: Statement, times: int) -> Body:
    """A statement that stands for so many that add the same."""
    if times == 1 or not isinstance(s, Compute) or s.fn != "add":
        return (s,)
    total, term = s.operands
    dtype = s.dst.buffer.dtype
    terms = Buffer(f"{s.dst.buffer.name}_{times}", dtype, Int(1), Memory.LOCAL)
    factor = Imm(float(times) if dtype.is_float else times, dtype)
    return (
        Alloc(terms),
        Compute("mul", Reg(terms), (term, factor), s.predicate),
        replace(s, operands=(total, Reg(terms))),
    )


# --- work ---------------------------------------------------------------------------------------


def _gain(chunk: Chunk, work: Iterable[tuple[float, float]], kernel: Kernel) -> float:
    """Instructions of a warp that branches save, in the mean: warps of which all lanes are dropped
    skip what is not common, those whose lanes part run both sides."""
    skipped = 1 - meeting_share(chunk.kept, kernel)
    parted = parting_share(chunk.kept, kernel)
    return sum(skipped * (all_ - common) - parted * common - UNIFORM_WORK for all_, common in work)


def _work(body: Body) -> float:
    """Instructions of computations."""
    return sum(_instructions(s.fn) for s in body if isinstance(s, Compute))


def _instructions(fn: str) -> float:
    exact, approximate = INSTRUCTIONS.get(fn.removesuffix("_approx"), (1.0, 1.0))
    return approximate if fn.endswith("_approx") else exact
