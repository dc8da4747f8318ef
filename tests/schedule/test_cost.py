"""The cost model: what is counted on a schedule, what times follow, and that the choices of the
rules come out first or near."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from bench.cases import CASES, Case

import fusewright as fw
from fusewright.core.instructions import CODE
from fusewright.corpus import CORPUS
from fusewright.forms import prepare
from fusewright.host.form import form
from fusewright.host.place import place
from fusewright.host.segment import Segment, segments
from fusewright.schedule.heuristics import Ways, rating, schedule_group
from fusewright.schedule.heuristics.candidates import Candidate, Refused
from fusewright.schedule.heuristics.common import Params
from fusewright.schedule.heuristics.cost import Cost, bound_us, cost, resident_blocks
from fusewright.schedule.heuristics.rating import Rated, decide, decided, rate
from fusewright.schedule.heuristics.work import MovedArray as Array, Work, work_of
from fusewright.target import Target, target_of

TARGET = target_of("sm_90a")
MEASURED = Path(__file__).parents[2] / "bench" / "results-2026-11-22-h200.json"

STREAM = Work(
    blocks=1 << 16,
    threads=128,
    cluster=1,
    min_blocks=0,
    arrays=(Array("x", 1 << 27, (2.0**27,), False), Array("y", 1 << 27, (2.0**27,), True)),
    lines=2.0**21,
    narrow=0,
    shared_nbytes=0,
    through_shared=0,
    exchanges=0,
    loads=1,
    registers=32,
    instructions=60,
    flight_nbytes=16,
)
"""A copy of 128 MiB."""


def us(work: Work, **changes: Any) -> float:
    return cost(dataclasses.replace(work, **changes), TARGET).us


# --- times --------------------------------------------------------------------------------------


def test_a_copy_takes_what_copies_take() -> None:
    assert us(STREAM) == pytest.approx(2**28 / 4.2e6, rel=0.06)


@pytest.mark.parametrize(
    ("changes", "limit"),
    [
        ({}, "memory"),
        ({"instructions": 800}, "issue"),
        ({"exchanges": 12}, "latency"),
        ({"through_shared": 1 << 17}, "shared"),
        ({"lines": 2.0**27}, "shared"),
        ({"narrow": 1 << 25}, "access"),
        ({"loads": 8}, "latency"),
        ({"registers": 255, "exchanges": 3}, "latency"),
        ({"shared_nbytes": 100 * 1024}, "latency"),
    ],
)
def test_what_is_scarce_limits(changes: dict[str, Any], limit: str) -> None:
    found = cost(dataclasses.replace(STREAM, **changes), TARGET)
    assert found.limit == limit
    assert found.us >= us(STREAM)


def test_wasted_sectors_cost_cache_not_memory() -> None:
    x, y = STREAM.arrays
    wide = dataclasses.replace(x, requested=(16 * 2.0**27,))
    found = cost(dataclasses.replace(STREAM, arrays=(wide, y)), TARGET)
    assert found.limit == "cache"
    assert dict(found.parts)["memory"] == pytest.approx(dict(cost(STREAM, TARGET).parts)["memory"])


def test_a_second_read_of_what_left_the_cache_comes_from_memory() -> None:
    x = Array("x", 1 << 30, (2.0**30, 2.0**30), False)
    few = dataclasses.replace(STREAM, arrays=(x,), exchanges=1, blocks=64, threads=1024)
    many = dataclasses.replace(few, blocks=1 << 16)
    assert dict(cost(few, TARGET).parts)["memory"] > 1.9 * dict(cost(many, TARGET).parts)["memory"]


def test_a_last_round_of_few_blocks_costs_as_much_as_a_full_one() -> None:
    slow = dataclasses.replace(STREAM, arrays=(), exchanges=50, threads=1024)
    full = resident_blocks(slow, TARGET) * TARGET.multiprocessors
    one, more, two = (us(slow, blocks=n) for n in (full, full + 1, 2 * full))
    assert more == pytest.approx(two, rel=0.01)
    assert two > 1.7 * one


def test_blocks_that_run_at_once_are_as_slow_as_the_fullest_multiprocessor() -> None:
    """280 blocks on 132 multiprocessors took 137 us where 85 were issued, 3 / 2.12 times as long,
    and a start (a loss of 55 million elements on an H100, 2026-11-27)."""
    few = dataclasses.replace(STREAM, threads=512, instructions=1e6)
    on_each = resident_blocks(few, TARGET)
    per_block = time_of(dataclasses.replace(few, blocks=TARGET.multiprocessors), "issue")
    for blocks, rounds in ((66, 1), (264, 2), (265, 3), (280, 3), (396, 3)):
        found = time_of(dataclasses.replace(few, blocks=blocks), "issue")
        assert found == pytest.approx(rounds * per_block)
    waiting = on_each * TARGET.multiprocessors + 1
    found = time_of(dataclasses.replace(few, blocks=waiting), "issue")
    assert found == pytest.approx(waiting / TARGET.multiprocessors * per_block)


def test_launch_bounds_hold_where_registers_would_not_suffice() -> None:
    large = dataclasses.replace(STREAM, registers=128, threads=512)
    assert resident_blocks(large, TARGET) == 1
    assert resident_blocks(dataclasses.replace(large, min_blocks=2), TARGET) == 2
    beyond = dataclasses.replace(large, min_blocks=9)
    assert resident_blocks(beyond, TARGET) == TARGET.threads_per_sm // 512


def test_exchanges_between_lanes_cost_a_share_of_those_across_warps() -> None:
    across = dataclasses.replace(STREAM, exchanges=1, walked=1e-9)  # loads are not waited for
    lanes = dataclasses.replace(STREAM, lane_exchanges=1 / TARGET.calibration.lanes_share)
    once = dataclasses.replace(STREAM, lane_exchanges=1)
    assert cost(lanes, TARGET) == cost(across, TARGET)
    assert cost(STREAM, TARGET).us < cost(once, TARGET).us < cost(across, TARGET).us


def test_a_block_alone_moves_nothing_while_it_exchanges() -> None:
    held = dataclasses.replace(STREAM, threads=1024, exchanges=1, registers=64)
    others = dataclasses.replace(held, threads=256, blocks=4 * held.blocks)
    small = dataclasses.replace(held, arrays=(Array("x", 0, (0.0,), False), held.arrays[1]))
    one, four, without = (cost(w, TARGET) for w in (held, others, small))
    assert (one.resident, four.resident) == (1, 4)
    read = 2**27 / (TARGET.memory_nbytes_per_us * TARGET.calibration.read_share)
    latency, beside = (dict(c.parts)["latency"] for c in (one, without))
    assert latency - beside == pytest.approx(read, rel=0.01)
    assert dict(four.parts)["memory"] == dict(one.parts)["memory"] and four.us < one.us


def test_exchanges_between_blocks_cost_more_than_inside() -> None:
    reduce = dataclasses.replace(STREAM, exchanges=4)
    assert us(reduce, cluster=2, cluster_exchanges=4) > us(reduce)
    assert us(reduce, cluster=2) == us(reduce)


# --- counts -------------------------------------------------------------------------------------


def counted(fn: Callable[..., Any], *specs: tuple[tuple[int, ...], str]) -> tuple[Work, Params]:
    (segment,) = segments_of(fn, *specs)
    flow = segment.dataflow()
    params = schedule_group(flow, TARGET)
    return work_of(flow, params), params


def segments_of(fn: Callable[..., Any], *specs: tuple[tuple[int, ...], str]) -> list[Segment]:
    whole = prepare(fw.trace(fn, *[fw.TensorSpec(*s) for s in specs]), TARGET)
    placed = place(whole, form(whole))
    found = segments(whole, placed.items, placed.sites)
    return [s for s in found if isinstance(s, Segment)]


def test_counts_of_a_softmax_of_rows_in_registers() -> None:
    work, params = counted(lambda x: fw.nn.softmax(x, axis=-1), ((4096, 4096), "bfloat16"))
    assert params.scheduler == "inner_persistent"
    assert (work.blocks, work.threads, work.exchanges, work.loads) == (4096, 128, 2, 1)
    x, y = work.arrays
    assert (x.requested, y.requested) == ((2.0**25,), (2.0**25,))
    assert work.flight_nbytes == 4 * 8 * 2
    assert work.shared_nbytes == 0


def test_rows_in_shared_memory_are_counted_there() -> None:
    work, params = counted(lambda x: fw.nn.softmax(x, axis=-1), ((4096, 32768), "bfloat16"))
    assert params.scheduler == "inner_shared"
    assert work.shared_nbytes == 65536
    assert work.through_shared == 4 * 65536


def test_a_stride_between_threads_fills_sectors_for_nothing() -> None:
    def fn(x: fw.Array) -> fw.Array:
        return x[:, ::8] + 1

    work, _ = counted(fn, ((4096, 4096), "float32"))
    x = next(a for a in work.arrays if not a.is_written)
    assert sum(x.requested) == pytest.approx(8 * 4096 * 512 * 4, rel=0.01)


def test_narrow_accesses_of_a_tile_come_on_top() -> None:
    """They stand between its loads and its stores, apart from them by a barrier."""
    narrow = {"narrow": 1 << 22}
    plain = us(STREAM, **narrow) - us(STREAM)
    tile = us(STREAM, **narrow, shared_nbytes=8192) - us(STREAM, shared_nbytes=8192)
    assert plain < 0.1 * tile


def test_data_decides_which_sectors_a_gather_fills() -> None:
    """Rows fill whole sectors, single elements one each."""
    x, y = ((4096, 1024), "float32"), ((256, 1024), "int32")
    rows, _ = counted(lambda t, i: fw.take(t, i, axis=0) + 1, x, ((4096,), "int32"))
    single, _ = counted(lambda t, i: fw.take_along_axis(t, i, axis=0) + 1, x, y)
    (of_rows,) = (a.requested for a in rows.arrays if a.nbytes == 4096 * 4096 and not a.is_written)
    (of_single,) = (a.requested for a in single.arrays if a.nbytes == 4096 * 4096)
    assert sum(of_rows) == pytest.approx(4096 * 4096, rel=0.01)
    assert sum(of_single) > 6 * 4 * 256 * 1024


def test_a_move_that_interleaves_asks_for_each_sector_several_times() -> None:
    def fn(a: fw.Array, b: fw.Array, c: fw.Array) -> fw.Array:
        return fw.stack([a, b, c], axis=-1)

    spec = ((1 << 20, 8), "int16")
    work, _ = counted(fn, spec, spec, spec)
    reads = [a for a in work.arrays if not a.is_written]
    assert all(sum(a.requested) >= a.nbytes for a in reads)


def test_addresses_that_divide_take_instructions() -> None:
    """A roll of short rows of elements that fill registers finds the place of each anew, one of
    smaller elements puts vectors together of the ends of two rows, on both sides of the roll: 148
    machine instructions for the 33 of a sum, 3.0 times as many of float32 (NVRTC 13.0)."""

    def times(dtype: str) -> float:
        odd, _ = counted(lambda x: fw.roll(x, 5, axis=1), ((1 << 18, 31), dtype))
        flat, _ = counted(lambda x: x + 1, ((1 << 18, 31), dtype))
        per = [w.instructions * w.threads * w.blocks for w in (odd, flat)]
        return per[0] / per[1]

    assert 3.5 > times("float32") > 2.5
    assert times("float16") == pytest.approx(148 / 33, rel=0.1)


def test_an_integer_is_divided_by_a_literal_in_a_few_instructions() -> None:
    spec = ((1 << 22,), "int32")
    known, _ = counted(lambda x: x % 5, spec)
    unknown, _ = counted(lambda x, y: x % y, spec, spec)
    assert unknown.instructions > 2 * known.instructions


def test_the_instructions_of_an_argmax_are_those_of_its_machine_code() -> None:
    spec = fw.TensorSpec((8192, 1024), "bfloat16")
    (kernel,) = fw.compile(fw.trace(lambda x: fw.argmax(x, axis=1), spec)).kernels
    assert kernel.segment is not None and kernel.heuristic is not None
    flow = kernel.segment.dataflow()
    counted = work_of(flow, schedule_group(flow, TARGET, kernel.heuristic)).instructions
    listed = re.findall(r"^\s+/\*[0-9a-f]{4}\*/\s+(?!NOP)[@A-Z]", kernel.sass(), re.MULTILINE)
    assert abs(math.log(counted / len(listed))) < 0.15


def test_a_vector_of_the_rows_is_asked_for_once_a_thread() -> None:
    work, _ = counted(lambda x, w: x * w, ((1 << 14, 1024), "float32"), ((1024,), "float32"))
    w = next(a for a in work.arrays if a.nbytes == 4096)
    assert sum(w.requested) <= 2**26


def test_pieces_of_a_concatenation_are_computed_in_their_share() -> None:
    def fn(x: fw.Array, y: fw.Array) -> fw.Array:
        return fw.concat([fw.sin(x), fw.cos(y)], axis=0)

    spec = ((1 << 12, 1024), "float32")
    one, _ = counted(lambda x: fw.sin(x), spec)
    both, _ = counted(fn, spec, spec)
    assert both.instructions < 1.5 * one.instructions


def test_a_reduction_within_a_thread_exchanges_nothing() -> None:
    work, _ = counted(lambda x: fw.sum(x, axis=1), ((1 << 16, 1), "float32"))
    assert work.exchanges == 0


@pytest.mark.parametrize("rows", [1, 3])
def test_rows_that_fit_nowhere_are_read_twice(rows: int) -> None:
    """Chunks of a row go to many blocks, their results to a few, and all is read once more."""
    groups = segments_of(lambda x: fw.nn.softmax(x, axis=-1), ((rows, 1 << 22), "float32"))
    works: list[Work] = []
    for s in groups:
        flow = s.dataflow()
        works.append(work_of(flow, schedule_group(flow, TARGET)))
    asked = sum(sum(a.requested) for w in works for a in w.arrays if a.nbytes == rows << 24)
    assert asked == 3 * (rows << 24)
    assert works[0].blocks == rows << 9
    assert all(any(isinstance(c, Rated) for c in rate(s.dataflow(), TARGET)) for s in groups)


# --- the choices of the rules -------------------------------------------------------------------

NEAR = 1.08
"""Predicted times of the rules' choice over the best candidate's, at most."""
QUICK = ("bias_gelu", "softmax_32768", "softmax_2048", "rms_norm_backward", "transpose", "sum_rows")


def rated(case: Case) -> list[list[Rated]]:
    """The rated candidates of every kernel of a case, the rules' choice first."""
    out: list[list[Rated]] = []
    for s in segments_of(case.ours, *case.inputs):
        out.append([c for c in rate(s.dataflow(), TARGET) if isinstance(c, Rated)])
    return out


