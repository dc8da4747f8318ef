"""The host program of a fusion's launches: roots, bindings, the packed arena, edges, figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeAlias

from fusewright.core.expr import ONE, ZERO, Expr, as_expr, constant_value, less_equal, prove
from fusewright.core.node import walk
from fusewright.cuda.emit import written_buffers
from fusewright.errors import InternalError
from fusewright.fusion.ir import Fusion, Input, Tensor, contiguous_strides
from fusewright.host.arena import ARENA_ALIGNMENT, Arena, Lifetime, pack
from fusewright.host.graph import ancestors, critical_path, reduce_edges
from fusewright.host.hazards import hazards
from fusewright.host.ir import Access, Binding, Edge, EdgeKind, HostLaunch, Root, RootKind
from fusewright.kir.analysis.uses import global_reads
from fusewright.kir.ir import Buffer, Compute, Kernel

View: TypeAlias = tuple[Root, Expr]
"""Where a tensor lies: a root and an offset in bytes."""


@dataclass(frozen=True, slots=True)
class Call:
    """One kernel over tensors: inputs, then outputs, in the order of its parameters."""

    kernel: Kernel
    values: tuple[bool | int | float, ...]
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]


@dataclass(eq=False)
class HostProgram:
    """Launches over roots, in an order that satisfies the edges; edges are transitively reduced.

    `roots` are the inputs in order, then the outputs (each value once), then the arena if there are
    intermediates. `outputs` holds, per result of the program, the position of its root.
    """

    roots: tuple[Root, ...]
    launches: tuple[HostLaunch, ...]
    edges: tuple[Edge, ...]
    outputs: tuple[int, ...]
    arena: Arena
    placed: dict[str, str] = field(default_factory=dict[str, str])
    not_placed: dict[str, str] = field(default_factory=dict[str, str])

    @cached_property
    def stats(self) -> dict[str, Any]:
        """Figures of the program; sizes in bytes, as integers where no size is symbolic.

        `launches` counts all kernels, `copies` and `fills` those that only move values or only
        write constants; `bytes_moved` is what all launches read and write.
        """
        moved = [b.nbytes for x in self.launches for b in _touched(x)]
        kinds = {k.value: sum(e.kind is k for e in self.edges) for k in EdgeKind}
        return {
            "launches": len(self.launches),
            "fills": sum(x.role == "fill" for x in self.launches),
            "copies": sum(x.role == "copy" for x in self.launches),
            "bytes_copied": _figure(self._written("copy")),
            "bytes_filled": _figure(self._written("fill")),
            "bytes_moved": _figure(moved),
            "peak_bytes": _figure([self.arena.nbytes]),
            "lower_bound_bytes": _figure([self.arena.lower_bound]),
            "edges": {**kinds, "total": len(self.edges)},
            "critical_path": critical_path(self.edges, len(self.launches)),
            "placed": dict(self.placed),
            "not_placed": dict(self.not_placed),
        }

    def _written(self, role: str) -> list[Expr]:
        chosen = [x for x in self.launches if x.role == role]
        return [b.nbytes for x in chosen for b in x.bindings if b.access.writes]

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


def _touched(x: HostLaunch) -> list[Binding]:
    """The bindings once for every direction in which their bytes move."""
    both = [b for b in x.bindings if b.access is Access.READ_WRITE]
    return [*x.bindings, *both]


def _figure(sizes: Sequence[Expr]) -> int | Expr:
    total = sum(sizes, start=as_expr(0))
    known = constant_value(total)
    return total if known is None else known


def assemble(
    fusion: Fusion, calls: Sequence[Call], strides: Mapping[Tensor, tuple[Expr, ...]] | None = None
) -> HostProgram:
    """The host program of kernels over the tensors of a fusion. `strides` (in elements) are those
    of tensors that are not in C order."""
    layout = dict(strides or {})
    inputs = [_root(RootKind.INPUT, k, t, layout) for k, t in enumerate(fusion.inputs)]
    results = list(dict.fromkeys(t for t in fusion.outputs))
    outputs = [_root(RootKind.OUTPUT, k, t, layout) for k, t in enumerate(results)]
    views: dict[Tensor, View] = {t: (r, ZERO) for t, r in zip(fusion.inputs, inputs, strict=True)}
    views |= {t: (r, ZERO) for t, r in zip(results, outputs, strict=True)}
    inner = _inner(calls, views)
    arena, root = _arena(inner, calls, views, layout)
    roots = (*inputs, *outputs, *([root] if inner else []))
    launches = _launches(calls, views, layout)
    edges = reduce_edges(hazards(launches), len(launches))
    place = {t: len(inputs) + k for k, t in enumerate(results)}
    copied = {
        b.tensor: f"{x.name} only moves values, and its sources are stored apart"
        for x in launches
        if x.role == "copy"
        for b in x.bindings
        if b.access.writes
    }
    outputs_at = tuple(place[t] for t in fusion.outputs)
    return HostProgram(roots, launches, edges, outputs_at, arena, not_placed=copied)


def _root(
    kind: RootKind, position: int, t: Tensor, layout: Mapping[Tensor, tuple[Expr, ...]]
) -> Root:
    alignment = t.op.alignment if isinstance(t.op, Input) else ARENA_ALIGNMENT
    return Root(kind, position, t.name, nbytes_of(t, layout), alignment)


def nbytes_of(t: Tensor, layout: Mapping[Tensor, tuple[Expr, ...]]) -> Expr:
    """Bytes from the first to behind the last element of a tensor in its layout."""
    if any(constant_value(e) == 0 for e in t.shape):
        return ZERO
    span: Expr = ONE
    for extent, stride in zip(t.shape, strides_of(t, layout), strict=True):
        span = span + (extent - 1) * stride
    return span * t.dtype.nbytes


def strides_of(t: Tensor, layout: Mapping[Tensor, tuple[Expr, ...]]) -> tuple[Expr, ...]:
    """Element strides of a tensor: its argument's, those of `layout`, or C order."""
    if isinstance(t.op, Input):
        return t.op.strides
    return layout.get(t) or contiguous_strides(t.shape)


