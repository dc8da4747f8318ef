"""What kernels store for others lies in an order that makers and readers like."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bench import orders

import fusewright as fw
from fusewright import forms
from fusewright.fusion.bordered import may_lie
from fusewright.fusion.least_orders import least_orders
from fusewright.fusion.passes.follow_memory import follow_memory
from fusewright.report.predicted import serial_us, timed

LAST, FIRST = (0, 2, 3, 1), (0, 3, 1, 2)


def norm(x: Any, axes: Any) -> Any:
    d = x - fw.mean(x, axis=axes, keepdims=True)
    return d * fw.rsqrt(fw.mean(d * d, axis=axes, keepdims=True) + 1e-5)


def scanned(x: Any) -> Any:
    sums = fw.cumulative_sum(x, axis=3)
    return sums / fw.max(fw.abs(sums), axis=(2, 3), keepdims=True)


def twice(x: Any) -> Any:
    return norm(norm(x, 1), (0, 2, 3))


def kept(x: Any) -> Any:
    y = norm(x, (2, 3))
    return fw.sort(y, axis=1), fw.sum(y, axis=(0, 2, 3))


def image(fn: Callable[[Any], Any], shape: tuple[int, ...]) -> fw.Fusion:
    """A function of an image whose channels are the fast axis."""
    return fw.trace(fn, fw.TensorSpec(shape, "float32", strides=strides_of(shape)))


def channels_last(fn: Callable[[Any], Any], shape: tuple[int, ...]) -> fw.Program:
    """A function on an image whose channels are the fast axis, and results like it."""
    fusion = image(fn, shape)
    return fw.compile(fusion, out_layouts=[LAST if t.ndim == 4 else None for t in fusion.outputs])


def strides_of(shape: tuple[int, ...]) -> tuple[int, ...]:
    _, c, h, w = shape
    return c * h * w, 1, w * c, c


def us(program: fw.Program) -> float:
    """The predicted time of all launches."""
    return serial_us(timed(program))


@pytest.mark.parametrize("fn", [scanned, twice, kept])
@pytest.mark.parametrize("shape", [(2, 8, 12, 5), (3, 7, 5, 9)])
def test_results(fn: Callable[[Any], Any], shape: tuple[int, ...]) -> None:
    program = channels_last(fn, shape)
    x = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    result = program.simulate(np.moveaxis(np.ascontiguousarray(np.moveaxis(x, 1, 3)), 3, 1))
    assert not result.races
    expected = fw.evaluate(image(fn, shape), x)
    for a, b in zip(result.outputs, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5)


def test_a_value_between_kernels_lies_as_the_argument_does() -> None:
    shape = (32, 256, 56, 56)
    program = channels_last(scanned, shape)
    (between,) = [x for x in program.layouts.values() if x.required is None]
    assert list(map(str, between.actual)) == list(map(str, strides_of(shape)))
    assert between.preferred == between.actual
    assert "in the order of what it is made of or read for" in between.why
    assert len(program.launches) == 2


def test_an_order_that_does_not_pay_is_dropped() -> None:
    shape = (2, 8, 12, 5)
    spec = fw.TensorSpec(shape, "float32", strides=strides_of(shape))
    program = fw.compile(fw.trace(lambda x: fw.cumulative_sum(norm(x, 1), axis=3), spec))
    for layout in program.layouts.values():
        if layout.preferred not in (None, layout.actual):
            assert layout.why.endswith("in C order, which is predicted to take less time")


@pytest.mark.parametrize("fn", [scanned, kept])
def test_what_axes_are_called_costs_nothing(fn: Callable[[Any], Any]) -> None:
    """The same program written on the axes as they lie, and on others, takes the same time."""
    n, c, h, w = 16, 256, 28, 28

    def moved(x: Any) -> Any:
        made = fn(fw.permute_dims(x, FIRST))
        listed = made if isinstance(made, tuple) else (made,)
        return tuple(fw.permute_dims(y, LAST) if y.ndim == 4 else y for y in listed)

    other = fw.compile(fw.trace(moved, fw.TensorSpec((n, h, w, c), "float32")))
    assert us(channels_last(fn, (n, c, h, w))) == pytest.approx(us(other), rel=0.02)


def test_orders_are_kept_in_files(tmp_path: Path) -> None:
    program = channels_last(scanned, (32, 256, 56, 56))
    assert program.orders.actual
    again = fw.load(program.save(tmp_path / "p.fw"))
    assert again.layouts.keys() == program.layouts.keys()
    pairs = zip(again.layouts.values(), program.layouts.values(), strict=True)
    assert all(str(a) == str(b) for a, b in pairs)


def test_a_function_of_what_is_stored_is_not_stored_beside_it() -> None:
    """`y - mean(y)` is computed again from `y`, which the sums behind it read anyway."""
    shape = (32, 256, 56, 56)
    stats = channels_last(twice, shape).host.stats
    assert stats["bytes_moved"] <= 5.1 * 4 * prod(shape)


def test_a_result_that_is_stored_as_required_keeps_its_name() -> None:
    program = channels_last(lambda x: fw.name(scanned(x), "sums"), (32, 256, 56, 56))
    assert "sums" in program.layouts and program.layouts["sums"].required is not None


# --- an order for each value --------------------------------------------------------------------


def test_no_assignment_of_orders_takes_less_than_the_one_that_is_chosen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each kernel of a chain says what it takes, and all assignments are tried here. The program
    with an order for each value is predicted to take less than that with one for all."""
    asked: list[int] = []

    def tried(domains: Any, groups: Any) -> Any:
        chosen = least_orders(domains, groups)
        assert chosen is not None
        every = [dict(zip(domains, o, strict=True)) for o in itertools.product(*domains.values())]
        total = [sum(g.us(tuple(x[n] for n in g.borders)) for g in groups) for x in every]
        assert total[every.index(chosen)] == min(total)
        asked.append(len(every))
        return chosen

    monkeypatch.setattr(forms, "least_orders", tried)
    fusion = orders.traced("soft3-sort3-scan2-sort1-soft1 16x4096x14x14 FL")
    each = orders.predicted(fusion, by_groups=True)
    assert asked == [16]
    assert each < 0.95 * orders.predicted(fusion, by_groups=False)


@pytest.mark.parametrize("seed", range(12))
def test_values_may_lie_in_any_orders(seed: int) -> None:
    rng = random.Random(seed)

    def drawn(x: Any) -> Any:
        values = [x]
        for _ in range(6):
            a, b = rng.choice(values), rng.choice(values)
            axis = rng.randrange(3)
            kinds = (fw.sort(a, axis=axis), fw.cumulative_sum(a, axis=axis), a + b, a * 0.5,
                     a - fw.max(b, axis=axis, keepdims=True))  # fmt: skip
            values.append(rng.choice(kinds))
        return values[-1], values[-2]

    strides = rng.choice([None, (1, 3, 15), (20, 1, 5)])
    fusion = fw.trace(drawn, fw.TensorSpec((3, 5, 4), "float32", strides=strides))
    wanted = {t: tuple(rng.sample(range(3), 3)) for t in fusion.values if may_lie(t)}
    x = np.random.default_rng(seed).standard_normal((3, 5, 4)).astype(np.float32)
    followed = follow_memory(fusion, wanted)
    for a, b in zip(fw.evaluate(followed.fusion, x), fw.evaluate(fusion, x), strict=True):
        np.testing.assert_array_equal(a, b)
    results = {t.name for t in fusion.outputs}
    stored = {t.name: o for t, o in wanted.items() if t.name not in results}
    assert all(followed.orders.get(n, (0, 1, 2)) == o for n, o in stored.items())
