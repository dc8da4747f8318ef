"""What newcomers try first: it works, or the message says what to write instead, and where."""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fusewright as fw
from fusewright import knobs, logs
from fusewright.arguments import COUNT, INTEGER, takes
from fusewright.fusion.spec_text import is_spec_text

F = fw.TensorSpec((4,), "float32")


SCAN = r"scan calls double\(.* with 2 arguments: .*; give it as many parameters as fw.scan says"


def double(x: Any) -> Any:
    return x * 2.0


# --- messages -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("attempt", "message"),
    [
        (lambda: fw.compile(double), r"must be a fusion.* fw.trace\(double, fw.TensorSpec\("),
        (lambda: fw.compile(lambda x: x), r"trace it first: fw.trace\(f, fw.TensorSpec\("),
        (lambda: fw.evaluate(double), r"evaluate: fusion=.*trace it first"),
        (lambda: fw.Schedule(double), r"Schedule: fusion=.*trace it first: fw.trace\(double"),
        (lambda: fw.trace(double, "f32[4,-5]"), r"size '-5' is neither a number nor a name"),
        (lambda: fw.trace(double, "float[4]"), r"spec 'float\[4\]': float is f32 here"),
        (lambda: fw.trace(double, np.ones(3)), r"argument x is ndarray .*fw.TensorSpec\("),
        (lambda: fw.trace(lambda x: x.cuda(), F), r"no attribute 'cuda'; .*leave it out"),
        (lambda: fw.trace(lambda x: x.backward(), F), r"records no gradients"),
        (lambda: fw.trace(lambda x: x.softplu(), F), r"is fw.nn.softplus meant"),
        (lambda: fw.trace(lambda x: x.zyxw(), F), r"operations are functions"),
        (lambda: fw.trace(lambda x: x.expm(), F), r"is fw.expm?1? meant"),
        (lambda: fw.trace(lambda x: x > 0 and x < 1, F), r"\(a < x\) & \(x < b\) for a < x < b"),
        (lambda: fw.nn.softmax([1, 2, 3]), r"got list \[1, 2, 3\]; a list is a structure"),
        (lambda: fw.fuse(fw.nn.softmax)([1, 2, 3]), r"softmax: .*pass numpy.asarray of it"),
        (lambda: fw.TensorSpec(5, "float32"), r"shape=5 is int; it must be a tuple of sizes"),
        (lambda: fw.verify(double), r"verify: kernel=.*fw.compile returns; trace it first"),
        (
            lambda: fw.fuse(double, dynamic={"x": {0: "n"}}),
            r"axes are integers, such as in {'x': 0}",
        ),
        (lambda: fw.trace(lambda x: fw.scan(double, x, x), F), SCAN),
        (lambda: fw.fuse(double, donate="x"), r"pass a tuple of names: \('x',\)"),
    ],
)
def test_what_is_wrong_is_said(attempt: Callable[[], object], message: str) -> None:
    with pytest.raises(fw.UserError, match=message):
        attempt()


def test_the_way_out_of_names_in_quotes() -> None:
    s = fw.Schedule(fw.trace(double, F))
    (t,) = s.outputs
    with pytest.raises(fw.ScheduleError, match=r"parallel='BIDx' is str; .*write fw.BIDx, without"):
        t.parallelize(0, "BIDx")  # type: ignore[arg-type]
    with pytest.raises(fw.ScheduleError, match=r"memory='shared' .*write fw.SHARED, without"):
        t.set_memory("shared")  # type: ignore[arg-type]
    with pytest.raises(fw.ScheduleError, match=r"consumer='x' is str; .*write s\['x'\]"):
        t.inline_at("x", 0)  # type: ignore[arg-type]
    other = fw.Schedule(fw.trace(double, F)).outputs[0]
    with pytest.raises(fw.ScheduleError, match=r"t\d is not a tensor of this schedule"):
        s.transform_like(other)


