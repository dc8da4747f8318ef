"""What readers compute again is decided in time that grows with the program, not faster."""

from __future__ import annotations

import pytest
from tests.work import calls

import fusewright as fw
from fusewright.fusion.ir import Fusion
from fusewright.host.form import form


def with_results(length: int, every: int) -> Fusion:
    """A chain of functions of two arguments, each `every`-th value of which is a result."""

    def fn(x: fw.Array, y: fw.Array) -> list[fw.Array]:
        results: list[fw.Array] = []
        for k in range(length):
            x = fw.sin(x * y) if k % 3 else fw.tanh(x) * y
            if k % every == 0:
                results.append(x)
        return results

    return fw.trace(fn, fw.TensorSpec((3, 17), "float32"), fw.TensorSpec((17,), "float32"))


@pytest.mark.parametrize("every", [1, 3])
def test_twice_the_results_are_twice_the_work(every: int) -> None:
    short, long = with_results(100, every), with_results(200, every)
    assert calls(lambda: form(long)) <= 2.5 * calls(lambda: form(short))


def test_chains_through_any_number_of_results_are_followed() -> None:
    fusion = with_results(3000, 2)
    formed = form(fusion)
    assert {t for g in formed.groups for t in g} >= set(fusion.outputs)