def _mark(case: Case) -> Any:
    quick = case.name.startswith(QUICK)
    return pytest.param(case, id=case.name, marks=[] if quick else [pytest.mark.slow])


@pytest.mark.parametrize("case", [_mark(c) for c in CASES])
def test_choices_are_predicted_first_or_near_and_as_measured(case: Case) -> None:
    kernels = rated(case)
    for k in kernels:
        assert k[0].cost.us <= NEAR * min(c.cost.us for c in k), [(c.what, c.cost.us) for c in k]
    found = next(c for c in json.loads(MEASURED.read_text())["cases"] if c["case"] == case.name)
    if [k.split(": ")[1] for k in found["kernels"]] == [str(k[0].params) for k in kernels]:
        predicted = sum(k[0].cost.us for k in kernels)
        assert abs(math.log(predicted / found["times_us"]["fusewright"])) < 0.12


def test_candidates_are_rated_as_they_are_scheduled_alone() -> None:
    """All on one dataflow, which each leaves as it was."""
    (segment,) = segments_of(lambda x: x.T + 1, ((4096, 8192), "float32"))
    found = rate(segment.dataflow(), TARGET)
    assert {c.params.scheduler for c in found if isinstance(c, Rated)} == {"transpose", "pointwise"}
    for c in found:
        if isinstance(c, Rated):
            flow = segment.dataflow()
            schedule_group(flow, TARGET, c.params)
            assert c.cost == cost(work_of(flow, c.params), TARGET)


