"""Axes that every operation walks over as one become one."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from itertools import pairwise
from typing import TypeAlias

from fusewright.core.expr import ONE, Expr, constant_value
from fusewright.fusion import build, ir
from fusewright.fusion.ir import (
    Broadcast,
    Constant,
    Fusion,
    Input,
    Permute,
    Pointwise,
    Reduce,
    Reshape,
    Shape,
    Size,
    Tensor,
    with_operands,
)
from fusewright.fusion.orders import runs_of_reshape
from fusewright.fusion.passes.rebuild import rebuild

Gap: TypeAlias = tuple[Tensor, int]
"""What lies between an axis of a value, by its number, and the next one."""


def merge_axes(fusion: Fusion) -> Fusion:
    """Merges axes side by side that a reshape merges or cuts, or that a reduction reduces together,
    where all operations of the values that they run through can do without the border. Kernels then
    need not find out that loops over (n, h, w) and over n * h * w places are the same.

    rewrite:  sum(x, (0, 1)), sum(reshape(x * w, (a * b, c)), 0)      x of (a, b, c)
              ->   x' = reshape(x, (a * b, c));  sum(x', 0), sum(x' * w, 0)
    checks:   arguments lie so that the border is none in memory; results are reshaped back, which
              moves nothing; sizes are constant
    order:    before own_outputs, as two results may become one value
    """
    plain = _plain_broadcasts(fusion)
    gaps = _Gaps()
    for t in plain.values:
        gaps.relate(t)
    merged = gaps.merged()
    return _Merging(merged).of(plain) if merged else fusion


# --- which axes ---------------------------------------------------------------------------------


class _Gaps:
    """Gaps that are merged together or not at all, and what speaks for and against it."""

    def __init__(self) -> None:
        self._parent: dict[Gap, Gap] = {}
        self._kept: dict[Gap, None] = {}
        self._wanted: dict[Gap, None] = {}

    def merged(self) -> set[Gap]:
        """The gaps that are merged: some operation wants that, and none needs the border."""
        kept = {self._root(g) for g in self._kept}
        wanted = {self._root(g) for g in self._wanted} - kept
        return {g for g in self._parent if self._root(g) in wanted}

    def relate(self, t: Tensor) -> None:
        """What the operation that makes a value asks of its gaps, and of its operands'."""
        for k, sizes in enumerate(pairwise(t.shape)):
            self._root((t, k))
            if any(constant_value(s) is None for s in sizes):
                self._keep((t, k))
        match t.op:
            case Input(strides=strides):
                self._lying(t, strides)
            case Permute(operands=(Tensor(op=Input(strides=strides)),), axes=axes):
                self._lying(t, tuple(strides[a] for a in axes))
            case Constant() | Size():
                pass
            case Pointwise():
                for o in t.op.operands:
                    for k in range(t.ndim - 1):
                        self._link((o, k), (t, k))
            case Broadcast(axes=axes) | Permute(axes=axes):
                self._moved(t, axes)
            case Reduce(axes=axes):
                self._reduced(t, axes)
            case Reshape():
                self._reshaped(t)
            case _:
                for x in (t, *t.op.operands):
                    for k in range(x.ndim - 1):
                        self._keep((x, k))

    def _lying(self, t: Tensor, strides: Sequence[Expr]) -> None:
        """An argument, or one with its axes permuted: memory knows no border between axes of which
        the outer one steps over the inner one."""
        for k, (outer, inner) in enumerate(pairwise(strides)):
            if outer != inner * t.shape[k + 1]:
                self._keep((t, k))

    def _moved(self, t: Tensor, axes: tuple[int | None, ...]) -> None:
        """Axes that stay side by side, and new ones side by side, can do without the border."""
        (o,) = t.op.operands
        beside: set[int] = set()
        for k, (a, b) in enumerate(pairwise(axes)):
            if a is not None and b == a + 1:
                beside.add(a)
                self._link((o, a), (t, k))
            elif not (a is None and b is None):
                self._keep((t, k))
        for k in range(o.ndim - 1):
            if k not in beside:
                self._keep((o, k))

    def _reduced(self, t: Tensor, axes: tuple[int, ...]) -> None:
        (o,) = t.op.operands
        kept = [a for a in range(o.ndim) if a not in axes]
        for k in range(o.ndim - 1):
            if (k in axes) != (k + 1 in axes):
                self._keep((o, k))
            elif k in axes:
                self._want((o, k), o.shape[k : k + 2])
        for k, (a, b) in enumerate(pairwise(kept)):
            if b == a + 1:
                self._link((o, a), (t, k))
            else:
                self._keep((t, k))

    def _reshaped(self, t: Tensor) -> None:
        """Within a run of axes that is cut in another way all borders go, or none does."""
        (o,) = t.op.operands
        runs = runs_of_reshape(o.shape, t.shape)
        if runs is None:
            for x in (t, o):
                for k in range(x.ndim - 1):
                    self._keep((x, k))
            return
        for before, after in runs:
            if before.stop < o.ndim:
                self._link((o, before.stop - 1), (t, after.stop - 1))
            own = [(o, k) for k in before[:-1]] + [(t, k) for k in after[:-1]]
            for a, b in pairwise(own):
                self._link(a, b)
            for axes, x in ((before, o), (after, t)):
                if own:
                    self._want(own[0], tuple(x.shape[a] for a in axes))

    def _want(self, gap: Gap, sizes: Shape) -> None:
        if sum(s != ONE for s in sizes) > 1:
            self._wanted[gap] = None

    def _keep(self, gap: Gap) -> None:
        self._kept[gap] = None

    def _link(self, a: Gap, b: Gap) -> None:
        self._parent[self._root(a)] = self._root(b)

    def _root(self, gap: Gap) -> Gap:
        parent = self._parent.setdefault(gap, gap)
        while parent != gap:
            gap, parent = parent, self._parent[parent]
        return gap


# --- the rewrite --------------------------------------------------------------------------------


class _Merging:
    """One rewrite: values without the gaps that are merged."""

    def __init__(self, merged: set[Gap]) -> None:
        self._merged = merged

    def of(self, fusion: Fusion) -> Fusion:
        """The fusion, whose results have the axes that they had."""
        new = rebuild(fusion, self._made)
        taken: set[str] = set()
        for t in new.values:
            if t.name in taken:  # what is an argument's, in other axes
                t.name = _unused(t.name, taken)
            taken.add(t.name)
        made = dict(zip(fusion.outputs, new.outputs, strict=True))
        results = {t: _as_result(t, x, taken) for t, x in made.items()}
        outputs = tuple(results[t] for t in fusion.outputs)
        values = ir.topological(outputs, fusion.inputs)
        return dataclasses.replace(fusion, outputs=outputs, values=values)

    def _made(self, t: Tensor, operands: tuple[Tensor, ...]) -> Tensor | None:
        """The value without its gaps; None where neither it nor an operand has one."""
        if not any(self._changes(x) for x in (t, *t.op.operands)):
            return None
        shape = self._shape(t)
        match t.op:
            case _ if _is_argument(t):
                return build.reshape("merge_axes", t, shape)
            case Reshape():
                return build.reshape("merge_axes", operands[0], shape)
            case Broadcast(axes=axes) | Permute(axes=axes):
                place = self._places(t.op.operands[0])
                first = [a for k, a in enumerate(axes) if k == 0 or (t, k - 1) not in self._merged]
                moved = tuple(None if a is None else place[a] for a in first)
                if moved == tuple(range(operands[0].ndim)) and shape == operands[0].shape:
                    return operands[0]
                op = dataclasses.replace(t.op, operands=operands, axes=moved)  # type: ignore[arg-type]
            case Reduce(axes=axes):
                place = self._places(t.op.operands[0])
                reduced = tuple(dict.fromkeys(place[a] for a in axes))
                op = Reduce(operands, t.op.fn, reduced)
            case _:
                op = with_operands(t.op, operands)
        return build.value(shape, t.dtype, op)

    def _changes(self, t: Tensor) -> bool:
        return any((t, k) in self._merged for k in range(t.ndim - 1))

    def _places(self, t: Tensor) -> list[int]:
        """The merged axis of each axis of a value."""
        places = [0]
        for k in range(t.ndim - 1):
            places.append(places[-1] + ((t, k) not in self._merged))
        return places

    def _shape(self, t: Tensor) -> Shape:
        sizes: list[Expr] = []
        for k, s in enumerate(t.shape):
            if k > 0 and (t, k - 1) in self._merged:
                sizes[-1] = sizes[-1] * s
            else:
                sizes.append(s)
        return tuple(sizes)


def _as_result(t: Tensor, made: Tensor, taken: set[str]) -> Tensor:
    """A result in its own axes, under its name."""
    if _is_argument(t):
        return t
    if made.shape == t.shape:
        return made
    if made.name == t.name:
        made.name = _unused(t.name, taken)
        taken.add(made.name)
    out = build.reshape("merge_axes", made, t.shape)
    out.name, out.source = t.name, t.source
    return out


def _is_argument(t: Tensor) -> bool:
    """Whether a value is an argument, or one with its axes permuted."""
    source = t.op.operands[0] if isinstance(t.op, Permute) else t
    return isinstance(source.op, Input)


def _unused(name: str, taken: set[str]) -> str:
    """The name with a number behind it that nothing has."""
    return next(n for k in range(len(taken) + 1) if (n := f"{name}_{k}") not in taken)


# --- broadcasts ---------------------------------------------------------------------------------


def _plain_broadcasts(fusion: Fusion) -> Fusion:
    """Broadcasts of values that have no axes of one element, each in one step, none permuted: an
    axis of the result is an axis of the operand, or new."""

    def replace(t: Tensor, operands: tuple[Tensor, ...]) -> Tensor | None:
        match t.op:
            case Broadcast(axes=axes):
                (o,) = operands
            case Permute(axes=turned) if isinstance(operands[0].op, Broadcast):
                (o,) = operands[0].op.operands
                axes = tuple(operands[0].op.axes[a] for a in turned)
            case _:
                return None
        if isinstance(o.op, Broadcast):
            inner = o.op.axes
            axes = tuple(None if a is None else inner[a] for a in axes)
            (o,) = o.op.operands
        own = [a for a in axes if a is not None]
        missing = [a for a in range(o.ndim) if a not in own]
        if missing or any(o.shape[a] == ONE for a in own):
            sized = [a for a in range(o.ndim) if o.shape[a] != ONE]
            axes = tuple(sized.index(a) if a in sized else None for a in axes)
            o = build.reshape("merge_axes", o, tuple(o.shape[a] for a in sized))
            own = [a for a in axes if a is not None]
        if own != sorted(own):
            o = build.permute(o, own)
            place = {a: k for k, a in enumerate(own)}
            axes = tuple(None if a is None else place[a] for a in axes)
        if axes == tuple(range(o.ndim)) and o.shape == t.shape:
            return o
        if isinstance(t.op, Broadcast) and (o, axes) == (t.op.operands[0], t.op.axes):
            return t
        return build.value(t.shape, t.dtype, Broadcast((o,), axes))

    return rebuild(fusion, replace)
