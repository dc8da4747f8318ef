"""Reductions over tensors that are fast along reduced and along kept axes: one kernel, in which
tiles in shared memory turn what lies across."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from witnesses import assert_right_by_the_syncs_it_needs

import fusewright as fw
from fusewright.dtypes import DType
from fusewright.kir.ir import Load, Store
from fusewright.kir.traverse import walk_statements
from fusewright.memory import Memory
from fusewright.sim.traffic import traffic

Shape = tuple[int, ...]


def mse(axis: int) -> Callable[[Any, Any], Any]:
    def fn(x: Any, y: Any) -> Any:
        d = fw.astype(x, "float32") - fw.astype(y, "float32")
        return fw.mean(d * d, axis=axis)

    return fn


def two(x: Any, y: Any) -> Any:
    return fw.sum(x * y, axis=0), fw.max(x + y, axis=0)


def rms(x: Any) -> Any:
    wide = fw.astype(x, "float32")
    mean = fw.mean(wide * wide, axis=-1, keepdims=True)
    return fw.astype(wide * fw.rsqrt(mean + 1e-5), x.dtype)


def softmax(x: Any) -> Any:
    return fw.nn.softmax(x, axis=-1)


def softmax_of_columns(x: Any) -> Any:
    return fw.nn.softmax(x, axis=0)


def more(x: Any, y: Any) -> Any:
    return softmax_of_columns(x) + y


def distance(axis: int | tuple[int, ...] | None) -> Callable[[Any, Any], Any]:
    return lambda x, y: fw.sum(fw.abs(x - y), axis=axis)


CASES: dict[str, tuple[Callable[..., Any], Shape, Shape, str, int, str]] = {
    "along": (mse(0), (520, 1304), (1, 520), "float16", 2, "inner_tiled"),
    "odd in both": (two, (413, 1001), (1, 413), "float32", 2, "inner_tiled"),
    "of a batch": (mse(1), (5, 328, 440), (328 * 440, 1, 328), "bfloat16", 2, "inner_tiled"),
    "down": (mse(1), (8193, 264), (1, 8193), "float16", 2, "outer_tiled"),
    "rows that are held": (softmax, (3, 504, 96), (504 * 96, 1, 504), "bfloat16", 1, "inner_tiled"),
    "rows of pairs": (softmax, (1001, 130), (1, 1001), "float32", 1, "inner_tiled"),
    "odd rows": (softmax, (5003, 189), (1, 5003), "float16", 1, "inner_tiled"),
    "results across": (softmax_of_columns, (120, 1009), (1, 120), "float32", 1, "inner_tiled"),
    "rows that few blocks hold": (
        softmax_of_columns, (2456, 520), (1, 2456), "float16", 1, "inner_tiled",
    ),
    "arguments and results": (
        more, (96, 5000), (1, 96), "bfloat16", 2, "inner_tiled",
    ),
    "kept axes that lie apart": (
        rms, (47, 31, 3, 512), (1, 47, 1457 * 512, 1457), "float16", 1, "inner_tiled",
    ),
}  # fmt: skip


def _program(name: str) -> tuple[fw.Program, list[np.ndarray]]:
    fn, shape, strides, dtype, inputs, _ = CASES[name]
    specs = [fw.TensorSpec(shape, dtype, strides=strides)]
    specs += [fw.TensorSpec(shape, dtype)] * (inputs - 1)
    kind: DType = getattr(fw, dtype)
    rng = np.random.default_rng(len(name))
    base = rng.standard_normal(shape).astype(kind.numpy).reshape(-1)
    steps = [s * kind.nbytes for s in strides]
    arrays = [np.lib.stride_tricks.as_strided(base, shape, steps)]
    arrays += [rng.standard_normal(shape).astype(kind.numpy) for _ in range(inputs - 1)]
    return fw.compile(fw.trace(fn, *specs), target="sm_90a"), arrays


@pytest.mark.parametrize("name", CASES)
def test_one_kernel_right_in_the_simulator_and_no_sync_too_many(name: str) -> None:
    program, arrays = _program(name)
    (kernel,) = program.kernels
    assert kernel.heuristic is not None and kernel.heuristic.scheduler == CASES[name][-1]
    assert kernel.resources().spill_stores == 0
    assert_right_by_the_syncs_it_needs(program, arrays, rtol=1e-2, atol=1e-4)


@pytest.mark.parametrize("name", ["along", "of a batch", "rows that are held"])
def test_all_that_is_large_moves_in_words_and_no_bank_is_asked_twice(name: str) -> None:
    program, _ = _program(name)
    (kernel,) = program.kernels
    moved = [
        (s.width, s.src if isinstance(s, Load) else s.dst)
        for s in walk_statements(kernel.ir)
        if isinstance(s, Load | Store)
    ]
    large = [(n, b) for n, b in moved if b.memory is Memory.GLOBAL and b.dtype.nbytes == 2]
    assert large and all(n * b.dtype.nbytes == 16 for n, b in large)
    found = traffic(kernel.ir, kernel.arguments())
    assert found.byte_ratio <= 1.05 and found.wavefronts == found.wavefronts_least


def test_loads_of_a_tile_are_under_way_before_the_first_barrier_of_a_trip() -> None:
    program, _ = _program("along")
    text = program.kernels[0].cuda
    loop = text[text.index("for (int i0") :]
    assert loop[: loop.index("bar.sync")].count("fw_load") == 4


@pytest.mark.parametrize(
    ("fn", "shape", "strides"),
    [
        (mse(2), (15, 191, 8192), (1, 15, 2865)),
        (mse(2), (15, 191, 8190), (1, 15, 2865)),
        (distance(None), (2059, 5120), (1, 2059)),
        (distance(None), (8359, 600), (1, 8359)),
        (distance(None), (500009, 11), (1, 500009)),
        (distance((1, 2)), (3, 2059, 5120), (2059 * 5120, 1, 2059)),
    ],
)
def test_parts_of_what_lies_either_way_are_read_once(
    fn: Callable[..., Any], shape: Shape, strides: Shape
) -> None:
    specs = [fw.TensorSpec(shape, "float32", strides=strides), fw.TensorSpec(shape, "float32")]
    program = fw.compile(fw.trace(fn, *specs), target="sm_90a")
    assert "_tiled(" in str(program.kernels[0].heuristic)
    assert program.host.stats["bytes_moved"] <= 1.05 * 2 * 4 * np.prod(shape)


def test_sums_over_axes_of_which_either_is_a_fast_one_are_right() -> None:
    shape, strides = (509, 4104), (1, 509)
    specs = [fw.TensorSpec(shape, "float32", strides=strides), fw.TensorSpec(shape, "float32")]
    program = fw.compile(fw.trace(distance(None), *specs), target="sm_90a")
    assert "_tiled(" in str(program.kernels[0].heuristic)
    x, y = np.random.default_rng(3).standard_normal((2, *shape)).astype(np.float32)
    x = np.lib.stride_tricks.as_strided(x.reshape(-1), shape, [4 * s for s in strides])
    assert_right_by_the_syncs_it_needs(program, [x, y], rtol=1e-4, atol=1e-2)


def test_rows_that_no_shared_memory_holds_are_stored_in_the_order_of_the_program_first() -> None:
    spec = fw.TensorSpec((5003, 40960), "float16", strides=(1, 5003))
    program = fw.compile(fw.trace(softmax, spec), target="sm_90a")
    assert not any("tiled" in str(k.heuristic) for k in program.kernels)


@pytest.mark.parametrize("rows", [300, "n"])
def test_what_a_map_reads_along_another_axis_goes_through_no_tile(rows: int | str) -> None:
    """Four places of a reflection of three elements, which lie a row apart."""

    def fn(x: Any) -> Any:
        return fw.nn.softmax(fw.pad(x.T, ((0, 0), (2, 2)), "reflect")[:, 3:], axis=-1)

    fusion = fw.trace(fn, fw.TensorSpec((3, rows), "float32"))
    program = fw.compile(fusion)
    assert len(program.launches) == 1
    x = np.random.default_rng(0).normal(size=(3, 300)).astype(np.float32)
    result = program.simulate(x)
    assert result.races == []
    np.testing.assert_allclose(result.outputs[0], fw.evaluate(fusion, x)[0], rtol=1e-5)
