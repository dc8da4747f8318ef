"""Sorts, selections and searches: the oracle against numpy, simulated kernels against the oracle,
on ties, NaN, zeros of both signs, every dtype, odd and empty axes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import fusewright as fw
from fusewright.core.expr import Int
from fusewright.fusion import ir
from fusewright.fusion.ops import ordering
from fusewright.fusion.passes.merge_sorts import MOST_SORTED, merge_sorts
from fusewright.fusion.text import parse_fusion
from fusewright.kir import sort_network

S = fw.TensorSpec
RNG = np.random.default_rng(11)
INTEGERS = ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
FLOATS = ("float16", "bfloat16", "float32", "float64")


def draw(dtype: str, *shape: int, plain: bool = False) -> np.ndarray:
    """Numbers with ties and, of floats, zeros of both signs, infinities and, but for `plain` ones,
    NaN of both signs; integers of the whole range."""
    kind = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    if dtype == "bool":
        return RNG.random(shape) < 0.5
    if dtype in INTEGERS:
        ends = np.iinfo(dtype)
        some = RNG.integers(ends.min, ends.max, shape, dtype=dtype, endpoint=True)
        few = RNG.integers(0, 5, shape).astype(dtype)
        return np.where(RNG.random(shape) < 0.5, some, few)
    numbers = np.round(RNG.standard_normal(shape) * 4) / 2
    numbers[RNG.random(shape) < 0.1] = -0.0
    numbers[RNG.random(shape) < 0.1] = np.inf
    numbers[RNG.random(shape) < 0.1] = -np.inf
    if not plain:
        numbers[RNG.random(shape) < 0.1] = np.nan
        numbers[RNG.random(shape) < 0.1] = -np.nan
    return numbers.astype(kind)


def wide(x: np.ndarray) -> np.ndarray:
    return x.astype(np.float32) if x.dtype == ml_dtypes.bfloat16 else x


def run(fn: Callable[..., Any], *arrays: np.ndarray) -> list[np.ndarray]:
    """What the oracle and simulated kernels find, which is the same bit by bit, but for the sign
    and content of NaN."""
    fusion = fw.trace(fn, *(S(a.shape, a.dtype) for a in arrays))
    found = fw.evaluate(fusion, *arrays)
    result = fw.compile(fusion).simulate(*arrays)
    assert result.races == []
    for a, b in zip(result.outputs, found, strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(wide(a), wide(b))
        if a.dtype.kind == "f":
            np.testing.assert_array_equal(np.signbit(a[~np.isnan(a)]), np.signbit(b[~np.isnan(b)]))
    return found


def positions(x: np.ndarray, axis: int, *, descending: bool) -> np.ndarray:
    """numpy's stable order, or that of the greatest first."""
    if not descending:
        return np.argsort(wide(x), axis=axis, kind="stable")
    back = np.argsort(np.flip(wide(x), axis), axis=axis, kind="stable")
    return x.shape[axis] - 1 - np.flip(back, axis)


# --- sort and argsort ---------------------------------------------------------------------------


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("dtype", [*INTEGERS, *FLOATS])
def test_sorts_of_every_dtype(dtype: str, descending: bool) -> None:
    x = draw(dtype, 3, 9)
    order = positions(x, 1, descending=descending)
    values, at = run(
        lambda x: (fw.sort(x, descending=descending), fw.argsort(x, descending=descending)), x
    )
    np.testing.assert_array_equal(wide(values), np.take_along_axis(wide(x), order, 1))
    np.testing.assert_array_equal(at, order)
    assert at.dtype == np.int64


@pytest.mark.parametrize("shape", [(0,), (1,), (2,), (3, 0), (0, 3), (2, 1), (5, 8, 2), (33,)])
def test_sorts_along_every_axis(shape: tuple[int, ...]) -> None:
    x = draw("float32", *shape, plain=True)
    for axis in range(x.ndim):
        values, at = run(lambda x, k=axis: (fw.sort(x, axis=k), fw.argsort(x, axis=k)), x)
        np.testing.assert_array_equal(values, np.sort(x, axis=axis))
        np.testing.assert_array_equal(at, np.argsort(x, axis=axis, kind="stable"))


