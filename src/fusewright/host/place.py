"""Destination passing: the pieces of a joined value are made where they end up.

A concatenation, a stack, an insertion or a pad of what other kernels make needs no kernel that
moves values: those kernels write into the memory of the result, several times where a value is
joined several times. What is left of the result (borders, pieces of arguments, parts of other
values) is filled and copied by one launch. Rows as short as a piece's are written by nobody more
efficiently than by the kernel that has them in registers, so short rows are no reason against it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from fusewright.core.expr import IntLike, Var, add
from fusewright.core.substitution import substitute
from fusewright.fusion.ir import Alone, Concat, Fusion, Input, Insert, Tensor, position
from fusewright.fusion.rematerialisable import is_rematerialisable
from fusewright.fusion.sizes import nbytes_estimate
from fusewright.host.form import Formation, connected
from fusewright.host.groups import is_view
from fusewright.host.ir import JoinPieces
from fusewright.host.joins import (
    MAX_STORES,
    JoinPiece,
    is_join,
    is_part,
    pieces,
    site_in_source,
    source_of,
)
from fusewright.host.moves import Move, Moves
from fusewright.host.segment import stored_values
from fusewright.host.subspans import LAUNCH_NBYTES, Subspan, natural

OWN = "a kernel of the program's own reads or makes it, in memory of its own"
Group: TypeAlias = tuple[Tensor, ...]


@dataclass(frozen=True, slots=True)
class Placed:
    """Kernels and moves in order; the sites of values (the first one is read; a value without an
    entry is its own root); the joins that consist of what others write there; what became of the
    pieces of joined values; and for values in the memory of arguments, by value and argument, which
    content of it they belong to: a higher number is written over lower ones, and over what the
    caller passed."""

    items: tuple[Group | Moves, ...]
    sites: dict[Tensor, tuple[Subspan, ...]]
    joined: tuple[Tensor, ...]
    pieces: JoinPieces
    versions: dict[tuple[Tensor, Tensor], int]


def place(fusion: Fusion, cut: Formation, held: Mapping[Tensor, Tensor] | None = None) -> Placed:
    """Takes the joins of what other kernels make out of the kernels of a cut.

    rewrite:  k1: a = f(x);  k2: b = g(y);  k3: c = concat(a, b)
              ->   k1: c[:n] = f(x);  k2: c[n:] = g(y)
    checks:   a piece is placed whole, in the order of its axes, by the kernel that makes it; a
              group falls apart only where that saves more than its launches cost
    order:    after the cut, before segments: a segment's outputs are made for their sites

    `held`: results that lie in the memory of an argument. What such a result takes over from the
    argument stays where it is, and nobody moves it.
    """
    placer = _Placer(fusion, cut, held or {})
    placer.run()
    return placer.result()


@dataclass(frozen=True, slots=True)
class _Split:
    """A group without one join: the groups of the pieces it computes itself, the pieces that other
    kernels make, the parts that move, and the groups of what else it computes."""

    own: tuple[Tensor, ...]
    before: tuple[Group, ...]
    elsewhere: tuple[Tensor, ...]
    members: set[Tensor]
    has_moves: bool
    after: tuple[Group, ...]

    @property
    def launches(self) -> int:
        """How many launches it is."""
        return len(self.before) + len(self.after) + self.has_moves


@dataclass(frozen=True, slots=True, eq=False)
class _Rest:
    """The parts of one join that move, before all sites of their sources are known."""

    parts: tuple[JoinPiece, ...]
    members: set[Tensor]


class _Placer:
    """Goes from the last kernel to the first: the sites of a join come before its pieces'."""

    def __init__(self, fusion: Fusion, cut: Formation, held: Mapping[Tensor, Tensor]) -> None:
        self.waiting: list[Group | _Rest] = []
        self.computed: Counter[Tensor] = Counter()
        self.done: list[Group | _Rest] = []
        self.sites: dict[Tensor, list[Subspan]] = {
            t: [natural(held.get(t, t)).of(t)] for t in fusion.outputs
        }
        self.versions = dict.fromkeys(held.items(), 0)
        self.wanted = stored_values(fusion, cut.groups)
        self.fixed = _of_own_kernels(fusion)
        self.joined: dict[Tensor, None] = {}
        self.through: set[Tensor] = set()
        self.placed: dict[str, str] = {}
        self.not_placed: dict[str, str] = {}
        self._wait(*cut.groups)

    def _wait(self, *items: Group | _Rest) -> None:
        """Adds what stands before all that is done; counts the groups that compute each value."""
        self.waiting += items
        for x in items:
            self.computed.update(x if isinstance(x, tuple) else ())

    def run(self) -> None:
        while self.waiting:
            x = self.waiting.pop()
            self.computed.subtract(x if isinstance(x, tuple) else ())
            if isinstance(x, _Rest) or not any(self._take_out(x, t) for t in reversed(x)):
                self.done.append(x)

    def result(self) -> Placed:
        items = [x if isinstance(x, tuple) else self._moves(x) for x in reversed(self.done)]
        sites = {t: tuple(map(self._settled, found)) for t, found in self.sites.items()}
        pieces = JoinPieces(self.placed, self.not_placed)
        return Placed(tuple(items), sites, tuple(self.joined), pieces, self.versions)

    def _moves(self, rest: _Rest) -> Moves:
        made = [
            Move(p.site, p.fill if p.source is None else self._source(p.source, rest.members))
            for p in rest.parts
        ]
        return Moves(tuple(made))

    def _source(self, t: Tensor, members: set[Tensor]) -> Subspan:
        return site_in_source(t, members, self._read_site)

    def _settled(self, s: Subspan) -> Subspan:
        """A site whose block begins where values say, when it is known where these lie."""
        if s.moving is None:
            return s
        places = tuple(self._read_site(p.tensor).of(p.tensor) for p in s.moving.places)
        return replace(s, moving=replace(s.moving, places=places))

    def _read_site(self, t: Tensor) -> Subspan:
        return self.sites[t][0] if t in self.sites else natural(t)

    # --- one join -------------------------------------------------------------------------------

    def _take_out(self, g: Group, t: Tensor) -> bool:
        """Takes one join out of its group when a piece of it is made elsewhere and that pays. Joins
        that were taken out before are looked through: nobody makes them any more."""
        if not self._stores(t) or not is_join(t):
            return False
        sites = self.sites.get(t) or [natural(t)]
        if any(s.moving is not None for s in sites):
            return False  # nothing but its own kernel knows where it begins
        inner = {o for o in t.op.operands if o in g and isinstance(o.op, Concat)}
        return self._divide(g, t, sites) or (bool(inner) and self._divide(g, t, sites, inner))

    def _divide(
        self, g: Group, t: Tensor, sites: list[Subspan], inner: Collection[Tensor] = ()
    ) -> bool:
        """Takes a join out of its group if that pays; those joins of its group that are `inner`
        stay whole, and are pieces of it."""
        members = {*g, *self.through}.difference(inner)
        everything = [p for s in sites for p in pieces(t, s, members)]
        fixed = [p.source for p in everything if p.source is not None and p.source in self.fixed]
        if fixed:
            self.not_placed |= {o.name: OWN for o in fixed}
            return False
        staying = self._staying(t, everything, set(g))
        parts = [p for p in everything if p not in staying]
        stays = len(parts) < len(everything)
        if isinstance(t.op, Insert) and any(not p.site.places for p in parts):
            return False  # what is around the block would be copied behind it
        split = self._without(g, t, parts)
        if not split.elsewhere and not stays:
            return False
        problem = _problem(split, at_any_cost=stays)
        if problem is not None:
            self.not_placed |= dict.fromkeys((o.name for o in split.elsewhere), problem)
            return False
        for o in split.elsewhere:
            self.not_placed.pop(o.name, None)
        self.sites[t] = sites
        self.joined[t] = None
        self.through |= _needed([t], split.members, {*split.own, *split.elsewhere})
        rest = _Rest(self._settle(t, parts, split), split.members)
        self._wait(*split.before, *([rest] if rest.parts else []), *split.after)
        return True

    def _stores(self, t: Tensor) -> bool:
        """Whether the group at hand, of those that compute a value, is the one that stores it: the
        first in order."""
        return t in self.wanted and not self.computed[t]

    def _staying(
        self, t: Tensor, everything: Sequence[JoinPiece], members: set[Tensor]
    ) -> set[JoinPiece]:
        """The pieces of a result in the memory of an argument that are there already: parts of one
        value in each argument, as two would be written over each other. That is the argument
        itself, or what lies there, before a value as large that is then made there."""
        found = [(p, self._lies_there(t, p, members)) for p in everything]
        chosen: dict[Tensor, Tensor] = {}
        for p, source in sorted(found, key=lambda x: x[1] is None or self._is_new(x[1], x[0])):
            if source is not None:
                chosen.setdefault(p.site.root, source)
        for root, source in chosen.items():
            if source is not root and source not in self.sites:
                self.sites[source] = [natural(root).of(source)]
                self.versions[source, root] = self.versions[t, root] - 1
        return {p for p, source in found if source is not None and chosen[p.site.root] is source}

    def _is_new(self, source: Tensor, p: JoinPiece) -> bool:
        """Whether nothing says yet where the source of a piece lies."""
        return source is not p.site.root and source not in self.sites

    def _lies_there(self, t: Tensor, p: JoinPiece, members: set[Tensor]) -> Tensor | None:
        """The value that a piece is a part of, in its place, if that lies in the memory of the
        piece's root, or is as large and may be made there."""
        root = p.site.root
        if p.source is None or (t, root) not in self.versions:
            return None
        source, _ = source_of(p.source, members)
        there = natural(root).of(source)
        if self._is_new(source, p) and (source.shape != root.shape or not self._is_made(source)):
            return None
        if source is not root and source in self.sites:
            there = self.sites[source][0]
        is_there = site_in_source(p.source, members, lambda _: there).is_at(p.site)
        return source if is_there else None

    def _is_made(self, t: Tensor) -> bool:
        return t in self.wanted and not isinstance(t.op, Input)

    def _settle(
        self, t: Tensor, parts: Sequence[JoinPiece], split: _Split
    ) -> tuple[JoinPiece, ...]:
        """Gives the pieces of a join their sites; returns the parts that are moved."""
        made = {*split.own, *split.elsewhere}
        moved: list[JoinPiece] = []
        for p in parts:
            o = p.source
            if o is not None and o in made and len(self.sites.get(o, ())) < MAX_STORES:
                self.sites.setdefault(o, []).append(p.site.of(o))
                self.wanted[o] = None
                if (t, p.site.root) in self.versions:
                    self.versions[o, p.site.root] = self.versions[t, p.site.root]
                self.placed[o.name] = f"in {p.site.root.name} from {_beginning(p.site)}"
                continue
            moved.append(p)
            if o is not None:
                self.not_placed[o.name] = _why_moved(o, split.members)
        return tuple(moved)

    def _without(self, g: Group, t: Tensor, parts: Sequence[JoinPiece]) -> _Split:
        members = {*g, *self.through}
        sources = list(dict.fromkeys(p.source for p in parts if p.source is not None))
        parts_of_sources = [o for o in sources if is_part(o, members)]
        own = [
            o
            for o in sources
            if o not in parts_of_sources and (o in members or is_rematerialisable(o))
        ]
        outer = [o for o in sources if o not in own and o not in parts_of_sources]
        elsewhere = [o for o in outer if not isinstance(o.op, Input)]
        before = _needed(own, members, {t})
        kept = [x for x in g if self._stores(x) and x is not t and x not in own]
        after = _needed(kept, members, {t, *own})
        return _Split(
            tuple(own),
            (*connected([x for x in g if x in before]), *((o,) for o in own if o not in members)),
            tuple(elsewhere),
            members,
            len(own) + len(elsewhere) < len({p.source for p in parts}),
            tuple(connected([x for x in g if x in after])),
        )


