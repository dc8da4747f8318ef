"""Lines, atoms and digits: the storage below the axis classes, with undo.

A line is an integer coordinate of its own; lines that were tied are one line up to an offset
(weighted union-find). An atom is an interval of a line. An atom may be defined: by a word of digits
(a box), or by one word moved by another (a twist). A digit is `(atom // stride) % extent`, a word
is a tuple of digits, outer first, and stands for the mixed-radix number of its digits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias, TypeVar

from fusewright.core.atoms import xor
from fusewright.core.expr import (
    ONE,
    ZERO,
    Expr,
    Int,
    constant_value,
    floordiv,
    integer,
    mod,
    mul,
    parts_of,
)
from fusewright.core.terms import Term
from fusewright.errors import InternalError

K = TypeVar("K")
V = TypeVar("V")

MAX_QUOTIENT_TERMS = 8
"""Of exact quotients of sizes that are looked for: sizes of views of views have few."""


@dataclass(frozen=True, slots=True, eq=False)
class Atom:
    """The interval `[low, low + extent)` of a line; interned, so identity is equality."""

    line: int
    low: Expr
    extent: Expr
    name: str

    def __str__(self) -> str:
        return self.name if self.low == ZERO else f"{self.name}[{self.low}:]"


@dataclass(frozen=True, slots=True)
class Digit:
    """`(atom // stride) % extent`, where `stride * extent` divides the atom's extent."""

    atom: Atom
    stride: Expr
    extent: Expr

    @property
    def is_whole(self) -> bool:
        """Whether the digit is its atom."""
        return self.stride == ONE and self.extent == self.atom.extent

    def __str__(self) -> str:
        text = str(self.atom)
        if self.stride != ONE:
            text += f"//{self.stride}"
        whole = mul(self.stride, self.extent) == self.atom.extent
        return text if whole else f"{text}%{self.extent}"


Word: TypeAlias = tuple[Digit, ...]


@dataclass(frozen=True, slots=True)
class Twist:
    """`base ^ by`: both extents are the same power of two. A twist is known where both are; its
    base follows from it and what it is twisted by."""

    base: Word
    by: Word

    @property
    def extent(self) -> Expr:
        """The number of values, in range of which every base is."""
        return word_extent(self.base)

    @property
    def is_onto(self) -> bool:
        """Whether every value is that of a base, whatever it is twisted by."""
        return True

    @property
    def sign(self) -> str:
        """What stands between the two in a name."""
        return "^"

    def twisted(self, base: Expr, by: Expr) -> Expr:
        """The value for a base."""
        return xor(base, by)

    def untwisted(self, value: Expr, by: Expr) -> Expr:
        """The base of a value; beyond the base's extent where the value has none."""
        return xor(value, by)


@dataclass(frozen=True, slots=True)
class Skew(Twist):
    """`base + (by * scale) % modulus`: the positions of a row counted from the last multiple of
    `modulus` before it, when rows follow each other every `scale` elements."""

    scale: Expr
    modulus: int

    @property
    def extent(self) -> Expr:
        return word_extent(self.base) + (self.modulus - 1)

    @property
    def is_onto(self) -> bool:
        return False

    @property
    def sign(self) -> str:
        return "~"

    def twisted(self, base: Expr, by: Expr) -> Expr:
        return base + self._moved(by)

    def untwisted(self, value: Expr, by: Expr) -> Expr:
        return value - self._moved(by)

    def _moved(self, by: Expr) -> Expr:
        return mod(mul(by, self.scale), self.modulus)


Definition: TypeAlias = Word | Twist


def digits_of(definition: Definition) -> Word:
    """Every digit that a definition mentions."""
    return definition.base + definition.by if isinstance(definition, Twist) else definition


