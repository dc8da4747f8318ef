"""Products by hand: the public calls make what the scheduler makes, and refuse with the numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fusewright as fw
from fusewright.core.expr import variables
from fusewright.core.substitution import evaluate
from fusewright.errors import ScheduleError
from fusewright.fusion.ir import MatMul
from fusewright.kir.ir import BoxLoad
from fusewright.kir.traverse import walk_statements
from fusewright.schedule.heuristics.candidates import Candidate
from fusewright.schedule.heuristics.matmul import MatmulScheduler, schedule_products
from fusewright.schedule.heuristics.product_plans import ProductPlan
from fusewright.schedule.schedule import ScheduledTensor
from fusewright.target import target_of

M, N, K = 384, 512, 256


def _fusion(m: int = M, n: int = N, k: int = K, dtype: str = "bfloat16") -> fw.Fusion:
    specs = (fw.TensorSpec((m, k), dtype), fw.TensorSpec((k, n), dtype))
    return fw.trace(lambda x, w: fw.name(fw.matmul(fw.name(x, "x"), fw.name(w, "w")), "y"), *specs)


def _tiled(fusion: fw.Fusion, rows: int, columns: int, depth: int = 64) -> ScheduledTensor:
    """The product in registers, with a tile as its last three loops."""
    y = fw.Schedule(fusion)["y"].cache_before()
    y.split(0, rows).split(2, columns).split(4, depth)
    return y.reorder([0, 2, 4, 1, 3, 5])


def _by_hand() -> fw.Schedule:
    """128 x 128 tiles on five blocks, three stages, results by boxes of 64 columns."""
    s = fw.Schedule(_fusion())
    y = s.outputs[0]
    product = y.cache_before()
    x, w = s["x"].cache_after(by="bulk"), s["w"].cache_after(by="bulk")
    c = y.cache_before(by="stmatrix")
    product.split(0, 128).split(2, 128).split(4, 64)
    product.reorder([0, 2, 4, 1, 3, 5]).split(0, 1).reorder({1: 2}).merge(0).merge(0)
    product.split(0, 5).parallelize(1, fw.BIDx)
    s.transform_like(product, [x, w, y])
    product.mma(warpgroups=2)
    for t in (x, w):
        t.parallelize(-1, fw.Bulk).parallelize(-2, fw.Bulk)
        t.circular_buffer(3, warp_specialized=True)
        t.inline_at(product, 3)
    s.transform_like(product, [c])
    y.split(-1, 64).reorder({-2: 2}).parallelize(2, fw.Unroll)
    y.parallelize(-1, fw.Bulk).parallelize(-2, fw.Bulk)
    c.split(-3, 8).reorder({-4: 2}).split(-3, 2)
    for i in (-3, -2, -1):
        c.parallelize(i, fw.Mma)
    s.inline_most([c])
    product.inline_at(c, 2)
    return s


def test_public_calls_make_what_the_scheduler_makes() -> None:
    s = fw.Schedule(_fusion())
    scheduler = MatmulScheduler(s.flow, target_of("sm_90a"))
    plan = ProductPlan(128, 128, 64, warpgroups=2, stages=3, staged=64, blocks=5)
    schedule_products(s, scheduler._products, plan)
    assert str(s.lower().ir) == str(_by_hand().lower().ir)


def test_the_kernel_by_hand_is_right() -> None:
    s = _by_hand()
    rng = np.random.default_rng(0)
    x, w = (rng.normal(size=n).astype(fw.bfloat16.numpy) for n in ((M, K), (K, N)))
    result = s.lower().simulate(x, w)
    assert result.races == []
    wanted = x.astype(np.float64) @ w.astype(np.float64)
    assert np.abs(result.outputs[0].astype(np.float64) - wanted).max() <= 2**-7 * abs(wanted).max()


PLANS = (
    ProductPlan(128, 256, 64, 2, 3, 128, group=3, blocks=4),
    ProductPlan(256, 128, 64, 2, 2, 64, blocks=2),
    ProductPlan(64, 64, 64, 1, 2, 64, group=6, blocks=4),
    ProductPlan(64, 64, 64, 1, 2, 64, group=3, blocks=4, serpentine=True),
    ProductPlan(64, 8, 64, 1, 1),
    ProductPlan(128, 64, 32, 2, 6, 0),
    ProductPlan(128, 272, 64, 2, 3, 272, blocks=4),
    ProductPlan(128, 288, 64, 2, 2, 48),
    ProductPlan(256, 144, 64, 2, 2, 48, blocks=2),
)


@pytest.mark.parametrize("plan", PLANS, ids=lambda p: str(p.params))
def test_every_rung_is_right(plan: ProductPlan) -> None:
    fusion = fw.trace(
        lambda x, w: fw.matmul(x, w.T),
        fw.TensorSpec((M, 200), "bfloat16"),
        fw.TensorSpec((392, 200), "bfloat16"),
    )
    s = fw.Schedule(fusion)
    scheduler = MatmulScheduler(s.flow, target_of("sm_90a"))
    schedule_products(s, scheduler._products, plan)
    rng = np.random.default_rng(1)
    x, w = (rng.normal(size=n).astype(fw.bfloat16.numpy) for n in ((M, 200), (392, 200)))
    result = s.lower().simulate(x, w)
    assert result.races == []
    wanted = x.astype(np.float64) @ w.astype(np.float64).T
    assert np.abs(result.outputs[0].astype(np.float64) - wanted).max() <= 2**-7 * abs(wanted).max()


# --- the order of tiles ---------------------------------------------------------------------------


def _tiles(rows: int, group: int, *, serpentine: bool) -> list[tuple[int, int]]:
    """Row and column of the tile of each block that has one, in order."""
    fusion = fw.trace(
        lambda x, w: fw.matmul(x, w.T),
        fw.TensorSpec((64 * rows, 128), "bfloat16"),
        fw.TensorSpec((5 * 64, 128), "bfloat16"),
    )
    s = fw.Schedule(fusion)
    plan = ProductPlan(64, 64, 64, 1, 2, 64, group=group, serpentine=serpentine)
    schedule_products(s, MatmulScheduler(s.flow, target_of("sm_90a"))._products, plan)
    kernel = s.lower().ir
    x, w = (b for b in walk_statements(kernel) if isinstance(b, BoxLoad))
    bx = kernel.grid[0]
    out: list[tuple[int, int]] = []
    for block in range(evaluate(bx.extent, {})):
        at = {v: 0 for e in (*x.coordinates, *w.coordinates) for v in variables(e)}
        row, column = (evaluate(b.coordinates[1], at | {bx.var: block}) // 64 for b in (x, w))
        if row < rows:
            out.append((row, column))
    return out


@pytest.mark.parametrize(("rows", "group"), [(4, 2), (6, 3), (5, 3), (7, 2), (3, 1)])
def test_every_tile_is_visited_once_and_groups_alternate(rows: int, group: int) -> None:
    """Ragged groups (5 rows in threes, 7 in twos) too: blocks without a row do nothing."""
    tiles = _tiles(rows, group, serpentine=True)
    assert sorted(tiles) == [(r, c) for r in range(rows) for c in range(5)]
    assert sorted(tiles) == sorted(_tiles(rows, group, serpentine=False))
    groups = [row // group for row, _ in tiles]
    assert groups == sorted(groups)
    for number in range(-(-rows // group)):
        columns = [c for row, c in tiles if row // group == number]
        assert columns == sorted(columns, reverse=number % 2 == 1)


@pytest.mark.parametrize(
    ("sizes", "turns"),
    [
        ((4096, 4096, 4096), 1),
        ((4096, 4096, 512), 0),
        ((1024, 1024, 65536), 0),
        ((8192, 256, 8192), 0),
    ],
    ids=["larger than the cache", "in the cache", "one wave", "one column of tiles"],
)
def test_groups_alternate_where_operands_leave_the_cache(
    sizes: tuple[int, int, int], turns: int
) -> None:
    m, n, k = sizes
    specs = [fw.TensorSpec((m, k), "bfloat16"), fw.TensorSpec((n, k), "bfloat16")]
    flow = fw.Schedule(fw.trace(lambda x, w: fw.matmul(x, w.T), *specs)).flow
    listed = MatmulScheduler(flow, target_of("sm_90a")).candidates()
    found = [dict(c.params.values) for c in listed if isinstance(c, Candidate)]
    assert next(p for p in found if p["tile"] == "128x256x64")["serpentine"] == turns


def test_a_ring_refuses_tiles_that_are_left_out_between_others() -> None:
    """A ring counts tiles; the last group of 4 has 2 rows, so that blocks skip tiles and go on."""
    s = fw.Schedule(_fusion())
    plan = ProductPlan(64, 128, 64, 1, 3, 64, group=4, blocks=5)
    schedule_products(s, MatmulScheduler(s.flow, target_of("sm_90a"))._products, plan)
    with pytest.raises(ScheduleError, match="may leave out tiles between others along i0, and a"):
        s.lower()


# --- persistent grids by launch(max_sms=) ---------------------------------------------------------


def _with_grid(blocks: int | None, walk: int | None = None) -> fw.Schedule:
    """128 x 128 tiles, a block each, or by hand `walk` blocks; then `launch(max_sms=blocks)`."""
    s = fw.Schedule(_fusion())
    plan = ProductPlan(128, 128, 64, warpgroups=2, stages=3, staged=64, blocks=walk or 0)
    schedule_products(s, MatmulScheduler(s.flow, target_of("sm_90a"))._products, plan)
    return s if blocks is None else s.launch(max_sms=blocks)


def test_max_sms_makes_the_persistent_grid() -> None:
    kernel = _with_grid(5).lower()
    assert str(kernel.ir) == str(_with_grid(None, walk=5).lower().ir)
    assert str(kernel.launch.grid[0]) == "5"


def test_max_sms_above_the_tiles_changes_nothing() -> None:
    assert str(_with_grid(12).lower().ir) == str(_with_grid(None).lower().ir)
    assert str(_with_grid(11).lower().ir) != str(_with_grid(None).lower().ir)


def test_a_grid_of_one_block_is_right() -> None:
    rng = np.random.default_rng(2)
    x, w = (rng.normal(size=n).astype(fw.bfloat16.numpy) for n in ((M, K), (K, N)))
    result = _with_grid(1).lower().simulate(x, w)
    assert result.races == []
    wanted = x.astype(np.float64) @ w.astype(np.float64)
    assert np.abs(result.outputs[0].astype(np.float64) - wanted).max() <= 2**-7 * abs(wanted).max()


def test_max_sms_is_refused_where_no_block_walks() -> None:
    s = fw.Schedule(fw.trace(fw.exp, fw.TensorSpec((64, 64), "float32")))
    with pytest.raises(fw.UnsupportedError, match="only blocks of products"):
        s.launch(max_sms=8)


def test_max_sms_is_refused_twice() -> None:
    with pytest.raises(fw.ScheduleError, match="the 5 blocks of y_c walk over tiles already"):
        _with_grid(3, walk=5)


def test_max_sms_comes_behind_the_bindings() -> None:
    s = fw.Schedule(_fusion())
    y = s["y"].cache_before()
    y.split(0, 128).split(2, 128).split(4, 64).reorder([0, 2, 4, 1, 3, 5]).mma()
    with pytest.raises(fw.ScheduleError, match=r"0 loops of y.* are bound to blocks; merge"):
        s.launch(max_sms=8)
    y.parallelize(0, fw.BIDx)
    with pytest.raises(fw.ScheduleError, match=r"y lacks the loop of y_.* over tiles"):
        s.launch(max_sms=2)


# --- what is refused ------------------------------------------------------------------------------


def test_only_products_have_instructions() -> None:
    s = fw.Schedule(fw.trace(lambda x: fw.exp(x), fw.TensorSpec((64, 64), "bfloat16")))
    with pytest.raises(fw.ScheduleError, match="it is no product"):
        s.outputs[0].mma()


def test_results_are_in_registers_first() -> None:
    with pytest.raises(fw.ScheduleError, match=r"call cache_before\(\)"):
        fw.Schedule(_fusion())["y"].mma()


def test_a_product_without_instructions_is_refused() -> None:
    s = fw.Schedule(_fusion())
    with pytest.raises(fw.ScheduleError, match=r"^y: no instructions compute this product; call"):
        s.lower()


@pytest.mark.parametrize(
    ("tile", "warpgroups", "why"),
    [
        ((96, 128, 64), None, "96 rows are no multiple of 64 for each of 1 warpgroups"),
        ((128, 128, 64), 3, "128 rows are no multiple of 64 for each of 3 warpgroups"),
        ((64, 264, 64), None, "264 columns are no multiple of 16, 8 for each instruction"),
        ((64, 12, 64), None, "12 columns are no multiple of 8"),
        ((64, 64, 24), None, "a depth of 24 is no multiple of 16"),
    ],
)
def test_tiles_without_an_instruction(
    tile: tuple[int, int, int], warpgroups: int | None, why: str
) -> None:
    with pytest.raises(fw.ScheduleError, match=why):
        _tiled(_fusion(), *tile).mma(warpgroups)


def test_the_last_three_loops_are_the_tile() -> None:
    y = fw.Schedule(_fusion())["y"].cache_before()
    y.split(0, 128)
    with pytest.raises(fw.ScheduleError, match="its last three loops"):
        y.reorder([3, 0, 1, 2]).mma()


def test_loops_of_an_instruction_stay() -> None:
    y = _tiled(_fusion(), 128, 128).mma()
    with pytest.raises(fw.ScheduleError, match="inside of a matrix instruction"):
        y.split(-1, 2)
    with pytest.raises(fw.ScheduleError, match="call mma"):
        fw.Schedule(_fusion())["y"].parallelize(0, fw.Mma)


def test_boxes_are_copied_by_the_copy_engine() -> None:
    with pytest.raises(fw.ScheduleError, match="only the copy engine copies boxes"):
        fw.Schedule(_fusion())["x"].cache_after().parallelize(0, fw.Bulk)


def test_a_box_has_rows_and_columns() -> None:
    x = fw.Schedule(_fusion())["x"].cache_after(by="bulk").split(0, 64).split(2, 64)
    x.parallelize(1, fw.Bulk).parallelize(3, fw.Bulk)
    with pytest.raises(fw.ScheduleError, match="loops 1 and 3 are the rows and columns"):
        x.parallelize(2, fw.Bulk)


@pytest.mark.parametrize("registers", [(40, 233), (16, 232), (40, 264)])
def test_registers_of_warpgroups(registers: tuple[int, int]) -> None:
    x = fw.Schedule(_fusion())["x"].cache_after(by="bulk")
    with pytest.raises(fw.ScheduleError, match="two multiples of 8 from 24 to 256"):
        x.circular_buffer(3, warp_specialized=True, registers=registers)
    with pytest.raises(fw.ScheduleError, match="give warp_specialized=True"):
        x.circular_buffer(3, registers=(40, 232))


@pytest.mark.parametrize("registers", [5, "ab", (40.0, 232), (None, 232), {40: 1, 232: 2}])
def test_registers_are_two_integers(registers: Any) -> None:
    x = fw.Schedule(_fusion())["x"].cache_after(by="bulk")
    with pytest.raises(fw.ScheduleError, match="it must be a tuple of two integers, or None"):
        x.circular_buffer(3, warp_specialized=True, registers=registers)


def test_only_the_copy_engine_has_warps_of_its_own() -> None:
    x = fw.Schedule(_fusion())["x"].cache_after(by="cp_async")
    with pytest.raises(fw.ScheduleError, match="leave warp_specialized out"):
        x.circular_buffer(3, warp_specialized=True)


def test_readers_of_a_copy_read_what_is_copied() -> None:
    s = fw.Schedule(_fusion())
    with pytest.raises(fw.ScheduleError, match="w does not read it"):
        s["x"].cache_after(readers=[s["w"]])


def test_matrices_are_stored_for_outputs() -> None:
    with pytest.raises(fw.ScheduleError, match="an output copies from registers"):
        fw.Schedule(_fusion())["y"].cache_before(by="stmatrix")


@pytest.mark.parametrize("serpentine", [False, True])
@pytest.mark.parametrize("blocks", [0, 4])
def test_groups_of_more_rows_than_there_are_store_once(blocks: int, serpentine: bool) -> None:
    """One row of tiles in groups of two: blocks of the second row have no tile."""
    plan = ProductPlan(64, 64, 64, 1, 2, 64, group=2, blocks=blocks, serpentine=serpentine)
    operands = fw.TensorSpec((64, 128), "float16"), fw.TensorSpec((128, 192), "float16")
    fusion = fw.trace(fw.matmul, *operands)
    s = fw.Schedule(fusion)
    schedule_products(s, [t for t in s.flow.stages if isinstance(t.op, MatMul)], plan)
    kernel = s.lower("sm_90a")
    rng = np.random.default_rng(blocks)
    arrays = [rng.standard_normal(t).astype(np.float16) for t in ((64, 128), (128, 192))]
    got = kernel.simulate(*arrays)
    assert got.races == []
    np.testing.assert_allclose(
        got.outputs[0].astype(float),
        np.asarray(fw.evaluate(fusion, *arrays)[0], float),
        rtol=1e-2,
        atol=1e-2,
    )
    report = fw.verify(kernel, *arrays)
    assert not report.missing and not report.redundant


def test_tiles_that_memory_does_not_hold_are_refused() -> None:
    """At the limit: four stages of 48 KB and a staged half of the result fit, five do not."""
    operands = fw.TensorSpec((512, 512), "bfloat16"), fw.TensorSpec((512, 512), "bfloat16")
    for stages in (4, 5):
        s = fw.Schedule(fw.trace(fw.matmul, *operands))
        products = [t for t in s.flow.stages if isinstance(t.op, MatMul)]
        schedule_products(s, products, ProductPlan(128, 256, 64, 2, stages, 128))
        if stages == 4:
            assert s.lower("sm_90a").syncs
            continue
        with pytest.raises(
            fw.ScheduleError, match=r"needs \d+ bytes .* has 232448; use smaller tiles or fewer"
        ):
            s.lower("sm_90a")
