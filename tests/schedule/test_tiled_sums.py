"""Products of float32 by tiles: all layouts and ragged sizes, the simulator against the oracle."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fusewright as fw
from fusewright.fusion.passes.decompose import decompose
from fusewright.program import Program
from fusewright.schedule.heuristics import candidates_of
from fusewright.schedule.heuristics.candidates import Candidate, Refused
from fusewright.schedule.heuristics.tiled_sums import TiledSumsScheduler, TilePlan
from fusewright.target import target_of

SMALL = TilePlan(32, 32, 2, 2, 16, 2)
WIDE = TilePlan(64, 32, 4, 2, 16, 2)
LARGE = TilePlan(128, 64, 8, 4, 16, 2)


def _fusion(
    layout: str,
    m: int,
    n: int,
    k: int,
    *,
    dtype: str = "float32",
    batch: int = 0,
    bias: bool = False,
) -> fw.Fusion:
    """`layout` as in `bench.products`: T where the first operand is contiguous along the depth, and
    where the second one is contiguous along its columns."""
    lead = (batch,) if batch else ()
    first = (*lead, m, k) if layout[0] == "T" else (*lead, k, m)
    second = (*lead, n, k) if layout[1] == "N" else (*lead, k, n)

    def product(x: Any, w: Any, *b: Any) -> Any:
        x = x if layout[0] == "T" else fw.matrix_transpose(x)
        w = fw.matrix_transpose(w) if layout[1] == "N" else w
        y = fw.matmul(x, w)
        return fw.nn.gelu(y + b[0]) if b else y

    shapes = [first, second, *([(n,)] if bias else [])]
    return fw.trace(product, *(fw.TensorSpec(shape, dtype) for shape in shapes))


def _kernel(fusion: fw.Fusion, plan: TilePlan, target: str = "sm_90a") -> fw.Kernel:
    s = fw.Schedule(decompose(fusion))
    assert TiledSumsScheduler(s.flow, target_of(target)).apply(plan)
    return s.lower(target)


def _arrays(fusion: fw.Fusion) -> list[Any]:
    rng = np.random.default_rng(5)
    shapes = [tuple(int(str(e)) for e in t.shape) for t in fusion.inputs]
    return [
        rng.normal(size=shape).astype(t.dtype.numpy)
        for t, shape in zip(fusion.inputs, shapes, strict=True)
    ]


def _check(fusion: fw.Fusion, kernel: fw.Kernel | Program) -> None:
    arrays = _arrays(fusion)
    result = kernel.simulate(*arrays)
    assert result.races == []
    (wanted,) = fw.evaluate(fusion, *arrays)
    error = np.abs(result.outputs[0].astype(np.float64) - wanted.astype(np.float64)).max()
    assert (
        error
        <= (1e-5 if fusion.outputs[0].dtype is fw.float32 else 2**-7)
        * np.abs(wanted.astype(np.float64)).max()
    )


@pytest.mark.parametrize("layout", ["TN", "NN", "NT", "TT"])
@pytest.mark.parametrize("sizes", [(67, 45, 33), (64, 44, 36), (130, 70, 18)], ids=str)
def test_layouts_and_ragged_sizes(layout: str, sizes: tuple[int, int, int]) -> None:
    fusion = _fusion(layout, *sizes)
    _check(fusion, _kernel(fusion, LARGE if sizes[0] > 128 else WIDE))


def test_batches_with_what_follows_are_one_kernel() -> None:
    fusion = _fusion("TN", 33, 40, 20, batch=2, bias=True)
    _check(fusion, _kernel(fusion, SMALL))


@pytest.mark.parametrize("target", ["sm_80", "sm_89", "sm_120"])
def test_values_of_16_bits_are_widened(target: str) -> None:
    fusion = _fusion("TT", 67, 48, 33, dtype="bfloat16")
    _check(fusion, _kernel(fusion, SMALL, target))


@pytest.mark.parametrize("layout", ["TN", "NT"])
def test_no_sync_is_missing_and_none_is_redundant(layout: str) -> None:
    report = fw.verify(_kernel(_fusion(layout, 40, 36, 52), SMALL))
    assert report.ok
    assert (len(report.necessary), report.redundant, report.missing) == (4, [], [])


def test_a_product_is_compiled_into_tiles_and_a_small_one_is_not() -> None:
    large = fw.compile(_fusion("TN", 1024, 1024, 1024), target="sm_80")
    small = fw.compile(_fusion("TN", 24, 24, 24), target="sm_80")
    (kernel,) = large.kernels
    assert str(kernel.launch.block[0]) == "256"
    assert "cp.async" in kernel.cuda
    assert "cp.async" not in small.kernels[0].cuda


def test_the_order_of_tiles_follows_from_sizes() -> None:
    def first(m: int, n: int, k: int) -> str:
        flow = fw.Schedule(decompose(_fusion("TT", m, n, k))).flow
        listed = [c for c in candidates_of(flow, target_of("sm_90a")) if isinstance(c, Candidate)]
        return str(listed[0].params)

    assert first(4096, 4096, 4096) == "tiled_sums(tile=128x128x16, own=8x8, stages=2)"
    assert "tile=32x32x16" in first(256, 256, 256)


REFUSED = (
    (lambda x, w: fw.sum(x * w), "sums over 2 axes"),
    (lambda x, w: fw.sum(x + w, axis=0), "is no sum of products of two values"),
    (lambda x, w: fw.sum(x.T * w.T, axis=0), "multiplies no rows by columns"),
    (lambda x, w: fw.sum(x, axis=0) + fw.max(w, axis=0), "the group has 2 reductions"),
)


@pytest.mark.parametrize(("fn", "why"), REFUSED, ids=[why for _, why in REFUSED])
def test_other_sums_are_refused(fn: Any, why: str) -> None:
    flow = fw.Schedule(fw.trace(fn, "f32[64,64]", "f32[64,64]")).flow
    (refused,) = TiledSumsScheduler(flow, target_of("sm_90a")).candidates()
    assert isinstance(refused, Refused)
    assert why in refused.why


def test_a_short_depth_and_symbolic_sizes_are_refused() -> None:
    for spec, why in (
        (fw.TensorSpec((64, 16), "float32"), "sums 16 products; a tile is 16 deep"),
        (fw.TensorSpec(("n", 64), "float32"), "has sizes that only a call knows"),
    ):
        other = fw.TensorSpec((int(str(spec.shape[1])), 64), "float32")
        flow = fw.Schedule(fw.trace(fw.matmul, spec, other)).flow
        (refused,) = TiledSumsScheduler(flow, target_of("sm_90a")).candidates()
        assert isinstance(refused, Refused)
        assert why in refused.why


def test_the_edits_make_the_same_kernel_on_another_schedule() -> None:
    fusion = decompose(_fusion("TN", 67, 45, 33, bias=True))
    first, again = fw.Schedule(fusion), fw.Schedule(fusion)
    assert TiledSumsScheduler(first.flow, target_of("sm_90a")).apply(SMALL)
    again.replay(first.log)
    assert str(first.lower("sm_90a").ir) == str(again.lower("sm_90a").ir)
