"""Every result of a kernel is stored by all of its threads, whatever the results have in common."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fusewright as fw
from fusewright.fusion.text import parse_fusion
from fusewright.schedule.heuristics import pointwise

COPIES = """\
x0: bfloat16[96, 256] = Input(strides=(256, 1), alignment=16)
t0: bfloat16[96, 256] = Pointwise(x0, fn='copy')
t1: bfloat16[96, 256] = Pointwise(x0, fn='copy')
t2: bfloat16[96, 256] = Pointwise(x0, fn='copy')
return t0, t1, t2
"""


def biased(x: Any, table: Any) -> Any:
    """A softmax with a bias by distance, which is returned, too, and a mask by rows: the coordinate
    of rows and columns is one value."""
    n = x.shape[-1]
    at = fw.arange(n)
    rows = at[:, None]
    bias = fw.take(table, fw.astype(fw.abs(at[None, :] - rows), "int32") % 8, axis=0)
    biased_x = x + fw.permute_dims(bias, (2, 0, 1))
    return bias, fw.nn.softmax(fw.where(rows >= 0, biased_x, 0.0), axis=-1)


def assert_shared_out(fusion: fw.Fusion) -> None:
    program = fw.compile(fusion)
    rng = np.random.default_rng(0)
    given = [
        rng.normal(size=[int(str(e)) for e in t.shape]).astype(t.dtype.numpy) for t in fusion.inputs
    ]
    result = program.simulate(*given)
    assert result.races == []
    for got, want in zip(result.outputs, fw.evaluate(fusion, *given), strict=True):
        np.testing.assert_allclose(
            got.astype(np.float64), want.astype(np.float64), rtol=1e-5, atol=1e-5
        )
    (kernel,) = program.kernels
    stores = [line for line in str(kernel.schedule).splitlines() if ": global" in line]
    assert len(stores) == len(fusion.outputs)
    assert not any("Serial" in line for line in stores)


def test_copies_of_one_argument() -> None:
    assert_shared_out(parse_fusion(COPIES))


def test_a_coordinate_of_rows_and_of_columns() -> None:
    x, table = (2, 4, 64, 64), (8, 4)
    assert_shared_out(fw.trace(biased, *(fw.TensorSpec(s, "float32") for s in (x, table))))


@pytest.mark.refuses
def test_what_few_threads_would_store_is_cut(
    monkeypatch: pytest.MonkeyPatch, refused: list[str]
) -> None:
    """Without the register copy that ties them, copies have no loops in common."""
    monkeypatch.setattr(pointwise, "cache_inputs", lambda _: [])
    program = fw.compile(parse_fusion(COPIES))
    assert len(program.kernels) == 1  # of one copy, launched for each
    assert refused
    assert any("few of the kernel's threads" in r.rule for r in program.reasons)
