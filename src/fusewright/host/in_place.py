"""Results in the memory of arguments: which may be, in which order launches run, and why not.

An argument that the caller gives away can hold a result: launches write over its old content. The
old content must not be read later, and a launch that reads it may only write what the same thread
has read before.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from fusewright.core.conditions import TRUE, less_equal, prove, substitute_condition
from fusewright.core.expr import ZERO, Var, add
from fusewright.core.substitution import substitute
from fusewright.fusion.ir import (
    Concat,
    Fusion,
    Input,
    Insert,
    Pointwise,
    Resize,
    Tensor,
    ViewBase,
    contiguous_strides,
)
from fusewright.fusion.orders import Order
from fusewright.host.assemble import KernelCall
from fusewright.host.subspans import VECTOR_ALIGNMENT, Subspan
from fusewright.kir.analysis.uses import memory_uses
from fusewright.kir.ir import Body, Buffer, For, If, Load, Statement, Store
from fusewright.kir.traverse import body_fields

Versions = Mapping[tuple[Tensor, Tensor], int]
"""For values in the memory of an argument (value, argument): which content of it they belong to;
a higher number is written over lower ones. What the caller passed has no entry."""


@dataclass(frozen=True, slots=True)
class Conflict:
    """Why an argument's memory cannot hold the result that it was meant for."""

    argument: Tensor
    why: str


def holders(fusion: Fusion, argument: Tensor) -> list[Tensor]:
    """The results that could lie in an argument's memory, those first that keep most of it."""
    op = argument.op
    assert isinstance(op, Input)
    dense = contiguous_strides(argument.shape)
    if op.strides != dense or op.alignment < VECTOR_ALIGNMENT:
        return []
    fits = [
        t
        for t in dict.fromkeys(fusion.outputs)
        if t.shape == argument.shape and t.dtype is argument.dtype
    ]
    return sorted(fits, key=lambda t: _distance(t, argument))


def held_by(
    whole: Fusion, donated: Mapping[int, int | None], permuted: Mapping[str, Order]
) -> dict[Tensor, list[Tensor]]:
    """By donated input the results that may be made in its memory: those in C order."""
    choices: dict[Tensor, list[Tensor]] = {}
    for k, at in donated.items():
        x = whole.inputs[k]
        fitting = (t for t in holders(whole, x) if t.name not in permuted)
        choices[x] = [t for t in fitting if at is None or t is whole.outputs[at]]
    return choices


def _distance(t: Tensor, argument: Tensor) -> int:
    """0 where moves of values lead from an argument to a result, 1 where functions of single
    elements do too, else 2."""
    moves = (Concat, Insert, Resize, ViewBase)
    for distance, kinds in enumerate([moves, (*moves, Pointwise)]):
        seen: set[Tensor] = set()
        stack = [t]
        while stack:
            o = stack.pop()
            if o is argument:
                return distance
            if o not in seen and (isinstance(o.op, kinds) or _is_copy(o)):
                seen.add(o)
                stack.extend(o.op.operands)
    return 2


def _is_copy(t: Tensor) -> bool:
    return isinstance(t.op, Pointwise) and t.op.fn == "copy"


# --- order --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Use:
    """One parameter of a call: where it lies, whether it is written, and of which content of its
    root (None for what the caller passed)."""

    call: int
    buffer: Buffer
    site: Subspan
    writes: bool
    version: int | None

    def precedes(self, other: _Use) -> bool:
        """Whether this use, of two of one root, is of earlier content, or makes what the other
        one reads."""
        mine = -1 << 30 if self.version is None else self.version
        others = -1 << 30 if other.version is None else other.version
        return mine < others if mine != others else self.writes and not other.writes


def in_order(calls: Sequence[KernelCall], versions: Versions) -> list[int] | Conflict:
    """The calls in an order in which nobody reads what has been written over; as far as that
    allows in the order given. A conflict where no order does."""
    before: list[set[int]] = [set() for _ in calls]
    turned: list[tuple[_Use, _Use]] = []
    for uses in _uses(calls, versions).values():
        for a, b in combinations(uses, 2):
            if not (a.writes or b.writes) or are_apart(a.site, b.site):
                continue
            first, second = (b, a) if b.precedes(a) else (a, b)
            if first.call != second.call:
                before[second.call].add(first.call)
                if first.call > second.call:
                    turned.append((first, second))
            elif first.writes and second.writes and first.version != second.version:
                return Conflict(first.site.root, _both_written(calls[first.call], first, second))
            elif not first.writes:
                why = _overwrite_problem(calls[first.call], first, second)
                if why is not None:
                    return Conflict(first.site.root, why)
    order = _sorted(before)
    if len(order) == len(calls):
        return order
    first, second = next((a, b) for a, b in turned if a.call not in order)
    names = calls[first.call].kernel.name, calls[second.call].kernel.name
    return Conflict(
        first.site.root,
        f"{names[0]} reads {first.site.tensor.name}, and needs what {names[1]} makes in its place",
    )


