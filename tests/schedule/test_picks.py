"""What memory moves of arrays that data picks rows of, and that several accesses read parts of,
and what a thread holds between passes."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import pytest

import fusewright as fw
from fusewright.core.instructions import CODE
from fusewright.forms import prepare
from fusewright.host.form import form
from fusewright.host.place import place
from fusewright.host.segment import Segment, segments
from fusewright.schedule.heuristics import schedule_group
from fusewright.schedule.heuristics.cost import cost, resident_blocks
from fusewright.schedule.heuristics.picks import Picks
from fusewright.schedule.heuristics.work import MovedArray, Work, work_of
from fusewright.target import target_of

TARGET = target_of("sm_90a")
CACHED = TARGET.calibration.cached_share * TARGET.l2_nbytes


def work(fn: Callable[..., Any], *specs: tuple[tuple[int, ...], str]) -> Work:
    whole = prepare(fw.trace(fn, *[fw.TensorSpec(*s) for s in specs]), TARGET)
    placed = place(whole, form(whole))
    (segment,) = (s for s in segments(whole, placed.items, placed.sites) if isinstance(s, Segment))
    flow = segment.dataflow()
    return work_of(flow, schedule_group(flow, TARGET))


def array(found: Work, place: int = 0) -> MovedArray:
    return [a for a in found.arrays if not a.is_written][place]


def memory_us(found: Work) -> float:
    return dict(cost(found, TARGET).parts)["memory"]


def taken(axis: int) -> Callable[[Any, Any], Any]:
    return lambda x, at: fw.take(x, at, axis=axis)


# --- rows that data picks -----------------------------------------------------------------------


def test_rows_that_are_picked_again_come_from_memory_but_for_what_the_cache_has() -> None:
    nbytes, rows = 8 * CACHED, 1 << 16
    picks = Picks(nbytes, rows, 2 * nbytes, 4096)
    once = nbytes * (1 - math.exp(-2))
    assert picks.distinct(nbytes) == pytest.approx(once, rel=1e-4)
    again = (2 * nbytes - once) * 7 / 8
    assert picks.moved(nbytes, 2 * nbytes, CACHED) == pytest.approx(once + again, rel=1e-4)
    near = dataclasses.replace(picks, region=CACHED)  # as rows of a batch, one after the other
    assert near.moved(nbytes, 2 * nbytes, CACHED) == pytest.approx(once, rel=1e-4)


def test_rows_of_few_sectors_take_memory_longer() -> None:
    """As measured on an H100: rows of 64, 128 and 256 bytes at 0.75, 0.88 and 0.99 of long ones."""
    for nbytes, speed in ((64, 0.75), (128, 0.88), (256, 0.96), (1024, 1.0)):
        assert 1 / Picks(2.0**30, 2.0**20, 2.0**28, nbytes).isolation == pytest.approx(
            speed, abs=0.02
        )


def test_few_picks_leave_rows_unread() -> None:
    """Of 29 rows 29 picks read 0.64 on average: 98 us were measured for 126 predicted, an H100."""
    found = array(work(taken(1), ((192, 29, 16, 512), "float32"), ((29,), "int64")))
    assert found.picks is not None and found.picks.region == 29 * 16 * 512 * 4
    assert found.picks.distinct(found.nbytes) / found.nbytes == pytest.approx(0.64, abs=0.01)


def test_rows_of_less_than_two_sectors_bring_both() -> None:
    found = array(work(taken(0), ((1 << 21, 8), "float32"), ((1 << 21,), "int64")))
    assert found.picks is not None
    assert found.picks.drawn == (1 << 21) * 64
    assert found.paired == pytest.approx((1 << 21) * 64, rel=0.05)


def test_a_table_of_a_batch_is_picked_from_in_turn() -> None:
    """131072 rows of 38 bytes for each of 129 tables: one is in the cache while it is read."""
    spec = ((129, 131072, 19), "bfloat16"), ((196608,), "int64")
    found = array(work(taken(1), *spec))
    assert found.picks is not None and found.picks.region == 131072 * 38 < CACHED


def test_neighbours_that_data_picks_are_read_as_a_row() -> None:
    found = work(
        lambda x, at: fw.take_along_axis(x, at, axis=1),
        ((1 << 20, 7), "bfloat16"),
        ((1 << 20, 1), "int64"),
    )
    assert array(found).picks is None


def test_what_is_picked_of_rows_that_are_read_anyway_is_part_of_them() -> None:
    """A cross entropy reads all of a row, one element of which its label picks: 177 us were
    measured of bfloat16[65536, 4096], as a read of it takes, for 107 predicted (one H100)."""
    found = work(
        lambda x, at: fw.nn.cross_entropy(x, at, reduction="none"),
        ((65536, 4096), "bfloat16"),
        ((65536,), "int64"),
    )
    assert array(found).picks is None
    moved = TARGET.calibration.read_share * TARGET.memory_nbytes_per_us
    assert memory_us(found) == pytest.approx((65536 * 4096 * 2 + 65536 * 12) / moved, rel=0.05)


def test_vectors_over_several_picked_rows_are_read_element_by_element() -> None:
    spec = ((1 << 18, 19), "bfloat16"), ((1 << 18,), "int64")
    apart = work(taken(0), *spec)
    whole = work(taken(0), ((1 << 18, 24), "bfloat16"), ((1 << 18,), "int64"))

    def per_element(found: Work) -> float:
        (out,) = (a for a in found.arrays if a.is_written)
        return found.lines / out.nbytes

    assert per_element(apart) > 3 * per_element(whole)
    assert apart.instructions - whole.instructions > 5 * CODE.picked


# --- writes, and parts of one array ---------------------------------------------------------------


def test_writes_cost_more_beside_reads_only() -> None:
    def filled(x: Any) -> Any:
        return fw.broadcast_to(x, (8192, x.shape[0]))

    only = memory_us(work(filled, ((16384,), "float32")))
    copy = memory_us(work(lambda x: x + 1.0, ((8192, 16384), "float32")))
    moved = TARGET.calibration.read_share * TARGET.memory_nbytes_per_us
    assert only == pytest.approx(2**29 / moved, rel=0.01)
    assert copy == pytest.approx(2**29 * (1 + TARGET.calibration.write_weight) / moved, rel=0.01)


def test_a_reduction_stores_what_it_reduced_once() -> None:
    """Of a row one element is stored, however long it is."""

    def narrow(columns: int) -> float:
        found = work(lambda x: fw.sum(x, axis=1), ((8192, columns), "float32"))
        return found.narrow / found.blocks / (found.threads / 32)

    assert narrow(2048) == narrow(8192) == 1


def test_halves_of_an_array_are_read_together() -> None:
    def halves(x: Any) -> Any:
        half = x.shape[1] // 2
        return fw.concat([x[:, half:], x[:, :half]], axis=1)

    found = array(work(halves, ((4096, 4096), "float32")))
    assert len(found.requested) > 1
    assert found.together == pytest.approx(found.nbytes, rel=0.05)


def test_slices_that_overlap_are_read_once() -> None:
    def steps(x: Any) -> Any:
        return x[:, 4:] - x[:, 1:5] + x[:, :4]

    found = work(steps, ((64, 8, 65536), "float32"))
    source = array(found)
    assert max(source.requested) == pytest.approx(source.nbytes / 2, rel=0.05)
    assert source.together == pytest.approx(source.nbytes, rel=0.05)
    alone = dataclasses.replace(source, together=0.0)
    less = dataclasses.replace(found, arrays=(alone, *found.arrays[1:]))
    assert memory_us(found) > 1.3 * memory_us(less)


def test_what_accesses_share_is_not_counted_twice() -> None:
    found = array(work(lambda x: x + fw.roll(x, 5, axis=0), ((4096, 4096), "float32")))
    assert len(found.requested) > 1
    assert found.together <= found.nbytes


# --- a thread ---------------------------------------------------------------------------------


def normed(x: Any, r: Any) -> Any:
    h = x + r
    mean = fw.mean(h, axis=0, keepdims=True)
    var = fw.mean((h - mean) ** 2, axis=0, keepdims=True)
    return h, (h - mean) / fw.sqrt(var + 1e-5)


def test_values_that_passes_share_take_registers() -> None:
    """A sum of two columns is held, not its terms: 32 values of each thread. In machine code the
    kernel has 64 registers, so that two blocks of 512 threads stand on a multiprocessor."""
    found = work(normed, *[((256, 131072), "float32")] * 2)
    held = found.threads and 256 * 64 // found.threads
    assert found.registers >= CODE.registers + held
    assert resident_blocks(found, TARGET) == 2
