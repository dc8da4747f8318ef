"""What is one value for a row is read once by each thread, in front of all loops over the row."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest

import fusewright as fw
from fusewright.kir.ir import For, Load, Statement
from fusewright.kir.traverse import walk_statements

EPS = 1e-5


def backward(dy: Any, x: Any, w: Any, mean: Any, rstd: Any) -> Any:
    xhat = (x - mean) * rstd
    g = dy * w
    spread = fw.mean(g * xhat, axis=-1, keepdims=True)
    return fw.astype((g - fw.mean(g, axis=-1, keepdims=True) - xhat * spread) * rstd, x.dtype)


def compiled(rows: int, columns: int) -> tuple[fw.Fusion, fw.Program]:
    large, few = ((rows, columns), "float16"), ((rows, 1), "float32")
    specs = [fw.TensorSpec(*s) for s in (large, large, ((columns,), "float16"), few, few)]
    fusion = fw.trace(backward, *specs)
    return fusion, fw.compile(fusion)


def loads_of(statements: Iterable[Statement]) -> list[str]:
    """The values of a row that these statements load, by name."""
    loads = [s.src.name for s in statements if isinstance(s, Load)]
    return sorted(name for name in loads if name in ("mean", "rstd"))


@pytest.mark.parametrize("columns", [80, 4096, 39271])
def test_each_is_loaded_once(columns: int) -> None:
    """Rows in registers, in shared memory, and in slices in a cluster."""
    (kernel,) = compiled(4224, columns)[1].kernels
    assert kernel.heuristic is not None
    statements = list(walk_statements(kernel.ir))
    at_once = dict(kernel.heuristic.values).get("rows", 1)
    assert loads_of(statements) == ["mean"] * at_once + ["rstd"] * at_once
    loops = [s for s in statements if isinstance(s, For)]
    assert not any(loads_of(walk_statements(loop)) for loop in loops)


def test_results_are_those_of_the_oracle() -> None:
    fusion, program = compiled(4227, 80)
    rng = np.random.default_rng(0)
    dy, x = rng.standard_normal((2, 4227, 80)).astype(np.float16)
    w = rng.standard_normal(80).astype(np.float16)
    mean = x.mean(1, keepdims=True, dtype=np.float32)
    rstd = (1 / np.sqrt(x.var(1, keepdims=True, dtype=np.float32) + EPS)).astype(np.float32)
    found = program.simulate(dy, x, w, mean, rstd)
    assert not found.races
    want = fw.evaluate(fusion, dy, x, w, mean, rstd)[0]
    np.testing.assert_allclose(found.outputs[0], want, rtol=2e-3, atol=2e-3)
