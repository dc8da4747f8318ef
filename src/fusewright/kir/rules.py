"""Rules about operands that several statements have, as what is wrong in words."""

from __future__ import annotations

from collections.abc import Iterator

from fusewright.core.atoms import Max, Min, Xor
from fusewright.core.expr import Expr, FloorDiv, Int, Mod, add, mul, parts_of
from fusewright.core.terms import Term
from fusewright.dtypes import DType
from fusewright.kir.symbols import WHOLE, Buffer, Lanes, RegVar
from fusewright.memory import Cache, Memory
from fusewright.target import MAX_VECTOR_NBYTES, WORD_NBYTES

MAX_SPAN_NBYTES = 2 * MAX_VECTOR_NBYTES
"""Bytes of neighbours that a load takes out of the words that they lie in, of which there are then
three at most: twelve registers, and as many steps to shift what they hold as for two."""


def same_dtype(a: DType, b: DType, rule: str) -> Iterator[str]:
    """Two dtypes that should be one."""
    if a is not b:
        yield f"{a} meets {b}; {rule}"


def lives_in(buffer: Buffer, wanted: Memory) -> Iterator[str]:
    """A buffer in another memory than the statement wants."""
    if buffer.memory is not wanted:
        have = buffer.memory.value
        yield f"{buffer} lives in {have} memory where the statement wants {wanted.value} memory"


def accesses_words(
    buffer: Buffer,
    index: Expr,
    width: int,
    lanes: Lanes = WHOLE,
    cache: Cache = Cache.DEFAULT,
) -> Iterator[str]:
    """What is wrong with an access of `width` elements: they are a word, unless they are cut out of
    those that hold them, which are read through the cache of a multiprocessor. What begins anywhere
    may be of a buffer that does, and longer than a word. Policies are for global memory."""
    nbytes = width * buffer.dtype.nbytes
    is_span = lanes.begins is None and MAX_VECTOR_NBYTES < nbytes <= MAX_SPAN_NBYTES
    is_word = width >= 1 and not width & (width - 1) and nbytes <= MAX_VECTOR_NBYTES
    if cache is not Cache.DEFAULT and buffer.memory is not Memory.GLOBAL:
        yield f"cache policy {cache.value} does not apply to {buffer.memory.value} memory"
    if not is_word and not (is_span and nbytes % WORD_NBYTES == 0):
        limit = f"a power of two of at most {MAX_VECTOR_NBYTES} bytes"
        yield f"{width} elements of {buffer.dtype} at once are not {limit}"
    elif buffer.alignment % nbytes and lanes.begins is not None:
        yield f"{buffer} is aligned to {buffer.alignment} bytes, the access to {nbytes}"
    elif (lanes.first is None) != (lanes.stop is None):
        yield "a range of lanes has a first and a stop"
    elif not lanes.is_cut and is_misaligned(index, width):
        yield f"the index {index} is not a multiple of the width {width}"
    elif lanes.is_cut and not (
        buffer.memory is Memory.GLOBAL and nbytes >= WORD_NBYTES and cache is Cache.DEFAULT
    ):
        where = f"{buffer.memory.value} memory, cache {cache.value}"
        yield (
            f"{nbytes} bytes from {where} are not cut out of two words; loads that begin inside "
            f"of one are of 4, 8 or 16 bytes, or more up to {MAX_SPAN_NBYTES}, from global memory, "
            "cache default"
        )


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
