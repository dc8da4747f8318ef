"""The published cases of shared-memory reuse with elements that cross threads: every loop on TIDx
and a `flip` in place of a copy or a negation. Exact addresses, and every sync with its kind and
its place, with and without promotion.

An outline lists the accesses to shared memory in program order: `a=` stores, `a` loads, `B` and `W`
are block and warp syncs. Small cases have a single warp, which WarpSync orders.
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
    flip,
    offsets,
    outline,
    padded,
    reordered,
    shared,
    simple,
)

import fusewright as fw
from fusewright.fusion.array import Array
from fusewright.kernel import Kernel


def facts(k: Kernel) -> tuple[dict[str, int], int, str]:
    """Addresses, total, outline."""
    return offsets(k), k.launch.shared_nbytes, outline(k)


# --- 1 --------------------------------------------------------------------------------------------


def test_simple_one_warp() -> None:
    """The last element of a and the first of b belong to one thread: 40 bytes without a sync of
    their own, 24 with one."""
    s = bind(shared(simple(5, 6, flip), "a", "b"))
    k = s.lower()
    assert facts(k) == ({"a": 0, "b": 16}, 40, "a= W a b= W b")
    assert_agrees(k, s)
    s["a"].promote_reuse()
    k = s.lower()
    assert facts(k) == ({"a": 0, "b": 0}, 24, "a= W a W b= W b")
    assert [x.why.split(":")[0] for x in k.syncs] == ["RAW smem a", "reuse smem a", "RAW smem b"]
    assert_agrees(k, s)


@pytest.mark.parametrize("promoted", [False, True])
def test_simple_three_warps(promoted: bool) -> None:
    """The block reduction's own sync frees a for b; promotion finds it there and buys none."""
    s = bind(shared(simple(70, 71, flip), "a", "b", promote=("a",) if promoted else ()))
    k = s.lower()
    assert facts(k) == (
        {"a": 0, "b": 0, "workspace1": 288},
        572,
        "a= B a workspace1= B workspace1 b= B b",
    )
    assert_agrees(k, s)


# --- 2, 3 -----------------------------------------------------------------------------------------


def test_reordered_one_warp() -> None:
    s = bind(shared(reordered(5, flip), "a", "b", "c"))
    k = s.lower()
    assert facts(k) == ({"a": 0, "b": 16, "c": 48}, 72, "a= W a b= b c= W c b")
    assert_agrees(k, s)
    s["a"].promote_reuse()
    k = s.lower()
    assert facts(k) == ({"a": 0, "b": 0, "c": 32}, 56, "a= W a W b= b c= W c b")
    assert_agrees(k, s)


@pytest.mark.parametrize("promoted", [False, True])
def test_reordered_three_warps(promoted: bool) -> None:
    """The block reduction stands between a and c, which take turns with or without promotion."""
    s = bind(shared(reordered(70, flip), "a", "b", "c", promote=("a",) if promoted else ()))
    k = s.lower()
    assert facts(k) == (
        {"a": 288, "b": 0, "c": 288, "workspace1": 576},
        860,
        "a= B a b= b workspace1= B workspace1 b c= B c b",
    )
    assert_agrees(k, s)


# --- 4 --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("promoted", [False, True])
def test_chain_of_three_one_warp(promoted: bool) -> None:
    """What nvFuser needs promotion for: the sync that b's readers need stands after a's last
    reader and before c's first writer. One more sync would not save a byte, and is not bought."""
    s = bind(shared(chain(7, 3, [flip]), "a", "b", "c", promote=("a",) if promoted else ()))
    k = s.lower()
    assert facts(k) == ({"a": 32, "b": 0, "c": 32}, 68, "a= W a b= W b c= W c")
    assert_agrees(k, s)


def test_chain_of_three_in_blocks() -> None:
    """Promotion of both turns, and only both, takes the chain from two buffers to one."""
    f = chain(72, 3, [flip])
    k = bind(shared(f, "a", "b", "c")).lower()
    assert facts(k) == ({"a": 304, "b": 0, "c": 288}, 592, "a= B a b= B b c= B c")
    s = bind(shared(f, "a", "b", "c", promote=("a", "b")))
    k = s.lower()
    assert facts(k) == ({"a": 0, "b": 0, "c": 0}, 296, "a= B a B b= B b B c= B c")
    assert_agrees(k, s)


