"""Loops written out."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from itertools import count
from operator import is_

from fusewright.core.conditions import Cond
from fusewright.core.expr import Int, IntLike, Var, add, constant_value
from fusewright.core.symbolic import Symbolic
from fusewright.kir.ir import (
    Alloc,
    Body,
    BoxStore,
    Buffer,
    Compute,
    For,
    If,
    Kernel,
    Load,
    Memory,
    Mma,
    RegVar,
    Statement,
    StMatrix,
    Store,
    SyncStatement,
)
from fusewright.kir.substitute import Substitution
from fusewright.kir.traverse import (
    HAVE_BODIES,
    all_statements,
    all_variables,
    bodies_of,
    body_fields,
    own_expressions,
    own_registers,
    statements_of,
    walk_statements,
    with_bodies,
)
from fusewright.target import WORD_NBYTES

MOST_SHARED_ACCESSES = 192
"""Accesses of shared memory, loops written out, from which loops over what a thread does by itself
wait for syncs to be settled: these are judged for every pair of accesses."""
MOST_STATEMENTS = 1 << 12
"""Statements, loops written out, from which those loops wait as well: all passes walk over them."""
FEWEST_ALIKE = 3
"""Trips of a loop over parts of a tile of which several are alike: all but the first."""


def unroll(kernel: Kernel) -> Kernel:
    """Write out the loops that ask for it, and those that count through registers.

    rewrite:  for (i < 2) unroll { r[i] = f(s[4*i]) }   ->   r[0] = f(s[0]);  r[1] = f(s[4])
    checks:   nothing; a loop of unknown extent stays, and the final spec names it if a register
              index is left without a literal
    order:    before syncs are placed, so that addresses are explicit; each copy has registers and
              inner loop variables of its own, and syncs ids that are new; shared memory is
              allocated once, before the copies, which use it in turn as the iterations did
    """
    is_long = _written_out(kernel.body) > MOST_STATEMENTS
    waits = is_long or has_products(kernel) or _shared_accesses(kernel.body) > MOST_SHARED_ACCESSES
    return _unrolled(kernel, is_late=not waits)


def unroll_last(kernel: Kernel) -> Kernel:
    """Write out the loops over what a thread does by itself, where the kernel has many accesses,
    and those over parts of a tile that leave one after the other.

    rewrite:  for (j < 16) { r = f(sums[8*j]); .. }   ->   r_0 = f(sums[0]);  r_1 = f(sums[8]); ..
    checks:   nothing; in kernels without products and with few accesses `unroll` leaves none
    order:    behind all that looks at syncs and memory, which take such a loop as a whole: a
              product's 128 sums are 2,000 statements, and syncs of six parts of a tile 36 pairs;
              before the last simplify; copies of syncs have ids of their own
    """
    return _unrolled(kernel, is_late=True, keeps=has_products(kernel))


def has_products(kernel: Kernel) -> bool:
    """Whether warpgroups multiply matrices in a kernel."""
    return bool(statements_of(kernel, Mma))


def _unrolled(kernel: Kernel, *, is_late: bool, keeps: bool = False) -> Kernel:
    if not any(isinstance(s, For) for s in all_statements(kernel)):
        return kernel
    body = _Unroller(kernel, is_late=is_late, keeps=keeps).body(kernel.body)
    return kernel if body is kernel.body else dataclasses.replace(kernel, body=body)


class _Trip(Substitution):
    """What stands for symbols in one iteration of loops that are written out. An iteration behind
    the first `is_copy`: what is allocated, looped over and synchronised there is its own."""

    is_copy: bool

    def __init__(self, loop: For, k: IntLike, around: _Trip | None) -> None:
        outer: dict[Var, IntLike] = {} if around is None else around.variables
        kept = {v: e for v, e in outer.items() if not isinstance(v, RegVar)}
        super().__init__({**kept, loop.var: k}, None if around is None else around.buffers)
        self.is_copy = k != 0 or (around is not None and around.is_copy)


class _Unroller:
    """Unrolls from the outside in, so that inner extents become constant first. A statement is
    copied once, from where it stands in the kernel, however many loops around it are unrolled."""

    def __init__(self, kernel: Kernel, *, is_late: bool, keeps: bool) -> None:
        statements = all_statements(kernel)
        ids = [s.id for s in statements if isinstance(s, SyncStatement)]
        self._ids = count(max(ids, default=-1) + 1)
        self._is_late = is_late
        self._keeps = keeps
        self._wanted: dict[For, bool] = {}
        self._kept: dict[For, bool] = {}
        self._names = _names_of(kernel, statements)
        self._numbers: dict[str, Iterator[int]] = {}

    def body(self, body: Body, trip: _Trip | None = None) -> Body:
        """The body with its loops unrolled; the same object when there is nothing to do."""
        out: list[Statement] = []
        for s in body:
            trips = self._trips(s, trip) if type(s) is For else None
            if type(s) is For and trips is not None:
                if trip is None:
                    out += [a for a in walk_statements(s) if _is_shared(a)]
                if not self._is_late and trips >= FEWEST_ALIKE and _is_of_parts(s):
                    out += self.body(s.body, _Trip(s, 0, trip))
                    out.append(self._rest(s, trips, trip))
                    continue
                for k in range(trips):
                    out += self.body(s.body, _Trip(s, k, trip))
            elif trip is None:
                out.append(self._marked(with_bodies(s, self.body)))
            elif not _is_shared(s):
                out.append(self._copy(s, trip))
        same = len(out) == len(body) and all(map(is_, out, body))
        return body if same else tuple(out)

    def _rest(self, s: For, trips: int, trip: _Trip | None) -> For:
        """A loop over all trips but the first."""
        var = Var(s.var.name, 0, trips - 2)
        return For(var, Int(trips - 1), self.body(s.body, _Trip(s, add(var, 1), trip)), unroll=True)

    def _trips(self, s: For, trip: _Trip | None) -> int | None:
        """The iterations of a loop that is to be written out; None for other loops."""
        if s not in self._wanted:
            asks = s.unroll or counts_registers(s)
            self._wanted[s] = asks and (self._is_late or not _is_own(s)) and not self._stays(s)
        if not self._wanted[s]:
            return None
        return constant_value(s.extent if trip is None else trip.expr(s.extent))

    def _copy(self, s: Statement, trip: _Trip) -> Statement:
        """A statement as it stands in an iteration."""
        if trip.is_copy:
            if type(s) is Alloc:
                b = s.buffer
                own = Buffer(self._own_name(b), b.dtype, b.size, b.memory, b.alignment, b.tile)
                trip.buffers[b] = own
            elif type(s) is For:
                trip.replace(s.var, _own_variable(s, trip))
        if not body_fields(type(s)):
            new = trip.node(s)
            if trip.is_copy and isinstance(new, SyncStatement):
                return dataclasses.replace(new, id=next(self._ids))
            return new
        inside = iter(bodies_of(s))
        head = trip.node(with_bodies(s, lambda _: ()))
        return self._marked(with_bodies(head, lambda _: self.body(next(inside), trip)))

    def _stays(self, s: For) -> bool:
        """Whether a loop is left to the compiler, which unrolls it."""
        if not self._keeps or constant_value(s.extent) is None:
            return False
        if s not in self._kept:
            self._kept[s] = _is_own(s) and not _needs_literal(s)
        return self._kept[s]

    def _marked(self, s: Statement) -> Statement:
        """A loop that counts registers and stays, marked to be unrolled by the compiler."""
        if type(s) is not For or s.unroll or not (self._stays(s) and counts_registers(s)):
            return s
        return dataclasses.replace(s, unroll=True)

    def _own_name(self, b: Buffer) -> str:
        """A name for a copy of a buffer, which nothing in the kernel has."""
        numbers = self._numbers.setdefault(b.name, count(1))
        name = next(n for k in numbers if (n := f"{b.name}_{k}") not in self._names)
        self._names.add(name)
        return name


def _names_of(kernel: Kernel, statements: Sequence[Statement]) -> set[str]:
    """The names that symbols of a kernel have."""
    dims = (d.var for d in (*kernel.grid, *kernel.block, *kernel.cluster))
    header = (*kernel.symbols, *dims, *kernel.params, *kernel.maps, *kernel.arguments)
    return {
        *(x.name for x in header),
        *(s.buffer.name for s in statements if isinstance(s, Alloc)),
        *(s.var.name for s in statements if isinstance(s, For)),
    }


def _own_variable(loop: For, known: Substitution) -> Var:
    v = loop.var
    upper = None if v.upper is None else known.expr(v.upper)
    return Var(v.name, known.expr(v.lower), upper, v.multiple_of)


def trip_of(loop: For, k: int) -> Body:
    """The statements of trip `k`, with buffers and inner loop variables of their own."""
    substitution = Substitution({loop.var: k})
    for s in walk_statements(loop):
        if isinstance(s, Alloc):
            b = s.buffer
            new = Buffer(f"{b.name}_{k}", b.dtype, b.size, b.memory, b.alignment, b.tile)
            substitution.buffers[b] = new
        elif isinstance(s, For):
            substitution.replace(s.var, _own_variable(s, substitution))
    return substitution.body(loop.body)


def _is_own(loop: For) -> bool:
    """Whether a loop holds nothing but what a thread computes, reads once and stores."""
    return all(
        isinstance(s, Compute | Load | Store | StMatrix | If | For)
        or (isinstance(s, Alloc) and s.buffer.memory is Memory.LOCAL)
        for s in walk_statements(loop)
    )


def _needs_literal(loop: For) -> bool:
    """Whether more than addresses and registers of whole words follows from the loop's variable: a
    part of a word, a condition, or which lanes of a load exist and where in a word it begins. What
    holds in an iteration is known here by the bounds of blocks and of loops around, which the
    compiler does not see."""
    for s in walk_statements(loop):
        found: list[Symbolic] = [e for e in own_expressions(s) if isinstance(e, Cond)]
        found += [r.index for r in own_registers(s) if r.buffer.dtype.nbytes < WORD_NBYTES]
        if isinstance(s, Load):
            found += own_expressions(s.lanes)
            found += [s.index] if s.lanes.begins is None else []
        if any(loop.var in all_variables(e) for e in found):
            return True
    return False


def _is_of_parts(loop: For) -> bool:
    """Whether a loop leaves parts of a tile to the copy engine: what is behind the first is alike,
    so that syncs of one trip stand for all."""
    return any(isinstance(s, BoxStore) for s in walk_statements(loop))


def _shared_accesses(body: Body) -> int:
    """Loads from shared memory and stores to it, with loops that ask for it written out."""
    total = 0
    for s in body:
        match s:
            case For():
                trips = constant_value(s.extent) if s.unroll else 1
                total += (trips or 1) * _shared_accesses(s.body)
            case If():
                total += _shared_accesses(s.then) + _shared_accesses(s.otherwise)
            case Load():
                total += s.src.memory is Memory.SHARED
            case Store():
                total += s.dst.memory is Memory.SHARED
            case _:
                pass
    return total


def _written_out(body: Body) -> int:
    """Statements of a body, with loops that ask for it written out."""
    total = 0
    for s in body:
        match s:
            case For():
                trips = constant_value(s.extent) if s.unroll else 1
                total += (trips or 1) * _written_out(s.body)
            case _ if HAVE_BODIES[type(s)]:
                total += sum(map(_written_out, bodies_of(s)))
            case _:
                total += 1
    return total


def _is_shared(s: Statement) -> bool:
    return type(s) is Alloc and s.buffer.memory is Memory.SHARED


def counts_registers(loop: For) -> bool:
    """Whether the loop's variable is in the index of a register."""
    return any(
        loop.var in all_variables(r.index) for s in walk_statements(loop) for r in own_registers(s)
    )
