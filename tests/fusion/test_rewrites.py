"""Passes over fusions: what they rewrite, that the meaning stays, and what they leave alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fusewright as fw
from fusewright.fusion.ir import (
    Constant,
    Pointwise,
    Reduce,
    Resize,
    Scan,
    TakeAlong,
    behind_views,
)
from fusewright.fusion.passes.chunk_reductions import chunk_reductions
from fusewright.fusion.passes.cse import cse
from fusewright.fusion.passes.decompose import decompose
from fusewright.fusion.passes.drop_identities import drop_identities
from fusewright.fusion.passes.hoist_crops import hoist_crops
from fusewright.fusion.passes.hoist_gathers import hoist_gathers
from fusewright.fusion.passes.split_reductions import split_reductions
from fusewright.target import target_of

TARGET = target_of("sm_90a")


def assert_same(before: fw.Fusion, after: fw.Fusion, *arrays: np.ndarray) -> None:
    for a, b in zip(fw.evaluate(before, *arrays), fw.evaluate(after, *arrays), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


def test_equal_values_are_computed_once_and_constants_keep_their_types() -> None:
    f = fw.trace(
        lambda x: fw.exp(x) + fw.exp(x) * 1.0 + fw.astype(x > 0, fw.float32),
        fw.TensorSpec((7,), "float32"),
    )
    shared = cse(f)
    exps = [t for t in shared.values if isinstance(t.op, Pointwise) and t.op.fn == "exp"]
    assert len(exps) == 1
    assert cse(shared) is shared
    assert_same(f, shared, np.linspace(-1, 1, 7, dtype=np.float32))


@pytest.mark.parametrize(
    ("fn", "different"),
    [
        (lambda x: (x + 1, x + 1), 2),
        (lambda x: [y := x + 1, y], 1),
        (lambda x: [y := x + 1, fw.copy(y), fw.copy(y)], 3),
        (lambda x: (fw.copy(x), x, x * 1.0), 3),
        (lambda x: [y := fw.exp(x), y * 1.0, y / 1.0], 3),
        (lambda x: [y := fw.exp(x), fw.concat([y, x])[:8]], 2),
        (lambda x: [y := fw.exp(x), fw.reshape(fw.reshape(y, (48,)), (8, 6))], 2),
        (lambda x: (fw.sum(x, axis=0), fw.sum(x, axis=0)), 2),
        (lambda x: (fw.zeros(3), fw.zeros(3)), 2),
    ],
)
def test_outputs_that_are_equal_stay_apart(fn: Callable[..., Any], different: int) -> None:
    program = fw.compile(fw.trace(fn, fw.TensorSpec((8, 6), "float32")))
    assert len(program.results) == different
    x = np.random.default_rng(0).normal(size=(8, 6)).astype(np.float32)
    result = program.simulate(x)
    assert result.races == []
    for a, b in zip(result.outputs, fw.evaluate(program.fusion, x), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5)
    assert cse(program.fusion) is program.fusion


def test_zero_and_minus_zero_are_not_shared() -> None:
    f = fw.trace(lambda x: (x * 0.0, x * -0.0), fw.TensorSpec((3,), "float32"))
    zeros = [t for t in cse(f).values if isinstance(t.op, Constant)]
    assert len(zeros) == 2


def test_operations_that_change_nothing_are_dropped() -> None:
    def f(x: fw.Array, n: fw.Array, b: fw.Array) -> tuple[fw.Array, ...]:
        return (
            fw.exp((x * 1.0 - 0.0) / 1.0),
            (n + 0) * 1 - 0,
            fw.logical_or(fw.logical_and(b, True), False),
            1.0 * x,
        )

    specs = [fw.TensorSpec((5,), d) for d in ("float32", "int32", "bool")]
    before = fw.trace(f, *specs)
    after = drop_identities(before)
    assert [t.op.fn for t in after.values if isinstance(t.op, Pointwise)] == ["exp"]
    assert after.outputs[1:] == (after.inputs[1], after.inputs[2], after.inputs[0])
    assert drop_identities(after) is after
    x = np.array([0.0, -0.0, np.inf, 1e-42, 3.5], np.float32)
    assert_same(before, after, x, np.arange(5, dtype=np.int32), x > 0)


def test_reductions_and_scans_along_axes_of_size_one_are_dropped() -> None:
    def f(x: fw.Array) -> tuple[fw.Array, ...]:
        return (
            fw.sum(x * 2.0, axis=(0, 2)),
            fw.max(x * 3.0, axis=1),
            fw.cumulative_sum(x * 4.0, axis=2),
            fw.argmin(x * 5.0, axis=0),
        )

    before = fw.trace(f, fw.TensorSpec((1, 6, 1), "float32"))
    after = drop_identities(before)
    reduced = [t.op for t in after.values if isinstance(t.op, Reduce | Scan)]
    assert [(op.fn, op.axes) for op in reduced if isinstance(op, Reduce)] == [("max", (1,))]
    assert len(reduced) == 1
    assert_same(before, after, np.array([1, np.nan, -3, 0, 2, 5], np.float32).reshape(1, 6, 1))


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "int32", "uint8"])
def test_small_powers_are_products(dtype: str) -> None:
    """An exponent is a number of each launch, and `pow` of any takes sixty instructions."""
    before = fw.trace(lambda x: tuple(x**n for n in (1, 2, 3, 4)), fw.TensorSpec((8,), dtype))
    after = drop_identities(before)
    assert [t.op.fn for t in after.values if isinstance(t.op, Pointwise)] == ["mul"] * 5
    assert after.outputs[0] is after.inputs[0] and drop_identities(after) is after
    special = [0, 1, 2, 3, 7, 100, 200, 5]
    if dtype[0] in "bf":
        special = [0.0, -0.0, np.inf, -np.inf, np.nan, -1.5, 3e-30, 1e20]
    x = np.array(special).astype(before.inputs[0].dtype.numpy)
    with np.errstate(all="ignore"):
        pairs = list(zip(fw.evaluate(before, x), fw.evaluate(after, x), strict=True))
    for a, b in pairs:
        np.testing.assert_allclose(b.astype(np.float64), a.astype(np.float64), rtol=1e-6)
        np.testing.assert_array_equal(np.signbit(a), np.signbit(b))
    (kernel,) = fw.compile(fw.trace(lambda x: x**2 + 1, fw.TensorSpec((8,), dtype))).kernels
    assert "pow" not in kernel.cuda


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_quotients_by_powers_of_two_are_products_with_the_same_bits(dtype: str) -> None:
    """A division takes nine instructions, and a literal is a number of each launch."""
    before = fw.trace(lambda x: tuple(x / n for n in (4, -0.5, 1024.0)), fw.TensorSpec((9,), dtype))
    after = drop_identities(before)
    assert [t.op.fn for t in after.values if isinstance(t.op, Pointwise)] == ["mul"] * 3
    special = [0.0, -0.0, np.inf, -np.inf, np.nan, -1.5, 6e-8, 1e-40, 5e4]
    x = np.array(special).astype(before.inputs[0].dtype.numpy)
    for a, b in zip(fw.evaluate(before, x), fw.evaluate(after, x), strict=True):
        assert a.tobytes() == b.tobytes()


@pytest.mark.parametrize("divisor", [3, 0.1, 0, np.inf, 2.0**127, 2.0**-149])
def test_other_quotients_stay(divisor: float) -> None:
    """Of the last two the factor is no normal number, or none at all."""
    before = fw.trace(lambda x: x / divisor, fw.TensorSpec((5,), "float32"))
    assert drop_identities(before) is before
    mean = fw.trace(lambda x: fw.mean(x, axis=0), fw.TensorSpec((8, 5), "float32"))
    assert drop_identities(mean) is mean


@pytest.mark.parametrize("exponent", [0.5, -1, 0, 5, 2.5])
def test_other_powers_stay(exponent: float) -> None:
    """Roots differ at -0.0 and -inf."""
    before = fw.trace(lambda x: x**exponent, fw.TensorSpec((5,), "float32"))
    assert drop_identities(before) is before


def test_a_variance_by_hand_takes_the_launches_of_one() -> None:
    def spread(x: fw.Array) -> fw.Array:
        return fw.mean((x - fw.mean(x, axis=0, keepdims=True)) ** 2, axis=0)

    spec = fw.TensorSpec((25088, 64), "float32")
    by_hand = fw.compile(fw.trace(spread, spec)).host.stats
    own = fw.compile(fw.trace(lambda x: fw.var(x, axis=0), spec)).host.stats
    assert (by_hand["launches"], by_hand["bytes_moved"]) == (own["launches"], own["bytes_moved"])


def test_operations_that_only_look_like_identities_stay() -> None:
    def f(x: fw.Array, n: fw.Array) -> tuple[fw.Array, ...]:
        return x + 0.0, 0.0 - x, 2.0 / x, n * 0

    before = fw.trace(f, fw.TensorSpec((5,), "float32"), fw.TensorSpec((5,), "int32"))
    assert drop_identities(before) is before
    kept = fw.evaluate(before, -np.zeros(5, np.float32), np.ones(5, np.int32))[0]
    assert not np.signbit(kept).any()


def test_a_quotient_of_one_is_a_reciprocal_with_the_same_bits() -> None:
    x = np.random.default_rng(5).normal(size=(300,)).astype(np.float32)
    x[:4] = 0.0, -0.0, np.inf, np.nan
    before = fw.trace(lambda x: 1.0 / x, fw.TensorSpec(x.shape, "float32"))
    after = drop_identities(before)
    functions = [t.op.fn for t in after.values if isinstance(t.op, Pointwise)]
    assert functions == ["reciprocal"]
    np.testing.assert_array_equal(fw.evaluate(after, x)[0], fw.evaluate(before, x)[0])


def test_crops_of_coordinates_are_coordinates() -> None:
    def f(x: fw.Array) -> fw.Array:
        i = fw.arange(12, dtype=fw.int32)
        mask = (i[:, None] * 2 >= i[None, :])[3:8, 1:6]
        return fw.where(mask, x, 0.0) + fw.astype(i[2:7], fw.float32)

    before = fw.trace(f, fw.TensorSpec((5, 5), "float32"))
    after = hoist_crops(before)
    assert not any(isinstance(t.op, Resize) for t in after.values)
    assert hoist_crops(after) is after
    assert_same(before, after, np.random.default_rng(0).normal(size=(5, 5)).astype(np.float32))


def test_gathers_move_above_casts() -> None:
    f = fw.trace(
        lambda x, i: fw.take_along_axis(fw.exp(fw.astype(x, fw.float32)), i, axis=1),
        fw.TensorSpec((4, 9), "float16"),
        fw.TensorSpec((4, 1), "int64"),
    )
    moved = hoist_gathers(f)
    (gather,) = [t for t in moved.values if isinstance(t.op, TakeAlong)]
    assert gather.op.operands[0] is moved.inputs[0]
    x = np.random.default_rng(0).normal(size=(4, 9)).astype(np.float16)
    assert_same(f, moved, x, np.array([[0], [8], [3], [-1]]))


def test_functions_of_two_operands_keep_their_gather() -> None:
    f = fw.trace(
        lambda x, y, i: fw.take(x + y, i, axis=0),
        *(fw.TensorSpec((9,), "float32"),) * 2,
        fw.TensorSpec((4,), "int64"),
    )
    assert hoist_gathers(f) is f


def test_variance_of_long_columns_goes_by_chunks() -> None:
    spec = fw.TensorSpec((8192, 130), "float32")
    f = cse(fw.trace(lambda x: (fw.var(x, axis=0), fw.mean(x, axis=0)), spec))
    chunked = chunk_reductions(f, TARGET)
    assert chunked is not f
    sizes = {t.op.operands[0].shape for t in chunked.values if isinstance(t.op, Reduce)}
    assert spec.shape not in {tuple(int(str(e)) for e in s) for s in sizes}
    x = np.random.default_rng(1).normal(loc=3, size=(8192, 130)).astype(np.float32)
    assert_same(f, chunked, x)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_variances_of_columns_need_one_pass_and_bear_outliers(dtype: str) -> None:
    """Each chunk is shifted by its first row: no reduction needs another's result, and where that
    row lies far off the others, it is part of what is computed."""

    def moments(x):
        y = fw.astype(x, fw.float32)
        return fw.var(y, axis=(0, 1)), fw.mean(y, axis=(0, 1))

    spec = fw.TensorSpec((16, 1024, 64), dtype)
    program = fw.compile(fw.trace(moments, spec))
    chunk = program.kernels[0]
    lines = chunk.schedule.partition("\n\n")[0].splitlines()
    assert sum("for " in line and "unrolled" not in line for line in lines) == 1
    x = np.random.default_rng(3).normal(loc=2, size=(16, 1024, 64)).astype(np.float32)
    x[0, 0] = 1e4
    x[3, 512] = -1e4
    x[:, :, 5] = 7.0
    x = x.astype(spec.dtype.numpy)
    var, mean = program.simulate(x).outputs
    want = x.astype(np.float64).reshape(-1, 64)
    np.testing.assert_allclose(mean, want.mean(axis=0), rtol=1e-4)
    np.testing.assert_allclose(var, want.var(axis=0), rtol=1e-4)
    assert var[5] == 0


def test_exponentials_of_long_rows_go_by_chunks_and_keep_infinities() -> None:
    def log_sum_exp(x):
        m = fw.max(x, axis=1, keepdims=True)
        return fw.log(fw.sum(fw.exp(x - m), axis=1)) + fw.squeeze(m, axis=1)

    f = cse(fw.trace(log_sum_exp, fw.TensorSpec((16, 131072), "bfloat16")))
    chunked = chunk_reductions(f, TARGET)
    assert chunked is not f
    x = np.random.default_rng(2).normal(size=(16, 131072)).astype(np.float32)
    x[0, :70000] = -np.inf
    x[1, 5] = np.nan
    x = x.astype(fw.bfloat16.numpy)
    got, want = fw.evaluate(chunked, x)[0], fw.evaluate(f, x)[0]
    np.testing.assert_allclose(got.astype(float), want.astype(float), rtol=1e-2)


@pytest.mark.parametrize(
    ("columns", "arch", "is_cut"),
    [
        (131072, "sm_90a", False),  # 256 KB: a cluster holds a row
        (131072, "sm_89", True),
        (1 << 20, "sm_90a", True),  # 2 MB: none does
        (65536, "sm_89", False),  # 128 KB: a block does
    ],
)
def test_rows_that_a_cluster_holds_stay_whole(columns: int, arch: str, is_cut: bool) -> None:
    spec = fw.TensorSpec((512, columns), "bfloat16")
    f = cse(decompose(fw.trace(lambda x: fw.nn.softmax(x, axis=1), spec)))
    assert (chunk_reductions(f, target_of(arch)) is not f) == is_cut


def test_all_inputs_of_a_row_count() -> None:
    """One float32 row of 512 KB fits a cluster, two do not."""
    spec = fw.TensorSpec((512, 131072), "float32")
    one = cse(decompose(fw.trace(lambda x: fw.nn.softmax(x, axis=1), spec)))
    two = cse(decompose(fw.trace(lambda x, y: fw.nn.softmax(x + y, axis=1), spec, spec)))
    assert chunk_reductions(one, TARGET) is one
    assert chunk_reductions(two, TARGET) is not two


@pytest.mark.parametrize("shape", [(512, 64), (4, 1000)])
def test_short_reductions_stay(shape: tuple[int, int]) -> None:
    f = cse(fw.trace(lambda x: fw.var(x, axis=1), fw.TensorSpec(shape, "float32")))
    assert chunk_reductions(f, TARGET) is f
    assert split_reductions(f, TARGET) is f


@pytest.mark.parametrize("axis", [0, 1, None])
def test_large_sums_are_split_and_mean_the_same(axis: int | None) -> None:
    shape = (60000, 8) if axis == 0 else (3, 200003) if axis == 1 else (700, 1001)
    f = fw.trace(lambda x: fw.sum(x, axis=axis), fw.TensorSpec(shape, "float32"))
    parts = split_reductions(f, TARGET)
    assert len([t for t in parts.values if isinstance(t.op, Reduce)]) == 2
    assert_same(f, parts, np.random.default_rng(3).normal(size=shape).astype(np.float32))


@pytest.mark.parametrize(
    ("shape", "axis"),
    [((2501, 256), None), ((400009,), None), ((300017, 3), 0)],
    ids=["parts", "padded parts", "dealt rows"],
)
def test_reductions_of_one_value_read_its_parts_once(
    shape: tuple[int, ...], axis: int | None
) -> None:
    """Parts of one kernel, whatever each of the reductions fills short ones with; and a kernel for
    both results."""

    def both(x: Any) -> Any:
        return fw.max(x, axis=axis), fw.min(x, axis=axis)

    program = fw.compile(fw.trace(both, fw.TensorSpec(shape, "float32")))
    assert len(program.launches) == 2
    x = np.random.default_rng(4).normal(size=shape).astype(np.float32)
    result = program.simulate(x)
    assert not result.races
    np.testing.assert_array_equal(result.outputs[0], x.max(axis))
    np.testing.assert_array_equal(result.outputs[1], x.min(axis))


@pytest.mark.parametrize(
    ("shape", "axes", "is_dealt"),
    [
        ((4096, 1024), 0, False),
        ((4096, 1025), 0, True),  # rows begin anywhere
        ((4099, 1024), 0, True),  # a run would be short
        ((8, 1024, 1024), (0, 1), False),
        ((1024, 4099), 1, False),  # along the fast axis
    ],
)
def test_rows_are_dealt_where_runs_are_short_or_unaligned(
    shape: tuple[int, ...], axes: int | tuple[int, ...], is_dealt: bool
) -> None:
    f = fw.trace(lambda x: fw.sum(x, axis=axes), fw.TensorSpec(shape, "float32"))
    parts = [t for t in split_reductions(f, TARGET).values if isinstance(t.op, Reduce)]
    first_is_reduced = parts[0].op.axes[0] == 0 and parts[0].op.operands[0].ndim > len(shape)
    assert (len(parts) == 2 and first_is_reduced) == is_dealt


def test_behind_views_stands_what_they_show() -> None:
    def fn(x):
        padded = fw.pad(fw.exp(x), ((0, 1), (0, 0)))
        return fw.broadcast_to(fw.reshape(padded.T, (3, 1, 5)), (3, 2, 5)), fw.flip(padded)

    shown, moved = fw.trace(fn, fw.TensorSpec((4, 3), "float32")).outputs
    assert isinstance(behind_views(shown).op, Resize)  # a pad has elements of its own
    assert behind_views(moved) is moved
