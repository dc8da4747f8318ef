"""The orders of values between kernels: exact where groups and values make a tree."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

import pytest

from fusewright.fusion.least_orders import Bordered, least_orders
from fusewright.fusion.orders import Order

ORDERS: tuple[Order, ...] = tuple(itertools.permutations(range(3)))


class Drawn:
    """Groups and values, drawn; what a group takes is a table of random numbers."""

    def __init__(self, seed: int, *, is_tree: bool) -> None:
        rng = random.Random(seed)
        count = rng.randint(2, 6)
        self.borders: list[list[str]] = [[] for _ in range(count)]
        self.domains: dict[str, Sequence[Order]] = {}
        reached = [0]
        while len(reached) < count:
            name = f"v{len(self.domains)}"
            left = [k for k in range(count) if k not in reached]
            ends = [rng.choice(reached), *left[: rng.randint(1, 2)]]
            self._value(rng, name, ends)
            reached += ends[1:]
        if not is_tree:
            self.domains["again"] = ORDERS[:2]
            for k in rng.sample(range(count), 2):
                self.borders[k].append("again")
        self._value(rng, "alone", [rng.randrange(count)])
        self.domains["fixed"] = ORDERS[:1]
        for k in rng.sample(range(count), 2):  # of one order: it connects nothing
            self.borders[k].append("fixed")
        self.tables = [self._table(rng, names) for names in self.borders]
        self.asked = 0

    def _value(self, rng: random.Random, name: str, ends: Sequence[int]) -> None:
        self.domains[name] = rng.sample(ORDERS, rng.randint(2, 3))
        for k in ends:
            self.borders[k].append(name)

    def _table(self, rng: random.Random, names: list[str]) -> dict[tuple[Order, ...], float]:
        return {
            orders: rng.randint(1, 40) / 4
            for orders in itertools.product(*(self.domains[n] for n in names))
        }

    def _us(self, k: int, orders: tuple[Order, ...]) -> float:
        self.asked += 1
        return self.tables[k][orders]

    def groups(self) -> list[Bordered]:
        return [
            Bordered(tuple(names), lambda orders, k=k: self._us(k, orders))
            for k, names in enumerate(self.borders)
        ]

    def takes(self, chosen: dict[str, Order]) -> float:
        pairs = zip(self.tables, self.borders, strict=True)
        return sum(table[tuple(chosen[n] for n in names)] for table, names in pairs)

    def every(self) -> list[dict[str, Order]]:
        found = itertools.product(*self.domains.values())
        return [dict(zip(self.domains, orders, strict=True)) for orders in found]

    def greedy(self) -> dict[str, Order]:
        """One order after the other, the best beside those that are chosen."""
        chosen = {n: orders[0] for n, orders in self.domains.items()}
        for name, orders in self.domains.items():
            chosen[name] = min(orders, key=lambda o: self.takes({**chosen, name: o}))
        return chosen


@pytest.mark.parametrize("seed", range(60))
def test_no_assignment_of_orders_takes_less(seed: int) -> None:
    drawn = Drawn(seed, is_tree=True)
    chosen = least_orders(drawn.domains, drawn.groups())
    assert chosen is not None and chosen.keys() == drawn.domains.keys()
    assert drawn.takes(chosen) == min(map(drawn.takes, drawn.every()))


def test_one_order_after_the_other_loses_on_a_third_of_the_trees() -> None:
    lost = 0
    for seed in range(60):
        drawn = Drawn(seed, is_tree=True)
        lost += drawn.takes(drawn.greedy()) > min(map(drawn.takes, drawn.every()))
    assert lost >= 20


@pytest.mark.parametrize("seed", range(10))
def test_what_is_no_tree_is_left(seed: int) -> None:
    drawn = Drawn(seed, is_tree=False)
    assert least_orders(drawn.domains, drawn.groups()) is None
    assert drawn.asked == 0


@pytest.mark.parametrize("seed", range(10))
def test_a_group_is_asked_once_for_each_way_and_order_above_it(seed: int) -> None:
    """Not once for each assignment of all that hangs at it."""
    drawn = Drawn(seed, is_tree=True)
    assert least_orders(drawn.domains, drawn.groups()) is not None
    assert drawn.asked <= sum(map(len, drawn.tables))


def test_a_chain_of_many_values_takes_as_many_questions() -> None:
    names = [f"v{k}" for k in range(40)]
    asked: list[tuple[Order, ...]] = []

    def us(orders: tuple[Order, ...]) -> float:
        asked.append(orders)
        return float(orders[0] != orders[-1])

    pairs = [(names[0],), *itertools.pairwise(names), (names[-1],)]
    chosen = least_orders(dict.fromkeys(names, ORDERS), [Bordered(p, us) for p in pairs])
    assert chosen == dict.fromkeys(names, ORDERS[0])
    assert len(asked) == 39 * 36 + 2 * 6