def test_minus_zero_comes_before_zero_where_values_are_sorted() -> None:
    (values,) = run(fw.sort, np.array([0.0, -0.0, 0.0, -0.0], np.float32))
    np.testing.assert_array_equal(np.signbit(values), [True, True, False, False])


def test_rows_of_many_sizes_are_sorted() -> None:
    for size in (5, 16, 33, 100):
        x = draw("int32", 2, size)
        (at,) = run(fw.argsort, x)
        np.testing.assert_array_equal(at, np.argsort(x, kind="stable"))


def test_rows_that_a_block_holds_are_sorted_by_one_kernel() -> None:
    """The map of floats to integers, the positions beside them and the way back are in it too."""
    program = fw.compile(fw.trace(lambda x: (fw.argsort(x) + 1) * 2, S((9, 100), "float32")))
    (kernel,) = program.kernels
    assert not any(k in kernel.cuda for k in ("atom", "lock"))
    assert {s.kind for s in kernel.syncs} <= {"WarpSync", "BlockSync"}
    x = draw("float32", 9, 100)
    got = program.simulate(x)
    assert got.races == []
    np.testing.assert_array_equal(got.outputs[0], (np.argsort(x, kind="stable") + 1) * 2)


AROUND: dict[str, Callable[[Any], Any]] = {
    "its operand again": lambda x: fw.sort(x) - x,
    "a softmax before": lambda x: fw.sort(fw.nn.softmax(x)),
    "a softmax behind": lambda x: fw.nn.softmax(fw.sort(x)),
    "another sort": lambda x: fw.sort(x) + fw.sort(-x),
    "a sort of the other axis": lambda x: fw.sort(fw.sort(x, axis=0), axis=1),
    "a transposition": lambda x: fw.sort(x.T).T + 1,
    "a broadcast": lambda x: fw.sort(x[0]) + x,
    "crops and pads": lambda x: fw.pad(fw.sort(x[:, 1:])[:, 1:-1], 2),
    "joins": lambda x: fw.concat([fw.sort(fw.concat([x, x * 2], axis=1)), x], axis=1),
    "scans": lambda x: fw.cumulative_sum(fw.sort(fw.cumulative_sum(x, axis=1)), axis=1),
    "a reshape": lambda x: fw.reshape(fw.sort(fw.reshape(x, (-1, 3))), x.shape),
    "steps": lambda x: fw.sort(x[:, ::2])[:, ::-2],
    "a product": lambda x: fw.sort(x) @ x.T,
    "both orders": lambda x: (fw.sort(x), fw.argsort(x), fw.exp(x)),
}


