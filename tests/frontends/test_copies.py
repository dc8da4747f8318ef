"""Copies and pickles of functions, programs, kernels and fusions; functions inside of functions;
structures without an end."""

from __future__ import annotations

import copy
import pickle
from copyreg import dispatch_table
from typing import Any

import numpy as np
import pytest

import fusewright as fw
from fusewright.errors import UserError
from fusewright.fusion import trees
from fusewright.fusion.printing import print_fusion
from fusewright.programs.simulation import witnesses
from fusewright.runtime import builds

X = np.random.default_rng(0).normal(size=(6, 40)).astype(np.float32)


@fw.fuse(device="sim")
def softmax(x: Any) -> Any:
    e = fw.exp(x - fw.max(x, axis=-1, keepdims=True))
    return e / fw.sum(e, axis=-1, keepdims=True)


def scaled(x: Any, by: float = 2.0) -> Any:
    return x * by


class Model:
    def __init__(self, scale: float) -> None:
        self.scale = scale
        self.run = fw.fuse(self.scaled, device="sim", dynamic=True)
        self.softmax = softmax

    def scaled(self, x: Any) -> Any:
        return x * self.scale


def program(rows: int | str = 6) -> fw.Program:
    # three launches, one with a parameter, so that records hold sites and values
    def f(x: Any) -> Any:
        y = softmax(x) * 0.3
        return fw.concat([y, fw.flip(y, axis=1)], axis=0), fw.sum(y, axis=0)

    return fw.compile(fw.trace(f, fw.TensorSpec((rows, 40), "float32")))


COPIES = [copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))]
IDS = ["copy", "deepcopy", "pickle"]


# --- functions ----------------------------------------------------------------------------------


@pytest.mark.parametrize("copied", COPIES[:2], ids=IDS[:2])
def test_copies_of_a_function_share_its_programs_and_grow_apart(copied: Any):
    f = fw.fuse(scaled, device="sim")
    f(X)
    g = copied(f)
    assert g is not f and g.program(X) is f.program(X)
    g(X[:2])
    assert len(g._programs) == 2 and len(f._programs) == 1


def test_the_copy_of_an_object_runs_its_own_method():
    model = Model(3.0)
    model.run(X)
    twin = copy.deepcopy(model)
    twin.scale = 5.0
    np.testing.assert_allclose(twin.run(X), 5 * X, rtol=1e-6)
    np.testing.assert_allclose(model.run(X), 3 * X, rtol=1e-6)


def test_pickles_of_functions_keep_their_options():
    f = fw.fuse(scaled, device="sim", target="sm_80", dynamic={"x": (0,)}, donate=("x",))
    g = pickle.loads(pickle.dumps(f))
    assert g.fn is scaled and g._options() == f._options()
    np.testing.assert_array_equal(g(X), 2 * X)


def test_a_decorated_function_is_pickled_by_its_name():
    assert pickle.loads(pickle.dumps(softmax)) is softmax
    model = pickle.loads(pickle.dumps(Model(4.0)))
    np.testing.assert_allclose(model.run(X), 4 * X, rtol=1e-6)


def test_what_has_no_name_is_not_pickled():
    with pytest.raises((pickle.PicklingError, AttributeError), match="lambda"):
        pickle.dumps(fw.fuse(lambda x: x * 2))


# --- programs, kernels, fusions -----------------------------------------------------------------