def _beginning(s: Subspan) -> str:
    """Where a site begins in its root, in words."""
    at = [str(start) for start, _ in s.box]
    if s.moving is None:
        return f"({', '.join(at)}) on"
    names: dict[Var, IntLike] = {
        position(k): Var(p.tensor.name) for k, p in enumerate(s.moving.places)
    }
    for axis, start in s.moving.start:
        along = s.axes[axis]
        if along is not None:
            at[along] = str(add(substitute(start, names), s.box[along][0]))
    return f"({', '.join(at)}) on, which the device knows, or where it fits nearest to that"


def unplaced_insertions(
    fusion: Fusion, placed: Placed, held: Mapping[Tensor, Tensor], refused: Mapping[str, str]
) -> dict[str, str]:
    """The insertions whose block does not go alone where the rest lies already, by name, and why.
    `held`: results that lie in the memory of an argument; `refused`: the names of arguments that
    hold none, and why."""
    found: dict[str, str] = {}
    inside = {t for t, _ in placed.versions}
    moved = {m.tensor for x in placed.items if isinstance(x, Moves) for m in x.writes if m.places}
    for t in fusion.values:
        if not isinstance(t.op, Insert):
            continue
        dest, block, *where = t.op.operands
        makers = [x for x in placed.items if not isinstance(x, Moves) and block in x]
        if t not in placed.joined or t not in inside:
            other = next((o for o, x in held.items() if x is dest and o is not t), None)
            why = refused.get(dest.name, f"it does not lie in the memory of {dest.name}")
            found[t.name] = why if other is None else f"{other.name} lies there"
        elif block in moved or any(w in makers[0] for w in where):
            found[t.name] = "the kernel that makes the block makes its place too"
    return found


