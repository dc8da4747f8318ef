"""The rules of the machine model, as switches: tests flip each one and must notice."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Model:
    """The defaults are the model. They leave no room where the PTX text is silent, because
    BlockSync and WarpSync are fully specified."""

    write_then_read: bool = True
    """A read must come after the write it sees."""
    read_then_write: bool = True
    """A write must come after the reads of what it overwrites."""
    write_write: bool = True
    """Two writes of one place must be ordered, also within one statement."""
    block_sync_orders: bool = True
    """BlockSync orders the accesses of all threads of the block."""
    warp_sync_orders: bool = True
    """WarpSync orders the accesses of the lanes of a warp."""
    warp_sync_stays_in_warp: bool = True
    """WarpSync orders nothing between warps."""
    only_participants_learn: bool = True
    """A sync teaches nothing to threads that do not take part."""
    warps_are_lockstep: bool = False
    """Lanes of one warp are ordered without a sync. They are not."""
    blocks_are_unordered: bool = True
    """Two blocks that touch one place of global memory race."""
    alloc_forgets: bool = True
    """An Alloc makes the contents of its memory undefined."""


MODEL = Model()
