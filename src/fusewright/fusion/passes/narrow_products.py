"""Products of widened short floats."""

from __future__ import annotations

from fusewright.dtypes import DType, float32
from fusewright.fusion import build
from fusewright.fusion.ir import (
    Fusion,
    MatMul,
    Pointwise,
    Tensor,
    behind_views,
    with_operands,
)
from fusewright.fusion.passes.rebuild import rebuild

WIDE_PAIRS = ("bfloat16", "float16")
SHORT = ("float8_e4m3", "float8_e5m2")


def narrow_products(fusion: Fusion) -> Fusion:
    """Multiply short floats as they are where a product casts them to float32 first.

    rewrite:  MatMul(float32(a), float32(b).T)  ->  MatMul(a, b.T) of dtype float32
    checks:   both operands were of one 16-bit dtype, or each of one of 8 bits; products of two
              such values are exact in float32, in which both forms add; nothing is rounded then
    order:    before decompose, which looks at the dtype of operands
    """

    def narrow(t: Tensor, operands: tuple[Tensor, ...]) -> Tensor | None:
        if not isinstance(t.op, MatMul) or t.dtype is not float32:
            return None
        if not are_multiplied(*map(_narrow_dtype, operands)):
            return None
        a, b = map(_as_it_was, operands)
        return build.value(t.shape, t.dtype, MatMul((a, b)))

    return rebuild(fusion, narrow)


def are_multiplied(a: DType | None, b: DType | None) -> bool:
    """Whether values of two short dtypes are multiplied as they are, with sums in float32."""
    if a is None or b is None:
        return False
    return (a is b and a.name in WIDE_PAIRS) or (a.name in SHORT and b.name in SHORT)


def _narrow_dtype(t: Tensor) -> DType | None:
    """The short dtype that a value was cast from, behind views."""
    t = behind_views(t)
    if not isinstance(t.op, Pointwise) or t.op.fn != "cast":
        return None
    source = t.op.operands[0].dtype
    return source if source.name in (*WIDE_PAIRS, *SHORT) else None


def _as_it_was(t: Tensor) -> Tensor:
    """The value before its cast, through the same views."""
    if isinstance(t.op, Pointwise):
        return t.op.operands[0]
    source = _as_it_was(t.op.operands[0])
    return build.value(t.shape, source.dtype, with_operands(t.op, (source,)))
