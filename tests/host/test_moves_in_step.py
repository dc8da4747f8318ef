"""Copies of several parts of the same rows: a block moves all of them, and what a launch of moves
is predicted to take knows in which lines parts meet."""

from __future__ import annotations

from typing import Any
from unittest import mock

import numpy as np
import pytest

import fusewright as fw
from fusewright import driver
from fusewright.core.expr import ZERO, constant_value
from fusewright.host import move_work as move_work_module
from fusewright.host.move_work import move_work
from fusewright.host.moves import THREADS, MoveGrid, Moves, grid_of, move_kernel
from fusewright.schedule.heuristics.cost import cost
from fusewright.target import target_of

T = fw.TensorSpec
TARGET = target_of("sm_90a")


def beside_softmax(*parts: Any) -> Any:
    *before, last = parts
    return fw.concat([*before[:2], fw.nn.softmax(last, axis=1), *before[2:]], axis=1)


def _with_moves(fn: Any, *specs: fw.TensorSpec) -> tuple[fw.Program, list[Moves]]:
    """The program of a function, and what its launches of moves were made of."""
    found: list[Moves] = []

    def made(moves: Moves, name: str) -> Any:
        found.append(moves)
        return move_kernel(moves, name)

    with mock.patch.object(driver, "move_kernel", made):
        return fw.compile(fw.trace(fn, *specs), target="sm_90a"), found


def _moves(widths: tuple[int, ...], rows: int | str, dtype: str) -> Moves:
    _, (found,) = _with_moves(beside_softmax, *[T((rows, w), dtype) for w in widths])
    return found


@pytest.mark.parametrize(
    ("widths", "rows", "dtype"),
    [
        ((5, 8, 16, 33), 301, "float32"),
        ((3, 3, 7, 700), 130, "bfloat16"),
        ((4, 8, 128, 64), 77, "float32"),
        ((1, 200, 33), 45, "float16"),
        ((5, 8, 16, 2, 9, 11, 33), 77, "int8"),
    ],
)
def test_a_block_moves_all_parts_of_its_rows(
    widths: tuple[int, ...], rows: int, dtype: str
) -> None:
    def scanned(*parts: Any) -> Any:
        *copied, last = parts
        return fw.concat([*copied, fw.cumulative_sum(last, axis=1, dtype="int8")], axis=1)

    # parts of int8 are more than the loads that a thread has under way
    fn = scanned if dtype == "int8" else beside_softmax
    program, (moves,) = _with_moves(fn, *[T((rows, w), dtype) for w in widths])
    grid = grid_of(moves)
    assert grid.is_in_step
    each = [constant_value(x.of_row) or 0 for x in grid.loops]
    own = max(1, THREADS // max(each))
    assert [constant_value(n) for n in grid.spans] == [n * own for n in each]
    assert own * max(each) <= grid.threads
    rng = np.random.default_rng(rows)
    kind = getattr(fw, dtype).numpy
    arrays = [(rng.standard_normal((rows, w)) * 40).astype(kind) for w in widths]
    found = program.simulate(*arrays)
    assert not found.races
    (want,) = fw.evaluate(program.fusion, *arrays)
    np.testing.assert_allclose(
        np.asarray(found.outputs[0], np.float64), np.asarray(want, np.float64), rtol=2e-2, atol=1e-3
    )


def test_rows_of_more_vectors_than_threads_and_unknown_ones_go_on_alone() -> None:
    assert not grid_of(_moves((5, 8000, 1030, 64), 64, "float32")).is_in_step
    assert not grid_of(_moves((64, 32), 64, "float32")).is_in_step
    rows = _moves((5, 8, 16, 33), "n", "float32")
    assert grid_of(rows).is_in_step


def test_pairs_of_sectors_in_which_parts_meet_are_moved_again_unless_in_step() -> None:
    moves = _moves((5, 8, 16, 2048), 100_000, "float64")
    in_step = [a for a in move_work(moves).arrays if a.is_written]
    grid = grid_of(moves)
    apart = MoveGrid(grid.loops, grid.spans, grid.threads, is_in_step=False)
    alone = [a for a in move_work(moves, apart).arrays if a.is_written]
    for together, own, nbytes in zip(in_step, alone, (40, 64, 128), strict=True):
        assert together.nbytes == own.nbytes == 100_000 * nbytes
        assert own.returns[1] >= together.returns[1] >= 1.0
    # 104 bytes from the start of a row on: two pairs, and a sector that others write on
    assert in_step[0].returns[1] == in_step[1].returns[1] < 2.5
    assert alone[0].returns[1] > 2.5


def test_whole_rows_are_moved_once() -> None:
    moves = _moves((512, 512, 512, 512), 1000, "float32")
    assert all(a.returns[1] == 1.0 and not a.unfilled for a in move_work(moves).arrays)
    reads = [a for a in move_work(moves).arrays if not a.is_written]
    assert all(sum(a.requested) == a.nbytes for a in reads)


def test_rows_that_do_not_lie_in_sectors_are_not_copied_beside_a_kernel() -> None:
    n = 853_686

    def joined(*parts: Any) -> Any:
        return fw.concat(parts, axis=1)

    specs = [T((n, 5), "int64", alignment=8), T((n, 8), "int64"), T((n, 16), "int64")]
    specs += [T((n, 16), "int64", strides=(24, 1)), T((n, 7), "int64", strides=(1, n))]
    program, moves = _with_moves(joined, *specs)
    assert len(program.launches) == 1 and not moves


def test_a_launch_of_moves_takes_at_least_what_its_bytes_take() -> None:
    moves = _moves((64, 32, 64), 200_000, "float32")
    nbytes = sum(a.nbytes for a in move_work(moves).arrays)
    assert cost(move_work(moves), TARGET).us > nbytes / TARGET.memory_nbytes_per_us


def test_elements_a_step_apart_are_written_a_warp_at_a_time() -> None:
    def stacked(x: Any, y: Any, z: Any) -> Any:
        return fw.stack([x, fw.nn.softmax(y, axis=1), z + 1], axis=2)

    specs = [T((5000, 512), "bfloat16")] * 3
    _, found = _with_moves(stacked, *specs)
    assert len(found) == 1
    (written,) = (a for a in move_work(found[0]).arrays if a.is_written)
    assert written.returns[1] == 6.0  # pairs read and written, of which a third is its own
    assert sum(written.requested) == 3 * written.nbytes


def test_a_row_alone_is_moved_once() -> None:
    """It has no step to another one, and fills the pairs of sectors that it has."""
    begins = np.zeros(4, np.int64)
    run = move_work_module._Run(begins, 6, ZERO, 0)
    ends = move_work_module._joined(begins, begins + 6, [run])
    assert move_work_module._moved(*ends, 4) == 1.0
