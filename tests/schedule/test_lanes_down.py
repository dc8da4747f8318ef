"""Columns of which a row has less than a line: the lanes of a warp share them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fusewright as fw
from fusewright.finish import finish
from fusewright.forms import prepare
from fusewright.kernel import Kernel
from fusewright.schedule.graph import Dataflow
from fusewright.schedule.heuristics import candidates_of, schedule_group
from fusewright.schedule.heuristics.candidates import Candidate
from fusewright.target import target_of

T = fw.TensorSpec
TARGET = target_of("sm_90a")


def norm(x: Any) -> Any:
    mean = fw.mean(x, axis=1, keepdims=True)
    return (x - mean) / fw.sqrt(fw.mean((x - mean) ** 2, axis=1, keepdims=True) + 1e-5)


CASES: dict[str, tuple[Callable[..., Any], fw.TensorSpec]] = {
    "softmax": (lambda x: fw.nn.softmax(x, axis=1), T((37, 145, 2), "float32")),
    "short columns": (lambda x: fw.nn.softmax(x, axis=1), T((70, 33, 4), "bfloat16")),
    "odd rows": (norm, T((19, 333, 3), "float32")),
    "long columns": (norm, T((3, 2050, 2), "float16")),
    "sum": (lambda x: fw.sum(x, axis=1), T((29, 517, 5), "float32")),
    "maximum": (lambda x: fw.max(fw.abs(x), axis=1), T((41, 100, 8), "int32")),
    "place of the largest": (lambda x: fw.argmax(x, axis=1), T((41, 77, 2), "float32")),
}


def kernels(name: str) -> list[Kernel]:
    fn, spec = CASES[name]
    fusion = prepare(fw.trace(fn, spec), TARGET)
    found = [c for c in candidates_of(Dataflow(fusion), TARGET) if "lanes down" in c.what]
    made: list[Kernel] = []
    for c in found:
        assert isinstance(c, Candidate)
        flow = Dataflow(fusion)
        schedule_group(flow, TARGET, c.params)
        made.append(finish(flow, "k", TARGET, c.params))
    return made


@pytest.mark.parametrize("name", CASES)
def test_results(name: str) -> None:
    fn, spec = CASES[name]
    rng = np.random.default_rng(0)
    shape = tuple(int(str(n)) for n in spec.shape)
    x = (rng.normal(size=shape) * 5).astype(spec.dtype.numpy)
    (want,) = fw.evaluate(fw.trace(fn, spec), x)
    found = kernels(name)
    assert found
    for k in found:
        result = k.simulate(x)
        assert result.races == []
        tolerance = 2e-5 if spec.dtype.nbytes == 4 else 2e-2
        np.testing.assert_allclose(
            np.asarray(result.outputs[0], np.float64),
            np.asarray(want, np.float64),
            rtol=tolerance,
            atol=tolerance,
        )
        assert k.resources().spill_stores == k.resources().stack_nbytes == 0


def test_warps_that_have_columns_of_their_own_meet_at_no_barrier() -> None:
    k = kernels("softmax")[0]
    assert k.heuristic is not None and dict(k.heuristic.values)["reduce_threads"] == 32
    assert k.syncs == [] or all(s.kind == "warp" for s in k.syncs)


def test_many_rows_of_few_columns_are_read_in_whole_lines() -> None:
    """A warp reads a line of memory for each of its accesses, not a sector for each row."""
    spec = T((20000, 145, 2), "bfloat16")
    (kernel,) = fw.compile(fw.trace(lambda x: fw.nn.softmax(x, axis=1), spec)).kernels
    assert kernel.heuristic is not None and kernel.predicted is not None
    assert dict(kernel.heuristic.values).get("lanes_down")
    assert kernel.predicted.limit != "cache"


def test_rows_of_a_line_are_left() -> None:
    spec = T((64, 512, 32), "float32")
    fusion = prepare(fw.trace(lambda x: fw.nn.softmax(x, axis=1), spec), TARGET)
    found = candidates_of(Dataflow(fusion), TARGET)
    assert not any("lanes down" in c.what for c in found)
