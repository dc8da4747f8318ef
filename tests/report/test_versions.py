"""Two versions of a program side by side, as text, as a page and on the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import fusewright as fw
from fusewright.cli import main
from fusewright.report.facts import gather
from fusewright.report.versions import pairs

SPEC = "f32[64,1024]"


def softmax(x: Any) -> Any:
    return fw.nn.softmax(x, axis=-1)


def scaled(x: Any) -> Any:
    return fw.nn.softmax(x * 0.125, axis=-1)


def column_sums(x: Any) -> Any:
    return fw.nn.softmax(x, axis=-1), fw.sum(fw.exp(x), axis=0)


def report(fn: Any) -> fw.Report:
    return fw.Report(fw.compile(fw.trace(fn, SPEC)), title=fn.__name__)


@pytest.mark.usefixtures("launched_apart")
def test_kernels_are_paired_by_what_they_compute_then_by_order() -> None:
    a, b = (gather(fw.compile(fw.trace(f, SPEC)), f.__name__) for f in (softmax, column_sums))
    found = pairs(a, b)
    assert len(found) == len(b.kernels) > 1
    assert found[0][0] is a.kernels[0] and found[0][1] is not None
    assert found[0][1].name == a.kernels[0].name
    assert all(x is None and y is not None for x, y in found[1:])


def test_as_text() -> None:
    lines = report(softmax).compare(report(scaled)).splitlines()
    assert lines[0] == "softmax and scaled"
    rows = {line.split("  ")[0]: line.split() for line in lines if "  " in line}
    assert rows["launches"][-2:] == ["1", "1"] and rows["moved / least"][-2:] == ["1.00", "1.00"]
    assert float(rows["predicted us"][-1]) > 0
    changed = [line for line in lines if line.startswith(("+ ", "- "))]
    assert any(line.startswith("+") and "mul(" in line for line in changed)
    assert not any("exp(" in line for line in changed)  # a value's number is no difference
    same = report(softmax).compare(report(softmax)).splitlines()
    assert not any(line.startswith(("+ ", "- ")) for line in same)


def test_beside_a_schedule_by_hand() -> None:
    fusion = fw.trace(lambda x: fw.exp(x) + 1.0, SPEC)
    by_hand = fw.Schedule(fusion)
    (y,) = by_hand.outputs
    y.parallelize(0, fw.BIDx)
    y.split(1, 256).parallelize(-1, fw.TIDx)
    by_hand.transform_like(y)
    by_hand.inline_most()
    made = fw.Report(fw.compile(fusion), title="made")
    mine = fw.Report(fw.compile(by_hand), title="mine")
    lines = made.compare(mine).splitlines()
    predicted = [line.split() for line in lines if line.startswith("predicted us")]
    assert [row[-1] for row in predicted] == ["-", "-"]  # no model has looked at it
    assert any(line.startswith("+") and "TIDx=256" in line for line in lines)


def test_as_a_page(tmp_path: Path) -> None:
    path = report(softmax).to_html(tmp_path / "both.html", beside=report(scaled))
    page = path.read_text(encoding="utf-8")
    assert "<title>softmax and scaled</title>" in page and "http:" not in page
    assert page.count('<div class="panes">') == 2  # loop nests, CUDA
    assert '<span class="new">' in page and "mul(" in page
    same = report(softmax).to_html(tmp_path / "same.html", beside=report(softmax))
    assert same.read_text(encoding="utf-8").count("<p>The same.</p>") == 2
    both = report(softmax).to_html(tmp_path / "more.html", beside=report(column_sums))
    assert "column_sums" in both.read_text(encoding="utf-8")


def test_on_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("model.py").write_text(
        "import fusewright as fw\n\ndef f(x):\n    return fw.exp(x)\n\n"
        "def g(x):\n    return fw.exp(x) + 1.0\n",
        encoding="utf-8",
    )
    call = ["explain", "model.py:f", "--spec", "f32[64,64]", "--beside", "model.py:g"]
    assert main(call) == 0
    assert capsys.readouterr().out.startswith("model.py:f and model.py:g\n")
    assert main([*call, "--html", "both.html"]) == 0
    assert capsys.readouterr().out.strip() == "both.html" and Path("both.html").exists()


def test_what_is_no_report_is_refused(tmp_path: Path) -> None:
    message = r"the other one is int; it must be a report: fw.Report\(program\), or f.explain"
    with pytest.raises(fw.UserError, match=rf"Report.compare: {message}"):
        report(softmax).compare(3)  # type: ignore[arg-type]
    with pytest.raises(fw.UserError, match=rf"Report.to_html: {message}"):
        report(softmax).to_html(tmp_path / "x.html", beside=3)  # type: ignore[arg-type]
