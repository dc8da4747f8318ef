"""Fusions and schedules of the shared-memory tests: nine cases of chained tensors, each with a
serial form and a parallel twin whose elements cross threads."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

import fusewright as fw
from fusewright.core.node import walk
from fusewright.fusion.array import Array
from fusewright.fusion.ir import Fusion
from fusewright.kernel import Kernel
from fusewright.kir import ir
from fusewright.memory import Memory
from fusewright.schedule.parallel import Parallel

Step = Callable[[Array], Array]


def flip(x: Array) -> Array:
    """The elements in opposite order: every thread reads what another one wrote."""
    return fw.flip(x, axis=x.ndim - 1)


def copy(x: Array) -> Array:
    return fw.copy(x)


def named(x: Array, name: str) -> Array:
    return fw.name(x, name)


# --- the fusions ----------------------------------------------------------------------------------


def simple(h: int, w: int, step: Step = copy) -> Fusion:
    """a (h) -> out, sum -> b (w) -> out."""

    def fn() -> tuple[Array, ...]:
        a = named(fw.copy(fw.full((h,), 1.5)), "a")
        whole = named(step(a), "whole")
        total = named(fw.sum(whole, axis=0), "total")
        b = named(fw.multiply(total, fw.full((w,), 2.0)), "b")
        return whole, total, named(step(b), "out")

    return fw.trace(fn)


def reordered(h: int, step: Step = copy) -> Fusion:
    """a (h) -> b (h + 1) -> sum -> c (h + 1); b is read again beside c."""

    def fn() -> tuple[Array, ...]:
        a = named(fw.full((h,), 1.5), "a")
        b = named(fw.pad(step(a), ((0, 1),)), "b")
        square = named(fw.multiply(b, b), "square")
        total = named(fw.sum(square, axis=0, keepdims=True), "total")
        c = named(fw.multiply(total, b), "c")
        crossed = step(c)
        return named(fw.add(crossed, b), "twice"), named(fw.negative(crossed), "out")

    return fw.trace(fn)


def chain(h: int, count: int, steps: Sequence[Step]) -> Fusion:
    """a (h) -> b (h + 1) -> .. of `count` tensors, the steps in between, then an output."""

    def between(x: Array) -> Array:
        for step in steps:
            x = step(x)
        return x

    def fn() -> Array:
        x = named(fw.full((h,), 1.5), "a")
        for i in range(1, count):
            x = named(fw.pad(between(x), ((0, 1),)), "abcdefg"[i])
        return named(fw.negative(x) if steps[0] is fw.negative else between(x), "out")

    return fw.trace(fn)


def padded(shape: tuple[int, int, int], step: Step) -> Fusion:
    """a -> step -> b, one longer on the last axis -> out."""

    def fn() -> Array:
        a = named(fw.full(shape, 1.5), "a")
        middle = named(step(a), "middle")
        b = named(fw.pad(middle, ((0, 0), (0, 0), (0, 1))), "b")
        return named(fw.copy(b), "out")

    return fw.trace(fn)


def copies(n: int, step: Step = copy) -> Fusion:
    """x -> a -> step -> b -> out, all of n elements."""

    def fn(x: Array) -> Array:
        a = named(fw.copy(x), "a")
        middle = named(step(a), "middle")
        b = named(fw.copy(middle), "b")
        return named(fw.copy(b), "out")

    return fw.trace(fn, fw.TensorSpec((n,), "float32"))


def expanded(x: int, y: int | str, step: Step = copy) -> Fusion:
    """in (y) -> a (y) -> b (1, y) -> c (x, y) -> out."""

    def fn(source: Array) -> Array:
        a = named(fw.copy(source), "a")
        b = named(fw.expand_dims(named(step(a), "middle"), axis=0), "b")
        c = named(fw.broadcast_to(b, (x, *source.shape)), "c")
        return named(step(c), "out")

    return fw.trace(fn, fw.TensorSpec((y,), "float32"))


# --- schedules ------------------------------------------------------------------------------------


def shared(fusion: Fusion, *names: str, promote: Sequence[str] = ()) -> fw.Schedule:
    """A schedule with the named tensors in shared memory."""
    s = fw.Schedule(fusion)
    for name in names:
        s[name].set_memory(fw.SHARED)
    for name in promote:
        s[name].promote_reuse()
    return s


def bind(s: fw.Schedule, parallel: Parallel = fw.TIDx, axis: int = 0) -> fw.Schedule:
    """Every loop `axis` bound."""
    for t in s.tensors:
        if len(t.axes) > axis:
            t.parallelize(axis, parallel)
    return s


# --- what is asserted -----------------------------------------------------------------------------


def offsets(k: Kernel) -> dict[str, int]:
    """The byte address of every shared buffer."""
    return {b.name: b.offset for b in k.smem}


def outline(k: Kernel) -> str:
    """Shared accesses and syncs in program order: `a=` a store to a, `a` a load of it, `B` a block
    sync, `W` a warp sync; neighbours that are alike once."""
    out: list[str] = []
    for n in walk(k.ir):
        match n:
            case ir.Store() if n.dst.memory is Memory.SHARED:
                item = f"{n.dst.name}="
            case ir.Load() if n.src.memory is Memory.SHARED:
                item = n.src.name
            case ir.BlockSync():
                item = "B"
            case ir.WarpSync():
                item = "W"
            case _:
                continue
        if not out or out[-1] != item or item in "BW":
            out.append(item)
    return " ".join(out)


def assert_agrees(k: Kernel, s: fw.Schedule, *arrays: np.ndarray, rtol: float = 1e-6) -> None:
    """The kernel computes what the schedule means, no sync is missing, none is redundant."""
    result = k.simulate(*arrays)
    assert not result.races, result.races
    for found, expected in zip(result.outputs, fw.evaluate(s, *arrays), strict=True):
        np.testing.assert_allclose(found, expected, rtol=rtol, atol=0.1 * rtol)
    report = fw.verify(k, *arrays)
    assert report.ok, str(report)
