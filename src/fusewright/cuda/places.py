"""What is known of where a load begins: how far into a word, and whether it stays in its buffer."""

from __future__ import annotations

from fusewright.core.conditions import all_of, less_equal, prove
from fusewright.core.expr import constant_value, mod
from fusewright.kir.ir import Load
from fusewright.memory import Memory


def early_in_word(s: Load) -> int:
    """How many elements into a word of its width a load begins where it takes place; -1 where that
    is not known."""
    early = constant_value(mod(s.index, s.width))
    return -1 if early is None else early


def is_inside(s: Load) -> bool:
    """Whether a load from shared memory is known to stay in its buffer wherever it stands."""
    if s.src.memory is not Memory.SHARED:
        return False
    limits = (less_equal(0, s.index), less_equal(s.index + s.width, s.src.size))
    return prove(all_of(limits)) is True
