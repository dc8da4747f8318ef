"""Products whose blocks stand in clusters, on a device: values, and the same bits again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from test_cluster_products import CASES, gelu, named, plain, product_of, scheduled

import fusewright as fw
from fusewright.runtime import device
from fusewright.schedule.heuristics.product_plans import ProductPlan
from fusewright.target import target_of

RUNS = 50
LARGE = (
    (plain, (4096, 4096, 4096), ProductPlan(128, 256, 64, 2, 4, 128, 8, 132, cluster=(2, 1))),
    (plain, (4096, 4096, 4096), ProductPlan(128, 256, 64, 2, 4, 128, 16, 132, cluster=(1, 2))),
    (plain, (4096, 4096, 4096), ProductPlan(128, 256, 64, 2, 4, 128, 8, 112, cluster=(4, 1))),
    (plain, (4097, 4104, 4104), ProductPlan(128, 192, 64, 2, 4, 0, 11, 132, cluster=(1, 2))),
    (plain, (2048, 2304, 1032), ProductPlan(256, 128, 64, 2, 3, 128, 4, 132, cluster=(2, 1))),
    (gelu, (2049, 4096, 520), ProductPlan(128, 256, 64, 2, 4, 128, 1, 132, cluster=(2, 1))),
    (gelu, (512, 512, 4096), ProductPlan(64, 64, 64, 1, 8, 64, 4, cluster=(2, 1))),
)
SHARED = (
    (plain, (512, 512, 4096), ProductPlan(128, 64, 64, 2, 8, splits=4, mode="cluster")),
    (plain, (64, 4096, 4096), ProductPlan(64, 128, 64, 1, 8, splits=2, mode="cluster")),
    (gelu, (100, 72, 1000), ProductPlan(64, 64, 64, 1, 3, splits=8, mode="cluster")),
)
"""Blocks that share the depth of a tile."""


@pytest.fixture(autouse=True)
def needs_products_of_warpgroups() -> None:
    if not target_of(device.architecture()).has_wgmma:
        pytest.skip("this device has no products of warpgroups")


@pytest.mark.parametrize(("fn", "sizes", "plan"), [*CASES, *LARGE, *SHARED], ids=named)
def test_values_and_bits(
    fn: Callable[..., Any], sizes: tuple[int, int, int], plan: ProductPlan
) -> None:
    fusion = product_of(fn, *sizes)
    program = fw.compile(scheduled(fusion, plan), "sm_90a")
    rng = np.random.default_rng(0)
    shapes = [tuple(int(str(e)) for e in t.shape) for t in fusion.inputs]
    arrays = [rng.standard_normal(s, dtype=np.float32).astype(fw.bfloat16.numpy) for s in shapes]
    (first,) = program.run_cuda(*arrays)
    x, w = (a.astype(np.float32) for a in arrays)
    wanted = x @ (w.T if fn is plain else w)
    if fn is gelu:
        wanted = fw.evaluate(fw.trace(fw.nn.gelu, fw.TensorSpec(wanted.shape, "float32")), wanted)[
            0
        ]
    error = np.abs(first.astype(np.float32) - wanted).max()
    assert error <= 2**-7 * np.abs(wanted).max()
    for _ in range(RUNS):
        (again,) = program.run_cuda(*arrays)
        assert again.tobytes() == first.tobytes()
