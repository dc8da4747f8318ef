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
from fusewright.core.node import N, children, fields_of, rewrite, walk, with_fields
from fusewright.kir import ir
from fusewright.kir.pipeline import run_pipeline
from fusewright.kir.text import parse_kernel
from fusewright.sim.verify import Case as Run, moves_of, verify_kernel, weakenings_of
from fusewright.verify import case_of

Move = tuple[str, str, str, str]
NOTHING = "it stands first or last among its siblings: there is nothing to move it over"
ALLOCATION = "an allocation is no access"
OTHER_KIND = "waits for groups of different kinds share no state"
STAYS_OPEN = (
    "the phase stays open until the arrival that comes with the expected bytes; bytes may come "
    "before (PTX ISA, mbarrier: expect-tx and complete-tx)"
)
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
    ("ProxyFence", "shared", "up", "Alloc"): ALLOCATION,
    ("AsyncWait", "bulk", "up", "AsyncWait mma"): OTHER_KIND,
    ("AsyncWait", "mma", "down", "AsyncWait bulk"): OTHER_KIND,
    ("AsyncWait", "bulk", "up", "MbarArrive"): "the arrival hands back operands, no result",
    ("MbarArrive", "", "down", "MbarArrive"): BLOCKS_APART,
    ("MbarArrive", "", "up", "MbarArrive"): BLOCKS_APART,
    ("MbarArrive", "", "down", "AsyncWait bulk"): "later is safe: operands are free already",
    ("MbarArrive", "", "down", "Store"): "later is safe: operands are free already",
    ("MbarArrive", "", "down", "For"): "later is safe: operands are free already",
    ("MbarExpect", "", "down", "BoxLoad"): STAYS_OPEN,
    ("MbarInit", "", "down", "ProxyFence shared"): (
        "an mbarrier that no copy completes on needs no fence"
    ),
    ("ProxyFence", "shared", "up", "For"): "the loop makes mbarriers that no copy completes on",
    ("MbarWait", "", "down", "MmaFence"): "the fence orders registers, the wait memory",
    ("MmaFence", "", "up", "MbarWait"): "the fence orders registers, the wait memory",
}
"""Moves that break nothing: the sync, the kind of its groups or the space of a fence, the
direction, what it moves over, with its kind or space."""

EARLIER = "a turn that is waited for earlier is the same turn"
LATER = "a turn may be passed on later"
REGISTERS = "a wait for products is for registers, the other for memory"
OWN_PART = "the fence is for the block's part in shared memory, which the turn does not guard"
OF_ONE_THREAD = "the thread that acquires fences and issues the copies itself"
TWO_SPACES = "one fence is for the block's part in shared memory, the other for what it was left"
LEAVES = "who leaves hands nothing on"
IN_REGISTERS = "the statement computes in registers"
OPERANDS = "the arrival hands back operands, the turn is for results"
FREE_IN_TURNS = {
    ("MbarExpect", "", "up", ""): NOTHING,
    ("SemaphoreAcquire", "", "up", "For"): EARLIER,
    ("SemaphoreAcquire", "", "up", "If"): EARLIER,
    ("SemaphoreAcquire", "", "up", "Compute"): EARLIER,
    ("SemaphoreAcquire", "", "down", "AsyncWait mma"): REGISTERS,
    ("AsyncWait", "mma", "up", "SemaphoreAcquire"): REGISTERS,
    ("AsyncWait", "mma", "down", "NamedSync"): REGISTERS,
    ("NamedSync", "", "up", "AsyncWait mma"): REGISTERS,
    ("SemaphoreRelease", "", "down", "Alloc"): LATER,
    ("SemaphoreRelease", "", "down", "Compute"): LATER,
    ("SemaphoreAcquire", "", "down", "ProxyFence shared"): OWN_PART,
    ("ProxyFence", "shared", "up", "SemaphoreAcquire"): OWN_PART,
    ("NamedSync", "", "down", "ProxyFence global"): OF_ONE_THREAD,
    ("WarpSync", "", "down", "ProxyFence global"): OF_ONE_THREAD,
    ("ProxyFence", "global", "up", "NamedSync"): OF_ONE_THREAD,
    ("ProxyFence", "global", "up", "WarpSync"): OF_ONE_THREAD,
    ("BlockSync", "", "down", "ProxyFence shared"): OF_ONE_THREAD,
    ("ProxyFence", "shared", "up", "BlockSync"): OF_ONE_THREAD,
    ("ProxyFence", "global", "up", "ProxyFence shared"): TWO_SPACES,
    ("ProxyFence", "shared", "down", "ProxyFence global"): TWO_SPACES,
    ("MbarExpect", "", "down", "BulkLoad"): STAYS_OPEN,
    ("MbarWait", "", "down", "Alloc"): ALLOCATION,
    ("SemaphoreAcquire", "", "up", "MbarArrive"): OPERANDS,
    ("MbarArrive", "", "down", "SemaphoreAcquire"): OPERANDS,
    ("WarpSync", "", "up", "Compute"): IN_REGISTERS,
}
"""The same in kernels whose blocks take turns."""

