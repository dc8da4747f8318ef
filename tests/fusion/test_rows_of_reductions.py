"""Reductions of one value along different axes: one walk over its rows."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fusewright as fw
from fusewright.fusion import walked_rows
from fusewright.fusion.passes import row_partials, split_reductions
from fusewright.fusion.persistent_rows import RowRegisters

CASES: dict[str, tuple[Callable[..., Any], tuple[int, ...], tuple[int, ...] | None, str]] = {
    "rows and columns": (
        lambda x: (fw.sum(x, axis=0), fw.max(x, axis=1)),
        (3001, 512),
        None,
        "float32",
    ),
    "columns in memory": (
        lambda x: (fw.sum(x, axis=0), fw.max(x, axis=1)),
        (1280, 1793),
        (1, 1280),
        "float32",
    ),
    "an axis that both keep": (
        lambda x: (fw.max(x, axis=1), fw.max(x, axis=(0, 2, 3))),
        (4, 1152, 2, 256),
        None,
        "float16",
    ),
    "axes between": (
        lambda x: (fw.sum(x, axis=(0, 3)), fw.sum(x, axis=(1, 2))),
        (4, 32, 16, 1000),
        None,
        "float32",
    ),
    "axes between, odd rows": (
        lambda x: (fw.sum(x, axis=(0, 3)), fw.sum(x, axis=(1, 2))),
        (4, 32, 16, 981),
        None,
        "bfloat16",
    ),
    "rows that no block holds": (
        lambda x: (fw.max(x, axis=0), fw.min(x, axis=1)),
        (37, 3209 * 32),
        None,
        "bfloat16",
    ),
    "rows of floats that no block holds": (
        lambda x: (fw.max(x, axis=0), fw.min(x, axis=1)),
        (37, 3209 * 16),
        None,
        "float32",
    ),
    "columns in memory that no block holds": (
        lambda x: (fw.sum(x, axis=0), fw.sum(x, axis=1)),
        (3209 * 16, 60),
        (1, 3209 * 16),
        "float16",
    ),
    "rows of two axes that no block holds": (
        lambda x: (fw.max(x, axis=(2, 3)), fw.max(x, axis=(0, 1))),
        (40, 2, 372, 64),
        None,
        "bfloat16",
    ),
    "few rows, whose chunks fill the chip": (
        lambda x: (fw.max(x, axis=(1, 2)), fw.sum(x, axis=0)),
        (2, 1056, 1024),
        None,
        "float32",
    ),
    "kept rows that fill the chip": (
        lambda x: (fw.sum(x, axis=1), fw.sum(x, axis=(0, 2))),
        (140, 3, 3001),
        None,
        "float32",
    ),
    "an axis of one element": (
        lambda x: (fw.mean(x, axis=0), fw.var(x, axis=(1, 2))),
        (803, 1, 1000),
        None,
        "bfloat16",
    ),
    "a short fast axis that all reduce": (
        lambda x: (fw.sum(x, axis=(1, 2)), fw.max(x, axis=(0, 2))),
        (600, 700, 9),
        None,
        "float32",
    ),
    "a short fast axis that rows keep": (
        lambda x: (fw.sum(x, axis=1), fw.max(x, axis=(0, 2))),
        (1501, 640, 8),
        None,
        "float32",
    ),
    "a short fast axis of odd length": (
        lambda x: (fw.sum(x, axis=1), fw.sum(x, axis=(0, 2))),
        (1200, 768, 7),
        None,
        "float32",
    ),
    "a fast axis that all keep": (
        lambda x: (fw.max(x, axis=1), fw.sum(x, axis=0)),
        (1103, 61, 24),
        None,
        "float16",
    ),
    "short axes in turn": (
        lambda x: (fw.sum(x, axis=(0, 2)), fw.max(x, axis=(1, 3))),
        (3, 1280, 231, 6),
        None,
        "float32",
    ),
    "three directions": (
        lambda x: (fw.sum(x, axis=0), fw.max(x, axis=(1, 2)), fw.sum(x)),
        (1046, 20, 128),
        None,
        "bfloat16",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_they_read_the_value_once(name: str) -> None:
    fn, shape, strides, dtype = CASES[name]
    program = fw.compile(fw.trace(fn, fw.TensorSpec(shape, dtype, strides=strides)))
    readers = [k for k in program.kernels if "x" in [p.name for p in k.ir.params]]
    assert [k.heuristic.scheduler for k in readers if k.heuristic] == ["rows"]
    rng = np.random.default_rng(len(name))
    x = rng.standard_normal(shape if strides is None else shape[::-1])
    x = (x if strides is None else x.T).astype(getattr(fw, dtype).numpy)
    found = program.simulate(x)
    assert not found.races
    for got, want in zip(found.outputs, fw.evaluate(program.fusion, x), strict=True):
        got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
        np.testing.assert_allclose(got, want, rtol=2e-2, atol=1e-2 * np.abs(want).max())
    report = fw.verify(program, x)
    assert not report.missing and not report.redundant
    assert all(k.resources().spill_stores == 0 for k in program.kernels)


@pytest.mark.parametrize(
    ("shape", "axes"),
    [
        ((691, 8, 119, 165), ((1, 2, 3), (0,))),  # columns of 691 around the first
        ((2000, 8192), ((0,), (1,))),
        ((2000, 26992, 1), ((0, 2), (1,))),  # rows in chunks
        ((691, 8, 119, 165), ((0, 3), (1, 2))),  # of which rows of 165 begin anywhere
        ((12000, 96, 8), ((1,), (0, 2))),  # columns of which rows keep 8
        ((3129, 660, 4), ((0, 2), (1,))),  # rows that keep 4
    ],
)
def test_variances_are_computed_in_the_walk(
    shape: tuple[int, ...], axes: tuple[tuple[int, ...], tuple[int, ...]]
) -> None:
    def fn(x: Any) -> Any:
        return fw.mean(x, axis=axes[0]), fw.var(x, axis=axes[1])

    program = fw.compile(fw.trace(fn, fw.TensorSpec(shape, "float32")))
    readers = [k for k in program.kernels if "x" in [p.name for p in k.ir.params]]
    assert [k.heuristic.scheduler for k in readers if k.heuristic] == ["rows"]
    assert program.host.stats["bytes_moved"] < 1.2 * 4 * math.prod(shape)
    assert all(k.resources().spill_stores == 0 for k in program.kernels)


def test_variances_of_columns_of_any_length_are_computed_in_the_walk() -> None:
    def fn(x: Any) -> Any:
        return fw.max(x, axis=1), fw.var(x, axis=0)

    for rows in (1024, 1025, 12400):
        program = fw.compile(fw.trace(fn, fw.TensorSpec((rows, 40960), "float32")))
        readers = [k for k in program.kernels if "x" in [p.name for p in k.ir.params]]
        assert len(readers) == 1


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("axes", [((0,), (1,)), ((1,), (0,)), ((1, 2), (0,)), ((0, 2), (1,))])
@pytest.mark.parametrize("fn", [fw.mean, fw.var])
def test_variances_in_the_walk_are_exact(
    monkeypatch: pytest.MonkeyPatch, fn: Any, axes: tuple[tuple[int, ...], ...], dtype: str
) -> None:
    """Rows are cut as if a block held 96 elements; the mean is 30 times the deviation."""
    for module in (row_partials, walked_rows, split_reductions):
        monkeypatch.setattr(module, "LEAST_TOTAL", 1 << 12)
    blocks = RowRegisters.blocks
    monkeypatch.setattr(RowRegisters, "blocks", lambda h, n, *a: blocks(h, n, *a) if n <= 96 else 0)
    shape = (1408, 384) if max(map(max, axes)) == 1 else (1408, 384, 1)
    fusion = fw.trace(
        lambda x: (fn(x, axis=axes[0]), fw.var(x, axis=axes[1])), fw.TensorSpec(shape, dtype)
    )
    program = fw.compile(fusion)
    assert "rows" in [k.heuristic.scheduler for k in program.kernels if k.heuristic]
    x = (np.random.default_rng(0).standard_normal(shape) + 30).astype(getattr(fw, dtype).numpy)
    found = program.simulate(x)
    assert not found.races
    exact = x.astype(np.float64)
    numpy_fn = np.mean if fn is fw.mean else np.var
    wanted = numpy_fn(exact, axis=axes[0]), np.var(exact, axis=axes[1])
    for got, want in zip(found.outputs, wanted, strict=True):
        np.testing.assert_allclose(
            got.astype(np.float64), want, rtol=1e-4 if dtype == "float32" else 2e-2
        )


def test_variances_of_columns_beside_rows_that_keep_fast_ones_are_exact() -> None:
    shape = (12000, 96, 8)
    program = fw.compile(
        fw.trace(
            lambda x: (fw.mean(x, axis=1), fw.var(x, axis=(0, 2))), fw.TensorSpec(shape, "float32")
        )
    )
    readers = [k for k in program.kernels if "x" in [p.name for p in k.ir.params]]
    assert [k.heuristic.scheduler for k in readers if k.heuristic] == ["rows"]
    x = (np.random.default_rng(0).standard_normal(shape) + 30).astype(np.float32)
    found = program.simulate(x)
    assert not found.races
    exact = x.astype(np.float64)
    for got, want in zip(found.outputs, (exact.mean(1), exact.var((0, 2))), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5)


def test_rows_are_cut_by_the_parts_that_there_will_be() -> None:
    """Rows of odd length are dealt to a multiple of eight parts: chunks of 2687 with four rows at a
    time would have 72 blocks for 132 multiprocessors."""
    program = fw.compile(
        fw.trace(
            lambda x: (fw.mean(x, axis=1), fw.var(x, axis=0)),
            fw.TensorSpec((1944, 24183), "bfloat16"),
        )
    )
    (reader,) = (k for k in program.kernels if "x" in [p.name for p in k.ir.params])
    assert reader.heuristic is not None and reader.heuristic.scheduler == "rows"
    blocks = int(str(reader.launch.grid[0]))
    assert 0.75 * reader.target.multiprocessors <= blocks


def test_variances_of_rows_are_combined_in_one_pass() -> None:
    """Around the first part's mean: the partial results of rows are read by one kernel, and nothing
    of their size is stored again."""
    program = fw.compile(
        fw.trace(
            lambda x: (fw.mean(x, axis=2), fw.var(x, axis=(0, 1, 3))),
            fw.TensorSpec((7, 373, 228, 64), "bfloat16"),
        )
    )
    partial = 7 * 373 * 228
    sizes = [
        math.prod(int(str(n)) for n in s.tensor.shape) for x in program.launches for s in x.writes
    ]
    assert sizes.count(partial) == 2
    readers = [
        x for x in program.launches if any(str(s.tensor.shape) == "(7, 373, 228)" for s in x.reads)
    ]
    assert len(readers) <= 1


@pytest.mark.parametrize("first", [30.0, -1000.0])
def test_variances_of_rows_whose_first_part_lies_apart_are_exact(first: float) -> None:
    """The shift is the mean of the first part: far from the others it costs the number of parts in
    precision, no more."""
    shape = (40, 256, 64)
    program = fw.compile(
        fw.trace(
            lambda x: (fw.sum(x, axis=1), fw.var(x, axis=(0, 2))), fw.TensorSpec(shape, "float32")
        )
    )
    x = np.random.default_rng(3).standard_normal(shape).astype(np.float32) + 30
    x[0] = first
    found = program.simulate(x)
    assert not found.races
    want = x.astype(np.float64).var((0, 2))
    np.testing.assert_allclose(found.outputs[1], want, rtol=40 * 1e-6)
