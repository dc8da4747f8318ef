"""Every public function that is no operation, with wrong arguments, one at a time: refused by an
error of this package that says why, or right, but never an exception from the inside.

Operations have a walk of their own (`test_hostile_arguments`).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fusewright as fw
from fusewright.fusion import ops
from fusewright.schedule.rules import ON_PASSES
from fusewright.schedule.schedule import ScheduledTensor

HOSTILE: list[Any] = [
    None, "no", "", "f32[4,5]", float("nan"), float("inf"), -1.5, 10**400, -1, 0, 7, True, 1j, b"x",
    [], (), [1, 2], (-9, 9), (1.5,), ("a",), {}, {"a": 1}, {0: "x"}, object(), np.ones(3),
    np.ones((4, 8), np.float16), np.ones((2, 2), object), np.ones(3, np.complex64),
    np.array(["a"]), np.datetime64("2020-01-01"), np.int64(99), slice(None), ..., int, set(), fw,
    lambda: 0,
]  # fmt: skip


def program(x: Any) -> Any:
    return fw.exp(x) + fw.sum(x, axis=-1, keepdims=True)


SPEC = fw.TensorSpec((4, 8), "float32")
FUSION = fw.trace(program, SPEC)
PROGRAM = fw.compile(FUSION)
KERNEL = PROGRAM.kernels[0]
X = np.ones((4, 8), np.float32)
FUSED = fw.fuse(program, device="sim")
REPORT = fw.Report(PROGRAM)


class Two:
    """A class of the caller."""


class Clock:
    device = "a device that nobody has"

    def __call__(self, runs: list[Any]) -> list[float]:
        return [1.0] * len(runs)


def _schedule_calls() -> Iterator[tuple[str, Callable[..., Any], dict[str, Any]]]:
    """Each edit of a schedule, on an input's copy, a sum and the output."""
    good = {
        "axis": 0, "factor": 2, "order": {0: 1}, "axis2": 1, "parallel": fw.TIDx, "axes": 0,
        "memory": fw.SHARED, "stages": 2, "consumer": "the output", "operands": [],
        "loops": [], "rows": 1, "stride": 2, "width": 2, "low": 0, "high": 1, "position": 0,
        "readers": [],
    }  # fmt: skip
    for name, method in inspect.getmembers(ScheduledTensor, inspect.isfunction):
        if name.startswith("_"):
            continue
        for pick in ("copy", "sum", "output"):
            own = {**good, "by": 0} if name == "serpentine" else good
            yield f"{pick}.{name}", _edit(name, method, pick), own
    edits = ("transform_like", "inline_most", "launch", *ON_PASSES)
    for name in ("__getitem__", *edits, "replay", "lower", "predict"):
        method = getattr(fw.Schedule, name)
        yield (
            f"schedule.{name}",
            _edit(name, method, "schedule"),
            {**good, "key": "x", "t": "the output", "log": (), "tensors": []},
        )


def _edit(name: str, method: Callable[..., Any], pick: str) -> Callable[..., Any]:
    """The edit of a fresh schedule, which is then printed."""

    def edit(*args: Any, **kwargs: Any) -> None:
        s = fw.Schedule(FUSION)
        (out,) = s.outputs
        total = next(t for t in s.tensors if "add" in str(t.stage.op) and t != out)
        chosen = {"schedule": s, "output": out, "sum": total}
        on = chosen[pick] if pick in chosen else s.inputs[0].cache_after()
        given = [out if isinstance(a, str) and a == "the output" else a for a in args]
        getattr(on, name)(*given, **kwargs)
        str(s)

    parameters = list(inspect.signature(method).parameters.values())[1:]
    edit.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return edit