def test_a_candidate_that_the_group_has_no_use_for_is_refused_with_the_reason() -> None:
    (segment,) = segments_of(lambda x: x + 1, ((256, 256), "float32"))
    found = rate(segment.dataflow(), TARGET)
    assert any(isinstance(c, Refused) and "too few blocks" in c.why for c in found)


def choice(fn: Any, *specs: Any, target: Target = TARGET) -> tuple[Params, Params | None]:
    """The first candidate of the rules for a program of one kernel, and what is clearly better."""
    (segment,) = segments_of(fn, *specs)
    params = schedule_group(segment.dataflow(), target)
    return params, decided(segment.dataflow, target)[0].better


class OneOther(Ways):
    """A group that has, beside the rules' choice, a candidate of these parameters, if they are
    wanted."""

    def __init__(self, params: Params) -> None:
        (segment,) = segments_of(lambda x: fw.sum(x, axis=1), ((64, 64), "float32"))
        super().__init__(segment.dataflow(), TARGET)
        self.first()
        self._other = params

    def others(self, wanted: Callable[[Params], bool]) -> Iterator[Candidate[Any]]:
        if wanted(self._other):
            yield Candidate("", self._other, None)


def rolled_scan(x: fw.Array) -> fw.Array:
    return fw.cumulative_sum(fw.roll(x, 11, axis=2), axis=0)


