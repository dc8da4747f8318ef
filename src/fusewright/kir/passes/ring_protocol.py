"""A ring of tiles in shared memory that the copy engine fills and warps empty, as one object.

From its stages, bytes, producer and consumers follow the mbarriers, how many arrivals and bytes a
phase of each takes, and which phase the tile with a given number waits for:

    tile n lies in slot n % stages; its bytes complete phase n // stages of `full[slot]`;
    its consumers, one arrival a warp, complete phase n // stages of `empty[slot]`;
    tile n is copied once phase n // stages - 1 of `empty[slot]` is complete.

Where blocks of a cluster copy for each other, each of them writes into a slot of all: the consumers
of a slot are then the warps of all blocks, and each arrives at `empty[slot]` of every block.

Where two groups of warps consume runs of tiles in turn, each waits for its phases of `full` only
once the other has waited for all that come before:

    run r begins once phase (r + 1) // 2 - 1 of `turn[r % 2]` is complete;
    its warps complete phase r // 2 of `turn[(r + 1) % 2]` once they have all of its tiles.

A wait knows a phase by its parity alone: without turns a group that begins early would take the
other group's tile, two phases before its own, for the one that it waits for. Groups that use slots
of their own see each phase of them, and need none.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from fusewright.core.expr import Expr, Int, Var, add, floordiv, mod
from fusewright.dtypes import uint64
from fusewright.kir.ir import (
    Alloc,
    Buffer,
    For,
    MbarArrive,
    MbarExpect,
    MbarInit,
    MbarWait,
    Memory,
    Statement,
)

GROUPS = 2
"""Groups of warps that take turns: of more, all but one would wait for the one that multiplies."""


@dataclass(frozen=True, slots=True, eq=False)
class RingProtocol:
    """`stages` tiles of `nbytes` that thread `issuer` has copied. Where warps of their own copy,
    `consumers` is the number of warps of a block that hand a tile back; 0 where barriers of the
    block do. `blocks` of a cluster copy for each other; 1 where each copies for itself. `turn` is
    there where groups of as many warps take runs of tiles in turn."""

    name: str
    stages: int
    nbytes: int
    issuer: int
    consumers: int
    blocks: int
    full: Buffer
    empty: Buffer
    turn: Buffer | None = None

    def slot(self, number: Expr) -> Expr:
        """Where a tile lies."""
        return mod(number, self.stages)

    def phase(self, number: Expr) -> Expr:
        """The parity of the phase of its slot that belongs to a tile."""
        return mod(floordiv(number, self.stages), 2)

    def make(self, ids: Iterator[int]) -> list[Statement]:
        """The mbarriers, made before anything else."""
        stages = f"{self.stages} stages of {self.name}"
        kinds = [(self.full, 1, self.stages, stages)]
        if self.consumers:
            kinds.append((self.empty, self.consumers * self.blocks, self.stages, stages))
        if self.turn is not None:
            kinds.append((self.turn, self.consumers, GROUPS, f"turns at {self.name}"))
        out: list[Statement] = []
        for buffer, arrivals, slots, why in kinds:
            v = Var(f"m_{buffer}", 0, slots - 1)
            init = MbarInit(next(ids), why, buffer, v, arrivals, 0)
            out += [Alloc(buffer), For(v, Int(slots), (init,))]
        return out

    def acquire(self, number: Expr, ids: Iterator[int], *, refills: bool) -> list[Statement]:
        """What the issuer does before it has a tile copied: where consumers hand tiles back, and it
        `refills` places, wait for the one that lay there; announce its bytes."""
        slot = self.slot(number)
        out: list[Statement] = []
        if self.consumers and refills:
            before = mod(add(floordiv(number, self.stages), 1), 2)
            why = f"stage of {self.name} is free"
            out.append(MbarWait(next(ids), why, self.empty, slot, before, self.issuer))
        why = f"{self.nbytes} bytes of {self.name}"
        out.append(MbarExpect(next(ids), why, self.full, slot, self.nbytes, self.issuer))
        return out

    def ready(self, number: Expr, ids: Iterator[int]) -> Statement:
        """The wait for a tile before it is used."""
        why = f"tile of {self.name}"
        return MbarWait(next(ids), why, self.full, self.slot(number), self.phase(number))

    def release(self, number: Expr, ids: Iterator[int]) -> list[Statement]:
        """The arrivals that hand a tile back to all who copy to its place."""
        why, slot = f"stage of {self.name} is used", self.slot(number)
        ranks = map(Int, range(self.blocks)) if self.blocks > 1 else (None,)
        return [MbarArrive(next(ids), why, self.empty, slot, per_warp=True, rank=r) for r in ranks]

    def begin(self, run: Expr, ids: Iterator[int]) -> list[Statement]:
        """The wait before the first tile of a run, where groups take runs in turn."""
        if self.turn is None:
            return []
        slot, before = mod(run, GROUPS), mod(add(floordiv(add(run, 1), GROUPS), 1), 2)
        return [MbarWait(next(ids), f"turn at {self.name}", self.turn, slot, before)]

    def pass_on(self, run: Expr, ids: Iterator[int]) -> list[Statement]:
        """The arrivals behind the wait for the last tile of a run, as `begin`."""
        if self.turn is None:
            return []
        why, slot = f"next turn at {self.name}", mod(add(run, 1), GROUPS)
        return [MbarArrive(next(ids), why, self.turn, slot, per_warp=True)]


def ring_protocol(
    name: str,
    *,
    stages: int,
    nbytes: int,
    issuer: int,
    consumers: int,
    blocks: int,
    in_turn: bool = False,
) -> RingProtocol:
    """A protocol with mbarriers of its own."""

    def mbarriers(kind: str, slots: int) -> Buffer:
        return Buffer(f"{name}_{kind}", uint64, Int(slots), Memory.SHARED, uint64.nbytes)

    full, empty = (mbarriers(kind, stages) for kind in ("full", "empty"))
    turn = mbarriers("turn", GROUPS) if in_turn and consumers else None
    return RingProtocol(name, stages, nbytes, issuer, consumers, blocks, full, empty, turn)
