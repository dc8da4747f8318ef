"""Vectors that end one row and begin another: their lanes are put together, not read one by one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fusewright as fw
from fusewright.kir.ir import Load, Store
from fusewright.kir.traverse import walk_statements

Function = Callable[..., Any]


def taken(x: fw.Array, i: fw.Array) -> fw.Array:
    return fw.take(x, i, axis=0) + 1


CASES: dict[str, tuple[Function, tuple[int, ...], str, int]] = {
    "flip of the rows": (lambda x: fw.flip(x, axis=(0, 2)), (8, 3000, 35), "float16", 1),
    "flip of odd rows": (lambda x: fw.flip(x, axis=1) * 2, (24000, 35), "int16", 1),
    "crop of odd rows": (lambda x: x[3:-2, 5:64] + 1, (9000, 71), "float16", 1),
    "crop of odd rows, from an odd element": (
        lambda x: x[3:-2, 5:64] + 1, (9000, 71), "float16", 2,
    ),
    "crop whose last vector is ragged": (lambda x: x[1:9000, 2:35] + 1, (9001, 37), "int16", 1),
    "crop of bytes": (lambda x: x[:, 3:70] + 1, (24000, 71), "int8", 1),
    "roll of rows": (lambda x: fw.roll(x, 3, axis=1) * 2, (24, 700, 35), "float16", 1),
    "bytes widened": (
        lambda x: fw.astype(fw.flip(x, axis=0), fw.float32), (9000, 71), "uint8", 1,
    ),
}  # fmt: skip


def compiled(name: str) -> tuple[fw.Program, np.ndarray[Any, Any]]:
    f, shape, dtype, begin = CASES[name]
    spec = fw.TensorSpec(shape, dtype, alignment=16 if begin == 1 else begin)
    program = fw.compile(fw.trace(f, spec))
    return program, np.random.default_rng().integers(0, 90, shape).astype(dtype)


@pytest.mark.parametrize("name", CASES)
def test_two_runs_of_words(name: str) -> None:
    program, _ = compiled(name)
    (kernel,) = program.kernels
    assert kernel.heuristic is not None
    source, lanes = kernel.ir.params[0], dict(kernel.heuristic.values)["vector"]
    statements = list(walk_statements(kernel.ir))
    loads = [s for s in statements if isinstance(s, Load) and s.src is source]
    assert len(loads) == 2 and {s.width for s in loads} == {lanes}
    stores = {s.width * s.dst.dtype.nbytes for s in statements if isinstance(s, Store)}
    assert 16 in stores


@pytest.mark.parametrize("name", CASES)
def test_values_are_those_of_the_oracle(name: str) -> None:
    program, x = compiled(name)
    found = program.simulate(x)
    assert found.races == []
    (wanted,) = fw.evaluate(program.fusion, x)
    same = np.asarray(found.outputs[0], np.float64) == np.asarray(wanted, np.float64)
    assert same.all()


@pytest.mark.parametrize(("rows", "columns"), [(9001, 113), (5000, 81)])
def test_what_two_rows_have_is_read_twice_not_for_each_lane(rows: int, columns: int) -> None:
    spec = fw.TensorSpec((rows, columns), "float16")
    row = fw.TensorSpec((rows, 1), "float32")
    program = fw.compile(fw.trace(lambda x, m: x * m, spec, row))
    (kernel,) = program.kernels
    loads = [s for s in walk_statements(kernel.ir) if isinstance(s, Load)]
    assert [s.width for s in loads if s.src is kernel.ir.params[1]] == [1, 1]
    x = np.random.default_rng().standard_normal((rows, columns)).astype(np.float16)
    m = np.random.default_rng().standard_normal((rows, 1)).astype(np.float32)
    found = program.simulate(x, m)
    assert found.races == []
    (wanted,) = fw.evaluate(program.fusion, x, m)
    np.testing.assert_allclose(found.outputs[0], wanted, rtol=1e-6)


@pytest.mark.parametrize("columns", [7, 19])
def test_a_gather_reads_the_index_of_two_rows(columns: int) -> None:
    x = fw.TensorSpec((4000, columns), "float16")
    program = fw.compile(fw.trace(taken, x, fw.TensorSpec((70_000,), "int32")))
    (kernel,) = program.kernels
    loads = [s for s in walk_statements(kernel.ir) if isinstance(s, Load)]
    assert sum(s.src.dtype.name == "int32" for s in loads) == 2
    values = np.random.default_rng().integers(-90, 90, (4000, columns)).astype(np.float16)
    index = np.random.default_rng().integers(0, 4000, 70_000).astype(np.int32)
    found = program.simulate(values, index)
    assert found.races == []
    np.testing.assert_array_equal(found.outputs[0], values[index] + 1)


def test_the_inside_of_a_pad_is_no_range_of_the_lanes() -> None:
    spec = fw.TensorSpec((70_000, 8), "float16")
    (kernel,) = fw.compile(fw.trace(lambda x: fw.pad(x, ((0, 0), (5, 6))), spec)).kernels
    assert kernel.heuristic is not None
    loads = [s for s in walk_statements(kernel.ir) if isinstance(s, Load)]
    assert dict(kernel.heuristic.values)["vector"] == 8 and {s.width for s in loads} == {1}
