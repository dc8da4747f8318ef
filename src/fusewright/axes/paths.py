"""Paths: from loops to an op's domain (linear), and from known classes to any class (values)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias, assert_never, cast

from fusewright.axes.classes import AxisClass, AxisGraph
from fusewright.axes.independence import Independence
from fusewright.axes.lines import Lines
from fusewright.axes.values import (
    Along,
    Fact,
    Given,
    Pack,
    Table,
    Unpack,
    base_of,
    digit_value,
    find_run,
    unpacked,
)
from fusewright.axes.words import (
    Definition,
    Digit,
    LineAtom,
    Twist,
    Word,
    aligned_core,
    cut_between,
    ratio,
)
from fusewright.core.conditions import (
    TRUE,
    And,
    Cond,
    Less,
    all_of,
    equal,
    prove,
    substitute_condition,
)
from fusewright.core.expr import (
    ONE,
    ZERO,
    Expr,
    Int,
    Var,
    lower_bound,
    mul,
    parts_of,
    term_ratio,
)
from fusewright.core.substitution import substitute

Known: TypeAlias = Sequence[tuple[AxisClass, Expr]]


@dataclass(frozen=True, slots=True)
class Path:
    """How loops reach a domain: `values[i]` is the index of `domain[i]`.

    A point of the domain is visited exactly once by the loop iterations for which all `predicates`
    and all `free_conditions` (each digit of `free` is 0) hold.
    """

    values: tuple[Expr, ...]
    predicates: tuple[Cond, ...]
    free: tuple[Digit, ...]
    free_conditions: tuple[Cond, ...]

    def renamed(self, names: Mapping[Var, Var]) -> Path:
        """The path with other variables."""
        return Path(
            tuple(substitute(e, names) for e in self.values),
            _flat(substitute_condition(c, names) for c in self.predicates),
            self.free,
            _flat(substitute_condition(c, names) for c in self.free_conditions),
        )


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why there is no path, and whether that names variables of the loops."""

    reason: str
    names_variables: bool = False


def value_of(
    graph: AxisGraph, known: Known, wanted: AxisClass
) -> tuple[Expr, tuple[Cond, ...]] | None:
    """The index of `wanted` where the known classes have the given values, and the conditions
    `0 <= index < extent` of the narrowings crossed on the way; None when it is not determined.

    A unit class that nothing reaches is 0.
    """
    here = graph.normal(wanted)
    if here.is_unit and here.atom is None:
        return ZERO, ()
    table = _table(graph, known, widen=True)
    value = table.word(here.word)
    if value is None:
        table.assume_units()
        value = table.word(here.word)
    return value and (value.index, _without_implied(value.predicates))


def domain_path(graph: AxisGraph, loops: Known, domain: Sequence[AxisClass]) -> Path | Refusal:
    """The linear path from loops to the domain of an op.

    Every digit is produced and consumed at most once, so that the iterations are the domain times
    the left-over digits, up to predicates. Refused: loops that repeat a digit, loops that cover a
    part of the domain only, and left-over digits that depend on the domain.

    A path is the same whatever its loops are called: it is looked for once, in variables of the
    graph, and then has the given ones in their place.
    """
    given = [(graph.normal(c), e) for c, e in loops]
    reached = tuple(graph.normal(c) for c in domain)
    names = _names(graph, given)
    if not names:
        return _known_path(graph, given, reached)
    values = {v: own for own, v in names.items()}
    own = [(c, values.get(e, e) if isinstance(e, Var) else e) for c, e in given]
    memo, key = graph.fresh_memo(), (tuple(given), reached)
    found = memo.get(key)
    if found is None:
        path = _known_path(graph, own, reached)
        if isinstance(path, Path):
            path = path.renamed(names)
        elif path.names_variables:
            path = _domain_path(graph, given, reached)
        found = memo[key] = path
    return cast("Path | Refusal", found)


def _names(graph: AxisGraph, loops: Known) -> dict[Var, Var]:
    """For the graph's variables of these loops those that were given; empty where they are the
    same, and where something else was given than a variable over all of a loop for each, or 0."""
    names: dict[Var, Var] = {}
    for k, (c, e) in enumerate(loops):
        if isinstance(e, Int):
            continue
        own = graph.variable(f"i{k}", c.extent)
        if not isinstance(e, Var) or not _is_over_all(e, own):
            return {}
        names[own] = e
    is_several = len(set(names.values())) < len(names)
    return {} if is_several or all(v is own for own, v in names.items()) else names


