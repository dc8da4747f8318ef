"""By turns: whether the iteration of the loop around an exchange is an even or an odd one.

Blocks of a cluster hand on sums in two places by turns. Those of this iteration may then still be
read while blocks that are ahead hand on those of the next: the barrier that a row takes to hand on
its sums is the only one.
"""

from __future__ import annotations

from fusewright.core.expr import Expr, Int, mod
from fusewright.kir.ir import For, Kernel, Statement, ThreadReduce
from fusewright.kir.traverse import walk_statements


def turns_of_loops(kernel: Kernel) -> dict[Statement, Expr]:
    """Of every reduction among threads in a loop 0 or 1, another one in the next iteration."""
    found: dict[Statement, Expr] = {}
    for loop in walk_statements(kernel):
        if isinstance(loop, For) and loop.extent != Int(1):
            turn = mod(loop.var, 2)
            found |= {r: turn for r in walk_statements(loop) if isinstance(r, ThreadReduce)}
    return found
