"""The orders of values between kernels that together cost the least.

Each group of operations says what it takes for given orders of the values at its borders. Where
groups and the values of which more than one order is possible make a tree, the least of all
assignments follows from the leaves to a root: what hangs at a value costs the least for each of its
orders, whatever stands on the other side.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from fusewright.fusion.orders import Order

Chosen: TypeAlias = dict[str, Order]


@dataclass(frozen=True, slots=True, eq=False)
class Bordered:
    """A group: the names of the values at its borders, and what it takes, in microseconds, with
    these in given orders."""

    borders: tuple[str, ...]
    us: Callable[[tuple[Order, ...]], float]


def least_orders(
    domains: Mapping[str, Sequence[Order]], groups: Sequence[Bordered]
) -> Chosen | None:
    """An order of each value for which all groups together take the least; of equal ones the first
    in the order of the domains. None where values and groups make no tree."""
    tree = _Tree(domains, groups)
    return tree.least() if tree.is_forest() else None


class _Tree:
    """Groups that values connect of which more than one order is possible."""

    def __init__(self, domains: Mapping[str, Sequence[Order]], groups: Sequence[Bordered]) -> None:
        self._domains, self._groups = domains, groups
        self._hanging: dict[tuple[str, Order, int], tuple[float, Chosen]] = {}
        self._at: dict[str, list[int]] = {n: [] for n in domains}
        for k, g in enumerate(groups):
            for name in g.borders:
                self._at[name].append(k)

    def is_forest(self) -> bool:
        """Whether no value is reached by two ways."""
        parent = list(range(len(self._groups)))

        def root(k: int) -> int:
            while parent[k] != k:
                k = parent[k]
            return k

        for name, where in self._at.items():
            for a, b in itertools.pairwise(where) if len(self._domains[name]) > 1 else ():
                if root(a) == root(b):
                    return False
                parent[root(b)] = root(a)
        return True

    def least(self) -> Chosen:
        chosen: Chosen = {n: orders[0] for n, orders in self._domains.items()}
        seen: set[int] = set()
        for k in range(len(self._groups)):
            if k not in seen:
                chosen.update(self._below(k, None, {}, seen)[1])
        return chosen

    def _below(
        self, k: int, above: str | None, given: Chosen, seen: set[int]
    ) -> tuple[float, Chosen]:
        """The least of a group and all that hangs below it, with the value `above` it as given."""
        seen.add(k)
        hanging = [n for n in self._groups[k].borders if n != above]
        ways = {(n, o): self._at_value(n, o, k, seen) for n in hanging for o in self._domains[n]}
        best: tuple[float, Chosen] | None = None
        for orders in self._assignments(self._groups[k].borders, given):
            below = [ways[n, orders[n]] for n in hanging]
            us = self._groups[k].us(tuple(orders[n] for n in self._groups[k].borders))
            us += sum(more for more, _ in below)
            if best is None or us < best[0]:
                chosen = dict(orders)
                for _, more in below:
                    chosen.update(more)
                best = us, chosen
        assert best is not None
        return best

    def _at_value(self, name: str, order: Order, k: int, seen: set[int]) -> tuple[float, Chosen]:
        """The least of what hangs at a value, in an order, beside one of its groups. A value of one
        order connects nothing: groups at it stand in trees of their own."""
        key = name, order, k
        if key not in self._hanging:
            self._hanging[key] = self._of_value(name, order, k, seen)
        return self._hanging[key]

    def _of_value(self, name: str, order: Order, k: int, seen: set[int]) -> tuple[float, Chosen]:
        us, chosen = 0.0, Chosen()
        for other in self._at[name] if len(self._domains[name]) > 1 else ():
            if other != k:
                more, found = self._below(other, name, {name: order}, seen)
                us, chosen = us + more, {**chosen, **found}
        return us, chosen

    def _assignments(self, names: Sequence[str], given: Chosen) -> Iterator[Chosen]:
        domains = [[given[n]] if n in given else self._domains[n] for n in names]
        for orders in itertools.product(*domains):
            yield dict(zip(names, orders, strict=True))
