"""Registers that stay as the machine words they were loaded in.

An element is cut out of its word where it is used: what a loop loads for its next iteration is then
not waited for in this one, and the upper half of a word becomes a float in one instruction.
"""

from __future__ import annotations

import numpy as np

from fusewright.core.expr import Expr, constant_value
from fusewright.cuda import scalars
from fusewright.errors import SpecError
from fusewright.kir.ir import Buffer, Compute, Imm, Kernel, Load, Reg
from fusewright.kir.traverse import own_registers, walk_statements
from fusewright.target import WORD_NBYTES


def kept_in_words(kernel: Kernel) -> frozenset[Buffer]:
    """The register buffers of short elements that loads fill in whole words, and that only
    arithmetic reads."""
    loaded: set[Buffer] = set()
    others: set[Buffer] = set()
    for s in walk_statements(kernel):
        match s:
            case Load() if _fills_words(s):
                loaded.add(s.dst.buffer)
            case Compute():
                others.add(s.dst.buffer)
                others |= {r.buffer for r in own_registers(s) if constant_value(r.index) is None}
            case _:
                others |= {r.buffer for r in own_registers(s)}
    return frozenset(loaded - others)


def _fills_words(s: Load) -> bool:
    b, first = s.dst.buffer, constant_value(s.dst.index)
    return (
        s.src.dtype is b.dtype
        and b.dtype.kind != "bool"
        and b.dtype.nbytes < WORD_NBYTES
        and first is not None
        and all(n * b.dtype.nbytes % WORD_NBYTES == 0 for n in (first, s.width))
    )


def word_count(buffer: Buffer) -> int:
    """The 32-bit words of a buffer."""
    size = constant_value(buffer.size)
    assert size is not None
    return -(-size * buffer.dtype.nbytes // WORD_NBYTES)


def words_of(s: Load) -> range:
    """The words of its buffer that a load fills."""
    each, first = WORD_NBYTES // s.dst.buffer.dtype.nbytes, constant_value(s.dst.index) or 0
    return range(first // each, (first + s.width) // each)


def element(name: str, reg: Reg, index: Expr) -> str:
    """The element of a buffer kept in words `name`, in the C++ type of its dtype."""
    at = constant_value(index)
    if at is None:
        raise SpecError(f"register {reg.buffer}[{index}] is kept in words and has no literal index")
    dtype = reg.buffer.dtype
    each = WORD_NBYTES // dtype.nbytes
    word, shift = f"{name}[{at // each}]", 8 * dtype.nbytes * (at % each)
    return f"({scalars.ctype(dtype)})({word} >> {shift})"


def fill_word(fill: Imm, buffer: Buffer) -> str:
    """The word whose every element is the literal, as stored in the buffer's dtype."""
    one = np.asarray(fill.value, dtype=buffer.dtype.numpy).tobytes()
    return f"{int.from_bytes(one * (WORD_NBYTES // len(one)), 'little'):#x}u"