def test_a_scan_of_what_is_rolled_walks_down_its_columns() -> None:
    """Which axis is fast in memory does not show in a read that wraps around; the time does."""

    first, better = choice(rolled_scan, ((339, 5224, 32), "float16"))
    assert first.scheduler == "scan_rows"
    assert better is not None and better.scheduler == "scan_columns_across"
    (kernel,) = fw.compile(
        fw.trace(rolled_scan, fw.TensorSpec((339, 5224, 32), "float16")), "sm_90a"
    ).kernels
    assert kernel.heuristic == better


def test_what_takes_the_time_of_its_traffic_is_not_rated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Ways, "others", lambda *_: pytest.fail("rated"))
    found = [
        choice(lambda x: fw.nn.softmax(x, axis=-1), ((8192, 8192), "bfloat16")),
        choice(lambda x: x + 1, ((64, 64), "float32")),
    ]
    assert [better for _, better in found] == [None, None]


def test_a_slightly_faster_candidate_is_left() -> None:
    """The margin is what the model may be off, and a figure of the target."""
    case = (339, 5224, 32), "float16"
    assert choice(rolled_scan, case)[1] is not None
    known = dataclasses.replace(TARGET.calibration, margin=50.0, kin_margin=50.0)
    unsure = dataclasses.replace(TARGET, calibration=known)
    assert choice(rolled_scan, case, target=unsure)[1] is None


