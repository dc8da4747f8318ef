"""Stream-K: whole waves of whole tiles, and a last one whose tiles blocks share. What every mode
gives is in `test_every_turn.py`; here are the loops, the ring that goes on, and rejections."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from test_split_products import checked, gated, product, split_schedule, wide_product, with_bias

import fusewright as fw
from fusewright.core.substitution import substitute
from fusewright.kir.ir import (
    Alloc,
    BoxLoad,
    For,
    If,
    Memory,
    Role,
    Roles,
    SemaphoreAcquire,
    SemaphoreRelease,
)
from fusewright.kir.semaphores import SEMAPHORE_STATEMENTS
from fusewright.kir.traverse import walk_statements
from fusewright.schedule.heuristics.matmul import MatmulScheduler, schedule_products
from fusewright.schedule.heuristics.product_plans import (
    ProductPlan,
    ProductSizes,
    in_streams,
    menu_plans,
)
from fusewright.schedule.heuristics.product_times import predicted_us
from fusewright.schedule.heuristics.product_work import product_work
from fusewright.schedule.nest import computed
from fusewright.schedule.schedule import ScheduledTensor
from fusewright.schedule.streams import stream_of
from fusewright.target import target_of

TARGET = target_of("sm_90a")
FIVE = (314, 40, 7 * 64 - 40)
"""Of five tiles below each other, for three blocks: a wave, and two tiles."""


def streamed(
    fn: Callable[..., object] = product, mode: str = "vector", **given: Any
) -> fw.Schedule:
    return split_schedule(fn, 3, mode, **{"shape": FIVE, "blocks": 1, "stream": True, **given})


def the_product(s: fw.Schedule) -> ScheduledTensor:
    return next(t for t in s.tensors if t.stage.is_mma)


KINDS: dict[str, dict[str, Any]] = {
    "gated": {"fn": gated, "shape": (314, 40, 200)},
    "gated in slices": {"fn": gated, "mode": "slices", "shape": (314, 40, 200)},
    "batch": {"shape": (300, 40, 200), "batch": 2},
    "boxes": {"fn": with_bias, "shape": (180, 184, 200), "staged": 64, "blocks": 2},
    "boxes of half a tile": {"fn": with_bias, "mode": "tma", "shape": (250, 40, 200), "staged": 32},
    "parts of one step": {"shape": (314, 40, 3 * 64)},
    "a part behind the end": {"shape": (314, 40, 4 * 64)},
    "sums as they are": {"fn": wide_product, "shape": (314, 40, 200)},
}
SLOW = ("gated in slices", "boxes of half a tile", "a part behind the end")


@pytest.mark.parametrize(
    "kind", [pytest.param(k, marks=pytest.mark.slow if k in SLOW else ()) for k in KINDS]
)
def test_streams_of_all_kinds(kind: str) -> None:
    given = KINDS[kind]
    s = streamed(**given)
    kernel = checked(s)
    assert fw.verify(kernel).ok
    assert len(kernel.ir.semaphores) == (2 if given.get("fn") is gated else 1)


def outer_loops(kernel: fw.Kernel, number: int) -> list[For]:
    """The loops that stand in a role, in no other loop, but for those that the compiler unrolls."""
    (roles,) = (x for x in kernel.ir.body if isinstance(x, Roles))
    role = roles.body[number]
    assert isinstance(role, Role)
    return [x for x in role.body if isinstance(x, For) and not x.unroll]


def test_whole_tiles_wait_for_nobody() -> None:
    """Two waves of whole tiles, of which a block takes one each, and parts of two tiles: seven
    steps, and three."""
    kernel = streamed(with_bias, shape=(64 * 8 - 3, 40, 7 * 64 - 40)).lower()
    for number in (0, 1):
        whole, rest = outer_loops(kernel, number)
        assert (str(whole.extent), str(rest.extent)) == ("2", "2")
        steps = [next(str(x.extent) for x in y.body if isinstance(x, For)) for y in (whole, rest)]
        assert steps == ["7", "3"]
        assert not [x for x in walk_statements(whole) if isinstance(x, SEMAPHORE_STATEMENTS)]
    inside = [type(x) for x in walk_statements(outer_loops(kernel, 0)[1])]
    assert SemaphoreAcquire in inside and SemaphoreRelease in inside


def test_one_ring_goes_on_from_whole_tiles_to_parts() -> None:
    """Fourteen steps of whole tiles in a ring of two slots, so that the first part begins at slot 0
    again, in the phase that follows; with one wave of seven it begins at slot 1."""
    for shape, first in (((64 * 8 - 3, 40, 7 * 64 - 40), 14), (FIVE, 7)):
        kernel = streamed(shape=shape).lower()
        rings = [a for a in walk_statements(kernel.ir) if isinstance(a, Alloc)
                 and a.buffer.memory is Memory.SHARED]  # fmt: skip
        assert sorted(a.buffer.name for a in rings) == ["ring_empty", "ring_full", "w_c", "x_c"]
        rest = outer_loops(kernel, 1)[1]
        loads = [x for x in walk_statements(rest) if isinstance(x, BoxLoad)]
        zero = dict.fromkeys((rest.var, *(x.var for x in rest.body if isinstance(x, For))), 0)
        assert {str(substitute(x.slot, zero)) for x in loads if x.slot is not None} == {
            str(first % 2)
        }


def planned(fn: Callable[..., object], specs: list[fw.TensorSpec], **given: Any) -> fw.Schedule:
    """Tiles of 64 x 64 for three blocks, with what else a plan says."""
    s = fw.Schedule(fw.trace(fn, *specs))
    products = MatmulScheduler(s.flow, TARGET)._products
    known = {"rows": 64, "columns": 64, "depth": 64, "warpgroups": 1, "stages": 2, "splits": 3}
    known |= {"mode": "vector", "blocks": 3, "stream": True}
    schedule_products(s, products, ProductPlan(**(known | given)))
    return s


def test_tiles_between_others_that_do_not_exist() -> None:
    """Five rows of tiles in groups of two: a whole wave would have a tile less in some blocks."""
    specs = [fw.TensorSpec((320, 768), "bfloat16"), fw.TensorSpec((768, 192), "bfloat16")]
    with pytest.raises(fw.ScheduleError, match="filled in 2 loops one behind the other"):
        planned(product, specs, group=2).lower()


@pytest.mark.slow
def test_rings_without_warps_of_their_own() -> None:
    for stages in (1, 3):
        s = streamed(stages=min(stages, 2))
        for t in s.tensors if stages > 1 else ():
            if t.stage.copied:
                t.circular_buffer(stages)
        assert fw.verify(checked(s)).ok


@pytest.mark.slow
def test_inputs_ahead_and_promoted_sums() -> None:
    def residual(x: Any, w: Any, r: Any) -> Any:
        return fw.matmul(x, w) + r

    def turned(x: Any, w: Any) -> Any:
        return fw.astype(fw.matmul(x, fw.permute_dims(w, (1, 0))), "bfloat16")

    shapes = ((314, 408), (408, 64), (314, 64))
    s = planned(residual, [fw.TensorSpec(x, "bfloat16") for x in shapes], staged=64, ahead=2)
    assert fw.verify(checked(s)).ok
    narrow = [fw.TensorSpec(x, "float8_e4m3") for x in ((314, 832), (48, 832))]
    kernel = planned(turned, narrow, depth=128, promoted=True).lower()
    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=x).astype(fw.float8_e4m3.numpy) for x in ((314, 832), (48, 832))]
    found = kernel.simulate(*arrays)
    wanted = fw.evaluate(fw.trace(turned, *narrow), *arrays)[0].astype(np.float64)
    assert found.races == [] and fw.verify(kernel, *arrays).ok
    assert np.abs(found.outputs[0].astype(np.float64) - wanted).max() <= 2**-7 * wanted.max()


def test_a_result_is_stored_once_and_scratch_holds_the_rest_alone() -> None:
    """Sums that are the result are added up in scratch: whole tiles are stored in no turn."""
    kernel = streamed(wide_product, shape=FIVE).lower()
    assert kernel.ir.stored_in_turns == ()
    assert [b.name for b in kernel.ir.stored_once] == [b.name for b in kernel.outputs]
    (work,) = kernel.ir.scratch
    assert str(work.size) == str(2 * 64 * 64)  # two tiles


def test_an_uneven_rest_leaves_the_last_groups_idle() -> None:
    """Three tiles for two groups: the second group has one, under a condition on its number."""
    kernel = checked(streamed(shape=(64 * 9, 40, 200), blocks=2))
    rest = outer_loops(kernel, 0)[1]
    assert str(rest.extent) == "2"
    conditions = [str(x.condition) for x in rest.body if isinstance(x, If)]
    assert len(conditions) == 1 and "by" in conditions[0]


def by_hand(fn: Callable[..., object] = product) -> tuple[fw.Schedule, ScheduledTensor]:
    s = streamed(fn)
    return s, the_product(s)


def test_requests_that_are_none() -> None:
    s = fw.Schedule(fw.trace(lambda x: fw.sum(x, axis=0), fw.TensorSpec((96, 512), "float32")))
    with pytest.raises(fw.ScheduleError, match="last wave of the tiles of a product"):
        s.outputs[0].request_serial_grid_reduction("vector", stream=True)
    _, t = by_hand()
    for mode in ("arrival",):
        with pytest.raises(fw.ScheduleError, match="'vector', 'tma', 'slices'"):
            t.request_serial_grid_reduction(mode, stream=True)
    assert t.stage.grid_mode == "vector"


def test_loops_that_are_no_walk() -> None:
    s = split_schedule(product, 3, "vector", shape=FIVE)  # all blocks share all tiles
    the_product(s).request_serial_grid_reduction("vector", stream=True)
    with pytest.raises(fw.ScheduleError, match="blocks walk over waves of tiles first"):
        s.lower()


def test_tiles_without_a_rest() -> None:
    with pytest.raises(fw.ScheduleError, match="2 waves of which the last has 3 of 3 tiles"):
        streamed(shape=(64 * 6, 40, 200)).lower()


def test_products_that_are_asked_for_different_things() -> None:
    s = streamed(gated, shape=(314, 40, 200))
    first = the_product(s)
    first.request_serial_grid_reduction("slices", stream=True)
    with pytest.raises(fw.ScheduleError, match="all products of a kernel"):
        s.lower()


def test_clusters_take_no_streams() -> None:
    s = streamed(shape=(600, 600, 640), blocks=2)
    for t in s.tensors:
        at = [i for i, x in enumerate(t.axes) if x.startswith("BIDy")]
        if at:
            t.parallelize(at[0], fw.ClusterX)
    with pytest.raises(fw.ScheduleError, match="leave ClusterX out"):
        s.lower()


def test_what_walks_over_other_tiles_is_named() -> None:
    s, t = by_hand(with_bias)
    y = s.outputs[0]
    y.stage.loops = (y.stage.loops[0], *y.stage.loops[2:])
    with pytest.raises(fw.ScheduleError, match=f"{y.name} lacks the loops of {t.name}"):
        stream_of(s.flow)


def test_ping_pong_takes_no_streams() -> None:
    s = streamed()
    for t in s.tensors:
        if t.stage.boxed:
            t.circular_buffer(2, warp_specialized=True, ping_pong=True)
    with pytest.raises(fw.ScheduleError, match="ping_pong"):
        s.lower()


def test_a_schedule_says_that_it_streams() -> None:
    s = streamed()
    assert "stream" in str(s)
    again = fw.Schedule(s.original).replay(s.log)
    assert str(again) == str(s) and the_product(again).stage.streams
    assert again.lower().cuda == s.lower().cuda


def test_steps_are_those_of_whole_tiles_and_parts() -> None:
    s = streamed(shape=(64 * 8 - 3, 40, 7 * 64 - 40))
    work = product_work(s.flow, computed(s.flow.stages))
    assert work is not None
    assert (work.tiles, work.steps) == (2 + 2, 2 * 7 + 2 * 3)


def test_plans_share_a_tile_among_more_blocks_only_where_that_saves_steps() -> None:
    """8192 x 16384 x 4096 has 4,096 tiles of 128 x 256: 31 waves, and four tiles."""
    sizes = ProductSizes(1, 8192, 16384, 4096)
    wide = next(
        p for p in menu_plans(sizes, TARGET, outputs=1) if (p.rows, p.columns) == (128, 256)
    )
    plans = list(in_streams("vector", wide, sizes, TARGET))
    steps = [p.steps(sizes) for p in plans]
    assert steps == sorted(set(steps), reverse=True)
    assert plans[0].splits == 2 and plans[0].waves(sizes) == (31, 4) and steps[0] == 31 * 64 + 32
    best = min(plans, key=lambda p: predicted_us(sizes, p, TARGET))
    assert predicted_us(sizes, best, TARGET) < predicted_us(sizes, wide, TARGET)
    assert all(p.blocks % p.splits == 0 and p.blocks <= TARGET.multiprocessors for p in plans)
    few = ProductSizes(1, 1024, 1024, 4096)  # less than a wave
    near = next(p for p in menu_plans(few, TARGET, outputs=1) if (p.rows, p.columns) == (128, 256))
    assert list(in_streams("vector", near, few, TARGET)) == []
