"""Syncs of products, and of sums whose blocks hand over, that wait for less, or stand one statement
higher or lower: what that breaks is found, and what is not found has a reason that holds for every
kernel of the corpus."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from test_products_verify import CASES, Case

sys.path.insert(0, str(Path(__file__).parents[1] / "schedule"))
sys.path.insert(0, str(Path(__file__).parents[1] / "kir"))

from test_rings import PRODUCTS as RINGS, TARGET, case_of as case_of_ring
from turn_cases import CASES as TURNS, Array, TurnCase

import fusewright as fw
from fusewright.core.node import children, walk
from fusewright.kir import ir
from fusewright.kir.pipeline import run_pipeline
from fusewright.kir.text import parse_kernel
from fusewright.sim.verify import Case as Run, moves_of, verify_kernel, weakenings_of
from fusewright.verify import case_of

NOTHING = "it stands first or last among its siblings: there is nothing to move it over"
ALLOCATION = "an allocation is no access"
OTHER_KIND = "waits for groups of different kinds share no state"
BLOCKS_APART = "mbarriers of different blocks: each arrival hands on to its own block"
FREE = {
    ("AsyncCommit", "bulk", "down", ""): NOTHING,
    ("AsyncCommit", "mma", "down", ""): NOTHING,
    ("AsyncWait", "bulk", "down", ""): NOTHING,
    ("AsyncWait", "mma", "up", ""): NOTHING,
    ("ClusterWait", "", "down", ""): NOTHING,
    ("MbarArrive", "", "down", ""): NOTHING,
    ("MbarArrive", "", "up", ""): NOTHING,
    ("MbarInit", "", "down", ""): NOTHING,
    ("MbarInit", "", "up", ""): NOTHING,
    ("MbarWait", "", "up", ""): NOTHING,
    ("AsyncWait", "mma", "down", "Alloc"): ALLOCATION,
    ("BlockSync", "", "down", "Alloc"): ALLOCATION,
    ("MbarArrive", "", "down", "Alloc"): ALLOCATION,
    ("MbarInit", "", "down", "Alloc"): ALLOCATION,
    ("MbarInit", "", "up", "Alloc"): ALLOCATION,
    ("NamedSync", "", "down", "Alloc"): ALLOCATION,
    ("ProxyFence", "", "up", "Alloc"): ALLOCATION,
    ("AsyncWait", "bulk", "up", "AsyncWait"): OTHER_KIND,
    ("AsyncWait", "mma", "down", "AsyncWait"): OTHER_KIND,
    ("AsyncWait", "bulk", "up", "MbarArrive"): "the arrival hands back operands, no result",
    ("MbarArrive", "", "down", "MbarArrive"): BLOCKS_APART,
    ("MbarArrive", "", "up", "MbarArrive"): BLOCKS_APART,
    ("MbarArrive", "", "down", "AsyncWait"): "later is safe: operands are free already",
    ("MbarArrive", "", "down", "Store"): "later is safe: operands are free already",
    ("MbarExpect", "", "down", "BoxLoad"): (
        "the phase stays open until the arrival that comes with the expected bytes; bytes may come "
        "before (PTX ISA, mbarrier: expect-tx and complete-tx)"
    ),
    ("MbarInit", "", "down", "ProxyFence"): "an mbarrier that no copy completes on needs no fence",
    ("ProxyFence", "", "up", "For"): "the loop makes mbarriers that no copy completes on",
    ("MbarWait", "", "down", "MmaFence"): "the fence orders registers, the wait memory",
    ("MmaFence", "", "up", "MbarWait"): "the fence orders registers, the wait memory",
}
"""Moves that break nothing: the sync, the kind of its groups, the direction, what it moves over."""

EARLIER = "a turn that is waited for earlier is the same turn"
LATER = "a turn may be passed on later"
REGISTERS = "a wait for products is for registers, the other for memory"
OWN_PART = "the fence is for the block's part in shared memory, which the turn does not guard"
OF_ONE_THREAD = "the thread that acquires fences and issues the reduction itself"
LEAVES = "who leaves hands nothing on"
IN_REGISTERS = "the statement computes in registers"
OPERANDS = "the arrival hands back operands, the turn is for results"
FREE_IN_TURNS = {
    ("MbarExpect", "", "up", ""): NOTHING,
    ("SemaphoreAcquire", "", "up", "For"): EARLIER,
    ("SemaphoreAcquire", "", "up", "If"): EARLIER,
    ("SemaphoreAcquire", "", "up", "Compute"): EARLIER,
    ("SemaphoreAcquire", "", "down", "AsyncWait"): REGISTERS,
    ("AsyncWait", "mma", "up", "SemaphoreAcquire"): REGISTERS,
    ("AsyncWait", "mma", "down", "NamedSync"): REGISTERS,
    ("NamedSync", "", "up", "AsyncWait"): REGISTERS,
    ("SemaphoreRelease", "", "down", "Alloc"): LATER,
    ("SemaphoreRelease", "", "down", "Compute"): LATER,
    ("SemaphoreAcquire", "", "down", "ProxyFence"): OWN_PART,
    ("ProxyFence", "", "up", "SemaphoreAcquire"): OWN_PART,
    ("NamedSync", "", "down", "ProxyFence"): OF_ONE_THREAD,
    ("WarpSync", "", "down", "ProxyFence"): OF_ONE_THREAD,
    ("ProxyFence", "", "up", "NamedSync"): OF_ONE_THREAD,
    ("ProxyFence", "", "up", "WarpSync"): OF_ONE_THREAD,
    ("BlockSync", "", "down", "ProxyFence"): OF_ONE_THREAD,
    ("ProxyFence", "", "up", "BlockSync"): OF_ONE_THREAD,
    ("ProxyFence", "", "up", "ProxyFence"): OF_ONE_THREAD,
    ("ProxyFence", "", "down", "ProxyFence"): OF_ONE_THREAD,
    ("SemaphoreAcquire", "", "up", "MbarArrive"): OPERANDS,
    ("MbarArrive", "", "down", "SemaphoreAcquire"): OPERANDS,
    ("WarpSync", "", "up", "Compute"): IN_REGISTERS,
    ("SemaphoreLeave", "", "down", "NamedSync"): LEAVES,
    ("SemaphoreLeave", "", "down", "BlockSync"): LEAVES,
    ("SemaphoreLeave", "", "down", "WarpSync"): LEAVES,
    ("NamedSync", "", "up", "SemaphoreLeave"): LEAVES,
    ("BlockSync", "", "up", "SemaphoreLeave"): LEAVES,
    ("WarpSync", "", "up", "SemaphoreLeave"): LEAVES,
}
"""The same in kernels whose blocks take turns or gather."""

EITHER_SIDE = (
    "a fence anywhere between the making of an mbarrier and its use orders the two, where blocks "
    "tell each other that it is made (PTX ISA, memory consistency model, causality order)"
)
BYTES_FIRST = "bytes may come before they are expected"
FREE_IN_CLUSTERS = {
    ("MbarExpect", "", "up", ""): NOTHING,
    ("ClusterArrive", "", "up", ""): NOTHING,
    ("ClusterArrive", "", "down", "Alloc"): ALLOCATION,
    ("ClusterWait", "", "up", "Alloc"): ALLOCATION,
    ("MbarExpect", "", "down", "Alloc"): ALLOCATION,
    ("ClusterArrive", "", "up", "Compute"): IN_REGISTERS,
    ("ClusterWait", "", "up", "Compute"): IN_REGISTERS,
    ("ClusterArrive", "", "down", "MbarExpect"): BYTES_FIRST,
    ("MbarExpect", "", "up", "ClusterArrive"): BYTES_FIRST,
    ("ClusterWait", "", "down", "ProxyFence"): EITHER_SIDE,
    ("ProxyFence", "", "up", "ClusterWait"): EITHER_SIDE,
    ("ProxyFence", "", "down", "BlockSync"): EITHER_SIDE,
    ("BlockSync", "", "up", "ProxyFence"): EITHER_SIDE,
}
"""The same where the blocks of a cluster finish shares of a sum."""

FIRST_COPIES = "the thread that makes the mbarriers issues the first copies, too"
GENERIC = "to expect bytes is no act of the copy engine, which the fence is for"
FREE_BY_HAND = {
    ("MbarExpect", "", "up", ""): NOTHING,
    ("AsyncWait", "mma", "up", "Alloc"): ALLOCATION,
    ("BlockSync", "", "up", "Alloc"): ALLOCATION,
    ("MbarExpect", "", "up", "Alloc"): ALLOCATION,
    ("MbarWait", "", "up", "Alloc"): ALLOCATION,
    ("BlockSync", "", "up", "Compute"): IN_REGISTERS,
    ("AsyncWait", "bulk", "up", "Compute"): IN_REGISTERS,
    ("BlockSync", "", "up", "For"): FIRST_COPIES,
    ("BlockSync", "", "up", "BoxLoad"): FIRST_COPIES,
    ("BlockSync", "", "down", "ProxyFence"): FIRST_COPIES,
    ("ProxyFence", "", "up", "BlockSync"): FIRST_COPIES,
    ("MbarExpect", "", "down", "ProxyFence"): GENERIC,
    ("ProxyFence", "", "up", "MbarExpect"): GENERIC,
}
"""The same in rings that are written by hand, also such that no role copies."""

QUICK = ("1 stages, all blocks", "3 stages, all blocks")
EACH = pytest.mark.parametrize(
    "case",
    [pytest.param(c, marks=() if str(c) in QUICK else pytest.mark.slow, id=str(c)) for c in CASES],
)


def beside(kernel: ir.Kernel, sync: ir.Statement, direction: str) -> ir.Statement | None:
    """The sibling above or below."""
    for n in walk(kernel):
        siblings = [c for c in children(n) if isinstance(c, ir.Statement)]
        if sync in siblings:
            at = siblings.index(sync) + (-1 if direction == "up" else 1)
            return siblings[at] if 0 <= at < len(siblings) else None
    raise AssertionError(f"{sync} is not in the kernel")


Move = tuple[str, str, str, str]


def moved(kernel: fw.Kernel, arrays: list[Array]) -> tuple[set[Move], int]:
    """The moves that nothing was said of, and how many were caught."""
    return moved_in(kernel.ir, case_of(kernel, arrays))


def moved_in(kernel: ir.Kernel, run: Run) -> tuple[set[Move], int]:
    found = moves_of(kernel, run)
    silent: set[Move] = set()
    for m in found:
        over = beside(kernel, m.sync, m.direction)
        kind = m.sync.kind.value if isinstance(m.sync, ir.AsyncCommit | ir.AsyncWait) else ""
        name = "" if over is None else type(over).__name__
        move = (type(m.sync).__name__, kind, m.direction, name)
        assert m.race is None or over is not None, move
        if m.race is None:
            silent.add(move)
    return silent, sum(m.race is not None for m in found)


@EACH
def test_a_wait_for_less_is_caught(case: Case) -> None:
    kernel = case.kernel()
    found = weakenings_of(kernel.ir, case_of(kernel, case.arrays()))
    assert len(found) >= 2
    assert [str(w.weaker) for w in found if w.race is None] == []


@EACH
def test_a_moved_sync_is_caught_or_was_free_to_move(case: Case) -> None:
    silent, caught = moved(case.kernel(), case.arrays())
    assert silent <= set(FREE)
    assert caught >= 12


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(c, marks=() if "more" not in str(c) else pytest.mark.slow, id=str(c))
        for c in TURNS
        if c.is_typical and "function" in str(c)
    ],
)
def test_a_moved_sync_of_a_turn_is_caught_or_was_free_to_move(case: TurnCase) -> None:
    kernel = case.make().lower("sm_90a")
    silent, caught = moved(kernel, case.arrays())
    free = FREE_IN_CLUSTERS if case.mode == "cluster" else FREE_IN_TURNS
    assert silent <= {*FREE, *free}
    assert caught >= 5


@pytest.mark.parametrize("name", RINGS)
def test_syncs_of_a_ring_by_hand_that_wait_for_less_or_are_moved(name: str) -> None:
    kernel = run_pipeline(parse_kernel(RINGS[name].text()), TARGET)
    run, _ = case_of_ring(RINGS[name], kernel)
    weaker = weakenings_of(kernel, run)
    assert len(weaker) >= 2
    assert [str(w.weaker) for w in weaker if w.race is None] == []
    silent, caught = moved_in(kernel, run)
    assert silent <= {*FREE, *FREE_BY_HAND}
    assert caught >= 7


def test_what_a_sync_does_in_memory_moves_with_it() -> None:
    """A wait before the barrier that tells of its mbarrier reads what may not be made yet: moved by
    a replay or written so, and as the barrier's move or as the wait's."""
    ring = RINGS["fewer tiles than stages, pipelined"]
    kernel = run_pipeline(parse_kernel(ring.text()), TARGET)
    run, _ = case_of_ring(ring, kernel)
    found = {(type(m.sync).__name__, m.direction): m for m in moves_of(kernel, run)}
    lines = str(kernel).splitlines()
    at = next(k for k, line in enumerate(lines) if "block_sync" in line)
    assert "mbar_wait" in lines[at + 1]
    lines[at : at + 2] = reversed(lines[at : at + 2])
    written = parse_kernel("\n".join(lines))
    (race,) = verify_kernel(written, case_of_ring(ring, written)[0], blocks=None).missing
    texts = {str(race).splitlines()[0]}
    for move in (("MbarWait", "up"), ("BlockSync", "down")):
        texts.add(str(found[move].race).splitlines()[0])
    assert len(texts) == 1 and "read after write of ring_full[0]" in texts.pop()


def test_a_barrier_moved_behind_the_roles_is_caught() -> None:
    """What all of a block made ready, no role may use before they met."""
    case = next(c for c in CASES if str(c) == "3 stages, all blocks")
    kernel = case.kernel()
    found = moves_of(kernel.ir, case_of(kernel, case.arrays()))
    (over,) = [
        m
        for m in found
        if m.direction == "down" and isinstance(beside(kernel.ir, m.sync, "down"), ir.Roles)
    ]
    assert isinstance(over.sync, ir.BlockSync)
    assert over.race is not None
