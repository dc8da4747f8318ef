"""Launches of many small tensors become one: their blocks stand side by side (`side_by_side`).

A step of an optimiser is one function of each of a list of tensors. Their kernels share nothing
that fusion could keep in registers, but each launch costs what moving megabytes costs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from fusewright.fusion.ir import Fusion, Pointwise, Tensor
from fusewright.host.in_place import are_apart
from fusewright.host.naming import joined_name
from fusewright.host.subspans import Subspan
from fusewright.kernel import Kernel
from fusewright.kir.side_by_side import block_of, side_by_side, stands_apart
from fusewright.kir.traverse import walk_statements
from fusewright.programs.model import Dispatch

MAX_STATEMENTS = 1500
"""Of a joined kernel. NVRTC 13.0 takes about as long as for the kernels apart, 0.2 s for 60 steps
of SGD (1,079 statements) and 0.4 s for 16 of AdamW (1,647) on a core (2026-11-23,
`python -m bench.joined`); more would keep other cores waiting."""
PARAMETER_NBYTES = 4096
"""Of a kernel's parameters, for every architecture and driver (CUDA programming guide, 'Function
parameters'); a pointer and the widest scalar have 8."""


@dataclass(eq=False)
class _Batch:
    """Launches that may become one, in the place of the first."""

    parts: list[Dispatch]
    alike: object
    statements: int
    sites: list[tuple[Subspan, bool]] = field(default_factory=list[tuple[Subspan, bool]])

    def takes(self, x: Dispatch, alike: object, statements: int) -> bool:
        """Whether one more launch is alike, and fits."""
        if self.alike is None or self.alike != alike:
            return False
        values = (n for p in (*self.parts, x) for n in (*p.reads, *p.writes, *p.values))
        fits = 8 * sum(1 for _ in values) <= PARAMETER_NBYTES
        return fits and self.statements + statements <= MAX_STATEMENTS

    def add(self, x: Dispatch, statements: int) -> None:
        self.parts.append(x)
        self.statements += statements
        self.sites += _sites(x)

    def meets(self, x: Dispatch) -> bool:
        """Whether a launch has to keep its order with these: one writes what the other accesses."""
        return any(
            a.root is b.root and (writes or also_writes) and not are_apart(a, b)
            for a, writes in self.sites
            for b, also_writes in _sites(x)
        )


def join_launches(
    launches: Sequence[Dispatch], kernel_of: Callable[[tuple[Kernel, ...]], Kernel]
) -> list[Dispatch]:
    """Launches of kernels that compute alike, joined as far as nothing in between keeps them apart.
    Those that access a part of a larger memory stay alone: whoever needs a part then waits for its
    writer only. `kernel_of`: the kernel that does what several do, `joined_kernel` or one that was
    made so before.

    rewrite:  k1(p1, g1);  k2(p2, g2);  k3(p3, g3)   ->   k(p1, g1, p2, g2, p3, g3)
    checks:   no part writes what another one accesses, nor does a launch that it passes
    order:    after launches know their order and sites, before memory is assigned to values
    """
    batches: list[_Batch] = []
    for x in launches:
        alike = _alike(x)
        statements = sum(1 for _ in walk_statements(x.kernel.ir)) if alike is not None else 0
        place = _place(batches, x, alike, statements)
        if place is None:
            batches.append(_Batch([], alike, 0))
            place = batches[-1]
        place.add(x, statements)
    return [_joined(b.parts, kernel_of) for b in batches]


def _place(batches: Sequence[_Batch], x: Dispatch, alike: object, statements: int) -> _Batch | None:
    """The nearest batch before a launch that takes it, if it may run there."""
    for b in reversed(batches) if alike is not None else ():
        if b.takes(x, alike, statements):
            return None if b.meets(x) else b
        if b.meets(x):
            return None
    return None


def _joined(
    parts: Sequence[Dispatch], kernel_of: Callable[[tuple[Kernel, ...]], Kernel]
) -> Dispatch:
    if len(parts) == 1:
        return parts[0]
    reads = tuple(s for x in parts for s in x.reads)
    writes = tuple(s for x in parts for s in x.writes)
    values = tuple(v for x in parts for v in x.values)
    return Dispatch(kernel_of(tuple(x.kernel for x in parts)), reads, writes, values)


def joined_kernel(parts: tuple[Kernel, ...], companions: list[Kernel]) -> Kernel:
    """The kernel that does what all parts do: inputs of all of them, then their outputs. It is
    compiled with its companions, which it joins."""
    return Kernel(
        side_by_side(
            [k.ir for k in parts],
            joined_name([k.name for k in parts]),
            [len(k.inputs) for k in parts],
        ),
        parts[0].target,
        tuple(i for k in parts for i in k.inputs),
        tuple(i for k in parts for i in k.outputs),
        tuple(v for k in parts for v in k.argument_values),
        "\n\n".join(k.schedule for k in dict.fromkeys(parts)),
        companions=companions,
        parts=parts,
    )


def _alike(x: Dispatch) -> object:
    """Equal for launches that may be joined: what they compute, but for sizes; None for a launch
    that stays alone."""
    kernel = x.kernel
    if kernel.segment is None or stands_apart(kernel.ir) is not None:
        return None
    if not all(s.is_whole for s in (*x.reads, *x.writes)):
        return None
    return block_of(kernel.ir), kernel.ir.attributes, _computation(kernel.segment.fusion)


def _sites(x: Dispatch) -> list[tuple[Subspan, bool]]:
    """What a launch accesses, and whether it writes there."""
    return [*((s, False) for s in x.reads), *((s, True) for s in x.writes)]


def _computation(fusion: Fusion) -> object:
    """What a fusion computes, its sizes and scalars left out."""
    number: dict[Tensor, int] = {t: k for k, t in enumerate(fusion.values)}
    return tuple(
        (
            t.op.fn if isinstance(t.op, Pointwise) else type(t.op),
            t.dtype,
            tuple(number[o] for o in t.op.operands),
        )
        for t in fusion.values
    )
