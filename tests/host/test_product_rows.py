"""Results of products whose rows no box holds, stored in longer rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

import numpy as np
import pytest

import fusewright as fw
from fusewright.dtypes import bfloat16
from fusewright.host import product_rows
from fusewright.host.product_rows import in_longer_rows
from fusewright.kir.ir import BoxStore
from fusewright.kir.traverse import walk_statements
from fusewright.target import target_of

S = fw.TensorSpec
TARGET = target_of("sm_90a")


def scores(x: Any, w: Any) -> Any:
    """Products of rows with rows."""
    return fw.matmul(x, fw.permute_dims(w, (*range(w.ndim - 2), w.ndim - 1, w.ndim - 2)))


PROGRAMS: dict[str, Callable[..., Any]] = {
    "result": scores,
    "function": lambda x, w: fw.nn.gelu(scores(x, w) * 0.5),
    "softmax": lambda x, w: fw.nn.softmax(scores(x, w) * 0.125),
}


@pytest.mark.parametrize(("name", "columns"), [("result", 77), ("function", 93), ("softmax", 77)])
def test_boxes_store_the_product_and_the_program_is_right(name: str, columns: int) -> None:
    shapes = (40, 130, 72), (40, columns, 72)
    fusion = fw.trace(PROGRAMS[name], *(S(s, "bfloat16") for s in shapes))
    with mock.patch.object(product_rows, "_saves", lambda *_: True):
        program = fw.compile(fusion)
    product = next(k for k in program.kernels if k.ir.maps)
    assert any(isinstance(s, BoxStore) for s in walk_statements(product.ir))
    assert "is stored in longer rows" in str(fw.Report(program))
    rng = np.random.default_rng(columns)
    arrays = [np.asarray(rng.standard_normal(s), bfloat16.numpy) for s in shapes]
    got = program.simulate(*arrays)
    assert got.races == []
    for out, want in zip(got.outputs, fw.evaluate(fusion, *arrays), strict=True):
        np.testing.assert_allclose(
            np.asarray(out, float), np.asarray(want, float), rtol=2e-2, atol=2e-2
        )


@pytest.mark.parametrize(
    ("x", "w", "chosen"),
    [
        ((32, 1707, 64), (32, 1707, 64), True),  # 483 us by threads, 151 so (one H200)
        ((8192, 768), (50257, 768), True),
        ((4096, 1024), (8193, 1024), True),  # whose operands are exchanged
        ((4096, 1024), (8194, 1024), False),  # threads store two elements
        ((8192, 768), (50264, 768), False),  # boxes hold these
        ((4097, 4096), (77, 4096), False),  # a copy takes longer
    ],
)
def test_rows_are_longer_where_that_saves_more_than_a_copy(
    x: tuple[int, ...], w: tuple[int, ...], *, chosen: bool
) -> None:
    for name in ("result", "softmax"):
        fusion = fw.trace(PROGRAMS[name], S(x, "bfloat16"), S(w, "bfloat16"))
        assert bool(in_longer_rows(fusion, TARGET)) is chosen


def test_exchanged_operands_need_no_kernel_more() -> None:
    fusion = fw.trace(scores, S((4096, 1024), "bfloat16"), S((8193, 1024), "bfloat16"))
    program = fw.compile(fusion)
    assert "its operands are exchanged" in str(fw.Report(program))
    assert len(program.kernels) == 2