def test_errors_name_the_line_that_they_come_from() -> None:
    def wrong(x: Any) -> Any:
        return x + "a"

    line = wrong.__code__.co_firstlineno + 1
    with pytest.raises(fw.UserError) as caught:
        fw.trace(wrong, F)
    assert str(caught.value).endswith(f"[test_plain_words.py:{line}]")
    assert caught.value.source == f"test_plain_words.py:{line}"
    with pytest.raises(fw.UserError) as outside:
        fw.compile(wrong)  # type: ignore[arg-type]
    assert outside.value.source == ""


def test_errors_of_the_caller_pass_as_they_are() -> None:
    def wrong(x: Any) -> Any:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        fw.trace(wrong, F)


# --- specs as text ------------------------------------------------------------------------------


def test_trace_takes_specs_as_the_command_line_does() -> None:
    def norm(parts: dict[str, Any], mode: str) -> Any:
        assert mode == "sum"
        return fw.sum(parts["x"] * parts["y"], axis=-1)

    fusion = fw.trace(norm, {"x": "bf16[n, 64]", "y": fw.TensorSpec((64,), "float32")}, mode="sum")
    x, y = fusion.inputs
    assert str(x) == "parts_x: bfloat16[n, 64]" and str(y) == "parts_y: float32[64]"


def test_other_strings_stay_what_they_are() -> None:
    assert not any(map(is_spec_text, ("mean", "x[0]", "", "bf[3]", 3, None, "f32")))
    assert all(map(is_spec_text, ("f32[4,5]", "float32[]", "bf16[", "f32 [3]", "float[2]")))


# --- rules of arguments -------------------------------------------------------------------------


def test_arguments_become_what_the_function_takes() -> None:
    @takes(n=INTEGER, seed=COUNT)
    def both(x: object, n: int, *rest: object, seed: int = 0) -> tuple[object, ...]:
        return x, n, rest, seed

    assert both("x", np.int64(3), "y", seed=np.uint8(2)) == ("x", 3, ("y",), 2)  # type: ignore[arg-type]
    assert type(both("x", np.int64(3))[1]) is int  # type: ignore[arg-type]
    with pytest.raises(fw.UserError, match=r"n=1.5 is float; it must be an integer"):
        both("x", 1.5)  # type: ignore[arg-type]
    with pytest.raises(fw.UserError, match=r"seed=-1 is int; it must be an integer from 0 on"):
        both("x", 1, seed=-1)
    with pytest.raises(TypeError, match="unexpected keyword"):
        both("x", 1, sead=1)  # type: ignore[call-arg]


# --- logs ---------------------------------------------------------------------------------------

CALLS = """
import numpy as np
import fusewright as fw

@fw.fuse(device="sim")
def double(x):
    return x * 2.0

double(np.zeros((3, 4), np.float32))
double(np.zeros((3, 5), np.float32))
"""