CALLS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "TensorSpec": (fw.TensorSpec, {"shape": (2, 3), "dtype": "float32"}),
    "Sym": (fw.Sym, {"name": "n"}),
    "trace": (fw.trace, {"fn": program, "specs": [SPEC]}),
    "compile": (fw.compile, {"fusion": FUSION}),
    "evaluate": (fw.evaluate, {"fusion": FUSION, "arrays": [X]}),
    "verify": (fw.verify, {"kernel": KERNEL, "arrays": [X]}),
    "verify a program": (fw.verify, {"kernel": PROGRAM, "arrays": [X]}),
    "load": (fw.load, {"path": "there is no such file"}),
    "parse_kernel": (fw.parse_kernel, {"text": str(KERNEL.ir)}),
    "fuse": (fw.fuse, {"fn": program}),
    "register_pytree": (fw.register_pytree, {"cls": Two, "flatten": program, "unflatten": program}),
    "name": (fw.name, {"x": X, "text": "a"}),
    "tune": (fw.tune, {"fn": program, "args": [X], "clock": Clock()}),
    "fw.kernel": (fw.kernel, {"fn": program, "schedule": program}),
    "benchmark": (fw.benchmark, {"fn": program, "args": [X], "clock": Clock()}),
    "grad": (fw.grad, {"fn": program, "argnums": 0, "has_aux": False}),
    "value_and_grad": (fw.value_and_grad, {"fn": program, "argnums": 0, "has_aux": False}),
    "vjp": (fw.vjp, {"fn": fw.sin, "primals": [X]}),
    "jvp": (fw.jvp, {"fn": fw.sin, "primals": (X,), "tangents": (X,), "has_aux": False}),
    "vmap": (lambda axis: fw.vmap(fw.sin, axis)(X), {"axis": 0}),
    "custom_vjp": (fw.custom_vjp, {"fn": program, "forward": program, "backward": program}),
    "stop_gradient": (fw.stop_gradient, {"x": X}),
    "Schedule": (fw.Schedule, {"fusion": FUSION}),
    "Report": (fw.Report, {"program": PROGRAM}),
    "Report.to_html": (REPORT.to_html, {"path": "a.html"}),
    "Report.to_trace": (REPORT.to_trace, {"path": "a.json"}),
    "program": (PROGRAM.__call__, {"arrays": [X], "device": "sim"}),
    "program on any device": (PROGRAM.__call__, {"arrays": [X]}),
    "program.simulate": (PROGRAM.simulate, {"arrays": [X]}),
    "program.run_cuda": (PROGRAM.run_cuda, {"arrays": [X]}),
    "program.save": (PROGRAM.save, {"path": "a"}),
    "kernel": (KERNEL.__call__, {"arrays": [X]}),
    "kernel.simulate": (KERNEL.simulate, {"arrays": [X]}),
    "fused": (lambda x, out=None: FUSED(x, out=out), {"x": X}),
    "fused.explain": (lambda x: FUSED.explain(x), {"x": X}),
    "fused.program": (lambda x: FUSED.program(x), {"x": X}),
    "config.execution": (lambda value: fw.config(execution=value), {}),
    "config.deterministic": (lambda value: fw.config(deterministic=value), {}),
    "asarray": (fw.asarray, {"obj": X}),
    "from_dlpack": (fw.from_dlpack, {"x": X}),
    "finfo": (fw.finfo, {"type": "float32"}),
    "iinfo": (fw.iinfo, {"type": "int8"}),
    "isdtype": (fw.isdtype, {"dtype": "int8", "kind": "bool"}),
    "result_type": (fw.result_type, {"arrays_and_dtypes": ["int8"]}),
    "can_cast": (fw.can_cast, {"from_": "int8", "to": "int8"}),
    **{name: (f, good) for name, f, good in _schedule_calls()},
}
INTERNAL = {"kernel.simulate": ("symbols", "values")}
"""Parameters that programs use to run a kernel as a part of themselves."""


def calls(
    f: Callable[..., Any], good: dict[str, Any], left_out: tuple[str, ...] = ()
) -> Iterator[tuple[list[Any], dict[str, Any]]]:
    """Calls with usual arguments but one."""
    parameters = [
        p for p in inspect.signature(f).parameters.values() if p.kind is not p.VAR_KEYWORD
    ]
    for wrong in parameters:
        if wrong.name in left_out:
            continue
        for value in HOSTILE:
            args: list[Any] = []
            named: dict[str, Any] = {}
            for p in parameters:
                given = value if p is wrong else good.get(p.name, p.default)
                if p.kind is p.VAR_POSITIONAL:
                    args += [value] if p is wrong else good.get(p.name, [])
                elif p is not wrong and p.name not in good:
                    assert p.default is not p.empty, f"the walk needs a good {p.name}"
                elif p.kind is p.KEYWORD_ONLY or p.default is not p.empty:
                    named[p.name] = given
                else:
                    args.append(given)
            yield args, named


def _is_other(value: object) -> bool:
    """Whether a value is a function of the caller, whose exceptions are the caller's."""
    return value is int or (inspect.isfunction(value) and value is not program)


