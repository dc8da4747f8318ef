"""Programs with products on a device: the corpus against the oracle, and bit by bit again."""

from __future__ import annotations

import numpy as np
import pytest
from product_programs import CASES, Case, assert_right

import fusewright as fw


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_corpus_agrees_with_the_oracle(case: Case) -> None:
    fusion = case.fusion()
    program = fw.compile(fusion)
    for seed in range(2):
        arrays = case.arrays(seed)
        assert_right(case, program.run_cuda(*arrays), fw.evaluate(fusion, *arrays))


@pytest.mark.parametrize(
    "shape", [(4097, 4104, 4104), (1000, 1000, 1000), (2048, 2048, 512)], ids=str
)
def test_results_repeat_bit_by_bit(shape: tuple[int, int, int]) -> None:
    """Edges of every kind, and blocks of several tiles."""
    m, n, k = shape
    specs = (fw.TensorSpec((m, k), "bfloat16"), fw.TensorSpec((n, k), "bfloat16"))
    program = fw.compile(fw.trace(lambda a, b: fw.nn.relu(fw.matmul(a, b.T)), *specs))
    rng = np.random.default_rng(0)
    a, b = (
        rng.standard_normal(s, dtype=np.float32).astype(fw.bfloat16.numpy) for s in ((m, k), (n, k))
    )
    (first,) = program.run_cuda(a, b)
    wanted = np.maximum(a.astype(np.float32) @ b.astype(np.float32).T, 0)
    error = np.abs(first.astype(np.float32) - wanted).max()
    assert error <= 2**-7 * wanted.max()
    for _ in range(10):
        (again,) = program.run_cuda(a, b)
        assert again.tobytes() == first.tobytes()
