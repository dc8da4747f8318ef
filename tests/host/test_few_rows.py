"""Products of few rows: their operands change places, whatever follows them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fusewright as fw
from fusewright.fusion.ir import MatMul
from fusewright.fusion.passes.narrow_products import narrow_products
from fusewright.host.product_forms import is_swapped, left_dtypes, product_slices
from fusewright.kir.ir import StMatrix
from fusewright.kir.traverse import walk_statements
from fusewright.schedule.heuristics.product_plans import ProductPlan, ProductSizes
from fusewright.schedule.heuristics.product_times import predicted_us
from fusewright.target import target_of

S = fw.TensorSpec
TARGET = target_of("sm_90a")
MEASURED = Path(__file__).parents[2] / "bench" / "product-plans-2026-11-23-h200.json"


def gated(x: Any, g: Any, u: Any) -> Any:
    return fw.nn.silu(x @ g.T) * (x @ u.T)


def two_results(x: Any, w: Any, b: Any) -> Any:
    return fw.nn.gelu(x @ w.T + b), fw.nn.relu(x @ w.T)


CASES: dict[str, tuple[Callable[..., Any], list[tuple[int, ...]]]] = {
    "gated": (gated, [(16, 256), (320, 256), (320, 256)]),
    "two results": (two_results, [(7, 512), (200, 512), (200,)]),
    "batch": (lambda x, w: x @ w, [(3, 16, 128), (3, 128, 264)]),
    "odd": (lambda x, w: x @ w, [(33, 264), (264, 1000)]),
    "residual": (lambda x, w, r: (x @ w.T) * 2 + r, [(24, 512), (512, 512), (24, 512)]),
    "slices": (lambda x, w: x @ w.T, [(2, 4096), (128, 4096)]),
}


@pytest.mark.parametrize(("fn", "shapes"), CASES.values(), ids=CASES)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_right_with_the_syncs_it_needs(
    fn: Callable[..., Any], shapes: list[tuple[int, ...]], dtype: str
) -> None:
    fusion = fw.trace(fn, *(S(s, dtype) for s in shapes))
    program = fw.compile(fusion)
    assert any("its operands are exchanged" in str(r) for r in program.reasons)
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(s).astype(fusion.inputs[0].dtype.numpy) for s in shapes]
    made = program.simulate(*arrays, check_races=True)
    assert not made.races
    for a, b in zip(made.outputs, fw.evaluate(fusion, *arrays), strict=True):
        np.testing.assert_allclose(
            np.asarray(a, np.float64), np.asarray(b, np.float64), rtol=2e-2, atol=2e-2
        )
    report = fw.verify(program, *arrays)
    assert not report.missing and not report.redundant


def test_what_follows_a_transposed_product_leaves_by_boxes() -> None:
    """Matrices are stored transposed in a tile that lies by columns of the product."""
    fusion = fw.trace(
        lambda x, w: fw.permute_dims(w @ x.T, (1, 0)) * 2,
        S((16, 256), "float16"),
        S((256, 256), "float16"),
    )
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(t).astype(np.float16) for t in ((16, 256), (256, 256))]
    result = fw.compile(fusion).simulate(*arrays)
    assert result.races == []
    wanted = fw.evaluate(fusion, *arrays)[0]
    np.testing.assert_allclose(result.outputs[0], wanted, rtol=1e-2, atol=1e-2)
    large = S((4096, 4096), "float16")
    (kernel,) = fw.compile(fw.trace(lambda x, w: (w @ x.T).T * 2, large, large)).kernels
    assert kernel.heuristic is not None and dict(kernel.heuristic.values)["staged"] > 0
    stores = [s for s in walk_statements(kernel.ir) if isinstance(s, StMatrix)]
    assert stores and all(s.transposed for s in stores)
    odd = S((4100, 4096), "float16")  # rows of 8,200 bytes: no map takes the result
    (kernel,) = fw.compile(fw.trace(lambda x, w: (w @ x.T).T * 2, large, odd)).kernels
    assert kernel.heuristic is not None and dict(kernel.heuristic.values)["staged"] == 0


def product(m: int, n: int, k: int) -> Any:
    fusion = fw.trace(lambda x, w: x @ w.T, S((m, k), "bfloat16"), S((n, k), "bfloat16"))
    return next(t for t in fusion.values if isinstance(t.op, MatMul))


def test_which_products_are_exchanged() -> None:
    assert all(is_swapped(product(m, 4096, 4096), TARGET) for m in (2, 7, 16, 48))
    # One row of 257 in a tile of 128: 93.6 us for 50.6 of 256 rows. Columns fit tiles of 288.
    assert is_swapped(product(257, 14336, 4096), TARGET)
    assert is_swapped(product(129, 14336, 4096), TARGET)
    # What slices leave threads store across, in whole sectors: 211.7 us for 249.5 in the order
    # of tiles, 59.4 for 71.8, 59.9 for 82.5, 42.2 for 50.2 of what is not exchanged (one H200).
    assert is_swapped(product(1025, 1024, 65536), TARGET)  # in four slices, of tiles of 272
    assert is_swapped(product(513, 1024, 32768), TARGET)
    assert is_swapped(product(300, 4096, 14336), TARGET)
    assert is_swapped(product(257, 256, 131072), TARGET)
    assert is_swapped(product(65, 14336, 4096), TARGET)  # in a tile of 80: 32.0 us for 42.2
    assert not is_swapped(product(256, 14336, 4096), TARGET)
    assert not is_swapped(product(4097, 4096, 4096), TARGET)
    assert not is_swapped(product(4096, 16, 4096), TARGET)
    assert not is_swapped(product(1, 4096, 4096), TARGET)  # a sum of products
    symbolic = fw.trace(
        lambda x, w: x @ w.T, S(("n", 4096), "bfloat16"), S((4096, 4096), "bfloat16")
    )
    assert not is_swapped(next(t for t in symbolic.values if isinstance(t.op, MatMul)), TARGET)


def eighths(m: int, n: int, k: int, *, widened: bool = False) -> fw.Fusion:
    """A product of 8-bit floats, scaled and rounded to 16 bits; `widened`: kept in float32, too."""

    def scaled(a: Any, b: Any, c: Any) -> Any:
        y = fw.astype(a, "float32") @ fw.astype(b, "float32").T
        out = fw.astype(y * c, "bfloat16")
        return (out, fw.nn.relu(y)) if widened else out

    rows = [S(s, "float8_e4m3") for s in ((m, k), (n, k))]
    return fw.trace(scaled, *rows, S((m, 1), "float32"))


def test_sums_that_are_rounded_behind_them_leave_by_boxes() -> None:
    """A row more than 64 tiles of 128 would be a round more of blocks (893.7 us for 805.3 of 8192
    rows, one H100, bench/products-long-2026-11-28-h100.json); as columns it fits the last tile."""
    for widened, left in ((False, fw.bfloat16), (True, fw.float32)):
        fusion = narrow_products(eighths(8193, 8192, 8192, widened=widened))
        ((t, found),) = left_dtypes(fusion).items()
        assert t.dtype is fw.float32 and found is left
        assert is_swapped(t, TARGET, found)
    (kernel,) = fw.compile(eighths(8193, 8192, 8192)).kernels
    stores = [s for s in walk_statements(kernel.ir) if isinstance(s, StMatrix)]
    assert stores and all(s.transposed for s in stores)


def plans() -> list[dict[str, Any]]:
    return [r for r in json.loads(MEASURED.read_text())["plans"] if "tile" in r]


def predicted(row: dict[str, Any]) -> float:
    m, n, k = row["shape"]
    (rows, columns), slices = row["tile"], row["slices"]
    if row["exchanged"]:
        m, n = n, m
    plan = ProductPlan(rows, columns, 64, rows // 64, row["stages"])
    us = predicted_us(ProductSizes(slices, m, n, k // slices), plan, TARGET)
    if slices > 1:
        us += TARGET.calibration.sums_launch_us + 8 * slices * m * n / TARGET.memory_nbytes_per_us
    return us


def test_predicted_times_are_near_those_of_measured_plans() -> None:
    ratios = [predicted(r) / r["us"] for r in plans()]
    assert 0.8 < np.exp(np.mean(np.log(ratios))) < 1.1
    near = [abs(np.log(x)) < np.log(1.4) for x in ratios]
    assert np.mean(near) > 0.75


@pytest.mark.parametrize("shape", [(16, 4096, 4096), (16, 14336, 4096), (64, 14336, 4096)])
def test_the_chosen_plan_is_among_the_best_measured(shape: tuple[int, int, int]) -> None:
    own = [r for r in plans() if tuple(r["shape"]) == shape]
    best = min(r["us"] for r in own)
    chosen = min(own, key=predicted)
    assert chosen["us"] < 1.13 * best


def test_slices_pay_where_few_tiles_have_long_rows() -> None:
    assert product_slices(product(64, 4096, 28672), TARGET) == 4  # on an H100 86.6 us for 93.0
    assert product_slices(product(1025, 1024, 65536), TARGET) == 4
    assert product_slices(product(512, 512, 4096), TARGET) == 1  # 8.9 us for 8.9 and a launch
    assert product_slices(product(128, 4096, 4096), TARGET) == 1  # 14.5 us for 15.0 and more
    assert product_slices(product(4096, 4096, 4096), TARGET) == 1
