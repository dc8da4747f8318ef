"""Packing: never two live tensors in one byte, never below the bound, and exact on known cases."""

from __future__ import annotations

import random
from itertools import permutations

import pytest

from fusewright.core.expr import Int, Var, constant_value
from fusewright.core.substitution import evaluate
from fusewright.host.arena import ARENA_ALIGNMENT, Arena, Lifetime, pack

K = ARENA_ALIGNMENT
N = Var("n", 2)
M = Var("m", 2)


def lives(*rows: tuple[int, int, int]) -> list[Lifetime]:
    return [Lifetime(f"t{i}", Int(size), a, b) for i, (size, a, b) in enumerate(rows)]


def assert_valid(
    tensors: list[Lifetime], arena: Arena, sizes: dict[Var, int] | None = None
) -> None:
    """No two tensors that meet share a byte; all are aligned and inside."""
    at = [evaluate(o, sizes or {}) for o in arena.offsets]
    ends = [o + evaluate(t.nbytes, sizes or {}) for o, t in zip(at, tensors, strict=True)]
    total = evaluate(arena.nbytes, sizes or {})
    for i, t in enumerate(tensors):
        assert at[i] % K == 0 and ends[i] <= total
        for j in range(i):
            if t.meets(tensors[j]):
                assert ends[i] <= at[j] or ends[j] <= at[i], (i, j)
    assert evaluate(arena.lower_bound, sizes or {}) <= total


def value(arena: Arena) -> int:
    n = constant_value(arena.nbytes)
    assert n is not None
    return n


def test_nothing_needs_nothing() -> None:
    assert value(pack([])) == 0


def test_a_chain_alternates_between_two_places() -> None:
    tensors = lives(*[(4 * K, i, i + 1) for i in range(9)])
    arena = pack(tensors)
    assert_valid(tensors, arena)
    assert value(arena) == 8 * K == constant_value(arena.lower_bound)


