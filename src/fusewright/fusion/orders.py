"""Orders of axes in memory, of values that do not lie in C order or would rather not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from fusewright.core.expr import ONE, Expr, constant_value
from fusewright.core.substitution import estimate
from fusewright.fusion.ir import Shape, contiguous_strides

Order: TypeAlias = tuple[int, ...]
"""Axes of a value from slow to fast in memory."""


@dataclass(frozen=True, slots=True)
class Orders:
    """By the names of values: the orders that what they are made of lies in, and those in which
    kernels store them, where these are not C order; those that the caller requires of results; and
    those of results whose axes the program has permuted into the order of memory."""

    preferred: Mapping[str, Order] = field(default_factory=dict[str, Order])
    actual: Mapping[str, Order] = field(default_factory=dict[str, Order])
    required: Mapping[str, Order] = field(default_factory=dict[str, Order])
    permuted: Mapping[str, Order] = field(default_factory=dict[str, Order])

    def of(self, names: Sequence[str]) -> Orders:
        """Those of some values only."""
        kept = [{n: o for n, o in m.items() if n in names} for m in (self.preferred, self.actual)]
        return Orders(*kept)

    def in_memory(self, name: str, rank: int) -> Order:
        """The axes of a value, as the caller counts them, in the order of the program's."""
        return self.permuted.get(name, c_order(rank))


def c_order(rank: int) -> Order:
    """The last axis is the fast one."""
    return tuple(range(rank))


def inverse(order: Order) -> Order:
    """Where each axis stands in an order."""
    return tuple(sorted(range(len(order)), key=lambda k: order[k]))


def strides_in(shape: Shape, order: Order) -> tuple[Expr, ...]:
    """The element strides of a dense array whose axes lie in an order."""
    dense = contiguous_strides(tuple(shape[a] for a in order))
    return tuple(dense[order.index(a)] for a in range(len(shape)))


def order_of(shape: Shape, strides: Sequence[Expr]) -> Order:
    """The axes from slow to fast; those that memory does not tell apart stay as they are."""
    step = 1
    steps: list[int] = [0] * len(shape)
    for a in reversed(range(len(shape))):
        tells = shape[a] != ONE and constant_value(strides[a]) != 0
        steps[a] = estimate(strides[a]) if tells else step
        step = max(step, steps[a])
    return tuple(sorted(range(len(shape)), key=lambda a: -steps[a]))


def reshaped_order(old: Shape, new: Shape, order: Order) -> Order | None:
    """The order of a reshaped value's axes where its memory stays as it is; None where it is not
    known to."""
    groups = runs_of_reshape(old, new)
    if groups is None:
        return c_order(len(new)) if order == c_order(len(old)) else None
    place = {a: k for k, a in enumerate(order)}
    found: list[tuple[int, range]] = []
    for before, after in groups:
        at = [place[a] for a in before]
        if at != list(range(at[0], at[0] + len(at))):
            return None
        found.append((at[0], after))
    return tuple(a for _, after in sorted(found, key=lambda g: g[0]) for a in after)


def runs_of_reshape(old: Shape, new: Shape) -> list[tuple[range, range]] | None:
    """The shortest runs of axes of two shapes that have equally many elements, one after the other;
    None where sizes that are not known tell nothing of that."""
    out: list[tuple[range, range]] = []
    i = j = 0
    while i < len(old) and j < len(new):
        first, second = i, j
        left, right = old[i], new[j]
        i, j = i + 1, j + 1
        while left != right:
            a, b = constant_value(left), constant_value(right)
            if a is None or b is None or (a < b and i == len(old)) or (a > b and j == len(new)):
                return None
            if a < b:
                left, i = left * old[i], i + 1
            else:
                right, j = right * new[j], j + 1
        out.append((range(first, i), range(second, j)))
    rest = [s for s in (*old[i:], *new[j:]) if s != ONE]
    if rest or not out:
        return None
    (before, after) = out[-1]
    out[-1] = range(before.start, len(old)), range(after.start, len(new))
    return out
