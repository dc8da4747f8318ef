"""Integer expressions: normal forms, bounds, conditions, and a fuzz against direct evaluation."""

from __future__ import annotations

import itertools
import random

import pytest

from fusewright.core.atoms import maximum, minimum, xor
from fusewright.core.conditions import (
    FALSE,
    TRUE,
    Cond,
    Truth,
    equal,
    less,
    less_equal,
    negate,
    prove,
    substitute_condition,
)
from fusewright.core.expr import (
    Expr,
    Int,
    Var,
    add,
    as_expr,
    ceildiv,
    floordiv,
    is_multiple,
    lower_bound,
    mod,
    mul,
    variables,
)
from fusewright.core.substitution import evaluate

A, J = Var("i", 0, 15), Var("j", 0, 7)
N = Var("n", 2)


def test_mixed_radix_digits_fold() -> None:
    t = Var("t", 0, 127)
    assert 32 * (t // 32) + 4 * ((t // 4) % 8) + t % 4 == t
    assert 4 * ((t // 4) % 8) + t % 4 == t % 32
    assert (t % 32) // 4 == (t // 4) % 8
    assert (8 * A + J) // 8 == A
    assert (8 * A + J) % 8 == J
    assert (t // 4) // 8 == t // 32


def test_a_place_whose_digits_are_counted_in_other_units_folds() -> None:
    """Elements of 173 runs of rows of 173 * 15: no run is a number of rows."""
    run, i, t = Var("run", 0, 172), Var("i", 0, 607), Var("t", 0, 511)
    place = 311340 * run + 512 * i + t
    digits = place // 2595, (place // 15) % 173, place % 15
    assert 2595 * digits[0] + 15 * digits[1] + digits[2] == place


def test_a_row_that_is_counted_in_windows_folds() -> None:
    """Rows of 1925 windows of 3, by lanes that begin anywhere in one of them."""
    run, lane = Var("run", 0, 9999), Var("lane", 0, 7)
    row = ((8 * run + lane) // 3 + 1024 * A) // 1925
    assert 5775 * row + (3072 * A + 8 * run + lane) % 5775 == 3072 * A + 8 * run + lane


@pytest.mark.parametrize("seed", range(40))
def test_digits_of_a_place_that_is_moved_fold(seed: int) -> None:
    """The lanes of vectors that stand some rows apart: the column is counted from the grid, the row
    from the block's place in a round of it."""
    rng = random.Random(seed)
    f, d, width = rng.choice([2, 3, 4]), rng.choice([5, 7, 19]), rng.choice([4, 8])
    lane, t = Var("lane", 0, width - 1), Var("t", 0, 500)
    z = rng.randrange(1, 40) * t + rng.randrange(-9, 9)
    assert f * ((z + lane // f) % d) + lane % f == (f * z + lane) % (f * d)
    place = mod(lane + f * z, f * d)
    for p in ({lane: k, t: v} for k in range(width) for v in range(0, 500, 37)):
        at = p[lane] + f * evaluate(z, {t: p[t]})
        assert evaluate(place, p) == at % (f * d)


def test_rows_of_blocks_that_lie_apart_fold() -> None:
    """Vectors of 8 over rows of 38, blocks in rounds of 19."""
    block, t, lane = Var("block", 0, 8777), Var("t", 0, 127), Var("lane", 0, 7)
    place = 1024 * (block % 19) + 8 * t + lane
    column = 2 * ((512 * block + 4 * t + lane // 2) % 19) + lane % 2
    assert 38 * (place // 38) + column == place


def test_rows_within_whole_slabs_fold() -> None:
    """Vectors of 4 over slabs of 144 vectors, whose rows have 6 elements: the place in a row does
    not depend on the slab."""
    t, lane = Var("t", 0, 287), Var("lane", 0, 3)
    row = (2 * (t % 144) + lane // 2) // 3
    assert 6 * row + (4 * t + lane) % 6 == 4 * (t % 144) + lane
    assert 6 * row + (4 * t + lane) % 6 + 576 * (t // 144) == 4 * t + lane


def test_digits_below_a_divisor_stay_outside() -> None:
    a, lane = Var("a", 0, 1 << 20), Var("lane", 0, 3)
    assert (4 * a + lane) % 8192 == 4 * (a % 2048) + lane
    assert (4 * a + lane) // 8192 == a // 2048
    assert (4 * a + lane) % 8192 + 8192 * (a // 2048) == 4 * a + lane
    assert (24 * a + 4 * J + lane + 3) % 16 != 8 * (a % 2) + 4 * J + lane + 3  # may reach 34
    assert (8 * a + 12 * J + lane) % 24 == 4 * ((2 * a + 3 * J) % 6) + lane
    assert (32 * a + 4 * J + lane) % 96 == 32 * (a % 3) + 4 * J + lane
    assert (4 * a + lane - 4) // 8 == (a - 1) // 2
    beyond = Var("beyond", 0, 4)
    assert variables((4 * a + beyond) // 8) == (a, beyond)


def test_symbolic_divisors() -> None:
    k = Var("k", 0, N - 1)
    assert (N * A + k) // N == A
    assert (N * A + k) % N == k
    assert N * (A // N) + A % N == A
    four = Var("m", 4, multiple_of=4)
    assert 4 * (four // 4) == four
    assert four % 4 == 0 * N
    assert floordiv(8 * A, 2 * A) == as_expr(4)


def test_bounds_of_rounding() -> None:
    assert lower_bound(4 * ceildiv(N, 4) - N) == 0
    f = Var("f", 2)
    assert prove(less_equal(N, f * ceildiv(N, f))) is True
    assert prove(less_equal(f * (N // f), N)) is True
    assert prove(less(N % f, f)) is True
    assert prove(less(f * (N // f), N)) is None


def test_bounds_of_differences_of_quotients() -> None:
    assert lower_bound(N - N // 2) == 1  # N is at least 2
    assert lower_bound(N // 2 - N // 4) == 0
    assert lower_bound(N - N // 2 - N // 3) == 1
    assert lower_bound(128 * (N // 64) + 128 - 4 * (N // 2) - 4) == 0
    assert prove(less(N // 2, N)) is True
    assert prove(less(N // 4, N // 2)) is None


@pytest.mark.parametrize("seed", range(60))
def test_bounds_of_sums_of_quotients_hold(seed: int) -> None:
    rng = random.Random(seed)
    n = Var("n", rng.choice([0, 1, 2, 5]))
    picks = [(rng.choice([1, 2, 3, 4, 6, 8]), rng.randint(-8, 8)) for _ in range(3)]
    e = sum((c * (n // d) for d, c in picks), as_expr(rng.randint(-9, 9)))
    bound = lower_bound(e)
    low = n.interval[0] or 0
    assert bound is None or all(bound <= evaluate(e, {n: v}) for v in range(low, low + 200))


def test_limits_that_mention_each_other() -> None:
    k = Var("k", 0, N - 1)
    assert less(k, N) == TRUE
    assert less(N, k) == FALSE
    assert prove(less(k, N - 1)) is None


def test_conditions() -> None:
    assert str(less(A // 4, N)) == "i < 4*n"
    assert equal(A, A) == TRUE and equal(A, A + 1) == FALSE
    assert negate(less(A, J)) == less(J, A + 1)
    assert xor(xor(A, J), J) == A


def test_comparisons_drop_what_plays_no_part() -> None:
    lane, q = Var("lane", 0, 7), Var("q", 0, 511)
    assert str(less(8 * q + lane, 4096 - 8)) == "q < 511"
    assert str(less(4087, 8 * q + lane)) == "510 < q"
    assert str(less(8 * q + lane, 4085)) == "lane + 8*q < 4085"  # 4080 + lane counts here
    assert str(less(8 * q, 4081)) == "q < 511"
    assert str(less(4 * q, 6 * lane + 3)) == "2*q < 3*lane + 2"
    assert str(less(q + 3, 4 * (q // 4))) == "false"
    assert str(less(7, q // 8)) == "63 < q"


@pytest.mark.parametrize("seed", range(60))
def test_comparisons_of_digits_by_brute_force(seed: int) -> None:
    """Sums of digits with weights that nearly fit together, against every value."""
    rng = random.Random(seed)
    extents = [rng.choice([2, 3, 4, 8]) for _ in range(3)]
    ranges = [range(low := rng.randint(-2, 2), low + n) for n in extents]
    xs = [Var(f"x{i}", r[0], r[-1]) for i, r in enumerate(ranges)]
    weights = [rng.choice([1, 2, 4, 6, 8, 16, -8, -4, -1]) for _ in xs]
    cut = rng.randrange(4)
    left = sum((w * x for w, x in zip(weights[:cut], xs[:cut], strict=True)), Int(0))
    right = sum((w * x for w, x in zip(weights[cut:], xs[cut:], strict=True)), Int(0))
    for k in range(-40, 41, 3):
        c = less(left, right + k)
        for values in itertools.product(*ranges):
            point = dict(zip(xs, values, strict=True))
            want = evaluate(left, point) < evaluate(right, point) + k
            found = substitute_condition(c, point)
            assert isinstance(found, Truth) and found.value == want, (c, point)


def test_variables_of_one_name_stay_apart() -> None:
    n, other = Var("n", 2), Var("n", 2)
    assert str(n) == str(other) and n != other
    assert n * (A // n) + A % n == A
    e = other * (A // n) + A % n
    assert evaluate(e, {n: 3, other: 5, A: 7}) == 5 * 2 + 1
    assert n * A + other * J != n * A + n * J
    assert less(n, J) == less(n, J) and less(n, J) != less(other, J)


def test_rejections() -> None:
    with pytest.raises(TypeError, match="has no truth value"):
        bool(A)
    with pytest.raises(TypeError, match="has no truth value"):
        bool(less(A, J))
    with pytest.raises(ZeroDivisionError, match="the divisor must be positive"):
        floordiv(A, 0)
    with pytest.raises(ZeroDivisionError, match="the modulus must be positive"):
        mod(A, -2)
    with pytest.raises(KeyError, match="no value for n"):
        evaluate(N + A, {A: 1})


class Maker:
    """Random expressions together with a direct meaning that knows no simplification."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.symbol = Var("n", 2, rng.choice([None, 9]), rng.choice([1, 1, 3]))
        self.below = Var("k", 0, self.symbol - 1)
        self.variables = [Var("a", 0, 11), Var("b", -3, 6), self.below, self.symbol]

    def point(self) -> dict[Var, int]:
        n = self.rng.choice([x for x in range(2, 10) if x % self.symbol.multiple_of == 0])
        values = (self.rng.randint(0, 11), self.rng.randint(-3, 6), self.rng.randrange(n), n)
        return dict(zip(self.variables, values, strict=True))

    def make(self, depth: int):
        rng = self.rng
        if depth == 0 or rng.random() < 0.15:
            if rng.random() < 0.3:
                c = rng.randint(-4, 12)
                return as_expr(c), lambda p: c
            v = rng.choice(self.variables)
            return v, lambda p: p[v]
        x, fx = self.make(depth - 1)
        match rng.choice(
            ["add", "add", "scale", "mul", "div", "mod", "divn", "modn", "min", "max"]
        ):
            case "add":
                y, fy = self.make(depth - 1)
                return add(x, y), lambda p: fx(p) + fy(p)
            case "scale":
                c = rng.choice([-2, -1, 2, 3, 4, 6, 8])
                return mul(x, c), lambda p: fx(p) * c
            case "mul":
                v = self.symbol
                return mul(x, v), lambda p: fx(p) * p[v]
            case "div":
                c = rng.choice([1, 2, 3, 4, 6, 8])
                return floordiv(x, c), lambda p: fx(p) // c
            case "mod":
                c = rng.choice([1, 2, 3, 4, 6, 8])
                return mod(x, c), lambda p: fx(p) % c
            case "divn":
                v = self.symbol
                return floordiv(x, v), lambda p: fx(p) // p[v]
            case "modn":
                v = self.symbol
                return mod(x, v), lambda p: fx(p) % p[v]
            case "min":
                y, fy = self.make(depth - 1)
                return minimum(x, y), lambda p: min(fx(p), fy(p))
            case _:
                y, fy = self.make(depth - 1)
                return maximum(x, y), lambda p: max(fx(p), fy(p))


def assert_facts(e: Expr, value: int, where: object) -> None:
    """What an expression claims about its values holds for this one."""
    low, high = e.interval
    assert low is None or low <= value, where
    assert high is None or value <= high, where
    bound = lower_bound(e)
    assert bound is None or bound <= value, where
    assert value % (e.divisor or 1) == 0, where
    for f in (2, 3, 4):
        assert not is_multiple(e, f) or value % f == 0, where


@pytest.mark.parametrize("start", range(0, 300, 100))
def test_simplification_keeps_values(start: int) -> None:
    for seed in range(start, start + 100):
        maker = Maker(random.Random(seed))
        e, meaning = maker.make(4)
        other, other_meaning = maker.make(2)
        conditions: list[tuple[Cond, str]] = [
            (less(e, other), "<"),
            (less_equal(e, other), "<="),
            (equal(e, other), "=="),
        ]
        for _ in range(8):
            p = maker.point()
            value, against = meaning(p), other_meaning(p)
            assert evaluate(e, p) == value, (seed, e)
            assert_facts(e, value, (seed, e))
            truths = {"<": value < against, "<=": value <= against, "==": value == against}
            for c, name in conditions:
                found = substitute_condition(c, p)
                assert isinstance(found, Truth) and found.value == truths[name], (seed, c)
                assert prove(c) in (None, truths[name]), (seed, c)
                flipped = substitute_condition(negate(c), p)
                assert isinstance(flipped, Truth) and flipped.value != truths[name], (seed, c)


def test_equal_texts_of_other_variables_differ() -> None:
    a, b = Var("x", 0, 7), Var("x", 0, 7)
    assert a + 1 == a + 1 and a + 1 != b + 1
    assert a * a != a * b and (a * b).leaves in ((a, b), (b, a))
    assert variables(a * b + a // 3) in ((a, b), (b, a)) and variables(as_expr(3)) == ()


def test_what_stands_beside_the_bits_of_an_exclusive_or_is_added() -> None:
    row, lane, part = Var("row", 0, 7), Var("lane", 0, 1), Var("part", 0, 3)
    e = xor(64 * row + 16 * part + lane, 8 * row)
    assert e == 64 * row + lane + xor(16 * part, 8 * row)
    assert is_multiple(e - lane, 8)
    assert xor(8 * part + lane + 2 * row, 4 * row) == lane + xor(8 * part + 2 * row, 4 * row)
    assert xor(12 * row, 8 * part) == xor(8 * part, 12 * row)  # carries: stays as it is
    for r in range(8):
        for p in range(4):
            for k in range(2):
                values = {row: r, part: p, lane: k}
                assert evaluate(e, values) == (64 * r + 16 * p + k) ^ (8 * r)
