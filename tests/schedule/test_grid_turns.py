"""Reductions over blocks that take turns: schedules, sums, syncs, machine code, rejections."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest

import fusewright as fw
from fusewright.dtypes import dtype_of
from fusewright.kir.ir import AsyncWait, BulkReduce, ProxyFence, SemaphoreAcquire, SemaphoreRelease
from fusewright.kir.traverse import walk_statements
from fusewright.sim.verify import Case, weakenings_of

ROWS, COLUMNS = 99, 256


def total(x):
    return fw.sum(x, axis=0)


def total_and_more(x):
    return fw.exp(fw.sum(x, axis=0) * 0.1) - 1


def largest(x):
    return fw.max(x, axis=0)


def column_schedule(
    fn: Callable[..., object],
    splits: int,
    *,
    width: int = 4,
    dtype: str = "float32",
    mode: str = "vector",
) -> fw.Schedule:
    """Columns over threads and vectors, rows over `splits` blocks."""
    s = fw.Schedule(fw.trace(fn, fw.TensorSpec((ROWS, COLUMNS), dtype)))
    for t in s.tensors:
        if t.stage.is_input or t.stage.is_virtual:
            continue
        if t.stage.is_reduction:
            t.split(1, -(-ROWS // splits))
        t.split(0, width).split(0, 32)
        kept, reduced = (fw.BIDy, fw.BIDx) if mode == "slices" else (fw.BIDx, fw.BIDy)
        t.parallelize(0, kept).parallelize(1, fw.TIDx).parallelize(2, fw.Vectorize)
        if t.stage.is_reduction:
            t.parallelize(3, reduced).reorder({3: 1, 4: 2})
            t.request_serial_grid_reduction(mode)
    return s


def full_sum(splits: int, mode: str = "vector") -> fw.Schedule:
    """All elements: by a block of threads each, then by blocks."""
    s = fw.Schedule(fw.trace(lambda x: fw.sum(x), fw.TensorSpec((splits * 640,), "float32")))
    t = s.outputs[0]
    t.split(0, 640).split(1, 64)
    t.parallelize(0, fw.BIDx)
    part = t.rfactor([1, 2])
    part.parallelize(2, fw.TIDx)
    s.transform_like(part).inline_most()
    t.request_serial_grid_reduction(mode)
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


WAYS = [("vector", total), ("vector", total_and_more), ("vector", largest)]
WAYS += [("tma", total), ("tma", total_and_more)]
WAYS += [("slices", total), ("slices", total_and_more), ("slices", largest)]


@pytest.mark.parametrize("splits", [1, 2, 3, 5, 33])
@pytest.mark.parametrize(("mode", "fn"), WAYS)
def test_column_reductions(mode: str, fn: Callable[..., object], splits: int) -> None:
    x = np.random.default_rng(splits).standard_normal((ROWS, COLUMNS)).astype(np.float32)
    kernel = checked(column_schedule(fn, splits, mode=mode), x)
    waits = [s for s in walk_statements(kernel.ir) if isinstance(s, SemaphoreAcquire)]
    assert len(waits) == (splits > 1)


@pytest.mark.parametrize("splits", [2, 3, 33])
@pytest.mark.parametrize("mode", ["vector", "slices"])
def test_full_sums(mode: str, splits: int) -> None:
    x = np.random.default_rng(splits).standard_normal(splits * 640).astype(np.float32)
    kernel = checked(full_sum(splits, mode), x)
    assert [b.name for b in kernel.ir.semaphores] == ["t0_turns"]


def test_the_same_bits_whoever_adds() -> None:
    x = np.random.default_rng(7).standard_normal((ROWS, COLUMNS)).astype(np.float32)
    results = [
        column_schedule(total, 5, mode=mode).lower().simulate(x).outputs[0]
        for mode in ("vector", "tma", "slices")
    ]
    assert len({r.tobytes() for r in results}) == 1


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


MADE = {
    "vector": lambda: column_schedule(total_and_more, 3),
    "full sum": lambda: full_sum(3),
    "tma": lambda: column_schedule(total_and_more, 3, mode="tma"),
    "tma, two blocks": lambda: column_schedule(total, 2, mode="tma"),
    "slices": lambda: column_schedule(total_and_more, 3, mode="slices"),
    "slices, full sum": lambda: full_sum(3, "slices"),
}


@pytest.mark.parametrize("name", MADE)
def test_no_sync_is_missing_or_redundant(name: str) -> None:
    report = fw.verify(MADE[name]().lower())
    assert report.ok, str(report)
    kinds = {s.kind for s in report.necessary}
    gathers = {"SemaphoreArrive", "SemaphoreAcquire", "SemaphoreLeave"}
    assert kinds >= (gathers if "slices" in name else {"SemaphoreAcquire", "SemaphoreRelease"})


def test_the_copy_engine_is_waited_for_in_full_before_the_turn_is_passed_on() -> None:
    kernel = column_schedule(total, 5, mode="tma").lower()
    body = list(kernel.ir.body)
    at = {type(s).__name__: k for k, s in enumerate(body)}
    assert at["AsyncCommit"] < at["AsyncWait"] < at["SemaphoreRelease"]
    wait = body[at["AsyncWait"]]
    assert isinstance(wait, AsyncWait) and wait.keep == 0 and not wait.reads_only
    fences = [s.space for s in walk_statements(kernel.ir) if isinstance(s, ProxyFence)]
    assert fences == [fw.SHARED, fw.GLOBAL]
    case = Case(
        dict(zip(kernel.ir.params, _arrays(kernel), strict=True)), outputs=kernel.ir.arrays[1:]
    )
    weaker = weakenings_of(kernel.ir, case, blocks=None)
    assert len(weaker) == 4 and all(w.race is not None for w in weaker)


def _arrays(kernel: fw.Kernel) -> list[np.ndarray]:
    return [np.zeros(int(str(b.size)), b.dtype.numpy) for b in kernel.ir.params]


def test_every_semaphore_is_reset_and_every_part_is_whole_vectors() -> None:
    kernel = column_schedule(total_and_more, 5).lower()
    (release,) = (s for s in walk_statements(kernel.ir) if isinstance(s, SemaphoreRelease))
    assert str(release.value) == "(by + 1)%5"
    assert release.size == 32 * 4
    text = str(kernel.ir)
    assert re.search(r"t0_v\d+\[0\.\.4\] = load t0_work\[128\*bx \+ 4\*tx\]", text)
    assert "store t0_work[128*bx + 4*tx] = t0[0..4]" in text


def test_machine_code_reads_semaphores_by_acquire() -> None:
    kernel = column_schedule(total_and_more, 5).lower()
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
    stores = [x for x in str(kernel.ir).splitlines() if "store t0[" in x]
    assert [x.strip() for x in stores] == ["store t0[tx] = t0_acc[0] if (ty == 0)"]
    assert fw.verify(kernel, x).ok


@pytest.mark.parametrize("mode", ["vector", "tma", "slices"])
def test_several_sums_a_block(mode: str) -> None:
    """Each iteration takes a turn, or gathers, on a semaphore of its own."""
    s = fw.Schedule(fw.trace(total, fw.TensorSpec((12, 256), "float32")))
    t = s.outputs[0]
    t.split(1, 4).split(0, 4).split(0, 32).reorder([0, 3, 4, 1, 2])
    t.parallelize(1, fw.BIDx).parallelize(3, fw.TIDx).parallelize(4, fw.Vectorize)
    t.request_serial_grid_reduction(mode)
    x = np.random.default_rng(0).standard_normal((12, 256)).astype(np.float32)
    kernel = checked(s, x)
    assert str(kernel.ir.semaphores[0].size) == "2"
    report = fw.verify(kernel, x)
    assert report.ok, str(report)


def test_symbolic_rows() -> None:
    spec = fw.TensorSpec(("n", 64), "float32")
    s = fw.Schedule(fw.trace(total, spec))
    t = s.outputs[0]
    t.split(1, 32).parallelize(0, fw.TIDx).parallelize(1, fw.BIDx)
    t.request_serial_grid_reduction()
    for n in (2, 31, 32, 200):
        x = np.random.default_rng(n).standard_normal((n, 64)).astype(np.float32)
        checked(s, x)


@pytest.mark.parametrize("splits", [2, 5])
@pytest.mark.parametrize("work", ["float16", fw.bfloat16])
@pytest.mark.parametrize("mode", ["vector", "tma", "slices"])
def test_parts_in_fewer_bits(mode: str, work: object, splits: int) -> None:
    """Within the bound of docs/syncs.md, and not equal to the sum of parts in float32."""
    s = column_schedule(total, splits, width=8, mode=mode)
    next(t for t in s.tensors if t.stage.is_reduction).request_serial_grid_reduction(mode, work)
    kernel = s.lower()
    (scratch,) = kernel.ir.scratch
    assert scratch.dtype is dtype_of(work)
    x = np.random.default_rng(splits).standard_normal((ROWS, COLUMNS)).astype(np.float32)
    results = [kernel.simulate(x, seed=seed) for seed in range(2)]
    assert results[0].outputs[0].tobytes() == results[1].outputs[0].tobytes()
    parts = [
        p.sum(0, dtype=np.float64)
        for p in np.split(x, range(-(-ROWS // splits), ROWS, -(-ROWS // splits)))
    ]
    unit = 2.0**-11 if scratch.dtype.name == "float16" else 2.0**-8
    roundings = {"vector": splits - 1, "tma": 2 * splits - 3, "slices": 1}[mode]
    bound = 1.1 * roundings * unit * sum(abs(p) for p in parts) + 1e-4
    error = abs(results[0].outputs[0] - x.sum(0, dtype=np.float64))
    assert results[0].races == [] and (error <= bound).all()
    assert error.max() > 1e-4
    if splits == 2:
        assert fw.verify(kernel, x).ok
        assert kernel.resources().spill_stores == 0


def integers(fn: Callable[..., object], dtype: str) -> fw.Schedule:
    """Columns over threads, rows over three blocks; the copy engine adds up."""
    s = fw.Schedule(fw.trace(lambda x: fn(x, axis=0), fw.TensorSpec((96, 64), dtype)))
    t = next(t for t in s.tensors if t.stage.is_reduction)
    t.split(1, 32).parallelize(0, fw.TIDx).parallelize(1, fw.BIDx)
    t.request_serial_grid_reduction("tma")
    return s


@pytest.mark.parametrize("fn", [fw.max, fw.min])
@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_the_copy_engine_reduces_integers(fn: Callable[..., object], dtype: str) -> None:
    s = integers(fn, dtype)
    x = np.random.default_rng(0).integers(-99, 99, (96, 64)).astype(dtype)
    kernel = s.lower()
    result = kernel.simulate(x)
    assert result.races == []
    np.testing.assert_array_equal(result.outputs[0], fw.evaluate(s, x)[0])
    report = fw.verify(kernel, x)
    assert report.ok, str(report)
    fns = {b.fn for b in walk_statements(kernel.ir) if isinstance(b, BulkReduce)}
    assert fns == {"max" if fn is fw.max else "min"}
    assert len(kernel.cubin()) > 0


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
    with pytest.raises(
        fw.ScheduleError, match=r"no such mode; use one of 'vector', 'tma', 'slices'"
    ):
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


def test_what_the_copy_engine_does_not_reduce() -> None:
    with pytest.raises(fw.ScheduleError, match=r"does not reduce int64 by add, it takes float16"):
        integers(fw.sum, "int64").lower()
    s = column_schedule(largest, 3, mode="tma")
    with pytest.raises(fw.ScheduleError, match=r"the max of floats has to keep NaN.*mode 'vector"):
        s.lower()


@pytest.mark.parametrize(
    ("fn", "dtype", "work_dtype"),
    [
        (fw.sum, "float32", None),
        (fw.sum, "float32", "float16"),
        (fw.max, "int32", None),
        (fw.min, "int64", None),
    ],
)
@pytest.mark.parametrize("columns", [1, 3, 5])
def test_parts_of_fewer_bytes_than_the_copy_engine_moves(
    fn: Callable[..., object], dtype: str, work_dtype: str | None, columns: int
) -> None:
    """What fills 16 bytes changes nothing: zeros of sums, the smallest of a maximum."""
    s = fw.Schedule(fw.trace(lambda x: fn(x, axis=0), fw.TensorSpec((96, columns), dtype)))
    t = s.outputs[0]
    t.split(1, 32).parallelize(0, fw.TIDx).parallelize(1, fw.BIDx)
    t.request_serial_grid_reduction("tma", work_dtype=work_dtype)
    kernel = s.lower()
    x = (np.random.default_rng(columns).standard_normal((96, columns)) * 99 - 200).astype(dtype)
    result = kernel.simulate(x)
    assert result.races == []
    limit = 1e-2 if work_dtype else 1e-6
    np.testing.assert_allclose(result.outputs[0], fw.evaluate(s, x)[0], rtol=limit)
    report = fw.verify(kernel, x)
    assert report.ok, str(report)
    assert len(kernel.cubin()) > 0


def test_a_work_dtype_that_parts_are_not_handed_on_in() -> None:
    _, t = plain()
    with pytest.raises(fw.ScheduleError, match=r"parts of it are handed on in float32, or float16"):
        t.request_serial_grid_reduction("tma", work_dtype="int8")
    with pytest.raises(fw.ScheduleError, match="a dtype, such as 'float16'"):
        t.request_serial_grid_reduction("tma", work_dtype="half a word")


def test_a_target_without_a_copy_engine() -> None:
    s = column_schedule(total, 3, mode="tma")
    with pytest.raises(fw.ScheduleError, match=r"sm_80 has no copy engine.*use mode 'vector'"):
        s.lower("sm_80")


def test_slices_of_blocks_that_are_no_neighbours() -> None:
    s, t = plain()
    t.split(1, 32).parallelize(0, fw.BIDx).parallelize(1, fw.BIDy)
    t.request_serial_grid_reduction("slices")
    with pytest.raises(fw.ScheduleError, match="bind the loop that reduces to BIDx"):
        s.lower()


def test_slices_of_more_blocks_than_run_at_once() -> None:
    for rows, fails in ((132, False), (133, True)):
        s, t = plain((rows, 64))
        t.split(1, 1).parallelize(0, fw.TIDx).parallelize(1, fw.BIDx)
        t.request_serial_grid_reduction("slices")
        if fails:
            with pytest.raises(fw.ScheduleError, match=r"133 blocks wait .* runs 132 at once"):
                s.lower()
        else:
            assert len(s.lower().ir.semaphores) == 1


def test_slices_of_an_unknown_number_of_blocks() -> None:
    s = fw.Schedule(fw.trace(total, fw.TensorSpec(("n", 64), "float32")))
    t = s.outputs[0]
    t.split(1, 32).parallelize(0, fw.TIDx).parallelize(1, fw.BIDx)
    t.request_serial_grid_reduction("slices")
    with pytest.raises(fw.ScheduleError, match="their number must be constant"):
        s.lower()


def test_a_reader_of_other_threads_shares() -> None:
    fusion = fw.trace(lambda x: fw.sum(fw.sum(x, axis=0)), fw.TensorSpec((96, 64), "float32"))
    s = fw.Schedule(fusion)
    inner, outer = (t for t in s.tensors if t.stage.is_reduction)
    inner.split(1, 32).parallelize(0, fw.TIDx).parallelize(1, fw.BIDx)
    inner.request_serial_grid_reduction("slices")
    outer.parallelize(0, fw.TIDx)
    with pytest.raises(fw.ScheduleError, match="leaves each its own share"):
        s.lower()
    inner.request_serial_grid_reduction("vector")
    x = np.random.default_rng(0).standard_normal((96, 64)).astype(np.float32)
    checked(s, x)


def test_more_lanes_than_are_known() -> None:
    s = fw.Schedule(fw.trace(total, fw.TensorSpec((96, "m"), "float32")))
    t = s.outputs[0]
    t.split(1, 32).reorder({1: 0, 2: 1}).parallelize(0, fw.BIDx)
    t.request_serial_grid_reduction()
    with pytest.raises(fw.ScheduleError, match="must be constant"):
        s.lower()


def test_bounded_waits_say_which_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = column_schedule(total, 3).lower().cuda
    monkeypatch.setenv("FUSEWRIGHT_BOUND_WAITS", "250")
    kernel = column_schedule(total, 3).lower()
    told = [x for x in kernel.cuda.splitlines() if "fw_check_turn(since, 250u, " in x]
    waits = [s for s in walk_statements(kernel.ir) if isinstance(s, SemaphoreAcquire)]
    assert waits and len(told) == len(waits)
    for s, line in zip(waits, told, strict=True):
        assert f"wait {s.id} of all warps on {s.semaphore} (" in line
    assert "fw_check_turn" not in plain


def test_bounded_turns_compile_clean(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    monkeypatch.setenv("FUSEWRIGHT_BOUND_WAITS", "1000")
    kernel = column_schedule(total, 3).lower()
    assert {int(n) for n in re.findall(r"// fw-sync (\d+)", kernel.ptx())} == {
        s.id for s in kernel.syncs
    }
    assert "trap" in kernel.ptx()


@pytest.mark.parametrize("mode", ["vector", "tma", "slices"])
def test_a_block_of_one_warp_meets_as_a_warp(mode: str) -> None:
    """Also where what other blocks left is handed to it, whose bytes are not compared."""
    kernel = column_schedule(total, 3, mode=mode).lower("sm_90a")
    kinds = [s.kind for s in kernel.syncs]
    assert "WarpSync" in kinds and "BlockSync" not in kinds
    report = fw.verify(kernel)
    assert (report.missing, report.redundant) == ([], [])


@pytest.mark.parametrize(("mode", "back"), [("vector", "bulk"), ("slices", "bulk"), ("tma", "x")])
def test_ways_back_that_there_are_not(mode: str, back: str) -> None:
    s = column_schedule(total, 3)
    message = f"'{mode}', read_back='{back}'\\): use 'vector', or in mode 'tma' 'bulk'"
    with pytest.raises(fw.ScheduleError, match=message):
        s.outputs[0].request_serial_grid_reduction(mode, read_back=back)


def test_a_way_back_by_the_copy_engine_is_waited_for_and_fenced() -> None:
    s = column_schedule(total_and_more, 3, mode="tma")
    for t in s.tensors:
        if t.stage.is_reduction:
            t.request_serial_grid_reduction("tma", read_back="bulk")
    kernel = s.lower("sm_90a")
    kinds = [x.kind for x in kernel.syncs]
    acquire, fence, wait = (
        len(kinds) - 1 - kinds[::-1].index(k)
        for k in ("SemaphoreAcquire", "ProxyFence", "MbarWait")
    )
    assert acquire < fence < wait < kinds.index("SemaphoreRelease")
    assert "cp.async.bulk.shared::cluster.global.mbarrier" in kernel.ptx()


def test_sums_in_the_order_of_arrival_are_asked_for() -> None:
    s = column_schedule(total, 3, mode="slices")
    s.outputs[0].request_serial_grid_reduction("arrival")
    message = r"'arrival'\): blocks add .* fw.config\(deterministic=True\) rules out; use mode"
    with pytest.raises(fw.ScheduleError, match=message):
        s.lower("sm_90a")
    with pytest.raises(fw.ScheduleError, match=message):
        fw.compile(s)
    with fw.config(deterministic=False):
        kernel = s.lower("sm_90a")
        program = fw.compile(s)
    (summed,), (counter,) = kernel.ir.zeroed, kernel.ir.semaphores
    assert kernel.ir.scratch == () and str(summed.size) == str(COLUMNS)
    nbytes = -(-int(str(counter.size)) * 4 // 256) * 256 + 4 * COLUMNS
    assert program.host.stats["state_bytes"] == nbytes
    x = np.random.default_rng(5).standard_normal((ROWS, COLUMNS)).astype(np.float32)
    bound = 2 * 2.0**-24 * np.abs(x).sum(axis=0) + 1e-5
    for seed in range(3):
        found = kernel.simulate(x, seed=seed)
        assert found.races == []
        assert (np.abs(found.outputs[0] - x.sum(axis=0, dtype=np.float64)) <= bound).all()


def test_what_is_not_added_does_not_arrive() -> None:
    s = column_schedule(lambda x: fw.max(x, axis=0), 3, mode="slices")
    s.outputs[0].request_serial_grid_reduction("arrival")
    with (
        fw.config(deterministic=False),
        pytest.raises(fw.ScheduleError, match="added to zeros, and it is a max; use mode 'slices'"),
    ):
        s.lower("sm_90a")


def test_arrival_needs_a_copy_engine() -> None:
    s = column_schedule(total, 3, mode="slices")
    s.outputs[0].request_serial_grid_reduction("arrival")
    with (
        fw.config(deterministic=False),
        pytest.raises(fw.ScheduleError, match=r"'arrival'\): sm_80 has no copy engine"),
    ):
        s.lower("sm_80")
