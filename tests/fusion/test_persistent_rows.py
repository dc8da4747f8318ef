"""How threads share a row that registers hold."""

from __future__ import annotations

import pytest

from fusewright.fusion.persistent_rows import (
    VECTORS_OF_LANE,
    Row,
    nbytes_ahead,
    persistent_rows,
    registers_of_thread,
)
from fusewright.target import (
    MAX_REGISTERS_PER_THREAD,
    MAX_THREADS_PER_BLOCK,
    PARTITIONS,
    REGISTERS_PER_SM,
    WARP_SIZE,
)


@pytest.mark.parametrize(
    ("length", "words", "threads", "trips", "blocks"),
    [
        (4096, 3.5, 512, 1, 2),
        (4104, 3.5, 192, 3, 2),  # 544 threads: 17 warps take the turns of 20, or one block only
        (8192, 4.5, 512, 2, 1),
        (8200, 4.5, 352, 3, 1),
        (5120, 4.5, 640, 1, 1),
        (1024, 3.5, 128, 1, 8),
    ],
)
def test_first_choices(length: int, words: float, threads: int, trips: int, blocks: int) -> None:
    first = persistent_rows(Row(length, 2, words), 8)[0]
    assert (first.threads, first.trips, first.blocks) == (threads, trips, blocks)


def test_rows_of_one_input_are_under_way_twice_as_many() -> None:
    one, two = (persistent_rows(Row(5120, 2, 2.0, inputs=n), 8)[0] for n in (1, 2))
    assert (one.blocks, two.blocks) == (3, 1)


@pytest.mark.parametrize("vector", [1, 4, 8])
@pytest.mark.parametrize("length", [9, 136, 520, 1032, 4097, 4104, 6000, 8192, 8200, 11000])
def test_every_way_covers_the_row_and_fits(length: int, vector: int) -> None:
    ways = persistent_rows(Row(length, 2, 4.5), vector)
    assert len(set(ways)) == len(ways)
    for way in ways:
        assert way.vector == vector and way.blocks >= 1
        assert way.threads * way.trips * vector >= length > way.threads * (way.trips - 1) * vector
        nthreads = way.threads * way.side_by_side
        assert 96 <= nthreads <= MAX_THREADS_PER_BLOCK and nthreads % WARP_SIZE == 0
        warps = -(-way.blocks * nthreads // WARP_SIZE // PARTITIONS) * PARTITIONS
        held = way.trips * vector * 4.5
        assert held <= MAX_REGISTERS_PER_THREAD and held * warps * WARP_SIZE <= REGISTERS_PER_SM


def test_rows_that_fit_nowhere_have_no_way() -> None:
    assert not persistent_rows(Row(16384, 4, 6.0), 4)
    assert not persistent_rows(Row(512, 4, 6.0), 4, registers=512)


def test_single_elements_take_more_of_them_a_thread() -> None:
    """A block has too few threads for six each."""
    first = persistent_rows(Row(8193, 2, 4.5), 1)[0]
    assert first.trips > 8 and first.threads * first.trips >= 8193


def test_several_rows_at_a_time_where_blocks_are_few_or_exchange_vectors() -> None:
    row = Row(1024, 2, 2.0, moving=2)
    assert persistent_rows(row, 8)[0].at_a_time == 1
    wanted = persistent_rows(row, 8)[0].blocks
    assert persistent_rows(row, 8, blocks=wanted / 2)[0].at_a_time == 2
    assert persistent_rows(row, 8, blocks=wanted / 4)[0].at_a_time == 4
    assert {w.at_a_time for w in persistent_rows(row, 8, blocks=1, each=15)} == {1, 2}
    down = Row(1024, 2, 2.0, fast=8, moving=2)
    assert persistent_rows(down, 8)[0].at_a_time == 2


def test_threads_stand_along_fast_columns_and_down_the_others() -> None:
    for way in persistent_rows(Row(56 * 90, 2, 2.0, fast=56), 8):
        assert way.threads % 7 == 0 and way.threads // 7 * way.trips >= 90


@pytest.mark.parametrize(("length", "trips"), [(223, 2), (512, 4), (513, None), (128, 1)])
def test_a_warp_may_have_a_row_of_a_few_vectors_for_each_lane(
    length: int, trips: int | None
) -> None:
    """Its lanes meet at no barrier; such ways stand behind those of the rules."""
    ways = persistent_rows(Row(length, 4, 3.0, inputs=1, moving=4), 4)
    own = [w for w in ways if w.threads == WARP_SIZE]
    assert {w.trips for w in own} == (set() if trips is None else {trips})
    assert trips is None or trips <= VECTORS_OF_LANE
    assert trips in (None, 1) or ways[0].threads > WARP_SIZE
    others = persistent_rows(Row(length, 4, 3.0, moving=4), 4)
    assert trips == 1 or all(w.threads > WARP_SIZE for w in others)


def test_rows_that_threads_take_together_are_loaded_a_trip_ahead() -> None:
    """More bytes than that would be waited for in each trip."""
    found = set[int]()
    for length in (1024, 4096, 8192, 16384):
        for way in persistent_rows(Row(length, 2, 2.0, moving=2), 8, blocks=1):
            warps = way.threads * way.side_by_side // WARP_SIZE * way.blocks
            room = nbytes_ahead(registers_of_thread(warps, REGISTERS_PER_SM))
            assert way.at_a_time == 1 or 16 * way.trips * way.at_a_time <= room
            found.add(way.at_a_time)
    assert found == {1, 2, 4}
