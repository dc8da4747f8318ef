"""What is proved of the lanes of loads, where their instructions depend on it."""

from __future__ import annotations

from dataclasses import replace

from fusewright.kir.analysis.proved_lanes import proved_lanes
from fusewright.kir.ir import Kernel, Load, Statement
from fusewright.kir.traverse import OfClasses, map_statements


def locate_loads(kernel: Kernel) -> Kernel:
    """Note how far into a word loads begin that may begin anywhere, and which loads of some lanes
    stay in their buffer even where they do not take place.

    rewrite:  r[0..8] = load x[8*i + 2] begins anywhere   ->   r[0..8] = load x[8*i + 2] begins 2
    checks:   nothing; the spec looks at every load that is marked
    order:    when indices no longer change
    """

    def located(n: Statement) -> Statement:
        if not isinstance(n, Load):
            return n
        lanes = proved_lanes(n)
        return n if lanes == n.lanes else replace(n, lanes=lanes)

    return map_statements(kernel, located, OfClasses(Load))
