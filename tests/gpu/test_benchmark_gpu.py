"""fw.benchmark on a device: medians, a copy, others beside it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fusewright as fw

pytestmark = pytest.mark.gpu


def test_a_softmax_reaches_most_of_the_speed_of_a_copy() -> None:
    torch = pytest.importorskip("torch")

    @fw.fuse
    def softmax(x: Any) -> Any:
        return fw.nn.softmax(x, axis=-1)

    x = torch.randn(16384, 4096, device="cuda", dtype=torch.bfloat16)
    beside = {"torch": lambda x: torch.softmax(x, -1)}
    found = fw.benchmark(softmax, x, beside=beside)
    print(found)
    assert found.is_measured and found.copy_us is not None
    assert found.share is not None and 0.6 < found.share < 1.3
    assert fw.benchmark(softmax, x).us == pytest.approx(found.us, rel=0.2)


def test_host_arrays_are_timed_on_copies() -> None:
    x = np.ones((4096, 4096), np.float32)
    found = fw.benchmark(fw.fuse(lambda x: x * 2.0), x)
    assert found.is_measured and found.us > 10
