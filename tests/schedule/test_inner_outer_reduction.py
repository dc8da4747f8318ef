"""Row reductions and column reductions of the same rows: one kernel and a small one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fusewright as fw
from fusewright.core.conditions import TRUE
from fusewright.fusion.text import parse_fusion
from fusewright.kir.ir import Compute, For, Load, Memory, Store
from fusewright.kir.traverse import walk_statements

Shape = tuple[int, ...]


def _backward(dy: Any, x: Any, w: Any, mean: Any, rstd: Any) -> Any:
    """Of a layer norm, over all leading axes."""
    lead = tuple(range(dy.ndim - 1))
    d = fw.astype(dy, fw.float32) * fw.astype(w, fw.float32)
    xhat = (fw.astype(x, fw.float32) - mean) * rstd
    c1 = fw.mean(d * xhat, axis=-1, keepdims=True)
    c2 = fw.mean(d, axis=-1, keepdims=True)
    dx = fw.astype((d - xhat * c1 - c2) * rstd, x.dtype)
    dw = fw.sum(fw.astype(dy, fw.float32) * xhat, axis=lead)
    return dx, fw.astype(dw, w.dtype), fw.sum(fw.astype(dy, fw.float32), axis=lead)


def _specs(shape: Shape, dtype: str) -> list[fw.TensorSpec]:
    stats = fw.TensorSpec((*shape[:-1], 1), "float32")
    whole = fw.TensorSpec(shape, dtype)
    return [whole, whole, fw.TensorSpec(shape[-1:], dtype), stats, stats]


def _arrays(specs: list[fw.TensorSpec], seed: int) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [
        rng.standard_normal([int(str(n)) for n in s.shape]).astype(s.dtype.numpy) for s in specs
    ]


def assert_agrees(
    fn: Any, specs: list[fw.TensorSpec], seed: int, arrays: list[np.ndarray] | None = None
) -> fw.Program:
    fusion = fw.trace(fn, *specs)
    program = fw.compile(fusion)
    arrays = arrays or _arrays(specs, seed)
    result = program.simulate(*arrays)
    assert not result.races
    for got, want in zip(result.outputs, fw.evaluate(fusion, *arrays), strict=True):
        tolerance = 2e-2 if got.dtype.itemsize == 2 else 2e-4
        scale = max(1.0, float(np.abs(want.astype(np.float64)).max()))
        error = np.abs(got.astype(np.float64) - want.astype(np.float64)).max()
        assert error <= tolerance * scale
    return program


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        ((1024, 512), "bfloat16"),
        ((2, 512, 640), "float32"),
        ((4096, 72), "bfloat16"),
        ((4096, 65), "float32"),
        ((600, 4096), "bfloat16"),
        ((3, 8, 32, 1024), "float16"),
        ((520, 8192), "bfloat16"),
        ((1031, 512), "float32"),  # prime: parts differ by a row
        ((1031, 520), "bfloat16"),
        ((3, 7, 211, 256), "bfloat16"),
        ((8191, 64), "float32"),  # rows side by side, and a thread without one in the end
        ((2053, 136), "bfloat16"),
        ((1031, 513), "bfloat16"),  # odd: rows of a part begin alike
        ((1040, 1027), "float32"),
        ((1024, 2050), "float16"),
        ((1031, 516), "bfloat16"),
        ((3, 7, 211, 255), "float16"),
        ((2053, 129), "bfloat16"),
        ((300, 4097), "bfloat16"),
    ],
)
def test_one_kernel_reads_the_rows(shape: Shape, dtype: str) -> None:
    program = assert_agrees(_backward, _specs(shape, dtype), sum(shape))
    rows = [k for k in program.kernels if k.heuristic and k.heuristic.scheduler == "rows"]
    assert len(rows) == 1
    whole = {i.name for i in program.fusion.inputs[:2]}
    for k in program.kernels:
        if k is not rows[0]:
            assert not whole & {p.name for p in k.params}
    report = fw.verify(program)
    assert report.ok and not report.redundant


@pytest.mark.parametrize(
    ("shape", "why"),
    [
        ((3, 7, 31, 256), "too small to be cut"),
        ((512, 16383), "too many columns for a block, and no words that a cluster shares"),
        ((150, 8192), "too few rows for as many blocks"),
        ((16, 128), "too small"),
    ],
)
def test_other_rows_take_the_general_way(shape: Shape, why: str) -> None:
    program = assert_agrees(_backward, _specs(shape, "float32"), 3)
    schedulers = [k.heuristic.scheduler for k in program.kernels if k.heuristic]
    assert "rows" not in schedulers, why


def test_no_row_of_a_block_has_a_condition() -> None:
    """The loop of a block with a row less ends early: loads, sums and stores need no condition."""
    program = fw.compile(fw.trace(_backward, *_specs((1031, 1024), "float32")))
    loops = [s for s in walk_statements(program.kernels[0].ir) if isinstance(s, For)]
    (loop,) = loops
    assert str(loop.extent) == "((-bx + 2)//257) + 5"
    guarded = [s for s in loop.body if isinstance(s, Compute | Store) and s.predicate != TRUE]
    assert all(isinstance(s, Store) and s.dst.memory is Memory.SHARED for s in guarded)


@pytest.mark.parametrize(("columns", "stores"), [(513, 1), (4097, 3), (8193, 3)])
def test_odd_rows_are_read_and_stored_in_vectors(columns: int, stores: int) -> None:
    """All loads of rows are aligned; elements are stored one by one at the two ends of a row only,
    of which the first and the last vector of a thread may be."""
    program = fw.compile(fw.trace(_backward, *_specs((16384, columns), "bfloat16")))
    rows = next(k for k in program.kernels if k.heuristic and k.heuristic.scheduler == "rows")
    large = [p for p in rows.ir.params if str(p.size) == str(16384 * columns)]
    assert len(large) == 3
    loop = next(s for s in walk_statements(rows.ir) if isinstance(s, For))
    loads = [s for s in walk_statements(loop) if isinstance(s, Load) and s.src in large]
    assert loads and all(s.width == 8 and not s.lanes.is_cut for s in loads)
    stored = [s for s in walk_statements(loop) if isinstance(s, Store) and s.dst in large]
    assert sum(s.width == 8 for s in stored) == stores
    assert 0 < sum(s.width == 1 for s in stored) <= 2 * 8
    found = rows.resources()
    assert not found.spill_stores + found.spill_loads


@pytest.mark.parametrize(("pitch", "begin"), [(80, 0), (79, 1)])
def test_rows_that_begin_elsewhere_than_others_are_read_in_vectors(pitch: int, begin: int) -> None:
    """Stores are whole words, with which one input lies; the other is cut out of two words."""
    specs = _specs((3600, 79), "bfloat16")
    specs[1] = fw.TensorSpec((3600, 79), "bfloat16", strides=(pitch, 1), alignment=16 >> 3 * begin)
    arrays = _arrays(specs, 3)
    memory = np.zeros(begin + 3600 * pitch, arrays[1].dtype)
    rows = memory[begin:].reshape(3600, pitch)[:, :79]
    rows[...] = arrays[1]
    arrays[1] = rows
    kernel = assert_agrees(_backward, specs, 3, arrays).kernels[0]
    assert str(kernel.heuristic).startswith("rows(vector=8")


def test_the_maximum_of_columns_of_parts_with_a_row_less() -> None:
    def fn(x: Any) -> Any:
        y = fw.nn.softmax(x, axis=-1)
        return y, fw.max(x, axis=0), fw.min(y, axis=0), fw.prod(fw.abs(y) + 1.0, axis=0)

    program = assert_agrees(fn, [fw.TensorSpec((2053, 256), "float32")], 6)
    assert any(k.heuristic and k.heuristic.scheduler == "rows" for k in program.kernels)


@pytest.mark.parametrize("cuts", ["dealt", "runs", "both", "both and whole"])
def test_parts_that_a_program_made_itself(cuts: str) -> None:
    """Sums of one kind of parts stand beside the rows; other parts are other axes."""

    def fn(x: Any) -> Any:
        y = fw.exp(x)
        out = [y / fw.sum(y, axis=1, keepdims=True)]
        if cuts != "runs":
            out.append(fw.sum(fw.reshape(y, (8, 128, 264)), axis=0))
        if cuts != "dealt":
            out.append(fw.sum(fw.reshape(y, (128, 8, 264)), axis=1))
        if cuts == "both and whole":
            out.append(fw.sum(y, axis=0))
        return tuple(out)

    program = assert_agrees(fn, [fw.TensorSpec((1024, 264), "float32")], 8)
    assert any(k.heuristic and k.heuristic.scheduler == "rows" for k in program.kernels)


def test_a_column_sum_that_shares_no_input_stays_apart() -> None:
    def fn(x: Any, y: Any) -> Any:
        return fw.nn.softmax(x, axis=-1), fw.sum(y, axis=0)

    spec = fw.TensorSpec((1024, 512), "float32")
    program = assert_agrees(fn, [spec, spec], 5)
    assert all(k.heuristic and k.heuristic.scheduler != "rows" for k in program.kernels)


def test_the_maximum_of_columns_beside_a_softmax_that_is_recomputed() -> None:
    def fn(x: Any) -> Any:
        y = fw.nn.softmax(x, axis=-1)
        return y, fw.max(y, axis=0), fw.sum(y * x, axis=0)

    program = assert_agrees(fn, [fw.TensorSpec((2048, 256), "float32")], 6)
    assert any(k.heuristic and k.heuristic.scheduler == "rows" for k in program.kernels)


def test_results_are_the_same_whatever_the_order_of_blocks() -> None:
    specs = _specs((1024, 512), "float32")
    fusion = fw.trace(_backward, *specs)
    program = fw.compile(fusion)
    arrays = _arrays(specs, 9)
    first = program.simulate(*arrays, seed=0).outputs
    again = program.simulate(*arrays, seed=1).outputs
    for a, b in zip(first, again, strict=True):
        np.testing.assert_array_equal(a, b)


PARTS = """
x: float32[8, 24, 16, 16] = Input(strides=(6144, 256, 16, 1), alignment=16)
y: bfloat16[2048, 24] = Input(strides=(24, 1), alignment=16)
last: float32[8, 16, 16, 24] = Permute(x, axes=(0, 2, 3, 1))
x_parts: float32[16, 128, 24] = Parts(last, axes=(0, 1, 2), partition=CUT, fill=0.0)
x_sum: float32[16, 24] = Reduce(x_parts, fn='add', axes=(1,))
wide: float32[2048, 24] = Pointwise(y, fn='cast')
y_parts: float32[16, 128, 24] = Parts(wide, axes=(0,), partition=CUT, fill=0.0)
y_sum: float32[16, 24] = Reduce(y_parts, fn='add', axes=(1,))
return x_sum, y_sum
"""


def test_sums_of_the_same_parts_in_two_layouts() -> None:
    """Channels first beside channels last: the first run along memory, but are none of rows."""
    cut = "Partition(size=2048, count=16, each=128, is_interleaved=False, pack=1, is_strip=False)"
    fusion = parse_fusion(PARTS.replace("CUT", cut))
    program = fw.compile(fusion)
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((8, 24, 16, 16)), rng.standard_normal((2048, 24))
    arrays = x.astype(np.float32), y.astype(fw.bfloat16.numpy)
    result = program.simulate(*arrays)
    assert not result.races
    for got, want in zip(result.outputs, fw.evaluate(fusion, *arrays), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
