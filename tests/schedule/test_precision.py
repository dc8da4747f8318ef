"""Which functions are computed by faster forms."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fusewright as fw

Fn = Callable[..., Any]


def around_maximum(x: fw.Array) -> fw.Array:
    return fw.sum(fw.exp(x - fw.max(x, axis=1, keepdims=True)), axis=1)


def around_finite_maximum(x: fw.Array) -> fw.Array:
    m = fw.max(x, axis=1, keepdims=True)
    return fw.sum(fw.exp(x - fw.where(fw.isfinite(m), m, 0.0)), axis=1)


def around_maximum_or_zero(x: fw.Array) -> fw.Array:
    m = fw.max(x, axis=1, keepdims=True)
    return fw.sum(fw.exp(x - fw.where(m == -fw.inf, 0.0, m)), axis=1)


def around_maximum_of_others(x: fw.Array) -> fw.Array:
    return fw.sum(fw.exp(x - fw.max(fw.sin(x), axis=1, keepdims=True)), axis=1)


def around_maximum_of_computed(x: fw.Array) -> fw.Array:
    return around_maximum(x * 3.0)


def around_mean(x: fw.Array) -> fw.Array:
    return fw.sum(fw.exp(x - fw.mean(x, axis=1, keepdims=True)), axis=1)


def around_nothing(x: fw.Array) -> fw.Array:
    return fw.sum(fw.exp(x), axis=1)


def largest(x: fw.Array) -> fw.Array:
    return fw.max(fw.exp(x - fw.max(x, axis=1, keepdims=True)), axis=1)


def softmax(x: fw.Array) -> fw.Array:
    return fw.nn.softmax(x, axis=1)


def forms(fn: Fn, dtype: str) -> set[str]:
    program = fw.compile(fw.trace(fn, fw.TensorSpec((64, 96), dtype)))
    text = "".join(str(k.ir) for k in program.kernels)
    return {f for f in ("exp", "exp_added", "exp_approx") if f" {f}(" in text}


@pytest.mark.parametrize(
    ("fn", "dtype", "expected"),
    [
        (around_maximum, "float32", {"exp_added"}),
        (around_maximum_or_zero, "float32", {"exp_added"}),
        (around_maximum_of_computed, "float32", {"exp_added"}),
        (around_maximum_of_others, "float32", {"exp"}),
        (around_finite_maximum, "float32", {"exp"}),  # +inf - 0 is +inf
        (around_maximum, "bfloat16", {"exp_approx"}),
        (around_maximum, "float64", {"exp"}),
        (around_mean, "float32", {"exp"}),
        (around_nothing, "float32", {"exp"}),
        (largest, "float32", {"exp"}),
        (softmax, "float32", {"exp"}),
    ],
)
def test_forms_of_exponentials(fn: Fn, dtype: str, expected: set[str]) -> None:
    assert forms(fn, dtype) == expected


def exp_added(x: np.ndarray) -> np.ndarray:
    """`fw_exp_added` in steps of float32, with an exact power of two."""
    f, log2e, ln2 = np.float32, np.float32(1.4426950408889634), np.float32(0.6931471805599453)
    wide = x.astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        exact = wide * np.float64(log2e)
        t = exact.astype(f)
        t = np.where(t > exact, np.nextafter(t, f(-np.inf)), t)  # rounded down
        d = (wide - t.astype(np.float64) * np.float64(ln2)).astype(f)
        d = np.where(np.isnan(d), f(0), np.clip(d, f(0), f(1)))  # saturated
        y = np.exp2(t.astype(np.float64)).astype(f)
        y = np.where(y < np.finfo(f).tiny, f(0), y)
        y = y.astype(np.float64)
        return (y * d.astype(np.float64) + y).astype(f)


def test_the_added_form_is_as_good_as_it_says() -> None:
    rng = np.random.default_rng(0)
    x = -np.concatenate([rng.uniform(0, 80, 1 << 16), rng.uniform(0, 1, 1 << 16)]).astype("f4")
    exact = np.exp(x.astype(np.float64))
    error = np.abs(exp_added(x) - exact) / exact
    assert (error <= 2.0**-22 + np.abs(x) * 2.0**-26).all()
    assert error[x > -1].max() < 2.0**-22


def test_the_added_form_at_the_ends() -> None:
    x = np.array([0, -0.0, -1e-40, -90, -128, -1e38, -3.4e38, -np.inf, np.nan], np.float32)
    got = exp_added(x)
    assert got[:3].tolist() == [1, 1, 1]
    assert got[3:8].tolist() == [0] * 5
    assert np.isnan(got[8])


def test_parts_of_what_is_rounded_in_the_end_are_approximate() -> None:
    """The kernel that sums up parts stores float32, of which another one keeps 16 bits."""

    def spread(x: fw.Array) -> fw.Array:
        return fw.std(fw.exp(x))

    def kernels(dtype: str) -> list[str]:
        program = fw.compile(fw.trace(spread, fw.TensorSpec((1 << 20,), dtype)))
        assert len(program.kernels) > 1
        return [str(k.ir) for k in program.kernels]

    short, wide = kernels("bfloat16"), kernels("float32")
    assert " exp_approx(" in short[0]
    assert not any("_approx(" in text for text in wide)


def test_what_is_also_stored_whole_is_exact() -> None:
    def both(x: fw.Array) -> tuple[fw.Array, fw.Array]:
        y = fw.exp(x)
        return y, fw.astype(y * 2.0, "bfloat16")

    (kernel,) = fw.compile(fw.trace(both, fw.TensorSpec((64, 96), "float32"))).kernels
    assert "exp_approx(" not in str(kernel.ir) and " exp(" in str(kernel.ir)


def test_kernels_of_one_text_differ_where_only_one_is_rounded_later() -> None:
    def f(x: fw.Array, y: fw.Array) -> tuple[fw.Array, fw.Array]:
        return fw.astype(fw.mean(fw.exp(x)), "bfloat16"), fw.mean(fw.exp(y))

    program = fw.compile(fw.trace(f, *[fw.TensorSpec((1 << 20,), "float32")] * 2))
    texts = [str(x.kernel.ir) for x in program.launches]
    assert sum(" exp_approx(" in t for t in texts) == 1 == sum(" exp(" in t for t in texts)


def leaky(x: fw.Array) -> fw.Array:
    return fw.where(x > 0, x, 0.1 * x)


def elu(x: fw.Array) -> fw.Array:
    return fw.where(x <= 0, fw.expm1(x), x)


def gated(x: fw.Array) -> fw.Array:
    return fw.where(x > 0, fw.abs(x) * fw.exp(x), 0.0)


def stepped(x: fw.Array) -> fw.Array:
    return fw.where(x > 0, x, 1.0)


def shifted(x: fw.Array) -> fw.Array:
    return fw.where(x > 1, x, 0.1 * x)


def told(x: fw.Array) -> Any:
    return leaky(x), x > 0


def counted(x: fw.Array) -> Any:
    return leaky(x), fw.sum(fw.astype(x > 0, "float32"))


@pytest.mark.parametrize(
    ("bend", "dtype", "is_approximate"),
    [
        (leaky, "float16", True),
        (elu, "bfloat16", True),
        (gated, "float16", True),
        (leaky, "float32", False),
        (stepped, "float16", False),
        (shifted, "float16", False),
        (told, "float16", False),
        (counted, "float16", False),
    ],
    ids=lambda x: getattr(x, "__name__", str(x)),
)
def test_a_sign_that_chooses_between_what_is_zero_with_it_needs_no_exact_value(
    bend: Fn, dtype: str, is_approximate: bool
) -> None:
    def fn(x: fw.Array, y: fw.Array) -> Any:
        found = bend(fw.astype(x, "float32") / fw.astype(y, "float32"))
        first, *rest = found if isinstance(found, tuple) else (found,)
        return fw.astype(first, dtype), *rest

    fusion = fw.trace(fn, *[fw.TensorSpec((33, 65), "float16")] * 2)
    program = fw.compile(fusion)
    text = "".join(str(k.ir) for k in program.kernels)
    assert ("div_approx(" in text) == is_approximate
    rng = np.random.default_rng(8)
    x, y = (rng.standard_normal((33, 65)).astype(np.float16) for _ in range(2))
    found = program.simulate(x, y)
    assert found.races == []
    for got, want in zip(found.outputs, fw.evaluate(fusion, x, y), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-2, atol=1e-3)
