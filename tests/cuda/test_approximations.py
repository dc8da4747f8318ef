"""The fast forms of functions whose results are rounded to 16 bits, in steps of float32.

Instructions of the unit for special functions are exact here but for the worst error that the PTX
ISA gives them, to either side. What the text spells is compared on devices (tests/gpu).
"""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest

import fusewright as fw
from fusewright.cuda.prelude import pieces

Floats = np.ndarray
F = np.float32
LOG2E, LN2 = F(1.4426950408889634), F(0.6931471805599453)
PROMISED = 2.0**-18


def constants(piece: str) -> list[np.float32]:
    """The numbers of a piece of the prelude, in the order of its text."""
    body = pieces()[piece].split("{", 1)[1]
    return [F(x) for x in re.findall(r"-?\d+\.\d+(?=f)", body)]


def fma(a: Floats, b: Floats | np.float32, c: Floats | np.float32) -> Floats:
    return (a.astype("f8") * np.asarray(b, "f8") + np.asarray(c, "f8")).astype(F)


def unit(exact: Floats, error: float, *, absolute: bool = False) -> Floats:
    """A result of the unit, off by as much as it may be."""
    return (exact + error if absolute else exact * (1 + error)).astype(F)


def series(x: Floats, *coefficients: np.float32) -> Floats:
    """x + x * (x * p), p a polynomial from its highest power on."""
    p = np.full_like(x, coefficients[0])
    for c in coefficients[1:]:
        p = fma(p, x, c)
    return fma(p * x, x, x)


def log1p(x: Floats, error: float) -> Floats:
    far = unit(np.log2((F(1) + x).astype("f8")), error, absolute=True) * LN2
    return np.where(np.abs(x) < F(0.0625), series(x, *constants("fw_log_series")), far)


def log(x: Floats, error: float) -> Floats:
    d = x - F(1)
    far = unit(np.log2(x.astype("f8")), error, absolute=True) * LN2
    return np.where(np.abs(d) < F(0.0625), series(d, *constants("fw_log_series")), far)


def expm1(x: Floats, error: float) -> Floats:
    far = unit(np.exp2((x * LOG2E).astype("f8")), error) - F(1)
    return np.where(np.abs(x) < F(0.125), series(x, *constants("fw_expm1_approx")[:3]), far)


def tanh(x: Floats, error: float) -> Floats:
    highest, c = constants("fw_tanh_approx")[:2]
    z = x * x
    near = fma(fma(z, highest, c) * z, x, x)
    e = unit(np.exp2((x * F(2 * 1.4426950408889634)).astype("f8")), error)
    far = fma(unit(1 / (F(1) + e).astype("f8"), error), F(-2), F(1))
    return np.where(np.abs(x) < F(0.25), near, far)


def around(end: float, *, positive: bool = False) -> Floats:
    """Numbers of all sizes, many where a series ends."""
    rng = np.random.default_rng(0)
    sizes = np.exp2(rng.uniform(-40, 6, 1 << 16))
    near = end * rng.uniform(0.9, 1.1, 1 << 14)
    x = np.concatenate([sizes, near])
    return (x if positive else np.concatenate([x, -x])).astype(F)


CASES: dict[str, tuple[Callable[[Floats, float], Floats], Callable[[Floats], Floats], Floats]] = {
    "log": (log, np.log, np.concatenate([around(1.0625, positive=True), 1 + around(0.0625) % 0.5])),
    "log1p": (log1p, np.log1p, np.maximum(around(0.0625), F(-0.99))),
    "expm1": (expm1, np.expm1, around(0.125)),
    "tanh": (tanh, np.tanh, around(0.25)),
}


@pytest.mark.parametrize("error", [2.0**-22, 0.0, -(2.0**-22)])
@pytest.mark.parametrize("name", CASES)
def test_a_form_is_as_good_as_it_says(name: str, error: float) -> None:
    form, exact, x = CASES[name]
    x = x.astype(F)
    with np.errstate(over="ignore"):
        want, got = exact(x.astype("f8")), form(x, error).astype("f8")
    inside = np.isfinite(want) & (np.abs(want) < 1e30) & (want != 0)
    assert inside.sum() > 1 << 16
    assert (np.abs(got - want)[inside] <= PROMISED * np.abs(want[inside])).all()


@pytest.mark.parametrize("fn", [fw.log, fw.log2, fw.log10, fw.log1p, fw.expm1, fw.tanh])
@pytest.mark.parametrize(("dtype", "is_fast"), [("bfloat16", True), ("float32", False)])
def test_forms_stand_for_results_of_16_bits(
    fn: Callable[[fw.Array], fw.Array], dtype: str, is_fast: bool
) -> None:
    """And what such a function is computed of may be approximate as well."""
    fusion = fw.trace(lambda x: fn(fw.sqrt(x) + 1), fw.TensorSpec((40, 96), dtype))
    (kernel,) = fw.compile(fusion).kernels
    assert (f"fw_{fn.__name__}_approx" in kernel.cuda or "fw_log_approx" in kernel.cuda) is is_fast
    assert ("fw_sqrt_approx" in kernel.cuda) is is_fast
    x = np.random.default_rng(0).uniform(0.1, 4, (40, 96)).astype(fusion.inputs[0].dtype.numpy)
    (got,), (want,) = kernel.simulate(x).outputs, fw.evaluate(fusion, x)
    np.testing.assert_allclose(got.astype("f8"), want.astype("f8"), rtol=0.01 if is_fast else 1e-6)
