"""What ptxas reports of each kernel: registers, spills, stack, shared memory, warnings."""

from __future__ import annotations

import re
from dataclasses import dataclass

_ENTRY = re.compile(r"Compiling entry function '([^']+)'")
_PROPERTIES = re.compile(r"Function properties for (\S+)")
_STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers")
_SHARED = re.compile(r"(\d+) bytes smem")
_BARRIERS = re.compile(r"used (\d+) barriers")
_WARNING = re.compile(r"\b(?:warning|C75\d\d)\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Resources:
    """Per kernel: registers and barriers a thread block uses, bytes of spill stores and loads,
    of stack frame and of static shared memory, and what the compiler warned of."""

    registers: int
    spill_stores: int
    spill_loads: int
    stack_nbytes: int
    shared_nbytes: int
    barriers: int
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Spilled:
    """A way to make a kernel of which the compiler keeps `nbytes` a thread in memory, as registers
    do not hold them; `is_kept`: it is that of the kernel all the same."""

    what: str
    nbytes: int
    is_kept: bool = False


def resources(log: str) -> dict[str, Resources]:
    """Every kernel of a module by its name, from the log of `ptxas -v`. Warnings belong to the
    module and stand with each of its kernels."""
    warnings = tuple(line.strip() for line in log.splitlines() if _WARNING.search(line))
    names = _ENTRY.findall(log)
    sections = _ENTRY.split(log)[2::2]
    return {name: _parse(section, warnings) for name, section in zip(names, sections, strict=True)}


def _parse(section: str, warnings: tuple[str, ...]) -> Resources:
    own = _PROPERTIES.split(section)
    text = own[-1] if len(own) > 1 else section
    stack = _STACK.search(text)
    frame, stores, loads = map(int, stack.groups()) if stack else (0, 0, 0)
    return Resources(
        registers=_number(_USED, section),
        spill_stores=stores,
        spill_loads=loads,
        stack_nbytes=frame,
        shared_nbytes=_number(_SHARED, section),
        barriers=_number(_BARRIERS, section),
        warnings=warnings,
    )


def _number(pattern: re.Pattern[str], text: str) -> int:
    found = pattern.search(text)
    return int(found[1]) if found else 0
