"""Fused functions under what records torch's operators: torch.compile, fake tensors, make_fx,
export; and where they refuse."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402

import fusewright as fw  # noqa: E402
import fusewright.frontends.torch as door  # noqa: E402
from fusewright.errors import UserError  # noqa: E402


class Pair(NamedTuple):
    low: Any
    high: Any


softmax = fw.fuse(lambda x, y, scale=2.0: fw.nn.softmax(x * scale + y, -1), device="sim")
several = fw.fuse(
    lambda xs: {"sum": xs["a"] + xs["b"], "rest": [Pair(xs["a"] * 2, None), (xs["b"], 3)]},
    device="sim",
)
identity = fw.fuse(lambda x: x, device="sim")


def rand(*shape: int) -> Any:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


X, Y = rand(4, 6), rand(6)


def eager(x: Any, y: Any, scale: float = 2.0) -> Any:
    return torch.softmax(x * scale + y, -1)


# --- records ------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "fusewright"])
def test_a_call_does_not_break_a_compiled_graph(backend: str) -> None:
    torch.compiler.reset()
    chosen = door.backend if backend == "fusewright" else backend
    run = torch.compile(lambda x, y: softmax(x.sin(), y) + 1, backend=chosen, fullgraph=True)
    torch.testing.assert_close(run(X, Y), eager(X.sin(), Y) + 1)
    with torch.inference_mode():
        torch.testing.assert_close(run(X * 2, Y), eager((X * 2).sin(), Y) + 1)


def test_structures_survive_a_compiled_graph() -> None:
    torch.compiler.reset()

    def f(x: Any, y: Any) -> Any:
        found = several({"a": x * 2, "b": y})
        return found["rest"][0].low + 1, found

    made, found = torch.compile(f, backend="aot_eager", fullgraph=True)(X, Y)
    torch.testing.assert_close(made, X * 4 + 1)
    torch.testing.assert_close(found["sum"], X * 2 + Y)
    assert isinstance(found["rest"][0], Pair) and found["rest"][0].high is None
    assert found["rest"][1][1] == 3


def test_scalars_and_keywords_are_part_of_the_operator() -> None:
    torch.compiler.reset()
    run = torch.compile(
        lambda x, y, s: softmax(x, y, scale=s) + 1, backend="aot_eager", fullgraph=True
    )
    for s in (2.0, 3.0):
        torch.testing.assert_close(run(X, Y, s), eager(X, Y, s) + 1)


def test_symbolic_sizes_compile_once() -> None:
    torch.compiler.reset()
    graphs: list[Any] = []

    def record(module: Any, _inputs: Any) -> Any:
        graphs.append(module)
        return module

    run = torch.compile(
        lambda x, y: softmax(x * 2, y) * x.shape[0], backend=record, dynamic=True, fullgraph=True
    )
    for n in (3, 5, 8):
        torch.testing.assert_close(run(rand(n, 6), Y), eager(rand(n, 6) * 2, Y) * n)
    assert len(graphs) == 1


def test_gradients_of_others_flow_past_a_call() -> None:
    torch.compiler.reset()
    w = Y.clone().requires_grad_()
    run = torch.compile(lambda x, w: (softmax(x, Y) * w).sum(), backend=door.backend)
    run(X, w).backward()
    torch.testing.assert_close(w.grad, eager(X, Y).sum(0))


@pytest.mark.parametrize("mode", ["real", "fake", "symbolic"])
def test_make_fx_records_one_operator(mode: str) -> None:
    graph = make_fx(lambda x, y: softmax(x, y) + 1, tracing_mode=mode)(X, Y)
    called = [str(n.target) for n in graph.graph.nodes if n.op == "call_function"]
    assert sum(name.startswith("fusewright.") for name in called) == 1
    x = rand(4, 6) + 1
    torch.testing.assert_close(graph(x, Y), eager(x, Y) + 1)


def test_an_exported_program_keeps_the_call() -> None:
    class Model(torch.nn.Module):  # type: ignore[name-defined, misc]
        def forward(self, x: Any, y: Any) -> Any:
            return softmax(x, y) + 1

    exported = torch.export.export(Model(), (X, Y))
    torch.testing.assert_close(exported.module()(X * 2, Y), eager(X * 2, Y) + 1)


class Exported(torch.nn.Module):  # type: ignore[name-defined, misc]
    def forward(self, x: Any, y: Any) -> Any:
        found = weighted({"a": x, "b": y})
        return softmax(x, y) + 1, found["t"] * 2, found["n"][0]


WEIGHTS = np.arange(6, dtype=np.float32)
weighted = fw.fuse(
    lambda xs: {"t": (xs["a"] * WEIGHTS).T, "n": [fw.sum(xs["a"] * xs["b"], axis=1)]}, device="sim"
)
LOADS = """
import sys, torch
import fusewright.frontends.torch
model = torch.export.load(sys.argv[1]).module()
for x, y, *want in torch.load(sys.argv[2]):
    for a, b in zip(model(x, y), want, strict=True):
        torch.testing.assert_close(a, b)
        assert a.stride() == b.stride()
