"""Which threads share the rows of a scan, what they take side by side, and what that costs."""

from __future__ import annotations

import math

import numpy as np
import pytest

import fusewright as fw
from fusewright.fusion.array import Array
from fusewright.kernel import Kernel
from fusewright.schedule.heuristics import schedule_group
from fusewright.schedule.heuristics.exchanges import Exchanges, exchanges_of
from fusewright.schedule.heuristics.rating import Rated, rate
from fusewright.schedule.heuristics.scan import ScanScheduler
from fusewright.target import target_of

TARGET = target_of("sm_90a")


def _kernel(
    shape: tuple[int, ...], dtype: str, *, strides: tuple[int, ...] | None = None
) -> Kernel:
    spec = fw.TensorSpec(shape, dtype, strides=strides)
    (kernel,) = fw.compile(fw.trace(lambda x: fw.cumulative_sum(x, axis=-1), spec)).kernels
    return kernel


def _plan(kernel: Kernel) -> dict[str, object]:
    assert kernel.heuristic is not None
    return {"scheduler": kernel.heuristic.scheduler, **dict(kernel.heuristic.values)}


@pytest.mark.parametrize(
    ("shape", "dtype", "scheduler", "run", "along"),
    [
        ((1288, 39411), "float64", "scan_rows", 2, 128),  # no vector, and lines that fill the chip
        ((99, 8191), "float64", "scan_rows", 2, 512),  # few lines: all threads that share one
        ((2048, 4096), "float32", "scan_rows", 4, 128),  # a vector each
        ((40_000, 47), "float32", "scan_rows_staged", 0, 1),
        ((9_000, 47), "float32", "scan_rows", 2, 32),  # too few rows for a thread each
        ((40_000, 44), "float32", "scan_rows", 4, 16),  # rows are whole vectors
    ],
)
def test_first_plans(
    shape: tuple[int, ...], dtype: str, scheduler: str, run: int, along: int
) -> None:
    found = _plan(_kernel(shape, dtype))
    assert (found["scheduler"], found["run"], found["along"]) == (scheduler, run, along)


@pytest.mark.parametrize(
    ("rows", "columns", "along"),
    [
        (7360, 9218, 16),  # 144 blocks: half the steps of blocks of 256 threads
        (7360, 92160, 8),  # blocks enough to fill the multiprocessors
        (7360, 9216, 32),  # wide vectors: half as many side by side, which wait for memory only
    ],
)
def test_few_columns_take_larger_blocks(rows: int, columns: int, along: int) -> None:
    spec = fw.TensorSpec((rows, columns), "float16")
    (kernel,) = fw.compile(fw.trace(lambda x: fw.cumulative_sum(x, axis=0), spec)).kernels
    assert _plan(kernel)["along"] == along


