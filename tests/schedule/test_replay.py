"""The log of a schedule: replayed on a fresh dataflow it makes the same kernel, byte for byte."""

from __future__ import annotations

from typing import Any

import pytest

import fusewright as fw
from fusewright.corpus import CORPUS
from fusewright.errors import ScheduleError, UserError
from fusewright.finish import Origin, finish
from fusewright.kernel import Kernel
from fusewright.schedule.edits import EditCall, Named, log_text
from fusewright.schedule.heuristics.passes import PassedSchedule

EVERY_KIND = (
    *("softmax", "rms_norm_backward", "transpose", "symmetrise", "cumulative_sum", "argmax"),
    *("group_norm_backward", "rms_norm_residual", "cross_entropy_pixels", "softmax_columns"),
)
"""Fusions whose kernels are of every scheduler but that of products."""


def replayed(kernel: Kernel) -> Kernel:
    """The kernel that the log makes of a fresh dataflow."""
    assert kernel.segment is not None
    s = PassedSchedule.of(kernel.segment.dataflow())
    s.replay(kernel.edits)
    assert s.log == kernel.edits
    origin = Origin(kernel.segment)
    return finish(s.flow, kernel.name, kernel.target, kernel.heuristic, origin=origin)


def assert_replays(fusion: fw.Fusion, target: str = "sm_90a") -> None:
    made = [p for k in fw.compile(fusion, target).kernels for p in (k.parts or (k,))]
    kernels = [k for k in made if k.segment is not None]
    assert kernels
    for k in kernels:
        assert str(replayed(k).ir) == str(k.ir)


@pytest.mark.parametrize("name", EVERY_KIND)
def test_every_kind_of_kernel(name: str) -> None:
    (case,) = (c for c in CORPUS if c.name == name)
    assert_replays(fw.trace(case.fn, *case.specs))


@pytest.mark.slow
@pytest.mark.parametrize("case", CORPUS, ids=lambda c: c.name)
def test_the_corpus(case: Any) -> None:
    assert_replays(fw.trace(case.fn, *case.specs))


@pytest.mark.parametrize("target", ["sm_90a", "sm_80"])
@pytest.mark.parametrize("rows", [512, 1000])
def test_products(rows: int, target: str) -> None:
    def f(a: Any, b: Any) -> Any:
        return fw.nn.gelu(fw.matmul(a, b))

    operands = fw.TensorSpec((rows, 512), "bfloat16"), fw.TensorSpec((512, 256), "bfloat16")
    assert_replays(fw.trace(f, *operands), target)


@pytest.mark.parametrize("columns", [121, 3001])
def test_rows_counted_from_aligned_addresses(columns: int) -> None:
    spec = fw.TensorSpec((4096, columns), "bfloat16")
    (kernel,) = fw.compile(fw.trace(lambda x: fw.nn.softmax(x, axis=-1), spec)).kernels
    assert any(c.method == "skew" for c in kernel.edits)
    assert str(replayed(kernel).ir) == str(kernel.ir)


def test_symbolic_sizes() -> None:
    assert_replays(fw.trace(lambda x: fw.sum(x, axis=-1), fw.TensorSpec(("n", "m"), "float16")))


# --- schedules by hand --------------------------------------------------------------------------


def product_and_sum() -> fw.Fusion:
    def f(x: Any) -> Any:
        return fw.name(fw.sum(fw.name(x * 2.0, "h"), axis=1), "total")

    return fw.trace(f, fw.TensorSpec((64, 128), "float32"))


def test_a_hand_schedule_replays() -> None:
    fusion = product_and_sum()
    s = fw.Schedule(fusion)
    copy = s["x"].cache_after()
    total = s["total"].split(1, 32).parallelize(0, fw.BIDx).parallelize(2, fw.TIDx)
    partial = total.rfactor([1])
    s.transform_like(partial, [s["h"], copy])
    s.inline_most([s["h"], copy])
    s.launch(min_blocks=2)
    again = fw.Schedule(fusion).replay(s.log)
    assert str(again) == str(s) and again.log == s.log
    assert again.lower().cuda == s.lower().cuda
    assert again.lower().edits == s.log


def test_edits_inside_of_edits_are_not_logged_apart() -> None:
    s = fw.Schedule(product_and_sum())
    s.cache_inputs()
    s.separate_phases(s["total"])
    assert [c.method for c in s.log] == ["cache_inputs", "separate_phases"]


def test_the_log_is_python() -> None:
    s = fw.Schedule(product_and_sum())
    s["h"].split(1, 4).parallelize(-1, fw.Vectorize)
    s.transform_like(s["h"], [s["total"]], align=True)
    assert log_text(s.log) == (
        's["h"].split(1, 4).parallelize(-1, fw.Vectorize)\n'
        's.transform_like(s["h"], (s["total"],), align=True)'
    )
    again = fw.Schedule(product_and_sum())
    exec(log_text(s.log), {"s": again, "fw": fw})
    assert str(again) == str(s)


def test_explain_shows_what_a_hand_would_say() -> None:
    spec = fw.TensorSpec((64, 4096), "float32")
    program = fw.compile(fw.trace(lambda x: fw.nn.softmax(x, axis=-1), spec))
    text = fw.Report(program).show("edits")
    assert "s.cache_inputs(())" in text and ".parallelize(0, fw.BIDx)" in text
    assert text.endswith("s.inline_most()")


# --- what is refused ----------------------------------------------------------------------------


def test_an_edit_that_is_refused_is_not_logged() -> None:
    s = fw.Schedule(product_and_sum())
    with pytest.raises(ScheduleError, match="run over a reduced and a kept axis"):
        s["total"].merge(0)
    assert s.log == ()


def test_a_replay_that_fails_changes_nothing() -> None:
    s = fw.Schedule(product_and_sum())
    before = str(s)
    with pytest.raises(ScheduleError, match="factor=0"):
        s.replay([EditCall("h", "split", (1, 4)), EditCall("h", "split", (1, 0))])
    assert str(s) == before and s.log == ()


def test_a_log_of_another_fusion_names_what_is_missing() -> None:
    s = fw.Schedule(product_and_sum())
    with pytest.raises(UserError, match="no tensor 'y' in this schedule; it has x, "):
        s.replay([EditCall("y", "split", (0, 4))])
    with pytest.raises(UserError, match="no tensor 'y'"):
        s.replay([EditCall(None, "transform_like", (Named("y"),))])


@pytest.mark.parametrize("method", ["flow", "lower", "inline_most"])
def test_a_log_holds_edits_only(method: str) -> None:
    s = fw.Schedule(product_and_sum())
    with pytest.raises(ScheduleError, match=r"is no edit; tensors have split, merge"):
        s.replay([EditCall("h", method)])


def test_a_tile_must_hold_each_element_once() -> None:
    s = fw.Schedule(product_and_sum())
    h = s["h"]
    with pytest.raises(ScheduleError, match="lives in local memory"):
        h.allocate_by([h.axis(0), h.axis(1)])
    h.set_memory(fw.SHARED).split(1, 4)
    with pytest.raises(ScheduleError, match="do not determine"):
        h.allocate_by([h.axis(0), h.axis(1).split(4)[0]])
    h.allocate_by([h.axis(1).split(4)[1], h.axis(0), h.axis(1).split(4)[0]])
    assert str(s.log[-1]).startswith('s["h"].allocate_by((s["h"].axis(1).split(4)[1]')
