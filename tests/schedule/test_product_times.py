"""Predicted times of products beside those that an H200 took, and what follows from them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from bench import product_fit
from bench.measured_products import Measured, few_rows, large, measured_plans, suites, sweep
from bench.outcome import geometric_mean
from bench.product_fit import predicted

import fusewright as fw
from fusewright.calibration import PRODUCT_FIGURES
from fusewright.dtypes import bfloat16
from fusewright.fusion.ir import MatMul
from fusewright.schedule.heuristics.candidates import Candidate
from fusewright.schedule.heuristics.common import Params
from fusewright.schedule.heuristics.cost import cost
from fusewright.schedule.heuristics.matmul import MatmulScheduler, schedule_products
from fusewright.schedule.heuristics.product_plans import (
    ProductPlan,
    ProductSizes,
    in_order,
    menu_plans,
)
from fusewright.schedule.heuristics.product_steps import DepthStep, passed_nbytes, step_clocks
from fusewright.schedule.heuristics.product_suffix import PARTS, PLAIN
from fusewright.schedule.heuristics.product_times import (
    least_us,
    memory_nbytes,
    predicted_us,
    ragged_steps,
)
from fusewright.schedule.heuristics.work import work_of
from fusewright.target import target_of

TARGET = target_of("sm_90a")


def _error(m: Measured) -> float:
    return math.log(predicted(m) / m.us)


def test_one_formula_gives_the_times_of_all_measured_plans() -> None:
    rows = [*few_rows(), *large()]
    assert len(rows) > 80
    assert np.sqrt(np.mean([_error(m) ** 2 for m in rows])) < 0.08
    assert all(abs(_error(m)) < math.log(1.08) for m in large() if m.us > 100), [
        (m.name, round(math.exp(_error(m)), 2)) for m in large()
    ]
    assert np.sqrt(np.mean([_error(m) ** 2 for m in sweep()])) < 0.12


def test_the_plan_that_is_predicted_fastest_is_nearly_the_fastest() -> None:
    """On an H100, of a block for each tile and of slices that a second kernel sums."""
    cases: dict[str, list[Measured]] = {}
    for m in sweep():
        if m.plan.splits == 1:
            cases.setdefault(m.name.split()[0], []).append(m)
    assert len(cases) == 7

    def ranked(m: Measured) -> float:
        known = TARGET.calibration
        launch = known.stream_launch_us if m.slices > 1 else 0.0
        return predicted(m) * (known.cluster_margin if m.plan.cluster_size > 1 else 1.0) + launch

    for case, rows in cases.items():
        first, best = min(rows, key=ranked), min(rows, key=lambda m: m.us)
        assert first.us < 1.1 * best.us, (case, first.name, best.name)


def test_results_count_among_the_bytes_of_a_product() -> None:
    """64 products of 1024 x 1024 x 128 write four times what they read: 72 us on an H100, of which
    all but results would take 34. Of the plans of the suite none is off by a fifth."""
    rows = list(suites())
    assert len(rows) > 140
    small = [m for m in rows if m.name.startswith("batch 64x1024x1024x128 ")]
    assert small and all(abs(_error(m)) < math.log(1.1) for m in small)
    assert product_fit.error(rows) < 0.06
    assert max(abs(_error(m)) for m in rows) < math.log(1.2)
    sizes, plan = small[0].sizes, small[0].plan
    alone, whole = (predicted_us(sizes, plan, TARGET, s) for s in (PARTS, PLAIN))
    places, known = sizes.batch * sizes.rows * sizes.columns, TARGET.calibration
    written = 2 * known.write_weight * places / TARGET.memory_nbytes_per_us / known.read_share
    assert whole > written > alone


def test_of_plans_beside_each_other_the_first_is_nearly_the_fastest() -> None:
    found = product_fit.choices([m for rows in measured_plans().values() for m in rows])
    lost = {group: first.us / best.us for group, (first, best) in found.items()}
    assert len(lost) == 31
    assert geometric_mean(list(lost.values())) < 1.0125
    assert max(lost.values()) < 1.08


def test_plans_in_one_round_are_ordered_by_their_times() -> None:
    """512 x 512 x 4096 took 8.9 us on an H100 with 128 tiles of 64 x 32, 10.1 with 64 of 64 x 64;
    1024 x 1024 x 4096 16.9 us with a warpgroup for 64 x 128, 18.2 with two for 128 x 64."""
    for m, n, tile in ((512, 512, (64, 32)), (1024, 1024, (64, 128))):
        specs = fw.TensorSpec((m, 4096), "bfloat16"), fw.TensorSpec((n, 4096), "bfloat16")
        program = fw.compile(fw.trace(lambda x, w: fw.matmul(x, w.T), *specs), target=TARGET)
        (kernel,) = program.kernels
        assert kernel.heuristic is not None
        assert dict(kernel.heuristic.values)["tile"] == f"{tile[0]}x{tile[1]}x64"


@pytest.mark.parametrize("figure", PRODUCT_FIGURES)
def test_each_constant_is_near_its_best(figure: str) -> None:
    """A quarter more or less fits worse."""
    rows = [*few_rows(), *large(), *sweep()]
    own = [getattr(TARGET.calibration, f) for f in PRODUCT_FIGURES]
    i = PRODUCT_FIGURES.index(figure)
    for factor in (0.75, 1.25):
        moved = [*own[:i], own[i] * factor, *own[i + 1 :]]
        assert product_fit.loss(rows, moved) > product_fit.loss(rows, own)


def test_a_search_finds_the_least() -> None:
    found = product_fit.search(lambda x: (x[0] - 3) ** 2 + (x[1] - x[0]) ** 2, [1.0, 1.0])
    assert found == pytest.approx([3.0, 3.0], rel=0.01)


STEP = DepthStep(1024.0, 0.0, 384.0, 384.0, 0.0, 4, 2)


def test_what_limits_a_step() -> None:
    known = TARGET.calibration
    full = step_clocks(STEP, 1.0, TARGET)
    assert full.most == full.products == pytest.approx(1024 / known.product_share)
    straddled = step_clocks(replace(STEP, received=768.0, requested=768.0), 1.0, TARGET)
    assert straddled.most == straddled.boxes > 1.4 * full.most
    shared = step_clocks(replace(STEP, received=768.0, requested=512.0), 1.0, TARGET)
    assert shared.boxes < straddled.boxes  # others ask for the rest
    few = step_clocks(replace(STEP, received=768.0, requested=768.0), 0.25, TARGET)
    assert few.boxes == pytest.approx(known.box_line_clocks * 768)  # what one of them takes in
    short = step_clocks(replace(STEP, stages=2), 1.0, TARGET)
    assert short.most == short.ring > full.most
    alone = step_clocks(replace(STEP, stages=1), 1.0, TARGET)
    assert alone.most > full.products + full.boxes  # nothing happens beside anything else


def test_what_passes_shared_memory_beyond_128_bytes_a_clock_takes_power() -> None:
    """A tile of 128 x 256 reads and writes as many bytes as its instructions have clocks for, two
    of 128 x 128 more: they were 5 % slower for the same product (one H100, 2026-11-26)."""
    assert passed_nbytes(128, 256, 1, 128) == 128 * 1024
    assert passed_nbytes(128, 128, 1, 128) == 160 * 512
    assert passed_nbytes(128, 512, 1, 128) == (640 + 2 * (2 * 64 + 512)) * 128
    enough = replace(STEP, shared_nbytes=128 * 1024)
    crowded = replace(STEP, shared_nbytes=160 * 1024)
    full, half = (step_clocks(crowded, busy, TARGET).products for busy in (1.0, 0.5))
    plain = step_clocks(STEP, 1.0, TARGET).products
    assert step_clocks(enough, 1.0, TARGET).products == plain
    assert full - plain == pytest.approx(2 * (half - plain)) and half > plain
    sizes = ProductSizes(1, 1024, 1024, 65536)
    halves = ProductPlan(128, 128, 64, 2, 6, splits=2)
    quarters = ProductPlan(128, 256, 64, 2, 4, splits=4)
    ratio = predicted_us(sizes, halves, TARGET) / predicted_us(sizes, quarters, TARGET)
    assert ratio == pytest.approx(217.5 / 207.6, abs=0.02)


def test_rows_that_begin_inside_of_lines_cost_more() -> None:
    whole = ProductSizes(1, 4096, 4096, 4104)
    apart = replace(whole, lines=(1.875, 1.875))
    plan = ProductPlan(128, 256, 64, 2, 4)
    assert predicted_us(apart, plan, TARGET) > 1.3 * predicted_us(whole, plan, TARGET)
    assert least_us(apart, TARGET) < 1.15 * least_us(whole, TARGET)  # wider tiles in clusters


def test_groups_of_few_rows_read_memory_more_often() -> None:
    """43 rows of tiles divide into no groups but of one row, or of all."""
    sizes = ProductSizes(1, 8192, 16384, 4096)
    few, many = (
        in_order(ProductPlan(*tile, 4), sizes, TARGET)
        for tile in ((192, 192, 64, 3), (128, 256, 64, 2))
    )
    assert (few.group, many.group) == (1, 16)
    assert memory_nbytes(sizes, few, TARGET) > 3 * memory_nbytes(sizes, many, TARGET)
    small = ProductSizes(1, 1024, 1024, 1024)
    assert memory_nbytes(small, in_order(few, small, TARGET), TARGET) == small.nbytes


def test_rings_of_short_depths_go_on_from_tile_to_tile() -> None:
    """64 products of two steps each: 2,048 tiles, 16 in turn for a block."""
    sizes = ProductSizes(64, 1024, 1024, 128)
    wide = next(p for p in menu_plans(sizes, TARGET) if (p.rows, p.columns) == (128, 256))
    assert wide.blocks == 132 and wide.stages == 4
    waiting = predicted_us(sizes, replace(wide, stages=2), TARGET, PARTS)
    assert predicted_us(sizes, wide, TARGET, PARTS) < 0.7 * waiting
    few = ProductSizes(1, 1024, 1024, 128)
    assert all(p.stages <= 2 for p in menu_plans(few, TARGET) if not p.blocks)


@pytest.mark.parametrize("columns", [33, 48, 65, 77])
def test_a_tile_has_all_columns_of_a_result_of_few(columns: int) -> None:
    """Of 65 columns those of the menu would copy and multiply 63 that do not exist."""
    whole = -(-columns // 16) * 16
    sizes = ProductSizes(1, 14336, columns, 4096, 2)
    plans = [*menu_plans(sizes, TARGET)]
    assert min(plans, key=lambda p: predicted_us(sizes, p, TARGET)).columns == whole
    across = [*menu_plans(replace(sizes, across=(False, True)), TARGET)]
    assert not any(p.columns == whole for p in across)  # they are whole panels, there
    plan = next(p for p in plans if (p.rows, p.columns, p.cluster) == (128, whole, (1, 1)))
    shapes = (300, 136), (columns, 136)
    fusion = fw.trace(
        lambda w, x: fw.nn.gelu(fw.matmul(w, fw.permute_dims(x, (1, 0)))),
        *(fw.TensorSpec(s, "bfloat16") for s in shapes),
    )
    kernel = _by_hand(fusion, replace(plan, stages=2))
    rng = np.random.default_rng(columns)
    arrays = [np.asarray(rng.standard_normal(s), bfloat16.numpy) for s in shapes]
    got = kernel.simulate(*arrays)
    assert not got.races
    (want,) = fw.evaluate(fusion, *arrays)
    np.testing.assert_allclose(
        got.outputs[0].astype(float), np.asarray(want, float), rtol=2e-2, atol=2e-2
    )
    assert kernel.resources().spill_stores == 0


@pytest.mark.parametrize("stages", [3, 4])
def test_a_ring_longer_than_a_depth(stages: int) -> None:
    shapes = (3, 128, 128), (3, 128, 128)
    fusion = fw.trace(fw.matmul, *(fw.TensorSpec(s, "float16") for s in shapes))
    kernel = _by_hand(fusion, ProductPlan(64, 64, 64, 1, stages, 64, group=2, blocks=4))
    rng = np.random.default_rng(stages)
    arrays = [rng.standard_normal(s).astype(np.float16) for s in shapes]
    got = kernel.simulate(*arrays)
    assert not got.races
    (want,) = fw.evaluate(fusion, *arrays)
    np.testing.assert_allclose(
        got.outputs[0].astype(float), np.asarray(want, float), rtol=1e-2, atol=1e-2
    )
    report = fw.verify(kernel, *arrays)
    assert not report.missing and not report.redundant


@pytest.mark.parametrize("depth", [64, 40])
@pytest.mark.parametrize(("stages", "blocks"), [(2, 5), (4, 5), (3, 4)])
def test_a_ring_goes_on_between_tiles_of_one_step(stages: int, blocks: int, depth: int) -> None:
    """12 tiles, which five blocks have in three rounds, two tiles in the last: the warps that copy
    are ahead by whole tiles."""
    shapes = (3, 128, depth), (3, 128, depth)
    fusion = fw.trace(
        lambda x, w: fw.nn.relu(fw.matmul(x, fw.permute_dims(w, (0, 2, 1)))),
        *(fw.TensorSpec(s, "bfloat16") for s in shapes),
    )
    kernel = _by_hand(fusion, ProductPlan(64, 64, 64, 1, stages, 64, group=2, blocks=blocks))
    full = next(b for b in kernel.smem if b.name.startswith("ring_full"))
    assert full.nbytes == 8 * stages
    rng = np.random.default_rng(stages)
    arrays = [np.asarray(rng.standard_normal(s), bfloat16.numpy) for s in shapes]
    for seed in range(2):
        got = kernel.simulate(*arrays, seed=seed)
        assert not got.races
        (want,) = fw.evaluate(fusion, *arrays)
        np.testing.assert_allclose(
            got.outputs[0].astype(float), np.asarray(want, float), rtol=2e-2, atol=2e-2
        )
    report = fw.verify(kernel, *arrays)
    assert not report.missing and not report.redundant
    assert kernel.resources().spill_stores == 0


def test_the_two_models_agree() -> None:
    """The ranking of tiles and the predicted time of a kernel, which also knows its results."""
    for m, n, k in ((4096, 4096, 4096), (4097, 4104, 4104), (256, 4096, 4096), (16, 4096, 4096)):
        fusion = fw.trace(
            lambda x, w: fw.matmul(x, w.T),
            fw.TensorSpec((m, k), "bfloat16"),
            fw.TensorSpec((n, k), "bfloat16"),
        )
        lines = 2 - math.gcd(2 * k, 128) / 128
        sizes = ProductSizes(1, m, n, k, lines=(lines, lines))
        for plan in list(menu_plans(sizes, TARGET))[:6]:
            s = fw.Schedule(fusion)
            schedule_products(s, [t for t in s.flow.stages if isinstance(t.op, MatMul)], plan)
            own = cost(work_of(s.flow, Params("matmul", (), 1)), TARGET).us
            assert own == pytest.approx(predicted_us(sizes, plan, TARGET), rel=0.1), plan


# --- widths between those of the menu -------------------------------------------------------------


def _widths(sizes: ProductSizes) -> set[int]:
    return {p.columns for p in menu_plans(sizes, TARGET) if p.rows == 128}


def test_a_width_that_fills_the_last_round() -> None:
    """Of 4100 x 4100 tiles of 128 x 208 make five rounds, of 5120 x 5120 those of 128 x 224 seven;
    of 4096 x 4096 tiles of 128 x 256 make four."""
    menu = _widths(ProductSizes(1, 4096, 4096, 4096))
    assert _widths(ProductSizes(1, 4100, 4100, 4100)) - menu == {208}
    assert _widths(ProductSizes(1, 5120, 5120, 5120)) - menu == {224}
    sizes = ProductSizes(1, 5120, 5120, 5120)
    first = min(menu_plans(sizes, TARGET), key=lambda p: predicted_us(sizes, p, TARGET))
    assert (first.columns, first.staged, first.stages) == (224, 112, 4)


def test_a_column_more_than_whole_tiles_widens_them() -> None:
    """Of 14336 x 257 tiles of 128 x 272 make one round, others two."""
    sizes = ProductSizes(1, 14336, 257, 4096)
    plans = [p for p in menu_plans(sizes, TARGET) if p.cluster_size == 1]
    (wide,) = (p for p in plans if p.columns > 256)
    assert (wide.columns, wide.stages, wide.staged) == (272, 4, 16)
    others = (p for p in plans if p is not wide)
    assert predicted_us(sizes, wide, TARGET) < min(predicted_us(sizes, p, TARGET) for p in others)
    assert all(p.columns <= 256 for p in menu_plans(replace(sizes, across=(False, True)), TARGET))


def test_an_operand_that_lies_across_has_tiles_of_whole_panels() -> None:
    sizes = ProductSizes(1, 5120, 5120, 5120)
    assert _widths(replace(sizes, across=(False, True))) == _widths(
        ProductSizes(1, 4096, 4096, 4096)
    )
    assert 224 in _widths(replace(sizes, across=(True, False)))
    operands = [fw.TensorSpec((5120, 5120), "bfloat16")] * 2

    def first(fn: Callable[..., Any]) -> ProductPlan:
        fusion = fw.trace(fn, *operands)
        listed = MatmulScheduler(fw.Schedule(fusion).flow, TARGET).candidates()
        return next(c.plan for c in listed if isinstance(c, Candidate))

    assert first(lambda x, w: fw.matmul(x, w.T)).columns == 224
    assert first(lambda x, w: fw.matmul(x.T, w.T)).columns == 224
    assert first(fw.matmul).columns % 64 == 0


def test_of_sums_that_leave_the_accumulators_wider_tiles_come_first() -> None:
    """Tiles of 128 columns are predicted 0.99 times as long, and took 1.12 times."""
    operands = [fw.TensorSpec((n, 8192), "float8_e4m3") for n in (8193, 8192)]

    def product(x: Any, w: Any) -> Any:
        sums = fw.matmul(fw.astype(x, "float32"), fw.astype(w, "float32").T)
        return fw.astype(sums, "bfloat16")

    (kernel,) = fw.compile(fw.trace(product, *operands)).kernels
    assert kernel.heuristic is not None
    assert dict(kernel.heuristic.values)["tile"] == "128x192x128"


@pytest.mark.parametrize(("columns", "staged"), [(224, 112), (208, 208), (208, 0), (176, 176)])
@pytest.mark.parametrize("shape", [(200, 424, 328), (130, 240, 1032)])
def test_tiles_of_other_widths(columns: int, staged: int, shape: tuple[int, int, int]) -> None:
    m, n, k = shape
    fusion = fw.trace(
        lambda x, w: fw.nn.relu(fw.matmul(x, w.T)),
        fw.TensorSpec((m, k), "bfloat16"),
        fw.TensorSpec((n, k), "bfloat16"),
    )
    kernel = _by_hand(fusion, ProductPlan(128, columns, 64, 2, 3, staged, blocks=2))
    _checked(kernel, fusion)
    found = kernel.resources()
    assert found.spill_stores == found.stack_nbytes == 0


# --- three warpgroups -----------------------------------------------------------------------------


def _checked(kernel: fw.Kernel, fusion: fw.Fusion) -> list[np.ndarray]:
    """Random operands, of which the kernel and the oracle make the same."""
    rng = np.random.default_rng(fusion.inputs[0].shape[1].value)
    arrays = [
        rng.standard_normal([e.value for e in t.shape]).astype(t.dtype.numpy) for t in fusion.inputs
    ]
    got = kernel.simulate(*arrays)
    assert not got.races
    (want,) = fw.evaluate(fusion, *arrays)
    np.testing.assert_allclose(
        np.asarray(got.outputs[0], np.float64), np.asarray(want, np.float64), rtol=2e-2, atol=2e-2
    )
    return arrays


def _by_hand(fusion: fw.Fusion, plan: ProductPlan) -> fw.Kernel:
    s = fw.Schedule(fusion)
    schedule_products(s, [t for t in s.flow.stages if isinstance(t.op, MatMul)], plan)
    return s.lower(TARGET)


@pytest.mark.parametrize("cluster", [(1, 1), (2, 1), (1, 2)])
@pytest.mark.parametrize("shape", [(200, 392, 264), (385, 200, 136)])
def test_tiles_of_three_warpgroups(cluster: tuple[int, int], shape: tuple[int, int, int]) -> None:
    """Odd rows, edges and depths, rows that begin inside of lines."""
    m, n, k = shape
    fusion = fw.trace(
        lambda x, w: fw.matmul(x, w.T) + 1,
        fw.TensorSpec((m, k), "bfloat16"),
        fw.TensorSpec((n, k), "bfloat16"),
    )
    plan = in_order(
        ProductPlan(192, 192, 64, 3, 2, 64, cluster=cluster), ProductSizes(1, m, n, k), TARGET
    )
    kernel = _by_hand(fusion, plan)
    x, w = _checked(kernel, fusion)
    if shape[2] > 2 * plan.depth * plan.stages:  # the ring goes round
        report = fw.verify(kernel, x, w)
        assert not report.missing and not report.redundant


def test_three_warpgroups_only_convert_their_sums() -> None:
    """With guarded stores, or a function of the sums, they spill."""

    def first(fn: Callable[..., Any], *shapes: tuple[int, ...]) -> ProductPlan:
        fusion = fw.trace(fn, *(fw.TensorSpec(s, "bfloat16") for s in shapes))
        listed = MatmulScheduler(fw.Schedule(fusion).flow, TARGET).candidates()
        return next(c.plan for c in listed if isinstance(c, Candidate))

    square = (3072, 3072), (3072, 3072)
    assert first(lambda x, w: fw.matmul(x, w.T), *square).warpgroups == 3
    assert first(lambda x, w: fw.nn.gelu(fw.matmul(x, w.T)), *square).warpgroups == 2
    stored = (3072, 3072), (3072, 3136)  # rows of results of 6,136 bytes: no box takes them
    assert first(lambda x, w: fw.matmul(x, w[:, :3068]), *stored).warpgroups == 2


def test_no_three_warpgroups_in_clusters() -> None:
    plans = [p for p in menu_plans(ProductSizes(1, 4096, 4096, 4104), TARGET) if p.cluster_size > 1]
    assert plans and max(p.warpgroups for p in plans) == 2


def test_tiles_beyond_an_edge_take_longer() -> None:
    """A row of tiles with one row of the operand: 127 rows of its boxes are filled with zeros. One
    more row of 128 costs a row of tiles, and their filling; columns that end soon do not."""
    plan = ProductPlan(128, 128, 64, 2, 6)
    us = {m: predicted_us(ProductSizes(1, m, 14336, 4096), plan, TARGET) for m in (256, 257, 384)}
    assert us[256] < us[384] < 0.9 * us[257]
    wide = predicted_us(ProductSizes(1, 14336, 257, 4096), replace(plan, columns=144), TARGET)
    assert wide < us[384]
    ((tiles, step),) = ragged_steps(ProductSizes(1, 257, 14336, 4096), plan)
    assert (tiles, step.beyond) == (112, 127)


def test_registers_of_warps_that_multiply_and_that_copy() -> None:
    pairs = {w: ProductPlan(64 * w, 192, 64, w, 4).registers for w in (2, 3)}
    assert pairs == {2: (40, 232), 3: (32, 160)}
    assert ProductPlan(128, 128, 64, 2, 4).registers is None
    for warpgroups, (copying, multiplying) in pairs.items():
        assert 128 * (copying + warpgroups * multiplying) <= TARGET.registers_per_sm


def test_results_leave_in_parts_only_where_the_ring_would_be_short_otherwise() -> None:
    """Of 8 bits four tiles fit beside whole results; of 192 x 192 in 16 bits only three."""
    eight = {
        (p.rows, p.columns): p for p in menu_plans(ProductSizes(1, 8192, 8192, 8192, 1), TARGET)
    }
    wide = eight[128, 192]
    assert (wide.staged, wide.stages) == (192, 4)
    sixteen = {
        (p.rows, p.columns): p for p in menu_plans(ProductSizes(1, 8192, 8192, 8192), TARGET)
    }
    square = sixteen[192, 192]
    assert (square.staged, square.stages) == (64, 4)


def test_rows_inside_of_lines_run_in_clusters() -> None:
    """Which measure 207 us for 274 with tiles of 128 x 256 (bench/product-lines-2026-11-26)."""
    specs = [fw.TensorSpec((4096, 4104), "bfloat16")] * 2
    fusion = fw.trace(lambda x, w: fw.matmul(x, w.T), *specs)
    listed = MatmulScheduler(fw.Schedule(fusion).flow, TARGET).candidates()
    first = next(c.plan for c in listed if isinstance(c, Candidate))
    assert (first.rows, first.columns, first.cluster) == (128, 256, (2, 1))


def test_lines_of_rows_that_touch_two_take_as_long_when_others_rest() -> None:
    whole = replace(STEP, requested=700.0, received=384.0)
    crossing = replace(whole, crossing=700.0)
    assert step_clocks(whole, 1.0, TARGET) == step_clocks(crossing, 1.0, TARGET)
    assert step_clocks(whole, 0.5, TARGET).boxes < step_clocks(crossing, 0.5, TARGET).boxes
    assert step_clocks(crossing, 0.5, TARGET) == step_clocks(crossing, 1.0, TARGET)
