"""What an index outside of its axis means (`mode=`), and kernels that look for one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fusewright as fw
from fusewright.fusion.text import parse_fusion, print_fusion
from fusewright.kir.ir import CheckIndex
from fusewright.kir.text import parse_kernel, print_kernel
from fusewright.kir.traverse import walk_statements

ROWS, N = 7, 11
FAR = np.array([0, -1, N, -N - 1, 3, 2 * N + 5, -5 * N, N - 1])
X = np.random.default_rng(0).normal(size=(ROWS, N)).astype(np.float32)
Rows = Callable[..., Any]


def by_numpy(x: np.ndarray, index: np.ndarray, mode: str, fill: float = np.nan) -> np.ndarray:
    """`take` along the last axis, from numpy's own modes."""
    if mode != "fill":
        return np.take(x, index.astype(np.int64), axis=-1, mode=mode)  # type: ignore[call-overload]
    inside = (index >= -N) & (index < N)
    return np.where(inside, np.take(x, np.where(inside, index, 0), axis=-1), np.float32(fill))


def taken(x: Any, i: Any, **options: Any) -> Any:
    return fw.take(x, i, axis=1, **options)


def along(x: Any, i: Any, **options: Any) -> Any:
    spread = fw.broadcast_to(fw.expand_dims(i, 0), (ROWS, *i.shape))
    return fw.take_along_axis(x, spread, axis=1, **options)


def both(f: Rows, *arrays: np.ndarray) -> list[np.ndarray]:
    """What the oracle and kernels make of a program, without races."""
    fusion = fw.trace(f, *(fw.TensorSpec(a.shape, a.dtype) for a in arrays))
    assert print_fusion(parse_fusion(print_fusion(fusion))) == print_fusion(fusion)
    result = fw.compile(fusion).simulate(*arrays)
    assert result.races == []
    return [fw.evaluate(fusion, *arrays)[0], result.outputs[0]]


@pytest.mark.parametrize("gather", [taken, along])
@pytest.mark.parametrize("mode", ["fill", "clip", "wrap"])
@pytest.mark.parametrize("dtype", ["int8", "int32", "int64", "uint8", "uint32", "uint64"])
def test_modes_are_numpys(gather: Rows, mode: str, dtype: str) -> None:
    index = np.abs(FAR).astype(dtype) if dtype.startswith("u") else FAR.astype(dtype)
    for found in both(lambda x, i: gather(x, i, mode=mode), X, index):
        np.testing.assert_array_equal(found, by_numpy(X, index, mode))


@pytest.mark.parametrize("mode", ["clip", "wrap"])
def test_the_largest_indices_keep_their_place(mode: str) -> None:
    index = np.array([2**64 - 1, 2**63, 2**63 - 1, N], np.uint64)
    wanted = [N - 1] * 4 if mode == "clip" else [int(i) % N for i in index]
    for found in both(lambda x, i: taken(x, i, mode=mode), X, index):
        np.testing.assert_array_equal(found, X[:, wanted])


@pytest.mark.parametrize("mode", ["clip", "wrap"])
def test_an_axis_longer_than_its_indices_dtype(mode: str) -> None:
    x, index = np.arange(300, dtype=np.float32), np.array([-1, 127, -128], np.int8)
    for found in both(lambda x, i: fw.take(x, i, mode=mode), x, index):
        np.testing.assert_array_equal(found, np.take(x, index.astype(int), mode=mode))  # type: ignore[call-overload]


@pytest.mark.parametrize("gather", [taken, along])
def test_a_fill_of_ones_own(gather: Rows) -> None:
    for found in both(lambda x, i: gather(x, i, mode="fill", fill_value=-2.5), X, FAR):
        np.testing.assert_array_equal(found, by_numpy(X, FAR, "fill", -2.5))


@pytest.mark.parametrize("mode", ["fill", "clip", "wrap"])
@pytest.mark.parametrize("axes", [(0, None), (None, 0), (0, 0)])
def test_maps_keep_the_mode(mode: str, axes: tuple[int | None, int | None]) -> None:
    x = X if axes[0] is None else np.stack([X, -X, X + 1])
    index = FAR if axes[1] is None else np.stack([FAR, FAR[::-1], FAR + 1])
    mapped = fw.vmap(lambda x, i: fw.take(x, i, axis=1, mode=mode), axes)
    wanted = [
        by_numpy(x if axes[0] is None else x[k], index if axes[1] is None else index[k], mode)
        for k in range(3)
    ]
    for found in both(mapped, x, index):
        np.testing.assert_array_equal(found, np.stack(wanted))


