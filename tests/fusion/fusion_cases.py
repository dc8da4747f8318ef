"""Shared by the tests of fusions: run a function through trace, spec, text and the oracle."""

from __future__ import annotations

from typing import Any

import numpy as np

from fusewright.fusion.evaluate import evaluate
from fusewright.fusion.ir import Fusion, TensorSpec
from fusewright.fusion.spec import check
from fusewright.fusion.text import parse_fusion
from fusewright.fusion.trace import trace, trace_call
from fusewright.fusion.trees import unflatten


def specs(*arrays: np.ndarray) -> list[TensorSpec]:
    return [TensorSpec(a.shape, a.dtype) for a in arrays]


def traced(fn: Any, *arrays: np.ndarray) -> Fusion:
    """The fusion for these arrays, which keeps its spec and survives printing and parsing."""
    fusion = trace(fn, *specs(*arrays))
    check(fusion)
    assert str(parse_fusion(str(fusion))) == str(fusion)
    return fusion


def run(fn: Any, *arrays: Any) -> Any:
    """What `fn` computes, in its own structure."""
    known = [np.asarray(a) for a in arrays]
    traced(fn, *known)
    call = trace_call(fn, *specs(*known))
    return unflatten(call.out_tree, evaluate(call.fusion, *known))


def assert_same(actual: np.ndarray, expected: Any) -> None:
    """Equal dtype, shape and elements, NaN equal to NaN, -0 different from 0."""
    expected = np.asarray(expected)
    assert actual.dtype == expected.dtype, (actual.dtype, expected.dtype)
    assert actual.shape == expected.shape, (actual.shape, expected.shape)
    np.testing.assert_array_equal(actual, expected)
    if expected.dtype.kind == "f":
        number = ~np.isnan(expected)
        np.testing.assert_array_equal(np.signbit(actual[number]), np.signbit(expected[number]))
