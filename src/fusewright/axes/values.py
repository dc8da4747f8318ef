"""What follows from known classes: a table of facts over the digits of a graph.

A fact is a digit whose value follows from the known classes. Facts are found forwards, once each:
digits that tile an atom give the atom; an atom gives its relatives on the line (contained ones
only, unless widening is allowed), its definition's digits, and, with its neighbours, the boxes and
twists that mention it. Each fact has one origin and is derived from older facts, so derivations
form a DAG rooted in the known classes. Values are computed on demand.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias, TypeVar, assert_never

from fusewright.axes.lines import Lines
from fusewright.axes.words import (
    Definition,
    Digit,
    LineAtom,
    Twist,
    Word,
    aligned_core,
    cut_between,
    digits_of,
    ratio,
    word_extent,
)
from fusewright.core.conditions import TRUE, Cond, less, less_equal, prove
from fusewright.core.expr import ONE, ZERO, Expr, floordiv, mod, mul
from fusewright.errors import InternalError


@dataclass(frozen=True, slots=True, eq=False)
class Given:
    """A digit of a known class."""

    value: Expr


@dataclass(frozen=True, slots=True, eq=False)
class Along:
    """An atom from another atom of its line."""

    source: LineAtom


@dataclass(frozen=True, slots=True, eq=False)
class Pack:
    """A twist, or a part of a box, from the digits that define it."""

    definition: Definition


@dataclass(frozen=True, slots=True, eq=False)
class Unpack:
    """Digits of a definition from that part of the defined atom; of a twist, from the atom and the
    digits it is twisted by."""

    source: Digit
    definition: Definition


Origin: TypeAlias = Given | Along | Pack | Unpack


@dataclass(slots=True, eq=False)
class Fact:
    """`(atom // stride) % extent` is known; derived from facts with smaller numbers only."""

    atom: LineAtom
    stride: Expr
    extent: Expr
    top: Expr
    """`stride * extent`: where the digits above begin."""
    origin: Origin
    number: int


@dataclass(frozen=True, slots=True)
class Value:
    """An index and the conditions under which it is one."""

    index: Expr
    predicates: tuple[Cond, ...]


class AtomPart(Protocol):
    """A part of an atom."""

    @property
    def stride(self) -> Expr: ...
    @property
    def extent(self) -> Expr: ...
    @property
    def top(self) -> Expr: ...


P = TypeVar("P", bound=AtomPart)


def find_run(pieces: Sequence[P], stride: Expr, extent: Expr) -> list[P] | None:
    """The fewest pieces, innermost first, that lie on end and hold the digit `stride, extent`."""
    wanted = mul(stride, extent)
    begins = [p for p in pieces if ratio(stride, p.stride) is not None]
    for first in begins:
        if ratio(first.top, wanted) is not None:
            return [first]
    if not begins or all(ratio(p.top, wanted) is None for p in pieces):
        return None
    best: list[P] | None = None
    following: dict[Expr, list[P]] = {}
    for p in pieces:
        following.setdefault(p.stride, []).append(p)
    for first in begins:
        run = _run_up_to(following, [first], wanted, None if best is None else len(best))
        if run is not None:
            best = run
    return best


def _run_up_to(
    following: Mapping[Expr, Sequence[P]], run: list[P], wanted: Expr, limit: int | None
) -> list[P] | None:
    """The shortest continuation of a run, below a length, whose end is a multiple of `wanted`, by
    the pieces that begin at a stride."""
    if limit is not None and len(run) >= limit:
        return None
    top = run[-1].top
    if ratio(top, wanted) is not None:
        return run
    best: list[P] | None = None
    for p in following.get(top, ()):
        if p.extent != ONE:
            found = _run_up_to(following, [*run, p], wanted, limit)
            if found is not None:
                best, limit = found, len(found)
    return best


def digit_value(whole: Expr, inner: Expr, extent: Expr, *, is_top: bool) -> Expr:
    """`(whole // inner) % extent`; the outermost digit of a value in range needs no modulo."""
    shifted = floordiv(whole, inner)
    return shifted if is_top else mod(shifted, extent)


def base_of(definition: Definition) -> Word:
    """The digits that carry a definition: of a twist, those that are twisted."""
    return definition.base if isinstance(definition, Twist) else definition


def bounds(index: Expr, extent: Expr, *, below: bool = True, above: bool = True) -> list[Cond]:
    """Those of `0 <= index < extent` that are asked for and not proved."""
    conditions: list[Cond] = []
    if below:
        conditions.append(less_equal(ZERO, index))
    if above:
        conditions.append(less(index, extent))
    return [c for c in conditions if c != TRUE]


def unpacked(word: Word, value: Expr) -> list[Expr]:
    """The values of the digits of a word whose value is in range."""
    if len(word) == 1:
        return [value]
    out: list[Expr] = []
    inner: Expr = ONE
    for position in range(len(word) - 1, -1, -1):
        extent = word[position].extent
        out.append(digit_value(value, inner, extent, is_top=position == 0))
        inner = mul(inner, extent)
    return out[::-1]


def gaps(pieces: Sequence[P], extent: Expr) -> list[tuple[Expr, Expr]]:
    """The parts (stride, extent) of an atom that lie between its pieces; where several pieces begin
    at one place, the parts behind each of them."""
    found: dict[tuple[Expr, Expr], None] = {}
    seen: dict[Expr, None] = {ONE: None}
    ahead: list[Expr] = [ONE]
    while ahead:
        position = ahead.pop()
        if position == extent:
            continue
        following = _ends_from(pieces, position)
        if not following:
            ends = [p.stride for p in pieces if ratio(p.stride, position) is not None] + [extent]
            nearest = [e for e in ends if all(ratio(other, e) is not None for other in ends)]
            size = ratio(nearest[0], position) if nearest else None
            if size is None:
                continue
            found[position, size] = None
            following = [nearest[0]]
        ahead += [p for p in following if p not in seen]
        seen |= dict.fromkeys(following)
    return list(found)


def stretches(facts: Sequence[Fact]) -> list[Digit]:
    """The parts of an atom that its facts cover without a break and that none continues. Facts of
    several lengths may begin at one place: each way on is followed to its end."""
    ends = [f.top for f in facts]
    found: dict[Digit, None] = {}
    for first in facts:
        if first.stride in ends:
            continue
        ahead = [first.top]
        while ahead:
            top = ahead.pop()
            following = _ends_from(facts, top)
            ahead += following
            size = ratio(top, first.stride)
            if not following and size is not None:
                found[Digit(first.atom, first.stride, size)] = None
    return list(found)


def _ends_from(pieces: Sequence[P], position: Expr) -> list[Expr]:
    """Where the pieces that begin at a position end, each place once."""
    ends = [
        p.top for p in pieces if (p.stride is position or p.stride == position) and p.extent != ONE
    ]
    return list(dict.fromkeys(ends))


class Table:
    """The facts that follow from known words. `clash` names two known digits that overlap."""

    def __init__(self, lines: Lines, known: Iterable[tuple[Word, Expr]], *, widen: bool) -> None:
        self._lines = lines
        self._widen = widen
        self._facts: dict[LineAtom, list[Fact]] = {}
        self._values: dict[Fact, Value] = {}
        self._spread: set[LineAtom] = set()
        self._whole: set[LineAtom] = set()
        self._covered: dict[int, int] = {}
        self._count = 0
        self._stale: list[LineAtom] = []
        self.clash: Digit | None = None
        for word, value in known:
            for d, v in zip(word, unpacked(word, value), strict=True):
                if self.run(d) is not None or self._overlaps(d):
                    self.clash = self.clash or d
                else:
                    self._add(d, Given(v))
        self._close()

    def assume_units(self) -> None:
        """Let every unit atom that nothing reaches be 0, and draw the conclusions."""
        for atom in self._lines.units():
            if not self.facts(atom):
                self._add(Digit(atom, ONE, ONE), Given(ZERO))
                self._close()

    def _close(self) -> None:
        while self._stale:
            self._visit(self._stale.pop(0))
            if not self._stale:
                self._unpack_parts()

    def facts(self, atom: LineAtom) -> Sequence[Fact]:
        """The facts of an atom, oldest first."""
        return self._facts.get(atom, ())

    def given(self) -> list[Fact]:
        """The digits of the known classes."""
        return [f for fs in self._facts.values() for f in fs if isinstance(f.origin, Given)]

    def run(self, d: Digit, before: int | None = None) -> list[Fact] | None:
        """The facts that hold a digit, or None; only those with numbers below `before`."""
        facts = self._facts.get(d.atom)
        if facts is not None and before is not None:
            facts = [f for f in facts if f.number < before]
        return None if facts is None else find_run(facts, d.stride, d.extent)

    def _overlaps(self, d: Digit) -> bool:
        return any(
            ratio(f.stride, mul(d.stride, d.extent)) is None and ratio(d.stride, f.top) is None
            for f in self.facts(d.atom)
        )

    # ----- forwards

    def _add(self, d: Digit, origin: Origin) -> None:
        facts = self._facts.setdefault(d.atom, [])
        top = mul(d.stride, d.extent)
        facts.append(Fact(d.atom, d.stride, d.extent, top, origin, self._count))
        self._count += 1
        self._stale.append(d.atom)

    def _visit(self, atom: LineAtom) -> None:
        """Draw the conclusions from what is known about an atom."""
        if atom not in self._spread and self._holds(atom):
            self._spread.add(atom)
            self._spread_whole(atom)
        for user in self._lines.users_of(atom.line):
            self._visit_user(user)

    def _visit_user(self, user: LineAtom) -> None:
        definition = self._lines.definition[user]
        whole = Digit(user, ONE, user.extent)
        if isinstance(definition, Twist):
            if self._holds(user):
                self._unpack(whole, definition)
            elif all(self.run(d) is not None for d in digits_of(definition)):
                self._add(whole, Pack(definition))
            return
        for gap in gaps(self.facts(user), user.extent):
            part = cut_between(definition, *gap)
            if part and all(self.run(d) is not None for d in part):
                self._add(Digit(user, *gap), Pack(part))

    def _holds(self, atom: LineAtom) -> bool:
        """Whether all of an atom is known, which it stays."""
        if atom in self._whole:
            return True
        found = self.run(Digit(atom, ONE, atom.extent)) is not None
        if found:
            self._whole.add(atom)
        return found

    def _spread_whole(self, atom: LineAtom) -> None:
        along = self._lines.atoms_on(atom.line)
        if self._covered.get(atom.line) != len(along):  # else one of them has reached all others
            for other in along:
                if other in self._whole or (other in self._facts and self._holds(other)):
                    continue
                if self._widen or self._lines.contains(atom, other):
                    self._add(Digit(other, ONE, other.extent), Along(atom))
            if self._widen:
                self._covered[atom.line] = len(along)
        definition = self._lines.definition.get(atom)
        if definition is not None:
            self._unpack(Digit(atom, ONE, atom.extent), definition)

    def _unpack_parts(self) -> None:
        """Where a part of a box is known that aligns with its definition, so are its digits."""
        for atom, facts in tuple(self._facts.items()):
            definition = self._lines.definition.get(atom)
            if definition is None or isinstance(definition, Twist) or self._holds(atom):
                continue
            for d in stretches(facts):
                core = aligned_core(definition, d.stride, d.extent)
                part = core and cut_between(definition, *core)
                if core and part:
                    self._unpack(Digit(atom, *core), part)

    def _unpack(self, source: Digit, definition: Definition) -> None:
        origin = Unpack(source, definition)
        if isinstance(definition, Twist) and any(self.run(d) is None for d in definition.by):
            return
        for d in base_of(definition):
            if self.run(d) is None:
                self._add(d, origin)

    # ----- values

    def word(self, word: Word, before: int | None = None) -> Value | None:
        """The value of a normal word, or None when it does not follow from facts below a number."""
        index: Expr = ZERO
        predicates: list[Cond] = []
        inner: Expr = ONE
        for d in reversed(word):
            run = self.run(d, before)
            if run is None:
                return None
            value = self.digit(d, run)
            index = index + mul(value.index, inner)
            predicates.extend(value.predicates)
            inner = mul(inner, d.extent)
        return Value(index, tuple(dict.fromkeys(predicates)))

    def digit(self, d: Digit, run: Sequence[Fact]) -> Value:
        """The value of a digit that lies in a run of facts."""
        first = run[0]
        if len(run) == 1 and first.stride == d.stride and first.extent == d.extent:
            return self.fact(first)
        whole: Expr = ZERO
        predicates: list[Cond] = []
        inner: Expr = ONE
        for f in run:
            value = self.fact(f)
            whole = whole + mul(value.index, inner)
            predicates.extend(value.predicates)
            inner = mul(inner, f.extent)
        shift = ratio(d.stride, first.stride)
        assert shift is not None
        is_top = mul(shift, d.extent) == inner
        return Value(digit_value(whole, shift, d.extent, is_top=is_top), tuple(predicates))

    def fact(self, f: Fact) -> Value:
        """The value of a fact."""
        found = self._values.get(f)
        if found is None:
            found = self._values[f] = self._value_of(f)
        return found

    def _value_of(self, f: Fact) -> Value:
        match f.origin:
            case Given(value):
                return Value(value, ())
            case Along(source):
                start = self._known((Digit(source, ONE, source.extent),), f)
                index = start.index + (source.low - f.atom.low)
                conditions = self.crossed(source, f.atom, index)
                return Value(index, (*start.predicates, *conditions))
            case Pack(definition):
                value = self._known(base_of(definition), f)
                if not isinstance(definition, Twist):
                    return value
                by = self._known(definition.by, f)
                index = definition.twisted(value.index, by.index)
                return Value(index, (*value.predicates, *by.predicates))
            case Unpack():
                start = self._untwisted(f, f.origin)
                base = base_of(f.origin.definition)
                position = [(d.atom, d.stride) for d in base].index((f.atom, f.stride))
                return Value(unpacked(base, start.index)[position], start.predicates)
            case _:
                assert_never(f.origin)

    def crossed(self, source: LineAtom, target: LineAtom, index: Expr) -> list[Cond]:
        """The conditions of a step along a line: sides where the target ends before the source."""
        below = prove(less_equal(target.low, source.low)) is not True
        ends = source.low + source.extent, target.low + target.extent
        above = prove(less_equal(*ends)) is not True
        return bounds(index, target.extent, below=below, above=above)

    def _untwisted(self, f: Fact, origin: Unpack) -> Value:
        start = self._known((origin.source,), f)
        if not isinstance(origin.definition, Twist):
            return start
        by = self._known(origin.definition.by, f)
        index = origin.definition.untwisted(start.index, by.index)
        inside = self.inside(origin.definition, index)
        predicates = dict.fromkeys((*start.predicates, *by.predicates, *inside))
        return Value(index, tuple(predicates))

    @staticmethod
    def inside(definition: Definition, index: Expr) -> list[Cond]:
        """The conditions under which the base of a twist that is not onto exists."""
        if not isinstance(definition, Twist) or definition.is_onto:
            return []
        return bounds(index, word_extent(definition.base))

    def unpacked_values(self, f: Fact, origin: Unpack) -> tuple[list[Expr], list[Cond]]:
        """The values of all digits of the definition that a fact was unpacked from, outer first,
        and the conditions under which they exist."""
        index = self._untwisted(f, origin).index
        inside = self.inside(origin.definition, index)
        return unpacked(base_of(origin.definition), index), inside

    def _known(self, word: Word, reader: Fact) -> Value:
        value = self.word(word, reader.number)
        if value is None:
            raise InternalError(f"values: a fact was derived from {word}, which is not known")
        return value
