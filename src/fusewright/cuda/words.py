"""Registers that stay as the machine words they were loaded in: how their elements are spelled."""

from __future__ import annotations

import numpy as np

from fusewright.core.expr import Expr, constant_value
from fusewright.cuda import scalars
from fusewright.errors import SpecError
from fusewright.kir.ir import Buffer, Imm, Load, Reg
from fusewright.target import WORD_NBYTES


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


IN_WORD = frozenset({"bfloat16", "float8_e4m3", "float8_e5m2"})
"""What is widened in fewer instructions where it lies: those of 8 bits two at a time."""


def value(name: str, reg: Reg) -> str:
    """The element of a buffer kept in words `name`, in its compute type."""
    dtype = reg.buffer.dtype
    at = constant_value(reg.index)
    if at is None or dtype.name not in IN_WORD:
        return scalars.widen(element(name, reg, reg.index), dtype)
    each = WORD_NBYTES // dtype.nbytes
    return f"{scalars.ctype(dtype)}_in_word<{at % each}>({name}[{at // each}])"


def fill_word(fill: Imm, buffer: Buffer) -> str:
    """The word whose every element is the literal, as stored in the buffer's dtype."""
    one = np.asarray(fill.value, dtype=buffer.dtype.numpy).tobytes()
    return f"{int.from_bytes(one * (WORD_NBYTES // len(one)), 'little'):#x}u"
