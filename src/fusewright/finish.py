"""From a scheduled dataflow to a kernel: lowering, the passes, and what is known of its making."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from fusewright.host.fills import with_fills
from fusewright.host.moves import Moves
from fusewright.host.moving import with_places
from fusewright.host.segment import Segment
from fusewright.host.subspans import Subspan
from fusewright.kernel import Kernel, TensorInfo
from fusewright.kir.lower import Lowered, lower
from fusewright.kir.pipeline import run_pipeline
from fusewright.kir.prediction import with_launch_bounds
from fusewright.runtime.config import active
from fusewright.schedule.edits import EditCall
from fusewright.schedule.graph import Dataflow
from fusewright.schedule.heuristics.common import Params
from fusewright.schedule.heuristics.cost import Cost
from fusewright.schedule.order_checks import check_repeatable
from fusewright.schedule.render import print_schedule
from fusewright.target import Target


@dataclass(frozen=True, slots=True)
class Origin:
    """What a kernel is made for: the segment that a heuristic scheduled, the microseconds of its
    candidates where they were measured, the kernels that are compiled with it, and what its
    schedule was predicted to cost when it was chosen; for a schedule by hand the edits of that."""

    segment: Segment | None = None
    measured: tuple[tuple[Params, float], ...] = ()
    companions: list[Kernel] = field(default_factory=lambda: list[Kernel]())
    edits: tuple[EditCall, ...] = ()
    cost: Cost | None = None

    @property
    def fills(self) -> Moves:
        """What the kernel fills and copies beside its own results."""
        return (self.segment and self.segment.fills) or Moves(())


def finish(
    flow: Dataflow,
    name: str,
    target: Target,
    params: Params | None,
    *,
    min_blocks: int = 0,
    cluster: int | None = None,
    origin: Origin | None = None,
) -> Kernel:
    """Lowers a scheduled dataflow and runs the kernel pipeline. A schedule by hand (one without
    `params`) gets the launch bounds that make its prediction come true. The targets of the fills
    of its segment are the kernel's last outputs."""
    origin = origin or Origin()
    check_repeatable(flow, promised=active().deterministic)
    text = print_schedule(flow)
    min_blocks = min_blocks or (params.min_blocks if params is not None else 0)
    lowered: Lowered = lower(flow, name, target, min_blocks=min_blocks, cluster=cluster)
    fills = origin.fills
    sites = origin.segment.writes if origin.segment else ()
    moved = with_places(lowered.kernel, len(lowered.inputs), sites)
    whole = with_fills(moved, fills)
    final = run_pipeline(whole, target)
    if params is None:
        final = with_launch_bounds(final, target)
    filled = zip(final.arrays[len(final.arrays) - len(fills.writes) :], fills.writes, strict=True)
    return Kernel(
        final,
        target,
        (
            *(TensorInfo.of(s) for s in lowered.inputs),
            *(TensorInfo.of(p.root) for s in sites for p in s.places),
        ),
        (
            *_written(lowered, sites),
            *(TensorInfo(b.name, s.shape, b.dtype, s.strides) for b, s in filled),
        ),
        (*lowered.argument_values, *fills.values),
        text,
        params,
        origin.segment,
        origin.measured,
        origin.companions,
        origin.edits,
        lowered=whole,
        cost=origin.cost,
    )


def _written(lowered: Lowered, sites: Sequence[Subspan]) -> list[TensorInfo]:
    """The arrays that a kernel writes; where a block begins anywhere, all that may hold it."""
    infos = [TensorInfo.of(s) for s in lowered.outputs]
    for k, site in enumerate(sites):
        if site.moving is not None:
            infos[k] = replace(infos[k], shape=site.shape)
    return infos


@dataclass(frozen=True, slots=True)
class Made:
    """A kernel of one structure. `read`: positions of the segment's inputs that it reads;
    `scalars`: for each of its scalar parameters the position among the segment's scalars."""

    kernel: Kernel
    read: tuple[int, ...]
    scalars: tuple[int, ...]