def _of_own_kernels(fusion: Fusion) -> set[Tensor]:
    """What kernels of the program's own read and make: it lies in C order, apart from all else."""
    own = [t for t in fusion.values if isinstance(t.op, Alone)]
    return {v for t in own for v in (t, *t.op.operands)}


def _problem(split: _Split, *, at_any_cost: bool) -> str | None:
    """Why a join stays a kernel."""
    before = {x for g in split.before for x in g}
    after = {x for g in split.after for x in g}
    if any(not is_view(x) and not is_rematerialisable(x) for x in before & after):
        return "the kernel that joins it computes other results from what it joins it with"
    more = split.launches - 1
    saved = sum(2 * nbytes_estimate(o) for o in split.elsewhere)
    if more > 0 and not at_any_cost and saved < more * LAUNCH_NBYTES:
        return f"placing it would take {more} more launches to save {saved} bytes of traffic"
    return None


def _why_moved(o: Tensor, members: set[Tensor]) -> str:
    source, _ = source_of(o, members)
    if isinstance(source.op, Input):
        return f"{source.name} belongs to the caller: its bytes are copied"
    if source is o:
        return f"it is joined in more than {MAX_STORES} places: copied to the others"
    return f"it is a part of {source.name}, which is stored whole: its bytes are copied"


def _needed(roots: Sequence[Tensor], members: set[Tensor], stops: set[Tensor]) -> set[Tensor]:
    """The members that the roots are computed from; stops are read, not computed."""
    found: set[Tensor] = set()
    stack = list(roots)
    while stack:
        t = stack.pop()
        if t not in found and t in members:
            found.add(t)
            stack.extend(o for o in t.op.operands if o not in stops)
    return found
