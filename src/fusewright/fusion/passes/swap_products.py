"""Products of few rows with their operands in each other's place."""

from __future__ import annotations

from collections.abc import Callable

from fusewright.fusion import build
from fusewright.fusion.ir import Fusion, MatMul, Pointwise, Reduce, Resize, Tensor, with_operands
from fusewright.fusion.passes.rebuild import rebuild


def swap_products(fusion: Fusion, wanted: Callable[[Tensor], bool]) -> Fusion:
    """Let the operand that has many rows have those of the instructions, which are 64 at least.

    rewrite:  x @ w            ->  (w.T @ x.T).T
              sum(x @ w, ..)   ->  sum(copy((w.T @ x.T).T), ..)        and pads, and wider casts
    checks:   the product is `wanted` so
    order:    behind all passes that look for products, and behind `slice_products`

    What a sum of slices or a pad reads is stored, and lies as it was written down: of slices the
    threads of a product store whole sectors across its rows, of any length, and the kernel that
    sums them reads and writes along rows. What is widened may be stored as narrow as it is.
    """

    uses = fusion.uses()

    def replace(t: Tensor, operands: tuple[Tensor, ...]) -> Tensor | None:
        if not isinstance(t.op, MatMul) or not wanted(t):
            return None
        a, b = map(build.swap_last, operands)
        shape = (*t.shape[:-2], t.shape[-1], t.shape[-2])
        swapped = build.swap_last(build.value(shape, t.dtype, with_operands(t.op, (b, a))))
        if any(_stores(u, t) for u in uses[t]):
            return build.value(swapped.shape, t.dtype, Pointwise((swapped,), "copy"))
        return swapped

    return rebuild(fusion, replace)


def _stores(user: Tensor, t: Tensor) -> bool:
    """Whether what reads a product may read it stored: a pad, a wider cast, or a reduction along
    its batch, of which a kernel of the product holds no part."""
    is_wider = isinstance(user.op, Pointwise) and user.dtype.nbytes > t.dtype.nbytes
    is_of_batch = isinstance(user.op, Reduce) and min(user.op.axes) < t.ndim - 2
    return is_wider or is_of_batch or isinstance(user.op, Resize)
