"""Random rings, products and turns: the detector against the per-thread reference, also without
each sync, and with waits that wait for less."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache

import numpy as np
import pytest
from async_programs import KEPT, copies, handed, product, ring, straight_product, turns
from async_reference import Reference

from fusewright.core.node import walk
from fusewright.kir import ir
from fusewright.sim.machine import Analysed, analyse
from fusewright.sim.model import MODEL, Model
from fusewright.sim.order import Change, Verdict
from fusewright.sim.verify import syncs_of

Make = Callable[[random.Random, float], ir.Kernel]
LIKELY = 0.7
"""How likely a line is changed."""
END = ("a thread may exit", "nobody waits for", "comes before any fence")
"""Rules that say nothing about an order: the reference judges the rest beside them."""


def kinds_of(verdicts: list[Verdict]) -> set[str]:
    """What else is wrong: "deadlock", or "rule" where the order may depend on the turns."""
    faults = [f for v in verdicts for f in v.faults]
    return {f.kind for f in faults if not any(end in f.message for end in END)}


def analysed(kernel: ir.Kernel, model: Model) -> Analysed:
    arrays = {p: np.zeros(int(str(p.size)), p.dtype.numpy) for p in kernel.params}
    written = {s.dst for s in walk(kernel) if isinstance(s, ir.Store | ir.BulkStore)}
    outputs = [p for p in kernel.params if p in written]
    return analyse(kernel, arrays, outputs=outputs, model=model)


@lru_cache(1000)
def program(make: Make, seed: int, likely: float) -> tuple[ir.Kernel, list[Change]]:
    """A kernel, and what it is compared under: as it is, without each sync, and with waits that
    wait for less."""
    kernel = make(random.Random(seed), likely)
    syncs = [s for s in syncs_of(kernel) if s.id >= KEPT]
    changes = [Change(), *(Change(frozenset({s})) for s in syncs)]
    for s in syncs:
        if isinstance(s, ir.AsyncWait):
            changes.append(Change(weaker=(s, replace(s, keep=s.keep + 1))))
        if isinstance(s, ir.AsyncWait) and s.kind is ir.AsyncKind.BULK:
            changes.append(Change(weaker=(s, replace(s, reads_only=True))))
    return kernel, changes


@lru_cache(10_000)
def races_by_thread(
    make: Make, seed: int, likely: float, change: int, attempt: int
) -> frozenset[frozenset[int]] | None:
    """What the reference finds wrong with a changed kernel in the turns that the attempt draws;
    None where it hangs. It does not know the model, so that tests of several models share it."""
    kernel, changes = program(make, seed, likely)
    c = changes[change]
    instead = {} if c.weaker is None else {c.weaker[0]: c.weaker[1]}
    turns = random.Random(f"{seed} {change} {attempt}")
    reference = Reference(kernel, turns, c.without, instead).run()
    return None if reference.is_stuck else frozenset(reference.races())


def assert_right(make: Make, seed: int, model: Model = MODEL) -> None:
    """A program without a change breaks no rule, and no thread of it meets another out of order."""
    kernel, _ = program(make, seed, 0.0)
    wrong = analysed(kernel, model).races()
    assert not wrong, f"{make.__name__} {seed}: {wrong[0]}\n{kernel}"
    assert races_by_thread(make, seed, 0.0, 0, 0) == frozenset(), f"{make.__name__} {seed}"


def assert_agrees(make: Make, seed: int, model: Model = MODEL) -> tuple[int, int, int]:
    """Compare one kernel and its changes; how many are in order, race, and hang."""
    kernel, changes = program(make, seed, LIKELY)
    found = analysed(kernel, model)
    assert found.detector is not None
    twice = any(r.kind == "race" for r in found.execution.findings.list())
    stuck = any(r.kind == "deadlock" for r in found.races())
    counts = [0, 0, 0]
    for k, c in enumerate(changes if not stuck else changes[:1]):
        verdicts = found.detector.replays(c)
        kinds = kinds_of(verdicts) | ({"deadlock"} if stuck else set())
        if "rule" in kinds:
            continue
        expected = races_by_thread(make, seed, LIKELY, k, 0)
        for attempt in range(1, 61 if "deadlock" in kinds else 1):  # some turns hang
            if expected is not None:
                expected = races_by_thread(make, seed, LIKELY, k, attempt)
        where = f"{make.__name__} {seed}: without {[s.id for s in c.without]}, {c.weaker}"
        assert (expected is None) == ("deadlock" in kinds), f"{where}\n{kernel}"
        if expected is None:
            counts[2] += 1
            continue
        pairs = pairs_of(verdicts)
        assert bool(pairs or twice) == bool(expected), f"{where}\n{kernel}"
        assert pairs <= expected, f"{where}\n{kernel}"
        counts[bool(expected)] += 1
    return counts[0], counts[1], counts[2]


def pairs_of(verdicts: list[Verdict]) -> set[frozenset[int]]:
    """The statements of conflicts without an order."""
    found: set[frozenset[int]] = set()
    for v in verdicts:
        for u in v.unordered:
            events = u.group.trace.events
            for edge in u.edges.tolist():
                found.add(frozenset(id(events[edge[k]].statement) for k in (0, 2)))
    return found


PROGRAMS: dict[str, tuple[Make, int]] = {
    "ring": (ring, 12),
    "copies": (copies, 30),
    "handed": (handed, 20),
    "product": (product, 8),
    "straight_product": (straight_product, 8),
    "turns": (turns, 20),
}
"""Each kind of program, and how many of it are enough for every run of the tests."""


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_without_a_change_are_in_order(name: str) -> None:
    make, n = PROGRAMS[name]
    for seed in range(n):
        assert_right(make, seed)


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_detector_agrees_with_each_thread(name: str) -> None:
    make, n = PROGRAMS[name]
    counts = np.array([assert_agrees(make, seed) for seed in range(n)]).sum(axis=0)
    assert (counts[:2] >= 5).all(), f"right, racy and hanging kernels: {counts}"


@pytest.mark.parametrize(
    ("rule", "name"),
    [
        ("write_then_read", "ring"),
        ("read_then_write", "ring"),
        ("write_write", "copies"),
        ("block_sync_orders", "ring"),
        ("warp_sync_orders", "ring"),
        ("only_participants_learn", "ring"),
        ("named_sync_orders", "ring"),
        ("arrivals_release", "ring"),
        ("arrivals_acquire", "handed"),
        ("mbarrier_waits_acquire", "ring"),
        ("semaphores_release", "turns"),
        ("semaphores_acquire", "turns"),
        ("copies_are_asynchronous", "copies"),
        ("bulk_is_asynchronous", "ring"),
        ("keep_is_counted", "ring"),
        ("groups_belong_to_threads", "ring"),
        ("reads_only_frees_sources", "copies"),
        ("proxies_need_fences", "ring"),
        ("fences_stand_at_writers", "copies"),
        ("mma_is_asynchronous", "product"),
        ("mma_waits_stay_in_warp", "straight_product"),
        ("mma_needs_fence", "product"),
        ("lanes_meet_in_time", "product"),
    ],
)
def test_the_reference_contradicts_a_flipped_rule(rule: str, name: str) -> None:
    model = replace(MODEL, **{rule: not getattr(MODEL, rule)})
    make, n = PROGRAMS[name]
    with pytest.raises(AssertionError, match=f"^{name} "):
        for seed in range(n):
            assert_right(make, seed, model)
            assert_agrees(make, seed, model)


@pytest.mark.fuzz
@pytest.mark.parametrize("name", PROGRAMS)
def test_the_detector_agrees_with_each_thread_at_length(name: str) -> None:
    make, n = PROGRAMS[name]
    for seed in range(1000, 1000 + 40 * n):
        assert_agrees(make, seed)
