"""Arguments, files and choices that running a program refuses: the name, both types or sizes, and
what to do."""

from __future__ import annotations

import importlib
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fusewright as fw
from fusewright import cli
from fusewright.dtypes import dtype_of
from fusewright.errors import FusewrightError, UserError
from fusewright.programs import records
from fusewright.runtime import arrays, device, dlpack, libraries
from fusewright.runtime.archive import pack, read_archive
from fusewright.runtime.launch import _check_buffers

F32 = np.float32


@pytest.fixture(scope="module")
def program() -> fw.Program:
    return fw.compile(
        fw.trace(lambda x: fw.name(fw.exp(x), "y"), fw.TensorSpec(("n", 4), "float32"))
    )


class Elsewhere:
    """An array of another device that gives no copy of itself."""

    def __dlpack__(self, **_how: object) -> object:
        raise BufferError("it is elsewhere")

    def __dlpack_device__(self) -> tuple[int, int]:
        return (2, 0)


CALLS: list[tuple[Callable[[fw.Program], object], type[FusewrightError], str]] = [
    (
        lambda p: p(np.ones((4, 4))),
        UserError,
        "x must be float32, got float64; cast it first",
    ),
    (lambda p: p.simulate(np.ones((4, 4))), UserError, "x must be float32, got float64; cast it f"),
    (
        lambda p: p.simulate(np.ones(4, F32)),
        UserError,
        r"the program: x has rank 2, got an array of shape \(4,\)",
    ),
    (
        lambda p: p.simulate(np.ones((4, 5), F32)),
        UserError,
        r"x must have shape \(4, 4\), got \(4, 5\); compile for these shapes, or give the differin",
    ),
    (lambda p: p.simulate(), UserError, "the program takes 1 arrays, got 0"),
    (
        lambda p: p.simulate(np.ones((1, 4), F32)),
        UserError,
        r"x: axis 0 is the symbolic size n \(at least 2, a multiple of 1\), got 1",
    ),
    (
        lambda p: p.kernels[0].simulate(np.ones((4, 4))),
        UserError,
        "x must be float32, got float64; cast it first",
    ),
    (
        lambda p: p(np.ones((4, 4), F32), out=np.ones((4, 4), F32)),
        UserError,
        r"out=array.* is ndarray; it must be a list or tuple of an array or None for every output",
    ),
    (
        lambda p: fw.compile(p.fusion, target="sm_1"),
        UserError,
        r"target 'sm_1' is not known; use one of sm_80, sm_86",
    ),
    (
        lambda p: fw.compile(fw.trace(fw.exp, fw.TensorSpec((4,), "float32")), dynamic=True),
        UserError,
        r"compile\(dynamic=True\): no size of this fusion is symbolic; give the axes that change",
    ),
    (lambda p: fw.from_dlpack(Elsewhere()), UserError, "from_dlpack of Elsewhere: it is elsewhere"),
    (lambda p: fw.load("/nowhere/x.fw"), UserError, "cannot read /nowhere/x.fw: No such file or"),
    (
        lambda p: cli.load_function("nowhere.py:f"),
        UserError,
        "'nowhere.py:f': there is no file nowhere.py; write path/to/file.py:function",
    ),
    (
        lambda p: cli.load_function("model.py"),
        UserError,
        "'model.py': write module:function, such as model:softmax or model.py:softmax",
    ),
    (
        lambda p: records._restored(pack({"sizes": [], "kernel": {}, "target": "sm_90a"}, {})),
        UserError,
        r"a pickle does not describe a kernel \(KeyError\('symbols'\)\); pickle it again",
    ),
]


@pytest.mark.parametrize(
    ("call", "error", "message"), CALLS, ids=lambda x: x[:30] if isinstance(x, str) else ""
)
def test_refuses(
    program: fw.Program,
    call: Callable[[fw.Program], object],
    error: type[FusewrightError],
    message: str,
) -> None:
    with pytest.raises(error, match=message):
        call(program)


@pytest.mark.parametrize("n", [2, 3, 1000])
def test_sizes_from_the_least_on_are_taken(program: fw.Program, n: int) -> None:
    result = program.simulate(np.zeros((n, 4), F32))
    assert (result.outputs[0] == 1.0).all()