def _is_over_all(v: Var, own: Var) -> bool:
    """Whether a variable has the values of a loop, those of the graph's own variable for it."""
    if v is own:
        return True
    return v.lower == ZERO and v.upper == own.upper and v.multiple_of == 1 and not v.is_number


def _known_path(graph: AxisGraph, loops: Known, domain: tuple[AxisClass, ...]) -> Path | Refusal:
    """The path, as it was found before, of normal classes."""
    memo, key = graph.fresh_memo(), (tuple(loops), domain)
    found = memo.get(key)
    if found is None:
        found = memo[key] = _domain_path(graph, loops, domain)
    return cast("Path | Refusal", found)


def _domain_path(graph: AxisGraph, loops: Known, domain: Sequence[AxisClass]) -> Path | Refusal:
    table = _table(graph, loops, widen=False)
    if table.clash is not None:
        return Refusal(f"two loops run over {table.clash}, so points would be visited twice")
    classes = [graph.normal(c) for c in domain]
    reached = [c for c in classes if c.word and (c.digits or table.word(c.word) is not None)]
    digits = [d for c in reached for d in c.word]
    ledger = _Ledger(graph.lines, graph.independence, table)
    missed = ledger.take_all(digits)
    if missed is not None:
        ledger = _Ledger(graph.lines, graph.independence, table)
        if ledger.take_all(ledger.derived_first(digits)) is not None:
            cls = next(c for c in reached if missed in c.word)
            return _refuse(graph, loops, cls, missed)
    values = [table.word(c.word) for c in reached]
    index = {c: v.index for c, v in zip(reached, values, strict=True) if v is not None}
    left = ledger.left_over()
    wanted = tuple(d for c in domain for d in graph.normal(c).word)
    predicates = _without_implied(ledger.predicates)
    first = {p.value: 0 for p in left if isinstance(p.value, Var)}
    for c in ledger.borrowed:
        if c in predicates or any(_implies(p, c) for p in predicates):
            continue
        if prove(substitute_condition(c, first)) is not True:
            why = f"a swizzle has a value only where {c}, which is a part of the domain"
            return Refusal(why, names_variables=True)
        predicates = (*predicates, c)  # it holds where what is left over is 0
    entangled = _entangled(graph.independence, left, set(ledger.loops), wanted)
    if entangled is not None:
        return Refusal(
            f"the loops leave {entangled} over, which depends on the domain; points would be "
            "visited twice"
        )
    return Path(
        tuple(index.get(c, ZERO) for c in classes),
        predicates,
        tuple(p.digit for p in left),
        _flat(equal(p.value, ZERO) for p in left),
    )


def _refuse(graph: AxisGraph, loops: Known, cls: AxisClass, d: Digit) -> Refusal:
    if _table(graph, loops, widen=False).run(d) is not None:
        return Refusal(f"{d} of {cls} is needed twice")
    if _table(graph, loops, widen=True).run(d) is not None:
        return Refusal(f"the loops cover only a part of {cls}; widening {d} skips points")
    return Refusal(f"the loops do not determine {d} of {cls}")


def _table(graph: AxisGraph, known: Known, *, widen: bool) -> Table:
    words = tuple((graph.normal(c), e) for c, e in known)
    memo = graph.fresh_memo()
    key = (words, widen)
    found = memo.get(key)
    if found is None:
        found = memo[key] = Table(graph.lines, [(c.word, e) for c, e in words], widen=widen)
    return cast("Table", found)


# ----- linear accounting


class _Piece(NamedTuple):
    """A part of an atom that is produced and not yet consumed."""

    digit: Digit
    value: Expr

    @property
    def stride(self) -> Expr:
        return self.digit.stride

    @property
    def extent(self) -> Expr:
        return self.digit.extent

    @property
    def top(self) -> Expr:
        return self.digit.top


