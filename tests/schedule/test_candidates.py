"""Candidates: each one that a scheduler lists is a right schedule, the default is the first."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from tests.corpus_checks import assert_agrees

import fusewright as fw
from fusewright.core.expr import constant_value
from fusewright.errors import ScheduleError
from fusewright.finish import finish
from fusewright.fusion.evaluate import evaluate
from fusewright.fusion.ir import Fusion, topological
from fusewright.fusion.passes.cse import cse
from fusewright.fusion.passes.decompose import decompose
from fusewright.fusion.passes.row_partials import row_partials
from fusewright.schedule.edits import set_loops
from fusewright.schedule.graph import Dataflow
from fusewright.schedule.heuristics import (
    candidates_of,
    each_scheduled,
    inner_outer_reduction,
    schedule_group,
)
from fusewright.schedule.heuristics.candidates import Candidate, Listing, Refused, schedule_with
from fusewright.schedule.heuristics.common import Params
from fusewright.schedule.render import print_schedule
from fusewright.target import Target, target_of
from fusewright.verify import random_values

TARGET = target_of("sm_90a")
TINY = dataclasses.replace(
    TARGET, multiprocessors=2, shared_nbytes_per_sm=14 * 1024, shared_nbytes_per_block=13 * 1024
)
"""Two multiprocessors with little shared memory: small arrays meet every rule."""

Spec = tuple[tuple[int, ...], str]
Group = tuple[Callable[..., Any], list[Spec], Target]


def softmax(x: fw.Array) -> fw.Array:
    return fw.nn.softmax(x, axis=-1)


def backward(dy: fw.Array, x: fw.Array) -> Any:
    c = fw.mean(dy * x, axis=-1, keepdims=True)
    return dy - x * c, fw.sum(dy * x, axis=0)


GROUPS: dict[str, Group] = {
    "pointwise": (lambda x, b: fw.exp(x) + b, [((512, 64), "bfloat16"), ((64,), "float32")], TINY),
    "small tensors read again": (
        lambda x, a, b: x * a + b,
        [((8201, 24), "bfloat16"), ((24,), "float32"), ((24,), "float32")],
        TINY,
    ),
    "scans of lines that are neighbours in the results only": (
        lambda x: fw.cumulative_sum(fw.permute_dims(x, (1, 0)), axis=0) * 2,
        [((70, 301), "float32")],
        TINY,
    ),
    "scans of short lines": (
        lambda x: fw.cumulative_sum(x * 0.5, axis=1),
        [((40, 3, 431), "bfloat16")],
        TINY,
    ),
    "means of three odd rows": (
        lambda x: fw.mean(x, axis=1),
        [((40, 3, 431), "bfloat16")],
        TINY,
    ),
    "one element": (lambda x: x + 1, [((), "float32")], TINY),
    "softmax": (softmax, [((3, 512), "float32")], TARGET),
    "softmax in shared memory": (softmax, [((3, 8000), "float32")], TARGET),
    "softmax of short rows": (softmax, [((37, 24), "float32")], TARGET),
    "softmax in a cluster": (softmax, [((2, 24000), "float32")], TINY),
    "softmax that fits nowhere": (softmax, [((1, 80000), "float32")], TINY),
    "softmax of an odd length": (softmax, [((2, 4099), "float32")], TINY),
    "softmax of many rows": (softmax, [((533, 40), "bfloat16")], TINY),
    "softmax of many odd rows": (softmax, [((533, 77), "bfloat16")], TINY),
    "sum of rows": (lambda x: fw.sum(x, axis=1), [((5, 3000), "float32")], TARGET),
    "sums of many rows": (lambda x: fw.sum(x, axis=1), [((533, 1, 80), "float16")], TINY),
    "sum of columns": (lambda x: fw.sum(x, axis=0), [((300, 200), "float32")], TINY),
    "softmax of columns": (lambda x: fw.nn.softmax(x, axis=0), [((24, 96), "float32")], TINY),
    "transpose": (lambda x, y: x.T + y, [((128, 64), "float32"), ((64, 128), "float32")], TINY),
    "scan": (lambda x: fw.cumulative_sum(x, axis=0), [((7, 300), "float32")], TARGET),
    "rows": (backward, [((1024, 512), "float32"), ((1024, 512), "float32")], TARGET),
}


def fusion_of(fn: Callable[..., Any], specs: list[Spec], target: Target) -> Fusion:
    """The part of a program that is one kernel."""
    whole = fw.trace(fn, *[fw.TensorSpec(*s) for s in specs])
    if fn is not backward:
        return decompose(whole)
    fusion = row_partials(cse(decompose(whole)), target)
    (partial,) = fusion.outputs[1].op.operands
    outputs = (fusion.outputs[0], partial)
    return Fusion(fusion.inputs, outputs, topological(outputs, fusion.inputs))


def _sizes(shape: Any) -> tuple[int, ...]:
    return tuple(constant_value(e) or 0 for e in shape)


def listed(fusion: Fusion, target: Target) -> list[Candidate[Any]]:
    found = candidates_of(Dataflow(fusion), target)
    return [c for c in found if isinstance(c, Candidate)]


@pytest.mark.parametrize("name", GROUPS)
def test_every_candidate_computes_the_same(name: str) -> None:
    fn, specs, target = GROUPS[name]
    fusion = fusion_of(fn, specs, target)
    rng = np.random.default_rng(7)
    arrays = [random_values(rng, _sizes(t.shape), t.dtype) for t in fusion.inputs]
    expected = evaluate(fusion, *arrays)
    found = listed(fusion, target)
    assert len({c.params for c in found}) == len(found)
    for c in found:
        flow = Dataflow(fusion)
        assert schedule_group(flow, target, c.params) == c.params
        kernel = finish(flow, "k", TARGET, c.params)
        result = kernel.simulate(*arrays)
        assert result.races == [], c.what
        for got, want in zip(result.outputs, expected, strict=True):
            assert_agrees(got, want)


@pytest.mark.parametrize("name", GROUPS)
def test_the_first_candidate_is_the_default(name: str) -> None:
    fn, specs, target = GROUPS[name]
    fusion = fusion_of(fn, specs, target)
    found = listed(fusion, target)
    assert schedule_group(Dataflow(fusion), target) == found[0].params
    assert len({c.what for c in found}) == len(found)


KINDS = {
    "softmax": {"inner_persistent", "inner_shared", "inner_multi_pass"},
    "softmax in a cluster": {"inner_cluster_persistent", "inner_multi_pass"},
    "transpose": {"transpose", "pointwise"},
    "softmax of columns": {"outer_persistent"},
    "rows": {"rows"},
}


@pytest.mark.parametrize("name", KINDS)
def test_candidates_of_different_kinds_are_listed(name: str) -> None:
    fn, specs, target = GROUPS[name]
    found = {c.params.scheduler for c in listed(fusion_of(fn, specs, target), target)}
    assert found >= KINDS[name]


def test_vectors_of_a_thread_meet_the_same_elements_of_small_tensors() -> None:
    """Six vectors a row, 128 threads: those of every third block start at the same column, and what
    all four need is loaded once."""
    fn, (_, *small), target = GROUPS["small tensors read again"]
    flow = Dataflow(fusion_of(fn, [((8704, 24), "bfloat16"), *small], target))
    params = schedule_group(flow, target)
    assert dict(params.values) == {"vector": 4, "vectors": 4, "threads": 128, "apart": 384}
    text = str(finish(flow, "k", TARGET, params).ir)
    loads = [line.split(" = ")[1] for line in text.splitlines() if "load a[" in line]
    assert len(loads) == 1


def test_vectors_that_meet_the_same_elements_need_not_lie_whole_blocks_apart() -> None:
    """35 vectors of 4 are four rows of 35: those 140 vectors apart start at the same column. As far
    apart as whole blocks of such, 4,480, four of them would leave the chip ragged."""
    fn, _, target = GROUPS["small tensors read again"]
    specs = [((4103, 35), "bfloat16"), ((35,), "float32"), ((35,), "float32")]
    flow = Dataflow(fusion_of(fn, specs, target))
    params = schedule_group(flow, target)
    assert dict(params.values) == {"vector": 4, "vectors": 4, "threads": 128, "apart": 140}
    text = str(finish(flow, "k", TARGET, params).ir)
    loads = {line.split(" = ")[1].split("[")[1] for line in text.splitlines() if "load a[" in line}
    assert (
        len({load.split("]")[0] for load in loads}) == 4
    )  # a column for each lane, not for each of 16


@pytest.mark.parametrize(
    ("rows", "small"),
    [(8201, (8201, 1)), (1201, (24,))],
    ids=["differs from row to row", "too few blocks"],
)
def test_vectors_that_share_nothing_are_not_taken(rows: int, small: tuple[int, ...]) -> None:
    fn = GROUPS["small tensors read again"][0]
    specs = [((rows, 24), "bfloat16"), (small, "float32"), (small, "float32")]
    params = schedule_group(Dataflow(fusion_of(fn, specs, TINY)), TINY)
    assert "apart" not in dict(params.values)


def test_lanes_that_share_a_row_take_several_where_that_is_predicted_to_be_faster() -> None:
    """Rows of 5 vectors: a block that has 16 of them spends its time waiting for memory."""
    fusion = decompose(
        fw.trace(GROUPS["sums of many rows"][0], fw.TensorSpec((1 << 21, 40), "float16"))
    )
    (kernel,) = fw.compile(fusion).kernels
    assert kernel.heuristic is not None and dict(kernel.heuristic.values)["rows"] == 4
    few = decompose(
        fw.trace(GROUPS["sums of many rows"][0], fw.TensorSpec((1 << 12, 40), "float16"))
    )
    (kernel,) = fw.compile(few).kernels
    assert kernel.heuristic is not None and "rows" not in dict(kernel.heuristic.values)


def refused(name: str) -> dict[str, str]:
    fn, specs, target = GROUPS[name]
    found = candidates_of(Dataflow(fusion_of(fn, specs, target)), target)
    return {c.what: c.why for c in found if isinstance(c, Refused)}


@pytest.mark.parametrize(
    ("name", "what", "why"),
    [
        ("softmax", "row in a cluster", "a row fits a block"),
        (
            "softmax in a cluster",
            "row in shared memory, 512 threads",
            "96000 bytes, more than 3072",
        ),
        ("softmax of an odd length", "row in shared memory, 352 threads", "16416 bytes, more than"),
        (
            "softmax that fits nowhere",
            "row in registers of a cluster of 2, 512 threads",
            "320 bytes a thread, more than 128",
        ),
        ("softmax of many odd rows", "the same with 2 rows at once", "others in each row"),
        ("softmax", "the same with 2 rows at once", "128 bytes a thread, more than 64"),
        ("softmax of short rows", "the same with 2 rows at once", "too few for blocks of more"),
        ("softmax of an odd length", "the same with 2 rows at once", "meet in shared memory"),
        ("pointwise", "8 vectors a thread", "too few blocks"),
        ("transpose", "tile of 16 by 128 through shared memory", ""),
    ],
)
def test_what_is_refused_says_why(name: str, what: str, why: str) -> None:
    found = refused(name)
    if why:
        assert why in found[what]
    else:
        assert what not in found


def test_parameters_of_another_group_are_refused() -> None:
    fn, specs, target = GROUPS["softmax"]
    wanted = Params("inner_shared", (("vector", 3),))
    with pytest.raises(ScheduleError, match=r"inner_shared\(vector=3\) is not among the cand"):
        schedule_group(Dataflow(fusion_of(fn, specs, target)), target, wanted)


def test_rows_that_no_block_can_hold_are_refused_with_their_registers() -> None:
    poor = dataclasses.replace(TARGET, registers_per_sm=512)
    fusion = fusion_of(backward, GROUPS["rows"][1], TARGET)
    with pytest.raises(ScheduleError, match=r"no block holds \d+\.\d registers for each"):
        schedule_group(Dataflow(fusion), poor)


class _Plans:
    """A scheduler of plans that change loops and then fail, or do not."""

    def __init__(self, flow: Dataflow, plans: str) -> None:
        self.flow, self.plans, self.seen = flow, plans, list[str]()

    def candidates(self) -> Iterator[Candidate[str] | Refused]:
        for k, plan in enumerate(self.plans.split()):
            yield Candidate(plan, Params("plans", (("number", k),)), plan)

    def apply(self, plan: str) -> bool:
        y = self.flow.outputs[0]
        self.seen.append(str(len(y.loops)))
        set_loops(self.flow, y, ())
        if plan.startswith("raises"):
            raise ScheduleError(f"{plan}: does not fit")
        return plan == "fits"


@pytest.mark.parametrize(
    ("plans", "number"), [("no raises fits fits", 2), ("raises1 fits", 1), ("no no", None)]
)
def test_a_plan_that_cannot_be_applied_is_taken_back(plans: str, number: int | None) -> None:
    flow = Dataflow(fw.trace(fw.exp, fw.TensorSpec((8, 4), "float32")))
    tried = _Plans(flow, plans)
    found = schedule_with(Listing(tried))
    assert found == (None if number is None else Params("plans", (("number", number),)))
    assert set(tried.seen) == {"2"}  # each finds the loops that were there in the beginning
    assert len(flow.outputs[0].loops) == (2 if number is None else 0)
    assert len(flow.log) == (0 if number is None else 1)


def test_where_no_plan_applies_the_first_error_is_raised() -> None:
    flow = Dataflow(fw.trace(fw.exp, fw.TensorSpec((8, 4), "float32")))
    with pytest.raises(ScheduleError, match="raises1: does not fit"):
        schedule_with(Listing(_Plans(flow, "no raises1 raises2")))
    assert len(flow.outputs[0].loops) == 2


def test_a_wanted_plan_is_applied_or_its_own_error_raised() -> None:
    flow = Dataflow(fw.trace(fw.exp, fw.TensorSpec((8, 4), "float32")))
    tried, wanted = _Plans(flow, "fits raises"), Params("plans", (("number", 1),))
    with pytest.raises(ScheduleError, match="raises: does not fit"):
        schedule_with(Listing(tried), wanted)
    assert len(tried.seen) == 1


def test_candidates_are_found_once_however_often_they_are_gone_through() -> None:
    flow = Dataflow(fw.trace(fw.exp, fw.TensorSpec((8, 4), "float32")))
    found: list[str] = []

    class Counted(_Plans):
        def candidates(self) -> Iterator[Candidate[str] | Refused]:
            for c in super().candidates():
                found.append(c.what)
                yield c

    listing = Listing(Counted(flow, "no fits raises"))
    assert schedule_with(listing) is not None
    assert found == ["no", "fits"]  # as far as they were asked for
    assert [c.what for c in listing] == [c.what for c in listing] == ["no", "fits", "raises"]
    assert found == ["no", "fits", "raises"]


def test_what_candidates_begin_with_alike_is_edited_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is scheduled as it is alone."""
    fn, specs, target = GROUPS["rows"]
    fusion = fusion_of(fn, specs, target)
    alone: dict[Params, str] = {}
    for c in candidates_of(Dataflow(fusion), target):
        if not isinstance(c, Refused) and c.params.scheduler == "rows":
            flow = Dataflow(fusion)
            schedule_group(flow, target, c.params)
            alone[c.params] = print_schedule(flow)
    edited: list[object] = []
    original = inner_outer_reduction.separate_phases
    monkeypatch.setattr(
        inner_outer_reduction, "separate_phases", lambda *x: edited.append(x) or original(*x)
    )
    flow = Dataflow(fusion)
    found = {
        c.params: print_schedule(flow)
        for c in each_scheduled(flow, target, alone.__contains__)
        if not isinstance(c, Refused)
    }
    assert found == alone
    assert len(edited) == 1 < len(found)
