"""Steps over lists of tensors: few launches, the results of the oracle, and what stays apart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import fusewright as fw
from fusewright.kir.traverse import walk_statements
from fusewright.programs.join_launches import MAX_STATEMENTS, PARAMETER_NBYTES

S = fw.TensorSpec
SHAPES = [(40, 64), (33,), (17, 3), (1000,), (8, 8), (2,), (40, 64), (5, 129)]


def sgd(*ts: Any) -> list[Any]:
    return [p - 0.1 * g for p, g in zip(ts[::2], ts[1::2], strict=True)]


def adamw(*ts: Any) -> list[Any]:
    out: list[Any] = []
    for p, g, m, v in zip(*(ts[k::4] for k in range(4)), strict=True):
        m, v = m * 0.9 + g * 0.1, v * 0.99 + g * g * 0.01
        out += [p * 0.999 - m / (fw.sqrt(v) + 1e-3) * 0.01, m, v]
    return out


def specs_of(shapes: Sequence[tuple[int, ...]], times: int) -> list[fw.TensorSpec]:
    return [S(s, "float32") for s in shapes for _ in range(times)]


def agrees(program: fw.Program, specs: Sequence[fw.TensorSpec]) -> None:
    rng = np.random.default_rng(0)
    shapes = [tuple(int(str(n)) for n in s.shape) for s in specs]
    arrays = [np.abs(rng.standard_normal(s)).astype(np.float32) for s in shapes]
    result = program.simulate(*arrays)
    assert result.races == []
    for got, want in zip(result.outputs, fw.evaluate(program.fusion, *arrays), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("fn", "times"), [(sgd, 2), (adamw, 4)])
def test_a_step_over_small_tensors_is_one_launch(fn: Any, times: int) -> None:
    specs = specs_of(SHAPES, times)
    program = fw.compile(fw.trace(fn, *specs))
    assert len(program.launches) == 1
    assert len(program.kernels[0].parts) == len(SHAPES)
    agrees(program, specs)


def test_a_step_in_place() -> None:
    """Every part writes over its own arguments."""
    specs = specs_of(SHAPES, 2)
    fusion = fw.trace(sgd, *specs)
    names = [t.name for t in fusion.inputs[::2]]
    program = fw.compile(fusion, donate=names)
    assert len(program.launches) == 1
    assert not program.host.stats["not_placed"] and len(program.held) == len(SHAPES)
    agrees(program, specs)


def test_a_scalar_of_another_kernel_comes_first() -> None:
    """The norm of everything is known before the step begins, which is one launch."""

    def clipped(x: Any, *ts: Any) -> list[Any]:
        scale = fw.rsqrt(fw.sum(x * x) + 1.0)
        return [p - g * scale for p, g in zip(ts[::2], ts[1::2], strict=True)]

    specs = [S((3000,), "float32"), *specs_of(SHAPES, 2)]
    program = fw.compile(fw.trace(clipped, *specs))
    assert [len(x.kernel.parts) for x in program.launches] == [0, len(SHAPES)]
    agrees(program, specs)


def test_what_reads_a_part_stays_behind() -> None:
    """`b` is made of `a` by an equal kernel: neither may move beside the other."""

    def chain(x: Any, y: Any) -> list[Any]:
        a = fw.exp(x) * 2.0
        b = fw.exp(fw.sum(a, axis=0) + y) * 2.0
        return [a, b]

    specs = [S((300, 700), "float32"), S((700,), "float32")]
    program = fw.compile(fw.trace(chain, *specs))
    assert all(not x.kernel.parts for x in program.launches)
    agrees(program, specs)


def test_other_functions_stay_apart() -> None:
    specs = specs_of([(33,), (17, 3)], 1)
    program = fw.compile(fw.trace(lambda a, b: [fw.exp(a), fw.sin(b)], *specs))
    assert [len(x.kernel.parts) for x in program.launches] == [0, 0]


def test_a_launch_has_limits() -> None:
    """Tensors beyond what the parameters of a kernel hold, or its text, are another launch."""
    specs = specs_of([(100 + k,) for k in range(180)], 2)
    program = fw.compile(fw.trace(sgd, *specs))
    assert 1 < len(program.launches) <= 4
    for k in program.kernels:
        assert 8 * len(k.ir.params) <= PARAMETER_NBYTES
        assert sum(1 for _ in walk_statements(k.ir)) <= 2 * MAX_STATEMENTS
    assert sum(len(k.parts) for k in program.kernels) == 180


def test_the_time_of_a_joined_launch_is_that_of_its_bytes() -> None:
    one = fw.compile(fw.trace(sgd, *specs_of([(4096, 1024)], 2))).kernels[0].predicted
    (kernel,) = fw.compile(
        fw.trace(sgd, *specs_of([(1024, 1024 + 64 * k) for k in (-1, 0, 0, 1)], 2))
    ).kernels
    assert one is not None and kernel.predicted is not None
    assert kernel.predicted.us == pytest.approx(one.us, rel=0.1)
