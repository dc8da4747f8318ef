"""What holds of every host program, whatever order of launches its edges allow.

1. Any two launches that conflict on a byte are joined by a path of edges. So every order that the
   edges allow gives the bytes that program order gives.
2. Every byte of a value in the arena, and of a result, is written once: its writes are apart, and
   together they are as large as the value.
   No launch writes a byte through two bindings.
3. A launch that reads a byte of a value comes behind the launch that writes it, on a path of edges.
4. Bytes that two values share belong to one of them until its last use, and then to the other;
   those of an argument that is lent belong to it first.

Sizes that are not known leave some of this open. What cannot be decided counts as a conflict in 1
and 3, which then demand a path: an edge of kind MAYBE. 2 and 4 report only what surely is wrong:
pieces of a join are its parts by construction, and slots of symbolic size follow each other.
Results in the memory of arguments keep bytes that nobody writes, and hold several contents one
after the other; of them 1 is checked, that no launch writes two of them at once, and the order of
contents where it is chosen (`in_order`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from fusewright.core.expr import as_expr, constant_value
from fusewright.errors import InternalError
from fusewright.host.accesses import Accesses, Bound, bound, overlaps
from fusewright.host.assemble import HostProgram
from fusewright.host.graph import ancestors
from fusewright.host.ir import Root, RootKind, Stored


@dataclass(frozen=True, slots=True)
class Problem:
    """One broken invariant: "order" where an edge is missing, "unwritten" for bytes that nobody
    writes before they are read, "twice" for bytes that are written again while they count."""

    kind: Literal["order", "unwritten", "twice"]
    message: str


def check_host(host: HostProgram) -> None:
    """Raises InternalError for a host program that breaks an invariant."""
    found = problems(host)
    if found:
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        raise InternalError(f"the host program is wrong: {found[0].message}{more}")


def problems(host: HostProgram) -> list[Problem]:
    """The broken invariants."""
    before = ancestors(host.edges, len(host.launches))
    accesses = _accesses(host)
    out = [p for found in accesses.values() for p in _unordered(host, found, before)]
    out += [p for found in accesses.values() for p in _at_once(host, found)]
    of: dict[Stored, list[Bound]] = {v: [] for v in host.values}
    for found in accesses.values():
        for x in found:
            if x.binding.memory in of:
                of[x.binding.memory].append(x)
    for v in host.values:
        writes = [x for x in of[v] if x.binding.access.writes]
        out += _miscounted(host, v, writes)
        out += _too_early(host, v, of[v], writes, before)
    between = [of[v] for v in host.values if v.root.kind is not RootKind.OUTPUT]
    lent = dict.fromkeys(host.lent.values())
    given = [[x for x in accesses[r] if x.binding.memory not in of] for r in lent if r in accesses]
    out += _shared(host, [a for a in between if a], [a for a in given if a])
    return out


def _accesses(host: HostProgram) -> dict[Root, list[Bound]]:
    """What launches touch of the roots that any of them writes, in order."""
    written = {b.root for x in host.launches for b in x.bindings if b.access.writes}
    out: dict[Root, list[Bound]] = {r: [] for r in host.roots if r in written}
    for c, x in enumerate(host.launches):
        for b in x.bindings:
            if b.root in written:
                out[b.root].append(bound(c, b))
    return out


def _unordered(
    host: HostProgram, accesses: Sequence[Bound], before: Sequence[int]
) -> Iterator[Problem]:
    """Conflicts of two launches that no path joins."""
    earlier = Accesses()
    for c in accesses:
        for p in earlier.near(c):
            ordered = p.launch == c.launch or before[c.launch] >> p.launch & 1
            if not ordered and overlaps(p, c) is not False:
                yield Problem(
                    "order",
                    f"{_name(host, c)} touches {c.binding}, and does not wait for "
                    f"{_name(host, p)}, which touches {p.binding}",
                )
        earlier.add(c)


def _at_once(host: HostProgram, accesses: Sequence[Bound]) -> Iterator[Problem]:
    """Launches that surely write bytes through two of their bindings, in an order that nobody
    knows."""
    written = Accesses()
    for c in accesses:
        if not c.binding.access.writes:
            continue
        for p in written.near(c):
            if p.launch == c.launch and overlaps(p, c) is True:
                yield Problem(
                    "twice",
                    f"{_name(host, c)} writes the same bytes of {c.binding.root} by two of its "
                    f"results: {p.binding}, {c.binding}",
                )
        written.add(c)


def _miscounted(host: HostProgram, v: Stored, writes: Sequence[Bound]) -> Iterator[Problem]:
    """A value that is not written once, every byte of it."""
    seen = Accesses()
    for c in writes:
        again = next((p for p in seen.near(c) if overlaps(p, c) is True), None)
        if again is not None:
            yield Problem(
                "twice",
                f"{_name(host, c)} writes bytes of {v.name} that {_name(host, again)} writes: "
                f"{c.binding}, {again.binding}",
            )
            return
        seen.add(c)
    missing = constant_value(v.content - sum((x.binding.content for x in writes), as_expr(0)))
    if missing is None and not writes:
        yield Problem("unwritten", f"no launch writes {v.name}, which has {v.content} bytes")
    elif missing:
        yield Problem(
            "unwritten",
            f"the launches write all but {missing} bytes of {v.name}, which has {v.content}",
        )


def _too_early(
    host: HostProgram,
    v: Stored,
    accesses: Sequence[Bound],
    writes: Sequence[Bound],
    before: Sequence[int],
) -> Iterator[Problem]:
    """Reads that no path puts behind a write of the same bytes."""
    written = Accesses()
    for x in writes:
        written.add(x)
    for c in accesses:
        if not c.binding.access.reads:
            continue
        for p in written.near(c):
            behind = p is c or before[c.launch] >> p.launch & 1
            if not behind and overlaps(p, c) is not False:
                yield Problem(
                    "unwritten",
                    f"{_name(host, c)} may read {c.binding} before {_name(host, p)} writes "
                    f"{p.binding}: bytes of {v.name} that hold nothing yet",
                )


def _shared(
    host: HostProgram, values: Sequence[Sequence[Bound]], given: Sequence[Sequence[Bound]]
) -> Iterator[Problem]:
    """Values between kernels that share bytes while both are in use. `given`: the reads of
    arguments that are lent, which are in use from before the first launch."""
    alive: dict[Root, Accesses] = {}
    lives = [(a[0].launch, a[-1].launch) for a in values] + [(-1, a[-1].launch) for a in given]
    owner: dict[Bound, int] = {}
    for k, accesses in enumerate((*values, *given)):
        for c in accesses:
            known = alive.setdefault(c.binding.root, Accesses())
            for p in known.near(c):
                one, other = lives[owner[p]], lives[k]
                apart = one[1] < other[0] or other[1] < one[0]
                if owner[p] != k and not apart and overlaps(p, c) is True:
                    names = f"{p.binding.memory.name} and {c.binding.memory.name}"
                    where = c.binding.root.kind.value
                    yield Problem(
                        "twice",
                        f"{names} share bytes of the {where} while both are in use: "
                        f"{_name(host, p)} touches {p.binding}, "
                        f"{_name(host, c)} touches {c.binding}",
                    )
            known.add(c)
            owner[c] = k


def _name(host: HostProgram, x: Bound) -> str:
    return f"#{x.launch} {host.launches[x.launch].name}"
