"""Kernels whose registers the compiler spills are made in another way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import fusewright as fw
from fusewright import spills
from fusewright.cuda.resources import Resources
from fusewright.errors import ScheduleError, UserError
from fusewright.finish import Made
from fusewright.host.segment import Segment
from fusewright.kernel import Kernel
from fusewright.report.candidates import candidates_text
from fusewright.runtime.builds import BUILDER
from fusewright.spills import Way, without_spills

COLUMNS = 76800


def backward(dy: Any, x: Any, w: Any, mean: Any, rstd: Any) -> Any:
    """Of a layer norm over the first axis: gradients of what was normalised and of both weights."""
    g = fw.astype(dy, fw.float32)
    hat = (fw.astype(x, fw.float32) - mean) * rstd
    d = g * w
    dx = d - hat * fw.mean(d * hat, axis=0, keepdims=True) - fw.mean(d, axis=0, keepdims=True)
    return fw.astype(dx * rstd, x.dtype), fw.sum(g * hat, axis=1), fw.sum(g, axis=1)


def specs(columns: int = COLUMNS) -> list[fw.TensorSpec]:
    large = [fw.TensorSpec((17, columns), "bfloat16")] * 2
    rows = fw.TensorSpec((17, 1), "float32")
    return [*large, rows, *[fw.TensorSpec((1, columns), "float32")] * 2]


def arrays(columns: int = COLUMNS) -> list[np.ndarray]:
    rng = np.random.default_rng(17)
    found = [rng.standard_normal([int(str(n)) for n in s.shape]) for s in specs(columns)]
    return [a.astype(s.dtype.numpy) for a, s in zip(found, specs(columns), strict=True)]


def kernel_of() -> Kernel:
    return fw.compile(fw.trace(backward, *specs())).kernels[0]


def test_fewer_blocks_stand_on_a_multiprocessor_where_as_many_spill_more() -> None:
    program = fw.compile(fw.trace(backward, *specs()))
    kernel = program.kernels[0]
    left, *_ = kernel.spilled
    assert (left.what, left.is_kept) == ("4 blocks a multiprocessor", False)
    assert kernel.ir.min_blocks < 4 and kernel.resources().spill_stores < left.nbytes / 2
    assert f"the compiler spills {left.nbytes} bytes a thread; left" in candidates_text(kernel)
    assert kernel.predicted is not None and kernel.predicted.resident == kernel.ir.min_blocks
    assert [k for k in kernel.companions if k not in program.kernels] == []


def test_what_is_made_otherwise_computes_the_same() -> None:
    given = arrays()
    program = fw.compile(fw.trace(backward, *specs()))
    found = program.simulate(*given)
    assert found.races == [] and program.kernels[0].spilled
    for y, z in zip(found.outputs, fw.evaluate(program.fusion, *given), strict=True):
        np.testing.assert_allclose(y.astype(float), z.astype(float), rtol=2e-2, atol=2e-1)


def test_kernels_with_registers_to_spare_are_not_compiled_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[object] = []
    monkeypatch.setattr(BUILDER, "submit", lambda *given: asked.append(given))
    (kernel,) = fw.compile(
        fw.trace(lambda x: fw.nn.softmax(x, axis=-1), fw.TensorSpec((512, 1024), "float32"))
    ).kernels
    assert not asked and kernel.spilled == ()


def test_without_a_compiler_kernels_stay_as_they_are_scheduled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def none(*_: object) -> None:
        raise UserError("no compiler")

    monkeypatch.setattr(BUILDER, "submit", none)
    kernel = kernel_of()
    assert kernel.ir.min_blocks == 4 and kernel.spilled == ()


def reported(nbytes: dict[int, int]) -> Callable[[Kernel], Resources]:
    """A report in which so many bytes are spilled of kernels with so many blocks."""
    return lambda k: Resources(64, nbytes[k.ir.min_blocks], 0, 0, 0, 1, ())


def remade(segment: Segment, way: Way) -> Made:
    """The kernel of the tests with other bounds."""
    if way.params is not None:
        raise ScheduleError("not this one")
    made = kernel_of()
    made.ir = replace(made.ir, min_blocks=way.min_blocks)
    return Made(made, (), ())


def first(monkeypatch: pytest.MonkeyPatch) -> Made:
    with monkeypatch.context() as m:
        m.setattr(spills, "_report", lambda _: None)
        return Made(kernel_of(), (), ())


def test_a_way_that_spills_too_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    made = first(monkeypatch)
    report = reported({4: 80, 3: 40, 2: 0, 1: 0})
    known = replace(made.kernel.target.calibration, kin_margin=9.0)
    made.kernel.target = replace(made.kernel.target, calibration=known)
    monkeypatch.setattr(spills, "_report", report)
    found = without_spills(made, lambda s, w: remade_plainly(monkeypatch, s, w))
    assert found.kernel.ir.min_blocks == 2
    assert [(s.what, s.nbytes) for s in found.kernel.spilled] == [
        ("4 blocks a multiprocessor", 80),
        ("3 blocks a multiprocessor", 40),
    ]


def test_what_spills_is_kept_where_all_else_is_slower(monkeypatch: pytest.MonkeyPatch) -> None:
    made = first(monkeypatch)
    monkeypatch.setattr(spills, "_report", reported({4: 80, 3: 0, 2: 0, 1: 0}))
    known = replace(made.kernel.target.calibration, kin_margin=0.1)
    made.kernel.target = replace(made.kernel.target, calibration=known)
    found = without_spills(made, lambda s, w: remade_plainly(monkeypatch, s, w))
    assert found is made and [s.is_kept for s in made.kernel.spilled] == [True]
    assert "kept, as no way that spills less" in candidates_text(made.kernel)


def remade_plainly(monkeypatch: pytest.MonkeyPatch, segment: Segment, way: Way) -> Made:
    with monkeypatch.context() as m:
        m.setattr(spills, "_report", lambda _: None)
        return remade(segment, way)
