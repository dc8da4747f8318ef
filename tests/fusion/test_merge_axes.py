"""Axes that every operation walks over as one are one axis of the kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fusewright as fw
from fusewright.form_times import Clock
from fusewright.forms import chosen_form
from fusewright.fusion.ir import Fusion, Input
from fusewright.fusion.passes.merge_axes import merge_axes
from fusewright.schedule.heuristics.rating import Decisions
from fusewright.target import target_of

LAST = (64, 56, 56, 96)
"""Images with their channels last in memory."""


def traced(fn: Callable[..., Any], *specs: fw.TensorSpec) -> Fusion:
    return fw.trace(fn, *specs)


def shapes(fusion: Fusion) -> list[str]:
    """The shapes that are computed, arguments and results left out."""
    known = {*fusion.inputs, *fusion.outputs}
    return [str(list(map(str, t.shape))) for t in fusion.values if t not in known]


def both_sums(x: Any, w: Any) -> Any:
    y = x * w
    return fw.sum(x, axis=(0, 1)), fw.sum(fw.reshape(y, (-1, y.shape[-1])), axis=0)


def test_reductions_over_axes_and_over_a_reshape_of_them_run_over_one() -> None:
    fusion = traced(both_sums, fw.TensorSpec((4, 6, 8), "float32"), fw.TensorSpec((8,), "float32"))
    assert str(merge_axes(fusion)).splitlines()[2:] == [
        "x_0: float32[24, 8] = Reshape(x)",
        "t0: float32[8] = Reduce(x_0, fn='add', axes=(0,))",
        "t1: float32[24, 8] = Broadcast(w, axes=(None, 0))",
        "t2: float32[24, 8] = Pointwise(x_0, t1, fn='mul')",
        "t4: float32[8] = Reduce(t2, fn='add', axes=(0,))",
        "return t0, t4",
    ]


def test_a_result_has_the_axes_that_it_had() -> None:
    def scaled(x: Any) -> Any:
        y = x * 2
        return y, fw.sum(fw.reshape(y, (24, 8)), axis=0), y

    fusion = traced(scaled, fw.TensorSpec((4, 6, 8), "float32"))
    merged = merge_axes(fusion)
    assert [t.shape for t in merged.outputs] == [t.shape for t in fusion.outputs]
    assert merged.outputs[0] is merged.outputs[2]
    names = [t.name for t in merged.values]
    assert len(set(names)) == len(names)
    x = np.arange(192, dtype=np.float32).reshape(4, 6, 8)
    for a, b in zip(fw.evaluate(merged, x), fw.evaluate(fusion, x), strict=True):
        np.testing.assert_array_equal(a, b)


def test_axes_of_an_argument_in_the_order_of_memory_are_one() -> None:
    """The argument's channels come second in the program, and last in memory."""
    spec = fw.TensorSpec((4, 8, 3, 5), "float32", strides=(120, 1, 40, 8))
    merged = merge_axes(
        traced(lambda x: fw.sum(fw.permute_dims(x, (0, 2, 3, 1)) * 2, axis=(0, 1, 2)), spec)
    )
    assert "['60', '8']" in shapes(merged)


@pytest.mark.parametrize(
    ("fn", "spec"),
    [
        # Memory has a gap between the axes that are reduced.
        (lambda x: fw.sum(x, axis=(0, 1)), fw.TensorSpec((4, 6, 8), "float32", strides=(64, 8, 1))),
        # One operation tells the axes apart: it permutes them, joins along one, or counts along it.
        (
            lambda x: (fw.sum(y := x * 2, axis=(0, 1)), fw.exp(fw.permute_dims(y, (1, 0, 2)))),
            fw.TensorSpec((4, 6, 8), "float32"),
        ),
        (
            lambda x: fw.sum(fw.concat([x, x * 2], axis=1), axis=(0, 1)),
            fw.TensorSpec((4, 6, 8), "float32"),
        ),
        # Only a function of elements, to which axes are all the same.
        (lambda x: fw.exp(x) * 2, fw.TensorSpec((4, 6, 8), "float32")),
        # Nothing is side by side.
        (lambda x: fw.sum(x, axis=(0, 2)), fw.TensorSpec((4, 6, 8), "float32")),
        (lambda x: fw.sum(x, axis=1), fw.TensorSpec((1, 6, 8), "float32")),
    ],
)
def test_borders_that_something_needs_stay(fn: Callable[..., Any], spec: fw.TensorSpec) -> None:
    fusion = traced(fn, spec)
    merged = merge_axes(fusion)
    assert all(t.shape == o.shape for t, o in zip(merged.outputs, fusion.outputs, strict=True))
    first = next(t for t in merged.values if isinstance(t.op, Input))
    assert not any(f"Reshape({first.name})" in line for line in str(merged).splitlines())


