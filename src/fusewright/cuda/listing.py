"""What a disassembly shows: instructions, widths of global accesses, loops, divisions in them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

Direction: TypeAlias = Literal["read", "write"]

_LABEL = re.compile(r"(\.L_x_\d+|\$\S+):")
_INSTRUCTION = re.compile(
    r"/\*[0-9a-f]{4,}\*/\s+(?:@(!?U?P[T\d]+)\s+)?([A-Z]\w*)((?:\.\w+)*)(.*?);"
)
_TARGET = re.compile(r"`\((.*?)\)")
_GLOBAL: dict[str, Direction] = {"LDG": "read", "STG": "write"}
"""LD and ST take any address: a neighbour's shared memory is reached by them."""
_NBYTES = {"U8": 1, "S8": 1, "U16": 2, "S16": 2, "64": 8, "128": 16}
_CONDITION = re.compile(r"U?P\d")
_DIVISION = re.compile(r"cuda_sm\d+_(div|rem)_[us](16|32|64)")


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction: its label if it has one, guard ("" for none), operation, modifiers, the rest
    of its text, and the label it mentions."""

    labels: tuple[str, ...]
    guard: str
    operation: str
    modifiers: tuple[str, ...]
    operands: str

    @property
    def target(self) -> str:
        """The label it mentions, "" for none."""
        found = _TARGET.search(self.operands)
        return found[1] if found else ""

    def __str__(self) -> str:
        return ".".join((self.operation, *self.modifiers))


def instructions(sass: str) -> tuple[Instruction, ...]:
    """The instructions of one kernel, in order."""
    out: list[Instruction] = []
    labels: list[str] = []
    for line in sass.splitlines():
        label = _LABEL.match(line)
        found = _INSTRUCTION.search(line)
        if label:
            labels.append(label[1])
        elif found:
            guard, operation, modifiers, rest = found.groups()
            parts = tuple(modifiers.split(".")[1:])
            out.append(Instruction(tuple(labels), guard or "", operation, parts, rest))
            labels = []
    return tuple(out)


def global_widths(code: Iterable[Instruction], direction: Direction) -> Counter[int]:
    """How many instructions access global memory with each width, in bytes a thread."""
    return Counter(
        next((_NBYTES[m] for m in i.modifiers if m in _NBYTES), 4)
        for i in code
        if _GLOBAL.get(i.operation) == direction
    )


def local_accesses(code: Iterable[Instruction]) -> int:
    """How many instructions access local memory."""
    return sum(i.operation in ("LDL", "STL") for i in code)


def divisions(code: Iterable[Instruction]) -> int:
    """How many integer divisions there are: each starts with an integer converted upwards, for the
    reciprocal that the quotient is estimated with, or calls a function of the compiler's."""
    return sum(
        (i.operation == "I2F" and "RP" in i.modifiers)
        or (i.operation == "CALL" and bool(_DIVISION.search(i.target)))
        for i in code
    )


def innermost_loops(code: Sequence[Instruction]) -> tuple[tuple[Instruction, ...], ...]:
    """The instructions of every loop that holds no other, in order.

    A loop is what can reach a jump back to an instruction that every way to the jump passes.
    """
    after = successors(code)
    before: list[list[int]] = [[] for _ in code]
    for i, following in enumerate(after):
        for j in following:
            before[j].append(i)
    passed = _dominators(before)
    reached = _closure(0, -1, after)
    loops: dict[int, set[int]] = {}
    for i, following in enumerate(after):
        for head in following:
            if head <= i and i in reached and passed[i] >> head & 1:
                loops.setdefault(head, {head}).update(_closure(i, head, before))
    inner = [m for h, m in loops.items() if not any(o in m for o in loops if o != h)]
    return tuple(tuple(code[i] for i in sorted(members)) for members in inner)


def successors(code: Sequence[Instruction]) -> list[list[int]]:
    """For each instruction the places of those that may run next. A call comes back; where threads
    meet again (BSSY) they come by themselves."""
    places = {label: i for i, x in enumerate(code) for label in x.labels}
    out: list[list[int]] = []
    for i, x in enumerate(code):
        jumps = x.operation in ("BRA", "JMP")
        following = [places[x.target]] if jumps and x.target in places else []
        goes_away = x.operation in ("BRA", "EXIT", "RET") and "DIV" not in x.modifiers
        is_conditional = bool(x.guard or _CONDITION.search(x.operands.split("`")[0]))
        if (not goes_away or is_conditional) and i + 1 < len(code):
            following.append(i + 1)
        out.append(following)
    return out


def _dominators(before: Sequence[Sequence[int]]) -> list[int]:
    """For each instruction those that every way to it passes, as bits; all for unreachable ones."""
    every = (1 << len(before)) - 1
    passed = [every] * len(before)
    passed[0] = 1
    changed = True
    while changed:
        changed = False
        for i in range(1, len(before)):
            common = every
            for j in before[i]:
                common &= passed[j]
            new = common | 1 << i if before[i] else every
            changed |= new != passed[i]
            passed[i] = new
    return passed


def _closure(start: int, end: int, edges: Sequence[Sequence[int]]) -> set[int]:
    """What edges lead to from `start` on, without going on from `end`."""
    found, work = {end}, [start]
    while work:
        i = work.pop()
        if i not in found:
            found.add(i)
            work += edges[i]
    return found
