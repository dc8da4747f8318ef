"""Loops of one block: all iterations in one launch, with the carried values in shared memory.

Where threads read what others write, they have to wait for each other between two iterations. The
threads of a block can, and so a body whose threads fit a block needs no other launch: an iteration
reads one half of a buffer in shared memory, and writes the other.

    y = body(x); z = body(y); ..     is
    s[0] = x;  for lap { s[1 - lap%2] = body(s[lap%2]) };  z = s[trips%2]
"""

from __future__ import annotations

from dataclasses import replace

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
from fusewright.host.laps import Carried, Laps, in_loop, loop_around, of_loop, unlike
from fusewright.host.shared_places import SharedPlaces
from fusewright.kir.ir import (
    Alloc,
    Body,
    Buffer,
    Dim,
    For,
    Kernel,
    Load,
    Memory,
    Statement,
    Store,
)
from fusewright.kir.substitute import Substitution
from fusewright.kir.traverse import walk_statements
from fusewright.target import (
    MAX_THREADS_ALONG_Z,
    MAX_THREADS_PER_BLOCK,
    WARP_SIZE,
    Target,
)


def in_one_block(kernel: Kernel, laps: Laps, name: str, target: Target) -> Kernel | str:
    """The kernel of one block that runs all iterations of a loop whose body is a kernel, as
    lowering made it; or why there is none.

    rewrite:  v = load x[f(t)];  store y[t] = g(v)
              -> s[t] = x[t];  for (lap) { v = load s[h + f(t)];  store s[n - h + t] = g(v) }
              with h = lap%2 * n
    checks:   all blocks of the body find room in one, one by one or side by side, and so do the
              carried values, twice
    order:    behind lowering; before all passes, which place the barriers between iterations
    """
    why = unlike(kernel, laps)
    if why is not None:
        return why
    block = _Block.of(kernel)
    if isinstance(block, str):
        return block
    states: dict[Buffer, list[_State]] = {}
    nbytes = 0
    for k, c in enumerate(laps.carried):
        state = _State.of(c, k, laps)
        if isinstance(state, str):
            return state
        nbytes += state.places.nbytes
        for b in (*c.reads, c.written):
            states.setdefault(b, []).append(state)
    if nbytes > target.shared_nbytes_per_block:
        return f"two places of what it carries take {nbytes} bytes, more than a block has"
    instead: dict[Statement, list[Statement]] = {}
    for s in walk_statements(kernel):
        if isinstance(s, Load):
            for state in states.get(s.src, ()):
                instead[s] = state.loads(s)
        elif isinstance(s, Store):
            found = states.get(s.dst, ())
            stores = [made for state in found for made in state.stores(s)]
            if stores:
                instead[s] = stores
    inside = block.around(in_loop(kernel.body, instead, laps))
    own = list(dict.fromkeys(x for found in states.values() for x in found))
    body = (
        *(Alloc(x.places.buffer) for x in own),
        *(s for x in own for s in x.first(block)),
        loop_around(inside, laps),
        *(s for x in own for s in x.last(block)),
    )
    made = of_loop(kernel, laps, body, name)
    return replace(made, grid=block.grid, block=block.block, min_blocks=0)


# --- blocks in a block ---------------------------------------------------------------------------


class _Block:
    """One block that does the work of all: `beside` of them at a time, along a dimension `spare`
    that theirs have no threads along."""

    def __init__(self, kernel: Kernel, blocks: int, beside: int, spare: int) -> None:
        self._kernel, self._rounds, self._count = kernel, blocks // beside, beside
        self._spare = kernel.block[spare].var
        self._beside = Var(self._spare.name, 0, beside - 1) if beside > 1 else self._spare
        dims = list(kernel.block)
        if beside > 1:
            dims[spare] = Dim(self._beside, as_expr(beside))
        self.block = tuple(dims)
        self.grid = tuple(Dim(Var(d.var.name, 0, 0), ONE) for d in kernel.grid)
        x, y, z = self.block
        self.thread = add(x.var, mul(add(y.var, mul(z.var, y.extent)), x.extent))
        self.nthreads = kernel.nthreads * beside

    @staticmethod
    def of(kernel: Kernel) -> _Block | str:
        """The block; or why there is none."""
        extents = [constant_value(d.extent) for d in kernel.grid]
        if None in extents:
            return "its blocks are as many as a call says"
        if kernel.cluster:
            return "its blocks stand in clusters"
        blocks = 1
        for n in extents:
            blocks *= n or 0
        spare = next((k for k in (1, 2) if kernel.block[k].extent == ONE), None)
        alone = spare is None or kernel.nthreads % WARP_SIZE
        for s in walk_statements(kernel):
            alone = alone or (isinstance(s, Alloc) and s.buffer.memory is Memory.SHARED)
        most = MAX_THREADS_PER_BLOCK if spare == 1 else MAX_THREADS_ALONG_Z
        room = 1 if alone else min(most, MAX_THREADS_PER_BLOCK // kernel.nthreads)
        beside = max(n for n in range(1, room + 1) if blocks % n == 0)
        return _Block(kernel, blocks, beside, spare or 1)

    def around(self, body: Body) -> Body:
        """The statements of all blocks, those that do not stand side by side one after the
        other."""
        number: Expr = self._beside if self._count > 1 else ZERO
        turn = Var("turn", 0, self._rounds - 1)
        if self._rounds > 1:
            number = add(number, mul(turn, self._count))
        values: dict[Var, Expr] = {}
        for d in self._kernel.grid:
            values[d.var] = mod(number, d.extent)
            number = floordiv(number, d.extent)
        if self._count > 1:
            values[self._spare] = ZERO
        new = Substitution(values).body(body)
        return new if self._rounds == 1 else (For(turn, as_expr(self._rounds), new, overlap=1),)


# --- what is carried -----------------------------------------------------------------------------


class _State:
    """Two places of a carried value in shared memory."""

    def __init__(self, c: Carried, count: int, number: int, laps: Laps) -> None:
        self.carried, self._laps = c, laps
        self.places = SharedPlaces(f"carried{number}", c.written.dtype, count, 2)

    @staticmethod
    def of(c: Carried, number: int, laps: Laps) -> _State | str:
        """The places of carried value `number`; or why there are none."""
        count = constant_value(c.written.size)
        if count is None:
            return f"the size of carried value {number} is known to calls only"
        return _State(c, count, number, laps)

    def loads(self, s: Load) -> list[Statement]:
        """A load of what the iteration before has made."""
        now = mul(mod(self._laps.lap, 2), self.places.size)
        return self.places.loads(s, self.carried.reads[s.src], now)

    def stores(self, s: Store) -> list[Statement]:
        """A store where the next iteration reads."""
        other = add(ONE, mul(mod(self._laps.lap, 2), -1))
        return self.places.stores(s, ZERO, mul(other, self.places.size))

    def first(self, block: _Block) -> Body:
        """Fills the place that the first iteration reads."""
        start = self.carried.start
        return () if start is None else self.places.filled(start, block.thread, block.nthreads)

    def last(self, block: _Block) -> Body:
        """Stores what the last iteration has made."""
        result = self.carried.result
        if result is None:
            return ()
        made = mul(mod(self._laps.trips, 2), self.places.size)
        return self.places.stored(result, made, block.thread, block.nthreads)
