"""Values chosen by conditions become branches: each thread does the work of one piece only."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import TypeAlias

from fusewright.core.regions import EVERYWHERE, PointRegion, Regions
from fusewright.kir.analysis.lane_regions import FEW_WARPS, joined_lanes
from fusewright.kir.analysis.needs import is_choice, needs
from fusewright.kir.analysis.occupancy import spare_registers
from fusewright.kir.analysis.uniformity import is_warp_uniform, parting_share
from fusewright.kir.ir import Body, Compute, If, Kernel, Load, Statement
from fusewright.kir.passes.sinking import Clusters, Plan, Sinking, SunkBranch
from fusewright.kir.traverse import map_bodies
from fusewright.target import Target

UNIFORM_WORK = 8
"""Operations under one condition that repay a branch which the lanes of a warp take together: a
comparison and a jump, and the select for each value that they replace."""
PARTING_WORK = 56
"""What is asked for on top where the lanes of every warp part: both sides then run one after the
other, between an instruction that notes where they meet again and one that waits there."""
Found: TypeAlias = list[tuple[Statement, Regions]]
LONGEST_CHAIN = 16
"""Regions that exclude each other become one `if`, `else if`, ... of at most this many."""


def sink_branches(kernel: Kernel, target: Target) -> Kernel:
    """Put what is needed under one condition only into a branch on it.

    rewrite:  a = f(load x if c);  b = g(load y if !c);  r = copy(a) if c;  r = copy(b) if !c
         ->   if (c) { a = f(load x);  r = copy(a) } else { b = g(load y);  r = copy(b) }
    checks:   nothing; only loads and computations move, only down past what they do not touch;
              loads get an earlier branch of their own where lanes of a warp may part, or where
              other loads could be under way beside them, in front of all work that waits: as many
              at once as registers suffice for
    order:    after addresses are simplified, so that equal conditions look equal; before syncs are
              placed
    """
    return map_bodies(kernel, lambda body: _sunk(body, kernel, target))


def _sunk(body: Body, kernel: Kernel, target: Target) -> Body:
    if not any(is_choice(s) for s in body):
        return body
    needed = needs(body)
    lanes = joined_lanes(needed, kernel)
    regions = [tuple(dict.fromkeys(lanes.get(r, r) for r in found)) for found in needed]
    found = list(zip(body, regions, strict=True))
    chosen = _worthwhile(found, kernel)
    if not chosen:
        return body
    late = {r for r in chosen if _is_free_of_others(r, chosen, kernel)}
    late |= {r for r in chosen if r in lanes.values() and _parts_few(r, kernel)}
    plan = _plan(found, chosen, late)
    most = spare_registers(kernel, target) if any(b and b.early for _, b in plan) else 0
    return Sinking(plan, _chains, takes_allocs=True, most_early=most).run()


def _plan(found: Found, regions: frozenset[PointRegion], late: set[PointRegion]) -> Plan:
    """The statements that somebody needs, each with the branch it belongs in; loads wait for
    those that are `late`."""
    plan: Plan = []
    for s, needed in found:
        region = needed[0] if len(needed) == 1 and needed[0] in regions else None
        match s:
            case Compute() | Load() if not needed:
                continue
            case Compute() if region is not None:
                plan.append((s, SunkBranch(region)))
            case Load() if region is not None:
                plan.append(
                    (_without_fill(s, region), SunkBranch(region, early=region not in late))
                )
            case _:
                plan.append((s, None))
    return plan


def _worthwhile(found: Found, kernel: Kernel) -> frozenset[PointRegion]:
    """The regions to branch on: something is chosen there, and the work repays the branch."""
    work: dict[PointRegion, int] = {}
    chosen: dict[PointRegion, None] = {}
    for s, regions in found:
        if isinstance(s, Compute) and len(regions) == 1 and regions != EVERYWHERE:
            work[regions[0]] = work.get(regions[0], 0) + 1
            if is_choice(s):
                chosen[regions[0]] = None

    def is_enough(r: PointRegion) -> bool:
        return work[r] >= UNIFORM_WORK + PARTING_WORK * parting_share(r.condition, kernel)

    return frozenset(r for r in chosen if is_enough(r))


def _is_free_of_others(region: PointRegion, regions: Iterable[PointRegion], kernel: Kernel) -> bool:
    """Whether loads may wait for the branch on a region: no thread has others under way then."""
    alone = all(r == region or r.excludes(region) for r in regions)
    return alone and is_warp_uniform(region.condition, kernel)


def _parts_few(region: PointRegion, kernel: Kernel) -> bool:
    """Whether hardly any warp takes another branch, too, which its loads would then wait for."""
    return parting_share(region.condition, kernel) <= FEW_WARPS


def _without_fill(s: Load, region: PointRegion) -> Load:
    """The load without the value that nobody sees, since it is read where it takes place only."""
    if s.fill is None or not region.implies(s.predicate):
        return s
    return dataclasses.replace(s, fill=None)


def _chains(clusters: Clusters) -> Body:
    """Branches on regions that exclude each other become one chain."""
    out: list[Statement] = []
    chain: list[tuple[PointRegion, Body]] = []
    for branch, body in clusters:
        new = branch.region
        if len(chain) == LONGEST_CHAIN or not all(r.excludes(new) for r, _ in chain):
            out += _chained(chain)
            chain = []
        chain.append((new, body))
    return (*out, *_chained(chain))


def _chained(branches: list[tuple[PointRegion, Body]]) -> Body:
    """One branch inside the `else` of the one before."""
    chain: Body = ()
    for region, body in reversed(branches):
        chain = (If(region.condition, body, chain),)
    return chain
