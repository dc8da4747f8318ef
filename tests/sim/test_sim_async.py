"""Asynchronous work and wider syncs: known verdicts, deletions, weakenings, flipped rules."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from async_suite import (
    SUITE,
    Case,
    arrays_of,
    assert_verdict,
    case_of,
    kernel_text,
    run,
    verdict,
    without,
)
from cluster_rules import CLUSTER_RULES, MULTICAST_RULES
from launch_rules import LAUNCH_RULES, PROGRAM_RULES
from semaphore_rules import SEMAPHORE_RULES
from sim_suite import SYNCHRONOUS_RULES

from fusewright.kir.text import parse_kernel
from fusewright.sim import verify
from fusewright.sim.machine import analyse
from fusewright.sim.model import MODEL, Model
from fusewright.sim.order import Change
from fusewright.sim.verify import first_race, syncs_of
from product_suite import PRODUCT_RULES

RIGHT = [c for c in SUITE if not c.wrong]


def named(name: str) -> Case:
    return next(c for c in SUITE if c.name == name)


@pytest.mark.parametrize("case", SUITE, ids=lambda c: c.name)
def test_verdict_spec_and_text(case: Case) -> None:
    assert_verdict(case)


@pytest.mark.parametrize("case", RIGHT, ids=lambda c: c.name)
def test_needed_syncs_are_found_by_replay(case: Case) -> None:
    kernel = case.kernel()
    report = verify.verify_kernel(kernel, case_of(kernel), blocks=None)
    assert not report.missing
    assert {s.id for s in report.necessary} == set(case.needed)
    assert {s.id for s in report.redundant} == {s.id for s in syncs_of(kernel)} - set(case.needed)


@pytest.mark.parametrize("case", RIGHT, ids=lambda c: c.name)
def test_a_deletion_shows_when_it_is_run_as_well(case: Case) -> None:
    for number in case.needed:
        assert verdict(case.kernel((number,))), f"{case.name} without {number}"


def test_values_are_those_of_the_algorithm() -> None:
    x = np.arange(4096, dtype=np.float32)
    expected = {
        "copy_ring": x[:384].reshape(6, 64)[:, ::-1].reshape(-1),
        "copy_double_buffer": x[:320].reshape(5, 64)[:, ::-1].reshape(-1),
        "copy_zero_fill": np.where(np.arange(256) < 200, x[:256], 0),
        "named": x[:128].reshape(4, 32)[:, ::-1].reshape(-1),
        "ring": x[:640],
        "store_ring": x[:320],
        "bulk_once": x[:64][::-1],
    }
    for name, y in expected.items():
        np.testing.assert_array_equal(run(named(name).kernel()).outputs[0][: len(y)], y, name)


@pytest.mark.parametrize("case", RIGHT, ids=lambda c: c.name)
def test_weaker_waits_are_reported(case: Case) -> None:
    kernel = case.kernel()
    for w in verify.weakenings_of(kernel, case_of(kernel), blocks=None):
        assert w.race is not None, f"{case.name}: {w.weaker}"


def test_moving_a_sync_over_what_it_orders_is_reported() -> None:
    kernel = named("ring").kernel()
    moves = verify.moves_of(kernel, case_of(kernel))
    broken = {(m.sync.id, m.direction) for m in moves if m.race is not None}
    assert {(4, "down"), (6, "up"), (5, "up"), (7, "down")} <= broken
    assert (6, "down") not in broken


def test_the_objects_of_a_ring() -> None:
    objects = verify.sync_objects(named("ring").kernel())
    assert [tuple(s.id for s in group) for group in objects] == [
        (0, 4, 8),
        (1, 6, 7),
        (2,),
        (3,),
        (5,),
    ]


def test_a_useless_barrier_goes_as_a_whole() -> None:
    """Without one of its statements it hangs; without both nothing is missed."""
    text = """
  roles {
    role warps 0..1 {
      barrier_arrive #0 barrier(3) nthreads(64)
    }
    role warps 1..2 {
      named_sync #1 barrier(3) nthreads(64)
    }
  }
