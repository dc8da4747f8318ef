"""What is proved of the lanes of a load: where in a word they begin, whether they stay inside."""

from __future__ import annotations

from dataclasses import replace

from fusewright.core.conditions import TRUE, all_of, less_equal, prove
from fusewright.core.expr import constant_value, mod
from fusewright.kir.ir import Lanes, Load
from fusewright.memory import Memory


def proved_lanes(s: Load) -> Lanes:
    """The lanes of a load with all that is proved of them."""
    begins: int | None = 0
    if s.lanes.is_cut:
        is_aligned = s.src.alignment % (s.width * s.src.dtype.nbytes) == 0
        begins = constant_value(mod(s.index, s.width)) if is_aligned else None
    return replace(s.lanes, begins=begins, inside=_is_inside(s))


def _is_inside(s: Load) -> bool:
    """Whether a load of some lanes from shared memory is known to stay in its buffer where it does
    not take place, too."""
    if s.lanes.all_exist or s.predicate == TRUE or s.src.memory is not Memory.SHARED:
        return False
    limits = (less_equal(0, s.index), less_equal(s.index + s.width, s.src.size))
    return prove(all_of(limits)) is True
