"""Kernels that run all iterations of a loop, and keep what one hands to the next in registers.

The body of a loop is compiled as a program of its own. Where that is one kernel, each of whose
threads reads only those elements of the carried values that it writes itself, no thread waits for
another between two iterations, and the loop may as well stand in the kernel:

    x1 = body(x0); x2 = body(x1); ..     is, with k for the elements of a thread,
    k = load x0;  for lap { k = body(k) };  store x = k
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from fusewright.core.conditions import TRUE, substitute_condition
from fusewright.core.expr import (
    ZERO,
    Expr,
    Var,
    add,
    as_expr,
    constant_value,
    is_multiple,
    mul,
    variables,
)
from fusewright.fusion.call_numbers import Lap
from fusewright.host.in_place import At, is_replaced, placed_statements
from fusewright.kir.ir import (
    Alloc,
    Body,
    Buffer,
    Compute,
    For,
    Imm,
    Kernel,
    Load,
    Memory,
    Reg,
    RegVar,
    Statement,
    Store,
)
from fusewright.kir.substitute import Substitution, with_fresh_loops
from fusewright.kir.traverse import map_body, walk_statements, with_bodies


@dataclass(frozen=True, slots=True, eq=False)
class LapPart:
    """A parameter of the body that is a part of one of the loop: which, and how many elements
    behind the begin of that it lies, by the number of the iteration."""

    of: Buffer
    begins: Expr


@dataclass(frozen=True, slots=True, eq=False)
class Carried:
    """A value that every iteration changes: the parameters of the body that read it, each with how
    many elements behind its begin, and the one that writes it; the loop's parameters of what it
    starts from, None where no iteration reads that, and of what is left, None where nothing does.
    """

    reads: Mapping[Buffer, Expr]
    written: Buffer
    start: Buffer | None
    result: Buffer | None


@dataclass(frozen=True, slots=True, eq=False)
class Laps:
    """A loop around a kernel: how often it runs, from the last iteration on if `reverse`, and what
    stands in the body for the number of an iteration. `parts`: the places of the other parameters
    of the body, several where a value is stored at several; `params`: all of the loop, in order;
    `results` those that it writes."""

    trips: Expr
    reverse: bool
    index: Lap | None
    lap: Var
    carried: tuple[Carried, ...]
    parts: Mapping[Buffer, tuple[LapPart, ...]]
    params: tuple[Buffer, ...]
    results: tuple[Buffer, ...]

    @property
    def number(self) -> Expr:
        """The number of an iteration as slices are counted."""
        return add(self.trips, mul(self.lap, -1), -1) if self.reverse else self.lap


def lap_of(trips: Expr) -> Var:
    """The number of an iteration in the order in which they run."""
    return Var("lap", 0, add(trips, -1))


def in_one_launch(kernel: Kernel, laps: Laps, name: str) -> Kernel | str:
    """The kernel that runs all iterations of a loop whose body is a kernel, as lowering made it; or
    why there is none.

    rewrite:  v = load x[t];  store y[t] = f(v)
              -> k = load x[t];  for (lap) { v = k;  k = f(v) };  store y[t] = k
    checks:   every element of a carried value that a thread reads is written by that thread, later,
              and every thread's elements have registers of their own
    order:    behind lowering; before all passes, which see one loop more
    """
    why = unlike(kernel, laps)
    if why is not None:
        return why
    kept: list[_Kept] = []
    for k, c in enumerate(laps.carried):
        found = _kept_of(kernel, c, k, laps)
        if isinstance(found, str):
            return found
        kept += found
    instead: dict[Statement, list[Statement]] = {}
    for x in kept:
        for at in x.loads:
            instead[at.statement] = list(x.read(at))
        instead.setdefault(x.store.statement, []).extend(x.write())
    before = *(Alloc(x.registers) for x in kept), *(s for x in kept for s in x.first())
    inside = in_loop(kernel.body, instead, laps)
    body = *before, loop_around(inside, laps), *(s for x in kept for s in x.last())
    return of_loop(kernel, laps, body, name)


def unlike(kernel: Kernel, laps: Laps) -> str | None:
    """Why no loop can stand around the statements of a kernel as they are; None where one can."""
    if kernel.state or kernel.scratch or kernel.maps:
        return "its blocks wait for each other, or read boxes"
    if laps.index is not None and any(laps.index in variables(d.extent) for d in kernel.grid):
        return "as many blocks as the number of the iteration says compute it"
    for s in walk_statements(kernel):
        match s:
            case Alloc() if s.copied is not None or s.stages > 1:
                return "it copies tiles ahead"
            case Load(src=b, width=width):
                begin = (p.begins for p in laps.parts.get(b, ()) if s.lanes.begins is not None)
                if not all(is_multiple(e, width) for e in begin):
                    return f"{b} begins at no multiple of {width} elements"
                why = _unaligned(b, width, laps)
            case Store(dst=b):
                why = _unaligned(b, s.width, laps)
            case _:
                uses = (u for u in s.memory_uses() if u.buffer.memory is Memory.GLOBAL)
                why = f"{type(s).__name__} accesses memory" if any(uses) else None
        if why is not None:
            return why
    return None


def _unaligned(b: Buffer, width: int, laps: Laps) -> str | None:
    """Why an access of a part cannot be one of the whole."""
    for p in laps.parts.get(b, ()):
        if p.of.alignment < min(width * b.dtype.nbytes, b.alignment):
            return f"{p.of} is not aligned as {b} is"
    return None


# --- what threads keep ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class _Kept:
    """The registers of a thread for what one store of a carried value writes, in all of its runs:
    the store, the loads that read the same elements, and the loops around it."""

    carried: Carried
    registers: Buffer
    store: At
    loads: tuple[At, ...]

    def register(self, at: At, lane: int) -> Reg:
        """Where a run of the store, or of one of its loads, has an element."""
        out: Expr = ZERO
        for loop in at.loops:
            out = add(mul(out, loop.extent), loop.var)
        return Reg(self.registers, add(mul(out, self._width), lane))

    @property
    def _width(self) -> int:
        assert isinstance(self.store.statement, Store)
        return self.store.statement.width

    def first(self) -> Body:
        """Fills the registers before the first iteration."""
        s, start = self.store.statement, self.carried.start
        assert isinstance(s, Store)
        if start is None:
            return ()
        zero = Imm(0.0 if start.dtype.is_float else 0, start.dtype)
        fill = None if s.predicate == TRUE else zero
        load = Load(self.register(self.store, 0), start, s.index, s.width, s.predicate, fill)
        return self._around(load)

    def last(self) -> Body:
        """Stores the registers behind the last iteration."""
        s, result = self.store.statement, self.carried.result
        assert isinstance(s, Store)
        if result is None:
            return ()
        return self._around(replace(s, dst=result, src=self.register(self.store, 0)))

    def _around(self, s: Statement) -> Body:
        """A statement in loops like those around the store."""
        for loop in reversed(self.store.loops):
            s = replace(loop, body=(s,))
        return with_fresh_loops([s], {})

    def read(self, at: At) -> Body:
        """What stands in the place of a load."""
        load, store = at.statement, self.store.statement
        assert isinstance(load, Load) and isinstance(store, Store)
        renamed = {a.var: b.var for a, b in zip(at.loops, self.store.loops, strict=True)}
        is_alike = substitute_condition(load.predicate, renamed) == store.predicate
        fill = load.fill
        zeros = fill is not None and fill.value == 0 and self.carried.start is not None
        predicate = TRUE if is_alike and (fill is None or zeros) else load.predicate
        out: list[Statement] = []
        for k in range(load.width):
            dst = Reg(load.dst.buffer, add(load.dst.index, k))
            if predicate != TRUE and fill is not None:
                out.append(Compute("copy", dst, (fill,)))
            out.append(Compute("copy", dst, (self.register(at, k),), predicate))
        return tuple(out)

    def write(self) -> Body:
        """What stands in the place of the store."""
        s = self.store.statement
        assert isinstance(s, Store)
        return tuple(
            Compute(
                "copy",
                self.register(self.store, k),
                (Reg(s.src.buffer, add(s.src.index, k)),),
                s.predicate,
            )
            for k in range(s.width)
        )


def _kept_of(kernel: Kernel, c: Carried, number: int, laps: Laps) -> list[_Kept] | str:
    """What threads keep of a carried value; or why they cannot."""
    found = placed_statements(kernel.body)
    stores = [x for x in found if isinstance(x.statement, Store) and x.statement.dst is c.written]
    loads = [x for x in found if isinstance(x.statement, Load) and x.statement.src in c.reads]
    for x in stores:
        if x.branches or not all(n.unroll and _is_known(n.extent) for n in x.loops):
            return f"a thread writes elements of carried value {number} in loops or branches"
        if not _is_steady(x, laps):
            return f"where carried value {number} is written depends on the iteration"
    of: dict[At, list[At]] = {x: [] for x in stores}
    for x in loads:
        store = next((s for s in stores if _keeps(x, s, c)), None)
        if store is None:
            return f"carried value {number} is read by other threads than those that write it"
        of[store].append(x)
    return [
        _Kept(c, _registers(c, store, f"kept{number}_{k}"), store, tuple(of[store]))
        for k, store in enumerate(stores)
    ]


def _is_known(e: Expr) -> bool:
    return constant_value(e) is not None


def _keeps(load: At, store: At, c: Carried) -> bool:
    """Whether a load reads what a store writes in the iteration before, thread by thread."""
    s = load.statement
    assert isinstance(s, Load)
    placed = replace(load, statement=replace(s, index=add(c.reads[s.src], s.index)))
    return s.lanes.begins == 0 and is_replaced(placed, store)


def _is_steady(x: At, laps: Laps) -> bool:
    """Whether a store writes the same elements in every iteration: neither the number of the
    iteration nor what it computes says where."""
    s = x.statement
    assert isinstance(s, Store)
    own = {n.var for n in x.loops}
    free = {v for e in (s.index, s.predicate) for v in variables(e)} - own
    return not any(v is laps.index or hasattr(v, "reg") for v in free)


def _registers(c: Carried, store: At, name: str) -> Buffer:
    s = store.statement
    assert isinstance(s, Store)
    size = s.width
    for loop in store.loops:
        size *= constant_value(loop.extent) or 0
    return Buffer(name, c.written.dtype, as_expr(size), Memory.LOCAL, s.width * s.dst.dtype.nbytes)


# --- the loop ------------------------------------------------------------------------------------


def loop_around(body: Body, laps: Laps) -> For:
    """All iterations, one after the other, of a body over the numbers of these."""
    number: dict[Var, Expr] = {} if laps.index is None else {laps.index: laps.number}
    return For(laps.lap, laps.trips, Substitution(number).body(body), overlap=1)


def of_loop(kernel: Kernel, laps: Laps, body: Body, name: str) -> Kernel:
    """A kernel over the arrays of the loop, with other statements."""
    sizes = (laps.trips, *(b.size for b in laps.params))
    sizes = (*sizes, *(p.begins for ps in laps.parts.values() for p in ps))
    mentioned = (v for e in sizes for v in variables(e))
    own = (laps.lap, laps.index)
    found = (v for v in (*kernel.symbols, *mentioned) if not isinstance(v, RegVar))
    symbols = (v for v in found if v not in own)
    return replace(
        kernel,
        name=name,
        params=laps.params,
        symbols=tuple(dict.fromkeys(symbols)),
        body=body,
        stored_once=laps.results,
    )


def in_loop(body: Body, instead: Mapping[Statement, Sequence[Statement]], laps: Laps) -> Body:
    """The statements of the body over the arrays of the loop, some by others."""
    return map_body(body, lambda s: _replaced(s, instead, laps))


def _replaced(
    s: Statement, instead: Mapping[Statement, Sequence[Statement]], laps: Laps
) -> Sequence[Statement]:
    """A statement of the body as it stands in the loop."""
    out = list(instead.get(s, ()))
    if isinstance(s, Load):
        parts = laps.parts.get(s.src, ())
        out += (replace(s, src=p.of, index=add(p.begins, s.index)) for p in parts)
        return out or [s]
    if isinstance(s, Store):
        parts = laps.parts.get(s.dst, ())
        return [*out, *(x for p in parts for x in _placed(s, p))] or [s]
    return [with_bodies(s, lambda body: map_body(body, lambda x: _replaced(x, instead, laps)))]


def _placed(s: Store, p: LapPart) -> list[Store]:
    """A store into a part, by elements where that begins inside of vectors."""
    if is_multiple(p.begins, s.width):
        return [replace(s, dst=p.of, index=add(p.begins, s.index))]
    return [
        Store(
            p.of, add(p.begins, s.index, k), Reg(s.src.buffer, add(s.src.index, k)), 1, s.predicate
        )
        for k in range(s.width)
    ]
