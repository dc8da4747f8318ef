"""Syncs that free shared memory: on request, and where they pay."""

from __future__ import annotations

import pytest
from sync_kernels import kernel, outline, syncs

from fusewright.kir.analysis.accesses import shared_allocs
from fusewright.kir.analysis.ownership import shared_nbytes
from fusewright.kir.ir import Kernel
from fusewright.kir.passes.pack_shared import pack_shared
from fusewright.kir.passes.place_syncs import place_syncs
from fusewright.kir.passes.promote import promote
from fusewright.kir.passes.prune_syncs import prune_syncs
from fusewright.target import target_of

TARGET = target_of("sm_90a")


def _total(k: Kernel) -> int:
    done = pack_shared(k, TARGET)
    return max((a.offset or 0) + shared_nbytes(a.buffer) for _, a in shared_allocs(done))


def _chain(sizes: tuple[int, ...], promoted: set[int]) -> Kernel:
    """s0 -> s1 -> ..., each read by one thread's neighbour before the next is written."""
    lines = [
        f"shared s{i}: float32[{n}] align 128" + (" promote" if i in promoted else "")
        for i, n in enumerate(sizes)
    ]
    for i, n in enumerate(sizes):
        lines += [
            f"store s{i}[tx] = r[0] if (tx < {n})",
            f"r[0] = load s{i}[{n - 1} - tx] if (tx < {n})",
        ]
    return place_syncs(kernel("\n".join(lines), block="tx < 64"), TARGET)


def test_asked_for_it_frees_before_the_next_first_write() -> None:
    k = _chain((50, 60), {0})
    assert outline(k) == "sBlsBl" and _total(k) == 256 + 200
    promoted = promote(k, TARGET)
    assert outline(promoted) == "sBlBsBl" and _total(promoted) == 240


def test_the_reason_names_both_buffers() -> None:
    new = syncs(promote(_chain((50, 60), {0}), TARGET))[1]
    assert new.why.startswith("reuse smem s0: access L") and new.why.endswith("first write of s1")


def test_a_sync_that_stands_there_is_used() -> None:
    body = """shared a: float32[64] promote
    shared b: float32[64]
    store a[tx] = r[0]
    block_sync #0
    r[0] = load a[63 - tx]
    block_sync #1
    store b[tx] = r[0]"""
    k = kernel(body)
    assert promote(k, TARGET) is k


def test_one_sync_serves_all_that_are_free_also_what_was_not_asked_for() -> None:
    body = """shared a: float32[64] align 128
    shared b: float32[64] align 128 promote
    shared c: float32[128] align 128
    store a[tx] = r[0]
    store b[tx] = r[0]
    block_sync #0
    r[0] = load a[63 - tx]
    r[0] = load b[63 - tx]
    store c[2*tx] = r[0..2]
    block_sync #1
    r[0] = load c[tx]"""
    k = kernel(body)
    assert _total(k) == 1024
    promoted = promote(k, TARGET)
    assert outline(promoted) == "ssBllBsBl" and _total(promoted) == 512


def test_nothing_to_free_for() -> None:
    k = place_syncs(
        kernel(
            """shared a: float32[64]
            shared b: float32[64] promote
            store a[tx] = r[0]
            store b[tx] = r[0]
            r[0] = load a[63 - tx]
            r[0] = load b[63 - tx]"""
        ),
        TARGET,
    )
    assert promote(k, TARGET) is k


def test_not_asked_for_and_not_worth_it() -> None:
    k = _chain((50, 60), set())
    assert promote(k, TARGET) is k


def test_a_sync_that_saves_no_bytes_is_not_bought() -> None:
    """The syncs of the data flow free s0 for s2 already: what s0's own sync frees nobody needs."""
    k = _chain((40, 50, 60, 64), {0, 2})
    promoted = promote(k, TARGET)
    assert (_total(k), _total(promoted)) == (256 + 240, 256 + 200)
    assert outline(promoted) == "sBlsBlsBlBsBl"


def test_two_requests_two_syncs() -> None:
    k = _chain((40, 50, 60), {0, 1})
    promoted = promote(k, TARGET)
    assert (_total(k), _total(promoted)) == (256 + 200, 240)
    assert outline(promoted) == "sBlBsBlBsBl"


def _large(nelements: int, nthreads: int) -> Kernel:
    trips = nelements // nthreads
    body = f"""shared a: float32[{nelements}] align 128
    shared b: float32[{nelements}] align 128
    for (i < {trips}) {{ store a[tx + {nthreads}*i] = r[0] }}
    for (i < {trips}) {{ r[0] = load a[{nelements - 1} - tx - {nthreads}*i] }}
    for (i < {trips}) {{ store b[tx + {nthreads}*i] = r[0] }}
    for (i < {trips}) {{ r[0] = load b[{nelements - 1} - tx - {nthreads}*i] }}"""
    return place_syncs(kernel(body, block=f"tx < {nthreads}"), TARGET)


@pytest.mark.parametrize(
    ("kbytes", "nthreads", "buys"),
    [
        (120, 1024, True),  # 240 KB do not fit
        (64, 1024, True),  # one block of 128 KB, or two of 64
        (16, 1024, False),  # two blocks of 1024 threads either way
        (4, 256, False),  # eight blocks of 256 threads either way
    ],
)
def test_bought_where_it_fits_or_raises_occupancy(kbytes: int, nthreads: int, buys: bool) -> None:
    k = _large(kbytes * 256, nthreads)
    promoted = promote(k, TARGET)
    assert outline(k) == "(s)B(l)(s)B(l)"
    assert outline(promoted) == ("(s)B(l)B(s)B(l)" if buys else outline(k))
    assert _total(promoted) == kbytes * 1024 * (1 if buys else 2)


def test_what_was_bought_is_needed_afterwards() -> None:
    k = pack_shared(promote(_chain((50, 60), {0}), TARGET), TARGET)
    assert prune_syncs(k, TARGET) is k


@pytest.mark.parametrize("asked", ["a", "b", "ab"])
def test_in_a_loop_both_turns_need_a_sync(asked: str) -> None:
    """a -> b in the iteration, b -> a around it: one sync of the two saves nothing."""
    body = f"""shared a: float32[64] align 128{" promote" if "a" in asked else ""}
    shared b: float32[64] align 128{" promote" if "b" in asked else ""}
    for (i < 4) {{
      store a[tx] = r[0]
      r[0] = load a[63 - tx]
      store b[tx] = r[0]
      r[0] = load b[63 - tx]
    }}"""
    k = place_syncs(kernel(body), TARGET)
    promoted = promote(k, TARGET)
    assert outline(k) == "(sBlsBl)"
    if asked != "ab":
        assert promoted is k
    else:
        assert outline(promoted) == "(sBlBsBlB)"
        assert (_total(k), _total(promoted)) == (512, 256)


def test_contents_that_go_around_the_loop_are_not_freed_in_it() -> None:
    body = """shared a: float32[64] promote
    shared b: float32[64]
    store a[tx] = r[0]
    for (i < 4) {
      r[0] = load a[63 - tx]
      store b[tx] = r[0]
      r[0] = load b[tx]
    }"""
    k = place_syncs(kernel(body), TARGET)
    assert promote(k, TARGET) is k