def ratio(a: Expr, b: Expr) -> Expr | None:
    """`a / b` when the division is exact in the normal form, else None."""
    ka, kb = constant_value(a), constant_value(b)
    if ka is not None and kb is not None:
        return integer(ka // kb) if kb and ka % kb == 0 else None
    if kb == 1:
        return a
    if kb == 0:
        return None
    if a == b:
        return ONE
    q = floordiv(a, b)
    if mul(q, b) == a:
        return q if q != ZERO else None
    return _polynomial_ratio(a, b)


def _polynomial_ratio(a: Expr, b: Expr) -> Expr | None:
    """`a / b` by long division, for a divisor of several terms such as `(n-1)//f + 1`."""
    constant, terms = parts_of(b)
    if not terms or (len(terms) == 1 and not constant):
        return None
    divisor = _leading(terms)
    quotient: Expr = ZERO
    for _ in range(MAX_QUOTIENT_TERMS):
        left = parts_of(a)[1]
        k = ratio(term_value(_leading(left)), term_value(divisor)) if left else None
        if k is None:
            return None
        if (_leading(left).coefficient < 0) != (divisor.coefficient < 0):
            k = mul(k, -1)
        quotient, a = quotient + k, a - k * b
        if a == ZERO:
            return quotient
    return None


def _leading(terms: Sequence[Term]) -> Term:
    """The term of the highest degree, of equal ones the first in an order that products keep."""
    degree = max(len(t.atoms) for t in terms)
    return min(
        (t for t in terms if len(t.atoms) == degree), key=lambda t: sorted(map(str, t.atoms))
    )


def term_value(t: Term) -> Expr:
    """A term as an expression, without its sign."""
    value: Expr = Int(abs(t.coefficient))
    for a in t.atoms:
        value = mul(value, a)
    return value


def word_extent(word: Word) -> Expr:
    """The number of values of a word."""
    extent: Expr = ONE
    for d in word:
        extent = mul(extent, d.extent)
    return extent


def cut_aligned(word: Word, factor: Expr) -> tuple[Word, Word] | None:
    """`word = outer, inner` with `inner` of extent `factor`, when the cut falls on or inside one
    digit; None when it would need several digits as one number."""
    inner: Word = ()
    rest = factor
    position = len(word)
    while rest != ONE:
        position -= 1
        if position < 0:
            return None
        d = word[position]
        smaller = ratio(rest, d.extent)
        if smaller is not None:
            inner = (d, *inner)
            rest = smaller
            continue
        larger = ratio(d.extent, rest)
        if larger is None:
            return None
        above = Digit(d.atom, mul(d.stride, rest), larger)
        below = Digit(d.atom, d.stride, rest)
        return (*word[:position], above), (below, *inner)
    return word[:position], inner


def cut_between(word: Word, stride: Expr, extent: Expr) -> Word | None:
    """The digits of a word that make up `(word // stride) % extent`, when they align."""
    above = cut_aligned(word, stride)
    here = above and cut_aligned(above[0], extent)
    return here[1] if here else None


def _common(a: Expr, b: Expr, *, multiple: bool) -> Expr | None:
    """The least common multiple or the greatest common divisor, where it is known."""
    if ratio(a, b) is not None:
        return a if multiple else b
    if ratio(b, a) is not None:
        return b if multiple else a
    ka, kb = constant_value(a), constant_value(b)
    if ka is None or kb is None:
        return None
    return Int(math.lcm(ka, kb) if multiple else math.gcd(ka, kb))


def _borders(word: Word) -> list[tuple[Expr, Expr]]:
    """The (lower, upper) position of each digit, innermost first."""
    found: list[tuple[Expr, Expr]] = []
    position: Expr = ONE
    for d in reversed(word):
        above = mul(position, d.extent)
        found.append((position, above))
        position = above
    return found


def _first_aligned(word: Word, start: Expr, end: Expr | None) -> Expr | None:
    """The lowest position on or within a digit that is a multiple of `start` and divides `end`."""
    for below, above in _borders(word):
        p = _common(start, below, multiple=True)
        fits = p is not None and ratio(above, p) is not None
        if p is not None and fits and (end is None or ratio(end, p) is not None):
            return p
    return None


def _last_aligned(word: Word, start: Expr | None, end: Expr) -> Expr | None:
    """The highest position on or within one digit that divides `end`, a multiple of `start`."""
    for below, above in reversed(_borders(word)):
        p = _common(end, above, multiple=False)
        fits = p is not None and ratio(p, below) is not None
        if p is not None and fits and (start is None or ratio(p, start) is not None):
            return p
    return None


def aligned_core(word: Word, stride: Expr, extent: Expr) -> tuple[Expr, Expr] | None:
    """The largest part (stride, extent) of `(word // stride) % extent` that aligns with the word's
    digits: from the first to the last position inside that lies on or within one digit."""
    end = mul(stride, extent)
    low, high = _first_aligned(word, stride, end), _last_aligned(word, stride, end)
    if low is None or high is None or low == high:
        return None
    size = ratio(high, low)
    return None if size is None else (low, size)


def aligned_hull(word: Word, stride: Expr, extent: Expr) -> Word:
    """The digits of a word on which `(word // stride) % extent` depends: the smallest aligned part
    around it, or the whole word where that is not known."""
    low = _last_aligned(word, None, stride)
    high = _first_aligned(word, mul(stride, extent), None)
    size = ratio(high, low) if low is not None and high is not None else None
    part = cut_between(word, low, size) if low is not None and size is not None else None
    return word if part is None else part


@dataclass(frozen=True, slots=True)
class Mark:
    """A state that lines can go back to: how many writes and lines there were, and the numbers of
    the state, of what lines are defined by, and of the normal forms."""

    writes: int
    lines: int
    version: int
    structure: int
    epoch: int


class Lines:
    """All lines of one graph. Every write goes through `put` or `drop`, so it can be undone."""

    def __init__(self) -> None:
        self._parent: dict[int, tuple[int, Expr]] = {}
        self._names: list[str] = []
        self._atoms: dict[int, dict[tuple[Expr, Expr], Atom]] = {}
        self.definition: dict[Atom, Definition] = {}
        self.named: dict[Definition, Atom] = {}
        self._users: dict[int, dict[Atom, None]] = {}
        self._log: list[Callable[[], None]] | None = None
        self._marks = 0
        self._stamp = 0
        self.version = 0
        self.structure = 0
        self.epoch = 0

    # ----- undo

    def mark(self) -> Mark:
        """Record writes until this mark, and all that were set after it, are kept or undone."""
        if self._log is None:
            self._log = []
        self._marks += 1
        return Mark(len(self._log), len(self._names), self.version, self.structure, self.epoch)

    def keep(self) -> None:
        """Keep the writes since the last mark; those set before it may still undo them."""
        self._marks -= 1
        if not self._marks:
            self._log = None

    def undo(self, mark: Mark) -> None:
        """Undo every write since a mark, the last one. The numbers of the state are those of then:
        none is ever given to two states."""
        log = self._log or []
        while len(log) > mark.writes:
            log.pop()()
        for line in range(mark.lines, len(self._names)):
            del self._atoms[line], self._users[line]
        del self._names[mark.lines :]
        self.version, self.structure, self.epoch = mark.version, mark.structure, mark.epoch
        self.keep()

    def tied(self) -> None:
        """Tell that normal forms have changed."""
        self._stamp += 1
        self.epoch = self._stamp

    def put(self, table: dict[K, V], key: K, value: V) -> None:
        """`table[key] = value`, undone by `undo`."""
        self._written()
        if self._log is not None:
            if key in table:
                old = table[key]
                self._log.append(lambda: table.__setitem__(key, old))
            else:
                self._log.append(lambda: table.__delitem__(key))
        table[key] = value

    def drop(self, table: dict[K, V], key: K) -> V | None:
        """`table.pop(key, None)`, undone by `undo`."""
        if key not in table:
            return None
        self._written()
        old = table.pop(key)
        if self._log is not None:
            self._log.append(lambda: table.__setitem__(key, old))
        return old

    def _written(self) -> None:
        self._stamp += 1
        self.version = self._stamp

    # ----- lines and atoms

    def new_line(self, name: str) -> int:
        """A line of its own."""
        line = len(self._names)
        self._names.append(name)
        self._atoms[line] = {}
        self._users[line] = {}
        return line

    def find(self, line: int) -> tuple[int, Expr]:
        """The representative of a line and the offset of positions on it."""
        found = self._parent.get(line)
        if found is None:
            return line, ZERO
        root, offset = self.find(found[0])
        if root == found[0]:
            return found
        total = (root, found[1] + offset)
        if self._log is None:
            self._parent[line] = total
        return total

    def root(self, line: int) -> int:
        """The representative of a line."""
        return self.find(line)[0]

    def atom(self, line: int, low: Expr, extent: Expr) -> Atom:
        """The canonical atom of an interval."""
        root, offset = self.find(line)
        key = (low + offset, extent)
        table = self._atoms[root]
        found = table.get(key)
        if found is None:
            found = Atom(root, key[0], extent, self._names[root])
            self.put(table, key, found)
        return found

    def fresh(self, extent: Expr, name: str) -> Atom:
        """The atom `[0, extent)` of a new line."""
        return self.atom(self.new_line(name), ZERO, extent)

    def canonical(self, atom: Atom) -> Atom:
        """The atom on the representative line."""
        if atom.line not in self._parent:
            return atom
        return self.atom(atom.line, atom.low, atom.extent)

    def atoms_on(self, root: int) -> tuple[Atom, ...]:
        """The atoms of a representative line, oldest first."""
        return tuple(self._atoms[root].values())

    def units(self) -> tuple[Atom, ...]:
        """The canonical atoms of extent 1, by line."""
        return tuple(
            a
            for line, table in self._atoms.items()
            if line not in self._parent
            for a in table.values()
            if a.extent == ONE
        )

    def users_of(self, root: int) -> tuple[Atom, ...]:
        """The atoms whose definition mentions a representative line."""
        atoms = dict.fromkeys(self.canonical(a) for a in self._users[root])
        return tuple(a for a in atoms if a in self.definition)

    def below(self, root: int) -> Iterator[Digit]:
        """The digits of every definition of an atom of a representative line."""
        for atom in self.atoms_on(root):
            definition = self.definition.get(atom)
            if definition is not None:
                yield from digits_of(definition)

    def closure(self, roots: Iterable[int]) -> dict[int, None]:
        """The representative lines that these lines are defined by, themselves included."""
        seen: dict[int, None] = {}
        stack = list(roots)
        while stack:
            root = stack.pop()
            if root in seen:
                continue
            seen[root] = None
            stack.extend(self.root(d.atom.line) for d in self.below(root))
        return seen

    def absorb(self, kept: int, gone: int, offset: Expr) -> list[tuple[Atom, Atom]]:
        """Make the representative `gone` a part of `kept`: `position(kept) = position(gone) +
        offset`. Returns pairs (moved atom, its new canonical atom)."""
        self.put(self._parent, gone, (kept, offset))
        self.structure = self._stamp
        moved: list[tuple[Atom, Atom]] = []
        for old in self.atoms_on(gone):
            moved.append((old, self.atom(kept, old.low + offset, old.extent)))
        for user in self._users[gone]:
            self.put(self._users[kept], user, None)
        return moved

    # ----- words

    def define(self, atom: Atom, definition: Definition) -> None:
        """Give an atom its definition, which must be in normal form and new."""
        self._define(atom, definition)
        self.structure = self._stamp

    def _define(self, atom: Atom, definition: Definition) -> None:
        self.put(self.definition, atom, definition)
        self.put(self.named, definition, atom)
        for d in digits_of(definition):
            self.put(self._users[self.root(d.atom.line)], atom, None)

    def undefine(self, atom: Atom) -> Definition | None:
        """Take an atom's definition away and return it."""
        old = self.drop(self.definition, atom)
        self.structure = self._stamp
        if old is not None and self.named.get(old) is atom:
            self.drop(self.named, old)
        return old

    def normal(self, word: Iterable[Digit]) -> Word:
        """The canonical form: definitions expanded where they align, neighbours fused, no units."""
        out: list[Digit] = []
        for d in word:
            atom = self.canonical(d.atom)
            self._push(out, d if atom is d.atom else Digit(atom, d.stride, d.extent))
        return tuple(out)

    def _push(self, out: list[Digit], d: Digit) -> None:
        if d.extent == ONE:
            return
        if out and out[-1].atom is d.atom and out[-1].stride == mul(d.stride, d.extent):
            above = out.pop()
            self._push(out, Digit(d.atom, d.stride, mul(above.extent, d.extent)))
            return
        part = self._expanded(d)
        if part is None:
            out.append(d)
            return
        for q in part:
            atom = self.canonical(q.atom)
            self._push(out, q if atom is q.atom else Digit(atom, q.stride, q.extent))

    def _expanded(self, d: Digit) -> Word | None:
        definition = self.definition.get(d.atom)
        if definition is None or isinstance(definition, Twist):
            return None
        if d.is_whole:
            return definition
        core = aligned_core(definition, d.stride, d.extent)
        part = core and cut_between(definition, *core)
        if core is None or part is None:
            return None
        below, end = ratio(core[0], d.stride), mul(*core)
        above = ratio(mul(d.stride, d.extent), end)
        if below is None or above is None:
            return None
        return (Digit(d.atom, end, above), *part, Digit(d.atom, d.stride, below))

    def normal_definition(self, definition: Definition) -> Definition:
        """The canonical form of a definition."""
        if isinstance(definition, Twist):
            base, by = self.normal(definition.base), self.normal(definition.by)
            return replace(definition, base=base, by=by)
        return self.normal(definition)

    def box(self, word: Word) -> Atom:
        """The atom whose value is the number that a normal word spells."""
        if len(word) == 1 and word[0].is_whole:
            return word[0].atom
        found = self.named.get(word)
        if found is not None:
            return found
        name = "*".join(dict.fromkeys(d.atom.name for d in word))
        atom = self.fresh(word_extent(word), f"({name})")
        self._define(atom, word)  # of a line of its own: nothing that stands changes
        return atom

    def twist(self, definition: Twist) -> Atom:
        """The atom whose value is one word twisted by another."""
        found = self.named.get(definition)
        if found is None:
            base, by = definition.base[0].atom, definition.by[0].atom
            found = self.fresh(definition.extent, f"({base.name}{definition.sign}{by.name})")
            self._define(found, definition)
        return found

    def cut(self, word: Word, factor: Expr) -> tuple[Word, Word]:
        """`word = outer, inner` with `inner` of extent `factor`, which divides the word's extent.

        Where the cut does not fall on digits, the shortest run that it fits is named as a box.
        """
        aligned = cut_aligned(word, factor)
        if aligned is not None:
            return aligned
        position, rest = len(word), factor
        while position:
            smaller = ratio(rest, word[position - 1].extent)
            if smaller is None:
                break
            position, rest = position - 1, smaller
        for start in range(position - 1, -1, -1):
            run = word[start:position]
            quotient = ratio(word_extent(run), rest)
            if quotient is not None:
                box = self._number(run)
                outer = (*word[:start], Digit(box.atom, mul(box.stride, rest), quotient))
                return outer, (Digit(box.atom, box.stride, rest), *word[position:])
        quotient = ratio(word_extent(word), factor)
        if quotient is None:
            raise InternalError(f"cut: {factor} does not divide the extent {word_extent(word)}")
        box = self._number(word)
        above = Digit(box.atom, mul(box.stride, factor), quotient)
        return (above,), (Digit(box.atom, box.stride, factor),)

    def _number(self, word: Word) -> Digit:
        """The number that a normal word spells, as a digit of a box that has it already:

        B = p*q of 8 and 15, cut by 4:  B//4 is spelled (p//4, B//4%15), and cut by 6 it stays B//24
        """
        inner: Expr = ONE
        for d in reversed(word):
            stride = ratio(d.stride, inner)
            if stride is not None and d.atom in self.definition:
                whole = Digit(d.atom, stride, word_extent(word))
                if self.normal((whole,)) == word:
                    return whole
            inner = mul(inner, d.extent)
        return Digit(self.box(word), ONE, word_extent(word))
