"""Literals whose value makes other code stay in the text of a kernel; all others are parameters."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fusewright as fw

INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
OPS: dict[str, Callable[[Any, Any], Any]] = {
    "//": lambda x, k: x // k,
    "%": lambda x, k: x % k,
    "**": lambda x, k: x**k,
    "<<": lambda x, k: x << k,
    ">>": lambda x, k: x >> k,
}


def values_of(dtype: str) -> np.ndarray:
    """All that is near a border of a dtype, and some between."""
    r = np.iinfo(dtype)
    near = [n for b in (r.min, 0, r.max) for n in range(b - 40, b + 41) if r.min <= n <= r.max]
    return np.array(near + near[: -len(near) % 8], dtype)


def literals_of(op: str, dtype: str) -> list[int]:
    """Divisors, exponents or shifts, with 0 and what is out of range."""
    r = np.iinfo(dtype)
    if op in ("//", "%"):
        return [k for k in (r.min, -7, -4, -2, -1, 0, 1, 2, 3, 5, 8, 100, r.max) if r.min <= k]
    if op == "**":
        return [k for k in (-3, -2, 0, 2, 3, 7, 8) if r.min <= k]
    return [k for k in (-3, 0, 2, 7, 8 * np.dtype(dtype).itemsize, 100) if r.min <= k]


CTYPES = {
    "int8": "signed char",
    "uint8": "unsigned char",
    "int16": "short",
    "uint16": "unsigned short",
    "int32": "int",
    "uint32": "unsigned",
    "int64": "long long",
}


def kernels_of(f: Callable[..., Any], *specs: fw.TensorSpec) -> list[fw.Kernel]:
    return list(fw.compile(fw.trace(f, *specs)).kernels)


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("op", OPS)
def test_integer_literals_are_in_the_text_and_right(op: str, dtype: str) -> None:
    literals = literals_of(op, dtype)
    x = values_of(dtype)

    def f(x: Any) -> Any:
        return tuple(OPS[op](x, k) for k in literals)

    spec = fw.TensorSpec(x.shape, dtype)
    program = fw.compile(fw.trace(f, spec))
    assert not any(k.ir.arguments for k in program.kernels)
    result = program.simulate(x)
    assert not result.races
    with np.errstate(all="ignore"):
        for k, got, want in zip(
            literals, result.outputs, fw.evaluate(fw.trace(f, spec), x), strict=True
        ):
            np.testing.assert_array_equal(got, want, err_msg=f"{op} {k}")


def test_a_division_by_a_literal_multiplies() -> None:
    """The text divides by a number, so that the machine code has no division by a variable, which
    asks the unit for reciprocals (MUFU.RCP) or calls a routine."""
    spec = fw.TensorSpec((4096, 512), "int32")
    (known,) = kernels_of(lambda x: x // 3, spec)
    assert "fw_floordiv_by<int, 3>(x_c[0])" in known.cuda
    assert "MUFU" not in known.sass()


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64"])
def test_which_divisors_are_multiplied_by(dtype: str) -> None:
    """Of 2 and more, and integers that one instruction multiplies."""
    spec = fw.TensorSpec((4096,), dtype)
    for divisor in (0, 1, 2, 100):
        (kernel,) = kernels_of(lambda x, d=divisor: (x % d) + (x // d), spec)
        multiplied = dtype != "int64" and divisor >= 2
        assert (f"_by<{CTYPES[dtype]}, {divisor}>" in kernel.cuda) == multiplied, divisor


@pytest.mark.parametrize("dtype", ["int8", "int16"])
def test_division_of_short_integers_takes_few_instructions(dtype: str) -> None:
    """A sum, a product of which the upper part counts, and the sum undone; the remainder one more
    product. Of 16 elements by two divisors, with loads, unpacking and stores."""
    (kernel,) = kernels_of(lambda x: (x // 7) % 5, fw.TensorSpec((1 << 20,), dtype))
    lanes = dict(kernel.heuristic.values)["vector"] if kernel.heuristic else 1
    instructions = re.findall(r"/\*[0-9a-f]{4}\*/", kernel.sass())
    assert len(instructions) < 60 + 13 * lanes


def sums(f: Callable[[Any, int], Any]) -> list[fw.Kernel]:
    """Two kernels that differ in one literal alone."""
    spec = fw.TensorSpec((64, 512), "int32")
    found = [kernels_of(lambda x, k=k: fw.sum(f(x, k), axis=1), spec) for k in (3, 5)]
    return [kernel for (kernel,) in found]


def test_other_divisors_are_other_kernels() -> None:
    three, five = sums(lambda x, k: x // k)
    assert str(three.ir) != str(five.ir)
    assert not three.ir.arguments and not five.ir.arguments


def test_other_summands_share_a_kernel() -> None:
    three, five = sums(lambda x, k: x + k)
    assert str(three.ir) == str(five.ir)
    assert len(three.ir.arguments) == 1


def test_float_divisors_are_parameters() -> None:
    real = fw.TensorSpec((64, 512), "float32")
    (kernel,) = kernels_of(lambda x: x // 3.0, real)
    assert len(kernel.ir.arguments) == 1


def test_a_literal_may_be_a_divisor_and_a_summand() -> None:
    """One constant of the program with both kinds of readers is text to one, a parameter to the
    other; programs that differ in it do not share a kernel."""
    x = np.random.default_rng(0).integers(-99, 99, (64, 512), dtype=np.int32)
    for k in (3, 5):
        spec = fw.TensorSpec(x.shape, "int32")
        program = fw.compile(fw.trace(lambda v, k=k: fw.sum(v // k + k, axis=1), spec))
        np.testing.assert_array_equal(program.simulate(x).outputs[0], (x // k + k).sum(1))
        assert len(program.kernels[0].ir.arguments) == 1
    three, five = sums(lambda v, k: v // k + k)
    assert str(three.ir) != str(five.ir)