def test_strides_of_a_size_that_no_axis_has() -> None:
    spec = fw.TensorSpec((4, 4), "float32", strides=(fw.Sym("s"), 1))
    with pytest.raises(
        UserError, match="the size s is not determined by the shapes of the inputs; n"
    ):
        fw.compile(fw.trace(fw.exp, spec)).simulate(np.ones((4, 4), F32))


# --- files ----------------------------------------------------------------------------------------


def test_a_module_that_fails_names_the_failure(tmp_path: Path) -> None:
    (tmp_path / "broken_model.py").write_text("1 / 0")
    with pytest.raises(
        UserError, match=r"importing .*broken_model\.py fails: ZeroDivisionError: d"
    ):
        cli.load_function(f"{tmp_path}/broken_model.py:f")


def test_a_file_of_another_kind_is_no_module(tmp_path: Path) -> None:
    (tmp_path / "model.txt").write_text("x = 1")
    with pytest.raises(UserError, match=r"model\.txt is no Python file: its name does not end in"):
        cli.load_function(f"{tmp_path}/model.txt:f")


def test_a_folder_is_no_saved_program(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"cannot read {tmp_path}: Is a directory"):
        read_archive(tmp_path)


def test_the_bench_needs_a_checkout(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(cli, "has_gpu", lambda: True)
    monkeypatch.setattr(cli, "__file__", str(tmp_path / "a" / "b" / "cli.py"))
    with pytest.raises(UserError, match=f"there is no folder {tmp_path}/bench"):
        cli._bench(types.SimpleNamespace(rest=[]))  # type: ignore[arg-type]


# --- arrays of other libraries --------------------------------------------------------------------


def test_elements_of_several_lanes_are_no_dtype() -> None:
    t = types.SimpleNamespace(code=2, bits=32, lanes=4)
    with pytest.raises(UserError, match="DLPack element type of 4 lanes is not supported"):
        arrays._dl_dtype(t)  # type: ignore[arg-type]
    t.lanes = 1
    assert arrays._dl_dtype(t) is dtype_of("float32")  # type: ignore[arg-type]
    assert dlpack.NAMES


def test_arrays_that_only_describe_themselves_are_not_copied() -> None:
    with pytest.raises(
        UserError, match="out= of Elsewhere cannot take this result: its strides, al"
    ):
        libraries.Interface().copy(Elsewhere(), Elsewhere())
    with pytest.raises(
        UserError, match="Elsewhere has negative strides or a misaligned address and"
    ):
        libraries.Interface().contiguous(Elsewhere())


def test_a_dtype_that_this_torch_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(libraries.sys.modules, "torch", types.SimpleNamespace(float32="float32"))
    library = libraries.Torch()
    assert library.dtype(dtype_of("float32")) == "float32"
    with pytest.raises(UserError, match="this torch has no dtype uint16; cast the result"):
        library.dtype(dtype_of("uint16"))


def test_buffers_of_a_kernel_are_counted_and_measured(program: fw.Program) -> None:
    kernel = program.kernels[0].ir
    (n,) = kernel.symbols
    good, short = np.zeros(8, F32), np.zeros(7, F32)
    _check_buffers(kernel, [good, good], {n: 2})
    with pytest.raises(UserError, match=rf"kernel {kernel.name} takes 2 buffers, got 1"):
        _check_buffers(kernel, [good], {n: 2})
    with pytest.raises(UserError, match=r"buffer x: needs 8 elements of float32, got 7 of float32"):
        _check_buffers(kernel, [short, good], {n: 2})
    with pytest.raises(UserError, match=r"needs 8 elements of float32, got 8 of float64"):
        _check_buffers(kernel, [good.astype(np.float64), good], {n: 2})


def test_without_the_binding_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise ImportError(f"No module named {name!r}")

    monkeypatch.setattr(device, "has_gpu", lambda: True)
    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(
        UserError, match=r"driver binding .*; install it with: pip install 'fusewrig"
    ):
        device.driver.__wrapped__()
