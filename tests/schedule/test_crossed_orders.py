"""Tensors in different orders of their axes: which way over all elements asks memory for whole
sectors at once, and what is predicted of the others."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import fusewright as fw
from fusewright.finish import finish
from fusewright.forms import prepare
from fusewright.fusion.ir import Fusion
from fusewright.schedule.graph import Dataflow
from fusewright.schedule.heuristics import candidates_of, schedule_group
from fusewright.schedule.heuristics.candidates import Candidate
from fusewright.schedule.heuristics.common import Params, reference_output
from fusewright.schedule.heuristics.crossed_orders import crossed_orders
from fusewright.schedule.heuristics.work import MovedArray, work_of
from fusewright.target import target_of

TARGET = target_of("sm_90a")
FEW = replace(TARGET, multiprocessors=1)


def added(x: Any, z: Any) -> Any:
    """`x` and the result in one order, `z` with the outermost axis beside its innermost one."""
    return x + fw.permute_dims(z, (3, 0, 2, 4, 1))


def fusion_of(a: int, b: int, c: int, d: int, e: int, dtype: str = "bfloat16") -> Fusion:
    specs = fw.TensorSpec((a, b, c, d, e), dtype), fw.TensorSpec((b, e, c, a, d), dtype)
    return prepare(fw.trace(added, *specs), TARGET)


def ways(fusion: Fusion) -> list[tuple[list[str], int]]:
    flow = Dataflow(fusion)
    found = crossed_orders(flow, reference_output(flow), 8)
    return [([str(d.extent) for d in loop.axis.digits], width) for loop, width in found]


def test_lanes_run_along_the_result_and_blocks_along_the_other() -> None:
    assert ways(fusion_of(4, 16, 845, 5, 8)) == [(["16", "845", "4", "5", "8"], 8)]
    assert ways(fusion_of(4, 16, 845, 5, 12)) == [(["16", "3", "845", "4", "5", "4"], 4)]


def test_there_are_none_where_no_vector_has_lanes_or_all_lie_alike() -> None:
    assert ways(fusion_of(4, 16, 845, 8, 5)) == []
    spec = fw.TensorSpec((64, 5, 1024), "float32")
    assert ways(prepare(fw.trace(lambda x, z: x + z, spec, spec), TARGET)) == []


def params_of(fusion: Fusion, walk: int) -> Params:
    listed = (c for c in candidates_of(Dataflow(fusion), FEW) if isinstance(c, Candidate))
    return next(c.params for c in listed if dict(c.params.values).get("walk") == walk)


@pytest.mark.parametrize("sizes", [(4, 3, 29, 5, 8), (3, 2, 31, 7, 12), (5, 4, 17, 3, 16)])
def test_values(sizes: tuple[int, ...]) -> None:
    a, b, c, d, e = sizes
    fusion = fusion_of(*sizes, dtype="float16")
    flow = Dataflow(fusion)
    kernel = finish(flow, "k", TARGET, schedule_group(flow, FEW, params_of(fusion, 2)))
    rng = np.random.default_rng(0)
    shapes = (a, b, c, d, e), (b, e, c, a, d)
    arrays = [rng.integers(-8, 8, shape).astype(np.float16) for shape in shapes]
    result = kernel.simulate(*arrays)
    assert result.races == []
    np.testing.assert_array_equal(result.outputs[0], fw.evaluate(fusion, *arrays)[0])


def array(fusion: Fusion, walk: int, name: str) -> MovedArray:
    flow = Dataflow(fusion)
    params = schedule_group(flow, FEW, params_of(fusion, walk))
    return next(a for a in work_of(flow, params).arrays if a.name == name)


def test_pairs_of_sectors_that_blocks_come_back_to_are_counted() -> None:
    """A pair of `z` has 32 elements, those of five neighbours at each of four places of the
    outermost axis: in the order of `x` a quarter of the launch lies between two of these."""
    fusion = fusion_of(4, 16, 845, 5, 8)
    z = fusion.inputs[1].name
    share, visits = array(fusion, 1, z).returns
    assert share == pytest.approx(0.25, rel=0.01)
    assert 3 < visits <= 4
    assert array(fusion, 2, z).returns[0] < 0.01


def test_what_the_cache_does_not_keep_is_predicted_to_be_read_for_each_return() -> None:
    large = fusion_of(4, 16, 8459, 5, 8)
    chosen = fw.compile(large).kernels[0]
    assert chosen.heuristic is not None and dict(chosen.heuristic.values)["walk"] == 2
    rated = {dict(c.params.values).get("walk"): c.cost for c in chosen.candidates}
    assert dict(rated[1].parts)["memory"] > 1.6 * dict(rated[2].parts)["memory"]
