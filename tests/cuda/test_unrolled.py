"""Indices in loops that the compiler unrolls: the same values, the literals last."""

from __future__ import annotations

import itertools

import pytest

from fusewright.core import atoms
from fusewright.core.expr import Expr, Var, floordiv, mod
from fusewright.core.substitution import evaluate
from fusewright.cuda.exprs import IntegerText, integer
from fusewright.cuda.unrolled import spelled

T, OUTER, INNER = Var("t", 0, 31), Var("i", 0, 7), Var("j", 0, 1)
BIT, REST = mod(floordiv(T, 16), 2), mod(T, 8)
CASES: dict[str, tuple[Expr, str]] = {
    "a sum": (64 * OUTER + 8 * T + 512 * INNER + 3, "(t * 8) + (i * 64 + j * 512 + 3)"),
    "no thread": (64 * OUTER + 512 * INNER, "i * 64 + j * 512"),
    "no loop": (8 * T + 3, "t * 8 + 3"),
    "mixed in": (
        atoms.xor(8 * BIT + 16 * mod(OUTER, 4), 8 * REST) + 64 * T + 4096 * INNER,
        "((((t & 7) * 8) ^ ((t >> 4) * 8)) + t * 64) ^ ((i & 3) * 16)) + (j * 4096)",
    ),
    "mixed in alone": (
        atoms.xor(16 * mod(OUTER, 4) + 8 * INNER, 8 * REST),
        "((t & 7) * 8) ^ ((i & 3) * 16 + j * 8)",
    ),
    "beside it, not in whole words": (
        atoms.xor(8 * BIT + 16 * mod(OUTER, 4), 8 * REST) + 24 * T,
        "((i & 3) * 16 + (t >> 4) * 8) ^ ((t & 7) * 8)) + t * 24",
    ),
    "bits in common": (atoms.xor(8 * REST + 16 * mod(OUTER, 4), 8 * BIT + 24), " ^ "),
}


def _spell(v: object) -> IntegerText | None:
    return IntegerText(v.name, wide=False, atomic=True) if isinstance(v, Var) else None


@pytest.mark.parametrize(("e", "part"), CASES.values(), ids=CASES)
def test_what_a_loop_says_comes_last(e: Expr, part: str) -> None:
    text = spelled(e, {OUTER, INNER}, _spell)
    assert part in text.code
    for t, i, j in itertools.product(range(32), range(8), range(2)):
        names = {"t": t, "i": i, "j": j}
        assert eval(text.code, names) == evaluate(e, {T: t, OUTER: i, INNER: j})


@pytest.mark.parametrize("e", [e for e, _ in CASES.values()], ids=CASES)
def test_without_such_loops_texts_are_as_they_were(e: Expr) -> None:
    assert spelled(e, (), _spell) == integer(e, _spell)


def test_what_needs_64_bits_is_left_alone() -> None:
    e = 2**31 * OUTER + 8 * T
    assert spelled(e, {OUTER}, _spell) == integer(e, _spell)
