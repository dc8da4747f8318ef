"""Programs of twice the length take about twice the work to record and to compile.

Work is counted in calls. Inside of one kernel parts of it are quadratic in its operations, of which
a kernel has 96 at most (`host.groups.MAX_OPS`); the lengths here are such that this does not
dominate.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.work import calls

import fusewright as fw
from fusewright import dtypes
from fusewright.core.expr import as_expr
from fusewright.fusion import build
from fusewright.fusion.rematerialisable import is_rematerialisable

GROWTH = 2.5
"""What twice the length may take: a quarter more than twice the work."""

Step = Callable[[Any, int], Any]


def _strided(x: Any, k: int) -> Any:
    return fw.concat([fw.sin(x[:, ::2]), x[:, 1::2]], axis=1)


def _reflected(x: Any, k: int) -> Any:
    return fw.pad(x, ((0, 0), (1, 1)), mode="reflect")


def _reflected_sine(x: Any, k: int) -> Any:
    return fw.sin(_reflected(x, k))


def _row_sums(x: Any, k: int) -> Any:
    return fw.sin(x) - fw.sum(fw.cos(x), axis=-1, keepdims=True)


def _sums_both_ways(x: Any, k: int) -> Any:
    return fw.sin(x) - fw.sum(fw.cos(x), axis=k % 2, keepdims=True)


def _softmax(x: Any, k: int) -> Any:
    return fw.nn.softmax(x, axis=-1)


def _sliced(x: Any, k: int) -> Any:
    return fw.sin(x[:, 1:])


def _stencil(x: Any, k: int) -> Any:
    return fw.sin(x[:, 1:]) - x[:, :-1]


def _joined(x: Any, k: int) -> Any:
    return fw.concat([fw.sin(x[:, :24]), fw.cos(x[:, 24:])], axis=1)


def _padded(x: Any, k: int) -> Any:
    return fw.sin(fw.pad(x, ((0, 0), (1, 1))))


def _rolled(x: Any, k: int) -> Any:
    return fw.sin(fw.roll(x, k + 1, axis=1))


def _diamond(x: Any, k: int) -> Any:
    return fw.sin(x) + fw.cos(x)


def _selected(x: Any, k: int) -> Any:
    return fw.where(x > 0.1 * k, fw.sin(x), x * 2.0)


def chain(step: Step, length: int, every: int = 0) -> Callable[[Any], Any]:
    """`length` steps behind each other; each `every`-th result is given back, or the last alone."""

    def fn(x: Any) -> Any:
        results: list[Any] = []
        for k in range(length):
            x = step(x, k)
            if every and k % every == 0:
                results.append(x)
        return results or x

    return fn


def grows(make: Callable[[int], Callable[..., Any]], length: int, *specs: Any) -> list[float]:
    """By how much recording and compiling grow from a length to twice as much."""
    found: list[list[int]] = []
    for n in (length, 2 * length):
        fn, made = make(n), list[Any]()
        recording = calls(lambda fn=fn, made=made: made.append(fw.trace(fn, *specs)))
        found.append([recording, calls(lambda made=made: fw.compile(made[0]))])
    return [b / a for a, b in zip(*found, strict=True)]


@pytest.mark.parametrize(
    ("step", "length", "every"),
    [
        (_strided, 6, 0),
        (_reflected, 8, 0),
        (_reflected_sine, 8, 0),
        (_row_sums, 12, 0),
        (_row_sums, 24, 3),
        (_sums_both_ways, 6, 0),
        (_softmax, 8, 0),
        (_sliced, 40, 0),
        (_stencil, 10, 0),
        (_joined, 8, 0),
        (_rolled, 12, 0),
        (_diamond, 50, 0),
        (_diamond, 50, 3),
        (_selected, 50, 2),
    ],
)
def test_a_chain(step: Step, length: int, every: int) -> None:
    spec = fw.TensorSpec((64, 96), "float32")
    assert max(grows(lambda n: chain(step, n, every), length, spec)) <= GROWTH


def test_a_chain_of_pads_in_one_kernel() -> None:
    """Quadratic in the operations of a kernel: 3.3 million calls where each atom of a line is asked
    once whether it is known, 11.6 million where each asks all others."""
    fusion = fw.trace(chain(_padded, 48), fw.TensorSpec((64, 96), "float32"))
    assert calls(lambda: fw.compile(fusion)) < 4_500_000


@pytest.mark.parametrize("step", [_strided, _reflected, _reflected_sine, _joined])
def test_a_chain_that_reads_other_places_is_right(step: Step) -> None:
    """Long enough that moves are cut, and joins of joins are made."""
    fusion = fw.trace(chain(step, 9), fw.TensorSpec((4, 48), "float32"))
    x = np.random.default_rng(0).normal(size=(4, 48)).astype(np.float32)
    found = fw.compile(fusion).simulate(x)
    assert found.races == []
    np.testing.assert_allclose(found.outputs[0], fw.evaluate(fusion, x)[0], rtol=1e-5, atol=1e-5)


def test_moves_that_fold_six_times_are_one_kernel() -> None:
    """The index of seven would mention a coordinate 128 times."""
    spec = fw.TensorSpec((4, 48), "float32")
    launches = [len(fw.compile(fw.trace(chain(_reflected, n), spec)).launches) for n in (6, 7)]
    assert launches == [1, 2]


def test_long_chains_need_no_deep_stack() -> None:
    """No walk over a program recurses by its length."""
    spec = fw.TensorSpec((64, 48), "float32")
    for step, length in ((_transposed, 400), (_sine, 1200)):
        fusion = fw.trace(chain(step, length), spec)
        assert str(fusion) and str(fw.Report(fw.compile(fusion)))
    leaf = build.full((as_expr(4), as_expr(6)), 1.0, dtypes.float32)
    for shape in ((6, 4), (4, 6)) * 600:
        leaf = build.reshape("reshape", leaf, tuple(map(as_expr, shape)))
    assert is_rematerialisable(leaf)


def _transposed(x: Any, k: int) -> Any:
    return fw.permute_dims(x, (1, 0))


def _sine(x: Any, k: int) -> Any:
    return fw.sin(x) + 1.0