def _uses(calls: Sequence[KernelCall], versions: Versions) -> dict[Tensor, list[_Use]]:
    """The uses of every root, in order of calls."""
    out: dict[Tensor, list[_Use]] = {}
    for k, x in enumerate(calls):
        for i, (buffer, s) in enumerate(zip(x.kernel.arrays, (*x.inputs, *x.outputs), strict=True)):
            version = versions.get((s.tensor, s.root))
            use = _Use(k, buffer, s, i >= len(x.inputs), version)
            out.setdefault(s.root, []).append(use)
    return {root: uses for root, uses in out.items() if any(u.writes for u in uses)}


def _sorted(before: Sequence[set[int]]) -> list[int]:
    """Topological order, the smallest number first; shorter where there is a cycle."""
    waits = [set(b) for b in before]
    ready = [k for k, w in enumerate(waits) if not w]
    order: list[int] = []
    while ready:
        k = heapq.heappop(ready)
        order.append(k)
        for j, w in enumerate(waits):
            if k in w:
                w.remove(k)
                if not w:
                    heapq.heappush(ready, j)
    return order


def are_apart(a: Subspan, b: Subspan) -> bool:
    """Whether two sites of one root surely share no element."""
    if ZERO in a.shape or ZERO in b.shape:
        return True
    return any(
        prove(less_equal(add(s, n), t)) is True or prove(less_equal(add(t, m), s)) is True
        for (s, n), (t, m) in zip(a.box, b.box, strict=True)
    )


# --- one launch that reads and writes the same memory -------------------------------------------


@dataclass(frozen=True, slots=True)
class At:
    """A statement of a kernel: its place, outer positions first, and the loops and branches it
    stands in."""

    statement: Statement
    place: tuple[int, ...]
    loops: tuple[For, ...]
    branches: tuple[tuple[If, str], ...]


def _both_written(call: KernelCall, first: _Use, second: _Use) -> str:
    names = f"{second.site.tensor.name} over a part of {first.site.tensor.name}"
    return f"{call.kernel.name} would write {names} in no order"


def _overwrite_problem(call: KernelCall, read: _Use, write: _Use) -> str | None:
    """Why a kernel may not write where it reads; None where every element is written by the thread
    that reads it, later, and by no other: kernels write each element once, so a load at the very
    index of a store, in as many iterations, is all that may be."""
    kernel = call.kernel
    name = read.site.tensor.name
    if call.region is not None:
        operand, result = kernel.params.index(read.buffer), kernel.params.index(write.buffer)
        if operand in call.region.replaced.get(result - len(call.inputs), ()):
            return None
        return f"{kernel.name} reads {name} in every iteration"
    if read.site.offset != write.site.offset or read.site.strides != write.site.strides:
        return f"{kernel.name} reads {name} at other places than it writes"
    found = placed_statements(kernel.body)
    stores = [x for x in found if isinstance(x.statement, Store) and _dst(x) is write.buffer]
    for x in found:
        if not any(u.buffer is read.buffer for u in memory_uses(x.statement)):
            continue
        if not isinstance(x.statement, Load):
            return f"{kernel.name} reads {name} by copies that pass by the registers"
        if not any(is_replaced(x, s) for s in stores):
            return (
                f"{kernel.name} reads elements of {name} in other threads than those that write "
                "them, or more often"
            )
    return None


def _dst(x: At) -> Buffer | None:
    return x.statement.dst if isinstance(x.statement, Store) else None


def placed_statements(
    body: Body,
    place: tuple[int, ...] = (),
    loops: tuple[For, ...] = (),
    branches: tuple[tuple[If, str], ...] = (),
) -> list[At]:
    out: list[At] = []
    for k, s in enumerate(body):
        at = (*place, k)
        inside = (*loops, s) if isinstance(s, For) else loops
        out.append(At(s, at, loops, branches))
        for number, field in enumerate(body_fields(type(s))):
            taken = (*branches, (s, field)) if isinstance(s, If) else branches
            out += placed_statements(getattr(s, field), (*at, number), inside, taken)
    return out


def is_replaced(load: At, store: At) -> bool:
    """Whether each run of a load is followed, in its thread, by the run of a store that alone
    writes the same elements."""
    a, b = load.statement, store.statement
    assert isinstance(a, Load) and isinstance(b, Store)
    if load.place >= store.place or a.width != b.width or len(load.loops) != len(store.loops):
        return False
    if store.branches != load.branches[: len(store.branches)]:
        return False
    renamed: dict[Var, Var] = {}
    for x, y in zip(load.loops, store.loops, strict=True):
        if x is not y:
            if x.extent != y.extent:
                return False
            renamed[x.var] = y.var
    if substitute(a.index, renamed) != b.index:
        return False
    return b.predicate == TRUE or substitute_condition(a.predicate, renamed) == b.predicate
