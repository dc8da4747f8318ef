"""Axes that every access walks over as one are one axis, however the program spells them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

import fusewright as fw
from fusewright.core.substitution import estimate
from fusewright.schedule.graph import Dataflow
from fusewright.schedule.heuristics import schedule_group
from fusewright.schedule.heuristics.common import cache_inputs, reference_output
from fusewright.schedule.heuristics.cost import cost
from fusewright.schedule.heuristics.space import joined_axes
from fusewright.schedule.heuristics.work import work_of
from fusewright.target import target_of

TARGET = target_of("sm_90a")
Fn = Callable[..., Any]


def spec(*shape: int, dtype: str = "bfloat16", strides: tuple[int, ...] | None = None) -> Any:
    return fw.TensorSpec(shape, dtype, strides=strides)


def extents(fn: Fn, *specs: Any) -> list[int]:
    """The extents of the joined axes of what a function makes."""
    flow = Dataflow(fw.trace(fn, *specs))
    cache_inputs(flow)
    reference = reference_output(flow)
    return [estimate(x.axis.extent) for x in joined_axes(flow, reference, reference.loops)]


def shift(axis: int) -> Fn:
    """Differences of neighbours at a distance of two."""

    def fn(x: Any) -> Any:
        def part(begin: int, end: int) -> Any:
            return x[tuple(slice(begin, end) if k == axis else slice(None) for k in range(x.ndim))]

        n = x.shape[axis]
        return part(2, n) - part(0, n - 2)

    return fn


def padded(axis: int) -> Fn:
    """An element more at both ends of an axis."""
    return lambda x: fw.pad(x, [(1, 1) if k == axis else (0, 0) for k in range(x.ndim)])


def counted(axis: int) -> Fn:
    """Every element times its place along an axis."""

    def fn(x: Any) -> Any:
        shape = tuple(n if k == axis else 1 for k, n in enumerate(x.shape))
        return x * fw.reshape(fw.arange(x.shape[axis], dtype=fw.float32), shape)

    return fn


@pytest.mark.parametrize(
    ("fn", "specs", "expected"),
    [
        pytest.param(fw.exp, [spec(8, 6, 4)], [192], id="all axes"),
        pytest.param(shift(0), [spec(8, 6, 4)], [144], id="rows at a distance"),
        pytest.param(shift(2), [spec(8, 6, 4)], [48, 2], id="what is before a shifted axis"),
        pytest.param(shift(1), [spec(8, 6, 4)], [8, 16], id="what is behind a shifted axis"),
        pytest.param(padded(0), [spec(8, 6, 4)], [10, 24], id="what is behind a padded axis"),
        pytest.param(padded(1), [spec(8, 6, 4)], [8, 8, 4], id="not across a padded axis"),
        pytest.param(fw.add, [spec(8, 6, 4), spec(4)], [48, 4], id="not into a vector of columns"),
        pytest.param(
            fw.add, [spec(8, 6, 4), spec(6, 4)], [8, 24], id="a matrix along the last two"
        ),
        pytest.param(fw.add, [spec(8, 6, 4), spec(8, 1, 1)], [8, 24], id="a vector of rows"),
        pytest.param(fw.exp, [spec(8, 6, 4, strides=(48, 4, 1))], [8, 24], id="not across a gap"),
        pytest.param(fw.exp, [spec(8, 6, 4, strides=(24, 1, 6))], [8, 6, 4], id="not out of order"),
        pytest.param(counted(2), [spec(8, 6, 4)], [48, 4], id="not into a counted axis"),
        pytest.param(counted(0), [spec(8, 6, 4)], [8, 24], id="what is behind a counted axis"),
        pytest.param(
            lambda x: fw.flip(x, axis=(1, 2)), [spec(8, 6, 4)], [8, 24], id="turned together"
        ),
        pytest.param(lambda x: fw.flip(x, axis=1), [spec(8, 6, 4)], [8, 6, 4], id="turned alone"),
        pytest.param(
            lambda x, i: fw.take(x, i, axis=0),
            [spec(8, 6, 4), spec(5, dtype="int32")],
            [5, 24],
            id="rows that data chooses",
        ),
        pytest.param(
            lambda x: fw.reshape(fw.reshape(x, (192,)), (2, 12, 8)),
            [spec(8, 6, 4)],
            [192],
            id="another spelling of the input",
        ),
    ],
)
def test_axes_are_joined_where_every_access_is_one_walk(
    fn: Fn, specs: Sequence[Any], expected: list[int]
) -> None:
    assert extents(fn, *specs) == expected


def plans(fn: Fn, *specs: Any) -> tuple[list[str], float]:
    """The schedules of a program's kernels, and their predicted time in all."""
    found: list[str] = []
    us = 0.0
    for launch in fw.compile(fw.trace(fn, *specs)).launches:
        assert launch.kernel.segment is not None and launch.kernel.heuristic is not None
        flow = launch.kernel.segment.dataflow()
        params = schedule_group(flow, TARGET, launch.kernel.heuristic)
        found.append(str(params))
        us += cost(work_of(flow, params), TARGET).us
    return found, us


