"""Dispatch formation: which ops become one kernel, and why not more."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fusewright as fw
from fusewright.fusion.ir import Iota, Pointwise
from fusewright.fusion.rematerialisable import MAX_STEPS, is_rematerialisable

S = fw.TensorSpec


def agreeing(fn: Any, *specs: Any) -> fw.Program:
    """The program of a function; oracle and simulator agree, no race."""
    fusion = fw.trace(fn, *specs)
    program = fw.compile(fusion)
    rng = np.random.default_rng(0)
    arrays = [
        rng.integers(0, 4, s.shape).astype(s.dtype.numpy)
        if s.dtype.is_integer
        else rng.standard_normal(s.shape).astype(s.dtype.numpy)
        for s in specs
    ]
    result = program.simulate(*arrays)
    assert result.races == []
    for got, want in zip(result.outputs, fw.evaluate(fusion, *arrays), strict=True):
        np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5)
    return program


def rules(p: fw.Program) -> str:
    return "\n".join(map(str, p.reasons))


def test_values_with_different_axes_beside_a_shared_one_are_kernels_of_their_own() -> None:
    """One thread for each element of the first would compute the second whole."""

    def f(t: fw.Array, q: fw.Array, k: fw.Array) -> tuple[fw.Array, ...]:
        table = fw.exp(t)
        return table, q * table, k * table

    p = agreeing(f, S((8, 16), "float32"), S((6, 8, 16), "float32"), S((5, 8, 16), "float32"))
    assert len(p.launches) == 2
    assert "has axes that the kernel's largest value lacks" in rules(p)


def test_two_sums_of_one_coordinate_do_not_share_a_kernel_over_both() -> None:
    def f(x: fw.Array, y: fw.Array) -> tuple[fw.Array, fw.Array]:
        base = fw.exp(x)
        return base[:, None] + y[None, :], base[:, None] * fw.sin(y)[None, :16]

    p = agreeing(f, S((8,), "float32"), S((32,), "float32"))
    wide = [sum(len(o.shape) == 2 for o in x.kernel.outputs) for x in p.launches]
    assert max(wide) == 1


def test_smaller_values_stand_beside_the_largest() -> None:
    def f(x: fw.Array, y: fw.Array) -> tuple[fw.Array, fw.Array]:
        scale = fw.exp(y)
        return scale, x * scale

    p = agreeing(f, S((8, 16), "float32"), S((16,), "float32"))
    assert len(p.launches) == 1


def test_groups_do_not_become_one_where_one_moves_what_the_other_computes() -> None:
    def f(x: fw.Array, c: fw.Array) -> fw.Array:
        s = fw.sum(x, axis=1)
        turned = fw.pad((s * c)[:, 4:], ((0, 0), (0, 4)))
        return turned + s

    p = agreeing(f, S((6, 3, 8), "float32"), S((6, 8), "float32"))
    assert not any("cut in two" in str(r) for r in p.reasons)
    assert "it crops a value that the same kernel computes" in rules(p)


def test_a_gather_along_rows_stands_beside_what_makes_its_indices() -> None:
    def f(x: fw.Array, at: fw.Array) -> fw.Array:
        safe = fw.where(at < 3, at, 0)
        return fw.take_along_axis(x, safe[:, None], axis=1)[:, 0] * fw.astype(at, fw.float32)

    p = agreeing(f, S((8, 16), "float32"), S((8,), "int64"))
    assert len(p.launches) == 1


def test_masks_of_coordinates_are_made_where_they_are_read() -> None:
    def f(x: fw.Array) -> fw.Array:
        j = fw.arange(16, dtype=fw.int32)
        return fw.where((j[:, None] >= j) & (j[:, None] - j <= 4), x, -1.0)

    p = agreeing(f, S((3, 16, 16), "float32"))
    assert len(p.launches) == 1 and len(p.launches[0].inputs) == 1


def test_long_or_costly_functions_of_coordinates_are_no_leaves() -> None:
    t = fw.trace(lambda x: x + fw.exp(fw.arange(8.0)), S((8,), "float32"))
    values = {v.op.fn: v for v in t.values if isinstance(v.op, Pointwise)}
    assert not is_rematerialisable(values["exp"])
    i = fw.trace(lambda x: x + fw.astype(fw.arange(8) * 2 + 1, fw.float32), S((8,), "float32"))
    steps = [v for v in i.values if isinstance(v.op, Pointwise) and v is not i.outputs[0]]
    assert len(steps) <= MAX_STEPS and all(map(is_rematerialisable, steps))
    assert not is_rematerialisable(i.outputs[0])

    def longer(x: fw.Array) -> fw.Array:
        j = fw.arange(8)
        for k in range(2, 4 + MAX_STEPS):
            j = j * k
        return x + fw.astype(j, fw.float32)

    chain = fw.trace(longer, S((8,), "float32"))
    assert [is_rematerialisable(v) for v in chain.values if isinstance(v.op, Iota)] == [True]
    assert not is_rematerialisable(
        [v for v in chain.values if isinstance(v.op, Pointwise)][MAX_STEPS]
    )


MOVES: dict[str, Callable[[fw.Array, fw.Array], fw.Array]] = {
    "flip": lambda j, i: fw.flip(j, axis=-1),
    "roll": lambda j, i: fw.roll(j, 2),
    "stride": lambda j, i: j[..., ::2],
    "edge": lambda j, i: fw.pad(j, ((0, 0), (2, 1)), "edge"),
    "crop and pad": lambda j, i: fw.pad(j, ((1, -1), (-1, 2))),
    "crop through a reshape": lambda j, i: fw.reshape(j, (48,))[5:],
    "take": lambda j, i: fw.take(j, i, axis=1),
    "concat": lambda j, i: fw.concat([j, j], axis=1),
}


@pytest.mark.parametrize("move", MOVES)
@pytest.mark.parametrize("steps", [0, 2])
def test_coordinates_are_read_at_other_places(move: str, steps: int) -> None:
    """What every reader makes for itself has no place that a reader could look elsewhere in."""

    def f(x: fw.Array, i: fw.Array) -> tuple[fw.Array, ...]:
        j = fw.reshape(fw.arange(48, dtype=fw.int32), (6, 8))
        j = j * 3 - 1 if steps else j
        return MOVES[move](j, i), fw.astype(j, fw.float32) * x

    assert agreeing(f, S((6, 8), "float32"), S((5,), "int64")).launches


def test_parts_of_everything_are_no_parts_of_rows() -> None:
    """A sum over all goes by parts first, which a reduction of rows would have to run across."""

    def f(x: fw.Array) -> fw.Array:
        y = x / fw.sum(x * x, axis=-1, keepdims=True)
        return fw.sum(y * fw.log(y))

    p = fw.compile(fw.trace(f, S((2048, 32000), "bfloat16")))
    assert "cut in two" not in rules(p)
    assert "has in parts" in rules(p)
    assert len(p.launches) == 3


@pytest.mark.parametrize("after", [(50, 40), (5, 4, 100), (2000,)])
def test_no_thread_moves_a_whole_reshaped_source(after: tuple[int, ...]) -> None:
    """Sources are read at any place, so that nothing relates the axes of the two results."""
    p = agreeing(lambda x: (fw.exp(x), fw.reshape(x, after) * 2), S((5, 400), "float32"))
    assert all("for (" not in str(k.ir) for k in p.kernels)


def test_a_computed_value_shares_a_kernel_with_what_reshapes_it() -> None:
    def f(x: fw.Array) -> tuple[fw.Array, ...]:
        y = fw.exp(x)
        return y, fw.reshape(y, (50, 40)) * 2

    assert len(agreeing(f, S((5, 400), "float32")).launches) == 1


def test_parts_of_what_rows_become_stand_beside_no_rows() -> None:
    """The differences of a variance lie between the rows that are dealt and the sums of parts."""

    def f(x: fw.Array) -> tuple[fw.Array, ...]:
        return fw.var(x, axis=0), fw.max(x, axis=1)

    p = fw.compile(fw.trace(f, S((4097, 1000), "float32")))
    assert "cut in two" not in rules(p)


def test_reductions_of_equal_sizes_are_launched_as_one() -> None:
    def loss(x: Any, y: Any) -> Any:
        return fw.sum(x * x), fw.max(y)

    p = agreeing(loss, S((700, 512), "float32"), S((700, 512), "float32"))
    assert [len(x.inputs) for x in p.launches] == [2, 2]
    p = agreeing(loss, S((700, 512), "float32"), S((512, 700), "float32"))
    assert [len(x.inputs) for x in p.launches] == [2, 2]


def test_rows_of_two_tensors_are_one_launch() -> None:
    def f(x: Any, y: Any) -> Any:
        return fw.sum(x, axis=1), fw.max(y, axis=1)

    p = agreeing(f, S((300, 520), "float32"), S((300, 520), "float16"))
    assert len(p.launches) == 1

    def normalised(x: Any, y: Any) -> Any:
        return fw.nn.softmax(x, axis=1), fw.sum(y, axis=1)

    (launch,) = agreeing(normalised, S((300, 520), "float32"), S((300, 520), "float32")).launches
    assert len(launch.kernel.parts) == 2


def test_a_ratio_of_sums_is_two_launches() -> None:
    def f(x: Any, seen: Any) -> Any:
        return fw.sum(fw.where(seen > 0, x, 0.0)) / fw.sum(fw.astype(seen > 0, fw.float32))

    assert len(agreeing(f, S((1 << 20,), "float32"), S((1 << 20,), "int32")).launches) == 2


def test_a_sum_of_all_follows_from_sums_of_rows() -> None:
    def f(x: Any) -> Any:
        return fw.sum(x, axis=1), fw.sum(x), fw.mean(x, axis=(1, 2))

    p = agreeing(f, S((64, 64, 128), "float32"))
    large = [
        x for x in p.launches if any(i.shape == p.fusion.inputs[0].shape for i in x.kernel.inputs)
    ]
    assert len(large) == 1


# --- what the axis graph relates ----------------------------------------------------------------


def test_results_at_two_intervals_of_one_line_are_two_kernels() -> None:
    """The same value is the second piece of one join and both pieces of another."""

    def f(x: fw.Array, y: fw.Array) -> tuple[fw.Array, ...]:
        t = fw.minimum(x, 0.5)
        return fw.exp(fw.concat([x, t], axis=0)), fw.concat([t, t], axis=0) * y

    p = agreeing(f, S((7, 33), "float32"), S((14, 33), "float32"))
    assert [len(x.kernel.parts) for x in p.launches] == [2]  # of few blocks, side by side
    assert "has axes that the kernel's largest value lacks" in rules(p)


def test_a_piece_of_a_join_stands_beside_the_join() -> None:
    def f(x: fw.Array) -> tuple[fw.Array, ...]:
        t = x * fw.sin(x)
        return fw.concat([t, t], axis=0), t > 0.5, t

    assert len(agreeing(f, S((257, 5), "float32")).launches) == 1


def test_a_view_runs_along_its_source_once_both_are_in_the_kernel() -> None:
    """Each row's sum is spread and reduced again, over an axis that is not the first sum's."""

    def f(x: fw.Array) -> fw.Array:
        y = fw.broadcast_to(fw.sum(x, axis=0, keepdims=True), x.shape)
        return fw.nn.log_softmax(y, axis=0)

    p = agreeing(f, S((33, 65), "float32"))
    assert "the kernel's reductions would run over different axes" in rules(p)
    assert len(p.launches) == 2


@pytest.mark.parametrize("inner", [(6, 40), (6, 4, 10), (2, 3, 40)])
def test_a_norm_of_groups_is_one_kernel_whatever_is_reshaped(inner: tuple[int, ...]) -> None:
    def f(x: fw.Array) -> fw.Array:
        g = fw.reshape(x, inner)
        axes = tuple(range(2 if inner[:2] == (2, 3) else 1, len(inner)))
        d = g - fw.mean(g, axis=axes, keepdims=True)
        v = fw.mean(d * d, axis=axes, keepdims=True)
        return fw.reshape(d / fw.sqrt(v + 1e-5), (2, 12, 10))

    assert len(agreeing(f, S((2, 12, 10), "float32")).launches) == 1


@pytest.mark.parametrize("rows", [48, 50])
def test_a_norm_with_16_bit_weights_is_one_kernel_whatever_the_rows(rows: int) -> None:
    """Columns that begin anywhere are counted from an aligned address, also where the last block
    has fewer rows than others."""

    def f(x: fw.Array, w: fw.Array, b: fw.Array) -> fw.Array:
        return fw.astype(fw.nn.layer_norm(x, (17,), w, b), fw.float32)

    p = agreeing(f, S((rows, 17), "float16"), S((17,), "float16"), S((17,), "float16"))
    assert len(p.launches) == 1


def test_sums_of_parts_that_are_padded_stand_beside_the_rows() -> None:
    """What is dealt to parts ends with rows that there are not; those of an argument too."""

    def f(x: fw.Array, y: fw.Array) -> tuple[fw.Array, ...]:
        h = x * y
        centred = h - fw.mean(h, axis=-1, keepdims=True)
        return centred, fw.sum(h, axis=(0, 1)), fw.sum(x, axis=(0, 1))

    specs = [S((32, 331, 264), "float32")] * 2
    p = fw.compile(fw.trace(f, *specs))
    assert sum(any(i.shape == p.fusion.inputs[0].shape for i in k.inputs) for k in p.kernels) == 1


def test_a_kernel_repeats_what_it_would_read_beside_what_it_joins() -> None:
    """The exponential is a row's sum in one kernel; the other computes it again beside its own."""

    def f(x: fw.Array, z: fw.Array) -> tuple[fw.Array, ...]:
        e = fw.exp(x)
        return fw.sum(e, axis=0), fw.sum(fw.exp(z) * e, axis=1)

    p = agreeing(f, S((40, 130), "float32"), S((40, 130), "float32"))
    assert [len(x.kernel.parts) for x in p.launches] == [2]
    assert all(o.dtype is fw.float32 and len(o.shape) == 1 for k in p.kernels for o in k.outputs)


