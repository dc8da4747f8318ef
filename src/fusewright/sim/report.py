"""What the simulator found, as text: accesses, threads, bytes, element, syncs between, seed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fusewright.kir import ir
from fusewright.kir.text import print_statement

Kind = Literal["race", "range", "uninitialised", "divergence", "deadlock", "rule"]


@dataclass(frozen=True, slots=True)
class AccessSite:
    """One access of a finding: who touched which bytes of what by which statement."""

    statement: ir.Statement
    block: int
    thread: int
    buffer: str
    first_byte: int
    nbytes: int
    element: int
    writes: bool

    def __str__(self) -> str:
        verb = "write" if self.writes else "read"
        return (
            f"{verb} of {self.buffer}[{self.element}] (bytes {self.first_byte}.."
            f"{self.first_byte + self.nbytes - 1}) by thread {self.thread} of block {self.block} "
            f"in `{statement_text(self.statement)}`"
        )


@dataclass(frozen=True, slots=True)
class Race:
    """One finding. `kind` is "race" for unordered accesses, else the rule's family.

    `count` is the number of conflicting (event, strand) pairs or of threads that share this
    message; `first` and `second` are one example in execution order.
    """

    kind: Kind
    message: str
    first: AccessSite | None = None
    second: AccessSite | None = None
    between: tuple[ir.Statement, ...] = ()
    count: int = 1
    seed: int = 0

    @property
    def statements(self) -> tuple[ir.Statement | None, ir.Statement | None]:
        """The statements of the two accesses."""
        return (
            None if self.first is None else self.first.statement,
            None if self.second is None else self.second.statement,
        )

    def __str__(self) -> str:
        lines = [f"{self.kind}: {self.message}"]
        if self.first is not None:
            lines.append(f"  first:  {self.first}")
        if self.second is not None:
            lines.append(f"  second: {self.second}")
        if self.first is not None and self.second is not None:
            if self.between:
                texts = "; ".join(statement_text(s) for s in self.between)
                lines.append(f"  syncs between them: {texts}")
            else:
                lines.append("  syncs between them: none")
        lines.append(f"  cases: {self.count}, seed: {self.seed}")
        return "\n".join(lines)


def statement_text(s: ir.Statement) -> str:
    """The first line of a statement's text."""
    return print_statement(s).split("\n", 1)[0].strip()


class Findings:
    """Collects findings, one for each kind and statement pair, with a count of the repetitions."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._found: dict[tuple[object, ...], Race] = {}

    def add(
        self,
        kind: Kind,
        message: str,
        *,
        first: AccessSite | None = None,
        second: AccessSite | None = None,
        between: tuple[ir.Statement, ...] = (),
        statement: ir.Statement | None = None,
        count: int = 1,
    ) -> None:
        """Record a finding about `statement`, or about the statements of the two sites."""
        key = (
            kind,
            id(statement),
            id(first.statement) if first else 0,
            id(second.statement) if second else 0,
        )
        old = self._found.get(key)
        if old is None:
            self._found[key] = Race(kind, message, first, second, between, count, self.seed)
        else:
            self._found[key] = Race(
                old.kind,
                old.message,
                old.first,
                old.second,
                old.between,
                old.count + count,
                self.seed,
            )

    def list(self) -> list[Race]:
        """All findings, in the order found; range and uninitialised reads before what follows
        from them."""
        rank = {
            "range": 0,
            "uninitialised": 1,
            "divergence": 2,
            "rule": 3,
            "race": 4,
            "deadlock": 5,
        }
        return sorted(self._found.values(), key=lambda r: rank[r.kind])
