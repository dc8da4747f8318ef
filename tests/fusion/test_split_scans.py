"""Long scans of few lines in parts: same values, and kernels enough."""

from __future__ import annotations

import math

import numpy as np
import pytest
from fusion_cases import assert_same

from fusewright.driver import compile
from fusewright.fusion import ops as fw
from fusewright.fusion.array import Array
from fusewright.fusion.evaluate import evaluate
from fusewright.fusion.ir import Reshape, Resize, Scan, TensorSpec
from fusewright.fusion.partitioning import LEAST_RUN
from fusewright.fusion.passes.split_scans import split_scans
from fusewright.fusion.spec import check
from fusewright.fusion.text import parse_fusion
from fusewright.fusion.trace import trace
from fusewright.schedule.heuristics.scan import ScanScheduler
from fusewright.target import target_of

TARGET = target_of("sm_90a")


def _cumulative(shape: tuple[int | str, ...], axis: int, fn: object = fw.cumulative_sum):
    return trace(lambda a: fn(a, axis=axis), TensorSpec(shape, "int64"))


@pytest.mark.parametrize(
    ("shape", "axis"),
    [((1 << 17,), 0), ((99991,), 0), ((3, 40000), 1), ((30000, 2), 0), ((2, 99991, 3), 1)],
)
def test_parts_have_the_same_values(shape: tuple[int, ...], axis: int):
    fusion = _cumulative(shape, axis)
    out = split_scans(fusion, TARGET)
    check(out)
    assert str(parse_fusion(str(out))) == str(out)
    x = np.random.default_rng(7).integers(-9, 9, shape)
    assert_same(evaluate(out, x)[0], np.cumsum(x, axis=axis))
    extents = [t.shape[t.op.axis] for t in out.values if isinstance(t.op, Scan)]
    assert len(extents) == 2 and all(int(str(e)) < shape[axis] for e in extents)


@pytest.mark.parametrize("fn", [fw.cumulative_sum, fw.cumulative_prod])
def test_padding_adds_nothing(fn: object):
    x = np.random.default_rng(1).integers(1, 3, 99991)
    out = split_scans(_cumulative(x.shape, 0, fn), TARGET)
    theirs = {fw.cumulative_sum: np.cumsum, fw.cumulative_prod: np.cumprod}[fn](x)
    assert any(isinstance(t.op, Resize) for t in out.values)
    assert_same(evaluate(out, x)[0], theirs)


def test_parts_that_divide_the_line_need_no_padding():
    out = split_scans(_cumulative((1 << 20,), 0), TARGET)
    assert any(isinstance(t.op, Reshape) for t in out.values)
    assert not any(isinstance(t.op, Resize) for t in out.values)


@pytest.mark.parametrize(
    ("shape", "axis"),
    [
        ((2 * LEAST_RUN - 1,), 0),
        ((4096, 1 << 15), 1),
        ((1 << 15, 4096), 0),
        ((1 << 15, 1024), 0),  # blocks enough that take a sector each
        (("n", 8), 0),
    ],
)
def test_short_lines_and_many_lines_stay_whole(shape: tuple[int | str, ...], axis: int):
    fusion = _cumulative(shape, axis)
    assert split_scans(fusion, TARGET) is fusion


def test_the_number_of_parts_fills_the_chip_and_no_more():
    out = split_scans(_cumulative((1 << 26,), 0), TARGET)
    (whole,) = (t for t in out.values if isinstance(t.op, Scan) and t.ndim == 2)
    parts = int(str(whole.shape[0]))
    assert TARGET.multiprocessors <= parts <= 4 * TARGET.multiprocessors
    assert math.prod(int(str(e)) for e in whole.shape) == 1 << 26


@pytest.fixture
def no_shared_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks do not share lines in one launch, which is predicted to be faster."""
    monkeypatch.setattr(ScanScheduler, "_shared_lines", lambda _: iter(()))


@pytest.mark.usefixtures("no_shared_lines")
@pytest.mark.parametrize(
    ("shape", "axis"),
    [((60_013, 5), 0), ((60_016, 5), 0), ((2, 40_009), 1), ((2, 30_011, 3), 1)],
)
@pytest.mark.parametrize("reverse", [False, True])
def test_parts_become_lines_in_the_kernel_that_scans_them(
    shape: tuple[int, ...], axis: int, reverse: bool
) -> None:
    """Totals, what is before each part, and the scans of the parts, with what is computed of them:
    whether the parts divide the line or not."""

    def scan(x: Array, y: Array) -> Array:
        turned = fw.flip(x, axis=axis) if reverse else x
        return fw.astype(fw.cumulative_sum(turned, axis=axis) * y, "int32")

    program = compile(trace(scan, *[TensorSpec(shape, "int64")] * 2))
    assert len(program.kernels) == 3
    x, y = np.random.default_rng(3).integers(-9, 9, (2, *shape))
    found = program.simulate(x, y)
    want = np.cumsum(np.flip(x, axis) if reverse else x, axis=axis) * y
    assert not found.races
    assert_same(found.outputs[0], want.astype(np.int32))


@pytest.mark.usefixtures("no_shared_lines")
def test_totals_of_few_columns_are_one_kernel() -> None:
    """16 columns side by side are a line of memory: a block for each part of the rows, as many as
    fill the chip, so that the sums of the parts are not cut again."""
    program = compile(_cumulative((360_864, 16), 0))
    assert len(program.kernels) == 3
    assert int(str(program.kernels[-1].launch.grid[0])) >= TARGET.multiprocessors


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [((8192, 768), "bfloat16"), ((1 << 21, 6), "float16"), ((1 << 21,), "int64")],
)
def test_lines_that_blocks_share_are_whole(shape: tuple[int, ...], dtype: str) -> None:
    """Of columns that registers hold, of few that lie in less than a sector, and one alone."""
    fusion = trace(lambda a: fw.cumulative_sum(a, axis=0), TensorSpec(shape, dtype))
    (kernel,) = compile(fusion).kernels
    assert kernel.heuristic is not None and dict(kernel.heuristic.values)["parts"] > 16
    assert ("staged" in kernel.heuristic.scheduler) == (shape[-1] != 768)


def test_totals_beside_rows_of_a_few_elements_are_made_by_threads_with_several_rows() -> None:
    """Blocks that walk over rows of 11 elements one by one would keep their threads waiting."""

    def scan(x: Array) -> Array:
        y = x / fw.max(x, axis=1, keepdims=True)
        return fw.cumulative_sum(y, axis=0)

    program = compile(trace(scan, TensorSpec((1 << 20, 11), "float32")))
    found = [k.heuristic.scheduler for k in program.kernels if k.heuristic is not None]
    assert found == ["rows", "scan_columns", "scan_columns"]
    first = program.kernels[0].heuristic
    assert first is not None and int(str(dict(first.values)["each"])) > 1
