"""Schedules whose loops no kernel has: what inlining, rfactor, boxes and launches refuse, with the
names and numbers and the way out. Limits stand with the last number that is taken."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fusewright as fw
from fusewright.kir import lower


def spec(*shape: int | str, dtype: str = "float32") -> fw.TensorSpec:
    return fw.TensorSpec(shape, dtype)


def schedule(fn: Callable[..., Any], *specs: fw.TensorSpec) -> fw.Schedule:
    return fw.Schedule(fw.trace(fn, *specs))


def exp_of(*shape: int | str, dtype: str = "float32") -> fw.Schedule:
    return schedule(lambda x: fw.name(fw.exp(x), "y"), spec(*shape, dtype=dtype))


def chain() -> fw.Schedule:
    return schedule(lambda x: fw.name(fw.name(fw.exp(x), "e") * 2.0, "y"), spec(8, 64))


# --- sharing loops --------------------------------------------------------------------------------


def _readers_of_different_loops() -> None:
    def program(x: Any) -> Any:
        h = fw.name(fw.exp(x), "h")
        return fw.name(h * 2.0, "a"), fw.name(h + 1.0, "b")

    s = schedule(program, spec(4, 6))
    s["b"].split(0, 2)
    s["h"].inline_at(s["a"], 1)


def _a_reader_inside_the_reduction() -> None:
    def program(x: Any) -> Any:
        h = fw.name(fw.exp(x), "h")
        return fw.name(h - fw.expand_dims(fw.name(fw.sum(h, axis=1), "m"), 1), "y")

    s = schedule(program, spec(4, 6))
    s["h"].inline_at(s["y"], 2)


def _loops_that_need_each_other() -> None:
    def program(x: Any) -> Any:
        u = fw.name(fw.exp(x), "u")
        turned = fw.name(fw.flip(fw.name(u + 1.0, "a"), axis=0), "k")
        return fw.name(u * turned, "c")

    s = schedule(program, spec(4, 6))
    s["u"].inline_at(s["a"], 1)


def _half_of_a_loop() -> None:
    s = chain()
    s["y"].split(0, 3)
    s["e"].split(0, 2).inline_at(s["y"], 1)


def _threads_of_another_loop() -> None:
    s = chain()
    s["y"].parallelize(1, fw.TIDx)
    s.lower()


def _gathered_registers() -> None:
    s = schedule(
        lambda x, i: fw.name(fw.take(fw.name(fw.exp(x), "e"), i, axis=0), "y"),
        spec(8, 4),
        spec(3, dtype="int32"),
    )
    s.lower()


def _blocks_of_another_loop() -> None:
    def program(x: Any) -> Any:
        e = fw.name(fw.exp(x), "e")
        return fw.name(fw.cumulative_sum(e, axis=0), "c"), fw.name(e * 2.0, "y")

    s = schedule(program, spec(8))
    s["y"].split(0, 2).reorder([1, 0]).parallelize(0, fw.BIDx)
    s.transform_like(s["y"]).lower()


NESTS: list[tuple[Callable[[], None], str]] = [
    (
        _readers_of_different_loops,
        r"h is inlined at depth 1 but its loop 0 is not loop 0 of its reader b; give both the same",
    ),
    (
        _a_reader_inside_the_reduction,
        r"y needs the finished m but stands inside the loop that reduces it; inline the values",
    ),
    (_loops_that_need_each_other, r"the loops over u\+a\+c, k need each other's results; inline"),
    (
        _half_of_a_loop,
        r"loop e\.0//2 of e is only partly one of the first 1 loops of y; transform e like y first",
    ),
    (
        _threads_of_another_loop,
        r"y reads e at register .*tx.*: registers cannot be indexed by tx; keep e in shared memory",
    ),
    (_gathered_registers, r"y gathers from e, which is in registers; keep it in shared memory or"),
    (
        _blocks_of_another_loop,
        r"c needs e at BIDx loop 0 = i0%2, but stands at -1; keep e in shared memory, give both",
    ),
]


@pytest.mark.parametrize(("attempt", "message"), NESTS, ids=lambda x: getattr(x, "__name__", ""))
def test_loops_that_cannot_be_shared(attempt: Callable[[], None], message: str) -> None:
    with pytest.raises(fw.ScheduleError, match=message):
        attempt()


def test_an_allocation_determines_every_element() -> None:
    s = chain()
    e = s["e"].set_memory(fw.SHARED).stage
    e.allocation = e.frame.output[:1]
    with pytest.raises(
        fw.ScheduleError, match=r"e cannot be stored by \(e\.0\): .*; its allocation"
    ):
        s.lower()


def test_loops_that_lost_an_axis_are_refused_by_lowering() -> None:
    s = chain()
    s["y"].stage.loops = s["y"].stage.loops[:1]
    with pytest.raises(
        fw.ScheduleError, match=r"the loops of y do not cover it: .*do not determine"
    ):
        s.lower()


# --- rfactor --------------------------------------------------------------------------------------


def total(*shape: int | str, axis: Any = (1, 2)) -> fw.ScheduledTensor:
    return schedule(lambda x: fw.name(fw.sum(x, axis=axis), "y"), spec(*shape))["y"]


RFACTORS: list[tuple[Callable[[], object], str]] = [
    (
        lambda: total(8, 6, 4).reorder([0, 2, 1]).merge(1).split(1, 3).rfactor(1),
        r"rfactor\(y\): the reduced index .* is not a sum of its loops; leave its loops as splits",
    ),
    (
        lambda: total(8, 4, 4).swizzle(1, 2).rfactor(1),
        r"rfactor\(y\): the reduced index .*i1\^i2.* is not a sum of its loops",
    ),
    (
        lambda: total(8, "N", axis=1).split(1, 4, inner=False).rfactor(1),
        r"rfactor\(y\): the reduced index .* is not a sum of its loops",
    ),
]


@pytest.mark.parametrize(("attempt", "message"), RFACTORS, ids=["order", "swizzle", "symbolic"])
def test_loops_that_no_partial_result_has(attempt: Callable[[], object], message: str) -> None:
    with pytest.raises(fw.ScheduleError, match=message):
        attempt()


def test_a_symbolic_axis_is_split_by_a_constant() -> None:
    partial = total(8, "N", axis=1).split(1, 4).rfactor(1)
    assert partial.name == "y_rf" and len(partial.axes) == 3


# --- launches -------------------------------------------------------------------------------------


@pytest.mark.parametrize("threads", [1024, 1025])
def test_a_block_has_1024_threads_at_most(threads: int) -> None:
    s = exp_of(1 << 12)
    s["y"].split(0, threads).parallelize(0, fw.BIDx).parallelize(1, fw.TIDx)
    if threads == 1024:
        assert str(s.lower().launch.block[0]) == "1024"
        return
    with pytest.raises(
        fw.ScheduleError, match="kernel: 1025 threads a block, the limit is 1024; b"
    ):
        s.lower()


def test_threads_of_all_dimensions_count() -> None:
    s = exp_of(33, 32)
    s["y"].parallelize(0, fw.TIDy).parallelize(1, fw.TIDx)
    with pytest.raises(fw.ScheduleError, match="kernel: 1056 threads a block, the limit is 1024"):
        s.lower()


def test_threads_are_a_constant_number() -> None:
    s = exp_of(8, "N")
    s["y"].parallelize(1, fw.TIDx)
    with pytest.raises(
        fw.ScheduleError, match=r"block dimension tx has the symbolic extent N; spli"
    ):
        s.lower()


@pytest.mark.parametrize("dim", [fw.BIDy, fw.BIDz])
@pytest.mark.parametrize("rows", [65535, 65536])
def test_a_grid_has_65535_blocks_along_y_and_z(dim: fw.Parallel, rows: int) -> None:
    s = exp_of(rows, 4)
    s["y"].parallelize(0, dim).parallelize(1, fw.TIDx)
    if rows == 65535:
        assert rows in [int(str(n)) for n in s.lower().launch.grid]
        return
    name = dim.value.lower().replace("id", "")
    with pytest.raises(
        fw.ScheduleError, match=f"65536 blocks along {name}, the limit is 65535; use"
    ):
        s.lower()


@pytest.mark.parametrize("n", [64, 65])
def test_a_thread_holds_so_many_elements_at_most(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the edge of a smaller limit: one of 4096 elements takes seconds to write out."""
    assert lower.MAX_HELD == 4096
    monkeypatch.setattr(lower, "MAX_HELD", 64)

    def program(x: Any) -> Any:
        e = fw.name(fw.exp(x), "e")
        return fw.name(e - fw.name(fw.sum(e, axis=0), "m"), "y")

    s = schedule(program, spec(n))
    if n == 64:
        assert "local e: float32[64]" in str(s.lower().ir)
        return
    with pytest.raises(fw.ScheduleError, match=r"e: a thread would hold 65 elements, 64 at m"):
        s.lower()


