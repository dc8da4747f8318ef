"""What random programs and schedules found, each as the smallest case that showed it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fusewright as fw
from fusewright.dtypes import dtype_of
from fusewright.host.form import connected
from fusewright.verify import random_cases, random_values

Spec = fw.TensorSpec


def arrays(specs: tuple[fw.TensorSpec, ...], **sizes: int) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    shapes = [tuple(sizes.get(str(n), n) for n in s.shape) for s in specs]
    return [
        random_values(rng, shape, s.dtype)  # type: ignore[arg-type]
        for shape, s in zip(shapes, specs, strict=True)
    ]


def assert_compiles_right(
    fn: Callable[..., Any], *specs: fw.TensorSpec, **sizes: int
) -> fw.Program:
    """The compiled program gives the fusion's outputs, without races."""
    fusion = fw.trace(fn, *specs)
    program = fw.compile(fusion)
    given = arrays(specs, **sizes)
    assert_agrees(program, fusion, given)
    return program


def assert_agrees(program: fw.Program, fusion: fw.Fusion, given: list[np.ndarray]) -> None:
    result = program.simulate(*given)
    assert result.races == []
    for got, want in zip(result.outputs, fw.evaluate(fusion, *given), strict=True):
        assert got.dtype == want.dtype and got.shape == want.shape
        np.testing.assert_allclose(
            got.astype(np.float64), want.astype(np.float64), rtol=1e-5, atol=1e-6
        )


def assert_schedule_agrees(s: fw.Schedule, *specs: fw.TensorSpec) -> None:
    assert_agrees(fw.compile(s), s.original, arrays(specs))


# --- programs -----------------------------------------------------------------------------------


def test_a_gather_along_the_fast_axis_reads_no_vectors() -> None:
    assert_compiles_right(
        lambda x, i: fw.take(x, i, axis=3, mode="fill"),
        fw.TensorSpec(("n", 1, 3, 1), "uint64"),
        fw.TensorSpec((1,), "int64"),
        n=5,
    )


def test_rows_of_a_gather_are_read_in_vectors() -> None:
    specs = fw.TensorSpec((512, 1024), "float32"), fw.TensorSpec((4096,), "int64")
    (kernel,) = fw.compile(fw.trace(lambda x, i: fw.take(x, i, axis=0), *specs)).kernels
    assert "vector=4" in str(kernel.heuristic)
    assert "[0..4] = load x[" in str(kernel.ir)


@pytest.mark.parametrize("dtype", ["float8_e4m3", "float8_e5m2", "bfloat16"])
def test_arrays_of_short_floats_have_strides(dtype: str) -> None:
    assert_compiles_right(lambda x: fw.flip(x, axis=0), Spec((5, 3), dtype, strides=(1, 5)))


@pytest.mark.parametrize("source", ["float8_e4m3", "float16", "float32", "float64"])
@pytest.mark.parametrize("target", ["uint64", "uint8", "int8", "int64"])
def test_casts_to_integers_saturate(source: str, target: str) -> None:
    x = np.array([-300, -1.5, 0.5, 300, np.nan], np.float64).astype(dtype_of(source).numpy)
    fusion = fw.trace(lambda x: fw.astype(x, target), Spec((5,), source))
    (got,) = fw.compile(fusion).simulate(x).outputs
    (want,) = fw.evaluate(fusion, x)
    np.testing.assert_array_equal(got, want)
    assert got[4] == 0 and got[2] == 0


def test_a_size_that_is_no_axis_of_a_kernels_input() -> None:
    def program(x: Any) -> Any:
        return fw.tanh(fw.floor(x))[::2, 2::3], fw.flip(fw.sin(x), axis=0)

    assert_compiles_right(program, Spec(("n", "m"), "float32"), n=3, m=8)
    assert_compiles_right(lambda x: (fw.exp(x), fw.zeros(x.shape)), Spec(("n",), "float32"), n=5)


@pytest.mark.parametrize("shape", [(7, 2, 0), (0, 33, 7), (0,)])
def test_arrays_without_elements_need_no_kernel(shape: tuple[int, ...]) -> None:
    program = assert_compiles_right(lambda x: (fw.signbit(x), fw.exp(x)), Spec(shape, "float32"))
    assert program.kernels == []


