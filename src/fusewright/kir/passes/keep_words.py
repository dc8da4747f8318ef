"""Registers of short elements stay in the machine words that they are loaded in."""

from __future__ import annotations

from dataclasses import replace

from fusewright.kir.analysis.words import kept_in_words, kept_uncut
from fusewright.kir.ir import Alloc, Kernel, Statement
from fusewright.kir.traverse import OfClasses, map_statements


def keep_words(kernel: Kernel) -> Kernel:
    """Mark the registers that loads fill in whole words, and that only arithmetic reads; those of
    the next iteration that begin anywhere keep both of their words.

    rewrite:  local r: bfloat16[8]   ->   local r: bfloat16[8] in_words
                                     ->   local r: bfloat16[8] uncut
    checks:   nothing; the spec looks at every register that is marked
    order:    when statements no longer change
    """
    uncut = kept_uncut(kernel)
    found = kept_in_words(kernel) - uncut

    def marked(n: Statement) -> Statement:
        if type(n) is not Alloc:
            return n
        if n.buffer in uncut and not n.uncut:
            return replace(n, uncut=True)
        if n.buffer in found and not n.in_words:
            return replace(n, in_words=True)
        return n

    return map_statements(kernel, marked, OfClasses(Alloc)) if found or uncut else kernel
