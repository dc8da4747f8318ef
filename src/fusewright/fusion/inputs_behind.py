"""The tensors in memory that a value is computed from, and which of its axes is the fast one there.

Works on values of a fusion and on stages of a schedule alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeAlias

from fusewright.core.expr import ONE, variables
from fusewright.core.substitution import estimate
from fusewright.fusion.ir import (
    Broadcast,
    Concat,
    IndexMap,
    Input,
    Op,
    Parts,
    Permute,
    Pointwise,
    Reduce,
    Reshape,
    Resize,
    Scan,
    Shape,
    Sort,
    Take,
    TakeAlong,
    contiguous_strides,
)
from fusewright.fusion.sizes import numel_estimate
from fusewright.fusion.strided import V

MAX_VISITS = 96
"""Values that are looked at, so that passes stay linear in the ops of a program."""

Places: TypeAlias = tuple[dict[int, int], ...]
"""For every axis of a value the axes of the first one along which it runs, the outermost first, and
how many of its elements neighbours along them are apart: several where a reshape cuts it."""


@dataclass(frozen=True, slots=True)
class Behind(Generic[V]):
    """An input, the axis of the value along which neighbours lie in its memory (None where it is no
    axis of the value, or the input has one element), and by how many elements of that memory
    neighbours along each axis of the value are apart (none for axes that it does not have)."""

    source: V
    fast: int | None
    apart: Mapping[int, int]


def inputs_behind(t: V, operands: Callable[[V], Sequence[V]]) -> list[Behind[V]]:
    """The inputs that a value is computed from without a reduction between: first those whose
    neighbours are neighbours along one of its axes, the largest first."""
    found: dict[V, Behind[V]] = {}
    seen = {t}
    stack: list[tuple[V, Places]] = [(t, tuple({a: 1} for a in range(len(t.shape))))]
    while stack and len(seen) <= MAX_VISITS:
        v, at = stack.pop()
        if isinstance(v.op, Input):
            found[v] = _behind(v, v.op.strides, at)
        if isinstance(v.op, Pointwise) and v.op.fn == "segment_set":
            found[v] = _behind(v, contiguous_strides(v.shape), at)
            continue
        sources = operands(v)
        reads = _read(v.op, v.shape, [o.shape for o in sources], at)
        for o, places in reversed(list(zip(sources, reads, strict=False))):
            if o not in seen:
                seen.add(o)
                stack.append((o, places))
    return sorted(found.values(), key=lambda b: (b.fast is None, -numel_estimate(b.source.shape)))


def whole_inputs(t: V, operands: Callable[[V], Sequence[V]]) -> list[Behind[V]]:
    """The inputs behind a value that vary along all of its axes; one of which a part is read and
    repeated is none, however large it is."""
    sized = {a for a, e in enumerate(t.shape) if e != ONE}
    return [b for b in inputs_behind(t, operands) if b.fast is not None and sized <= b.apart.keys()]


def holds_fast_axis(t: V, axes: Sequence[int], operands: Callable[[V], Sequence[V]]) -> bool:
    """Whether the fast axis, in the memory of the largest input behind a value, is one of these
    axes of the value. A value that no input is behind is in C order."""
    sized = [a for a, e in enumerate(t.shape) if e != ONE]
    behind = inputs_behind(t, operands)
    found = behind[0].fast if behind else None
    return not sized or (sized[-1] if found is None else found) in axes


def reduces_fast_axis(t: V, operands: Callable[[V], Sequence[V]]) -> bool:
    """Whether the axes of a reduction hold the fast one of the largest tensor that is reduced."""
    assert isinstance(t.op, Reduce)
    return holds_fast_axis(operands(t)[0], t.op.axes, operands)


def fast_kept(t: V, operands: Callable[[V], Sequence[V]]) -> list[int]:
    """The axes of its operand that a reduction keeps, and that are faster in memory than all that
    it reduces, the slowest first."""
    assert isinstance(t.op, Reduce)
    source = operands(t)[0]
    order = in_memory_order(source, [a for a, e in enumerate(source.shape) if e != ONE], operands)
    last = max((k for k, a in enumerate(order) if a in t.op.axes), default=-1)
    return order[last + 1 :]


def in_memory_order(t: V, axes: Sequence[int], operands: Callable[[V], Sequence[V]]) -> list[int]:
    """Axes of a value, those first along which neighbours lie far apart in the memory of the
    largest input behind it; as they are given where that input has not all of them."""
    behind = inputs_behind(t, operands)
    if not behind or any(a not in behind[0].apart for a in axes):
        return list(axes)
    apart = behind[0].apart
    return sorted(axes, key=lambda a: -apart[a])


def _behind(v: V, strides: Shape, at: Places) -> Behind[V]:
    sized = [(estimate(strides[a]), -a) for a, e in enumerate(v.shape) if e != ONE]
    order = [(stride, at[-a]) for stride, a in sorted(sized, reverse=True)]
    apart = {place: stride * n for stride, along in order for place, n in along.items()}
    last = list(order[-1][1]) if order else []
    return Behind(v, last[-1] if last else None, apart)


def _read(op: Op, shape: Shape, sources: Sequence[Shape], at: Places) -> Iterator[Places]:
    """For every operand that an op reads along its own axes, which places these have."""
    match op:
        case Pointwise() | Concat() | Resize() | Scan() | Sort():
            yield from (at for _ in sources)
        case Broadcast():
            place = {a: at[j] for j, a in enumerate(op.axes) if a is not None}
            yield tuple(place[a] for a in range(len(sources[0])))
        case Permute():
            yield tuple(at[op.axes.index(a)] for a in range(len(shape)))
        case Reshape():
            yield _unshaped(shape, sources[0], at)
        case Parts():
            first, last = op.axes[0], op.axes[-1] + 1
            own = sources[0][first:last]
            behind = first + len(op.partition.shape)
            along = _unshaped(op.partition.shape, own, at[first:behind])
            yield (*at[:first], *along, *at[behind:])
        case IndexMap():
            places = dict(zip(op.coordinates, at, strict=True))
            mentioned = ([c for c in op.coordinates if c in variables(e)] for e in op.index)
            yield tuple(places[found[-1]] if found else {} for found in mentioned)
        case Take():
            behind = op.axis + len(sources[1])
            yield (*at[: op.axis], {}, *at[behind:])
            yield at[op.axis : behind]
        case TakeAlong():
            yield (*at[: op.axis], {}, *at[op.axis + 1 :])
            yield at
        case _:
            return


def _unshaped(shape: Shape, before: Shape, at: Places) -> Places:
    """The places of the axes from before a reshape: neighbours along one of them are neighbours, or
    as far apart, along the axis of the result that has them in order. An axis that the reshape cuts
    also runs, in whole steps, along the axes that have its parts."""
    apart = _distances(shape)
    found: list[dict[int, int]] = []
    for distance, extent in zip(_distances(before), before, strict=True):
        along: dict[int, int] = {}
        for j, e in enumerate(shape) if extent != ONE else ():
            steps, rest = divmod(apart[j], distance)
            if e == ONE or steps >= estimate(extent) or (steps and rest):
                continue
            along |= {a: n * max(steps, 1) for a, n in at[j].items()}
            if steps <= 1:
                break
        found.append(along)
    return tuple(found)


def _distances(shape: Shape) -> list[int]:
    """How many elements apart neighbours along each axis are in C order."""
    out = [1]
    for e in reversed(shape[1:]):
        out.insert(0, out[0] * estimate(e))
    return out[: len(shape)]
