"""Few long rows that are needed again: blocks of clusters hold them where they fill the chip."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fusewright as fw
from fusewright.fusion.partitioning import PartitionFacts, fit_cluster
from fusewright.target import target_of

TARGET = target_of("sm_90a")


def norm(x: Any) -> Any:
    return fw.nn.layer_norm(x, (x.shape[-1],))


def softmax(x: Any) -> Any:
    return fw.nn.softmax(x, axis=-1)


def scaled(x: Any) -> Any:
    return x / fw.max(fw.abs(x), axis=1, keepdims=True)


@pytest.mark.parametrize("fn", [norm, softmax, scaled])
@pytest.mark.parametrize(
    ("shape", "dtype"), [((33, 20_011), "float32"), ((40, 24_576), "bfloat16")]
)
def test_they_are_read_once_by_one_kernel(
    fn: Callable[..., Any], shape: tuple[int, int], dtype: str
) -> None:
    program = fw.compile(fw.trace(fn, fw.TensorSpec(shape, dtype)))
    assert program.host.stats["launches"] == 1
    rng = np.random.default_rng(shape[0])
    x = rng.standard_normal(shape).astype(getattr(fw, dtype).numpy)
    found = program.simulate(x)
    assert not found.races
    (want,) = fw.evaluate(program.fusion, x)
    got, want = np.asarray(found.outputs[0], np.float64), np.asarray(want, np.float64)
    np.testing.assert_allclose(got, want, rtol=1e-2, atol=1e-2 * np.abs(want).max())
    report = fw.verify(program, x)
    assert not report.missing and not report.redundant


@pytest.mark.parametrize("shape", [(3, 1_000_001), (4, 9_000_001)])
def test_rows_that_are_too_few_or_too_long_are_cut(shape: tuple[int, int]) -> None:
    assert fw.compile(fw.trace(norm, fw.TensorSpec(shape, "float32"))).host.stats["launches"] > 1


def test_clusters_hold_what_their_blocks_hold() -> None:
    """Two blocks of clusters of eight on each of 132 multiprocessors."""
    most = TARGET.cluster_shared_nbytes // 4
    for rows, length, fits in ((33, most, True), (32, most, False), (33, most + 1, False)):
        facts = PartitionFacts((length,), rows, 1, 1, 4, is_inner=True)
        assert fit_cluster(facts, 4, TARGET) is fits
    columns = PartitionFacts((1000,), 4096, 4096, 4096, 4, is_inner=False)
    assert not fit_cluster(columns, 4, TARGET)