def test_what_is_computed_from_nothing_is_a_literal() -> None:
    def program(x: Any, y: Any) -> Any:
        total = fw.sum(x, axis=1)
        padded = fw.pad(x, ((0, 0), (1, 1)), constant_values=3.0)
        return total, padded, fw.concat([x, y], axis=1), fw.matmul(x, fw.zeros((0, 2)))

    assert_compiles_right(program, Spec((3, 0), "float32"), Spec((3, 2), "float32"))


@pytest.mark.parametrize("dtype", ["float32", "int8", "float8_e4m3"])
def test_a_pad_of_one_value_has_its_border(dtype: str) -> None:
    def program(x: Any) -> Any:
        zeros = fw.zeros_like(x)
        return fw.pad(zeros, ((2, 1), (0, 3)), constant_values=1), fw.pad(zeros[1:], -1)

    compiled = assert_compiles_right(program, Spec((4, 5), dtype))
    border, inner = compiled.simulate(np.ones((4, 5), dtype_of(dtype).numpy)).outputs
    assert border.astype(np.float64).sum() == 7 * 8 - 4 * 5 and inner.shape == (1, 3)


def test_a_scan_of_one_element() -> None:
    assert_compiles_right(lambda x: fw.cumulative_sum(x, axis=1), Spec((3, 1), "float32"))
    assert_compiles_right(
        lambda x: fw.cumulative_prod(x, axis=0, include_initial=True), Spec((1,), "float32")
    )


def test_a_value_returned_twice() -> None:
    def program(x: Any) -> Any:
        e = fw.exp(x)
        return e, e, fw.broadcast_to(e, (7, 2)), x, x

    assert_compiles_right(program, Spec((7, 2), "float32"))
    assert_schedule_agrees(
        fw.Schedule(fw.trace(program, Spec((7, 2), "float32"))), Spec((7, 2), "float32")
    )


def test_one_coordinate_along_rows_and_columns() -> None:
    def program(q: Any, k: Any, v: Any) -> Any:
        return fw.nn.scaled_dot_product_attention(q, k, v, is_causal=True)

    assert_compiles_right(program, *[Spec((1, 2, n), "float32") for n in (2, 2, 5)])


def test_symbolic_rows_beside_themselves() -> None:
    def program(x: Any) -> Any:
        return fw.nn.relu(fw.concat([x, x], axis=-2))

    assert_compiles_right(program, Spec((5, 2, "n"), "float32"), n=8)


def test_halves_of_a_kernel_fall_apart_where_nothing_connects_them() -> None:
    fusion = fw.trace(
        lambda x, y: (fw.exp(x) + 1.0, fw.sin(y)), Spec((3,), "float32"), Spec((4,), "float32")
    )
    inner = [t for t in fusion.values if t not in fusion.inputs]
    parts = connected(inner)
    assert len(parts) == 2
    assert sorted(t.name for p in parts for t in p) == sorted(t.name for t in inner)


def test_witnesses_with_symbolic_sizes_are_small() -> None:
    fusion = fw.trace(fw.exp, Spec(("n", "m", 5), "float32"))
    (kernel,) = fw.compile(fusion).kernels
    for case in random_cases(kernel, 0):
        assert all(np.asarray(a).size <= 1 << 18 for a in case.arrays.values())


# --- schedules ----------------------------------------------------------------------------------


def test_a_padded_loop_reads_registers_that_exist() -> None:
    specs = (Spec((10, 4), "float32"), Spec((4, 3), "float32"))
    s = fw.Schedule(fw.trace(fw.matmul, *specs))
    product = s.tensors[-2]
    product.split(2, 4)
    assert_schedule_agrees(s, *specs)


def test_a_literal_in_shared_memory() -> None:
    spec = Spec((4,), "float32")
    s = fw.Schedule(fw.trace(lambda x: fw.maximum(x, 2.0), spec))
    literal = next(t for t in s.tensors if t not in (*s.inputs, *s.outputs))
    literal.set_memory(fw.SHARED)
    assert_schedule_agrees(s, spec)


def test_transform_like_gives_no_reduction_a_mixed_loop() -> None:
    specs = (Spec((5, 5), "float32"), Spec((5, 3), "float32"))
    s = fw.Schedule(fw.trace(fw.matmul, *specs))
    left = next(t for t in s.tensors if len(t.axes) == 3)
    left.merge(-2, 0)
    s.transform_like(left)
    assert_schedule_agrees(s, *specs)


def test_inputs_that_nothing_reads() -> None:
    specs = (Spec((4,), "float32"), Spec((3,), "float32"))
    assert_schedule_agrees(fw.Schedule(fw.trace(lambda x, unused: fw.exp(x), *specs)), *specs)


