"""Products on the instructions of single warps on a device, against float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fusewright as fw
from fusewright.fusion.ir import MatMul
from fusewright.schedule.heuristics.warp_matmul import (
    WarpMatmulScheduler,
    schedule_warp_products,
)
from fusewright.schedule.heuristics.warp_plans import WarpPlan
from fusewright.target import target_of

SHAPES = ((512, 512, 512), (300, 264, 514), (1000, 1032, 1001), (129, 72, 4096))
PLANS = (
    WarpPlan(128, 256, 32, 2, 4, 4),
    WarpPlan(256, 128, 32, 4, 2, 3, group=2),
    WarpPlan(128, 128, 32, 2, 2, 4),
    WarpPlan(64, 64, 64, 2, 2, 2),
    WarpPlan(32, 32, 32, 2, 2, 4),
    WarpPlan(16, 128, 32, 1, 4, 4),
    WarpPlan(64, 64, 32, 2, 2, 1),
    WarpPlan(128, 256, 64, 2, 4, 3, group=2),
    WarpPlan(64, 64, 64, 2, 2, 3, splits=3),
    WarpPlan(64, 64, 32, 2, 2, 3, splits=2, mode="vector"),
)


def _arrays(seed: int, dtype: str, *shapes: tuple[int, ...]) -> list[Any]:
    rng = np.random.default_rng(seed)
    kind = fw.TensorSpec((1,), dtype).dtype.numpy
    return [rng.standard_normal(s, dtype=np.float32).astype(kind) for s in shapes]


def _check(fn: Any, found: Any, arrays: list[Any], depth: int) -> None:
    """Within a rounding to 16 bits, and what a float32 sum of so many products loses."""
    wide = [a.astype(np.float64) for a in arrays]
    wanted, size = fn(*wide), fn(*map(np.abs, wide))
    bound = 2**-8 * np.abs(wanted) + depth * 2**-24 * size
    assert (np.abs(found.astype(np.float64) - wanted) <= bound).all()


@pytest.mark.parametrize("layout", ["TN", "TT", "NN", "NT"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_programs_for_a_target_without_warpgroups(
    dtype: str, shape: tuple[int, int, int], layout: str
) -> None:
    """On any device of compute capability 9.0; the same bits when repeated."""
    m, n, k = shape
    first = (m, k) if layout[0] == "T" else (k, m)
    second = (n, k) if layout[1] == "N" else (k, n)

    def fn(x: Any, w: Any) -> Any:
        return (x if layout[0] == "T" else x.T) @ (w.T if layout[1] == "N" else w)

    fusion = fw.trace(fn, *(fw.TensorSpec(s, dtype) for s in (first, second)))
    program = fw.compile(fusion, target="sm_90")
    assert any("warp_mma" in str(kernel.ir) for kernel in program.kernels)
    for seed in range(2):
        arrays = _arrays(seed, dtype, first, second)
        (found,) = program.run_cuda(*arrays)
        (again,) = program.run_cuda(*arrays)
        assert found.tobytes() == again.tobytes()
        _check(fn, found, arrays, k)


@pytest.mark.parametrize("plan", PLANS, ids=lambda p: str(p.params))
def test_every_tile(plan: WarpPlan) -> None:
    shapes = (517, 1030), (1030, 392)
    fusion = fw.trace(fw.matmul, *(fw.TensorSpec(s, "bfloat16") for s in shapes))
    s = fw.Schedule(fusion)
    WarpMatmulScheduler(s.flow, target_of("sm_90a"))
    schedule_warp_products(s, [t for t in s.flow.stages if isinstance(t.op, MatMul)], plan)
    program = fw.compile(s)
    for seed in range(3):
        arrays = _arrays(seed, "bfloat16", *shapes)
        (found,) = program.run_cuda(*arrays)
        _check(np.matmul, found, arrays, 1030)


def test_a_gated_pair_and_a_batch() -> None:
    def gated(x: Any, g: Any, u: Any) -> Any:
        return fw.nn.silu(fw.matmul(x, g.mT)) * fw.matmul(x, u.mT)

    shapes = (3, 200, 264), (3, 120, 264), (3, 120, 264)
    program = fw.compile(
        fw.trace(gated, *(fw.TensorSpec(s, "bfloat16") for s in shapes)), target="sm_90"
    )
    arrays = _arrays(5, "bfloat16", *shapes)
    (found,) = program.run_cuda(*arrays)
    (wanted,) = program.simulate(*arrays).outputs
    assert np.abs(found.astype(np.float64) - wanted.astype(np.float64)).max() <= 2**-6 * float(
        np.abs(wanted.astype(np.float64)).max()
    )
