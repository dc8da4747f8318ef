"""Moves read arguments before they are computed with, not what is computed of them.

    flip(gelu(x))           ->  gelu(flip(x))
    (x + y)[:, 5:-5]        ->  x[:, 5:-5] + y[:, 5:-5]
    shift(gelu(x), 3)       ->  pad(gelu(x[:-3]), 3)

The value then needs no memory. What it costs: bytes of arguments at the moved places against a
store and a load of the value, and the instructions of what is computed again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial, reduce

from fusewright import dtypes
from fusewright.core.atoms import Max, Min, Pair, Xor
from fusewright.core.expr import ZERO, Division, Expr, FloorDiv, Int, Mod, Term, parts_of, variables
from fusewright.core.instructions import INSTRUCTIONS
from fusewright.core.substitution import estimate
from fusewright.dtypes import DType
from fusewright.fusion import build
from fusewright.fusion.ir import (
    Constant,
    Fusion,
    Input,
    Iota,
    Pointwise,
    Resize,
    Size,
    Tensor,
    topological,
    with_operands,
)
from fusewright.fusion.passes.fold_crops import is_crop, only_crops, only_grows
from fusewright.fusion.passes.fold_moves import is_move
from fusewright.fusion.passes.index_maps import Map, map_of, moved
from fusewright.fusion.passes.rebuild import rebuild
from fusewright.fusion.rematerialisable import is_rematerialisable
from fusewright.target import ISSUE_PER_CLOCK, WARP_SIZE, Target

MAX_OPS = 32
"""Ops that all moves of one value may repeat: a third of what one kernel takes."""


def hoist_moves(fusion: Fusion, target: Target) -> Fusion:
    """Moves crops, steps, flips, rolls and reflections above elementwise ops of arguments.

    rewrite:  move(f(a, b))  ->  f(move(a), move(b))
    checks:   all moves of a value or none: computing it again costs less time than its memory
    order:    behind fold_moves, which leaves one move of each value; before the cut, which never
              reads at other places what the same kernel computes
    """
    chosen = _chosen(fusion, target)

    def replace(t: Tensor, operands: tuple[Tensor, ...]) -> Tensor | None:
        if t not in chosen:
            return None
        crop = _crop_of(t)
        by = map_of(crop or t)
        if by is None:
            return None
        read = _Hoist().read(operands[0], by)
        return read if crop is None else _padded(read, t)

    return rebuild(fusion, replace) if chosen else fusion


def _crop_of(t: Tensor) -> Tensor | None:
    """What is left of a value that is cropped and padded at once, before it is padded; None for
    other values."""
    if not isinstance(t.op, Resize) or is_crop(t):
        return None
    amounts = (*t.op.low, *t.op.high)
    if all(map(only_grows, amounts)) or not all(only_grows(e) or only_crops(e) for e in amounts):
        return None
    low, high = ([ZERO if only_grows(e) else e for e in ends] for ends in (t.op.low, t.op.high))
    return build.resize(t.op.operands[0], low, high, 0)


def _padded(read: Tensor, t: Tensor) -> Tensor:
    """The inside of a value with the border that a resize puts around it."""
    assert isinstance(t.op, Resize)
    low, high = ([e if only_grows(e) else ZERO for e in ends] for ends in (t.op.low, t.op.high))
    return build.value(t.shape, t.dtype, Resize((read,), tuple(low), tuple(high), t.op.fill))


# --- which --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Moved:
    """A value that moves read: what lies between it and the arguments, them included, whether it
    is needed where it is made too, and whether it is stored whatever the moves do."""

    value: Tensor
    moves: tuple[Tensor, ...]
    region: tuple[Tensor, ...]
    is_in_place: bool
    is_output: bool


def _chosen(fusion: Fusion, target: Target) -> frozenset[Tensor]:
    """The moves of values that are rather computed again at the places that they read."""
    uses = fusion.uses()
    chosen: set[Tensor] = set()
    for v in fusion.values:
        moves = tuple(u for u in uses[v] if is_move(u) or _crop_of(u) is not None)
        if not moves or not _is_value(v):
            continue
        region = topological((v,))
        is_output = v in fusion.outputs
        found = _Moved(v, moves, region, is_output or len(moves) < len(uses[v]), is_output)
        if all(_is_passed(t, chosen) for t in region) and _pays(found, target):
            chosen |= set(moves)
    return frozenset(chosen)


def _is_passed(t: Tensor, chosen: set[Tensor]) -> bool:
    """Whether a move may pass an op: what another move is not worth to be computed again for is
    not computed a third time."""
    match t.op:
        case Input() | Constant() | Size() | Iota() | Pointwise():
            return True
        case _:
            return map_of(t) is not None and not (
                is_move(t) and _is_value(t.op.operands[0]) and t not in chosen
            )


def _is_value(t: Tensor) -> bool:
    return isinstance(t.op, Pointwise) and not is_rematerialisable(t)


def _pays(found: _Moved, target: Target) -> bool:
    """Whether the moves take no more time from the arguments than from the value in memory. All
    moves of a value together read each byte once: the others find it in a cache."""
    steps = [t for t in found.region if isinstance(t.op, Pointwise)]
    if len(steps) * len(found.moves) > MAX_OPS:
        return False
    read = sum(map(_numel, found.moves))
    count, nbytes = _numel(found.value), found.value.dtype.nbytes
    inputs = [t for t in found.region if isinstance(t.op, Input)]
    again = sum(min(_numel(t), read) * t.dtype.nbytes for t in inputs)
    spared = min(count, read) * nbytes + (0 if found.is_output else count * nbytes)
    if not found.is_in_place:
        spared += sum(_numel(t) * t.dtype.nbytes for t in inputs)
    repeated = read if found.is_in_place else max(0, read - count)
    instructions = repeated * sum(map(_instructions, steps))
    per_us = target.multiprocessors * target.clock_mhz * ISSUE_PER_CLOCK * WARP_SIZE
    return again + instructions / per_us * target.memory_nbytes_per_us <= spared


def _instructions(t: Tensor) -> float:
    assert isinstance(t.op, Pointwise)
    exact, _ = INSTRUCTIONS.get(t.op.fn, (1.0, 1.0))
    return exact * -(-t.dtype.compute.nbytes // 4)


def _numel(t: Tensor) -> int:
    return math.prod(map(estimate, t.shape))


# --- how ----------------------------------------------------------------------------------------


class _Hoist:
    """Reads a region at the places of one move; what the region shares stays shared."""

    def __init__(self) -> None:
        self.made: dict[tuple[Tensor, tuple[Expr, ...]], Tensor] = {}

    def read(self, t: Tensor, by: Map) -> Tensor:
        key = (t, by.index)
        if key not in self.made:
            self.made[key] = self._read(t, by)
        return self.made[key]

    def _read(self, t: Tensor, by: Map) -> Tensor:
        if isinstance(t.op, Iota):
            return _coordinates(t, t.op.axis, by)
        if isinstance(t.op, Pointwise):
            operands = tuple(self.read(o, by) for o in t.op.operands)
            return build.value(by.shape, t.dtype, with_operands(t.op, operands))
        inner = map_of(t)
        return moved(t, by) if inner is None else self.read(t.op.operands[0], by.through(inner))


def _coordinates(t: Tensor, axis: int, by: Map) -> Tensor:
    """The coordinates that a map reads along an axis, computed from those of its result. Those of
    types that may not hold what is in between go by way of int64."""
    index = by.index[axis]
    if index in by.at:
        return build.iota(by.shape, by.at.index(index), t.dtype)
    wide = t.dtype if t.dtype.kind == "int" and t.dtype.nbytes >= 4 else dtypes.int64
    return build.cast(_computed(index, by, wide), t.dtype)


def _computed(e: Expr, by: Map, dtype: DType) -> Tensor:
    """An expression in the coordinates of a map as a value of its shape."""
    if e in by.at:
        return build.iota(by.shape, by.at.index(e), dtype)
    if not any(c in by.at for c in variables(e)):
        return build.spread(build.size(e, dtype), by.shape)
    match e:
        case Pair():
            sides, fn = (e.left, e.right), _FUNCTIONS[type(e)]
        case Division():
            sides, fn = (e.numerator, e.denominator), _FUNCTIONS[type(e)]
        case _:
            constant, terms = parts_of(e)
            products = [_product(t, by, dtype) for t in terms]
            if constant:
                products.append(_computed(Int(constant), by, dtype))
            return reduce(partial(build.pointwise, "add"), products)
    left, right = (_computed(side, by, dtype) for side in sides)
    return build.pointwise(fn, left, right)


def _product(term: Term, by: Map, dtype: DType) -> Tensor:
    factors = [_computed(a, by, dtype) for a in term.atoms]
    if term.coefficient != 1:
        factors.append(_computed(Int(term.coefficient), by, dtype))
    return reduce(partial(build.pointwise, "mul"), factors)


_FUNCTIONS: Mapping[type[Expr], str] = {
    Min: "min", Max: "max", Xor: "bitwise_xor", FloorDiv: "floordiv", Mod: "rem",
}  # fmt: skip
