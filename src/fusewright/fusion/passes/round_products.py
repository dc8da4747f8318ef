"""Products of float32 whose operands may be rounded to tf32."""

from __future__ import annotations

from fusewright.dtypes import float32
from fusewright.fusion import build
from fusewright.fusion.ir import Fusion, MatMul, Tensor
from fusewright.fusion.passes.rebuild import rebuild


def round_products(fusion: Fusion) -> Fusion:
    """Let matrix instructions take float32, of whose mantissa they multiply 10 bits.

    rewrite:  MatMul(a, b)  ->  MatMul(a, b, precision="tf32")    for a and b of float32
    checks:   only where the caller allowed it, as results change
    order:    first of all, so that evaluation and kernels round the same operands
    """

    def replace(t: Tensor, operands: tuple[Tensor, ...]) -> Tensor | None:
        if not isinstance(t.op, MatMul) or t.op.precision != "ieee":
            return None
        if any(o.dtype is not float32 for o in operands):
            return None
        return build.value(t.shape, t.dtype, MatMul(operands, "tf32"))

    return rebuild(fusion, replace)