def test_the_layout_of_iree_slices_is_matched() -> None:
    rows = [(100, 0, 1), (100, 1, 2), (100, 2, 3), (200, 0, 4), (200, 5, 6), (100, 5, 8)]
    tensors = lives(*[(size * K // 16, a, b) for size, a, b in rows])
    arena = pack(tensors)
    assert_valid(tensors, arena)
    assert value(arena) == constant_value(arena.lower_bound)


def test_sizes_are_rounded_up_to_the_alignment() -> None:
    tensors = lives((1, 0, 1), (K + 1, 0, 1))
    arena = pack(tensors)
    assert_valid(tensors, arena)
    assert value(arena) == 3 * K


@pytest.mark.parametrize("seed", range(40))
def test_random_lifetimes(seed: int) -> None:
    rng = random.Random(seed)
    rows = []
    for _ in range(rng.randrange(1, 30)):
        first = rng.randrange(20)
        rows.append(
            (rng.choice([1, K, 3 * K, rng.randrange(9 * K)]), first, first + rng.randrange(6))
        )
    tensors = lives(*rows)
    arena = pack(tensors)
    assert_valid(tensors, arena)
    assert value(arena) <= 1.5 * (constant_value(arena.lower_bound) or 1), seed


@pytest.mark.parametrize("seed", [81, 124, 175])
def test_what_is_at_the_peak_is_placed_first(seed: int) -> None:
    """Cases in which no order by size or time reaches the bound."""
    rng = random.Random(seed)
    count, rows = rng.randint(8, 24), []
    for _ in range(count):
        first = rng.randrange(count)
        size = K * rng.choice([1, 2, 3, 4, 8, 12, 31])
        rows.append((size, first, first + rng.choice([1, 1, 2, 3, 6])))
    tensors = lives(*rows)
    arena = pack(tensors)
    assert_valid(tensors, arena)
    assert arena.order == "peak" and value(arena) == constant_value(arena.lower_bound)


@pytest.mark.parametrize("seed", range(12))
def test_small_cases_against_every_order(seed: int) -> None:
    """First fit over all orders of at most six tensors: ours is among the best."""
    rng = random.Random(seed)
    rows = [
        (K * rng.randrange(1, 6), first := rng.randrange(5), first + rng.randrange(3))
        for _ in range(6)
    ]
    tensors = lives(*rows)
    best = min(_first_fit([tensors[i] for i in order]) for order in permutations(range(6)))
    assert value(pack(tensors)) <= best * 1.25, seed


def _first_fit(order: list[Lifetime]) -> int:
    placed: list[tuple[int, int, Lifetime]] = []
    for t in order:
        size = constant_value(t.nbytes) or 0
        at = 0
        for low, high, other in sorted(placed, key=lambda p: p[:2]):
            if other.meets(t) and low < at + size and at < high:
                at = high
        placed.append((at, at + size, t))
    return max(high for _, high, _ in placed)


def test_symbolic_tensors_share_what_provably_fits() -> None:
    tensors = [
        Lifetime("a", N * 4, 0, 1),
        Lifetime("b", N * 4, 1, 2),
        Lifetime("c", N * 2, 2, 3),
        Lifetime("d", M * 4, 3, 4),
        Lifetime("e", Int(100), 0, 4),
    ]
    arena = pack(tensors)
    for n in (2, 63, 64, 1000):
        for m in (2, 77, 5000):
            assert_valid(tensors, arena, {N: n, M: m})
    assert arena.offsets[2] == arena.offsets[0], "half the size fits where the first one was"
    assert arena.offsets[3] not in (arena.offsets[0], arena.offsets[1]), "m may be larger than n"


def test_slots_lie_above_the_strips_that_they_meet_only() -> None:
    """Of four strips one is alive beside the symbolic tensors; the others lie where these were."""
    tensors = [
        Lifetime("a", N * 4, 0, 1),
        Lifetime("b", N * 4, 0, 1),
        *lives((K, 1, 3), (K, 2, 3), (K, 2, 3), (K, 3, 4)),
    ]
    arena = pack(tensors)
    for n in (2, 64, 65, 1000):
        assert_valid(tensors, arena, {N: n})
        assert evaluate(arena.nbytes, {N: n}) == evaluate(arena.lower_bound, {N: n})


def test_a_strip_lies_in_a_slot_that_holds_it_at_any_size() -> None:
    tensors = [
        Lifetime("a", Int(12), 1, 2), Lifetime("b", N * 12, 2, 4), Lifetime("c", N * 4, 3, 4)
    ]  # fmt: skip
    arena = pack(tensors)
    for n in (2, 64, 1000):
        assert_valid(tensors, arena, {N: n})
        assert evaluate(arena.nbytes, {N: n}) == evaluate(arena.lower_bound, {N: n})


def test_tensors_of_unrelated_sizes_that_never_meet_lie_in_the_same_bytes() -> None:
    """Nothing tells which of both is larger, so that no slot holds them."""
    tensors = [
        Lifetime("a", M * 4, 0, 1), Lifetime("b", N * 4, 2, 3), Lifetime("c", N * 4, 2, 3)
    ]  # fmt: skip
    arena = pack(tensors)
    for n, m in ((2, 900), (900, 2), (64, 64)):
        assert_valid(tensors, arena, {N: n, M: m})
        assert evaluate(arena.nbytes, {N: n, M: m}) == evaluate(arena.lower_bound, {N: n, M: m})


def test_a_stack_has_room_below() -> None:
    size = N * M * 4
    tensors = [
        *(Lifetime(n, size, a, b) for n, a, b in (("a", 0, 1), ("b", 1, 2), ("c", 2, 5))),
        *(Lifetime(n, N * 4, a, 5) for n, a in (("d", 3), ("e", 4))),
    ]
    arena = pack(tensors)
    for n, m in ((6, 64), (2, 2), (900, 3)):
        assert_valid(tensors, arena, {N: n, M: m})
        assert evaluate(arena.nbytes, {N: n, M: m}) == evaluate(arena.lower_bound, {N: n, M: m})


@pytest.mark.parametrize("seed", range(60))
def test_random_lifetimes_of_known_and_symbolic_sizes(seed: int) -> None:
    rng = random.Random(seed)
    tensors = []
    for k in range(rng.randint(2, 9)):
        first = rng.randrange(6)
        size = rng.choice([Int(K), Int(5 * K), Int(20), N * 4, N * 12, M * 4, N * 4 + 8])
        tensors.append(Lifetime(f"t{k}", size, first, first + rng.randrange(4)))
    arena = pack(tensors)
    for n in (2, 65, 1000):
        assert_valid(tensors, arena, {N: n, M: rng.randint(2, 900)})


def test_a_slot_grows_when_the_next_tensor_is_larger() -> None:
    tensors = [Lifetime("a", N * 4, 0, 1), Lifetime("b", N * 8, 2, 3)]
    arena = pack(tensors)
    assert_valid(tensors, arena, {N: 33})
    assert arena.offsets[0] == arena.offsets[1]


def test_other_conflicts_than_time_are_kept_apart() -> None:
    tensors = lives((K, 0, 1), (K, 5, 6))
    assert value(pack(tensors)) == K
    assert value(pack(tensors, lambda a, b: True)) == 2 * K
