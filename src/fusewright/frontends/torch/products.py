"""Matrix products of aten."""

from __future__ import annotations

from fusewright.errors import UnsupportedError
from fusewright.frontends.torch.library import aten, torch
from fusewright.frontends.torch.promotion import cast_to
from fusewright.frontends.torch.table import Dtypes, lowers
from fusewright.fusion import ops
from fusewright.fusion.array import Array
from fusewright.runtime.config import Float32Matmul

PRODUCTS = (aten.mm.default, aten.addmm.default, aten.bmm.default, aten.baddbmm.default)


@lowers(aten.mm.default, aten.bmm.default)
def _mm(out: Dtypes, a: Array, b: Array) -> Array:
    return _product(a, b)


@lowers(aten.addmm.default, aten.baddbmm.default)
def _addmm(
    out: Dtypes, bias: Array, a: Array, b: Array, *, beta: float = 1, alpha: float = 1
) -> Array:
    made = _product(a, b)
    if alpha != 1:
        made = made * cast_to(alpha, out[0])
    if beta == 0:
        return made
    return made + (bias if beta == 1 else bias * cast_to(beta, out[0]))


def _product(a: Array, b: Array) -> Array:
    if not a.dtype.is_float:
        raise UnsupportedError(f"a product of {a.dtype} is no float's")
    return ops.matmul(a, b)


def float32_matmul() -> Float32Matmul:
    """What torch allows of its own products of float32 on a GPU, which ours take over:
    `torch.backends.cuda.matmul.allow_tf32`, or `torch.set_float32_matmul_precision`."""
    return "tf32" if torch.backends.cuda.matmul.allow_tf32 else "ieee"
