"""Text that parses back, and the spec that parsed and rewritten fusions must meet."""

from __future__ import annotations

import numpy as np
import pytest
from fusion_cases import assert_same

from fusewright import dtypes
from fusewright.core.expr import Var, as_expr
from fusewright.errors import SpecError
from fusewright.fusion import ir, ops as fw
from fusewright.fusion.array import Array
from fusewright.fusion.evaluate import evaluate
from fusewright.fusion.ir import Fusion, Sym, Tensor, TensorSpec
from fusewright.fusion.spec import check
from fusewright.fusion.text import parse_expression, parse_fusion
from fusewright.fusion.trace import trace


def every_op(x: Array, i: Array) -> tuple[Array, ...]:
    return (
        fw.cumulative_sum(fw.concat([x, fw.flip(x)]), axis=0),
        fw.pad(x, ((1, 0), (0, -2)), constant_values=float("-inf")),
        fw.where(fw.isnan(x), float("nan"), fw.take(x, i, axis=0)),
        fw.take_along_axis(x, fw.expand_dims(i, 1), axis=0),
        x @ fw.matrix_transpose(x),
        fw.reshape(fw.mean(x, axis=0), (2, 2)),
        fw.arange(1, x.shape[0]),
        fw.full_like(x, True, dtype="bool"),
    )


def test_every_op_survives_the_round_trip():
    n = Sym("n", min=4, max=1024, multiple_of=2)
    fusion = trace(every_op, TensorSpec((n, 4), "float32"), TensorSpec((n,), "int32"))
    assert len({type(op) for op in fusion.ops}) == 16
    text = str(fusion)
    again = parse_fusion(text)
    assert str(again) == text
    assert again.symbols[0].multiple_of == 2 and again.symbols[0].interval == (4, 1024)
    rng = np.random.default_rng(0)
    x, i = rng.normal(size=(6, 4)).astype(np.float32), rng.integers(-6, 6, 6).astype(np.int32)
    for a, b in zip(evaluate(fusion, x, i), evaluate(again, x, i), strict=True):
        assert_same(a, b)


def test_hand_written_text_runs():
    fusion = parse_fusion(
        """
        size n: min=2, max=None, multiple_of=1
        x: float32[n, 3] = Input(strides=(3, 1), alignment=4)

        s: float32[n] = Reduce(x, fn='add', axes=(1,))
        r: float32[n] = IndexMap(s, coordinates=(i0,), index=(n - i0 - 1,))
        return r, x
        """
    )
    x = np.arange(12, dtype=np.float32).reshape(4, 3)
    assert_same(evaluate(fusion, x)[0], x.sum(1)[::-1])


