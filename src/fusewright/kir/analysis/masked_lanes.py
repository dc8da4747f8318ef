"""Which values are the same in all lanes of a vector where a mask by position drops all of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from fusewright.core.conditions import FALSE, TRUE, Cond, negate
from fusewright.core.expr import constant_value
from fusewright.core.regions import PointRegion
from fusewright.kir.analysis.masked import lanes_condition, masks_told
from fusewright.kir.analysis.needs import Slot, is_lasting, slots_written, uses_of_slots
from fusewright.kir.ir import (
    Alloc,
    Arg,
    Body,
    Compute,
    Imm,
    Index,
    Kernel,
    Load,
    Operand,
    Reg,
    Statement,
)
from fusewright.memory import Memory


@dataclass(slots=True, eq=False)
class Chunk:
    """Lanes that a body loads together and masks, and where any of them is kept."""

    conditions: list[Cond] = field(default_factory=list[Cond])
    kept: Cond = FALSE
    region: PointRegion = field(default_factory=PointRegion)


@dataclass(frozen=True, slots=True)
class Masked:
    """What a statement does for a chunk: where all lanes are dropped, statements of one `value`
    compute the same; without a value it adds to what others see, as to a sum. Statements `for_kept`
    are needed only where a lane is kept; a mask has what it picks `instead`."""

    chunk: Chunk
    value: int | None = None
    for_kept: bool = False
    instead: Operand | None = None


def masked_lanes(body: Body, kernel: Kernel) -> dict[int, Masked]:
    """What the statements of a body do for the chunks of lanes that its masks drop, by their
    places; nothing for others."""
    told = masks_told(body)
    masks = {k: m for k, c in told.items() if (m := _mask(body[k], c)) is not None}
    if not masks:
        return {}
    lanes = _MaskedWalk(body, masks)
    lanes.number_values()
    for c in dict.fromkeys(m.chunk for m in lanes.masked.values()):
        regions = [r for x in c.conditions if (r := PointRegion().within(x)) is not None]
        c.kept = lanes_condition(tuple(dict.fromkeys(regions)), kernel) if regions else FALSE
        c.region = (
            PointRegion() if c.kept == FALSE else PointRegion().within(c.kept) or PointRegion()
        )
    lanes.masked = {k: m for k, m in lanes.masked.items() if m.chunk.kept != TRUE}
    lanes.find_kept()
    return lanes.masked


@dataclass(frozen=True, slots=True)
class _Mask:
    """A `where`: when it keeps a value, that value, and what it picks instead."""

    kept: Cond
    value: Operand
    instead: Operand


def _mask(s: Statement, c: Cond) -> _Mask | None:
    """A `where` that picks one value instead of any that it drops."""
    if not isinstance(s, Compute) or s.predicate != TRUE:
        return None
    _, chosen, other = s.operands
    if isinstance(other, Imm | Arg):
        return _Mask(c, chosen, other)
    return _Mask(negate(c), other, chosen) if isinstance(chosen, Imm | Arg) else None


class _MaskedWalk:
    """Walks over a body: forwards for values that are the same in dropped lanes, backwards for
    those that only kept ones need."""

    def __init__(self, body: Body, masks: Mapping[int, _Mask]) -> None:
        self.masked: dict[int, Masked] = {}
        self._body = body
        self._masks = masks
        self._reads, self._writes = uses_of_slots(body)
        self._held: dict[Slot, Masked] = {}
        self._versions: dict[Slot, int] = {}
        self._loads: dict[Slot, frozenset[int]] = {}
        self._chunks: dict[frozenset[int], Chunk] = {}
        self._dropped = Chunk()
        self._numbers: dict[object, int] = {}

    def number_values(self) -> None:
        """Find what computes with values that a mask drops, and number what it makes of these."""
        for k, s in enumerate(self._body):
            own = self._masked(k, s)
            if own is not None:
                self.masked[k] = own
            loads = self._loads_of(k, s)
            for slot in slots_written(s):
                self._held.pop(slot, None)
                self._versions[slot] = k
                self._loads[slot] = loads
                if own is not None and own.value is not None:
                    self._held[slot] = own

    def _masked(self, k: int, s: Statement) -> Masked | None:
        if not isinstance(s, Compute) or not is_lasting(s.predicate):
            return None
        slots = [slot_of(o) for o in s.operands if isinstance(o, Reg)]
        dst = slot_of(s.dst)
        if dst is None or None in slots:
            return None
        chunks = {self._held[x].chunk for x in slots if x in self._held}
        if k in self._masks:
            return self._mask(k, dst, chunks)
        if len(chunks) != 1:
            return None
        (chunk,) = chunks
        if s.predicate != TRUE or not self._is_one_value(dst, k):
            return Masked(chunk)
        operands = tuple(self._key(o) for o in s.operands)
        return Masked(chunk, self._number((s.fn, s.dst.buffer.dtype.name, operands)))

    def _mask(self, k: int, dst: Slot, chunks: set[Chunk]) -> Masked | None:
        """What a mask does for the chunk of the loads that its value comes from."""
        mask = self._masks[k]
        chunk = self._dropped
        if mask.kept != FALSE:
            slot = slot_of(mask.value) if isinstance(mask.value, Reg) else None
            loads = self._loads.get(slot) if slot is not None else None
            if not loads:
                return None
            chunk = self._chunks.setdefault(loads, Chunk())
        if not chunks <= {chunk} or not self._is_one_value(dst, k):
            return None
        chunk.conditions.append(mask.kept)
        return Masked(chunk, self._number(self._key(mask.instead)), instead=mask.instead)

    def _loads_of(self, k: int, s: Statement) -> frozenset[int]:
        """The loads from global memory that a statement's results come from."""
        if isinstance(s, Load) and s.src.memory is Memory.GLOBAL:
            return frozenset((k,))
        if not isinstance(s, Compute):
            return frozenset()
        slots = (slot_of(o) for o in s.operands if isinstance(o, Reg))
        none = frozenset[int]()
        return none.union(*(self._loads.get(x, none) for x in slots if x is not None))

    def _is_one_value(self, slot: Slot, k: int) -> bool:
        """Whether a statement alone writes a register, before anybody reads it."""
        return self._writes[slot] == [k] and all(r > k for r in self._reads.get(slot, ()))

    def _key(self, o: Operand) -> object:
        """What tells an operand from others where the lanes are dropped."""
        match o:
            case Imm():
                return "literal", repr(o.value), o.dtype.name
            case Arg():
                return o.argument
            case Index():
                return o.expr, o.dtype.name
            case Reg():
                slot = slot_of(o)
                assert slot is not None
                held = self._held.get(slot)
                return (slot, self._versions.get(slot)) if held is None else held.value

    def _number(self, key: object) -> int:
        return self._numbers.setdefault(key, len(self._numbers))

    def find_kept(self) -> None:
        """Find what only kept lanes of one chunk read."""
        own = {s.buffer for s in self._body if isinstance(s, Alloc)}
        for k in reversed(range(len(self._body))):
            s = self._body[k]
            slot = slot_of(s.dst) if isinstance(s, Compute) and k not in self.masked else None
            if slot is None or slot[0] not in own or not self._is_one_value(slot, k):
                continue
            readers = [self.masked.get(r) for r in self._reads.get(slot, ())]
            chunks = {
                r.chunk if r is not None and (r.for_kept or r.instead is not None) else None
                for r in readers
            }
            if len(chunks) == 1 and (chunk := chunks.pop()) is not None:
                self.masked[k] = Masked(chunk, for_kept=True)


def slot_of(r: Reg) -> Slot | None:
    """A register with a literal index; None for one that is found at run time."""
    index = constant_value(r.index)
    return None if index is None else (r.buffer, index)
