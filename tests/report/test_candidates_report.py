"""What a report says of the candidates of a kernel."""

from __future__ import annotations

import re

from report_fakes import FakeProgram, program

import fusewright as fw
from fusewright.report.explain import Report
from fusewright.report.facts import gather
from fusewright.report.html import report_html
from fusewright.report.text import report_text
from fusewright.schedule.heuristics.candidates import Refused
from fusewright.schedule.heuristics.common import Params
from fusewright.schedule.heuristics.cost import Cost
from fusewright.schedule.heuristics.rating import Rated

FIRST = Params("inner_persistent", (("threads", 128),))
SECOND = Params("inner_shared", (("threads", 256),))


def rated(what: str, params: Params, us: float) -> Rated:
    return Rated(what, params, Cost(us, (("memory", us), ("issue", 1.0)), 8, 2048))


def faked(chosen: Params, *, measured: tuple[tuple[Params, float], ...] = ()) -> FakeProgram:
    made = program()
    made.kernels[0].heuristic = chosen
    made.kernels[0].measured = measured
    made.kernels[0].candidates = (
        rated("row in registers", FIRST, 40.0),
        rated("row in shared memory", SECOND, 43.0),
        Refused("row in a cluster", "a row fits a block"),
    )
    return made


def test_candidates_are_listed_with_times_and_reasons() -> None:
    text = report_text(gather(faked(FIRST), "f"))
    assert re.search(r"40\.0 +memory +8 +2\.00 KiB +row in registers +chosen\n", text)
    assert re.search(r"43\.0 +memory +8 +2\.00 KiB +row in shared memory +\+7\.5 %\n", text)
    assert re.search(r"- +row in a cluster +does not apply: a row fits a block\n", text)


def test_kernels_without_candidates_have_no_such_part() -> None:
    assert "candidates" not in report_text(gather(program(), "f"))
    assert report_text(gather(faked(FIRST), "f")).count("\ncandidates\n") == 1


def test_times_are_compared_with_what_was_chosen() -> None:
    text = report_text(gather(faked(SECOND), "f"))
    assert re.search(r"40\.0 .* row in registers +-7\.0 %\n", text)
    assert "tuned" not in text


def test_what_was_measured_is_said_fastest_first() -> None:
    made = faked(SECOND, measured=((FIRST, 41.25), (SECOND, 38.5)))
    text = report_text(gather(made, "f"))
    assert "tuned: row in shared memory: 38.5 us; row in registers: 41.2 us" in text


def test_the_page_has_them_too() -> None:
    page = report_html(gather(faked(FIRST), "f"))
    assert "<summary>candidates</summary>" in page
    assert "does not apply: a row fits a block" in page


def test_a_softmax_says_what_else_there_was() -> None:
    spec = fw.TensorSpec((4096, 4096), "bfloat16")
    report = Report(fw.compile(fw.trace(lambda x: fw.nn.softmax(x, axis=-1), spec)))
    text = report.show("candidates")
    assert re.search(r"\d\.\d +\w+ +\d+ .* row in registers, 128 threads +chosen", text)
    assert re.search(r"row in shared memory, 128 threads +\+\d+\.\d %", text)
    assert re.search(r"row in a cluster +does not apply: a row fits a block", text)
    again = Report(fw.compile(fw.trace(lambda x: fw.nn.softmax(x, axis=-1), spec)))
    assert again.show("candidates") == text and str(again) == str(report)


def test_a_schedule_by_hand_has_no_candidates() -> None:
    s = fw.Schedule(fw.trace(lambda x: x + 1, fw.TensorSpec((64,), "float32")))
    assert fw.compile(s).kernels[0].candidates == []


def test_it_is_said_where_the_model_overruled_the_rules() -> None:
    words = (
        "the model overruled the rules: row in shared memory, predicted 43.0 us, instead of "
        "row in registers, 40.0 us"
    )
    assert words in report_text(gather(faked(SECOND), "f"))
    assert "overruled" not in report_text(gather(faked(FIRST), "f"))
    tuned = faked(SECOND, measured=((FIRST, 41.25), (SECOND, 38.5)))
    assert "overruled" not in report_text(gather(tuned, "f"))
