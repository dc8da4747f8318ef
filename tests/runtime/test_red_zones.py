"""Red zones around the arrays of a call, on a driver whose kernels are simulated."""

from __future__ import annotations

import numpy as np
from fake_cuda import FakeDriver
from fake_fixtures import gpu as gpu

import fusewright as fw
from fusewright.runtime import executor
from red_zones import ZONE, red_zones


def test_programs_write_nothing_beside_their_arrays(gpu: FakeDriver) -> None:
    x = np.random.default_rng(0).normal(size=(7, 33)).astype("f4")
    f = fw.trace(lambda x: (fw.nn.softmax(x, axis=0) @ x.mT, fw.sum(x, axis=1)), "f32[7,33]")
    with red_zones() as written:
        made = fw.compile(f).run_cuda(x)
    assert written == []
    for a, b in zip(made, fw.evaluate(f, x), strict=True):
        assert np.allclose(a, b, atol=1e-5)


def test_a_byte_beside_an_array_is_found(gpu: FakeDriver) -> None:
    byte = np.zeros(1, np.uint8)
    with red_zones() as written:
        for offset in (-1, 40, 39):
            place = executor.allocate(40, 0)
            gpu.cuMemcpyHtoD(place + offset, byte.ctypes.data, 1)
            executor.free(place, 0)
    assert [w.split(" of ")[0] for w in written] == ["before an array", "behind an array"]
    assert f"byte {ZONE - 1} of" in written[0] and "byte 0 of" in written[1]