@pytest.mark.parametrize("name", AROUND)
def test_sorts_with_what_is_around_them(name: str) -> None:
    x = RNG.standard_normal((6, 12)).astype(np.float32)
    fusion = fw.trace(AROUND[name], S(x.shape, "float32"))
    result = fw.compile(fusion).simulate(x)
    assert result.races == []
    for a, b in zip(result.outputs, fw.evaluate(fusion, x), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_syncs_of_a_sort_are_needed_and_enough() -> None:
    """Rounds among the threads of a warp need no barrier of the block."""
    (kernel,) = fw.compile(fw.trace(fw.sort, S((1, 520), "int32"))).kernels
    kinds = [s.kind for s in kernel.syncs]
    assert "WarpSync" in kinds and "BlockSync" in kinds
    report = fw.verify(kernel)
    assert report.missing == [] and report.redundant == []


def test_long_rows_are_merges_of_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    for size in (9, 16, 25, 40):
        fusion = fw.trace(fw.sort, S((3, size), "uint32"))
        merged = merge_sorts(fusion, 8)
        (sort,) = (t for t in merged.values if isinstance(t.op, ir.Sort))
        assert sort.shape[-1] == Int(8)
        x = draw("uint32", 3, size)
        np.testing.assert_array_equal(fw.evaluate(merged, x)[0], np.sort(x))
    monkeypatch.setattr("fusewright.forms.merge_sorts", lambda f: merge_sorts(f, 8))
    for axis in (0, 1):
        x = draw("float32", 21, 19)
        (at,) = run(lambda x, k=axis: fw.argsort(x, axis=k), x)
        np.testing.assert_array_equal(at, np.argsort(x, axis=axis, kind="stable"))


def test_sizes_choose_blocks_or_merges() -> None:
    for size in (MOST_SORTED, MOST_SORTED + 1):
        fusion = fw.trace(fw.sort, S((2, size), "uint32"))
        assert (merge_sorts(fusion) is fusion) == (size == MOST_SORTED)


@pytest.mark.parametrize(("size", "most"), [(1, 1), (2, 2), (16, 4), (64, 8), (256, 16), (128, 2)])
def test_rounds_of_comparisons_sort(size: int, most: int) -> None:
    """The network by itself: places of each round by definition, zeros and ones and random rows."""
    for seed in range(20):
        rng = np.random.default_rng(seed)
        row = rng.integers(0, 2 if seed % 2 else 1000, size)
        want = np.sort(row)
        for r in sort_network.rounds(size, most):
            for group in range(size // r.size):
                base = group // r.stride * r.size * r.stride
                offset = group % r.stride
                at = [base + offset + m * r.stride for m in range(r.size)]
                if r.is_mirrored:
                    half = r.size // 2
                    last = base + half * r.stride + r.stride - 1 - offset
                    at[half:] = [last + m * r.stride for m in range(half)]
                for pairs in sort_network.steps(r):
                    for low, high in pairs:
                        a, b = row[at[low]], row[at[high]]
                        row[at[low]], row[at[high]] = min(a, b), max(a, b)
        np.testing.assert_array_equal(row, want)


def by_hand(threads: int, *, copy: bool = True, shared: bool = True) -> fw.Schedule:
    """Rows of 48 sorted in a tile by a schedule by hand."""
    s = fw.Schedule(fw.trace(lambda x: fw.sort(x), S((4, 48), "uint32")))
    t = s["t0"]
    if copy:
        tile = s["x"].cache_after()
        if shared:
            tile.set_memory(fw.SHARED)
        for u in (tile, t):
            u.split(1, threads)
            u.parallelize(2, fw.TIDx)
            u.parallelize(0, fw.BIDx)
    return s


def test_sorts_by_hand() -> None:
    x = draw("uint32", 4, 48)
    for threads in (1, 8, 32):
        kernel = by_hand(threads).lower()
        result = kernel.simulate(x)
        assert result.races == []
        np.testing.assert_array_equal(result.outputs[0], np.sort(x))


def out_of_order() -> fw.Schedule:
    s = by_hand(8, copy=False)
    s["x"].cache_after().set_memory(fw.SHARED)
    s["x_c"].split(1, 8)
    s["x_c"].parallelize(1, fw.TIDx)
    return s


def side_by_side() -> fw.Schedule:
    s = fw.Schedule(fw.trace(lambda x: fw.sort(x, axis=0), S((48, 4), "uint32")))
    s["x"].cache_after().set_memory(fw.SHARED)
    s["x_c"].parallelize(0, fw.TIDx)
    s["x_c"].parallelize(1, fw.TIDy)
    return s


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        (out_of_order, r"x_c: loop 1 .* cannot be bound to TIDx; keep the sorted axis in order"),
        (side_by_side, r"x_c: its rows do not lie in one piece in shared memory; keep the loops"),
        (lambda: by_hand(12), r"12 threads along a sorted axis of 48; give it a power of two, at"),
        (lambda: by_hand(8, copy=False), r"t0 sorts x in place, which is in global memory; let it"),
        (lambda: by_hand(8, shared=False), r"sorts x_c in place, which is in local memory"),
    ],
)
def test_sorts_that_schedules_do_not_allow(schedule: Any, message: str) -> None:
    with pytest.raises(fw.ScheduleError, match=message):
        schedule().lower()


def test_sorts_print_and_parse() -> None:
    fusion = fw.trace(lambda x: fw.sort(x, axis=0), S((6, 2), "float32"))
    assert "Sort(" in str(fusion) and "bitcast" in str(fusion)
    assert str(parse_fusion(str(fusion))) == str(fusion)


