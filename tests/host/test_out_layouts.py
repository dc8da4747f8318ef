"""Orders of axes that callers require of results."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fusewright as fw
from fusewright.core.expr import constant_value
from fusewright.driver import Kernels, compile_in_place
from fusewright.errors import ScheduleError, UserError
from fusewright.target import target_of

SHAPE = (5, 7)


def several(x: Any) -> Any:
    y = fw.name(fw.exp(x) * 2, "y")
    return y, fw.sum(y, axis=1), y, x


def traced(fn: Any = several, shape: tuple[Any, ...] = SHAPE) -> fw.Fusion:
    return fw.trace(fn, fw.TensorSpec(shape, "float32"))


def strides(program: fw.Program, name: str) -> list[list[str] | None]:
    """Required and actual strides of a value."""
    found = program.layouts[name]
    return [None if s is None else [*map(str, s)] for s in (found.required, found.actual)]


def in_elements(a: Any) -> tuple[int, ...]:
    return tuple(s // a.itemsize for s in a.strides)


def test_every_result_lies_in_its_order(tmp_path: Path) -> None:
    fusion = traced()
    made = fw.compile(fusion, out_layouts=[(1, 0), None, (0, 1), [1, 0]])
    x = np.random.default_rng(1).standard_normal(SHAPE).astype(np.float32)
    for program in (made, fw.load(made.save(tmp_path / "p.fw"))):
        result = program.simulate(x)
        assert result.races == []
        for a, b in zip(result.outputs, fw.evaluate(fusion, x), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-6)
        expected = [(1, 5), (1,), (7, 1), (1, 5)]
        assert [in_elements(a) for a in program(x, device="sim")] == expected
        assert [tuple(map(str, r.strides)) for r in program.results] == [
            tuple(map(str, s)) for s in expected
        ]
        assert strides(program, "y") == [["7", "1"], ["7", "1"]]
        assert strides(program, "y_0") == strides(program, "x_0") == [["1", "5"], ["1", "5"]]


def test_a_result_that_is_returned_once_keeps_its_name() -> None:
    program = fw.compile(traced(lambda x: fw.name(fw.exp(x), "y")), out_layouts=[(1, 0)])
    assert strides(program, "y") == [["1", "5"], ["1", "5"]]
    assert set(program.layouts) == {"x", "y"}
    assert "in the order (1, 0) of its axes, as required" in program.layouts["y"].why
    assert len(program.launches) == 1


def test_nobody_asked_and_nothing_is_promised() -> None:
    program = fw.compile(traced(lambda x: fw.name(fw.exp(x), "y")))
    assert strides(program, "y") == [None, ["7", "1"]]


def test_sizes_may_be_symbolic_and_axes_many() -> None:
    fusion = traced(fw.exp, (3, "n", 4))
    program = fw.compile(fusion, out_layouts=[(2, 0, 1)])
    x = np.random.default_rng(2).standard_normal((3, 9, 4)).astype(np.float32)
    (y,) = program(x, device="sim")
    np.testing.assert_allclose(y, np.exp(x), rtol=1e-6)
    assert in_elements(y) == (9, 1, 27)


def test_an_array_in_the_order_is_written_and_another_one_too() -> None:
    program = fw.compile(traced(fw.exp), out_layouts=[(1, 0)])
    x = np.ones(SHAPE, np.float32)
    for out in (np.empty((7, 5), np.float32).T, np.empty(SHAPE, np.float32)):
        (y,) = program(x, device="sim", out=[out])
        assert y is out
        np.testing.assert_allclose(out, np.exp(x), rtol=1e-6)


def test_a_donated_argument_holds_no_result_of_another_order() -> None:
    fusion = traced(lambda x: x * 2, (6, 6))
    assert fw.compile(fusion, donate=("x",), out_layouts=[None]).holders == (0,)
    program = fw.compile(fusion, donate=("x",), out_layouts=[(1, 0)])
    assert program.holders == (None,)
    assert "C order" in program.host.stats["not_placed"]["x"]


@pytest.mark.parametrize(
    ("orders", "message"),
    [
        ([None], "out_layouts has 1 orders for 4 outputs"),
        (
            [(0, 0), None, None, None],
            "(0, 0) is not an order of the 2 axes of output 0, y: float32[5, 7]; list each of "
            "(0, 1) once, the slowest in memory first",
        ),
        ([None, (0, 1), None, None], "(0, 1) is not an order of the 1 axes of output 1"),
    ],
)
def test_orders_that_do_not_fit(orders: list[Any], message: str) -> None:
    with pytest.raises(UserError, match=re.escape(message)):
        fw.compile(traced(), out_layouts=orders)


# --- schedules by hand --------------------------------------------------------------------------


def by_hand(order: tuple[int, ...] | None = None) -> fw.Schedule:
    s = fw.Schedule(traced(lambda x: fw.name(fw.exp(x), "y")))
    y = s["y"]
    if order is not None:
        y.set_allocation_order(order)
    y.parallelize(1, fw.TIDx)
    return s


def test_a_schedule_stores_in_the_order_that_is_required() -> None:
    program = fw.compile(by_hand((1, 0)), out_layouts=[(1, 0)])
    assert strides(program, "y") == [["1", "5"], ["1", "5"]]
    assert "the order that its schedule sets" in program.layouts["y"].why
    x = np.ones(SHAPE, np.float32)
    (y,) = program(x, device="sim")
    assert in_elements(y) == (1, 5)
    assert strides(fw.compile(by_hand((1, 0))), "y") == [None, ["1", "5"]]


@pytest.mark.parametrize(
    ("set_to", "required", "message"),
    [
        ((1, 0), None, "output 0, y, in the order (0, 1), and the schedule stores it in the order"),
        (None, (1, 0), "call s['y'].set_allocation_order((1, 0)), or require (0, 1)"),
    ],
)
def test_a_schedule_that_contradicts_what_is_required(
    set_to: tuple[int, ...] | None, required: tuple[int, ...] | None, message: str
) -> None:
    with pytest.raises(ScheduleError, match=re.escape(message)):
        fw.compile(by_hand(set_to), out_layouts=[required])


def test_a_result_that_its_kernel_calls_otherwise_lies_in_its_order() -> None:
    """A kernel that equal ones share has the names of the first; and what is stored for a result
    may be another value of the program, with the name of that."""
    x = np.random.default_rng(3).normal(size=(2, 5, 3, 4)).astype(np.float32)
    known: Kernels = {}
    for name in ("first", "second"):

        def moved(x: fw.Array, name: str = name) -> tuple[fw.Array, fw.Array]:
            a = fw.name(fw.exp(x), name)
            y = fw.permute_dims(a, (0, 2, 3, 1))
            return a, y - fw.mean(y, axis=-1, keepdims=True)

        fusion, orders = traced(moved, x.shape), [(0, 2, 3, 1), None]
        program = compile_in_place(fusion, target_of("sm_90a"), kernels=known, out_layouts=orders)
        wanted = fw.evaluate(fusion, x)
        shapes = [tuple(map(constant_value, r.shape)) for r in program.results]
        assert shapes == [a.shape for a in wanted]
        for made, expected in zip(program(x, device="sim"), wanted, strict=True):
            np.testing.assert_allclose(made, expected, rtol=1e-5, atol=1e-6)
    assert len(known) == 1
