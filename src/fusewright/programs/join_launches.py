"""Launches of many small tensors become one: their blocks stand side by side (`side_by_side`).

A step of an optimiser is one function of each of a list of tensors. Their kernels share nothing
that fusion could keep in registers, but each launch costs what moving megabytes costs. So do
launches of other functions, of which the chip has room for all blocks at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice

from fusewright.core.expr import constant_value
from fusewright.fusion.ir import Fusion, Pointwise, Tensor
from fusewright.host.in_place import are_apart
from fusewright.host.naming import joined_name
from fusewright.host.subspans import Subspan
from fusewright.kernel import Kernel
from fusewright.kir.side_by_side import (
    block_of,
    share_blocks,
    side_by_side,
    stands_apart,
    threads_of,
)
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
class _LaunchBatch:
    """Launches that may become one: how and what they compute, None for those that stay alone, what
    they access of each memory, and whether they write there."""

    alike: tuple[object, object] | None
    parts: list[Dispatch] = field(default_factory=list[Dispatch])
    statements: int = 0
    sites: dict[Tensor, list[tuple[Subspan, bool]]] = field(
        default_factory=dict[Tensor, list[tuple[Subspan, bool]]]
    )

    def is_like(self, other: _LaunchBatch) -> bool:
        """Whether other launches compute alike, and fit."""
        return self.alike is not None and self.alike == other.alike and self._fits(other)

    def has_room_for(self, other: _LaunchBatch) -> bool:
        """Whether each block of these and other launches has a multiprocessor to itself, so that
        what the others compute costs nothing, or all of them are short; and whether they fit."""
        if self.alike is None or other.alike is None or self.alike[0] != other.alike[0]:
            return False
        if not all(p.reads for p in (*self.parts, *other.parts)):
            return False  # a fill needs no kernel
        kernels = [p.kernel for p in (*self.parts, *other.parts)]
        return (_have_room(kernels) or _are_short(kernels)) and self._fits(other)

    def _fits(self, other: _LaunchBatch) -> bool:
        parts = (*self.parts, *other.parts)
        if not _share_blocks([p.kernel for p in parts]):
            return False
        values = sum(len(p.reads) + len(p.writes) + len(p.values) for p in parts)
        fits = 8 * values <= PARAMETER_NBYTES
        return fits and self.statements + other.statements <= MAX_STATEMENTS

    def add(self, other: _LaunchBatch) -> None:
        self.parts += other.parts
        self.statements += other.statements
        for root, sites in other.sites.items():
            self.sites.setdefault(root, []).extend(sites)

    def meets(self, other: _LaunchBatch) -> bool:
        """Whether two have to keep their order: one writes what the other accesses."""
        return any(
            (writes or also_writes) and not are_apart(a, b)
            for root, sites in other.sites.items()
            for a, writes in self.sites.get(root, ())
            for b, also_writes in sites
        )


def _share_blocks(kernels: Sequence[Kernel]) -> bool:
    """Whether the blocks of all parts may have the threads of the largest, as no more than half of
    these idle anywhere, or each block has a multiprocessor to itself."""
    blocks = {block_of(k.ir) for k in kernels}
    if len(blocks) == 1:
        return True
    if not share_blocks(blocks):
        return False
    threads = [threads_of(b) or 1 for b in blocks]
    return max(threads) <= 2 * min(threads) or _have_room(kernels) or _are_short(kernels)


def _have_room(kernels: Sequence[Kernel]) -> bool:
    """Whether each block of all parts has a multiprocessor to itself."""
    return _blocks(kernels) <= kernels[0].target.multiprocessors


def _are_short(kernels: Sequence[Kernel]) -> bool:
    """Whether each part takes less time than twice what a launch takes until its first bytes are
    there and threads have met, and all blocks run at once, of half of the threads that the chip
    holds: the others still wait for their first bytes while one computes."""
    target = kernels[0].target
    known = target.calibration
    start = known.launch_us + known.start_us + known.memory_latency_us + known.exchange_us
    if any(k.predicted is None or k.predicted.us > 2 * start for k in kernels):
        return False
    threads = max(threads_of(block_of(k.ir)) or 1 for k in kernels)
    return 2 * _blocks(kernels) * threads <= target.multiprocessors * target.threads_per_sm


def _blocks(kernels: Sequence[Kernel]) -> int:
    """The blocks of all parts."""
    return sum(constant_value(k.ir.grid[0].extent) or 0 for k in kernels)


def _alone(x: Dispatch) -> _LaunchBatch:
    """A launch by itself."""
    alike = _alike(x)
    out = _LaunchBatch(alike, [x])
    out.statements = sum(1 for _ in walk_statements(x.kernel.ir)) if alike is not None else 0
    for s, writes in (*((s, False) for s in x.reads), *((s, True) for s in x.writes)):
        out.sites.setdefault(s.root, []).append((s, writes))
    return out


def join_launches(
    launches: Sequence[Dispatch], kernel_of: Callable[[tuple[Kernel, ...]], Kernel]
) -> list[Dispatch]:
    """Launches of kernels that compute alike, or that have room beside each other, joined as far as
    nothing in between keeps them apart.
    Those that access a part of a larger memory stay alone: whoever needs a part then waits for its
    writer only. `kernel_of`: the kernel that does what several do, `joined_kernel` or one that was
    made so before.

    rewrite:  k1(p1, g1);  k2(p2, g2);  k3(p3, g3)   ->   k(p1, g1, p2, g2, p3, g3)
    checks:   no part writes what another one accesses, nor does a launch that it passes
    order:    after launches know their order and sites, before memory is assigned to values
    """
    batches = [_alone(x) for x in launches]
    for takes in (_LaunchBatch.is_like, _LaunchBatch.has_room_for):
        batches = _placed(batches, takes)
    return [_joined(b.parts, kernel_of) for b in batches]


def _placed(
    batches: Sequence[_LaunchBatch], takes: Callable[[_LaunchBatch, _LaunchBatch], bool]
) -> list[_LaunchBatch]:
    """The batches, each added to the last one before it that takes it."""
    out: list[_LaunchBatch] = []
    for new in batches:
        if not _place(out, new, takes):
            out.append(new)
    return out


def _place(
    batches: list[_LaunchBatch],
    new: _LaunchBatch,
    takes: Callable[[_LaunchBatch, _LaunchBatch], bool],
) -> bool:
    """Adds launches to the last batch that takes them, if nothing that needs the batch is needed by
    them. What stands between them and needs the batch then follows it."""
    k = next((k for k in reversed(range(len(batches))) if takes(batches[k], new)), None)
    if k is None or batches[k].meets(new):
        return False
    before: list[_LaunchBatch] = []
    after = [batches[k]]
    for b in batches[k + 1 :]:
        (after if any(a.meets(b) for a in after) else before).append(b)
    if any(a.meets(new) for a in after):
        return False
    batches[k:] = [*before, *after]
    after[0].add(new)
    return True


def _joined(
    parts: Sequence[Dispatch], kernel_of: Callable[[tuple[Kernel, ...]], Kernel]
) -> Dispatch:
    if len(parts) == 1:
        return parts[0]
    reads = tuple(s for x in parts for s in x.reads)
    writes = tuple(s for x in parts for s in x.writes)
    values = tuple(v for x in parts for v in x.values)
    return Dispatch(kernel_of(tuple(x.kernel for x in parts)), reads, writes, values)


def apart(x: Dispatch) -> list[Dispatch]:
    """The launches that one joins, itself where it joins none."""
    if not x.kernel.parts:
        return [x]
    out: list[Dispatch] = []
    reads, writes, values = iter(x.reads), iter(x.writes), iter(x.values)
    for k in x.kernel.parts:
        own = tuple(islice(reads, len(k.inputs))), tuple(islice(writes, len(k.outputs)))
        out.append(Dispatch(k, *own, tuple(islice(values, len(k.argument_values)))))
    return out


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


def _alike(x: Dispatch) -> tuple[object, object] | None:
    """How a launch computes, and what, but for sizes; None for a launch that stays alone."""
    kernel = x.kernel
    if kernel.segment is None or stands_apart(kernel.ir) is not None:
        return None
    if not all(s.is_whole for s in (*x.reads, *x.writes)):
        return None
    return kernel.ir.attributes, computations(kernel.segment.fusion)


def computations(fusion: Fusion) -> frozenset[object]:
    """What a fusion computes, but for sizes and scalars."""
    return frozenset(_computation(t) for t in fusion.outputs)


def _computation(result: Tensor) -> object:
    """What makes a result, sizes and scalars left out. Values are numbered as they are reached, so
    that two results of one input are like those of two inputs."""
    number: dict[Tensor, int] = {}
    steps: list[object] = []
    todo = [result]
    while todo:
        t = todo[-1]
        waiting = [o for o in t.op.operands if o not in number]
        if t in number or not waiting:
            todo.pop()
        if t not in number and not waiting:
            number[t] = len(number)
            fn = t.op.fn if isinstance(t.op, Pointwise) else type(t.op)
            steps.append((fn, t.dtype, tuple(number[o] for o in t.op.operands)))
        todo += reversed(waiting)
    return tuple(steps)
