"""Loops whose body is several kernels, or that end when the device says so, in one block.

Where all that the kernels of a body hand on, and all that the loop carries, fits the shared memory
of a block, its threads do the work of all of them, one after the other, and meet in between:

    while (go(x)) x = b(a(x))     is
    s[0] = x;  go(s[0]);  for (lap < limit) { t = a(s[lap%2]);  s[1 - lap%2] = b(t);  go(..) }

A condition is one bool in shared memory, which every thread reads: `limit` is how many iterations
there are if it stays as it is, and 0 where it ends the loop.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from fusewright.core.conditions import TRUE, less
from fusewright.core.expr import (
    ONE,
    ZERO,
    Expr,
    Var,
    add,
    as_expr,
    constant_value,
    floordiv,
    mod,
    mul,
)
from fusewright.dtypes import bool_, int32
from fusewright.host.laps import Carried, Laps, in_loop, loop_around, of_loop, unlike
from fusewright.host.shared_places import SharedPlaces
from fusewright.kir.ir import (
    Alloc,
    Argument,
    Body,
    Buffer,
    Compute,
    Dim,
    For,
    If,
    Imm,
    Index,
    Kernel,
    Load,
    Memory,
    Reg,
    RegVar,
    Statement,
    Store,
)
from fusewright.kir.names import name_symbols
from fusewright.kir.substitute import Substitution, with_fresh_loops
from fusewright.kir.traverse import walk_statements
from fusewright.target import MAX_THREADS_PER_BLOCK, WARP_SIZE, Target

MOST = (1 << 31) - 4
"""Iterations that 32 bits count, and so the most of a loop that does not end by itself."""


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """A parameter of a kernel that is a part of an array of the body: where it begins in it."""

    of: SharedPlaces
    begins: Expr


@dataclass(frozen=True, slots=True, eq=False)
class Stages:
    """What an iteration consists of: the kernels of the `body`, and those of the condition, once as
    they stand in front of the loop and once `again` in it, none in a loop of known trips. Of their
    parameters, `laps` knows those that an iteration before has made and those that lie in memory;
    `made` are those that read what this iteration makes of a carried value, by its number, `inner`
    those of arrays that only kernels of the body or the condition have; `goes_on` is the condition,
    `limit` how often the loop runs as far as is known; None in a loop of known trips."""

    laps: Laps
    body: tuple[Kernel, ...]
    first: tuple[Kernel, ...]
    again: tuple[Kernel, ...]
    made: Mapping[Buffer, tuple[int, Expr]]
    inner: Mapping[Buffer, Part]
    goes_on: SharedPlaces | None
    limit: Reg | None


def private(kernel: Kernel, arguments: Mapping[Argument, Argument]) -> Kernel:
    """A kernel with arrays and registers of its own, and others in the place of arguments."""
    own = [s.buffer for s in walk_statements(kernel) if isinstance(s, Alloc)]
    buffers = {
        b: Buffer(b.name, b.dtype, b.size, b.memory, b.alignment) for b in (*kernel.params, *own)
    }
    renamed = Substitution({}, buffers, arguments)
    return replace(
        kernel,
        params=tuple(buffers[b] for b in kernel.params),
        arguments=tuple(arguments[a] for a in kernel.arguments),
        body=with_fresh_loops(renamed.body(kernel.body), {}),
        stored_once=tuple(buffers[b] for b in kernel.stored_once),
    )


def limit_of(name: str) -> Reg:
    """The register that says how often a loop runs."""
    return Reg(Buffer(name, int32, ONE, Memory.LOCAL))


def open_trips(limit: Reg) -> Expr:
    """How often a loop runs, as long as nothing changes that."""
    return RegVar(limit, 0, MOST)


def in_whole_block(stages: Stages, name: str, target: Target) -> Kernel | str:
    """The kernel of one block that runs all iterations; or why there is none.

    rewrite:  c<<<1, 32>>>(x, go); while (go) { a<<<4, 128>>>(x, t); b<<<1, 32>>>(t, x); c.. }
              -> one block, t and go in shared memory, x twice
    checks:   kernels whose threads exchange values have equal blocks; others are spread over all
              threads; what they hand on fits shared memory
    order:    behind lowering; before all passes, which place the barriers between kernels
    """
    laps = stages.laps
    kernels = (*stages.body, *stages.first, *stages.again)
    for k in kernels:
        why = unlike(k, laps) or _unfit(k)
        if why is not None:
            return why
    if len({k.attributes for k in kernels}) > 1:
        return "its kernels are compiled in different ways"
    block = _block_of(kernels)
    if isinstance(block, str):
        return block
    states = [_state(c, k) for k, c in enumerate(laps.carried)]
    known = [s for s in states if isinstance(s, SharedPlaces)]
    if len(known) < len(states):
        return next(s for s in states if isinstance(s, str))
    return _Writer(stages, known, block, target).kernel(name)


def _state(c: Carried, number: int) -> SharedPlaces | str:
    count = constant_value(c.written.size)
    if count is None:
        return f"the size of carried value {number} is known to calls only"
    return SharedPlaces(f"carried{number}", c.written.dtype, count, 2)


# --- threads -------------------------------------------------------------------------------------


def _unfit(kernel: Kernel) -> str | None:
    """Why a kernel's blocks cannot follow each other in one."""
    if kernel.cluster:
        return "its blocks stand in clusters"
    if any(constant_value(d.extent) is None for d in kernel.grid):
        return "its blocks are as many as a call says"
    return None


