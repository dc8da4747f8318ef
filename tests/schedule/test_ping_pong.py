"""Ping-pong: two warpgroups compute tiles of their own in turn, from one ring."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from tests.work import calls

import fusewright as fw
from fusewright.errors import ScheduleError
from fusewright.fusion.ir import MatMul
from fusewright.kir.ir import Alloc, For, If, MbarArrive, MbarInit, MbarWait, Memory, Role, Roles
from fusewright.kir.passes.ring_protocol import GROUPS
from fusewright.kir.traverse import walk_statements
from fusewright.schedule.heuristics.candidates import Candidate
from fusewright.schedule.heuristics.matmul import (
    MatmulScheduler,
    schedule_products,
    sizes_of_product,
)
from fusewright.schedule.heuristics.product_plans import (
    MAX_ACCUMULATORS,
    ProductPlan,
    ProductSizes,
    menu_plans,
)
from fusewright.schedule.heuristics.product_steps import outside_us
from fusewright.schedule.heuristics.product_suffix import PLAIN, Suffix, uncounted_us
from fusewright.schedule.heuristics.product_times import (
    PING_PONG_MARGIN,
    predicted_us,
    ranked_us,
)
from fusewright.target import target_of

TARGET = target_of("sm_90a")
PLAN = ProductPlan(64, 64, 64, 2, 3, 64, blocks=2, ping_pong=True)


def plain(x: Any, w: Any) -> Any:
    return fw.matmul(x, fw.matrix_transpose(w))


def biased(x: Any, w: Any, b: Any) -> Any:
    return plain(x, w) + b


def gelu_backward(x: Any, w: Any, saved: Any) -> Any:
    return fw.nn.gelu_backward(plain(x, w), saved)


def gated(x: Any, g: Any, u: Any) -> Any:
    return fw.nn.silu(plain(x, g)) * plain(x, u)


def two_results(x: Any, w: Any, c: Any) -> tuple[Any, Any]:
    y = plain(x, w)
    return y, fw.nn.relu(y + c)


def wide(x: Any, w: Any) -> Any:
    return fw.astype(plain(x, w), fw.float32)


@dataclass(frozen=True)
class Case:
    """A program, the shapes of what it reads, and a plan."""

    name: str
    fn: Callable[..., Any]
    shapes: tuple[tuple[int, ...], ...]
    plan: ProductPlan = PLAN

    def __str__(self) -> str:
        return self.name

    @property
    def fusion(self) -> fw.Fusion:
        return fw.trace(self.fn, *[fw.TensorSpec(s, "bfloat16") for s in self.shapes])

    def kernel(self) -> fw.Kernel:
        s = fw.Schedule(self.fusion)
        schedule_products(s, [t for t in s.flow.stages if isinstance(t.op, MatMul)], self.plan)
        return s.lower("sm_90a")

    def arrays(self) -> list[np.ndarray[Any, Any]]:
        rng = np.random.default_rng()
        return [rng.normal(size=s).astype(fw.bfloat16.numpy) for s in self.shapes]


CASES = (
    Case("bias", biased, ((256, 320), (192, 320), (192,)), replace(PLAN, blocks=3, group=2)),
    Case("ragged", biased, ((203, 264), (184, 264), (184,))),
    Case("two boxes of rows", plain, ((300, 200), (136, 200)), replace(PLAN, rows=128)),
    Case("an odd number of tiles a block", plain, ((320, 264), (128, 264))),
    Case("whole rounds of an odd number", plain, ((192, 264), (128, 264))),
    Case("blocks with one tile", plain, ((320, 264), (128, 264)), replace(PLAN, blocks=4)),
    Case("a ring of as many steps as all tiles have", plain, ((64, 64), (256, 64))),
    Case("one step of the depth", biased, ((448, 64), (128, 64), (128,))),
    Case("less than a step", biased, ((448, 40), (120, 40), (120,))),
    Case("steps fill the ring", plain, ((384, 384), (128, 384))),
    Case("two stages", plain, ((384, 320), (128, 320)), replace(PLAN, stages=2)),
    Case("groups in turns", plain, ((512, 128), (192, 128)),
         replace(PLAN, group=4, serpentine=True, blocks=4)),
    Case("matrices", plain, ((3, 128, 136), (3, 72, 136)), replace(PLAN, blocks=5)),
    Case("results in parts", biased, ((256, 264), (256, 264), (256,)),
         replace(PLAN, columns=128, staged=32)),
    Case("the widest tile", biased, ((384, 136), (384, 136), (384,)),
         replace(PLAN, rows=128, columns=192, staged=32)),
    Case("results by threads", wide, ((256, 264), (136, 264))),
    Case("two results", two_results, ((256, 264), (136, 264), (256, 136))),
    Case("loads behind the last step", gelu_backward, ((256, 264), (136, 264), (256, 136))),
    Case("boxes ahead", gelu_backward, ((320, 264), (136, 264), (320, 136)),
         replace(PLAN, ahead=2)),
    Case("two products", gated, ((256, 264), (136, 264), (136, 264)),
         replace(PLAN, columns=32, staged=32, products=2)),
    Case("below each other", plain, ((512, 264), (128, 264)),
         replace(PLAN, blocks=4, cluster=(2, 1))),
    Case("beside each other", biased, ((256, 200), (384, 200), (384,)),
         replace(PLAN, blocks=4, cluster=(1, 2))),
)  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=str)
def test_values_are_right_and_nothing_races(case: Case) -> None:
    kernel, arrays = case.kernel(), case.arrays()
    result = kernel.simulate(*arrays, blocks=None)
    assert result.races == []
    for got, wanted in zip(result.outputs, fw.evaluate(case.fusion, *arrays), strict=True):
        wanted = np.asarray(wanted, np.float64)
        assert np.abs(np.asarray(got, np.float64) - wanted).max() <= 2**-7 * np.abs(wanted).max()


@pytest.mark.parametrize(
    "case",
    [
        Case("bias", biased, ((192, 264), (128, 264), (128,)), replace(PLAN, stages=2)),
        Case("one step", plain, ((512, 40), (64, 40)), replace(PLAN, stages=2, staged=0)),
        Case("ahead", gelu_backward, ((192, 136), (128, 136), (192, 128)),
             replace(PLAN, stages=2, ahead=2)),
        Case("clusters", plain, ((512, 136), (64, 136)),
             replace(PLAN, stages=2, blocks=2, cluster=(2, 1))),
    ],
    ids=str,
)  # fmt: skip
def test_nothing_is_missing_and_nothing_redundant(case: Case) -> None:
    """Every ring wraps, and each warpgroup has two tiles or more, some of them beyond an edge."""
    report = fw.verify(case.kernel(), *case.arrays())
    assert report.ok, str(report)


@pytest.mark.parametrize(
    "plan",
    [replace(PLAN, columns=96, staged=32, stages=2),
     replace(PLAN, columns=96, staged=32, stages=2, warpgroups=1, blocks=0, ping_pong=False)],
    ids=["in turn", "a tile a block"],
)  # fmt: skip
def test_syncs_of_parts_that_leave_one_after_the_other(plan: ProductPlan) -> None:
    """What the first part waits for is another tile, what the others wait for the part before."""
    case = Case("parts", biased, ((192, 136), (192, 136), (192,)), plan)
    report = fw.verify(case.kernel(), *case.arrays())
    assert report.ok, str(report)


def test_parts_of_a_tile_cost_about_as_much_as_two() -> None:
    """Syncs of six parts are those of the first and one that stands for the rest."""

    def work(columns: int) -> int:
        plan = replace(PLAN, rows=128, columns=columns, staged=32)
        return calls(Case("parts", biased, ((384, 264), (384, 264), (384,)), plan).kernel)

    work(192)
    assert work(192) < 3.2e6  # 4.7 with each part by itself


def _turns(kernel: fw.Kernel) -> tuple[list[MbarWait], list[MbarArrive]]:
    found = list(walk_statements(kernel.ir))
    waits = [s for s in found if isinstance(s, MbarWait) and s.barrier.name == "ring_turn"]
    passed = [s for s in found if isinstance(s, MbarArrive) and s.barrier.name == "ring_turn"]
    return waits, passed


def test_a_tile_has_a_wait_and_an_arrival_for_its_turn() -> None:
    kernel = CASES[0].kernel()
    waits, passed = _turns(kernel)
    assert [str(s.slot) for s in waits] == ["0", "1"]
    assert [str(s.slot) for s in passed] == ["1", "0"]
    assert all(s.per_warp for s in passed)
    (made,) = (
        s
        for s in walk_statements(kernel.ir)
        if isinstance(s, MbarInit) and s.barrier.name == "ring_turn"
    )
    assert made.count == 4  # one arrival of each warp of a group


def test_without_turns_a_group_takes_the_tile_of_the_other() -> None:
    """A wait knows a phase by its parity: turns are no matter of speed alone."""
    case = CASES[0]
    kernel = case.kernel()
    waits, passed = _turns(kernel)
    report = fw.verify(kernel, *case.arrays())
    for s in (*waits, *passed):
        assert s.id in [x.id for x in report.necessary]
        (why,) = (w for w in report.witnesses if f" #{s.id} ring_turn" in w.split(":")[0])
        assert "ring" in why


def test_groups_have_registers_results_and_barriers_of_their_own() -> None:
    kernel = CASES[0].kernel()
    (roles,) = (s for s in kernel.ir.body if isinstance(s, Roles))
    first, second, copying = (r for r in roles.body if isinstance(r, Role))
    assert [(r.first, r.stop) for r in (first, second)] == [(0, 4), (4, 8)]
    assert copying.first == 8
    own = [{s.buffer for s in walk_statements(r) if isinstance(s, Alloc)} for r in (first, second)]
    assert own[0] and not own[0] & own[1]
    results = [[b for b in found if b.memory is Memory.SHARED] for found in own]
    assert [len(found) for found in results] == [1, 1]
    syncs = [{s.id for s in walk_statements(r) if hasattr(s, "id")} for r in roles.body]
    assert not syncs[0] & syncs[1]


def test_an_odd_number_of_tiles_leaves_out_the_last_of_the_second_group() -> None:
    """Six tiles of two blocks are three rounds, of which the second group has one."""
    kernel = next(c for c in CASES if c.name.startswith("whole rounds")).kernel()
    (roles,) = (s for s in kernel.ir.body if isinstance(s, Roles))
    loops = [next(s for s in walk_statements(r) if isinstance(s, For)) for r in roles.body]
    assert [str(x.extent) for x in loops] == ["2", "2", "2"]
    guarded = [any(isinstance(s, If) for s in x.body) for x in loops]
    assert guarded == [False, True, True]


def test_symbolic_rows() -> None:
    specs = [fw.TensorSpec(s, "bfloat16") for s in (("M", 264), (136, 264), (136,))]
    fusion = fw.trace(biased, *specs)
    s = fw.Schedule(fusion)
    schedule_products(s, [t for t in s.flow.stages if isinstance(t.op, MatMul)], PLAN)
    kernel = s.lower("sm_90a")
    rng = np.random.default_rng()
    for m in (64, 192, 333):
        shapes = ((m, 264), (136, 264), (136,))
        arrays = [rng.normal(size=n).astype(fw.bfloat16.numpy) for n in shapes]
        result = kernel.simulate(*arrays)
        assert result.races == []
        (wanted,) = fw.evaluate(fusion, *arrays)
        got = result.outputs[0].astype(np.float64)
        assert np.abs(got - wanted.astype(np.float64)).max() <= 2**-7 * np.abs(got).max()


# --- what is refused ------------------------------------------------------------------------------


def _rejected(plan: ProductPlan, message: str) -> None:
    with pytest.raises(ScheduleError, match=message):
        Case("refused", plain, ((256, 264), (128, 264)), plan).kernel()


def test_tiles_that_no_loop_runs_over_are_refused() -> None:
    _rejected(replace(PLAN, blocks=0), "in turn, but there is none around all that a block does")


def test_tiles_of_several_warpgroups_are_refused() -> None:
    s = fw.Schedule(Case("", plain, ((256, 264), (128, 264))).fusion)
    plan = replace(PLAN, rows=128, ping_pong=False)
    schedule_products(s, [t for t in s.flow.stages if isinstance(t.op, MatMul)], plan)
    for t in s.flow.stages:
        t.ping_pong = t.warp_specialized
    with pytest.raises(ScheduleError, match="computed by 256 x 1 x 1 threads; give it 128 along x"):
        s.lower("sm_90a")


def test_turns_need_warps_that_copy() -> None:
    s = fw.Schedule(Case("", plain, ((256, 264), (128, 264))).fusion)
    x = s["x"].cache_after(by="bulk")
    with pytest.raises(
        ScheduleError, match="warpgroups take tiles in turn that warps of their own"
    ):
        x.circular_buffer(3, ping_pong=True)


# --- machine code, and the choice -----------------------------------------------------------------


SIZES = ProductSizes(1, 8192, 16384, 512)


def test_machine_code_spills_nothing_and_serialises_no_products() -> None:
    """With all that may follow a tile in registers, and an input that comes ahead."""
    plan = next(p for p in menu_plans(SIZES, TARGET, loaded=2) if p.ping_pong)
    assert (plan.stages, plan.staged, plan.ahead, plan.registers) == (4, 64, 2, (40, 232))
    _check_machine_code(gelu_and_tile, plan)


def gelu_and_tile(x: Any, w: Any, b: Any, c: Any) -> Any:
    return fw.nn.gelu(biased(x, w, b)) + c


def _check_machine_code(fn: Callable[..., Any], plan: ProductPlan) -> None:
    shapes = ((8192, 512), (16384, 512), (16384,), (8192, 16384))
    found = Case("code", fn, shapes[: fn.__code__.co_argcount], plan).kernel().resources()
    assert (found.spill_stores, found.stack_nbytes, found.warnings) == (0, 0, ())


def test_results_leave_in_narrow_parts_where_sums_leave_few_registers() -> None:
    for outputs, staged in ((1, 32), (2, 16)):
        found = [p for p in menu_plans(SIZES, TARGET, outputs=outputs) if p.ping_pong]
        assert {p.staged for p in found if p.accumulators > MAX_ACCUMULATORS} == {staged}
        assert min(p.staged for p in found if p.accumulators == MAX_ACCUMULATORS) > 32


def saved_and_gelu(x: Any, w: Any, b: Any) -> tuple[Any, Any]:
    y = biased(x, w, b)
    return y, fw.nn.gelu(y)


WIDEST = {
    "bias and gelu": lambda x, w, b: fw.nn.gelu(biased(x, w, b)),
    "a tile": gelu_and_tile,
    "a gradient": lambda x, w, b, c: fw.nn.gelu_backward(biased(x, w, b), c),
    "two results": saved_and_gelu,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", WIDEST)
def test_machine_code_of_the_widest_tiles_spills_nothing(name: str) -> None:
    """Parts of 48 columns spill for "a tile" and "a gradient", and of 32 for two results."""
    outputs = 2 if name == "two results" else 1
    plans = menu_plans(SIZES, TARGET, outputs=outputs)
    plan = next(p for p in plans if p.ping_pong and p.columns == 192)
    _check_machine_code(WIDEST[name], plan)


def test_what_needs_more_registers_is_not_computed_beside_the_widest_tiles() -> None:
    def tiles(fn: Callable[..., Any]) -> set[tuple[int, int]]:
        flow = fw.Schedule(Case("", fn, ((8192, 512), (8192, 512))).fusion).flow
        listed = MatmulScheduler(flow, TARGET).candidates()
        plans = [c.plan for c in listed if isinstance(c, Candidate)]
        return {(p.rows, p.columns) for p in plans if p.ping_pong}

    narrow = {(128, 128), (64, 256)}
    assert tiles(lambda x, w: fw.nn.gelu(plain(x, w))) == {*narrow, (128, 192)}
    assert tiles(lambda x, w: fw.nn.dropout(plain(x, w), 0.1, seed=3)) == narrow
    assert tiles(wide) == narrow


def test_what_stands_around_a_tile_is_hidden_until_it_is_longer_than_the_steps() -> None:
    assert outside_us(10, 6.0, 2.0) == 2.0  # but for the last tile
    assert outside_us(10, 6.0, 6.0) == 6.0
    assert outside_us(10, 6.0, 8.0) == 8.0 + 9 * 1.0  # a tile takes 14 of a group, 7 of both


def test_menus_have_turns_where_blocks_take_several_tiles() -> None:
    few, many = ProductSizes(1, 1024, 1024, 4096), ProductSizes(1, 8192, 8192, 512)
    assert not [p for p in menu_plans(few, TARGET) if p.ping_pong]
    found = [p for p in menu_plans(many, TARGET) if p.ping_pong]
    assert {(p.rows, p.columns) for p in found} == {(128, 128), (128, 192), (64, 256)}
    for p in found:
        used = p.stages * 128 * (p.rows + p.columns) + GROUPS * 2 * p.rows * p.staged
        assert used <= TARGET.shared_nbytes_per_block


def test_turns_are_taken_where_they_are_faster_by_more_than_the_model_errs() -> None:
    """Gelu behind a short depth stands beside products; a plain product of a long one gains
    nothing."""
    gelu = Suffix(16.0, 0, 0, 2)
    short, long = ProductSizes(1, 8192, 8192, 512), ProductSizes(1, 8192, 8192, 8192)
    first = {}
    for name, sizes, suffix in (("short", short, gelu), ("long", long, PLAIN)):
        plans = list(menu_plans(sizes, TARGET))
        first[name] = min(plans, key=lambda p: ranked_us(sizes, p, TARGET, suffix))
        alone = [p for p in plans if p.cluster_size == 1]
        quick = [p for p in alone if p.ping_pong and p.accumulators <= MAX_ACCUMULATORS]
        own = [predicted_us(sizes, p, TARGET, suffix) * PING_PONG_MARGIN for p in quick]
        rest = [ranked_us(sizes, p, TARGET, suffix) for p in alone if not p.ping_pong]
        left_out = uncounted_us(sizes.rows * sizes.columns, suffix, TARGET)
        assert first[name].ping_pong == (min(own) < min(rest) + left_out)
    assert first["short"].ping_pong and not first["long"].ping_pong


MEASURED = (
    ((12608, 3072, 768), Suffix(24.0, 2, 0, 2), 137.5, (117.2, 195.8)),
    ((8192, 16384, 4096), Suffix(14.0, 0, 0, 2), 1690.5, (1905.5, 1520.5)),
    ((8192, 8192, 512), Suffix(14.0, 0, 0, 2), 170.9, (132.8, 157.0)),
    ((8192, 8192, 768), Suffix(14.0, 0, 0, 2), 226.2, (171.3, 193.7)),
    ((8192, 8192, 1024), Suffix(14.0, 0, 0, 2), 259.6, (221.4, 224.6)),
    ((4096, 4096, 1024), PLAIN, 55.9, (57.7, 56.3)),
    ((4096, 4096, 4096), PLAIN, 196.8, (217.0, 223.3)),
)
"""Products, and microseconds of the plan that ranks first without turns, and of tiles of 128 x 128
and of 128 x 192 in turn (bench/ping-pong-2026-11-28-h100.json). 4096 x 4096 x 512 gained a
twenty-fifth."""


@pytest.mark.parametrize("case", MEASURED, ids=lambda c: "x".join(map(str, c[0])))
def test_the_tiles_that_were_the_fastest_are_taken(case: Any) -> None:
    shape, suffix, without, turns = case
    sizes = ProductSizes(1, *shape)
    plans = list(menu_plans(sizes, TARGET, loaded=suffix.loaded))
    first = min(plans, key=lambda p: ranked_us(sizes, p, TARGET, suffix))
    times = {0: without, 128: turns[0]}  # those of 192 columns take long to compile
    assert times[first.columns if first.ping_pong else 0] == min(times.values())
    plain = min(predicted_us(sizes, p, TARGET, suffix) for p in plans if not p.ping_pong)
    whole = plain + uncounted_us(sizes.rows * sizes.columns, suffix, TARGET)
    for columns, us in zip((128, 192), turns, strict=True):
        own = [p for p in plans if p.ping_pong and p.columns == columns and p.cluster_size == 1]
        ratio = min(predicted_us(sizes, p, TARGET, suffix) for p in own) / whole
        # 128 columns of 8192 x 16384 x 4096: 0.18; 192 of 8192 x 8192 x 512: 0.16
        assert abs(math.log(ratio / (us / without))) < 0.2


def test_what_memory_takes_longer_for_is_not_computed_in_turn() -> None:
    """Results of 64 of 1024 x 1024 take longer to memory than their two steps take: two blocks of a
    multiprocessor, of which one stores while the other multiplies, gained nothing there."""
    sizes = ProductSizes(64, 1024, 1024, 128)
    plans = [p for p in menu_plans(sizes, TARGET) if p.ping_pong]
    assert plans and all(predicted_us(sizes, p, TARGET) < math.inf for p in plans)
    assert all(ranked_us(sizes, p, TARGET) == math.inf for p in plans)


def test_the_choice_is_listed_and_predicted() -> None:
    specs = [fw.TensorSpec(s, "bfloat16") for s in ((8192, 512), (8192, 512), (8192,))]
    fusion = fw.trace(lambda x, w, b: fw.nn.gelu(biased(x, w, b)), *specs)
    (kernel,) = fw.compile(fusion, target="sm_90a").kernels
    waits, _ = _turns(kernel)
    assert len(waits) == GROUPS
    assert kernel.predicted is not None
    flow = fw.Schedule(fusion).flow
    product = next(s for s in flow.stages if isinstance(s.op, MatMul))
    listed = [c.what for c in MatmulScheduler(flow, TARGET).candidates()]
    assert listed[0].endswith("two warpgroups in turn")
    assert sizes_of_product(product).depth == 512
