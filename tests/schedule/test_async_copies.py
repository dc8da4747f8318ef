"""cache_after(by=) and circular_buffer: copied asynchronously, synchronised by inference alone."""

from __future__ import annotations

import numpy as np
import pytest
from async_cases import CASES, DEPTHS, RAGGED, Case, dot, row_sum

import fusewright as fw
from fusewright.core.node import walk
from fusewright.kir import ir


def assert_agrees(case: Case, by: str, stages: int, prefetch: int | None) -> fw.Kernel:
    s = case.schedule(by, stages, prefetch)
    k = s.lower()
    arrays = case.arrays(np.random.default_rng(stages))
    result = k.simulate(*arrays)
    assert not result.races
    (expected,) = fw.evaluate(s, *arrays)
    np.testing.assert_allclose(result.outputs[0], expected, rtol=1e-5, atol=1e-5)
    report = fw.verify(k)
    assert not report.missing and not report.redundant, str(report)
    return k


def nodes(k: fw.Kernel, kind: type) -> list[ir.Statement]:
    return [n for n in walk(k.ir) if isinstance(n, kind)]


@pytest.mark.parametrize("depth", DEPTHS, ids=str)
@pytest.mark.parametrize("by", ["cp_async", "bulk"])
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_copies_are_right_and_no_sync_is_redundant(
    case: Case, by: str, depth: tuple[int, int | None]
) -> None:
    k = assert_agrees(case, by, *depth)
    kind = ir.CpAsync if by == "cp_async" else ir.BulkLoad
    assert nodes(k, kind)
    assert not any(n.dst.name == "x_c" for n in nodes(k, ir.Store))


@pytest.mark.parametrize("depth", DEPTHS, ids=str)
def test_ragged_rows_by_threads(depth: tuple[int, int | None]) -> None:
    assert_agrees(RAGGED, "cp_async", *depth)


@pytest.mark.parametrize("by", ["cp_async", "bulk"])
def test_they_compile(by: str) -> None:
    for case in (CASES[3], CASES[4], CASES[5]):
        k = case.schedule(by, 3, None).lower()
        assert k.cubin()
        assert k.params[0].access == "R"


def test_one_barrier_a_tile() -> None:
    """It hands a tile to its readers and the place of the last one to the next copy."""
    for by in ("cp_async", "bulk"):
        k = CASES[5].schedule(by, 3, None).lower()
        assert len(nodes(k, ir.BlockSync)) == 1


def test_a_ring_counts_the_groups_it_leaves() -> None:
    for stages, prefetch, keep in ((2, None, 0), (3, None, 1), (4, None, 2), (4, 2, 1)):
        k = row_sum(1024)("cp_async", stages, prefetch).lower()
        (wait,) = nodes(k, ir.AsyncWait)
        assert wait.keep == keep
        (ring,) = (b for b in k.smem if b.name == "x_c")
        assert ring.nbytes == stages * 512


def test_a_ring_of_bulk_copies_follows_its_phases() -> None:
    text = str(row_sum(1024)("bulk", 3, None).lower().ir)
    assert "mbar_wait" in text and "x_c_full[i0%3] parity (i0//3)%2" in text


def test_text_of_what_is_asked_for() -> None:
    text = """kernel k {
  param x: float32[64] align 16
  param y: float32[64] align 16
  grid (bx < 1)
  block (tx < 64)

  for (i < 2) {
    shared s: float32[32] align 16 copied bulk stages 3 ahead 2
  }
}
"""
    assert str(fw.parse_kernel(text)) == text


# --- what is refused ----------------------------------------------------------------------------


def _fusion() -> fw.Fusion:
    return fw.trace(lambda x: fw.exp(fw.name(x + 1.0, "h")), fw.TensorSpec((8, 64), "float32"))


def test_only_inputs_are_copied_asynchronously() -> None:
    with pytest.raises(fw.ScheduleError, match="h is computed here; use by=None"):
        fw.Schedule(_fusion())["h"].cache_after(by="cp_async")


@pytest.mark.parametrize("by", ["ldmatrix", "stmatrix"])
def test_what_is_not_there_yet(by: str) -> None:
    with pytest.raises(fw.ScheduleError, match="use one of None, 'cp_async', 'bulk'"):
        fw.Schedule(_fusion())["x"].cache_after(by=by)
    with pytest.raises(fw.ScheduleError, match="cp_async' is not available here; use one of None"):
        fw.Schedule(_fusion()).outputs[0].cache_before(by="cp_async")


