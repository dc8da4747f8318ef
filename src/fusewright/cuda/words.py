"""Registers that stay as the machine words they were loaded in.

Elements taken out of a word where it is loaded are waited for there. A buffer that a loop loads for
its next iteration is therefore kept in words, and its elements are cut out where they are used.
"""

from __future__ import annotations

from collections import Counter

from fusewright.core.expr import TRUE, ZERO, Expr, constant_value
from fusewright.cuda import scalars
from fusewright.errors import SpecError
from fusewright.kir.ir import Buffer, Compute, Kernel, Load, Reg
from fusewright.kir.traverse import own_registers, walk_statements

WORD_NBYTES = 4


def kept_in_words(kernel: Kernel) -> frozenset[Buffer]:
    """The register buffers that several loads fill, each whole, and only copies read."""
    loads: Counter[Buffer] = Counter()
    others: set[Buffer] = set()
    for s in walk_statements(kernel):
        if isinstance(s, Load) and _is_whole(s):
            loads[s.dst.buffer] += 1
        elif isinstance(s, Compute) and s.fn == "copy" and s.predicate == TRUE:
            others.add(s.dst.buffer)
        else:
            others.update(r.buffer for r in own_registers(s))
    return frozenset(b for b, n in loads.items() if n > 1 and b not in others)


def _is_whole(s: Load) -> bool:
    b = s.dst.buffer
    size = constant_value(b.size)
    return (
        s.src.dtype is b.dtype
        and b.dtype.kind != "bool"
        and b.dtype.nbytes <= WORD_NBYTES
        and s.fill is None
        and s.dst.index == ZERO
        and s.width == size
        and s.width * b.dtype.nbytes % WORD_NBYTES == 0
    )


def word_count(buffer: Buffer) -> int:
    """The 32-bit words of a buffer."""
    size = constant_value(buffer.size)
    assert size is not None
    return size * buffer.dtype.nbytes // WORD_NBYTES


def element(name: str, reg: Reg, index: Expr) -> str:
    """The element of a buffer kept in words `name`, in the C++ type of its dtype."""
    at = constant_value(index)
    if at is None:
        raise SpecError(f"register {reg.buffer}[{index}] is kept in words and has no literal index")
    dtype = reg.buffer.dtype
    each = WORD_NBYTES // dtype.nbytes
    word, shift = f"{name}[{at // each}]", 8 * dtype.nbytes * (at % each)
    if dtype.nbytes == WORD_NBYTES:
        return f"__uint_as_float({word})" if dtype.is_float else f"({scalars.ctype(dtype)}){word}"
    return f"({scalars.ctype(dtype)})({word} >> {shift})"