def test_accumulators_are_a_constant_number() -> None:
    s = schedule(lambda x: fw.name(fw.sum(x, axis=0), "y"), spec(8, "N"))
    s["y"].reorder([1, 0])
    with pytest.raises(
        fw.ScheduleError, match="y would carry N accumulators; the count must be co"
    ):
        s.lower()


def test_blocks_hand_on_a_constant_number_of_elements() -> None:
    s = schedule(lambda x: fw.name(fw.sum(x, axis=0), "y"), spec(64, "N"))
    t = s["y"].split(1, 16).parallelize(0, fw.TIDx).parallelize(1, fw.BIDx)
    t.request_serial_grid_reduction()
    with pytest.raises(
        fw.ScheduleError, match="y: blocks hand on N elements a thread; the number "
    ):
        s.lower()


def test_shared_memory_is_of_constant_size() -> None:
    s = schedule(lambda x: fw.exp(fw.name(fw.sum(x, axis=0), "m")), spec(8, "N"))
    s["m"].set_memory(fw.SHARED)
    with pytest.raises(
        fw.ScheduleError, match="m would need N elements of shared memory; the size"
    ):
        s.lower()


# --- boxes ----------------------------------------------------------------------------------------


def boxed(*shape: int | str, split: int = 0, merge: bool = False, loops: Any = (0, 1)) -> Any:
    """A copy of an argument by boxes, lowered."""
    s = exp_of(*shape, dtype="bfloat16")
    c = s["x"].cache_after(by="bulk")
    if split:
        c.split(1, split)
    if merge:
        c.merge(0)
    for i in loops:
        c.parallelize(i, fw.Bulk)
    return s.lower()