@pytest.mark.parametrize("mode", ["fill", "clip", "wrap"])
def test_gradients_go_to_what_was_read(mode: str) -> None:
    def loss(x: Any, i: Any) -> Any:
        return fw.sum(
            taken(x, i, mode=mode, **({"fill_value": 0.0} if mode == "fill" else {})) ** 2
        )

    wanted = np.zeros_like(X)
    read = np.arange(N)[None].repeat(ROWS, 0).astype(np.float32)
    for k in by_numpy(read, FAR, mode, -1)[0].astype(int):
        wanted[:, k] += 2 * X[:, k] if k >= 0 else 0
    for found in both(fw.grad(loss), X, FAR):
        np.testing.assert_allclose(found, wanted, rtol=1e-5)


def test_rows_of_a_table_and_methods_have_modes_too() -> None:
    rows = np.array([[1, -1], [9, 0]])
    for found in both(lambda w, i: fw.nn.embedding(i, w, mode="wrap"), X, rows):
        np.testing.assert_array_equal(found, np.take(X, rows, axis=0, mode="wrap"))
    for found in both(lambda x, i: x.take(i, 0, mode="clip"), X, rows):
        np.testing.assert_array_equal(found, np.take(X, rows, axis=0, mode="clip"))


def test_known_data_follow_the_mode() -> None:
    x = fw.asarray(X[0])
    assert np.asarray(fw.take(x, fw.asarray([N]), mode="clip")).tolist() == [X[0, -1]]
    assert np.isnan(np.asarray(fw.take(x, fw.asarray([N]), mode="fill"))).all()
    with pytest.raises(IndexError, match=f"index {N} is outside axis 0 of size {N}"):
        np.asarray(fw.take(x, fw.asarray([N])))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"mode": "drop"}, r"mode='drop'; use one of 'raise', 'fill', 'clip', 'wrap'"),
        ({"mode": None}, r"mode=None; use one of"),
        ({"mode": "clip", "fill_value": 0.0}, r"fill_value= belongs to mode='fill'"),
        ({"fill_value": 0.0}, r"fill_value= belongs to mode='fill', and mode is 'raise'"),
    ],
)
@pytest.mark.parametrize("gather", [taken, along])
def test_other_modes_are_refused(gather: Rows, options: dict[str, Any], words: str) -> None:
    with pytest.raises(fw.UserError, match=words):
        fw.trace(lambda x, i: gather(x, i, **options), "f32[7,11]", "i64[8]")


# --- kernels that look --------------------------------------------------------------------------

INDEX = np.random.default_rng(1).integers(-41, 41, 53)
WIDE = np.random.default_rng(2).normal(size=(37, 41)).astype(np.float32)


def looped(x: Any, i: Any) -> Any:
    return fw.fori_loop(0, 3, lambda n, c: c + fw.take(x, i, axis=1), fw.zeros((37, 53)))


PROGRAMS: dict[str, Rows] = {
    "function": lambda x, i: fw.exp(fw.take(x * 2, i, axis=1)),
    "sum": lambda x, i: fw.sum(x[:, i], axis=0),
    "join": lambda x, i: fw.concat([fw.take(x, i, axis=1), x], axis=1),
    "pad": lambda x, i: fw.pad(fw.take(x, i, axis=1), ((1, 2), (3, 4))),
    "softmax": lambda x, i: fw.nn.softmax(fw.take(x, i, axis=1), axis=-1),
    "product": lambda x, i: fw.matmul(fw.take(x, i, axis=1), fw.ones((53, 8))),
    "loop": looped,
}


def looking(f: Rows) -> tuple[fw.Program, Any]:
    fusion = fw.trace(f, fw.TensorSpec(WIDE.shape, "float32"), fw.TensorSpec(INDEX.shape, "int64"))
    with fw.config(check_indices=True):
        return fw.compile(fusion), fusion


