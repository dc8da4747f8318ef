"""What a fused function is specialised on: structure, dtypes, sizes, strides and alignment.

Sizes that `dynamic=` marks become symbols. Equal sizes at the first call share one symbol; 0 and 1
stay numbers. The pattern is part of the key, so a later call that breaks it gets a program of its
own, and every program is right for all calls that reach it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from fusewright.core.expr import Expr, as_expr
from fusewright.errors import UserError
from fusewright.fusion import trees
from fusewright.fusion.ir import Sym, TensorSpec
from fusewright.fusion.trees import Tree
from fusewright.runtime.arrays import ArrayInfo

Dynamic: TypeAlias = bool | Mapping[Any, Sequence[int]] | None
"""False or None: no symbolic sizes. True: all, in general kernels. A mapping: these axes of these
parameters (by name or position)."""

VECTOR_NBYTES = 16


@dataclass(frozen=True, slots=True)
class Marks:
    """Which axes are symbolic: of every array, or by parameter."""

    everything: bool
    axes: Mapping[Any, tuple[int, ...]]
    parameters: tuple[str, ...]

    def of(self, root: str | int, rank: int) -> frozenset[int]:
        """The marked axes of an array of the parameter `root`."""
        if self.everything:
            return frozenset(range(rank))
        position = self.parameters.index(root) if root in self.parameters else root
        name = self.parameters[root] if isinstance(root, int) and self._named(root) else root
        chosen = (*self.axes.get(name, ()), *self.axes.get(position, ()))
        for a in chosen:
            if not -rank <= a < rank:
                raise UserError(f"dynamic: {name!r} has rank {rank}, there is no axis {a}")
        return frozenset(a % rank for a in chosen)

    def _named(self, position: int) -> bool:
        return position < len(self.parameters)


def marks_of(fn: Callable[..., Any], dynamic: Dynamic) -> Marks:
    """The marks that `dynamic=` asks for. Raises UserError for parameters that `fn` lacks."""
    try:
        names = tuple(inspect.signature(fn).parameters)
    except (TypeError, ValueError):
        names = ()
    if dynamic is None or isinstance(dynamic, bool):
        return Marks(bool(dynamic), {}, names)
    for name in dynamic:
        if (name not in names) if isinstance(name, str) else not 0 <= name < len(names):
            raise UserError(
                f"dynamic: there is no parameter {name!r}; use True, or a mapping from "
                f"{', '.join(names)} to the axes whose sizes may change"
            )
    return Marks(False, {k: tuple(v) for k, v in dynamic.items()}, names)


@dataclass(slots=True)
class _Symbols:
    """Symbols by size, numbered in order of appearance."""

    general: bool
    known: dict[int, Sym] = field(default_factory=dict[int, Sym])

    def extent(self, size: int, grain: int) -> int | Sym:
        """The entry of a spec for a size; `grain`: the multiple that makes a difference."""
        if size < 2:
            return size
        if size not in self.known:
            multiple = 1 if self.general else min(grain, size & -size)
            self.known[size] = Sym(f"n{len(self.known)}", multiple_of=multiple)
        return self.known[size]


@dataclass(frozen=True, slots=True)
class Signature:
    """The specs of a call's arrays, and a key that is equal when they are."""

    key: Hashable
    specs: tuple[TensorSpec, ...]


def signature_of(infos: Sequence[ArrayInfo], tree: Tree, marks: Marks) -> Signature:
    """What a call is specialised on. `tree` is the structure of its arguments."""
    symbols = _Symbols(marks.everything)
    roots = _roots(tree)
    specs: list[TensorSpec] = []
    parts: list[Hashable] = [repr(tree)]
    for x, root in zip(infos, roots, strict=True):
        marked = marks.of(root, len(x.shape))
        grain = max(VECTOR_NBYTES // x.dtype.nbytes, 1)
        shape = tuple(symbols.extent(n, grain) if a in marked else n for a, n in enumerate(x.shape))
        strides = None if x.device.kind == "cpu" else _strides(x, shape)
        alignment = VECTOR_NBYTES if x.device.kind == "cpu" else _alignment(x)
        specs.append(TensorSpec(shape, x.dtype, strides=strides, alignment=alignment))
        sizes = tuple((e.name, e.multiple_of) if isinstance(e, Sym) else e for e in shape)
        parts.append((sizes, x.dtype, None if strides is None else str(strides), alignment))
    return Signature(tuple(parts), tuple(specs))


def _roots(tree: Tree) -> list[str | int]:
    """For each leaf of `(args, kwargs)` the parameter it belongs to."""
    assert isinstance(tree, trees.Branch)
    args, kwargs = tree.items
    assert isinstance(args, trees.Branch) and isinstance(kwargs, trees.Branch)
    named = [*enumerate(args.items), *zip(kwargs.keys, kwargs.items, strict=True)]
    return [root for root, item in named for _ in range(trees.count(item))]


def _alignment(x: ArrayInfo) -> int:
    """What kernels may assume of the address; less than an element means that it is copied."""
    return min(x.alignment, VECTOR_NBYTES) if x.alignment >= x.dtype.nbytes else VECTOR_NBYTES


def _strides(x: ArrayInfo, shape: Sequence[int | Sym]) -> tuple[Any, ...] | None:
    """The strides that kernels are made for; None for C order, which others are copied to.

    Negative strides are copied. With symbolic sizes, dense arrays keep their order of axes; what
    has gaps is made for its numbers, which do not change with the sizes that do.
    """
    if 0 in x.shape or any(s < 0 and n > 1 for n, s in zip(x.shape, x.strides, strict=True)):
        return None
    if _is_c_order(x):
        return None
    order = sorted(range(len(shape)), key=lambda a: (-x.strides[a], -x.shape[a], a))
    step, dense = as_expr(1), True
    size = 1
    strides: dict[int, Expr] = {}
    for a in reversed(order):
        dense = dense and (x.shape[a] == 1 or x.strides[a] == size)
        strides[a] = step
        step, size = step * shape[a], size * x.shape[a]
    return tuple(strides[a] for a in range(len(shape))) if dense else x.strides


def _is_c_order(x: ArrayInfo) -> bool:
    step = 1
    for n, s in zip(reversed(x.shape), reversed(x.strides), strict=True):
        if n != 1 and s != step:
            return False
        step *= n
    return True