print("all good")
"""


def test_an_exported_program_runs_where_nobody_knows_the_function(tmp_path: Path) -> None:
    """Constants, structures and orders of results go along, and sizes that are symbols."""
    rows = torch.export.Dim("rows", min=2, max=64)
    shapes = {"x": {0: rows}, "y": None}
    exported = torch.export.export(Exported(), (X, Y), dynamic_shapes=shapes)
    torch.export.save(exported, tmp_path / "model.pt2")
    runs = [(x, Y, *Exported()(x, Y)) for x in (X, rand(9, 6))]
    torch.testing.assert_close(exported.module()(X, Y), tuple(runs[0][2:]))
    torch.save(runs, tmp_path / "runs.pt")
    done = subprocess.run(
        [sys.executable, "-c", LOADS, str(tmp_path / "model.pt2"), str(tmp_path / "runs.pt")],
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.stdout == "all good\n", done.stderr


def test_a_damaged_program_is_refused() -> None:
    with pytest.raises(
        UserError, match=r"exported: the text of the program is damaged \(.*; export it"
    ):
        torch.ops.fusewright.exported([X], "{}")


def test_functionalized_calls_are_recorded() -> None:
    torch.testing.assert_close(torch.func.functionalize(softmax)(X, Y), eager(X, Y))


@pytest.mark.parametrize(
    "make",
    [
        lambda: rand(4, 6),
        lambda: rand(4, 6).t(),
        lambda: rand(2, 3, 4, 5).to(memory_format=torch.channels_last),
        lambda: rand(3, 4, 5).permute(2, 0, 1),
        lambda: rand(1, 6).expand(4, 6),
        lambda: rand(0, 6),
        lambda: torch.tensor(0.5),
    ],
)
def test_fake_results_have_the_types_of_real_ones(make: Any) -> None:
    for f in (identity, fw.fuse(lambda x: x * 2 + 1)):
        x = make()
        real = f(x)
        with FakeTensorMode(allow_non_fake_inputs=True) as mode:
            fake = f(mode.from_tensor(x))
        assert (fake.shape, fake.stride(), fake.dtype) == (real.shape, real.stride(), real.dtype)
        assert real.stride() == (x * 2 + 1).stride()


def test_registered_operators_keep_torchs_rules() -> None:
    twice = door.custom_op(fw.fuse(lambda x: (x, x), device="sim"), "fusewright_tests::twice")
    for x in (X, X.t()):
        torch.library.opcheck(torch.ops.fusewright_tests.twice.default, ([x],))
    a, b = twice(X)
    assert len({t.data_ptr() for t in (a, b, X)}) == 3


# --- refusals -----------------------------------------------------------------------------------


def test_refuses_to_record_out() -> None:
    with FakeTensorMode() as mode, pytest.raises(UserError, match=r"out= writes to an array that"):
        softmax(mode.from_tensor(X), mode.from_tensor(Y), out=mode.from_tensor(X))


def test_a_call_with_gradients_is_recorded_as_its_forward_pass() -> None:
    x = X.clone().requires_grad_()
    graph = make_fx(lambda x, y: softmax(x, y))(x, Y)
    assert sum("forward" in str(n.target) for n in graph.graph.nodes) == 1
    torch.testing.assert_close(graph(x, Y), softmax(X, Y))


def test_refuses_other_arrays_while_recording() -> None:
    with FakeTensorMode() as mode, pytest.raises(UserError, match=r"argument 1 is a ndarray among"):
        softmax(mode.from_tensor(X), np.ones(6, np.float32))


@pytest.mark.parametrize(
    "call",
    [
        lambda: torch.vmap(softmax, in_dims=(0, None))(X, Y),
        lambda: torch.func.grad(lambda x: softmax(x, Y).sum())(X),
        lambda: torch.func.jvp(lambda x: softmax(x, Y), (X,), (X,)),
    ],
)
def test_refuses_transforms(call: Any) -> None:
    with pytest.raises(UserError, match=r"inside of a transform \(torch\.func\.vmap, grad"):
        call()


def test_negative_views_are_resolved() -> None:
    for f in (identity, fw.fuse(lambda x: x * 1)):
        torch.testing.assert_close(f(torch._neg_view(X)), -X)
