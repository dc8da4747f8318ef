"""Registers that can stay as the machine words they are loaded in.

An element is cut out of its word where it is used: what a loop loads for its next iteration is then
not waited for in this one, and the upper half of a word becomes a float in one instruction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from fusewright.core.expr import ZERO, Int, constant_value
from fusewright.kir.ir import Alloc, Body, Buffer, Compute, For, Kernel, Load
from fusewright.kir.traverse import (
    all_statements,
    bodies_of,
    own_buffers,
    own_registers,
    statements_of,
)
from fusewright.memory import Memory
from fusewright.target import WORD_NBYTES


def kept_in_words(kernel: Kernel) -> frozenset[Buffer]:
    """The register buffers of short elements that loads fill in whole words, and that only
    arithmetic reads."""
    return _used_by(statements_of(kernel, Load), kernel, _fills_words)


def kept_uncut(kernel: Kernel) -> frozenset[Buffer]:
    """The register buffers that loads of a loop fill for its next iteration with vectors that
    begin anywhere, and that only arithmetic reads: cut out of their two words where they are
    loaded, they would be waited for there. Other loads, as that of the first iteration, may begin
    with a word: theirs is both words."""
    loads = (s for s in _loads_of_the_next(kernel.body, frozenset()) if s.lanes.is_cut)
    return _used_by(loads, kernel, _is_one_vector)


def _used_by(
    loads: Iterable[Load], kernel: Kernel, fills: Callable[[Load], bool]
) -> frozenset[Buffer]:
    """The buffers of those loads that are of a kind, where nothing uses them otherwise."""
    filled = frozenset(s.dst.buffer for s in loads if fills(s))
    return filled - _used_otherwise(filled, kernel, fills) if filled else filled


def _used_otherwise(
    filled: frozenset[Buffer], kernel: Kernel, fills: Callable[[Load], bool]
) -> frozenset[Buffer]:
    """Those of some register buffers that anything but loads of a kind writes, or that anything
    but arithmetic reads at places that are literals."""
    others: set[Buffer] = set()
    for s in all_statements(kernel):
        if filled.isdisjoint(own_buffers(s)):
            continue
        match s:
            case Load() if fills(s):
                pass
            case Compute():
                others.add(s.dst.buffer)
                others |= {r.buffer for r in own_registers(s) if type(r.index) is not Int}
            case _:
                others |= {r.buffer for r in own_registers(s)}
    return frozenset(others)


def _loads_of_the_next(body: Body, outside: frozenset[Buffer]) -> Iterator[Load]:
    """Loads in loops into registers that are there before the loop."""
    within = frozenset(s.buffer for s in body if isinstance(s, Alloc))
    for s in body:
        if isinstance(s, Load) and s.dst.buffer in outside:
            yield s
        for inner in bodies_of(s):
            more = within if isinstance(s, For) else frozenset[Buffer]()
            yield from _loads_of_the_next(inner, outside | more)


def _is_one_vector(s: Load) -> bool:
    """Whether a load fills its buffer with one vector of global memory, as it is stored there."""
    b = s.dst.buffer
    is_whole = s.dst.index == ZERO and constant_value(b.size) == s.width
    return is_whole and s.src.dtype is b.dtype and s.src.memory is Memory.GLOBAL


def _fills_words(s: Load) -> bool:
    b, first = s.dst.buffer, constant_value(s.dst.index)
    return (
        s.src.dtype is b.dtype
        and b.dtype.kind != "bool"
        and b.dtype.nbytes < WORD_NBYTES
        and first is not None
        and all(n * b.dtype.nbytes % WORD_NBYTES == 0 for n in (first, s.width))
    )
