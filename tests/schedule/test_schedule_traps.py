"""Schedules that look right and are not, and some that look wrong and are right.

Each is either rejected with ScheduleError or computes what the fusion means; the simulator checks
values, races and reads of what was never written. Traps that are about the axis graph alone are
in tests/axes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fusewright as fw

Shape = tuple[int, ...]


def schedule(fn: Callable[..., Any], *shapes: Shape, dtype: str = "float32") -> fw.Schedule:
    return fw.Schedule(fw.trace(fn, *[fw.TensorSpec(s, dtype) for s in shapes]))


def assert_agrees(s: fw.Schedule, *arrays: np.ndarray) -> fw.Kernel:
    """The schedule's kernel gives the fusion's outputs, without races."""
    rng = np.random.default_rng(0)
    given = arrays or tuple(
        rng.normal(size=[int(str(e)) for e in t.shape]).astype(t.dtype.numpy)
        for t in s.original.inputs
    )
    program = fw.compile(s)
    result = program.simulate(*given)
    assert result.races == []
    for got, want in zip(result.outputs, fw.evaluate(s.original, *given), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
    (kernel,) = program.kernels
    return kernel


def assert_rejected(s: fw.Schedule, match: str = "") -> None:
    with pytest.raises(fw.ScheduleError, match=match):
        s.lower()


def e_of(x: Any) -> Any:
    return fw.name(fw.exp(x), "e")


# --- loops --------------------------------------------------------------------------------------


def test_1_every_point_once_under_splits_that_do_not_divide() -> None:
    s = schedule(lambda x: fw.name(fw.exp(x), "y"), (10,))
    s["y"].split(0, 4).split(1, 3)
    assert_agrees(s)


@pytest.mark.parametrize("extent", [5, 4, 3, 9])
def test_2_an_outer_split_has_exactly_that_many_parts(extent: int) -> None:
    s = schedule(lambda x: fw.name(fw.exp(x), "y"), (extent,))
    s["y"].split(0, 4, inner=False)
    assert s["y"].axes[0] == "Serial{4}"
    assert_agrees(s)


def test_3_one_axis_cannot_run_in_two_loops() -> None:
    s = schedule(lambda x, y: (fw.name(x + y, "a"), fw.name(x * y, "b")), (4, 3), (4, 3))
    s["a"].merge(0)
    s["b"].split(0, 2)
    s.transform_like(s["a"])
    assert_agrees(s)


def test_4_a_loop_cannot_reduce_and_keep() -> None:
    s = schedule(lambda x: fw.name(fw.sum(x, axis=1), "y"), (4, 6))
    with pytest.raises(fw.ScheduleError, match="a reduced and a kept axis"):
        s["y"].merge(0)
    assert_agrees(s)


def test_4_neither_through_another_tensor() -> None:
    def program(a: Any, b: Any) -> Any:
        product = fw.name(fw.expand_dims(a, 2) * b, "p")
        return fw.name(fw.sum(product, axis=1), "y")

    s = schedule(program, (5, 4), (4, 3))
    s["p"].merge(0)
    s.transform_like(s["p"])
    assert_agrees(s)


def test_4_a_loop_that_is_cut_from_one_trip_repeats_no_exchange() -> None:
    def halved(order: list[int]) -> fw.Schedule:
        s = schedule(lambda x: fw.name(fw.name(fw.sum(x, axis=1), "m") * 2.0, "y"), (4, 64))
        s["m"].split(1, 64)
        s["m"].split(1, 2)  # of one trip
        s["m"].parallelize(3, fw.TIDx)
        s["m"].reorder(order)
        return s

    assert_agrees(halved([0, 1, 2, 3]))
    with pytest.raises(fw.ScheduleError, match="m: loop 3 runs over no element, as it is cut from"):
        halved([0, 1, 3, 2]).lower()


# --- sharing loops ------------------------------------------------------------------------------


def centred(x: Any) -> Any:
    h = fw.name(fw.exp(x), "h")
    return fw.name(h - fw.name(fw.sum(h, axis=1, keepdims=False), "m")[:, None], "y")


def test_5_a_reduction_is_not_inlined_under_its_own_loop() -> None:
    def program(x: Any) -> Any:
        e = e_of(x)
        return fw.name(e - fw.name(fw.sum(e, axis=0), "m"), "y")

    s = schedule(program, (6,))
    (spread,) = [t for t in s.tensors if t.name not in ("x", "e", "m", "y")]
    spread.inline_at(s["y"], 1)
    with pytest.raises(fw.ScheduleError):
        s["m"].inline_at(spread, 1)
    assert_agrees(s)


def test_6_nor_by_inlining_what_both_read() -> None:
    s = schedule(centred, (4, 6))
    with pytest.raises(fw.ScheduleError):
        s["h"].inline_at(s["y"], 2)
        s.lower()
    s = schedule(centred, (4, 6))
    s.inline_most()
    assert_agrees(s)


def test_7_two_reductions_of_one_inlined_value_share_a_nest() -> None:
    def program(x: Any) -> Any:
        h = fw.name(fw.exp(x), "h")
        return fw.name(fw.sum(h, axis=1), "a"), fw.name(fw.max(h, axis=1), "b")

    s = schedule(program, (4, 6))
    h = s["h"]
    for t in (s["a"], s["b"]):
        assert len(t.axes) == 2
    h.inline_at(s["a"], 2)
    assert str(s).count("for ") == 2
    assert_agrees(s)


def test_8_two_outputs_of_one_inlined_producer_share_a_nest() -> None:
    def program(x: Any) -> Any:
        e = e_of(x)
        return fw.name(e + 1.0, "a"), fw.name(e * e, "b")

    s = schedule(program, (4, 6))
    s["e"].inline_at(s["a"], 2)
    assert str(s).count("for ") == 2
    assert_agrees(s)


def test_9_a_value_and_its_transpose() -> None:
    def program(x: Any) -> Any:
        e = e_of(x)
        return fw.name(e + fw.name(fw.permute_dims(e, (1, 0)), "t"), "y")

    inlined = schedule(program, (4, 4))
    with pytest.raises(fw.ScheduleError):
        inlined["t"].inline_at(inlined["y"], 2)
        inlined["e"].inline_at(inlined["y"], 2)
        inlined.lower()
    kept = schedule(program, (4, 4))
    kept["t"].inline_at(kept["y"], 2)
    assert_agrees(kept)
    cloned = schedule(program, (4, 4))
    clones = cloned["e"].recompute()
    assert len(clones) == 2
    cloned.inline_most()
    assert_agrees(cloned)


def test_10_a_batch_of_transposes_shares_the_batch() -> None:
    def program(x: Any) -> Any:
        e = e_of(x)
        return fw.name(e + fw.name(fw.permute_dims(e, (0, 2, 1)), "t"), "y")

    s = schedule(program, (3, 4, 4))
    y = s["y"]
    y.parallelize(0, fw.BIDx).parallelize(1, fw.TIDy).parallelize(2, fw.TIDx)
    s.transform_like(y)
    s["e"].set_memory(fw.SHARED)
    s.inline_most()
    kernel = assert_agrees(s)
    assert len(kernel.syncs) == 1


# --- views --------------------------------------------------------------------------------------


def two_views(x: Any) -> Any:
    flat = fw.name(fw.reshape(x, (24,)), "p")
    turned = fw.reshape(fw.permute_dims(x, (1, 0)), (24,))
    return fw.name(flat + turned, "y")


def test_11_two_views_of_one_tensor() -> None:
    s = schedule(two_views, (4, 6))
    s["y"].split(0, 5)
    s.transform_like(s["y"]).inline_most()
    assert_agrees(s)
    computed = schedule(lambda x: two_views(fw.exp(x)), (4, 6))
    computed.inline_most()
    assert_agrees(computed)


def test_12_the_row_of_another_loop() -> None:
    def program(x: Any, y: Any) -> Any:
        a = fw.name(x + y[:, None], "s")
        z = fw.name(fw.reshape(x, (24,))[:, None] * y[None, :], "z")
        return a, z

    s = schedule(program, (4, 6), (4,))
    s.transform_like(s["z"]).inline_most()
    assert_agrees(s)


def test_13_a_stencil_needs_its_input_whole() -> None:
    def program(x: Any) -> Any:
        e = e_of(x)
        return fw.name(e[1:] - e[:-1], "y")

    inlined = schedule(program, (16,))
    with pytest.raises(fw.ScheduleError):
        for t in inlined.tensors:
            if t.name not in ("x", "y", "e"):
                t.inline_at(inlined["y"], 1)
        inlined["e"].inline_at(inlined["y"], 1)
        inlined.lower()
    s = schedule(program, (16,))
    s["y"].parallelize(0, fw.TIDx)
    s["e"].set_memory(fw.SHARED)
    s["e"].parallelize(0, fw.TIDx)
    for t in s.tensors:
        if t.name not in ("x", "y", "e"):
            t.inline_at(s["y"], 1)
    kernel = assert_agrees(s)
    assert [x.kind for x in kernel.syncs] == ["WarpSync"]


@pytest.mark.parametrize("computed", [False, True])
def test_14_rotary_embedding(computed: bool) -> None:
    def program(x: Any, cos: Any, sin: Any) -> Any:
        h = fw.name(fw.exp(x), "h") if computed else x
        return fw.name(fw.nn.rotary_embedding(h, cos, sin), "y")

    s = schedule(program, (3, 8), (3, 4), (3, 4))
    if computed:
        s["h"].set_memory(fw.SHARED)
    s.inline_most()
    assert_agrees(s)


def test_15_a_slice_of_one_is_not_inlined_along_the_axis() -> None:
    def program(x: Any) -> Any:
        e = e_of(x)
        return fw.name(e + e[2:3], "y")

    s = schedule(program, (5,))
    with pytest.raises(fw.ScheduleError):
        s["e"].inline_at(s["y"], 1)
        s.lower()
    s = schedule(program, (5,))
    s.inline_most()
    assert_agrees(s)


def test_16_radices_that_do_not_nest() -> None:
    def program(x: Any, y: Any) -> Any:
        a, b = fw.exp(x), fw.exp(y)
        return fw.name(fw.reshape(a, (24,)) + fw.reshape(b, (24,)), "z")

    s = schedule(program, (4, 6), (6, 4))
    s["z"].split(0, 5)
    s.transform_like(s["z"]).inline_most()
    assert_agrees(s)


def test_17_a_ragged_split_under_a_view() -> None:
    s = schedule(lambda x: fw.name(fw.reshape(fw.name(fw.exp(x), "e"), (6, 4)), "y"), (24,))
    s["e"].split(0, 9)
    s.transform_like(s["e"]).inline_most()
    assert_agrees(s)


def test_18_a_view_there_and_back_is_inlined() -> None:
    def program(x: Any) -> Any:
        v = fw.name(fw.reshape(fw.name(fw.exp(x), "e"), (2, 12)), "v")
        return fw.name(fw.reshape(v, (4, 6)) + 1.0, "y")

    s = schedule(program, (4, 6))
    s.transform_like(s["y"]).inline_most()
    kernel = assert_agrees(s)
    assert "local e: float32[1]" in str(kernel.ir)


@pytest.mark.parametrize("first", [(1, 2), (-1, -2)])
def test_19_a_pad_and_its_undoing(first: tuple[int, int]) -> None:
    def program(x: Any) -> Any:
        there = fw.pad(fw.exp(x), (first,), constant_values=7.0)
        back = fw.pad(there, ((-first[0], -first[1]),), constant_values=9.0)
        return fw.name(back + 1.0, "y")

    s = schedule(program, (8,))
    s.transform_like(s["y"]).inline_most()
    assert_agrees(s)


def test_20_pads_of_two_axes_of_size_one() -> None:
    s = schedule(lambda x: fw.name(fw.pad(fw.exp(x), ((1, 2), (2, 1))), "y"), (1, 1))
    s.inline_most()
    assert_agrees(s)


# --- digits that only repeat --------------------------------------------------------------------


def test_21_a_broadcast_operand_under_a_merged_loop() -> None:
    def program(x: Any, w: Any) -> Any:
        e = e_of(x)
        return fw.name(e[:, None] + w, "y"), e

    s = schedule(program, (5,), (5, 3))
    s["y"].merge(0).split(0, 4).parallelize(0, fw.BIDx).parallelize(1, fw.TIDx)
    s.transform_like(s["y"])
    assert_agrees(s)


@pytest.mark.parametrize("merged", [False, True])
def test_22_23_a_reduction_is_not_repeated_by_loops_it_lacks(merged: bool) -> None:
    def program(x: Any, w: Any) -> Any:
        total = fw.name(fw.sum(x, axis=0), "total")
        return fw.name(total + w, "y")

    s = schedule(program, (6,), (4,))
    y = s["y"]
    if merged:
        y.split(0, 2).parallelize(1, fw.TIDx)
    else:
        y.parallelize(0, fw.TIDx)
    s.transform_like(y)
    assert_agrees(s)


@pytest.mark.parametrize(("size", "threads", "name"), [(3, 8, "max"), (7, 4, "sum"), (3, 8, "sum")])
def test_24_25_partial_reductions_over_more_threads_than_elements(
    size: int, threads: int, name: str
) -> None:
    s = schedule(lambda x: fw.name(getattr(fw, name)(x, axis=0), "y"), (size,))
    y = s["y"]
    y.split(0, threads)
    y.parallelize(1, fw.TIDx)
    if size > threads:
        s.transform_like(y.rfactor([0])).inline_most()
    assert_agrees(s, -np.ones(size, np.float32))


def test_26_padded_threads_of_a_partial_result_are_covered() -> None:
    s = schedule(lambda x: fw.name(fw.sum(x, axis=0), "y"), (12,))
    y = s["y"]
    y.split(0, 4)
    partial = y.rfactor([1])
    partial.split(0, 2).parallelize(1, fw.TIDx)
    s.transform_like(partial, [t for t in s.tensors if t.name not in ("x", "y", partial.name)])
    assert_rejected(s, "keep y_rf in shared memory")
    partial.set_memory(fw.SHARED)
    assert_agrees(s)


def test_27_initial_values_stay_in_range() -> None:
    s = schedule(lambda x: fw.name(fw.sum(x, axis=1), "y"), (2, 5))
    y = s["y"]
    y.split(0, 7).parallelize(1, fw.TIDx)
    assert_agrees(s)


def test_28_threads_that_share_a_register_of_size_one() -> None:
    def program(x: Any, w: Any) -> Any:
        return fw.name(fw.name(fw.exp(x), "e") + w, "y")

    s = schedule(program, (1,), (3,))
    s["y"].parallelize(0, fw.TIDx)
    s["e"].parallelize(0, fw.TIDx)
    (spread,) = [t for t in s.tensors if t.name not in ("x", "w", "e", "y")]
    spread.inline_at(s["y"], 1)
    assert_agrees(s)


def test_29_a_broadcast_is_not_split_between_a_loop_and_threads() -> None:
    def program(x: Any, w: Any) -> Any:
        return fw.name(fw.name(fw.exp(x), "e")[:, None] + w, "y")

    s = schedule(program, (5,), (5, 4))
    s["y"].merge(0).split(0, 4).parallelize(1, fw.TIDx)
    s.transform_like(s["y"])
    s["e"].set_memory(fw.SHARED)
    try:
        s["e"].inline_at(s["y"], 1)
    except fw.ScheduleError:
        s.inline_most()
    assert_agrees(s)


def test_30_a_producer_is_not_looped_over_the_slice_of_one_reader() -> None:
    def program(x: Any) -> Any:
        e = e_of(x)
        return fw.name(e[2:4], "a"), fw.name(e * 2.0, "b")

    s = schedule(program, (6,))
    with pytest.raises(fw.ScheduleError):
        s["e"].inline_at(s["a"], 1)
        s.lower()


def test_31_a_broadcast_inlined_under_half_a_merged_loop() -> None:
    def program(x: Any, w: Any) -> Any:
        return fw.name(fw.name(fw.exp(x)[:, None] + 0.0 * w, "e") + w, "y")

    s = schedule(program, (5,), (5, 3))
    s["y"].merge(0).split(0, 4)
    s.transform_like(s["y"])
    s["e"].inline_at(s["y"], 1)
    assert_agrees(s)


def test_32_a_gather_is_not_inlined_along_what_it_picks() -> None:
    def program(x: Any, at: Any) -> Any:
        return fw.name(fw.take(fw.name(fw.exp(x), "e"), fw.astype(at, "int32"), axis=0), "y")

    s = schedule(program, (5,), (3,))
    with pytest.raises(fw.ScheduleError):
        s["e"].inline_at(s["y"], 1)
        s.lower()
    kept = schedule(program, (5,), (3,))
    kept["e"].set_memory(fw.SHARED)
    assert_agrees(kept, np.arange(5, dtype=np.float32), np.array([4, 0, 2], np.float32))


def test_33_no_transpose_through_registers() -> None:
    def program(x: Any) -> Any:
        return fw.name(fw.permute_dims(fw.name(fw.exp(x), "e"), (1, 0)), "y")

    def bound(memory: Any) -> fw.Schedule:
        s = schedule(program, (4, 4))
        s["y"].parallelize(0, fw.TIDy).parallelize(1, fw.TIDx)
        s["e"].parallelize(0, fw.TIDy).parallelize(1, fw.TIDx)
        s["e"].set_memory(memory)
        return s

    assert_rejected(bound(fw.LOCAL), "keep e in shared memory")
    kernel = assert_agrees(bound(fw.SHARED))
    assert len(kernel.syncs) == 1


# --- several pieces -----------------------------------------------------------------------------


def test_34_a_value_beside_itself() -> None:
    s = schedule(lambda x: fw.name(fw.concat([e_of(x), fw.exp(x)], axis=0), "y"), (4,))
    s.inline_most()
    assert_agrees(s)

    def twice(x: Any) -> Any:
        e = e_of(x)
        return fw.name(fw.concat([e, e], axis=0), "y")

    s = schedule(twice, (4,))
    s.inline_most()
    assert_agrees(s)


def test_35_a_concat_under_a_split_that_does_not_divide() -> None:
    def program(x: Any, w: Any) -> Any:
        return fw.name(fw.concat([fw.exp(x), fw.name(-w, "n")], axis=0), "y")

    s = schedule(program, (5,), (3,))
    s["y"].split(0, 3)
    s.inline_most()
    assert_agrees(s)


# --- wide accesses and initial values -------------------------------------------------------------


@pytest.mark.parametrize(("left", "width"), [(1, 1), (2, 2), (4, 4)])
def test_37_a_pad_limits_the_width(left: int, width: int) -> None:
    def program(x: Any) -> Any:
        return fw.name(fw.pad(x, ((left, 8 - left),)), "y")

    s = schedule(program, (32,))
    s["y"].split(0, 4).parallelize(1, fw.Vectorize)
    if width < 4:
        assert_rejected(s, "allows")
    else:
        assert_agrees(s)
    s = schedule(program, (32,))
    s["y"].split(0, width).parallelize(1, fw.Vectorize if width > 1 else fw.Serial)
    assert_agrees(s)


def test_38_a_padded_maximum_ignores_the_pad() -> None:
    s = schedule(lambda x: fw.name(fw.max(fw.name(-fw.exp(x), "e"), axis=0), "y"), (7,))
    s["e"].split(0, 4).set_memory(fw.SHARED)
    s["y"].split(0, 4)
    assert_agrees(s)


def test_39_a_ragged_tile() -> None:
    def program(x: Any, b: Any) -> Any:
        return fw.name(fw.exp(x) * b, "y")

    s = schedule(program, (30, 13), (13,))
    y = s["y"]
    y.split(0, 16).split(2, 8).reorder([0, 2, 1, 3]).merge(2).parallelize(2, fw.TIDx)
    s.transform_like(y).inline_most()
    assert_agrees(s)


def test_41_threads_beyond_a_bound_loop_do_nothing() -> None:
    def program(x: Any, y: Any) -> Any:
        return fw.name(fw.sum(x, axis=1), "a"), fw.name(fw.exp(y), "b")

    s = schedule(program, (3, 5), (8,))
    s["a"].parallelize(0, fw.TIDx)
    s["b"].parallelize(0, fw.TIDx)
    assert_agrees(s)


def test_42_softmax_numerator_is_not_inlined_into_both_nests() -> None:
    def program(x: Any) -> Any:
        d = fw.name(fw.exp(x - fw.max(x, axis=1, keepdims=True)), "d")
        return fw.name(d / fw.name(fw.sum(d, axis=1, keepdims=True), "m"), "y")

    s = schedule(program, (4, 6))
    with pytest.raises(fw.ScheduleError):
        s["d"].inline_at(s["y"], 2)
        s.lower()
    s = schedule(program, (4, 6))
    s["y"].parallelize(0, fw.BIDx).parallelize(1, fw.TIDx)
    s.transform_like(s["y"]).inline_most()
    assert_agrees(s)
