"""The first screen: few lines for every program, and slow kernels shouted."""

from __future__ import annotations

import json
from typing import Any

import pytest
from report_fakes import FakeProgram, program, row_scale

import fusewright as fw
from fusewright.host.groups import Reason
from fusewright.report.explain import Report
from fusewright.report.summary import COSTLIEST, MAX_REASONS, summarise, summary_text
from fusewright.schedule.heuristics.cost import Cost

SCREEN = 40


def costing(us: float, limit: str = "issue") -> Cost:
    return Cost(us, ((limit, us), ("memory", 1.0)), 1, 0)


def test_the_summary_of_a_program() -> None:
    made = program(reasons=(Reason("m", "the row does not fit"),))
    made.kernels[0].predicted = costing(2.0)
    made.kernels[1].predicted = costing(3.0, "memory")
    text = str(Report(made, title="softmax"))
    for part in (
        "softmax: 2 kernels, 2 syncs",
        "moved / least   1.53",
        "predicted       5.0 us",
        "limited by memory",
        "rows: max over 1",
        "scale: sub, exp, mul",
        "- m: the row does not fit",
        "details: .show(part)",
    ):
        assert part in text
    assert text.index("scale  ") < text.index("rows   ")  # by predicted time
    assert "SLOW" not in text and "__syncthreads" not in text


def test_times_that_are_not_known_are_not_made_up() -> None:
    made = program()
    made.kernels[0].predicted = costing(2.0)
    assert summarise(made, "f").us is None
    assert "predicted  " not in str(Report(made)).split("what was fused")[0]


def test_a_slow_kernel_is_shouted() -> None:
    made = program()
    made.kernels[0].predicted = costing(2.0)
    made.kernels[1].predicted = costing(5000.0)
    (line,) = [x for x in str(Report(made)).splitlines() if x.startswith("SLOW")]
    assert "scale is predicted at 5,000 us" in line and "issue limits it" in line


def test_what_is_short_is_not_slow() -> None:
    made = program()
    made.kernels[1].predicted = costing(19.0)
    assert "SLOW" not in str(Report(made))


def test_a_product_as_sums_of_products_says_so_or_is_fast() -> None:
    spec = fw.TensorSpec((2048, 4096), "float32"), fw.TensorSpec((4096, 4096), "float32")
    report = fw.Report(fw.compile(fw.trace(lambda a, b: a @ b, *spec)))
    assert report.summary.us is not None
    assert report.summary.us < 1000 or "SLOW: " in str(report)


def test_a_program_without_kernels() -> None:
    empty = FakeProgram(row_scale(), (), ())
    assert "fusion: 0 kernels, 0 syncs" in str(Report(empty))
    assert json.dumps(Report(empty).to_dict())


WAYS = (fw.exp, fw.sin, fw.cos, fw.tanh, fw.floor, fw.ceil, fw.abs, fw.square, fw.sinh)


def many(n: int) -> fw.Program:
    """A program of many kernels, most with a reason."""

    def chain(x: Any) -> Any:
        for k in range(n):
            x = fw.flip(fw.cumulative_sum(WAYS[k % len(WAYS)](x), axis=k % 2), axis=0)
        return x

    return fw.compile(fw.trace(chain, "f32[96,80]"))


def test_every_summary_fits_a_screen() -> None:
    made = many(12)
    assert len(made.kernels) > 2 * COSTLIEST and len(made.reasons) > MAX_REASONS
    assert len(str(Report(made)).splitlines()) <= SCREEN
    assert "more" in str(Report(made))
    assert str(Report(many(12))) == str(Report(made))


def test_data_is_json_with_every_kernel() -> None:
    found = json.loads(json.dumps(Report(many(3)).to_dict()))
    assert len(found["kernels"]) == len(many(3).kernels)
    assert found["predicted_us"] == pytest.approx(
        sum(k["launches"] * k["predicted_us"] for k in found["kernels"])
    )


def test_parts_that_do_not_exist_are_refused() -> None:
    with pytest.raises(fw.UserError, match=r"what='ptx' is str; it must be one of nest, "):
        Report(program()).show("ptx")


# --- printing ------------------------------------------------------------------------------------


def test_objects_print_in_a_few_lines() -> None:
    made = many(12)
    fused = fw.fuse(lambda x: x + 1.0, device="sim")
    schedule = fw.Schedule(made.fusion)
    for x in (made, made.kernels[0], fused, made.fusion, schedule):
        assert "\n" not in repr(x) and len(repr(x)) < 2000, type(x)
    for x in (made, made.kernels[0], fused):
        assert 0 < len(str(x).splitlines()) <= 12 and len(str(x)) < 2000, type(x)
    assert repr(fused) == "<fused <lambda> on sim: 0 programs>"
    assert repr(made.kernels[0]).startswith(f"<Kernel {made.kernels[0].name} for sm_90a: grid (")
    assert "launches of" in str(made) and "f32" not in str(made)


def test_texts_that_parse_back_stay() -> None:
    from fusewright.fusion.text import parse_fusion

    made = many(2)
    assert str(parse_fusion(str(made.fusion))) == str(made.fusion)
    (k, *_) = made.kernels
    assert str(fw.parse_kernel(str(k.ir))) == str(k.ir)
    assert "[BIDx" in k.schedule and "0:" in str(fw.Schedule(made.fusion))


def test_a_kernel_lists_what_it_reads_and_writes() -> None:
    kernel = many(1).kernels[0]
    assert "reads   x: float32[96, 80]" in str(kernel) and "writes  " in str(kernel)
    assert "SLOW" not in summary_text(summarise(many(1), "f"))
