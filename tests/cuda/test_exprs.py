"""Printed expressions compute what the expression means, in a C++ that traps on overflow."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass

import pytest

from fusewright.core import atoms, conditions, expr as ex, substitution
from fusewright.core.expr import Division, Expr, Var
from fusewright.cuda.exprs import IntegerText, condition, integer


@dataclass(frozen=True, eq=False)
class C:
    """A C++ int (32 bits) or long long (64), which must not overflow; `/` and `%` truncate."""

    value: int
    bits: int = 32

    def __post_init__(self) -> None:
        assert -(1 << (self.bits - 1)) <= self.value < 1 << (self.bits - 1), "overflow"

    def _make(self, value: int, other: C | int = 0) -> C:
        return C(value, max(self.bits, of(other).bits))

    def __neg__(self) -> C:
        return self._make(-self.value)

    def __add__(self, o: C | int) -> C:
        return self._make(self.value + of(o).value, o)

    def __sub__(self, o: C | int) -> C:
        return self._make(self.value - of(o).value, o)

    def __mul__(self, o: C | int) -> C:
        return self._make(self.value * of(o).value, o)

    def __truediv__(self, o: C | int) -> C:
        quotient = abs(self.value) // abs(of(o).value)
        return self._make(quotient if (self.value < 0) == (of(o).value < 0) else -quotient, o)

    def __mod__(self, o: C | int) -> C:
        return self - (self / o) * o

    def __rshift__(self, o: C | int) -> C:
        return self._make(self.value >> of(o).value)

    def __and__(self, o: C | int) -> C:
        return self._make(self.value & of(o).value, o)

    def __xor__(self, o: C | int) -> C:
        return self._make(self.value ^ of(o).value, o)

    def __lt__(self, o: C | int) -> bool:
        return self.value < of(o).value

    def __eq__(self, o: object) -> bool:
        return isinstance(o, C) and self.value == o.value


def of(value: C | int) -> C:
    return value if isinstance(value, C) else C(value)


def run(code: str, values: dict[str, C]) -> C | bool:
    """The value of C++ text; conversions become a product with a wide 1."""
    text = code.replace("(long long)", "LL*").replace("&&", " and ").replace("||", " or ")
    text = re.sub(r"!(?=\()", " not ", text)
    text = re.sub(r"fw_(floordiv|rem)<(?:int|long long)>", r"\1", text)
    text = re.sub(r"fw_(over|rest)<(\d+)>\(", r"\1(\2, ", text)
    text = re.sub(r"\b(\d+)(ll)?\b", lambda m: f"C({m[1]}, {64 if m[2] else 32})", text)
    scope = {
        "C": C,
        "LL": C(1, 64),
        "floordiv": lambda a, b: a._make(a.value // b.value, b),
        "rem": lambda a, b: a._make(a.value % b.value, b),
        "over": lambda d, a: over(a, d),
        "rest": lambda d, a: a - over(a, d) * d,
        "min": lambda a, b: a if a.value < b.value else b,
        "max": lambda a, b: b if a.value < b.value else a,
    }
    return eval(text, scope, dict(values))  # the text is ours


def over(index: C, d: C) -> C:
    """What `fw_over` does: the upper half of a product of 32 bits each, and a shift."""
    assert index.bits == d.bits == 32
    above = d.value.bit_length() - 1
    inverse = (1 << (32 + above)) // d.value + 1
    assert inverse < 1 << 32 and index.value >= 0
    return C((index.value * inverse >> 32) >> above)


def spell(v: Var | Division) -> IntegerText | None:
    return IntegerText(v.name, wide=v.name in WIDE, atomic=True) if isinstance(v, Var) else None


WIDE = {"n", "m"}
VARS = (
    Var("tx", 0, 127),
    Var("bx", 0, 65535),
    Var("i", 0, 7),
    Var("j", -3, 5),
    Var("n", 2, None),
    Var("m", 2, 2**40, 4),
)


def random_expr(rng: random.Random, depth: int) -> Expr:
    if depth == 0 or rng.random() < 0.15:
        return rng.choice(VARS) if rng.random() < 0.8 else ex.as_expr(rng.randint(-9, 4000))
    a = random_expr(rng, depth - 1)
    match rng.randrange(7):
        case 0 | 1:
            return ex.add(a, random_expr(rng, depth - 1))
        case 2:
            return ex.mul(a, rng.choice((-1, 2, 3, 128, 70000)))
        case 3:
            return ex.mul(a, rng.choice(VARS))
        case 4:
            return ex.floordiv(a, rng.choice((2, 3, 8, 100, VARS[4])))
        case 5:
            return ex.mod(a, rng.choice((2, 3, 8, 100, VARS[4])))
        case _:
            return rng.choice((atoms.minimum, atoms.maximum))(a, random_expr(rng, depth - 1))


def random_values(rng: random.Random) -> dict[Var, int]:
    tops = {"n": 5000, "m": 5000}
    return {
        v: rng.choice((v.interval[0], rng.randint(v.interval[0], tops.get(v.name, v.interval[1]))))
        // v.multiple_of
        * v.multiple_of
        for v in VARS
    }


@pytest.mark.parametrize("seed", range(8))
def test_random_expressions_mean_the_same(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(150):
        e = random_expr(rng, 4)
        code = integer(e, spell).code
        for _ in range(4):
            values = random_values(rng)
            scope = {v.name: C(x, 64 if v.name in WIDE else 32) for v, x in values.items()}
            expected = substitution.evaluate(e, values)
            if abs(expected) >= 2**62:
                continue
            got = of(run(code, scope))
            assert got.value == expected, f"seed {seed}: {e} printed as {code} at {values}"


def test_an_int_suffices_when_the_bounds_prove_it() -> None:
    tx, _, i, *_ = VARS
    assert integer(i * 128 + tx, spell) == IntegerText("i * 128 + tx", wide=False)


def test_wide_where_the_product_leaves_the_int() -> None:
    bx, tx = VARS[1], VARS[0]
    assert integer(bx * 70000 + tx, spell) == IntegerText("(long long)bx * 70000 + tx", wide=True)


def test_wide_where_only_the_sum_leaves_the_int() -> None:
    a, b = Var("a", 0, 2**30), Var("b", 0, 2**30)
    text = integer(a + b + 5, lambda v: IntegerText(v.name, False, True))
    assert text == IntegerText("(long long)a + b + 5", wide=True)


def test_division_by_powers_of_two_is_a_shift_and_others_are_plain() -> None:
    tx, j = VARS[0], VARS[3]
    assert integer(tx // 32, spell).code == "tx >> 5"
    assert integer(tx % 32, spell).code == "tx & 31"
    assert integer(tx // 3, spell).code == "fw_over<3>(tx)"
    assert integer(tx % 3, spell).code == "fw_rest<3>(tx)"
    assert integer(j // 3, spell).code == "fw_floordiv<int>(j, 3)"
    assert integer(j % 3, spell).code == "fw_rem<int>(j, 3)"


def test_minimum_of_mixed_widths_is_taken_wide() -> None:
    tx, n = VARS[0], VARS[4]
    assert integer(atoms.minimum(n, tx), spell).code in (
        "min(n, (long long)tx)",
        "min((long long)tx, n)",
    )


def test_xor_is_bracketed_inside_a_sum() -> None:
    tx, i = VARS[0], VARS[2]
    assert integer(atoms.xor(tx, i) * 4 + 1, spell).code in ("(i ^ tx) * 4 + 1", "(tx ^ i) * 4 + 1")
    assert integer(atoms.xor(tx, i) + 1, spell).code in ("(i ^ tx) + 1", "(tx ^ i) + 1")


def random_condition(rng: random.Random) -> conditions.Cond:
    less = conditions.less(random_expr(rng, 2), random_expr(rng, 2))
    unequal = conditions.negate(conditions.equal(random_expr(rng, 1), random_expr(rng, 1)))
    return less if rng.random() < 0.7 else unequal


@pytest.mark.parametrize("seed", range(4))
def test_random_conditions_mean_the_same(seed: int) -> None:
    rng = random.Random(1000 + seed)
    for _ in range(60):
        parts = [random_condition(rng) for _ in range(3)]
        c = conditions.any_of([conditions.all_of(parts[:2]), parts[2]])
        code = condition(c, spell)
        for _ in range(4):
            values = random_values(rng)
            scope = {v.name: C(x, 64 if v.name in WIDE else 32) for v, x in values.items()}
            truth = conditions.substitute_condition(c, values)
            assert isinstance(truth, conditions.Truth)
            got = run(code.replace("true", "True").replace("false", "False"), scope)
            assert got is truth.value, f"seed {seed}: {c} printed as {code} at {values}"


def test_a_product_with_the_inverse_is_the_quotient_of_every_index() -> None:
    rng = random.Random(5)
    most = 2**31 - 1
    divisors = [3, 5, 6, 7, 9, 100, 143299, 2**30 + 1, most]
    divisors += [d for d in (rng.randrange(3, most) for _ in range(300)) if d & (d - 1)]
    for d in divisors:
        edge = most // d * d  # the last multiple: an error of the inverse shows here first
        for x in (0, 1, d - 1, d, edge - 1, edge, most, *(rng.randrange(most) for _ in range(20))):
            assert over(C(x), C(d)).value == x // d, (x, d)


def test_what_has_a_name_is_not_computed_again() -> None:
    row = VARS[1] // 12
    named = {row: IntegerText("row", wide=False, atomic=True)}
    code = integer(row * 89 + VARS[0], lambda e: named.get(e) or spell(e)).code
    assert code in ("row * 89 + tx", "tx + row * 89")
