"""Tracing: structures, names, symbolic sizes, and what cannot be traced."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest

from fusewright.errors import UserError
from fusewright.fusion import ops as fw, trees
from fusewright.fusion.array import Array
from fusewright.fusion.evaluate import evaluate
from fusewright.fusion.ir import Sym, TensorSpec
from fusewright.fusion.spec import check
from fusewright.fusion.trace import name, trace, trace_call

F = TensorSpec((2, 3), "float32")


def test_str_names_every_tensor():
    def softmax(x: Array) -> Array:
        e = name(fw.exp(x - fw.max(x, axis=-1, keepdims=True)), "h")
        return e / fw.sum(e, axis=-1, keepdims=True)

    fusion = trace(softmax, TensorSpec(("n", 3), "float32"))
    text = str(fusion)
    assert text.splitlines()[:3] == [
        "size n: min=2, max=None, multiple_of=1",
        "x: float32[n, 3] = Input(strides=(3, 1), alignment=16)",
        "t0: float32[n] = Reduce(x, fn='max', axes=(1,))",
    ]
    assert "h: float32[n, 3] = Pointwise(t3, fn='exp')" in text
    assert all(f"\n{t.name}: " in "\n" + text for t in fusion.values)
    assert text.endswith(f"return {fusion.outputs[0].name}")


def test_trace_never_simplifies():
    fusion = trace(lambda x: ((x + 0) * 1)[:], F)
    assert [t.op.fn for t in fusion.values if hasattr(t.op, "fn")] == ["add", "mul"]


class Pair(NamedTuple):
    first: Any
    second: Any


def test_structures_of_arguments_and_results():
    def fn(x: Array, rest: dict[str, Any], scale: float, flag: None = None, *, k: int) -> Any:
        assert (scale, flag, k) == (0.5, None, 3)
        a, (b,) = rest["a"], rest["b"]
        return {"sum": x + a, "pair": Pair(b * scale, [x, None]), "k": k}

    call = trace_call(fn, F, {"a": F, "b": (F,)}, 0.5, k=3)
    check(call.fusion)
    assert [t.name for t in call.fusion.inputs] == ["x", "rest_a", "rest_b_0"]
    out = trees.unflatten(call.out_tree, ["s", "p", "q"])
    assert out == {"sum": "s", "pair": Pair("p", ["q", None]), "k": 3}
    assert type(out["pair"]) is Pair
    assert trees.count(call.in_tree) == 3
    assert call.in_tree == trace_call(fn, F, {"a": F, "b": (F,)}, 0.5, k=3).in_tree
    assert trees.flatten((1,))[1] != trees.flatten((True,))[1]


def test_keys_of_structures_tell_apart_what_python_takes_for_equal() -> None:
    def key(x: object) -> object:
        return trees.key(trees.flatten(x)[1])

    a, nan = np.zeros(3), float("nan")
    assert key((a, {"k": [1, nan]})) == key((a + 1, {"k": [1, float("nan")]}))
    different = [1, True, 1.0, "1", None, 0.0, -0.0, (), [], {}, (a,), [a], {"k": a}, {"j": a}, a]
    assert len({key(x) for x in different}) == len(different)


def test_keyword_arrays_keep_their_names_in_any_order():
    def fn(x: Array, *, scale: Array, bias: Array) -> Array:
        return x * scale + bias

    fusion = trace(fn, F, bias=TensorSpec((3,), "float32"), scale=TensorSpec((2, 1), "float32"))
    assert [(t.name, t.ndim) for t in fusion.inputs] == [("x", 2), ("bias", 1), ("scale", 2)]


def test_an_input_may_be_an_output_and_a_value_may_be_one_twice():
    fusion = trace(lambda x: (x, x + 1, x), F)
    x = np.ones((2, 3), np.float32)
    out = evaluate(fusion, x)
    assert fusion.outputs[0] is fusion.inputs[0] is fusion.outputs[2]
    np.testing.assert_array_equal(out[1], x + 1)


def test_an_unused_input_stays():
    fusion = trace(lambda x, y: x + 1, F, F)
    assert [t.name for t in fusion.inputs] == ["x", "y"]
    check(fusion)


def test_one_name_is_one_size():
    fusion = trace(lambda x, y: x + y, TensorSpec(("n",), "float32"), TensorSpec(("n",), "float32"))
    assert [str(v) for v in fusion.symbols] == ["n"]
    n = Sym("n", multiple_of=8)
    fusion = trace(lambda x, y: x + y, TensorSpec(("n",), "float32"), TensorSpec((n,), "float32"))
    assert fusion.symbols == (n,)


def test_symbolic_sizes_flow_through_operations():
    def fn(x: Array, y: Array) -> tuple[Array, ...]:
        rows, columns = x.shape
        flat = fw.reshape(x, (-1,))
        return fw.concat([flat, y]), fw.reshape(flat, (columns, rows)), fw.arange(rows), x @ x.T

    fusion = trace(fn, TensorSpec(("n", "m"), "float32"), TensorSpec(("n",), "float32"))
    shapes = ["m*n + n", "m, n", "n", "n, n"]
    assert [", ".join(map(str, t.shape)) for t in fusion.outputs] == shapes
    check(fusion)


def test_strides_and_alignment_reach_the_input():
    spec = TensorSpec((2, 3), "float32", strides=(8, 1), alignment=4)
    op = trace(lambda x: x + 1, spec).inputs[0].op
    assert (tuple(map(str, op.strides)), op.alignment) == (("8", "1"), 4)


# --- rejections ---------------------------------------------------------------------------------

N, M = TensorSpec(("n",), "float32"), TensorSpec(("m",), "float32")


def _twice(x: Array) -> Array:
    return name(x + 1, "h") + name(x + 2, "h")


def _unknown(x: Array) -> Array:
    raise AssertionError("never called")


@pytest.mark.parametrize(
    ("fn", "specs", "message"),
    [
        (
            lambda x, y: x * y,
            [N, M],
            r"multiply: axis 0 has sizes n and m .*give both axes one name",
        ),
        (
            lambda x, y: x + y,
            [N, TensorSpec((4,), "float32")],
            r"add: axis 0 has sizes n and 4 .*a symbolic size broadcasts with nothing",
        ),
        (lambda x: (x, 1, "no", object()), [F], r"result of <lambda>: expected an array, got obj"),
        (lambda x: x, [np.ones(3)], r"trace: argument x is ndarray .*give a fw.TensorSpec"),
        (lambda x: x, [F, F], r"trace: the specs do not fit the parameters of <lambda>"),
        (_twice, [F], r"two values are called 'h'; give each its own name"),
        (lambda x: name(x, "a b"), [F], r"name 'a b' is not an identifier"),
        (
            _unknown,
            [TensorSpec((Sym("n"), Sym("n")), "float32")],
            r"two different sizes are called 'n'; pass one Sym object",
        ),
        (
            _unknown,
            [TensorSpec(("i0",), "float32")],
            r"'i0': use an identifier that is .* not one of i0",
        ),
        (_unknown, [TensorSpec(("a b",), "float32")], r"size name 'a b': use an identifier"),
        (
            _unknown,
            [TensorSpec(("for",), "float32")],
            r"'for': use an identifier",
        ),
    ],
)
def test_rejections(fn: object, specs: list[object], message: str):
    with pytest.raises(UserError, match=message):
        trace(fn, *specs)


def test_an_array_of_another_trace_is_refused():
    kept: list[Array] = []
    trace(lambda x: kept.append(x) or x, F)
    with pytest.raises(UserError, match="not an argument of this trace: it was captured"):
        trace(lambda x: x + kept[0], F)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Sym("n", min=1), r"min=1\): a symbolic size is at least 2"),
        (lambda: Sym("n", min=8, max=4), r"max is below min"),
        (lambda: Sym("n", multiple_of=0), r"multiple_of=0\): must be at least 1"),
        (lambda: TensorSpec((-1,), "float32"), r"size -1 in shape \(-1,\) is negative"),
        (lambda: TensorSpec((2.0,), "float32"), r"size 2.0 in shape \(2.0,\) is no integer"),
        (lambda: TensorSpec((True,), "float32"), r"size True in shape \(True,\) is no integer"),
        (lambda: TensorSpec((np.int64(-3),), "float32"), r"size -3 in shape .* is negative"),
        (lambda: TensorSpec((2, 2), "float32", strides=(1,)), r"1 strides for a shape of rank 2"),
        (lambda: TensorSpec((1,) * 65, "float32"), r"TensorSpec: 65 axes; arrays have at most 64"),
        (
            lambda: TensorSpec((2, 2), "float32", strides=(2, -1)),
            r"strides \(2, -1\) hold a negative one; .* turn it with fw.flip",
        ),
        (lambda: TensorSpec((2,), "float32", alignment=12), r"alignment 12 is not a power of two"),
    ],
)
def test_spec_rejections(make: Any, message: str):
    with pytest.raises(UserError, match=message):
        make()


def test_the_most_axes_that_arrays_have():
    spec = TensorSpec((3,), "float32")
    assert trace(lambda x: x[(None,) * 63], spec).outputs[0].ndim == 64
    with pytest.raises(UserError, match="an array: 65 axes; arrays have at most 64, as numpy's"):
        trace(lambda x: x[(None,) * 64], spec)
    with pytest.raises(UserError, match="an array: 81 axes"):
        trace(lambda x: x.reshape((1,) * 80 + (3,)), spec)
