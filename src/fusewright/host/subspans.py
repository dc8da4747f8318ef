"""Sites: where in memory the elements of a value lie.

A value that is stored by itself is its own root. A piece of a concatenation, the inside of a pad,
or the part of a result that one kernel writes lies inside the memory of another value: at an
offset, with strides, in a box of the root's axes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TypeAlias

from fusewright.core.conditions import less, prove
from fusewright.core.expr import ONE, ZERO, Expr, add, is_multiple, mul
from fusewright.fusion.ir import Input, Shape, Tensor, contiguous_strides

ROOT_ALIGNMENT = 256
"""Bytes to which the runtime aligns outputs and intermediates."""
VECTOR_ALIGNMENT = 16
"""Bytes beyond which kernels do not care."""
LAUNCH_NBYTES = 4 << 20
"""Bytes that a device moves while it starts one more launch: a microsecond at 4 TB/s."""

Range: TypeAlias = tuple[Expr, Expr]
"""Start and extent along one axis of a root."""


@dataclass(frozen=True, slots=True, eq=False)
class Moving:
    """Where in a site a block begins that is smaller than it, by axis, over integers that lie at
    `places` (`ir.position`) and that only the device knows; the nearest place where it fits."""

    places: tuple[Subspan, ...]
    start: tuple[tuple[int, Expr], ...]


@dataclass(frozen=True, slots=True, eq=False)
class Subspan:
    """`shape` elements of `tensor` in the memory of `root`: `offset` and `strides` in elements.

    `box`: the part of every axis of the root that holds them; `axes`: for each axis the axis of
    the root that it runs along, None where it is no single one. `moving`: where only the device
    knows which of them they are, a block of the shape of `tensor`.
    """

    tensor: Tensor
    shape: Shape
    root: Tensor
    offset: Expr
    strides: tuple[Expr, ...]
    box: tuple[Range, ...]
    axes: tuple[int | None, ...]
    moving: Moving | None = None

    @property
    def is_whole(self) -> bool:
        """Whether it is all of its root, in the root's shape."""
        return (
            self.moving is None
            and self.shape == self.root.shape
            and all(
                start == ZERO and extent == n
                for (start, extent), n in zip(self.box, self.root.shape, strict=True)
            )
        )

    @property
    def places(self) -> tuple[Subspan, ...]:
        """Where the integers lie that say where a block begins in it."""
        return () if self.moving is None else self.moving.places

    @property
    def layout(self) -> tuple[object, ...]:
        """What a kernel must know of it: strides in elements, alignment in bytes."""
        if self.moving is None:
            return self.strides, self.alignment
        dtypes = tuple(p.root.dtype for p in self.moving.places)
        return self.strides, self.alignment, self.moving.start, dtypes, self.shape

    @property
    def span(self) -> Expr:
        """Elements from the first to behind the last."""
        if ZERO in self.shape:
            return ZERO
        steps = zip(self.shape, self.strides, strict=True)
        return add(ONE, *(mul(add(n, -1), stride) for n, stride in steps))

    @property
    def size(self) -> Expr:
        """How many elements there are; of a block in it, how many that has."""
        out: Expr = ONE
        for n in self.shape if self.moving is None else self.tensor.shape:
            out = mul(out, n)
        return out

    @property
    def alignment(self) -> int:
        """Bytes that surely divide the address of the first element, at most 16; those of the
        argument where the root is one."""
        op = self.root.op
        base = op.alignment if isinstance(op, Input) else ROOT_ALIGNMENT
        steps = [self.strides[k] for k, _ in self.moving.start] if self.moving else []
        if self.offset == ZERO and not steps:
            return base if isinstance(op, Input) else VECTOR_ALIGNMENT
        nbytes = [mul(e, self.root.dtype.nbytes) for e in (self.offset, *steps)]
        out = min(base, VECTOR_ALIGNMENT)
        while out > 1 and not all(is_multiple(n, out) for n in nbytes):
            out //= 2
        return out

    def part(self, ranges: Sequence[Range]) -> Subspan:
        """The elements in a start and an extent along every axis."""
        box = list(self.box)
        offset = self.offset
        for (start, extent), stride, k in zip(ranges, self.strides, self.axes, strict=True):
            offset = add(offset, mul(start, stride))
            if k is not None:
                box[k] = (add(box[k][0], start), extent)
        shape = tuple(extent for _, extent in ranges)
        return replace(self, shape=shape, offset=offset, box=tuple(box))

    def permuted(self, order: Sequence[int]) -> Subspan:
        """Axis `order[j]` becomes axis j."""
        return replace(
            self,
            shape=tuple(self.shape[a] for a in order),
            strides=tuple(self.strides[a] for a in order),
            axes=tuple(self.axes[a] for a in order),
        )

    def reshaped(self, shape: Shape) -> Subspan | None:
        """The same elements in C order under another shape; None where no strides say that."""
        groups = _equal_products(self.shape, shape)
        if groups is None:
            return None
        strides: list[Expr] = []
        axes: list[int | None] = []
        for old, new in groups:
            run = [a for a in old if self.shape[a] != ONE]
            if any(
                self.strides[a] != mul(self.strides[b], self.shape[b]) for a, b in pairwise(run)
            ):
                return None
            step = self.strides[run[-1]] if run else ONE
            dense = contiguous_strides(tuple(shape[j] for j in new))
            strides += [mul(step, d) for d in dense]
            single = len(run) == 1
            axes += [self.axes[run[0]] if single and shape[j] != ONE else None for j in new]
            if single and sum(shape[j] != ONE for j in new) > 1:
                axes[len(axes) - len(new) :] = [None] * len(new)
        return replace(self, shape=shape, strides=tuple(strides), axes=tuple(axes))

    def is_at(self, other: Subspan) -> bool:
        """Whether the same elements lie there, in the order of the same axes."""
        same = self.root is other.root and self.offset == other.offset
        same = same and self.moving is None and other.moving is None
        return (
            same
            and self.shape == other.shape
            and all(
                n == ONE or a == b
                for n, a, b in zip(self.shape, self.strides, other.strides, strict=True)
            )
        )

    def of(self, tensor: Tensor) -> Subspan:
        """The same memory as that of another value."""
        return replace(self, tensor=tensor)


