"""The rules of the machine model, as switches: tests flip each one and must notice."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Model:
    """The defaults are the model. Where the PTX text leaves room they are strict: a fence between
    proxies stands on the writer's side for shared memory, and a parity teaches no more than it
    guarantees."""

    write_then_read: bool = True
    """A read must come after the write it sees."""
    read_then_write: bool = True
    """A write must come after the reads of what it overwrites."""
    write_write: bool = True
    """Two writes of one place must be ordered, also within one statement."""
    block_sync_orders: bool = True
    """BlockSync orders the accesses of all threads of the block."""
    block_sync_stays_in_block: bool = True
    """BlockSync orders nothing between the blocks of a cluster."""
    cluster_barrier_orders: bool = True
    """A cluster barrier orders what came before the arrivals before what follows the waits."""
    blocks_begin_before_use: bool = True
    """A block writes another one's shared memory only when it knows that the other has begun."""
    blocks_outlive_use: bool = True
    """Some thread of a block knows of every write to its shared memory before it exits."""
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
    named_sync_orders: bool = True
    """A named barrier orders the accesses of those that arrive before those of those that wait."""
    arrivals_release: bool = True
    """An arrival at a barrier, named or in memory, hands on what its thread did and knows."""
    far_arrivals_free: bool = True
    """An arrival at the mbarrier of another block hands on that its thread has read what it read,
    not what it wrote: it releases to threads of its own block (PTX ISA, "mbarrier.arrive")."""
    arrivals_acquire: bool = False
    """An arrival teaches its thread what the others did. It does not."""
    phases_do_not_mix: bool = True
    """An arrival that may fall into an earlier phase or generation is a fault."""
    waits_do_not_miss: bool = True
    """A wait whose phase may be followed by another before it looks is a fault."""
    parity_is_all_a_wait_learns: bool = True
    """A wait knows the phases that the parity guarantees, not those that happen to be complete."""
    mbarrier_waits_acquire: bool = True
    """A wait on an mbarrier teaches what the arrivals of the phase handed on."""
    semaphores_release: bool = True
    """Who releases a semaphore hands on what its thread did and knows."""
    semaphores_acquire: bool = True
    """Who acquires a semaphore learns what the releases before handed on."""
    scopes_end_at_the_block: bool = True
    """What is released for the block is not known to other blocks."""
    blocks_wait_for_earlier_ones: bool = True
    """A block that waits for one with a larger number may wait for one that never starts."""
    semaphores_end_at_zero: bool = True
    """What a semaphore holds when the kernel ends, the next launch begins with."""
    copies_are_asynchronous: bool = True
    """A cp.async copy happens at any time until its group is waited for."""
    bulk_is_asynchronous: bool = True
    """A bulk copy happens at any time until its group is waited for, or its phase is."""
    remote_stores_are_asynchronous: bool = True
    """A store that an mbarrier counts happens at any time until its phase is waited for."""
    keep_is_counted: bool = True
    """A wait leaves the `keep` latest groups under way."""
    groups_belong_to_threads: bool = True
    """Who waits for groups learns about its own only; others learn through a sync."""
    reads_only_frees_sources: bool = True
    """A wait for reads only says nothing about the destination."""
    proxies_need_fences: bool = True
    """What threads wrote is invisible to bulk copies until a proxy fence."""
    fences_stand_at_writers: bool = True
    """A proxy fence covers what its own thread wrote in shared memory, not what it knows of."""
    proxies_end_at_the_block: bool = True
    """What bulk copies of one block wrote is invisible to those of another until a proxy fence
    behind the acquire: accesses by one proxy are of one kind in one block only (PTX ISA, "Memory
    Consistency Model", morally strong operations)."""
    mma_is_asynchronous: bool = True
    """A product reads its operands and writes its registers at any time until it is waited for."""
    mma_waits_stay_in_warp: bool = True
    """Who waits for products learns of those of its own warp, not of the whole warpgroup."""
    mma_needs_fence: bool = True
    """A product comes behind a fence for registers, and the registers it uses were touched before
    the last one."""
    registers_are_counted: bool = True
    """A warpgroup gets more registers only when others have given them back."""
    groups_end_before_exit: bool = True
    """A thread waits for its copies, and for the reads of its bulk copies, before it exits."""
    loads_are_awaited: bool = True
    """Some thread waits for each bulk load before the block exits."""
    lanes_meet_in_time: bool = True
    """Instructions for a whole warp order its lanes in time, though not in memory."""
    launches_overlap: bool = True
    """What launches before do to memory that a launch shares with them happens at any time until it
    waits for them."""
    launch_waits_order: bool = True
    """Who waits for the launches before learns that they have ended."""
    launches_end_in_order: bool = True
    """A launch that begins early waits in each block, so that it does not end before those before
    it: who waits for it relies on that."""
    triggers_order_nothing: bool = True
    """A launch that another one lets begin knows nothing of what that one did."""
    alloc_forgets: bool = True
    """An Alloc makes the contents of its memory undefined."""


MODEL = Model()
