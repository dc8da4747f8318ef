"""Asynchronous kernels through the pipeline: waits, fences and barriers are inferred and pruned."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from sync_kernels import kernel, syncs

sys.path.insert(0, str(Path(__file__).parents[1] / "sim"))

from async_suite import SUITE, Case, arrays_of, kernel_text

from fusewright.core.expr import Int
from fusewright.core.node import rewrite, walk
from fusewright.errors import UnsupportedError
from fusewright.kir.analysis.completion import completions
from fusewright.kir.analysis.fences import unfenced
from fusewright.kir.analysis.hazards import unordered
from fusewright.kir.analysis.unfinished import unfinished
from fusewright.kir.ir import (
    AsyncCommit,
    AsyncWait,
    BlockSync,
    Kernel,
    NamedSync,
    ProxyFence,
    Roles,
    WarpSync,
)
from fusewright.kir.passes.complete_async import complete_async
from fusewright.kir.passes.prune_syncs import faults
from fusewright.kir.pipeline import PipelineOptions, run_pipeline
from fusewright.kir.text import parse_kernel
from fusewright.sim.machine import simulate
from fusewright.sim.verify import Case as Witness, ReplayReport, verify_kernel
from fusewright.target import target_of

TARGET = target_of("sm_90a")
INFERRED = (BlockSync, WarpSync, AsyncCommit, AsyncWait, ProxyFence)
RIGHT = [c for c in SUITE if not c.wrong and c.name != "time_is_not_memory"]  # it stores nothing
ALONE = [c for c in SUITE if not any(isinstance(s, Roles) for s in c.kernel().body)]


def bare(k: Kernel) -> Kernel:
    """The kernel without the syncs that are inferred."""
    return rewrite(k, lambda n: () if isinstance(n, INFERRED) else n)


def alone(body: str, block: str = "tx < 64") -> Kernel:
    """A kernel of one block."""
    k = kernel(body, block)
    return replace(k, grid=tuple(replace(d, extent=Int(1)) for d in k.grid))


def final(k: Kernel) -> Kernel:
    return run_pipeline(k, TARGET, PipelineOptions(spec=3))


def replayed(k: Kernel) -> ReplayReport:
    return verify_kernel(k, Witness(arrays_of(k), outputs=k.params[1:]), blocks=None)


def outputs(k: Kernel) -> np.ndarray:
    arrays = arrays_of(k)
    simulate(k, arrays, check_races=False)
    return arrays[k.params[1]]


@pytest.mark.parametrize("case", RIGHT, ids=lambda c: c.name)
def test_a_synchronised_kernel_stays_right(case: Case) -> None:
    k = final(case.kernel())
    assert not replayed(k).missing
    assert np.array_equal(outputs(k), outputs(case.kernel()), equal_nan=True)


@pytest.mark.parametrize(
    "case", [c for c in ALONE if not c.wrong and "mbarrier" not in c.name], ids=lambda c: c.name
)
def test_syncs_are_inferred_and_none_is_redundant(case: Case) -> None:
    """No more than by hand; a prologue that commits once for all its tiles waits for all."""
    k = final(bare(case.kernel()))
    report = replayed(k)
    assert not report.missing and not report.redundant
    assert len(syncs(k)) <= len(syncs(case.kernel())) + (case.name == "copy_ring")
    assert np.array_equal(outputs(k), outputs(case.kernel()), equal_nan=True)


@pytest.mark.parametrize("case", [c for c in ALONE if c.wrong], ids=lambda c: c.name)
def test_what_is_wrong_is_seen_statically(case: Case) -> None:
    assert faults(case.kernel())


@pytest.mark.parametrize(
    "case", [c for c in ALONE if not c.wrong and "mbarrier" not in c.name], ids=lambda c: c.name
)
def test_what_is_right_has_no_faults_and_less_has_some(case: Case) -> None:
    assert not faults(case.kernel())
    for s in walk(case.kernel()):
        if isinstance(s, INFERRED):
            assert faults(case.kernel((s.id,))), s.id


WRONG_LOADS = {
    "never waited for": "",
    "waited for too late": "r[0] = load s[tx]\n mbar_wait #4 b[0] parity 0",
    "the wrong phase": "mbar_wait #4 b[0] parity 1\n r[0] = load s[tx]",
}


@pytest.mark.parametrize("name", WRONG_LOADS)
def test_a_bulk_load_needs_a_wait_in_time(name: str) -> None:
    k = parse_kernel(
        kernel_text(
            f"""shared s: float32[64] align 128
            shared b: uint64[1]
            mbar_init #0 b[0] count 1 by thread 0
            mbar_expect #3 b[0] nbytes 256 by thread 0
            bulk_load s[0] = x[0] size 64 on b[0] by thread 0
            {WRONG_LOADS[name]}
            """
        )
    )
    with pytest.raises(UnsupportedError, match="no wait on its mbarrier completes the copy to s"):
        complete_async(k, TARGET)


def test_a_loop_that_never_repeats_is_refused() -> None:
    k = kernel(
        """shared s: float32[128] align 16
        for (k < n) {
          cp_async s[(k // m + tx) % 128] = x[tx]
        }
        r[0] = load s[tx]
        store y[tx] = r[0]""",
        head="symbol n in [2, 1000000]\n symbol m in [2, 1000000]",
    )
    with pytest.raises(UnsupportedError, match="addresses do not repeat"):
        complete_async(k, TARGET)


def test_waits_count_the_groups_they_leave() -> None:
    """Two tiles, committed apart: the first is used while the second is under way."""
    k = final(
        alone(
            """shared a: float32[64] align 16
            shared b: float32[64] align 16
            cp_async a[tx] = x[tx]
            async_commit #0 kind(cp_async)
            cp_async b[tx] = x[64 + tx]
            async_commit #1 kind(cp_async)
            r[0] = load a[63 - tx]
            store y[tx] = r[0]
            r[0] = load b[63 - tx]
            store y[64 + tx] = r[0]"""
        )
    )
    assert [s.keep for s in syncs(k) if isinstance(s, AsyncWait)] == [1, 0]
    assert not replayed(k).redundant


def test_warps_of_a_role_meet_at_a_barrier_of_their_own() -> None:
    k = final(
        alone(
            """shared a: float32[64] align 16
            r[0] = load x[tx]
            roles {
              role warps 0..2 {
                store a[tx] = r[0]
                r[1] = load a[63 - tx]
                store y[tx] = r[1]
              }
              role warps 2..3 {
                store y[tx] = r[0]
              }
            }""",
            block="tx < 96",
        )
    )
    (sync,) = syncs(k)
    assert isinstance(sync, NamedSync) and (sync.barrier, sync.nthreads) == (1, 64)
    report = replayed(k)
    assert not report.missing and not report.redundant


def test_lanes_of_a_role_meet_warp_by_warp() -> None:
    k = final(
        alone(
            """shared a: float32[64] align 16
            r[0] = load x[tx]
            roles {
              role warps 0..2 {
                store a[tx] = r[0]
                r[1] = load a[tx ^ 1]
                store y[tx] = r[1]
              }
            }"""
        )
    )
    (sync,) = syncs(k)
    assert isinstance(sync, WarpSync)
    assert not replayed(k).missing


def test_a_barrier_of_some_warps_orders_only_those() -> None:
    body = """shared a: float32[96] align 16
        roles {
          role warps 0..2 {
            store a[tx] = r[0]
            named_sync #0 barrier(1) nthreads(64)
          }
        }
        r[1] = load a[(tx + 32) % 64]
        store y[tx] = r[1]"""
    k = kernel(body, block="tx < 96")
    assert unordered(k)
    assert [type(s) for s in syncs(final(k))] == [BlockSync]


def test_concurrent_roles_share_no_memory() -> None:
    k = final(
        alone(
            """shared a: float32[32] align 16
            shared b: float32[32] align 16
            roles {
              role warps 0..1 {
                store a[tx] = r[0]
                r[1] = load a[31 - tx]
                store y[tx] = r[1]
              }
              role warps 1..2 {
                store b[tx - 32] = r[0]
                r[1] = load b[63 - tx]
                store y[tx] = r[1]
              }
            }"""
        )
    )
    offsets = {a.buffer.name: a.offset for a in walk(k) if hasattr(a, "offset")}
    assert sorted((offsets["a"], offsets["b"])) == [0, 128]


def test_an_asynchronous_reader_keeps_its_source() -> None:
    """S1: the bulk store reads `a` until its wait, so `b` may not take its place before it."""
    body = """shared a: float32[64] align 128
        shared b: float32[64] align 128
        r[0] = load x[tx]
        store a[tx] = r[0]
        bulk_store y[0] = a[0] size 64 by thread 0
        {between}
        store b[tx] = r[0]
        r[2] = load b[63 - tx]
        store y[64 + tx] = r[2]
        {behind}"""
    commit = "async_commit #0 kind(bulk)\nasync_wait #1 kind(bulk) reads_only(true)\nblock_sync #9"
    early = final(alone(body.format(between=commit, behind="")))
    late = final(alone(body.format(between="", behind=commit.replace("block_sync #9", ""))))
    total = [max(a.offset or 0 for a in walk(k) if hasattr(a, "offset")) for k in (early, late)]
    assert total == [0, 256]
    for k in (early, late):
        assert not replayed(k).missing and not replayed(k).redundant


def test_an_asynchronous_writer_owns_its_target_before_the_wait() -> None:
    """What is copied to `a` arrives at any time before the wait: `b` is alive beside it."""
    k = final(
        alone(
            """shared a: float32[64] align 16
            shared b: float32[64] align 16
            cp_async a[tx] = x[tx]
            r[0] = load x[tx]
            store b[tx] = r[0]
            r[1] = load b[63 - tx]
            store y[tx] = r[1]
            r[2] = load a[63 - tx]
            store y[tx] = r[2]"""
        )
    )
    assert sorted(a.offset or 0 for a in walk(k) if hasattr(a, "offset"))[-1] == 256
    report = replayed(k)
    assert not report.missing and not report.redundant


def test_bytes_that_packing_shares_get_their_fence() -> None:
    """`a` is written by threads and read; a bulk load takes its place: fence before the sync."""
    k = final(
        alone(
            """shared m: uint64[1]
            mbar_init #0 m[0] count 1 by thread 0
            shared a: float32[64] align 128
            r[0] = load x[tx]
            store a[tx] = r[0]
            r[1] = load a[63 - tx]
            store y[tx] = r[1]
            block_sync #5
            shared b: float32[64] align 128
            mbar_expect #1 m[0] nbytes 256 by thread 0
            bulk_load b[0] = x[0] size 64 on m[0] by thread 0
            mbar_wait #2 m[0] parity 0
            r[2] = load b[63 - tx]
            store y[64 + tx] = r[2]"""
        )
    )
    offsets = {a.buffer.name: a.offset for a in walk(k) if hasattr(a, "offset")}
    assert offsets["a"] == offsets["b"]
    assert not unfenced(k) and not unfinished(k)
    report = replayed(k)
    assert not report.missing and not report.redundant


def test_synchronous_kernels_have_no_completions() -> None:
    k = kernel("store y[tx] = r[0]")
    assert not completions(k, (), {}).issued
    assert complete_async(k, TARGET) is k


def test_syncs_of_roles_are_pruned_like_all_others() -> None:
    """Of two barriers and two waits in a role, one each is left."""
    k = alone(
        """shared a: float32[64] align 16
        shared b: float32[64] align 16
        r[0] = load x[tx]
        roles {
          role warps 0..2 {
            cp_async b[tx] = x[tx]
            async_commit #0 kind(cp_async)
            async_wait #1 kind(cp_async)
            async_wait #2 kind(cp_async)
            store a[tx] = r[0]
            named_sync #3 barrier(1) nthreads(64)
            named_sync #4 barrier(1) nthreads(64)
            r[1] = load a[63 - tx]
            r[2] = load b[63 - tx]
            store y[tx] = r[1]
            store y[64 + tx] = r[2]
          }
        }"""
    )
    left = syncs(final(k))
    assert [type(s) for s in left] == [AsyncCommit, AsyncWait, NamedSync]
    report = replayed(final(k))
    assert not report.missing and not report.redundant
