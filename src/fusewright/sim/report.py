"""What the simulator found, as text: accesses, threads, bytes, element, syncs between, seed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, assert_never

from fusewright.core.expr import TRUE
from fusewright.kir import ir

Kind = Literal["race", "range", "uninitialised", "divergence", "deadlock", "rule"]


@dataclass(frozen=True, slots=True)
class Site:
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
    first: Site | None = None
    second: Site | None = None
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


def operand_text(o: ir.Operand) -> str:
    """One operand in a line of text."""
    match o:
        case ir.Reg():
            return f"{o.buffer.name}[{o.index}]"
        case ir.Imm():
            return f"{o.value}"
        case ir.Index():
            return f"({o.expr})"
        case ir.Arg():
            return o.argument.name
        case _:
            assert_never(o)


def statement_text(s: ir.Statement) -> str:
    """One statement in a line of text; a For or an If without its body."""
    match s:
        case ir.Alloc():
            return (
                f"alloc {s.buffer.name}: {s.buffer.dtype}[{s.buffer.size}] {s.buffer.memory.value}"
            )
        case ir.For():
            return f"for {s.var} < {s.extent}"
        case ir.If():
            return f"if {s.condition}"
        case ir.Load():
            text = f"{operand_text(s.dst)} = {_span(s.src.name, str(s.index), s.width)}"
            return text + _predicate(s)
        case ir.Store():
            text = f"{_span(s.dst.name, str(s.index), s.width)} = {operand_text(s.src)}"
            return text + _predicate(s)
        case ir.Compute():
            arguments = ", ".join(operand_text(o) for o in s.operands)
            return f"{operand_text(s.dst)} = {s.fn}({arguments})" + _predicate(s)
        case ir.Shuffle():
            return (
                f"{operand_text(s.dst)} = shuffle_{s.mode}({operand_text(s.src)}, {s.operand}, "
                f"{s.width})"
            )
        case ir.ThreadReduce():
            return (
                f"{operand_text(s.dst)} = {s.fn} over {','.join(s.dims)} of {operand_text(s.src)}"
            )
        case ir.SyncStatement():
            return f"{type(s).__name__} #{s.id}" + (f" ({s.why})" if s.why else "")
        case _:
            return type(s).__name__


def _span(name: str, index: str, width: int) -> str:
    return f"{name}[{index}]" if width == 1 else f"{name}[{index} : +{width}]"


def _predicate(s: ir.Load | ir.Store | ir.Compute) -> str:
    return "" if s.predicate is TRUE or s.predicate == TRUE else f" if {s.predicate}"


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
        first: Site | None = None,
        second: Site | None = None,
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
