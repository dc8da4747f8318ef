"""Rows that begin at any address: vectors counted from an aligned one, and cut out of two words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fusewright as fw
from fusewright.kir.ir import WHOLE, Compute, For, If, Kernel, Load, Store
from fusewright.kir.traverse import all_variables, walk_statements
from fusewright.memory import Memory


def softmax(x: Any) -> Any:
    return fw.nn.softmax(x, axis=-1)


def layer_norm(x: Any, w: Any, b: Any) -> Any:
    return fw.nn.layer_norm(x, (x.shape[-1],), w, b)


def norm_of_rows_apart(x: Any) -> Any:
    mean = fw.mean(x, axis=(1, 3), keepdims=True)
    return (x - mean) * fw.rsqrt(fw.var(x, axis=(1, 3), keepdims=True) + 1e-5)


def softmax_of_rows_apart(x: Any) -> Any:
    e = fw.exp(x - fw.max(x, axis=(0, 2), keepdims=True))
    return e / fw.sum(e, axis=(0, 2), keepdims=True)


def scaled(x: Any, y: Any, s: Any) -> Any:
    return fw.nn.relu(x * s + y)


def row_bias(x: Any, b: Any) -> Any:
    return fw.tanh(x) + b


def padded(x: Any, b: Any) -> Any:
    return fw.pad(fw.nn.relu(x + b), ((1, 2), (3, 4)))


def joined(a: Any, b: Any, c: Any) -> Any:
    return fw.concat([fw.nn.relu(a), b, c * 2.0], axis=1)


def turned(x: Any, cos: Any, sin: Any) -> Any:
    half = x.shape[-1] // 2
    return x * cos + fw.concat([-x[..., half:], x[..., :half]], axis=-1) * sin


def heads_first(x: Any) -> Any:
    return fw.permute_dims(x, (0, 2, 1, 3))


def steps(x: Any) -> Any:
    return x[1:] - x[:-1]


def column_sums(x: Any) -> Any:
    return fw.sum(x, axis=0)


def middle_max(x: Any) -> Any:
    return fw.max(x, axis=1)


def moments(x: Any) -> Any:
    return fw.var(x, axis=0), fw.mean(x, axis=0)


def log_sum_exp(x: Any) -> Any:
    y = fw.astype(x, fw.float32)
    m = fw.max(y, axis=1, keepdims=True)
    return fw.log(fw.sum(fw.exp(y - m), axis=1)) + fw.squeeze(m, axis=1)


CASES: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...], str]] = {
    "softmax, registers": (softmax, ((5, 4095),), "bfloat16"),
    "softmax, several rows a block": (softmax, ((7, 513),), "bfloat16"),
    "softmax, rows of a few vectors": (softmax, ((11, 131),), "float16"),
    "softmax, shared memory": (softmax, ((3, 33001),), "bfloat16"),
    "softmax, a multiple of two": (softmax, ((6, 4098),), "bfloat16"),
    "softmax, float32": (softmax, ((5, 2049),), "float32"),
    "layer norm": (layer_norm, ((5, 4095), (4095,), (4095,)), "bfloat16"),
    "layer norm, shared memory": (layer_norm, ((2, 20481), (20481,), (20481,)), "float16"),
    "rows apart, registers": (norm_of_rows_apart, ((3, 2, 40, 1031),), "bfloat16"),
    "rows apart, shared memory": (norm_of_rows_apart, ((2, 2, 3, 21001),), "bfloat16"),
    "rows apart, float32": (softmax_of_rows_apart, ((3, 50, 2051),), "float32"),
    "a factor a row": (scaled, ((601, 2045), (601, 2045), (601, 1)), "bfloat16"),
    "a bias a column": (row_bias, ((601, 1023), (1023,)), "float32"),
    "pad": (padded, ((300, 1001), (1001,)), "bfloat16"),
    "concat": (joined, ((300, 1001), (300, 999), (300, 1003)), "bfloat16"),
    "halves turned": (turned, ((2, 3, 64, 255), (64, 255), (64, 255)), "bfloat16"),
    "permute": (heads_first, ((4, 33, 17, 129),), "bfloat16"),
    "neighbours": (steps, ((200001,),), "float32"),
    "sums of columns": (column_sums, ((777, 1025),), "float32"),
    "maxima along the middle": (middle_max, ((37, 50, 77),), "float16"),
    "log-sum-exp by chunks": (log_sum_exp, ((11, 102407),), "bfloat16"),
    "moments of columns": (moments, ((499, 2049),), "bfloat16"),
}


def arrays(shapes: tuple[tuple[int, ...], ...], dtype: str) -> list[np.ndarray]:
    rng = np.random.default_rng(7)
    kind = getattr(fw, dtype).numpy
    return [rng.standard_normal(s).astype(kind) for s in shapes]


def assert_near(got: Any, want: Any, dtype: str) -> None:
    bound = {"float32": 2e-5, "float16": 4e-3, "bfloat16": 3e-2}[dtype]
    got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
    np.testing.assert_allclose(got, want, rtol=bound, atol=bound * max(np.abs(want).max(), 1e-3))


@pytest.mark.parametrize("name", CASES)
def test_right_in_the_simulator_and_no_sync_too_many(name: str) -> None:
    fn, shapes, dtype = CASES[name]
    given = arrays(shapes, dtype)
    fusion = fw.trace(fn, *[fw.TensorSpec(s, dtype) for s in shapes])
    program = fw.compile(fusion)
    result = program.simulate(*given)
    assert not result.races
    for got, want in zip(result.outputs, fw.evaluate(fusion, *given), strict=True):
        assert_near(got, want, dtype)
    report = fw.verify(program, *given)
    assert not report.redundant and not report.missing


def loads_of(kernel: Kernel) -> list[Load]:
    found = [s for s in walk_statements(kernel) if isinstance(s, Load)]
    return [s for s in found if s.src.memory is Memory.GLOBAL]


@pytest.mark.parametrize("name", CASES)
def test_large_arrays_are_read_in_vectors(name: str) -> None:
    fn, shapes, dtype = CASES[name]
    program = fw.compile(fw.trace(fn, *[fw.TensorSpec(s, dtype) for s in shapes]))
    for k in program.kernels:
        for buffer in (p for p in k.ir.params if str(p.size).isdigit()):
            loads = [s for s in loads_of(k.ir) if s.src is buffer]
            if loads and int(str(buffer.size)) > 200_000:
                assert max(s.width for s in loads) > 1, str(k.heuristic)


def test_a_row_is_stored_in_vectors_and_its_ends_by_halves() -> None:
    (k,) = fw.compile(fw.trace(softmax, fw.TensorSpec((512, 4095), "bfloat16"))).kernels
    widths = {s.width for s in walk_statements(k.ir) if isinstance(s, Store)}
    assert widths == {8, 4, 1}
    assert all(s.width == 8 and not s.lanes.is_cut for s in loads_of(k.ir))
    assert any(not s.lanes.all_exist for s in loads_of(k.ir))


def test_rows_that_memory_does_not_join_begin_in_words_each() -> None:
    """Each of the two that are normalised together is counted from a word of its own, in the blocks
    of a cluster, too: 0.40 of a copy with single elements (160087 of the lot, one H100)."""
    spec = fw.TensorSpec((8, 2, 13, 50257), "bfloat16")
    (k,) = fw.compile(fw.trace(norm_of_rows_apart, spec)).kernels
    assert k.heuristic is not None
    assert dict(k.heuristic.values)["cluster"] == 8
    loads = loads_of(k.ir)
    assert {(s.width, s.lanes.is_cut) for s in loads} == {(8, False)}
    widths = {s.width for s in walk_statements(k.ir) if isinstance(s, Store)}
    assert 8 in widths
    assert k.resources().spill_stores == 0


def test_what_rows_share_is_cut_out_of_words() -> None:
    specs = [fw.TensorSpec(s, "bfloat16") for s in ((512, 4095), (4095,), (4095,))]
    (k,) = fw.compile(fw.trace(layer_norm, *specs)).kernels
    by_name = {s.src.name: s.lanes.is_cut for s in loads_of(k.ir)}
    assert by_name == {"x": False, "w": True, "b": True}
    assert k.resources().spill_stores == 0


def test_elements_that_the_last_chunk_lacks_are_filled_under_one_branch() -> None:
    spec = fw.TensorSpec((11, 102407), "bfloat16")
    first = fw.compile(fw.trace(log_sum_exp, spec)).kernels[0]
    branches = [s for s in walk_statements(first.ir) if isinstance(s, If)]
    (fills,) = [s for s in branches if len(s.then) > 4]
    assert all(isinstance(s, Compute) and s.fn == "copy" for s in fills.then)


def test_even_rows_are_read_as_before() -> None:
    (k,) = fw.compile(fw.trace(softmax, fw.TensorSpec((512, 4096), "bfloat16"))).kernels
    assert all(s.lanes == WHOLE for s in loads_of(k.ir))


SUMS: dict[str, tuple[Callable[..., Any], tuple[int, ...], tuple[int, ...] | None, str]] = {
    "runs of no whole rows": (lambda x: (fw.max(x), fw.min(x)), (4151, 519), None, "float32"),
    "padded rows": (lambda x: fw.sum(x), (2048, 141), (149, 1), "bfloat16"),
    "padded rows of several results": (
        lambda x: fw.sum(x, axis=(0, 2)),
        (69, 40, 77),
        (40 * 79, 79, 1),
        "float16",
    ),
    "windows of rows": (
        lambda x: fw.max(fw.reshape(x, (x.shape[0] // 2, 2, -1)), axis=1),
        (8192, 1157),
        None,
        "bfloat16",
    ),
}


@pytest.mark.parametrize("name", SUMS)
def test_rows_that_no_vector_divides_are_read_in_whole_words(name: str) -> None:
    fn, shape, strides, dtype = SUMS[name]
    program = fw.compile(fw.trace(fn, fw.TensorSpec(shape, dtype, strides=strides)))
    first = program.kernels[0]
    width = 16 // getattr(fw, dtype).nbytes
    loads = [s for s in loads_of(first.ir) if s.src is first.ir.params[0]]
    assert {s.width for s in loads} <= {width, 1}
    assert max(s.width for s in loads) == width
    assert first.resources().spill_stores == 0
    rows = shape if strides is None else (*shape[:-1], strides[-2])
    given = np.random.default_rng(3).standard_normal(rows)
    x = given.astype(getattr(fw, dtype).numpy)[..., : shape[-1]]
    result = program.simulate(x)
    assert not result.races
    for got, want in zip(result.outputs, fw.evaluate(program.fusion, x), strict=True):
        assert_near(got, want, dtype)


@pytest.mark.parametrize("alignment", [2, 4, 8, 16])
def test_arrays_that_begin_between_words_are_cut_out_of_words(alignment: int) -> None:
    """Those that begin in the middle of one are read by halves of words."""
    specs = [fw.TensorSpec((601, 2045), "bfloat16", alignment=alignment)]
    program = fw.compile(fw.trace(lambda x: fw.exp(x) + 1.0, *specs))
    (k,) = program.kernels
    assert {s.width for s in loads_of(k.ir)} == {4 if alignment == 8 else 8}
    assert all(s.lanes.is_cut for s in loads_of(k.ir)) == (alignment < 8)
    given = arrays(((601, 2045),), "bfloat16")
    assert_near(program.simulate(*given).outputs[0], np.exp(given[0].astype("f8")) + 1, "bfloat16")


def test_rows_of_any_size_share_one_kernel() -> None:
    spec = fw.TensorSpec((64, fw.Sym("n", min=300, max=5000)), "bfloat16")
    fusion = fw.trace(lambda x: fw.sum(x * 2.0, axis=1), spec)
    program = fw.compile(fusion, dynamic=True)
    for n in (300, 333, 4093, 4096):
        given = arrays(((64, n),), "bfloat16")
        result = program.simulate(*given)
        assert not result.races
        assert_near(result.outputs[0], 2 * given[0].astype("f8").sum(axis=1), "bfloat16")


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        ((4096, 1025), "float32"),
        ((4099, 1025), "float32"),  # parts differ by a row
        ((8201, 515), "bfloat16"),
        ((8192, 1026), "bfloat16"),  # vectors begin alike after four rows
        ((8201, 257, 3), "bfloat16"),
    ],
)
def test_rows_of_a_part_are_summed_in_aligned_vectors(shape: tuple[int, ...], dtype: str) -> None:
    """No load of the loop has a condition, nor is one cut out of two words."""
    program = fw.compile(fw.trace(column_sums, fw.TensorSpec(shape, dtype)))
    first, _ = program.kernels
    loops = [s for s in walk_statements(first.ir) if isinstance(s, For)]
    of_rows = set(loads_of(first.ir))
    loop = next(s for s in loops if not of_rows.isdisjoint(walk_statements(s)))
    width = 16 // getattr(fw, dtype).nbytes
    loads = [s for s in walk_statements(loop) if isinstance(s, Load)]
    assert {(s.width, s.lanes.is_cut) for s in loads} == {(width, False)}
    conditions = [s.predicate for s in loads]
    conditions += [s.condition for s in walk_statements(loop) if isinstance(s, If)]
    assert all(loop.var not in all_variables(c) for c in conditions)
    given = arrays((shape,), dtype)
    result = program.simulate(*given)
    assert not result.races
    assert_near(result.outputs[0], given[0].astype("f8").sum(axis=0), dtype)
    report = fw.verify(program, *given)
    assert not report.redundant and not report.missing
    assert first.resources().spill_stores == 0


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        ((16411, 72), "float32"),  # parts differ by a row
        ((16384, 1025), "bfloat16"),
        ((16391, 257), "bfloat16"),
        ((8, 56, 56, 257), "bfloat16"),  # several axes
        ((7, 57, 57, 129), "float32"),
    ],
)
def test_moments_of_dealt_rows(shape: tuple[int, ...], dtype: str) -> None:
    """Data far from zero: a row that is not there would show in the variance."""
    axes = tuple(range(len(shape) - 1))
    fusion = fw.trace(
        lambda x: (fw.var(x, axis=axes), fw.mean(x, axis=axes)), fw.TensorSpec(shape, dtype)
    )
    program = fw.compile(fusion)
    (x,) = arrays((shape,), dtype)
    x = (x + 100.0 if dtype == "float32" else x + 2).astype(x.dtype)
    result = program.simulate(x)
    assert not result.races
    exact = x.astype("f8")
    assert_near(result.outputs[0], exact.var(axes), dtype)
    assert_near(result.outputs[1], exact.mean(axes), dtype)
    report = fw.verify(program, x)
    assert not report.redundant and not report.missing
    whole = int(np.prod(shape))
    for k in program.kernels:
        assert k.resources().spill_stores == 0
        assert all(int(str(p.size)) == whole or 8 * int(str(p.size)) < whole for p in k.ir.params)
        outputs = [s.dst for s in walk_statements(k.ir) if isinstance(s, Store)]
        assert all(b.memory is not Memory.GLOBAL or int(str(b.size)) < whole for b in outputs)


def test_no_row_of_a_chunk_is_compared() -> None:
    """What a short chunk lacks is a matter of the last trip."""
    program = fw.compile(fw.trace(moments, fw.TensorSpec((16411, 72), "float32")))
    ir = program.kernels[0].ir
    loops = [s for s in walk_statements(ir) if isinstance(s, For)]
    rows = next(s for s in loops if not set(loads_of(ir)).isdisjoint(walk_statements(s)))
    inside = [s for s in walk_statements(rows) if isinstance(s, Compute | Load)]
    assert not any(isinstance(s, Compute) and s.fn == "lt" for s in inside)
    assert all(rows.var not in all_variables(s.predicate) for s in inside)
    assert not any(isinstance(s, If) for s in walk_statements(rows))


def test_neighbours_in_odd_rows_are_cut_out_of_words() -> None:
    """Three reads of a row of 4,283 elements and one store: words of the result, as nothing else
    is wide in all of them."""

    def stencil(x: Any) -> Any:
        return x[:, :-2] * 0.5 + x[:, 1:-1] - x[:, 2:] * 0.25

    spec = fw.TensorSpec((8192, 4283), "float16")
    (kernel,) = fw.compile(fw.trace(stencil, spec)).kernels
    assert kernel.heuristic is not None
    assert dict(kernel.heuristic.values)["vector"] == 8
    loads = [s for s in walk_statements(kernel.ir) if isinstance(s, Load)]
    assert loads and all(s.width >= 8 for s in loads)  # windows side by side share a wider one
    x = np.tile(np.arange(4283) % 61, (8192, 1)).astype(np.float16)
    found = kernel.simulate(x, blocks=(0, 1, 2, 3, 4))
    assert found.races == []
    assert np.array_equal(found.outputs[0][0], stencil(x[:1])[0])


def test_means_of_few_odd_rows_are_stored_in_whole_words() -> None:
    """Vectors of results run from one row of 2989 into the next; what they need is put together of
    two rows of each third of the input, so that no result is stored alone."""
    spec = fw.TensorSpec((46_575, 3, 2989), "bfloat16")
    (kernel,) = fw.compile(fw.trace(lambda x: fw.mean(x, axis=1), spec)).kernels
    assert kernel.heuristic is not None
    assert dict(kernel.heuristic.values)["vector"] == 8


def test_rows_of_several_axes_are_counted_from_words_as_one() -> None:
    """An axis of 309 elements, which no vector divides, is no row where memory joins it with the
    361 around it: 111549 columns have two ends."""

    def backward(g: Any, x: Any, w: Any) -> Any:
        wide = fw.astype(g, "float32") * fw.astype(w, "float32")
        return fw.astype(wide - fw.mean(wide * x, axis=(1, 2), keepdims=True), "bfloat16")

    specs = [fw.TensorSpec(s, "bfloat16") for s in ((36, 361, 309), (36, 361, 309), (1, 361, 309))]
    (kernel,) = fw.compile(fw.trace(backward, *specs)).kernels
    assert kernel.heuristic is not None
    assert dict(kernel.heuristic.values)["vector"] == 8
    assert kernel.heuristic.scheduler == "inner_cluster_shared"
