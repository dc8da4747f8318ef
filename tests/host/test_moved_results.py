"""Results of reductions and scans that are moved are stored where the move leaves them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fusewright as fw
from fusewright.core.expr import constant_value
from fusewright.fusion.ir import Concat, IndexMap, Pointwise, Resize, Tensor
from fusewright.fusion.passes.index_maps import map_of, turns_of
from fusewright.fusion.passes.narrow_moves import narrow_moves
from fusewright.fusion.passes.split_maps import split_results


def compiled(f: Callable[..., Any], shape: tuple[int, ...], dtype: str) -> fw.Program:
    """A program that does what the oracle does in the simulator, without races."""
    program = fw.compile(fw.trace(f, fw.TensorSpec(shape, dtype)))
    x = np.random.default_rng(sum(shape)).standard_normal(shape).astype(dtype)
    found = program.simulate(x)
    assert found.races == []
    (want,) = fw.evaluate(program.fusion, x)
    tolerance = 1e-4 if dtype == "float32" else 1e-2
    np.testing.assert_allclose(found.outputs[0], want, rtol=tolerance, atol=tolerance)
    return program


def numel(t: Tensor) -> int:
    return math.prod(constant_value(n) or 0 for n in t.shape)


def rounded(y: Any, axis: int) -> Any:
    """Steps of the largest size, as quantisation takes them."""
    scale = fw.max(fw.abs(y), axis=axis, keepdims=True) / 127 + 1e-6
    return fw.round(y / scale) * scale


@pytest.mark.parametrize("shape", [(612, 77), (613, 64)])
def test_a_scan_is_rolled_along_its_lines_as_it_is_stored(shape: tuple[int, ...]) -> None:
    def f(x: Any) -> Any:
        return fw.roll(fw.nn.sigmoid(fw.cumulative_sum(x, axis=0)), 28, axis=0)

    assert len(compiled(f, shape, "float32").launches) == 1


def test_rows_that_are_reduced_are_rolled_as_they_are_stored() -> None:
    def f(x: Any) -> Any:
        return fw.roll(fw.exp(-fw.abs(rounded(x, 0))), 31, axis=0)

    assert len(compiled(f, (733, 131), "float32").launches) == 1


def test_halves_of_a_scan_are_exchanged_as_they_are_stored_narrow() -> None:
    def f(x: Any) -> Any:
        y = fw.nn.sigmoid(fw.cumulative_sum(fw.astype(x, "float32"), axis=0))
        half = y.shape[1] // 2
        return fw.astype(fw.concat([-y[:, half:], y[:, :half]], axis=1), "float16")

    for shape in ((53, 134), (53, 67)):
        program = compiled(f, shape, "float16")
        assert len(program.launches) == 1
        assert {t.dtype.name for t in program.launches[0].kernel.outputs} == {"float16"}


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("shape", [(613, 77), (77, 613), (96, 96)])
def test_rows_that_are_reduced_are_flipped_as_they_are_read(
    shape: tuple[int, ...], axis: int
) -> None:
    """A reduction takes its elements in any order, so all of the kernel reads them flipped."""

    def f(x: Any) -> Any:
        return fw.flip(fw.exp(rounded(x, axis)), axis=axis)

    assert len(compiled(f, shape, "float32").launches) == 1


def test_a_rolled_argument_is_reduced_and_read_in_one_kernel() -> None:
    """The roll goes above all that is computed, and both read the argument at the same places."""

    def f(x: Any) -> Any:
        return fw.roll(fw.nn.silu(rounded(x, 1)), 1, axis=2)

    assert len(compiled(f, (3, 45, 134), "float32").launches) == 1


def test_reductions_along_both_axes_of_a_square_are_flipped() -> None:
    """The sums of rows keep the places that the flip reads, those of columns lose them."""

    def f(x: Any) -> Any:
        return fw.flip(x - fw.mean(x, axis=0, keepdims=True) * fw.max(x, axis=1), axis=0)

    compiled(f, (45, 45), "float32")


def test_all_rows_but_one_are_flipped() -> None:
    """The reduction needs the row that the flip leaves out."""
    compiled(lambda x: fw.flip(fw.exp(rounded(x, 0))[:-1], axis=0), (61, 45), "float32")


def test_turns_are_axes_of_which_all_places_are_read() -> None:
    def turned(f: Callable[..., Any]) -> list[int]:
        (t,) = traced(f).outputs
        by = map_of(t)
        assert by is not None
        return list(turns_of(by))

    assert turned(lambda x: fw.flip(x, axis=0)) == [0]
    assert turned(lambda x: fw.roll(x, (1, 2), axis=(0, 1))) == [0, 1]
    assert turned(lambda x: fw.flip(x[1:], axis=0)) == [0]
    assert turned(lambda x: fw.pad(x, ((0, 0), (2, 0)), mode="reflect")) == []


# --- the passes ---------------------------------------------------------------------------------


def traced(f: Callable[..., Any], dtype: str = "float16") -> fw.Fusion:
    return fw.trace(f, fw.TensorSpec((53, 67), dtype))


def test_casts_go_before_moves_and_joins() -> None:
    def f(x: Any) -> Any:
        y = fw.cumulative_sum(fw.astype(x, "float32"), axis=0)
        joined = fw.concat([fw.roll(-y, 3, axis=0), fw.pad(y, ((0, 0), (1, 2)))], axis=1)
        return fw.astype(joined, "float16")

    fusion = traced(f)
    found = narrow_moves(fusion)
    moved = [t for t in found.values if isinstance(t.op, Concat | IndexMap | Resize)]
    assert len(moved) == 3 and {t.dtype.name for t in moved} == {"float16"}
    x = np.random.default_rng(3).standard_normal((53, 67)).astype("float16")
    for got, want in zip(fw.evaluate(found, x), fw.evaluate(fusion, x), strict=True):
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize(
    "f",
    [
        lambda x: fw.astype(fw.roll(fw.cumulative_sum(x, axis=0), 3, axis=0), "float64"),
        lambda x: fw.astype(fw.roll(fw.exp(x), 3, axis=0), "float16"),
        lambda x: (y := fw.roll(fw.cumulative_sum(x, axis=0), 3, axis=0), fw.astype(y, "float16")),
        lambda x: fw.astype(
            fw.pad(fw.cumulative_sum(x, axis=0), 1, constant_values=0.1), "float16"
        ),
    ],
    ids=["to more bytes", "of what is moved where it is read", "read wide, too", "filled"],
)
def test_casts_stay_behind_moves(f: Callable[..., Any]) -> None:
    fusion = traced(f, "float32")
    assert narrow_moves(fusion) is fusion


def test_results_that_are_moved_run_by_run_are_joins() -> None:
    fusion = traced(lambda x: fw.roll(fw.cumulative_sum(x, axis=0), 3, axis=0), "float32")
    (joined,) = split_results(fusion).outputs
    assert isinstance(joined.op, Concat)
    assert [constant_value(o.shape[0]) for o in joined.op.operands] == [3, 50]


@pytest.mark.parametrize(
    ("widths", "axis", "sizes"),
    [
        (((0, 0), (1, 2)), 1, [1, 67, 2]),
        (((2, 3), (0, 0)), 0, [2, 53, 3]),
        (((2, 2), (4, 0)), 1, [4, 67]),
    ],
    ids=str,
)
def test_borders_of_a_result_are_pieces_beside_all_of_it(
    widths: tuple[tuple[int, int], ...], axis: int, sizes: list[int]
) -> None:
    """`2 1, 0 1 .. 52, 51 50`: the piece in the middle is the whole value."""
    fusion = traced(lambda x: fw.pad(fw.nn.softmax(x, axis=0), widths, mode="reflect"), "float32")
    parts = split_results(fusion)
    (joined,) = parts.outputs
    assert isinstance(joined.op, Concat) and joined.op.axis == axis
    assert [constant_value(o.shape[axis]) for o in joined.op.operands] == sizes
    x = np.random.default_rng(0).standard_normal((53, 67)).astype(np.float32)
    np.testing.assert_array_equal(fw.evaluate(parts, x)[0], fw.evaluate(fusion, x)[0])


BORDERS = [((0, 0), (1, 1)), ((1, 2), (1, 0)), ((2, 1), (3, 4))]


@pytest.mark.parametrize("widths", BORDERS, ids=str)
@pytest.mark.parametrize("mode", ["reflect", "edge", "symmetric", "wrap"])
def test_the_borders_of_rows_are_not_all_of_them_again(
    mode: str, widths: tuple[tuple[int, int], ...]
) -> None:
    """A softmax is stored in the middle of its pad, and what lies beside it is copied."""
    specs = [fw.TensorSpec((4096, 4096), "float32")]
    large = fw.compile(
        fw.trace(lambda x: fw.pad(fw.nn.softmax(x, axis=-1), widths, mode=mode), *specs)
    )
    least = sum(numel(t) * 4 for t in (*large.fusion.inputs, *large.fusion.outputs))
    assert large.host.stats["bytes_moved"] <= 1.05 * least


@pytest.mark.parametrize("widths", BORDERS, ids=str)
@pytest.mark.parametrize("shape", [(40, 200), (37, 333)], ids=str)
@pytest.mark.parametrize("mode", ["reflect", "edge", "symmetric", "wrap"])
def test_padded_rows_are_those_of_the_oracle(
    mode: str, shape: tuple[int, ...], widths: tuple[tuple[int, int], ...]
) -> None:
    compiled(lambda x: fw.pad(fw.nn.softmax(x, axis=-1), widths, mode=mode), shape, "float32")
    compiled(lambda x: fw.pad(fw.cumulative_sum(x, axis=1), widths, mode=mode), shape, "float32")


@pytest.mark.parametrize(
    "f",
    [
        lambda x: fw.flip(fw.cumulative_sum(x, axis=0), axis=0),
        lambda x: fw.roll(fw.exp(x), 3, axis=0),
        lambda x: fw.sum(fw.roll(fw.cumulative_sum(x, axis=0), 3, axis=0) * x, axis=0),
        lambda x: (y := fw.cumulative_sum(x, axis=0)) + fw.roll(y, 3, axis=0),
    ],
    ids=["backward", "of an argument", "of what is reduced", "read where it is made, too"],
)
def test_moves_stay_maps(f: Callable[..., Any]) -> None:
    fusion = traced(f, "float32")
    assert split_results(fusion) is fusion
    assert any(isinstance(t.op, Pointwise | IndexMap) for t in fusion.values)