def test_a_scan_walks_its_axis_in_order_in_one_thread() -> None:
    spec = Spec((4, 8), "float32")
    fusion = fw.trace(lambda x: fw.name(fw.cumulative_sum(x, axis=1), "y"), spec)
    s = fw.Schedule(fusion)
    s["y"].split(1, 4, inner=False)
    with pytest.raises(fw.ScheduleError, match="visit the scanned axis out of order"):
        s["y"].reorder([0, 2, 1])
    with pytest.raises(fw.ScheduleError, match="cannot be bound to TIDx"):
        s["y"].parallelize(1, fw.TIDx)
    s["y"].parallelize(0, fw.TIDx)
    assert_schedule_agrees(s, spec)


def test_transform_like_leaves_scans_in_order() -> None:
    spec = Spec((4, 8), "float32")

    def program(x: Any) -> Any:
        e = fw.name(fw.exp(x), "e")
        return fw.name(fw.cumulative_sum(e, axis=1), "y")

    s = fw.Schedule(fw.trace(program, spec))
    s["e"].parallelize(1, fw.TIDx)
    s["e"].set_memory(fw.SHARED)
    s.transform_like(s["e"])
    assert_schedule_agrees(s, spec)


def test_a_slice_of_one_stands_where_it_was_cut() -> None:
    spec = Spec((2, 4), "float32")

    def program(x: Any) -> Any:
        e = fw.name(fw.exp(x), "e")
        last = fw.pad(e, ((-1, 0), (1, 0)), constant_values=2.0)
        return fw.name(e[0:1], "first"), fw.name(last, "last"), fw.name(fw.sum(x), "total")

    s = fw.Schedule(fw.trace(program, spec))
    s.transform_like(s["total"])
    assert_schedule_agrees(s, spec)


def test_transform_like_takes_an_inlined_tensor_out() -> None:
    spec = Spec((3, 4), "float32")

    def program(x: Any) -> Any:
        e = fw.name(fw.exp(x), "e")
        return fw.name(e + 1.0, "y"), fw.name(fw.sum(x, axis=1), "z")

    s = fw.Schedule(fw.trace(program, spec))
    s["e"].inline_at(s["y"], 2)
    s.transform_like(s["z"])
    str(s)
    assert_schedule_agrees(s, spec)


def test_a_schedule_that_is_not_legal_yet_prints_why() -> None:
    spec = Spec((3, 4), "float32")
    s = fw.Schedule(fw.trace(lambda x: fw.name(fw.name(fw.exp(x), "e") + 1.0, "y"), spec))
    s["e"].inline_at(s["y"], 2)
    s["y"].split(0, 2)
    assert str(s).startswith("not legal: e is inlined at depth 2")
    with pytest.raises(fw.ScheduleError, match="give both the same transforms"):
        s.lower()


def test_a_tensor_without_elements_is_not_scheduled() -> None:
    s = fw.Schedule(fw.trace(lambda x: fw.name(fw.exp(x), "y"), Spec((3, 0), "float32")))
    with pytest.raises(fw.ScheduleError, match="it has no elements"):
        s.outputs[0].split(0, 2)


def test_no_tile_for_a_tensor_that_is_gathered_from() -> None:
    specs = (Spec((32, 1, 624), "float32", strides=(1, 1, 32), alignment=4), Spec((1,), "int64"))
    fusion = fw.trace(lambda x, at: fw.take(x, at, axis=-2), *specs)
    program = fw.compile(fusion)
    assert [b.name for k in program.kernels for b in k.smem] == []
    x, _ = arrays(specs)
    assert_agrees(program, fusion, [x, np.zeros(1, np.int64)])


def test_an_input_that_is_an_output_runs_along_with_the_others() -> None:
    program = assert_compiles_right(lambda x: (x, fw.exp(x)), Spec((31, 640), "float32"))
    (kernel,) = program.kernels
    assert "for " not in kernel.schedule.partition("\n\n")[0]


@pytest.mark.parametrize("dtype", ["float16", "float32", "int32"])
def test_the_lanes_of_a_vectorised_scan_keep_their_own_sums(dtype: str) -> None:
    fusion = fw.trace(lambda x: fw.cumulative_sum(x, axis=1, dtype=dtype), Spec((3, 4), dtype))
    s = fw.Schedule(fusion)
    s[fusion.outputs[0].name].parallelize(-1, fw.Vectorize)
    x = np.arange(1, 13).reshape(3, 4).astype(dtype)
    (got,) = s.lower().simulate(x).outputs
    np.testing.assert_array_equal(got, np.cumsum(x, axis=1))