FREE_IN_GATHERINGS = {
    ("MbarExpect", "", "up", ""): NOTHING,
    ("SemaphoreLeave", "", "down", "NamedSync"): LEAVES,
    ("SemaphoreLeave", "", "down", "BlockSync"): LEAVES,
    ("SemaphoreLeave", "", "down", "WarpSync"): LEAVES,
    ("NamedSync", "", "up", "SemaphoreLeave"): LEAVES,
    ("BlockSync", "", "up", "SemaphoreLeave"): LEAVES,
    ("WarpSync", "", "up", "SemaphoreLeave"): LEAVES,
}
"""The same in kernels whose blocks gather."""

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
    ("ClusterWait", "", "down", "ProxyFence shared"): EITHER_SIDE,
    ("ProxyFence", "shared", "up", "ClusterWait"): EITHER_SIDE,
    ("ProxyFence", "shared", "down", "BlockSync"): EITHER_SIDE,
    ("BlockSync", "", "up", "ProxyFence shared"): EITHER_SIDE,
}
"""The same where the blocks of a cluster finish shares of a sum."""

FREE_BY_MODE: dict[str, set[Move]] = {
    "vector": {*FREE, *FREE_IN_TURNS},
    "tma": {*FREE, *FREE_IN_TURNS},
    "tma+bulk": {*FREE, *FREE_IN_TURNS},
    "slices": {*FREE, *FREE_IN_GATHERINGS},
    "arrival": {*FREE, *FREE_IN_GATHERINGS},
    "cluster": {*FREE, *FREE_IN_CLUSTERS},
    "clusters": {*FREE, *FREE_IN_CLUSTERS, *FREE_IN_GATHERINGS},
}
CAUGHT = {"tma+bulk": 9, "arrival": 14, "clusters": 13}
"""How many moves are caught at least; of other modes 5."""

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
    ("BlockSync", "", "down", "ProxyFence shared"): FIRST_COPIES,
    ("ProxyFence", "shared", "up", "BlockSync"): FIRST_COPIES,
    ("MbarExpect", "", "down", "ProxyFence shared"): GENERIC,
    ("ProxyFence", "shared", "up", "MbarExpect"): GENERIC,
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


def name_of(s: ir.Statement) -> tuple[str, str]:
    """Its class, and the kind of its groups or the space of a fence."""
    match s:
        case ir.AsyncCommit() | ir.AsyncWait():
            return type(s).__name__, s.kind.value
        case ir.ProxyFence():
            return type(s).__name__, s.space.value
        case _:
            return type(s).__name__, ""


def moved(kernel: fw.Kernel, arrays: list[Array]) -> tuple[set[Move], int]:
    """The moves that nothing was said of, and how many were caught."""
    return moved_in(kernel.ir, case_of(kernel, arrays))


def moved_in(kernel: ir.Kernel, run: Run) -> tuple[set[Move], int]:
    found = moves_of(kernel, run)
    silent: set[Move] = set()
    for m in found:
        over = beside(kernel, m.sync, m.direction)
        name, kind = name_of(m.sync)
        move = (name, kind, m.direction, "" if over is None else " ".join(name_of(over)).strip())
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
    silent, caught = moved(case.lower(), case.arrays())
    assert silent <= FREE_BY_MODE[case.mode]
    assert caught >= CAUGHT.get(case.mode, 5)


def written(kernel: ir.Kernel, sync: ir.Statement, direction: str) -> ir.Kernel | None:
    """The kernel with the sync and its neighbour exchanged; None where there is none, or where it
    is an allocation, which makes undefined what was in its memory before."""
    if isinstance(beside(kernel, sync, direction), ir.Alloc | None):
        return None

    def exchanged(n: N) -> N:
        for field in fields_of(type(n)):
            body = getattr(n, field)
            if isinstance(body, tuple) and sync in body:
                at = body.index(sync) - (direction == "up")
                swapped = (*body[:at], body[at + 1], body[at], *body[at + 2 :])
                return with_fields(n, {field: swapped})
        return n

    return exchanged(rewrite(kernel, exchanged))


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(
            c, marks=pytest.mark.slow if {"product", "more"} & {*str(c).split()} else (), id=str(c)
        )
        for c in TURNS
        if c.is_typical and "function" in str(c) and ("sum" in str(c) or "more" not in str(c))
    ],
)
def test_a_sync_that_is_written_where_a_replay_moved_it_is_judged_alike(case: TurnCase) -> None:
    """The written kernel runs anew, and each sync does at its new place what it does in memory: a
    move that broke nothing leaves every conflict in order, one that was caught does not."""
    kernel, count = case.lower(), 0
    for m in moves_of(kernel.ir, case_of(kernel, case.arrays())):
        other = written(kernel.ir, m.sync, m.direction)
        if other is None:
            continue
        found = verify_kernel(other, case_of(kernel, case.arrays())).missing
        assert bool(found) == (m.race is not None), f"{m.sync} {m.direction}: {m.race}, {found}"
        count += 1
    assert count >= 5


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
