"""Reductions over blocks that take turns: schedules, sums, syncs, machine code, rejections."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest

import fusewright as fw
from fusewright.dtypes import dtype_of
from fusewright.kir.ir import SemaphoreAcquire, SemaphoreRelease
from fusewright.kir.traverse import walk_statements

ROWS, COLUMNS = 99, 512


def total(x):
    return fw.sum(x, axis=0)


def total_and_more(x):
    return fw.exp(fw.sum(x, axis=0) * 0.1) - 1


def largest(x):
    return fw.max(x, axis=0)


def column_schedule(
    fn: Callable[..., object], splits: int, *, width: int = 4, dtype: str = "float32"
) -> fw.Schedule:
    """Columns over threads and vectors, rows over `splits` blocks."""
    s = fw.Schedule(fw.trace(fn, fw.TensorSpec((ROWS, COLUMNS), dtype)))
    for t in s.tensors:
        if t.stage.is_input or t.stage.is_virtual:
            continue
        if t.stage.is_reduction:
            t.split(1, -(-ROWS // splits))
        t.split(0, width).split(0, 32)
        t.parallelize(0, fw.BIDx).parallelize(1, fw.TIDx).parallelize(2, fw.Vectorize)
        if t.stage.is_reduction:
            t.parallelize(3, fw.BIDy).reorder({3: 1, 4: 2})
            t.request_serial_grid_reduction()
    return s


def full_sum(splits: int) -> fw.Schedule:
    """All elements: by a block of threads each, then by blocks."""
    s = fw.Schedule(fw.trace(lambda x: fw.sum(x), fw.TensorSpec((splits * 640,), "float32")))
    t = s.outputs[0]
    t.split(0, 640).split(1, 64)
    t.parallelize(0, fw.BIDx)
    part = t.rfactor([1, 2])
    part.parallelize(2, fw.TIDx)
    s.transform_like(part).inline_most()
    t.request_serial_grid_reduction()
    return s


def checked(s: fw.Schedule, x: np.ndarray, *, seeds: int = 2) -> fw.Kernel:
    """The kernel, after oracle and simulator agree on the sum, each time on the same bits."""
    kernel = s.lower()
    (wanted,) = fw.evaluate(s, x)
    results = [kernel.simulate(x, seed=seed) for seed in range(seeds)]
    for r in results:
        assert r.races == []
        np.testing.assert_allclose(r.outputs[0], wanted, rtol=2e-5, atol=2e-5)
        assert r.outputs[0].tobytes() == results[0].outputs[0].tobytes()
    return kernel


@pytest.mark.parametrize("splits", [1, 2, 3, 5, 33])
@pytest.mark.parametrize("fn", [total, total_and_more, largest])
def test_column_reductions(fn: Callable[..., object], splits: int) -> None:
    x = np.random.default_rng(splits).standard_normal((ROWS, COLUMNS)).astype(np.float32)
    kernel = checked(column_schedule(fn, splits), x)
    turns = [s for s in walk_statements(kernel.ir) if isinstance(s, SemaphoreAcquire)]
    assert len(turns) == (splits > 1)


@pytest.mark.parametrize("splits", [2, 3, 33])
def test_full_sums(splits: int) -> None:
    x = np.random.default_rng(splits).standard_normal(splits * 640).astype(np.float32)
    kernel = checked(full_sum(splits), x)
    assert [b.name for b in kernel.ir.semaphores] == ["t0_turns"]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_short_floats_hand_on_float32(dtype: str) -> None:
    s = column_schedule(total, 3, dtype=dtype)
    x = np.random.default_rng(0).standard_normal((ROWS, COLUMNS))
    x = x.astype(dtype_of(dtype).numpy)
    kernel = s.lower()
    assert kernel.ir.scratch[0].dtype.name == "float32"
    result = kernel.simulate(x)
    assert result.races == []
    wanted = fw.evaluate(s, x)[0].astype(np.float64)
    np.testing.assert_allclose(result.outputs[0].astype(np.float64), wanted, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("make", [lambda: column_schedule(total_and_more, 3), lambda: full_sum(3)])
def test_no_sync_is_missing_or_redundant(make: Callable[[], fw.Schedule]) -> None:
    report = fw.verify(make().lower())
    assert report.ok, str(report)
    kinds = {s.kind for s in report.necessary}
    assert {"SemaphoreAcquire", "SemaphoreRelease"} <= kinds


def test_every_semaphore_is_reset_and_every_part_is_whole_vectors() -> None:
    kernel = column_schedule(total, 5).lower()
    (release,) = (s for s in walk_statements(kernel.ir) if isinstance(s, SemaphoreRelease))
    assert str(release.value) == "(by + 1)%5"
    assert release.size == 32 * 4
    text = str(kernel.ir)
    assert re.search(r"t\d+\[0\.\.4\] = load t0_work\[128\*bx \+ 4\*tx\]", text)
    assert "store t0_work[128*bx + 4*tx] = t0_acc[0..4]" in text


def test_machine_code_reads_semaphores_by_acquire() -> None:
    kernel = column_schedule(total, 5).lower()
    ptx = kernel.ptx()
    assert ptx.count("ld.acquire.gpu.global.u32") == 1
    assert ptx.count("st.release.gpu.global.u32") == 1
    assert "ld.global.nc" not in "".join(x for x in ptx.splitlines() if "t0_work" in x)
    assert kernel.resources().spill_stores == 0


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_targets_without_a_copy_engine_take_turns_too(arch: str) -> None:
    kernel = column_schedule(total, 3).lower(arch)
    assert len(kernel.cubin()) > 0


def test_threads_that_hold_copies_store_once() -> None:
    """Rows over y threads are added first; each of them then holds the block's part."""
    s = fw.Schedule(fw.trace(total, fw.TensorSpec((96, 64), "float32")))
    t = s.outputs[0]
    t.split(1, 32).split(2, 8).parallelize(0, fw.TIDx).parallelize(1, fw.BIDx)
    part = t.rfactor([2, 3])
    part.parallelize(3, fw.TIDy)
    s.transform_like(part).inline_most()
    t.request_serial_grid_reduction()
    x = np.random.default_rng(0).standard_normal((96, 64)).astype(np.float32)
    kernel = checked(s, x)
    assert "store t0_work[tx] = t0_acc[0] if (ty == 0)" in str(kernel.ir)
    assert fw.verify(kernel, x).ok


