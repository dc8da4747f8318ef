"""Readers of a function of what is stored anyway compute it again: its result is not stored. So do
readers of a function of arguments and of results of reductions, which are stored in its stead."""

from __future__ import annotations

from typing import Any

import numpy as np

import fusewright as fw
from fusewright.axes.classes import AxisGraph
from fusewright.fusion.ir import Pointwise, Tensor
from fusewright.host.groups import FusionGroup, add
from fusewright.programs.model import Dispatch

SHAPE = (700, 640)
ODD = (67, 131)


def check(program: fw.Program, shape: tuple[int, ...], dtype: str = "float32") -> None:
    """Compares a program with the oracle, on random numbers; no access races with another."""
    x = np.random.default_rng(0).standard_normal(shape).astype(dtype)
    found = program.simulate(x)
    assert found.races == []
    (want,) = fw.evaluate(program.fusion, x)
    tolerance = 1e-5 if dtype == "float32" else 2e-3
    np.testing.assert_allclose(found.outputs[0], want, rtol=tolerance, atol=tolerance)


def stored(program: fw.Program) -> list[int]:
    """How many values of the size of the result each launch stores."""
    shape = program.fusion.outputs[0].shape
    return [sum(t.shape == shape for t in x.kernel.outputs) for x in program.launches]


def operations(launch: Dispatch) -> tuple[Tensor, ...]:
    """What a kernel computes."""
    segment = launch.kernel.segment
    assert segment is not None
    return segment.fusion.values


def rounded(y: Any, axis: int | None) -> Any:
    """Steps of the largest size, as quantisation takes them."""
    scale = fw.max(fw.abs(y), axis=axis, keepdims=True) / 127 + 1e-6
    return fw.round(y / scale) * scale


def test_a_function_of_a_stored_value_is_not_stored_beside_it() -> None:
    """Products of shares are stored: more would be read of what they are computed from."""

    def f(x: Any) -> Any:
        return rounded(fw.cumulative_sum(x, axis=0) - 0.01, None)

    program = fw.compile(fw.trace(f, fw.TensorSpec(SHAPE, "float32")))
    assert sum(stored(program)) == 2
    check(program, SHAPE)


def test_results_of_reductions_are_stored_in_place_of_what_is_made_of_them() -> None:
    def f(x: Any) -> Any:
        y = fw.nn.softmax(fw.astype(x, "float32"), axis=1) * 3
        centred = y - fw.mean(y, axis=0, keepdims=True)
        return fw.astype(centred, "float16")

    for shape in (ODD, (4, *ODD[::-1])):
        program = fw.compile(fw.trace(f, fw.TensorSpec(shape, "float16")))
        assert stored(program) == [0, 1]
        check(program, shape, "float16")


def test_small_functions_of_results_are_stored_in_place_of_these() -> None:
    """A mean and a deviation are as large as the sums that they are made of, which each of 67 rows
    would divide and take the root of again."""

    def f(x: Any) -> Any:
        centred = x - fw.mean(x, axis=0, keepdims=True)
        deviation = fw.sqrt(fw.mean(centred * centred, axis=0, keepdims=True) + 1e-5)
        y = fw.exp(-fw.abs(centred / deviation))
        return y / fw.max(y, axis=1, keepdims=True)

    for shape in (ODD, (40, *ODD)):
        program = fw.compile(fw.trace(f, fw.TensorSpec(shape, "float32")))
        first, second = program.launches
        assert len(first.kernel.outputs) == 2
        names = [t.op.fn for t in operations(second) if isinstance(t.op, Pointwise)]
        assert "sqrt" not in names
        assert names.count("div") == 2  # by the deviation, and by the maximum
        check(program, shape)


def test_a_scan_computes_again_what_it_scans() -> None:
    def f(x: Any) -> Any:
        return fw.cumulative_sum(rounded(x, 1), axis=0)

    program = fw.compile(fw.trace(f, fw.TensorSpec(ODD, "float32")))
    assert stored(program) == [0, 1]
    check(program, ODD)


def test_results_that_are_as_large_as_what_is_made_of_them_are_not_stored() -> None:
    """Two sums of every three elements, written and read, are more bytes than the elements."""

    def f(x: Any) -> Any:
        return fw.cumulative_sum(fw.nn.softmax(x, axis=1) * 3, axis=2)

    shape = (5, 3, 77)
    program = fw.compile(fw.trace(f, fw.TensorSpec(shape, "float32")))
    assert stored(program) == [1, 1]
    check(program, shape)


def test_a_reduction_and_its_reader_read_one_value() -> None:
    """The sizes of what another kernel stores are reduced, and it is read itself: one kernel knows
    that both lie along the same axes."""

    def f(x: Any) -> Any:
        return rounded(fw.cumulative_sum(x, axis=1), 1)

    program = fw.compile(fw.trace(f, fw.TensorSpec(ODD, "float32")))
    assert stored(program) == [1, 1]
    check(program, ODD)


def test_sizes_of_parts_of_a_softmax_are_reduced_beside_it() -> None:
    def f(x: Any) -> Any:
        return rounded(fw.maximum(fw.nn.softmax(x, axis=2), 0.001), 0)

    shape = (8, 5, 203)
    program = fw.compile(fw.trace(f, fw.TensorSpec(shape, "float32")))
    assert stored(program) == [0, 1]
    check(program, shape)


def test_readers_of_functions_of_results_find_what_the_oracle_does() -> None:

    def f(x: Any, y: Any) -> tuple[Any, Any, Any]:
        p, q = fw.nn.softmax(x, axis=0), fw.nn.softmax(y, axis=0)
        return p, q, fw.sum(fw.astype(p * 3, "float16"), axis=1, dtype="float32")

    spec = fw.TensorSpec(SHAPE, "float32")
    program = fw.compile(fw.trace(f, spec, spec))
    x, y = np.random.default_rng(1).standard_normal((2, *SHAPE)).astype(np.float32)
    found = program.simulate(x, y)
    for got, want in zip(found.outputs, fw.evaluate(program.fusion, x, y), strict=True):
        np.testing.assert_allclose(got, want, rtol=2e-3, atol=1e-6)


def test_what_a_kernel_read_and_now_makes_keeps_its_axes() -> None:
    fusion = fw.trace(lambda x: fw.sum(fw.abs(x * 2), axis=0), fw.TensorSpec(ODD, "float32"))
    (total,) = fusion.outputs
    (sizes,) = total.op.operands
    g = FusionGroup(0, AxisGraph())
    assert add(g, total) is None
    read = g.axes[sizes]
    assert add(g, sizes) is None
    assert sizes in g.members and list(g.sources) == [*sizes.op.operands]
    assert [g.graph.normal(c) for c in read] == [g.graph.normal(c) for c in g.axes[sizes]]


def test_pieces_of_joins_are_made_where_they_end_up() -> None:
    """The kernel of the softmax writes its part of the result, which nobody then reads."""

    def f(x: Any, y: Any) -> Any:
        return fw.concat([fw.nn.softmax(x, axis=1), fw.exp(y)], axis=0)

    spec = fw.TensorSpec(ODD, "float32")
    program = fw.compile(fw.trace(f, spec, spec))
    assert program.host.stats["bytes_moved"] == 4 * 4 * ODD[0] * ODD[1]
