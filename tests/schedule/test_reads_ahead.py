"""Elements of other inputs, one for each vector of a row in slices: read in front of the passes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fusewright as fw
from fusewright.kernel import Kernel
from fusewright.kir.ir import For, Load, Store
from fusewright.kir.traverse import walk_statements
from fusewright.memory import Memory


def group_norm(x: Any, w: Any, b: Any) -> Any:
    return fw.nn.silu(fw.nn.group_norm(x, 32, w, b))


def layer_norm(x: Any, w: Any, b: Any) -> Any:
    return fw.nn.layer_norm(x, (x.shape[-1],), w, b)


def only(fn: Any, *shapes: tuple[int, ...]) -> Kernel:
    specs = [fw.TensorSpec(s, "bfloat16") for s in shapes]
    (kernel,) = fw.compile(fw.trace(fn, *specs)).kernels
    return kernel


def norm(width: int) -> Kernel:
    """Of 160 rows with 16 channels of 64 by `width` elements."""
    return only(group_norm, (5, 512, 64, width), (512,), (512,))


def reads(kernel: Kernel, name: str) -> tuple[int, int]:
    """How often a thread's text reads an input: before the first store, and later or in loops."""
    ahead, later, stored = 0, 0, False
    looped = {s for f in walk_statements(kernel.ir) if isinstance(f, For) for s in f.body}
    for s in walk_statements(kernel.ir):
        stored = stored or (isinstance(s, Store) and s.dst.memory is Memory.GLOBAL)
        if isinstance(s, Load) and s.src.name == name:
            ahead, later = ahead + (not stored), later + (stored or s in looped)
    return ahead, later


@pytest.mark.parametrize("name", ["w", "b"])
def test_channels_that_end_within_a_trip_are_read_before_the_passes(name: str) -> None:
    kernel = norm(72)
    assert kernel.launch.cluster == 8
    assert reads(kernel, name) == (3, 0)  # for each of three trips
    found = kernel.resources()
    assert (found.spill_stores, found.spill_loads, found.stack_nbytes) == (0, 0, 0)


def test_channels_of_whole_trips_are_read_once_each() -> None:
    assert reads(norm(64), "w") == (2, 0)


def test_no_more_is_read_ahead_than_registers_hold() -> None:
    kernel = norm(240)
    assert reads(kernel, "w")[1]
    assert kernel.resources().spill_stores == 0


def test_vectors_are_read_where_they_are_needed() -> None:
    assert reads(only(layer_norm, (160, 65536), (65536,), (65536,)), "w")[1]


def test_right_in_the_simulator_with_the_fewest_syncs() -> None:
    kernel = norm(72)
    rng = np.random.default_rng(11)
    shapes = ((5, 512, 64, 72), (512,), (512,))
    given = [rng.standard_normal(s, np.float32).astype(fw.bfloat16.numpy) for s in shapes]
    result = kernel.simulate(*given, blocks=range(8))
    assert not result.races
    x, w, b = (a.astype(np.float64) for a in given)
    row = x[0, :16]
    y = (row - row.mean()) / np.sqrt(row.var() + 1e-5) * w[:16, None, None] + b[:16, None, None]
    got = np.asarray(result.outputs[0][0, :16], np.float64)
    np.testing.assert_allclose(got, y / (1 + np.exp(-y)), rtol=0.02, atol=0.02)
    report = fw.verify(kernel, *given)
    assert not report.redundant and not report.missing


def test_a_number_that_all_rows_share_has_no_loop_to_be_read_before() -> None:
    kernel = only(lambda x, s: fw.nn.softmax(x, axis=-1) * fw.exp(s), (160, 57344), ())
    assert kernel.launch.cluster == 8
    assert reads(kernel, "s") == (1, 0)