def test_symbolic_rows() -> None:
    spec = fw.TensorSpec(("n", 64), "float32")
    s = fw.Schedule(fw.trace(total, spec))
    t = s.outputs[0]
    t.split(1, 32).parallelize(0, fw.TIDx).parallelize(1, fw.BIDx)
    t.request_serial_grid_reduction()
    for n in (2, 31, 32, 200):
        x = np.random.default_rng(n).standard_normal((n, 64)).astype(np.float32)
        checked(s, x)


# --- rejections ----------------------------------------------------------------------------------


def plain(shape: tuple[int, ...] = (96, 64)) -> tuple[fw.Schedule, object]:
    s = fw.Schedule(fw.trace(total, fw.TensorSpec(shape, "float32")))
    return s, s.outputs[0]


def test_a_request_on_what_is_no_reduction() -> None:
    s = fw.Schedule(fw.trace(lambda x: fw.exp(x), fw.TensorSpec((64,), "float32")))
    with pytest.raises(fw.ScheduleError, match=r"\(t0, 'vector'\): it is no reduction"):
        s.outputs[0].request_serial_grid_reduction()


def test_an_unknown_mode() -> None:
    _, t = plain()
    with pytest.raises(fw.ScheduleError, match=r"no such mode; use one of 'vector'"):
        t.request_serial_grid_reduction(mode="carrier pigeon")
    with pytest.raises(fw.ScheduleError, match="name of a mode"):
        t.request_serial_grid_reduction(mode=3)


def test_a_request_that_is_bound_to_no_block() -> None:
    s, t = plain()
    t.parallelize(0, fw.BIDx)
    t.request_serial_grid_reduction()
    with pytest.raises(fw.ScheduleError, match="none of its reducing loops is bound to BIDx"):
        s.lower()


def test_a_request_with_threads_left_to_reduce() -> None:
    s, t = plain()
    t.split(1, 32).parallelize(1, fw.BIDx).parallelize(2, fw.TIDx)
    t.request_serial_grid_reduction()
    with pytest.raises(fw.ScheduleError, match=r"loop 2 reduces over TIDx as well; rfactor\(\[2\]"):
        s.lower()


def test_blocks_without_a_request() -> None:
    s, t = plain()
    t.split(1, 32).parallelize(1, fw.BIDx)
    with pytest.raises(fw.ScheduleError, match=r"request_serial_grid_reduction\(\) asks for"):
        s.lower()


def test_a_reader_in_all_blocks() -> None:
    s = fw.Schedule(fw.trace(lambda x: x - fw.sum(x, axis=0), fw.TensorSpec((96, 64), "float32")))
    for t in s.tensors:
        if t.stage.is_reduction:
            t.split(1, 32).parallelize(1, fw.BIDx).request_serial_grid_reduction()
    y = s.outputs[0]
    y.split(0, 32).parallelize(0, fw.BIDx)
    with pytest.raises(fw.ScheduleError, match="runs in all blocks along BIDx and needs"):
        s.lower()


def test_more_lanes_than_are_known() -> None:
    s = fw.Schedule(fw.trace(total, fw.TensorSpec((96, "m"), "float32")))
    t = s.outputs[0]
    t.split(1, 32).reorder({1: 0, 2: 1}).parallelize(0, fw.BIDx)
    t.request_serial_grid_reduction()
    with pytest.raises(fw.ScheduleError, match="must be constant"):
        s.lower()