def test_gradients_go_to_the_places_that_elements_come_from() -> None:
    x, w = draw("float32", 4, 9, plain=True), RNG.standard_normal((4, 9)).astype(np.float32)
    x = RNG.standard_normal((4, 9)).astype(np.float32)
    for descending in (False, True):

        def loss(x: Any, w: Any, d: bool = descending) -> Any:
            return fw.sum(fw.sort(x, axis=0, descending=d) * w)

        (g,) = run(lambda x, w, f=loss: fw.grad(f)(x, w), x, w)
        want = np.zeros_like(x)
        np.put_along_axis(want, positions(x, 0, descending=descending), w, 0)
        np.testing.assert_array_equal(g, want)


def test_gradients_of_the_largest() -> None:
    x, w = (RNG.standard_normal((3, 8)).astype(np.float32) for _ in range(2))
    (g,) = run(
        lambda x, w: fw.grad(lambda x: fw.sum(fw.topk(x, 3).values * w[:, :3]))(x),
        x,
        w,
    )
    want = np.zeros_like(x)
    np.put_along_axis(want, positions(x, 1, descending=True)[:, :3], w[:, :3], 1)
    np.testing.assert_array_equal(g, want)


def test_sorts_of_slices_are_mapped() -> None:
    x = draw("float32", 3, 4, 7)
    (got,) = run(fw.vmap(lambda x: fw.argsort(x, axis=0)), x)
    np.testing.assert_array_equal(got, np.argsort(x, axis=1, kind="stable"))


# --- topk ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("k", [0, 1, 3, ordering.MAX_ROUNDS, ordering.MAX_ROUNDS + 1, 12])
def test_the_first_of_an_order(k: int, largest: bool) -> None:
    for dtype in ("float32", "int64", "uint8", "bfloat16"):
        x = draw(dtype, 3, 12)
        values, at = run(lambda x: tuple(fw.topk(x, k, largest=largest)), x)
        order = positions(x, 1, descending=largest)[:, :k]
        np.testing.assert_array_equal(at, order)
        np.testing.assert_array_equal(wide(values), np.take_along_axis(wide(x), order, 1))
        assert values.dtype == x.dtype and at.dtype == np.int64


def test_few_of_the_largest_are_maxima_of_rows() -> None:
    fusion = fw.trace(lambda x: fw.topk(x, 2, axis=0), S((50, 3), "float32"))
    assert not any(isinstance(t.op, ir.Sort) for t in fusion.values)
    x = draw("float32", 50, 3)
    _, at = run(lambda x: tuple(fw.topk(x, 2, axis=0)), x)
    np.testing.assert_array_equal(at, positions(x, 0, descending=True)[:2])


