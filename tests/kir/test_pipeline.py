"""The pipeline: what it promises, how it is watched, and what it leaves when it fails."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from random_kernels import random_kernel, run

import fusewright as fw
from fusewright import knobs
from fusewright.errors import InternalError, SpecError, UnsupportedError, UserError
from fusewright.kir import pipeline
from fusewright.kir.ir import BlockSync, Kernel
from fusewright.kir.pipeline import (
    PIPELINE,
    Pass,
    PipelineOptions,
    run_pass,
    run_pass_on_text,
    run_pipeline,
)
from fusewright.kir.spec import STAGES, check_kernel
from fusewright.kir.text import parse_kernel, print_kernel
from fusewright.kir.traverse import walk_statements
from fusewright.sim.machine import simulate
from fusewright.target import Target, target_of

TARGET = target_of("sm_90a")
ROW_SUM = """kernel row_sum {
  param x: float32[4096] align 16
  param y: float32[16] align 16
  grid (bx < 16)
  block (tx < 128)
  local r: float32[2]
  local sum: float32[2]
  for (i < 2) {
    r[i] = load x[256*bx + 128*i + tx]
    sum[i] = thread_reduce.add(r[i]) over (tx) identity 0.0:float32
  }
  sum[0] = add(sum[0], sum[1])
  store y[bx] = sum[0] if (tx == 0)
}"""


def test_stages_never_go_back() -> None:
    stages = [STAGES.index(p.establishes) for p in PIPELINE]
    assert stages == sorted(stages) and STAGES[stages[-1]] == "final"
    assert len({p.name for p in PIPELINE}) == len(PIPELINE)


def test_a_row_sum_goes_through_with_one_barrier() -> None:
    kernel = run_pipeline(parse_kernel(ROW_SUM), TARGET, PipelineOptions(spec=3))
    assert sum(isinstance(s, BlockSync) for s in walk_statements(kernel)) == 1
    x = np.arange(4096, dtype=np.float32)
    y = np.zeros(16, np.float32)
    result = simulate(kernel, dict(zip(kernel.params, (x, y), strict=True)))
    assert np.array_equal(y, x.reshape(16, 256).sum(axis=1))
    assert not result.races


@pytest.mark.parametrize("seed", range(200, 225))
def test_random_kernels_compute_the_same(seed: int) -> None:
    kernel = random_kernel(seed)
    final = run_pipeline(kernel, TARGET, PipelineOptions(spec=3))
    assert np.array_equal(run(kernel), run(final), equal_nan=True)


def test_what_a_pass_left_alone_is_checked_for_a_later_stage_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    checked: list[tuple[Kernel, str]] = []

    def check(kernel: Kernel, stage: str, **_: object) -> None:
        checked.append((kernel, stage))

    monkeypatch.setattr(pipeline, "check_kernel", check)
    run_pipeline(parse_kernel(ROW_SUM), TARGET, PipelineOptions(spec=2))
    assert len(set(checked)) == len(checked) < len(PIPELINE)
    assert {stage for _, stage in checked} == set(STAGES)


@pytest.mark.parametrize("seed", range(300, 306))
def test_a_pass_that_changes_nothing_returns_the_kernel_it_was_given(seed: int) -> None:
    """So that dumps may say "(unchanged)", and that nobody compares texts to know it."""
    kernel = random_kernel(seed)
    for p in PIPELINE:
        for given in (kernel, p.run(kernel, TARGET)):  # the second time there is little to do
            changed = p.run(given, TARGET)
            is_same = print_kernel(changed) == print_kernel(given)
            assert changed is given or not is_same, f"{p.name} makes the same kernel anew"
        kernel = p.run(kernel, TARGET)


def test_the_input_is_checked_first() -> None:
    bad = parse_kernel(ROW_SUM.replace("for (i < 2)", "for (i < tx)"))
    with pytest.raises(SpecError, match="stage lowered, check 'uniform extents'"):
        run_pipeline(bad, TARGET, PipelineOptions(spec=1))


def _with_pass(monkeypatch: pytest.MonkeyPatch, run: pipeline.Run) -> Pass:
    p = Pass("breaks", run, "lowered", "to be seen failing")
    monkeypatch.setattr(pipeline, "PIPELINE", (p,))
    return p


def test_the_graph_of_axes_is_checked_before_a_schedule_is_lowered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def other_rows(x: Any) -> Any:
        return fw.reshape(x, (12, 8)) + fw.reshape(fw.flip(x, axis=0), (12, 8))

    schedule = fw.Schedule(fw.trace(other_rows, fw.TensorSpec((8, 12), "float32")))
    schedule.lower("sm_90a")
    schedule.flow.graph.lines.named.clear()  # now no definition is found by what it says
    with pytest.raises(InternalError, match="axis graph, I3: two atoms have the definition"):
        schedule.lower("sm_90a")
    monkeypatch.setenv("FUSEWRIGHT_SPEC", "0")
    schedule.lower("sm_90a")


def test_a_crash_writes_a_program_that_crashes_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(kernel: Kernel, target: Target) -> Kernel:
        raise ValueError("no such luck")

    _with_pass(monkeypatch, fail)
    with pytest.raises(InternalError) as error:
        run_pipeline(parse_kernel(ROW_SUM), TARGET, PipelineOptions(spec=1))
    message = str(error.value)
    assert "pass breaks failed on kernel row_sum: ValueError: no such luck" in message
    program = Path(message.split("python ")[1].split("'")[0])
    assert parse_kernel(program.with_suffix(".kir").read_text()).name == "row_sum"


def test_a_reproducer_runs_the_pass() -> None:
    p = next(p for p in PIPELINE if p.name == "expand_reductions")
    program = pipeline.write_reproducer(p, parse_kernel(ROW_SUM), TARGET)
    done = subprocess.run(
        [sys.executable, str(program)],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": str(Path(pipeline.__file__).parents[2])},
    )
    assert "shuffle.xor" in done.stdout


def test_a_pass_that_breaks_the_spec_is_an_internal_error(monkeypatch: pytest.MonkeyPatch) -> None:
    bad = parse_kernel(ROW_SUM.replace("for (i < 2)", "for (i < tx)"))
    _with_pass(monkeypatch, lambda kernel, target: bad)
    with pytest.raises(InternalError, match=r"pass breaks failed .* check 'uniform extents'"):
        run_pipeline(parse_kernel(ROW_SUM), TARGET, PipelineOptions(spec=2))


def test_errors_of_the_user_pass_through(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(kernel: Kernel, target: Target) -> Kernel:
        raise UnsupportedError("too big")

    p = _with_pass(monkeypatch, refuse)
    with pytest.raises(UnsupportedError, match=r"^too big$"):
        run_pass(p, parse_kernel(ROW_SUM), TARGET, spec=0)


def test_dump_all_and_diff(tmp_path: Path) -> None:
    run_pipeline(parse_kernel(ROW_SUM), TARGET, PipelineOptions(dump="all", dump_dir=tmp_path))
    files = sorted(f.name for f in (tmp_path / "row_sum").iterdir())
    assert files == [f"{i:02}_{p.name}.kir" for i, p in enumerate(PIPELINE)]
    (packed,) = (tmp_path / "row_sum").glob("*_pack_shared.kir")
    check_kernel(parse_kernel(packed.read_text()), "packed")
    run_pipeline(parse_kernel(ROW_SUM), TARGET, PipelineOptions(dump="diff", dump_dir=tmp_path))
    (expanded,) = (tmp_path / "row_sum").glob("*_expand_reductions.kir")
    assert "+++ expand_reductions" in expanded.read_text()
    assert (tmp_path / "row_sum" / files[-1]).read_text() == "(unchanged)\n"


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    options = PipelineOptions(dump="all", dump_dir=tmp_path / "file")
    with pytest.raises(
        UserError, match=r"FUSEWRIGHT_DUMP_DIR: .*row_sum cannot be written \(Not a"
    ):
        run_pipeline(parse_kernel(ROW_SUM), TARGET, options)


def test_an_unknown_dump_is_refused() -> None:
    with pytest.raises(UserError, match="FUSEWRIGHT_DUMP='fuse': use all, diff or a pass: ma"):
        run_pipeline(parse_kernel(ROW_SUM), TARGET, PipelineOptions(dump="fuse"))


def test_knobs_are_typed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FUSEWRIGHT_SPEC", raising=False)
    assert knobs.SPEC.get() == 1
    monkeypatch.setenv("FUSEWRIGHT_SPEC", "3")
    monkeypatch.setenv("FUSEWRIGHT_CACHE", "off")
    monkeypatch.setenv("FUSEWRIGHT_CACHE_DIR", "/somewhere")
    assert PipelineOptions().spec == 3
    assert knobs.CACHE.get() is False
    assert knobs.CACHE_DIR.get() == Path("/somewhere")
    monkeypatch.setenv("FUSEWRIGHT_SPEC", "7")
    with pytest.raises(UserError, match="FUSEWRIGHT_SPEC='7': use a number from 0 to 3"):
        knobs.SPEC.get()
    monkeypatch.setenv("FUSEWRIGHT_CACHE", "perhaps")
    with pytest.raises(UserError, match="FUSEWRIGHT_CACHE='perhaps': use 1 or 0, or unset it"):
        knobs.CACHE.get()
    assert all(k.name.startswith("FUSEWRIGHT_") and k.doc.endswith(".") for k in knobs.KNOBS)


def test_a_pass_that_does_not_exist_is_refused() -> None:
    with pytest.raises(UserError, match=r"there is no pass 'shuffle'; use one of .*place_syncs"):
        run_pass_on_text("shuffle", "", "sm_90a")


def test_a_switch_that_does_not_exist_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(knobs.WITHOUT.name, "speed")
    with pytest.raises(UserError, match=r"FUSEWRIGHT_WITHOUT='speed': use \w+, \w+"):
        run_pipeline(parse_kernel(ROW_SUM), TARGET)
