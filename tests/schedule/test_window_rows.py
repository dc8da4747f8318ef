"""Neighbouring rows of a window that a thread takes together: when, what it reads, and values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import fusewright as fw
from fusewright.finish import finish
from fusewright.forms import prepare
from fusewright.kir.ir import Load, Store
from fusewright.kir.traverse import walk_statements
from fusewright.schedule.graph import Dataflow
from fusewright.schedule.heuristics import schedule_group
from fusewright.schedule.heuristics.cost import cost
from fusewright.schedule.heuristics.work import work_of
from fusewright.target import target_of

TARGET = target_of("sm_90a")
FEW = replace(TARGET, multiprocessors=1)


def slices(x: Any) -> Any:
    return x[:-2] + x[1:-1] * 2.0 + x[2:]


def rolls(x: Any) -> Any:
    return sum((fw.roll(x, k, axis=1) for k in (-2, -1, 1, 2)), x)


def pads(x: Any) -> Any:
    y = fw.pad(x, ((2, 2), (0, 0), (0, 0)))
    return y[:-4] + y[1:-3] + y[2:-2] + y[3:-1] + y[4:]


def scheduled(f: Callable[..., Any], *shape: int, dtype: str = "float32") -> tuple[Any, Any, Any]:
    """The fusion, the kernel by the rules' first choice, and its parameters."""
    fusion = prepare(fw.trace(f, fw.TensorSpec(shape, dtype)), TARGET)
    flow = Dataflow(fusion)
    params = schedule_group(flow, FEW)
    return fusion, finish(flow, "k", TARGET, params), dict(params.values)


@pytest.mark.parametrize(
    ("f", "shape", "rows", "reads"),
    [
        (slices, (66, 2, 512), 4, 6),
        (slices, (20, 2, 512), 3, 5),  # 18 rows in the result
        (rolls, (4, 16, 520), 4, 8),
        (rolls, (3, 18, 1024), 3, 7),
        (pads, (16, 2, 512), 4, 8),
        (lambda x: x[:-512] + x[512:], (65 * 512,), 4, 5),  # rows of what lies between
    ],
)
def test_a_thread_reads_each_row_once(
    f: Callable[..., Any], shape: tuple[int, ...], rows: int, reads: int
) -> None:
    fusion, kernel, chosen = scheduled(f, *shape)
    assert (chosen["rows"], chosen["vector"]) == (rows, 4)
    found = [s for s in walk_statements(kernel.ir) if isinstance(s, Load | Store)]
    assert sum(isinstance(s, Load) for s in found) <= reads + (f is rolls) * reads
    assert [isinstance(s, Load) for s in found] == sorted(
        (isinstance(s, Load) for s in found), reverse=True
    )
    x = np.random.default_rng(0).integers(-8, 8, shape).astype(np.float32)
    result = kernel.simulate(x)
    assert result.races == []
    np.testing.assert_array_equal(result.outputs[0], fw.evaluate(fusion, x)[0])


@pytest.mark.parametrize("shape", [(21, 4, 512), (47, 3, 264), (13, 3, 1024)])
@pytest.mark.parametrize("f", [slices, pads])
def test_rows_that_lie_beyond(f: Callable[..., Any], shape: tuple[int, ...]) -> None:
    fusion, kernel, chosen = scheduled(f, *shape, dtype="bfloat16")
    assert chosen["rows"] > 1
    x = np.random.default_rng(1).integers(-8, 8, shape).astype(kernel.inputs[0].dtype.numpy)
    result = kernel.simulate(x)
    assert result.races == []
    np.testing.assert_array_equal(result.outputs[0], fw.evaluate(fusion, x)[0])


@pytest.mark.parametrize(
    ("f", "shape"),
    [
        (slices, (66, 9, 11)),  # a row has no whole vectors
        (slices, (660, 64)),  # a warp would read short runs
        (lambda x: x * 2.0, (64, 1024)),
        (lambda x: x[:32] + x[32:], (64, 1024)),  # which are different bytes
        (lambda x: fw.roll(x, (3, 5), axis=(0, 1)), (64, 1024)),
        (lambda x: x[:, :-2] + x[:, 1:-1] + x[:, 2:], (64, 1026)),  # along vectors
    ],
)
def test_others_walk_as_before(f: Callable[..., Any], shape: tuple[int, ...]) -> None:
    assert "rows" not in scheduled(f, *shape)[2]


def test_the_second_level_cache_is_asked_for_rows_once() -> None:
    """Five reads of rows that different blocks have; eight of four rows that a thread has."""

    def far(wanted: Callable[[dict[str, object]], bool]) -> float:
        fusion = prepare(fw.trace(pads, fw.TensorSpec((4096, 4, 2048), "float32")), TARGET)
        listed = fw.compile(fusion).kernels[0].candidates
        params = next(c.params for c in listed if wanted(dict(c.params.values)))
        flow = Dataflow(fusion)
        schedule_group(flow, TARGET, params)
        (x,) = (a for a in work_of(flow, params).arrays if not a.is_written)
        return x.again / x.nbytes

    assert far(lambda p: p.get("rows") == 4) == pytest.approx(2, rel=0.05)
    assert far(lambda p: "rows" not in p and p["vectors"] == 1) == pytest.approx(5, rel=0.05)


def test_reads_along_a_vector_are_found_near() -> None:
    fusion = prepare(
        fw.trace(lambda x: x[:, :-8] + x[:, 8:], fw.TensorSpec((8192, 4104), "float32")), TARGET
    )
    flow = Dataflow(fusion)
    work = work_of(flow, schedule_group(flow, TARGET))
    (x,) = (a for a in work.arrays if not a.is_written)
    assert x.again < 1.1 * x.nbytes
    assert dict(cost(work, TARGET).parts)["cache"] > 0
