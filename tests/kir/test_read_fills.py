"""Reads of which some lanes are a fill: one access, and a branch that is rare for the others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fusewright as fw
from fusewright.kir.ir import If, Kernel, Load
from fusewright.kir.lower_operands import OperandReader
from fusewright.kir.traverse import walk_statements
from fusewright.memory import Memory


def rows_above_and_below(x: Any) -> Any:
    above = fw.pad(x, ((1, 0), (0, 0)))[:-1]
    below = fw.pad(x, ((0, 1), (0, 0)))[1:]
    return above + x + below


def neighbours(x: Any) -> Any:
    before = fw.pad(x, ((0, 0), (1, 0)), constant_values=2.0)[:, :-1]
    behind = fw.pad(x, ((0, 0), (0, 1)), constant_values=-1.0)[:, 1:]
    return before * x - behind


def loads_of_parts(kernel: Kernel) -> list[Load]:
    """The loads that take place where a vector is not whole."""
    branches = [s for s in walk_statements(kernel) if isinstance(s, If)]
    return [s for b in branches for s in b.otherwise if isinstance(s, Load)]


SHAPE = (257, 100)


@pytest.mark.parametrize("fn", [rows_above_and_below, neighbours])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_vectors_are_read_whole_and_filled_where_they_lack(
    fn: Callable[..., Any], dtype: str
) -> None:
    program = fw.compile(fw.trace(fn, fw.TensorSpec(SHAPE, dtype)))
    (kernel,) = program.kernels
    loads = [s for s in walk_statements(kernel.ir) if isinstance(s, Load)]
    assert min(s.width for s in loads if s.src.memory is Memory.GLOBAL) > 1
    assert not loads_of_parts(kernel.ir)
    x = np.random.default_rng(1).standard_normal(SHAPE).astype(dtype)
    found = program.simulate(x)
    assert found.races == []
    (want,) = fw.evaluate(program.fusion, x)
    np.testing.assert_allclose(
        found.outputs[0].astype("f8"), np.asarray(want, "f8"), rtol=2e-3, atol=2e-3
    )


def test_without_fills_behind_the_read_each_part_would_be_a_branch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(OperandReader, "_needs_parts", lambda *_: False)
    (kernel,) = fw.compile(fw.trace(neighbours, fw.TensorSpec(SHAPE, "float16"))).kernels
    assert loads_of_parts(kernel.ir)
