"""Lines: the storage below the axis classes, with undo.

A line is an integer coordinate of its own; lines that were tied are one line up to an offset
(weighted union-find). Atoms lie on lines (`words`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeVar

from fusewright.axes.words import (
    Definition,
    Digit,
    LineAtom,
    Twist,
    Word,
    aligned_core,
    cut_aligned,
    cut_between,
    digits_of,
    ratio,
    word_extent,
)
from fusewright.core.conditions import less_equal, prove
from fusewright.core.expr import (
    ONE,
    ZERO,
    Expr,
    mul,
)
from fusewright.errors import InternalError

K = TypeVar("K")
V = TypeVar("V")

ABSENT = object()
"""The value of a key that a table does not have."""


class Write(NamedTuple):
    """One key of a table got another value, or none."""

    table: dict[Any, Any]
    key: object
    before: object
    after: object

    def undo(self) -> None:
        """The table as before."""
        _set(self.table, self.key, self.before)

    def redo(self) -> None:
        """The table as after."""
        _set(self.table, self.key, self.after)


def _set(table: dict[Any, Any], key: object, value: object) -> None:
    if value is ABSENT:
        del table[key]
    else:
        table[key] = value


@dataclass(frozen=True, slots=True)
class Mark:
    """A state that lines can go back to: how many writes and lines there were, and the numbers of
    the state, of what lines are defined by, and of the normal forms."""

    writes: int
    lines: int
    version: int
    structure: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Changes:
    """What was written since a mark, and the lines that were made since: name, atoms, users."""

    mark: Mark
    after: Mark
    writes: tuple[Write, ...]
    made: tuple[tuple[str, dict[tuple[Expr, Expr], LineAtom], dict[LineAtom, None]], ...]


class Lines:
    """All lines of one graph. Every write goes through `put` or `drop`, so it can be undone."""

    def __init__(self) -> None:
        self._parent: dict[int, tuple[int, Expr]] = {}
        self._names: list[str] = []
        self._atoms: dict[int, dict[tuple[Expr, Expr], LineAtom]] = {}
        self.definition: dict[LineAtom, Definition] = {}
        self.named: dict[Definition, LineAtom] = {}
        self._users: dict[int, dict[LineAtom, None]] = {}
        self._log: list[Write] | None = None
        self._marks = 0
        self._stamp = 0
        self.version = 0
        self.structure = 0
        self.epoch = 0
        self._twisted = 0, False
        self._contained: dict[tuple[LineAtom, LineAtom], bool] = {}

    @property
    def has_twists(self) -> bool:
        """Whether any atom is defined by a twist; few graphs have one."""
        version, found = self._twisted
        if version != self.version:
            found = any(isinstance(d, Twist) for d in self.definition.values())
            self._twisted = self.version, found
        return found

    # ----- undo

    def mark(self) -> Mark:
        """Record writes until this mark, and all that were set after it, are kept or undone."""
        if self._log is None:
            self._log = []
        self._marks += 1
        return self._state()

    def _state(self) -> Mark:
        writes = len(self._log or ())
        return Mark(writes, len(self._names), self.version, self.structure, self.epoch)

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
            log.pop().undo()
        for line in range(mark.lines, len(self._names)):
            del self._atoms[line], self._users[line]
        del self._names[mark.lines :]
        self.version, self.structure, self.epoch = mark.version, mark.structure, mark.epoch
        self.keep()

    def changes(self, mark: Mark) -> Changes:
        """What was written since a mark that is neither kept nor undone."""
        made = range(mark.lines, len(self._names))
        return Changes(
            mark,
            self._state(),
            tuple((self._log or [])[mark.writes :]),
            tuple((self._names[n], self._atoms[n], self._users[n]) for n in made),
        )

    def redo(self, changes: Changes) -> None:
        """Write again what was undone, in the state of the mark before it."""
        before, after = changes.mark, changes.after
        if (self.version, len(self._names)) != (before.version, before.lines):
            raise InternalError("redo: the lines are in another state than before these changes")
        for name, atoms, users in changes.made:
            line = self.new_line(name)
            self._atoms[line], self._users[line] = atoms, users
        for w in changes.writes:
            w.redo()
        if self._log is not None:
            self._log.extend(changes.writes)
        self.version, self.structure, self.epoch = after.version, after.structure, after.epoch

    def tied(self) -> None:
        """Tell that normal forms have changed."""
        self._stamp += 1
        self.epoch = self._stamp

    def put(self, table: dict[K, V], key: K, value: V) -> None:
        """`table[key] = value`, undone by `undo`."""
        self._written()
        if self._log is not None:
            self._log.append(Write(table, key, table.get(key, ABSENT), value))
        table[key] = value

    def drop(self, table: dict[K, V], key: K) -> V | None:
        """`table.pop(key, None)`, undone by `undo`."""
        if key not in table:
            return None
        self._written()
        old = table.pop(key)
        if self._log is not None:
            self._log.append(Write(table, key, old, ABSENT))
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

    def atom(self, line: int, low: Expr, extent: Expr) -> LineAtom:
        """The canonical atom of an interval."""
        root, offset = self.find(line)
        key = (low + offset, extent)
        table = self._atoms[root]
        found = table.get(key)
        if found is None:
            found = LineAtom(root, key[0], extent, self._names[root])
            self.put(table, key, found)
        return found

    def fresh(self, extent: Expr, name: str) -> LineAtom:
        """The atom `[0, extent)` of a new line."""
        return self.atom(self.new_line(name), ZERO, extent)

    def canonical(self, atom: LineAtom) -> LineAtom:
        """The atom on the representative line."""
        if atom.line not in self._parent:
            return atom
        return self.atom(atom.line, atom.low, atom.extent)

    def atoms_on(self, root: int) -> tuple[LineAtom, ...]:
        """The atoms of a representative line, oldest first."""
        return tuple(self._atoms[root].values())

    def contains(self, big: LineAtom, small: LineAtom) -> bool:
        """Whether all elements of an atom are known to be elements of another one of its line,
        which is asked by each table of values."""
        found = self._contained.get((big, small))
        if found is None:
            below = prove(less_equal(big.low, small.low))
            above = prove(less_equal(small.low + small.extent, big.low + big.extent))
            found = self._contained[big, small] = below is True and above is True
        return found

    def units(self) -> tuple[LineAtom, ...]:
        """The canonical atoms of extent 1, by line."""
        return tuple(
            a
            for line, table in self._atoms.items()
            if line not in self._parent
            for a in table.values()
            if a.extent == ONE
        )

    def users_of(self, root: int) -> tuple[LineAtom, ...]:
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

    def absorb(self, kept: int, gone: int, offset: Expr) -> list[tuple[LineAtom, LineAtom]]:
        """Make the representative `gone` a part of `kept`: `position(kept) = position(gone) +
        offset`. Returns pairs (moved atom, its new canonical atom)."""
        self.put(self._parent, gone, (kept, offset))
        self.structure = self._stamp
        moved: list[tuple[LineAtom, LineAtom]] = []
        for old in self.atoms_on(gone):
            moved.append((old, self.atom(kept, old.low + offset, old.extent)))
        for user in self._users[gone]:
            self.put(self._users[kept], user, None)
        return moved

    # ----- words

    def define(self, atom: LineAtom, definition: Definition) -> None:
        """Give an atom its definition, which must be in normal form and new."""
        self._define(atom, definition)
        self.structure = self._stamp

    def _define(self, atom: LineAtom, definition: Definition) -> None:
        self.put(self.definition, atom, definition)
        self.put(self.named, definition, atom)
        for d in digits_of(definition):
            self.put(self._users[self.root(d.atom.line)], atom, None)

    def undefine(self, atom: LineAtom) -> Definition | None:
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

    def box(self, word: Word) -> LineAtom:
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

    def twist(self, definition: Twist) -> LineAtom:
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