LIMITED = (("memory", 60.0), ("issue", 90.0), ("access", 3.0))


@pytest.mark.parametrize(
    ("us", "parts", "other", "better"),
    [
        (93.0, {"issue": 80.0}, ("rows", 8), True),
        (93.0, {"issue": 80.0}, ("rows", 4), False),  # other accesses: the model may err more
        (93.0, {"issue": 80.0, "access": 40.0}, ("rows", 8), True),  # no limit even twice as slow
        (93.0, {"issue": 80.0, "access": 60.0}, ("rows", 8), False),
        (98.0, {"issue": 95.0}, ("rows", 8), False),  # hardly faster
        (85.0, {"issue": 80.0, "access": 60.0}, ("rows", 4), True),  # of the same scheduler
        (85.0, {"issue": 80.0, "access": 60.0}, ("columns", 4), False),
        (70.0, {"issue": 40.0, "access": 60.0}, ("columns", 4), True),  # far faster
    ],
)
def test_a_candidate_that_falls_behind_in_nothing_is_taken_for_less(
    monkeypatch: pytest.MonkeyPatch,
    us: float,
    parts: dict[str, float],
    other: tuple[str, int],
    better: bool,
) -> None:
    whole = tuple({**dict(LIMITED), **parts}.items())
    scheduler, vector = other
    own = Params("rows", (("vector", 8), ("threads", 64)))
    params = Params(scheduler, (("vector", vector), ("threads", 32)))
    costs = {own: Cost(100.0, LIMITED, 1, 0), params: Cost(us, whole, 1, 0)}
    monkeypatch.setattr(rating, "work_of", lambda _, p: p)
    monkeypatch.setattr(rating, "cost", lambda work, _: costs[work])
    monkeypatch.setattr(rating, "bound_us", lambda *_: 10.0)
    found = decide(OneOther(params), own, TARGET)
    assert (found.better is not None) is better


