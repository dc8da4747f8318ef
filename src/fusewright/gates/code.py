"""Gates on machine code: what the compiler made of a kernel is what its schedule claims."""

from __future__ import annotations

import re
from collections.abc import Iterator

from fusewright.cuda.listing import (
    Direction,
    Instruction,
    divisions,
    global_widths,
    innermost_loops,
    instructions,
    local_accesses,
)
from fusewright.cuda.products_listing import early_uses
from fusewright.kernel import Kernel
from fusewright.kir.ir import Compute
from fusewright.kir.traverse import walk_statements
from fusewright.memory import Memory

_QUOTIENTS = ("floordiv", "rem")
_SYNC = re.compile(r"// fw-sync (\d+)")


def code_problems(kernel: Kernel) -> list[str]:
    """What is wrong with a kernel's machine code: spills, a stack frame, warnings, local memory,
    accesses narrower than the schedule's, integer division in an innermost loop that the program
    did not ask for, accumulators touched before the wait for their product, syncs of the PTX that
    are not the kernel's."""
    code = instructions(kernel.sass())
    found = [
        *_resource_problems(kernel),
        *_local_problems(code),
        *_width_problems(kernel, code),
        *_division_problems(kernel, code),
        *_product_problems(code),
        *_sync_problems(kernel),
    ]
    return [f"kernel {kernel.name} {p}" for p in found]


def _resource_problems(kernel: Kernel) -> Iterator[str]:
    found = kernel.resources()
    spilled = found.spill_stores + found.spill_loads
    if spilled:
        yield f"spills {spilled} bytes of registers"
    if found.stack_nbytes:
        yield f"has a stack frame of {found.stack_nbytes} bytes"
    yield from (f"was compiled with a warning: {w}" for w in found.warnings)


def _local_problems(code: tuple[Instruction, ...]) -> Iterator[str]:
    n = local_accesses(code)
    if n:
        yield f"accesses local memory in {n} instructions"


def _width_problems(kernel: Kernel, code: tuple[Instruction, ...]) -> Iterator[str]:
    """An access may be joined with its neighbours by the compiler, but not divided."""
    directions: tuple[Direction, ...] = ("read", "write")
    for direction in directions:
        claimed = scheduled_widths(kernel, direction)
        found = global_widths(code, direction)
        if not claimed or not found:
            continue
        if max(found) < max(claimed):
            yield (
                f"should {direction} {max(claimed)} bytes at once, but its widest access to "
                f"global memory has {max(found)}"
            )
        if min(found) < min(claimed):
            yield (
                f"{direction}s {min(found)} bytes of global memory at once, and its schedule "
                f"nothing narrower than {min(claimed)}"
            )


def scheduled_widths(kernel: Kernel, direction: Direction) -> set[int]:
    """The widths in bytes a thread of the kernel's loads from, or stores to, global memory."""
    out: set[int] = set()
    for s in walk_statements(kernel.ir):
        for u in s.memory_uses():
            is_meant = u.completes.at_once and u.writes is (direction == "write")
            if is_meant and u.buffer.memory is Memory.GLOBAL:
                out.add(u.width * u.buffer.dtype.nbytes)
    return out


def _division_problems(kernel: Kernel, code: tuple[Instruction, ...]) -> Iterator[str]:
    asked = any(
        isinstance(s, Compute) and s.fn in _QUOTIENTS and s.dst.buffer.dtype.is_integer
        for s in walk_statements(kernel.ir)
    )
    n = 0 if asked else sum(divisions(loop) for loop in innermost_loops(code))
    if n:
        yield f"divides integers {n} times in innermost loops"


def _product_problems(code: tuple[Instruction, ...]) -> Iterator[str]:
    early = early_uses(code)
    if early:
        yield (
            f"touches accumulators in {len(early)} instructions before the wait for their product, "
            f"the first of them {early[0]}"
        )


def _sync_problems(kernel: Kernel) -> Iterator[str]:
    found = {int(n) for n in _SYNC.findall(kernel.ptx())}
    wanted = {s.id for s in kernel.syncs}
    if wanted - found:
        yield f"lost the syncs {_listed(wanted - found)} on the way to PTX"
    if found - wanted:
        yield f"has syncs {_listed(found - wanted)} in its PTX that are not its own"


def _listed(ids: set[int]) -> str:
    return ", ".join(f"#{i}" for i in sorted(ids))
