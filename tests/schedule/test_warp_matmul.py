"""Products on the instructions of single warps: every layout, ragged sizes, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import fusewright as fw
from fusewright.core.expr import variables
from fusewright.core.substitution import evaluate
from fusewright.kir.ir import CpAsync, LdMatrix, WarpMma
from fusewright.kir.traverse import walk_statements
from fusewright.schedule.edits import set_allocation
from fusewright.schedule.heuristics import candidates_of
from fusewright.schedule.heuristics.candidates import Candidate, Refused
from fusewright.schedule.heuristics.product_plans import ProductSizes
from fusewright.schedule.heuristics.warp_matmul import (
    WarpMatmulScheduler,
    schedule_warp_products,
)
from fusewright.schedule.heuristics.warp_plans import WarpPlan, ranked, warp_plans, warp_us
from fusewright.schedule.schedule import ScheduledTensor
from fusewright.sim.verify import weakenings_of
from fusewright.target import target_of
from fusewright.verify import case_of

SMALL = WarpPlan(64, 64, 32, 2, 2, 3)
TARGETS = ("sm_80", "sm_86", "sm_89", "sm_90", "sm_90a", "sm_120")


def _fusion(
    layout: str, m: int, n: int, k: int, *, dtype: str = "bfloat16", batch: tuple[int, ...] = ()
) -> fw.Fusion:
    """`layout` as in `bench.products`: T where the first operand is contiguous along the depth, and
    where the second one is contiguous along its columns."""
    first = (*batch, m, k) if layout[0] == "T" else (*batch, k, m)
    second = (*batch, n, k) if layout[1] == "N" else (*batch, k, n)

    def product(x: Any, w: Any) -> Any:
        x = x if layout[0] == "T" else fw.matrix_transpose(x)
        return fw.name(fw.matmul(x, fw.matrix_transpose(w) if layout[1] == "N" else w), "y")

    specs = (fw.TensorSpec(first, dtype), fw.TensorSpec(second, dtype))
    return fw.trace(lambda x, w: product(fw.name(x, "x"), fw.name(w, "w")), *specs)


def _kernel(fusion: fw.Fusion, plan: WarpPlan, target: str = "sm_80") -> fw.Kernel:
    s = fw.Schedule(fusion)
    scheduler = WarpMatmulScheduler(s.flow, target_of(target))
    schedule_warp_products(s, scheduler._products, plan)
    return s.lower(target)


def _arrays(fusion: fw.Fusion) -> list[Any]:
    rng = np.random.default_rng(3)
    shapes = [tuple(int(str(e)) for e in t.shape) for t in fusion.inputs]
    return [
        rng.normal(size=shape).astype(t.dtype.numpy)
        for t, shape in zip(fusion.inputs, shapes, strict=True)
    ]


def _check(fusion: fw.Fusion, kernel: fw.Kernel) -> None:
    arrays = _arrays(fusion)
    result = kernel.simulate(*arrays)
    assert result.races == []
    (wanted,) = (y.astype(np.float64) for y in fw.evaluate(fusion, *arrays))
    error = np.abs(result.outputs[0].astype(np.float64) - wanted).max()
    assert error <= 2**-7 * np.abs(wanted).max()


def _count(kernel: fw.Kernel, kind: type) -> int:
    return sum(isinstance(s, kind) for s in walk_statements(kernel.ir))


@pytest.mark.parametrize("layout", ["TN", "NN", "NT", "TT"])
@pytest.mark.parametrize("sizes", [(64, 64, 64), (100, 88, 72), (130, 70, 102)], ids=str)
def test_layouts_and_ragged_sizes(layout: str, sizes: tuple[int, int, int]) -> None:
    fusion = _fusion(layout, *sizes)
    kernel = _kernel(fusion, SMALL)
    assert _count(kernel, WarpMma) and _count(kernel, LdMatrix) and _count(kernel, CpAsync)
    _check(fusion, kernel)


PLANS = (
    WarpPlan(64, 64, 32, 2, 2, 3, splits=2),
    WarpPlan(64, 64, 32, 2, 2, 2, splits=3, mode="vector"),
    WarpPlan(64, 64, 32, 2, 2, 1),
    WarpPlan(64, 64, 64, 2, 2, 2),
    WarpPlan(128, 256, 32, 2, 4, 3, group=2),
    WarpPlan(256, 128, 32, 4, 2, 2),
    WarpPlan(32, 32, 32, 2, 2, 4),
    WarpPlan(16, 64, 32, 1, 4, 4),
)


@pytest.mark.parametrize("plan", PLANS, ids=lambda p: str(p.params))
def test_every_tile_is_right(plan: WarpPlan) -> None:
    fusion = _fusion("TT", 290, 270, 100, dtype="float16")
    _check(fusion, _kernel(fusion, plan, "sm_90a"))


@pytest.mark.parametrize("target", TARGETS)
def test_every_sync_is_needed(target: str) -> None:
    kernel = _kernel(_fusion("TN", 130, 72, 136, batch=(2,)), SMALL, target)
    report = fw.verify(kernel)
    assert (report.missing, report.redundant) == ([], [])
    assert len(report.necessary) == 4


@pytest.mark.parametrize("plan", [SMALL, replace(SMALL, depth=64, stages=2)], ids=str)
def test_a_wait_for_less_is_caught(plan: WarpPlan) -> None:
    """The wait of a ring that keeps a group more under way reads what is not there yet."""
    fusion = _fusion("NT", 70, 72, 264)
    kernel = _kernel(fusion, plan)
    found = weakenings_of(kernel.ir, case_of(kernel, _arrays(fusion)))
    assert found and [str(w.weaker) for w in found if w.race is None] == []


@pytest.mark.parametrize("mode", ["slices", "vector", "tma"])
def test_blocks_that_share_a_depth(mode: str) -> None:
    fusion = _fusion("TN", 100, 90, 1000)
    kernel = _kernel(fusion, replace(SMALL, splits=4, mode=mode), "sm_90")
    _check(fusion, kernel)
    report = fw.verify(kernel)
    assert (report.missing, report.redundant) == ([], [])


def test_blocks_that_walk_over_tiles() -> None:
    """What a tile shares with the next one is copied again: its ring goes on."""
    fusion = _fusion("TN", 200, 150, 136)
    s = fw.Schedule(fusion)
    scheduler = WarpMatmulScheduler(s.flow, target_of("sm_80"))
    schedule_warp_products(s, scheduler._products, SMALL)
    s.launch(max_sms=2)
    kernel = s.lower("sm_80")
    _check(fusion, kernel)
    report = fw.verify(kernel)
    assert (report.missing, report.redundant) == ([], [])


@pytest.mark.parametrize("target", ["sm_80", "sm_86", "sm_120"])
def test_a_large_tile_does_not_spill(target: str) -> None:
    kernel = _kernel(_fusion("NT", 4096, 4096, 4096), WarpPlan(128, 256, 32, 2, 4, 3), target)
    found = kernel.resources()
    assert (found.spill_stores, found.stack_nbytes, found.warnings) == (0, 0, ())


@pytest.mark.parametrize("layout", ["TN", "TT", "NN"])
@pytest.mark.parametrize("plan", [SMALL, WarpPlan(128, 256, 32, 2, 4, 2)], ids=str)
def test_the_rows_that_lanes_name_lie_in_different_banks(layout: str, plan: WarpPlan) -> None:
    kernel = _kernel(_fusion(layout, 256, 256, 128), plan)
    for s in walk_statements(kernel.ir):
        if not isinstance(s, LdMatrix):
            continue
        (thread,) = (v for v in variables(s.index) if v.name == "tx")
        others = {v: 0 for v in variables(s.index) if v is not thread}
        at = [int(evaluate(s.index, {**others, thread: t})) for t in range(plan.threads)]
        for first in range(0, plan.threads, 8):
            assert len({x // 8 % 8 for x in at[first : first + 8]}) == 8


def test_a_tile_is_filled_with_zeros_beyond_the_edges() -> None:
    """The last tile of the depth has 8 elements of 32; what is beyond would be multiplied."""
    kernel = _kernel(_fusion("TN", 64, 64, 72), SMALL)
    copies = [s for s in walk_statements(kernel.ir) if isinstance(s, CpAsync)]
    assert any(s.zero_fill for s in copies)


# --- candidates -----------------------------------------------------------------------------------


def _candidates(fusion: fw.Fusion, target: str) -> list[Any]:
    scheduler = WarpMatmulScheduler(fw.Schedule(fusion).flow, target_of(target))
    return list(scheduler.candidates())


def test_the_first_candidate_is_the_fastest_or_alike() -> None:
    sizes, target = ProductSizes(1, 4096, 4096, 4096), target_of("sm_80")
    plans = ranked(warp_plans(sizes, target), sizes, (8, 8), target)
    us = [warp_us(sizes, p, (8, 8), target) for p in plans]
    assert us[1:] == sorted(us[1:]) and us[0] <= 1.05 * min(us)
    assert 0.7 * 312 < 2e-6 * sizes.pairs / us[0] < 312  # TFLOP/s of an A100


def test_a_ring_hides_the_way_of_copies() -> None:
    sizes, target = ProductSizes(1, 4096, 4096, 4096), target_of("sm_90a")
    plans = [WarpPlan(128, 128, 32, 2, 2, stages) for stages in (1, 2, 4)]
    us = [warp_us(sizes, p, (8, 8), target) for p in plans]
    assert us[0] > us[1] > us[2]
    assert all(p.stages > 1 for p in warp_plans(sizes, target_of("sm_86")))


def test_few_tiles_share_their_depth() -> None:
    what = [c.what for c in _candidates(_fusion("TN", 256, 256, 65536), "sm_80")]
    assert any("blocks for the depth of each" in w for w in what)
    sizes, target = ProductSizes(1, 256, 256, 65536), target_of("sm_80")
    alone, shared = (WarpPlan(128, 128, 32, 2, 2, 4, splits=n) for n in (1, 27))
    assert warp_us(sizes, shared, (8, 8), target) < warp_us(sizes, alone, (8, 8), target) / 4


def test_narrow_copies_take_longer() -> None:
    sizes, target = ProductSizes(1, 2048, 2048, 2052), target_of("sm_90a")
    (best, *_) = ranked(warp_plans(sizes, target), sizes, (8, 8), target)
    us = [warp_us(sizes, best, (w, w), target) for w in (8, 4, 2)]
    assert us == sorted(us) and len(set(us)) == 3


@pytest.mark.parametrize(
    ("layout", "sizes", "dtype", "why"),
    [
        ("TN", (64, 64, 65), "bfloat16", "begin at no multiple of 4 bytes"),
        ("TN", (64, 64, 64), "float8_e4m3", "single warps multiply bfloat16 or float16"),
    ],
)
def test_what_single_warps_refuse(
    layout: str, sizes: tuple[int, int, int], dtype: str, why: str
) -> None:
    (found,) = _candidates(_fusion(layout, *sizes, dtype=dtype), "sm_80")
    assert isinstance(found, Refused)
    assert why in found.why


def test_both_kinds_of_instructions_are_candidates_where_there_are_both() -> None:
    flow = fw.Schedule(_fusion("TN", 512, 512, 512)).flow
    what = [c.what for c in candidates_of(flow, target_of("sm_90a")) if isinstance(c, Candidate)]
    assert "warps" not in what[0] and any("by single warps" in w for w in what)


# --- by hand --------------------------------------------------------------------------------------


def _tiled(dtype: str = "bfloat16", m: int = 64, n: int = 64, k: int = 64) -> ScheduledTensor:
    """A product in registers whose last three loops are a tile."""
    y = fw.Schedule(_fusion("TN", m, n, k, dtype=dtype))["y"].cache_before()
    y.split(0, m).split(2, n).split(4, 32)
    return y.reorder([0, 2, 4, 1, 3, 5])


@pytest.mark.parametrize(
    ("edit", "why"),
    [
        (
            lambda: _tiled().mma(warps=(3, 2)),
            "64 x 64 are not 16 rows and 16 columns, or multiples",
        ),
        (lambda: _tiled().mma(warps=(1, 8)), "for each of 1 x 8 warps"),
        (lambda: _tiled(m=512, n=1024).mma(warps=(8, 8)), "64 warps are more than 1024 threads"),
        (lambda: _tiled().mma(1, (2, 2)), "of warpgroups or of single warps; give one"),
        (lambda: _tiled("float8_e4m3").mma(warps=(2, 2)), "single warps multiply two of bfloat16"),
        (lambda: _tiled().split(5, 8).mma(warps=(2, 2)), "its last three loops"),
        (lambda: _tiled().mma(warps=(0, 2)), "two positive integers"),
    ],
)
def test_what_mma_of_warps_refuses(edit: Any, why: str) -> None:
    with pytest.raises(fw.ScheduleError, match=why):
        edit()


def _by_hand(copy: Any, **how: Any) -> fw.Kernel:
    """A product whose operands are copied as `how` says, in loops that `copy` makes of those over
    rows and depth of a tile."""
    s = fw.Schedule(_fusion("TN", 64, 64, 64))
    p = s["y"].cache_before()
    operands = [ScheduledTensor(s, o) for o in p.stage.operands]
    copies = [o.cache_after(readers=[p], **how) for o in operands]
    p.split(0, 64).split(2, 64).split(4, 32)
    p.reorder([0, 2, 4, 1, 3, 5]).merge(0).parallelize(0, fw.BIDx)
    s.transform_like(p, copies)
    p.mma(warps=(2, 2))
    for c in copies:
        copy(c)
        c.inline_at(p, 2)
    s.transform_like(p, [s["y"]])
    s.inline_most([o for o in s.tensors if o.name == "t0"])
    return s.lower("sm_80")


def _by_chunks(c: ScheduledTensor, threads: int = 128) -> None:
    c.split(-1, 8).merge(-3, -2).split(-2, threads)
    c.parallelize(-2, fw.TIDx).parallelize(-1, fw.Vectorize)


def test_a_product_by_hand() -> None:
    _check(_fusion("TN", 64, 64, 64), _by_hand(_by_chunks, by="cp_async"))


def test_loops_that_no_tile_divides_have_a_larger_one() -> None:
    kernel = _by_hand(lambda c: _by_chunks(c, threads=96), by="cp_async")
    _check(_fusion("TN", 64, 64, 64), kernel)


def test_tiles_that_loops_overrun_are_refused() -> None:
    def copy(c: ScheduledTensor) -> None:
        axes = [x.axis for x in c.stage.loops[-2:]]
        _by_chunks(c, threads=96)
        set_allocation(c._schedule.flow, c.stage, axes)

    with pytest.raises(fw.ScheduleError, match="its loops go beyond the tile, too"):
        _by_hand(copy, by="cp_async")


def test_rows_of_matrices_that_lie_apart_are_refused() -> None:
    with pytest.raises(fw.ScheduleError, match="of which 8 neighbours do not lie together"):
        _by_hand(lambda c: c.split(-1, 4).reorder({-3: -2}), by="cp_async")


def test_operands_in_registers_are_refused() -> None:
    with pytest.raises(fw.ScheduleError, match="by instructions of single warps, which find it in"):
        _by_hand(lambda c: None)
