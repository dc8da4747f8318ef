"""What a disassembly shows of matrix products: registers that are touched while they are made."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from fusewright.cuda.listing import Instruction

_SHAPE = re.compile(r"64x(\d+)x\d+")
_REGISTER = re.compile(r"\bR(\d+)\b")
_KEEP = re.compile(r"gsb\d+, 0x([0-9a-f]+)")


@dataclass(slots=True)
class _UnderWay:
    """Accumulators of products that no wait has ended, by the groups that they were issued in."""

    groups: list[set[int]] = field(default_factory=lambda: [set[int]()])

    def issue(self, i: Instruction) -> None:
        shape, first = _SHAPE.search(str(i)), _REGISTER.search(i.operands)
        if shape is not None and first is not None:
            start = int(first[1])
            self.groups[-1].update(range(start, start + int(shape[1]) // 2))
        if "gsb0" in i.operands:
            self.groups.append(set())

    def wait(self, keep: int) -> None:
        ended, current = self.groups[:-1], self.groups[-1]
        self.groups = [*ended[max(0, len(ended) - keep) :], current]


def early_uses(code: Iterable[Instruction]) -> list[Instruction]:
    """The instructions that touch an accumulator between a product and the wait for it, in the
    order of the listing. A wait for all but some groups ends the earlier ones. What stands behind
    an exit or a jump belongs to other warps."""
    found: list[Instruction] = []
    under_way = _UnderWay()
    for i in code:
        if i.operation == "HGMMA":
            under_way.issue(i)
        elif i.operation == "WARPGROUP" and "DEPBAR" in i.modifiers:
            keep = _KEEP.search(i.operands)
            under_way.wait(0 if keep is None else int(keep[1], 16))
        elif i.operation in ("EXIT", "BRA") and not i.guard:
            under_way = _UnderWay()
        else:
            used = {int(n) for n in _REGISTER.findall(i.operands)}
            if any(used & g for g in under_way.groups):
                found.append(i)
    return found
