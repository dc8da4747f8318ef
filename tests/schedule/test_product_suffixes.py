"""What functions behind a product read of memory, they read once."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import fusewright as fw
from fusewright.core.node import walk
from fusewright.kir.ir import Load

BF16 = ml_dtypes.bfloat16


def gelu_backward(a: Any, b: Any, x: Any) -> Any:
    return fw.nn.gelu_backward(a @ b, x)


def gated(a: Any, b: Any, x: Any) -> Any:
    return (a @ b) * x + fw.exp(x * 0.1) * x


def on_an_operand(a: Any, b: Any, x: Any) -> Any:
    return (a @ b) * fw.exp(a * 0.1) + a * x


def stored_too(a: Any, b: Any, x: Any) -> Any:
    return (a @ b) * x + fw.exp(x), fw.copy(x)


CASES = {
    "gelu backward": (gelu_backward, (256, 128, 256)),
    "gated": (gated, (200, 72, 136)),
    "on an operand": (on_an_operand, (136, 128, 128)),
    "stored too": (stored_too, (128, 64, 128)),
}


def drawn(m: int, k: int, n: int) -> list[Any]:
    rng = np.random.default_rng()
    shapes = ((m, k), (k, n), (m, n))
    return [rng.normal(size=s).astype(BF16) for s in shapes]


@pytest.mark.parametrize("case", CASES)
def test_results_are_right(case: str) -> None:
    fn, sizes = CASES[case]
    arrays = drawn(*sizes)
    fusion = fw.trace(fn, *[fw.TensorSpec(a.shape, "bfloat16") for a in arrays])
    result = fw.compile(fusion).simulate(*arrays)
    assert result.races == []
    for made, wanted in zip(result.outputs, fw.evaluate(fusion, *arrays), strict=True):
        np.testing.assert_allclose(
            made.astype(np.float32), wanted.astype(np.float32), rtol=2e-2, atol=2e-1
        )


@pytest.mark.parametrize("case", ["gelu backward", "gated"])
def test_an_input_of_several_functions_is_read_once(case: str) -> None:
    fn, (m, k, n) = CASES[case]
    specs = [fw.TensorSpec(s, "bfloat16") for s in ((m, k), (k, n), (m, n))]
    (kernel,) = fw.compile(fw.trace(fn, *specs)).kernels
    assert kernel.heuristic is not None and kernel.heuristic.scheduler == "matmul"
    x = kernel.ir.arrays[2]
    loads = [s for s in walk(kernel.ir) if isinstance(s, Load) and s.src is x]
    places = [str(s.index) for s in loads]
    assert len(set(places)) == len(places), "an element is loaded twice"


def test_tables_that_heads_share_are_waited_for() -> None:
    """One kernel of 4096 cubed with rotated heads of 128 takes 209.0 us, two 198.0 (one H200)."""

    def turned(x: Any, w: Any, c: Any, s: Any) -> Any:
        q = fw.reshape(x @ w.T, (4096, 32, 128))
        half = fw.concat([-q[..., 64:], q[..., :64]], axis=-1)
        return q * fw.expand_dims(c, 1) + half * fw.expand_dims(s, 1)

    sides = (4096, 4096), (4096, 4096), (4096, 128), (4096, 128)
    program = fw.compile(fw.trace(turned, *(fw.TensorSpec(s, "bfloat16") for s in sides)))
    predicted = [k.predicted.us for k in program.kernels if k.predicted]
    assert len(program.kernels) == 2
    assert sum(predicted) == pytest.approx(198.0, rel=0.05)
