"""What is read off a trace, against the same found byte by byte and thread by thread."""

from __future__ import annotations

import math

import numpy as np

from fusewright.core.expr import Int
from fusewright.dtypes import dtype_of
from fusewright.kir import ir
from fusewright.memory import Memory
from fusewright.sim.clocks import Teams
from fusewright.sim.conflicts import _divisor, _Places, check_initialised
from fusewright.sim.model import MODEL
from fusewright.sim.report import Findings
from fusewright.sim.trace import SyncEvent, Trace, TracedAccess, signatures, strands_of

SHARED = ir.Buffer("s", dtype_of("uint8"), Int(256), Memory.SHARED)
REG = ir.Reg(ir.Buffer("r", dtype_of("uint8"), Int(1), Memory.LOCAL), Int(0))
STORE, LOAD = ir.Store(SHARED, Int(0), REG), ir.Load(REG, SHARED, Int(0))


def access(rng: np.random.Generator, nthreads: int, *, writes: bool, nbytes: int) -> TracedAccess:
    """Threads here and there, at places of their own, some with several runs."""
    thread = rng.integers(0, 12, (1, nthreads)) * int(rng.choice([nbytes, 4]))
    mask = rng.random((1, nthreads)) < 0.5
    runs = np.array([0, 64, 100]) if rng.random() < 0.5 else None
    statement = STORE if writes else LOAD
    return TracedAccess(statement, 0, 0, thread, nbytes, writes, mask, SHARED, 0, runs=runs)


def bytes_of(e: TracedAccess, thread: int) -> set[int]:
    runs = [0] if e.runs is None else e.runs.tolist()
    first = int(np.asarray(e.thread)[0, thread])
    return {first + r + k for r in runs for k in range(e.nbytes)}


def active(e: TracedAccess) -> list[int]:
    assert e.mask is not None
    return np.flatnonzero(e.mask[0]).tolist()


def test_divisors() -> None:
    rng = np.random.default_rng(0)
    for _ in range(200):
        step, unit = int(rng.choice([1, 2, 4, 8, 16, 12, 24, 6])), int(rng.integers(1, 9))
        values = rng.integers(0, 1000, 5) * unit
        assert _divisor(step, values) == math.gcd(step, *values.tolist())


def test_cells_between_boundaries_cover_the_bytes_of_each_access() -> None:
    rng = np.random.default_rng(1)
    for _ in range(40):
        sizes = rng.choice([4, 6, 8, 16], 3)
        events = [access(rng, 8, writes=True, nbytes=int(n)) for n in sizes]
        low, masks = [np.asarray(e.thread) for e in events], [np.asarray(e.mask) for e in events]
        if not any(m.any() for m in masks):
            continue
        cuts, keys = _Places(2, 3, events, low, masks).by_boundaries([0, 1, 2])
        found: dict[tuple[int, int], set[int]] = {}
        for key in keys.tolist():
            cell = range(int(cuts[key >> 5]), int(cuts[(key >> 5) + 1]))
            found.setdefault((key >> 3 & 3, key & 7), set()).update(cell)
        wanted = {(k, t): bytes_of(e, t) for k, e in enumerate(events) for t in active(e)}
        assert found == wanted


def test_reads_of_bytes_that_nobody_wrote_are_found() -> None:
    rng = np.random.default_rng(2)
    outcomes: set[bool] = set()
    for _ in range(60):
        events = [access(rng, 8, writes=True, nbytes=int(n)) for n in rng.choice([1, 4, 8], 9)]
        events.append(access(rng, 8, writes=False, nbytes=int(rng.choice([1, 2]))))
        written = set().union(*(bytes_of(e, t) for e in events[:-1] for t in active(e)))
        read = set().union(*(bytes_of(events[-1], t) for t in active(events[-1])))
        trace = Trace(np.zeros(1, int), np.zeros((1, 1), int), 8, 1, 1, 256, [*events])
        findings = Findings(0)
        check_initialised(trace, np.zeros(1, int), MODEL, findings)
        assert bool(findings.list()) == bool(read - written)
        outcomes.add(bool(read - written))
    assert outcomes == {True, False}


def test_lanes_of_a_warp_that_meet_at_the_same_syncs_make_a_strand() -> None:
    rng = np.random.default_rng(3)
    for _ in range(30):
        kinds = [rng.random((1, 96)) < 0.5, np.arange(96)[None] // 16 % 2 == 0, None]
        masks = [kinds[k] for k in rng.integers(0, 3, 5)]
        events = [SyncEvent(ir.WarpSync(k, ""), m) for k, m in enumerate(masks)]
        trace = Trace(np.zeros(1, int), np.zeros((1, 1), int), 96, events=[*events])
        met = [
            (t // 32, *(m is None or bool(m[0, t]) for m in masks))  # the warp, and each sync
            for t in range(96)
        ]
        number = {key: k for k, key in enumerate(dict.fromkeys(met))}
        assert strands_of(trace, 0).tolist() == [number[key] for key in met]


def test_blocks_look_alike_where_they_do_the_same() -> None:
    rng = np.random.default_rng(4)
    both: set[bool] = set()
    for _ in range(60):
        shared = rng.integers(0, 2, (4, 1)) * 64 + np.arange(32)
        other = rng.integers(0, 2, (4, 1)) * np.ones(32, np.int64)
        events = [
            TracedAccess(STORE, 0, 0, thread, 1, True, None, SHARED, 0)
            for thread in (shared, shared, other)
        ]
        trace = Trace(np.arange(4), np.arange(4)[:, None], 32, events=[*events])
        full = signatures(trace, frozenset({0})).full
        for a, b in ((0, 1), (2, 3), (0, 3)):
            same = bool((shared[a] == shared[b]).all() and (other[a] == other[b]).all())
            assert (full[a] == full[b]) == same
            both.add(same)
    assert both == {True, False}


def test_one_team_is_a_team_as_any() -> None:
    strands = np.array([5, 2, 9])
    of, whole = Teams.of(strands, np.zeros(3, np.int64)), Teams.whole(strands)
    for name in ("strands", "team", "members"):
        np.testing.assert_array_equal(getattr(whole, name), getattr(of, name))
