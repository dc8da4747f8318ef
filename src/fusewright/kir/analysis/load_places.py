"""What is known of where a load begins: how far into a word, and whether it stays in its buffer."""

from __future__ import annotations

from fusewright.core.conditions import TRUE, all_of, less_equal, prove
from fusewright.core.expr import constant_value, mod
from fusewright.kir.ir import Load
from fusewright.memory import Memory


def early_in_word(s: Load) -> int | None:
    """How many elements into a word of its width an unaligned load begins where it takes place;
    None where that is not known."""
    return constant_value(mod(s.index, s.width)) if s.unaligned else None


def is_inside(s: Load) -> bool:
    """Whether a load of some lanes from shared memory is known to stay in its buffer where it does
    not take place, too."""
    if s.first is None or s.predicate == TRUE or s.src.memory is not Memory.SHARED:
        return False
    limits = (less_equal(0, s.index), less_equal(s.index + s.width, s.src.size))
    return prove(all_of(limits)) is True
