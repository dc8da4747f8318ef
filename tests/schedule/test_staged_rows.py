"""Short rows that no vector divides: through shared memory, a row a thread."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fusewright as fw
from fusewright.kir.ir import Load, Store
from fusewright.kir.traverse import walk_statements
from fusewright.memory import Memory

ROWS = 17011
"""A few more than a thread of 128 on each of 132 multiprocessors; the last block is not full."""


def softmax(x: Any) -> Any:
    return fw.nn.softmax(x, axis=-1)


def causal(x: Any) -> Any:
    seen = fw.reshape(fw.arange(x.shape[-1]), (1, -1)) <= fw.reshape(
        fw.arange(x.shape[-2]), (-1, 1)
    )
    return fw.nn.softmax(fw.where(seen, x, -1e4), axis=-1)


def layer_norm(x: Any, w: Any, b: Any) -> Any:
    return fw.nn.layer_norm(x, (x.shape[-1],), w, b)


def backward(y: Any, g: Any) -> Any:
    return y * (g - fw.sum(y * g, axis=-1, keepdims=True))


def quantised(x: Any) -> Any:
    scale = fw.max(fw.abs(x), axis=-1, keepdims=True) / 127
    return fw.astype(fw.round(x / scale), fw.int8), scale


def best(x: Any) -> Any:
    return fw.argmax(x, axis=-1)


def running(x: Any) -> Any:
    return fw.cumulative_sum(x * 0.5, axis=-1) + x


CASES: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...], str]] = {
    "softmax": (softmax, ((ROWS, 19),), "float16"),
    "softmax, float32": (softmax, ((ROWS, 31),), "float32"),
    "softmax, longer rows": (softmax, ((ROWS, 51),), "bfloat16"),
    "rows of three axes": (softmax, ((ROWS // 3, 3, 25),), "float16"),
    "mask by place": (causal, ((3, ROWS // 3, 19),), "float16"),
    "what rows share": (layer_norm, ((ROWS, 25), (25,), (25,)), "bfloat16"),
    "two inputs": (backward, ((ROWS, 21), (ROWS, 21)), "bfloat16"),
    "results of other types": (quantised, ((ROWS, 31),), "bfloat16"),
    "nothing to store back": (best, ((ROWS, 23),), "float16"),
}


@pytest.mark.parametrize("name", CASES)
def test_right_in_the_simulator_and_no_sync_too_many(name: str) -> None:
    fn, shapes, dtype = CASES[name]
    program = fw.compile(fw.trace(fn, *(fw.TensorSpec(s, dtype) for s in shapes)))
    (kernel,) = program.kernels
    assert kernel.heuristic is not None
    assert kernel.heuristic.scheduler == "short_rows_staged"
    assert kernel.resources().spill_stores == 0
    rng = np.random.default_rng(len(name))
    given = [rng.standard_normal(s).astype(getattr(fw, dtype).numpy) for s in shapes]
    found = program.simulate(*given)
    assert not found.races
    for got, want in zip(found.outputs, fw.evaluate(program.fusion, *given), strict=True):
        got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
        bound = 1.0 if got.shape[-1] == 31 and "types" in name else 2e-2
        np.testing.assert_allclose(got, want, rtol=1e-2, atol=bound)
    report = fw.verify(program, *given)
    assert not report.missing and not report.redundant


def test_prefixes_of_many_short_rows() -> None:
    """Fewer rows are scanned by several threads each."""
    shape = (260003, 19)
    program = fw.compile(fw.trace(running, fw.TensorSpec(shape, "bfloat16")))
    (kernel,) = program.kernels
    assert kernel.heuristic is not None and kernel.heuristic.scheduler == "scan_rows_staged"
    x = np.random.default_rng(2).standard_normal(shape).astype(fw.bfloat16.numpy)
    found = program.simulate(x)
    assert not found.races
    (got,), (want,) = found.outputs, fw.evaluate(program.fusion, x)
    np.testing.assert_allclose(got.astype("f8"), np.asarray(want, "f8"), rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize(
    ("dtype", "columns", "is_staged"),
    [("bfloat16", 127, True), ("bfloat16", 129, False), ("float32", 63, True)],
)
def test_scanned_rows_are_as_long_as_their_bytes_allow(
    dtype: str, columns: int, is_staged: bool
) -> None:
    program = fw.compile(
        fw.trace(lambda x: fw.cumulative_sum(x, axis=1), fw.TensorSpec((ROWS, columns), dtype))
    )
    (launch,) = program.launches
    assert ("staged" in str(launch.kernel.heuristic)) == is_staged
    if is_staged:
        kinds = program.fusion.inputs[0].dtype.numpy
        x = np.random.default_rng(columns).integers(-1, 2, (ROWS, columns)).astype(kinds)
        result = program.simulate(x)
        assert result.races == []
        want = np.cumsum(np.asarray(x, "f8"), axis=1)
        np.testing.assert_array_equal(np.asarray(result.outputs[0], "f8"), want)


def test_scanned_rows_whose_threads_meet_in_a_bank_do_not_come_first() -> None:
    """Rows of 256 bytes, which begin at odd elements: all threads of a warp would read one bank."""
    spec = fw.TensorSpec((ROWS, 128), "float16", alignment=2)
    program = fw.compile(fw.trace(lambda x: fw.cumulative_sum(x, axis=1), spec))
    assert "staged" not in str(program.launches[0].kernel.heuristic)


def test_memory_is_asked_for_whole_words_once() -> None:
    (kernel,) = fw.compile(fw.trace(softmax, fw.TensorSpec((133 * 128, 19), "float16"))).kernels
    found = [s for s in walk_statements(kernel.ir) if isinstance(s, Load | Store)]
    buffers = [(s, s.src if isinstance(s, Load) else s.dst) for s in found]
    assert {s.width for s, b in buffers if b.memory is Memory.GLOBAL} == {8}


@pytest.mark.parametrize("columns", [16, 24, 32])
def test_rows_of_whole_words_are_read_by_the_threads_that_need_them(columns: int) -> None:
    (kernel,) = fw.compile(fw.trace(softmax, fw.TensorSpec((ROWS, columns), "float16"))).kernels
    assert kernel.heuristic is not None
    assert kernel.heuristic.scheduler != "short_rows_staged"


def test_what_data_choose_of_a_row_is_read_where_the_row_lies() -> None:
    """Registers have no address that is computed: a class of each row comes from memory."""

    def fn(x: Any, chosen: Any) -> Any:
        return fw.nn.cross_entropy(x, chosen, reduction="none")

    specs = fw.TensorSpec((ROWS, 49), "bfloat16"), fw.TensorSpec((ROWS,), "int64")
    fusion = fw.trace(fn, *specs)
    program = fw.compile(fusion)
    (kernel,) = program.kernels
    stores = [s for s in walk_statements(kernel.ir) if isinstance(s, Store)]
    assert any(s.dst.memory is Memory.SHARED for s in stores)
    rng = np.random.default_rng(3)
    x = rng.standard_normal((ROWS, 49)).astype(fw.bfloat16.numpy)
    chosen = rng.integers(0, 49, ROWS)
    result = program.simulate(x, chosen)
    assert not result.races
    (want,) = fw.evaluate(fusion, x, chosen)
    got = np.asarray(result.outputs[0], np.float64)
    np.testing.assert_allclose(got, np.asarray(want, np.float64), rtol=1e-2, atol=1e-2)
