"""Offsets of shared buffers: exact totals, reuse with and without syncs, and random problems."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

import numpy as np
import pytest
from random_sync_kernels import Shape, random_kernel
from sync_kernels import kernel
from tests.work import calls

from fusewright.errors import InternalError
from fusewright.kir.analysis.accesses import Access, accesses, shared_allocs
from fusewright.kir.analysis.cell_times import CellTimes, cell_times, meet
from fusewright.kir.analysis.hazards import unordered
from fusewright.kir.analysis.liveness import interferes, intervals
from fusewright.kir.analysis.ownership import even_edges, footprint, shared_nbytes
from fusewright.kir.analysis.times import StatementTimes, timeline
from fusewright.kir.ir import Buffer, Kernel
from fusewright.kir.passes.pack_shared import pack_shared, packing_of
from fusewright.kir.passes.packing import Item, Overlap, Rules, pack, total_nbytes
from fusewright.kir.passes.place_syncs import place_syncs
from fusewright.sim.machine import simulate
from fusewright.target import target_of

TARGET = target_of("sm_90a")


def _offsets(k: Kernel) -> list[int | None]:
    return [a.offset for _, a in shared_allocs(pack_shared(k, TARGET))]


def total(k: Kernel) -> int:
    return max((a.offset or 0) + shared_nbytes(a.buffer) for _, a in shared_allocs(k))


TWO = "shared a: float32[64] align 128\nshared b: float32[64] align 128\n"
ONE_AFTER_THE_OTHER = """store a[tx] = r[0]
r[0] = load a[READ]
SYNC
store b[tx] = r[0]
r[0] = load b[tx]"""


@pytest.mark.parametrize(
    ("read", "sync", "expected"),
    [
        ("tx", "", [0, 0]),
        ("63 - tx", "", [0, 256]),
        ("63 - tx", "block_sync #1", [0, 0]),
        ("63 - tx", "warp_sync #1", [0, 256]),
        ("tx ^ 1", "warp_sync #1", [0, 0]),
        ("tx ^ 1", "", [0, 256]),
    ],
)
def test_reuse_needs_a_sync_or_one_owner(read: str, sync: str, expected: list[int]) -> None:
    body = ONE_AFTER_THE_OTHER.replace("READ", read).replace("SYNC", sync)
    assert _offsets(kernel(TWO + body)) == expected


def test_owner_threads_may_coincide_at_a_distance_only() -> None:
    body = """shared a: float32[64]
    shared b: float32[128]
    store a[tx] = r[0]
    r[0] = load a[tx]
    store b[tx + 64] = r[0]
    store b[63 - tx] = r[0]
    r[0] = load b[tx + 64]"""
    assert _offsets(kernel(body)) == [256, 0]


def test_owner_threads_in_two_loops() -> None:
    body = """shared a: float32[256] align 128
    shared b: float32[256] align 128
    for (i < 4) { store a[tx + 64*i] = r[0] }
    for (i < 4) { r[i] = load a[tx + 64*i] }
    for (i < 4) { store b[tx + 64*i] = r[i] }
    for (i < 4) { r[i] = load b[INDEX] }"""
    assert _offsets(kernel(body.replace("INDEX", "tx + 64*i"))) == [0, 0]
    shifted = kernel(body.replace("INDEX", "(tx + 64*i + 1) % 256"))
    assert _offsets(shifted) == [0, 1024]


def test_a_sync_on_one_path_only_is_none() -> None:
    body = ONE_AFTER_THE_OTHER.replace("READ", "63 - tx")
    body = body.replace("SYNC", "if (bx == 0) { block_sync #0 }")
    assert _offsets(kernel(TWO + body)) == [0, 256]


def test_in_a_loop_the_way_back_needs_a_sync_as_well() -> None:
    body = """for (i < 3) {
      store a[tx] = r[0]
      block_sync #0
      r[0] = load a[63 - tx]
      block_sync #1
      store b[tx] = r[0]
      block_sync #2
      r[0] = load b[63 - tx]
      BACK
    }"""
    assert _offsets(kernel(TWO + body.replace("BACK", "block_sync #3"))) == [0, 0]
    assert _offsets(kernel(TWO + body.replace("BACK", ""))) == [0, 256]


def test_alignment_is_each_buffer_s_own() -> None:
    body = """shared a: float32[1]
    shared b: float32[1] align 8
    shared c: float32[1] align 128
    store a[0] = r[0] if (tx < 1)
    store b[0] = r[0] if (tx < 1)
    store c[0] = r[0] if (tx < 1)
    block_sync #0
    r[0] = load a[0]
    r[0] = load b[0]
    r[0] = load c[0]"""
    k = pack_shared(kernel(body), TARGET)
    offsets = {a.buffer.name: a.offset for _, a in shared_allocs(k)}
    assert offsets["c"] == 0 and total(k) == 12
    assert offsets["b"] == 8 and offsets["a"] == 4


def test_an_alignment_above_that_of_the_base_is_rejected() -> None:
    k = kernel("shared a: float32[64] align 2048\nstore a[tx] = r[0]")
    with pytest.raises(InternalError, match="aligned to 2048 bytes; the base of shared memory"):
        pack_shared(k, TARGET)


def test_one_buffer_lies_at_the_base() -> None:
    assert _offsets(kernel("shared a: float32[64]\nstore a[tx] = r[0]")) == [0]


# The published cases of a stack allocator with every offset a multiple of 128: A, B, C one after
# another with overlapping lives, and a sync where a block reduction stands.

NEEDS_REORDERING = """shared a: float32[5] align 128
shared b: float32[6] align 128
shared c: float32[6] align 128
store a[tx] = r[0] if (tx < 5)
block_sync #0
r[0] = load a[0]
store b[tx] = r[0] if (tx < 6)
SYNC
r[0] = load b[0]
store c[tx] = r[0] if (tx < 6)
block_sync #2
r[0] = load b[1]
r[0] = load c[0]"""


def test_never_above_the_stack_allocator() -> None:
    with_sync = kernel(NEEDS_REORDERING.replace("SYNC", "block_sync #1"))
    assert total(pack_shared(with_sync, TARGET)) == 128 + 24
    without = kernel(NEEDS_REORDERING.replace("SYNC", ""))
    assert total(pack_shared(without, TARGET)) <= 276


def test_a_chain_needs_its_two_largest_neighbours() -> None:
    sizes = (7, 8, 9, 10)
    lines = [f"shared s{i}: float32[{n}] align 128" for i, n in enumerate(sizes)]
    for i, n in enumerate(sizes):
        lines += [f"store s{i}[tx] = r[0] if (tx < {n})"]
        lines += [f"r[0] = load s{i - 1}[0]"] if i else []
        lines += [f"block_sync #{i}"]
    lines += ["r[0] = load s3[0]"]
    k = pack_shared(kernel("\n".join(lines)), TARGET)
    assert total(k) == 128 + 36 < 160 + 252


# --- random problems ----------------------------------------------------------------------------


def _random_problem(seed: int, n: int) -> tuple[list[Item], Rules]:
    rng = random.Random(seed)
    items = [Item(rng.choice((4, 8, 12, 20, 32, 40)), rng.choice((4, 8, 16))) for _ in range(n)]
    table = [[Overlap.FREE] * n for _ in range(n)]
    allowed: dict[tuple[int, int], int] = {}
    for i, j in itertools.combinations(range(n), 2):
        kind = rng.choice((Overlap.FREE, Overlap.NEVER, Overlap.NEVER, Overlap.SOMETIMES))
        table[i][j] = table[j][i] = kind
        allowed[i, j] = rng.choice((0, 4, 8, -8, 16))
        allowed[j, i] = -allowed[i, j]
    rules = Rules(table, lambda i, j, d: allowed[i, j] == d, lambda i, j: (allowed[i, j],))
    return items, rules


def _is_valid(items: list[Item], rules: Rules, offsets: tuple[int, ...]) -> bool:
    if any(o % i.alignment for o, i in zip(offsets, items, strict=True)):
        return False
    for i, j in itertools.combinations(range(len(items)), 2):
        apart = (
            offsets[i] + items[i].nbytes <= offsets[j] or offsets[j] + items[j].nbytes <= offsets[i]
        )
        fits = rules.overlap[i][j] is Overlap.FREE or (
            rules.overlap[i][j] is Overlap.SOMETIMES and rules.fits(i, j, offsets[j] - offsets[i])
        )
        if not apart and not fits:
            return False
    return True


def _brute_force(items: list[Item], rules: Rules, limit: int) -> int:
    best = limit
    ranges = [range(0, limit - i.nbytes + 1, i.alignment) for i in items]
    for offsets in itertools.product(*ranges):
        size = total_nbytes(items, offsets)
        if size < best and _is_valid(items, rules, offsets):
            best = size
    return best


@pytest.mark.parametrize("seed", range(40))
def test_packing_is_the_optimum_of_brute_force(seed: int) -> None:
    items, rules = _random_problem(seed, 3 + seed % 2)
    offsets = pack(items, rules)
    assert _is_valid(items, rules, offsets)
    size = total_nbytes(items, offsets)
    assert _brute_force(items, rules, size) == size


@pytest.mark.parametrize("n", [8, 12, 13, 30])
def test_larger_problems_are_valid_and_not_below_the_largest_item(n: int) -> None:
    items, rules = _random_problem(n, n)
    offsets = pack(items, rules)
    assert _is_valid(items, rules, offsets)
    assert total_nbytes(items, offsets) >= max(i.nbytes for i in items)


@pytest.mark.parametrize("seed", range(30))
def test_random_kernels_keep_what_is_needed(seed: int) -> None:
    """What a packed kernel computes is what it computes with every buffer to itself; buffers that
    overlap while both are alive do so in bytes that are not."""
    shape = Shape(buffers=8, statements=24, depth=2)
    k = place_syncs(random_kernel(seed, shape), TARGET)
    packed = pack_shared(k, TARGET)
    assert all(h.is_simultaneous for h in unordered(packed))
    if not unordered(packed):
        assert np.array_equal(_outcome(k), _outcome(packed))
    found, lives = accesses(packed), intervals(packed)
    line = timeline(packed)
    spans = [
        (a.offset or 0, (a.offset or 0) + shared_nbytes(a.buffer)) for _, a in shared_allocs(packed)
    ]
    for (i, a), (j, b) in itertools.combinations(enumerate(lives), 2):
        overlap = spans[i][0] < spans[j][1] and spans[j][0] < spans[i][1]
        if overlap and interferes(a, b, found):
            times = [_times(x.buffer, found, line) for x in (a, b)]
            assert not meet(*times, (spans[j][0] - spans[i][0]) // 4), (seed, a.buffer, b.buffer)


def _times(buffer: Buffer, found: Sequence[Access], line: StatementTimes) -> CellTimes:
    rows = [
        footprint(a, 0, even_edges(shared_nbytes(buffer), 4)) for a in found if a.buffer is buffer
    ]
    return cell_times(rows, shared_nbytes(buffer) // 4, line, ())


def _outcome(k: Kernel) -> np.ndarray:
    x, y = k.params
    x_values = np.arange(64, dtype=np.float32) % 7 + 1
    arrays = {x: x_values, y: np.zeros(64, np.float32)}
    return simulate(k, arrays, outputs=[y], check_races=False).outputs[0]


# --- in place -------------------------------------------------------------------------------------


IN_PLACE = """shared a: float32[256] align 128
shared b: float32[256] align 128
for (i < 4) { store a[tx + 64*i] = r[i] }
for (i < 4) {
  r[i] = load a[READ]
  store b[tx + 64*i] = r[i]
}
SYNC
for (i < 4) { r[i] = load b[tx + 64*i] }"""


@pytest.mark.parametrize(
    ("read", "expected"),
    [
        ("tx + 64*i", [0, 0]),  # every thread overwrites what it has just read
        ("tx + 64*(3 - i)", [0, 768]),  # only the last row of a is read before the first of b
        ("63 - tx + 64*i", [0, 1024]),  # another thread may not have read yet
        ("(tx + 64*i + 64) % 256", [0, 256]),  # the first row of a is read last
    ],
)
def test_a_loop_may_overwrite_what_it_has_read(read: str, expected: list[int]) -> None:
    body = IN_PLACE.replace("READ", read).replace("SYNC", "")
    k = kernel(body)
    assert _offsets(place_syncs(k, TARGET)) == expected
    packed = pack_shared(place_syncs(k, TARGET), TARGET)
    assert not unordered(packed)


def test_a_loop_of_unknown_extent_is_not_in_place() -> None:
    body = IN_PLACE.replace("READ", "tx + 64*i").replace("SYNC", "")
    body = body.replace("for (i < 4) {\n", "for (i < max(1, min(4, 3 + bx))) {\n")
    assert sorted(_offsets(kernel(body)), key=str) == [0, 1024]


# --- work -----------------------------------------------------------------------------------------


def _written_out(size: int) -> Kernel:
    """Four buffers that one thread writes and reads element by element, one after the other."""
    names = "abcd"
    lines = [f"shared {b}: float32[{size}]" for b in names]
    for b in names:
        lines += [f"store {b}[{i}] = r[0]" for i in range(size)]
        lines += [f"r[0] = load {b}[{i}]" for i in range(size)]
    return kernel("\n".join(lines), block="tx < 1")


def test_the_work_grows_with_the_accesses_not_with_their_pairs() -> None:
    kernels = [_written_out(n) for n in (8, 32)]
    for k in kernels:
        assert packing_of(k) == dict.fromkeys((a.buffer for _, a in shared_allocs(k)), 0)
    small, large = (calls(lambda k=k: packing_of(k)) for k in kernels)
    assert large < 6 * small


@pytest.mark.parametrize(("written", "expected"), [("i", [0, 0]), ("3 - i", [0, 16])])
def test_accesses_of_two_buffers_that_take_turns(written: str, expected: list[int]) -> None:
    """Where one buffer is filled while the other is read, each pair counts by its own order."""
    lines = [f"store a[{i}] = r[0]" for i in range(4)]
    for i in range(4):
        at = {"i": i, "3 - i": 3 - i}[written]
        lines += [f"r[0] = load a[{i}]", f"store b[{at}] = r[0]"]
    lines += [f"r[0] = load b[{i}]" for i in range(4)]
    body = "shared a: float32[4] align 16\nshared b: float32[4] align 16\n" + "\n".join(lines)
    assert _offsets(kernel(body, block="tx < 1")) == expected
