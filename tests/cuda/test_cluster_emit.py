"""Clusters as CUDA: dimensions, remote stores, barriers; every sync reaches the PTX."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "sim"))

from async_suite import Case, packed
from multicast_suite import SUITE as MULTICAST
from test_sim_cluster import SUITE

from fusewright.core.node import walk
from fusewright.cuda.compile import compile_cubin
from fusewright.cuda.emit import emit, sync_ids_in_ptx
from fusewright.errors import SpecError, UnsupportedError
from fusewright.kir import ir
from fusewright.kir.text import parse_kernel
from fusewright.runtime.launch import launch_of
from fusewright.target import target_of

HOPPER = target_of("sm_90a")


@pytest.mark.parametrize("case", [c for c in SUITE if not c.wrong], ids=lambda c: c.name)
def test_every_sync_reaches_the_ptx(case: Case) -> None:
    kernel = packed(case.kernel())
    ptx = compile_cubin(emit(kernel, HOPPER), HOPPER, name="k").ptx
    assert sync_ids_in_ptx(ptx) == {n.id for n in walk(kernel) if isinstance(n, ir.SyncStatement)}
    assert f".reqnctapercluster {kernel.cluster_size}, 1, 1" in ptx


TEXT = """kernel k {
  param y: DTYPE[4096] align 16
  grid (bx < 5, by < 3)
  block (tx < 64)
  cluster (cx < 4)
  local r: DTYPE[1]
  shared s: DTYPE[64] align 16 offset 0
  r[0] = load y[64*cx + tx]
  cluster_arrive #0 relaxed(true)
  cluster_wait #1
  remote_store s[tx] of block (cx + 1) % 4 = r[0] if (tx < 60)
  cluster_arrive #2
  cluster_wait #3
  r[0] = load s[tx]
  store y[256*bx + 64*cx + tx] = r[0]
}
"""


def test_text() -> None:
    text = emit(parse_kernel(TEXT.replace("DTYPE", "float32")), HOPPER)
    assert "__global__ void __cluster_dims__(4, 1, 1) __launch_bounds__(64)" in text
    assert "const int bx = blockIdx.x / 4u;" in text
    assert "const int cx = blockIdx.x % 4u;" in text
    assert "barrier.cluster.arrive.relaxed.aligned; // fw-sync 0" in text
    assert "barrier.cluster.arrive.release.aligned; // fw-sync 2" in text
    assert "barrier.cluster.wait.acquire.aligned; // fw-sync 3" in text
    assert "mapa.shared::cluster.u32 at, %0, %1;" in text
    assert '"r"(__float_as_uint(r))' in text


@pytest.mark.parametrize(
    "dtype", ["bool", "int8", "uint8", "float8_e4m3", "int16", "float16", "bfloat16", "int32",
              "uint32", "int64", "uint64", "float64"],
)  # fmt: skip
def test_elements_of_every_size(dtype: str) -> None:
    kernel = parse_kernel(TEXT.replace("DTYPE", dtype))
    assert compile_cubin(emit(kernel, HOPPER), HOPPER, name="k").cubin


def test_the_grid_counts_blocks() -> None:
    kernel = parse_kernel(TEXT.replace("DTYPE", "float32"))
    launch = launch_of(kernel, {})
    assert launch.grid == (20, 3, 1)
    assert launch.block == (64, 1, 1)


def test_old_targets_refuse() -> None:
    kernel = parse_kernel(TEXT.replace("DTYPE", "float32"))
    with pytest.raises(UnsupportedError, match=r"ClusterArrive needs compute capability 9\.0"):
        emit(kernel, target_of("sm_89"))


def test_remote_stores_keep_the_dtype() -> None:
    text = TEXT.replace("DTYPE", "float32").replace(
        "= r[0] if (tx < 60)", "= h[0]\n  local q: float32[1]"
    )
    kernel = parse_kernel(text.replace("  local r:", "  local h: float16[1]\n  local r:"))
    with pytest.raises(SpecError, match="a remote store writes elements of s in shared memory"):
        emit(kernel, HOPPER)


# --- what blocks bring each other -----------------------------------------------------------------


@pytest.mark.parametrize("case", [c for c in MULTICAST if not c.wrong], ids=lambda c: c.name)
def test_every_sync_of_a_ring_reaches_the_ptx(case: Case) -> None:
    kernel = packed(case.kernel())
    compiled = compile_cubin(emit(kernel, HOPPER), HOPPER, name="k")
    ids = {n.id for n in walk(kernel) if isinstance(n, ir.SyncStatement)}
    assert sync_ids_in_ptx(compiled.ptx) == ids
    assert "0 bytes spill stores" in compiled.log


def test_text_of_a_ring_of_a_cluster() -> None:
    text = emit(packed(MULTICAST[0].kernel()), HOPPER)
    load = next(line for line in text.splitlines() if "multicast" in line)
    assert "mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%3, %4}], [%2], %5;" in load
    assert '"h"((unsigned short)0x3)' in load
    arrivals = [line for line in text.splitlines() if "mbarrier.arrive.shared::cluster" in line]
    assert [line.split('"r"')[-1].split(" :")[0] for line in arrivals] == [
        "((unsigned)(0))",
        "((unsigned)(1))",
    ]
    assert text.count("mapa.shared::cluster.u32 at, %0, %1;") == 2


def test_what_an_arrival_frees_costs_no_fence() -> None:
    """Neither flushes nor invalidated caches stand in the loops: both take hundreds of clocks."""
    text = emit(packed(MULTICAST[0].kernel()), HOPPER)
    assert ".release.cluster.shared" not in text
    assert ".acquire.cluster.shared" not in text


def test_lanes_of_roles_come_to_a_barrier_of_the_cluster_one_by_one() -> None:
    text = emit(packed(MULTICAST[0].kernel()), HOPPER)
    assert "barrier.cluster.arrive.release; // fw-sync 11" in text
    assert "barrier.cluster.wait.acquire; // fw-sync 12" in text
