"""Moves of scans move what is scanned: suffixes and moved lines are one kernel."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from fusion_cases import assert_same

import fusewright as fw
from fusewright.errors import ScheduleError
from fusewright.fusion.evaluate import evaluate
from fusewright.fusion.ir import IndexMap, Scan
from fusewright.fusion.passes.fold_moves import fold_moves
from fusewright.fusion.passes.turn_scans import turn_scans
from fusewright.fusion.spec import check
from fusewright.fusion.text import parse_fusion
from fusewright.fusion.trace import trace


def _suffixes(x: fw.Array, axis: int) -> fw.Array:
    return fw.flip(fw.cumulative_sum(fw.flip(x, axis=axis), axis=axis), axis=axis)


def _turned(f: Callable[[fw.Array], object], *shape: int) -> tuple[list[Scan], int]:
    """The scans that a program has once they are turned, and its moves; its values stay."""
    fusion = trace(f, fw.TensorSpec(shape, "int64"))
    out = fold_moves(turn_scans(fold_moves(fusion)))
    check(out)
    assert str(parse_fusion(str(out))) == str(out)
    x = np.random.default_rng(3).integers(-9, 9, shape)
    for ours, theirs in zip(evaluate(out, x), evaluate(fusion, x), strict=True):
        assert_same(ours, theirs)
    scans = [t.op for t in out.values if isinstance(t.op, Scan)]
    return scans, sum(isinstance(t.op, IndexMap) for t in out.values)


def test_a_flip_of_a_scan_of_a_flip_is_a_scan_in_reverse():
    scans, moves = _turned(lambda x: _suffixes(x, 1), 5, 9, 4)
    assert [(s.axis, s.reverse) for s in scans] == [(1, True)] and moves == 0


def test_a_scan_in_reverse_that_is_turned_runs_forwards():
    scans, moves = _turned(lambda x: fw.flip(_suffixes(x, 0), axis=0), 7, 3)
    assert [s.reverse for s in scans] == [False] and moves == 1


@pytest.mark.parametrize(
    ("move", "axis", "reverse"),
    [
        (lambda y: fw.roll(y, 2, axis=0), 1, False),
        (lambda y: fw.flip(y, axis=(0, 1)), 1, True),
        (lambda y: fw.flip(fw.permute_dims(y, (1, 0)), axis=(0,)), 0, True),
        (lambda y: fw.roll(fw.abs(y) * y + 1, 3, axis=0), 1, False),
    ],
)
def test_lines_are_moved_before_they_are_scanned(
    move: Callable[[fw.Array], fw.Array], axis: int, reverse: bool
):
    scans, _ = _turned(lambda x: move(fw.cumulative_sum(x * 2, axis=1)), 6, 11)
    assert [(s.axis, s.reverse) for s in scans] == [(axis, reverse)]


@pytest.mark.parametrize(
    "f",
    [
        lambda x: fw.roll(fw.cumulative_sum(x, axis=1), 1, axis=1),
        lambda x: fw.flip(fw.cumulative_sum(x, axis=1), axis=1)[:, 1:],
        lambda x: fw.repeat(fw.cumulative_sum(x, axis=1), 2, axis=0),
        lambda x: [y := fw.cumulative_sum(x, axis=1), fw.flip(y, axis=1)],
        lambda x: [y := fw.cumulative_sum(x, axis=1) * 2, fw.flip(y * y, axis=1)],
    ],
    ids=["within a line", "a part of a line", "lines twice", "stored too", "stored inside"],
)
def test_other_moves_stay(f: Callable[[fw.Array], object]):
    scans, moves = _turned(f, 6, 11)
    assert [s.reverse for s in scans] == [False] and moves == 1


SHAPES = [
    ((1288, 391), 1), ((7, 37, 3), 1), ((5000, 33), 0), ((300, 2, 5, 13), 1), ((3, 1000, 64), 1),
    ((2000, 6), 1), ((4, 4096), 1), ((1, 5), 1),
]  # fmt: skip


@pytest.mark.parametrize(("shape", "axis"), SHAPES, ids=str)
def test_suffixes_are_one_kernel_that_needs_each_of_its_syncs(shape: tuple[int, ...], axis: int):
    program = fw.compile(fw.trace(lambda x: _suffixes(x, axis), fw.TensorSpec(shape, "float32")))
    assert len(program.launches) == 1
    x = np.random.default_rng(1).integers(-3, 4, shape).astype(np.float32)
    found = program.simulate(x)
    assert found.races == []
    assert np.array_equal(found.outputs[0], np.flip(np.cumsum(np.flip(x, axis), axis), axis))
    report = fw.verify(program, x)
    assert report.missing == [] and report.redundant == []


def test_long_lines_in_reverse_are_parts_too():
    shape = (2, 70001)
    program = fw.compile(fw.trace(lambda x: _suffixes(x, 1), fw.TensorSpec(shape, "float32")))
    x = np.random.default_rng(1).integers(-3, 4, shape).astype(np.float32)
    (y,) = program.simulate(x).outputs
    assert len(program.launches) > 1
    assert np.array_equal(y, np.flip(np.cumsum(np.flip(x, 1), 1), 1))


def test_scans_in_both_directions_have_loops_of_their_own():
    def both(x: fw.Array) -> list[fw.Array]:
        return [fw.cumulative_sum(x, axis=1), _suffixes(x, 1)]

    program = fw.compile(fw.trace(both, fw.TensorSpec((64, 999), "float32")))
    x = np.random.default_rng(1).integers(-3, 4, (64, 999)).astype(np.float32)
    first, second = program.simulate(x).outputs
    assert len(program.kernels) == 1 and len(program.kernels[0].parts) == 2  # side by side
    assert np.array_equal(first, np.cumsum(x, 1))
    assert np.array_equal(second, np.flip(np.cumsum(np.flip(x, 1), 1), 1))


def test_one_loop_does_not_run_in_both_directions():
    def twice(x: fw.Array) -> fw.Array:
        return fw.cumulative_sum(fw.cumulative_sum(x, axis=0), axis=0)

    text = str(trace(twice, fw.TensorSpec((8,), "float32")))
    forward = fw.Schedule(parse_fusion(text))
    forward.inline_most()
    forward.lower("sm_90a")
    s = fw.Schedule(
        parse_fusion(text.replace("exclusive=False", "exclusive=False, reverse=True", 1))
    )
    s.inline_most()
    with pytest.raises(ScheduleError, match=r"t0 scans in reverse in a loop in which t1 scans"):
        s.lower("sm_90a")
