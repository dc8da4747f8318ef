"""Clusters in the simulator: known verdicts, deletions, moves, flipped rules, messages."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

import numpy as np
import pytest
from async_suite import Case, arrays_of, assert_verdict, case_of, kernel_text, run, verdict
from cluster_rules import CLUSTER_RULES

from fusewright.errors import UserError
from fusewright.kir.analysis.hazards import unordered
from fusewright.kir.analysis.unfinished import unfinished
from fusewright.kir.passes.place_syncs import place_syncs
from fusewright.kir.spec import check_kernel
from fusewright.kir.text import parse_kernel
from fusewright.sim import verify
from fusewright.sim.machine import analyse, simulate
from fusewright.sim.model import MODEL, Model
from fusewright.sim.order import Change
from fusewright.sim.verify import first_race, syncs_of
from fusewright.target import target_of


def text(body: str, *, cluster: int = 2, nthreads: int = 64, nclusters: int = 1) -> str:
    """A kernel of clusters with an element of `s` for each thread of a block."""
    shared = f"  shared s: float32[{nthreads}] align 16"
    return kernel_text(f"{shared}\n{body}", nthreads, nclusters, cluster=cluster)


BEGIN = """
  cluster_arrive #0 relaxed(true)
  r[0] = load x[64*cx + tx]
  cluster_wait #1
"""
MEET = """
  cluster_arrive #2
  cluster_wait #3
"""
READ = """
  r[1] = load s[tx]
  store y[64*cx + tx] = r[1]
"""
EXCHANGE = BEGIN + "remote_store s[tx] of block 1 - cx = r[0]" + MEET + READ
TO_ALL = (
    BEGIN
    + "remote_store s[cx] of block tx = r[0] if (tx < 4)"
    + MEET
    + "r[1] = load s[tx] if (tx < 4) else 0.0:float32\nstore y[256*bx + 64*cx + tx] = r[1]"
)
ONE_WAY = (
    BEGIN
    + "remote_store s[tx] of block 1 = r[0] if (cx == 0)"
    + MEET
    + "if (cx == 1) {"
    + READ
    + "}"
)
OWN = (
    BEGIN
    + """
  remote_store s[tx] of block cx = r[0]
  block_sync #4
  r[1] = load s[63 - tx]
  store y[64*cx + tx] = r[1]
"""
)
REUSE = (
    BEGIN
    + """
  for (i < 3) {
    remote_store s[tx] of block 1 - cx = r[0]
    cluster_arrive #2
    cluster_wait #3
    r[0] = load s[63 - tx]
    cluster_arrive #4
    cluster_wait #5
  }
  store y[64*cx + tx] = r[0]
"""
)
REUSE_TOO_EARLY = REUSE.replace("    cluster_arrive #4\n    cluster_wait #5\n", "")
NOT_READ = BEGIN + "remote_store s[tx] of block 1 - cx = r[0]" + MEET
EXITS = BEGIN + "remote_store s[tx] of block 1 - cx = r[0]"
BEGINS_LATE = "r[0] = load x[tx]\nremote_store s[tx] of block 1 - cx = r[0]" + MEET + READ
RELAXED = EXCHANGE.replace("arrive #2", "arrive #2 relaxed(true)")
BLOCK_SYNC_ONLY = BEGIN + "remote_store s[tx] of block 1 - cx = r[0]\nblock_sync #4" + READ + MEET
SAME_PLACE = BEGIN + "remote_store s[tx] of block 0 = r[0]" + MEET + READ
GLOBAL = """
  r[0] = load x[tx]
  store y[64*cx + tx] = r[0]
  cluster_arrive #2
  cluster_wait #3
  r[1] = load y[64 - 64*cx + tx]
  store x[64*cx + tx] = r[1]
"""
BETWEEN = EXCHANGE.replace("arrive #2", "arrive #2\n  r[2] = load s[tx]")

MAKE = """
  shared f: uint64[1] align 8
  mbar_init #0 f[0] count 1 by thread 0
  mbar_expect #1 f[0] nbytes 256 by thread 0
  cluster_arrive #2 relaxed(true)
  r[0] = load x[64*cx + tx]
  cluster_wait #3
