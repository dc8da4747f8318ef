"""Integer expressions in one normal form: a polynomial over atoms.

An expression is `constant + sum(coefficient * monomial)`, a monomial a product of atoms, an atom a
`Var`, `FloorDiv`, `Mod`, `Min`, `Max` or `Xor`. The constructors below keep the normal form, so
two expressions that print the same are equal. Every expression knows an interval that contains it.
Division is floor division; divisors are positive.

Source of the rules: mixed-radix identities `f*(r//f) + r%f == r`, `(r%(a*b))//b == (r//b)%a`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NoReturn, TypeAlias

Interval: TypeAlias = tuple[int | None, int | None]
IntLike: TypeAlias = "Expr | int"


class Expr:
    """An integer expression. Immutable; `==` is structural; it has no truth value."""

    __slots__ = ("_hash", "_key", "interval")
    interval: Interval
    _key: str
    _hash: int

    def _seal(self, key: str, interval: Interval) -> None:
        object.__setattr__(self, "_key", key)
        object.__setattr__(self, "_hash", hash(key))
        object.__setattr__(self, "interval", interval)

    def __bool__(self) -> NoReturn:
        raise TypeError(f"the expression {self} has no truth value; use prove()")

    def __str__(self) -> str:
        return self._key

    __repr__ = __str__

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, Expr) or self._hash != other._hash or self._key != other._key:
            return False
        return all(a is b for a, b in zip(variables(self), variables(other), strict=True))

    def __add__(self, other: IntLike) -> Expr:
        return add(self, other)

    def __radd__(self, other: IntLike) -> Expr:
        return add(other, self)

    def __sub__(self, other: IntLike) -> Expr:
        return add(self, mul(other, -1))

    def __rsub__(self, other: IntLike) -> Expr:
        return add(other, mul(self, -1))

    def __mul__(self, other: IntLike) -> Expr:
        return mul(self, other)

    def __rmul__(self, other: IntLike) -> Expr:
        return mul(other, self)

    def __neg__(self) -> Expr:
        return mul(self, -1)

    def __floordiv__(self, other: IntLike) -> Expr:
        return floordiv(self, other)

    def __mod__(self, other: IntLike) -> Expr:
        return mod(self, other)


class Int(Expr):
    """A constant."""

    __slots__ = ("value",)
    value: int

    def __init__(self, value: int) -> None:
        self.value = value
        self._seal(str(value), (value, value))


class Atom(Expr):
    """Anything that is not a sum or a constant."""

    __slots__ = ()


class Var(Atom):
    """A variable with `lower <= v <= upper` (inclusive) that is a multiple of `multiple_of`.

    Equality is identity: two variables of one name are different variables.
    """

    __slots__ = ("lower", "multiple_of", "name", "upper")

    def __init__(
        self, name: str, lower: IntLike = 0, upper: IntLike | None = None, multiple_of: int = 1
    ) -> None:
        self.name = name
        self.lower = as_expr(lower)
        self.upper = None if upper is None else as_expr(upper)
        self.multiple_of = multiple_of
        high = None if self.upper is None else self.upper.interval[1]
        self._seal(name, (self.lower.interval[0], high))

    def __eq__(self, other: object) -> bool:
        return self is other

    __hash__ = Expr.__hash__


@dataclass(frozen=True, slots=True)
class Term:
    """`coefficient * product(atoms)`; atoms sorted by their text."""

    atoms: tuple[Atom, ...]
    coefficient: int


class Sum(Expr):
    """`constant + terms`; at least one term, and not a bare atom."""

    __slots__ = ("constant", "terms")
    constant: int
    terms: tuple[Term, ...]

    def __init__(self, constant: int, terms: tuple[Term, ...]) -> None:
        self.constant = constant
        self.terms = terms
        low: int | None = constant
        high: int | None = constant
        for t in terms:
            lo, hi = _scale(_product_interval(t.atoms), t.coefficient)
            low = None if low is None or lo is None else low + lo
            high = None if high is None or hi is None else high + hi
        self._seal(_sum_text(constant, terms), (low, high))


class FloorDiv(Atom):
    """`numerator // denominator`, rounded down; the denominator is positive."""

    __slots__ = ("denominator", "numerator")

    def __init__(self, numerator: Expr, denominator: Expr) -> None:
        self.numerator = numerator
        self.denominator = denominator
        low, high = numerator.interval
        dlow, dhigh = denominator.interval
        dlow = max(dlow or 1, 1)
        new_low = new_high = None
        if low is not None:
            new_low = low // dlow if low < 0 else (low // dhigh if dhigh else 0)
        if high is not None:
            new_high = high // dlow if high >= 0 else (high // dhigh if dhigh else -1)
        self._seal(f"{_wrap(numerator)}//{_wrap(denominator)}", (new_low, new_high))


class Mod(Atom):
    """`numerator - denominator * (numerator // denominator)`, in `[0, denominator)`."""

    __slots__ = ("denominator", "numerator")

    def __init__(self, numerator: Expr, denominator: Expr) -> None:
        self.numerator = numerator
        self.denominator = denominator
        dhigh = denominator.interval[1]
        high = None if dhigh is None else dhigh - 1
        low_n, high_n = numerator.interval
        if low_n is not None and low_n >= 0 and high_n is not None:
            high = high_n if high is None else min(high, high_n)
        self._seal(f"{_wrap(numerator)}%{_wrap(denominator)}", (0, high))


class Min(Atom):
    """The smaller of two."""

    __slots__ = ("left", "right")

    def __init__(self, left: Expr, right: Expr) -> None:
        self.left = left
        self.right = right
        (al, ah), (bl, bh) = left.interval, right.interval
        low = None if al is None or bl is None else min(al, bl)
        highs = [h for h in (ah, bh) if h is not None]
        self._seal(f"min({left}, {right})", (low, min(highs) if highs else None))


class Max(Atom):
    """The larger of two."""

    __slots__ = ("left", "right")

    def __init__(self, left: Expr, right: Expr) -> None:
        self.left = left
        self.right = right
        (al, ah), (bl, bh) = left.interval, right.interval
        high = None if ah is None or bh is None else max(ah, bh)
        lows = [x for x in (al, bl) if x is not None]
        self._seal(f"max({left}, {right})", (max(lows) if lows else None, high))


class Xor(Atom):
    """Bitwise exclusive or of two non-negative expressions."""

    __slots__ = ("left", "right")

    def __init__(self, left: Expr, right: Expr) -> None:
        self.left = left
        self.right = right
        ah, bh = left.interval[1], right.interval[1]
        high = None
        if ah is not None and bh is not None:
            high = (1 << max(ah.bit_length(), bh.bit_length())) - 1
        self._seal(f"({_wrap(left)}^{_wrap(right)})", (0, high))


# ---------------------------------------------------------------------------------------------
# Conditions


class Cond:
    """A condition on integer expressions. Immutable; it has no truth value."""

    __slots__ = ("_hash", "_key")
    _key: str
    _hash: int

    def _seal(self, key: str) -> None:
        object.__setattr__(self, "_key", key)
        object.__setattr__(self, "_hash", hash(key))

    def __bool__(self) -> NoReturn:
        raise TypeError(f"the condition {self} has no truth value; use prove()")

    def __str__(self) -> str:
        return self._key

    __repr__ = __str__

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, Cond) or self._key != other._key:
            return False
        return all(a is b for a, b in zip(variables(self), variables(other), strict=True))


class Truth(Cond):
    """A condition that is always true or always false."""

    __slots__ = ("value",)

    def __init__(self, value: bool) -> None:
        self.value = value
        self._seal("true" if value else "false")


class Less(Cond):
    """`left < right`."""

    __slots__ = ("left", "right")

    def __init__(self, left: Expr, right: Expr) -> None:
        self.left = left
        self.right = right
        self._seal(f"{left} < {right}")


class Equal(Cond):
    """`left == right`."""

    __slots__ = ("left", "right")

    def __init__(self, left: Expr, right: Expr) -> None:
        self.left = left
        self.right = right
        self._seal(f"{left} == {right}")


class And(Cond):
    """All of at least two conditions."""

    __slots__ = ("parts",)

    def __init__(self, parts: tuple[Cond, ...]) -> None:
        self.parts = parts
        self._seal(" && ".join(f"({p})" if isinstance(p, Or) else str(p) for p in parts))


class Or(Cond):
    """Any of at least two conditions."""

    __slots__ = ("parts",)

    def __init__(self, parts: tuple[Cond, ...]) -> None:
        self.parts = parts
        self._seal(" || ".join(f"({p})" if isinstance(p, And) else str(p) for p in parts))


class Not(Cond):
    """The contrary of a condition that has no simpler contrary."""

    __slots__ = ("part",)

    def __init__(self, part: Cond) -> None:
        self.part = part
        self._seal(f"!({part})")


TRUE = Truth(True)
FALSE = Truth(False)
ZERO = Int(0)
ONE = Int(1)


# ---------------------------------------------------------------------------------------------
# Text and intervals


def _wrap(e: Expr) -> str:
    is_plain = isinstance(e, Var | Int | Min | Max | Xor) and not str(e).startswith("-")
    return str(e) if is_plain else f"({e})"


def _term_text(t: Term) -> str:
    product = "*".join(_wrap(a) if isinstance(a, FloorDiv | Mod) else str(a) for a in t.atoms)
    magnitude = abs(t.coefficient)
    return product if magnitude == 1 else f"{magnitude}*{product}"


def _sum_text(constant: int, terms: tuple[Term, ...]) -> str:
    out = ""
    for t in terms:
        sign = "-" if t.coefficient < 0 else "+"
        if out:
            out += f" {sign} {_term_text(t)}"
        else:
            out = f"-{_term_text(t)}" if sign == "-" else _term_text(t)
    if constant:
        out += f" {'-' if constant < 0 else '+'} {abs(constant)}"
    return out


def _scale(interval: Interval, k: int) -> Interval:
    low, high = interval
    if k < 0:
        low, high = high, low
    return (None if low is None else low * k, None if high is None else high * k)


def _product_interval(atoms: tuple[Atom, ...]) -> Interval:
    low, high = atoms[0].interval
    for a in atoms[1:]:
        al, ah = a.interval
        if low is not None and al is not None and low >= 0 and al >= 0:
            low = low * al
            high = None if high is None or ah is None else high * ah
        elif low is None or high is None or al is None or ah is None:
            return (None, None)
        else:
            corners = (low * al, low * ah, high * al, high * ah)
            low, high = min(corners), max(corners)
    return low, high


# ---------------------------------------------------------------------------------------------
# Constructors


def as_expr(value: IntLike) -> Expr:
    """An int as a constant expression; an expression unchanged."""
    return value if isinstance(value, Expr) else Int(int(value))


def constant_value(e: IntLike) -> int | None:
    """The value of a constant expression, else None."""
    if isinstance(e, Int):
        return e.value
    return None if isinstance(e, Expr) else int(e)


def parts_of(e: Expr) -> tuple[int, tuple[Term, ...]]:
    """The constant and the terms of an expression."""
    if isinstance(e, Int):
        return e.value, ()
    if isinstance(e, Sum):
        return e.constant, e.terms
    assert isinstance(e, Atom)
    return 0, (Term((e,), 1),)


def _from_map(constant: int, table: dict[tuple[Atom, ...], int]) -> Expr:
    terms = tuple(
        Term(atoms, c)
        for atoms, c in sorted(table.items(), key=lambda kv: tuple(str(a) for a in kv[0]))
        if c
    )
    if not terms:
        return Int(constant)
    if constant == 0 and len(terms) == 1 and terms[0].coefficient == 1 and len(terms[0].atoms) == 1:
        return terms[0].atoms[0]
    return Sum(constant, terms)


def _sum(constant: int, terms: Iterable[Term]) -> Expr:
    table: dict[tuple[Atom, ...], int] = {}
    has_mod = False
    for t in terms:
        table[t.atoms] = table.get(t.atoms, 0) + t.coefficient
        has_mod = has_mod or any(isinstance(a, Mod | FloorDiv) for a in t.atoms)
    if has_mod:
        folded = _recombine(constant, table)
        if folded is not None:
            return folded
    return _from_map(constant, table)


def _recombine(constant: int, table: dict[tuple[Atom, ...], int]) -> Expr | None:
    """`c*f*(r//f) + c*(r%f) -> c*r`, and the same through one more digit; exact `f*(v//f) -> v`."""
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
                    return add(_sum(constant, rest), exact)
            if not isinstance(atom, Mod):
                continue
            folded = _fold_digit(atom, rest_atoms, c, table)
            if folded is not None:
                partner, replacement = folded
                rest = [Term(k, v) for k, v in table.items() if k not in (atoms, partner)]
                scale: Expr = Int(c)
                for a in rest_atoms:
                    scale = mul(scale, a)
                return add(_sum(constant, rest), mul(scale, replacement))
    return None


def _fold_digit(
    low: Mod, others: tuple[Atom, ...], c: int, table: dict[tuple[Atom, ...], int]
) -> tuple[tuple[Atom, ...], Expr] | None:
    quotient = floordiv(low.numerator, low.denominator)
    f = constant_value(low.denominator)
    for atoms, coefficient in table.items():
        if f is not None:
            if coefficient != c * f or len(atoms) != len(others) + 1:
                continue
        else:
            scaled = mul(low.denominator, c)
            _, dterms = parts_of(scaled)
            if len(dterms) != 1 or parts_of(scaled)[0] or dterms[0].coefficient != coefficient:
                continue
            expected = len(others) + 1 + len(dterms[0].atoms)
            if len(atoms) != expected:
                continue
        for high in dict.fromkeys(atoms):
            remaining = list(atoms)
            remaining.remove(high)
            needed = list(others)
            if f is None:
                needed += list(parts_of(low.denominator)[1][0].atoms)
            if sorted(map(str, remaining)) != sorted(map(str, needed)):
                continue
            if high == quotient:
                return atoms, low.numerator
            if isinstance(high, Mod) and high.numerator == quotient:
                return atoms, mod(low.numerator, mul(low.denominator, high.denominator))
    return None


def add(*values: IntLike) -> Expr:
    """The sum."""
    constant = 0
    terms: list[Term] = []
    for v in values:
        if isinstance(v, int):
            constant += v
            continue
        k, ts = parts_of(as_expr(v))
        constant += k
        terms.extend(ts)
    return _sum(constant, terms)


def mul(a: IntLike, b: IntLike) -> Expr:
    """The product, distributed over sums."""
    a, b = as_expr(a), as_expr(b)
    if isinstance(a, Int) and isinstance(b, Int):
        return Int(a.value * b.value)
    ka, ta = parts_of(a)
    kb, tb = parts_of(b)
    terms = [Term(t.atoms, t.coefficient * kb) for t in ta]
    terms += [Term(t.atoms, t.coefficient * ka) for t in tb]
    for x in ta:
        for y in tb:
            atoms = tuple(sorted(x.atoms + y.atoms, key=str))
            terms.append(Term(atoms, x.coefficient * y.coefficient))
    return _sum(ka * kb, terms)


def is_multiple(e: Expr, f: int) -> bool:
    """Whether every value of `e` is known to be a multiple of `f`."""
    constant, terms = parts_of(e)
    return constant % f == 0 and all(_term_multiple(t) % f == 0 for t in terms)


def _term_multiple(t: Term) -> int:
    m = abs(t.coefficient)
    for a in t.atoms:
        m *= _atom_multiple(a)
    return m


def _atom_multiple(a: Atom) -> int:
    match a:
        case Var():
            return a.multiple_of
        case Min() | Max():
            return math.gcd(divisor_of(a.left), divisor_of(a.right)) or 1
        case Mod():
            return math.gcd(divisor_of(a.numerator), divisor_of(a.denominator)) or 1
        case _:
            return 1


def divisor_of(e: Expr) -> int:
    """The largest integer known to divide every value of `e`; 0 for the constant 0."""
    constant, terms = parts_of(e)
    return math.gcd(abs(constant), *(_term_multiple(t) for t in terms))


def _divisible(t: Term, f: Expr) -> Expr | None:
    """`t / f` when the division is exact in the normal form."""
    k, fterms = parts_of(f)
    if not fterms:
        return mul(t.coefficient // k, _product(t.atoms)) if t.coefficient % k == 0 else None
    if k or len(fterms) != 1 or t.coefficient % fterms[0].coefficient:
        return None
    remaining = list(t.atoms)
    for a in fterms[0].atoms:
        if a not in remaining:
            return None
        remaining.remove(a)
    return mul(t.coefficient // fterms[0].coefficient, _product(tuple(remaining)))


def _product(atoms: tuple[Atom, ...]) -> Expr:
    if not atoms:
        return ONE
    return atoms[0] if len(atoms) == 1 else Sum(0, (Term(atoms, 1),))


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
        elif fk is not None and _term_multiple(t) % fk == 0 and len(t.atoms) == 1:
            quotients.append(FloorDiv(mul(t.coefficient, t.atoms[0]), f))
        else:
            rest.append(t)
    if fk is not None:
        quotients.append(Int(constant // fk))
        constant %= fk
    whole = _multiples_in(rest, constant, f) if fk is None else None
    if whole is not None:
        q, r = whole
        return add(*quotients, q), r
    return add(*quotients), _sum(constant, rest)


def _multiples_in(rest: list[Term], constant: int, f: Expr) -> tuple[Expr, Expr] | None:
    """Symbolic divisors that are sums: take out `k*f` when the rest holds a whole copy of it."""
    fk, fterms = parts_of(f)
    if len(fterms) == 1 and not fk:
        return None
    table = {t.atoms: t.coefficient for t in rest}
    lead = fterms[0]
    k = table.get(lead.atoms, 0) // lead.coefficient if lead.atoms in table else 0
    if not k:
        return None
    r = add(_sum(constant, rest), mul(f, -k))
    return Int(k), r


def _in_range(r: Expr, f: Expr) -> bool:
    """Whether `0 <= r < f` always; `f` is positive, being a divisor."""
    if constant_value(r) == 0:
        return True
    low, high = r.interval
    if low is None or low < 0:
        low = lower_bound(r)
        if low is None or low < 0:
            return False
    fk = f.interval[0]
    if high is not None and fk is not None and high < fk:
        return True
    gap = lower_bound(add(f, mul(r, -1), -1))
    return gap is not None and gap >= 0


def floordiv(a: IntLike, b: IntLike) -> Expr:
    """`a // b`, rounded down; `b` must be positive."""
    a, b = as_expr(a), as_expr(b)
    bk = constant_value(b)
    if bk is not None and bk <= 0:
        raise ZeroDivisionError(f"floor division of {a} by {b}: the divisor must be positive")
    if isinstance(a, Int) and bk is not None:
        return Int(a.value // bk)
    if bk == 1:
        return a
    q, r = _split(a, b)
    if _in_range(r, b):
        return q
    return add(q, _floordiv_rest(r, b))


def _floordiv_rest(r: Expr, b: Expr) -> Expr:
    bk = constant_value(b)
    if bk is None:
        return FloorDiv(r, b)
    constant, terms = parts_of(r)
    if not terms:
        return Int(constant // bk)
    g = math.gcd(bk, *(t.coefficient for t in terms))
    if g > 1:
        reduced = _sum(constant // g, [Term(t.atoms, t.coefficient // g) for t in terms])
        return floordiv(reduced, bk // g)
    if isinstance(r, FloorDiv):
        return floordiv(r.numerator, mul(r.denominator, bk))
    if isinstance(r, Mod):
        inner = constant_value(r.denominator)
        if inner is not None and inner % bk == 0:
            return mod(floordiv(r.numerator, bk), inner // bk)
    low, high = r.interval
    if low is not None and high is not None and low // bk == high // bk:
        return Int(low // bk)
    return FloorDiv(r, b)


def mod(a: IntLike, b: IntLike) -> Expr:
    """`a - b*(a//b)`, in `[0, b)`; `b` must be positive."""
    a, b = as_expr(a), as_expr(b)
    bk = constant_value(b)
    if bk is not None and bk <= 0:
        raise ZeroDivisionError(f"{a} modulo {b}: the modulus must be positive")
    if isinstance(a, Int) and bk is not None:
        return Int(a.value % bk)
    if bk == 1:
        return ZERO
    if bk is not None:
        a = _drop_inner_mods(a, bk)
    _, r = _split(a, b)
    if _in_range(r, b):
        return r
    if bk is None:
        return Mod(r, b)
    constant, terms = parts_of(r)
    if not terms:
        return Int(constant % bk)
    g = math.gcd(bk, *(t.coefficient for t in terms))
    if g > 1:
        reduced = _sum(constant // g, [Term(t.atoms, t.coefficient // g) for t in terms])
        return add(mul(mod(reduced, bk // g), g), constant % g)
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


def _order(a: Expr, b: Expr) -> bool | None:
    """True when `a <= b` always, False when `a >= b` always, None when neither is known."""
    d = lower_bound(add(b, mul(a, -1)))
    if d is not None and d >= 0:
        return True
    d = lower_bound(add(a, mul(b, -1)))
    return False if d is not None and d >= 0 else None


def minimum(a: IntLike, b: IntLike) -> Expr:
    """The smaller of two."""
    a, b = as_expr(a), as_expr(b)
    known = _order(a, b)
    if known is not None:
        return a if known else b
    return Min(*sorted((a, b), key=str))


def maximum(a: IntLike, b: IntLike) -> Expr:
    """The larger of two."""
    a, b = as_expr(a), as_expr(b)
    known = _order(a, b)
    if known is not None:
        return b if known else a
    return Max(*sorted((a, b), key=str))


def xor(a: IntLike, b: IntLike) -> Expr:
    """Bitwise exclusive or; both operands must be non-negative."""
    a, b = as_expr(a), as_expr(b)
    if isinstance(a, Int) and isinstance(b, Int):
        return Int(a.value ^ b.value)
    if isinstance(a, Int) and a.value == 0:
        return b
    if isinstance(b, Int) and b.value == 0:
        return a
    if a == b:
        return ZERO
    if isinstance(a, Xor) and b in (a.left, a.right):
        return a.right if b == a.left else a.left
    if isinstance(b, Xor) and a in (b.left, b.right):
        return b.right if a == b.left else b.left
    return Xor(*sorted((a, b), key=str))


def ceildiv(a: IntLike, b: IntLike) -> Expr:
    """`a // b`, rounded up."""
    return floordiv(add(a, b, -1), b)


def less(a: IntLike, b: IntLike) -> Cond:
    """`a < b`, decided when the bounds decide it, without quotients that stand alone (`x//f < n`
    is `x < n*f`) and without what plays no part, constants on one side."""
    a, b = as_expr(a), as_expr(b)
    if isinstance(a, FloorDiv):
        return less(a.numerator, mul(b, a.denominator))
    if isinstance(b, FloorDiv):
        return less(add(mul(add(a, 1), b.denominator), -1), b.numerator)
    gap = lower_bound(add(b, mul(a, -1), -1))
    if gap is not None and gap >= 0:
        return TRUE
    gap = lower_bound(add(a, mul(b, -1)))
    if gap is not None and gap >= 0:
        return FALSE
    return _reduced(a, b)


def _reduced(a: Expr, b: Expr) -> Cond:
    """`a < b` in fewer and smaller terms, its constant on the side that has nothing else.

    With `g` dividing some of the terms and `r` the sum of the others, `g*q + r < k` is
    `q < ceil((k - r) / g)`; where that is the same for all values of `r`, they play no part:
    `8*i + lane < 4096` is `i < 512` for `0 <= lane < 8`.
    """
    (ka, left), (kb, right) = parts_of(a), parts_of(b)
    bound = kb - ka
    signed = [*left, *(Term(t.atoms, -t.coefficient) for t in right)]
    weights = [abs(t.coefficient) for t in signed]
    for g in sorted({*weights, math.gcd(*weights)} - {1}, reverse=True):
        low, high = _sum(0, (t for t in signed if t.coefficient % g)).interval
        if low is None or high is None or -((high - bound) // g) != -((low - bound) // g):
            continue
        whole = [_sum(0, _quotients(side, g)) for side in (left, right)]
        return less(whole[0], add(whole[1], -((low - bound) // g)))
    new_a, new_b = (_sum(0, left), _sum(bound, right)) if left else (Int(-bound), _sum(0, right))
    if isinstance(new_a, FloorDiv) or isinstance(new_b, FloorDiv):
        return less(new_a, new_b)
    return Less(new_a, new_b)


def _quotients(terms: Iterable[Term], g: int) -> Iterator[Term]:
    """The terms that `g` divides, divided by it."""
    return (Term(t.atoms, t.coefficient // g) for t in terms if t.coefficient % g == 0)


def less_equal(a: IntLike, b: IntLike) -> Cond:
    """`a <= b`."""
    return less(a, add(b, 1))


def equal(a: IntLike, b: IntLike) -> Cond:
    """`a == b`, decided when the bounds decide it."""
    a, b = as_expr(a), as_expr(b)
    difference = add(a, mul(b, -1))
    if isinstance(difference, Int):
        return TRUE if difference.value == 0 else FALSE
    low, high = difference.interval
    if (low is not None and low > 0) or (high is not None and high < 0):
        return FALSE
    return Equal(a, b)


def all_of(conditions: Iterable[Cond]) -> Cond:
    """The conjunction, without duplicates, in the given order."""
    kept: dict[Cond, None] = {}
    for c in conditions:
        for p in c.parts if isinstance(c, And) else (c,):
            if isinstance(p, Truth):
                if not p.value:
                    return FALSE
            else:
                kept[p] = None
    parts = tuple(kept)
    if not parts:
        return TRUE
    return parts[0] if len(parts) == 1 else And(parts)


def any_of(conditions: Iterable[Cond]) -> Cond:
    """The disjunction, without duplicates, in the given order."""
    kept: dict[Cond, None] = {}
    for c in conditions:
        for p in c.parts if isinstance(c, Or) else (c,):
            if isinstance(p, Truth):
                if p.value:
                    return TRUE
            else:
                kept[p] = None
    parts = tuple(kept)
    if not parts:
        return FALSE
    return parts[0] if len(parts) == 1 else Or(parts)


def negate(c: Cond) -> Cond:
    """The contrary."""
    match c:
        case Truth():
            return FALSE if c.value else TRUE
        case Less():
            return less(c.right, add(c.left, 1))
        case And():
            return any_of(negate(p) for p in c.parts)
        case Or():
            return all_of(negate(p) for p in c.parts)
        case Not():
            return c.part
        case _:
            return Not(c)


# ---------------------------------------------------------------------------------------------
# Walks


def children(e: Expr | Cond) -> tuple[Expr | Cond, ...]:
    """The direct operands."""
    match e:
        case Sum():
            return tuple(a for t in e.terms for a in t.atoms)
        case FloorDiv() | Mod():
            return (e.numerator, e.denominator)
        case Min() | Max() | Xor() | Less() | Equal():
            return (e.left, e.right)
        case And() | Or():
            return e.parts
        case Not():
            return (e.part,)
        case _:
            return ()


def walk(e: Expr | Cond) -> Iterator[Expr | Cond]:
    """The expression and everything below it, parents first."""
    yield e
    for c in children(e):
        yield from walk(c)


def variables(e: Expr | Cond) -> tuple[Var, ...]:
    """The variables, in order of first occurrence."""
    return tuple(dict.fromkeys(v for v in walk(e) if isinstance(v, Var)))


def substitute(e: Expr, values: Mapping[Var, IntLike]) -> Expr:
    """The expression with variables replaced, in normal form again."""
    match e:
        case Int():
            return e
        case Var():
            return as_expr(values[e]) if e in values else e
        case Sum():
            if not any(v in values for v in variables(e)):
                return e
            out: list[IntLike] = [e.constant]
            for t in e.terms:
                product: Expr = Int(t.coefficient)
                for a in t.atoms:
                    product = mul(product, substitute(a, values))
                out.append(product)
            return add(*out)
        case FloorDiv():
            return floordiv(substitute(e.numerator, values), substitute(e.denominator, values))
        case Mod():
            return mod(substitute(e.numerator, values), substitute(e.denominator, values))
        case Min():
            return minimum(substitute(e.left, values), substitute(e.right, values))
        case Max():
            return maximum(substitute(e.left, values), substitute(e.right, values))
        case Xor():
            return xor(substitute(e.left, values), substitute(e.right, values))
        case _:
            raise TypeError(f"not an expression: {type(e).__name__}")


def substitute_condition(c: Cond, values: Mapping[Var, IntLike]) -> Cond:
    """The condition with variables replaced."""
    match c:
        case Less():
            return less(substitute(c.left, values), substitute(c.right, values))
        case Equal():
            return equal(substitute(c.left, values), substitute(c.right, values))
        case And():
            return all_of(substitute_condition(p, values) for p in c.parts)
        case Or():
            return any_of(substitute_condition(p, values) for p in c.parts)
        case Not():
            return negate(substitute_condition(c.part, values))
        case _:
            return c


def evaluate(e: Expr, values: Mapping[Var, int]) -> int:
    """The value under an assignment of every variable."""
    result = substitute(e, values)
    if not isinstance(result, Int):
        missing = ", ".join(v.name for v in variables(result))
        raise KeyError(f"no value for {missing} in {e}")
    return result.value


# ---------------------------------------------------------------------------------------------
# Bounds


def lower_bound(e: Expr) -> int | None:
    """An integer that `e` never falls below, or None.

    Besides interval arithmetic it replaces variables that have symbolic limits by those limits,
    the ones whose limits mention others first, so that `n - i - 1` with `0 <= i < n` gives 0, and
    whole multiples of quotients and remainders by the bounds of rounding: `f*(x//f) > x - f`.
    Where that says nothing it looks at a multiple of `e`, so that `n - n//2` gives 0.
    """
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
    """The bound of `e` that follows from one of `f*e`, where `f` makes the coefficient of a
    quotient by a constant a multiple of that constant."""
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
    """A lower bound of `e` without its first `f*(x//f)` or negative `x%f` with a symbolic f; the
    quotients that finer ones bound more tightly come first."""
    constant, terms = parts_of(e)
    for rule in (_through_finer, _unrounded_term):
        for position, t in enumerate(terms):
            replaced = rule(t, terms)
            if replaced is not None:
                return add(_sum(constant, terms[:position] + terms[position + 1 :]), replaced)
    return None


def _through_finer(t: Term, terms: tuple[Term, ...]) -> Expr | None:
    """A lower bound of `d*(x//d)` beside a negative `x//f` where f divides d: it is
    `f * (d//f) * ((x//f) // (d//f))`, and so at least `f*(x//f) - d + f`."""
    d = _divisor(t)
    if d is None or t.coefficient <= 0 or t.coefficient % d:
        return None
    numerator = children(t.atoms[0])[0]
    for other in terms:
        f = _divisor(other)
        if f is None or other.coefficient > 0 or f >= d or d % f:
            continue
        if children(other.atoms[0])[0] == numerator:
            return mul(t.coefficient // d, add(mul(other.atoms[0], f), f - d))
    return None


def _divisor(t: Term) -> int | None:
    """The constant that a term which is one quotient divides by."""
    a = t.atoms[0]
    return constant_value(a.denominator) if isinstance(a, FloorDiv) and len(t.atoms) == 1 else None


def _unrounded_term(t: Term, _: tuple[Term, ...]) -> Expr | None:
    for position, a in enumerate(t.atoms):
        rest = t.atoms[:position] + t.atoms[position + 1 :]
        if any(r.interval[0] is None or r.interval[0] < 0 for r in rest):
            continue
        scale = mul(t.coefficient, _product(rest))
        if isinstance(a, Mod) and t.coefficient < 0 and not isinstance(a.denominator, Int):
            return mul(scale, add(a.denominator, -1))
        if not isinstance(a, FloorDiv):
            continue
        whole = Term(rest, t.coefficient) if rest else None
        k = _divisible(whole, a.denominator) if whole else _quotient(t.coefficient, a.denominator)
        if k is None:
            continue
        slack = add(a.numerator, mul(a.denominator, -1), 1)
        return mul(k, slack if t.coefficient > 0 else a.numerator)
    return None


def _quotient(c: int, f: Expr) -> Expr | None:
    d = constant_value(f)
    return Int(c // d) if d is not None and c % d == 0 else None


def _push_to_limit(constant: int, terms: tuple[Term, ...], v: Var) -> Expr | None:
    """`e` with `v` at the limit where `e` is smallest; None when that is not known."""
    assert v.upper is not None
    signs: set[bool] = set()
    for t in terms:
        count = sum(1 for a in t.atoms if a is v)
        if not count:
            if any(v in variables(a) for a in t.atoms):
                return None
            continue
        others = [a for a in t.atoms if a is not v]
        if count > 1 or any(v in variables(a) for a in others):
            return None
        if any(a.interval[0] is None or a.interval[0] < 0 for a in others):
            return None
        signs.add(t.coefficient > 0)
    if len(signs) != 1:
        return None
    limit = v.lower if signs.pop() else v.upper
    return substitute(_from_map(constant, {t.atoms: t.coefficient for t in terms}), {v: limit})


def prove(c: Cond) -> bool | None:
    """True or False when the condition is known for all values of its variables, else None."""
    match c:
        case Truth():
            return c.value
        case Less():
            simpler = less(c.left, c.right)
            return simpler.value if isinstance(simpler, Truth) else None
        case Equal():
            simpler = equal(c.left, c.right)
            return simpler.value if isinstance(simpler, Truth) else None
        case And():
            known = [prove(p) for p in c.parts]
            return False if False in known else (True if all(known) else None)
        case Or():
            known = [prove(p) for p in c.parts]
            return True if True in known else (False if all(k is False for k in known) else None)
        case Not():
            inner = prove(c.part)
            return None if inner is None else not inner
        case _:
            raise TypeError(f"not a condition: {type(c).__name__}")
