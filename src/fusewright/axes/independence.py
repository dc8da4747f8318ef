"""Which axes of an op's domain depend on a common digit, kept up to date under ties.

Two digits of one atom are independent iff the stride of one is a multiple of stride * extent of
the other: disjoint ranges are not enough, `(B//10)%2` depends on `B%4`. Through boxes and lines
dependence is approximated from above: a digit of a box that does not align with the box's
definition depends on every digit of the smallest aligned part around it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from fusewright.axes.lines import Lines
from fusewright.axes.words import Digit, Twist, Word, aligned_hull, ratio
from fusewright.core.expr import mul


def _same_atom(x: Digit, y: Digit) -> bool:
    return (
        ratio(x.stride, mul(y.stride, y.extent)) is None
        and ratio(y.stride, mul(x.stride, x.extent)) is None
    )


@dataclass(frozen=True, slots=True)
class Answers:
    """What was found in one structure of the lines since a mark; `before`: what was known at it.
    Lines that are made after a mark and undone leave their numbers to others, so that what was
    found since is forgotten with them."""

    structure: int
    before: Answers | None = None
    heights: dict[int, int] = field(default_factory=dict[int, int])
    depend: dict[tuple[Digit, Digit, bool], bool] = field(
        default_factory=dict[tuple[Digit, Digit, bool], bool]
    )
    classes: dict[tuple[object, ...], bool] = field(default_factory=dict[tuple[object, ...], bool])

    def update(self, found: Answers) -> None:
        """Adds other answers in the same structure, without those before them."""
        self.heights.update(found.heights)
        self.depend.update(found.depend)
        self.classes.update(found.classes)

    def height(self, root: int) -> int | None:
        """The height of a line, if it is known."""
        found = self.heights.get(root)
        return found if found is not None or self.before is None else self.before.height(root)

    def digits(self, key: tuple[Digit, Digit, bool]) -> bool | None:
        """Whether digits depend on each other, if it is known."""
        found = self.depend.get(key)
        return found if found is not None or self.before is None else self.before.digits(key)

    def of_classes(self, key: tuple[object, ...]) -> bool | None:
        """The answer to a question about classes, if it is known."""
        found = self.classes.get(key)
        return found if found is not None or self.before is None else self.before.of_classes(key)


class Independence:
    """Answers dependence questions about the words of one store of lines."""

    def __init__(self, lines: Lines) -> None:
        self._lines = lines
        self.answers = Answers(-1)

    def current(self) -> Answers:
        """What is known, without what held before ties have changed what lines are defined by."""
        if self.answers.structure != self._lines.structure:
            self.answers = Answers(self._lines.structure)
        return self.answers

    def mark(self) -> Answers:
        """What is known, to go back to; what is found from now on is kept apart."""
        before = self.answers
        self.answers = Answers(before.structure, before)
        return before

    def keep(self) -> None:
        """Adds what was found since the last mark to what was known then."""
        found, before = self.answers, self.answers.before
        if before is not None:
            before.update(found)
            self.answers = before

    def add(self, found: Answers) -> None:
        """Adds what was found when the lines were as they are."""
        if found.structure == self._lines.structure:
            self.current().update(found)

    def height(self, root: int) -> int:
        """The number of definitions below a representative line."""
        found = self.current().height(root)
        if found is None:
            lower = {self._lines.root(d.atom.line): None for d in self._lines.below(root)}
            found = 1 + max(self.height(r) for r in lower) if lower else 0
            self.answers.heights[root] = found
        return found

    def _parts(self, x: Digit, *, twisted: bool) -> Word:
        """The digits that a digit depends on, one level of definitions down."""
        out: dict[Digit, None] = {}
        for atom in self._lines.atoms_on(self._lines.root(x.atom.line)):
            definition = self._lines.definition.get(atom)
            match definition:
                case None:
                    continue
                case Twist(base, by):
                    part = base + by if twisted else base
                case _ if atom is x.atom:
                    part = aligned_hull(definition, x.stride, x.extent)
                case _:
                    part = definition
            out |= dict.fromkeys(self._lines.normal(part))
        return tuple(out)

    def digits(self, x: Digit, y: Digit, *, twisted: bool = True) -> bool:
        """Whether two digits in normal form may depend on each other.

        `twisted=False` looks at what `x` adds when the operand it is twisted by is known.
        """
        if x.atom is y.atom:
            return _same_atom(x, y)
        rx, ry = self._lines.root(x.atom.line), self._lines.root(y.atom.line)
        if rx == ry:
            return True
        if not self.height(rx) and not self.height(ry):
            return False
        key = (x, y, twisted)
        found = self.current().digits(key)
        if found is None:
            found = self.answers.depend[key] = self._depend(x, y, twisted=twisted)
        return found

    def _depend(self, x: Digit, y: Digit, *, twisted: bool) -> bool:
        hx, hy = (self.height(self._lines.root(d.atom.line)) for d in (x, y))
        if hx >= hy:
            parts = self._parts(x, twisted=twisted)
            return any(self.digits(p, y, twisted=twisted) for p in parts)
        return any(self.digits(x, p, twisted=twisted) for p in self._parts(y, twisted=True))

    def words(self, x: Iterable[Digit], y: Word) -> bool:
        """Whether any digit of one may depend on any digit of the other."""
        return any(self.digits(a, b) for a in x for b in y)


class Domains:
    """The registered domains, an index from lines to the axes that reach them, and components."""

    def __init__(self, lines: Lines, independence: Independence) -> None:
        self._lines = lines
        self._independence = independence
        self.words: list[tuple[Word, ...]] = []
        self._touch: dict[int, dict[int, frozenset[int]]] = {}
        self._component: dict[int, int] = {}
        self.proved: dict[tuple[int, int, int], None] = {}
        self._suspects: dict[tuple[int, int, int], None] = {}

    def component(self, line: int) -> int:
        """The component of a line: lines that ops and ties connect."""
        while line in self._component:
            line = self._component[line]
        return line

    def connect(self, lines: Iterable[int]) -> None:
        """Put lines into one component."""
        roots = list(dict.fromkeys(self.component(n) for n in lines))
        for other in roots[1:]:
            low, high = sorted((roots[0], other))
            self._lines.put(self._component, high, low)
            roots[0] = low

    def register(self, axes: tuple[Word, ...]) -> bool:
        """Add a domain; False (and nothing is kept) when its axes depend on each other."""
        for j, word in enumerate(axes):
            if any(self._independence.words(word, other) for other in axes[:j]):
                return False
        number = len(self.words)
        self.words.append(axes)
        for j, word in enumerate(axes):
            for line in self._reach(word):
                self._add(line, number, frozenset((j,)))
        self.connect(d.atom.line for word in axes for d in word)
        self._suspects.clear()
        return True

    def _reach(self, word: Word) -> dict[int, None]:
        return self._lines.closure(self._lines.root(d.atom.line) for d in word)

    def _add(self, line: int, domain: int, axes: frozenset[int]) -> None:
        table = self._touch.setdefault(line, {})
        old = table.get(domain, frozenset())
        new = old | axes
        if new == old:
            return
        self._lines.put(table, domain, new)
        for x in sorted(new):
            for y in sorted(axes - old):
                if x != y:
                    self._suspects[(domain, min(x, y), max(x, y))] = None

    def joined(self, kept: int, gone: int) -> None:
        """Tell that line `gone` became a part of line `kept`."""
        arrived = dict(self._touch.get(gone, {}))
        present = dict(self._touch.get(kept, {}))
        for domain, axes in arrived.items():
            self._add(kept, domain, axes)
        below = [r for r in self._lines.closure([kept]) if r != kept]
        for line in below:
            for touching in (arrived, present):
                for domain, axes in touching.items():
                    self._add(line, domain, axes)

    def defined(self, line: int) -> None:
        """Tell that an atom of a representative line got a definition."""
        present = dict(self._touch.get(line, {}))
        if not present:
            return
        for lower in self._lines.closure([line]):
            for domain, axes in present.items():
                self._add(lower, domain, axes)

    def weight(self, line: int) -> int:
        """How many domains touch a line."""
        return len(self._touch.get(line, ()))

    def forget_behind(self, count: int) -> None:
        """Drop the domains registered after the first `count`, whose lines are undone."""
        del self.words[count:]
        self._suspects.clear()

    def forget_suspects(self) -> None:
        """Drop what a tie that was undone has left to check."""
        self._suspects.clear()

    def settle(self, *, check: bool) -> bool:
        """Check the pairs of axes that came to share a line; False when one of them depends.

        `check` is off for a tie between components, which cannot make axes dependent (a fibre
        product over surjections is surjective on both sides). Pairs that pass are proved: a later
        tie cannot make them dependent without bringing them together on another line, but it may
        change their normal form so that the approximation would flag them.
        """
        suspects = list(self._suspects)
        self._suspects.clear()
        for suspect in suspects:
            if check and self.is_dependent(*suspect):
                return False
            self._lines.put(self.proved, suspect, None)
        return True

    def is_dependent(self, domain: int, x: int, y: int) -> bool:
        """Whether two axes of a domain may depend on each other."""
        axes, normal = self.words[domain], self._lines.normal
        return self._independence.words(normal(axes[x]), normal(axes[y]))
