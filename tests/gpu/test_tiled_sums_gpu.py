"""Products by tiles of fused multiply-adds on a device, against float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fusewright as fw

SHAPES = ((512, 512, 512), (300, 264, 513), (1000, 1030, 999), (2048, 1024, 4096))


@pytest.mark.parametrize("layout", ["TN", "TT", "NN", "NT"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_products_of_float32_agree_with_float64(shape: tuple[int, int, int], layout: str) -> None:
    """Twice, with other values; the same bits when repeated."""
    m, n, k = shape
    first = (m, k) if layout[0] == "T" else (k, m)
    second = (n, k) if layout[1] == "N" else (k, n)

    def fn(x: Any, w: Any) -> Any:
        return (x if layout[0] == "T" else x.T) @ (w.T if layout[1] == "N" else w)

    program = fw.compile(fw.trace(fn, *(fw.TensorSpec(s, "float32") for s in (first, second))))
    for seed in range(2):
        rng = np.random.default_rng(seed)
        x, w = (rng.standard_normal(s, dtype=np.float32) for s in (first, second))
        (found,) = program.run_cuda(x, w)
        (again,) = program.run_cuda(x, w)
        assert found.tobytes() == again.tobytes()
        wanted = fn(x.astype(np.float64), w.astype(np.float64))
        bound = 2**-20 * fn(np.abs(x, dtype=np.float64), np.abs(w, dtype=np.float64))
        assert (np.abs(found - wanted) <= bound).all()
