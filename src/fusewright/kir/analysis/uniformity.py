"""Conditions on which all threads of a block, or all lanes of each warp, agree."""

from __future__ import annotations

import numpy as np

from fusewright.core.expr import And, Cond, Equal, Less, Not, Or, Var, add, mul, variables
from fusewright.kir.analysis.lanes import evaluate_lanes, split_unknown, thread_values
from fusewright.kir.ir import Kernel, RegVar
from fusewright.target import WARP_SIZE


def is_block_uniform(c: Cond, kernel: Kernel) -> bool:
    """Whether all threads of a block agree, because no thread variable or register is in it."""
    threads = {d.var for d in kernel.block if d.extent.interval[1] != 1}
    return not any(v in threads or isinstance(v, RegVar) for v in variables(c))


def is_warp_uniform(c: Cond, kernel: Kernel) -> bool:
    """Whether the lanes of every warp agree: thread variables enter only through the warp."""
    if is_block_uniform(c, kernel):
        return True
    match c:
        case And() | Or():
            return all(is_warp_uniform(p, kernel) for p in c.parts)
        case Not():
            return is_warp_uniform(c.part, kernel)
        case Less() | Equal():
            return _is_constant_in_warps(c, kernel)
        case _:
            return False


def _is_constant_in_warps(c: Less | Equal, kernel: Kernel) -> bool:
    threads = thread_values(kernel)
    split = split_unknown(add(c.left, mul(c.right, -1)), threads, frozenset[Var]())
    if split is None or any(v not in threads for v in variables(split[0])):
        return False
    values = np.broadcast_to(evaluate_lanes(split[0], threads), (kernel.nthreads,))
    firsts = np.repeat(values[::WARP_SIZE], WARP_SIZE)[: values.size]
    return bool(np.array_equal(values, firsts))