"""
    kernel = parse_kernel(kernel_text(text))
    assert verdict(kernel) == frozenset()
    assert verdict(without(kernel, (0,))) == {"deadlock"}
    report = verify.verify_kernel(kernel, case_of(kernel))
    assert [s.id for s in report.redundant] == [0, 1]


ELSEWHERE = (
    *SYNCHRONOUS_RULES, *CLUSTER_RULES, *MULTICAST_RULES, *PRODUCT_RULES, *SEMAPHORE_RULES,
    *LAUNCH_RULES, *PROGRAM_RULES,
)  # fmt: skip
RULES = [f.name for f in dataclasses.fields(MODEL) if f.name not in ELSEWHERE]
FLIPPED = [dataclasses.replace(MODEL, **{f: not getattr(MODEL, f)}) for f in RULES]


@pytest.mark.parametrize("model", FLIPPED, ids=RULES)
def test_a_flipped_rule_changes_some_verdict(model: Model) -> None:
    assert any(_differs(c, model) for c in SUITE)


def _differs(case: Case, model: Model) -> bool:
    kernel = case.kernel()
    found = analyse(kernel, arrays_of(kernel), outputs=kernel.params[1:], model=model)
    if frozenset(r.kind for r in found.races()) != frozenset(case.wrong):
        return True
    by_id = {s.id: s for s in syncs_of(kernel)}
    changes = [Change(frozenset({by_id[n]})) for n in case.needed]
    return any(first_race([found], c) is None for c in changes)


# --- messages ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("wrong_bytes", "wait for ever at `mbar_wait #4 b[0] parity 0`"),
        ("load_not_waited_for", "nobody waits for `bulk_load s[0] = x[0] size 64 on b[0]"),
        ("copy_not_waited_for", "a thread may exit before `cp_async s[tx] = x[tx]` has read"),
        ("two_phases_at_once", "may fall into phase 0 instead of 1"),
        ("ring_of_a_loose_warp", "in warp 4 may look too late: phase 0 can be complete by then"),
        ("named_lacks_a_warp", "threads of block 0 wait for ever at `named_sync #0 barrier(1)"),
        ("fence_behind_the_barrier", "read after write of s[1] without an order"),
    ],
)
def test_what_is_wrong_is_said(name: str, message: str) -> None:
    assert any(message in str(r) for r in run(named(name).kernel()).races)


def test_more_arrivals_than_a_phase_takes() -> None:
    text = """
  shared b: uint64[1]
  mbar_init #0 b[0] count 40 by thread 0
  block_sync #1
  mbar_arrive #2 b[0]
"""
    (finding,) = {r.message for r in run(parse_kernel(kernel_text(text))).races if r.kind == "rule"}
    assert "makes more arrivals than a phase takes" in finding


def test_an_mbarrier_that_was_never_made() -> None:
    text = """
  shared b: uint64[1]
  mbar_arrive #0 b[0]
"""
    races = run(parse_kernel(kernel_text(text))).races
    assert any("is at a place that is no mbarrier" in r.message for r in races)
    assert any(r.kind == "uninitialised" for r in races)


def test_blocks_that_wait_apart_run_one_by_one() -> None:
    """Each block takes another number of turns; run side by side they would wait for each other."""
    text = """
  shared s: float32[32] align 16
  roles {
    role warps 0..1 {
      for (k < bx + 1) {
        r[0] = load x[128*bx + 32*k + tx]
        named_sync #0 barrier(2) nthreads(64)
        store s[tx] = r[0]
        barrier_arrive #1 barrier(1) nthreads(64)
      }
    }
    role warps 1..2 {
      for (j < bx + 1) {
        barrier_arrive #2 barrier(2) nthreads(64)
        named_sync #3 barrier(1) nthreads(64)
        r[0] = load s[63 - tx]
        store y[128*bx + 32*j + tx - 32] = r[0]
      }
    }
  }
"""
    found = run(parse_kernel(kernel_text(text, nblocks=3)))
    assert found.races == []
    assert found.outputs[0][256:288].tolist() == list(range(287, 255, -1))
