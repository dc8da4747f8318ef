"""Every function of every dtype, and every cast, against numpy."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from cuda_kernels import casts_kernel, functions_kernel, functions_of
from references import EXACT, ULPS, assert_close, inputs, narrowed, on_device, reference

from fusewright.core.functions import ADDED, APPROXIMATE, FUNCTIONS
from fusewright.dtypes import ALL, DType, bool_, dtype_of

N = 4000


def assert_near(got: np.ndarray, expected: np.ndarray, dtype: DType, *, what: str) -> None:
    """Good enough for 16 bits, away from the ends of the range, which are flushed to 0; one unit in
    the last place of a stored type, where a value near a tie may round either way."""
    g, e = got.astype(np.float64), expected.astype(np.float64)
    inside = np.isfinite(e) & (np.abs(e) > 1e-30) & (np.abs(e) < 1e30)
    unit = 2.0**-16 if dtype.nbytes >= 4 else float(ml_dtypes.finfo(dtype.numpy).eps)
    error = np.abs(g - e)[inside] - np.maximum(unit * np.abs(e[inside]), 6e-7)
    assert inside.any() and error.max() <= 0, what


def assert_good_in_sums(got: np.ndarray, expected: np.ndarray, x: np.ndarray, *, what: str) -> None:
    """What `core.functions` promises of exponentials of numbers that are not positive."""
    meant = (x <= 0) & (x > -80)
    g, e = got[meant].astype(np.float64), np.exp(x[meant].astype(np.float64))
    bound = 2.0**-22 + np.abs(x[meant].astype(np.float64)) * 2.0**-26 + 2.0**-24
    assert meant.sum() > 100 and (np.abs(g - e) <= bound * e).all(), what
    assert (got[x == -np.inf] == 0).all() and np.isnan(got[np.isnan(x)]).all(), what


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_every_function_is_within_its_units_in_the_last_place(dtype: DType) -> None:
    k = functions_kernel(dtype, N)
    c, *xs = (inputs(t, N, seed) for seed, t in enumerate((bool_, dtype, dtype, dtype)))
    outputs = [b for b in k.params if b.name in ("same", "bool", "uint32")]
    empty = [np.zeros(b.size.value, b.dtype.numpy) for b in outputs]
    results = on_device(k, [c, *xs, *empty])
    for buffer, result in zip(outputs, results, strict=True):
        for row, fn in enumerate(functions_of(dtype, buffer.name)):
            operands = (c, xs[0], xs[1]) if fn == "where" else xs[: FUNCTIONS[fn].arity]
            expected = reference(fn, operands, dtype)
            got = result[row * N : (row + 1) * N]
            if fn == "logaddexp":  # cancels towards 0: the error is that of the larger operand
                ok = np.isfinite(expected.astype(np.float64)) & (
                    np.abs(expected.astype(np.float64)) > 0.1
                )
                got, expected = got[ok], expected[ok]
            if fn in ADDED.values() and dtype.name == "float32":
                assert_good_in_sums(got, expected, operands[0], what=fn)
            if fn in (*APPROXIMATE.values(), *ADDED.values()):
                assert_near(got, expected, dtype, what=f"{fn} of {dtype}")
                continue
            ulps = 0 if fn in EXACT else ULPS if dtype.nbytes >= 4 else 1
            assert_close(got, expected, dtype, ulps=ulps, what=f"{fn} of {dtype}")


@pytest.mark.parametrize("source", ALL, ids=str)
def test_every_cast_agrees_with_numpy(source: DType) -> None:
    k = casts_kernel(source, N)
    x = inputs(source, N, 7)
    outputs = [np.zeros(N, b.dtype.numpy) for b in k.params[1:]]
    for buffer, got in zip(k.params[1:], on_device(k, [x, *outputs]), strict=True):
        target = dtype_of(buffer.dtype)
        defined = np.ones(N, bool)
        if source.is_float and target.is_integer:
            limits, wide = np.iinfo(target.numpy), x.astype(np.float64)
            with np.errstate(invalid="ignore"):
                defined = (wide > float(limits.min) - 1) & (wide < float(limits.max))
        with np.errstate(all="ignore"):
            expected = narrowed(x, target)
        what = f"cast of {source} to {target}"
        assert_close(got[defined], expected[defined], target, ulps=0, what=what)
