"""Every sync stands where it must. The conflicting pairs of a run are listed by brute force; each
has a sync in between, and a sync moved to the wrong side of either access of a pair that it alone
orders is reported, by the machine model and by the static check."""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np
import pytest
from random_sync_kernels import Shape, random_kernel
from sync_kernels import kernel
from sync_listing import Listing, Pair, findings, wrong_places

import fusewright as fw
from fusewright.corpus import CORPUS
from fusewright.kir.analysis.hazards import unordered
from fusewright.kir.analysis.split_barriers import split_barriers
from fusewright.kir.ir import Kernel, MbarArrive, MbarWait
from fusewright.kir.passes.pack_shared import pack_shared
from fusewright.kir.passes.place_syncs import place_syncs
from fusewright.kir.passes.promote import promote
from fusewright.kir.passes.prune_syncs import prune_syncs
from fusewright.kir.passes.simplify import settle_conditions
from fusewright.sim.verify import Case, verify_kernel
from fusewright.target import target_of
from fusewright.verify import random_cases

TARGET = target_of("sm_90a")


@dataclass
class Count:
    """Moves tried, those that leave a pair without a sync, and split barriers met."""

    moves: int = 0
    wrong: int = 0
    split: int = 0


def case_of(k: Kernel) -> Case:
    x = np.random.default_rng(0).normal(size=int(str(k.params[0].size))).astype(np.float32)
    return Case(dict(zip(k.params, (x, np.zeros_like(x)), strict=True)), outputs=k.params[1:])


def open_pairs(found: set[Pair]) -> set[frozenset[object]]:
    return {frozenset((p.before, p.after)) for p in found if not p.between}


def assert_moves_are_reported(k: Kernel, case: Case, name: object) -> Count:
    """Tries all wrong places. Whether a pair is left without a sync is listed anew: where it is,
    the machine model names such a pair, and where it is not, it has no race to report."""
    listing = Listing()
    found = listing.pairs(k, case)
    assert not open_pairs(found), name
    count = Count(split=len(split_barriers(k)))
    for m in wrong_places(k, found):
        count.moves += 1
        still_open = open_pairs(listing.pairs(m.kernel, case))
        races = [r for r in findings(m.kernel, case) if r.kind == "race"]
        where = (name, m.sync.id, str(m.pair.before), str(m.pair.after))
        if isinstance(m.sync, MbarArrive | MbarWait) and not still_open:
            continue  # a half out of step breaks rules of its own
        assert bool(races) == bool(still_open), where
        assert all(frozenset(r.statements) in still_open for r in races), where
        if still_open:
            count.wrong += 1
            assert unordered(m.kernel), where
    return count


def assert_random_kernel_is_right(seed: int, shape: Shape) -> Count:
    """All moves of the syncs of a random kernel, which are all needed and sufficient."""
    k = settle_conditions(random_kernel(seed, shape))  # as the pipeline does before it places syncs
    passes = (place_syncs, promote, pack_shared, prune_syncs)
    for p in passes if shape.asks else (place_syncs, pack_shared, prune_syncs):
        k = p(k, TARGET)
    if unordered(k):  # threads that collide within one statement, which no sync orders
        return Count()
    case = case_of(k)
    report = verify_kernel(k, case)
    assert report.ok, (seed, str(report))
    return assert_moves_are_reported(k, case, seed)


def test_a_warp_that_passes_by_a_sync_of_another_is_not_ordered_by_it() -> None:
    k = kernel(
        """
        shared s: float32[64] align 16
        r[0] = load x[tx]
        store s[tx] = r[0]
        if (tx//32 == 0) {
          warp_sync #0  // of the first warp alone
        }
        r[0] = load s[1^tx]
        store y[tx] = r[0]
        """,
    )
    found = Listing().pairs(k, case_of(k))
    assert sorted(len(p.between) for p in found) == [0, 1]
    assert [r.kind for r in findings(k, case_of(k))] == ["race"]


