"""Kernels of one's own inside of programs, on a device: oracle, simulator and GPU agree."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fusewright as fw

pytestmark = pytest.mark.gpu

TEXT = """kernel reverse {
  param x: float32[4096]
  param y: float32[4096]
  grid (bx < 64, by < 1, bz < 1)
  block (tx < 64, ty < 1, tz < 1)
  local r: float32[1]
  shared a: float32[64] offset 0
  r[0] = load x[64*bx + tx]
  store a[tx] = r[0]
  block_sync #0  // RAW smem a
  r[0] = load a[63 - tx]
  store y[64*bx + tx] = r[0]
}"""


def by_rows(s: fw.Schedule) -> None:
    t = s.outputs[0]
    t.merge(0).split(0, 64).parallelize(0, fw.BIDx).parallelize(1, fw.TIDx)
    s.transform_like(t)
    s.inline_most()


gated = fw.kernel(lambda x, y: fw.tanh(x) * y + 0.5, schedule=by_rows)
two = fw.kernel(lambda x, y: (fw.sin(x) + y, fw.maximum(x, y)), schedule=by_rows)
reverse = fw.kernel(fw.parse_kernel(TEXT), results="f32[64,64]")


@pytest.mark.parametrize(
    "program",
    [
        lambda x, y: fw.nn.softmax(gated(fw.exp(x), y.T), axis=-1),
        lambda x, y: fw.concat([gated(x, y), *two(y, x)], axis=1),
        lambda x, y: fw.sum(reverse(gated(x, x) + y), axis=0),
        lambda x, y: fw.pad(reverse(x), ((1, 2), (3, 0))),
    ],
)
def test_three_witnesses_agree(program: Any) -> None:
    rng = np.random.default_rng(11)
    x, y = (rng.normal(size=(64, 64)).astype(np.float32) for _ in range(2))
    fusion = fw.trace(program, *["f32[64,64]"] * 2)
    compiled = fw.compile(fusion)
    simulated = compiled.simulate(x, y)
    assert simulated.races == []
    measured = compiled(x, y, device="cuda")
    for a, b, c in zip(fw.evaluate(fusion, x, y), simulated.outputs, measured, strict=True):
        assert np.allclose(a, b, rtol=2e-5, atol=1e-5)
        assert np.allclose(a, c, rtol=2e-5, atol=1e-5)
    again = compiled(x, y, device="cuda")
    assert all(np.array_equal(a, b) for a, b in zip(measured, again, strict=True))
