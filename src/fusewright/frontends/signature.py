"""What a fused function is specialised on: structure, dtypes, sizes, strides and alignment.

Sizes that `dynamic=` marks become symbols. Equal sizes at the first call share one symbol; 0 and 1
stay numbers. The pattern is part of the key, so a later call that breaks it gets a program of its
own, and every program is right for all calls that reach it.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence
from typing import Any, NamedTuple, TypeAlias

from fusewright.core.expr import Expr, as_expr
from fusewright.dtypes import DType
from fusewright.frontends.marks import Marks, roots_of
from fusewright.frontends.natural_layouts import pattern_of
from fusewright.fusion import trees
from fusewright.fusion.ir import Sym, TensorSpec
from fusewright.fusion.trees import Tree
from fusewright.runtime.arrays import ArrayInfo

VECTOR_NBYTES = 16


class _Extent(NamedTuple):
    """A symbolic size: its number in order of appearance, and what it is a multiple of."""

    number: int
    multiple: int


_Strides: TypeAlias = tuple[str, tuple[int, ...]]
"""How an array lies that is not in C order: ("dense", its axes from slow to fast), or ("gaps", its
strides)."""


class _ArrayKind(NamedTuple):
    """What kernels know of one array, and how its axes lie in memory."""

    shape: tuple[int | _Extent, ...]
    dtype: DType
    strides: _Strides | None
    alignment: int
    pattern: tuple[int, ...]


class Signature(NamedTuple):
    """What a call is specialised on. Equal for calls that share a program. A tuple of tuples, as
    it is looked up by every call of a new size."""

    structure: Hashable
    arrays: tuple[_ArrayKind, ...]

    @property
    def patterns(self) -> tuple[tuple[int, ...], ...]:
        """How the axes of each array lie in memory."""
        return tuple(x.pattern for x in self.arrays)

    @property
    def specs(self) -> tuple[TensorSpec, ...]:
        """The specs of the call's arrays."""
        symbols: dict[int, Sym] = {}

        def extent(e: int | _Extent) -> int | Sym:
            if isinstance(e, int):
                return e
            return symbols.setdefault(e.number, Sym(f"n{e.number}", multiple_of=e.multiple))

        out: list[TensorSpec] = []
        for x in self.arrays:
            shape = tuple(extent(e) for e in x.shape)
            strides: Any = None if x.strides is None else _spec_strides(x.strides, shape)
            out.append(TensorSpec(shape, x.dtype, strides=strides, alignment=x.alignment))
        return tuple(out)


def signature_of(infos: Sequence[ArrayInfo], tree: Tree, marks: Marks) -> Signature:
    """What a call is specialised on. `tree` is the structure of its arguments."""
    known: dict[int, _Extent] = {}

    def extent(size: int, grain: int) -> int | _Extent:
        if size < 2:
            return size
        if size not in known:
            multiple = 1 if marks.everything else min(grain, size & -size)
            known[size] = _Extent(len(known), multiple)
        return known[size]

    arrays: list[_ArrayKind] = []
    for x, marked in zip(infos, _marked(infos, tree, marks), strict=True):
        shape = x.shape
        if marked:
            grain = max(VECTOR_NBYTES // x.dtype.nbytes, 1)
            shape = tuple([extent(n, grain) if a in marked else n for a, n in enumerate(shape)])
        on_host = x.device.kind == "cpu"
        strides = None if on_host else _strides(x)
        alignment = VECTOR_NBYTES if on_host else _alignment(x)
        arrays.append(_ArrayKind(shape, x.dtype, strides, alignment, pattern_of(x.strides)))
    return Signature(trees.key(tree), tuple(arrays))


def _marked(infos: Sequence[ArrayInfo], tree: Tree, marks: Marks) -> list[Collection[int]]:
    """The axes of each array that are symbolic."""
    if marks.everything:
        return [range(len(x.shape)) for x in infos]
    if not marks.axes:
        return [()] * len(infos)
    roots = roots_of(tree)
    return [marks.of(root, len(x.shape)) for root, x in zip(roots, infos, strict=True)]


def _alignment(x: ArrayInfo) -> int:
    """What kernels may assume of the address; less than an element means that it is copied."""
    return min(x.alignment, VECTOR_NBYTES) if x.alignment >= x.dtype.nbytes else VECTOR_NBYTES


def _strides(x: ArrayInfo) -> _Strides | None:
    """How the array lies that kernels are made for; None for C order, which others are copied to.

    Negative strides are copied. With symbolic sizes, dense arrays keep their order of axes; what
    has gaps is made for its numbers, which do not change with the sizes that do.
    """
    if _is_c_order(x) or 0 in x.shape:
        return None
    if any(s < 0 and n > 1 for n, s in zip(x.shape, x.strides, strict=True)):
        return None
    order = sorted(range(len(x.shape)), key=lambda a: (-x.strides[a], -x.shape[a], a))
    size = 1
    for a in reversed(order):
        if x.shape[a] != 1 and x.strides[a] != size:
            return "gaps", x.strides
        size *= x.shape[a]
    return "dense", tuple(order)


def _spec_strides(found: _Strides, shape: Sequence[int | Sym]) -> tuple[int | Expr, ...]:
    """Element strides for a shape."""
    kind, numbers = found
    if kind == "gaps":
        return numbers
    step: Expr = as_expr(1)
    strides: dict[int, Expr] = {}
    for a in reversed(numbers):
        strides[a] = step
        step = step * shape[a]
    return tuple(strides[a] for a in range(len(shape)))


def _is_c_order(x: ArrayInfo) -> bool:
    step = 1
    for n, s in zip(reversed(x.shape), reversed(x.strides), strict=True):
        if n != 1 and s != step:
            return False
        step *= n
    return True
