"""No sync is left that orders nothing; the simulator is the judge."""

from __future__ import annotations

import numpy as np
import pytest
from random_sync_kernels import Shape, random_kernel
from sync_kernels import kernel, outline, syncs

from fusewright.kir.analysis.hazards import unordered
from fusewright.kir.ir import Kernel
from fusewright.kir.passes.pack_shared import pack_shared
from fusewright.kir.passes.place_syncs import place_syncs
from fusewright.kir.passes.promote import promote
from fusewright.kir.passes.prune_syncs import prune_syncs
from fusewright.sim.machine import simulate
from fusewright.sim.verify import Case, verify_kernel
from fusewright.target import target_of

TARGET = target_of("sm_90a")
S = "shared s: float32[64]\n"


def _pruned(body: str) -> str:
    return outline(prune_syncs(kernel(S + body), TARGET))


def test_a_sync_without_hazard_goes() -> None:
    assert _pruned("store s[tx] = r[0]\nblock_sync #0\nr[0] = load s[tx]") == "sl"


def test_of_two_in_a_row_the_first_goes() -> None:
    body = "store s[tx] = r[0]\nblock_sync #0\nblock_sync #1\nr[0] = load s[63 - tx]"
    k = prune_syncs(kernel(S + body), TARGET)
    assert [s.id for s in syncs(k)] == [1]


def test_a_block_sync_for_one_warp_becomes_a_warp_sync() -> None:
    assert _pruned("store s[tx] = r[0]\nblock_sync #0\nr[0] = load s[tx ^ 1]") == "sWl"


def test_needed_syncs_stay() -> None:
    k = kernel(S + "store s[tx] = r[0]\nblock_sync #0\nr[0] = load s[63 - tx]")
    assert prune_syncs(k, TARGET) is k


def test_a_sync_in_a_branch_that_threads_take_differently_is_not_made_a_warp_sync() -> None:
    body = "if (bx == 0) { store s[tx] = r[0]\nblock_sync #0\nr[0] = load s[63 - tx] }"
    assert _pruned(body) == "[sBl]"


def test_pruning_does_not_hide_a_missing_sync() -> None:
    body = "store s[tx] = r[0]\nr[0] = load s[63 - tx]\nblock_sync #0"
    k = prune_syncs(kernel(S + body), TARGET)
    assert syncs(k) == [] and len(unordered(k)) == 1


def _compiled(k: Kernel) -> Kernel:
    return prune_syncs(pack_shared(promote(place_syncs(k, TARGET), TARGET), TARGET), TARGET)


def _arrays(k: Kernel) -> dict[object, np.ndarray]:
    x = np.arange(64, dtype=np.float32) % 7
    return dict(zip(k.params, (x, np.zeros(64, np.float32)), strict=True))


def _values(k: Kernel) -> np.ndarray:
    found = simulate(k, _arrays(k), outputs=(k.params[1],), check_races=False)  # type: ignore[arg-type]
    return found.outputs[0]


def assert_random_kernel_is_sound(seed: int, shape: Shape) -> None:
    """Same values as without syncs and reuse, no race, no redundant sync."""
    k = random_kernel(seed, shape)
    done = _compiled(k)
    beyond = {h.before for h in unordered(done)}
    assert all(h.is_simultaneous for h in unordered(done)), seed
    assert np.array_equal(_values(k), _values(done)), seed
    report = verify_kernel(done, Case(_arrays(done), outputs=(done.params[1],)))  # type: ignore[arg-type]
    assert not report.redundant, (seed, str(report))
    assert bool(report.missing) == bool(beyond), (seed, str(report))


@pytest.mark.parametrize("seed", range(60))
def test_random_kernels(seed: int) -> None:
    assert_random_kernel_is_sound(seed, Shape())


@pytest.mark.fuzz
@pytest.mark.parametrize("start", range(1000, 3000, 100))
def test_many_random_kernels(start: int) -> None:
    for seed in range(start, start + 100):
        assert_random_kernel_is_sound(seed, Shape(buffers=2 + seed % 5, statements=6 + seed % 14))


@pytest.mark.parametrize("stages", [1, 2, 3])
def test_a_ring_with_a_symbolic_trip_count(stages: int) -> None:
    """One sync an iteration from two stages on, two with one; every one of them needed."""
    k = kernel(
        f"""shared s: float32[{64 * stages}]
        r[0] = load x[tx]
        for (k < n) {{
          store s[tx + 64*(k % {stages})] = r[0]
          t[0] = load s[63 - tx + 64*(k % {stages})]
          r[0] = add(r[0], t[0])
        }}
        store y[64*bx + tx] = r[0]""",
        head="symbol n in [1, 100]",
    )
    done = _compiled(k)
    assert outline(done) == ("l(BsBl)s" if stages == 1 else "l(sBl)s")
    cases = []
    for n in (1, 2, 3, 7):
        x, y = np.ones(4096, np.float32), np.zeros(4096, np.float32)
        arrays = dict(zip(done.params, (x, y), strict=True))
        cases.append(Case(arrays, symbols={done.symbols[0]: n}))
    report = verify_kernel(done, cases)
    assert report.ok, str(report)
