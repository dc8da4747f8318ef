"""Launches of a program that begin before the one before them has ended.

Which memory a launch has to wait for is what `host/hazards.py` finds of its bindings and those of
all launches before it: the one before may begin early as well, so that those before that may still
run. Kernels that several launches share become one for each way in which these overlap.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from fusewright.errors import UserError
from fusewright.fusion.ir import Tensor
from fusewright.host.groups import Reason
from fusewright.host.hazards import binding_hazards
from fusewright.host.ir import EdgeKind, HostLaunch
from fusewright.kernel import Kernel
from fusewright.kir.ir import PrefetchBox
from fusewright.kir.passes.place_launch_syncs import LaunchOrder, place_launch_syncs
from fusewright.kir.spec import check_kernel
from fusewright.kir.traverse import statements_of
from fusewright.programs.model import Dispatch
from fusewright.runtime.locks import fork_safe_lock
from fusewright.target import Feature, Target


def check_overlaps(target: Target) -> None:
    """Raises UserError for a target whose launches cannot overlap."""
    if not target.has(Feature.EARLY_LAUNCH):
        since = Feature.EARLY_LAUNCH.since
        raise UserError(
            f"config(early_launches=True): launches do not begin early on {target}; that takes "
            f"compute capability {since} or later: compile for another target, or without it"
        )


def launch_orders(launches: Sequence[HostLaunch]) -> list[LaunchOrder]:
    """How each launch overlaps with its neighbours. The first one waits for whatever was on the
    stream before, and so does one beside a region, whose last launch is another program's."""
    plain = [x.region is None for x in launches]
    early = [False, *(a and b for a, b in pairwise(plain))][: len(launches)]
    out: list[LaunchOrder] = []
    for k, hazards in enumerate(binding_hazards(launches)):
        awaited: list[tuple[int, str]] = []
        for position, edges in enumerate(hazards):
            kinds = [kind for kind in EdgeKind if any(e.kind is kind for e in edges)]
            if kinds and early[k]:
                awaited.append((position, "/".join(kind.value for kind in kinds)))
        lets = k + 1 < len(launches) and early[k + 1]
        out.append(LaunchOrder(early[k], tuple(awaited), lets))
    return out


def overlapping(
    dispatches: Sequence[Dispatch], launches: Sequence[HostLaunch]
) -> tuple[list[Dispatch], list[Reason]]:
    """The launches of a program with kernels that begin early, and what was decided of each."""
    made: dict[tuple[Kernel, LaunchOrder], Kernel] = {}
    out: list[Dispatch] = []
    reasons: list[Reason] = []
    for k, (x, order) in enumerate(zip(dispatches, launch_orders(launches), strict=True)):
        if order != LaunchOrder():
            if (x.kernel, order) not in made:
                made[x.kernel, order] = _variant(x.kernel, order)
            x = replace(x, kernel=made[x.kernel, order])
        out.append(x)
        if order.begins_early:
            reasons.append(_reason(k, x, order))
    used = {x.kernel for x in out}
    for kernel in {k for k, _ in made} - used:
        kernel.companions[:] = [c for c in kernel.companions if c is not kernel]
    return out, reasons


def _variant(kernel: Kernel, order: LaunchOrder) -> Kernel:
    """The kernel of launches that overlap in one way."""
    waits = "_".join(str(position) for position, _ in order.awaited)
    suffix = f"_waits_{waits}" if waits else "_ends_late" if order.begins_early else ""
    suffix += "_lets" if order.lets_begin else ""
    ir = place_launch_syncs(replace(kernel.ir, name=f"{kernel.name}{suffix}"), order)
    check_kernel(ir, "final", target=kernel.target)
    return replace(kernel, ir=ir, _build=None, _lock=fork_safe_lock())


def _reason(number: int, x: Dispatch, order: LaunchOrder) -> Reason:
    """What `explain` says of a launch that begins early."""
    params = x.kernel.ir.params
    named = zip(x.kernel.ir.arrays, (*x.inputs, *x.outputs), strict=True)
    tensors: Mapping[int, Tensor] = {params.index(b): t for b, t in named}
    names = [f"{why} {tensors[k].name if k in tensors else params[k]}" for k, why in order.awaited]
    what = f"waits for {', '.join(names)}" if names else "waits at its end"
    ahead = [t.name for k, t in tensors.items() if k not in dict(order.awaited) and t in x.inputs]
    reads = f"; {', '.join(dict.fromkeys(ahead))} may be read before" if ahead and names else ""
    fetched = [s.map.buffer for s in statements_of(x.kernel.ir, PrefetchBox)]
    for b in dict.fromkeys(fetched):
        reads += f"; the first tiles of {tensors[params.index(b)].name} are fetched before"
    saved = x.kernel.target.calibration.launch_us
    return Reason(
        x.outputs[0].name if x.outputs else x.kernel.name,
        f"launch #{number} may begin before #{number - 1} has ended, {what}{reads}; predicted to "
        f"save up to {saved:g} us, what a launch takes beside its blocks",
    )
