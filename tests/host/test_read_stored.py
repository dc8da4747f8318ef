"""Readers of a function of what is stored anyway compute it again: its result is not stored."""

from __future__ import annotations

from typing import Any

import numpy as np

import fusewright as fw


def rounded_shares(x: Any) -> Any:
    """The largest share is known last: shares are stored until then, and not their sizes, too."""
    shares = fw.nn.softmax(x, axis=0) - 0.01
    scale = fw.max(fw.abs(shares)) / 127
    return fw.round(shares / scale) * scale


SHAPE = (700, 640)


def test_a_function_of_a_stored_value_is_not_stored_beside_it() -> None:
    program = fw.compile(fw.trace(rounded_shares, fw.TensorSpec(SHAPE, "float32")))
    first = program.launches[0].kernel
    large = [t for t in first.outputs if t.shape == program.fusion.outputs[0].shape]
    assert len(large) == 1
    x = np.random.default_rng(0).standard_normal(SHAPE).astype(np.float32)
    found = program.simulate(x)
    assert found.races == []
    (want,) = fw.evaluate(program.fusion, x)
    np.testing.assert_allclose(found.outputs[0], want, rtol=1e-5, atol=1e-6)


def test_readers_of_functions_of_results_find_what_the_oracle_does() -> None:

    def f(x: Any, y: Any) -> tuple[Any, Any, Any]:
        p, q = fw.nn.softmax(x, axis=0), fw.nn.softmax(y, axis=0)
        return p, q, fw.sum(fw.astype(p * 3, "float16"), axis=1, dtype="float32")

    spec = fw.TensorSpec(SHAPE, "float32")
    program = fw.compile(fw.trace(f, spec, spec))
    x, y = np.random.default_rng(1).standard_normal((2, *SHAPE)).astype(np.float32)
    found = program.simulate(x, y)
    for got, want in zip(found.outputs, fw.evaluate(program.fusion, x, y), strict=True):
        np.testing.assert_allclose(got, want, rtol=2e-3, atol=1e-6)
