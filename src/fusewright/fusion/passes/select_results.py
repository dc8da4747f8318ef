"""Joins of what is computed of a product's results are selections at the product's own places.

    q = reshape(x @ w, (s, h, d))
    concat([-q[.., d / 2:], q[.., :d / 2]])   ->   c % d < d / 2 ? -p[c + d / 2] : p[c - d / 2]

The parts of a join have axes of their own. A thread that holds results of a product holds those of
other columns, too: as a selection the join has the rows and columns of the product, and its parts
are the product's results at other columns of the same row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fusewright.core.expr import add, constant_value, mod
from fusewright.fusion import build
from fusewright.fusion.ir import (
    Concat,
    Fusion,
    Input,
    MatMul,
    Pointwise,
    Shape,
    Tensor,
    constant_shape,
    topological,
    with_operands,
)
from fusewright.fusion.passes.index_maps import Map, map_of
from fusewright.fusion.passes.read_at import ReadAt
from fusewright.fusion.passes.rebuild import rebuild
from fusewright.fusion.passes.select_joins import MAX_PARTS


def select_results(fusion: Fusion, wanted: Callable[[Tensor], bool]) -> Fusion:
    """Computes the parts of a join of a product's results at all places of the product, and keeps
    at each the one that lies there.

    rewrite:  concat([f(p[:, n:]), g(p[:, :n])], axis=1)
              ->  where(c < n, f(p at c % n + n), g(p at c % n))
    checks:   the product is `wanted`; the join has as many elements, in the same order; few parts,
              of known sizes, which are functions of elements of the product and of arguments
    order:    before crop_products and sink_reshapes, as another form of the fusion, whose
              predicted time decides: what is computed of the join is then computed of the product
    """

    def replace(t: Tensor, operands: tuple[Tensor, ...]) -> Tensor | None:
        if not isinstance(t.op, Concat):
            return None
        product = _product_behind(operands, wanted)
        if product is None or constant_shape(t) is None or constant_shape(product) is None:
            return None
        if build.element_count(t.shape) != build.element_count(product.shape):
            return None
        return _at_places_of(product, t, operands)

    kinds = {type(t.op) for t in fusion.values}
    return rebuild(fusion, replace) if {Concat, MatMul} <= kinds else fusion


def _product_behind(parts: Sequence[Tensor], wanted: Callable[[Tensor], bool]) -> Tensor | None:
    """The one product of which all parts are functions of elements; None where there is none, or
    something else is computed for one of them."""
    found: dict[Tensor, None] = {}
    seen: set[Tensor] = set()
    stack = list(parts)
    while stack:
        t = stack.pop()
        if t in seen:
            continue
        seen.add(t)
        if isinstance(t.op, MatMul):
            found[t] = None
        elif isinstance(t.op, Concat | Pointwise) or map_of(t) is not None:
            stack.extend(t.op.operands)
        elif not isinstance(t.op, Input) and t.op.operands:
            return None
    product = next(iter(found), None)
    return product if product is not None and len(found) == 1 and wanted(product) else None


def _at_places_of(product: Tensor, join: Tensor, parts: Sequence[Tensor]) -> Tensor | None:
    """A join at the places of a product, as one value of the product's shape."""
    places = _places(join, product.shape)
    made = dict[Tensor, Tensor]()
    for t in topological(tuple(parts)):
        operands = tuple(made.get(o, o) for o in t.op.operands)
        if isinstance(t.op, Concat):
            selected = _selection(t.shape, t.op.axis, operands)
            if selected is None:
                return None
            made[t] = selected
        elif any(o in made for o in t.op.operands):
            made[t] = build.value(t.shape, t.dtype, with_operands(t.op, operands))
    assert isinstance(join.op, Concat)
    selected = _selection(join.shape, join.op.axis, [made.get(o, o) for o in parts])
    if selected is None or places is None:
        return None
    return build.reshape("select_results", ReadAt().read(selected, places), join.shape)


def _selection(shape: Shape, axis: int, parts: Sequence[Tensor]) -> Tensor | None:
    """The parts of a join at all of its places, each selected where it lies. A part is computed at
    its own places again and again: what lies there beyond them nobody keeps."""
    if len(parts) > MAX_PARTS:
        return None
    at, reader = build.coordinates(shape), ReadAt()
    along = build.iota(shape, axis)
    start = 0
    out: Tensor | None = None
    for part in parts:
        size = constant_value(part.shape[axis])
        if not size:
            return None
        own = mod(add(at[axis], -start % size), size)
        index = tuple(own if k == axis else c for k, c in enumerate(at))
        value = reader.read(part, Map(shape, at, index))
        if out is not None:
            begin = build.spread(build.size(start, along.dtype), shape)
            value = build.pointwise("where", build.pointwise("ge", along, begin), value, out)
        out = value
        start += size
    return out


def _places(t: Tensor, shape: Shape) -> Map | None:
    """Where each place of a shape of as many elements lies in a value."""
    if t.shape == shape:
        at = build.coordinates(shape)
        return Map(shape, at, at)
    return map_of(build.reshape("select_results", t, shape))
