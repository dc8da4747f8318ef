"""Kernels of which only the header has been read: launches, and what is between them, need no more.

Reading the statements of a kernel takes ten times as long as all else that a process does that
finds a program on disk. What a launch asks of them is a few facts, which are kept beside the text.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fusewright.core.node import fields_of
from fusewright.kir.ir import Body, Buffer, Kernel


@dataclass(frozen=True, slots=True)
class Border:
    """What launches ask of a kernel's statements: which parameters these read and write, how many
    bytes of shared memory a block needs, and what a host program calls it (`host.assemble`)."""

    reads: frozenset[str]
    writes: frozenset[str]
    shared_nbytes: int
    role: str


class UnreadKernel(Kernel):
    """A kernel whose body is read from text when somebody asks for it. One that is made of it with
    other fields is an ordinary kernel."""

    __slots__ = ("_kept", "_read", "border")

    border: Border
    _read: Callable[[], Body]
    _kept: dict[str, Body]

    def __new__(cls, *values: Any, **named: Any) -> Kernel:  # type: ignore[misc]
        """A kernel of these fields."""
        return Kernel(*values, **named)

    @property
    def body(self) -> Body:  # type: ignore[override]
        """The statements, the same ones each time, also for threads that ask at once."""
        kept = self._kept
        return kept["body"] if kept else kept.setdefault("body", self._read())

    def buffers(self, names: frozenset[str]) -> frozenset[Buffer]:
        """The parameters of these names."""
        return frozenset(b for b in self.params if b.name in names)


def unread_kernel(header: Kernel, read: Callable[[], Body], border: Border) -> UnreadKernel:
    """A kernel with the fields of `header`, and the body that `read` gives, which several threads
    may call at once."""
    made: UnreadKernel = object.__new__(UnreadKernel)
    for name in fields_of(Kernel):
        if name != "body":
            object.__setattr__(made, name, getattr(header, name))
    object.__setattr__(made, "_read", read)
    object.__setattr__(made, "_kept", {})
    object.__setattr__(made, "border", border)
    return made
