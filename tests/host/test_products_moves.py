"""Syncs of products that wait for less, or stand one statement higher or lower: what that breaks is
found, and what is not found has a reason that holds for every kernel of the corpus."""

from __future__ import annotations

import pytest
from test_products_verify import CASES, Case

from fusewright.core.node import children, walk
from fusewright.kir import ir
from fusewright.sim.verify import moves_of, weakenings_of
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


@EACH
def test_a_wait_for_less_is_caught(case: Case) -> None:
    kernel = case.kernel()
    found = weakenings_of(kernel.ir, case_of(kernel, case.arrays()))
    assert len(found) >= 2
    assert [str(w.weaker) for w in found if w.race is None] == []


@EACH
def test_a_moved_sync_is_caught_or_was_free_to_move(case: Case) -> None:
    kernel = case.kernel()
    found = moves_of(kernel.ir, case_of(kernel, case.arrays()))
    silent: set[tuple[str, str, str, str]] = set()
    for m in found:
        over = beside(kernel.ir, m.sync, m.direction)
        kind = m.sync.kind.value if isinstance(m.sync, ir.AsyncCommit | ir.AsyncWait) else ""
        name = "" if over is None else type(over).__name__
        move = (type(m.sync).__name__, kind, m.direction, name)
        assert m.race is None or over is not None, move
        if m.race is None:
            silent.add(move)
    assert silent <= set(FREE)
    assert sum(m.race is not None for m in found) >= 12


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