def _inner(calls: Sequence[Call], views: Mapping[Tensor, View]) -> list[Tensor]:
    """The tensors between kernels, in order of making. Raises InternalError for one never made."""
    made = dict.fromkeys(t for x in calls for t in x.outputs)
    for x in calls:
        for t in x.inputs:
            if t not in made and t not in views:
                raise InternalError(f"kernel {x.kernel.name} reads {t}, which no kernel makes")
    return [t for t in made if t not in views]


def _arena(
    inner: Sequence[Tensor],
    calls: Sequence[Call],
    views: dict[Tensor, View],
    layout: Mapping[Tensor, tuple[Expr, ...]],
) -> tuple[Arena, Root]:
    """Packs the intermediates and adds their views. Bytes are shared where the data's own edges
    allow it; where that costs more than program order would, by edges of kind REUSE."""
    first: dict[Tensor, int] = {}
    users: dict[Tensor, list[int]] = {}
    for i, x in enumerate(calls):
        for t in x.outputs:
            first.setdefault(t, i)
        for t in (*x.inputs, *x.outputs):
            users.setdefault(t, []).append(i)
    lives = [
        Lifetime(t.name, nbytes_of(t, layout), first[t], max(users[t], default=first[t]))
        for t in inner
    ]
    before = _ancestors(calls)

    def meet(a: int, b: int) -> bool:
        p, q = (a, b) if lives[a].first <= lives[b].first else (b, a)
        waits = before[lives[q].first]
        return any(not waits >> u & 1 for u in users[inner[p]])

    tight, free = pack(lives), pack(lives, meet)
    chosen = free if _affordable(free.nbytes, tight.nbytes) else tight
    root = Root(RootKind.ARENA, 0, "arena", chosen.nbytes, ARENA_ALIGNMENT)
    views.update({t: (root, o) for t, o in zip(inner, chosen.offsets, strict=True)})
    return chosen, root


def _affordable(free: Expr, tight: Expr) -> bool:
    """Whether running launches side by side costs at most a sixteenth more memory."""
    return prove(less_equal(free * 16, tight * 17)) is True


def _ancestors(calls: Sequence[Call]) -> list[int]:
    """For each call, as bits, the calls that the data alone make it wait for."""
    maker: dict[Tensor, int] = {}
    edges: list[Edge] = []
    for i, x in enumerate(calls):
        sources = dict.fromkeys(maker[t] for t in x.inputs if t in maker)
        edges += [Edge(p, i, EdgeKind.RAW, "") for p in sources]
        maker |= dict.fromkeys(x.outputs, i)
    return ancestors(edges, len(calls))


def _launches(
    calls: Sequence[Call],
    views: Mapping[Tensor, View],
    layout: Mapping[Tensor, tuple[Expr, ...]],
) -> tuple[HostLaunch, ...]:
    out: list[HostLaunch] = []
    for x in calls:
        access = accesses(x.kernel)
        bindings: list[Binding] = []
        for buffer, t in zip(x.kernel.params, (*x.inputs, *x.outputs), strict=True):
            root, offset = views[t]
            mode = access[buffer]
            total = mode is Access.WRITE
            bindings.append(Binding(root, offset, nbytes_of(t, layout), mode, t.name, total))
        out.append(HostLaunch(x.kernel, x.values, tuple(bindings), role_of(x.kernel)))
    return tuple(out)


def accesses(kernel: Kernel) -> dict[Buffer, Access]:
    """What a kernel does to each of its parameters."""
    written = set(written_buffers(kernel))
    read = global_reads(kernel)
    modes = {(True, True): Access.READ_WRITE, (False, True): Access.WRITE}
    return {b: modes.get((b in read, b in written), Access.READ) for b in kernel.params}


def role_of(kernel: Kernel) -> str:
    """ "copy" for a kernel that computes nothing, "fill" when it reads nothing either."""
    if any(isinstance(n, Compute) and n.fn != "copy" for n in walk(kernel)):
        return "kernel"
    return "copy" if global_reads(kernel) else "fill"


__all__ = ["Call", "HostProgram", "accesses", "assemble", "nbytes_of", "role_of", "strides_of"]
