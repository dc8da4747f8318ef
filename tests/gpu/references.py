"""Inputs, numpy references and tolerances for kernels that run on a device."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from fusewright.core.expr import Var
from fusewright.core.functions import FUNCTIONS
from fusewright.cuda.compile import compile_cubin
from fusewright.cuda.emit import emit
from fusewright.dtypes import DType
from fusewright.kir.ir import Kernel
from fusewright.runtime import device
from fusewright.runtime.launch import LoadedKernel, run
from fusewright.target import target_of

Array = npt.NDArray[Any]

# Correctly rounded or exact in the compute type; everything else may be off by ULPS.
# fmt: off
EXACT = frozenset((
    "neg", "abs", "sign", "sqrt", "floor", "ceil", "trunc", "round", "reciprocal", "copy", "add",
    "sub", "mul", "div", "floordiv", "rem", "max", "min", "copysign", "nextafter", "where", "fma",
    "logical_not", "isnan", "isinf", "isfinite", "signbit", "eq", "ne", "lt", "le", "gt", "ge",
    "and", "or", "xor", "round_bfloat16",
))
# fmt: on
ULPS = 8  # the CUDA Programming Guide's table of maximal errors stays below


def on_device(
    kernel: Kernel,
    buffers: Sequence[Array],
    *,
    arguments: Sequence[float] = (),
    sizes: Mapping[Var, int] | None = None,
) -> list[Array]:
    """Compile for the device that is there, run once, return what the kernel wrote."""
    target = target_of(device.architecture())
    compiled = compile_cubin(emit(kernel, target), target, name=kernel.name)
    loaded = LoadedKernel(compiled.cubin, kernel)
    return run(loaded, buffers, arguments=arguments, sizes=sizes)


def inputs(dtype: DType, n: int, seed: int) -> Array:
    """Random values of a dtype, special ones strewn in."""
    rng = np.random.default_rng(seed)
    if dtype.kind == "bool":
        return rng.random(n) < 0.5
    if dtype.is_integer:
        limits = np.iinfo(dtype.numpy)
        wide = rng.integers(limits.min, limits.max, n, dtype.numpy, endpoint=True)
        small = rng.integers(0 if dtype.kind == "uint" else -9, 9, n).astype(dtype.numpy)
        special = np.array([0, 1, limits.min, limits.max], dtype.numpy)
        mixed = np.where(rng.random(n) < 0.5, wide, small)
    else:
        mixed = (rng.standard_normal(n) * 10.0 ** rng.integers(-2, 2, n)).astype(dtype.numpy)
        infinity = [] if dtype.nbytes == 1 else [np.inf, -np.inf]
        special = np.array([0.0, -0.0, 1.0, -1.0, 0.5, 2.5, np.nan, *infinity]).astype(dtype.numpy)
    strewn = rng.random(n) < 0.1
    return np.where(strewn, rng.choice(special, n), mixed)


def narrowed(values: Array, dtype: DType) -> Array:
    """Values as elements of a dtype, 8-bit floats saturating."""
    if dtype.is_float and dtype.nbytes == 1:
        largest = float(ml_dtypes.finfo(dtype.numpy).max)
        with np.errstate(over="ignore"):
            values = np.clip(values.astype(np.float32), -largest, largest)
    with np.errstate(all="ignore"):
        return values.astype(dtype.numpy)


def _fused(a: float, b: float, c: float) -> float:
    """`a * b + c` rounded once."""
    if not all(map(math.isfinite, (a, b, c))) or a * b + c == 0:
        return a * b + c
    return float(Fraction(a) * Fraction(b) + Fraction(c))


def reference(fn: str, operands: Sequence[Array], dtype: DType) -> Array:
    """`fn` by numpy: integers as they are, inexact float functions in float64."""
    f = FUNCTIONS[fn].numpy
    if dtype.is_integer and fn in ("floor", "ceil", "trunc", "round"):
        return operands[0]
    if fn == "fma" and dtype.name == "float64":
        return np.array([_fused(*map(float, abc)) for abc in zip(*operands, strict=True)])
    result = FUNCTIONS[fn].result
    if dtype.is_float:
        compute = dtype.compute.numpy if fn in EXACT else np.dtype(np.float64)
        operands = [o if o.dtype == bool else o.astype(compute) for o in operands]
    values = f(*operands)
    return values if result != "same" else narrowed(values, dtype)


def assert_close(got: Array, expected: Array, dtype: DType, *, ulps: int, what: str) -> None:
    """Equal, both NaN, or within `ulps` units in the last place of the expected value."""
    assert got.dtype == expected.dtype, what
    if not dtype.is_float or got.dtype == bool or got.dtype == np.uint32:
        wrong = got != expected
    else:
        g, e = got.astype(np.float64), expected.astype(np.float64)
        finite = np.isfinite(e)
        finfo = ml_dtypes.finfo(dtype.numpy)
        exponent = np.floor(np.log2(np.maximum(np.abs(np.where(finite, e, 1.0)), finfo.tiny)))
        unit = 2.0 ** (exponent - finfo.nmant)
        with np.errstate(invalid="ignore"):
            near = finite & (np.abs(g - e) <= ulps * unit)
        wrong = ~(near | (g == e) | (np.isnan(g) & np.isnan(e)))
    where = np.flatnonzero(wrong)
    assert where.size == 0, (
        f"{what}: {where.size} of {got.size} differ, first at {where[0]}: "
        f"got {got[where[0]]!r}, expected {expected[where[0]]!r}"
    )