@dataclass(slots=True)
class _Ledger:
    """Consumes the facts of a table backwards from the targets, each at most once. `loops`: what
    the loops give, before anything is consumed."""

    lines: Lines
    independence: Independence
    table: Table
    live: dict[LineAtom, list[_Piece]] = field(default_factory=dict[LineAtom, list[_Piece]])
    loops: list[_Piece] = field(default_factory=list[_Piece])
    predicates: list[Cond] = field(default_factory=list[Cond])
    borrowed: list[Cond] = field(default_factory=list[Cond])
    realised: set[object] = field(default_factory=set[object])

    def __post_init__(self) -> None:
        for fact in self.table.given():
            self._produce(Digit(fact.atom, fact.stride, fact.extent), self.table.fact(fact).index)
        self.loops = [p for pieces in self.live.values() for p in pieces]

    def _produce(self, d: Digit, value: Expr) -> None:
        self.live.setdefault(d.atom, []).append(_Piece(d, value))

    def boxes_first(self, digits: Iterable[Digit]) -> list[Digit]:
        """In the order in which they can be taken: what is left of a box can still give digits of
        its definition, but not the other way round."""
        return sorted(digits, key=lambda d: -self.independence.height(d.atom.line))

    def derived_first(self, digits: Iterable[Digit]) -> list[Digit]:
        """Those first that follow from boxes: a box is made of whole digits, of which one taken
        before leaves a part only, and gives them back when it is opened."""

        def derived(d: Digit) -> int:
            return max((f.number for f in self.table.run(d) or ()), default=0)

        return sorted(digits, key=lambda d: -derived(d))

    def take_all(self, digits: Iterable[Digit]) -> Digit | None:
        """Consume digits in the order in which they can be taken; the first one that does not
        follow, None where all do."""
        return next((d for d in self.boxes_first(digits) if not self.take(d)), None)

    def take(self, d: Digit, before: int | None = None) -> bool:
        """Consume a digit; False when it does not follow (from facts with numbers below `before`)
        or is consumed already."""
        facts = self.table.run(d, before)
        if facts is None:
            return False
        if not all(self._realise(f) for f in facts):
            return self._open_boxes(d) and self.take(d, before)
        pieces = self.live.get(d.atom, [])
        run = find_run(pieces, d.stride, d.extent)
        if run is None:
            return self._open_boxes(d) and self.take(d, before)
        self.live[d.atom] = [p for p in pieces if p not in run] + self._rest(run, d)
        return True

    def _open_boxes(self, d: Digit) -> bool:
        """Bring a digit back to life from what is left of a box that consumed it."""
        for user in self.lines.users_of(d.atom.line):
            definition = self.lines.definition[user]
            if isinstance(definition, Twist) or all(q.atom is not d.atom for q in definition):
                continue
            for piece in self.live.get(user, []):
                core = aligned_core(definition, piece.stride, piece.extent)
                part = core and cut_between(definition, *core)
                if not core or not part or all(q.atom is not d.atom for q in part):
                    continue
                source = Digit(user, *core)
                self.live[user].remove(piece)
                self.live[user].extend(self._rest([piece], source))
                shift = ratio(source.stride, piece.stride)
                assert shift is not None
                is_top = mul(shift, source.extent) == piece.extent
                value = digit_value(piece.value, shift, source.extent, is_top=is_top)
                for q, v in zip(part, unpacked(part, value), strict=True):
                    self._produce(q, v)
                return True
        return False

    @staticmethod
    def _rest(run: list[_Piece], d: Digit) -> list[_Piece]:
        """What a run holds beside the digit taken from it."""
        start = run[0].stride
        if len(run) == 1 and start == d.stride and run[0].extent == d.extent:
            return []
        whole: Expr = ZERO
        inner: Expr = ONE
        for p in run:
            whole = whole + mul(p.value, inner)
            inner = mul(inner, p.extent)
        below = ratio(d.stride, start)
        assert below is not None
        upto = mul(below, d.extent)
        above = ratio(inner, upto)
        assert above is not None
        rest: list[_Piece] = []
        if above != ONE:
            high = Digit(d.atom, mul(start, upto), above)
            rest.append(_Piece(high, digit_value(whole, upto, above, is_top=True)))
        if below != ONE:
            low = Digit(d.atom, start, below)
            rest.append(_Piece(low, digit_value(whole, ONE, below, is_top=False)))
        return rest

    def _realise(self, f: Fact) -> bool:
        """Produce the digits of a fact's origin by consuming what it was derived from."""
        origin = f.origin
        if origin in self.realised:
            return True
        self.realised.add(origin)
        match origin:
            case Given():
                return True
            case Along(source):
                fits = self.take(Digit(source, ONE, source.extent), f.number)
                if fits:
                    index = self.table.fact(f).index
                    self.predicates.extend(self.table.crossed(source, f.atom, index))
                    self._produce(Digit(f.atom, f.stride, f.extent), index)
                return fits
            case Pack(definition):
                return self._pack(f, definition)
            case Unpack():
                return self._unpack(f, origin)
            case _:
                assert_never(origin)

    def _pack(self, f: Fact, definition: Definition) -> bool:
        if isinstance(definition, Twist) and not definition.is_onto:
            return False  # only some of its values are reached
        value = self.table.fact(f)
        self._borrow(f, definition)
        fits = all(self.take(d, f.number) for d in self.boxes_first(base_of(definition)))
        if fits:
            self._produce(Digit(f.atom, f.stride, f.extent), value.index)
        return fits

    def _unpack(self, f: Fact, origin: Unpack) -> bool:
        """All digits of the definition come to life, also those that nothing asked for."""
        if not self.take(origin.source, f.number):
            return False
        self._borrow(f, origin.definition)
        values, inside = self.table.unpacked_values(f, origin)
        self.predicates.extend(inside)
        for d, v in zip(base_of(origin.definition), values, strict=True):
            self._produce(d, v)
        return True

    def _borrow(self, f: Fact, definition: Definition) -> None:
        """Note where what a twist is by has a value; it is read and not consumed."""
        if isinstance(definition, Twist):
            value = self.table.word(definition.by, f.number)
            assert value is not None
            self.borrowed.extend(value.predicates)

    def left_over(self) -> list[_Piece]:
        """The pieces that nothing consumed, in the order in which they came to life."""
        return [p for pieces in self.live.values() for p in pieces if p.extent != ONE]