BOXES: list[tuple[Callable[[], object], str]] = [
    (lambda: boxed(8, "N", loops=(1,)), r"axis=1, Bulk\): extent N is not constant; split by the"),
    (lambda: boxed(8, 64, loops=(1,)), r"Bulk loops of x_c: 1 of them; a box has rows and columns"),
    (lambda: boxed(8, 16, 64), r"Bulk loops of x_c: none runs along axis 2, on which x is contig"),
    (
        lambda: boxed(8, 64, split=16, loops=(1, 2)),
        r"loop 2 runs along 1 axes of it; each loop runs along one axis of its own",
    ),
    (lambda: boxed(8, 4, 64, merge=True), r"Bulk loops of x_c: loop 0 runs along 2 axes of it"),
    (lambda: boxed(8, 24), r"a tile of 8 x 24: 48 bytes of a row are no multiple of 32; split by"),
    (lambda: boxed(8, 12), r"its boxes cannot lie in global memory: its rows lie 12 elements"),
    (
        lambda: boxed(12, 64),
        r"a tile of 12 x 64: 12 rows of a swizzled tile are not a multiple of 8",
    ),
]


@pytest.mark.parametrize(("attempt", "message"), BOXES, ids=range(len(BOXES)))
def test_tiles_that_no_tensor_map_takes(attempt: Callable[[], object], message: str) -> None:
    with pytest.raises(fw.ScheduleError, match=message):
        attempt()


@pytest.mark.parametrize("rows", [8, 256, 264, 512])
def test_tiles_of_more_rows_than_a_box_are_several_boxes(rows: int) -> None:
    """A box has 256 rows at most, and begins where the swizzle does: at a multiple of 8."""
    kernel = boxed(rows, 16)
    x = np.random.default_rng(0).standard_normal((rows, 16)).astype(fw.bfloat16.numpy)
    result = kernel.simulate(x)
    assert result.races == []
    np.testing.assert_allclose(
        result.outputs[0].astype(np.float32), np.exp(x.astype(np.float32)), rtol=1e-2
    )
    assert str(kernel.ir).count("box_load") == {8: 1, 256: 1, 264: 3, 512: 2}[rows]


def test_warps_of_their_own_copy_boxes() -> None:
    s = schedule(lambda x: fw.sum(x, axis=1), spec(8, 512))
    c, y = s["x"].cache_after(by="bulk"), s.outputs[0]
    y.parallelize(0, fw.BIDx).split(1, 128).split(2, 4).parallelize(2, fw.TIDx)
    s.transform_like(y)
    c.parallelize(-1, fw.Vectorize).inline_at(y, 2)
    c.circular_buffer(2, warp_specialized=True)
    with pytest.raises(
        fw.ScheduleError, match="x_c is not copied as boxes, and warps of their own"
    ):
        s.lower()
