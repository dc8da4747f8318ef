"""Halves of a product's result are products of halves of an operand."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fusewright.core.expr import ZERO, add, mul
from fusewright.fusion import build
from fusewright.fusion.ir import Fusion, MatMul, Pointwise, Resize, Tensor, with_operands
from fusewright.fusion.passes.fold_crops import is_crop
from fusewright.fusion.passes.rebuild import rebuild

Readers = dict[Tensor, list[Tensor]]


def crop_products(fusion: Fusion, wanted: Callable[[Tensor], bool]) -> Fusion:
    """Compute the two halves of a product side by side, where they meet again elementwise.

    rewrite:  h = x @ w + b;  f(h[:, :n]) * h[:, n:]
              ->   f(x @ w[:, :n] + b[:n]) * (x @ w[:, n:] + b[n:])
    checks:   nothing but the two crops, of one shape, reads the result or what is computed of it
              before; of products for which `wanted` holds, of the result's last two axes
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
            crops.update(_halves(t, readers, fusion))
    if not crops:
        return fusion

    def replace(t: Tensor, operands: tuple[Tensor, ...]) -> Tensor | None:
        if t not in crops:
            return None
        assert isinstance(t.op, Resize)
        return _cropped(operands[0], t.op, {})

    return rebuild(fusion, replace)


def _halves(product: Tensor, readers: Readers, fusion: Fusion) -> list[Tensor]:
    """The two crops by which a product's result is read, if there are no others and they meet."""
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
    is_pair = len(crops) == 2 and crops[0].shape == crops[1].shape
    return crops if is_pair and _are_halves(crops, product) and _meet(crops, readers) else []


def _are_halves(crops: Sequence[Tensor], product: Tensor) -> bool:
    """Whether two crops leave off each other's rows or columns, and nothing else."""
    a, b = (c.op for c in crops)
    assert isinstance(a, Resize) and isinstance(b, Resize)
    cut = [
        k
        for k, edges in enumerate(zip(a.low, a.high, b.low, b.high, strict=True))
        if any(e != ZERO for e in edges)
    ]
    if len(cut) != 1 or cut[0] < product.ndim - 2:
        return False
    k = cut[0]
    size = product.shape[k]
    first, second = (a, b) if a.low[k] == ZERO else (b, a)
    return (
        first.low[k] == ZERO
        and second.high[k] == ZERO
        and add(size, first.high[k]) == mul(second.low[k], -1)
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
    return build.value(shape, t.dtype, MatMul((left, right)))
