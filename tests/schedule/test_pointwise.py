"""Elementwise groups: vectors, how many a thread has, and what is refused, from sizes alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import fusewright as fw
from fusewright.finish import finish
from fusewright.forms import prepare
from fusewright.kir.ir import Load, Store
from fusewright.kir.traverse import walk_statements
from fusewright.schedule.graph import Dataflow
from fusewright.schedule.heuristics import schedule_group
from fusewright.target import target_of

TARGET = target_of("sm_90a")


def candidates(fn: Callable[..., Any], *specs: fw.TensorSpec) -> list[str]:
    (kernel,) = fw.compile(fw.trace(fn, *specs)).kernels
    return [str(r) for r in kernel.candidates]


def chosen(fn: Callable[..., Any], *specs: fw.TensorSpec) -> dict[str, Any]:
    (kernel,) = fw.compile(fw.trace(fn, *specs)).kernels
    assert kernel.heuristic is not None and kernel.heuristic.scheduler == "pointwise"
    return dict(kernel.heuristic.values)


def spec(*shape: int | str, dtype: str = "float32", alignment: int = 16) -> fw.TensorSpec:
    return fw.TensorSpec(shape, dtype, alignment=alignment)


@pytest.mark.parametrize(("dtype", "vector"), [("float32", 4), ("bfloat16", 8), ("float64", 2)])
def test_a_vector_is_sixteen_bytes(dtype: str, vector: int) -> None:
    assert chosen(fw.exp, spec(1 << 22, dtype=dtype))["vector"] == vector


@pytest.mark.parametrize(
    ("narrow", "wide", "vector"),
    [("bfloat16", "float64", 2), ("bfloat16", "float32", 4), ("int8", "float32", 4)],
)
def test_a_thread_stores_a_word_of_the_widest_result(narrow: str, wide: str, vector: int) -> None:
    """Stores of several words leave half of every sector to each other, whatever is read beside."""

    def fn(x: fw.Array, y: fw.Array) -> Any:
        return fw.astype(x, wide) + fw.astype(y, wide), x + y

    x = np.random.default_rng(6).integers(-9, 9, (3, 37, 256))
    specs = [spec(1 << 12, 37, 256, dtype=narrow)] * 2
    assert chosen(fn, *specs)["vector"] == vector
    program = fw.compile(fw.trace(fn, *[spec(*x.shape, dtype=narrow)] * 2))
    result = program.simulate(*[x.astype(specs[0].dtype.numpy)] * 2)
    assert result.races == []
    np.testing.assert_array_equal(result.outputs[0], 2 * x)


@pytest.mark.parametrize(("columns", "vector"), [(64, 4), (6, 2), (7, 1)])
def test_a_vector_divides_the_rows_that_all_operands_share(columns: int, vector: int) -> None:
    rows = (1 << 20, columns)
    assert chosen(lambda x, v: x + v, spec(*rows), spec(columns))["vector"] >= vector


def test_a_single_element_needs_no_vector() -> None:
    assert chosen(lambda x: x + 1, spec()) == {"elements": 1}


def test_a_grid_that_does_not_fill_the_chip_takes_one_vector_a_thread() -> None:
    assert chosen(fw.exp, spec(1 << 12))["vectors"] == 1
    assert chosen(fw.exp, spec(1 << 26))["vectors"] >= 1


def test_refusals_name_the_rule() -> None:
    texts = candidates(fw.exp, spec(1 << 12))
    refused = [t for t in texts if "too few blocks for the multiprocessors" in t]
    assert len(refused) >= 2 and any("8 vectors a thread" in t for t in refused)


def test_the_first_candidate_is_taken() -> None:
    (kernel,) = fw.compile(fw.trace(fw.exp, spec(1 << 24))).kernels
    assert kernel.candidates[0].params == kernel.heuristic


def test_pieces_of_a_join_are_read_once_however_small() -> None:
    """Twenty pieces are no small tensors that vectors share: a thread has one vector."""
    pieces = [spec(1 << 18)] * 20
    assert chosen(lambda *x: fw.concat([p * 2.0 for p in x]), *pieces)["vectors"] == 1
    rows, row = spec(1 << 14, 1 << 10), spec(1 << 10)
    assert chosen(lambda x, a, b, c: x * a + b * c, rows, row, row, row)["vectors"] > 1


def neighbours(x: fw.Array) -> fw.Array:
    return fw.roll(x, 1, axis=1) + x + fw.roll(x, -1, axis=1)


def test_what_several_accesses_read_of_a_tensor_comes_from_memory_once() -> None:
    """Three reads of 8 bytes each bring 8 new ones: two vectors a thread. Halves of a tensor are
    different bytes."""
    x = spec(1 << 14, 511, 4, dtype="float16", alignment=8)
    assert (chosen(neighbours, x)["vector"], chosen(neighbours, x)["vectors"]) == (4, 2)
    halves = spec(1 << 15, 2044, dtype="float16", alignment=8)
    assert chosen(lambda x: x[: 1 << 14] + x[1 << 14 :], halves)["vectors"] == 1


def test_vectors_of_a_thread_that_share_small_tensors_are_stored_in_words() -> None:
    """Blocks in rounds of 19: a place is counted from the block's place in its round. The last
    vector of the launch has six elements."""
    x = spec(3737, 253, 19, 2, dtype="bfloat16", alignment=2)
    rows, row = spec(19, 1, dtype="bfloat16"), spec(19, 2, dtype="bfloat16")

    def largest(x: fw.Array, a: fw.Array, b: fw.Array) -> fw.Array:
        return fw.maximum(fw.maximum(x, a), b)

    (kernel,) = fw.compile(fw.trace(largest, x, rows, row)).kernels
    widths = [s.width for s in walk_statements(kernel.ir) if isinstance(s, Store)]
    assert sorted(widths) == [1, 1, 4, 8, 8, 8, 8]
    small = [s for s in walk_statements(kernel.ir) if isinstance(s, Load) and s.src.name == "b"]
    assert small and all(s.width == 1 for s in small)  # near, and shared by the four vectors


@pytest.mark.parametrize("f", [lambda x: x[:, 14:3660], lambda x: x[:, ::3]])
def test_what_is_only_moved_is_under_way_for_all_vectors_of_a_thread(f: Any) -> None:
    """No store stands between the loads of a thread."""
    fusion = prepare(fw.trace(f, spec(64, 4096)), TARGET)
    flow = Dataflow(fusion)
    params = schedule_group(flow, replace(TARGET, multiprocessors=1))
    assert dict(params.values)["vectors"] != 1
    kernel = finish(flow, "k", TARGET, params)
    kinds = [type(s) for s in walk_statements(kernel.ir) if isinstance(s, Load | Store)]
    assert kinds.count(Load) > 1
    assert kinds == sorted(kinds, key=lambda kind: kind is Store)
    x = np.random.default_rng(3).integers(0, 99, (64, 4096)).astype(np.float32)
    result = kernel.simulate(x)
    assert result.races == []
    np.testing.assert_array_equal(result.outputs[0], fw.evaluate(fusion, x)[0])


def _loads(k: fw.Kernel) -> int:
    return sum(isinstance(s, Load) for s in walk_statements(k.ir))


def masked(x: fw.Array, lengths: fw.Array) -> fw.Array:
    keep = fw.arange(x.shape[1]) < fw.reshape(lengths, (-1, 1))
    return fw.where(keep, x, 0)


@pytest.mark.parametrize(("rows", "columns"), [(81_481, 401), (30_000, 1001)])
def test_what_a_row_has_is_not_read_for_each_lane(rows: int, columns: int) -> None:
    """Vectors that run from one row into the next read the lengths of two rows, not of eight."""
    specs = spec(rows, columns, dtype="float16"), spec(rows, dtype="int32")
    (kernel,) = fw.compile(fw.trace(masked, *specs)).kernels
    assert _loads(kernel) <= 3


def test_rows_that_are_short_run_into_each_other() -> None:
    """Rows of 19 counted from words take six vectors for five."""
    specs = spec(1 << 21, 19), spec(1 << 21, dtype="int32")
    (kernel,) = fw.compile(fw.trace(masked, *specs)).kernels
    assert _loads(kernel) > 2


@pytest.mark.parametrize("columns", [401, 83, 1004])
def test_rows_from_words_hold_what_they_should(columns: int) -> None:
    rng = np.random.default_rng(columns)
    x = rng.standard_normal((900, columns)).astype(np.float16)
    lengths = rng.integers(0, columns + 1, 900).astype(np.int32)
    specs = spec(900, columns, dtype="float16"), spec(900, dtype="int32")
    result = fw.compile(fw.trace(masked, *specs)).simulate(x, lengths)
    assert result.races == []
    expected = np.where(np.arange(columns) < lengths[:, None], x, 0)
    np.testing.assert_array_equal(result.outputs[0], expected)


@pytest.mark.parametrize(("steps", "vectors"), [(1, 4), (12, 2), (40, 1)])
def test_long_code_takes_fewer_vectors_a_thread(steps: int, vectors: int) -> None:
    """Code of all vectors stays below 32 KB: a step is 16 instructions of 16 bytes an element."""

    def fn(x: Any, v: Any, w: Any) -> Any:
        for _ in range(steps):
            x = fw.tanh(x * v)
        return x + w

    small = spec(1024)
    assert chosen(fn, spec(1 << 15, 1024), small, small)["vectors"] == vectors
