"""Checks of asynchronous work, syncs and roles; `kir/spec.py` holds the list of all checks.

Blocking statements stand only where all warps of their role (of the block, outside of roles) agree
to run them: the warps of a role then wait together, and no warp is late because another waits.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from fusewright.core.conditions import Cond
from fusewright.core.expr import Expr, variables
from fusewright.core.node import children, fields_holding, values_of
from fusewright.dtypes import uint64
from fusewright.kir.analysis.lanes import conjunction, evaluate_lanes, holds, is_known
from fusewright.kir.analysis.uniformity import all_agree, threads_of
from fusewright.kir.checks import Check, KernelFacts, Problem
from fusewright.kir.ir import Alloc, BarrierArrive, Buffer, Memory, NamedSync, Reg, Role, Roles
from fusewright.kir.traits import Act, Team
from fusewright.kir.traverse import register_uses
from fusewright.target import NAMED_BARRIERS, WARP_SIZE

_MAX_TRIED = 1 << 14


# --- who agrees -------------------------------------------------------------------------------


def _blocking(facts: KernelFacts) -> Iterator[Problem]:
    k = facts.kernel
    for place in facts.acting:
        s = place.statement
        threads = threads_of(place.role, k)
        whole = "role" if place.role else "block"
        if s.waits_at() is not None:
            for c in place.conditions:
                if not all_agree(c, k, threads, len(threads)):
                    yield (
                        s,
                        (
                            f"it blocks, but the warps of its {whole} may disagree on '{c}' "
                            "around it; give the warps that run it a Role"
                        ),
                    )
        use = s.mbarrier_use()
        if use is not None and use.act is Act.WAIT:
            for e in use.steers:
                if not all_agree(e, k, threads, len(threads)):
                    yield s, f"the threads of a {whole} wait together, but may disagree on {e}"
        if s.arrives_at() is not None and s.waits_at() is None and s.issuing_thread() is None:
            steers = () if use is None else use.steers
            is_per_warp = use is None or use.arrives_by_warp
            for c in (*(place.conditions if is_per_warp else ()), *steers):
                if not all_agree(c, k, threads, WARP_SIZE):
                    yield s, f"a warp arrives as one, but its lanes may disagree on {c}"


def _single_issuers(facts: KernelFacts) -> Iterator[Problem]:
    k = facts.kernel
    for place in facts.acting:
        s = place.statement
        issuer = s.issuing_thread()
        if issuer is None:
            continue
        threads = threads_of(place.role, k)
        if issuer not in threads:
            yield s, f"thread {issuer} issues it, but only threads {_span(threads)} come here"
        for c in place.conditions:
            if not all_agree(c, k, threads, len(threads)):
                yield s, f"the statement names its thread; '{c}' around it asks for threads again"


def _span(threads: range) -> str:
    return f"{threads.start} .. {threads.stop - 1}"


# --- roles ------------------------------------------------------------------------------------


def _roles(facts: KernelFacts) -> Iterator[Problem]:
    k = facts.kernel
    for place in facts.acting:
        s = place.statement
        if isinstance(s, Role) and not isinstance(place.parent, Roles):
            yield s, "a role stands directly in roles"
        if place.role is not None and (isinstance(s, Roles) or s.executed_by() is Team.BLOCK):
            yield s, "all threads of the block meet here, but a role has only some of its warps"
        if not isinstance(s, Roles):
            continue
        for c in place.conditions:
            if not all_agree(c, k, range(k.nthreads), k.nthreads):
                yield s, f"all threads of the block come to roles, but may disagree on '{c}'"
        end = 0
        for role in s.body:
            if not isinstance(role, Role):
                yield role, "only role statements stand directly in roles"
                continue
            if not end <= role.first < role.stop or role.stop * WARP_SIZE > k.nthreads:
                yield (
                    role,
                    (
                        f"warps {role.first} .. {role.stop - 1} are not behind warp {end} and "
                        f"within the {k.nthreads // WARP_SIZE} whole warps of the block"
                    ),
                )
            end = role.stop


# --- named barriers ---------------------------------------------------------------------------


def _named_barriers(facts: KernelFacts) -> Iterator[Problem]:
    counts: dict[int, int] = {}
    for place in facts.acting:
        s = place.statement
        if not isinstance(s, NamedSync | BarrierArrive):
            continue
        n, limit = s.nthreads, facts.kernel.nthreads
        if not 1 <= s.barrier < NAMED_BARRIERS:
            yield s, f"barrier {s.barrier} is not one of 1 .. {NAMED_BARRIERS - 1}"
        if n < WARP_SIZE or n % WARP_SIZE or n > limit:
            yield s, f"{n} threads are not a positive number of whole warps of at most {limit}"
        if counts.setdefault(s.barrier, n) != n:
            other = counts[s.barrier]
            yield s, f"barrier {s.barrier} waits for {other} threads elsewhere, here for {n}"


# --- operands ---------------------------------------------------------------------------------


def _operands(facts: KernelFacts) -> Iterator[Problem]:
    """The rules that statements have of their own. What a statement names it says that it uses,
    since nobody else looks at its fields."""
    for place in facts.places:
        s = place.statement
        for problem in s.problems():
            yield s, problem
        if isinstance(s, Alloc):
            continue
        named = [r for r in children(s) if type(r) is Reg]
        registers = [u.reg for u in register_uses(s)] if named else []
        for r in named:
            if r not in registers:
                yield s, f"it names the register {r.buffer}[{r.index}] and does not say what for"
        names = fields_holding(type(s), Buffer)
        buffers = [b for b in values_of(s, names) if type(b) is Buffer] if names else []
        used = [u.buffer for u in s.memory_uses()] if buffers else []
        for b in buffers:
            if b not in used:
                yield s, f"it names the buffer {b} and does not say what for"


# --- mbarriers --------------------------------------------------------------------------------


def _mbarriers(facts: KernelFacts) -> Iterator[Problem]:
    for place in facts.acting:
        s, use = place.statement, place.statement.mbarrier_use()
        if use is None:
            continue
        b = use.barrier
        if b.memory is not Memory.SHARED or b.dtype is not uint64:
            yield s, f"{b} is {b.dtype} in {b.memory.value} memory; mbarriers are uint64 in shared"
            continue
        size = b.size.interval[0] or 0
        if not _fits(use.slot, size, place.conditions):
            yield s, f"slot {use.slot} may lie outside of the {size} mbarriers of {b}"


def _fits(slot: Expr, size: int, conditions: tuple[Cond, ...]) -> bool:
    """Whether a slot lies in `0 .. size-1`, by its range, or by trying all values that the
    conditions around it allow."""
    low, high = slot.interval
    if low is not None and high is not None and (low > high or (low >= 0 and high < size)):
        return True
    found = variables(slot)
    ranges = [v.interval for v in found]
    lengths = [hi - lo + 1 for lo, hi in ranges if lo is not None and hi is not None]
    if not found or len(lengths) < len(found) or math.prod(lengths) > _MAX_TRIED:
        return False
    grid = np.indices(lengths).reshape(len(found), math.prod(lengths))
    known = {v: grid[i] + (v.interval[0] or 0) for i, v in enumerate(found)}
    usable = [holds(c, known) for c in conditions if is_known(c, known)]
    where = np.broadcast_to(conjunction(usable).may, grid.shape[1:])
    values = np.broadcast_to(evaluate_lanes(slot, known), grid.shape[1:])[where]
    return bool(((values >= 0) & (values < size)).all())


SYNC_CHECKS: tuple[Check, ...] = (
    Check("roles", "lowered", _roles),
    Check("named barriers", "lowered", _named_barriers),
    Check("operands", "lowered", _operands),
    Check("mbarriers", "lowered", _mbarriers),
    Check("single issuers", "lowered", _single_issuers),
    Check("blocking", "lowered", _blocking),
)
