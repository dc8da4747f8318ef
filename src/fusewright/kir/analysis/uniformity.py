"""Conditions and expressions on which threads agree: of a cluster, a block, a role, a warp."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from fusewright.core.conditions import And, Cond, Equal, Less, Not, Or
from fusewright.core.expr import Expr, Var, add, mul, variables
from fusewright.kir.analysis.lanes import (
    Array,
    evaluate_lanes,
    holds,
    is_known,
    split_unknown,
    thread_values,
)
from fusewright.kir.ir import (
    Alloc,
    Body,
    Buffer,
    Compute,
    Dim,
    For,
    If,
    Kernel,
    Load,
    RegVar,
    Role,
    SetMaxRegisters,
)
from fusewright.kir.traverse import bodies_of, own_values, walk_statements
from fusewright.target import WARP_SIZE

SAMPLES = 64
_PRIMES = (2, 3, 5, 7, 11, 13)
FAR = 1 << 20
"""How far above its lower limit a variable without an upper one is sampled."""


def threads_of(role: Role | None, kernel: Kernel) -> range:
    """The linear numbers of the threads of a role, or of the block."""
    if role is None:
        return range(kernel.nthreads)
    return range(role.first * WARP_SIZE, role.stop * WARP_SIZE)


def is_block_uniform(c: Cond, kernel: Kernel) -> bool:
    """Whether all threads of a block agree, because no thread variable or register is in it."""
    return _has_none_of(c, kernel.block)


def is_cluster_uniform(value: Cond | Expr, kernel: Kernel) -> bool:
    """Whether all threads of a cluster agree on a condition or an expression, as
    `is_block_uniform`."""
    return _has_none_of(value, (*kernel.block, *kernel.cluster))


def is_cluster_agreed(value: Cond | Expr, kernel: Kernel) -> bool:
    """Whether all blocks of a cluster agree on a condition or an expression, thread by thread."""
    return _has_none_of(value, kernel.cluster)


def is_warp_uniform(c: Cond, kernel: Kernel) -> bool:
    """Whether the lanes of every warp agree."""
    return is_block_uniform(c, kernel) or all_agree(c, kernel, range(kernel.nthreads), WARP_SIZE)


def is_role_uniform(c: Cond, kernel: Kernel, role: Role | None) -> bool:
    """Whether all threads of a role, or of the block outside of roles, agree."""
    threads = threads_of(role, kernel)
    return is_block_uniform(c, kernel) or all_agree(c, kernel, threads, len(threads))


def all_agree(value: Cond | Expr, kernel: Kernel, threads: range, group: int) -> bool:
    """Whether the value is the same for every `group` neighbours of the threads, in any one
    iteration of the loops around."""
    match value:
        case And() | Or():
            return all(all_agree(p, kernel, threads, group) for p in value.parts)
        case Not():
            return all_agree(value.part, kernel, threads, group)
        case Less() | Equal():
            known = thread_values(kernel)
            if is_known(value, known):
                return _alike(holds(value, known).may, kernel, threads, group)
            return all_agree(add(value.left, mul(value.right, -1)), kernel, threads, group)
        case Expr():
            known = thread_values(kernel)
            split = split_unknown(value, known, frozenset[Var]())
            if split is None or any(v not in known for v in variables(split[0])):
                return False
            return _alike(evaluate_lanes(split[0], known), kernel, threads, group)
        case _:
            return True


def _alike(values: Array, kernel: Kernel, threads: range, group: int) -> bool:
    """Whether one value a thread of the block is the same in every group of the threads."""
    every = np.broadcast_to(values, (kernel.nthreads,))
    mine = every[threads.start : threads.stop]
    return all(bool((mine[i : i + group] == mine[i]).all()) for i in range(0, len(mine), group))


def parting_share(c: Cond, kernel: Kernel) -> float:
    """The share of warps, from 0 to 1, whose lanes do not agree on a condition: counted over one
    block at values of all other variables that are spread evenly; 1 when it reads a register."""
    found = _sampled_warps(c, kernel)
    return 1.0 if found is None else np.count_nonzero(found[0] != found[1]) / found[0].size


def meeting_share(c: Cond, kernel: Kernel) -> float:
    """The share of warps of which some lane meets a condition, counted in the same way."""
    found = _sampled_warps(c, kernel)
    return 1.0 if found is None else np.count_nonzero(found[0]) / found[0].size


def thread_share(c: Cond, kernel: Kernel) -> float:
    """The share of threads that meet a condition, counted in the same way."""
    found = _sampled_threads(c, kernel)
    return 1.0 if found is None else float(found.mean())


def _sampled_warps(c: Cond, kernel: Kernel) -> tuple[Array, Array] | None:
    """Whether some, and every, lane of sampled warps meets a condition; None where it reads a
    register."""
    where = _sampled_threads(c, kernel)
    if where is None:
        return None
    firsts = range(0, kernel.nthreads, WARP_SIZE)
    some, every = (f.reduceat(where, firsts, axis=1) for f in (np.logical_or, np.logical_and))
    return some, every


def _sampled_threads(c: Cond, kernel: Kernel) -> Array | None:
    """Whether the threads of sampled blocks meet a condition; None where it reads a register."""
    known = thread_values(kernel)
    others = [v for v in variables(c) if v not in known]
    if any(isinstance(v, RegVar) for v in others):
        return None
    for position, v in enumerate(others):
        low = v.interval[0] or 0
        high = low + FAR if v.interval[1] is None else v.interval[1]
        # Multiples of square roots of primes: no two variables move in step.
        fractions = np.arange(1, SAMPLES + 1) * np.sqrt(_PRIMES[position % len(_PRIMES)]) % 1
        known[v] = (low + (fractions * (high - low + 1)).astype(np.int64))[:, None]
    return np.broadcast_to(holds(c, known).may, (SAMPLES, kernel.nthreads))


def agreed_registers(kernel: Kernel) -> frozenset[Buffer]:
    """The registers in which all threads of a block have the same values where they stand at the
    same statement: all that is written there is loaded from one place of memory, or computed of
    such registers, by all threads or by none; nobody knows what threads have in one that is never
    written. Memory that a thread may write meanwhile is the
    matter of the syncs."""
    uses = (u for s in walk_statements(kernel) for u in s.register_uses())
    found = {u.reg.buffer for u in uses if u.writes}
    moving = frozenset(d.var for d in kernel.block if d.extent.interval[1] != 1)
    while lost := found.intersection(_parted(kernel.body, found, moving)):
        found -= lost
    return frozenset(found)


def _parted(body: Body, agreed: set[Buffer], moving: frozenset[Var]) -> Iterator[Buffer]:
    """The registers in which a body leaves different values, where others hold the same."""

    def agree(value: Cond | Expr) -> bool:
        own = variables(value)
        registers = (v.reg.buffer for v in own if isinstance(v, RegVar))
        return moving.isdisjoint(own) and all(b in agreed for b in registers)

    for s in body:
        values = (v for v in own_values(s) if isinstance(v, Expr | Cond))
        match s:
            case Alloc():
                continue
            case Load() | Compute():
                read = (u.reg.buffer for u in s.register_uses() if u.reads)
                is_same = all(map(agree, values)) and all(b in agreed for b in read)
            case For() | If():
                is_same = all(map(agree, values))
            case _:
                is_same = False
        if not is_same:
            inside = (s, *walk_statements(s))
            yield from (u.reg.buffer for x in inside for u in x.register_uses() if u.writes)
        else:
            for inner in bodies_of(s):
                yield from _parted(inner, agreed, moving)


def _has_none_of(value: Cond | Expr, dims: Iterable[Dim]) -> bool:
    """Whether neither the variables of the dimensions nor registers are in the value."""
    moving = {d.var for d in dims if d.extent.interval[1] != 1}
    return not any(v in moving or isinstance(v, RegVar) for v in variables(value))


def only_issuer(role: Role, kernel: Kernel) -> int | None:
    """The thread that issues all that a role does, if another lane of its warp could as well: no
    other thread takes part, and nothing depends on which thread it is. None for other roles, and
    where the last warp is not whole."""
    issuers: set[int | None] = {None} if role.stop * WARP_SIZE > kernel.nthreads else set()
    for s in walk_statements(role):
        values = (v for v in own_values(s) if isinstance(v, Expr | Cond))
        if not all(_has_none_of(v, kernel.block) for v in values):
            return None
        if not isinstance(s, For | If | SetMaxRegisters):
            issuers.add(s.issuing_thread())
    return issuers.pop() if len(issuers) == 1 else None