@pytest.mark.parametrize("reverse", [False, True])
def test_blocks_of_more_warps_scan_columns_right(
    reverse: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where blocks do not share the lines, which is predicted faster here."""
    monkeypatch.setattr(ScanScheduler, "_shared_lines", lambda _: iter(()))
    spec = fw.TensorSpec((3000, 131), "float16")

    def scan(x: fw.Array) -> fw.Array:
        return fw.cumulative_sum(fw.flip(x, axis=0) if reverse else x, axis=0)

    program = fw.compile(fw.trace(scan, spec))
    (kernel,) = program.kernels
    plan = _plan(kernel)
    assert isinstance(plan["along"], int) and isinstance(plan["beside"], int)
    assert plan["along"] * plan["beside"] > 256
    x = np.random.default_rng(1).integers(-9, 9, (3000, 131)).astype(np.float16)
    result = program.simulate(x)
    assert not result.races
    want = np.cumsum(x[::-1] if reverse else x, axis=0, dtype=np.float32)
    assert np.array_equal(result.outputs[0], want.astype(np.float16))


def test_threads_store_whole_vectors_of_results_wider_than_what_they_read() -> None:
    """Sums of 4-byte integers have 8 bytes: of four a thread stores would fill half sectors."""
    spec = fw.TensorSpec((64, 128, 2184), "int32")
    (kernel,) = fw.compile(fw.trace(lambda x: fw.cumulative_sum(x, axis=1), spec)).kernels
    assert _plan(kernel)["vector"] == 2


def test_lines_that_are_rows_of_the_results_alone_are_stored_along_these() -> None:
    """12 columns side by side as they are read, each a row of 180 as it is stored."""
    spec = fw.TensorSpec((12, 104, 23, 180), "int64", strides=(1, 12, 224640, 1248))
    program = fw.compile(fw.trace(lambda x: fw.cumulative_sum(x, axis=3), spec))
    (kernel,) = program.kernels
    plan = _plan(kernel)
    assert (plan["scheduler"], plan["run"], plan["beside"]) == ("scan_rows", 2, 12)
    x = np.random.default_rng(4).integers(1, 99, (12, 104, 23, 180))
    found = kernel.simulate(x, blocks=[0, 7])
    assert not found.races
    right = np.asarray(found.outputs[0]) == np.cumsum(x, axis=3)
    assert np.count_nonzero(right) == 2 * 12 * 180


@pytest.mark.parametrize(
    ("columns", "beside"),
    [(508_989, 128), (508_992, 32)],  # rows that begin anywhere, and where vectors do
)
def test_strips_of_rows_that_begin_anywhere_are_two_lines_wide(columns: int, beside: int) -> None:
    spec = fw.TensorSpec((75, columns), "bfloat16")
    (kernel,) = fw.compile(fw.trace(lambda x: fw.cumulative_sum(x, axis=0), spec)).kernels
    plan = _plan(kernel)
    assert plan["beside"] == beside and (plan["vector"] == 1) == (columns % 2 == 1)


def test_wide_strips_are_scanned_right(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ScanScheduler, "_plans", lambda self: self._wide_strips(32))
    spec = fw.TensorSpec((13, 17_001), "bfloat16")
    program = fw.compile(fw.trace(lambda x: fw.cumulative_sum(x, axis=0), spec))
    (kernel,) = program.kernels
    assert (_plan(kernel)["beside"], _plan(kernel)["along"]) == (128, 4)
    x = np.random.default_rng(3).integers(-9, 9, (13, 17_001)).astype(fw.bfloat16.numpy)
    found = program.simulate(x)
    assert not found.races
    assert np.array_equal(found.outputs[0].astype(np.float32), np.cumsum(x, 0, dtype=np.float32))


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(
    ("shape", "strides"),
    [
        ((4000, 9, 4), (612, 68, 1)),  # a vector side by side, three threads a line
        ((3000, 11, 3), None),  # no vector, and no power of two
        ((1000, 2, 20), None),  # two elements a line
    ],
)
def test_blocks_of_few_columns_take_lines_that_lie_further_apart(
    shape: tuple[int, ...], strides: tuple[int, ...] | None, reverse: bool
) -> None:
    """Several lines of a warp lie nowhere near each other, and their number is no power of two."""

    def scan(x: Array) -> Array:
        return fw.cumulative_sum(fw.flip(x, axis=1) if reverse else x, axis=1)

    program = fw.compile(fw.trace(scan, fw.TensorSpec(shape, "float32", strides=strides)))
    (kernel,) = program.kernels
    plan = _plan(kernel)
    assert "apart" in plan
    threads = [plan[k] for k in ("along", "beside", "apart")]
    assert 32 < math.prod(n for n in threads if isinstance(n, int)) <= 256
    x = np.random.default_rng(2).integers(-9, 9, shape).astype(np.float32)
    found = program.simulate(x)
    assert not found.races
    want = np.cumsum(np.flip(x, axis=1) if reverse else x, axis=1)
    np.testing.assert_array_equal(np.asarray(found.outputs[0]), want)
    report = fw.verify(program, x)
    assert not report.missing and not report.redundant


def test_rows_that_lie_apart_do_not_go_through_shared_memory() -> None:
    kernel = _kernel((40_000, 7), "int32", strides=(8, 1))
    assert _plan(kernel)["scheduler"] == "scan_rows"


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        ((300, 677), "float32"),
        ((270, 1001), "float64"),
        ((17_003, 13), "float16"),
        ((3, 2051), "int64"),
    ],
)
def test_odd_rows_are_right_in_the_simulator_and_no_sync_too_many(
    shape: tuple[int, ...], dtype: str
) -> None:
    program = fw.compile(
        fw.trace(lambda x: fw.cumulative_sum(x, axis=-1), fw.TensorSpec(shape, dtype))
    )
    x = np.random.default_rng(shape[1]).integers(-3, 4, shape).astype(getattr(fw, dtype).numpy)
    found = program.simulate(x)
    assert not found.races
    (want,) = fw.evaluate(program.fusion, x)
    np.testing.assert_array_equal(np.asarray(found.outputs[0]), np.asarray(want))
    report = fw.verify(program, x)
    assert not report.missing and not report.redundant


def _scanned(shape: tuple[int, ...], along: int) -> tuple[float, float, float]:
    """Exchanges across warps and between lanes, and their instructions, of rows that so many
    threads share."""
    kernel = _kernel(shape, "float32")
    assert kernel.segment is not None
    rated = [r for r in rate(kernel.segment.dataflow(), TARGET) if isinstance(r, Rated)]
    chosen = next(r.params for r in rated if dict(r.params.values)["along"] == along)
    flow = kernel.segment.dataflow()
    schedule_group(flow, TARGET, chosen)
    found = exchanges_of(flow)
    return found.across, found.between_lanes, found.instructions


def test_a_scan_across_warps_counts_their_totals_in_every_trip() -> None:
    """5001 elements in 20 trips of 128 threads with two each, or 10 of 256."""
    four, eight = _scanned((20_000, 5001), 128), _scanned((20_000, 5001), 256)
    assert four == (20, 0, 20 * (6 * 3 + 4 * 3 + 8))
    assert eight == (10, 0, 10 * (6 * 3 + 8 * 3 + 8))


def test_a_scan_between_the_lanes_of_a_warp_meets_at_no_barrier() -> None:
    assert _scanned((100_000, 147), 32) == (0, 3, 3 * 6 * 3)


def test_lanes_of_a_warp_reduce_in_as_many_steps_as_it_takes() -> None:
    """Rows of 64 by 16 threads with a vector each: four steps, for each of two reductions."""
    spec = fw.TensorSpec((100_000, 64), "float32")
    (kernel,) = fw.compile(fw.trace(lambda x: fw.nn.softmax(x, axis=-1), spec)).kernels
    assert kernel.segment is not None
    rated = [r for r in rate(kernel.segment.dataflow(), TARGET) if isinstance(r, Rated)]
    flow = kernel.segment.dataflow()
    schedule_group(flow, TARGET, rated[0].params)
    assert dict(rated[0].params.values)["reduce_threads"] == 16
    assert exchanges_of(flow) == Exchanges(0, 2, 2 * (2 * 4 + 4))


def test_lines_that_lie_across_are_read_in_vectors_by_the_kernel_that_scans_them() -> None:
    """1581 odd floats a line, each in a row of its own; stored side by side."""
    spec = fw.TensorSpec((1581, 16384), "float32", strides=(1, 1581))
    (kernel,) = fw.compile(fw.trace(lambda x: fw.cumulative_prod(x, axis=0), spec)).kernels
    assert _plan(kernel)["scheduler"] == "scan_columns_across"


def test_short_lines_have_all_loads_of_several_under_way() -> None:
    spec = fw.TensorSpec((1000, 3, 43791), "bfloat16")
    (kernel,) = fw.compile(fw.trace(lambda x: fw.cumulative_sum(x, axis=1), spec)).kernels
    assert _plan(kernel)["own"] == 4
    body = kernel.cuda[kernel.cuda.index('extern "C"') :]
    loads = [i for i, line in enumerate(body.splitlines()) if "(x + " in line or "= x[" in line]
    stores = [i for i, line in enumerate(body.splitlines()) if line.lstrip().startswith("t0[")]
    assert len(loads) == len(stores) == 12
    assert max(loads) < min(stores)