@pytest.mark.parametrize("name", list(PROGRAMS))
@pytest.mark.parametrize("at", [0, 29, 52])
def test_a_kernel_that_looks_finds_every_index(name: str, at: int) -> None:
    program, fusion = looking(PROGRAMS[name])
    result = program.simulate(WIDE, INDEX)
    assert result.races == []
    np.testing.assert_allclose(
        result.outputs[0], fw.evaluate(fusion, WIDE, INDEX)[0], rtol=2e-5, atol=1e-5
    )
    wrong = INDEX.copy()
    wrong[at] = 41 if at else -42
    words = rf"index {wrong[at]} is outside axis 1 of size 41; .*\[test_index_modes.py:\d+"
    for run in (program.simulate, lambda *a: fw.evaluate(fusion, *a)):
        with pytest.raises(IndexError, match=words):
            run(WIDE, wrong)


@pytest.mark.parametrize("f", [fw.sum, fw.cumulative_sum], ids=["sum", "scan"])
@pytest.mark.parametrize("count", [5, 333])
def test_lanes_of_a_vector_without_an_index_are_not_looked_at(f: Any, count: int) -> None:
    """The last vector of four has three lanes that nothing was read for: the simulator leaves all
    bits set there, which is outside as uint32."""
    x = np.random.default_rng(0).normal(size=61).astype(np.float32)
    index = np.random.default_rng(1).integers(0, 61, count).astype(np.uint32)
    with fw.config(check_indices=True):
        program = fw.compile(fw.trace(lambda x, i: f(fw.take(x, i)), "f32[61]", f"u32[{count}]"))
    result = program.simulate(x, index)
    assert result.races == []
    wanted = x[index].sum() if f is fw.sum else x[index].cumsum()
    np.testing.assert_allclose(result.outputs[0], wanted, rtol=1e-4, atol=1e-5)
    index[count - 1] = 61
    with pytest.raises(IndexError, match="index 61 is outside axis 0 of size 61"):
        program.simulate(x, index)


def test_every_index_is_outside_of_an_axis_of_no_element() -> None:
    fusion = fw.trace(lambda x, i: fw.take(x, i, axis=0) + 1, "f32[0]", "i64[3]")
    with fw.config(check_indices=True):
        program = fw.compile(fusion)
    arrays = np.ones(0, np.float32), np.array([0, -1, 2])
    for run in (program.simulate, lambda *a: fw.evaluate(fusion, *a)):
        with pytest.raises(IndexError, match="index 0 is outside axis 0 of size 0; it has none"):
            run(*arrays)
    assert np.isnan(fw.compile(fusion).simulate(*arrays).outputs[0]).all()


def test_lanes_that_share_an_index_are_looked_at_once() -> None:
    with fw.config(check_indices=True):
        program = fw.compile(
            fw.trace(lambda x, i: fw.take(x, i, axis=0) + 1, "f32[64,16]", "i64[9]")
        )
    (kernel,) = program.kernels
    assert sum(isinstance(s, CheckIndex) for s in walk_statements(kernel.ir)) == 1


def test_the_line_is_that_of_the_look_up_that_is_wrong() -> None:
    """Two kernels of one structure: each names its own line."""

    def two(x: Any, i: Any) -> Any:
        a = fw.take(x, i, axis=1)
        b = fw.take(x, i - 100, axis=1)
        return fw.sum(a, axis=1), fw.sum(b, axis=1)

    program, _ = looking(two)
    line = two.__code__.co_firstlineno + 2
    with pytest.raises(IndexError, match=rf"test_index_modes.py:{line} take"):
        program.simulate(WIDE, np.abs(INDEX) % 41)


def test_other_kernels_do_not_look_and_have_no_statement_for_it() -> None:
    fusion = fw.trace(PROGRAMS["function"], "f32[37,41]", "i64[53]")
    plain = fw.compile(fusion)
    wrong = INDEX.copy()
    wrong[3] = 41
    (found,) = plain.simulate(WIDE, wrong).outputs
    assert np.isnan(found[:, 3]).all() and np.isfinite(np.delete(found, 3, 1)).all()
    assert not any(isinstance(s, CheckIndex) for k in plain.kernels for s in walk_statements(k.ir))
    for mode in ("fill", "clip", "wrap"):
        program, _ = looking(lambda x, i, mode=mode: fw.take(x, i, axis=1, mode=mode))
        program.simulate(WIDE, wrong)


