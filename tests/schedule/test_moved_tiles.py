"""What goes to other places goes through a tile where its input is fast along another dimension
than the result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fusewright as fw
from fusewright.gates.code import code_problems
from fusewright.kir.ir import Load, Memory
from fusewright.kir.traverse import walk_statements

MOVES: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "flip both": (lambda x: fw.flip(x) * 2, lambda x: np.flip(x) * 2),
    "flip rows": (lambda x: fw.flip(x, axis=0) + 1, lambda x: np.flip(x, 0) + 1),
    "roll": (lambda x: fw.roll(x, 17, axis=1) * 2, lambda x: np.roll(x, 17, 1) * 2),
    "roll plus itself": (lambda x: fw.roll(x, 5, axis=0) + x, lambda x: np.roll(x, 5, 0) + x),
    "pad edge": (
        lambda x: fw.pad(x, ((0, 0), (5, 3)), mode="edge") * 2,
        lambda x: np.pad(x, ((0, 0), (5, 3)), mode="edge") * 2,
    ),
}


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("shape", [(136, 264), (131, 257)])
@pytest.mark.parametrize("name", MOVES)
def test_moves_of_a_transposed_input_go_through_tiles(
    name: str, shape: tuple[int, int], dtype: str
) -> None:
    fn, want = MOVES[name]
    rows, columns = shape
    program = fw.compile(fw.trace(lambda x: fn(x.T), fw.TensorSpec((columns, rows), dtype)))
    (k,) = program.kernels
    assert k.heuristic is not None and k.heuristic.scheduler == "transpose"
    assert code_problems(k) == []
    x = np.random.default_rng(rows).integers(-9, 9, (columns, rows))
    x = x.astype(getattr(fw, dtype).numpy)
    result = program.simulate(x)
    assert not result.races
    np.testing.assert_array_equal(
        result.outputs[0].astype(np.float64), want(x.T.astype(np.float64))
    )
    found = fw.verify(k, x)
    assert not found.missing and not found.redundant


SHIFTS: dict[str, Callable[[Any], Any]] = {
    "crop": lambda x: x[4:, 8:] * 2,
    "shift and itself": lambda x: fw.pad(x, ((0, 0), (1, -1))) + x,
    "pad": lambda x: fw.pad(x, ((1, 0), (5, 3)), constant_values=7) * 2,
    "neighbours": lambda x: x[2:] - x[:-2] + x[1:-1],
    "neighbours across": lambda x: x[:, 1:] - x[:, :-1],
}


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("name", SHIFTS)
def test_crops_and_pads_of_an_argument_that_lies_across_go_through_tiles(
    name: str, dtype: str
) -> None:
    """The loads of a tile, or those beside it, are shifted; a copy in the order of axes is none."""
    spec = fw.TensorSpec((136, 264), dtype, strides=(1, 136))
    fusion = fw.trace(SHIFTS[name], spec)
    program = fw.compile(fusion)
    (k,) = program.kernels
    assert k.heuristic is not None and k.heuristic.scheduler == "transpose"
    x = np.random.default_rng(3).integers(-9, 9, (264, 136)).astype(spec.dtype.numpy).T
    result = program.simulate(x)
    assert not result.races
    (want,) = fw.evaluate(fusion, x)
    np.testing.assert_array_equal(result.outputs[0], want)
    assert not k.resources().spill_stores


def test_what_is_shifted_by_whole_words_is_read_in_words() -> None:
    """Rows are whole words of four elements, and so is what the pad puts before them."""
    spec = fw.TensorSpec((516, 256), "bfloat16", strides=(1, 516))
    (k,) = fw.compile(fw.trace(lambda x: fw.pad(x, ((4, 0), (3, 5))) * 2, spec)).kernels
    reads = [
        s for s in walk_statements(k.ir) if isinstance(s, Load) and s.src.memory is Memory.GLOBAL
    ]
    assert reads and all(s.width == 4 and not s.lanes.is_cut for s in reads)


def test_what_two_coordinates_decide_is_read_as_it_lies() -> None:
    """The place along an axis depends on both coordinates: no tile holds it."""

    def diagonal(x: Any) -> Any:
        r = fw.arange(128)
        return fw.take_along_axis(x.T, (r[:, None] + r[None, :]) % 128, axis=1)

    program = fw.compile(fw.trace(diagonal, fw.TensorSpec((128, 128), "float32")))
    x = np.random.default_rng(0).standard_normal((128, 128)).astype(np.float32)
    r = np.arange(128)
    want = np.take_along_axis(x.T, (r[:, None] + r[None, :]) % 128, axis=1)
    np.testing.assert_array_equal(program.simulate(x).outputs[0], want)


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [((253, 8, 64), "float64"), ((250, 64, 64), "float32"), ((64, 999, 33), "int32")],
)
def test_an_output_that_is_nothing_but_moved_reads_its_tile(
    shape: tuple[int, ...], dtype: str
) -> None:
    """It is stored once, and nothing is read from it."""

    def turned(x: fw.Array) -> fw.Array:
        return fw.flip(fw.permute_dims(x, (2, 0, 1)), axis=1)

    program = fw.compile(fw.trace(turned, fw.TensorSpec(shape, dtype)))
    (kernel,) = program.kernels
    assert kernel.heuristic is not None and kernel.heuristic.scheduler == "transpose"
    x = np.random.default_rng(3).integers(-9, 9, shape).astype(dtype)
    found = program.simulate(x)
    assert found.races == []
    assert np.array_equal(found.outputs[0], np.flip(np.transpose(x, (2, 0, 1)), 1))
    report = fw.verify(program, x)
    assert report.missing == [] and report.redundant == []
