"""Lanes of a thread: 16 bytes an access, 8 lanes where some large tensor is wider than 8 bits."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fusewright as fw

SHAPE = (4096, 4096)


def lanes(f: Callable[..., Any], *specs: tuple[tuple[int, ...], str]) -> int:
    """The lanes of the first kernel."""
    program = fw.compile(fw.trace(f, *(fw.TensorSpec(s, d) for s, d in specs)))
    params = program.kernels[0].heuristic
    assert params is not None
    return int(str(dict(params.values)["vector"]))


@pytest.mark.parametrize("dtype", ["int8", "uint8", "bool", "float8_e4m3fn", "float8_e5m2"])
def test_tensors_of_8_bits_have_16_lanes(dtype: str) -> None:
    assert lanes(lambda x, y: fw.where(x == y, x, y), (SHAPE, dtype), (SHAPE, dtype)) == 16


@pytest.mark.parametrize(("other", "stored"), [("float16", 8), ("float32", 4)])
def test_a_wider_large_tensor_leaves_8(other: str, stored: int) -> None:
    """No more of a result than a word holds."""
    assert lanes(lambda x: fw.astype(x, other), (SHAPE, "int8")) == stored
    assert lanes(lambda x: fw.astype(x, "int8"), (SHAPE, other)) == 8


def test_a_small_wider_tensor_leaves_16() -> None:
    scale = (SHAPE[1:], "float16")
    assert lanes(lambda x, s: fw.astype(x * s, "int8"), (SHAPE, "int8"), scale) == 16


def test_a_small_tensor_that_no_wide_access_meets_halves_the_lanes() -> None:
    """Rows of 8*103 elements beside a vector of as many: 16 lanes read that one by one."""
    narrow, row = ((2048, 5, 824), "int8"), ((824,), "int8")
    assert lanes(lambda x, r: x & r, narrow, row) == 8
    assert lanes(lambda x, r: x & r, ((2048, 5, 832), "int8"), ((832,), "int8")) == 16


@pytest.mark.parametrize("axis", [0, 1])
def test_reductions_of_8_bits_have_16_lanes(axis: int) -> None:
    assert lanes(lambda x: fw.sum(x, axis=axis, dtype="int32"), (SHAPE, "int8")) == 16


def test_16_lanes_compute_what_they_should() -> None:
    x = np.random.default_rng(0).integers(-128, 128, (2304, 1024), dtype=np.int8)
    program = fw.compile(fw.trace(lambda x: fw.maximum(x, 3), fw.TensorSpec(x.shape, "int8")))
    (kernel,) = program.kernels
    assert kernel.heuristic is not None and dict(kernel.heuristic.values)["vector"] == 16
    result = program.simulate(x)
    assert not result.races
    np.testing.assert_array_equal(result.outputs[0], np.maximum(x, 3))
    assert kernel.resources().spill_stores == 0


@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize("columns", [712, 713])
def test_pieces_that_are_interleaved_are_read_in_vectors_of_their_own(
    columns: int, count: int
) -> None:
    """Of 8 lanes each of two pieces has 4, in a word of 8 bytes, whether rows are whole words or
    not."""
    rows = 1280

    def interleaved(*pieces: Any) -> Any:
        return fw.reshape(fw.stack(pieces, axis=2), (rows, columns * count))

    fusion = fw.trace(interleaved, *[fw.TensorSpec((rows, columns), "float16")] * count)
    (kernel,) = fw.compile(fusion).kernels
    assert kernel.heuristic is not None and dict(kernel.heuristic.values)["vector"] == 8
    loads = [x for x in str(kernel.ir).splitlines() if " load " in x]
    assert len(loads) == count and all(_elements(x) == 8 // count for x in loads)
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal((rows, columns)).astype(np.float16) for _ in range(count)]
    found = kernel.simulate(*arrays)
    assert not found.races
    np.testing.assert_array_equal(found.outputs[0], fw.evaluate(fusion, *arrays)[0])


def _elements(load: str) -> int:
    """The elements of the register that a load fills."""
    first, behind = re.findall(r"(\d+)\.\.(\d+)", load)[0]
    return int(behind) - int(first)