def _entangled(
    independence: Independence, left: Sequence[_Piece], loops: Set[_Piece], wanted: Word
) -> Digit | None:
    """A left-over digit that depends on the targets or on another one. Digits of loops of which
    nothing was consumed do not depend on each other: every loop counts by itself, whatever axes it
    stands for.

    Twists come last: each is judged by its base, since what it is twisted by is known by then.
    """
    ordered = sorted(left, key=lambda p: independence.height(p.digit.atom.line))
    for position, p in enumerate(ordered):
        before = [q for q in ordered[:position] if p not in loops or q not in loops]
        others = (*wanted, *(q.digit for q in before))
        if any(independence.digits(p.digit, x, twisted=False) for x in others):
            return p.digit
    return None


# ----- predicates


def _flat(conditions: Iterable[Cond]) -> tuple[Cond, ...]:
    """The conditions one by one, without duplicates and without those that always hold."""
    joined = all_of(conditions)
    if joined == TRUE:
        return ()
    return joined.parts if isinstance(joined, And) else (joined,)


def _without_implied(conditions: Iterable[Cond]) -> tuple[Cond, ...]:
    """The conditions, less those that another one implies.

    Of a chain of outer splits with a pad each the last bound is enough: `4*q + i < 10` bounds `q`.
    """
    kept = list(_flat(conditions))
    for c in tuple(kept):
        if any(_implies(other, c) for other in kept if other is not c):
            kept.remove(c)
    return tuple(kept)


def _implies(strong: Cond, weak: Cond) -> bool:
    """Whether one inequality follows from another.

    With gaps `s >= 0` and `w >= 0` and a positive k, `k*w >= s - (k-1)` gives `w > -1`, as
    `w >= k*s` does: `q < 2` stands for `4*q + i < 8`, which bounds `4*q + i` by 10, too.
    """
    if not isinstance(strong, Less) or not isinstance(weak, Less):
        return False
    s, w = strong.gap, weak.gap
    gaps = [k * w - s + k - 1 for k in _scales(s, w)] + [w - k * s for k in _scales(w, s)]
    return any((low := lower_bound(gap)) is not None and low >= 0 for gap in gaps)


def _scales(s: Expr, w: Expr) -> list[Expr]:
    """The positive factors by which a term of `w` appears in `s`."""
    found = [
        term_ratio(t, u)
        for u in parts_of(w)[1]
        for t in parts_of(s)[1]
        if (t.coefficient > 0) == (u.coefficient > 0)
    ]
    positive = [k for k in found if k is not None and (k.interval[0] or 0) > 0]
    return list(dict.fromkeys(positive))