def test_what_is_inlined_in_loops_that_a_reader_loses_is_taken_out() -> None:
    def program(v0, v1):
        v2 = fw.sum(v1, axis=1)
        return fw.max(v2, axis=0), v0 + v0, v2[2::3]

    fusion = fw.trace(program, Spec((3, 1), "float32"), Spec((3, 1), "float32"))
    s = fw.Schedule(fusion)
    s["t4"].split(-1, 5, inner=False)
    s["t3"].inline_at(s["t4"], -1)
    s.transform_like(s["t0"], [s["t2"], s["t4"]])
    x = np.arange(3, dtype=np.float32).reshape(3, 1)
    for got, want in zip(s.lower().simulate(x, x).outputs, fw.evaluate(fusion, x, x), strict=True):
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("factor", [3, 8])
@pytest.mark.parametrize("parallel", [fw.Serial, fw.Unroll, fw.TIDx, fw.BIDx])
def test_a_loop_over_nothing_inside_a_reduction_adds_nothing(factor: int, parallel: Any) -> None:
    s = fw.Schedule(fw.trace(lambda x: fw.sum(x, axis=0), Spec((5,), "float32")))
    s.outputs[0].split(0, 1).split(1, factor).parallelize(-1, parallel)
    (got,) = s.lower().simulate(np.arange(5, dtype=np.float32)).outputs
    assert got == 10


def test_lanes_over_nothing_inside_a_reduction_are_refused() -> None:
    s = fw.Schedule(fw.trace(lambda x: fw.sum(x, axis=0), Spec((5,), "float32")))
    s.outputs[0].split(0, 1).split(1, 4).parallelize(-1, fw.Vectorize)
    with pytest.raises(fw.ScheduleError, match=r"Vectorize\(4\) on t0: its access to t0"):
        s.lower()


# --- layouts whose elements share memory --------------------------------------------------------


@pytest.mark.parametrize("strides", [(0, 1), (2, 1), (3, 3)])
def test_what_shares_memory_takes_no_other_values(strides: tuple[int, int]) -> None:
    fusion = fw.trace(lambda x: x + 1.0, Spec((3, 4), "float32", strides=strides, alignment=4))
    program = fw.compile(fusion)
    memory = np.arange(16, dtype=np.float32)
    shared = np.lib.stride_tricks.as_strided(memory, (3, 4), [4 * s for s in strides])
    assert_agrees(program, fusion, [shared])
    assert fw.verify(program).ok
    with pytest.raises(fw.UserError, match="elements share memory, and the array has other values"):
        program.simulate(np.arange(12, dtype=np.float32).reshape(3, 4))


@pytest.mark.parametrize("wrong", [[1.0, 2.0], np.ma.masked_array([1.0, 2.0], [True, False]), None])
def test_simulate_takes_arrays_of_numpy(wrong: Any) -> None:
    program = fw.compile(fw.trace(lambda x: x + 1.0, Spec((2,), "float32")))
    for call in (program.simulate, program.kernels[0].simulate):
        with pytest.raises(fw.UserError, match=r"argument 0.*(numpy|mask)"):
            call(wrong)


def test_long_columns_that_meet_in_their_input_share_one_pass() -> None:
    def both(x: Any) -> Any:
        return fw.max(x, axis=0), fw.sum(x * x, axis=0)

    fusion = fw.trace(both, Spec((8192, 128), "float32"))
    program = fw.compile(fusion)
    assert all("local float32[4096]" not in str(x.kernel.ir) for x in program.launches)
    x = np.random.default_rng(0).normal(size=(8192, 128)).astype(np.float32)
    found = program.simulate(x).outputs
    for got, want in zip(found, fw.evaluate(fusion, x), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4)
    first = program.launches[0].kernel
    assert len(first.inputs) == 1 and len(first.outputs) == 2, "x is read once"


def test_a_thread_that_would_hold_a_whole_array_is_refused() -> None:
    s = fw.Schedule(fw.trace(lambda x: fw.sum(fw.exp(x) * x, axis=0), Spec((8192, 8), "float32")))
    with pytest.raises(fw.ScheduleError, match=r"a thread would hold 65,536 elements, 4,096 at"):
        s.lower()


