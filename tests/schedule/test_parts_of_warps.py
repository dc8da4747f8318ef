"""Rows of which some lanes of a warp have no vector: fewer lanes share them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fusewright as fw
from fusewright.finish import finish
from fusewright.forms import prepare
from fusewright.schedule.graph import Dataflow
from fusewright.schedule.heuristics import candidates_of, schedule_group
from fusewright.schedule.heuristics.candidates import Candidate
from fusewright.schedule.heuristics.common import Params
from fusewright.target import target_of

TARGET = target_of("sm_90a")


def rounded(x: Any) -> Any:
    y = fw.exp(-fw.abs(fw.tanh(x)))
    scale = fw.max(y, axis=-1, keepdims=True) / 127
    return fw.round(y / scale) * scale


def lanes(columns: int, rows: int = 4096) -> list[Params]:
    """The candidates that keep a row in registers, by the lanes that share it."""
    spec = fw.TensorSpec((rows, columns), "float32")
    found = candidates_of(Dataflow(prepare(fw.trace(rounded, spec), TARGET)), TARGET)
    params = [c.params for c in found if isinstance(c, Candidate)]
    return [p for p in params if p.scheduler == "inner_persistent" and "rows" not in dict(p.values)]


@pytest.mark.parametrize(
    ("columns", "wanted"),
    [
        (80, [32, 8]),  # 20 vectors: 20 of 32, and 20 of 24 lanes are busy; four fill no line
        (128, [32]),  # 32 vectors: nobody idles
        (96, [32, 8]),  # 24 vectors: 24 of 32, 24 of 32 with 16 lanes, and all
        (132, [32, 16, 8]),  # 33 vectors: 33 of 64, of 48 and of 40
        (36, [16]),  # nine vectors: 9 of 16, as with eight lanes
    ],
)
def test_fewer_lanes_share_a_row_where_less_of_them_idle(columns: int, wanted: list[int]) -> None:
    assert [dict(p.values)["reduce_threads"] for p in lanes(columns)] == wanted


@pytest.mark.parametrize(("columns", "rows"), [(80, 37), (79, 37), (132, 19)])
def test_right_in_the_simulator_with_any_of_them(columns: int, rows: int) -> None:
    x = np.random.default_rng(columns).standard_normal((rows, columns)).astype(np.float32)
    fusion = prepare(fw.trace(rounded, fw.TensorSpec(x.shape, "float32")), TARGET)
    (want,) = fw.evaluate(fusion, x)
    several = lanes(columns, rows)
    assert len(several) > 1
    for params in several:
        flow = Dataflow(fusion)
        schedule_group(flow, TARGET, params)
        found = finish(flow, "k", TARGET, params).simulate(x)
        assert found.races == []
        np.testing.assert_allclose(found.outputs[0], want, rtol=1e-5, atol=1e-5)


def test_what_instructions_limit_is_shared_by_lanes_that_do_not_idle() -> None:
    """A time that is made of idle lanes is not taken for one that nothing can beat."""
    spec = fw.TensorSpec((1 << 18, 160), "float16")
    (kernel,) = fw.compile(fw.trace(lambda x: rounded(fw.exp(fw.sin(x))), spec)).kernels
    assert kernel.heuristic is not None
    assert dict(kernel.heuristic.values)["reduce_threads"] == 8
