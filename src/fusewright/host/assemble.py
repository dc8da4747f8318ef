"""The host program of a fusion's launches: roots, bindings, the packed arena, edges, figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeAlias

from fusewright.core.expr import ZERO, Expr, as_expr, constant_value
from fusewright.core.node import walk
from fusewright.errors import InternalError
from fusewright.fusion.ir import Fusion, Input, Tensor
from fusewright.host.arena import Arena
from fusewright.host.branches import Branches, branches
from fusewright.host.control import HostRegion
from fusewright.host.graph import ancestors, critical_path, reduce_edges
from fusewright.host.hazards import hazards
from fusewright.host.ir import (
    AccessMode,
    Binding,
    Edge,
    EdgeKind,
    HostLaunch,
    JoinPieces,
    Root,
    RootKind,
    Stored,
    ViewBox,
)
from fusewright.host.lending import lend
from fusewright.host.sharing import packed
from fusewright.host.state import bound_semaphores, scratch_sites, state_root
from fusewright.host.subspans import ROOT_ALIGNMENT, Subspan, natural, nbytes_of
from fusewright.kir.analysis.uses import global_reads, reads_before, written_buffers
from fusewright.kir.asynchronous import BulkReduce
from fusewright.kir.ir import Arg, Buffer, Compute, Imm, Index, Kernel
from fusewright.kir.tensor import BoxReduce, Mma, WarpMma
from fusewright.kir.traverse import statements_of
from fusewright.kir.unread import UnreadKernel

View: TypeAlias = tuple[Root, Expr]
"""Where a tensor lies: a root and an offset in bytes."""


@dataclass(frozen=True, slots=True)
class KernelCall:
    """One kernel over sites: inputs, then outputs, in the order of its arrays; `scratch` are the
    sites of what it keeps for itself, `semaphores` where those lie. Of a `region` the kernel has
    parameters only. `idle` counts the multiprocessors that it leaves room on, 0 for less than half
    of them."""

    kernel: Kernel
    values: tuple[bool | int | float, ...]
    inputs: tuple[Subspan, ...]
    outputs: tuple[Subspan, ...]
    scratch: tuple[Subspan, ...] = ()
    semaphores: Mapping[Buffer, Binding] = field(default_factory=dict[Buffer, Binding])
    region: HostRegion | None = None
    idle: int = 0

    @property
    def made(self) -> tuple[Subspan, ...]:
        """What it writes."""
        return (*self.outputs, *self.scratch)

    @property
    def sites(self) -> Mapping[Buffer, Subspan]:
        """The site of each of its parameters that is no semaphore."""
        own = zip(self.kernel.scratch, self.scratch, strict=True)
        named = zip(self.kernel.arrays, (*self.inputs, *self.outputs), strict=True)
        return dict(named) | dict(own)


@dataclass(eq=False)
class HostProgram:
    """Launches over roots, in an order that satisfies the edges; edges are transitively reduced.

    `roots` are the inputs in order, then the outputs (each value once, without those that lie in
    the memory of an input), then the arena if there are intermediates, then the semaphores if there
    are any. `outputs` holds, per result of the program, the position of its root; `values` what
    lies in outputs, in the arena, and in the memory of arguments that are lent.
    """

    roots: tuple[Root, ...]
    launches: tuple[HostLaunch, ...]
    edges: tuple[Edge, ...]
    outputs: tuple[int, ...]
    arena: Arena
    values: tuple[Stored, ...]
    placed: dict[str, str] = field(default_factory=dict[str, str])
    not_placed: dict[str, str] = field(default_factory=dict[str, str])

    @cached_property
    def stats(self) -> dict[str, Any]:
        """Figures of the program; sizes in bytes, as integers where no size is symbolic. `lent`:
        values between kernels, by the arguments in whose memory they lie.

        `launches` counts all kernels, `copies` and `fills` those that only move values or only
        write constants; `bytes_moved` is what all launches read and write, bytes that a launch
        reads through several bindings once.
        """
        moved = [size for x in self.launches for size in _moved(x)]
        kinds = {k.value: sum(e.kind is k for e in self.edges) for k in EdgeKind}
        return {
            "launches": len(self.launches),
            "fills": sum(x.role == "fill" for x in self.launches),
            "copies": sum(x.role == "copy" for x in self.launches),
            "bytes_copied": _figure(self._written("copy")),
            "bytes_filled": _figure(self._written("fill")),
            "bytes_moved": _figure(moved),
            "peak_bytes": _figure([self.arena.nbytes]),
            "state_bytes": _figure([r.nbytes for r in self.roots if r.kind is RootKind.STATE]),
            "lower_bound_bytes": _figure([self.arena.lower_bound]),
            "edges": {**kinds, "total": len(self.edges)},
            "critical_path": critical_path(self.edges, len(self.launches)),
            "branches": self.branches.count,
            "lent": {name: root.name for name, root in self.lent.items()},
            "placed": dict(self.placed),
            "not_placed": dict(self.not_placed),
        }

    @property
    def lent(self) -> dict[str, Root]:
        """The values between kernels that lie in the memory of an argument, by name."""
        return {v.name: v.root for v in self.values if v.root.kind is RootKind.INPUT}

    @cached_property
    def branches(self) -> Branches:
        """Which launches run side by side."""
        return branches(self.edges, [x.idle for x in self.launches])

    def _written(self, role: str) -> list[Expr]:
        chosen = [x for x in self.launches if x.role == role]
        return [b.content for x in chosen for b in x.bindings if b.access.writes]

    def __str__(self) -> str:
        lines = [f"{r}: {r.nbytes} bytes" for r in self.roots]
        for i, x in enumerate(self.launches):
            lines.append(f"#{i} {x.name}: {'; '.join(map(repr, x.bindings))}")
            lines += [
                f"   after #{e.producer} ({e.kind.value} {e.why})"
                for e in self.edges
                if e.consumer == i
            ]
        return "\n".join(lines)


def _moved(x: HostLaunch) -> list[Expr]:
    """The bytes that a launch writes, and those that it reads of every root."""
    out = [b.content for b in x.bindings if b.access.writes]
    read = [b for b in x.bindings if b.access is not AccessMode.WRITE]
    for root in dict.fromkeys(b.root for b in read):
        sizes = [b.content for b in read if b.root is root]
        hull = _union([b for b in read if b.root is root]) if len(sizes) > 1 else None
        total = sum(sizes, start=as_expr(0))
        known = constant_value(total)
        out.append(total if hull is None or known is None or known <= hull else as_expr(hull))
    return out


def _union(bindings: Sequence[Binding]) -> int | None:
    """The bytes of a root in any of the hulls of bindings; None where a size is symbolic."""
    spans: list[tuple[int, int]] = []
    for b in bindings:
        start, end = constant_value(b.offset), constant_value(b.offset + b.nbytes)
        if start is None or end is None:
            return None
        spans.append((start, end))
    total, reached = 0, 0
    for start, end in sorted(spans):
        total += max(0, end - max(start, reached))
        reached = max(reached, end)
    return total


def _figure(sizes: Sequence[Expr]) -> int | Expr:
    total = sum(sizes, start=as_expr(0))
    known = constant_value(total)
    return total if known is None else known


def assemble(
    fusion: Fusion,
    calls: Sequence[KernelCall],
    pieces: JoinPieces | None = None,
    held: Mapping[Tensor, Tensor] | None = None,
    lenders: Sequence[Tensor] = (),
) -> HostProgram:
    """The host program of kernels over the sites of a fusion's values. `held`: results that lie in
    the memory of an argument; `lenders`: arguments that hold none, and that kernels may write
    over."""
    pieces, held = pieces or JoinPieces(), held or {}
    kernels = [x.kernel for x in calls]
    state = state_root(kernels)
    calls = [
        replace(x, scratch=scratch_sites(x.kernel), semaphores=own)
        for x, own in zip(calls, bound_semaphores(kernels, state), strict=True)
    ]
    inputs = [_root(RootKind.INPUT, k, natural(t)) for k, t in enumerate(fusion.inputs)]
    whole = {s.root: s for x in calls for s in x.outputs if s.is_whole}
    results = list(dict.fromkeys(t for t in fusion.outputs if t not in held))
    outputs = [_root(RootKind.OUTPUT, k, whole.get(t) or natural(t)) for k, t in enumerate(results)]
    views: dict[Tensor, View] = {t: (r, ZERO) for t, r in zip(fusion.inputs, inputs, strict=True)}
    views |= {t: (r, ZERO) for t, r in zip(results, outputs, strict=True)}
    inner = _inner(calls, views)
    before = _ancestors(inner, calls, views)
    lent = lend(inner, calls, before, lenders)
    views |= {t: (inputs[fusion.inputs.index(x)], offset) for t, (x, offset) in lent.items()}
    rest = [s for s in inner if s.root not in lent]
    arena, root = _arena(rest, calls, views, before)
    roots = (*inputs, *outputs, *([root] if rest else []), *([state] if state else []))
    values = _stored(views)
    launches = _launches(calls, views, values)
    edges = reduce_edges(hazards(launches), len(launches))
    place = {t: len(inputs) + k for k, t in enumerate(results)}
    place |= {t: fusion.inputs.index(argument) for t, argument in held.items()}
    copied = {
        b.tensor: f"{x.name} only moves values, and its sources are stored apart"
        for x in launches
        if x.role == "copy"
        for b in x.bindings
        if b.access.writes and b.box is None
    }
    made = tuple(v for t, v in values.items() if v.root.kind is not RootKind.INPUT or t in lent)
    outputs_at = tuple(place[t] for t in fusion.outputs)
    not_placed = {**copied, **pieces.not_placed}
    placed = dict(pieces.placed)
    return HostProgram(roots, launches, edges, outputs_at, arena, made, placed, not_placed)


def _root(kind: RootKind, position: int, s: Subspan) -> Root:
    alignment = s.root.op.alignment if isinstance(s.root.op, Input) else ROOT_ALIGNMENT
    return Root(kind, position, s.root.name, nbytes_of(s), alignment)


def _inner(calls: Sequence[KernelCall], views: Mapping[Tensor, View]) -> list[Subspan]:
    """The roots between kernels, in order of making. Raises InternalError for one never made."""
    made: dict[Tensor, Subspan] = {}
    for x in calls:
        for s in x.made:
            made.setdefault(s.root, s if s.is_whole else natural(s.root))
    for x in calls:
        for s in x.inputs:
            if s.root not in made and s.root not in views and ZERO in s.root.shape:
                made[s.root] = natural(s.root)  # no launch makes what has no elements
            if s.root not in made and s.root not in views:
                raise InternalError(
                    f"kernel {x.kernel.name} reads {s.tensor}, which no kernel makes"
                )
    return [s for t, s in made.items() if t not in views]


def _arena(
    inner: Sequence[Subspan],
    calls: Sequence[KernelCall],
    views: dict[Tensor, View],
    before: Sequence[int],
) -> tuple[Arena, Root]:
    """Packs the intermediates and adds their views."""
    chosen = packed(inner, calls, before)
    root = Root(RootKind.ARENA, 0, "arena", chosen.nbytes, ROOT_ALIGNMENT)
    views.update({s.root: (root, o) for s, o in zip(inner, chosen.offsets, strict=True)})
    return chosen, root


def _ancestors(
    inner: Sequence[Subspan], calls: Sequence[KernelCall], views: Mapping[Tensor, View]
) -> list[int]:
    """For each call, as bits, the calls that the data alone make it wait for: the hazards of a
    program in which every intermediate has memory of its own."""
    apart = dict(views)
    apart |= {s.root: (_root(RootKind.ARENA, k, s), ZERO) for k, s in enumerate(inner)}
    return ancestors(hazards(_launches(calls, apart, _stored(apart))), len(calls))


def _stored(views: Mapping[Tensor, View]) -> dict[Tensor, Stored]:
    """What lies in each view."""
    return {
        t: Stored(t.name, root, natural(t).size * t.dtype.nbytes) for t, (root, _) in views.items()
    }


def _launches(
    calls: Sequence[KernelCall], views: Mapping[Tensor, View], values: Mapping[Tensor, Stored]
) -> tuple[HostLaunch, ...]:
    out: list[HostLaunch] = []
    kernels = dict.fromkeys(x.kernel for x in calls)
    regions = {x.kernel for x in calls if x.region is not None}
    known = {k: (accesses(k), role_of(k)) for k in kernels if k not in regions}
    known |= {k: (_accesses_of_region(x), "region") for x in calls if (k := x.kernel) in regions}
    for x in calls:
        access, role = known[x.kernel]
        bound = {
            buffer: _binding(site, values[site.root], views[site.root][1], access[buffer])
            for buffer, site in x.sites.items()
        }
        bound.update(x.semaphores)
        bindings = tuple(bound[b] for b in x.kernel.params)
        out.append(HostLaunch(x.kernel, x.values, bindings, role, x.region, x.idle))
    return tuple(out)


def _binding(s: Subspan, memory: Stored, offset: Expr, mode: AccessMode) -> Binding:
    size = s.root.dtype.nbytes
    box: ViewBox | None = None
    if not s.is_whole:
        step = tuple(stride * size for stride in natural(s.root).strides)
        box = ViewBox(offset, tuple(a for a, _ in s.box), tuple(n for _, n in s.box), step)
    return Binding(
        memory.root,
        offset + s.offset * size,
        nbytes_of(s),
        mode,
        tensor=s.tensor.name,
        memory=memory,
        content=s.size * size,
        axes=tuple((n, stride * size) for n, stride in zip(s.shape, s.strides, strict=True)),
        width=size,
        total=mode is AccessMode.WRITE and s.moving is None,
        box=box,
        anywhere=s.moving is not None,
    )


def accesses(kernel: Kernel) -> dict[Buffer, AccessMode]:
    """What a kernel does to each of its parameters."""
    written = set(written_buffers(kernel))
    read = reads_before(kernel)
    modes = {(True, True): AccessMode.READ_WRITE, (False, True): AccessMode.WRITE}
    return {b: modes.get((b in read, b in written), AccessMode.READ) for b in kernel.params}


def _accesses_of_region(x: KernelCall) -> dict[Buffer, AccessMode]:
    """What a region does to each of its parameters: it reads its operands, and writes the rest."""
    reads = x.kernel.arrays[: len(x.inputs)]
    return {b: AccessMode.READ if b in reads else AccessMode.WRITE for b in x.kernel.params}


def role_of(kernel: Kernel) -> str:
    """ "fill" for a kernel that only writes scalars, "copy" for one that computes nothing."""
    if isinstance(kernel, UnreadKernel):
        return kernel.border.role
    if not global_reads(kernel) and not any(isinstance(n, Index) for n in walk(kernel)):
        return "fill"
    if statements_of(kernel, Mma, WarpMma, BulkReduce, BoxReduce):
        return "kernel"
    computed = [s for s in statements_of(kernel, Compute) if not _is_literal(s)]
    return "kernel" if any(n.fn != "copy" for n in computed) else "copy"


def _is_literal(n: Compute) -> bool:
    """Whether a statement only puts a scalar into a register."""
    return n.fn in ("copy", "cast") and all(isinstance(o, Imm | Arg) for o in n.operands)
