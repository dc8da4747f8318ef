"""The command line, run in this process on small cases."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fusewright as fw
from fusewright import cli, demo, gates
from fusewright.errors import InternalError, UserError
from fusewright.runtime.device import has_gpu

SCREEN = 40  # lines
MODEL = """
import fusewright as fw

LIMIT = 3

@fw.fuse
def softmax(x):
    e = fw.exp(x - fw.max(x, axis=-1, keepdims=True))
    return e / fw.sum(e, axis=-1, keepdims=True)

def double(x):
    return x * 2.0
"""


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a module that stands in the current directory."""
    name = f"model_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(MODEL)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return name


# --- specs and functions ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "shape", "dtype"),
    [
        ("f32[1024,1024]", (1024, 1024), "float32"),
        ("bf16[n, 64]", ("n", 64), "bfloat16"),
        ("int8[]", (), "int8"),
        ("f8e4m3[7]", (7,), "float8_e4m3"),
        ("bool[2,3]", (2, 3), "bool"),
    ],
)
def test_a_spec_from_text(text: str, shape: tuple[int | str, ...], dtype: str) -> None:
    spec = cli.parse_spec(text)
    assert (spec.shape, spec.dtype.name) == (shape, dtype)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("f32", r"spec 'f32': write dtype\[sizes\]"),
        ("f32[2][3]", r"write dtype\[sizes\]"),
        ("f32[2,]", "size '' is neither a number nor a name"),
        ("f32[-1]", "size '-1' is neither a number nor a name"),
        ("f99[2]", "dtype 'f99' is not supported"),
    ],
)
def test_a_bad_spec_is_refused(text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        cli.parse_spec(text)


def test_a_fused_function_is_unwrapped(model: str) -> None:
    fn = cli.load_function(f"{model}:softmax")
    assert type(fn).__name__ == "function" and fn.__name__ == "softmax"


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("softmax", "write module:function"),
        (
            "no_such_module:f",
            "No module named 'no_such_module'; run where no_such_module can be imported",
        ),
        ("{model}:soft", "has no function 'soft'; it has softmax, double"),
        ("{model}:LIMIT", "has no function 'LIMIT'"),
    ],
)
def test_a_function_that_is_not_there(model: str, path: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        cli.load_function(path.format(model=model))


# --- explain ------------------------------------------------------------------------------------


def test_explain_prints_the_report(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["explain", f"{model}:softmax", "--spec", "f32[n,4096]"]) == 0
    out = capsys.readouterr().out
    for part in ("1 kernel", "bytes moved", "predicted", "what was fused", "--show part: nest"):
        assert part in out
    assert "__global__" not in out and len(out.splitlines()) <= SCREEN


@pytest.mark.parametrize(
    ("part", "expected"),
    [
        ("nest", "for "),
        ("candidates", "chosen"),
        ("syncs", "RAW"),
        ("memory", "program order"),
        ("registers", "registers"),
        ("kir", "block_sync #0"),
        ("cuda", "__global__"),
        ("graph", "Reduce(x, fn='max', axes=(1,))"),
        ("all", "CUDA"),
    ],
)
def test_explain_shows_parts(
    model: str, part: str, expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["explain", f"{model}:softmax", "--spec", "f32[64,4096]", "--show", part]
    assert cli.main(command) == 0
    assert expected in capsys.readouterr().out


def test_explain_gives_data(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["explain", f"{model}:softmax", "--spec", "f32[64,4096]", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["launches"], found["moved_over_least"]) == (1, 1.0)
    assert found["bytes_moved"] == 2 * 64 * 4096 * 4
    (kernel,) = found["kernels"]
    assert kernel["predicted_us"] == found["predicted_us"] > 0
    assert len(kernel["syncs"]) >= 1 and not kernel["slow"]
    assert cli.main(["explain", f"{model}:softmax", "--spec", "f32[n,4096]", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["bytes_moved"] == "32768*n"


def test_a_file_names_a_module(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    folder = Path.cwd().name
    for path in (f"{model}.py:double", f"../{folder}/{model}.py:double"):
        assert cli.main(["explain", path, "--spec", "f32[8]"]) == 0
        assert "1 kernel" in capsys.readouterr().out
    assert cli.main(["explain", "../nowhere/model.py:f"]) == 2
    assert "there is no file ../nowhere/model.py" in capsys.readouterr().err


def test_a_module_that_fails_is_told_without_a_traceback(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "failing_model.py"
    file.write_text("1 / 0")
    assert cli.main(["explain", f"{file}:f"]) == 2
    assert "importing" in (err := capsys.readouterr().err) and "ZeroDivisionError" in err


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        cli.main(["--version"])
    assert capsys.readouterr().out == f"fusewright {fw.__version__}\n"


def test_explain_writes_html(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "out.html"
    assert cli.main(["explain", f"{model}:double", "--spec", "f32[8]", "--html", str(path)]) == 0
    assert capsys.readouterr().out.strip() == str(path)
    assert path.read_text().startswith("<!doctype html>")


def test_errors_are_told_without_a_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["explain", "no_such_module:f"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("UserError: 'no_such_module:f': No module named")
    assert "Traceback" not in captured.err


def test_an_unknown_target_is_refused(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["explain", f"{model}:double", "--spec", "f32[8]", "--target", "sm_1"]
    assert cli.main(command) == 2
    assert "target 'sm_1' is not known" in capsys.readouterr().err


def test_an_unknown_command_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        cli.main(["explode"])
    assert "invalid choice: 'explode'" in capsys.readouterr().err


def test_a_reader_that_goes_away_is_no_error(model: str) -> None:
    command = f"'{sys.executable}' -m fusewright explain {model}:softmax --spec 'f32[64,8192]'"
    done = subprocess.run(
        ["bash", "-c", f"{command} | head -n 1"], capture_output=True, text=True, timeout=120
    )
    assert "1 kernel" in done.stdout and done.stderr == ""


# --- demo ---------------------------------------------------------------------------------------

SMALL = tuple(
    demo.DemoCase(case.fn, specs)
    for case, specs in zip(
        demo.CASES,
        (
            (fw.TensorSpec((8, 48), "float32"), fw.TensorSpec((48,), "float32")),
            (fw.TensorSpec((4, 200), "float32"),),
            (
                fw.TensorSpec((4, 256), "bfloat16"),
                fw.TensorSpec((4, 256), "bfloat16"),
                fw.TensorSpec((256,), "bfloat16"),
            ),
        ),
        strict=True,
    )
)


def test_the_demo_ends_in_one_good_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert demo.run(target="sm_90a", cases=SMALL) == 0
    out = capsys.readouterr().out
    assert len(out.splitlines()) <= SCREEN
    head, _, tail = out.rpartition("=== ")
    assert head.count("  fw_") >= 3
    lines = tail.splitlines()
    assert lines[-1] == "all good"
    assert [line.split()[0] for line in lines if "[" in line] == [
        "bias_gelu",
        "softmax",
        "residual_rms_norm",
    ]


def test_the_demo_fails_on_a_wrong_result(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    right = fw.evaluate
    monkeypatch.setattr(fw, "evaluate", lambda *a: [1.001 * x for x in right(*a)])
    assert demo.run(target="sm_90a", cases=SMALL[1:2]) == 1
    assert "FAILED: see the columns" in capsys.readouterr().out


def test_a_result_that_is_not_finite_is_infinitely_wrong() -> None:
    want = np.ones(3, np.float32)
    assert demo.relative_error(np.array([1, np.nan, 1], np.float32), want) == np.inf
    assert demo.relative_error(want, want) == 0


def test_rounding_allows_the_output_one_unit() -> None:
    assert demo.rounding(np.dtype("float16")) == pytest.approx(2**-10, rel=0.01)
    assert demo.rounding(np.dtype("float32")) == pytest.approx(17 * 2**-23)


def test_the_demo_refuses_symbolic_sizes() -> None:
    fusion = fw.trace(demo.softmax, fw.TensorSpec(("n", 8), "float32"))
    with pytest.raises(UserError, match="the demo needs constant sizes"):
        demo.arguments(fusion)


# --- verify -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Entry:
    name: str
    fn: Callable[..., Any]
    specs: tuple[fw.TensorSpec, ...]
    small: tuple[fw.TensorSpec, ...]


CORPUS = (
    Entry(
        "softmax",
        demo.softmax,
        (fw.TensorSpec((64, 1024), "float32"),),
        (fw.TensorSpec((3, 4096), "float32"),),
    ),
    Entry(
        "double",
        lambda x: x * 2.0,
        (fw.TensorSpec((1024,), "float32"),),
        (fw.TensorSpec((100,), "float32"),),
    ),
)


def test_verify_prints_totals(capsys: pytest.CaptureFixture[str]) -> None:
    assert gates.run(CORPUS, target="sm_90a", cubin=False) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    (total,) = [line for line in lines if line[:1] == ["total"]]
    kernels, syncs, necessary, redundant, missing = map(int, total[1:6])
    assert (kernels, redundant, missing) == (2, 0, 0)
    assert syncs == necessary > 0
    assert lines[-1] == ["2", "fusions,", "0", "problems"]


def test_verify_takes_a_part_of_the_corpus(capsys: pytest.CaptureFixture[str]) -> None:
    assert gates.run(CORPUS, target="sm_90a", cubin=False, only="dou") == 0
    assert "softmax" not in capsys.readouterr().out
    with pytest.raises(UserError, match=r"has 'tan' in its name; there are softmax, double"):
        gates.run(CORPUS, target="sm_90a", cubin=False, only="tan")


def test_verify_fails_on_a_redundant_sync(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    right = fw.verify

    def all_redundant(program: fw.Program) -> fw.VerifyReport:
        report = right(program)
        return fw.VerifyReport(redundant=report.necessary)

    monkeypatch.setattr(fw, "verify", all_redundant)
    assert gates.run(CORPUS[:1], target="sm_90a", cubin=False) == 1
    assert "softmax: redundant " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (InternalError("lost the plot"), "broken: InternalError: lost the plot\n"),
        (ValueError("no plot"), "broken: ValueError: no plot at test_cli.py:"),
    ],
)
def test_an_entry_that_does_not_compile_is_a_problem(
    error: Exception, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(x: Any) -> Any:
        raise error

    entry = Entry("broken", broken, CORPUS[0].specs, CORPUS[0].small)
    assert gates.run((entry, CORPUS[1]), target="sm_90a", cubin=False) == 1
    out = capsys.readouterr().out
    assert message in out and "2 fusions, 1 problem" in out


# --- bench --------------------------------------------------------------------------------------


@pytest.mark.skipif(has_gpu(), reason="says so only where there is no GPU")
def test_bench_without_a_gpu_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench"]) == 0
    assert "no CUDA device was found" in capsys.readouterr().out


def test_a_file_called_as_a_loaded_module_replaces_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    file = tmp_path / "json.py"
    file.write_text("def f(x):\n    return x\n")
    before = {name: sys.modules[name] for name in ("json", "_json")}
    fn = cli.load_function(f"{file}:f")
    monkeypatch.delitem(sys.modules, fn.__module__)
    assert fn.__module__ not in before
    assert {name: sys.modules[name] for name in before} == before
