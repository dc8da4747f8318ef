"""Registers that can stay as the machine words they are loaded in.

An element is cut out of its word where it is used: what a loop loads for its next iteration is then
not waited for in this one, and the upper half of a word becomes a float in one instruction.
"""

from __future__ import annotations

from fusewright.core.expr import constant_value
from fusewright.kir.ir import Buffer, Compute, Kernel, Load
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
