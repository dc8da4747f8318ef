"""Products of long rows and few results in slices that multiprocessors share."""

from __future__ import annotations

from collections.abc import Callable

from fusewright.core.expr import Int, constant_value
from fusewright.dtypes import float32
from fusewright.fusion import build
from fusewright.fusion.ir import Fusion, MatMul, Tensor, with_operands
from fusewright.fusion.passes.rebuild import rebuild


def slice_products(fusion: Fusion, slices: Callable[[Tensor], int]) -> Fusion:
    """Multiply slices of the rows side by side, and sum their products in order.

    rewrite:  MatMul(a, b)  ->  sum over s of MatMul(a[:, s of k], b[s of k, :]), s a batch axis
    checks:   `slices` divides the length of the rows
    order:    behind all passes that look for products; before reductions are split

    The products of slices are stored in float32, in which one product would have summed them.
    """

    def replace(t: Tensor, operands: tuple[Tensor, ...]) -> Tensor | None:
        if not isinstance(t.op, MatMul) or (count := slices(t)) == 1:
            return None
        a, b = operands
        left, right = _sliced(a, a.ndim - 1, count), _sliced(b, b.ndim - 2, count)
        product = with_operands(t.op, (left, right))
        parts = build.value((*left.shape[:-1], t.shape[-1]), float32, product)
        return build.cast(build.reduce("add", parts, (0,)), t.dtype)

    return rebuild(fusion, replace)


def _sliced(t: Tensor, axis: int, count: int) -> Tensor:
    """`[.., count * n, ..] -> [count, .., n, ..]`, a view."""
    size = constant_value(t.shape[axis])
    assert size is not None and size % count == 0, "slices are equal"
    parts = (Int(count), Int(size // count))
    cut = build.reshape("matmul", t, (*t.shape[:axis], *parts, *t.shape[axis + 1 :]))
    others = [k for k in range(cut.ndim) if k != axis]
    return build.permute(cut, (axis, *others))