HEAD = "x: float32[4] = Input(strides=(1,), alignment=4)\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("what is this\nreturn x", r"line 1: 'what is this': expected 'size <name>: ...'"),
        (HEAD, r"the text ends without a return line"),
        (HEAD + "return y", r"line 2: .*no value 'y' is defined above"),
        (HEAD + "return x\nreturn x", r"line 3: .*nothing may follow the return line"),
        (HEAD + HEAD + "return x", r"line 2: .*the value x is defined twice"),
        (
            HEAD + "y: float32[4] = Fold(x)\nreturn y",
            r"line 2: .*Fold is not an op; the ops are Inp",
        ),
        (HEAD + "y: float32[4] = 3\nreturn y", r"line 2: .*must be a call of an op"),
        (
            HEAD + "y: floaty[4] = Reshape(x)\nreturn y",
            r"line 2: .*dtype 'floaty' is not supported",
        ),
        (HEAD + "y: float32[m] = Reshape(x)\nreturn y", r"line 2: .*no size 'm' is declared above"),
        (
            HEAD + "y: float32[4**2] = Reshape(x)\nreturn y",
            r"'4 \*\* 2' is not an integer expression",
        ),
        (HEAD + "y: float32[4] = Scan(x, fn=f(), axis=0)\nreturn y", r"'f\(\)' is not a literal"),
        (HEAD + "y: float32[4] = Scan(x, fn='add')\nreturn y", r"line 2: .*axis"),
        (HEAD + "y: float32[4] = Reshape(x\nreturn y", r"line 2: "),
        (
            HEAD + "y: float32[3] = Resize(x, low=0, high=(-1,), fill=0.0)\nreturn y",
            r"'0' is not a tuple of int",
        ),
        (
            HEAD + "y: float32[4] = Scan(x, fn='add', axis='a')\nreturn y",
            r"axis='a' must be of type int",
        ),
        ("size n: 2\nreturn n", r"line 1: .*expected bounds as in 'min=2, max=None"),
        ("size n: min=2\nsize n: min=2\nreturn n", r"line 2: .*the size n is declared twice"),
        ("size n: min=1\nreturn n", r"line 1: .*a symbolic size is at least 2"),
    ],
)
def test_text_rejections(text: str, message: str):
    with pytest.raises(SpecError, match=message):
        parse_fusion(text)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "float32[5] = Pointwise(x, fn='exp')",
            r"y: float32\[5\] = Pointwise: operand x: .*broadca",
        ),
        ("float32[4] = Pointwise(x, fn='zap')", r"there is no function 'zap'"),
        ("float32[4] = Pointwise(x, fn='add')", r"1 operands instead of 2"),
        ("float32[4] = Pointwise(x, i, fn='add')", r"must have one dtype; cast explicitly"),
        ("bool[4] = Pointwise(x, x, fn='add')", r"its dtype must be float32"),
        ("float32[4] = Pointwise(x, x, fn='lt')", r"its dtype must be bool"),
        ("float32[4] = Pointwise(x, x, x, fn='where')", r"the condition x: .* must be bool"),
        ("float32[3] = Resize(x, low=(0,), high=(0,), fill=0.0)", r"its shape must be \(4,\)"),
        ("float32[3] = Reshape(x)", r"it must have the 4 elements of x"),
        ("float32[4] = Permute(x, axes=(1,))", r"axes \(1,\) are not a permutation of 1 axes"),
        (
            "float32[4, 2] = Broadcast(x, axes=(None, 0))",
            r"axis 1 of size 2 reads axis 0 of size 4",
        ),
        ("float32[4] = Broadcast(x, axes=(None,))", r"must name every operand axis once"),
        ("float32[] = Reduce(x, fn='sub', axes=(0,))", r"a reduction is one of add, mul, max"),
        ("float32[] = Reduce(x, fn='and', axes=(0,))", r"and reduces bool, not float32"),
        ("float32[4] = Reduce(x, fn='add', axes=())", r"sorted, distinct and not empty"),
        ("float32[] = Reduce(x, fn='add', axes=(1,))", r"axis 1 is outside rank 1"),
        ("float32[4] = Scan(x, fn='or', axis=0)", r"a scan is one of add, mul, max, min"),
        ("float32[4] = Sort(x, axis=0)", r"what is sorted are uint32 or uint64"),
        ("float32[4] = Sort(x, axis=1)", r"axis 1 is outside rank 1"),
        ("uint64[4] = Pointwise(x, fn='bitcast')", r"the bits of x: .* are no uint64"),
        ("float32[9] = Concat(x, x, axis=0)", r"its shape must be \(8,\)"),
        ("float32[8] = Concat(x, i, axis=0)", r"operand i: .* must have its rank and dtype"),
        (
            "float32[4] = Take(x, i, axis=0, mode='clip')",
            r"the mode 'clip' is not one of promise, raise, fill",
        ),
        ("float32[4] = Take(x, x, axis=0)", r"the indices x: .* must be integers"),
        ("float32[4] = MatMul(x, x)", r"need one dtype and one rank of at least 2"),
        ("float32[4] = Iota(axis=0)", r"coordinates are integers"),
        ("float32[4] = Constant(value=1.0)", r"its shape must be \(\)"),
        ("float32[] = Size(expr=4)", r"a size is an integer"),
        (
            "float32[4] = IndexMap(x, coordinates=(i0,), index=(i0 + 4,))",
            r"index i0 \+ 4 is never inside size 4",
        ),
        (
            "float32[4] = IndexMap(x, coordinates=(i0,), index=())",
            r"1 coordinates and 0 indices do not fit",
        ),
        ("float32[0] = Concat(axis=0)", r"it needs an operand"),
        ("float32[4] = Input(strides=(4, 1), alignment=4)", r"2 strides for rank 1"),
    ],
)
def test_value_rejections(line: str, message: str):
    index = "i: int32[4] = Input(strides=(1,), alignment=4)\n"
    with pytest.raises(SpecError, match=message):
        parse_fusion(f"{HEAD}{index}y: {line}\nreturn y")


