"""Parts of a product's result are products of parts of the operands."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fusewright.core.expr import ONE, ZERO, add, mul
from fusewright.fusion import build
from fusewright.fusion.ir import Fusion, MatMul, Pointwise, Resize, Tensor, with_operands
from fusewright.fusion.passes.fold_crops import is_crop
from fusewright.fusion.passes.rebuild import rebuild

Readers = dict[Tensor, list[Tensor]]


def crop_products(fusion: Fusion, wanted: Callable[[Tensor], bool]) -> Fusion:
    """Compute no more of a product than is read, and its two halves side by side where they meet
    again elementwise.

    rewrite:  (x @ w)[:, :n]  ->  x @ w[:, :n]
              h = x @ w + b;  f(h[:, :n]) * h[:, n:]
              ->   f(x @ w[:, :n] + b[:n]) * (x @ w[:, n:] + b[n:])
    checks:   nothing but one crop, or two halves, of the last two axes reads the result or what is
              computed of it before; the product, and those of the parts, are `wanted`, but for a
              single row or column, whose sums read every element of the other operand once
    order:    before crops are moved to arguments, as those of operands then are; a kernel takes
              two products that share an operand
    """
    readers: Readers = {}
    for t in fusion.values:
        for o in t.op.operands:
            readers.setdefault(o, []).append(t)
    crops: set[Tensor] = set()
    for t in fusion.values:
        if isinstance(t.op, MatMul) and wanted(t):
            found = _parts(t, readers, fusion)
            parts = [_part_of_product(t, op) for op in map(_op, found)]
            if all(map(wanted, parts)) or (len(parts) == 1 and ONE in parts[0].shape[-2:]):
                crops.update(found)
    if not crops:
        return fusion

    def replace(t: Tensor, operands: tuple[Tensor, ...]) -> Tensor | None:
        return _cropped(operands[0], _op(t), {}) if t in crops else None

    return rebuild(fusion, replace)


def _op(crop: Tensor) -> Resize:
    assert isinstance(crop.op, Resize)
    return crop.op


def _parts(product: Tensor, readers: Readers, fusion: Fusion) -> list[Tensor]:
    """The crop by which alone a product's result is read, or the two of its halves that meet."""
    crops: list[Tensor] = []
    stack, seen = [product], {product}
    while stack:
        t = stack.pop()
        if t in fusion.outputs:
            return []
        for r in readers.get(t, ()):
            if is_crop(r):
                crops.append(r)
            elif not isinstance(r.op, Pointwise):
                return []
            elif r not in seen:
                seen.add(r)
                stack.append(r)
    crops = list(dict.fromkeys(crops))
    if any(axis < product.ndim - 2 for c in crops for axis in _cut_axes(c)):
        return []
    is_pair = len(crops) == 2 and _are_halves(crops, product) and _meet(crops, readers)
    return crops if is_pair or len(crops) == 1 else []


def _cut_axes(crop: Tensor) -> list[int]:
    """The axes of which a crop takes a part."""
    edges = zip(_op(crop).low, _op(crop).high, strict=True)
    return [k for k, (low, high) in enumerate(edges) if low != ZERO or high != ZERO]


def _are_halves(crops: Sequence[Tensor], product: Tensor) -> bool:
    """Whether two crops, of one shape, leave off each other's rows or columns and nothing else."""
    cut = _cut_axes(crops[0])
    if len(cut) != 1 or cut != _cut_axes(crops[1]) or crops[0].shape != crops[1].shape:
        return False
    (k,) = cut
    a, b = map(_op, crops)
    first, second = (a, b) if a.low[k] == ZERO else (b, a)
    return (
        first.low[k] == ZERO
        and second.high[k] == ZERO
        and add(product.shape[k], first.high[k]) == mul(second.low[k], -1)
    )


def _meet(crops: Sequence[Tensor], readers: Readers) -> bool:
    """Whether one value is computed elementwise of both."""
    reached: list[set[Tensor]] = []
    for c in crops:
        found, stack = set[Tensor](), [c]
        while stack:
            for r in readers.get(stack.pop(), ()):
                if isinstance(r.op, Pointwise) and r not in found:
                    found.add(r)
                    stack.append(r)
        reached.append(found)
    return not reached[0].isdisjoint(reached[1])


def _cropped(t: Tensor, crop: Resize, known: dict[Tensor, Tensor]) -> Tensor:
    """A part of a product, or of what is computed of one and other values, without the rest."""
    if t in known:
        return known[t]
    match t.op:
        case MatMul():
            part = _part_of_product(t, crop)
        case Pointwise():
            parts = tuple(_cropped(o, crop, known) for o in t.op.operands)
            part = build.value(parts[0].shape, t.dtype, with_operands(t.op, parts))
        case _:
            part = build.resize(t, crop.low, crop.high, 0)
    known[t] = part
    return part


def _part_of_product(t: Tensor, crop: Resize) -> Tensor:
    a, b = t.op.operands
    none = [ZERO] * (t.ndim - 2)
    low, high = crop.low, crop.high
    left = build.resize(a, [*none, low[-2], ZERO], [*none, high[-2], ZERO], 0)
    right = build.resize(b, [*none, ZERO, low[-1]], [*none, ZERO, high[-1]], 0)
    shape = (*t.shape[:-2], left.shape[-2], right.shape[-1])
    return build.value(shape, t.dtype, with_operands(t.op, (left, right)))