def scale_gradients(g: Any, h: Any, v: Any, w: Any) -> Any:
    """The gradients of a layer's scale and of its bias, as ConvNeXt asks for them."""
    first, last = (0, 3, 1, 2), (0, 2, 3, 1)
    a = fw.permute_dims(g, first) + fw.permute_dims(h, first)
    q = a * w
    s = fw.sum(a * fw.permute_dims(v, first), axis=(0, 2, 3), keepdims=True)
    a, q = fw.permute_dims(a, last), fw.permute_dims(q, last)
    return a, q, s, fw.sum(fw.reshape(q, (-1, q.shape[-1])), axis=0)


def of_rows(g: Any, h: Any, v: Any, w: Any) -> Any:
    """The same, written on rows of channels."""
    g, h, v = (fw.reshape(t, (-1, t.shape[-1])) for t in (g, h, v))
    a = g + h
    q = a * fw.reshape(w, (-1,))
    return a, q, fw.sum(a * v, axis=0), fw.sum(q, axis=0)


def specs(*shape: int, dtype: str = "bfloat16") -> list[fw.TensorSpec]:
    channels = (1, shape[-1], 1, 1)
    return [*[fw.TensorSpec(shape, dtype)] * 3, fw.TensorSpec(channels, dtype)]


def predicted_us(program: fw.Program) -> float:
    return sum(k.predicted.us for k in program.kernels if k.predicted is not None)


def test_spellings_of_one_program_take_the_same_kernels() -> None:
    """Its reductions are cut in parts alike, read everything once, and copy nothing."""
    programs = [
        fw.compile(fw.trace(fn, *specs(*LAST)), target="sm_90a")
        for fn in (scale_gradients, of_rows)
    ]
    first, second = ([k.heuristic for k in p.kernels] for p in programs)
    assert first == second and len(first) == 2
    first, second = programs
    assert first.host.stats["bytes_moved"] == second.host.stats["bytes_moved"]
    assert predicted_us(first) == pytest.approx(predicted_us(second))


def test_kernels_of_the_same_operations_are_scheduled_once() -> None:
    """A sum of all elements in two kernels takes two over merged axes, too."""
    target, seen = target_of("sm_90a"), Decisions()
    whole = traced(fw.sum, fw.TensorSpec((64, 128, 512), "float32"))
    form = chosen_form(whole, target, decisions=seen)
    assert merge_axes(whole) is not whole and len(form.formation.groups) == 2
    clock = Clock(target, seen)
    assert clock.us(form) == clock.us(chosen_form(whole, target, decisions=seen))
    assert len(seen.made) == 2


def test_what_repeats_along_a_row_is_not_held_for_it() -> None:
    """The blocks of a cluster share the sum of 36864 products, of which one factor has 768."""

    def less_its_sum(x: Any, w: Any) -> Any:
        x, w = fw.reshape(x, (48, 768)), fw.reshape(w, (768,))
        return x - fw.sum(x * w, axis=(0, 1)) * w

    given = fw.TensorSpec((12, 4, 16, 48), "float32"), fw.TensorSpec((16, 48), "float32")
    rng = np.random.default_rng(1)
    arrays = [rng.random((12, 4, 16, 48), np.float32), rng.random((16, 48), np.float32)]
    fusion = fw.trace(less_its_sum, *given)
    program = fw.compile(fusion, target="sm_90a")
    (kernel,) = program.kernels
    assert kernel.heuristic is not None and kernel.heuristic.scheduler.startswith("inner_cluster")
    result = program.simulate(*arrays)
    assert result.races == []
    np.testing.assert_allclose(result.outputs[0], fw.evaluate(fusion, *arrays)[0], rtol=1e-3)


def test_merged_axes_in_the_simulator() -> None:
    rng = np.random.default_rng(0)
    given = specs(5, 3, 7, 24, dtype="float32")
    arrays = [rng.standard_normal([int(str(e)) for e in s.shape]).astype(np.float32) for s in given]
    fusion = fw.trace(scale_gradients, *given)
    for form in (fusion, merge_axes(fusion)):
        result = fw.compile(form, target="sm_90a").simulate(*arrays)
        assert result.races == []
        for a, b in zip(result.outputs, fw.evaluate(fusion, *arrays), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)
