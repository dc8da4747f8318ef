"""Which syncs a kernel needs: the trace is replayed without each, and what races then is evidence.

Deleting a sync from an ordered trace needs no new run: if every conflict stays ordered, every
schedule computes what the trace computed.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from fusewright.core.expr import Var
from fusewright.errors import UserError
from fusewright.kir import ir
from fusewright.kir.clusters import cluster_barriers
from fusewright.kir.semaphores import SEMAPHORE_STATEMENTS
from fusewright.kir.traverse import statements_of
from fusewright.sim.compute import Array
from fusewright.sim.machine import Analysed, Blocks, analyse
from fusewright.sim.model import MODEL, Model
from fusewright.sim.order import Change
from fusewright.sim.report import Race, statement_text


@dataclass(frozen=True, slots=True)
class Case:
    """One witness: arrays (written in place), scalars, and the values of the shape symbols."""

    arrays: Mapping[ir.Buffer, Array]
    arguments: Mapping[ir.Argument, object] = field(default_factory=dict["ir.Argument", object])
    symbols: Mapping[Var, int] = field(default_factory=dict["Var", int])
    outputs: Collection[ir.Buffer] = ()
    name: str = ""


@dataclass(frozen=True, slots=True)
class ReplayReport:
    """`necessary`: syncs some case needs, in program order; `redundant`: those none needs, with
    all earlier redundant ones gone; `missing`: findings with every sync in place; `witnesses`: for
    each necessary sync, what goes wrong without it; `seconds`: time taken; `model`: the rules."""

    necessary: list[ir.SyncStatement]
    redundant: list[ir.SyncStatement]
    missing: list[Race]
    witnesses: list[str]
    seconds: float
    model: Model

    @property
    def ok(self) -> bool:
        """Nothing missing, nothing redundant."""
        return not self.missing and not self.redundant

    def __str__(self) -> str:
        lines = [
            f"{len(self.necessary)} necessary, {len(self.redundant)} redundant, "
            f"{len(self.missing)} missing"
        ]
        lines += [f"redundant: {statement_text(s)}" for s in self.redundant]
        lines += [f"missing: {r}" for r in self.missing]
        lines += [f"needed: {w}" for w in self.witnesses]
        return "\n".join(lines)


def syncs_of(kernel: ir.Kernel) -> list[ir.SyncStatement]:
    """All sync statements in program order."""
    return list(statements_of(kernel, ir.SyncStatement))


def sync_objects(kernel: ir.Kernel) -> list[tuple[ir.SyncStatement, ...]]:
    """Statements that work only together, in program order of their first: all on one buffer of
    mbarriers, all on one named barrier, all of one kind of group, the two of one cluster barrier.
    The others work alone."""
    arrivals = {wait: arrive for arrive, wait in cluster_barriers(kernel)}
    found: dict[object, list[ir.SyncStatement]] = {}
    for s in syncs_of(kernel):
        use = s.mbarrier_use()
        key: object = s.arrives_at() if use is None else use.barrier
        match s:
            case _ if key is not None:
                pass
            case ir.AsyncCommit() | ir.AsyncWait():
                key = s.kind
            case ir.ClusterWait():
                key = arrivals.get(s, s)
            case _ if isinstance(s, SEMAPHORE_STATEMENTS):
                key = s.semaphore
            case _:
                key = s
        found.setdefault(key, []).append(s)
    return [tuple(group) for group in found.values()]


EXEMPT = (ir.MbarInvalidate, ir.LaunchDependents)
"""Syncs that free a resource, or order time alone: whether one is left out cannot show."""


def verify_kernel(
    kernel: ir.Kernel,
    cases: Case | Sequence[Case],
    *,
    blocks: Blocks = "sample",
    seed: int = 0,
    model: Model = MODEL,
) -> ReplayReport:
    """Run every case once, then replay without each sync.

    A sync is necessary when its removal, on top of those already found redundant, leaves a
    conflict unordered or breaks a rule in some case; of statements that work together first all
    are removed, then each. Raises UserError without cases.
    """
    start = time.perf_counter()
    runs = _runs(kernel, cases, blocks, seed, model)
    missing = [r for run in runs for r in run.races()]
    necessary: list[ir.SyncStatement] = []
    redundant: list[ir.SyncStatement] = []
    witnesses: list[str] = []
    for group in sync_objects(kernel):
        parts = [(s,) for s in group if not isinstance(s, EXEMPT)]
        if len(group) > 1 and first_race(runs, _without(redundant, group), seed) is None:
            redundant.extend(group)
            continue
        for part in parts:
            broken = first_race(runs, _without(redundant, part), seed)
            if broken is None:
                redundant.extend(part)
                continue
            necessary.extend(part)
            witnesses.append(f"without {statement_text(part[0])}: {broken}")
    order = {s: i for i, s in enumerate(syncs_of(kernel))}
    necessary.sort(key=order.__getitem__)
    redundant.sort(key=order.__getitem__)
    seconds = time.perf_counter() - start
    return ReplayReport(necessary, redundant, missing, witnesses, seconds, model)


def _without(gone: Sequence[ir.SyncStatement], more: Sequence[ir.SyncStatement]) -> Change:
    return Change(frozenset((*gone, *more)))


def _runs(
    kernel: ir.Kernel,
    cases: Case | Sequence[Case],
    blocks: Blocks,
    seed: int = 0,
    model: Model = MODEL,
) -> list[Analysed]:
    cases = [cases] if isinstance(cases, Case) else cases
    if not cases:
        raise UserError("verify_kernel got no case; a sync can only be judged by a witness")
    return [
        analyse(
            kernel,
            c.arrays,
            arguments=c.arguments,
            symbols=c.symbols,
            outputs=c.outputs,
            blocks=blocks,
            seed=seed,
            model=model,
            counts=False,
        )
        for c in cases
    ]


def first_race(runs: Sequence[Analysed], change: Change, seed: int = 0) -> Race | None:
    """A race of the changed kernel that the unchanged one does not have, or None."""
    for run in runs:
        if run.detector is None:
            continue
        before = {_key(r) for r in run.detector.report(seed)}
        for race in run.detector.report(seed, change):
            if _key(race) not in before:
                return race
    return None


@dataclass(frozen=True, slots=True)
class Weakening:
    """What happens when a sync waits for less, or hands on less."""

    sync: ir.SyncStatement
    weaker: ir.SyncStatement
    race: Race | None


def weaker_forms(s: ir.SyncStatement) -> list[ir.SyncStatement]:
    """The sync as it orders less: a wait for groups that keeps one more, or waits for reads only, a
    semaphore whose scope ends at the block, an arrival at a cluster barrier that hands on no
    memory, a barrier at which lanes of single warps meet."""
    match s:
        case ir.AsyncWait():
            found: list[ir.SyncStatement] = [replace(s, keep=s.keep + 1)]
            if s.kind.waits_for_reads and not s.reads_only:
                found.append(replace(s, reads_only=True))
            return found
        case ir.SemaphoreAcquire() | ir.SemaphoreRelease() | ir.SemaphoreArrive():
            return [replace(s, scope=ir.Visibility.BLOCK)]
        case ir.ClusterArrive() if not s.relaxed:
            return [replace(s, relaxed=True)]
        case ir.BlockSync() | ir.NamedSync():
            return [ir.WarpSync(s.id, s.why)]
        case _:
            return []


def weakenings_of(
    kernel: ir.Kernel, cases: Case | Sequence[Case], *, blocks: Blocks = "sample"
) -> list[Weakening]:
    """Replay with each sync in each of its weaker forms."""
    runs = _runs(kernel, cases, blocks)
    return [
        Weakening(s, weaker, first_race(runs, Change(weaker=(s, weaker))))
        for s in syncs_of(kernel)
        for weaker in weaker_forms(s)
    ]


def _key(r: Race) -> tuple[object, ...]:
    return (r.kind, r.statements, "" if r.first is not None and r.kind == "race" else r.message)


@dataclass(frozen=True, slots=True)
class MovedSync:
    """What happens when a sync stands one statement higher or lower."""

    sync: ir.SyncStatement
    direction: Literal["up", "down"]
    race: Race | None


def moves_of(
    kernel: ir.Kernel, cases: Case | Sequence[Case], *, blocks: Blocks = "sample"
) -> list[MovedSync]:
    """Replay with each sync moved over its neighbour statement, up and down.

    Values are not looked at: a move over a statement it does not order is reported as no race.
    """
    runs = _runs(kernel, cases, blocks)
    found: list[MovedSync] = []
    for s in syncs_of(kernel):
        for direction in ("up", "down"):
            change = Change(moved=s, direction=direction)
            found.append(MovedSync(s, direction, first_race(runs, change)))
    return found