def total(seeds: range, shape: Shape) -> Count:
    found = [assert_random_kernel_is_right(seed, shape) for seed in seeds]
    sums = zip(*((c.moves, c.wrong, c.split) for c in found), strict=True)
    return Count(*map(sum, sums))


def test_a_sync_on_the_wrong_side_of_an_access_is_reported() -> None:
    found = total(range(12), Shape())
    assert found.wrong > 40


def test_dozens_of_buffers_in_nested_loops_and_branches() -> None:
    assert total(range(1), Shape(buffers=24, statements=40, depth=3)).wrong > 20


def random_chain(seed: int) -> Kernel:
    """Buffers that hand a value on, each asking for its memory to be freed, with loads between."""
    rng = random.Random(seed)
    count = rng.randint(2, 4)
    loops = [(f"i{n}", rng.randint(1, 3)) for n in range(rng.randint(0, 2))]
    lines = [
        f"shared s{n}: float32[64] align {rng.choice((4, 16, 128))} promote" for n in range(count)
    ]
    lines += ["r[0] = load x[tx]", *(f"for ({v} < {n}) {{" for v, n in loops)]
    for n in range(count):
        there, back = rng.sample(("tx", "63 - tx", "(tx + 1) % 64", "tx ^ 32", "tx ^ 1"), 2)
        lines += [f"store s{n}[{there}] = r[0]", f"r[1] = load s{n}[{back}]"]
        lines += [f"t[0] = load x[{64 * n} + tx]"] * rng.randint(0, 2)
        lines += ["r[0] = add(r[1], t[0])" if lines[-1].startswith("t") else "r[0] = copy(r[1])"]
    return kernel("\n".join([*lines, "}" * len(loops), "store y[64*bx + tx] = r[0]"]))


def assert_chain_is_right(seed: int) -> Count:
    k = random_chain(seed)
    for p in (place_syncs, promote, pack_shared, prune_syncs):
        k = p(k, TARGET)
    assert not unordered(k), seed
    case = case_of(k)
    report = verify_kernel(k, case)
    assert report.ok, (seed, str(report))
    return assert_moves_are_reported(k, case, seed)


def test_halves_of_split_barriers_on_the_wrong_side_are_reported() -> None:
    found = [assert_chain_is_right(seed) for seed in range(24)]
    assert sum(c.split for c in found) > 10 and sum(c.wrong for c in found) > 200


QUICK = ("norm", "softmax_columns", "transpose", "sum_all")


def assert_corpus_moves_are_reported(name: str) -> int:
    """Moves of the syncs of one entry's small kernels that leave a pair without."""
    entry = next(e for e in CORPUS if e.name == name)
    program = fw.compile(fw.trace(entry.fn, *entry.small), target="sm_90a")
    wrong = 0
    for k in program.kernels:
        case = random_cases(k, 0)[-1]
        wrong += assert_moves_are_reported(k.ir, case, name).wrong
    return wrong


@pytest.mark.parametrize("name", QUICK)
def test_moved_syncs_of_small_kernels_are_reported(name: str) -> None:
    assert assert_corpus_moves_are_reported(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", [e.name for e in CORPUS if e.name not in QUICK])
def test_moved_syncs_of_the_corpus_are_reported(name: str) -> None:
    assert_corpus_moves_are_reported(name)


@pytest.mark.fuzz
@pytest.mark.parametrize("start", range(0, 400, 40))
def test_many_moved_syncs_are_reported(start: int) -> None:
    for seed in range(start, start + 40):
        assert_random_kernel_is_right(
            seed, Shape(buffers=2 + seed % 5, statements=6 + seed % 14, asks=seed % 2 == 1)
        )
        assert_chain_is_right(seed)


@pytest.mark.fuzz
@pytest.mark.parametrize("seed", range(1, 9))
def test_moved_syncs_among_dozens_of_buffers_are_reported(seed: int) -> None:
    assert_random_kernel_is_right(
        seed, Shape(buffers=24, statements=60, depth=3, asks=seed % 2 == 1)
    )