def test_lanes_that_gather_one_by_one_have_conditions_of_their_own() -> None:
    """A vector at the end of the rows has lanes that do not exist; each looks at its own index."""
    specs = (Spec((1, "m"), "float32"), Spec((3, "m"), "int64"))
    fusion = fw.trace(lambda x, at: fw.take_along_axis(x, at, axis=0), *specs)
    program = fw.compile(fusion)
    for m in (2, 7):
        x = np.arange(m, dtype=np.float32).reshape(1, m)
        assert_agrees(program, fusion, [x, np.zeros((3, m), np.int64)])


def test_reductions_of_one_reshaped_input_run_side_by_side() -> None:
    fusion = fw.trace(lambda x: (fw.min(x), fw.max(x)), Spec((1024, 1024), "float32"))
    program = fw.compile(fusion)
    first = program.launches[0].kernel
    assert len(first.outputs) == 2 and str(first.schedule).count("(x)") == 1  # read once
    x = np.random.default_rng(0).normal(size=(1024, 1024)).astype(np.float32)
    for got, want in zip(program.simulate(x).outputs, fw.evaluate(fusion, x), strict=True):
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("shape", [(128, 33), (64, 66), (128, 3, 11)])
def test_totals_are_shared_by_threads_that_divide_no_axis(shape: tuple[int, ...]) -> None:
    """352 threads walk over rows of 33: 32 of them over rows, 11 over a part of one."""
    program = assert_compiles_right(lambda x: fw.sum(x), Spec(shape, "float32"))
    assert len(program.launches) == 1


@pytest.mark.parametrize("columns", [5, 6, 8])
def test_vectors_of_a_gathered_row(columns: int) -> None:
    """A row that data names begins at any element; its vectors are cut out of two words."""
    specs = (Spec((3, columns), "float32"), Spec((1,), "int32"))
    fusion = fw.trace(lambda x, i: fw.cumulative_sum(fw.take(x, i, axis=0), axis=1), *specs)
    program = fw.compile(fusion)
    x = np.random.default_rng(0).standard_normal((3, columns)).astype(np.float32)
    for row in range(3):
        assert_agrees(program, fusion, [x, np.array([row], np.int32)])


@pytest.mark.parametrize("columns", [30, 63])
def test_loads_that_are_put_first_bring_the_views_they_read(columns: int) -> None:
    """A join of which a function lies the other way round in memory reads a view of its piece."""

    def joined(s: Any, x: Any) -> Any:
        c = fw.concat([s[:, None], x], axis=1)
        return fw.nn.softmax(c, axis=-1), c

    specs = Spec((9,), "float32"), Spec((9, columns), "float32")
    fusion, given = fw.trace(joined, *specs), arrays(specs)
    program = fw.compile(fusion, out_layouts=[(1, 0), None])
    result = program.simulate(*given)
    assert result.races == [] and len(program.launches) == 1
    first, second = fw.evaluate(fusion, *given)
    np.testing.assert_allclose(result.outputs[0], first, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(result.outputs[1], second)


@pytest.mark.parametrize("columns", [2, 7, 40])
def test_a_size_that_divides_an_address_is_no_loop(columns: int) -> None:
    """Distances between neighbours are asked with all loops at 0, but a size is never 0."""
    assert_compiles_right(
        lambda x: fw.nn.softmax(fw.roll(x, 5, axis=1), axis=-1),
        Spec((5, "n"), "float32"),
        n=columns,
    )


@pytest.mark.parametrize("columns", [2, 9])
def test_axes_of_size_one_beside_a_size_that_may_be_one(columns: int) -> None:
    """`n - 1` elements as a row of a matrix: whether n is 2 does not matter for where they lie."""

    def joined(x: Any) -> Any:
        row = fw.sum(x, axis=0, keepdims=True)
        return fw.concat([row, row[:, 1:]], axis=1)

    assert_compiles_right(joined, Spec((4, "n"), "float32"), n=columns)


def test_sums_of_lanes_that_are_repeated_along_a_join_are_whole() -> None:
    """The second piece of the join is a sum of each row alone. A thread has two neighbours of one
    row of 65, each with an accumulator: both are added to, also where neither begins its row."""

    def fn(a: fw.Array, b: fw.Array) -> fw.Array:
        y = fw.matmul(a[:, ::2], b)
        return fw.concat([y, y[:, :1]], axis=-1)

    program = assert_compiles_right(fn, Spec((16, 4), "float32"), Spec((2, 64), "float32"))
    assert len(program.launches) == 1
