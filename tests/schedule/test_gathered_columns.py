"""Columns and rows that no cluster holds stay in neighbouring blocks of the grid, which add up what
each of them reduced: one kernel, one read of its operands."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

import fusewright as fw
from fusewright.fusion.partitioning import PartitionFacts, might_hold
from fusewright.memory import Memory
from fusewright.schedule.heuristics import column_plans, reduction, reduction_plans
from fusewright.schedule.heuristics.candidates import Candidate
from fusewright.schedule.heuristics.cost import cost
from fusewright.schedule.heuristics.reduction import plans_of
from fusewright.schedule.heuristics.reduction_plans import ReductionFacts, ReductionPlan
from fusewright.schedule.heuristics.work import MovedArray, Work
from fusewright.target import LINE_NBYTES, Target, target_of

TARGET = target_of("sm_90a")


def rms(x: Any, axis: int = 0) -> Any:
    return x * fw.rsqrt(fw.mean(x * x, axis=axis, keepdims=True) + 1e-5)


def with_residual(x: Any, r: Any, axis: int = 0) -> Any:
    return rms(x + r, axis), x + r


def norm(x: Any, axis: int = 0) -> Any:
    d = x - fw.mean(x, axis=axis, keepdims=True)
    return d * fw.rsqrt(fw.mean(d * d, axis=axis, keepdims=True) + 1e-5)


def softmax(x: Any, axis: int = 0) -> Any:
    return fw.nn.softmax(x, axis=axis)


def backward(g: Any, x: Any, axis: int = 0) -> Any:
    mean = fw.mean(g * x, axis=axis, keepdims=True)
    return g - fw.mean(g, axis=axis, keepdims=True) - x * mean


def and_largest(x: Any, axis: int = 0) -> Any:
    m = fw.max(fw.abs(x), axis=axis, keepdims=True)
    return x / m, m


@pytest.fixture
def gathered(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Lets rows, or columns, be shared by so many blocks, the latter with so many threads side by
    side."""

    def ask(kept: int, parts: int) -> None:
        def columns(rows: ReductionFacts, target: Target) -> Iterator[Candidate[ReductionPlan]]:
            plan = column_plans._part_of_columns(rows, kept, parts, target)  # pyright: ignore
            assert plan is not None
            yield plan.candidate(target)

        def of_rows(rows: ReductionFacts, target: Target) -> Iterator[Candidate[ReductionPlan]]:
            room = target.shared_nbytes_of_several
            found = reduction_plans._shared_slices(rows, parts, room, target)  # pyright: ignore
            assert isinstance(found, Candidate)
            yield replace(found.plan, cluster=1, parts=parts).candidate(target)

        monkeypatch.setattr(reduction, "of_columns", columns)
        monkeypatch.setattr(reduction, "of_rows", of_rows)

    return ask


@pytest.mark.parametrize(
    ("fn", "operands", "shape", "dtype", "kept", "parts"),
    [
        (rms, 1, (96, 256), "float32", 8, 4),
        (rms, 1, (303, 134), "float16", 8, 7),  # vectors of 2, and rows that no block has alike
        (rms, 1, (77, 45), "bfloat16", 16, 3),  # registers, as rows begin anywhere
        (with_residual, 2, (130, 72), "float16", 4, 5),
        (norm, 1, (201, 64), "bfloat16", 8, 2),  # two sums, one behind the other
        (softmax, 1, (150, 36), "float32", 4, 6),
        (softmax, 1, (61, 33), "float16", 32, 5),
        (backward, 2, (190, 40), "float32", 4, 11),  # two sums side by side
        (and_largest, 1, (100, 72), "float16", 8, 4),  # what blocks add up is a result, too
        (norm, 1, (70, 12), "float64", 2, 5),
    ],
)
def test_columns_of_several_blocks_are_read_once(
    gathered: Callable[..., None],
    fn: Callable[..., Any],
    operands: int,
    shape: tuple[int, int],
    dtype: str,
    kept: int,
    parts: int,
) -> None:
    gathered(kept, parts)
    _check(fn, operands, shape, dtype, parts, "outer_gathered")


def along(fn: Callable[..., Any]) -> Callable[..., Any]:
    """The same of rows."""
    return partial(fn, axis=1)


@pytest.mark.parametrize(
    ("fn", "operands", "shape", "dtype", "parts"),
    [
        (rms, 1, (5, 5000), "float32", 3),
        (norm, 1, (1, 9008), "bfloat16", 4),
        (softmax, 1, (3, 4402), "float16", 5),  # the last slice is short
        (backward, 2, (2, 7000), "float32", 6),
        (and_largest, 1, (4, 6040), "float16", 2),
    ],
)
def test_rows_of_several_blocks_are_read_once(
    gathered: Callable[..., None],
    fn: Callable[..., Any],
    operands: int,
    shape: tuple[int, int],
    dtype: str,
    parts: int,
) -> None:
    gathered(0, parts)
    _check(along(fn), operands, shape, dtype, parts, "inner_gathered_shared")