@pytest.mark.filterwarnings("ignore:no GPU")
@pytest.mark.parametrize("name", CALLS)
def test_wrong_arguments_are_refused_with_a_message(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FUSEWRIGHT_CACHE_DIR", str(tmp_path))
    function, good = CALLS[name]
    for args, named in calls(function, good, INTERNAL.get(name, ())):
        try:
            function(*args, **named)
        except fw.FusewrightError as e:
            assert not isinstance(e, fw.InternalError), (args, named)
            assert len(str(e)) > 20, (args, named)
        except Exception as e:
            if name in ("trace", "tune", "benchmark", "fuse", "vjp", "jvp") and any(
                map(_is_other, args)
            ):
                continue
            raise AssertionError(f"{name}{args}{named}: {type(e).__name__}: {e}") from e


def lying(**members: Any) -> object:
    """An object of a class with these members."""
    return type("Liar", (), members)()


def view(**changes: Any) -> dict[str, Any]:
    """A description of an array in device memory."""
    return {"shape": (4, 8), "typestr": "<f4", "data": (0, False), "version": 3} | changes


LIARS: dict[str, object] = {
    "no description": lying(__cuda_array_interface__="junk"),
    "an empty description": lying(__cuda_array_interface__={}),
    "a number": lying(__cuda_array_interface__=3),
    "a negative size": lying(__cuda_array_interface__=view(shape=(-4, 8))),
    "sizes of texts": lying(__cuda_array_interface__=view(shape="ab")),
    "fewer strides": lying(__cuda_array_interface__=view(strides=(4,))),
    "no address": lying(__cuda_array_interface__=view(data=None)),
    "no capsule": lying(__dlpack__=lambda s, **_: "x", __dlpack_device__=lambda s: (1, 0)),
    "no device": lying(__dlpack__=lambda s, **_: "x", __dlpack_device__=lambda s: "x"),
    "an exporter that fails": lying(
        __dlpack__=lambda s, **_: 1 / 0, __dlpack_device__=lambda s: (1, 0)
    ),
}


@pytest.mark.parametrize("name", LIARS)
def test_objects_that_are_not_what_they_say_are_refused(name: str) -> None:
    for call in (FUSED, lambda v: PROGRAM(v, device="sim")):
        with pytest.raises(fw.UserError, match=r"the __\w+__ of .*Liar describes no array"):
            call(LIARS[name])


def test_data_that_numpy_cannot_read_is_refused() -> None:
    def fails(*_: Any, **__: Any) -> Any:
        raise RuntimeError("of its own")

    for liar in (
        lying(__array__=fails), lying(__array__=lambda *_, **__: "x"),
        lying(__array_interface__={"shape": (4,)}), LIARS["no capsule"],
    ):  # fmt: skip
        with pytest.raises(fw.UserError, match="asarray of Liar: numpy makes no array of it"):
            fw.asarray(liar)


@pytest.mark.parametrize("path", ["a\0b", "\0"])
def test_paths_that_no_file_has_are_refused(path: str) -> None:
    for call in (fw.load, PROGRAM.save, REPORT.to_html):
        with pytest.raises(fw.UserError, match="it must be a path"):
            call(path)


def test_values_as_texts() -> None:
    total = fw.sum(fw.asarray([1.0, 2.5]))
    assert f"{total:.2f} {fw.asarray(7):>3} {total}" == "3.50   7 3.5"
    for attempt in (lambda x: f"{x.sum():.2f}", lambda x: f"{fw.ones(3):.2f}{x}"):
        with pytest.raises(fw.UserError, match=r"a text '\.2f' of"):
            fw.trace(attempt, SPEC)
    with pytest.raises(fw.UserError, match=r"item\(\) of .*exactly one element"):
        fw.ones(3).item()


def test_more_elements_than_an_index_counts_are_refused() -> None:
    with pytest.raises(
        fw.UserError, match=r"TensorSpec: the sizes \(2147483648, 4294967296\) give"
    ):
        fw.TensorSpec((2**31, 2**32), "int8")
    for op in (lambda x: fw.zeros((2**70,)), lambda x: fw.broadcast_to(x[:, :1], (2**60, 4, 8))):
        with pytest.raises(fw.UserError, match=r"give more than 9223372036854775807 elements"):
            fw.trace(op, SPEC)
    most = fw.trace(lambda x: x.sum() + fw.zeros((2**62,)).sum(), SPEC)
    assert fw.compile(most).kernels


def test_the_walk_reaches_every_public_function() -> None:
    """What is missing in both walks is no function, or has no arguments that could be wrong."""
    walked = {*CALLS, *ops.__all__}
    others = {"from_torch", "config", "DType", "__array_namespace_info__"}
    named = {n: getattr(fw, n) for n in fw.__all__}
    functions = {n for n, x in named.items() if callable(x) and not inspect.isclass(x)}
    assert functions - walked <= others
