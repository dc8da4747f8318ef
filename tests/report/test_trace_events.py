"""Chrome traces: launches as predicted, edges as flows, the passes of the compiler."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import fusewright as fw
from fusewright.cli import main
from fusewright.kir.pipeline import PIPELINE
from fusewright.report.predicted import timed

SPEC = fw.TensorSpec((64, 1024), "float32")


def chain(x: Any) -> Any:
    return fw.sum(fw.cumulative_sum(x, axis=0), axis=1), fw.nn.softmax(x, axis=-1)


def _events(tmp_path: Path) -> tuple[fw.Program, list[dict[str, Any]]]:
    program = fw.compile(fw.trace(chain, SPEC))
    path = fw.Report(program, title="chain").to_trace(tmp_path / "trace.json")
    return program, json.loads(path.read_text(encoding="utf-8"))["traceEvents"]


def test_launches_edges_and_passes_are_events(tmp_path: Path) -> None:
    program, events = _events(tmp_path)
    launches = [e for e in events if e.get("cat") == "launch"]
    assert [(e["name"], e["ts"], e["dur"], e["tid"]) for e in launches] == [
        (t.name, t.begin, t.us, t.branch) for t in timed(program)
    ]
    assert "W " in " ".join(map(str, launches[0]["args"].values()))
    edges = program.host.edges
    assert sum(e["ph"] == "s" for e in events) == sum(e["ph"] == "f" for e in events) == len(edges)
    passes = [e for e in events if e.get("cat") == "compiler" and e["tid"] == 0]
    assert [e["name"] for e in passes] == [*(p.name for p in PIPELINE), "emit"]
    assert all(a["ts"] + a["dur"] <= b["ts"] for a, b in pairwise(passes))


def test_every_event_has_what_the_format_asks_for(tmp_path: Path) -> None:
    for e in _events(tmp_path)[1]:
        assert {"ph", "pid", "tid", "name"} <= set(e)
        assert e["ph"] == "M" or e["ts"] >= 0
        assert e["ph"] != "X" or e["dur"] >= 0


def test_the_command_line_writes_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "m.py").write_text("import fusewright as fw\ndef f(x): return fw.exp(x)\n")
    out = tmp_path / "t.json"
    options = ["--spec", "f32[64,64]", "--trace", str(out)]
    assert main(["explain", f"{tmp_path / 'm.py'}:f", *options]) == 0
    assert capsys.readouterr().out.strip() == str(out)
    assert json.loads(out.read_text())["otherData"]["target"] == "sm_90a"


def test_a_trace_names_the_path_it_cannot_write(tmp_path: Path) -> None:
    report = fw.Report(fw.compile(fw.trace(chain, SPEC)))
    with pytest.raises(fw.UserError, match=r"to_trace: cannot write .*missing"):
        report.to_trace(tmp_path / "missing" / "t.json")


def test_json_has_the_host_program() -> None:
    program = fw.compile(fw.trace(chain, SPEC))
    record = json.loads(json.dumps(fw.Report(program).to_dict()))
    assert len(record["host"]["launches"]) == len(program.launches)
    assert record["host"]["launches"][0]["binds"][0].startswith("R x: input x")
    assert len(record["host"]["edges"]) == len(program.host.edges)
    assert set(record["host"]["layouts"]) == set(program.layouts)
