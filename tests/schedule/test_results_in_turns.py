"""Results in which blocks that take turns add up their parts: values, syncs, reasons, times."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from test_grid_turns import column_schedule, full_sum, total, total_and_more
from test_split_products import product, split_schedule, wide_product, with_bias

import fusewright as fw
from fusewright.core.expr import Int
from fusewright.host.assemble import accesses
from fusewright.host.ir import AccessMode
from fusewright.kir.ir import BoxReduce, BoxStore, BulkReduce, If, SemaphoreAcquire
from fusewright.kir.spec import check_kernel
from fusewright.kir.traverse import walk_statements
from fusewright.schedule.heuristics.candidates import Candidate
from fusewright.schedule.heuristics.matmul import MatmulScheduler
from fusewright.schedule.heuristics.product_plans import ProductPlan, ProductSizes
from fusewright.schedule.heuristics.product_times import predicted_us
from fusewright.schedule.results_in_turns import result_in_turns
from fusewright.sim.verify import verify_kernel, weakenings_of
from fusewright.target import target_of
from fusewright.verify import case_of

Array = np.ndarray


def across(x, w):
    return fw.permute_dims(wide_product(x, w), (1, 0))


def of_product(
    mode: str, splits: int = 3, fn: Callable[..., object] = wide_product, **more: object
):
    """By boxes where the copy engine adds."""
    more.setdefault("staged", 64 if mode == "tma" else 0)
    return split_schedule(fn, splits, mode, **more)


def arrays_of(s: fw.Schedule) -> list[Array]:
    rng = np.random.default_rng(15)
    return [
        rng.standard_normal([int(str(e)) for e in t.shape]).astype(t.dtype.numpy)
        for t in s.original.inputs
    ]


def checked(s: fw.Schedule, *, in_result: bool = True) -> fw.Kernel:
    """The kernel, after oracle and simulator agree, whoever comes first."""
    kernel, arrays = s.lower("sm_90a"), arrays_of(s)
    assert (kernel.ir.scratch == ()) == in_result == bool(kernel.ir.stored_in_turns)
    (wanted,) = fw.evaluate(s, *arrays)
    results = [kernel.simulate(*arrays, seed=seed) for seed in range(2)]
    for r in results:
        assert r.races == []
        error = np.abs(r.outputs[0].astype(np.float64) - wanted.astype(np.float64)).max()
        assert error <= 2**-15 * np.abs(wanted).max()
    assert results[0].outputs[0].tobytes() == results[1].outputs[0].tobytes()
    return kernel


@pytest.mark.parametrize("shape", [(60, 40, 920), (100, 72, 600)])
@pytest.mark.parametrize("mode", ["vector", "tma"])
def test_products(mode: str, shape: tuple[int, int, int]) -> None:
    """Ragged rows, columns and depth; one tile, and four of which each group has two."""
    blocks = 2 if shape[0] > 64 else 0
    kernel = checked(of_product(mode, shape=shape, blocks=blocks))
    assert kernel.ir.stored_once == ()
    (wait,) = (s for s in walk_statements(kernel.ir) if isinstance(s, SemaphoreAcquire))
    assert (wait.guarded, wait.size, wait.extents) == (kernel.ir.stored_in_turns[0], 64, (64,))
    assert [str(e) for e in wait.strides] == [str(shape[1])]


@pytest.mark.parametrize("mode", ["vector", "tma"])
def test_no_sync_is_missing_or_redundant_and_a_weaker_one_is_caught(mode: str) -> None:
    """Of the copy engine the full wait stands before the turn is passed on, not that for reads."""
    s = of_product(mode, shape=(100, 72, 600), blocks=2)
    kernel, arrays = s.lower("sm_90a"), arrays_of(s)
    report = fw.verify(kernel, *arrays)
    assert (report.missing, report.redundant) == ([], [])
    kinds = [x.kind for x in kernel.syncs]
    assert {"SemaphoreAcquire", "SemaphoreRelease"} <= {x.kind for x in report.necessary}
    if mode == "tma":
        assert kinds.index("AsyncWait", kinds.index("SemaphoreAcquire")) < kinds.index(
            "SemaphoreRelease"
        )
    found = weakenings_of(kernel.ir, case_of(kernel, arrays))
    assert [str(w.weaker) for w in found if w.race is None] == []


def test_the_copy_engine_stores_the_first_part_and_adds_all_others() -> None:
    """It adds those of the last block, too, which reads nothing back."""
    kernel = checked(of_product("tma", shape=(60, 40, 920)))
    branches = [s for s in walk_statements(kernel.ir) if isinstance(s, If)]
    (branch,) = (b for b in branches if any(isinstance(s, BoxStore) for s in b.then))
    assert str(branch.condition) == "bx < 1"
    assert {type(s) for s in branch.otherwise} == {BoxReduce}
    assert "cp.reduce.async.bulk.tensor.2d.global.shared::cta.add" in kernel.cuda
    used = kernel.resources()
    assert used.spill_stores == used.stack_nbytes == 0


def test_threads_add_what_is_there_in_loads_of_their_own() -> None:
    """Loads do not wait for stores of others: all stand before the first store."""
    text = str(checked(of_product("vector", shape=(60, 40, 920))).ir)
    loads, stores = text.rindex("= load t1["), text.index("store t1[")
    assert loads < stores
    assert text[text.index("semaphore_acquire") :].count("if (0 < bx)") == 1


@pytest.mark.parametrize("columns", [41, 40])
def test_rows_that_end_inside_of_a_vector(columns: int) -> None:
    """By threads element for element; no box has such rows, so that scratch holds the parts."""
    shape = (60, columns, 920)
    if columns == 40:
        checked(of_product("tma", shape=shape))
    else:
        s = fw.Schedule(fw.trace(lambda x: fw.sum(x, axis=1), fw.TensorSpec((41, 96), "float32")))
        t = s.outputs[0]
        t.split(1, 32).split(0, 32).parallelize(0, fw.BIDy).parallelize(1, fw.TIDx)
        t.parallelize(2, fw.BIDx).request_serial_grid_reduction("vector")
        checked(s)


@pytest.mark.parametrize("mode", ["vector", "tma"])
def test_a_result_across(mode: str) -> None:
    checked(of_product(mode, fn=across, shape=(60, 48, 920)))


@pytest.mark.parametrize("mode", ["vector", "tma"])
def test_a_result_that_is_a_part_of_a_larger_one(mode: str) -> None:
    """Rows lie further apart than they are long, as those of one operand of a join."""
    s = of_product(mode, shape=(60, 40, 920))
    s.outputs[0].stage.strides = (Int(64), Int(1))
    kernel = checked(s)
    (wait,) = (x for x in walk_statements(kernel.ir) if isinstance(x, SemaphoreAcquire))
    assert [str(e) for e in wait.strides] == ["64"]


@pytest.mark.parametrize("mode", ["vector", "tma"])
def test_columns(mode: str) -> None:
    kernel = checked(column_schedule(total, 3, mode=mode))
    adds = [s for s in walk_statements(kernel.ir) if isinstance(s, BulkReduce)]
    assert [s.dst for s in adds] == (list(kernel.ir.stored_in_turns) if mode == "tma" else [])


def _columns_of_two_vectors(*, apart: bool, columns: int = 256) -> fw.Schedule:
    """A thread has two vectors of four columns, 128 columns apart or side by side."""
    s = fw.Schedule(fw.trace(total, fw.TensorSpec((99, columns), "float32")))
    t = s.outputs[0]
    t.split(1, 33).split(0, 4)
    t.split(0, 32 if apart else 2)  # [columns/4/f, f, 4, 3, 33]
    t.parallelize(1 if apart else 0, fw.TIDx).parallelize(2, fw.Vectorize).parallelize(3, fw.BIDx)
    t.reorder([3, 4, 0, 1, 2])
    t.request_serial_grid_reduction("tma")
    return s


def test_a_run_of_a_result_lies_in_the_order_of_the_parts() -> None:
    """Else the copy engine adds to scratch, whose order is that of threads."""
    checked(_columns_of_two_vectors(apart=True))
    checked(_columns_of_two_vectors(apart=False), in_result=False)


def test_a_run_of_a_result_ends_where_the_result_does() -> None:
    """The copy engine would add beyond the end of 252 columns."""
    checked(_columns_of_two_vectors(apart=True, columns=252), in_result=False)


def test_a_block_takes_nothing_from_iterations_that_repeat_others() -> None:
    """The second of two tiles of 512 columns has none of 288, and a turn of its own."""
    s = fw.Schedule(fw.trace(total, fw.TensorSpec((90, 288), "float32")))
    t = s.outputs[0]
    t.split(1, 13).split(0, 8).split(0, 64).split(0, 2)
    t.parallelize(0, fw.BIDy).parallelize(2, fw.TIDx).parallelize(3, fw.Vectorize)
    t.parallelize(4, fw.BIDz).reorder({4: 2, 5: 3})
    t.request_serial_grid_reduction("vector")
    kernel = checked(s)
    assert "i0 == 0" in next(x for x in str(kernel.ir).splitlines() if "= load t0[" in x)


def test_blocks_that_repeat_a_result_do_not_add_to_it() -> None:
    def fn(x, y):
        return fw.sum(x, axis=0), y * 2

    s = fw.Schedule(fw.trace(fn, *(fw.TensorSpec(x, "float32") for x in ((96, 64), (5, 64)))))
    a, b = s.outputs
    a.split(1, 32).parallelize(0, fw.TIDx).parallelize(1, fw.BIDx)
    a.request_serial_grid_reduction("vector")
    b.parallelize(0, fw.BIDy).parallelize(1, fw.TIDx)
    kernel, arrays = s.lower("sm_90a"), arrays_of(s)
    assert len(kernel.ir.scratch) == 1
    found = kernel.simulate(*arrays)
    assert found.races == []
    np.testing.assert_allclose(found.outputs[0], arrays[0].sum(axis=0), rtol=1e-5, atol=1e-5)


def test_full_sums() -> None:
    """One element: by a thread in the result; the copy engine moves no less than 16 bytes."""
    checked(full_sum(3))
    checked(full_sum(3, "tma"), in_result=False)


def test_maxima_keep_what_is_not_a_number() -> None:
    s = column_schedule(lambda x: fw.max(x, axis=0), 3)
    x = arrays_of(s)[0]
    x[40, 7] = np.nan
    found = s.lower().simulate(x)
    assert found.races == [] and np.isnan(found.outputs[0][7])
    np.testing.assert_array_equal(found.outputs[0], np.max(x, axis=0))


REASONS = {
    "rounded": (lambda: split_schedule(product, 3, "vector"), "of bfloat16 would round the sum"),
    "a function": (lambda: column_schedule(total_and_more, 3), "is computed of the sum"),
    "slices": (lambda: split_schedule(wide_product, 3, "slices"), "leave each a part of its own"),
    "back by boxes": (
        lambda: split_schedule(wide_product, 3, "tma+bulk"), "brings the sum back to shared memory",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REASONS)
def test_why_scratch_holds_the_parts(name: str) -> None:
    make, why = REASONS[name]
    s = make()
    (t,) = (t.stage for t in s.tensors if t.stage.grid_mode is not None)
    found = result_in_turns(s.flow, t)
    assert isinstance(found, str) and why in found
    assert len(s.lower("sm_90a").ir.scratch) == 1


def test_parts_in_fewer_bits_are_not_added_to_a_result() -> None:
    s = column_schedule(total, 3)
    t = s.outputs[0].request_serial_grid_reduction("vector", "bfloat16")
    assert "rounded to bfloat16" in str(result_in_turns(s.flow, t.stage))
    assert len(s.lower().ir.scratch) == 1


def test_a_reader_in_the_same_kernel_gets_the_sum_from_scratch() -> None:
    """It would read what the last block has not added yet."""
    s = split_schedule(with_bias, 3, "vector")
    assert len(s.lower("sm_90a").ir.scratch) == 1


def test_a_program_needs_no_workspace() -> None:
    """Nobody reads what was in the result before: it is written, to its hosts."""
    program = fw.compile(of_product("vector"))
    assert program.workspace_nbytes == 0
    assert fw.compile(split_schedule(product, 3, "vector")).workspace_nbytes > 0
    (kernel,) = program.kernels
    assert [p.access for p in kernel.params] == ["R", "R", "W"]
    written = [m for b, m in accesses(kernel.ir).items() if b in kernel.ir.stored_in_turns]
    assert written == [AccessMode.WRITE]


def test_texts_print_and_parse() -> None:
    kernel = of_product("tma", shape=(60, 40, 920)).lower("sm_90a").ir
    assert str(fw.parse_kernel(str(kernel))) == str(kernel)


def test_a_store_outside_of_the_turn_is_refused() -> None:
    text = str(column_schedule(total, 3).lower().ir)
    lines = text.splitlines(keepends=True)
    (store,) = (x for x in lines if x.lstrip().startswith("store t0["))
    moved = [x for x in lines if x is not store]
    moved.insert(next(i for i, x in enumerate(moved) if "semaphore_release" in x) + 1, store)
    with pytest.raises(fw.SpecError, match="t0 is to be stored in turns, and this stands in no"):
        check_kernel(fw.parse_kernel("".join(moved)), "lowered")


def test_a_result_in_turns_is_not_stored_once() -> None:
    k = column_schedule(total, 3).lower().ir
    with pytest.raises(fw.SpecError, match="t0 is to be stored once, and is read"):
        check_kernel(replace(k, stored_once=k.stored_in_turns), "lowered")
    both = (*k.stored_in_turns, *k.semaphores)
    with pytest.raises(fw.SpecError, match="t0_turns, which is to be stored in turns, is no resul"):
        check_kernel(replace(k, stored_in_turns=both), "lowered")


def test_runs_that_a_turn_guards_have_strides() -> None:
    text = str(of_product("vector", shape=(60, 40, 920)).lower("sm_90a").ir)
    with pytest.raises(fw.SpecError, match="2 extents and 1 strides of the runs that it guards"):
        check_kernel(fw.parse_kernel(text.replace("extents((64))", "extents((64, 2))")), "lowered")


def test_groups_that_meet_in_a_result_are_races() -> None:
    """What a kernel says of its results is no proof: the simulator looks at each element."""
    s = column_schedule(total, 3)
    kernel, (x,) = s.lower(), arrays_of(s)
    text = str(kernel.ir).replace("t0[128*bx + 4*tx]", "t0[4*tx]")
    assert text != str(kernel.ir)
    bad = fw.parse_kernel(text)
    case = case_of(kernel, [x])
    assert kernel.simulate(x).races == []
    renamed = dict(zip(bad.params, case.arrays.values(), strict=True))
    found = verify_kernel(bad, replace(case, arrays=renamed, outputs=(bad.params[1],)))
    assert found.missing


@pytest.mark.parametrize("fn", [wide_product, product])
def test_candidates_say_where_parts_are_added_up(fn: Callable[..., object]) -> None:
    specs = [fw.TensorSpec(x, "bfloat16") for x in ((512, 32768), (32768, 1024))]
    flow = fw.Schedule(fw.trace(fn, *specs)).flow
    listed = list(MatmulScheduler(flow, target_of("sm_90a")).candidates())
    made = [c for c in listed if isinstance(c, Candidate) and not c.plan.stream]
    turns = [c for c in made if "in turns" in c.what]
    assert {c.plan.mode for c in turns} == {"vector", "tma", "tma+bulk"}
    for c in turns:
        in_result = fn is wide_product and c.plan.mode != "tma+bulk"
        assert c.plan.in_result == in_result == ("in the result" in c.what)
        rounded = "through scratch: t0 of bfloat16 would round the sum of float32" in c.what
        assert rounded == (fn is product)
        assert (c.plan.staged == c.plan.columns) == (in_result and c.plan.mode == "tma")


def test_a_plan_in_the_result_is_scheduled_so() -> None:
    """By the candidate that a tuner would try: no scratch, boxes of all 128 columns."""
    specs = [fw.TensorSpec(x, "bfloat16") for x in ((128, 4096), (4096, 128))]
    s = fw.Schedule(fw.trace(wide_product, *specs))
    scheduler = MatmulScheduler(s.flow, target_of("sm_90a"))
    plans = (c.plan for c in scheduler.candidates() if isinstance(c, Candidate))
    assert scheduler.apply(next(p for p in plans if p.mode == "tma"))
    kernel = s.lower("sm_90a").ir
    assert kernel.scratch == () and len(kernel.stored_in_turns) == 1
    assert any(isinstance(x, BoxReduce) for x in walk_statements(kernel))


def test_adding_to_the_result_saves_a_pass() -> None:
    target = target_of("sm_90a")
    sizes = ProductSizes(1, 1024, 1024, 65536)
    plan = ProductPlan(128, 128, 64, 2, 4, splits=2, mode="tma")
    scratch = predicted_us(sizes, plan, target)
    inside = predicted_us(sizes, replace(plan, staged=128, in_result=True), target)
    assert scratch - inside > 0
    assert scratch - inside == pytest.approx(4 * 1024 * 1024 / target.memory_nbytes_per_us)