# --- 5 --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("promoted", "addresses", "nbytes", "order"),
    [
        ((), {"a": 0, "b": 48, "c": 0, "d": 32}, 80, "a= W a b= W b c= W c d= W d"),
        (("a", "c"), {"a": 32, "b": 0, "c": 32, "d": 0}, 68, "a= W a b= W b c= W c W d= W d"),
        (
            ("a", "b", "c"),
            {"a": 0, "b": 0, "c": 0, "d": 0},
            40,
            "a= W a W b= W b W c= W c W d= W d",
        ),
    ],
)
def test_chain_of_four_one_warp(
    promoted: tuple[str, ...], addresses: dict[str, int], nbytes: int, order: str
) -> None:
    """Promotion of a and c: c's sync saves bytes, a's does not and is not bought."""
    s = bind(shared(chain(7, 4, [flip, fw.negative]), "a", "b", "c", "d", promote=promoted))
    k = s.lower()
    assert facts(k) == (addresses, nbytes, order)
    assert_agrees(k, s)


def test_chain_of_four_in_blocks() -> None:
    s = bind(shared(chain(72, 4, [flip, fw.negative]), "a", "b", "c", "d", promote="abc"))
    k = s.lower()
    assert facts(k) == (
        {"a": 0, "b": 0, "c": 0, "d": 0},
        300,
        "a= B a B b= B b B c= B c B d= B d",
    )
    assert_agrees(k, s)


# --- 6 --------------------------------------------------------------------------------------------


def reverse_threads(x: Array) -> Array:
    return fw.flip(x, axis=0)


@pytest.mark.parametrize(
    ("shape", "apart", "total", "sync"),
    [
        ((5, 6, 7), {"a": 0, "b": 672}, (1632, 960), "W"),
        ((70, 2, 3), {"a": 2224, "b": 0}, (3904, 2240), "B"),
    ],
)
def test_skipped_interval(
    shape: tuple[int, int, int], apart: dict[str, int], total: tuple[int, int], sync: str
) -> None:
    """Rows of different length: at 0 the bytes of one thread's row are another's."""
    s = bind(shared(padded(shape, reverse_threads), "a", "b"))
    k = s.lower()
    assert facts(k) == (apart, total[0], f"a= {sync} a b= b")
    assert_agrees(k, s)
    s["a"].promote_reuse()
    k = s.lower()
    assert facts(k) == ({"a": 0, "b": 0}, total[1], f"a= {sync} a {sync} b= b")
    assert_agrees(k, s)


# --- 7 --------------------------------------------------------------------------------------------


def vectorised(promote: tuple[str, ...]) -> fw.Schedule:
    s = shared(copies(256, flip), "a", "b", promote=promote)
    s["a"].split(0, 2).parallelize(1, fw.Vectorize).parallelize(0, fw.TIDx)
    s["middle"].split(0, 4).parallelize(0, fw.TIDx)
    s["b"].split(0, 4).parallelize(1, fw.Vectorize).parallelize(0, fw.TIDx)
    s["out"].split(0, 4).parallelize(0, fw.TIDx)
    return s


def test_different_vectorization_factors() -> None:
    """a by 128 threads in pairs, b by 64 in fours, backwards: block syncs, b then by its own
    threads only."""
    x = np.arange(256, dtype=np.float32)
    s = vectorised(())
    k = s.lower()
    assert facts(k) == ({"a": 0, "b": 1008}, 2032, "a= B a b= b")
    assert_agrees(k, s, x)
    s = vectorised(("a",))
    k = s.lower()
    assert facts(k) == ({"a": 0, "b": 0}, 1024, "a= B a B b= b")
    assert_agrees(k, s, x)


# --- 8 --------------------------------------------------------------------------------------------


def test_registers_cannot_cross_threads() -> None:
    """The twin of the register case: what another thread holds is refused, not shared."""
    s = bind(fw.Schedule(copies(64, flip)))
    with pytest.raises(fw.ScheduleError, match=r"middle needs a at TIDx loop 0 = .*shared memory"):
        s.lower()
    s["a"].set_memory(fw.SHARED)
    assert outline(s.lower()) == "a= B a"


# --- 9 --------------------------------------------------------------------------------------------


def test_expand() -> None:
    s = shared(expanded(3, 64, flip), "a", "b", "c")
    for name in ("a", "middle"):
        s[name].parallelize(0, fw.TIDx)
    for name in ("b", "c", "out"):
        s[name].parallelize(1, fw.TIDx)
    k = s.lower()
    x = np.arange(64, dtype=np.float32)
    assert facts(k) == ({"a": 768, "b": 512, "c": 0}, 1024, "a= B a b= b c= B c")
    assert_agrees(k, s, x)
    s["a"].promote_reuse()
    k = s.lower()
    assert facts(k) == ({"a": 0, "b": 512, "c": 0}, 768, "a= B a B b= b c= B c")
    assert_agrees(k, s, x)
