"""Blocks that take turns: known verdicts, deletions, flipped rules, orders, and the spec."""

from __future__ import annotations

import dataclasses
import time

import numpy as np
import pytest
from async_suite import Case, arrays_of
from semaphore_rules import SEMAPHORE_RULES
from semaphore_suite import (
    ACQUIRE,
    ALL,
    ARRIVE,
    CLUSTERS,
    GO,
    RELEASE,
    SUITE,
    bulk_turn,
    gathering,
    turn,
)

from fusewright.errors import SpecError
from fusewright.kir import ir
from fusewright.kir.spec import check_kernel
from fusewright.kir.text import parse_kernel, print_kernel
from fusewright.sim import verify
from fusewright.sim.machine import Machine, SimResult, simulate
from fusewright.sim.model import MODEL, Model
from fusewright.target import target_of

RIGHT = [c for c in SUITE if not c.wrong]


def case_of(kernel: ir.Kernel) -> verify.Case:
    """Counting numbers, and semaphores at zero."""
    zero = {b: np.zeros(int(str(b.size)), np.uint32) for b in kernel.semaphores}
    return verify.Case(arrays_of(kernel) | zero, outputs=kernel.params[1:2])


def run(kernel: ir.Kernel, *, seed: int = 0, model: Model = MODEL) -> SimResult:
    case = case_of(kernel)
    return simulate(kernel, case.arrays, outputs=case.outputs, seed=seed, model=model)


def verdict(kernel: ir.Kernel, model: Model = MODEL) -> frozenset[str]:
    return frozenset(r.kind for r in run(kernel, model=model).races)


@pytest.mark.parametrize("case", SUITE, ids=lambda c: c.name)
def test_verdict_and_text(case: Case) -> None:
    kernel = case.kernel()
    assert verdict(kernel) == frozenset(case.wrong)
    assert print_kernel(parse_kernel(print_kernel(kernel))) == print_kernel(kernel)


@pytest.mark.parametrize("case", RIGHT, ids=lambda c: c.name)
def test_each_sync_is_needed_and_each_order_of_blocks_gives_the_sum(case: Case) -> None:
    kernel = case.kernel()
    report = verify.verify_kernel(kernel, case_of(kernel), blocks=None)
    assert not report.missing and not report.redundant
    assert sorted(s.id for s in report.necessary) == sorted(case.needed)
    wanted = np.arange(768, dtype=np.float32).reshape(4, 3, 64).sum(axis=1).ravel()
    for seed in range(4):
        result = run(kernel, seed=seed)
        assert result.races == []
        assert np.array_equal(result.outputs[0], wanted)


@pytest.mark.parametrize("case", RIGHT, ids=lambda c: c.name)
def test_scopes_that_end_at_the_block_are_reported(case: Case) -> None:
    kernel = case.kernel()
    found = verify.weakenings_of(kernel, case_of(kernel), blocks=None)
    assert {type(w.sync) for w in found} >= {ir.SemaphoreAcquire}
    assert [str(w.weaker) for w in found if w.race is None] == []


@pytest.mark.parametrize("rule", SEMAPHORE_RULES)
def test_a_flipped_rule_changes_some_verdict(rule: str) -> None:
    model = dataclasses.replace(MODEL, **{rule: not getattr(MODEL, rule)})

    def differs(case: Case) -> bool:
        if verdict(case.kernel(), model) != frozenset(case.wrong):
            return True
        return any(not verdict(case.kernel((n,)), model) for n in case.needed)

    assert any(map(differs, SUITE))


def test_blocks_that_share_a_semaphore_are_one_domain() -> None:
    kernel = parse_kernel(turn())
    machine = Machine(kernel, case_of(kernel).arrays, {}, {}, (), 0)
    assert machine.domains is not None
    assert machine.domains.tolist() == [[bx, bx + 4, bx + 8] for bx in range(4)]
    chosen = machine.chosen_rows([5])
    assert chosen.tolist() == [1]
    trace = machine.batch(chosen)
    assert trace.blocks.tolist() == [[1, 5, 9]]


def of_ten(text: str) -> ir.Kernel:
    """Blocks of ten threads, three of which run as one domain."""
    return parse_kernel(text.replace("192", "30").replace("64", "10"))


def test_blocks_of_less_than_a_warp_are_warps_apart() -> None:
    """The threads of a block meet at a sync of their warp, those of others in the same domain do
    not, and a sync of one's own warp orders nothing that another block does."""
    warps = {"ENTER": "warp_sync #1\n", "LEAVE": "warp_sync #2\n"}
    assert verdict(of_ten(turn(**warps))) == frozenset()
    for left_out in ("ACQUIRE", "ENTER", "LEAVE"):
        assert verdict(of_ten(turn(**{**warps, left_out: ""}))) == {"race"}