def test_between_the_margins_only_candidates_of_the_same_scheduler_are_rated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own, rated = Params("rows", (("threads", 64),)), list[tuple[float, str]]()
    monkeypatch.setattr(rating, "work_of", lambda _, p: p)
    monkeypatch.setattr(rating, "bound_us", lambda *_: 100.0)
    for us in (109.0, 120.0, 140.0):
        for name in ("rows", "columns"):

            def found(work: Params, _: object, us: float = us) -> Cost:
                if work != own:
                    rated.append((us, work.scheduler))
                return Cost(us, LIMITED, 1, 0)

            monkeypatch.setattr(rating, "cost", found)
            decide(OneOther(Params(name, (("threads", 32),))), own, TARGET)
    assert rated == [(120.0, "rows"), (140.0, "rows"), (140.0, "columns")]  # of 109 none at all


def test_rating_is_deterministic() -> None:
    (segment,) = segments_of(lambda x: fw.nn.softmax(x, axis=-1), ((512, 8192), "float32"))
    assert rate(segment.dataflow(), TARGET) == rate(segment.dataflow(), TARGET)


def _corpus_mark(number: int, entry: Any) -> Any:
    marks = [] if number % 12 == 0 else [pytest.mark.slow]
    return pytest.param(entry, id=entry.name, marks=marks)


@pytest.mark.parametrize("entry", [_corpus_mark(k, e) for k, e in enumerate(CORPUS)])
def test_every_kernel_of_the_corpus_is_rated(entry: Any) -> None:
    kernels = [k for k in fw.compile(fw.trace(entry.fn, *entry.small)).kernels if k.heuristic]
    for k in kernels:
        found = [c for c in k.candidates if isinstance(c, Rated)]
        assert k.heuristic in [c.params for c in found]
        assert all(0 < c.cost.us < 1e6 for c in found)


def test_symbolic_sizes_are_rated_at_a_typical_size() -> None:
    program = fw.compile(
        fw.trace(lambda x: fw.nn.softmax(x, axis=-1), fw.TensorSpec(("n", 1024), "float32"))
    )
    (kernel,) = program.kernels
    found = next(c for c in kernel.candidates if isinstance(c, Rated))
    assert found.params == kernel.heuristic
    assert found.cost.us == pytest.approx(2 * 4096 * 1024 * 4 / 4.2e6, rel=0.6)


# --- accesses that come back --------------------------------------------------------------------