@pytest.mark.parametrize(("stages", "prefetch"), [(1, None), (3, 3), (3, 0)])
def test_depths_that_make_no_ring(stages: int, prefetch: int | None) -> None:
    c = fw.Schedule(_fusion())["x"].cache_after(by="bulk")
    with pytest.raises(fw.ScheduleError, match="at least 2 stages"):
        c.circular_buffer(stages, prefetch)


@pytest.mark.parametrize(
    ("by", "stages"), [("cp_async", 1000), ("cp_async", 10**9), ("bulk", 10**6)]
)
def test_a_ring_that_no_block_has_room_for_is_refused_by_its_bytes(by: str, stages: int) -> None:
    """Before its copies are looked at, of which there may be as many."""
    s = fw.Schedule(fw.trace(lambda x: fw.sum(x, axis=1), fw.TensorSpec((64, 1 << 20), "float32")))
    t = s.outputs[0]
    t.split(1, 64).parallelize(0, fw.BIDx).parallelize(2, fw.TIDx)
    x = s.tensors[0].cache_after(by=by)
    s.transform_like(t)
    x.inline_at(t, 2).circular_buffer(stages)
    message = f"needs {4 * 64 * stages} bytes of shared memory.*fewer stages"
    with pytest.raises(fw.ScheduleError, match=message):
        s.lower("sm_90a")


def test_rings_want_asynchronous_copies() -> None:
    c = fw.Schedule(_fusion())["x"].cache_after()
    with pytest.raises(fw.ScheduleError, match=r"cache_after\(by='cp_async'\)"):
        c.circular_buffer(3)


def test_rings_of_one_loop_are_alike() -> None:
    s = dot("cp_async", 3, None)
    s["x_c"].circular_buffer(2)
    with pytest.raises(fw.ScheduleError, match="in rings of different depth"):
        s.lower()


def test_bulk_copies_move_whole_rows() -> None:
    with pytest.raises(fw.ScheduleError, match="which elements are copied depends on"):
        row_sum(500)("bulk", 1, None).lower()


def _row_of_510(by: str) -> fw.Schedule:
    """The last vector of four would copy two elements that do not exist."""
    s = fw.Schedule(fw.trace(lambda x: fw.sum(x, axis=1), fw.TensorSpec((1, 510), "float32")))
    c, o = s["x"].cache_after(by=by), s.outputs[0]
    o.parallelize(0, fw.BIDx)
    o.split(1, 128).split(2, 4).parallelize(2, fw.TIDx)
    s.transform_like(o)
    c.parallelize(-1, fw.Vectorize)
    c.inline_at(o, 2)
    return s


def test_bulk_copies_of_vectors_that_a_row_does_not_fill_are_refused() -> None:
    with pytest.raises(fw.ScheduleError, match="of 4 elements of x at once, of which the last"):
        _row_of_510("bulk").lower()


def test_cp_async_counts_what_a_row_has_of_a_vector() -> None:
    kernel = _row_of_510("cp_async").lower()
    copies = [s for s in walk(kernel.ir) if isinstance(s, ir.CpAsync)]
    assert any(s.stop is not None and s.zero_fill for s in copies)
    assert "max" in kernel.cuda or "min" in kernel.cuda
    x = np.random.default_rng(0).normal(size=(1, 510)).astype(np.float32)
    result = kernel.simulate(x)
    assert result.races == []
    assert np.allclose(result.outputs[0], x.sum(axis=1), rtol=1e-5)
    assert fw.parse_kernel(str(kernel.ir)) is not None
    kernel.cubin()


def test_cp_async_takes_words() -> None:
    s = fw.Schedule(_fusion16())
    c, o = s["x"].cache_after(by="cp_async"), s.outputs[0]
    o.parallelize(0, fw.BIDx).parallelize(1, fw.TIDx)
    s.transform_like(o)
    c.inline_at(o, 1)
    with pytest.raises(fw.ScheduleError, match="copied 2 bytes at once, cp_async takes 4, 8, 16"):
        s.lower()


def _fusion16() -> fw.Fusion:
    return fw.trace(lambda x: fw.exp(x), fw.TensorSpec((8, 64), "float16"))


def test_old_targets_have_no_bulk_copies() -> None:
    s = row_sum(512)("bulk", 1, None)
    with pytest.raises(fw.ScheduleError, match="copied by bulk, which sm_80 does not have"):
        s.lower(target="sm_80")
