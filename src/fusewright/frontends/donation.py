"""Which arguments of a call may be written over: donated ones, and those that `out=` names."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from fusewright.errors import UserError
from fusewright.frontends.marks import roots_of
from fusewright.fusion.orders import Order, c_order
from fusewright.fusion.trees import Tree
from fusewright.runtime.arrays import ArrayInfo

Wishes: TypeAlias = tuple[tuple[int, int | None], ...]
"""Positions of arguments, each with the output that shall be made in its memory, None for any."""


def donated_roots(fn: Callable[..., Any], donate: Sequence[str]) -> frozenset[str | int]:
    """The parameters that a function gives away, by name and by position. Raises UserError for one
    that it lacks."""
    if not donate:
        return frozenset()
    names = tuple(inspect.signature(fn).parameters)
    for name in donate:
        if name not in names:
            raise UserError(
                f"donate: there is no parameter {name!r}; use some of {', '.join(names)}"
            )
    return frozenset(x for name in donate for x in (name, names.index(name)))


def orders_for(
    given: Sequence[ArrayInfo | None], orders: Sequence[Order | None]
) -> tuple[Order | None, ...]:
    """The orders in which results are stored: those of the arrays of `out=` that are dense, so that
    kernels write there, else those that are wanted anyway."""
    found: list[Order | None] = list(orders)
    for k, o in enumerate(given):
        if o is None or o.device.kind == "cpu" or 0 in o.shape:
            continue
        wanted = orders[k] or c_order(len(o.shape))
        slow_first = tuple(sorted(c_order(len(o.shape)), key=lambda a, o=o: -o.strides[a]))
        fits = len(wanted) != len(o.shape) or _is_dense(o, wanted)  # another rank is refused later
        if not fits and _is_dense(o, slow_first):
            found[k] = slow_first
    return tuple(found)


def _is_dense(o: ArrayInfo, order: Order) -> bool:
    """Whether an array lies without holes in an order; axes of one element lie anywhere."""
    step = 1
    for a in reversed(order):
        if o.shape[a] > 1 and o.strides[a] != step:
            return False
        step *= o.shape[a]
    return True


def wishes_of(
    infos: Sequence[ArrayInfo],
    tree: Tree,
    given: Sequence[ArrayInfo | None],
    donated: frozenset[str | int],
) -> Wishes:
    """What of a call may be written over. `given`: the arrays of `out=`, of which those count that
    are exactly one of the arguments. Host arrays, and those of jax, are never written in place."""
    if not infos or infos[0].device.kind == "cpu" or infos[0].kind == "jax":
        return ()
    roots = enumerate(roots_of(tree)) if donated else ()
    wished: dict[int, int | None] = {k: None for k, root in roots if root in donated}
    for at, o in enumerate(given):
        same = [k for k, x in enumerate(infos) if o is not None and o.is_same_memory(x)]
        if len(same) == 1:
            wished[same[0]] = at
    return tuple(sorted(wished.items()))