def time_of(work: Work, resource: str) -> float:
    """The time of one resource alone."""
    return dict(cost(work, TARGET).parts)[resource]


def window(reach: int, *shape: int, in_memory_order: bool = False) -> Work:
    """The work of a stencil along axis 0 of a float32 array, of the first candidate or of the one
    whose blocks follow each other in memory."""

    def fn(x: fw.Array) -> fw.Array:
        return sum((fw.roll(x, k, axis=0) for k in range(-reach, reach)), fw.roll(x, reach, axis=0))

    (segment,) = segments_of(fn, (shape, "float32"))
    flow = segment.dataflow()
    if not in_memory_order:
        return work_of(flow, schedule_group(flow, TARGET))
    other = Params("pointwise", (("vector", 4), ("vectors", 1), ("threads", 128), ("walk", 1)))
    schedule_group(flow, TARGET, other)
    return work_of(flow, other)


def test_a_window_over_far_rows_reads_them_again() -> None:
    """Rows of 11 MB: when a block asks for one again, six rows went through the cache since (seed
    4040 of the lot: 490 us on an H200, where a copy takes 173)."""
    work = window(2, 32, 80, 35503, in_memory_order=True)
    (read,) = [a for a in work.arrays if not a.is_written]
    assert read.between == pytest.approx((1 / 32,) * 4, rel=0.01)
    assert cost(work, TARGET).us == pytest.approx(490, rel=0.05)


def test_a_window_over_far_rows_reads_them_once_in_another_order() -> None:
    """Blocks along the window's axis: the same program takes what its bytes take."""
    once, found = window(0, 32, 80, 35503), window(2, 32, 80, 35503)
    assert time_of(found, "memory") == pytest.approx(time_of(once, "memory"), rel=0.02)


@pytest.mark.parametrize(("rows", "columns", "again"), [(4096, 22192, False), (16, 5681152, True)])
def test_a_window_finds_near_rows_in_the_cache(rows: int, columns: int, again: bool) -> None:
    """The same bytes with shorter rows; the border is where the rows in between fill the cache."""
    once = window(0, rows, columns)
    found = window(1, rows, columns, in_memory_order=again)
    ratio = time_of(found, "memory") / time_of(once, "memory")
    assert ratio > 1.8 if again else ratio == pytest.approx(1)


def test_what_one_thread_writes_for_all_is_counted_once() -> None:
    """Sums of rows by 16 threads each: of a row's threads one writes, four bytes of a sector, which
    takes as long as the other three of the line would."""
    (segment,) = segments_of(lambda x: fw.sum(x, axis=1), ((1 << 16, 512), "float32"))
    for c in rate(segment.dataflow(), TARGET):
        if isinstance(c, Rated):
            flow = segment.dataflow()
            schedule_group(flow, TARGET, c.params)
            (written,) = [a for a in work_of(flow, c.params).arrays if a.is_written]
            assert sum(written.requested) <= 32 * (1 << 16)
            assert written.unfilled == pytest.approx(sum(written.requested) * 3, rel=0.01)


