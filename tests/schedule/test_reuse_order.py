"""The order of blocks where accesses to the same bytes are far apart: when, which, and values."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import fusewright as fw
from fusewright.core.substitution import estimate
from fusewright.finish import finish
from fusewright.forms import prepare
from fusewright.fusion.ir import Fusion
from fusewright.schedule.graph import Dataflow
from fusewright.schedule.heuristics import schedule_group
from fusewright.schedule.heuristics.cost import cost
from fusewright.schedule.heuristics.pointwise import THREADS, reference_output
from fusewright.schedule.heuristics.reuse_order import read_again, reuse_first
from fusewright.schedule.heuristics.work import work_of
from fusewright.target import Target, target_of

TARGET = target_of("sm_90a")
TINY_CACHE = replace(TARGET, multiprocessors=1, l2_nbytes=2048)
PLANE = 3 << 20
"""Elements of a plane of 12 MB: the cache does not hold what lies between two of them."""


def fusion_of(f: Callable[..., Any], *shape: int) -> Fusion:
    return prepare(fw.trace(f, fw.TensorSpec(shape, "float32")), TARGET)


def neighbours(x: Any) -> Any:
    return x[:-2] + x[1:-1] * 2.0 + x[2:]


def order_of(fusion: Fusion, target: Target = TARGET) -> list[int] | None:
    """The extents of what the order of blocks is made of, None for the order of memory."""
    flow = Dataflow(fusion)
    reference = reference_output(flow)
    read = read_again(flow, reference)
    loop = read and reuse_first(flow, reference, read, 4, 4 * THREADS, target)
    if loop is None:
        return None
    *outside, rows, piece = (estimate(d.extent) for d in loop.axis.digits)
    return [math.prod(outside), rows, piece]


def test_blocks_go_along_what_lies_between_accesses() -> None:
    assert order_of(fusion_of(neighbours, 9, PLANE)) == [PLANE // 512, 7, 512]
    assert order_of(fusion_of(lambda x: fw.roll(x, 3, axis=0) + x, 8, PLANE)) == [
        PLANE // 512,
        8,
        512,
    ]


def test_what_the_cache_keeps_stays_in_the_order_of_memory() -> None:
    assert order_of(fusion_of(neighbours, 2000, 8192)) is None
    assert order_of(fusion_of(lambda x: x * 2.0, 9, PLANE)) is None
    assert order_of(fusion_of(lambda x: x[:4] + x[4:], 8, PLANE)) is None
    half = replace(TARGET, l2_nbytes=64 * TARGET.l2_nbytes)
    assert order_of(fusion_of(neighbours, 9, PLANE), half) is None


def test_axes_may_be_spelled_as_one_or_as_many() -> None:
    """Slices of one long axis have no axis to go along: what divides their distances is one."""
    flat = fusion_of(lambda x: x[: 7 * PLANE] + x[PLANE : 8 * PLANE] + x[2 * PLANE :], 9 * PLANE)
    assert order_of(flat) == order_of(fusion_of(neighbours, 9, 3, 1 << 10, 1 << 10))


def test_the_model_sees_that_bytes_are_read_once() -> None:
    flow = Dataflow(fusion_of(lambda x: fw.roll(x, 3, axis=0) + x, 8, PLANE))
    once = cost(work_of(flow, schedule_group(flow, TARGET)), TARGET).us
    other = Dataflow(fusion_of(lambda x: x * 2.0, 8, PLANE))
    assert once < 1.1 * cost(work_of(other, schedule_group(other, TARGET)), TARGET).us


@pytest.mark.parametrize(
    ("f", "shape"),
    [
        (neighbours, (9, 5, 37)),  # rows begin at any address
        (neighbours, (9, 700)),  # pieces that do not divide a row
        (lambda x: fw.roll(x, 5, axis=1) + x, (3, 13, 256)),
        (lambda x: fw.flip(x, axis=0) * x, (11, 520)),
        (lambda x: x[:-1024] + x[1024:], (4 * 1024 + 100,)),
    ],
)
def test_values(f: Callable[..., Any], shape: tuple[int, ...]) -> None:
    fusion = fusion_of(f, *shape)
    assert order_of(fusion, TINY_CACHE) is not None
    flow = Dataflow(fusion)
    kernel = finish(flow, "k", TARGET, schedule_group(flow, TINY_CACHE))
    x = np.random.default_rng(0).integers(-8, 8, shape).astype(np.float32)
    result = kernel.simulate(x)
    assert result.races == []
    np.testing.assert_array_equal(result.outputs[0], fw.evaluate(fusion, x)[0])
