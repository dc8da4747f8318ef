"""Which sizes of a call the buffers of a kernel in shared memory have room for."""

from __future__ import annotations

from collections.abc import Mapping

from fusewright.core.expr import Expr, Var, variables
from fusewright.kir.ir import Body, For, Kernel, Load, Memory, Statement, Store
from fusewright.kir.traverse import bodies_of


def longest(kernel: Kernel) -> dict[str, str]:
    """By the names of buffers in shared memory that are indexed by a loop of as many iterations as
    a symbol says: the largest sizes, for which there is room."""
    found: dict[str, dict[str, int]] = {}
    _visit(kernel.body, {}, found)
    return {
        name: ", ".join(f"{symbol} = {most}" for symbol, most in sizes.items())
        for name, sizes in found.items()
    }


def _visit(body: Body, loops: Mapping[Var, Expr], found: dict[str, dict[str, int]]) -> None:
    for s in body:
        inside = {**loops, s.var: s.extent} if isinstance(s, For) else loops
        buffer, index = _place(s)
        if buffer is not None and index is not None and (sizes := _sizes(index, inside)):
            found.setdefault(buffer, {}).update(sizes)
        for inner in bodies_of(s):
            _visit(inner, inside, found)


def _place(s: Statement) -> tuple[str | None, Expr | None]:
    """The buffer in shared memory that a statement accesses, and where."""
    match s:
        case Load(src=buffer, index=index) | Store(dst=buffer, index=index):
            return (buffer.name, index) if buffer.memory is Memory.SHARED else (None, None)
        case _:
            return None, None


def _sizes(index: Expr, loops: Mapping[Var, Expr]) -> dict[str, int]:
    """The largest values of the symbols that say how often the loops of an index run."""
    extents = [loops[v] for v in variables(index) if v in loops]
    known = {v.name: v.interval[1] for e in extents for v in variables(e) if v not in loops}
    return {name: most for name, most in sorted(known.items()) if most is not None}
