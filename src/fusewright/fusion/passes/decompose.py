"""Large ops in terms of small ones, for kernels that have no form of their own for them."""

from __future__ import annotations

from collections.abc import Callable

from fusewright.fusion import build, ir
from fusewright.fusion.ir import Fusion, Tensor
from fusewright.fusion.passes.rebuild import rebuild


def decompose(fusion: Fusion, keeps: Callable[[Tensor], bool] = lambda t: False) -> Fusion:
    """Write products as sums of products, but for those that matrix instructions compute.

    rewrite:  MatMul(a, b)[.., i, j]  ->  sum over k of a[.., i, k] * b[.., k, j]
    checks:   afterwards there is no MatMul but those for which `keeps` holds
    order:    before scheduling, on segments that no matmul scheduler took

    The products keep the operands' dtype: kernels multiply and add in its compute dtype and round
    only where the sum is stored, which is what MatMul means.
    """

    def sums(t: Tensor, operands: tuple[Tensor, ...]) -> Tensor | None:
        wanted = isinstance(t.op, ir.MatMul) and not keeps(t)
        return _sum_of_products(*(build.cast(o, t.dtype) for o in operands)) if wanted else None

    return rebuild(fusion, sums)


def _sum_of_products(a: Tensor, b: Tensor) -> Tensor:
    """Over (.., m, k, n): rows of b stay contiguous, and k is innermost for a single column."""
    rank = a.ndim
    shape = (*a.shape, b.shape[-1])
    rows = build.value(shape, a.dtype, ir.Broadcast((a,), (*range(rank), None)))
    order = (*range(rank - 2), None, rank - 2, rank - 1)
    columns = build.value(shape, b.dtype, ir.Broadcast((b,), order))
    return build.reduce("add", build.pointwise("mul", rows, columns), (rank - 1,))
