"""Integers whose range is known are computed in 32 bits, and remainders of what is less than one
period away are choices; values stay what they are in 64 bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fusewright as fw
from fusewright.forms import prepare
from fusewright.fusion.ir import Fusion, Pointwise, behind_views
from fusewright.fusion.passes.narrow_positions import narrow_positions
from fusewright.fusion.ranges import ranges_of
from fusewright.target import target_of

TARGET = target_of("sm_90a")
ROWS, COLUMNS = 11, 37


def _functions(fusion: Fusion) -> dict[str, set[str]]:
    """The dtypes of the operands of each function."""
    out: dict[str, set[str]] = {}
    for t in fusion.values:
        if isinstance(t.op, Pointwise):
            out.setdefault(t.op.fn, set()).update(o.dtype.name for o in t.op.operands)
    return out


def _tril_of_roll(x: Any) -> Any:
    return fw.roll(fw.exp(fw.tril(x)), 5, axis=1)


def test_a_mask_of_rolled_positions_has_neither_64_bits_nor_a_remainder() -> None:
    fusion = prepare(fw.trace(_tril_of_roll, fw.TensorSpec((ROWS, COLUMNS), "float32")), TARGET)
    found = _functions(fusion)
    assert "rem" not in found
    assert not any("int64" in dtypes for dtypes in found.values())
    cuda = fw.compile(fw.trace(_tril_of_roll, fw.TensorSpec((ROWS, COLUMNS), "float32"))).kernels
    assert not any("  long long " in k.cuda for k in cuda)


SHIFTS = (-COLUMNS - 1, -COLUMNS, -1, 0, 1, COLUMNS - 1, COLUMNS, COLUMNS + 1, 3 * COLUMNS)


@pytest.mark.parametrize("shift", SHIFTS)
def test_remainders_of_positions_are_exact(shift: int) -> None:
    def fn(x: Any) -> Any:
        return x + fw.astype((fw.arange(COLUMNS) + shift) % COLUMNS, "float32")

    fusion = fw.trace(fn, fw.TensorSpec((ROWS, COLUMNS), "float32"))
    narrow = narrow_positions(fusion)
    low, high = shift, shift + COLUMNS - 1
    is_near = low >= -COLUMNS and high < 2 * COLUMNS
    assert ("rem" in _functions(narrow)) == (not is_near)
    x = np.random.default_rng(3).standard_normal((ROWS, COLUMNS)).astype(np.float32)
    want = x + ((np.arange(COLUMNS) + shift) % COLUMNS).astype(np.float32)
    np.testing.assert_array_equal(fw.evaluate(narrow, x)[0], want)
    found = fw.compile(fusion).simulate(x)
    assert found.races == []
    np.testing.assert_array_equal(found.outputs[0], want)


@pytest.mark.parametrize(("factor", "dtype"), [(2**31 // 4, "int64"), ((2**31 - 1) // 4, "int32")])
def test_32_bits_are_used_up_to_their_end(factor: int, dtype: str) -> None:
    def fn(x: Any) -> Any:
        return x < fw.astype(fw.arange(5) * factor, "float32")

    fusion = narrow_positions(fw.trace(fn, fw.TensorSpec((3, 5), "float32")))
    assert _functions(fusion)["mul"] == {dtype}
    x = np.arange(15, dtype=np.float32).reshape(3, 5) * factor / 3
    want = x < (np.arange(5) * factor).astype(np.float32)
    np.testing.assert_array_equal(fw.evaluate(fusion, x)[0], want)


def test_integers_of_arguments_keep_64_bits() -> None:
    def fn(x: Any, y: Any) -> Any:
        return (x + fw.arange(5)) % 7, fw.astype(y, "int64") * 3

    specs = fw.TensorSpec((3, 5), "int64"), fw.TensorSpec((3, 5), "int16")
    found = _functions(narrow_positions(fw.trace(fn, *specs)))
    assert found["add"] == {"int64"} and found["rem"] == {"int64"}
    assert found["mul"] == {"int32"}


def _random(rng: np.random.Generator) -> Callable[..., Any]:
    """A chain of integer functions of coordinates, a short argument and literals."""
    steps = [(str(rng.choice(list(BINARY))), int(rng.integers(-60, 60))) for _ in range(5)]

    def fn(x: Any) -> Any:
        known = [
            fw.astype(x, "int64"),
            fw.broadcast_to(fw.arange(COLUMNS), (ROWS, COLUMNS)),
            fw.reshape(fw.arange(ROWS * COLUMNS), (ROWS, COLUMNS)) * 7,
        ]
        for k, (name, literal) in enumerate(steps):
            a = known[(k * 7 + literal) % len(known)]
            b = known[-1] if literal % 3 else literal
            known.append(BINARY[name](a, b, literal))
        return known[-1], known[-2] < known[-1], fw.astype(known[-1], "float32")

    return fn


BINARY: dict[str, Callable[[Any, Any, int], Any]] = {
    "add": lambda a, b, _: a + b,
    "sub": lambda a, b, _: a - b,
    "mul": lambda a, b, _: a * b,
    "negative": lambda a, *_: -a,
    "absolute": lambda a, *_: abs(a),
    "smaller": lambda a, b, _: fw.where(a < b, a, b),
    "rest": lambda a, _, n: a % (abs(n) + 1),
    "quotient": lambda a, _, n: a // (abs(n) + 1),
}


@pytest.mark.parametrize("seed", range(40))
def test_random_chains_agree_and_stay_in_their_ranges(seed: int) -> None:
    fusion = fw.trace(_random(np.random.default_rng(seed)), fw.TensorSpec((ROWS, COLUMNS), "int8"))
    x = np.random.default_rng(seed + 1).integers(-128, 128, (ROWS, COLUMNS)).astype(np.int8)
    outs = fw.evaluate(fusion, x)
    narrow = narrow_positions(fusion)
    for got, want in zip(fw.evaluate(narrow, x), outs, strict=True):
        np.testing.assert_array_equal(got, want)
    for t, (low, high) in ranges_of(fusion.values).items():
        if t in fusion.outputs:
            value = np.asarray(outs[fusion.outputs.index(t)])
            assert low <= value.min() and value.max() <= high
    found = fw.compile(fusion).simulate(x)
    assert found.races == []
    for got, want in zip(found.outputs, outs, strict=True):
        np.testing.assert_array_equal(got, want)


def test_views_of_coordinates_are_narrow_too() -> None:
    fusion = prepare(fw.trace(lambda x: fw.triu(x, 2), fw.TensorSpec((5, 7), "float32")), TARGET)
    compared = [
        behind_views(o).dtype.name
        for t in fusion.values
        if isinstance(t.op, Pointwise) and t.op.fn in ("ge", "sub")
        for o in t.op.operands
    ]
    assert compared and set(compared) == {"int32"}
