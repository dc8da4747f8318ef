"""Sums of short integers are computed in 32 bits where no sum can be larger."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fusewright as fw
from fusewright.forms import prepare
from fusewright.fusion.ir import Reduce, Scan
from fusewright.target import target_of

T = fw.TensorSpec
TARGET = target_of("sm_90a")


def _dtypes(fn: Callable[..., Any], spec: fw.TensorSpec) -> set[str]:
    """The dtypes that the prepared program sums in."""
    fusion = prepare(fw.trace(fn, spec), TARGET)
    return {t.dtype.name for t in fusion.values if isinstance(t.op, Reduce | Scan)}


def count(x: Any) -> Any:
    return fw.count_nonzero(x, axis=1)


def total(x: Any) -> Any:
    return fw.sum(x, axis=1)


def before(x: Any) -> Any:
    return fw.cumulative_sum(x, axis=1, include_initial=True)


SHORT: list[tuple[Callable[..., Any], fw.TensorSpec]] = [
    (count, T((301, 700), "float32")),
    (total, T((301, 700), "int8")),
    (total, T((301, 700), "uint8")),
    (total, T((33, 7001), "int16")),
    (before, T((301, 700), "bool")),
    (lambda x: fw.sum(x, axis=0), T((30000, 5), "uint16")),
]


@pytest.mark.parametrize(("fn", "spec"), SHORT)
def test_short_integers_are_summed_in_32_bits(fn: Callable[..., Any], spec: fw.TensorSpec) -> None:
    assert _dtypes(fn, spec) == {"int32"}
    program = fw.compile(fw.trace(fn, spec), target="sm_90a")
    shape = tuple(int(str(n)) for n in spec.shape)
    rng = np.random.default_rng(7)
    if spec.dtype.is_integer:  # the ends of the range are the worst
        ends = np.iinfo(spec.dtype.numpy)
        x = np.where(rng.random(shape) < 0.9, ends.max, ends.min).astype(spec.dtype.numpy)
    else:
        x = (rng.standard_normal(shape).round() * 2).astype(spec.dtype.numpy)
    found = program.simulate(x)
    assert not found.races
    want = x != 0 if fn is count else x
    wide = np.uint64 if spec.dtype.kind == "uint" else np.int64
    if fn is before:
        expected = np.zeros((shape[0], shape[1] + 1), wide)
        expected[:, 1:] = np.cumsum(want, axis=1, dtype=wide)
    else:
        expected = np.sum(want, axis=0 if shape[1] == 5 else 1, dtype=wide)
    (got,) = found.outputs
    assert np.asarray(got).dtype == expected.dtype
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize(
    ("fn", "spec"),
    [
        (total, T((3, 70000), "int16")),  # 70000 times 32768 is more than 2**31
        (total, T((301, 700), "int32")),
        (total, T(("n", "m"), "int8")),
        (lambda x: fw.prod(x, axis=1), T((301, 7), "int8")),
    ],
)
def test_what_32_bits_may_not_hold_is_summed_in_64(
    fn: Callable[..., Any], spec: fw.TensorSpec
) -> None:
    assert _dtypes(fn, spec) == {"int64"}
