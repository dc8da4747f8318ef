"""The safety net below dispatch formation: what lowering refuses is cut, and is told."""

from __future__ import annotations

import runpy
from dataclasses import replace
from pathlib import Path

import pytest

import fusewright as fw
import fusewright.driver as driver
from fusewright.fusion import text
from fusewright.fusion.text import parse_fusion
from fusewright.host.refused import tell_refused
from fusewright.target import target_of

S = fw.TensorSpec


@pytest.fixture
def once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first kernel is refused by lowering."""
    finish, refused = driver.finish, list[bool]()

    def refuses(flow, *args, **kwargs):
        if not refused:
            refused.append(True)
            raise fw.ScheduleError("there is no place for it")
        return finish(flow, *args, **kwargs)

    monkeypatch.setattr(driver, "finish", refuses)


@pytest.mark.refuses
@pytest.mark.usefixtures("once")
def test_a_refused_kernel_is_cut_and_told_with_a_program(
    refused: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    program = fw.compile(fw.trace(lambda x: fw.exp(fw.sin(x) * 2), S((4, 8), "float32")))
    (message,) = refused
    assert len(program.launches) == 2
    assert "dispatch formation should have refused: there is no place for it" in message
    assert any("cut in two: there is no place for it" in str(r) for r in program.reasons)
    path = Path(message.rpartition("; ")[2].removesuffix(" shows it"))
    runpy.run_path(str(path))  # lowering refuses nothing by now
    assert capsys.readouterr().out == ""


@pytest.mark.refuses
@pytest.mark.usefixtures("once")
def test_a_program_that_reads_two_parts_of_a_value_runs_as_it_is_told(
    refused: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    def steps(u):
        return fw.exp(u[:8, :8] + u[16:24, 16:24]) * 2

    fw.compile(fw.trace(steps, S((32, 32), "float32")))
    (message,) = refused
    path = Path(message.rpartition("; ")[2].removesuffix(" shows it"))
    assert "u_1: float32" in path.read_text()
    runpy.run_path(str(path))
    assert capsys.readouterr().out == ""


@pytest.mark.refuses
def test_a_text_with_backslashes_and_quotes_stays_as_it_is(
    refused: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rule of a check is the only text of a fusion that may hold any character."""
    rule = "x[a:b] on axis 0: \\n is no line, ''' no end \"of\" it"
    fusion = fw.trace(lambda x, n: x[:n] * 2, S((8,), "float32"), fw.Sym("n"))
    (first, *others) = fusion.checks
    told = replace(fusion, checks=(replace(first, rule=rule), *others))
    tell_refused("k", told, target_of("sm_90a"), fw.ScheduleError("no place"))
    path = Path(refused[0].rpartition("; ")[2].removesuffix(" shows it"))
    monkeypatch.setattr(text, "parse_fusion", lambda t: texts.append(t) or fusion)
    texts = list[str]()
    runpy.run_path(str(path))
    assert str(parse_fusion(texts[0].strip())) == str(told)


@pytest.mark.refuses
@pytest.mark.usefixtures("once")
def test_one_op_that_lowering_refuses_is_an_error(refused: list[str]) -> None:
    with pytest.raises(fw.ScheduleError, match="there is no place for it"):
        fw.compile(fw.trace(fw.exp, S((4, 8), "float32")))
    assert len(refused) == 1


def test_nothing_is_told_of_kernels_that_stand(refused: list[str]) -> None:
    program = fw.compile(fw.trace(lambda x: fw.nn.softmax(fw.sin(x)), S((4, 8), "float32")))
    assert len(program.launches) == 1 and refused == []
