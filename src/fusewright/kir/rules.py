"""Rules about operands that several statements have, as what is wrong in words."""

from __future__ import annotations

from collections.abc import Iterator

from fusewright.core.atoms import Max, Min, Xor
from fusewright.core.expr import Expr, FloorDiv, Int, Mod, Term, add, mul, parts_of
from fusewright.dtypes import DType
from fusewright.kir.symbols import Buffer, RegVar
from fusewright.memory import Memory


def same_dtype(a: DType, b: DType, rule: str) -> Iterator[str]:
    """Two dtypes that should be one."""
    if a is not b:
        yield f"{a} meets {b}; {rule}"


def lives_in(buffer: Buffer, wanted: Memory) -> Iterator[str]:
    """A buffer in another memory than the statement wants."""
    if buffer.memory is not wanted:
        have = buffer.memory.value
        yield f"{buffer} lives in {have} memory where the statement wants {wanted.value} memory"


def is_misaligned(index: Expr, width: int) -> bool:
    """Whether the linear part of an index is not known to be a multiple of `width`."""
    constant, terms = parts_of(index)
    opaque = (FloorDiv, Mod, Min, Max, Xor, RegVar)
    linear = [t for t in terms if not any(isinstance(a, opaque) for a in t.atoms)]
    plain = add(constant, *(_term(t) for t in linear))
    return width > 1 and len(linear) == len(terms) and plain.divisor % width != 0


def _term(t: Term) -> Expr:
    product: Expr = Int(t.coefficient)
    for a in t.atoms:
        product = mul(product, a)
    return product
