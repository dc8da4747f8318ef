"""Work counted instead of timed, so that a bound holds on any machine."""

from __future__ import annotations

import cProfile
from collections.abc import Callable


def calls(f: Callable[[], object]) -> int:
    """The function calls that `f` makes, of built-in ones too; ten million take about a second."""
    profile = cProfile.Profile()
    profile.runcall(f)
    return sum(entry.callcount for entry in profile.getstats())