@pytest.mark.parametrize(
    ("size", "axis", "largest"), [(4097, 1, True), (9001, 1, False), (5000, 0, True)]
)
def test_topk_of_chunks(
    size: int, axis: int, largest: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ties go to the first positions, and what fills the last chunk is never found."""
    monkeypatch.setattr(ordering, "LONGEST_ROW", 4096)
    x = draw("float32", 2, size)
    x[0, -3:] = np.inf if largest else -np.inf
    x = np.ascontiguousarray(x.T) if axis == 0 else x
    fusion = fw.trace(lambda x: fw.topk(x, 3, axis=axis, largest=largest), S(x.shape, "float32"))
    program = fw.compile(fusion)
    result = program.simulate(x)
    assert result.races == []
    found = np.take(positions(x, axis, descending=largest), range(3), axis=axis)
    np.testing.assert_array_equal(result.outputs[1], found)
    np.testing.assert_array_equal(result.outputs[0], np.take_along_axis(x, found, axis=axis))


def test_topk_reads_a_long_row_once() -> None:
    """And once more by the gather of the values, whose binding is counted whole."""
    program = fw.compile(fw.trace(lambda x: fw.topk(x, 4), S((8, 128000), "float32")))
    stats = program.host.stats
    assert stats["launches"] == 3 and stats["bytes_moved"] < 2.01 * 8 * 128000 * 4
    kept = fw.compile(fw.trace(lambda x: fw.topk(x, 4), S((8, ordering.LONGEST_ROW), "float32")))
    assert kept.host.stats["launches"] == 2


# --- searchsorted -------------------------------------------------------------------------------


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("dtype", [*INTEGERS, *FLOATS])
def test_searches_in_every_dtype(dtype: str, side: Any) -> None:
    x, v = draw(dtype, 9), draw(dtype, 3, 10)
    (got,) = run(lambda x, v: fw.searchsorted(fw.sort(x), v, side=side), x, v)
    np.testing.assert_array_equal(got, np.searchsorted(np.sort(wide(x)), wide(v), side))
    (got,) = run(lambda x, v: fw.searchsorted(x, v, side=side, sorter=fw.argsort(x)), x, v)
    np.testing.assert_array_equal(got, np.searchsorted(np.sort(wide(x)), wide(v), side))


def test_searches_in_every_size() -> None:
    for size in (0, 1, 2, 3, 4, 5, 7, 8, 9, 31, 32, 33, 2000):
        x, v = np.sort(draw("float32", size)), draw("float32", 40)
        for side in ("left", "right"):
            (got,) = run(lambda x, v, s=side: fw.searchsorted(x, v, side=s), x, v)
            np.testing.assert_array_equal(got, np.searchsorted(x, v, side))


def test_a_search_is_one_kernel_without_a_sync() -> None:
    program = fw.compile(fw.trace(fw.searchsorted, S((1000,), "float32"), S((500,), "float32")))
    (kernel,) = program.kernels
    assert kernel.syncs == []


# --- kernels ------------------------------------------------------------------------------------


def test_kernels_compile() -> None:
    def all_of(x: Any, y: Any) -> Any:
        return fw.argsort(x), fw.sort(y), fw.topk(y, 2), fw.searchsorted(x[0], x)

    program = fw.compile(fw.trace(all_of, S((2, 6), "float32"), S((2, 5), "float64")))
    for kernel in program.kernels:
        found = kernel.resources()
        assert not found.warnings and not found.spill_loads and not found.stack_nbytes


# --- rejections ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        (lambda x: fw.sort(x, axis=2), fw.UserError, r"sort: axis 2 of an array of rank 2"),
        (lambda x: fw.sort(x[0, 0]), fw.UserError, r"sort: axis -1 of an array of rank 0"),
        (lambda x: fw.argsort(x[0, 0]), fw.UserError, r"argsort: axis -1 of an array of rank 0"),
        (lambda x: fw.sort(x, descending=2), fw.UserError, r"sort\(descending=2\): use True or"),
        (lambda x: fw.topk(x, 6), fw.UserError, r"topk: k=6 of axis 1 of size 5: k goes from 0"),
        (lambda x: fw.topk(x, -1), fw.UserError, r"topk: k=-1 of axis 1 of size 5"),
        (lambda x: fw.topk(x, 1.5), fw.UserError, r"topk: k=1.5 is float; it must be an integer"),
        (lambda x: fw.topk(x, 1, axis=2), fw.UserError, r"topk: axis 2 of an array of rank 2"),
        (fw.searchsorted, fw.UserError, r"searchsorted in .*: the ordered array has rank 1"),
    ],
)
def test_wrong_arguments(call: Any, kind: type[Exception], message: str) -> None:
    args = [S((4, 5), "float32")] * (2 if call is fw.searchsorted else 1)
    with pytest.raises(kind, match=message):
        fw.trace(call, *args)


def test_symbolic_axes_are_not_sorted() -> None:
    message = r"sort of Array.* along axis 0 of symbolic size n: .* make it an integer in the spec"
    with pytest.raises(fw.UnsupportedError, match=message):
        fw.trace(lambda x: fw.sort(x, axis=0), S(("n", 3), "float32"))
    x = draw("float32", 4, 6)
    fusion = fw.trace(fw.argsort, S(("n", 6), "float32"))
    result = fw.compile(fusion).simulate(x)
    np.testing.assert_array_equal(result.outputs[0], np.argsort(x, kind="stable"))