def test_operands_of_a_concat_agree_in_the_other_axes():
    text = """
    x: int8[2, 3] = Input(strides=(3, 1), alignment=1)
    y: int8[2, 4] = Input(strides=(4, 1), alignment=1)
    z: int8[4, 3] = Concat(x, y, axis=0)
    return z
    """
    with pytest.raises(SpecError, match=r"operand y: int8\[2, 4\] differs in axis 1"):
        parse_fusion(text)


def test_program_rejections():
    x = Tensor("x", (as_expr(4),), dtypes.float32, ir.Input((), 0, (as_expr(1),), 4))
    y = Tensor("y", x.shape, x.dtype, ir.Pointwise((x,), "neg"))
    unnamed = Tensor("", x.shape, x.dtype, ir.Pointwise((x,), "neg"))
    loose = Tensor("z", (Var("m", 2),), dtypes.int64, ir.Iota((), 0))
    first, second = (
        Tensor(n, (Sym("m"),), dtypes.int8, ir.Input((), k, (as_expr(1),), 1))
        for k, n in enumerate("ab")
    )
    i0 = Var("i0", 0, 7)
    far = Tensor("far", x.shape, x.dtype, ir.IndexMap((x,), (i0,), (i0,)))
    twin = Tensor("x", x.shape, x.dtype, ir.Pointwise((x,), "neg"))
    for fusion, message in (
        (Fusion((first, second), (first,), (first, second)), "two sizes are called m"),
        (Fusion((x,), (y,), (y, x)), "operand x is not defined above it"),
        (Fusion((x,), (y,), (x,)), "not among the fusion's values"),
        (Fusion((x,), (unnamed,), (x, unnamed)), "the value has no name"),
        (Fusion((x,), (twin,), (x, twin)), "another value has this name"),
        (Fusion((x,), (far,), (x, far)), "coordinate i0 must go to 3"),
        (Fusion((), (y,), (x, y)), "are not the Input ops"),
        (
            Fusion((x,), (loose,), (x, loose)),
            "m is neither the size of any input's axis nor a coordinate",
        ),
    ):
        with pytest.raises(SpecError, match=message):
            check(fusion)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("float32[4] = Pointwise(x, 'exp')", r"line 2: .*after its operands an op has fields"),
        (
            "float32[2, 2] = Parts(x, axes=(0,), partition=(4, 2, 2), fill=0.0)",
            r"'\(4, 2, 2\)' is no Partition\(size=\.\., count=\.\., each=\.\.\)",
        ),
        (
            "float32[2, 1] = Parts(x, axes=(0,), partition=Partition(size=4, count=2, each=1), "
            "fill=0.0)",
            r"line 2: .*2 parts of 1 hold fewer elements",
        ),
        (
            "float32[0, 1] = Parts(x, axes=(0,), partition=Partition(size=4, count=0, each=1), "
            "fill=0.0)",
            r"line 2: .*a partition has elements, parts and places in them",
        ),
    ],
)
def test_fields_are_read_with_their_rules(line: str, message: str):
    with pytest.raises(SpecError, match=message):
        parse_fusion(f"{HEAD}y: {line}\nreturn y")


@pytest.mark.parametrize("text", ["1 +", "n $", "'a'", "n and n", ""])
def test_rejects_texts_that_are_no_integer_expressions(text: str):
    with pytest.raises(SpecError, match="is not an integer expression"):
        parse_expression(text, {"n": Var("n", 1)})