def _run(level: str | None, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    settings = {"FUSEWRIGHT_CACHE_DIR": str(tmp_path)}
    settings |= {} if level is None else {"FUSEWRIGHT_LOG": level}
    known = {k: v for k, v in os.environ.items() if k != "FUSEWRIGHT_LOG"}
    return subprocess.run(
        [sys.executable, "-c", CALLS],
        capture_output=True,
        text=True,
        timeout=120,
        env=known | settings,
    )


def test_debugging_shows_kernels_and_recompilations(tmp_path: Path) -> None:
    done = _run("debug", tmp_path)
    assert done.returncode == 0
    assert "DEBUG fusewright.compile: fw_mul" in done.stderr
    assert "INFO fusewright.compile: compiled in " in done.stderr
    assert "double: compile 2" in done.stderr


def test_recompilations_name_what_changed(tmp_path: Path) -> None:
    (line,) = _run("recompiles", tmp_path).stderr.splitlines()
    assert "WARNING fusewright.recompiles: double: compile 2" in line
    assert "x has shape (3, 5), before (3, 4); dynamic={'x': (1,)} would share" in line


def test_a_level_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    done = _run("bogus", tmp_path)
    assert done.returncode == 1
    assert "UserError: FUSEWRIGHT_LOG='bogus': use debug, info, warning, error" in done.stderr


def test_a_misspelt_variable_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSEWRIGHT_DUMB", "all")
    knobs.tell_unknown.cache_clear()
    fusion = fw.trace(double, fw.TensorSpec((3,), "float32"))
    with pytest.warns(UserWarning, match="FUSEWRIGHT_DUMB, which .* is FUSEWRIGHT_DUMP meant"):
        fw.compile(fusion)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fw.compile(fusion)


def test_nothing_is_said_unasked(tmp_path: Path) -> None:
    assert _run(None, tmp_path).stderr == ""


def test_loggers_of_the_caller_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    root = logging.getLogger("fusewright")
    before = root.level, list(root.handlers)
    monkeypatch.delenv("FUSEWRIGHT_LOG", raising=False)
    logs.start()
    assert (root.level, list(root.handlers)) == before


@pytest.mark.parametrize(
    ("first", "second", "why"),
    [
        ((2, 8), (2, 9), r"x has shape \(2, 9\), before \(2, 8\); dynamic=\{'x': \(1,\)\} would"),
        ((2, 8), (1, 8), r"x has shape \(1, 8\), before \(2, 8\)$"),
        ((2, 8), (8,), r"x has rank 1, before 2$"),
    ],
)
def test_reasons_of_compiles(
    first: tuple[int, ...], second: tuple[int, ...], why: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "fusewright.recompiles")
    f = fw.fuse(double, device="sim")
    f(np.zeros(first, np.float32))
    f(np.zeros(second, np.float32))
    assert re.search(why, caplog.records[-1].getMessage())


def test_reasons_compare_with_the_most_similar_call(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "fusewright.recompiles")
    f = fw.fuse(lambda x, y: x + y, device="sim")
    zeros = [np.zeros(s, np.float32) for s in ((4,), (5,), (4, 4))]
    f(zeros[0], zeros[0])
    f(zeros[1], zeros[1])
    f(zeros[0], zeros[0].astype(np.float16))
    assert caplog.records[-1].getMessage().endswith("y has dtype float16, before float32")
    f(zeros[0], y=zeros[0])
    assert "another structure" in caplog.records[-1].getMessage()


# --- the simulator ------------------------------------------------------------------------------


def test_a_call_in_the_simulator_finds_races() -> None:
    """A program whose barrier is taken away is refused by the call, not only by `simulate`."""
    program = fw.compile(
        fw.trace(lambda x: fw.sum(x, axis=-1), fw.TensorSpec((2, 4096), "float32"))
    )
    (kernel,) = program.kernels
    assert kernel.syncs
    text = "\n".join(x for x in str(kernel.ir).splitlines() if "block_sync" not in x)
    kernel.ir = fw.parse_kernel(text)
    with pytest.raises(fw.InternalError, match=r"the simulator found .* races"):
        program(np.ones((2, 4096), np.float32), device="sim")


class Unprintable:
    def __repr__(self) -> str:
        raise ValueError("not yet")


@pytest.mark.parametrize(
    "call",
    [
        lambda o: fw.trace(fw.exp, o),
        lambda o: fw.trace(lambda x: o, "f32[3]"),
        lambda o: fw.trace(lambda x: fw.sum(x, axis=o), "f32[3]"),
        lambda o: fw.trace(lambda x: x[o], "f32[3]"),
        lambda o: fw.config(execution=o),
        lambda o: fw.trace(lambda x: fw.cond(o, fw.exp, fw.sin, x), "f32[3]"),
        lambda o: fw.TensorSpec((o, 3), "float32"),
        lambda o: fw.compile(fw.trace(fw.exp, "f32[3]"), target=o),
    ],
)
def test_objects_whose_repr_fails_are_refused_as_others(call: Any) -> None:
    with pytest.raises(fw.UserError, match="<Unprintable, whose repr fails>"):
        call(Unprintable())
