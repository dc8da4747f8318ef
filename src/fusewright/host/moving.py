"""Kernels whose results begin where the device says: it reads the start, and adds it to stores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from fusewright.core.atoms import maximum, minimum
from fusewright.core.expr import ZERO, Expr, IntLike, Var, add, as_expr, mul, variables
from fusewright.core.substitution import substitute
from fusewright.dtypes import int64
from fusewright.errors import ScheduleError
from fusewright.fusion.ir import position
from fusewright.host.subspans import Subspan
from fusewright.kir.ir import (
    Alloc,
    Buffer,
    Compute,
    Index,
    Kernel,
    Load,
    Reg,
    RegVar,
    SemaphoreAcquire,
    SemaphoreRelease,
    Statement,
    Store,
)
from fusewright.kir.substitute import Substitution
from fusewright.kir.traverse import map_body, walk_statements, with_bodies
from fusewright.memory import Memory

FAR = 1 << 31
"""Beyond every extent of an axis along which a block moves: starts are cut to it, so that sums and
products of them stay in 64 bits."""


def with_places(kernel: Kernel, ninputs: int, sites: Sequence[Subspan]) -> Kernel:
    """The kernel with blocks of its results at places that integers in memory say, which it takes
    behind its inputs. `sites` are those of its results.

    rewrite:  out[i] = v   ->   s = min(max(at[0], 0), n - m);  out[s * stride + i] = v
    checks:   nothing but stores of elements writes such a result, else ScheduleError
    order:    behind lowering, which knows the strides of the site and how it is aligned; before all
              passes, to which a start is a gathered position
    """
    if not any(s.places for s in sites):
        return kernel
    results = kernel.params[ninputs : ninputs + len(sites)]
    moved = [(b, s) for b, s in zip(results, sites, strict=True) if s.places]
    _check_stores(kernel, [b for b, _ in moved])
    new = {b: Buffer(b.name, b.dtype, s.span, b.memory, b.alignment) for b, s in moved}
    starts = _Starts(sorted({b.name for b in kernel.params}))
    begins = {new[b]: starts.of(s) for b, s in moved}
    body = Substitution({}, new, {}).body(kernel.body)
    mentioned = (v for _, s in moved for e in (*s.shape, *s.strides) for v in variables(e))
    return replace(
        kernel,
        params=(
            *kernel.params[:ninputs],
            *starts.params,
            *(new.get(b, b) for b in kernel.params[ninputs:]),
        ),
        symbols=tuple(dict.fromkeys((*kernel.symbols, *mentioned))),
        body=(*starts.head, *map_body(body, lambda s: _begun(s, begins))),
        stored_once=tuple(new.get(b, b) for b in kernel.stored_once),
        stored_in_turns=tuple(new.get(b, b) for b in kernel.stored_in_turns),
    )


def _check_stores(kernel: Kernel, results: Sequence[Buffer]) -> None:
    mapped = {m.buffer for m in kernel.maps}
    for s in walk_statements(kernel):
        in_turn = isinstance(s, Load) and s.src in kernel.stored_in_turns
        moves = in_turn or isinstance(s, Store | SemaphoreAcquire | SemaphoreRelease)
        uses = () if moves else s.memory_uses()
        for b in [b for b in results if b in mapped or any(u.buffer is b for u in uses)]:
            raise ScheduleError(
                f"{kernel.name}: {type(s).__name__} writes {b}, which begins where the device "
                "says; only stores of single elements or vectors may"
            )


def _begun(s: Statement, begins: Mapping[Buffer, Expr]) -> Statement:
    """The statement with stores, and turns and loads of what other blocks stored, counted from
    where their block begins."""
    match s:
        case Store(dst=b) | Load(src=b) if b in begins:
            return replace(s, index=add(begins[b], s.index))
        case SemaphoreAcquire(guarded=b) | SemaphoreRelease(guarded=b) if b in begins:
            return replace(s, first=add(begins[b], s.first))
        case _:
            pass
    return with_bodies(s, lambda body: map_body(body, lambda inner: _begun(inner, begins)))


class _Starts:
    """Statements that find where blocks begin, and the parameters that they read."""

    def __init__(self, taken: Sequence[str]) -> None:
        self.params: list[Buffer] = []
        self.head: list[Statement] = []
        self._taken = set(taken)

    def of(self, s: Subspan) -> Expr:
        """How many elements behind the begin of a site its block begins."""
        assert s.moving is not None
        numbers: dict[Var, IntLike] = {position(k): self._number(p) for k, p in enumerate(s.places)}
        out: Expr = ZERO
        for axis, start in s.moving.start:
            last = add(s.shape[axis], mul(s.tensor.shape[axis], -1))
            found = substitute(start, numbers)
            at = self._kept(minimum(maximum(found, ZERO), last), ZERO, last)
            out = add(out, mul(at, s.strides[axis]))
        return out

    def _number(self, place: Subspan) -> Var:
        dtype = place.root.dtype
        param = Buffer(
            self._name(place.tensor.name), dtype, as_expr(1), Memory.GLOBAL, dtype.nbytes
        )
        self.params.append(param)
        read = Buffer(self._name("read"), dtype, as_expr(1), Memory.LOCAL)
        wide = Buffer(self._name("number"), int64, as_expr(1), Memory.LOCAL)
        self.head += [
            Alloc(read),
            Load(Reg(read), param, ZERO),
            Alloc(wide),
            Compute("cast", Reg(wide), (Reg(read),)),
        ]
        number = RegVar(Reg(wide), -(1 << 62), 1 << 62)
        return self._kept(minimum(maximum(number, -FAR), FAR), as_expr(-FAR), as_expr(FAR))

    def _kept(self, e: Expr, low: Expr, high: Expr) -> RegVar:
        """An expression in a register of its own."""
        at = Buffer(self._name("start"), int64, as_expr(1), Memory.LOCAL)
        self.head += [Alloc(at), Compute("copy", Reg(at), (Index(e, int64),))]
        return RegVar(Reg(at), low, high)

    def _name(self, wanted: str) -> str:
        name, count = wanted, 0
        while name in self._taken:
            name, count = f"{wanted}_{count}", count + 1
        self._taken.add(name)
        return name
