"""Edits of a schedule that are refused: the class, the names and numbers, and the way out.

One row a rule. Limits stand with the last number that is taken and the first that is not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import fusewright as fw
from fusewright.schedule.block_scan import block_scan
from fusewright.schedule.graph import Dataflow
from fusewright.schedule.heuristics.passes import PassedSchedule

Edit = Callable[[fw.Schedule], object]


def schedule(fn: Callable[..., Any], *specs: fw.TensorSpec) -> fw.Schedule:
    return fw.Schedule(fw.trace(fn, *specs))


def spec(*shape: int | str, dtype: str = "float32") -> fw.TensorSpec:
    return fw.TensorSpec(shape, dtype)


def chain() -> fw.Schedule:
    """x -> e -> y, elementwise, 8 x 64."""

    def program(x: Any) -> Any:
        return fw.name(fw.name(fw.exp(x), "e") * 2.0, "y")

    return schedule(program, spec(8, 64))


def row_sum() -> fw.Schedule:
    return schedule(lambda x: fw.name(fw.sum(x, axis=1), "y"), spec(8, 64))


def block_sum() -> fw.Schedule:
    return schedule(lambda x: fw.name(fw.sum(x, axis=(1, 2)), "y"), spec(8, 6, 4))


def scan() -> fw.Schedule:
    return schedule(lambda x: fw.name(fw.cumulative_sum(x, axis=1), "y"), spec(8, 64))


def product() -> fw.Schedule:
    a, b = spec(128, 64, dtype="bfloat16"), spec(64, 128, dtype="bfloat16")

    def program(a: Any, b: Any) -> Any:
        return fw.name(fw.astype(fw.name(fw.matmul(a, b), "p"), "float32"), "y")

    return schedule(program, a, b)


def rows_of_unknown_length() -> fw.Schedule:
    return schedule(lambda x: fw.name(fw.exp(x), "y"), spec(8, "N"))


def inlined() -> fw.Schedule:
    s = chain()
    s["e"].inline_at(s["y"], 1)
    return s


REFUSED: list[tuple[Callable[[], fw.Schedule], Edit, str]] = [
    (chain, lambda s: s["z"], r"no tensor 'z' in this schedule; it has x, e, .*y"),
    (chain, lambda s: s["y"].split(2, 4), r"split\(y, axis=2\): y has 2 loops; use -2\.\.1"),
    (chain, lambda s: s["y"].split(-3, 4), r"split\(y, axis=-3\): y has 2 loops; use -2\.\.1"),
    (
        chain,
        lambda s: s["y"].split(0, 0),
        r"split\(y, axis=0, factor=0\): a loop has at least one iteration; use a factor from 1",
    ),
    (
        chain,
        lambda s: s["x"].split(0, 4),
        r"split\(x\): an input has no loops of its own; schedule its cache_after\(\)",
    ),
    (chain, lambda s: s["y"].merge(0, 0), r"merge\(y, 0, 0\): both are loop 0; give two loops"),
    (chain, lambda s: s["y"].merge(1, -1), r"merge\(y, 1, -1\): both are loop 1; give two loops"),
    (chain, lambda s: s["y"].merge(1), r"merge\(y, axis=2\): y has 2 loops; use -2\.\.1"),
    (
        chain,
        lambda s: s["y"].reorder({0: 1, 1: 1}),
        r"reorder\(y, \{0: 1, 1: 1\}\): two loops for one position; give each its own",
    ),
    (
        chain,
        lambda s: s["y"].reorder([0, 0]),
        r"reorder\(y, \[0, 0\]\): not a permutation of 2 axes",
    ),
    (
        inlined,
        lambda s: s["e"].reorder([1, 0]),
        r"reorder\(e\): loop 0 is shared with its readers; transform first, inline after",
    ),
    (
        inlined,
        lambda s: s["e"].split(0, 2),
        r"split\(e, axis=0\): the loop is shared with its readers; transform first, inline after",
    ),
    (
        chain,
        lambda s: s["y"].swizzle(0, 1),
        r"swizzle\(y, 0, 1\): extents 8 and 64 must be the same power of two",
    ),
    (
        chain,
        lambda s: s["y"].parallelize(0, fw.TIDx).parallelize(1, fw.TIDx),
        r"parallelize\(y, axis=1, TIDx\): another loop of y is bound to TIDx already; merge them",
    ),
    (
        rows_of_unknown_length,
        lambda s: s["y"].parallelize(1, fw.Vectorize),
        r"parallelize\(y, axis=1, Vectorize\): extent N is not constant; split by the vector width",
    ),
    (
        chain,
        lambda s: s["e"].inline_at(s["y"], 3),
        r"inline_at\(e, y, 3\): y has 2 loops to share; use 0\.\.2, or -1 for all",
    ),
    (
        chain,
        lambda s: s["e"].inline_at(s["y"], -4),
        r"inline_at\(e, y, -4\): y has 2 loops to share; use 0\.\.2, or -1 for all",
    ),
    (chain, lambda s: s["y"].inline_at(s["e"], 1), r"inline_at: e does not read y"),
    (
        chain,
        lambda s: s["e"].set_memory(fw.GLOBAL),
        r"set_memory\(e, GLOBAL\): an intermediate in global memory crosses blocks; make it an out",
    ),
    (
        chain,
        lambda s: s["y"].set_memory(fw.SHARED),
        r"set_memory\(y\): inputs and outputs live in global memory; cache_after or cache_before",
    ),
    (
        chain,
        lambda s: s["e"].promote_reuse(),
        r"promote_reuse\(e\): it lives in local memory, only shared memory is reused; call set_mem",
    ),
    (
        chain,
        lambda s: s["y"].set_allocation_order((0, 0)),
        r"set_allocation_order\(y, \(0, 0\)\): not a permutation of 2 axes",
    ),
    (
        chain,
        lambda s: s["y"].cache_after(),
        r"cache_after\(y\): nothing reads it; use cache_before",
    ),
    (
        chain,
        lambda s: s["x"].cache_after(readers=[s["y"]]),
        r"cache_after\(x\): y does not read it; its readers are e",
    ),
    (
        chain,
        lambda s: s["e"].cache_after(by="bulk"),
        r"cache_after\(e, by='bulk'\): asynchronous copies read global memory, and e is computed",
    ),
    (
        chain,
        lambda s: s["x"].cache_before(),
        r"cache_before\(x\): it is an input; use cache_after",
    ),
    (
        chain,
        lambda s: s["x"].recompute(),
        r"recompute\(x\): it is an input, which nothing computes; use cache_after",
    ),
    (chain, lambda s: s["y"].rfactor(1), r"rfactor\(y\): it is no reduction; call it on a sum"),
    (
        row_sum,
        lambda s: s["y"].split(1, 8).rfactor(0),
        r"rfactor\(y, 0\): loop 0 does not reduce; those that do are 1, 2",
    ),
    (
        row_sum,
        lambda s: s["y"].split(1, 8).rfactor([1, 2]),
        r"rfactor\(y, \[1, 2\]\): these are all its reducing loops; leave one",
    ),
    (
        row_sum,
        lambda s: s["y"].merge(0, 1),
        r"y: a loop over .* would run over a reduced and a kept axis; merge reduced axes with redu",
    ),
    (
        block_sum,
        lambda s: s["y"].merge(1).split(1, 5).merge(0, 2),
        r"y: a loop over .* would run over a reduced and a kept axis",
    ),
    (
        scan,
        lambda s: s["y"].parallelize(1, fw.BIDx),
        r"loop 1 runs along the scanned axis and cannot be bound to BIDx",
    ),
    (
        scan,
        lambda s: s["y"].split(1, 8).reorder([0, 2, 1]),
        r"y: loop 1 would visit the scanned axis out of order; keep that axis serial and in order",
    ),
    (
        chain,
        lambda s: s["x"].cache_after().circular_buffer(2),
        r"circular_buffer\(x_c\): only asynchronous copies run ahead; make it with cache_after\(by",
    ),
    (
        chain,
        lambda s: s["x"].cache_after(by="cp_async").circular_buffer(1),
        r"circular_buffer\(x_c, 1, prefetch=0\): at least 2 stages",
    ),
    (
        chain,
        lambda s: s["x"].cache_after(by="cp_async").circular_buffer(3, prefetch=3),
        r"circular_buffer\(x_c, 3, prefetch=3\): .* all but one at most are copied ahead",
    ),
    (
        product,
        lambda s: s["p"].set_memory(fw.SHARED).mma(),
        r"mma\(p\): results are in registers first; call cache_before\(\) and mma\(\) of what",
    ),
    (
        product,
        lambda s: s["p"].split(2, 16).mma(),
        r"mma\(p\): its last three loops are to be serial ones over a tile's rows, columns",
    ),
    (
        product,
        lambda s: s["p"].cache_before().split(0, 64).parallelize(0, fw.TIDy).mma(),
        r"mma\(p\w*\): TIDy is bound already; mma\(\) binds the threads of a block",
    ),
    (
        chain,
        lambda s: s["y"].skew(1, 1, 65, 4),
        r"skew\(y, axis=1, rows=1, width=4\): two loops, and a width of at least 1",
    ),
    (
        chain,
        lambda s: s["y"].skew(1, 0, 65, 0),
        r"skew\(y, axis=1, rows=0, width=0\): two loops, and a width of at least 1",
    ),
    (
        chain,
        lambda s: s["y"].request_serial_grid_reduction(),
        r"request_serial_grid_reduction\(y, 'vector'\): it is no reduction; ask for it on the tens",
    ),
    (
        inlined,
        lambda s: s["e"].loop_over([]),
        r"loop_over\(e\): it shares loops with its readers; transform first, inline after",
    ),
    (
        chain,
        lambda s: PassedSchedule.of(s.flow).separate_phases(s["y"]),
        r"separate_phases\(y\): it is no reduction",
    ),
    (
        chain,
        lambda s: PassedSchedule.of(s.flow).relate(s["y"]),
        r"relate\(y\): it is no reduction and no scan",
    ),
    (
        chain,
        lambda s: PassedSchedule.of(s.flow).separate_operands(s["y"]),
        r"separate_operands\(y\): it is no product",
    ),
    (
        rows_of_unknown_length,
        lambda s: PassedSchedule.of(s.flow).vectorize(s["y"]),
        r"vectorize\(y\): it has no innermost loop of a constant extent; split one off",
    ),
    (chain, lambda s: s.launch(cluster=0), r"launch\(cluster=0\): a cluster has 1 to 8 blocks"),
    (chain, lambda s: s.launch(cluster=9), r"launch\(cluster=9\): a cluster has 1 to 8 blocks"),
]


@pytest.mark.parametrize(
    ("make", "edit", "message"), REFUSED, ids=lambda x: x[:40] if isinstance(x, str) else ""
)
def test_rejects(make: Callable[[], fw.Schedule], edit: Edit, message: str) -> None:
    s = make()
    with pytest.raises(fw.UserError, match=message):
        edit(s)


def test_a_product_whose_tile_is_shared_is_transformed_first() -> None:
    s = product()
    s["p"].inline_at(s["y"], 1)
    with pytest.raises(fw.ScheduleError, match=r"mma\(p\): its tile is shared with readers; inl"):
        s["p"].mma()


def test_a_value_of_no_elements_is_left_as_it_is() -> None:
    s = schedule(lambda x: fw.name(fw.exp(x), "y"), spec(0, 4))
    with pytest.raises(fw.ScheduleError, match=r"split\(y\): it has no elements; leave it as it"):
        s["y"].split(0, 2)


def test_a_single_element_has_no_loops() -> None:
    s = schedule(lambda x: fw.name(fw.exp(x), "y"), spec())
    with pytest.raises(fw.ScheduleError, match=r"split\(y\): it has no loops; leave it as"):
        s["y"].split(0, 2)


@pytest.mark.parametrize("factor", [1, 64, 65, 1 << 20])
def test_any_factor_from_one_on_is_taken(factor: int) -> None:
    s = chain()
    s["y"].split(1, factor)
    assert len(s["y"].axes) == 3 and s["y"].axes[2] == f"Serial{{{factor}}}"


@pytest.mark.parametrize("size", [1, 2, 8])
def test_a_cluster_of_one_to_eight_blocks_is_taken(size: int) -> None:
    s = chain()
    s.launch(cluster=size)
    assert s.cluster == size


@pytest.mark.parametrize("axis", [0, 1, 2, -1, -2, -3])
def test_any_number_of_the_loops_of_a_reader_may_be_shared(axis: int) -> None:
    s = chain()
    s["e"].inline_at(s["y"], axis)
    assert s["e"].stage.inline_depth == (axis if axis >= 0 else 3 + axis)


@pytest.mark.parametrize(("make", "edit", "message"), REFUSED[1:12], ids=lambda _: "")
def test_a_refused_edit_leaves_the_schedule_as_it_was(
    make: Callable[[], fw.Schedule], edit: Edit, message: str
) -> None:
    s = make()
    before = str(s)
    with pytest.raises(fw.ScheduleError, match=message):
        edit(s)
    assert str(s) == before


# --- what stages cannot do ----------------------------------------------------------------------


def test_only_scans_are_scanned_by_blocks() -> None:
    flow = Dataflow(fw.trace(fw.exp, spec(8)))
    with pytest.raises(fw.ScheduleError, match=r"block_scan\(t\d+\): it is no scan; call it on"):
        block_scan(flow, flow.outputs[0], 4)


def test_a_scan_by_blocks_needs_an_element() -> None:
    flow = Dataflow(fw.trace(lambda x: fw.cumulative_sum(x, axis=0), spec(0)))
    with pytest.raises(fw.ScheduleError, match=r"its axis of size 0 may .*no run of 4; leave it"):
        block_scan(flow, flow.outputs[0], 4)
