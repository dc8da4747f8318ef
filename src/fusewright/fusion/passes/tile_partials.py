"""Reductions of a product's results in two steps, of which the product's kernel takes the first.

    y = a @ b;  s = sum(y, 0)   ->   p = sum(parts(y, 0), 1);  s = sum(p, 0)    parts: 16 rows

The warps that multiply hold y in registers, 16 rows each, so that a few shuffles make the partial
results of a bias's gradient, or of the largest value of a tile that is to be scaled. They are few
beside y, which another kernel would read again; a second, small kernel reduces them in fixed order.
It is what `row_partials` is to rows that blocks walk over.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from fusewright.core.expr import constant_value
from fusewright.core.functions import APPROXIMATE
from fusewright.core.identities import reduction_identity
from fusewright.fusion import build
from fusewright.fusion.ir import (
    Fusion,
    MatMul,
    Permute,
    Pointwise,
    Reduce,
    Tensor,
    with_operands,
)
from fusewright.fusion.partition import Partition
from fusewright.fusion.passes.rebuild import rebuild
from fusewright.fusion.rounded import is_short
from fusewright.target import MMA_ROWS, WARP_SIZE, WARPGROUP_SIZE

PART_ROWS = MMA_ROWS * WARP_SIZE // WARPGROUP_SIZE
"""Rows of a product's tile that a warp holds (PTX ISA, "Register Fragments for wgmma")."""
PART_COLUMNS = 64
"""Columns of a part: what the width of every large tile is a multiple of, and the columns of its
results that leave together; of a part a thread holds 16."""
_TILE = {PART_ROWS: (64, 128), PART_COLUMNS: (64, 128, 256)}
"""Rows and columns of tiles, the parts of which may lack elements where a product ends: as many
parts as fill the widest tile that is no larger than the product needs."""


@dataclass(frozen=True, slots=True)
class _CutAxis:
    """An axis that is reduced, and the elements of a part of it."""

    axis: int
    each: int


def tile_partials(fusion: Fusion, wanted: Callable[[Tensor], bool]) -> Fusion:
    """Splits reductions over rows or columns of products, or both, and of what is computed of their
    elements, in two.

    checks:   the product is `wanted` so: matrix instructions of warpgroups compute it, whole; sizes
              of what is reduced are known
    order:    behind all passes that cut products, or exchange their operands; before reductions are
              split
    """
    products: dict[Tensor, tuple[int, int]] = {}
    cuts: dict[Tensor, tuple[_CutAxis, ...]] = {}
    for t in fusion.values:
        if isinstance(t.op, MatMul) and wanted(t):
            products[t] = (t.ndim - 2, t.ndim - 1)
            continue
        known = [products[o] for o in t.op.operands if o in products]
        if not known:
            continue
        match t.op:
            case Pointwise():
                products[t] = known[0]
            case Permute(axes=axes):
                down, across = known[0]
                products[t] = (axes.index(down), axes.index(across))
            case Reduce(axes=axes):
                if found := _cuts(t, known[0], axes):
                    cuts[t] = found
            case _:
                pass
    if not cuts:
        return fusion

    kept = _kept(products, fusion)

    def replace(t: Tensor, operands: tuple[Tensor, ...]) -> Tensor | None:
        if t not in cuts:
            return None
        (source,) = operands
        return _in_two_steps(t, _as_stored(source, kept, {}), cuts[t])

    return rebuild(fusion, replace)


def _kept(results: Mapping[Tensor, object], fusion: Fusion) -> set[Tensor]:
    """The results of products, and of functions of them, that are stored in 16 bits, and are
    computed of functions that have instructions for that."""
    behind: set[Tensor] = set()
    for t in fusion.values:
        fast = isinstance(t.op, Pointwise) and t.op.fn in APPROXIMATE
        if fast or not behind.isdisjoint(t.op.operands):
            behind.add(t)
    return {t for t in fusion.outputs if t in behind and t in results and is_short(t.dtype)}


def _as_stored(t: Tensor, kept: Collection[Tensor], known: dict[Tensor, Tensor]) -> Tensor:
    """A function of results with those of `kept` rounded as they are stored: 16 bits of them are
    all that is needed then, as where another kernel reads them."""
    if t in kept:
        return build.value(t.shape, t.dtype, Pointwise((t,), "cast"))
    if t in known or not isinstance(t.op, Pointwise):
        return known.get(t, t)
    operands = tuple(_as_stored(o, kept, known) for o in t.op.operands)
    is_same = all(a is b for a, b in zip(operands, t.op.operands, strict=True))
    known[t] = t if is_same else build.value(t.shape, t.dtype, with_operands(t.op, operands))
    return known[t]


def _cuts(t: Tensor, tile: tuple[int, int], axes: tuple[int, ...]) -> tuple[_CutAxis, ...]:
    """Where the axes that a reduction reduces are those of a product's tile."""
    (source,) = t.op.operands
    found = [
        _CutAxis(axis, each)
        for axis, each in zip(tile, (PART_ROWS, PART_COLUMNS), strict=True)
        if axis in axes and (constant_value(source.shape[axis]) or 0) > each
    ]
    return tuple(sorted(found, key=lambda c: c.axis))


def _in_two_steps(t: Tensor, source: Tensor, cuts: tuple[_CutAxis, ...]) -> Tensor:
    assert isinstance(t.op, Reduce)
    fn = t.op.fn
    parts = build.cast(source, t.dtype.compute)
    fill = reduction_identity(fn, parts.dtype)
    places: list[int] = []
    for before, c in enumerate(cuts):
        size = constant_value(source.shape[c.axis])
        assert size is not None
        axis = c.axis + before
        parts = build.parts(parts, (axis,), partition_of(size, c.each), fill)
        places.append(axis + 1)
    partial = build.reduce(fn, parts, tuple(places))
    return build.cast(build.reduce(fn, partial, t.op.axes), t.dtype)


def partition_of(size: int, each: int) -> Partition:
    """An axis of a product's result in parts of `each`, as many as its tiles have in all."""
    tile = next((n for n in _TILE[each] if size <= n), _TILE[each][-1])
    return Partition(size, -(-size // tile) * (tile // each), each)


def is_of_tiles(partition: Partition) -> bool:
    """Whether a partition is one of rows or columns of a product's tiles."""
    return any(partition == partition_of(partition.size, each) for each in _TILE)
