"""Elementwise work on a reshaped product stays in the product's kernel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fusewright as fw
from fusewright.forms import prepare
from fusewright.fusion.evaluate import evaluate
from fusewright.fusion.ir import MatMul, Pointwise, Reshape
from fusewright.fusion.passes.sink_reshapes import sink_reshapes
from fusewright.target import target_of

S = fw.TensorSpec
TARGET = target_of("sm_90a")
X, W, BIAS = S((4, 96, 256), "bfloat16"), S((256, 512), "bfloat16"), S((512,), "bfloat16")
RESULT = S((4, 96, 512), "bfloat16")


def product(x: Any, w: Any) -> Any:
    b, s, k = x.shape
    return fw.reshape(fw.reshape(x, (b * s, k)) @ w, (b, s, w.shape[1]))


PROGRAMS: dict[str, tuple[Callable[..., Any], list[fw.TensorSpec]]] = {
    "bias and gelu": (lambda x, w, b: fw.nn.gelu(product(x, w) + b), [X, W, BIAS]),
    "residual": (lambda x, w, r: product(x, w) * 2 + r, [X, W, RESULT]),
    "of one reshaped again": (
        lambda x, w, r: fw.reshape(product(x, w) + r, (4 * 96 * 2, 256)) * 3,
        [X, W, RESULT],
    ),
    "two results": (lambda x, w, b: ((h := product(x, w) + b), fw.nn.relu(h)), [X, W, BIAS]),
    "a column": (lambda x, w, c: product(x, w) * c, [X, W, S((4, 96, 1), "bfloat16")]),
    "a row of an axis of one": (
        lambda x, w, c: product(x, w) * c,
        [S((1, 384, 256), "bfloat16"), W, S((1, 1, 512), "bfloat16")],
    ),
}


@pytest.mark.parametrize(("fn", "specs"), PROGRAMS.values(), ids=PROGRAMS)
def test_one_kernel(fn: Callable[..., Any], specs: list[fw.TensorSpec]) -> None:
    fusion = fw.trace(fn, *specs)
    program = fw.compile(fusion)
    assert program.host.stats["launches"] == 1 and program.host.stats["copies"] == 0
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(s.shape).astype(s.dtype.numpy) for s in specs]
    made = program.simulate(*arrays, check_races=True)
    assert not made.races
    for a, b in zip(made.outputs, fw.evaluate(fusion, *arrays), strict=True):
        np.testing.assert_allclose(
            np.asarray(a, np.float64), np.asarray(b, np.float64), rtol=2e-2, atol=0.3
        )


@pytest.mark.parametrize(("fn", "specs"), PROGRAMS.values(), ids=PROGRAMS)
def test_the_same_values(fn: Callable[..., Any], specs: list[fw.TensorSpec]) -> None:
    wide = [S(s.shape, "float64") for s in specs]
    fusion = fw.trace(fn, *wide)
    rng = np.random.default_rng(1)
    arrays = [rng.standard_normal(s.shape) for s in wide]
    flat = sink_reshapes(fusion, lambda t: True)
    assert flat is not fusion
    for a, b in zip(evaluate(flat, *arrays), evaluate(fusion, *arrays), strict=True):
        np.testing.assert_array_equal(a, b)


def test_what_is_left_alone() -> None:
    def count(fusion: fw.Fusion) -> int:
        """Elementwise values behind a reshape of a product."""
        products = {t for t in fusion.values if isinstance(t.op, MatMul)}
        reshaped = {
            t for t in fusion.values if isinstance(t.op, Reshape) and t.op.operands[0] in products
        }
        return sum(
            isinstance(t.op, Pointwise) and any(o in reshaped for o in t.op.operands)
            for t in fusion.values
        )

    fn, _ = PROGRAMS["residual"]
    specs = [X, W, RESULT]
    assert count(fw.trace(fn, *specs)) == 1 and count(prepare(fw.trace(fn, *specs), TARGET)) == 0
    rows = fw.Sym("n")
    symbolic = fw.trace(
        lambda x, w: fw.reshape(x @ w, (rows, 2, 256)) * 2, S((rows, 256), "bfloat16"), W
    )
    assert count(prepare(symbolic, TARGET)) == 1


def test_sums_of_products_keep_their_axes() -> None:
    fn, _ = PROGRAMS["bias and gelu"]
    fusion = fw.trace(fn, *(S(s.shape, "float64") for s in (X, W, BIAS)))
    assert fw.compile(fusion).host.stats["launches"] >= 1
    assert not any(isinstance(t.op, MatMul) for t in prepare(fusion, TARGET).values)
