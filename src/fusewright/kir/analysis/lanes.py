"""Index expressions and conditions evaluated for all threads of a block and all iterations at once.

Arrays have one dimension per enclosing loop, outermost first, and a last one for the linear
thread number `tx + X*(ty + Y*tz)`; dimensions on which a value does not depend have length 1.
What depends on anything else (grid variables, shape symbols, gathered registers) is unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from fusewright.core.atoms import Max, Min, Xor
from fusewright.core.conditions import And, Cond, Equal, Less, Not, Or, Truth
from fusewright.core.expr import (
    Atom,
    Expr,
    FloorDiv,
    Int,
    Mod,
    Sum,
    Var,
    add,
    mul,
    parts_of,
    variables,
)
from fusewright.errors import InternalError
from fusewright.kir.ir import Kernel, RegVar

Array: TypeAlias = npt.NDArray[Any]
Known: TypeAlias = Mapping[Var, Array]
Unknown: TypeAlias = tuple[tuple[tuple[Atom, ...], int], ...]
"""Products of atoms and their coefficients, of a sum."""


def thread_values(kernel: Kernel, *, across_blocks: bool = False) -> dict[Var, Array]:
    """The value of each thread variable for every linear thread number; with `across_blocks` for
    all threads of a cluster, block after block, and of the block's number too."""
    dims = (*kernel.block, *(kernel.cluster if across_blocks else ()))
    size = kernel.cluster_size if across_blocks else 1
    linear = np.arange(kernel.nthreads * size, dtype=np.int64)
    out: dict[Var, Array] = {}
    for dim in dims:
        extent = dim.extent.interval[0]
        if extent is None or dim.extent.interval[1] != extent:
            raise InternalError(f"block extent {dim.extent} of {dim.var} is not constant")
        out[dim.var] = linear % extent
        linear = linear // extent
    return out


_Evaluate: TypeAlias = Callable[[Any, Known], Array]


def _sum(e: Sum, known: Known) -> Array:
    total: Array = np.int64(e.constant)  # type: ignore[assignment]
    for t in e.terms:
        product: Array = np.int64(t.coefficient)  # type: ignore[assignment]
        for a in t.atoms:
            product = product * evaluate_lanes(a, known)
        total = total + product
    return total


_EVALUATE: dict[type[Expr], _Evaluate] = {
    Int: lambda e, _: np.int64(e.value),  # type: ignore[return-value]
    Sum: _sum,
    FloorDiv: lambda e, k: evaluate_lanes(e.numerator, k) // evaluate_lanes(e.denominator, k),
    Mod: lambda e, k: evaluate_lanes(e.numerator, k) % evaluate_lanes(e.denominator, k),
    Min: lambda e, k: np.minimum(evaluate_lanes(e.left, k), evaluate_lanes(e.right, k)),
    Max: lambda e, k: np.maximum(evaluate_lanes(e.left, k), evaluate_lanes(e.right, k)),
    Xor: lambda e, k: evaluate_lanes(e.left, k) ^ evaluate_lanes(e.right, k),
}


def evaluate_lanes(e: Expr, known: Known) -> Array:
    """The values of an expression all of whose variables are known."""
    if isinstance(e, Var):
        return known[e]
    return _EVALUATE[type(e)](e, known)


def is_known(e: Expr | Cond, known: Known) -> bool:
    """Whether every variable has values."""
    return all(v in known for v in variables(e))


def split_unknown(e: Expr, known: Known, varying: frozenset[Var]) -> tuple[Expr, Unknown] | None:
    """`e` as a known part plus a part that is the same for all threads and iterations of a block.

    The second part is a key: equal keys cancel in a difference. None when a term mixes the two,
    or holds a register or a variable of `varying` (a loop whose iterations are not enumerated).
    """
    constant, terms = parts_of(e)
    inside: list[Expr] = []
    outside: list[tuple[tuple[Atom, ...], int]] = []
    for t in terms:
        states = {_state(a, known, varying) for a in t.atoms}
        if states == {"known"}:
            product: Expr = Int(t.coefficient)
            for a in t.atoms:
                product = mul(product, a)
            inside.append(product)
        elif states == {"fixed"}:
            outside.append((t.atoms, t.coefficient))
        else:
            return None
    return add(constant, *inside), tuple(outside)


def _state(a: Atom, known: Known, varying: frozenset[Var]) -> str:
    found = variables(a)
    if all(v in known for v in found):
        return "known"
    if any(v in known or v in varying or isinstance(v, RegVar) for v in found):
        return "mixed"
    return "fixed"


@dataclass(frozen=True, slots=True)
class Holds:
    """Where a condition may hold and where it must; equal where it is known."""

    may: Array
    must: Array

    @property
    def is_exact(self) -> bool:
        """Whether the condition is known everywhere."""
        return self.may is self.must or bool(np.array_equal(self.may, self.must))


_TRUE: Array = np.bool_(True)  # type: ignore[assignment]
_FALSE: Array = np.bool_(False)  # type: ignore[assignment]
ALWAYS = Holds(_TRUE, _TRUE)


def holds(c: Cond, known: Known) -> Holds:
    """Where a condition may and must hold; a part with unknown variables may, and need not."""
    match c:
        case Truth():
            value = _TRUE if c.value else _FALSE
            return Holds(value, value)
        case And():
            return conjunction([holds(p, known) for p in c.parts])
        case Or():
            return _negation(conjunction([_negation(holds(p, known)) for p in c.parts]))
        case Not():
            return _negation(holds(c.part, known))
        case Less() | Equal():
            if not is_known(c, known):
                return Holds(_TRUE, _FALSE)
            left, right = evaluate_lanes(c.left, known), evaluate_lanes(c.right, known)
            exact = np.asarray(left < right if isinstance(c, Less) else left == right)
            return Holds(exact, exact)
        case _:
            raise InternalError(f"not a condition: {type(c).__name__}")


def conjunction(parts: list[Holds]) -> Holds:
    """Where all parts may, and must, hold."""
    may, must = _TRUE, _TRUE
    for p in parts:
        may, must = np.logical_and(may, p.may), np.logical_and(must, p.must)
    return Holds(may, must)


def _negation(h: Holds) -> Holds:
    return Holds(np.logical_not(h.must), np.logical_not(h.may))


def different(values: Array) -> Array:
    """The different values of an array in order, as `np.unique` has them: that hashes them first,
    which takes 0.34 s for 400,000 of them, where a sort takes 0.015 s."""
    ordered = np.sort(values, axis=None)
    is_new = np.ones(ordered.size, np.bool_)
    is_new[1:] = ordered[1:] != ordered[:-1]
    return ordered[is_new]
