"""Programs of every shape of loop nest: traced, cut, scheduled, lowered, simulated, compared."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import fusewright as fw
from corpus_checks import assert_agrees
from fusewright.driver import Kernels, compile_in_place
from fusewright.fusion.ir import Sym, TensorSpec
from fusewright.program import Program
from fusewright.target import Target, target_of
from fusewright.verify import random_values

SIZES = {"m": 6, "n": 133}
CHIPS = {"bn": replace(target_of("sm_90a"), multiprocessors=33)}
"""A quarter of the chip for a kernel whose blocks all wait for each other: each multiprocessor has
one, and the simulator asks of each pair of them what stands between them."""


def S(*shape: int | str, dt: str = "float32") -> TensorSpec:
    return TensorSpec(shape, dt)


def softmax(x):
    e = fw.exp(x - fw.max(x, axis=-1, keepdims=True))
    return e / fw.sum(e, axis=-1, keepdims=True)


def rms(x, w):
    return x * w / fw.sqrt(fw.mean(x * x, axis=-1, keepdims=True) + 1e-5)


def ln(x, w, b):
    m = fw.mean(x, axis=-1, keepdims=True)
    d = x - m
    v = fw.mean(d * d, axis=-1, keepdims=True)
    return d / fw.sqrt(v + 1e-5) * w + b


def rope(x, c, s):
    h = x.shape[-1] // 2
    a = x[..., :h]
    b = x[..., h:]
    return fw.concat([a * c - b * s, b * c + a * s], axis=-1)


CASES: dict[str, tuple[Callable[..., Any], list[TensorSpec]]] = {
    "ew": (lambda x, b: fw.exp(x + b) * 2.5, [S(37, 64), S(64)]),
    "ew_big": (
        lambda x, b: fw.tanh(x + b) * 2.5,
        [S(512, 512, dt="bfloat16"), S(512, dt="bfloat16")],
    ),
    "softmax": (softmax, [S(37, 64)]),
    "softmax_odd": (softmax, [S(5, 77)]),
    "softmax_big": (softmax, [S(3, 5000)]),
    "softmax_huge": (softmax, [S(2, 170001)]),
    "softmax_sym": (softmax, [S("m", "n")]),
    "rms_bf16": (rms, [S(16, 512, dt="bfloat16"), S(512, dt="bfloat16")]),
    "ln": (ln, [S(16, 300), S(300), S(300)]),
    "sum0": (lambda x: fw.sum(x, axis=0), [S(100, 65)]),
    "sumall": (lambda x: fw.sum(x), [S(100, 65)]),
    "summid": (lambda x: fw.sum(x, axis=1), [S(7, 50, 9)]),
    "sum02": (lambda x: fw.sum(x, axis=(0, 2)), [S(7, 50, 9)]),
    "softmax0": (lambda x: fw.exp(x) / fw.sum(fw.exp(x), axis=0), [S(100, 65)]),
    "where": (lambda c, x, y: fw.where(c, x, y), [S(33, 7, dt="bool"), S(33, 7), S(33, 7)]),
    "T": (lambda x, y: x.T + y, [S(33, 7), S(7, 33)]),
    "TT": (lambda x: x + x.T, [S(33, 33)]),
    "resh": (lambda x, y: fw.reshape(x, (24,)) + fw.reshape(y, (24,)), [S(4, 6), S(6, 4)]),
    "slice": (lambda x: x[1:] - x[:-1], [S(33)]),
    "slice2": (lambda x: fw.exp(x)[1:] - fw.exp(x)[:-1], [S(33)]),
    "slicee": (lambda x: (lambda e: e[1:] - e[:-1])(fw.exp(x)), [S(33)]),
    "eTe": (lambda x: (lambda e: e + e.T)(fw.exp(x)), [S(33, 33)]),
    "concat": (lambda x, y: fw.concat([x, fw.exp(y)], axis=1), [S(5, 7), S(5, 9)]),
    "flip": (lambda x: fw.flip(x, axis=0) * 2, [S(5, 7)]),
    "i32": (lambda x, y: x * y + 3, [S(100, dt="int32"), S(100, dt="int32")]),
    "var": (lambda x: fw.var(x, axis=0), [S(64, 33)]),
    "argmax": (lambda x: fw.argmax(x, axis=1), [S(64, 33)]),
    "matmul": (lambda x, y: x @ y, [S(20, 30), S(30, 10)]),
    "cumsum": (lambda x: fw.cumulative_sum(x, axis=1), [S(4, 100)]),
    "take": (lambda x, i: fw.take(x, i, axis=0), [S(10, 32), S(5, dt="int32")]),
    "two": (lambda x: (fw.exp(x), fw.sum(x, axis=1)), [S(10, 32)]),
    "full": (lambda x: x * 0 + fw.ones((3, 4)), [S(3, 4)]),
    "0d": (lambda x: x * 2, [S()]),
    "id": (lambda x: x, [S(5)]),
    "eye": (lambda x: x + fw.eye(5), [S(5, 5)]),
    "chain2": (lambda x: softmax(softmax(x)), [S(4, 50)]),
    "meanmean": (lambda x: x - fw.mean(x, axis=0) - fw.mean(x, axis=1, keepdims=True), [S(20, 30)]),
    "gn": (lambda x: fw.reshape(ln(fw.reshape(x, (6, 40)), 1.0, 0.0), (2, 12, 10)), [S(2, 12, 10)]),
    "gnw": (
        lambda x, w: fw.reshape(ln(fw.reshape(x, (6, 40)), 1.0, 0.0), (2, 12, 10)) * w[:, None],
        [S(2, 12, 10), S(12)],
    ),
    "bigsum": (lambda x: fw.sum(x * x), [S(300, 1001)]),
    "bigsum0": (lambda x: fw.sum(x, axis=0), [S(70000, 33)]),
    "bn": (
        lambda x: (x - fw.mean(x, axis=0)) / fw.sqrt(fw.var(x, axis=0) + 1e-5),
        [S(20000, 33, dt="float16")],
    ),
    "sumrow": (lambda x: fw.sum(x, axis=1), [S(3, 100003, dt="bfloat16")]),
    "rope": (rope, [S(2, 3, 16, 8), S(16, 4), S(16, 4)]),
    "rope2": (lambda x, c, s: rope(x * 2, c, s), [S(2, 3, 16, 8), S(16, 4), S(16, 4)]),
    "pad": (lambda x: fw.pad(fw.exp(x), ((1, 2), (0, 3))), [S(5, 7)]),
    "padsm": (lambda x: fw.pad(softmax(x), ((1, 2), (0, 3))), [S(5, 7)]),
    "qkv": (lambda x: x[:, :8] * x[:, 8:16] + x[:, 16:], [S(4, 24)]),
    "T_out": (lambda x: fw.exp(x).T, [S(33, 70)]),
    "bout": (lambda x: fw.broadcast_to(fw.exp(x), (4, 5)), [S(5)]),
    "zero": (lambda x: (x * 2, fw.sum(x, axis=0)), [S(0, 5)]),
    "f16": (lambda x: fw.astype(fw.astype(x, "float16") * 3, "float32"), [S(130)]),
}


def arrays_for(specs: list[TensorSpec]) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    out: list[np.ndarray] = []
    for s in specs:
        named = (e.name if isinstance(e, Sym) else e for e in s.shape)
        shape = tuple(SIZES[e] if isinstance(e, str) else e for e in named)
        out.append(random_values(rng, shape, s.dtype))
    return out


@pytest.mark.parametrize("name", CASES)
def test_simulator_agrees_with_the_oracle(name: str) -> None:
    fn, specs = CASES[name]
    fusion = fw.trace(fn, *specs)
    arrays = arrays_for(specs)
    program = fw.compile(fusion, CHIPS.get(name, "sm_90a"))
    assert any(k.ir.semaphores for k in program.kernels) == (name in CHIPS)
    result = program.simulate(*arrays)
    assert result.races == []
    for got, want in zip(result.outputs, fw.evaluate(fusion, *arrays), strict=True):
        assert_agrees(got, want)


@pytest.mark.parametrize(
    "name", ["softmax", "ln", "rms_bf16", "gn", "chain2", "rope", "pad", "qkv"]
)
def test_these_are_one_kernel(name: str) -> None:
    fn, specs = CASES[name]
    assert len(fw.compile(fw.trace(fn, *specs)).launches) == 1


# --- kernels of several programs ----------------------------------------------------------------


def test_programs_with_one_table_share_kernels() -> None:
    """Equal structures are one kernel, whatever their tensors are called; results are each
    program's own."""
    target, other = target_of("sm_90a"), target_of("sm_80")
    kernels: Kernels = {}
    specs = [S(6, 133), S(6, 133)]

    def program(fn: Callable[..., Any], to: Target) -> Program:
        return compile_in_place(fw.trace(fn, *specs), to, kernels=kernels)

    first = program(lambda x, y: softmax(x) * 2.0 + y, target)
    second = program(lambda y, x: softmax(x) * 3.0 + y, target)
    assert second.kernels == first.kernels and len(kernels) == 1
    assert not set(program(lambda x, y: softmax(x) * 2.0 + y, other).kernels) & set(first.kernels)
    x, y = (np.random.default_rng(k).normal(size=(6, 133)).astype(np.float32) for k in range(2))
    e = np.exp(x - x.max(-1, keepdims=True))
    share = e / e.sum(-1, keepdims=True)
    for p, arrays, scale in ((first, (x, y), 2), (second, (y, x), 3)):
        made = p.simulate(*arrays)
        assert made.races == []
        np.testing.assert_allclose(made.outputs[0], share * scale + y, rtol=1e-5, atol=1e-6)