def _exchanges(kernel: Kernel) -> bool:
    """Whether threads of a kernel need the places in the block that it gives them."""
    for s in walk_statements(kernel):
        is_shared = isinstance(s, Alloc) and s.buffer.memory is Memory.SHARED
        if is_shared or not isinstance(s, Alloc | Load | Store | Compute | For | If):
            return True
    return False


def _extents(dims: tuple[Dim, ...]) -> tuple[int, ...]:
    return tuple(constant_value(d.extent) or 1 for d in dims)


def _block_of(kernels: tuple[Kernel, ...]) -> tuple[Dim, ...] | str:
    """The block in which all kernels run; or why there is none."""
    fixed = {_extents(k.block): k for k in kernels if _exchanges(k)}
    if len(fixed) > 1:
        listed = " and ".join(str(n) for n in sorted(fixed))
        return f"threads of its kernels exchange values in blocks of {listed}"
    if fixed:
        return next(iter(fixed.values())).block
    work = max(k.nthreads * _count(k) for k in kernels)
    n = min(-(-work // WARP_SIZE) * WARP_SIZE, MAX_THREADS_PER_BLOCK)
    first = kernels[0].block
    return tuple(
        Dim(Var(d.var.name, 0, e - 1), as_expr(e)) for d, e in zip(first, (n, 1, 1), strict=True)
    )


def _count(kernel: Kernel) -> int:
    out = 1
    for n in _extents(kernel.grid):
        out *= n
    return out


@dataclass(frozen=True, slots=True, eq=False)
class _Writer:
    """Writes the loop: what lies where, and which threads do what."""

    stages: Stages
    states: list[SharedPlaces]
    block: tuple[Dim, ...]
    target: Target

    @property
    def nthreads(self) -> int:
        out = 1
        for n in _extents(self.block):
            out *= n
        return out

    @property
    def thread(self) -> Expr:
        out: Expr = ZERO
        for d in reversed(self.block):
            out = add(mul(out, d.extent), d.var if d.extent != ONE else ZERO)
        return out

    def kernel(self, name: str) -> Kernel | str:
        stages, laps, limit = self.stages, self.stages.laps, self.stages.limit
        inner = list(dict.fromkeys(p.of for p in stages.inner.values()))
        shared = [*self.states, *inner]
        nbytes = sum(p.nbytes for p in shared)
        if nbytes > self.target.shared_nbytes_per_block:
            return f"what it carries and hands on takes {nbytes} bytes, more than a block has"
        turn = Reg(Buffer("turn", int32, ONE, Memory.LOCAL))
        now = mod(laps.lap, 2)
        after = add(ONE, mul(now, -1))
        body = [s for k in stages.body for s in self._stage(k, now, after)]
        body += (s for k in stages.again for s in self._stage(k, now, after))
        head: list[Statement] = [Alloc(p.buffer) for p in shared]
        head += (s for c, p in self._carried() if c.start for s in self._filled(c.start, p))
        made: Expr = mod(laps.trips, 2)
        if limit is not None:
            head += [Alloc(limit.buffer), Alloc(turn.buffer)]
            head.append(Compute("copy", turn, (Imm(0, int32),)))
            head += (s for k in stages.first for s in self._stage(k, ZERO, ZERO))
            head += self._asked(limit, ONE)
            body.append(Compute("copy", turn, (Index(after, int32),)))
            body += self._asked(limit, add(laps.lap, 2))
            made = RegVar(turn, 0, 1)
        tail = [
            s
            for c, p in self._carried()
            if c.result is not None
            for s in p.stored(c.result, mul(made, p.size), self.thread, self.nthreads)
        ]
        whole = (*head, loop_around(tuple(body), laps), *tail)
        return self._finished(whole, name)

    def _finished(self, body: Body, name: str) -> Kernel:
        stages = self.stages
        kernels = (*stages.body, *stages.first)
        first = kernels[0]
        symbols = tuple(dict.fromkeys(v for k in kernels for v in k.symbols))
        arguments = tuple(a for k in kernels for a in k.arguments)
        whole = replace(first, symbols=symbols, arguments=arguments)
        made = of_loop(whole, stages.laps, body, name)
        grid = tuple(Dim(Var(d.var.name, 0, 0), ONE) for d in first.grid)
        return name_symbols(replace(made, grid=grid, block=self.block, min_blocks=0))

    def _carried(self) -> list[tuple[Carried, SharedPlaces]]:
        return list(zip(self.stages.laps.carried, self.states, strict=True))

    def _filled(self, start: Buffer, places: SharedPlaces) -> Body:
        return places.filled(start, self.thread, self.nthreads)

    def _asked(self, limit: Reg, more: Expr) -> Body:
        """Sets the limit: `more` where the condition holds, else 0."""
        places = self.stages.goes_on
        assert places is not None
        go = Reg(Buffer("go", bool_, ONE, Memory.LOCAL))
        chosen = (go, Index(more, int32), Imm(0, int32))
        return Alloc(go.buffer), Load(go, places.buffer, ZERO), Compute("where", limit, chosen)

    def _stage(self, kernel: Kernel, now: Expr, after: Expr) -> Body:
        """The statements of a kernel over the arrays of the loop. `now`: the place of what the
        iteration before has made; `after`: of what this one makes."""
        instead: dict[Statement, list[Statement]] = {}
        for s in walk_statements(kernel):
            if isinstance(s, Load | Store):
                made = self._placed(s, now, after)
                if made:
                    instead[s] = made
        return self._spread(kernel, in_loop(kernel.body, instead, self.stages.laps))

    def _placed(self, s: Load | Store, now: Expr, after: Expr) -> list[Statement]:
        """An access in the places of what it accesses, nothing for what lies in memory alone."""
        stages = self.stages
        b = s.src if isinstance(s, Load) else s.dst
        if (part := stages.inner.get(b)) is not None:
            if isinstance(s, Load):
                return part.of.loads(s, part.begins, ZERO)
            return part.of.stores(s, part.begins, ZERO)
        if isinstance(s, Load) and b in stages.made:
            k, begins = stages.made[b]
            return self.states[k].loads(s, begins, mul(after, self.states[k].size))
        out: list[Statement] = []
        for c, p in self._carried():
            if isinstance(s, Load) and b in c.reads:
                out += p.loads(s, c.reads[b], mul(now, p.size))
            elif isinstance(s, Store) and b is c.written:
                out += p.stores(s, ZERO, mul(after, p.size))
        return out

    def _spread(self, kernel: Kernel, body: Body) -> Body:
        """The work of all blocks of a kernel, by the threads of the one."""
        if _exchanges(kernel):
            values: dict[Var, Expr] = {
                a.var: b.var for a, b in zip(kernel.block, self.block, strict=True)
            }
            rounds, number, inside = _count(kernel), ZERO, TRUE
            turn = Var("round", 0, rounds - 1)
            number = turn if rounds > 1 else ZERO
        else:
            values = {}
            total = kernel.nthreads * _count(kernel)
            rounds = -(-total // self.nthreads)
            turn = Var("round", 0, rounds - 1)
            number = add(self.thread, mul(turn, self.nthreads)) if rounds > 1 else self.thread
            inside = TRUE if total % self.nthreads == 0 else less(number, total)
            for d in kernel.block:
                values[d.var] = mod(number, d.extent)
                number = floordiv(number, d.extent)
        for d in kernel.grid:
            values[d.var] = mod(number, d.extent)
            number = floordiv(number, d.extent)
        new = Substitution(values).body(body)
        if inside != TRUE:
            new = (If(inside, new),)
        return new if rounds == 1 else (For(turn, as_expr(rounds), new, overlap=1),)