"""
STORE = "remote_store s[tx] of block 1 - cx = r[0] on f"
AWAIT = "\nmbar_wait #4 f[0] parity 0"
COUNTED = MAKE + STORE + AWAIT + READ
COUNTED_TO_ALL = (
    MAKE.replace("nbytes 256", "nbytes 16")
    + "remote_store s[cx] of block tx = r[0] if (tx < 4) on f"
    + AWAIT
    + "r[1] = load s[tx] if (tx < 4) else 0.0:float32\nstore y[256*bx + 64*cx + tx] = r[1]"
)
EXPECTED_LATE = COUNTED.replace("  mbar_expect #1 f[0] nbytes 256 by thread 0\n", "").replace(
    STORE, f"{STORE}\nmbar_expect #1 f[0] nbytes 256 by thread 0"
)
NOT_AWAITED = MAKE + STORE + READ
TOO_MANY_BYTES = COUNTED.replace("nbytes 256", "nbytes 260")
TOO_FEW_BYTES = COUNTED.replace("nbytes 256", "nbytes 252")
MADE_LATE = COUNTED.replace("  mbar_init #0 f[0] count 1 by thread 0\n", "").replace(
    "cluster_wait #3\n", "cluster_wait #3\n  mbar_init #0 f[0] count 1 by thread 0\n"
).replace("  mbar_expect #1 f[0] nbytes 256 by thread 0\n", "").replace(
    STORE, f"mbar_expect #1 f[0] nbytes 256 by thread 0\n{STORE}"
)  # fmt: skip
READ_BEFORE = MAKE + STORE + "\nr[1] = load s[tx]" + AWAIT + "\nstore y[64*cx + tx] = r[1]"
WRITTEN_TOO = COUNTED.replace(AWAIT, "\nstore s[tx] = r[0]" + AWAIT)

SUITE = [
    Case("counted", text(COUNTED), needed=(0, 1, 2, 3, 4)),
    Case(
        "counted_to_all",
        text(COUNTED_TO_ALL, cluster=4, nclusters=3),
        needed=(0, 1, 2, 3, 4),
    ),
    Case("expected_late", text(EXPECTED_LATE), needed=(0, 1, 2, 3, 4)),
    Case("not_awaited", text(NOT_AWAITED), wrong=("race", "rule")),
    Case("too_many_bytes", text(TOO_MANY_BYTES), wrong=("deadlock",)),
    Case("too_few_bytes", text(TOO_FEW_BYTES), wrong=("deadlock",)),
    Case("made_late", text(MADE_LATE), wrong=("race", "rule", "deadlock")),
    Case("read_before", text(READ_BEFORE), wrong=("race",)),
    Case("written_too", text(WRITTEN_TOO), wrong=("race",)),
    Case("exchange", text(EXCHANGE), needed=(0, 1, 2, 3)),
    Case("to_all", text(TO_ALL, cluster=4, nclusters=3), needed=(0, 1, 2, 3)),
    Case("one_way", text(ONE_WAY), needed=(0, 1, 2, 3)),
    Case("own_block", text(OWN), needed=(4,), redundant=()),
    Case("reuse", text(REUSE), needed=(0, 1, 2, 3, 4, 5)),
    Case("reuse_too_early", text(REUSE_TOO_EARLY), wrong=("race",)),
    Case("not_read", text(NOT_READ), needed=(0, 1, 2, 3)),
    Case("exits", text(EXITS), wrong=("rule",)),
    Case("begins_late", text(BEGINS_LATE), wrong=("rule",)),
    Case("relaxed", text(RELAXED), wrong=("race", "rule")),
    Case("block_sync_only", text(BLOCK_SYNC_ONLY), wrong=("race",)),
    Case("same_place", text(SAME_PLACE), wrong=("race", "uninitialised")),
    Case("global", text(GLOBAL), needed=(2, 3)),
    Case("between", text(BETWEEN), wrong=("race",)),
]


@pytest.mark.parametrize("case", SUITE, ids=lambda c: c.name)
def test_verdict_spec_and_text(case: Case) -> None:
    assert_verdict(case)


@pytest.mark.parametrize(
    ("case", "drop"),
    [(c, n) for c in SUITE for n in c.needed],
    ids=lambda v: v.name if isinstance(v, Case) else str(v),
)
def test_a_needed_sync_left_out_is_found(case: Case, drop: int) -> None:
    kernel = case.kernel()
    by_id = {s.id: s for s in syncs_of(kernel)}
    found = analyse(kernel, arrays_of(kernel), outputs=kernel.params[1:])
    assert found.races() == []
    assert first_race([found], Change(frozenset({by_id[drop]}))) is not None


def _verdicts(model: Model) -> Iterable[object]:
    for case in SUITE:
        kernel = case.kernel()
        found = analyse(kernel, arrays_of(kernel), outputs=kernel.params[1:], model=model)
        yield frozenset(r.message for r in found.races())


@pytest.mark.parametrize("rule", CLUSTER_RULES)
def test_a_flipped_rule_changes_some_verdict(rule: str) -> None:
    model = dataclasses.replace(MODEL, **{rule: not getattr(MODEL, rule)})
    assert list(_verdicts(model)) != list(_verdicts(MODEL))


@pytest.mark.parametrize("name", ["exchange", "to_all", "one_way", "reuse", "not_read"])
def test_the_static_analysis_agrees(name: str) -> None:
    """What is right in the simulator has no open hazard; without its syncs they are placed anew,
    and the simulator needs each of those."""
    case = next(c for c in SUITE if c.name == name)
    assert not unordered(case.kernel())
    bare = case.kernel(drop=range(6))
    assert unordered(bare)
    placed = place_syncs(bare, target_of("sm_90a"))
    check_kernel(placed, "synced", target=target_of("sm_90a"))
    assert run(placed).races == []
    report = verify.verify_kernel(placed, case_of(placed))
    assert report.redundant == []
    assert len(report.necessary) == len(syncs_of(placed))


@pytest.mark.parametrize("name", ["counted", "counted_to_all"])
def test_the_static_analysis_agrees_on_mbarriers(name: str) -> None:
    """It is stricter on bytes that are announced when they may have come already."""
    case = next(c for c in SUITE if c.name == name)
    assert not unordered(case.kernel())
    assert not unfinished(case.kernel())
    assert unordered(case.kernel(drop=(2, 3)))
    assert unfinished(case.kernel(drop=(4,)))


@pytest.mark.parametrize(
    "name", ["not_awaited", "too_many_bytes", "too_few_bytes", "read_before", "written_too"]
)
def test_the_static_analysis_finds_what_is_not_complete(name: str) -> None:
    assert unfinished(next(c for c in SUITE if c.name == name).kernel())


@pytest.mark.parametrize(
    "name",
    [
        "exits", "begins_late", "relaxed", "block_sync_only", "between", "made_late",
    ],
)  # fmt: skip
def test_the_static_analysis_finds_what_is_missing(name: str) -> None:
    assert unordered(next(c for c in SUITE if c.name == name).kernel())


def test_values_go_to_the_block_that_is_named() -> None:
    kernel = parse_kernel(text(EXCHANGE, nclusters=2))
    arrays = arrays_of(kernel)
    simulate(kernel, arrays, outputs=kernel.params[1:])
    x, y = arrays.values()
    assert np.array_equal(y[:128], np.concatenate([x[64:128], x[:64]]))


def test_a_useless_barrier_goes_as_a_whole() -> None:
    kernel = parse_kernel(text(EXCHANGE + "cluster_arrive #4\ncluster_wait #5"))
    report = verify.verify_kernel(kernel, case_of(kernel))
    assert [s.id for s in report.redundant] == [4, 5]
    assert [s.id for s in report.necessary] == [0, 1, 2, 3]


def test_chosen_blocks_bring_their_clusters() -> None:
    kernel = parse_kernel(text(EXCHANGE, nclusters=4))
    arrays = arrays_of(kernel)
    stats = simulate(kernel, arrays, outputs=kernel.params[1:], blocks=[3, 5]).stats
    assert stats["blocks"] == 4
    with pytest.raises(UserError, match="block 8 is not in the grid of 8 blocks"):
        simulate(kernel, arrays_of(kernel), blocks=[8])


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (BEGINS_LATE, "may write the memory of a block of its cluster that has not begun"),
        (EXITS, "may write the memory of a block of its cluster that has exited"),
        (BEGIN + "remote_store s[tx] of block cx + 1 = r[0] if (tx < 1)" + MEET,
         "thread 0 of block 1 names block 2 of its cluster, which has 2"),
        (REUSE_TOO_EARLY, "write after read of s[32] without an order between thread 31 of block"),
        (BEGIN + "if (cx == 0) { cluster_arrive #2 } else { r[0] = load x[0] }",
         "only 64 of 128 threads of a cluster reach"),
        (BEGIN + "if (tx < 40) { block_sync #2 }", "only 40 of 64 threads of a block reach"),
        (BEGIN + "for (i < tx) { r[0] = load x[i] }", "between threads of block 0 (0 .. 63"),
        (BEGIN + "r[1] = load s[tx]", "s[0] was never written in block 0"),
        (BEGIN + "store y[tx] = r[0]\nremote_store s[tx] of block 1 - cx = r[0]" + MEET,
         "in one statement"),
    ],
)  # fmt: skip
def test_messages(body: str, message: str) -> None:
    races = run(parse_kernel(text(body))).races
    assert any(message in r.message for r in races), [r.message for r in races]


def test_trip_counts_may_differ_between_blocks() -> None:
    assert run(parse_kernel(text("for (i < cx + 1) { r[0] = load x[i] }"))).races == []


def test_a_wait_without_an_arrival_hangs() -> None:
    kernel = parse_kernel(text("cluster_wait #0"))
    assert verdict(kernel) == {"deadlock"}
