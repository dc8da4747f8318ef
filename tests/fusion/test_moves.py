"""Moves of moves are one read, and moves of computed values read the arguments: values against the
oracle in the simulator, kernels counted, and what stays as it is."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fusewright as fw
from fusewright.fusion.ir import (
    Broadcast,
    Constant,
    IndexMap,
    Input,
    Permute,
    Pointwise,
    Resize,
)
from fusewright.fusion.passes.cse import cse
from fusewright.fusion.passes.fold_crops import fold_crops
from fusewright.fusion.passes.fold_moves import fold_moves
from fusewright.fusion.passes.hoist_crops import hoist_crops
from fusewright.fusion.passes.hoist_moves import hoist_moves, moves_to_hoist
from fusewright.target import target_of

S = fw.TensorSpec
TARGET = target_of("sm_90a")
X = S((12, 20), "float32")
SIZES = {"n": 13, "m": 18}


def arrays_of(specs: tuple[fw.TensorSpec, ...]) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    shapes = [[SIZES.get(getattr(e, "name", str(e)), e) for e in s.shape] for s in specs]
    return [
        (rng.standard_normal(shape) * 4).astype(s.dtype.numpy)
        for s, shape in zip(specs, shapes, strict=True)
    ]


def launches(fn: Any, *specs: fw.TensorSpec) -> int:
    """How many kernels a function is; oracle and simulator agree, bit for bit where nothing is
    approximated, no race."""
    fusion = fw.trace(fn, *specs)
    program = fw.compile(fusion)
    arrays = arrays_of(specs)
    result = program.simulate(*arrays)
    assert result.races == []
    for got, want in zip(result.outputs, fw.evaluate(fusion, *arrays), strict=True):
        wide = [np.asarray(a, np.float64) for a in (got, want)]
        np.testing.assert_allclose(*wide, rtol=1e-2 if got.dtype.itemsize == 2 else 1e-5, atol=1e-5)
    return len(program.host.launches)


MOVES: dict[str, Callable[[fw.Array], fw.Array]] = {
    "a flip of a crop": lambda x: fw.flip(x[5:], axis=0),
    "a step in a crop": lambda x: x[2:11:3, 1:-2:2],
    "a negative step in a crop": lambda x: x[10:2:-2, 17:3:-3],
    "a crop of a flip": lambda x: fw.flip(x, axis=1)[1:, 3:-2],
    "a roll of a flip": lambda x: fw.roll(fw.flip(x, axis=1), 3, axis=1),
    "a flip of a roll": lambda x: fw.flip(fw.roll(x, -4, axis=0), axis=0),
    "a step in a roll": lambda x: fw.roll(x, 7, axis=1)[::2, ::3],
    "a roll of a roll": lambda x: fw.roll(fw.roll(x, 7, axis=1), 5, axis=(0, 1))[1:],
    "a flip of a transposed crop": lambda x: fw.flip(x.T[2:], axis=0)[:, ::2],
    "a step in what a unit axis was added to": lambda x: x[:, None, 2:][:, :, ::2],
    "a flip of a broadcast": lambda x: fw.flip(fw.broadcast_to(x[:, 1:2], (12, 20)), axis=0),
    "an even place of pairs": lambda x: fw.reshape(x, (12, 10, 2))[1:, :, 1],
    "a reflection of a crop": lambda x: fw.pad(x[1:, 2:], ((2, 1), (3, 4)), mode="reflect"),
    "an edge around a flip": lambda x: fw.pad(fw.flip(x, axis=1), ((2, 0), (0, 3)), mode="edge"),
    "a crop of a wrap": lambda x: fw.pad(x, ((2, 3), (4, 5)), mode="wrap")[1:-1, 3:],
    "a symmetric pad of a step": lambda x: fw.pad(x[::2], ((2, 1), (0, 0)), mode="symmetric"),
    "rows of a repeat": lambda x: fw.repeat(x[:, 3:], 2, axis=1)[::-1],
}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32"])
@pytest.mark.parametrize("name", MOVES)
def test_moves_of_moves_are_one_kernel(name: str, dtype: str) -> None:
    assert launches(lambda x: MOVES[name](x) + 1, S((12, 20), dtype)) == 1


@pytest.mark.parametrize("name", [n for n in MOVES if "broadcast" not in n and "pairs" not in n])
def test_moves_of_computed_values_are_one_kernel(name: str) -> None:
    assert launches(lambda x: MOVES[name](fw.nn.relu(x) * 2), X) == 1


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: fw.flip(x[1:], axis=0)[::2],
        lambda x: fw.roll(fw.nn.relu(x), 3, axis=1)[2:, ::-1],
        lambda x: fw.pad(x[:, 1:] * 2, ((1, 1), (2, 2)), mode="reflect"),
        lambda x: fw.flip(fw.roll(x, 5, axis=0), axis=0)[:, :-3],
    ],
)
def test_symbolic_sizes(fn: Any) -> None:
    assert launches(fn, S((fw.Sym("n", min=8), fw.Sym("m", min=8)), "float32")) == 1


def test_what_a_move_undoes_is_gone() -> None:
    fusion = fw.trace(lambda x: fw.exp(fw.flip(fw.flip(x, axis=1), axis=1)), X)
    after = fold_moves(fusion)
    assert [type(t.op) for t in after.values] == [Input, Pointwise]
    assert fold_moves(after) is after
    assert launches(lambda x: fw.flip(fw.flip(x, axis=1), axis=1), X) == 1


def test_a_box_is_a_crop_and_what_no_map_looks_at_is_a_broadcast() -> None:
    def f(x: fw.Array) -> tuple[fw.Array, ...]:
        twice = fw.flip(fw.flip(x, axis=1)[:, 2:], axis=1)
        rows = fw.flip(fw.broadcast_to(x[:1], (12, 20)), axis=0)
        return twice, fw.flip(fw.flip(x.T, axis=0), axis=0), rows

    after = fold_moves(fold_crops(hoist_crops(fw.trace(f, X))))
    assert [type(t.op) for t in after.outputs] == [Resize, Permute, Broadcast]
    assert not any(isinstance(t.op, IndexMap) for t in after.values)


def test_equal_maps_are_computed_once() -> None:
    fusion = fw.trace(lambda x: fw.flip(x, axis=1) * fw.flip(x, axis=1) + fw.flip(x, axis=0), X)
    assert len([t for t in cse(fusion).values if isinstance(t.op, IndexMap)]) == 2


def test_crops_of_pads_are_shifts() -> None:
    def stencil(x: fw.Array) -> fw.Array:
        y = fw.pad(x, ((0, 0), (1, 1)), constant_values=3)
        return y[:, :-2] + y[:, 1:-1] * 2 + y[:, 2:]

    after = fold_crops(hoist_crops(fw.trace(stencil, X)))
    assert [t.op.fill for t in after.values if isinstance(t.op, Resize)] == [3.0, 3.0]
    assert fold_crops(after) is after
    for dtype in ("float32", "bfloat16", "int32"):
        assert launches(stencil, S((12, 20), dtype)) == 1
    assert launches(stencil, S((12, fw.Sym("m", min=8)), "float32")) == 1


def test_shared_neighbours_of_computed_values() -> None:
    def stencil(x: fw.Array) -> fw.Array:
        y = fw.exp(x)
        return y[:, :-2] + y[:, 1:-1] + y[:, 2:]

    def rolled(x: fw.Array) -> fw.Array:
        y = fw.astype(x, fw.float32)
        return y + fw.roll(y, 1, axis=1)

    assert launches(stencil, X) == 1
    assert launches(rolled, S((12, 20), "bfloat16")) == 1


def test_all_operands_are_read_at_the_place() -> None:
    assert launches(lambda x, y: (x + y)[:, 5:-5], X, X) == 1
    assert launches(lambda x, w: fw.flip(x * w, axis=1), X, S((20,), "float32")) == 1
    assert launches(lambda x, w: fw.flip(x * w[:, None], axis=1), X, S((12,), "float32")) == 1


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "int64"])
@pytest.mark.parametrize("name", ["a roll of a flip", "a crop of a wrap", "a step in a crop"])
def test_coordinates_move_with_the_values(dtype: str, name: str) -> None:
    def f(x: fw.Array) -> fw.Array:
        at = fw.arange(20, dtype=getattr(fw, dtype))
        return MOVES[name](fw.where(at % 3 == 1, x, fw.astype(at, fw.float32)))

    assert launches(f, X) == 1


def is_hoisted(fn: Any, *specs: fw.TensorSpec) -> bool:
    fusion = fold_moves(fold_crops(hoist_crops(fw.trace(fn, *specs))))
    after = hoist_moves(fusion, moves_to_hoist(fusion, TARGET))
    assert hoist_moves(after, moves_to_hoist(after, TARGET)) is after
    arrays = arrays_of(specs)
    for a, b in zip(fw.evaluate(fusion, *arrays), fw.evaluate(after, *arrays), strict=True):
        np.testing.assert_array_equal(a, b)
    return after is not fusion


def stored_and_rolled(f: Callable[[fw.Array], fw.Array]) -> Any:
    """A function of an argument as a result, and another one of it at other places."""

    def fn(x: fw.Array) -> tuple[fw.Array, ...]:
        y = f(x)
        return y, fw.roll(y, 1, axis=1) * 2

    return fn


def test_values_that_are_stored_anyway_are_computed_again_for_fewer_bytes_only() -> None:
    half = S((12, 20), "bfloat16")
    assert is_hoisted(stored_and_rolled(lambda x: fw.astype(x, fw.float32)), half)
    assert not is_hoisted(stored_and_rolled(lambda x: x * 2), X)
    assert is_hoisted(lambda x: fw.roll(x * 2, 1, axis=1), X), "nobody else needs it"


def test_expensive_values_that_are_needed_in_place_stay_stored() -> None:
    def beside(f: Callable[[fw.Array], fw.Array]) -> Any:
        return lambda x: (lambda y: y + fw.flip(y, axis=1))(f(x))

    assert is_hoisted(beside(fw.exp), X)
    assert launches(beside(fw.exp), X) == 1
    assert not is_hoisted(beside(fw.tan), X)
    assert launches(beside(lambda x: fw.tan(x * 0.1)), X) == 2


def test_values_of_many_arguments_that_are_needed_in_place_stay_stored() -> None:
    def fn(*xs: fw.Array) -> fw.Array:
        y = sum(xs[1:], xs[0])
        return y + fw.flip(y, axis=1)

    assert not is_hoisted(fn, X, X, X)
    assert is_hoisted(lambda *xs: fw.flip(sum(xs[1:], xs[0]), axis=1), X, X, X)


def test_moves_of_reductions_are_left_to_the_choice_of_forms() -> None:
    assert not is_hoisted(lambda x: fw.flip(fw.nn.softmax(x, axis=1), axis=0), X)


def test_moves_pass_pads_along_other_axes() -> None:
    assert is_hoisted(lambda x: fw.flip(fw.pad(x, ((0, 0), (1, 1))) * 2, axis=0), X)
    assert not is_hoisted(lambda x: fw.flip(fw.pad(x, ((0, 0), (1, 1))) * 2, axis=1), X)


BEFORE: dict[str, Callable[[fw.Array], fw.Array]] = {
    "flip": lambda x: fw.flip(x, axis=0),
    "roll": lambda x: fw.roll(x, 3, axis=1),
    "turn": lambda x: fw.permute_dims(x, (1, 0)),
    "step": lambda x: x[:, ::2],
    "repeat": lambda x: fw.repeat(x, 2, axis=1),
    "reflect": lambda x: fw.pad(x, ((2, 2), (0, 0)), mode="reflect"),
}
AFTER: dict[str, Callable[[fw.Array], fw.Array]] = {
    "function": lambda x: fw.exp(x) + 1,
    "softmax": lambda x: fw.nn.softmax(x, axis=-1),
    "join": lambda x: fw.concat([x, x * 2], axis=1),
    "pad": lambda x: fw.pad(x * 2, ((1, 0), (0, 1))),
}


@pytest.mark.parametrize("after", AFTER)
@pytest.mark.parametrize("before", BEFORE)
@pytest.mark.parametrize("widths", [((1, 1), (0, 0)), ((0, 0), (2, 3)), ((0, 0), (3, -3))])
def test_a_pad_of_what_was_moved_is_no_kernel(before: str, after: str, widths: Any) -> None:
    assert launches(lambda x: AFTER[after](fw.pad(BEFORE[before](x), widths)), X) == 1


def shift(x: fw.Array, by: int, fill: float = 0.0) -> fw.Array:
    """Rows later by a number of elements, none of which wrap around."""
    ends = (by, 0) if by > 0 else (0, -by)
    y = fw.pad(x, ((0, 0), ends), constant_values=fill)
    return y[:, : x.shape[1]] if by > 0 else y[:, -by:]


@pytest.mark.parametrize("by", [3, -2])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_shifts_of_computed_values_are_one_kernel(by: int, dtype: str) -> None:
    """What is left of the value is made of what is left of the argument; the border is filled."""
    x = S((12, 20), dtype)
    assert launches(lambda a: shift(fw.exp(fw.flip(a, axis=1)) + 2, by, 7.0), x) == 1
    assert launches(lambda a: shift(fw.exp(a) * 3, by) + shift(fw.exp(a) * 3, -by), x) == 1


def test_shifts_of_reductions_are_one_kernel_too() -> None:
    assert launches(lambda x: shift(fw.nn.softmax(x, axis=1), 3), X) == 1
    assert launches(lambda x: shift(fw.cumulative_sum(x, axis=1), 3), X) == 2, "scans stay"


def test_stencils_of_stencils_are_bounded() -> None:
    def fn(x: fw.Array) -> fw.Array:
        for _ in range(5):
            y = x * 2
            x = y[:, :-2] + y[:, 1:-1] + y[:, 2:]
        return x

    assert launches(fn, X) > 1


def random_moves(rng: random.Random, x: fw.Array) -> fw.Array:
    """A few moves of a matrix of at least 4 x 4, one after the other, with functions between."""
    for _ in range(rng.randint(2, 5)):
        axis = rng.randint(0, 1)
        n = int(str(x.shape[axis]))
        match rng.choice(("flip", "roll", "crop", "step", "pad", "turn", "map")):
            case "flip":
                x = fw.flip(x, axis=axis)
            case "roll":
                x = fw.roll(x, rng.randint(-n, n), axis=axis)
            case "crop" if n > 6:
                x = x[1:-2] if axis == 0 else x[:, 2:-1]
            case "step" if n > 8:
                x = x[1::2] if axis == 0 else x[:, ::-2]
            case "pad":
                mode = rng.choice(("reflect", "edge", "wrap", "symmetric", "constant"))
                x = fw.pad(x, ((1, 2), (2, 0)), mode=mode)
            case "turn":
                x = x.T
            case _:
                x = x * 2 + 1
    return x


@pytest.mark.parametrize("seed", range(12))
def test_random_moves(seed: int) -> None:
    """Moves cost no kernel of their own; one that no index map spells may be stored once."""
    rng = random.Random(seed)
    state = rng.getstate()

    def fn(x: fw.Array) -> fw.Array:
        rng.setstate(state)
        return random_moves(rng, x) + 1

    assert launches(fn, S((14, 12), rng.choice(("float32", "int32", "bfloat16")))) <= 2


def test_moves_pass_joins_along_other_axes() -> None:
    def turned(x: fw.Array) -> fw.Array:
        return fw.exp(fw.concat([-x[:, 7:], x[:, :7]], axis=1))

    assert is_hoisted(lambda x: fw.roll(turned(x), 2, axis=0), X)
    assert launches(lambda x: fw.roll(turned(x), 2, axis=0), X) == 1
    assert not is_hoisted(lambda x: fw.flip(turned(x), axis=1), X), "along the join they do not"


def test_a_norm_whose_halves_change_places_along_other_rows_is_one_kernel() -> None:
    def fn(x: fw.Array) -> fw.Array:
        y = fw.tanh(fw.nn.softmax(x, axis=1))
        return fw.concat([-y[6:], y[:6]], axis=0)

    assert launches(fn, X) == 1


def of_a_join(a: fw.Array, b: fw.Array) -> fw.Array:
    return fw.exp(fw.concat([a, b, -a], axis=1)) + 1


PARTS_OF_JOINS: dict[str, Callable[[fw.Array, fw.Array], Any]] = {
    "parts that cross borders": lambda a, b: tuple(
        of_a_join(a, b)[:, k : k + 17] for k in (0, 17, 34)
    ),
    "one column": lambda a, b: of_a_join(a, b)[:, 21] * 2,
    "places of a stack": lambda a, b: (lambda y: y[0] + y[2] * 3)(
        fw.exp(fw.stack([a, a * 2, a * 3]))
    ),
    "a part of a part": lambda a, b: fw.sqrt(of_a_join(a, b)[:, 5:40])[2:, 10:],
}


@pytest.mark.parametrize("name", PARTS_OF_JOINS)
def test_parts_of_functions_of_joins_are_functions_of_parts(name: str) -> None:
    """Nothing is stored between: every result is read from the arguments."""
    specs = S((12, 20), "float32"), S((12, 11), "float32")
    program = fw.compile(fw.trace(PARTS_OF_JOINS[name], *specs))
    assert program.host.stats["peak_bytes"] == 0
    assert launches(PARTS_OF_JOINS[name], *specs) == len(program.fusion.outputs)


def test_parts_of_joins_of_unknown_sizes_are_stored() -> None:
    n = fw.Sym("n", min=8)
    specs = S((12, n), "float32"), S((12, 11), "float32")
    assert launches(lambda a, b: (lambda y: (y[:, :9], y[:, 9:]))(of_a_join(a, b)), *specs) > 1


PATCHED: dict[str, Any] = {
    "patches": ((2, 3, 28, 32), (2, 3, 7, 4, 8, 4), (0, 2, 4, 1, 3, 5), (2, 56, 48)),
    "windows": ((2, 14, 21, 8), (2, 2, 7, 3, 7, 8), (0, 1, 3, 2, 4, 5), (12, 49, 8)),
    "tiles of odd sizes": ((3, 10, 27), (3, 5, 2, 3, 9), (0, 3, 1, 4, 2), (45, 18)),
}


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("name", PATCHED)
def test_regrouped_axes_are_one_kernel(name: str, turned: bool) -> None:
    shape, split, order, joined = PATCHED[name]

    def fn(x: fw.Array) -> fw.Array:
        x = fw.roll(x, -3, axis=1) if turned else x
        return fw.reshape(fw.permute_dims(fw.reshape(x, split), order), joined)

    assert launches(fn, S(shape, "float32")) == 1


@pytest.mark.parametrize("part", [(slice(-1, None),), (5,), (slice(None), 3)])
def test_a_row_or_a_column_of_a_product_multiplies_no_more(part: Any) -> None:
    specs = S((64, 128), "bfloat16"), S((128, 192), "bfloat16")
    assert launches(lambda a, b: (a @ b)[part], *specs) == 1


def test_a_crop_of_a_border_is_its_fill() -> None:
    fusion = fw.trace(lambda x: fw.concat([fw.pad(x, 1)[:1], fw.pad(x, 1)[1:]], axis=0), X)
    after = fold_crops(fusion)
    first, second = after.outputs[0].op.operands
    assert isinstance(first.op, Broadcast) and isinstance(first.op.operands[0].op, Constant)
    assert isinstance(second.op, Resize) and isinstance(second.op.operands[0].op, Input)


def test_windows_of_a_padded_image_are_read_in_place() -> None:
    """Views between the pad and the windows hide from nobody that these are crops of it."""
    p = fw.compile(fw.trace(lambda x: fw.nn.max_pool2d(fw.pad(x, 1)[None, None], 3, stride=1), X))
    assert len(p.launches) == 1


def blurred(x: Any) -> Any:
    x = (x[:, :-2] + 2 * x[:, 1:-1] + x[:, 2:]) / 4
    return (x[..., :-2] + 2 * x[..., 1:-1] + x[..., 2:]) / 4


def test_parts_of_functions_of_a_padded_image_are_functions_of_parts() -> None:
    spec = S((2, 37, 45), "float32")
    assert launches(lambda x: blurred(fw.pad(x, ((0, 0), (1, 1), (1, 1)))), spec) == 1
    assert launches(lambda x: blurred(fw.pad(x, ((0, 0), (2, 3), (0, 4)))), spec) == 1


@pytest.mark.parametrize("by", [3, -2, 8])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_parts_of_functions_of_shifted_functions_are_functions_of_parts(
    by: int, dtype: str
) -> None:
    """Each part has a pad of its own, around what is computed of its own elements."""

    def exchanged(x: Any) -> Any:
        y = fw.exp(shift(fw.abs(x) * 2, by, 0.5))
        return fw.concat([-y[:, 10:], y[:, :10]], axis=1)

    assert launches(exchanged, S((13, 21), dtype)) == 1


def test_what_is_stored_is_read_where_functions_of_it_are_moved() -> None:
    """A blur is computed too often for all places that two differences of it read: it is stored,
    and both are computed of it at the places that the next ones read."""

    def edges(x: Any) -> Any:
        y = blurred(fw.pad(x, ((0, 0), (2, 2), (2, 2))))
        dx, dy = y[:, :, 2:] - y[:, :, :-2], y[:, 2:] - y[:, :-2]
        gx = dx[:, :-2] + 2 * dx[:, 1:-1] + dx[:, 2:]
        gy = dy[:, :, :-2] + 2 * dy[:, :, 1:-1] + dy[:, :, 2:]
        return fw.sqrt(gx * gx + gy * gy), gx - gy

    assert launches(edges, S((3, 37, 45), "float32")) == 2


@pytest.mark.parametrize("seed", range(8))
def test_random_parts_of_pads(seed: int) -> None:
    """Parts of functions of pads, some of which leave nothing of one end of the pad."""
    rng = random.Random(seed)
    pads = [(rng.randrange(4), rng.randrange(4)) for _ in range(2)]
    cuts = [(rng.randrange(6), rng.randrange(6)) for _ in range(2)]

    def fn(x: Any) -> Any:
        y = fw.pad(x, tuple(pads), constant_values=0.5)
        y = y + 3 * fw.abs(y)
        (a, b), (c, d) = cuts
        parts = y[a : y.shape[0] - b, c : y.shape[1] - d], y[b : y.shape[0] - a, : -c - d or None]
        return parts[0] - parts[1]

    assert launches(fn, S((13, 18), "float32")) == 1


@pytest.mark.parametrize("columns", [1, 3, 4])
def test_a_crop_of_what_a_pad_of_sums_is_computed_with(columns: int) -> None:
    """A pad of what is computed is read along all of the axes that it changes, or where it is
    stored: its crop is no pad."""

    def fn(x: Any) -> Any:
        p = fw.pad(fw.sum(x, axis=1, keepdims=True), ((2, 0), (1, 2)))
        y = (p + p)[:, :columns]
        sums = fw.sum(fw.cumulative_sum(y, axis=1), axis=1, keepdims=True)
        return fw.nn.softmax(p, axis=-1), y * sums

    fusion = fw.trace(fn, fw.TensorSpec((3, 8), "float32"))
    x = np.random.default_rng(3).standard_normal((3, 8)).astype(np.float32)
    result = fw.compile(fusion).simulate(x)
    assert result.races == []
    for got, want in zip(result.outputs, fw.evaluate(fusion, x), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def _halves_of_a_shift(
    by: int, cut: int, dtype: str | None, fill: float = 0.0
) -> Callable[[fw.Array], fw.Array]:
    """Rows shifted by a pad of what is left, and their two parts exchanged; with a dtype widened
    before, and computed with between."""

    def fn(x: fw.Array) -> fw.Array:
        wide = x if dtype is None else fw.astype(x, dtype)
        shifted = fw.pad(wide[:-by], ((by, 0), (0, 0)), constant_values=fill)
        y = shifted if dtype is None else fw.nn.relu(shifted)
        return fw.concat([-y[cut:], y[:cut]], axis=0)

    return fn


@pytest.mark.parametrize("dtype", [None, "float32"])
@pytest.mark.parametrize(("by", "cut"), [(1, 6), (4, 6), (3, 2), (4, 11)])
def test_parts_of_shifts_are_read_of_the_argument(by: int, cut: int, dtype: str | None) -> None:
    """A pad of a crop is looked through by what reads parts of it, a cast between them, too."""
    assert launches(_halves_of_a_shift(by, cut, dtype), S((12, 20), "bfloat16")) == 1


def test_a_fill_that_the_narrow_type_lacks_stays_beside_the_wide_value() -> None:
    """0.1 in float32 is no bfloat16: values are those of the wide pad, whatever the kernels."""
    launches(_halves_of_a_shift(4, 6, "float32", fill=0.1), S((12, 20), "bfloat16"))