def test_the_statement_prints_parses_and_is_spelled() -> None:
    program, _ = looking(PROGRAMS["function"])
    (kernel,) = program.kernels
    text = print_kernel(kernel.ir)
    assert "check_index " in text and " axis 1 size 41" in text
    assert print_kernel(parse_kernel(text)) == text
    assert "fw_index_outside(" in kernel.cuda and "__trap();" in kernel.cuda
    assert len(kernel.cubin()) > 0


def test_a_fused_function_looks_where_the_caller_says_so() -> None:
    f = fw.fuse(PROGRAMS["function"], device="sim")
    wrong = INDEX.copy()
    wrong[3] = 41
    assert np.isnan(f(WIDE, wrong)[:, 3]).all()
    with fw.config(check_indices=True), pytest.raises(IndexError, match="index 41 is outside"):
        f(WIDE, wrong)
    assert np.isnan(f(WIDE, wrong)[:, 3]).all()


@pytest.mark.parametrize("rows", [5, 6, 64, 65])
def test_rows_that_are_symbols_have_no_index_beyond_the_last(rows: int) -> None:
    """Threads and lanes of a block that stand behind the last index look at nothing."""
    n = fw.Sym("n")
    specs = fw.TensorSpec((n, 16), "float32"), fw.TensorSpec((n,), "int64")
    with fw.config(check_indices=True):
        program = fw.compile(fw.trace(lambda x, i: fw.take(x, i, axis=0) + 1, *specs))
    x = np.random.default_rng(rows).normal(size=(rows, 16)).astype(np.float32)
    index = np.random.default_rng(rows).permutation(rows)
    (found,) = program.simulate(x, index).outputs
    np.testing.assert_allclose(found, x[index] + 1, rtol=1e-6)
    with pytest.raises(IndexError, match=f"index {rows} is outside axis 0 of size {rows}"):
        program.simulate(x, index + 1)


# --- several axes counted as one ----------------------------------------------------------------


def _of_two(x: Any, i: Any) -> Any:
    return x[i % 37, i] * 2


