"""The host program: roots of memory, launches that bind exact subranges of them, and edges.

A `Root` is one piece of memory that someone else addresses: an input, an output, the arena of
intermediates, constants, the semaphores of blocks that wait for each other. A launch binds views:
kernels index from 0 inside a binding, so a kernel never sees more than `[offset, offset + nbytes)`
of a root. All quantities are bytes, and may be expressions in the shape symbols.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from fusewright.core.expr import Expr
from fusewright.host.control import HostRegion
from fusewright.host.groups import Reason
from fusewright.kir.ir import Kernel


class RootKind(enum.Enum):
    """Whose memory a root is. What holds semaphores is zero between launches."""

    INPUT = "input"
    OUTPUT = "output"
    ARENA = "arena"
    CONSTANT = "constant"
    STATE = "state"


class AccessMode(enum.Enum):
    """What a launch does to a binding."""

    READ = "R"
    WRITE = "W"
    READ_WRITE = "RW"

    @property
    def reads(self) -> bool:
        return self is not AccessMode.WRITE

    @property
    def writes(self) -> bool:
        return self is not AccessMode.READ


class EdgeKind(enum.Enum):
    """Why one launch must wait for another: it reads what the other writes, writes it again, or
    writes what the other reads. `REUSE`: the bytes of one value, in the arena or in an argument,
    are given to another; `MAYBE`: an overlap that cannot be ruled out."""

    RAW = "RAW"
    WAW = "WAW"
    WAR = "WAR"
    REUSE = "reuse"
    MAYBE = "maybe"


@dataclass(frozen=True, slots=True, eq=False)
class Root:
    """One piece of memory: `position` counts the roots of its kind, `alignment` in bytes."""

    kind: RootKind
    position: int
    name: str
    nbytes: Expr
    alignment: int

    def __repr__(self) -> str:
        return f"{self.kind.value} {self.name}"


@dataclass(frozen=True, slots=True, eq=False)
class Stored:
    """A value with memory of its own: its name, its root, and the bytes of its elements."""

    name: str
    root: Root
    content: Expr


@dataclass(frozen=True, slots=True)
class ViewBox:
    """The part of a stored value that a view lies in: where in the root the value begins, in bytes,
    and per axis of the value a start and an extent in elements, and a step in bytes; axes from slow
    to fast. Boxes that count from one base in equal steps are disjoint when they are in one axis;
    of others only the bytes tell."""

    base: Expr
    start: tuple[Expr, ...]
    extent: tuple[Expr, ...]
    step: tuple[Expr, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Binding:
    """What a launch may touch of a root: its hull in bytes, and the box inside it where that is
    not the whole root. `content` counts the bytes without the holes. `total`: every byte of the
    hull (of the box) is written. `tensor` names the value, `memory` is the one in whose memory
    it lies. `axes`: extents, and steps in bytes, of its elements, which have `width` bytes each.
    `anywhere`: what is touched lies anywhere in that, where only the device knows."""

    root: Root
    offset: Expr
    nbytes: Expr
    access: AccessMode
    tensor: str
    memory: Stored
    content: Expr
    axes: tuple[tuple[Expr, Expr], ...]
    width: int
    total: bool = False
    box: ViewBox | None = None
    anywhere: bool = False

    def __repr__(self) -> str:
        end = self.offset + self.nbytes
        return f"{self.access.value} {self.tensor}: {self.root}[{self.offset}, {end})"


@dataclass(frozen=True, slots=True, eq=False)
class HostLaunch:
    """One kernel over bindings in the order of its parameters. `values` are its scalar arguments;
    `role` is "kernel", "copy" (moves values and computes none), "fill" (writes constants), or
    "region": launches of bodies, of which `kernel` has the parameters. `idle` counts the
    multiprocessors that it leaves room on, 0 for less than half of them."""

    kernel: Kernel
    values: tuple[bool | int | float, ...]
    bindings: tuple[Binding, ...]
    role: str = "kernel"
    region: HostRegion | None = None
    idle: int = 0

    @property
    def name(self) -> str:
        return self.kernel.name


@dataclass(frozen=True, slots=True)
class Edge:
    """Launch `consumer` must wait for launch `producer` (positions in the program)."""

    producer: int
    consumer: int
    kind: EdgeKind
    why: str


@dataclass(frozen=True, slots=True)
class JoinPieces:
    """The pieces of joined values, by name: those that are made where they end up, with the place,
    and those that are copied there, with the reason."""

    placed: Mapping[str, str] = field(default_factory=dict[str, str])
    not_placed: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def reasons(self) -> list[Reason]:
        """The same as lines of a report."""
        placed = [Reason(t, f"made where it ends up, {at}") for t, at in self.placed.items()]
        return [*placed, *(Reason(t, f"not placed: {r}") for t, r in self.not_placed.items())]
