"""Parts of joins are joins of parts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fusewright as fw
from fusewright.fusion.ir import Concat, Fusion
from fusewright.fusion.passes.crop_joins import crop_joins
from fusewright.fusion.passes.hoist_crops import hoist_crops

S = fw.TensorSpec
A, B = S((6, 10), "float32"), S((6, 14), "float32")


def parted(fn: Any, *specs: fw.TensorSpec) -> Fusion:
    """What the pass makes of a program, which computes the same."""
    before = hoist_crops(fw.trace(fn, *specs))
    after = crop_joins(before)
    rng = np.random.default_rng(5)
    arrays = [rng.standard_normal([int(str(n)) for n in s.shape]).astype("float32") for s in specs]
    for a, b in zip(fw.evaluate(before, *arrays), fw.evaluate(after, *arrays), strict=True):
        np.testing.assert_array_equal(a, b)
    return after


def joins(fusion: Fusion) -> list[int]:
    """How many operands each join has."""
    return [len(t.op.operands) for t in fusion.values if isinstance(t.op, Concat)]


def test_a_part_within_one_operand_is_a_part_of_that() -> None:
    after = parted(lambda a, b: fw.concat([a, b], axis=1)[2:5, 12:20], A, B)
    assert joins(after) == []
    assert [str(n) for n in after.outputs[0].shape] == ["3", "8"]


def test_an_operand_that_is_taken_out_again_is_itself() -> None:
    after = parted(lambda a, b: fw.concat([a, b], axis=1)[:, 10:], A, B)
    assert after.outputs[0] in after.inputs


def test_a_part_of_several_operands_joins_parts_of_them() -> None:
    def fn(a: fw.Array, b: fw.Array) -> fw.Array:
        return fw.concat([a, b, a], axis=1)[:, 7:25]

    assert joins(parted(fn, A, B)) == [3]
    assert joins(parted(lambda a, b: fn(a, b)[:, :10], A, B)) == [2]


def test_joins_of_joins() -> None:
    def blocks(a: fw.Array, b: fw.Array) -> fw.Array:
        return fw.insert(fw.insert(fw.zeros((30, 40)), a, (0, 3)), b, (12, 20))

    program = fw.compile(fw.trace(blocks, A, B))
    stats = program.host.stats
    assert (stats["launches"], stats["fills"]) == (1, 0)


def test_sizes_that_nobody_knows_leave_the_join() -> None:
    n = fw.Sym("n", min=2)
    fusion = fw.trace(
        lambda a, b: fw.concat([a, b], axis=0)[5:], S((n, 4), "float32"), S((9, 4), "float32")
    )
    assert crop_joins(fusion) is fusion
    known = fw.trace(
        lambda a, b: fw.concat([a, b], axis=0)[:-3], S((n, 4), "float32"), S((9, 4), "float32")
    )
    assert joins(crop_joins(known)) == [2]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32", "bool"])
def test_both_halves_of_a_join_are_read_once(dtype: str) -> None:
    def fn(a: fw.Array, b: fw.Array) -> tuple[fw.Array, fw.Array]:
        y = fw.concat([a, b], axis=1)
        return y[:, :500], y[:, 500:]

    spec = S((64, 512), dtype)
    program = fw.compile(fw.trace(fn, spec, spec))
    size = program.fusion.inputs[0].dtype.nbytes
    assert program.host.stats["bytes_moved"] == 4 * 64 * 512 * size
