"""Moves read arguments before they are computed with, not what is computed of them.

    flip(gelu(x))           ->  gelu(flip(x))
    (x + y)[:, 5:-5]        ->  x[:, 5:-5] + y[:, 5:-5]
    shift(gelu(x), 3)       ->  pad(gelu(x[:-3]), 3)

The value then needs no memory. What it costs: bytes of arguments at the moved places against a
store and a load of the value, and the instructions of what is computed again.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass
from functools import partial, reduce

from fusewright.core.atoms import maximum, minimum
from fusewright.core.expr import (
    ZERO,
    Expr,
    add,
    mul,
)
from fusewright.core.instructions import INSTRUCTIONS
from fusewright.fusion import build
from fusewright.fusion.ir import (
    Concat,
    Constant,
    Fusion,
    Input,
    Iota,
    Pointwise,
    Reduce,
    Resize,
    Scan,
    Size,
    Tensor,
    is_alone,
    topological,
)
from fusewright.fusion.passes.fold_crops import crop_of, is_crop, only_grows, padded
from fusewright.fusion.passes.fold_moves import is_move
from fusewright.fusion.passes.index_maps import Map, map_of, turns_of
from fusewright.fusion.passes.read_at import ReadAt
from fusewright.fusion.passes.rebuild import rebuild
from fusewright.fusion.rematerialisable import is_rematerialisable
from fusewright.fusion.sizes import nbytes_estimate, numel_estimate
from fusewright.target import ISSUE_PER_CLOCK, WARP_SIZE, Target

MAX_OPS = 32
"""Ops that all moves of one value may repeat: a third of what one kernel takes."""


def hoist_moves(fusion: Fusion, chosen: frozenset[Tensor]) -> Fusion:
    """Moves crops, steps, flips, rolls and reflections above what is computed of arguments.

    rewrite:  move(f(a, b))  ->  f(move(a), move(b));   sum(a, axis=1)[i]  ->  sum(a[i], axis=1)
              shift(f(scan(a, axis=1)), 3, axis=0)  ->  f(scan(shift(a, 3, axis=0), axis=1))
    checks:   `moves_to_hoist` chose the moves
    order:    behind fold_moves, which leaves one move of each value; before the cut, which never
              reads at other places what the same kernel computes
    """

    kept = _kept(fusion, chosen) if chosen else set[Tensor]()
    stored: set[Tensor] = set()

    def replace(t: Tensor, operands: tuple[Tensor, ...]) -> Tensor | None:
        stored.update(o for old, o in zip(t.op.operands, operands, strict=True) if old in kept)
        if t not in chosen:
            return None
        crop = crop_of(t)
        if crop is not None and _has_reductions(t):
            return filled(t, operands[0], stored)
        by = map_of(crop or t)
        if by is None:
            return None
        read = ReadAt(stored=stored, turns=turns_of(by)).read(operands[0], by)
        return read if crop is None else padded(read, t)

    return rebuild(fusion, replace) if chosen else fusion


def _has_reductions(t: Tensor) -> bool:
    return any(isinstance(o.op, Reduce | Scan) for o in topological((t,)))


def filled(t: Tensor, source: Tensor, stored: Set[Tensor] = frozenset()) -> Tensor:
    """A value that is cropped and padded at once, read at the nearest place that there is and
    replaced where there is none: reductions then run over places of the result, not of a part."""
    assert isinstance(t.op, Resize)
    at = build.coordinates(t.shape)
    index: list[Expr] = []
    inside: list[Tensor] = []
    for a, (c, low, high) in enumerate(zip(at, t.op.low, t.op.high, strict=True)):
        place, last = add(c, mul(low, -1)), add(source.shape[a], -1)
        along = build.iota(t.shape, a)
        if only_grows(low) and low != ZERO:
            place = maximum(place, 0)
            first = build.spread(build.size(low, along.dtype), t.shape)
            inside.append(build.pointwise("ge", along, first))
        if only_grows(high) and high != ZERO:
            place = minimum(place, last)
            stop = build.spread(build.size(add(t.shape[a], mul(high, -1)), along.dtype), t.shape)
            inside.append(build.pointwise("lt", along, stop))
        index.append(place)
    read = ReadAt(stored=stored).read(source, Map(t.shape, at, tuple(index)))
    where = reduce(partial(build.pointwise, "and"), inside)
    return build.pointwise("where", where, read, build.full(t.shape, t.op.fill, t.dtype))


# --- which --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Moved:
    """A value that moves read: what lies between it and the arguments, them included, whether it
    is needed where it is made too, whether it is stored whatever the moves do, and whether
    reductions or scans go into it."""

    value: Tensor
    moves: tuple[Tensor, ...]
    region: tuple[Tensor, ...]
    is_in_place: bool
    is_output: bool
    is_reduced: bool


def moves_to_hoist(
    fusion: Fusion, target: Target, *, reductions: bool = False
) -> frozenset[Tensor]:
    """The moves of values that are rather computed again at the places that they read: all moves
    of a value or none, where that takes less time than its memory. `reductions`: values that
    reductions and scans go into too, which only a schedule of the whole tells the price of."""
    uses = fusion.uses()
    reduced = _reduced(fusion)
    chosen: set[Tensor] = set()
    stored: set[Tensor] = set()
    refused: set[Tensor] = set()
    outputs = frozenset(fusion.outputs)
    for v in fusion.values:
        if _is_refused(v, chosen, stored, refused):
            refused.add(v)
            continue
        moves = tuple(filter(_moves, uses[v]))
        if not moves or not _is_value(v) or (v in reduced and not reductions):
            continue
        is_output = v in outputs
        is_in_place = is_output or len(moves) < len(uses[v])
        found = _Moved(v, moves, _region(v, stored), is_in_place, is_output, v in reduced)
        if _passes_whole(found, stored) and _pays(found, _steps(v, chosen, stored), stored, target):
            chosen |= set(moves)
        elif v not in reduced:
            stored.add(v)
    return frozenset(chosen)


def _kept(fusion: Fusion, chosen: frozenset[Tensor]) -> set[Tensor]:
    """What is computed of arguments alone and is read by moves that were not chosen: it is stored,
    and like an argument to what is computed of it."""
    uses = fusion.uses()
    reduced = _reduced(fusion)
    stored: set[Tensor] = set()
    refused: set[Tensor] = set()
    for v in fusion.values:
        if _is_refused(v, chosen, stored, refused):
            refused.add(v)
            continue
        moves = [u for u in uses[v] if _moves(u)]
        if moves and _is_value(v) and v not in reduced and moves[0] not in chosen:
            stored.add(v)
    return stored


def _reduced(fusion: Fusion) -> set[Tensor]:
    """Reductions and scans, and what is computed of them."""
    found: set[Tensor] = set()
    for v in fusion.values:
        if isinstance(v.op, Reduce | Scan) or not found.isdisjoint(v.op.operands):
            found.add(v)
    return found


def _moves(t: Tensor) -> bool:
    return is_move(t) or crop_of(t) is not None


def _is_refused(t: Tensor, chosen: Set[Tensor], stored: Set[Tensor], refused: Set[Tensor]) -> bool:
    """Whether no move passes a value, or something that it is computed from: `refused` are those of
    the values before it. What was chosen and is stored of these is settled when it is asked for."""
    behind = () if is_alone(t) else t.op.operands
    return not _is_passed(t, chosen, stored) or any(o in refused for o in behind if o not in stored)


def _is_passed(t: Tensor, chosen: Set[Tensor], stored: Set[Tensor]) -> bool:
    """Whether a move may pass an op: what another move is not worth to be computed again for is
    not computed a third time, but read where it is stored."""
    if t in stored:
        return True
    match t.op:
        case Input() | Constant() | Size() | Iota() | Pointwise() | Reduce() | Scan() | Concat():
            return True
        case Resize() if not is_crop(t):
            return True
        case _:
            return map_of(t) is not None and not (
                is_move(t)
                and _is_value(t.op.operands[0])
                and t not in chosen
                and t.op.operands[0] not in stored
            )


def _passes_whole(found: _Moved, stored: Set[Tensor]) -> bool:
    """Whether the moves read along whole axes of joins and of pads, and whole lines of scans."""
    if not any(isinstance(t.op, Concat | Resize | Scan) and t not in stored for t in found.region):
        return True
    for t in found.moves:
        by = map_of(crop_of(t) or t)
        if by is None or not ReadAt(stored=stored).passes_whole(found.value, by):
            return False
    return True


def _region(v: Tensor, stored: Set[Tensor]) -> tuple[Tensor, ...]:
    """A value and what it is computed from, down to arguments and what is stored."""
    found: dict[Tensor, None] = {}
    stack = [v]
    while stack:
        t = stack.pop()
        if t not in found:
            found[t] = None
            stack.extend(() if is_alone(t) or t in stored else t.op.operands)
    return tuple(found)


def _is_value(t: Tensor) -> bool:
    return isinstance(t.op, Pointwise | Scan) and not is_alone(t) and not is_rematerialisable(t)


def _steps(v: Tensor, chosen: Set[Tensor], stored: Set[Tensor]) -> list[Tensor]:
    """What is computed for a value, once for each way there is to it through moves that are hoisted
    already: as often as it will be computed for one place of the value. A few more than moves may
    repeat, where there are more."""
    found: dict[tuple[Tensor, tuple[Tensor, ...]], None] = {}
    stack: list[tuple[Tensor, tuple[Tensor, ...]]] = [(v, ())]
    steps: list[Tensor] = []
    while stack and len(steps) <= MAX_OPS:
        t, way = stack.pop()
        if (t, way) in found or is_alone(t) or t in stored:
            continue
        found[t, way] = None
        if isinstance(t.op, Pointwise | Reduce | Scan):
            steps.append(t)
        behind = (*way, t) if t in chosen else way
        stack += [(o, behind) for o in t.op.operands]
    return steps


def _pays(found: _Moved, steps: list[Tensor], stored: Set[Tensor], target: Target) -> bool:
    """Whether the moves take no more time from the arguments than from the value in memory; where
    reductions are computed again, no more bytes. All moves of a value together read each byte once:
    the others find it in a cache."""
    read_of = [t for t in found.region if isinstance(t.op, Input) or is_alone(t) or t in stored]
    if len(steps) * len(found.moves) > MAX_OPS:
        return False
    read = sum(numel_estimate(t.shape) for t in found.moves)
    count, nbytes = numel_estimate(found.value.shape), found.value.dtype.nbytes
    again = 0.0
    for t in read_of:
        size = numel_estimate(t.shape)
        again += max(min(size, read), size * min(1.0, read / count)) * t.dtype.nbytes
    spared = min(count, read) * nbytes + (0 if found.is_output else count * nbytes)
    if not found.is_in_place:
        spared += sum(map(nbytes_estimate, read_of))
    if found.is_reduced:
        return again <= spared
    repeated = read if found.is_in_place else max(0, read - count)
    instructions = repeated / count * sum(map(_instructions, steps))
    per_us = target.multiprocessors * target.clock_mhz * ISSUE_PER_CLOCK * WARP_SIZE
    return again + instructions / per_us * target.memory_nbytes_per_us <= spared


def _instructions(t: Tensor) -> float:
    """Instructions of a step for all of its elements."""
    assert isinstance(t.op, Pointwise | Reduce | Scan)
    exact, _ = INSTRUCTIONS.get(t.op.fn, (1.0, 1.0))
    return numel_estimate(t.op.operands[0].shape) * exact * -(-t.dtype.compute.nbytes // 4)
