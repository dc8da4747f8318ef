"""What follows from the facts of an architecture."""

from __future__ import annotations

import pytest

from fusewright.target import BLOCK, CLUSTER_SIZES, SMALL_BLOCK, equal_registers, target_of

KIB = 1024


@pytest.mark.parametrize(
    ("arch", "nthreads", "nbytes", "blocks"),
    [
        ("sm_90a", 128, 0, 16),  # 2048 threads
        ("sm_90a", 100, 0, 16),  # whole warps
        ("sm_90a", 32, 0, 32),  # so many blocks a multiprocessor has at most
        ("sm_86", 64, 0, 16),
        ("sm_90a", 128, 113 * KIB, 2),  # and a KiB for the system, each
        ("sm_90a", 128, 113 * KIB + 1, 1),
        ("sm_90a", 128, 227 * KIB, 1),
        ("sm_86", 1024, 0, 1),
    ],
)
def test_blocks_that_a_multiprocessor_holds(
    arch: str, nthreads: int, nbytes: int, blocks: int
) -> None:
    assert target_of(arch).blocks_at_once(nthreads, nbytes) == blocks


def test_threads_share_the_registers_in_units_of_eight() -> None:
    assert [equal_registers(n) for n in (384, 512, 640, 1024)] == [168, 128, 96, 64]


def test_numbers_that_follow_from_others() -> None:
    assert (SMALL_BLOCK, BLOCK, CLUSTER_SIZES) == (128, 256, (2, 4, 8))
