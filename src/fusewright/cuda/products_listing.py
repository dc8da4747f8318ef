"""What a disassembly shows of matrix products: registers that are touched while they are made."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TypeAlias

from fusewright.cuda.listing import Instruction, successors

_SHAPE = re.compile(r"64x(\d+)x\d+")
_REGISTER = re.compile(r"\bR(\d+)\b")
_KEEP = re.compile(r"gsb\d+, 0x([0-9a-f]+)")


UnderWay: TypeAlias = dict[int, int]
"""For each accumulator of products that no wait has ended, how many groups of products were closed
since the last one began that writes it; the fewest, over all ways that lead here."""
_MANY = 16
"""Closed groups beyond which no wait counts."""


def early_uses(code: Sequence[Instruction]) -> list[Instruction]:
    """The instructions that touch an accumulator between a product and the wait for it, on any way
    through the code, in the order of the listing. A wait for all but some groups ends those that
    were closed before them."""
    after = successors(code)
    before: list[UnderWay | None] = [None] * len(code)
    work = [0] if code else []
    if code:
        before[0] = {}
    while work:
        i = work.pop()
        state: UnderWay | None = before[i]
        while state is not None:
            left = _left(code[i], state)
            following, state = after[i], None
            for j in following:
                joined = _joined(before[j], left)
                if joined == before[j]:
                    continue
                before[j] = joined
                if j == i + 1:
                    i, state = j, joined
                else:
                    work.append(j)
    return [x for x, state in zip(code, before, strict=True) if state and _touches(x, state)]


def _left(i: Instruction, state: UnderWay) -> UnderWay:
    """What is under way behind an instruction."""
    if i.operation == "HGMMA":
        left = {**state, **dict.fromkeys(_written(i), 0)}
        if "gsb0" in i.operands:
            left = {r: min(n + 1, _MANY) for r, n in left.items()}
        return left
    if i.operation == "WARPGROUP" and "DEPBAR" in i.modifiers:
        keep = _KEEP.search(i.operands)
        most = 0 if keep is None else int(keep[1], 16)
        return {r: n for r, n in state.items() if n <= most}
    return state


def _joined(known: UnderWay | None, more: UnderWay) -> UnderWay:
    if known is None:
        return more
    if known == more:
        return known
    registers = known.keys() | more.keys()
    return {r: min(known.get(r, _MANY), more.get(r, _MANY)) for r in sorted(registers)}


def _written(i: Instruction) -> range:
    shape, first = _SHAPE.search(str(i)), _REGISTER.search(i.operands)
    if shape is None or first is None:
        return range(0)
    return range(int(first[1]), int(first[1]) + int(shape[1]) // 2)


def _touches(i: Instruction, state: UnderWay) -> bool:
    if i.operation == "HGMMA":
        return False
    return any(int(n) in state for n in _REGISTER.findall(i.operands))
