"""When the contents of shared buffers are needed."""

from __future__ import annotations

import pytest
from sync_kernels import kernel

from fusewright.kir.analysis.accesses import accesses
from fusewright.kir.analysis.liveness import interferes, intervals

TWO = "shared a: float32[64]\nshared b: float32[64]\n"


def _interfere(body: str, allocs: str = TWO) -> bool:
    k = kernel(allocs + body)
    a, b = intervals(k)
    return interferes(a, b, accesses(k))


def test_an_interval_runs_from_first_to_last_access() -> None:
    k = kernel(TWO + "store a[tx] = r[0]\nr[0] = load a[tx]\nstore b[tx] = r[0]")
    a, b = intervals(k)
    assert (a.first, a.last) == ((5,), (6,))
    assert a.live_after == {(5,)}
    assert b.first == b.last == (7,) and not b.live_after


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("store a[tx] = r[0]\nr[0] = load a[tx]\nstore b[tx] = r[0]\nr[0] = load b[tx]", False),
        ("store a[tx] = r[0]\nstore b[tx] = r[0]\nr[0] = load a[tx]\nr[0] = load b[tx]", True),
        ("store a[tx] = r[0]\nstore b[tx] = r[0]\nr[0] = load b[tx]", False),
    ],
)
def test_straight_line(body: str, expected: bool) -> None:
    assert _interfere(body) is expected


def test_a_loop_that_rewrites_all_ends_the_contents_of_the_last_iteration() -> None:
    body = """for (i < 3) {
      store a[tx] = r[0]
      r[0] = load a[tx]
      store b[tx] = r[0]
      r[0] = load b[tx]
    }"""
    assert not _interfere(body)


def test_a_loop_that_rewrites_a_part_does_not() -> None:
    body = """store a[tx] = r[0]
    for (i < 3) {
      store a[tx] = r[0] if (tx < 10)
      r[0] = load a[tx]
      store b[tx] = r[0]
      r[0] = load b[tx]
    }"""
    assert _interfere(body)


def test_an_inner_loop_counts_as_one_overwrite() -> None:
    body = """for (i < 3) {
      for (j < 2) { store a[64*j + tx] = r[0] }
      r[0] = load a[tx + 64]
      store b[tx] = r[0]
      r[0] = load b[tx]
    }"""
    assert not _interfere(body, "shared a: float32[128]\nshared b: float32[64]\n")


def test_an_allocation_inside_the_loop_ends_contents() -> None:
    body = """for (i < 3) {
      shared a: float32[64]
      shared b: float32[64]
      store a[tx] = r[0] if (tx < n)
      r[0] = load a[tx]
      store b[tx] = r[0] if (tx < n)
      r[0] = load b[tx]
    }"""
    k = kernel(body, head="symbol n in [2, 64]")
    a, b = intervals(k)
    assert not interferes(a, b, accesses(k))


def test_branches_are_separate_paths() -> None:
    body = """if (bx == 0) {
      store a[tx] = r[0]
      r[0] = load a[tx]
    } else {
      store b[tx] = r[0]
      r[0] = load b[tx]
    }"""
    assert not _interfere(body)


def test_contents_needed_after_a_branch_are_needed_in_it() -> None:
    body = """store a[tx] = r[0]
    if (bx == 0) { store b[tx] = r[0] }
    r[0] = load a[tx]"""
    assert _interfere(body)


def test_the_allocation_itself_makes_bytes_undefined() -> None:
    k = kernel(
        """shared a: float32[64]
        store a[tx] = r[0]
        shared b: float32[64]
        r[0] = load a[tx]
        store b[tx] = r[0]"""
    )
    a, b = intervals(k)
    assert interferes(a, b, accesses(k))
