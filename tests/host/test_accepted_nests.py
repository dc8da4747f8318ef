"""Kernels whose values lie elsewhere in one nest of loops: what formation accepts, a schedule does.

In every test the fixture of `tests/conftest.py` fails where lowering refuses a kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fusewright as fw
from fusewright.core.expr import constant_value
from fusewright.kir.ir import Alloc
from fusewright.kir.traverse import walk_statements
from fusewright.memory import Memory

S = fw.TensorSpec


def assert_right(program: fw.Program, fusion: fw.Fusion, n: int = 0) -> None:
    """The values of random arguments, of sizes `n` where they are symbols, by the oracle."""
    rng = np.random.default_rng(11)
    shapes = [[int(e) if str(e).isdigit() else n for e in map(str, v.shape)] for v in fusion.inputs]
    arrays = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
    found = program.simulate(*arrays)
    assert found.races == []
    for got, want in zip(found.outputs, fw.evaluate(fusion, *arrays), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-3)


def with_rows(t: Any) -> Any:
    return t, t - fw.max(t, axis=1, keepdims=True)


SCALED: list[Callable[[Any, Any], Any]] = [
    lambda x, s: with_rows(fw.reshape(x * s[:, None], (34, 6))),
    lambda x, s: with_rows(fw.reshape(x * fw.exp(s)[:, None], (34, 6))),
    lambda x, s: fw.max(fw.reshape(x * s[:, None], (34, 6)), axis=1),
    lambda x, s: fw.nn.softmax(fw.reshape(x * s[:, None], (34, 6)), axis=1),
]


@pytest.mark.parametrize("fn", SCALED)
def test_a_row_that_several_loops_together_tell_is_read_in_all_of_them(fn: Any) -> None:
    """Rows of 34 as rows of 6: 32 of these a block, of which 17 have three of the others."""
    fusion = fw.trace(fn, S((6, 34), "float32"), S((6,), "float32"))
    program = fw.compile(fusion)
    assert len(program.launches) == 1
    assert_right(program, fusion)


def scans_of_two(a: Any) -> Any:
    f = fw.flip(a)
    once = fw.cumulative_sum(f, axis=1)
    return f, once, fw.cumulative_sum(once, axis=1), fw.cumulative_sum(a, axis=1)


@pytest.mark.parametrize("shape", [(1, "n"), (5, "n"), (5, 300)])
def test_scans_of_other_axes_of_equal_sizes_share_the_threads_of_a_line(shape: Any) -> None:
    """Nothing else joins the axes of an argument with those of what is made of its reverse."""
    fusion = fw.trace(scans_of_two, S(shape, "float32"))
    program = fw.compile(fusion)
    (kernel,) = program.kernels
    held = [x.buffer for x in walk_statements(kernel.ir) if isinstance(x, Alloc)]
    assert max(constant_value(b.size) or 0 for b in held if b.memory is Memory.LOCAL) <= 4
    assert_right(program, fusion, 257)


def gathered_of_a_broadcast(v: Any, i: Any) -> Any:
    """The rows that the loss gathers from are a view of one computed row."""
    logits = fw.ones((3, 5), dtype="float32") * fw.linspace(-1.0, 2.0, 5, dtype="float32")
    return fw.nn.hardsigmoid(v), fw.nn.cross_entropy(logits, i, reduction="sum")


def test_what_is_viewed_in_place_reads_no_copy() -> None:
    fusion = fw.trace(gathered_of_a_broadcast, S((2,), "float32"), S((3,), "int64"))
    program = fw.compile(fusion)
    v, i = np.array([0.3, -2.0], np.float32), np.array([4, 0, 2])
    for got, want in zip(program.simulate(v, i).outputs, fw.evaluate(fusion, v, i), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5)


STORED_CROPS: list[Callable[[Any], Any]] = [
    lambda x: (x[43:143], fw.concat([x[43:143], x[43:143]], axis=1)),
    lambda x: (x[:, 4:], fw.abs(x[:, 4:]), fw.pad(x[:, 4:], ((0, 0), (1, 2)))),
    lambda x: (x[5:], fw.sum(x[5:], axis=1), fw.concat([fw.exp(x[5:]), x[5:]])),
]


@pytest.mark.parametrize("fn", STORED_CROPS)
def test_a_crop_that_is_stored_runs_along_the_loops_of_its_readers(fn: Any) -> None:
    """It is all that the kernel reads of the argument, and a result, too."""
    fusion = fw.trace(fn, S((300, 65), "float32"))
    assert_right(fw.compile(fusion), fusion)
