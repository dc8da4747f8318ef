"""Products as sums, long scans as scans of blocks: same values, and nothing left to do."""

from __future__ import annotations

import numpy as np
import pytest
from fusion_cases import assert_same

from fusewright.fusion import ops as fw
from fusewright.fusion.evaluate import evaluate
from fusewright.fusion.ir import Fusion, MatMul, Scan, Sym, TensorSpec
from fusewright.fusion.passes.decompose import LONGEST, decompose
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


def scan_extents(fusion: Fusion) -> list[str]:
    return [str(t.shape[t.op.axis]) for t in fusion.values if isinstance(t.op, Scan)]


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


@pytest.mark.parametrize("n", [65, 96, 100, 2048, 2049])
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("fn", [fw.cumulative_sum, fw.cumulative_prod])
def test_long_scans(fn: object, axis: int, n: int):
    shape = (n, 2) if axis == 0 else (2, n)
    x = np.random.default_rng(n).integers(-9, 9, shape)
    fusion = trace(lambda a: fn(a, axis=axis), TensorSpec(shape, "int64"))
    out = decomposed(fusion)
    assert_same(evaluate(out, x)[0], evaluate(fusion, x)[0])
    assert all(int(extent) <= LONGEST for extent in scan_extents(out))


def test_scans_keep_the_sign_of_zero_and_nan():
    x = np.full(70, -0.0)
    x[66:] = [np.nan, 1, np.inf, -np.inf]
    fusion = trace(lambda a: fw.cumulative_sum(a), TensorSpec((70,), "float64"))
    assert_same(evaluate(decomposed(fusion), x)[0], np.cumsum(x))


@pytest.mark.parametrize(
    ("size", "lengths"),
    [
        (Sym("n", max=64), ["n"]),
        (Sym("n", max=2048), ["32", "(n + 31)//32"]),
        (Sym("n"), None),
    ],
)
def test_scans_of_symbolic_sizes(size: Sym, lengths: list[str] | None):
    fusion = trace(lambda a: fw.cumulative_sum(a), TensorSpec((size,), "int64"))
    out = decomposed_once(fusion)
    if lengths is None:
        assert len(scan_extents(out)) == 3
    else:
        assert scan_extents(out) == lengths
    for n in (2, 31, 33, 64):
        x = np.arange(n)
        assert_same(evaluate(out, x)[0], np.cumsum(x))


def decomposed_once(fusion: Fusion) -> Fusion:
    """Without asking for a fixed point: an unbounded size leaves a scan of unknown length."""
    out = decompose(fusion)
    check(out)
    return out