MERGED: dict[str, tuple[Rows, str]] = {
    "both": (_of_two, r"axis 0 or axis 1"),
    "apart": (lambda x, i: fw.stack([x, x + 1], axis=1)[i % 37, :, i], r"axis 0 or axis 2"),
    "behind a number": (lambda x, i: x[None][0, i % 37, i], r"axis 1 or axis 2"),
    "behind a new axis": (lambda x, i: x[None, i % 37, i], r"axis 0 or axis 1"),
    "one is followed": (
        lambda x, i: fw.stack([x, x + 1])[fw.arange(2)[:, None], i % 37, i], r"axis 1 or axis 2"
    ),
    "a map over both": (
        lambda x, i: fw.vmap(lambda r, k: fw.take(r, k))(x, fw.broadcast_to(i, (37, 53))), "axis 0"
    ),
    "a map of two axes": (
        lambda x, i: fw.vmap(lambda r, k: r[k % 2, k])(
            fw.stack([x, x + 1], axis=1), fw.broadcast_to(i, (37, 53))
        ),
        "axis 0 or axis 1",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MERGED)
def test_axes_that_are_counted_as_one_are_told_by_their_own_numbers(name: str) -> None:
    f, axes = MERGED[name]
    program, fusion = looking(f)
    assert print_fusion(parse_fusion(print_fusion(fusion))) == print_fusion(fusion)
    result = program.simulate(WIDE, INDEX)
    np.testing.assert_allclose(result.outputs[0], fw.evaluate(fusion, WIDE, INDEX)[0], rtol=1e-6)
    wrong = INDEX.copy()
    wrong[17] = 41
    words = rf"^an index is outside {axes}; a look-up with .*\[test_index_modes.py:\d+"
    for run in (program.simulate, lambda *a: fw.evaluate(fusion, *a)):
        with pytest.raises(IndexError, match=words):
            run(WIDE, wrong)
    texts = [print_kernel(k.ir) for k in program.kernels]
    assert any(" merged (" in t for t in texts)
    assert [print_kernel(parse_kernel(t)) for t in texts] == texts
    (kernel,) = (k for k in program.kernels if "fw_index_outside(" in k.cuda)
    assert f'"an index is outside {axes}");' in kernel.cuda and len(kernel.cubin()) > 0


def test_a_known_index_is_told_by_the_axis_of_the_program() -> None:
    with pytest.raises(IndexError, match="on axis 2: index 9 is outside size 4"):
        fw.trace(lambda x: x[0, None, :, np.array([1, 9])], "f32[2,3,4]")


# --- sums by number -----------------------------------------------------------------------------


def _counted(mode: str, index: np.ndarray, count: int, from_end: bool) -> list[tuple[int, int]]:
    """The pairs of a row of values and the number that it counts for."""
    found: list[tuple[int, int]] = []
    for row, i in enumerate(map(int, index)):
        if mode == "clip":
            i = min(max(i, 0), count - 1)
        elif mode == "wrap":
            i %= count
        elif from_end and i < 0:
            i += count
        if 0 <= i < count:
            found.append((row, i))
    return found


@pytest.mark.parametrize("mode", ["drop", "clip", "wrap"])
@pytest.mark.parametrize("dtype", ["int8", "int32", "int64", "uint8"])
def test_sums_by_number_have_modes(mode: str, dtype: str) -> None:
    index = np.abs(FAR).astype(dtype) if dtype.startswith("u") else FAR.astype(dtype)
    values = np.random.default_rng(3).normal(size=(len(FAR), 3))
    dest = np.random.default_rng(4).normal(size=(N, 3))
    sums, added, counts = np.zeros((N, 3)), dest.copy(), np.zeros(N, np.int64)
    for row, i in _counted(mode, index, N, from_end=False):
        sums[i] += values[row]
        counts[i] += 1
    for row, i in _counted(mode, index, N, from_end=True):
        added[i] += values[row]
    for found in both(lambda v, i: fw.segment_sum(v, i, N, mode=mode), values, index):
        np.testing.assert_allclose(found, sums, atol=1e-12)
    for found in both(lambda d, v, i: fw.scatter_add(d, i, v, mode=mode), dest, values, index):
        np.testing.assert_allclose(found, added, atol=1e-12)
    for found in both(lambda i: fw.bincount(i, length=N, mode=mode), index):
        np.testing.assert_array_equal(found, counts)


@pytest.mark.parametrize("mode", ["drop", "clip", "wrap"])
def test_gradients_and_maps_of_sums_by_number(mode: str) -> None:
    values, index = np.random.default_rng(5).normal(size=(len(FAR), 3)), FAR
    weights = np.random.default_rng(6).normal(size=(N, 3))

    def loss(v: Any, i: Any) -> Any:
        return fw.sum(fw.segment_sum(v, i, N, mode=mode) * fw.asarray(weights))

    wanted = np.zeros_like(values)
    for row, i in _counted(mode, index, N, from_end=False):
        wanted[row] = weights[i]
    for found in both(fw.grad(loss), values, index):
        np.testing.assert_allclose(found, wanted)
    rows = np.stack([index, index[::-1]])
    mapped = fw.vmap(lambda i: fw.bincount(i, length=N, mode=mode))
    each = [both(lambda i: fw.bincount(i, length=N, mode=mode), r)[0] for r in rows]
    for found in both(mapped, rows):
        np.testing.assert_array_equal(found, np.stack(each))


@pytest.mark.parametrize("mode", ["clip", "wrap"])
def test_the_largest_numbers_keep_their_place_in_sums(mode: str) -> None:
    index = np.array([2**64 - 1, 2**63, 2**63 - 1, N], np.uint64)
    wanted = [N - 1] * 4 if mode == "clip" else [int(i) % N for i in index]
    for found in both(lambda i: fw.bincount(i, length=N, mode=mode), index):
        np.testing.assert_array_equal(found, np.bincount(wanted, minlength=N))


def test_modes_of_sums_that_do_not_exist_and_no_number_inside() -> None:
    v, i = fw.ones((2, 3)), fw.asarray([0, 1])
    for call in (
        lambda: fw.segment_sum(v, i, 2, mode="raise"),
        lambda: fw.scatter_add(v, i, v, mode="fill"),
        lambda: fw.bincount(i, length=2, mode="promise"),
    ):
        with pytest.raises(fw.UserError, match=r"mode='\w+'; use one of 'drop', 'clip', 'wrap'"):
            call()
    for mode in ("drop", "clip", "wrap"):
        assert fw.segment_sum(v, i, 0, mode=mode).shape == (0, 3)