def test_lanes_of_another_block_are_not_read() -> None:
    part = "r[0] = load x[192*bx + 64*by + tx]\n"
    down = part + "r[0] = shuffle.down(r[0], 4)\n"
    kernel = of_ten(turn(PART=down))
    found = run(kernel)
    assert [r.message for r in found.races if "beyond the 10 threads of the block" in r.message]
    x = case_of(kernel).arrays[kernel.params[0]]
    rows = np.asarray(x, np.float64).reshape(4, 3, 10)
    np.testing.assert_allclose(found.outputs[0].reshape(4, 10)[:, :6], rows.sum(axis=1)[:, 4:])


def test_a_race_between_blocks_names_both() -> None:
    found = run(parse_kernel(turn(ACQUIRE=""))).races
    assert found[0].first is not None and found[0].second is not None
    assert {found[0].first.block, found[0].second.block} <= {0, 4, 8}
    assert found[0].first.block != found[0].second.block


def test_what_is_left_in_a_semaphore_is_told() -> None:
    found = run(parse_kernel(turn(RELEASE=RELEASE.replace("(by + 1) % 3", "by + 1")))).races
    assert "a semaphore holds 3 when the kernel ends" in found[0].message


def test_scratch_is_read_behind_a_write_only() -> None:
    found = run(parse_kernel(turn().replace("0 < by", "0 < by + 1"))).races
    assert {"uninitialised"} <= {r.kind for r in found}
    assert "w[0] was never written" in found[0].message


def test_two_tiles_of_three_splits_are_verified_in_time() -> None:
    kernel = parse_kernel(bulk_turn().replace("bx < 4", "bx < 2"))
    start = time.perf_counter()
    report = verify.verify_kernel(kernel, case_of(kernel), blocks=None)
    assert report.ok and time.perf_counter() - start < 3


SPEC = {
    "no release": (turn(RELEASE=""), "no release of the same semaphore follows it"),
    "no acquire": (turn(ACQUIRE=""), "no acquire before it in the same body"),
    "not in order": (
        turn(ACQUIRE=ACQUIRE.replace("value(by)", "value(2 - by)")),
        "wait for earlier blocks only",
    ),
    "not reset": (
        turn(RELEASE=RELEASE.replace("(by + 1) % 3", "by + 1")),
        r"its release sets by \+ 1; the next of the 3 blocks waits until",
    ),
    "one semaphore for all": (
        turn().replace("index(bx)", "index(0)").replace("first(64*bx)", "first(0)"),
        "does not number the groups of blocks",
    ),
    "parts that overlap": (
        turn().replace("first(64*bx)", "first(32*bx)"),
        "parts of two semaphores may overlap",
    ),
    "too few semaphores": (turn().replace("f: uint32[4]", "f: uint32[3]"), "4 groups need 4"),
    "for the block": (
        turn(ACQUIRE=ACQUIRE.replace("issuer(0)", "issuer(0) scope(block)")),
        "blocks need the scope gpu",
    ),
    "some blocks stay away": (
        turn(ACQUIRE="if (by < 2) {\n" + ACQUIRE, RELEASE=RELEASE + "}\n"),
        "leaves out some blocks of its group",
    ),
    "some threads stay away": (
        turn(ACQUIRE="if (tx < 32) {\n" + ACQUIRE, RELEASE=RELEASE + "}\n", ENTER="", LEAVE=""),
        "the statement names its thread; 'tx < 32' around it asks for threads again",
    ),
    "nobody is waited for": (gathering(ALL=""), "no acquire and leave of the same semaphore"),
    "nobody came": (gathering(ARRIVE=""), "no arrival before it in the same body"),
    "some are not waited for": (
        gathering(ALL=ALL.replace("value(3)", "value(2)")),
        "it waits for 2 of the 3 blocks of a group",
    ),
    "the counter does not wrap": (
        gathering(GO=GO.replace("period(6)", "period(8)")),
        "its counter is zero again behind 6 additions",
    ),
    "no neighbours": (
        gathering().replace("grid (by < 3, bx < 4)", "grid (bx < 4, by < 3)"),
        "the blocks that wait for each other, along by, are no neighbours in the grid",
    ),
    "parts that are not side by side": (
        gathering(ARRIVE=ARRIVE.replace("192*bx + 64*by", "192*bx + 32*by")),
        "its part begins at .*, not behind those of the blocks before it",
    ),
    "groups that overlap": (
        gathering().replace("first(192*bx) size(192)", "first(64*bx) size(192)"),
        "its part begins at|parts of two groups may overlap",
    ),
    "some blocks do not come": (
        gathering(ARRIVE="if (by < 2) {\n" + ARRIVE, SHARE="}\n"),
        "leaves out some blocks of its group",
    ),
    "a part for the block": (
        gathering(ARRIVE=ARRIVE.replace("issuer(0)", "issuer(0) scope(block)")),
        "blocks need the scope gpu",
    ),
    "another dtype": (turn().replace("f: uint32", "f: int32"), "a semaphore holds uint32"),
    "no semaphore of the kernel": (
        turn().replace("  semaphores (f)\n", ""),
        "is none of the kernel's semaphores",
    ),
    "touched by others": (
        turn(LAST="c[0] = load f[bx]\n"),
        "only statements of semaphores touch it",
    ),
    "no thread of the block": (
        turn(ACQUIRE=ACQUIRE.replace("issuer(0)", "issuer(64)")),
        "thread 64 issues it, but only threads 0 .. 63 come here",
    ),
}


