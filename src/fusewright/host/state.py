"""What kernels keep for themselves: scratch in the arena, semaphores and sums that blocks add to in
any order in a root of their own.

These are zero between launches, so that memory which is zeroed once serves every run of a program
on one stream. Each launch has its own: launches without an edge may run side by side.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fusewright.core.expr import ONE, ZERO, Expr, ceildiv
from fusewright.fusion.ir import Input, Tensor
from fusewright.host.ir import AccessMode, Binding, Root, RootKind, Stored
from fusewright.host.subspans import ROOT_ALIGNMENT, Subspan, natural
from fusewright.kir.ir import Buffer, Kernel


def scratch_sites(kernel: Kernel) -> tuple[Subspan, ...]:
    """A value of its own for each scratch of a launch."""
    return tuple(
        natural(Tensor(f"{kernel.name}.{b.name}", (b.size,), b.dtype, _memory()))
        for b in kernel.scratch
    )


def _memory() -> Input:
    return Input((), 0, (ONE,), ROOT_ALIGNMENT)


def state_root(kernels: Sequence[Kernel]) -> Root | None:
    """The root of the semaphores of all launches, each of a kernel; None where there are none."""
    end = ZERO
    for _, b, at in _places(kernels):
        end = at + _nbytes(b)
    return None if end == ZERO else Root(RootKind.STATE, 0, "state", end, ROOT_ALIGNMENT)


def bound_semaphores(kernels: Sequence[Kernel], root: Root | None) -> list[dict[Buffer, Binding]]:
    """The bindings of the semaphores of each launch in the root that `state_root` gave."""
    out: list[dict[Buffer, Binding]] = [{} for _ in kernels]
    if root is None:
        return out
    for k, b, at in _places(kernels):
        name = f"{kernels[k].name}.{b.name}"
        nbytes = b.size * b.dtype.nbytes
        out[k][b] = Binding(
            root, at, nbytes, AccessMode.READ_WRITE, name, Stored(name, root, nbytes), nbytes,
            ((b.size, ONE * b.dtype.nbytes),), b.dtype.nbytes,
        )  # fmt: skip
    return out


def _places(kernels: Sequence[Kernel]) -> Iterator[tuple[int, Buffer, Expr]]:
    """The semaphores of each launch, by its number, and the byte at which they lie."""
    at: Expr = ZERO
    for k, kernel in enumerate(kernels):
        for b in kernel.state:
            yield k, b, at
            at = at + _nbytes(b)


def _nbytes(b: Buffer) -> Expr:
    """Bytes of a buffer and of what follows it up to the next one."""
    return ceildiv(b.size * b.dtype.nbytes, ROOT_ALIGNMENT) * ROOT_ALIGNMENT
