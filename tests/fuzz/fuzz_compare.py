"""How far a kernel may be from the oracle: measured by rounding and disturbing the oracle itself.

The oracle runs again with every result of an operation rounded to the type that kernels compute in,
and moved by a random part of that type's precision; values that cross from one kernel to the next
are rounded to their dtype for some of their readers, as the kernel that makes them uses them
unrounded.
The spread of a few such runs bounds what rounding may do to each
element, whatever the program; where it says nothing (a comparison that rounding decides), nothing
is compared, and `Verdict.undecided` counts it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from fusewright.dtypes import DType
from fusewright.fusion import evaluate as oracle, ir
from fusewright.fusion.ir import Fusion, Tensor
from fusewright.fusion.summed_products import (
    is_of_matrices,
    repeated_axes,
    sum_of_products,
    summed_products,
)

RUNS = 8
SAFETY = 8.0
EXACT = (
    "copy",
    "neg",
    "abs",
    "max",
    "min",
    "where",
    "cast",
    "sign",
    "floor",
    "ceil",
    "trunc",
    "round",
    "copysign",
)
PRECISION = {
    "float8_e4m3": 4,
    "float8_e5m2": 3,
    "float16": 11,
    "bfloat16": 8,
    "float32": 24,
    "float64": 53,
}


@dataclass(frozen=True)
class Verdict:
    """`problem` is None when the outputs agree; elements compared, and those not decided."""

    problem: str | None
    compared: int
    undecided: int


def compare(
    fusion: Fusion,
    arrays: Sequence[np.ndarray],
    got: Sequence[np.ndarray],
    stored: Collection[str] = (),
) -> Verdict:
    """Whether `got` are outputs of a fusion that kernels may give; `stored` names the values that
    cross from one kernel to another."""
    sizes = oracle.bind_sizes(fusion, *arrays)
    want = oracle.evaluate(fusion, *arrays)
    runs = [disturbed(fusion, arrays, sizes, stored, seed) for seed in range(RUNS)]
    compared = undecided = 0
    for k, (w, g) in enumerate(zip(want, got, strict=True)):
        t = fusion.outputs[k]
        if g.shape != w.shape or g.dtype != w.dtype:
            return Verdict(f"output {k} is {g.dtype}{g.shape}, not {w.dtype}{w.shape}", 0, 0)
        wrong, open_ = differences(t.dtype, w, g, [r[k] for r in runs])
        compared += w.size
        undecided += int(open_.sum())
        if wrong.any():
            at = tuple(int(i) for i in np.argwhere(wrong)[0])
            return Verdict(
                f"output {k} at {at}: got {g[at]}, want {w[at]} "
                f"(disturbed: {[str(r[k][at]) for r in runs]}); {int(wrong.sum())} of {w.size} "
                "elements are wrong",
                compared,
                undecided,
            )
    return Verdict(None, compared, undecided)


def differences(
    dtype: DType, want: np.ndarray, got: np.ndarray, runs: Sequence[np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """Which elements are wrong, and which cannot be decided."""
    if not dtype.is_float:
        unsure = np.any([r != want for r in runs], axis=0) if runs else np.zeros(want.shape, bool)
        return (got != want) & ~unsure, unsure
    with np.errstate(all="ignore"):
        w, g = want.astype(np.float64), got.astype(np.float64)
        rs = [r.astype(np.float64) for r in runs]
        finite = np.isfinite(w) & np.all([np.isfinite(r) for r in rs], axis=0)
        spread = np.max([np.abs(r - w) for r in rs], axis=0)
        step = 2.0 ** (1 - PRECISION[dtype.name])
        least = float(np.abs(np.nextafter(dtype.numpy.type(0), dtype.numpy.type(1))))
        allowed = SAFETY * spread + 2 * step * np.abs(w) + 2 * least
        agree = _same(w, g) | np.any([_same(r, g) for r in rs], axis=0)
        unsure = ~finite & ~np.all([_same(r, w) for r in rs], axis=0)
        far = finite & ~(np.abs(g - w) <= allowed)
    wrong = ~agree & (far | (~finite & ~unsure))
    vague = unsure | (finite & (allowed > 0.5 * np.abs(w) + 0.1))
    return wrong, vague


def _same(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return (a == b) | (np.isnan(a) & np.isnan(b))


def disturbed(
    fusion: Fusion,
    arrays: Sequence[np.ndarray],
    sizes: dict,
    stored: Collection[str],
    seed: int,
) -> list[np.ndarray]:
    """The outputs with every inexact result rounded and moved; for seed 0 only rounded, as what is
    exact in a kernel must round as it does there."""
    rng = np.random.default_rng(seed) if seed else None
    values = {t: oracle.carried(a, t.dtype) for t, a in zip(fusion.inputs, arrays, strict=True)}
    summed, factors = summed_products(fusion), {}
    with np.errstate(all="ignore"):
        for t in fusion.values:
            if t in values:
                continue
            operands = [
                _stored(values[o], o, rng) if o.name in stored else values[o]
                for o in (() if t in factors else t.op.operands)
            ]
            if t in summed and t.name not in stored and is_of_matrices(*operands):
                factors[summed[t]] = operands
                continue
            if t in factors:
                values[t] = _moved_sum(t, *factors[t], rng)
                continue
            v = oracle._compute(t, operands, sizes)
            is_moved = t.dtype.is_float and not isinstance(t.op, ir.ViewBase)
            values[t] = _moved(t, v, operands, rng) if is_moved else v
        return [oracle.rounded(values[t], t.dtype) for t in fusion.outputs]


def _stored(v: np.ndarray, t: Tensor, rng: np.random.Generator | None) -> np.ndarray:
    """What one reader sees of a value that is stored: it may be in the kernel that makes it."""
    inside = rng is not None and rng.random() < 0.5
    return v if inside else oracle.carried(oracle.rounded(v, t.dtype), t.dtype)


def _moved_sum(
    t: Tensor, a: np.ndarray, b: np.ndarray, rng: np.random.Generator | None
) -> np.ndarray:
    """A sum of products of matrices, rounded, and moved as each product and each sum may be."""
    axes, compute = t.op.axes, t.dtype.compute
    v = sum_of_products(a, b, axes)
    if rng is not None:
        step = 2.0 ** (1 - PRECISION[compute.name])
        noise = rng.choice([-1.0, 1.0], size=np.shape(v)) * (1 + rng.random(np.shape(v)))
        n = np.prod([a.shape[k] for k in axes]) + 2
        scale = sum_of_products(_magnitude(a), _magnitude(b), axes)
        v = v + step * np.log2(n) * noise * scale
    return oracle.carried(oracle.rounded(np.asarray(v), compute), compute)


def _magnitude(a: np.ndarray) -> np.ndarray:
    """Magnitudes, repeated where the elements are."""
    repeated = repeated_axes([a])
    one = a[tuple(slice(0, 1) if k in repeated else slice(None) for k in range(a.ndim))]
    return np.broadcast_to(np.abs(one), a.shape)


def _moved(
    t: Tensor, v: np.ndarray, operands: list[np.ndarray], rng: np.random.Generator | None
) -> np.ndarray:
    compute = t.dtype.compute
    if rng is None:
        return oracle.carried(oracle.rounded(np.asarray(v), compute), compute)
    step = 2.0 ** (1 - PRECISION[compute.name])
    noise = rng.choice([-1.0, 1.0], size=np.shape(v)) * (1 + rng.random(np.shape(v)))
    match t.op:
        case ir.Pointwise(fn="cast") if operands[0].dtype.kind == "f":
            return v
        case ir.Pointwise(fn="logaddexp"):
            v = v + step * noise * np.maximum(*map(np.abs, operands))
        case ir.Pointwise(fn=fn) if fn not in EXACT:
            v = v * (1 + step * noise) + np.where(v == 0, 0, 2.0**-140) * noise
        case ir.Reduce(fn="add", axes=axes):
            n = np.prod([operands[0].shape[a] for a in axes]) + 1
            scale = np.add.reduce(np.abs(operands[0]), axis=axes)
            v = v + step * np.log2(n) * noise * scale
        case ir.Reduce(fn="mul", axes=axes):
            v = v * (1 + step * np.prod([operands[0].shape[a] for a in axes]) * noise)
        case ir.Scan(fn="add", axis=axis):
            n = operands[0].shape[axis]
            v = v + step * n * noise * np.add.accumulate(np.abs(operands[0]), axis=axis)
        case ir.Scan(fn="mul", axis=axis):
            v = v * (1 + step * operands[0].shape[axis] * noise)
        case ir.MatMul():
            scale = np.matmul(np.abs(operands[0]), np.abs(operands[1]))
            v = v + step * np.log2(operands[0].shape[-1] + 2) * noise * scale
        case _:
            pass
    return oracle.carried(oracle.rounded(np.asarray(v), compute), compute)
