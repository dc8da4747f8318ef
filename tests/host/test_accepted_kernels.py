"""Programs whose kernels lowering once refused after formation had accepted them. In every test
the fixture of `tests/conftest.py` fails where lowering refuses one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fusewright as fw

S = fw.TensorSpec


def row_and_one_more_pass(x: Any, w: Any, b: Any) -> Any:
    """The weights are read in the last pass only: nothing of them outlives a trip over the row."""
    return fw.any(fw.nn.rms_norm(x, (20000,), w, 1e-5) + b != 0)


def reshaped_behind_a_reduction(dy: Any, y: Any) -> Any:
    """Rows of 312 as rows of 16: the rows of the first shape are digits of those of the second,
    and of the box that both are."""
    wide = fw.astype(dy, "float32")
    z = wide - fw.exp(fw.astype(y, "float32")) * fw.sum(wide, axis=0, keepdims=True)
    out = fw.astype(z, "bfloat16")
    return out, fw.reshape(out, (1248, 16))


def halves_of_a_transposed_input(x: Any, c: Any, s: Any) -> Any:
    """The second half begins inside of a tile of the transposing kernel."""
    wide = [fw.astype(t, "float32") for t in (x[:, :156], x[:, 156:], c, s)]
    a, b, c, s = wide
    parts = [fw.astype(t, "float8_e5m2") for t in (a * c - b * s, b * c + a * s)]
    return fw.concat(parts, axis=1)


def statistics_along_other_axes(x: Any) -> Any:
    """What the variance reads is computed again by its own kernel; nothing of it holds together
    the kernel of the mean."""
    y = fw.astype(x, fw.float32)
    return fw.mean(y, axis=(2, 4)), fw.var(y, axis=(0, 1, 3))


def gradient_of_weights_of_windows(x: Any, mean: Any, scale: Any, g: Any) -> tuple[Any, Any]:
    """Windows are rows for a while, between the axes that are cut into parts: the parts' digits are
    those of the windows, joined again."""
    rows = fw.reshape((fw.astype(x, fw.float32) - mean) * scale, g.shape)
    wide = fw.reshape(g * rows, x.shape)
    return fw.sum(wide, axis=(0, 1, 2)), fw.sum(fw.reshape(g, x.shape), axis=(0, 1, 2))


def product_behind_a_causal_mask(q: Any, k: Any) -> Any:
    """The rows of the mask are those of the product, of which a copy of q has its own loop. One
    trip goes over the depth."""
    seen = fw.expand_dims(fw.arange(q.shape[-2]), 1) >= fw.arange(k.shape[-2])
    return fw.where(seen, fw.astype(q @ k.mT, "float32") * 0.125, -1e4)


def gradient_of_rows_at_indices(dy: Any, y: Any, x: Any, at: Any) -> Any:
    """Every row of the result walks over all indices, which have none of its columns."""
    rows = fw.reshape(dy * (1 - y * y), (6, *x.shape[1:]))
    found = fw.arange(4)[:, None] == fw.reshape(at, (6,))
    return fw.sum(fw.where(found[:, :, None, None], rows, 0), axis=1) * x


def copy_beside_a_comparison(x: Any) -> Any:
    """Both results are transposed, and run along the axes of one read of x."""
    axes = (0, 2, 3, 1)
    return fw.permute_dims(fw.copy(x), axes), fw.permute_dims(x <= 1.0, axes)


def small_product_beside_a_function_of_it(a: Any, b: Any) -> Any:
    """The first plan, whole rows that go through shared memory, does not fit; the next one does."""
    product = fw.matmul(a[:, :, :33].mT, b.mT)
    return product, fw.nn.relu(product)


def gather_beside_what_it_gathers_from(x: Any, at: Any) -> Any:
    """The rows that are gathered from are a view of what the kernel would compute."""
    rows = fw.reshape(-fw.exp(x), at.shape)
    return fw.take_along_axis(rows, at, axis=1) + rows


CASES: dict[str, tuple[Callable[..., Any], list[fw.TensorSpec], int]] = {
    "weights of the last pass": (row_and_one_more_pass, [S((20000,), "float32")] * 3, 1),
    "unaligned reshape": (reshaped_behind_a_reduction, [S((64, 312), "bfloat16")] * 2, 1),
    "product behind a mask": (
        product_behind_a_causal_mask,
        [S((2, 256, 64), "bfloat16")] * 2,
        1,
    ),
    "gradient of rows": (
        gradient_of_rows_at_indices,
        [*[S((2, 3, 3, 3), "float32")] * 2, S((4, 3, 3), "float32"), S((2, 3), "int64")],
        1,
    ),
    "copy beside a comparison": (copy_beside_a_comparison, [S((2, 96, 7, 7), "float32")], 1),
    "small product": (
        small_product_beside_a_function_of_it,
        [S((3, 33, 41), "bfloat16"), S((3, 200, 33), "bfloat16")],
        1,
    ),
    "gather": (
        gather_beside_what_it_gathers_from,
        [S((36,), "float32"), S((9, 4), "int64")],
        2,  # what is gathered from is stored
    ),
    "join inside of a tile": (
        halves_of_a_transposed_input,
        [
            S((64, 312), "float8_e5m2", strides=(1, 64), alignment=4),
            *[S((64, 156), "float8_e5m2")] * 2,
        ],
        1,
    ),
    "one tile of a product": (
        lambda a, b: a @ b,
        [S((2, 10000), "float16"), S((10000, 8), "float16")],
        2,  # of slices, and their sums
    ),
    "windows cut into parts": (
        gradient_of_weights_of_windows,
        [
            S((64, 7, 7, 96), "bfloat16"),
            *[S((64, 7, 7, 1), "float32")] * 2,
            S((64 * 49, 96), "float32"),
        ],
        2,  # of parts, and their sums
    ),
}


@pytest.mark.parametrize(("fn", "specs", "kernels"), CASES.values(), ids=CASES)
def test_one_kernel_that_is_right(
    fn: Callable[..., Any], specs: list[fw.TensorSpec], kernels: int
) -> None:
    fusion = fw.trace(fn, *specs)
    program = fw.compile(fusion)
    assert len(program.launches) == kernels
    rng = np.random.default_rng(0)
    arrays = []
    for t in specs:
        is_index = t.dtype.kind == "int"
        drawn = rng.integers(0, 4, t.shape) if is_index else rng.uniform(0.5, 1.5, t.shape)
        plain = drawn.astype(t.dtype.numpy)
        arrays.append(np.asfortranarray(plain) if t.strides == (1, 64) else plain)
    made = program.simulate(*arrays, check_races=True)
    assert not made.races
    for a, b in zip(made.outputs, fw.evaluate(fusion, *arrays), strict=True):
        tolerance = 0.13 if a.dtype.itemsize == 1 else 2e-2
        np.testing.assert_allclose(
            np.asarray(a, np.float64), np.asarray(b, np.float64), rtol=tolerance, atol=0.02
        )


def test_kernels_that_nothing_holds_together_are_apart() -> None:
    spec = S((27, 4, 56, 32, 1024), "bfloat16")
    program = fw.compile(fw.trace(statistics_along_other_axes, spec))
    assert len(program.launches) <= 4


def test_columns_that_a_row_reduction_leaves_stand_in_no_kernel_of_partial_results() -> None:
    def fn(x: Any) -> Any:
        return fw.max(x, axis=2), fw.max(x, axis=(0, 1))

    program = fw.compile(fw.trace(fn, S((233, 1664, 32, 7), "float32")))
    assert not any("cut in two" in str(r) for r in program.reasons)


def test_parts_of_a_scan_that_rows_are_scaled_for_stand_in_no_kernel_with_the_rows() -> None:
    def fn(x: Any) -> Any:
        y = x / fw.max(fw.abs(x), axis=1, keepdims=True)
        return fw.cumulative_sum(y * y, axis=0)

    program = fw.compile(fw.trace(fn, S((2097152, 11), "float16")))
    assert not any("cut in two" in str(r) for r in program.reasons)


def test_a_piece_of_no_elements_has_no_borders() -> None:
    """An axis of one element is padded in front and cropped behind: all of it is padding."""

    def program(a: Any, b: Any) -> tuple[Any, Any]:
        return fw.sum(fw.abs(a - b)), fw.pad(fw.cosh(b), ((1, -1), (-1, 0)), constant_values=1.0)

    spec = S((1, 20000), "float16")
    assert len(fw.compile(fw.trace(program, spec, spec)).launches) <= 3


@pytest.mark.parametrize(("dtype", "alignment"), [("float32", 4), ("float64", 16)])
def test_three_neighbours_are_no_vector(dtype: str, alignment: int) -> None:
    """Three lanes of 12 bytes, or of one word and a half, in memory that begins inside of words."""

    def fn(a: Any, b: Any) -> Any:
        return fw.cumulative_sum(fw.abs(fw.einsum("bij,bkj->bik", a, b)), axis=0)

    across = S((3, 3, 3), dtype, strides=(1, 3, 9), alignment=alignment)
    fusion = fw.trace(fn, S((3, 8, 3), dtype), across)
    a = np.random.default_rng(0).standard_normal((3, 8, 3)).astype(dtype)
    b = np.asfortranarray(a[:, :3])
    result = fw.compile(fusion).simulate(a, b)
    assert result.races == []
    np.testing.assert_allclose(result.outputs[0], fw.evaluate(fusion, a, b)[0], rtol=1e-5)


def turned_to_cut_it(x: Any) -> tuple[Any, Any]:
    """The axes of what is reduced are put side by side to be cut in parts. The kernel has the parts
    of a copy in registers, of which the other result is stored."""
    return x * 2, fw.max(x, axis=(0, 2))


def copied_beside_a_maximum(x: Any) -> tuple[Any, Any]:
    """A maximum along an axis of one element is the argument itself."""
    return fw.max(x, axis=1), fw.max(x, axis=(0, 2))


@pytest.mark.parametrize("kept", [1, 3])
@pytest.mark.parametrize("fn", [turned_to_cut_it, copied_beside_a_maximum])
def test_parts_of_turned_axes_are_read_with_what_else_is_computed(
    fn: Callable[..., Any], kept: int
) -> None:
    fusion = fw.trace(fn, S((16, kept, 5303), "float32", alignment=8))
    program = fw.compile(fusion)
    assert not any("cut in two" in str(r) for r in program.reasons)
    x = np.random.default_rng(0).standard_normal((16, kept, 5303)).astype(np.float32)
    made = program.simulate(x, check_races=True)
    assert not made.races
    for a, b in zip(made.outputs, fw.evaluate(fusion, x), strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_large_argument_is_copied_where_parts_of_its_turned_axes_are_reduced() -> None:
    spec = S((9443, 1, 5303), "float32", alignment=8)
    first, second = fw.compile(fw.trace(copied_beside_a_maximum, spec)).launches  # and of parts
    assert (len(first.kernel.outputs), len(second.kernel.outputs)) == (2, 1)


@pytest.mark.parametrize("shape", [(1, 16, 5303), (1, 5303, 16), (3, 1, 7001)])
def test_axes_of_one_element_in_front_of_a_cut_make_no_columns_of_rows(
    shape: tuple[int, ...],
) -> None:
    """A maximum of rows beside a sum over all, where there is one row: both are cut in parts."""
    fusion = fw.trace(
        lambda x: (fw.max(x, axis=(1, 2)), fw.sum(x * 2)), fw.TensorSpec(shape, "float32")
    )
    x = np.random.default_rng(7).standard_normal(shape).astype(np.float32)
    result = fw.compile(fusion).simulate(x)
    assert result.races == []
    for got, want in zip(result.outputs, fw.evaluate(fusion, x), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-3)
