"""Integer expressions in one normal form: a polynomial over atoms.

An expression is `constant + sum(coefficient * monomial)`, a monomial a product of atoms, an atom a
`Var`, `FloorDiv`, `Mod`, `Min`, `Max` or `Xor` (the last three: `core.atoms`). The constructors
below keep the normal form, so two expressions that print the same are equal. Every expression knows
an interval that contains it and a divisor of it. Division is floor division; divisors are positive.

Source of the rules: `f*(r//f) + r%f == r`, `(r%(a*b))//b == (r//b)%a`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import lru_cache
from typing import ClassVar, TypeAlias

from fusewright.core import intervals
from fusewright.core.intervals import Interval
from fusewright.core.symbolic import Symbolic, is_integer, parenthesised
from fusewright.core.terms import Polynomial, Term, coarse_part, copies_in

IntLike: TypeAlias = "Expr | int"


class Expr(Symbolic):
    """An integer expression. Immutable; `==` is structural; it has no truth value. All its values
    lie in `interval` and are multiples of `divisor`, which is 0 for the constant 0."""

    __slots__ = ("divisor", "interval")
    interval: Interval
    divisor: int

    def __add__(self, other: IntLike) -> Expr:
        return add(self, other) if is_integer(other) else NotImplemented

    __radd__ = __add__

    def __sub__(self, other: IntLike) -> Expr:
        return add(self, mul(other, -1)) if is_integer(other) else NotImplemented

    def __rsub__(self, other: IntLike) -> Expr:
        return add(other, mul(self, -1)) if is_integer(other) else NotImplemented

    def __mul__(self, other: IntLike) -> Expr:
        return mul(self, other) if is_integer(other) else NotImplemented

    __rmul__ = __mul__

    def __neg__(self) -> Expr:
        return mul(self, -1)

    def __floordiv__(self, other: IntLike) -> Expr:
        return floordiv(self, other) if is_integer(other) else NotImplemented

    def __mod__(self, other: IntLike) -> Expr:
        return mod(self, other) if is_integer(other) else NotImplemented


class Int(Expr):
    """A constant."""

    __slots__ = ("value",)

    def __init__(self, value: int) -> None:
        self.value = value
        self._seal(str(value))
        self.interval, self.divisor = (value, value), abs(value)


class Atom(Expr):
    """Anything that is not a sum or a constant."""

    __slots__ = ()


class Var(Atom):
    """A variable with `lower <= v <= upper` (inclusive) that is a multiple of `multiple_of`.

    Equality is identity: two variables of one name are different variables.
    """

    __slots__ = ("lower", "multiple_of", "name", "upper")
    is_variable: ClassVar[bool] = True
    is_number: ClassVar[bool] = False  # of a call, rather than a size

    def __init__(
        self, name: str, lower: IntLike = 0, upper: IntLike | None = None, multiple_of: int = 1
    ) -> None:
        self.name = name
        self.lower = as_expr(lower)
        self.upper = None if upper is None else as_expr(upper)
        self.multiple_of = multiple_of
        self._seal(name)
        limits = self.lower.interval[0], None if self.upper is None else self.upper.interval[1]
        self.interval, self.divisor = intervals.multiples(limits, multiple_of), multiple_of


class Sum(Polynomial, Expr):
    """`constant + terms`; at least one term, and not a bare atom."""

    __slots__ = ("constant", "terms")
    is_compound: ClassVar[bool] = True

    def __init__(self, constant: int, terms: tuple[Term, ...]) -> None:
        self.constant = constant
        self.terms = terms


class Division(Atom):
    """What the division of a numerator by a positive denominator gives."""

    __slots__ = ("denominator", "numerator")
    is_compound: ClassVar[bool] = True

    def __init__(self, numerator: Expr, denominator: Expr, sign: str) -> None:
        self.numerator = numerator
        self.denominator = denominator
        self._seal(f"{parenthesised(numerator)}{sign}{parenthesised(denominator)}")

    @property
    def children(self) -> tuple[Expr, ...]:
        return (self.numerator, self.denominator)


class FloorDiv(Division):
    """`numerator // denominator`, rounded down."""

    __slots__ = ()

    def __init__(self, numerator: Expr, denominator: Expr) -> None:
        super().__init__(numerator, denominator, "//")
        self.interval = intervals.floordiv(numerator.interval, denominator.interval)
        self.divisor = 1


class Mod(Division):
    """`numerator - denominator * (numerator // denominator)`, in `[0, denominator)`."""

    __slots__ = ("_quotient",)

    def __init__(self, numerator: Expr, denominator: Expr) -> None:
        super().__init__(numerator, denominator, "%")
        self.interval = intervals.mod(numerator.interval, denominator.interval)
        self.divisor = math.gcd(numerator.divisor, denominator.divisor)
        self._quotient: Expr | None = None

    @property
    def quotient(self) -> Expr:
        """The digits above: `numerator // denominator`."""
        if self._quotient is None:
            self._quotient = floordiv(self.numerator, self.denominator)
        return self._quotient


integer = lru_cache(4096)(Int)  # one object for each constant in use
ZERO, ONE = integer(0), integer(1)
KEPT = 1 << 13
"""Results of each constructor that are kept: nine in ten are asked for again for one kernel."""


def as_expr(value: IntLike) -> Expr:
    """An int as a constant expression; an expression unchanged."""
    return value if isinstance(value, Expr) else integer(int(value))


def constant_value(e: IntLike) -> int | None:
    """The value of a constant expression, else None."""
    if type(e) is Int:
        return e.value
    return None if isinstance(e, Expr) else int(e)


def parts_of(e: Expr) -> tuple[int, tuple[Term, ...]]:
    """The constant and the terms of an expression."""
    if type(e) is Int:
        return e.value, ()
    if type(e) is Sum:
        return e.constant, e.terms
    assert isinstance(e, Atom)
    return 0, (Term((e,), 1),)


def sum_of(constant: int, terms: Iterable[Term]) -> Expr:
    """The constant and the terms added up."""
    table: dict[tuple[Atom, ...], int] = {}
    for t in terms:
        table[t.atoms] = table.get(t.atoms, 0) + t.coefficient
    if any(isinstance(a, Division) for atoms in table for a in atoms):
        folded = _recombine(constant, table)
        if folded is not None:
            return folded
    found = [Term(atoms, c) for atoms, c in table.items() if c]
    if len(found) > 1:
        found.sort(key=lambda t: [str(a) for a in t.atoms])
    return _normal(constant, tuple(found))


def _normal(constant: int, terms: tuple[Term, ...]) -> Expr:
    """The constant and terms that are different, in order, and none of them zero."""
    if not terms:
        return integer(constant)
    if constant == 0 and terms[0].coefficient == len(terms[0].atoms) == len(terms) == 1:
        return terms[0].atoms[0]
    return Sum(constant, terms)


def _recombine(constant: int, table: dict[tuple[Atom, ...], int]) -> Expr | None:
    """`c*f*(r//f) + c*(r%f) -> c*r`, `f*((r//f+z)%d) + r%f -> (r+f*z)%(f*d)`, `f*(v//f) -> v`."""
    for atoms, c in table.items():
        if not c:
            continue
        for position, atom in enumerate(atoms):
            rest_atoms = atoms[:position] + atoms[position + 1 :]
            if isinstance(atom, FloorDiv):
                d = constant_value(atom.denominator)
                if d is not None and c % d == 0 and is_multiple(atom.numerator, d):
                    rest = [Term(k, v) for k, v in table.items() if k != atoms]
                    exact = mul(atom.numerator, mul(c // d, _product(rest_atoms)))
                    return add(sum_of(constant, rest), exact)
            if not isinstance(atom, Mod):
                continue
            folded = _fold_digit(atom, rest_atoms, c, table)
            if folded is not None:
                partner, replacement = folded
                rest = [Term(k, v) for k, v in table.items() if k not in (atoms, partner)]
                scale = mul(c, _product(rest_atoms))
                return add(sum_of(constant, rest), mul(scale, replacement))
    return None


def _fold_digit(
    low: Mod, others: tuple[Atom, ...], c: int, table: dict[tuple[Atom, ...], int]
) -> tuple[tuple[Atom, ...], Expr] | None:
    """The monomial that holds the digit above `c * others * low`, and what both digits make."""
    scale = _scale_above(low, others, c)
    if scale is None:
        return None
    for atoms, coefficient in table.items():
        if coefficient != scale.coefficient or len(atoms) != len(scale.atoms) + 1:
            continue
        for position, high in enumerate(atoms):
            if atoms[:position] + atoms[position + 1 :] != scale.atoms:
                continue
            f, quotient = low.denominator, low.quotient
            if high == quotient or _in_one_division(high) == _in_one_division(quotient):
                return atoms, low.numerator
            for at in (high, _in_one_division(high)):
                if isinstance(at, FloorDiv) and f == at.denominator and mod(at.numerator, f) == low:
                    return atoms, at.numerator
            if isinstance(high, Mod) and {*parts_of(quotient)[1]} <= {*parts_of(high.numerator)[1]}:
                place = low.numerator + f * (high.numerator - quotient)
                return atoms, mod(place, mul(f, high.denominator))
    return None


def _in_one_division(e: Expr) -> Expr:
    """`(a//k + c)//b` as `(a + k*c)//(k*b)`."""
    if not isinstance(e, FloorDiv):
        return e
    for t in parts_of(e.numerator)[1]:
        if isinstance(inner := t.atoms[0], FloorDiv) and t.coefficient == len(t.atoms) == 1:
            rest = mul(add(e.numerator, mul(inner, -1)), inner.denominator)
            return floordiv(add(inner.numerator, rest), mul(e.denominator, inner.denominator))
    return e


def _scale_above(low: Mod, others: tuple[Atom, ...], c: int) -> Term | None:
    """What the digit above `low` in `c * others * low` is multiplied by; None for a sum."""
    f = constant_value(low.denominator)
    if f is not None and not any(isinstance(a, Division) for a in others):
        return Term(others, c * f)
    constant, terms = parts_of(mul(mul(c, _product(others)), low.denominator))
    if len(terms) + bool(constant) != 1:
        return None
    return terms[0] if terms else Term((), constant)


@lru_cache(KEPT)
def add(*values: IntLike) -> Expr:
    """The sum."""
    constant = 0
    others: list[Expr] = []
    for v in values:
        if type(v) is Int:
            constant += v.value
        elif isinstance(v, Expr):
            others.append(v)
        else:
            constant += int(v)
    if not others:
        return integer(constant)
    parts = [parts_of(e) for e in others]
    constant += sum([k for k, _ in parts])
    if len(parts) == 1:
        return others[0] if constant == parts[0][0] else _normal(constant, parts[0][1])
    return sum_of(constant, [t for _, terms in parts for t in terms])


@lru_cache(KEPT)
def mul(a: IntLike, b: IntLike) -> Expr:
    """The product, distributed over sums."""
    if (k := constant_value(a)) is not None:
        return _scaled(as_expr(b), k)
    if (k := constant_value(b)) is not None:
        return _scaled(as_expr(a), k)
    a, b = as_expr(a), as_expr(b)
    ka, ta = parts_of(a)
    kb, tb = parts_of(b)
    terms = [Term(t.atoms, t.coefficient * kb) for t in ta]
    terms += [Term(t.atoms, t.coefficient * ka) for t in tb]
    for x in ta:
        for y in tb:
            atoms = tuple(sorted(x.atoms + y.atoms, key=str))
            terms.append(Term(atoms, x.coefficient * y.coefficient))
    return sum_of(ka * kb, terms)


def _scaled(e: Expr, k: int) -> Expr:
    """The product with a number: the same terms in the same order, unless digits become whole."""
    if k in (0, 1):
        return e if k else ZERO
    if isinstance(e, Int):
        return integer(e.value * k)
    constant, terms = parts_of(e)
    scaled = tuple(Term(t.atoms, t.coefficient * k) for t in terms)
    if any(map(_has_division, terms)):
        return sum_of(constant * k, scaled)
    return _normal(constant * k, scaled)


def is_multiple(e: Expr, f: int) -> bool:
    """Whether every value of `e` is known to be a multiple of `f`."""
    return e.divisor % f == 0


def _divisible(t: Term, f: Expr) -> Expr | None:
    """`t / f` when the division is exact in the normal form."""
    k, fterms = parts_of(f)
    if not fterms:
        return mul(t.coefficient // k, _product(t.atoms)) if t.coefficient % k == 0 else None
    return None if k or len(fterms) != 1 else term_ratio(t, fterms[0])


def term_ratio(t: Term, f: Term) -> Expr | None:
    """`t / f` when the division is exact in the normal form."""
    q = t.over(f)
    return None if q is None else mul(q.coefficient, _product(q.atoms))


def _has_division(t: Term) -> bool:
    return any(isinstance(a, Division) for a in t.atoms)


def _product(atoms: tuple[Atom, ...]) -> Expr:
    return _normal(0, (Term(atoms, 1),)) if atoms else ONE


def _split(e: Expr, f: Expr) -> tuple[Expr, Expr]:
    """`e == f*q + r` with as much as possible in `q`; for constant `f`, `0 <= const(r) < f`."""
    constant, terms = parts_of(e)
    fk = constant_value(f)
    quotients: list[Expr] = []
    rest: list[Term] = []
    for t in terms:
        q = _divisible(t, f)
        if q is not None:
            quotients.append(q)
        elif fk is not None and t.divisor % fk == 0 and len(t.atoms) == 1:
            quotients.append(FloorDiv(mul(t.coefficient, t.atoms[0]), f))
        else:
            rest.append(t)
    if fk is not None:
        return add(*quotients, constant // fk), sum_of(constant % fk, rest)
    k = copies_in(rest, *parts_of(f))
    r = sum_of(constant, rest)
    return add(*quotients, k), add(r, mul(f, -k)) if k else r


def _in_range(r: Expr, f: Expr) -> bool:
    """Whether `0 <= r < f` always; `f` is positive, being a divisor."""
    if constant_value(r) == 0:
        return True
    if not is_natural(r):
        return False
    high, least = r.interval[1], f.interval[0]
    if high is not None and least is not None and high < least:
        return True
    return is_natural(add(f, mul(r, -1), -1))


def floordiv(a: IntLike, b: IntLike) -> Expr:
    """`a // b`, rounded down; `b` must be positive."""
    a, b = as_expr(a), as_expr(b)
    bk = constant_value(b)
    if bk is not None and bk <= 0:
        raise ZeroDivisionError(f"floor division of {a} by {b}: the divisor must be positive")
    if isinstance(a, Int) and bk is not None:
        return integer(a.value // bk)
    return a if bk == 1 else _floordiv(a, b)


@lru_cache(KEPT)
def _floordiv(a: Expr, b: Expr) -> Expr:
    q, r = _split(a, b)
    return q if _in_range(r, b) else add(q, _floordiv_rest(r, b))


def _floordiv_rest(r: Expr, b: Expr) -> Expr:
    bk = constant_value(b)
    if bk is None:
        return FloorDiv(r, b)
    coarse = coarse_part(*parts_of(r), bk)
    if coarse is not None:
        return floordiv(sum_of(coarse.constant, coarse.terms), bk // coarse.unit)
    if isinstance(r, FloorDiv):
        return floordiv(r.numerator, mul(r.denominator, bk))
    if isinstance(r, Mod):
        inner = constant_value(r.denominator)
        if inner is not None and inner % bk == 0:
            return mod(floordiv(r.numerator, bk), inner // bk)
    low, high = r.interval
    if low is not None and high is not None and low // bk == high // bk:
        return integer(low // bk)
    return FloorDiv(r, b)


def mod(a: IntLike, b: IntLike) -> Expr:
    """`a - b*(a//b)`, in `[0, b)`; `b` must be positive."""
    a, b = as_expr(a), as_expr(b)
    bk = constant_value(b)
    if bk is not None and bk <= 0:
        raise ZeroDivisionError(f"{a} modulo {b}: the modulus must be positive")
    if isinstance(a, Int) and bk is not None:
        return integer(a.value % bk)
    return _mod(a, b, bk)


@lru_cache(KEPT)
def _mod(a: Expr, b: Expr, bk: int | None) -> Expr:
    if bk is not None:
        a = _drop_inner_mods(a, bk)
    _, r = _split(a, b)
    if _in_range(r, b):
        return r
    if bk is None:
        return Mod(r, b)
    coarse = coarse_part(*parts_of(r), bk)
    if coarse is not None:
        whole = mod(sum_of(coarse.constant, coarse.terms), bk // coarse.unit)
        return add(mul(whole, coarse.unit), sum_of(coarse.fine_constant, coarse.fine))
    low, high = r.interval
    if low is not None and high is not None and low // bk == high // bk:
        return add(r, -(low // bk) * bk)
    return Mod(r, b)


def _drop_inner_mods(e: Expr, f: int) -> Expr:
    """`(x % (k*f) + ...) % f` needs no inner modulo."""
    constant, terms = parts_of(e)
    out: list[IntLike] = [constant]
    for t in terms:
        a = t.atoms[0]
        inner = constant_value(a.denominator) if isinstance(a, Mod) and len(t.atoms) == 1 else None
        if inner is not None and isinstance(a, Mod) and (inner * t.coefficient) % f == 0:
            out.append(mul(a.numerator, t.coefficient))
        else:
            out.append(mul(t.coefficient, _product(t.atoms)))
    return add(*out)


def ceildiv(a: IntLike, b: IntLike) -> Expr:
    """`a // b`, rounded up."""
    return floordiv(add(a, b, -1), b)


def is_natural(e: Expr) -> bool:
    """Whether `e` is known never to be negative."""
    low = 0 if intervals.is_natural(e.interval) else lower_bound(e)
    return low is not None and low >= 0


def lower_bound(e: Expr) -> int | None:
    """The greatest of what is known to be no more than `e`, or None. From intervals; limits of
    variables, `n - i - 1 >= 0` as `i < n`; rounding, `f*(x//f) > x - f`; or else from multiples,
    `n - n//2 >= 0`, as twice that is at least n."""
    low = e.interval[0]
    for _ in range(8):
        smaller = _limited(e)
        if smaller is None:
            smaller = _unrounded(e)
        if smaller is None:
            return _lower_bound_of_multiple(e) if low is None else low
        e = smaller
        better = e.interval[0]
        if better is not None and (low is None or better > low):
            low = better
    return low


def _lower_bound_of_multiple(e: Expr) -> int | None:
    """The bound of `e` that follows from one of `f*e`; it has whole multiples of a quotient."""
    for t in parts_of(e)[1]:
        d = _divisor(t)
        if d is not None and t.coefficient % d:
            f = d // math.gcd(d, t.coefficient)
            low = lower_bound(mul(e, f))
            return None if low is None else -(-low // f)
    return None


def _limited(e: Expr) -> Expr | None:
    """A lower bound of `e` without the first variable that has a symbolic limit."""
    constant, terms = parts_of(e)
    for t in terms:
        for a in t.atoms:
            if isinstance(a, Var) and a.upper is not None and not isinstance(a.upper, Int):
                return _push_to_limit(constant, terms, a)
    return None


def _unrounded(e: Expr) -> Expr | None:
    """A lower bound without its first `f*(x//f)` or negative `x%f`; tighter bounds come first."""
    constant, terms = parts_of(e)
    rounded = [k for k, t in enumerate(terms) if _has_division(t)]
    for rule in (_through_finer, _unrounded_term):
        for k in rounded:
            replaced = rule(terms[k], terms)
            if replaced is not None:
                return add(sum_of(constant, terms[:k] + terms[k + 1 :]), replaced)
    return None


def _through_finer(t: Term, terms: tuple[Term, ...]) -> Expr | None:
    """A lower bound of `d*(x//d)` beside a negative `x//f`, f dividing d: `f*(x//f) - d + f`."""
    d = _divisor(t)
    if d is None or t.coefficient <= 0 or t.coefficient % d:
        return None
    for other in terms:
        f = _divisor(other)
        if f is None or other.coefficient > 0 or f >= d or d % f:
            continue
        if other.atoms[0].children[0] == t.atoms[0].children[0]:
            return mul(t.coefficient // d, add(mul(other.atoms[0], f), f - d))
    return None


def _divisor(t: Term) -> int | None:
    """The constant that a term which is one quotient divides by."""
    (a, *more) = t.atoms
    return constant_value(a.denominator) if isinstance(a, FloorDiv) and not more else None


def _unrounded_term(t: Term, _: tuple[Term, ...]) -> Expr | None:
    for position, a in enumerate(t.atoms):
        rest = t.atoms[:position] + t.atoms[position + 1 :]
        if not all(intervals.is_natural(r.interval) for r in rest):
            continue
        scale = mul(t.coefficient, _product(rest))
        if isinstance(a, Mod) and t.coefficient < 0 and not isinstance(a.denominator, Int):
            return mul(scale, add(a.denominator, -1))
        if not isinstance(a, FloorDiv):
            continue
        k = _divisible(Term(rest, t.coefficient), a.denominator)
        if k is None:
            continue
        slack = add(a.numerator, mul(a.denominator, -1), 1)
        return mul(k, slack if t.coefficient > 0 else a.numerator)
    return None


def _push_to_limit(constant: int, terms: tuple[Term, ...], v: Var) -> Expr | None:
    """`e` with `v` at the limit where `e` is smallest; None when that is not known."""
    assert v.upper is not None
    rest: list[Term] = []
    factors: list[Expr] = []
    signs: set[bool] = set()
    for t in terms:
        others = tuple(a for a in t.atoms if a is not v)
        if any(v in variables(a) for a in others):
            return None
        if len(others) == len(t.atoms):
            rest.append(t)
            continue
        if len(others) < len(t.atoms) - 1:
            return None
        if not all(intervals.is_natural(a.interval) for a in others):
            return None
        factors.append(mul(t.coefficient, _product(others)))
        signs.add(t.coefficient > 0)
    if len(signs) != 1:
        return None
    limit = v.lower if signs.pop() else v.upper
    return add(sum_of(constant, rest), *(mul(f, limit) for f in factors))


def variables(e: Symbolic) -> tuple[Var, ...]:
    """The variables, in order of first occurrence."""
    return e.distinct
