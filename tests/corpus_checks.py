"""How near results must be to the oracle's: relative to the size of the output, by dtype."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

TOLERANCE = {1: 0.13, 2: 1e-2, 4: 1e-4, 8: 1e-10}
"""By bytes of a float: two units in the last place, and room for sums in another order."""


def assert_agrees(got: npt.NDArray[Any], want: npt.NDArray[Any]) -> None:
    """Same shape and dtype; integers but for roundings at a tie, floats within the tolerance."""
    assert got.shape == want.shape
    assert got.dtype == want.dtype
    g, w = got.astype(np.float64), want.astype(np.float64)
    if want.dtype.kind in "iub":
        assert (np.abs(g - w) <= 1).all()
        assert (g != w).mean() <= 0.01
        return
    tolerance = TOLERANCE[want.dtype.itemsize]
    scale = np.abs(w[np.isfinite(w)]).max(initial=0.0)
    np.testing.assert_allclose(g, w, rtol=tolerance, atol=tolerance * max(scale, 1e-3))