def natural(t: Tensor, strides: tuple[Expr, ...] | None = None) -> Subspan:
    """A value that is its own root: an argument in its strides, others in C order unless said
    otherwise."""
    if strides is None:
        strides = t.op.strides if isinstance(t.op, Input) else contiguous_strides(t.shape)
    box = tuple((ZERO, n) for n in t.shape)
    return Subspan(t, t.shape, t, ZERO, strides, box, tuple(range(t.ndim)))


def nbytes_of(s: Subspan) -> Expr:
    """Bytes from the first to behind the last element."""
    return s.span * s.root.dtype.nbytes


def _equal_products(old: Shape, new: Shape) -> list[tuple[tuple[int, ...], tuple[int, ...]]] | None:
    """The axes of two shapes of one size in the shortest runs of equal products; None where
    symbolic sizes do not tell. Axes of size one go with what follows them, or what precedes."""
    groups: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
    i, j = 0, 0
    while i < len(old) and j < len(new):
        first, second = i, j
        a, b = old[i], new[j]
        i, j = i + 1, j + 1
        while a != b:
            grow_old = True if a == ONE else False if b == ONE else _is_less(a, b)
            if grow_old is None or (i if grow_old else j) == len(old if grow_old else new):
                return None
            if grow_old:
                a, i = mul(a, old[i]), i + 1
            else:
                b, j = mul(b, new[j]), j + 1
        groups.append((tuple(range(first, i)), tuple(range(second, j))))
    rest = (tuple(range(i, len(old))), tuple(range(j, len(new))))
    if any(old[a] != ONE for a in rest[0]) or any(new[a] != ONE for a in rest[1]):
        return None
    if rest[0] or rest[1]:
        groups.append(rest)
    return groups


def _is_less(a: Expr, b: Expr) -> bool | None:
    """Whether the first product is the smaller one; None where that is not known."""
    if prove(less(a, b)) is True:
        return True
    return False if prove(less(b, a)) is True else None