def _check(
    fn: Callable[..., Any],
    operands: int,
    shape: tuple[int, int],
    dtype: str,
    parts: int,
    scheduler: str,
) -> None:
    """One kernel of so many blocks a row, right and with every sync that it needs."""
    program = fw.compile(fw.trace(fn, *[fw.TensorSpec(shape, dtype)] * operands))
    (kernel,) = program.kernels
    assert kernel.heuristic is not None and scheduler in kernel.heuristic.scheduler
    assert str(kernel.launch.grid[0]) == str(parts)
    rng = np.random.default_rng(shape[0])
    arrays = [rng.standard_normal(shape).astype(getattr(fw, dtype).numpy) for _ in range(operands)]
    found = program.simulate(*arrays)
    assert not found.races
    limit = {"float16": 2**-9, "bfloat16": 2**-6, "float32": 1e-5, "float64": 1e-13}[dtype]
    for got, want in zip(found.outputs, fw.evaluate(program.fusion, *arrays), strict=True):
        got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
        assert np.abs(got - want).max() <= limit * np.abs(want).max()
    report = fw.verify(program, *arrays)
    assert not report.missing and not report.redundant


@pytest.mark.parametrize(
    ("fn", "operands", "shape", "dtype", "held"),
    [
        (rms, 1, (16384, 8192), "bfloat16", "shared"),
        (rms, 1, (44167, 2335), "float32", None),  # predicted, but not surely faster
        (with_residual, 2, (11400, 438), "float16", "shared"),
        (along(rms), 1, (3, 4_000_000), "float16", "shared"),
    ],
)
def test_blocks_wait_for_each_other_where_that_beats_a_second_read(
    fn: Callable[..., Any], operands: int, shape: tuple[int, int], dtype: str, held: str | None
) -> None:
    program = fw.compile(fw.trace(fn, *[fw.TensorSpec(shape, dtype)] * operands))
    schedulers = [k.heuristic.scheduler for k in program.kernels if k.heuristic]
    kinds = [[f"{kind}_gathered_{held}"] for kind in ("outer", "inner")]
    assert (schedulers in kinds) == (held is not None)


def _facts(columns: int, rows: int, vector: int, held: int) -> ReductionFacts:
    return ReductionFacts(False, columns, rows, vector, held, is_read_again=True, item_nbytes=held)


def _gathered(facts: ReductionFacts, target: Target = TARGET) -> list[ReductionPlan]:
    found = [c.plan for c in plans_of(facts, target) if isinstance(c, Candidate)]
    return [p for p in found if isinstance(p, ReductionPlan) and p.parts > 1]


def test_blocks_share_what_no_cluster_holds() -> None:
    assert not _gathered(_facts(2000, 8192, 4, 4))
    (plan,) = _gathered(_facts(16384, 8192, 4, 4))
    assert plan.held_in is Memory.SHARED and plan.kept_threads * plan.vector * 4 == LINE_NBYTES
    assert plan.held_nbytes <= TARGET.shared_nbytes_of_several
    (odd,) = _gathered(_facts(44167, 2335, 1, 4))
    assert odd.held_in is Memory.LOCAL


def test_rows_that_no_cluster_holds_are_shared_by_blocks_that_fill_the_chip() -> None:
    facts = ReductionFacts(True, 400_000, 64, 4, 4, True)
    assert not _gathered(facts)
    (plan,) = _gathered(replace(facts, columns=4_000_000, rows=3))
    assert 0.9 * 2 * TARGET.multiprocessors < 3 * plan.parts * 1.5
    assert plan.held_nbytes <= TARGET.shared_nbytes_per_block
    assert not _gathered(replace(facts, columns=4_000_001, vector=1))  # no vectors to copy


def test_few_columns_are_shared_by_blocks_that_fill_the_chip() -> None:
    (plan,) = _gathered(_facts(20000, 64, 4, 4))
    assert 1.9 * TARGET.multiprocessors < 2 * plan.parts <= 2 * TARGET.multiprocessors


def test_columns_are_shared_up_to_one_line_of_them_in_all_blocks() -> None:
    room = TARGET.multiprocessors * TARGET.shared_nbytes_of_one
    line = room // LINE_NBYTES

    def facts(size: int) -> PartitionFacts:
        made = PartitionFacts.of(
            fw.trace(lambda x: x + 1, fw.TensorSpec((size, 4096), "float32")).outputs[0], (0,)
        )
        assert made is not None
        return made

    assert might_hold(facts(line), 4, TARGET) and not might_hold(facts(line + 1), 4, TARGET)
    assert not _gathered(_facts(line + 1, 4096, 4, 4))


def test_what_all_blocks_wait_for_at_once_overlaps_with_nothing() -> None:
    array = MovedArray("x", 1 << 30, (float(1 << 30),), False)
    chip = 2 * TARGET.multiprocessors
    one = Work(chip, 512, 1, 0, (array,), 0, 0, 100 << 10, 0, 0, 1, 32, 100, 16)
    for blocks, wants in ((chip, 1.0), (10 * chip, 0.0)):
        alone = replace(one, blocks=blocks)
        waits = cost(replace(alone, gatherings=1.0), TARGET)
        added = waits.us - cost(alone, TARGET).us
        assert waits.gathers == (blocks > chip)
        assert abs(added - wants * TARGET.calibration.gather_us) < 0.5


def test_products_are_not_added_up_by_every_block() -> None:
    specs = [fw.TensorSpec((64, 128), "float16"), fw.TensorSpec((128, 64), "float16")]
    s = fw.Schedule(fw.trace(fw.matmul, *specs))
    with pytest.raises(fw.ScheduleError, match="every block of a product would add up the sums"):
        s.outputs[0].request_serial_grid_reduction("all")
