"""Roles of a kernel: warps that have tiles copied, beside those that compute."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fusewright.core.expr import ONE, Int, Var, constant_value, mod
from fusewright.errors import ScheduleError
from fusewright.kir.ir import (
    Alloc,
    Body,
    Dim,
    Kernel,
    Memory,
    PrefetchMap,
    Role,
    Roles,
    SetMaxRegisters,
    Statement,
)
from fusewright.kir.substitute import Substitution
from fusewright.kir.tensor_spec import launch_registers
from fusewright.target import MAX_THREADS_PER_BLOCK, WARP_SIZE, WARPGROUP_SIZE


def load_role_warps(kernel: Kernel, registers: tuple[int, ...], groups: int = 1) -> range:
    """The warps that are added for copies, behind those of all `groups` that compute: one, or,
    where registers move to those that compute, the four of a warpgroup. Raises ScheduleError where
    there is no room."""
    n = kernel.nthreads * groups
    first = n // WARP_SIZE
    unit = WARPGROUP_SIZE if registers else WARP_SIZE
    outer = _outer(kernel)
    inside = kernel.nthreads // (constant_value(kernel.block[outer].extent) or 1)
    if n % unit or unit % inside:
        shape = " x ".join(str(d.extent) for d in kernel.block)
        raise ScheduleError(
            f"{kernel.name} has a block of {shape} threads; warps of their own for copies take a "
            f"multiple of {unit} of them, and a last dimension that counts no more than {unit}"
        )
    if n + unit > MAX_THREADS_PER_BLOCK:
        raise ScheduleError(
            f"{kernel.name} has a block of {n} threads, and no room for {unit} that copy"
        )
    if registers and len(registers) != 2:
        raise ScheduleError(f"{registers} are not the registers of two roles: (load, math)")
    return range(first, first + unit // WARP_SIZE)


def _outer(kernel: Kernel) -> int:
    """The last dimension of a block that has several threads, which warps are added along."""
    return max((i for i, d in enumerate(kernel.block) if d.extent != ONE), default=0)


def with_roles(
    kernel: Kernel, made: Body, load: Body, math: Body, warps: range, registers: tuple[int, ...]
) -> Kernel:
    """The kernel whose added warps run `load` while the others run `math`, behind `made`."""
    return with_groups(kernel, made, load, (math,), warps, registers)


def with_groups(
    kernel: Kernel,
    made: Body,
    load: Body,
    groups: Sequence[Body],
    warps: range,
    registers: tuple[int, ...],
) -> Kernel:
    """The kernel whose added warps run `load` while each of several groups of as many threads as it
    has runs a body of its own, behind `made`. Raises ScheduleError where registers are lacking."""
    first = tuple(s for math in groups for s in math if _is_shared(s))
    first += tuple(s for s in groups[0] if isinstance(s, PrefetchMap))
    outer = _outer(kernel)
    x = kernel.block[outer]
    n = warps.stop * WARP_SIZE
    count = n * (constant_value(x.extent) or 1) // kernel.nthreads
    wide = Var(x.var.name, 0, count - 1)
    sets = _registers(kernel, n, warps, registers) if registers else ((), ())
    size, roles = warps.start // len(groups), list[Statement]()
    own = wide if len(groups) == 1 else mod(wide, x.extent)
    for g, math in enumerate(groups):
        rest = tuple(s for s in math if not (_is_shared(s) or isinstance(s, PrefetchMap)))
        rest = Substitution({x.var: own}).body(rest)
        roles.append(Role(g * size, (g + 1) * size, (*sets[1], *rest)))
    roles.append(Role(warps.start, warps.stop, (*sets[0], *load)))
    body = (*made, *first, Roles(tuple(roles)))
    block = (*kernel.block[:outer], Dim(wide, Int(count)), *kernel.block[outer + 1 :])
    least = max(1, kernel.min_blocks) if registers else kernel.min_blocks
    body = Substitution({x.var: wide}).body(body)
    return replace(kernel, body=body, block=block, min_blocks=least)


def _registers(
    kernel: Kernel, n: int, warps: range, registers: tuple[int, ...]
) -> tuple[Body, Body]:
    """How the threads that copy, and those that compute, come to their registers, in a block of
    `n`. Raises ScheduleError where the block has fewer."""
    begin = launch_registers(n, kernel.min_blocks)
    copying = len(warps) * WARP_SIZE
    wanted = registers[0] * copying + registers[1] * (n - copying)
    if wanted > begin * n:
        raise ScheduleError(
            f"{kernel.name}: {copying} threads with {registers[0]} registers and {n - copying} "
            f"with {registers[1]} want {wanted}, a block of {n} begins with {begin * n}; ask for "
            "fewer registers of those that compute"
        )
    load, math = (SetMaxRegisters(r, grows=r > begin) for r in registers)
    return (load,), (math,)


def _is_shared(s: Statement) -> bool:
    return isinstance(s, Alloc) and s.buffer.memory is Memory.SHARED
