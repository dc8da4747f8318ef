"""Loops and branches with a mapped axis: they run once for all slices, with carried values that
have the axis in front."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from fusewright.core.expr import Expr
from fusewright.fusion import build, ir
from fusewright.fusion.array import Array
from fusewright.fusion.ir import Fusion, Region
from fusewright.fusion.ops import any, cond, moveaxis, where, while_loop
from fusewright.fusion.ops.control import known_extent, needed_for, scan_with


class Mapped(Protocol):
    """What a body gives for inputs of which some have the axis in front, here `axes`. Its outputs
    have it where that is `wanted`."""

    def __call__(
        self,
        body: Fusion,
        inputs: Sequence[Array],
        axes: Sequence[bool],
        wanted: Sequence[bool],
    ) -> list[Array]: ...


@dataclass(frozen=True, slots=True)
class MappedAxis:
    """The mapped axis: its size, and how bodies are mapped."""

    size: Expr
    mapped: Mapped

    def spread(self, x: Array, *, has_axis: bool) -> Array:
        """The value with the axis, repeated along it where it has none."""
        if has_axis:
            return x
        axes = (None, *range(x.ndim))
        op = ir.Broadcast((x.tensor,), axes)
        return Array(build.value((self.size, *x.tensor.shape), x.dtype, op))


def batched_region(
    op: Region, operands: Sequence[Array], axes: Sequence[bool], batch: MappedAxis
) -> list[Array]:
    """All results of a region's call, with the mapped axis in front. `axes` says which of the
    operands have it."""
    match op.fn:
        case "cond":
            return _branches(op, operands, axes, batch)
        case "while_loop":
            return _while(op, operands, axes, batch)
        case _:
            return _laps(op, operands, axes, batch)


def _branches(
    op: Region, operands: Sequence[Array], axes: Sequence[bool], batch: MappedAxis
) -> list[Array]:
    """One branch for all slices, where these share the condition; else both, and a choice."""
    condition, *given = operands
    all_have = [True] * op.nresults

    def branch(body: Fusion) -> list[Array]:
        return batch.mapped(body, given, axes[1:], all_have)

    first, second = op.bodies
    if not axes[0]:
        return cond(condition, partial(branch, first), partial(branch, second))
    pairs = zip(branch(first), branch(second), strict=True)
    return [_chosen(condition, a, b) for a, b in pairs]


def _laps(
    op: Region, operands: Sequence[Array], axes: Sequence[bool], batch: MappedAxis
) -> list[Array]:
    """The iterations of a loop of known trips."""
    assert op.trips is not None
    (body,) = op.bodies
    n, m = op.carried, op.carried + op.sliced
    carried = _carried_with_axis(body, axes, n)
    inside = [*carried, *axes[n:]]
    wanted = [_is_reached(body, y, inside) for y in range(len(body.outputs))]
    wanted[:n] = carried
    start = [
        batch.spread(x, has_axis=a) if c else x
        for x, a, c in zip(operands[:n], axes, carried, strict=False)
    ]
    slices = [moveaxis(x, 1, 0) if a else x for x, a in zip(operands[n:m], axes[n:m], strict=True)]
    shared = operands[m:]

    def step(state: list[Array], taken: list[Array]) -> tuple[list[Array], list[Array]]:
        found = batch.mapped(body, [*state, *taken, *shared], inside, wanted)
        return found[:n], found[n:]

    trips = known_extent(op.trips)
    made, stacked = scan_with(step, start, slices, trips, reverse=op.reverse, lap=op.lap)
    fronted = [moveaxis(y, 0, 1) if w else y for y, w in zip(stacked, wanted[n:], strict=True)]
    pairs = zip([*made, *fronted], wanted, strict=True)
    return [batch.spread(y, has_axis=w) for y, w in pairs]


def _while(
    op: Region, operands: Sequence[Array], axes: Sequence[bool], batch: MappedAxis
) -> list[Array]:
    """Iterations as long as one slice asks for them. The values of the others stay."""
    condition, body = op.bodies
    n = op.carried
    carried = _carried_with_axis(body, axes, n)
    differs = _is_reached(condition, 0, [*carried, *axes[n:]])
    carried = [True] * n if differs else carried
    inside = [*carried, *axes[n:]]
    start = [
        batch.spread(x, has_axis=a) if c else x
        for x, a, c in zip(operands[:n], axes, carried, strict=False)
    ]
    shared = operands[n:]

    def goes_on(state: list[Array]) -> Array:
        return batch.mapped(condition, [*state, *shared], inside, [differs])[0]

    def step(state: list[Array]) -> list[Array]:
        new = batch.mapped(body, [*state, *shared], inside, carried)
        if not differs:
            return new
        runs = goes_on(state)
        return [_chosen(runs, a, b) for a, b in zip(new, state, strict=True)]

    def some_go_on(state: list[Array]) -> Array:
        return any(goes_on(state))

    made = while_loop(some_go_on if differs else goes_on, step, start)
    return [batch.spread(y, has_axis=c) for y, c in zip(made, carried, strict=True)]


def _chosen(condition: Array, first: Array, second: Array) -> Array:
    """By slice: the condition has the mapped axis only."""
    for _ in range(first.ndim - 1):
        condition = Array(build.expand(condition.tensor, condition.ndim))
    return where(condition, first, second)


def _carried_with_axis(body: Fusion, axes: Sequence[bool], count: int) -> list[bool]:
    """Which carried values differ from slice to slice in some iteration."""
    found = list(axes[:count])
    while True:
        now = [f or _is_reached(body, k, [*found, *axes[count:]]) for k, f in enumerate(found)]
        if now == found:
            return found
        found = now


def _is_reached(body: Fusion, number: int, axes: Iterable[bool]) -> bool:
    """Whether an output depends on one of the inputs that have the axis."""
    needed = needed_for([body.outputs[number]])
    return not needed.isdisjoint(t for t, a in zip(body.inputs, axes, strict=True) if a)
