"""Pointwise groups: everything inlined under one flat loop over the largest output."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from fusewright.core.expr import Var
from fusewright.schedule.graph import Dataflow, Stage
from fusewright.schedule.heuristics.candidates import Candidate, Listed, Refused, distinct
from fusewright.schedule.heuristics.common import (
    Params,
    access_width,
    cache_inputs,
    global_accesses,
    merge_all,
    numel,
    split,
    vectorize_accesses,
)
from fusewright.schedule.inline import inline_most
from fusewright.schedule.nest import computed
from fusewright.schedule.parallel import Loop, Parallel
from fusewright.schedule.propagate import transform_like
from fusewright.schedule.untangle import untangle
from fusewright.target import MAX_VECTOR_NBYTES, Target

THREADS = 128
LARGE_BLOCKS = (256, 512)
MAX_VECTORS = 8
BYTES_IN_FLIGHT = 16
"""Bytes that a thread should load before it uses the first: with 2,048 threads a multiprocessor
that covers latency times bandwidth. More, measured on an H200, is never faster (notes/measured)."""
REUSED = 4
"""Vectors of a thread where they need the same elements of small tensors."""
SMALL = 16
"""A tensor with so many times fewer elements than the output is read from a cache."""


def reference_output(flow: Dataflow) -> Stage:
    """The output with the most elements, the first of those."""
    return max(flow.outputs, key=lambda s: (numel(s.shape), -flow.outputs.index(s)))


@dataclass(frozen=True, slots=True)
class Flat:
    """Elements of a vector, vectors of a thread, threads of a block."""

    width: int
    vectors: int
    threads: int

    @property
    def params(self) -> Params:
        """The parameters by name."""
        return Params(
            "pointwise",
            (("vector", self.width), ("vectors", self.vectors), ("threads", self.threads)),
        )


class PointwiseScheduler:
    """Flattens the largest output, gives every thread a few vectors, inlines everything but the
    loads: those of all vectors of a thread stand first, so that they are in flight together."""

    def __init__(self, flow: Dataflow, target: Target) -> None:
        untangle(flow)
        self._flow = flow
        self._target = target
        self._held = cache_inputs(flow)
        self._reference = reference_output(flow)
        self._flat = merge_all(flow, self._reference.loops)

    def candidates(self) -> Iterator[Listed[Flat | None]]:
        """What covers latency first, then more and fewer vectors a thread, larger blocks, and
        narrower vectors; None for a single element."""
        if self._flat is None:
            yield Candidate("one element", Params("pointwise", (("elements", 1),)), None)
            return
        yield from distinct(self._flat_candidates(self._flat))

    def _flat_candidates(self, flat: Loop) -> Iterator[Listed[Flat | None]]:
        width = _vector(self._flow, self._reference, flat, self._target)
        vectors = _vectors_a_thread(self._flow, self._held, width, self._target)
        yield _candidate(Flat(width, vectors, THREADS))
        for n in (1, 2, 4, MAX_VECTORS):
            if n == 1 or self._fills(n * width):
                yield _candidate(Flat(width, n, THREADS))
            else:
                yield Refused(f"{n} vectors a thread", "too few blocks for the multiprocessors")
        for threads in LARGE_BLOCKS:
            yield _candidate(Flat(width, vectors, threads))
        if width > 1:
            yield _candidate(Flat(width // 2, vectors, THREADS))

    def _fills(self, elements: int) -> bool:
        """Whether threads of so many elements leave blocks for every multiprocessor."""
        size = numel(self._reference.shape)
        return size // (elements * THREADS) >= self._target.multiprocessors * 8

    def apply(self, plan: Flat | None) -> bool:
        """Binds the flat loop."""
        flow, reference = self._flow, self._reference
        if plan is None or self._flat is None:
            reference.loops = ()
            transform_like(flow, reference, align=True)
            inline_most(flow)
            return True
        outer, lanes = split(flow, self._flat, plan.width) if plan.width > 1 else (self._flat, None)
        blocks, threads = split(flow, outer, plan.threads)
        loops = [Loop(blocks.axis, Parallel.BIDX), Loop(threads.axis, Parallel.TIDX)]
        if plan.vectors > 1:
            blocks, several = split(flow, blocks, plan.vectors)
            loops[0] = Loop(blocks.axis, Parallel.BIDX)
            loops.append(Loop(several.axis, Parallel.UNROLL))
        if lanes is not None:
            loops.append(Loop(lanes.axis))
        reference.loops = tuple(loops)
        transform_like(flow, reference, align=True)
        if plan.width > 1:
            vectorize_accesses(flow, reference.loops[-1].axis, plan.width)
        inline_most(flow)
        if plan.vectors > 1:
            _load_first(self._held)
        return True


def _candidate(plan: Flat) -> Candidate[Flat | None]:
    many = "a vector" if plan.vectors == 1 else f"{plan.vectors} vectors"
    what = f"{many} of {plan.width} a thread, blocks of {plan.threads}"
    return Candidate(what, plan.params, plan)


def _load_first(held: list[Stage]) -> None:
    """Takes the loads out of the loop over a thread's vectors."""
    for s in held:
        depth = next((i for i, x in enumerate(s.loops) if x.parallel.is_serial), 0)
        s.inline_depth = min(s.inline_depth, depth)


def _vectors_a_thread(flow: Dataflow, held: list[Stage], width: int, target: Target) -> int:
    """Enough that a thread has `BYTES_IN_FLIGHT` under way, or that several vectors share what they
    read of small tensors where that is most of the reading; as long as the grid fills the chip."""
    size = numel(reference_output(flow).shape)
    large, shared = 0, 0
    for s in held:
        elements = numel(s.operands[0].shape)
        if elements * SMALL > size:
            large += s.dtype.nbytes * width
        elif (width * THREADS) % elements == 0:
            shared += s.dtype.nbytes * width
    wanted = REUSED if shared >= 2 * large else max(1, BYTES_IN_FLIGHT // max(large, 1))
    vectors = 1
    while (
        vectors < min(wanted, MAX_VECTORS)
        and size // (2 * vectors * width * THREADS) >= target.multiprocessors * 8
    ):
        vectors *= 2
    return vectors


def _vector(flow: Dataflow, reference: Stage, flat: Loop, target: Target) -> int:
    """The widest vector that the large contiguous accesses allow and the chip can still fill."""
    smallest = min(
        (o.dtype.nbytes for s in computed(flow.stages) for o in s.operands if o.is_input),
        default=4,
    )
    smallest = min([smallest, *(o.dtype.nbytes for o in flow.outputs)])
    best = min(MAX_VECTOR_NBYTES // smallest, 8)
    while best > 1 and numel(reference.shape) // best < target.multiprocessors * 32:
        best //= 2
    while best > 1 and not _allows(flow, reference, flat, best):
        best //= 2
    return best


def _allows(flow: Dataflow, reference: Stage, flat: Loop, width: int) -> bool:
    outer, inner = split(flow, flat, width)
    saved = {s: s.loops for s in flow.stages}
    reference.loops = (outer, inner)
    transform_like(flow, reference, align=True)
    lane = Var("lane", 0, width - 1)
    large = numel(reference.shape) // 2
    wide = [
        access_width(a, lane, width) >= min(width, MAX_VECTOR_NBYTES // a.tensor.dtype.nbytes)
        for a in global_accesses(flow, reference.loops[-1].axis, lane)
        if numel(a.tensor.shape) >= large
    ]
    for s, loops in saved.items():
        s.loops = loops
    return bool(wide) and all(wide)