def normalised(*axes: int) -> Fn:
    def fn(x: Any) -> Any:
        y = x - fw.mean(x, axis=axes, keepdims=True)
        return y * fw.rsqrt(fw.mean(y * y, axis=axes, keepdims=True) + 1e-5)

    return fn


def joined(axis: int) -> Fn:
    return lambda a, b: fw.concat([a, b], axis=axis)


@pytest.mark.parametrize(
    ("whole", "specs", "cut", "cut_specs"),
    [
        pytest.param(
            shift(0), [spec(4096, 8988)], shift(0), [spec(4096, 2247, 4)], id="stencil of rows"
        ),
        pytest.param(
            shift(1), [spec(32768, 777)], shift(2), [spec(4096, 8, 777)], id="stencil in rows"
        ),
        pytest.param(
            joined(0),
            [spec(999, 8988), spec(1001, 8988)],
            joined(0),
            [spec(999, 2247, 4), spec(1001, 2247, 4)],
            id="join of rows",
        ),
        pytest.param(
            fw.add,
            [spec(40000, 1111), spec(1111)],
            fw.add,
            [spec(40000, 11, 101), spec(11, 101)],
            id="vector of columns",
        ),
        pytest.param(
            normalised(1), [spec(9000, 1332)], normalised(1, 2), [spec(9000, 4, 333)], id="norm"
        ),
        pytest.param(
            normalised(1),
            [spec(64, 99, 1111)],
            normalised(1),
            [spec(64, 99, 11, 101)],
            id="norm along a middle axis",
        ),
        pytest.param(
            lambda x: fw.sum(x, axis=1),
            [spec(64, 999, 1111)],
            lambda x: fw.sum(x, axis=(1, 2)),
            [spec(64, 27, 37, 1111)],
            id="sum along middle axes",
        ),
        pytest.param(
            lambda x: fw.permute_dims(x, (1, 0)),
            [spec(4096, 8988)],
            lambda x: fw.permute_dims(x, (1, 2, 0)),
            [spec(4096, 2247, 4)],
            id="transpose",
        ),
        pytest.param(
            lambda x: fw.cumulative_sum(x, axis=1),
            [spec(64, 99, 4800, dtype="float32")],
            lambda x: fw.cumulative_sum(x, axis=1),
            [spec(64, 99, 480, 10, dtype="float32")],
            id="scan along a middle axis",
        ),
    ],
)
def test_cutting_an_axis_in_two_changes_no_schedule(
    whole: Fn, specs: Sequence[Any], cut: Fn, cut_specs: Sequence[Any]
) -> None:
    one, us = plans(whole, *specs)
    other, other_us = plans(cut, *cut_specs)
    assert other == one
    assert other_us == pytest.approx(us, rel=0.01)
