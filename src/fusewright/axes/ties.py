"""Ties: congruence closure over lines and definitions, refused and undone on conflict.

A tie equates two words. It is aligned from the inside; a whole atom against a whole atom joins two
lines, a whole atom against a word defines the atom, and radices that do not nest, (4, 6) against
(6, 4), name one side as a box of which the other side's atoms become digits. What changed is
brought to normal form again, and definitions that became equal are equated in turn.
"""

from __future__ import annotations

from fusewright.axes.independence import Domains
from fusewright.axes.lines import Lines
from fusewright.axes.words import Definition, Digit, LineAtom, Twist, Word, cut_aligned, ratio
from fusewright.core.expr import ONE, Expr, mul


class Tie:
    """One attempt to equate two words; `run` is called once, between `begin` and `commit`."""

    def __init__(self, lines: Lines, domains: Domains) -> None:
        self._lines = lines
        self._domains = domains
        self._pending: list[tuple[Word, Word]] = []
        self._same: list[tuple[LineAtom, LineAtom]] = []

    def run(self, u: Word, v: Word) -> bool:
        """Whether the words could be equated; on False the caller rolls back."""
        lines = self._lines
        self._pending.append((u, v))
        while self._pending or self._same:
            if self._same:
                a, b = self._same.pop()
                fits = self._join(lines.canonical(a), lines.canonical(b))
            else:
                left, right = self._pending.pop()
                fits = self._unify(lines.normal(left), lines.normal(right))
            if not fits:
                return False
        return True

    def _unify(self, u: Word, v: Word) -> bool:
        """One step on two normal words; what is left goes back to `pending`."""
        while u and v and u[-1] == v[-1]:
            u, v = u[:-1], v[:-1]
        if not u or not v:
            return not u and not v
        eu, ev = u[-1].extent, v[-1].extent
        if eu == ev:
            self._pending.append((u[:-1], v[:-1]))
            return self._unify_digits(u[-1], v[-1])
        if ratio(ev, eu) is not None:
            return self._unify_nested(u, v)
        if ratio(eu, ev) is not None:
            return self._unify_nested(v, u)
        return self._unify_radices(u, v)

    def _unify_nested(self, u: Word, v: Word) -> bool:
        """The innermost digit of `v` holds the innermost digit of `u` and more. Where `u` has
        digits of the same line, `v` is cut, too: they may stand at the same place.

            a of 12 and (a//4, b)   ->   a//4 and a//4, a%4 and b
        """
        last = v[-1]
        line = self._lines.root(last.atom.line)
        if self._is_free(last) and all(self._lines.root(d.atom.line) != line for d in u):
            extent: Expr = ONE
            for position in range(len(u) - 1, -1, -1):
                extent = mul(extent, u[position].extent)
                if extent == last.extent:
                    self._pending.append((u[:position], v[:-1]))
                    return self._define(last.atom, u[position:])
        cut = cut_aligned((last,), u[-1].extent)
        if cut is None:
            return False
        self._pending.append((u[:-1], (*v[:-1], *cut[0])))
        return self._unify_digits(u[-1], cut[1][0])

    def _unify_digits(self, x: Digit, y: Digit) -> bool:
        """Two digits of one extent."""
        if x == y:
            return True
        if x.is_whole and y.is_whole:
            return self._join(x.atom, y.atom)
        if self._is_free(x):
            return self._define(x.atom, (y,))
        if self._is_free(y):
            return self._define(y.atom, (x,))
        if self._lines.root(x.atom.line) == self._lines.root(y.atom.line):
            return False
        return self._take_apart(x, y) if self._is_open(x.atom) else self._take_apart(y, x)

    def _take_apart(self, x: Digit, middle: Digit) -> bool:
        """Define the atom of which `x` is a part by fresh digits around `middle`."""
        high = ratio(x.atom.extent, mul(x.stride, x.extent))
        if high is None or not self._is_open(x.atom):
            return False
        name = x.atom.name
        word = (*self._fresh(high, name), middle, *self._fresh(x.stride, name))
        return self._define(x.atom, word)

    def _fresh(self, extent: Expr, name: str) -> Word:
        if extent == ONE:
            return ()
        return (Digit(self._lines.fresh(extent, name), ONE, extent),)

    def _unify_radices(self, u: Word, v: Word) -> bool:
        """The innermost digits do not nest: box the shortest runs of equal extent."""
        runs = _equal_runs(u, v)
        if runs is None:
            return False
        i, j = runs
        self._pending.append((u[:i], v[:j]))
        for boxed, apart in ((u[i:], v[j:]), (v[j:], u[i:])):
            if all(self._is_free(d) for d in apart):
                return self._digits_of_box(boxed, apart)
        for run in (v[j:], u[i:]):
            if all(self._is_open(d.atom) for d in run):
                self._pending.append((u[i:], v[j:]))
                return all(self._make_free(d) for d in run)
        return False

    def _make_free(self, d: Digit) -> bool:
        """Give a part of an atom an atom of its own."""
        if d.is_whole or not self._is_open(d.atom):
            return True
        fresh = self._lines.fresh(d.extent, d.atom.name)
        return self._take_apart(d, Digit(fresh, ONE, d.extent))

    def _digits_of_box(self, boxed: Word, apart: Word) -> bool:
        box = self._lines.box(boxed)
        stride: Expr = ONE
        for d in reversed(apart):
            here = Digit(self._lines.canonical(box), stride, d.extent)
            self._pending.append(((d,), (here,)))
            stride = mul(stride, d.extent)
        return True

    def _is_free(self, d: Digit) -> bool:
        return d.is_whole and self._is_open(d.atom)

    def _is_open(self, atom: LineAtom) -> bool:
        return atom not in self._lines.definition

    # ----- the two edits

    def _join(self, a: LineAtom, b: LineAtom) -> bool:
        """Make two atoms one. Refused when they lie at two places of one line."""
        lines, domains = self._lines, self._domains
        if a is b:
            return True
        if a.line == b.line:
            return False
        if (domains.weight(b.line), -b.line) > (domains.weight(a.line), -a.line):
            a, b = b, a
        for old, new in lines.absorb(a.line, b.line, a.low - b.low):
            definition = lines.undefine(old)
            if definition is not None and not self._redefine(new, definition):
                return False
        domains.joined(a.line, b.line)
        return self._renew(a.line)

    def _define(self, atom: LineAtom, word: Word) -> bool:
        """Define a free atom by a word."""
        if not self._redefine(atom, self._lines.normal(word)):
            return False
        self._domains.defined(atom.line)
        return self._renew(atom.line)

    def _redefine(self, atom: LineAtom, definition: Definition) -> bool:
        """Give an atom a definition in normal form; what became equal by it is left pending."""
        lines = self._lines
        here = lines.definition.get(atom)
        if here is not None:
            if isinstance(here, Twist) or isinstance(definition, Twist):
                return here == definition
            self._pending.append((here, definition))
            return True
        if not isinstance(definition, Twist) and len(definition) == 1 and definition[0].is_whole:
            self._same.append((definition[0].atom, atom))
            return True
        other = lines.named.get(definition)
        if other is None or other is atom:
            lines.define(atom, definition)
        else:
            self._same.append((other, atom))
        return True

    def _renew(self, line: int) -> bool:
        """Renew the definitions that mention a changed line; no line may lie below itself."""
        lines = self._lines
        root = lines.root(line)
        if root in lines.closure(lines.root(d.atom.line) for d in lines.below(root)):
            return False
        changed = [root]
        while changed:
            for user in lines.users_of(changed.pop()):
                old = lines.definition.get(user)
                new = old if old is None else lines.normal_definition(old)
                if old is None or new is None or new == old:
                    continue
                lines.undefine(user)
                if not self._redefine(user, new):
                    return False
                changed.append(lines.root(user.line))
        return True


def _equal_runs(u: Word, v: Word) -> tuple[int, int] | None:
    """Starts of the shortest innermost runs of two words that have equal extents."""
    seen: list[tuple[int, Expr]] = []
    extent: Expr = ONE
    for i in range(len(u) - 1, -1, -1):
        extent = mul(extent, u[i].extent)
        seen.append((i, extent))
    extent = ONE
    for j in range(len(v) - 1, -1, -1):
        extent = mul(extent, v[j].extent)
        for i, other in seen:
            if other == extent:
                return i, j
    return None
