"""Gathers of what is computed of one varying operand and of values that rows share."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fusewright as fw

ROWS, COLUMNS = 37, 129


def chosen_logarithms(x: Any, i: Any) -> Any:
    return fw.take_along_axis(fw.nn.log_softmax(x, axis=-1), i[:, None], axis=-1)[:, 0]


def taken_columns(x: Any, i: Any) -> Any:
    return fw.take(fw.nn.softmax(x, axis=-1) * 2, i, axis=1)


def centred(x: Any, i: Any) -> Any:
    return fw.take(x - fw.mean(x, axis=0, keepdims=True), i, axis=0)


def stored_shapes(program: fw.Program) -> list[tuple[int, ...]]:
    """The shapes of what launches write."""
    written = (t for x in program.launches for t in x.outputs)
    return [tuple(int(str(e)) for e in t.shape) for t in written]


@pytest.mark.parametrize("fn", [chosen_logarithms, taken_columns])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_only_what_is_gathered_of_a_row_is_computed(fn: Any, dtype: str) -> None:
    specs = fw.TensorSpec((ROWS, COLUMNS), dtype), fw.TensorSpec((ROWS,), "int64")
    fusion = fw.trace(fn, *specs)
    program = fw.compile(fusion)
    assert (ROWS, COLUMNS) not in stored_shapes(program)
    rng = np.random.default_rng(0)
    x = rng.standard_normal((ROWS, COLUMNS)).astype(specs[0].dtype.numpy)
    i = rng.integers(-COLUMNS, COLUMNS, ROWS)
    found = program.simulate(x, i)
    assert found.races == []
    (want,) = fw.evaluate(fusion, x, i)
    np.testing.assert_allclose(found.outputs[0].astype(float), want.astype(float), 2e-3, 1e-3)


def test_an_index_outside_of_a_row_gives_what_it_gives_of_an_argument() -> None:
    specs = fw.TensorSpec((4, 8), "float32"), fw.TensorSpec((4,), "int64")
    fusion = fw.trace(chosen_logarithms, *specs)
    x = np.random.default_rng(1).standard_normal((4, 8)).astype(np.float32)
    i = np.array([0, 8, -9, -8])
    (found,) = fw.compile(fusion).simulate(x, i).outputs
    outside = fw.trace(lambda x, i: fw.take_along_axis(x, i[:, None], axis=-1)[:, 0], *specs)
    (plain,) = fw.compile(outside).simulate(x, i).outputs
    np.testing.assert_array_equal(found[1:3], plain[1:3])
    assert np.isfinite(found[[0, 3]]).all()


def test_what_varies_along_the_gather_beside_it_is_not_gathered_apart() -> None:
    """Two operands would be gathered one by one: their sum is stored."""
    specs = [fw.TensorSpec((ROWS, COLUMNS), "float32")] * 2
    fusion = fw.trace(
        lambda x, y, i: fw.take(x + y, i, axis=1), *specs, fw.TensorSpec((5,), "int64")
    )
    takes = [t for t in fw.compile(fusion).fusion.values if type(t.op).__name__ == "Take"]
    assert len(takes) == 1


def test_rows_of_what_columns_share_are_gathered_below() -> None:
    specs = fw.TensorSpec((ROWS, COLUMNS), "float32"), fw.TensorSpec((9,), "int64")
    fusion = fw.trace(centred, *specs)
    assert (ROWS, COLUMNS) not in stored_shapes(fw.compile(fusion))
    rng = np.random.default_rng(2)
    x = rng.standard_normal((ROWS, COLUMNS)).astype(np.float32)
    i = rng.integers(0, ROWS, 9)
    (found,) = fw.compile(fusion).simulate(x, i).outputs
    np.testing.assert_allclose(found, (x - x.mean(0))[i], 1e-5, 1e-5)
