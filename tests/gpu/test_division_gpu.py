"""Divisions of integers by literals, which kernels multiply by, against numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fusewright as fw

DIVISORS = (2, 3, 5, 7, 10, 64, 97, 100, 127)
LARGE = (128, 255, 1000, 4097, 32767)


def values(dtype: str) -> np.ndarray:
    """All values of 8 or 16 bits; of 32 the ends, around 0, and others."""
    info = np.iinfo(dtype)
    if info.bits <= 16:
        return np.arange(info.min, info.max + 1, dtype=dtype)
    some = np.random.default_rng(0).integers(info.min, info.max, 60_000, dtype=dtype, endpoint=True)
    ends = [info.min, info.min + 1, info.max - 1, info.max]
    return np.concatenate([some, np.array(ends, dtype), np.arange(512).astype(dtype)])


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "int32"])
def test_every_quotient_and_remainder(dtype: str) -> None:
    x = values(dtype)
    own = [d for d in (*DIVISORS, *LARGE) if d <= np.iinfo(dtype).max]

    def divided(a: Any) -> list[Any]:
        return [y for d in own for y in (a // d, a % d)]

    program = fw.compile(fw.trace(divided, fw.TensorSpec(x.shape, dtype)))
    found = [np.asarray(y) for y in program.run_cuda(x)]
    for k, d in enumerate(own):
        np.testing.assert_array_equal(found[2 * k], x // d, err_msg=f"// {d}")
        np.testing.assert_array_equal(found[2 * k + 1], x % d, err_msg=f"% {d}")