@pytest.mark.parametrize("name", SPEC)
def test_turns_that_do_not_end_are_refused(name: str) -> None:
    text, message = SPEC[name]
    with pytest.raises(SpecError, match=message):
        check_kernel(parse_kernel(text), "lowered")


def test_right_turns_are_accepted() -> None:
    for case in RIGHT:
        check_kernel(case.kernel(), "lowered")


def test_more_blocks_than_run_at_once_do_not_gather() -> None:
    kernel = parse_kernel(gathering())
    small = dataclasses.replace(target_of("sm_90a"), multiprocessors=2)
    with pytest.raises(SpecError, match=r"3 blocks wait for each other, and .* run 2 at once"):
        check_kernel(kernel, "lowered", target=small)
    check_kernel(kernel, "lowered", target=target_of("sm_90a"))


def in_clusters(text: str) -> str:
    """The kernel in clusters of two blocks, each with a group, data and results of its own."""
    for old, new in (
        ("[4*3*64]", "[8*3*64]"), ("[4*64]", "[8*64]"), ("uint32[4]", "uint32[8]"),
        ("192*bx", "192*(2*bx + cx)"), ("64*bx", "64*(2*bx + cx)"),
        ("index(bx)", "index(2*bx + cx)"), ("  block (", "  cluster (cx < 2)\n  block ("),
    ):  # fmt: skip
        text = text.replace(old, new)
    return text


@pytest.mark.parametrize("text", [turn(), bulk_turn(), gathering()])
def test_blocks_of_clusters_hand_over(text: str) -> None:
    """Each to those of its rank: clusters run side by side, in any order."""
    kernel = parse_kernel(in_clusters(text))
    check_kernel(kernel, "lowered")
    report = verify.verify_kernel(kernel, case_of(kernel), blocks=None)
    assert not report.missing and not report.redundant
    wanted = np.arange(1536, dtype=np.float32).reshape(8, 3, 64).sum(axis=1).ravel()
    for seed in range(4):
        result = run(kernel, seed=seed)
        assert result.races == []
        assert np.array_equal(result.outputs[0], wanted)
    assert Machine(kernel, case_of(kernel).arrays, {}, {}, (), 0).nrows == 4


@pytest.mark.parametrize("text", [turn(), gathering()])
def test_blocks_of_a_cluster_do_not_share_a_group(text: str) -> None:
    both = text.replace("  block (", "  cluster (cx < 2)\n  block (")
    with pytest.raises(SpecError, match=r"does not number the groups of blocks .*\(bx, cx\)"):
        check_kernel(parse_kernel(both), "lowered")


def test_more_clusters_than_run_at_once_do_not_gather() -> None:
    kernel = parse_kernel(in_clusters(gathering()))
    small = dataclasses.replace(target_of("sm_90a"), multiprocessors=4)
    with pytest.raises(SpecError, match=r"3 clusters of 2 blocks wait for .* run 2 at once"):
        check_kernel(kernel, "lowered", target=small)


def test_a_cluster_meets_by_a_barrier_of_its_own() -> None:
    """Clusters of one domain: a remote store of one is ordered by its own barrier, not by what
    another one does."""
    kernel = parse_kernel(CLUSTERS)
    assert verdict(kernel) == frozenset()
    report = verify.verify_kernel(kernel, case_of(kernel), blocks=None)
    assert not report.missing and not report.redundant
    lost = parse_kernel(CLUSTERS.replace("  cluster_arrive #7\n  cluster_wait #8\n", ""))
    assert verdict(lost) == {"race", "rule"}
    wanted = np.arange(384, dtype=np.float32).reshape(3, 2, 64).sum(axis=(0, 1))
    assert np.array_equal(run(kernel, seed=3).outputs[0], wanted)
