"""The nine published cases of shared-memory reuse, each with the bytes that nvFuser needs for it.

nvFuser's figures are those of tests/cpp/test_smem_reuse.cpp at every address a multiple of 128;
they bound ours from above. Ours are lower for three reasons, which the cases name: a block of one
thread needs no sync for reuse, addresses need 16 bytes of alignment and not 128, and a buffer may
be written over another one behind the reads of the same loop.
"""

from __future__ import annotations

import numpy as np
import pytest
from smem_cases import (
    assert_agrees,
    bind,
    chain,
    copies,
    expanded,
    offsets,
    outline,
    padded,
    reordered,
    shared,
    simple,
)

import fusewright as fw
from fusewright.errors import ScheduleError
from fusewright.kernel import Kernel


def align(nbytes: int) -> int:
    """nvFuser's rounding of every address."""
    return -(-nbytes // 128) * 128


def peak(k: Kernel) -> int:
    """The end of the last buffer, which is all the shared memory of the launch."""
    end = max(b.offset + b.nbytes for b in k.smem)
    assert k.launch.shared_nbytes == end
    return end


# --- 1: SimpleCase --------------------------------------------------------------------------------


def test_simple_case_serial() -> None:
    """One thread: a is dead when b is written and no other thread can still read it, so the two
    share address 0 without a sync. nvFuser keeps them apart: no sync, no reuse."""
    s = shared(simple(5, 6), "a", "b")
    k = s.lower()
    assert offsets(k) == {"a": 0, "b": 0}
    assert [b.alias_of for b in k.smem] == [None, "a"]
    assert peak(k) == 24 <= align(4 * 6) + 4 * 5 == 148
    assert outline(k) == "a= a b= b" and not k.syncs
    assert_agrees(k, s)


def test_simple_case_on_threads() -> None:
    """Every element stays with its thread, and the sum is shuffles: nvFuser's 24 bytes without the
    block reduction's sync, and without its workspace."""
    s = bind(shared(simple(5, 6), "a", "b"))
    k = s.lower()
    assert offsets(k) == {"a": 0, "b": 0}
    assert peak(k) == 24 and not k.syncs
    assert_agrees(k, s)


# --- 2, 3: NeedsReorderedPush, PromoteReuse -------------------------------------------------------


@pytest.mark.parametrize("promoted", [False, True])
@pytest.mark.parametrize("threads", [False, True])
def test_needs_reordered_push_and_promote_reuse(threads: bool, promoted: bool) -> None:
    """b is written over a as it is read, element by element; c stands beside b, which is read
    again. No order of pushes is involved, and there is nothing left that promotion could free."""
    s = shared(reordered(5), "a", "b", "c", promote=("a",) if promoted else ())
    if threads:
        bind(s)
    k = s.lower()
    assert offsets(k) == {"a": 0, "b": 0, "c": 32}
    bound = align(4 * 6) + 4 * 6
    assert peak(k) == 56 <= bound == 152 < align(bound) + 4 * 5 == 276
    assert not k.syncs
    assert_agrees(k, s)


# --- 4: PromoteReuseMultipleDownstream ------------------------------------------------------------


@pytest.mark.parametrize("promoted", [False, True])
@pytest.mark.parametrize("threads", [False, True])
def test_promote_reuse_multiple_downstream(threads: bool, promoted: bool) -> None:
    s = shared(chain(7, 3, [fw.negative]), "a", "b", "c", promote=("a",) if promoted else ())
    if threads:
        bind(s)
    k = s.lower()
    assert offsets(k) == {"a": 0, "b": 0, "c": 0}
    bound = align(4 * 9) + 4 * 8
    assert peak(k) == 36 <= bound == 160 < align(bound) + 4 * 7 == 284
    assert not k.syncs
    assert_agrees(k, s)


# --- 5: MultiplePromoteReuse ----------------------------------------------------------------------


@pytest.mark.parametrize("promoted", [(), ("a", "c")])
@pytest.mark.parametrize("threads", [False, True])
def test_multiple_promote_reuse(threads: bool, promoted: tuple[str, ...]) -> None:
    s = shared(chain(7, 4, [fw.negative] * 2), "a", "b", "c", "d", promote=promoted)
    if threads:
        bind(s)
    k = s.lower()
    assert offsets(k) == {"a": 0, "b": 0, "c": 0, "d": 0}
    bound = align(4 * 9) + 4 * 8
    assert (
        peak(k) == 40 <= bound == 160 < align(align(align(4 * 10) + 4 * 9) + 4 * 8) + 4 * 7 == 412
    )
    assert not k.syncs
    assert_agrees(k, s)


# --- 6: SkippedSyncInterval -----------------------------------------------------------------------


@pytest.mark.parametrize("promoted", [False, True])
def test_skipped_sync_interval(promoted: bool) -> None:
    """a holds one element a thread, b a row of them: the bytes they share belong to different
    threads. With promotion both lie at 0 behind one sync, which a warp suffices for (5 threads);
    without it a stands above b."""
    s = bind(shared(padded((5, 6, 7), fw.negative), "a", "b", promote=("a",) if promoted else ()))
    s["a"].inline_at(s["middle"], -1)
    k = s.lower()
    assert offsets(k) == {"a": 0 if promoted else 960, "b": 0}
    assert peak(k) == (960 if promoted else 980)
    assert [x.kind for x in k.syncs] == ["WarpSync"] * promoted
    accesses = ["a= a"] * 42 + ["W"] * promoted + ["b= b"]
    assert outline(k) == " ".join(accesses)
    assert_agrees(k, s)


# --- 7: SmemReuseWithDifferentVectorizationFactor -------------------------------------------------


def test_reuse_with_different_vectorization_factors() -> None:
    """a is written two at a time and read four at a time, b written over it in the same loop."""
    s = shared(copies(16), "a", "b")
    s["a"].split(0, 2).parallelize(1, fw.Vectorize)
    s["middle"].split(0, 4)
    s["b"].split(0, 4).parallelize(1, fw.Vectorize)
    s["middle"].inline_at(s["b"], -1)
    k = s.lower()
    assert [(b.name, b.offset, b.nbytes, b.alias_of) for b in k.smem] == [
        ("a", 0, 64, None),
        ("b", 0, 64, "a"),
    ]
    assert not k.syncs
    assert_agrees(k, s, np.arange(16, dtype=np.float32))


# --- 8: RegisterReuseWithDifferentVectorizationFactor ---------------------------------------------


@pytest.mark.parametrize("first", [1, 2, 4])
@pytest.mark.parametrize("second", [1, 2, 4])
def test_registers_are_reused_whatever_the_vectorization_factors(first: int, second: int) -> None:
    """nvFuser aliases register arrays, and only where `second <= first`. Here a LOCAL buffer is a
    set of names for registers: once every index is a literal (the final spec demands it) the
    machine's compiler allocates registers by liveness, for all nine pairs: the chain of three
    arrays of 16 takes no stack, and fewer registers than the three would have side by side."""
    s = fw.Schedule(copies(16))
    s["a"].split(0, first)
    for name in ("middle", "b", "out"):
        s[name].split(0, second)
    s["a"].parallelize(1, fw.Vectorize)
    for name in ("middle", "b"):
        s[name].parallelize(1, fw.Vectorize)
    k = s.lower()
    assert not k.smem and not k.syncs
    assert_agrees(k, s, np.arange(16, dtype=np.float32))
    pytest.importorskip("cuda.bindings")
    used = k.resources()
    assert used.spill_stores == used.stack_nbytes == 0
    assert used.registers < 3 * 16


# --- 9: ExpandInterferes --------------------------------------------------------------------------


def test_expand_interferes() -> None:
    """c takes a's place: a is dead once b is written. b is read for every row of c, for the last
    time where the last row is written, which lies over it."""
    s = shared(expanded(3, 4), "a", "b", "c")
    k = s.lower()
    assert [(b.name, b.offset, b.nbytes, b.alias_of) for b in k.smem] == [
        ("a", 0, 16, None),
        ("b", 32, 16, None),
        ("c", 0, 48, "a"),
    ]
    assert peak(k) == 48 <= 3 * 128 and not k.syncs
    assert_agrees(k, s, np.arange(4, dtype=np.float32))


def test_expand_interferes_symbolic() -> None:
    """A symbolic extent: shared memory holds a tile of constant size, and the addresses are the
    same; the number of tiles is the grid."""
    s = shared(expanded(3, "y"), "a", "b", "c")
    for name, axis in (("a", 0), ("middle", 0), ("b", 1), ("c", 1), ("out", 1)):
        t = s[name].split(axis, 4)
        t.parallelize(axis, fw.BIDx)
    k = s.lower()
    assert [(b.name, b.offset, b.nbytes) for b in k.smem] == [
        ("a", 0, 16),
        ("b", 32, 16),
        ("c", 0, 48),
    ]
    assert not k.syncs
    assert_agrees(k, s, np.arange(18, dtype=np.float32))


# --- refusals -------------------------------------------------------------------------------------


def test_a_symbolic_extent_has_no_place_in_shared_memory() -> None:
    s = shared(expanded(3, "y"), "a", "b", "c")
    with pytest.raises(ScheduleError, match=r"a would need y elements of shared memory; the size"):
        s.lower()


def test_promotion_is_for_shared_memory() -> None:
    s = fw.Schedule(copies(16))
    with pytest.raises(ScheduleError, match=r"promote_reuse\(a\): it lives in local memory"):
        s["a"].promote_reuse()
    assert not s["a"].promotes_reuse
    s["a"].set_memory(fw.SHARED).promote_reuse()
    assert s["a"].promotes_reuse
    assert not s["a"].set_memory(fw.LOCAL).promotes_reuse


def test_inputs_and_outputs_stay_in_global_memory() -> None:
    s = fw.Schedule(copies(16))
    with pytest.raises(
        ScheduleError, match=r"set_memory\(out\): inputs and outputs live in global"
    ):
        s["out"].set_memory(fw.SHARED)
