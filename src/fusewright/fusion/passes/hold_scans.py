"""Windows of scans are read in the lines that a block holds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace as replace_fields

from fusewright.core.atoms import maximum, minimum
from fusewright.core.expr import ONE, ZERO, IntLike, add, as_expr, constant_value, mul
from fusewright.fusion import build
from fusewright.fusion.held_lines import is_scanned, moved_line
from fusewright.fusion.ir import (
    Broadcast,
    Fusion,
    Input,
    Iota,
    Pointwise,
    Resize,
    Scalar,
    Scan,
    Tensor,
    behind_views,
    is_alone,
    with_operands,
)
from fusewright.fusion.partitioning import PartitionFacts, of_line
from fusewright.fusion.passes.fold_crops import is_crop, meet_nowhere
from fusewright.fusion.passes.rebuild import rebuild
from fusewright.target import Target


@dataclass(frozen=True, slots=True)
class _Window:
    """A run of `length` elements of the lines of a scanned value along `axis`: from `-low` on, or
    with `low` elements of `fill` before the first one, and with `high` behind the last one where
    that is positive."""

    source: Tensor
    axis: int
    low: int
    high: int
    length: int
    fill: Scalar


@dataclass(frozen=True, slots=True)
class _Whole:
    """What is computed of windows along whole lines, of which `length` elements count, from `begin`
    on."""

    value: Tensor
    axis: int
    begin: int
    length: int


def hold_scans(fusion: Fusion, target: Target) -> Fusion:
    """Computes what windows of scans meet in along whole lines, and crops the result: a kernel then
    holds a line and reads it at several places.

    rewrite:  s = scan(x);  s[:, 64:] - s[:, :-64]  ->  (s - s at max(i - 64, 0))[:, 64:]
              s - pad(s[:, :-1], ((0, 0), (1, 0)))  ->  s - where(i >= 1, s at max(i - 1, 0), 0)
    checks:   windows are no longer than the lines, whose sizes are known; a block holds lines, and
              walks over them whole; one of the windows, the last one that may, is read where the
              line is computed; what windows meet can be read along whole lines, too
    order:    behind fold_crops, which makes one crop of several; before turn_scans and hoist_moves,
              which leave moves of scans that are read in place, too, where they are
    """
    if not any(isinstance(t.op, Scan) for t in fusion.values):
        return fusion
    windows = {t: w for t in fusion.values if (w := _window(t, target)) is not None}
    begins = _meeting(fusion, windows) if windows else dict[Tensor, int]()
    new: dict[Tensor, Tensor] = {}
    whole: dict[Tensor, _Whole] = {}

    def replace(t: Tensor, operands: tuple[Tensor, ...]) -> Tensor | None:
        new.update(zip(t.op.operands, operands, strict=True))
        if t in begins:
            w, begin = windows[t], begins[t]
            whole[t] = _Whole(_along_line(new[w.source], w, begin), w.axis, begin, w.length)
            return None
        if any(o in whole for o in t.op.operands) and _is_computed(t):
            one = next(whole[o] for o in t.op.operands if o in whole)
            if not _fits(t, one, whole):
                return None
            inner = [whole[o].value if o in whole else _longer(new[o], one) for o in t.op.operands]
            op = with_operands(t.op, tuple(inner))
            whole[t] = replace_fields(one, value=build.value(one.value.shape, t.dtype, op))
            return _shorter(whole[t])
        return None

    return rebuild(fusion, replace) if begins else fusion


def _window(t: Tensor, target: Target) -> _Window | None:
    """The window of a scan that a value is; None for other values, and where no block holds the
    lines."""
    if not isinstance(t.op, Resize):
        return None
    (source,), fill = t.op.operands, t.op.fill
    low, high = list(t.op.low), list(t.op.high)
    inner = source.op
    if isinstance(inner, Resize) and (
        is_crop(t) or (is_crop(source) and meet_nowhere(t.op, inner))
    ):
        low = [add(a, b) for a, b in zip(low, inner.low, strict=True)]
        high = [add(a, b) for a, b in zip(high, inner.high, strict=True)]
        fill = inner.fill if is_crop(t) else fill
        (source,) = inner.operands
    changed = [a for a in range(source.ndim) if (low[a], high[a]) != (ZERO, ZERO)]
    if len(changed) != 1 or not is_scanned(source, changed[0]):
        return None
    (axis,) = changed
    ends = constant_value(low[axis]), constant_value(high[axis])
    size, length = constant_value(source.shape[axis]), constant_value(t.shape[axis])
    if None in (*ends, size, length):
        return None
    w = _Window(source, axis, ends[0] or 0, ends[1] or 0, length or 0, fill)
    if not 1 < w.length <= (size or 0) or not _walks_whole(source, axis, target):
        return None
    return w if moved_line(_moved(source, axis, 1)) == axis else None


def _walks_whole(t: Tensor, axis: int, target: Target) -> bool:
    """Whether the scans that a value is computed of have lines enough to run in one part each."""
    stack, seen = [t], {t}
    while stack:
        v = stack.pop()
        if isinstance(v.op, Scan):
            facts = PartitionFacts.of(v, (axis,))
            if facts is None or of_line(facts, target) is not None:
                return False
        elif isinstance(v.op, Pointwise):
            stack += [o for o in v.op.operands if o not in seen]
            seen.update(v.op.operands)
    return True


def _meeting(fusion: Fusion, windows: Mapping[Tensor, _Window]) -> dict[Tensor, int]:
    """Where on its line what is computed of a window begins: of windows that are read with others,
    or with the lines themselves, and of those with a border. Loops over a line read it at one
    place, and no other."""
    together: dict[Tensor, set[Tensor]] = {w: {w} for w in windows}
    whole = {t: _Whole(w.source, w.axis, 0, w.length) for t, w in windows.items()}
    reads: dict[Tensor, Tensor] = {w: w for w in windows}
    in_place: set[Tensor] = set()
    for t in fusion.values:
        known = [o for o in t.op.operands if o in whole] if _is_computed(t) else []
        if not known or not _fits(t, whole[known[0]], whole):
            continue
        whole[t], reads[t] = whole[known[0]], reads[known[0]]
        joined = set[Tensor]().union(*(together[reads[o]] for o in known))
        together.update(dict.fromkeys(joined, joined))
        if any(is_scanned(o, whole[t].axis) for o in t.op.operands if o not in whole):
            in_place |= joined
    begins: dict[Tensor, int] = {}
    for w, others in together.items():
        begin = _begin([windows[o] for o in others], is_in_place=not in_place.isdisjoint(others))
        if begin is not None:
            begins[w] = begin
    return begins


def _begin(found: list[_Window], *, is_in_place: bool) -> int | None:
    """Where on their line windows that are read together begin; None where they may stay, or none
    of them could be read where the line is computed."""
    places = {w.low for w in found} | ({0} if is_in_place else set[int]())
    if len(places) == 1 and all(w.low <= 0 and w.high <= 0 for w in found):
        return None
    size = constant_value(found[0].source.shape[found[0].axis]) or 0
    room = 0 if is_in_place else size - found[0].length
    return max((-low for low in places if 0 <= -low <= room), default=None)


def _is_computed(t: Tensor) -> bool:
    return isinstance(t.op, Pointwise) and not is_alone(t)


def _fits(t: Tensor, one: _Whole, whole: Mapping[Tensor, _Whole]) -> bool:
    """Whether all operands of a function are windows of lines of one size, or can be read along
    such lines."""
    return all(
        whole[o].value.shape == one.value.shape and whole[o].axis == one.axis
        if o in whole
        else _is_readable(o, one)
        for o in t.op.operands
    )


def _is_readable(t: Tensor, one: _Whole) -> bool:
    """Whether a value can be read along whole lines: arguments with a border, what is computed of
    them, and scans of lines of that size."""
    if is_scanned(t, one.axis):
        return t.shape == one.value.shape
    return all(
        isinstance(v.op, Iota | Input) or not v.op.operands or _is_spread(v, one.axis)
        for v in _leaves(t)
    )


def _leaves(t: Tensor) -> Iterator[Tensor]:
    """What a value is computed of, element by element."""
    if _is_computed(t):
        for o in t.op.operands:
            yield from _leaves(o)
    else:
        read = behind_views(t)
        yield read if isinstance(read.op, Input | Iota) else t


def _is_spread(t: Tensor, axis: int) -> bool:
    """Whether a value has the same elements all along an axis."""
    if not isinstance(t.op, Broadcast):
        return False
    own = t.op.axes[axis]
    return own is None or t.op.operands[0].shape[own] == ONE


# --- what is made -------------------------------------------------------------------------------


def _moved(source: Tensor, axis: int, by: int) -> Tensor:
    """Lines that are read `by` elements before each place, at the nearest one that there is."""
    if not by:
        return source
    at = build.coordinates(source.shape)
    place, last = add(at[axis], -by), add(source.shape[axis], -1)
    place = maximum(place, 0) if by > 0 else minimum(place, last)
    index = [place if a == axis else c for a, c in enumerate(at)]
    return build.index_map(source, source.shape, at, index)


def _along_line(source: Tensor, w: _Window, begin: int) -> Tensor:
    """A window on whole lines, from `begin` on; what stands around it does not count."""
    out = _moved(source, w.axis, w.low + begin)
    first, last = w.low + begin, add(source.shape[w.axis], w.low + begin)
    bounds = [("ge", as_expr(first))] if w.low > 0 else []
    bounds += [("lt", last)] if w.high > 0 else []
    along = build.iota(source.shape, w.axis)
    for fn, bound in bounds:
        edge = build.spread(build.size(bound, along.dtype), source.shape)
        fill = build.full(source.shape, w.fill, source.dtype)
        out = build.pointwise("where", build.pointwise(fn, along, edge), out, fill)
    return out


def _longer(t: Tensor, one: _Whole) -> Tensor:
    """A value that is readable along whole lines, along them; what it has beside its own elements
    does not count."""
    shape, axis = one.value.shape, one.axis
    if t.shape == shape:
        return t
    if _is_computed(t):
        operands = tuple(_longer(o, one) for o in t.op.operands)
        return build.value(shape, t.dtype, with_operands(t.op, operands))
    if isinstance(t.op, Iota) and t.op.axis != axis:
        return build.iota(shape, t.op.axis, t.dtype)
    if isinstance(t.op, Broadcast) and _is_spread(t, axis):
        return build.value(shape, t.dtype, Broadcast(t.op.operands, t.op.axes))
    if isinstance(t.op, Iota):
        begin = build.full(shape, one.begin, t.dtype)
        return build.pointwise("sub", build.iota(shape, axis, t.dtype), begin)
    return _resized(t, one, [one.begin, add(shape[axis], -one.begin, -one.length)])


def _shorter(w: _Whole) -> Tensor:
    """The elements that count."""
    size = w.value.shape[w.axis]
    return _resized(w.value, w, [-w.begin, add(w.begin, w.length, mul(size, -1))])


def _resized(t: Tensor, w: _Whole, ends: Sequence[IntLike]) -> Tensor:
    low, high = ([e if a == w.axis else 0 for a in range(t.ndim)] for e in ends)
    return build.resize(t, low, high, t.dtype.numpy.type(0).item())