def test_what_others_may_spare_is_no_part_of_the_bound() -> None:
    """Addresses, which vectors share, and what every thread has; not what elements take."""
    long = dataclasses.replace(STREAM, instructions=2000)
    assert bound_us(long, TARGET) > 1.5 * bound_us(STREAM, TARGET)
    addressing = dataclasses.replace(long, addressing=1940)
    assert bound_us(addressing, TARGET) == bound_us(STREAM, TARGET)
    small = dataclasses.replace(long, threads=8, blocks=long.blocks * long.threads // 8)
    assert bound_us(small, TARGET) == bound_us(long, TARGET)


def _joined(a: fw.Array, b: fw.Array) -> fw.Array:
    return fw.concat([fw.exp(fw.sin(a)), fw.log(fw.cos(b))], axis=1)


def test_a_warp_that_has_both_pieces_computes_both() -> None:
    """Pieces of 7 elements are in every warp, of pieces of 896 hardly any has two."""
    short, long = (
        counted(_joined, ((rows, columns), "float32"), ((rows, columns), "float32"))[0]
        for rows, columns in ((1 << 18, 7), (1 << 11, 896))
    )
    computing = [w.instructions - w.addressing - CODE.start for w in (short, long)]
    assert 1.8 * computing[1] < computing[0] < 2.1 * computing[1]


def test_conditions_are_asked_wherever_nothing_is_read() -> None:
    def padded(rows: int) -> Callable[[fw.Array], fw.Array]:
        return lambda x: fw.pad(fw.exp(x), ((rows, rows), (3, 4)))

    inside, _ = counted(padded(1), ((20_000, 100), "float32"))
    outside, _ = counted(padded(9_800), ((400, 100), "float32"))
    assert outside.addressing > 0.5 * inside.addressing


def test_only_the_candidates_that_are_wanted_are_scheduled() -> None:
    (segment,) = segments_of(lambda x: fw.sum(x, axis=1), ((4096, 1000), "float32"))
    every = [c for c in rate(segment.dataflow(), TARGET) if isinstance(c, Rated)]
    asked: list[Any] = []

    def wanted(params: Any) -> bool:
        asked.append(params)
        return len(asked) == 2

    found = [c for c in rate(segment.dataflow(), TARGET, wanted) if isinstance(c, Rated)]
    assert len(every) > 2
    assert found == [every[1]]
    assert asked == [c.params for c in every]


def test_vectors_that_lie_apart_are_stored_as_slowly_as_whole_lines() -> None:
    """A thread with four rows of 9 floats stores 16 bytes every 144: 290 us measured (H100), where
    lanes that share rows take 93; rows through shared memory are stored side by side, too."""
    first, better = choice(lambda x: fw.nn.log_softmax(x, axis=-1), ((427_641, 8, 9), "float32"))
    assert first.scheduler == "short_rows"
    assert better is not None and better.scheduler == "short_rows_staged"


WALKS: list[tuple[Any, tuple[int, ...], str]] = [
    (lambda x: (fw.max(x, axis=1), fw.sum(x, axis=0)), (20000, 2048), "float32"),
    (lambda x: (fw.mean(x, axis=2), fw.var(x, axis=(0, 1, 3))), (7, 373, 228, 64), "bfloat16"),
    (lambda x: (fw.max(x, axis=(0, 1, 3)), fw.max(x, axis=2)), (2048, 96, 8, 8), "float32"),
]


@pytest.mark.parametrize("case", range(len(WALKS)))
def test_registers_of_walks_over_rows_are_those_of_machine_code(case: int) -> None:
    """What is loaded ahead, and sums over trips, decide how many blocks a multiprocessor holds."""
    fn, shape, dtype = WALKS[case]
    program = fw.compile(fw.trace(fn, fw.TensorSpec(shape, dtype)))
    (kernel,) = (k for k in program.kernels if k.heuristic and k.heuristic.scheduler == "rows")
    assert kernel.segment is not None and kernel.heuristic is not None
    flow = kernel.segment.dataflow()
    schedule_group(flow, TARGET, kernel.heuristic)
    work = work_of(flow, kernel.heuristic)
    found = kernel.resources()
    assert found is not None and found.spill_stores == 0
    assert work.registers == pytest.approx(found.registers, rel=0.3)
    assert work.walked > 1 and work.loads == 1


def test_a_trip_waits_for_loads_that_are_not_ahead_of_it() -> None:
    """Loads of the next trip hide behind what this one computes and exchanges, not the reverse."""
    block = {"blocks": 132, "exchanges": 200.0, "instructions": 200.0}
    ahead = us(STREAM, **block, walked=200.0, loads=1)
    known = TARGET.calibration
    assert us(STREAM, **block, walked=0.0, loads=200) > ahead + 150 * known.exchange_us
    assert ahead > 200 * known.idle_latency_us
    assert us(STREAM, **block, walked=50.0, loads=1) < ahead
