"""Axis classes: canonical words of digits, hash-consed in one graph.

A class says what an index means. Loops, logical axes and allocation axes of all tensors of a
segment are classes of one graph; edges between classes are the transforms, sharing between ops is
made by ties. After `graph.normal`, equal classes are one object.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fusewright.axes import transforms
from fusewright.axes.independence import Answers, Domains, Independence
from fusewright.axes.lines import Changes, Lines, Mark
from fusewright.axes.ties import Tie
from fusewright.axes.words import Digit, LineAtom, Word, ratio, word_extent
from fusewright.core.expr import ONE, ZERO, Expr, Int, IntLike, Var, as_expr, constant_value, mod
from fusewright.errors import InternalError

__all__ = ["AxisClass", "AxisGraph", "Digit", "LineAtom"]


class AxisClass:
    """A word of digits, outer first. Made by an AxisGraph only; identity is equality there.

    A unit class has no digits. The unit of an axis keeps its own atom, by which it lies on a line;
    the unit that a split or a projection leaves is anonymous, and each widening of it is fresh.
    """

    __slots__ = ("atom", "digits", "extent")

    def __init__(self, digits: Word, atom: LineAtom | None) -> None:
        self.digits = digits
        self.atom = atom
        self.extent = word_extent(digits)

    @property
    def is_unit(self) -> bool:
        """Whether the class has one value only."""
        return not self.digits

    @property
    def word(self) -> Word:
        """The digits; for a unit class the one digit of extent 1 that places it on its line."""
        return transforms.whole(self.atom) if self.atom is not None else self.digits

    def __str__(self) -> str:
        return "*".join(str(d) for d in self.digits) if self.digits else "1"

    __repr__ = __str__


@dataclass(frozen=True, slots=True)
class Making:
    """How classes were made: `made` by the edge `kind`, from classes and numbers."""

    kind: str
    operands: tuple[AxisClass, ...]
    numbers: tuple[Expr, ...]
    made: tuple[AxisClass, ...]


@dataclass(frozen=True, slots=True)
class GraphMark:
    """A state of a graph, with what was found in it."""

    lines: Mark
    domains: int
    makings: int
    answers: Answers
    memo: tuple[int, dict[object, object]]


@dataclass(frozen=True, slots=True)
class GraphChanges:
    """What was done to a graph since a mark, and what was found in the state that it led to."""

    lines: Changes
    domains: tuple[tuple[Word, ...], ...]
    makings: tuple[Making, ...]
    answers: Answers
    normal: tuple[int, dict[AxisClass, AxisClass]]
    memo: tuple[int, dict[object, object]]


class AxisGraph:
    """The classes of one segment. Ties come first; afterwards classes are only added. `makings`:
    every edge that was asked for, in order."""

    def __init__(self) -> None:
        self.lines = Lines()
        self.independence = Independence(self.lines)
        self.domains = Domains(self.lines, self.independence)
        self.makings: list[Making] = []
        self.memo: dict[object, object] = {}
        self._memo_version = -1
        self._classes: dict[Word, AxisClass] = {}
        self._units: dict[LineAtom, AxisClass] = {}
        self._anonymous = AxisClass((), None)
        self._normal: dict[AxisClass, AxisClass] = {}
        self._marked: list[tuple[int, dict[AxisClass, AxisClass]]] = []
        self._variables: dict[tuple[str, Expr], Var] = {}
        self._epoch = 0

    # ----- states

    def mark(self) -> GraphMark:
        """The state, to go back to by `undo`; until then, or `keep`, every write is recorded. Marks
        are undone or kept in the reverse of the order in which they are set."""
        self._marked.append((self._epoch, self._normal))
        self._normal = {}
        return GraphMark(
            self.lines.mark(),
            len(self.domains.words),
            len(self.makings),
            self.independence.mark(),
            (self._memo_version, self.memo),
        )

    def keep(self) -> None:
        """Keep what was done since the last mark."""
        self.lines.keep()
        self.independence.keep()
        epoch, normal = self._marked.pop()
        if epoch == self._epoch:
            normal.update(self._normal)
            self._normal = normal

    def undo(self, mark: GraphMark) -> None:
        """Go back to a mark, the last one, and to all that was known then. Classes that were made
        since have no meaning any more."""
        self.lines.undo(mark.lines)
        self.domains.forget_behind(mark.domains)
        del self.makings[mark.makings :]
        self.independence.answers = mark.answers
        self._epoch, self._normal = self._marked.pop()
        self._memo_version, self.memo = mark.memo

    def changes(self, mark: GraphMark) -> GraphChanges:
        """What was done since a mark, for `redo` once it is undone."""
        return GraphChanges(
            self.lines.changes(mark.lines),
            tuple(self.domains.words[mark.domains :]),
            tuple(self.makings[mark.makings :]),
            self.independence.answers,
            (self._epoch, self._normal),
            (self._memo_version, self.memo),
        )

    def redo(self, changes: GraphChanges) -> None:
        """Do again what was undone, in the state of the mark before it: nothing is looked for
        again. Classes that were made then have their meaning again."""
        self.lines.redo(changes.lines)
        self.domains.words.extend(changes.domains)
        self.makings.extend(changes.makings)
        self.independence.add(changes.answers)
        epoch, normal = changes.normal
        self._normal = {**self._normal, **normal} if epoch == self._epoch else dict(normal)
        self._epoch = epoch
        self._memo_version, self.memo = changes.memo

    # ----- classes

    def axis(self, extent: IntLike, name: str = "") -> AxisClass:
        """A class of its own with `extent` values."""
        size = as_expr(extent)
        return self._of_atom(self.lines.fresh(size, name or "i"))

    def _of_atom(self, atom: LineAtom) -> AxisClass:
        if atom.extent != ONE:
            return self._of_word(self.lines.normal(transforms.whole(atom)))
        found = self._units.get(atom)
        if found is None:
            found = self._units[atom] = AxisClass((), atom)
        return found

    def _of_word(self, word: Word) -> AxisClass:
        if not word:
            return self._anonymous
        found = self._classes.get(word)
        if found is None:
            found = self._classes[word] = AxisClass(word, None)
        return found

    def _placed(self, cls: AxisClass) -> Word:
        """The word of a normal class; an anonymous unit gets a line."""
        return cls.word or transforms.whole(self.lines.fresh(ONE, "i"))

    def normal(self, cls: AxisClass) -> AxisClass:
        """The canonical class, after the ties made so far."""
        if self._epoch != self.lines.epoch:
            self._normal = {}
            self._epoch = self.lines.epoch
        found = self._normal.get(cls)
        if found is None:
            found = self._known(cls)
            if found is None:
                if cls.atom is not None:
                    found = self._of_atom(self.lines.canonical(cls.atom))
                else:
                    found = self._of_word(self.lines.normal(cls.digits))
            self._normal[cls] = found
        return found

    def _known(self, cls: AxisClass) -> AxisClass | None:
        """What a class was found to be before the last marks. What is found after one is kept
        apart: lines that are undone leave their numbers to others."""
        for epoch, normal in reversed(self._marked):
            if epoch != self._epoch:
                return None
            if cls in normal:
                return normal[cls]
        return None

    # ----- edges

    def split(
        self, cls: AxisClass, factor: IntLike, inner: bool = True
    ) -> tuple[AxisClass, AxisClass]:
        """`(outer, inner)`. With `inner` the inner extent is `factor`, else the outer extent is.

        A factor that is not known to divide the extent resizes up to the next multiple first.
        """
        size = as_expr(factor)
        low = size.interval[0]
        here = self.normal(cls)
        # A factor of 0 that divides the extent leaves no point at which anything is divided by it.
        least = 0 if size != ZERO and ratio(here.extent, size) is not None else 1
        if low is None or low < least:
            raise InternalError(f"split: the factor {size} is not known to be positive")
        if size == ONE:
            return (here, self._anonymous) if inner else (self._anonymous, here)
        lines = self.lines
        word = here.digits
        if here.is_unit:
            wide = transforms.resized(lines, self._placed(here), ZERO, size - 1)
            word = lines.normal(transforms.whole(wide))
        above, below = transforms.split(lines, word, size, inner=inner)
        made = self._of_word(lines.normal(above)), self._of_word(lines.normal(below))
        self.makings.append(Making("split" if inner else "split_outer", (here,), (size,), made))
        return made

    def merge(self, outer: AxisClass, inner: AxisClass) -> AxisClass:
        """The class of `outer * extent(inner) + inner`."""
        a, b = self.normal(outer), self.normal(inner)
        if a.is_unit or b.is_unit:
            return b if a.is_unit else a
        merged = self._of_word(self.lines.normal(a.digits + b.digits))
        self.makings.append(Making("merge", (a, b), (), (merged,)))
        return merged

    def resize(self, cls: AxisClass, low: IntLike, high: IntLike) -> AxisClass:
        """New index = old index + low; extent = low + old extent + high; negative amounts crop."""
        here = self.normal(cls)
        before, behind = as_expr(low), as_expr(high)
        if before == ZERO and behind == ZERO:
            return here
        made = self._of_atom(transforms.resized(self.lines, self._placed(here), before, behind))
        self.makings.append(Making("resize", (here,), (before, behind), (made,)))
        return made

    def swizzle(self, a: AxisClass, b: AxisClass) -> tuple[AxisClass, AxisClass]:
        """`(a, b ^ a)`, a bijection on two axes of one loop domain.

        Raises ScheduleError unless the extent of `a` is a power of two that divides that of `b`,
        and when the two share a digit (`a` was swizzled by `b`): the map could not be inverted.
        """
        twist, base = self.normal(a), self.normal(b)
        word = transforms.swizzle(self.lines, self.independence, twist.digits, base.digits)
        made = self._of_word(word)
        self.makings.append(Making("swizzle", (twist, base), (), (twist, made)))
        return twist, made

    def skew(self, cls: AxisClass, by: AxisClass, scale: IntLike, modulus: int) -> AxisClass:
        """The class of `cls + (by * scale) % modulus`: where rows (`by`) of `cls` elements follow
        each other every `scale` elements, positions counted from the last multiple of `modulus`
        before the row. Its extent is `modulus - 1` larger; values without a `cls` are guarded out.
        A unit class stays what it is, and so does one that rows do not move.

        Raises ScheduleError when the two share a digit.
        """
        here, row = self.normal(cls), self.normal(by)
        step = as_expr(scale)
        if constant_value(step) is not None:
            step = mod(step, modulus)
        if step == ZERO:
            return here
        word = transforms.skew(
            self.lines, self.independence, here.digits, row.digits, step, modulus
        )
        made = self._of_word(word)
        self.makings.append(Making("skew", (here, row), (step, Int(modulus)), (made,)))
        return made

    def serpentine(self, cls: AxisClass, by: AxisClass) -> AxisClass:
        """The class of `cls` counted from its end where `by` is odd: neighbours along a merge of
        `by` and what this gives are neighbours in `cls`, or the same. Unit classes change nothing.

        Raises ScheduleError when the two share a digit.
        """
        here, row = self.normal(cls), self.normal(by)
        if here.is_unit or row.is_unit:
            return here
        word = transforms.serpentine(self.lines, self.independence, here.digits, row.digits)
        made = self._of_word(word)
        self.makings.append(Making("serpentine", (here, row), (), (made,)))
        return made

    def project(self, cls: AxisClass, onto: Sequence[AxisClass]) -> AxisClass:
        """The class without the digits that do not depend on `onto`; a unit when none is left.
        A twisted digit depends on what its base depends on, and keeps the digits that twist it."""
        here = self.normal(cls)
        others = tuple(d for c in onto for d in self.normal(c).word)
        kept = wanted = tuple(d for d in here.digits if self._words(d, others))
        if self.lines.has_twists:
            kept = tuple(
                d for d in here.digits if d in wanted or any(self._twists(d, w) for w in wanted)
            )
        if kept == here.digits:
            return here
        made = self._of_word(self.lines.normal(kept))
        self.makings.append(Making("project", (here, *onto), (), (made,)))
        return made

    # ----- facts

    def depends(self, cls: AxisClass, on: Sequence[AxisClass]) -> bool:
        """Whether the class may share a digit with one of these, through boxes and lines too, when
        what it is twisted by is known."""
        known = self.independence.current()
        key = ("depends", cls, *on)
        found = known.of_classes(key)
        if found is None:
            here = self.normal(cls).word
            found = any(self._words(d, self.normal(c).word) for c in on for d in here)
            known.classes[key] = found
        return found

    def is_moved_by(self, cls: AxisClass, by: Sequence[AxisClass]) -> bool:
        """Whether the class is twisted by digits of one of these, so that its values mean other
        things for other values of these."""
        if not self.lines.has_twists:
            return False
        known = self.independence.current()
        key = ("is moved", cls, *by)
        found = known.of_classes(key)
        if found is None:
            here = self.normal(cls).word
            moved = (c for c in by if not self.depends(cls, [c]))
            found = any(self.independence.words(here, self.normal(c).word) for c in moved)
            known.classes[key] = found
        return found

    def is_moved_by_itself(self, cls: AxisClass) -> bool:
        """Whether a digit of the class is twisted by others of it, as columns that are counted from
        a word in every row are in a merge of rows and columns."""
        here = self.normal(cls).digits
        return any(self._twists(d, w) for d in here for w in here if d is not w)

    def _twists(self, d: Digit, w: Digit) -> bool:
        """Whether a digit twists another."""
        return self.independence.digits(w, d) and not self.independence.digits(w, d, twisted=False)

    def _words(self, d: Digit, others: Word) -> bool:
        return any(self.independence.digits(d, x, twisted=False) for x in others)

    def tie(self, index_class: AxisClass, producer_axis_class: AxisClass) -> bool:
        """Make two classes one. False, and nothing changed, when that is refused.

        Refused: one line at two places, a class that would be part of itself, and two axes of one
        registered domain that would depend on each other. Unit axes are never tied (False): no loop
        needs them, and their index is 0.
        """
        u, v = self.normal(index_class), self.normal(producer_axis_class)
        if u.is_unit or v.is_unit or u.extent != v.extent:
            return False
        if u is v:
            return True
        lines, domains = self.lines, self.domains
        lines_u = lines.closure(d.atom.line for d in u.digits)
        lines_v = lines.closure(d.atom.line for d in v.digits)
        parts = {domains.component(n): None for n in lines_u}
        known = any(domains.component(n) in parts for n in lines_v)
        mark = lines.mark()
        fits = Tie(lines, domains).run(u.digits, v.digits)
        if fits and domains.settle(check=known):
            domains.connect([*lines_u, *lines_v])
            lines.tied()
            lines.keep()
            return True
        lines.undo(mark)
        domains.forget_suspects()
        return False

    def register_domain(self, axes: Sequence[AxisClass]) -> None:
        """Declare the domain of an op: its axes must stay independent. Raises InternalError when
        they are not."""
        words = tuple(self.normal(c).word for c in axes)
        if not self.domains.register(words):
            shown = ", ".join(str(self.normal(c)) for c in axes)
            raise InternalError(f"register_domain: the axes ({shown}) depend on each other")

    def variable(self, name: str, extent: Expr) -> Var:
        """The variable that stands for a loop of this extent while schedules are judged: one object
        per name and extent, so that what follows from the same loops is found once."""
        found = self._variables.get((name, extent))
        if found is None:
            found = self._variables[name, extent] = Var(name, 0, extent - 1)
        return found

    def loop_variable(self, position: int, axis: AxisClass) -> Expr:
        """What stands for the loop at a position; 0 for one of a single trip."""
        return ZERO if axis.extent == ONE else self.variable(f"i{position}", axis.extent)

    def fresh_memo(self) -> dict[object, object]:
        """A table for derived facts, emptied whenever the graph has changed."""
        if self._memo_version != self.lines.version:
            self.memo = {}
            self._memo_version = self.lines.version
        return self.memo
