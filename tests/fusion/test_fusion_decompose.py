"""Products as sums: same values, and nothing left to do."""

from __future__ import annotations

import numpy as np
import pytest
from fusion_cases import assert_same

from fusewright.fusion import ops as fw
from fusewright.fusion.evaluate import evaluate
from fusewright.fusion.ir import Fusion, MatMul, TensorSpec
from fusewright.fusion.passes.decompose import decompose
from fusewright.fusion.spec import check
from fusewright.fusion.text import parse_fusion
from fusewright.fusion.trace import trace


def decomposed(fusion: Fusion) -> Fusion:
    out = decompose(fusion)
    check(out)
    assert str(parse_fusion(str(out))) == str(out)
    assert not any(isinstance(op, MatMul) for op in out.ops)
    assert decompose(out) is out
    return out


def test_unchanged_in_is_the_same_object_out():
    fusion = trace(lambda x: fw.cumulative_sum(fw.exp(x), axis=1), TensorSpec((100, 64), "float32"))
    assert decompose(fusion) is fusion


@pytest.mark.parametrize("shapes", [((3, 4), (4, 5)), ((2, 3, 4), (2, 4, 1)), ((1, 7), (7, 2))])
def test_products(shapes: tuple[tuple[int, ...], tuple[int, ...]]):
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-5, 5, s).astype(np.float32) for s in shapes)
    fusion = trace(lambda x, y: x @ y + 1, *(TensorSpec(s, "float32") for s in shapes))
    assert_same(evaluate(decomposed(fusion), a, b)[0], a @ b + 1)


def test_products_of_symbolic_sizes_keep_their_names():
    fusion = trace(lambda x: x @ x.T, TensorSpec(("n", "m"), "bfloat16"))
    out = decomposed(fusion)
    assert out.outputs[0].name == fusion.outputs[0].name
    assert out.inputs == fusion.inputs