@pytest.mark.parametrize("axis", [0, 1])
def test_a_scan_computes_what_it_reads_at_a_shifted_place(axis: int) -> None:
    """Threads take the function of the elements before theirs, and the pad's value at the first."""

    def f(x: fw.Array) -> fw.Array:
        pads = [(3, -3) if a == axis else (0, 0) for a in range(2)]
        return fw.cumulative_sum(fw.tanh(fw.pad(fw.exp(-x), pads, constant_values=2.0)), axis=axis)

    p = agreeing(f, S((67, 130), "float32"))
    assert len(p.launches) == 1


def test_a_pad_of_a_scan_is_a_kernel_of_its_own_before_another_scan() -> None:
    def f(x: fw.Array) -> fw.Array:
        shifted = fw.pad(fw.cumulative_sum(x, axis=0), ((1, -1), (0, 0)))
        return fw.cumulative_sum(shifted, axis=0)

    p = agreeing(f, S((19, 40), "float32"))
    assert len(p.launches) == 2
    assert "it crops a value that the same kernel computes" in rules(p)


REFUSED: dict[str, tuple[Callable[[fw.Array], Any], str]] = {
    "rows of a function against each other": (
        lambda x: fw.exp(x)[:, None] * fw.exp(x)[None],
        "at another place of a loop than its other operands",
    ),
    "sums across each other": (
        lambda x: tuple(fw.sum(fw.exp(x)[..., None] * fw.arange(2e3), axis=a) for a in (1, 2)),
        "the kernel's reductions would run over different axes",
    ),
    "an outer product beside a sum": (
        lambda x: (fw.sum(fw.exp(x), axis=1), fw.exp(x)[:, :, None] * fw.arange(7.0)),
        "has axes that the kernel's reductions lack",
    ),
    "a padded sum": (
        lambda x: fw.pad(fw.exp(x - fw.max(x, axis=1, keepdims=True)), ((0, 1), (0, 0))),
        "it pads a value of a kernel with reductions or scans",
    ),
    "a scan of what is reshaped": (
        lambda x: fw.cumulative_sum(
            fw.reshape(fw.exp(x) * fw.permute_dims(x, (1, 0)), (25,)), axis=0
        ),
        "a scan stands in no kernel that reshapes or joins what it computes",
    ),
    "scans along two axes": (
        lambda x: fw.cumulative_sum(x, axis=0) + fw.cumulative_sum(x, axis=1),
        "the kernel's scans would run over different axes",
    ),
    "a scan of a sum": (
        lambda x: fw.cumulative_sum(fw.sum(x, axis=1), axis=0),
        "a scan stands in no kernel with reductions along other axes",
    ),
    "a gather": (
        lambda x: fw.take(fw.nn.softmax(x), fw.astype(x[0] > 0, fw.int64), axis=0),
        "it gathers from a value that the same kernel computes",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_refusal_names_the_op_and_the_rule(name: str) -> None:
    fn, rule = REFUSED[name]
    p = agreeing(fn, S((5, 5), "float32"))
    found = [r for r in p.reasons if rule in r.rule]
    assert found and all(r.tensor for r in found), rules(p)


READ_BOTH_WAYS: dict[str, Callable[[fw.Array], fw.Array]] = {
    "rolls, then itself": lambda x: (
        sum(fw.roll(fw.sin(x), d, axis=a) for a in (0, 1) for d in (1, -1)) - 4 * fw.sin(x)
    ),
    "shifts, then itself": lambda x: sum(
        fw.pad(fw.nn.silu(x), ((2, 0), (0, 0)))[k : k + x.shape[0]] * (k + 2) for k in range(3)
    ),
    "a stencil behind a reflection": lambda x: _second_difference(
        fw.pad(fw.tanh(x), ((0, 0), (1, 1)), mode="reflect")
    ),
}


def _second_difference(p: fw.Array) -> fw.Array:
    return p[:, 2:] - 2 * p[:, 1:-1] + p[:, :-2]


@pytest.mark.parametrize("name", READ_BOTH_WAYS)
def test_what_a_kernel_moves_is_not_computed_in_it_later(name: str) -> None:
    """A kernel that reads a stored value at other places may not compute it again for what joins
    it afterwards: it reads the value at its own place from memory too."""
    p = agreeing(READ_BOTH_WAYS[name], S((40, 33), "float32"))
    assert len(p.launches) == 2, rules(p)
    large = fw.compile(fw.trace(READ_BOTH_WAYS[name], S((1024, 1024), "float32")))
    assert len(large.launches) == 2, rules(large)


def test_sums_that_a_third_relates_are_one_kernel() -> None:
    """Sums of a * a and of b * b know of no common axes until that of a * b joins them."""

    def cosine(a: Any, b: Any) -> Any:
        lengths = fw.sqrt(fw.sum(a * a, axis=-1)) * fw.sqrt(fw.sum(b * b, axis=-1))
        return fw.sum(a * b, axis=-1) / lengths

    p = agreeing(cosine, S((9, 65), "float32"), S((9, 65), "float32"))
    assert p.host.stats["launches"] == 1


def _halves(y: fw.Array) -> fw.Array:
    n = y.shape[-1] // 2
    return y[..., :n] * fw.nn.sigmoid(y[..., n:])


def _neighbours(y: fw.Array) -> fw.Array:
    return y[..., 1:] - y[..., :-1]


@pytest.mark.parametrize("shape", [(128,), (7, 130), (4, 6, 31), (600, 1024)])
@pytest.mark.parametrize("parts", [_halves, _neighbours])
def test_parts_of_a_value_meet_where_it_is_stored(parts: Any, shape: tuple[int, ...]) -> None:
    """Loops over the value come by every element, but not by two of its parts at once."""

    def f(x: fw.Array) -> tuple[fw.Array, ...]:
        y = fw.exp(x[..., : 2 * (shape[-1] // 2)])
        return y, fw.sum(y, axis=-1), parts(y)

    p = agreeing(f, S(shape, "float32"))
    assert len(p.launches) == 2
    first, second = (x.kernel for x in p.launches)
    assert len(first.outputs) == 2  # neither part is stored beside the whole
    assert len(second.inputs) == 1


def test_parts_that_meet_do_not_join_the_kernel_that_makes_the_value() -> None:
    """The kernels of parts and of reductions find each other as siblings that read the value."""

    def f(x: fw.Array) -> tuple[fw.Array, ...]:
        y = x[:3] - x[3:]
        return fw.nn.softmax(y, axis=0), y[:, :300] * y[:, 1:301]

    agreeing(f, S((6, 600), "float32"))


def test_joins_of_arguments_are_made_again_and_not_stored_for_a_second_kernel() -> None:
    """Rows that begin anywhere, their halves exchanged, scaled by the largest of all: both kernels
    read the argument, of 2 bytes an element; the join between them would have 4."""

    def rounded(x: Any) -> Any:
        y = fw.astype(x[:, :128], fw.float32)
        half = y.shape[0] // 2
        joined = fw.concat([-y[half:], y[:half]], axis=0)
        s = fw.max(fw.abs(joined)) / 127 + 1e-6
        return fw.astype(joined / s, fw.float16)

    spec = S((8192, 129), "float16")
    p = fw.compile(fw.trace(rounded, spec))
    assert p.host.stats["bytes_moved"] < 3.1 * 8192 * 129 * 2, rules(p)
    x = np.random.default_rng(7).integers(-9, 10, (8192, 129)).astype(np.float16)
    result = p.simulate(x)
    assert result.races == []
    np.testing.assert_allclose(
        np.asarray(result.outputs[0], "f4"), fw.evaluate(p.fusion, x)[0], rtol=2e-3
    )