@pytest.mark.parametrize("rows", [6, "n"])
@pytest.mark.parametrize("copied", COPIES, ids=IDS)
def test_copies_of_programs_compute_the_same(copied: Any, rows: int | str):
    p = program(rows)
    q = copied(p)
    assert [str(k.ir) for k in q.kernels] == [str(k.ir) for k in p.kernels]
    assert str(q.host) == str(p.host)
    for a, b in zip(q.simulate(X).outputs, p.simulate(X).outputs, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("rows", [6, "n"])
@pytest.mark.parametrize("copied", COPIES, ids=IDS)
def test_copies_of_kernels_compute_the_same(copied: Any, rows: int | str):
    for kernel, arrays, sizes in witnesses(program(rows), (X,)):
        twin = copied(kernel)
        assert str(twin.ir) == str(kernel.ir)
        assert (twin.inputs, twin.outputs) == (kernel.inputs, kernel.outputs) or copied is COPIES[2]
        assert twin.argument_values == kernel.argument_values
        if set(kernel.symbol_values(arrays, sizes)) == set(kernel.ir.symbols):
            made = twin.simulate(*arrays).outputs
            for a, b in zip(made, kernel.simulate(*arrays).outputs, strict=True):
                np.testing.assert_array_equal(a, b)


def test_copies_share_machine_code_and_pickles_carry_it(monkeypatch: pytest.MonkeyPatch):
    p = program()
    without = pickle.dumps(p)
    code = [k.cubin() for k in p.kernels]
    assert len(pickle.dumps(p)) > len(without)

    def no_compiler(*args: Any, **options: Any) -> Any:
        raise AssertionError("compiled again")

    monkeypatch.setattr(builds, "compile_cubin", no_compiler)
    for copied in COPIES:
        assert [k.cubin() for k in copied(p).kernels] == code
        assert [copied(k).cubin() for k in p.kernels] == code
    assert copy.deepcopy(p).kernels == p.kernels


@pytest.mark.parametrize("whole", [True, False], ids=["program", "kernel"])
def test_pickles_are_checked_on_loading(whole: bool):
    p = program()
    made, (content,) = p.__reduce__() if whole else dispatch_table[fw.Kernel](p.kernels[0])
    for k in range(0, len(content), 97):
        damaged = content[:k] + bytes([content[k] ^ 4]) + content[k + 1 :]
        try:
            made(damaged)
        except UserError:
            continue
    with pytest.raises(UserError, match="is not a saved program or is damaged"):
        made(content[: len(content) // 2])


@pytest.mark.parametrize("copied", COPIES[1:], ids=IDS[1:])
def test_fusions_of_any_length_are_copied(copied: Any):
    def chain(x: Any) -> Any:
        for _ in range(3000):
            x = x + 1.5
        return x

    fusion = fw.trace(chain, fw.TensorSpec(("n",), "float32"))
    assert print_fusion(copied(fusion)) == print_fusion(fusion)


# --- functions inside of functions --------------------------------------------------------------


def test_a_fused_function_inside_of_another_is_inlined():
    @fw.fuse(device="sim")
    def outer(x: Any) -> Any:
        return softmax(x + 1) * 2, softmax(fw.ones((2, 4)))

    program = outer.program(X)
    twice, even = outer(X)
    want = np.exp(X - X.max(-1, keepdims=True))
    np.testing.assert_allclose(twice, 2 * want / want.sum(-1, keepdims=True), rtol=1e-5)
    np.testing.assert_allclose(even, 0.25)
    assert "exp" in print_fusion(program.fusion)
    assert fw.trace(softmax, fw.TensorSpec((4, 8), "float32")).inputs[0].name == "x"


def test_known_data_are_arguments_and_not_inlined():
    found = softmax(fw.asarray(X))
    np.testing.assert_allclose(np.asarray(found), softmax(X), rtol=1e-6)
    assert not isinstance(found, type(fw.asarray(X)))


def test_memory_for_the_result_of_an_inlined_function_is_refused():
    with pytest.raises(UserError, match=r"softmax: out= inside of a traced function"):
        fw.trace(lambda x: softmax(x, out=X), fw.TensorSpec((6, 40), "float32"))


# --- structures without an end ------------------------------------------------------------------


def nested(depth: int, kind: Any) -> Any:
    x: Any = X
    for _ in range(depth):
        x = kind(x)
    return x


def first(x: Any) -> Any:
    while not hasattr(x, "shape"):
        x = x["a"] if isinstance(x, dict) else x[0]
    return x + 1


KINDS = [lambda x: [x], lambda x: (x,), lambda x: {"a": x}]


@pytest.mark.parametrize("kind", KINDS)
def test_structures_are_as_deep_as_the_limit(kind: Any):
    f = fw.fuse(first, device="sim")
    deepest = trees.MAX_DEPTH - 2  # below the arguments, and the arguments beside the keywords
    np.testing.assert_array_equal(f(nested(deepest, kind)), X + 1)
    for depth in (deepest + 1, 1_000, 50_000):
        with pytest.raises(UserError, match="a structure of more than 100 levels of tuples, lists"):
            f(nested(depth, kind))


def test_structures_that_contain_themselves_are_refused():
    cyclic: list[Any] = [X]
    cyclic += [cyclic, cyclic]
    table: dict[str, Any] = {"a": X}
    table["b"] = (table,)
    for x in (cyclic, table):
        with pytest.raises(UserError, match=r"a (list|dict) contains itself"):
            fw.fuse(first, device="sim")(x)
    with pytest.raises(UserError, match="a list contains itself"):
        fw.trace(lambda x: cyclic, fw.TensorSpec((2,), "float32"))
    assert trees.flatten((same := [X], same))[0] == [X, X]  # twice is no cycle
