"""Scans that are read at other places across their lines are made there, or in part."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fusewright as fw
from fusewright.fusion.ir import Scan, constant_shape
from fusewright.fusion.passes.crop_reductions import crop_shifts
from fusewright.fusion.passes.decompose import decompose
from fusewright.fusion.passes.fold_moves import fold_moves
from fusewright.fusion.passes.hoist_moves import hoist_moves, moves_to_hoist
from fusewright.target import target_of


def shifted(y: Any, by: int, axis: int) -> Any:
    """Each element `by` places on, zeros in front: one resize that crops and pads."""
    return fw.pad(y, [(by, -by) if k == axis else (0, 0) for k in range(y.ndim)])


def scanned(x: Any, axis: int) -> Any:
    return fw.sqrt(fw.abs(fw.cumulative_sum(x, axis=axis)))


def compiled(f: Callable[..., Any], shape: tuple[int, ...], dtype: str = "float32") -> fw.Program:
    """A program that does what the oracle does in the simulator, without races."""
    program = fw.compile(fw.trace(f, fw.TensorSpec(shape, dtype)))
    x = np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)
    x = x.astype(getattr(fw, dtype).numpy)
    found = program.simulate(x)
    assert found.races == []
    tolerance = 1e-4 if dtype == "float32" else 2e-2
    for got, want in zip(found.outputs, fw.evaluate(program.fusion, x), strict=True):
        np.testing.assert_allclose(
            np.asarray(got, np.float64), np.asarray(want, np.float64), tolerance, tolerance
        )
    return program


def several(x: Any) -> Any:
    y = scanned(x, 1)
    return y + shifted(y, 1, 0) * shifted(y, 3, 0)


ONE_KERNEL: dict[str, Callable[..., Any]] = {
    "across lines down": lambda x: shifted(scanned(x, 0), 5, 1),
    "across rows": lambda x: shifted(scanned(x, 1), 3, 0),
    "suffixes": lambda x: shifted(fw.flip(scanned(fw.flip(x, axis=1), 1), axis=1), 3, 0),
    "the other way": lambda x: shifted(scanned(x, 1), -2, 0),
    "read here and there": several,
    "stored, and read elsewhere": lambda x: (lambda y: (y, shifted(y, 1, 0)))(scanned(x, 1)),
    "two scans": lambda x: shifted(scanned(x, 1) - scanned(x * x, 1), 2, 0),
}


@pytest.mark.parametrize("name", ONE_KERNEL)
@pytest.mark.parametrize("shape", [(51, 67), (130, 33)])
def test_a_scan_is_made_where_it_is_read(name: str, shape: tuple[int, int]) -> None:
    assert len(compiled(ONE_KERNEL[name], shape).kernels) == 1


@pytest.mark.parametrize("by", [1, 3])
def test_along_its_lines_a_scan_is_no_scan_of_other_places(by: int) -> None:
    """Its prefixes end elsewhere: what is scanned may not be shifted instead."""
    compiled(lambda x: shifted(scanned(x, 1), by, 1), (51, 67))
    compiled(lambda x: scanned(x, 1) + shifted(scanned(x, 1), by, 1), (51, 67))


def test_what_a_shift_leaves_is_computed_in_part() -> None:
    """Lines of eleven go through shared memory, whole vectors at a time, only where they lie side
    by side, as those of a part do."""
    fusion = fw.trace(
        lambda x: shifted(scanned(x, 3), 3, 0), fw.TensorSpec((5, 4, 8, 11), "float32")
    )
    cropped = crop_shifts(fusion)
    (scan,) = (t for t in cropped.values if isinstance(t.op, Scan))
    assert constant_shape(scan) == (2, 4, 8, 11)
    x = np.random.default_rng(1).standard_normal((5, 4, 8, 11)).astype(np.float32)
    np.testing.assert_array_equal(fw.evaluate(cropped, x)[0], fw.evaluate(fusion, x)[0])


def test_a_shift_beside_the_value_leaves_it_whole() -> None:
    fusion = fw.trace(
        lambda x: (lambda y: (y, shifted(y, 3, 0)))(scanned(x, 1)),
        fw.TensorSpec((5, 11), "float32"),
    )
    assert crop_shifts(fusion) is fusion


def test_the_form_is_chosen_by_its_time() -> None:
    """As a part, in two launches, it takes half as long as whole lines at other places: one thread
    walks over each of these in memory."""
    spec = fw.TensorSpec((15, 256, 2048, 11), "bfloat16")
    program = fw.compile(fw.trace(lambda x: shifted(scanned(x, 3), 3, 0), spec))
    assert program.host.stats["bytes_moved"] < 1.01 * 2 * 2 * 15 * 256 * 2048 * 11


MOVES: dict[str, Callable[..., Any]] = {
    "rolled": lambda y, axis: fw.roll(y, 3, axis=axis),
    "turned": lambda y, axis: fw.flip(y, axis=axis),
    "shifted": lambda y, axis: shifted(y, 2, axis),
    "reflected": lambda y, axis: fw.pad(
        y, [(2, 2) if k == axis else (0, 0) for k in range(2)], "reflect"
    ),
    "in steps": lambda y, axis: y[::2] if axis == 0 else y[:, ::2],
}


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("name", MOVES)
def test_moves_above_scans_keep_values(name: str, axis: int) -> None:
    """Across lines they are taken in front of the scan, along lines they stay where they are."""
    fusion = fw.trace(
        lambda x: MOVES[name](scanned(x, 1) + 1, axis), fw.TensorSpec((7, 9), "float64")
    )
    moves = fold_moves(decompose(fusion))
    chosen = moves_to_hoist(moves, target_of("sm_90a"), reductions=True)
    x = np.random.default_rng(axis).standard_normal((7, 9))
    np.testing.assert_allclose(
        fw.evaluate(hoist_moves(moves, chosen), x)[0], fw.evaluate(fusion, x)[0]
    )
    assert bool(chosen) == (axis == 0)
