"""Shapes, orders, joins, pads and inserts against numpy."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from fusion_cases import assert_same, run

from fusewright.errors import UserError
from fusewright.fusion import ops as fw
from fusewright.fusion.array import Array
from fusewright.fusion.evaluate import evaluate
from fusewright.fusion.ir import Sym, TensorSpec
from fusewright.fusion.spec import check
from fusewright.fusion.text import parse_fusion
from fusewright.fusion.trace import trace

X = np.random.default_rng(0).normal(size=(3, 4, 5))


@pytest.mark.parametrize("shape", [(60,), (5, 12), (-1,), (3, -1, 2), (1, 60, 1), (3, 4, 5)])
def test_reshape(shape: tuple[int, ...]):
    assert_same(run(lambda x: fw.reshape(x, shape), X), X.reshape(shape))


def test_new_and_dropped_axes():
    assert_same(run(lambda x: fw.expand_dims(x, 1), X), X[:, None])
    assert_same(run(lambda x: fw.expand_dims(x, (0, -1, 2)), X), np.expand_dims(X, (0, -1, 2)))
    y = X[:, :1, None]
    assert_same(run(lambda x: fw.squeeze(x, 1), y), y.squeeze(1))
    assert_same(run(lambda x: fw.squeeze(x, (1, -2)), y), y.squeeze((1, -2)))


def test_broadcasting_functions():
    assert_same(
        run(lambda x: fw.broadcast_to(x, (2, 3, 4, 5)), X), np.broadcast_to(X, (2, 3, 4, 5))
    )
    a, b = X[:, :1], X[0, 0]
    got = run(lambda x, y: fw.broadcast_arrays(x, y), a, b)
    for actual, expected in zip(got, np.broadcast_arrays(a, b), strict=True):
        assert_same(actual, expected)
    assert fw.broadcast_shapes((3, 1), (1, 4), ()) == (3, 4)


@pytest.mark.parametrize("axes", list(itertools.permutations(range(3))))
def test_permute_dims(axes: tuple[int, ...]):
    assert_same(run(lambda x: fw.permute_dims(x, axes), X), X.transpose(axes))
    assert_same(run(lambda x: fw.moveaxis(x, (0, 1, 2), axes), X), np.moveaxis(X, (0, 1, 2), axes))


def test_moveaxis_and_matrix_transpose():
    assert_same(run(lambda x: fw.moveaxis(x, -1, 0), X), np.moveaxis(X, -1, 0))
    assert_same(run(lambda x: fw.matrix_transpose(x), X), X.swapaxes(1, 2))


@pytest.mark.parametrize("axis", [None, 0, (0, -1), ()])
def test_flip(axis: object):
    assert_same(run(lambda x: fw.flip(x, axis=axis), X), np.flip(X, axis))


@pytest.mark.parametrize(
    ("shift", "axis"),
    [(2, 0), (-7, 1), (0, 2), (100, None), ((1, -2), (0, 2)), (3, (0, 1)), ((1, 1), (0, 0))],
)
def test_roll(shift: object, axis: object):
    assert_same(run(lambda x: fw.roll(x, shift, axis=axis), X), np.roll(X, shift, axis))


@pytest.mark.parametrize(("repeats", "axis"), [(2, 0), (3, -1), (1, 1), (0, 2), (2, None)])
def test_repeat(repeats: int, axis: int | None):
    assert_same(run(lambda x: fw.repeat(x, repeats, axis=axis), X), np.repeat(X, repeats, axis))


@pytest.mark.parametrize("counts", [(2,), (2, 1, 3), (2, 1, 1, 2), (0, 2), ()])
def test_tile(counts: tuple[int, ...]):
    assert_same(run(lambda x: fw.tile(x, counts), X), np.tile(X, counts))


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_joins(axis: int):
    y = X + 1
    assert_same(
        run(lambda a, b: fw.concat([a, b, a], axis=axis), X, y), np.concatenate([X, y, X], axis)
    )
    assert_same(run(lambda a, b: fw.stack([a, b], axis=axis), X, y), np.stack([X, y], axis))
    for actual, expected in zip(
        run(lambda a: fw.unstack(a, axis=axis), X), np.moveaxis(X, axis, 0), strict=True
    ):
        assert_same(actual, expected)


def test_concat_flattens_and_promotes():
    a, b = np.ones((2, 2), np.float32), np.zeros((3,), np.float64)
    assert_same(run(lambda x, y: fw.concat([x, y], axis=None), a, b), np.array([1.0] * 4 + [0] * 3))
    assert_same(run(lambda x: fw.concat((x,)), a), a)
    empty = np.ones((0, 2), np.float32)
    assert_same(run(lambda x, y: fw.concat([x, y]), a, empty), a)


# --- pad ----------------------------------------------------------------------------------------

WIDTHS = [0, 2, (1, 3), ((1, 2), (0, 0), (3, 0)), ((9, 11), (0, 4), (13, 1)), ((2, 1),)]


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "symmetric", "wrap"])
@pytest.mark.parametrize("width", WIDTHS, ids=str)
def test_pad_follows_numpy(width: object, mode: str):
    assert_same(run(lambda x: fw.pad(x, width, mode), X), np.pad(X, width, mode))
    one = X[:1, :2, :1].copy()
    assert_same(run(lambda x: fw.pad(x, width, mode), one), np.pad(one, width, mode))


@pytest.mark.parametrize("value", [0.0, -1.5, np.inf, np.nan])
def test_pad_with_a_value(value: float):
    expected = np.pad(X, 1, constant_values=value)
    assert_same(run(lambda x: fw.pad(x, 1, constant_values=value), X), expected)


def test_negative_amounts_crop():
    widths = ((-1, 2), (1, -3), (-2, -1))
    expected = np.pad(X, ((0, 2), (1, 0), (0, 0)))[1:, :-3, 2:-1]
    assert_same(run(lambda x: fw.pad(x, widths), X), expected)
    expected = np.pad(X, ((0, 2), (1, 0), (0, 0)), "reflect")[1:, :-3, 2:-1]
    assert_same(run(lambda x: fw.pad(x, widths, "reflect"), X), expected)
    beyond = run(lambda x: fw.pad(x, ((-4, 3), (0, 0), (0, 0)), constant_values=7), X)
    assert_same(beyond, np.full((2, 4, 5), 7.0))


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "symmetric", "wrap"])
@pytest.mark.parametrize("n", [3, 8])
def test_pad_of_symbolic_sizes(mode: str, n: int):
    fusion = trace(lambda x: fw.pad(x, ((4, 2),), mode), TensorSpec((Sym("n"),), "float64"))
    x = np.arange(float(n))
    assert_same(evaluate(fusion, x)[0], np.pad(x, (4, 2), mode))


# --- insert -------------------------------------------------------------------------------------


@pytest.mark.parametrize("start", [(0, 0, 0), (1, 2, 1), (2, 3, 3), (0, 1, 0)])
@pytest.mark.parametrize("block", [(1, 1, 2), (1, 1, 1), (0, 1, 2)])
def test_insert(start: tuple[int, ...], block: tuple[int, ...]):
    y = np.random.default_rng(1).normal(size=block)
    expected = X.copy()
    expected[tuple(slice(s, s + n) for s, n in zip(start, block, strict=True))] = y
    assert_same(run(lambda x, v: fw.insert(x, v, start), X, y), expected)


def test_insert_of_everything_casts():
    x, y = np.zeros((2, 3), np.float32), np.arange(6.0).reshape(2, 3)
    assert_same(run(lambda a, b: fw.insert(a, b, (0, 0)), x, y), y.astype(np.float32))


def test_insert_at_a_symbolic_place():
    def fn(x: Array, v: Array) -> Array:
        return fw.insert(x, v, (x.shape[0] - 2,))

    fusion = trace(fn, TensorSpec((Sym("n", min=3),), "float32"), TensorSpec((2,), "float32"))
    x, v = np.zeros(5, np.float32), np.ones(2, np.float32)
    assert_same(evaluate(fusion, x, v)[0], np.array([0, 0, 0, 1, 1], np.float32))


@pytest.mark.parametrize("seed", range(25))
def test_random_chains_of_moves(seed: int):
    """Every value of a random chain keeps the spec and equals numpy's."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=tuple(int(n) for n in rng.integers(1, 6, 3)))
    steps = []
    for _ in range(6):
        axis, amount = int(rng.integers(0, 3)), int(rng.integers(1, 4))
        order = tuple(int(a) for a in rng.permutation(3))
        widths = tuple((int(a), int(b)) for a, b in rng.integers(0, 3, (3, 2)))
        steps.append(
            [
                (lambda m, v, a=axis: m.flip(v, axis=a)),
                (lambda m, v, a=axis, k=amount: m.roll(v, k, axis=a)),
                (lambda m, v, a=axis: m.repeat(v, 2, axis=a)),
                (lambda m, v, o=order: m.permute_dims(v, o)),
                (lambda m, v, w=widths: m.pad(v, w)),
                (lambda m, v, w=widths: m.pad(v, w, "symmetric")),
                (lambda m, v, a=axis: m.concat([v, m.flip(v, axis=a)], axis=a)),
                (lambda m, v: m.reshape(v, (v.shape[2], v.shape[0], v.shape[1]))),
                (lambda m, v: v[::-1, :, ::2]),
            ][int(rng.integers(0, 9))]
        )

    def chain(module: object, v: object) -> object:
        for step in steps:
            v = step(module, v)
        return v

    assert_same(run(lambda a: chain(fw, a), x), chain(np, x))
    if min(x.shape) > 1:
        sizes = [
            Sym(name) if rng.random() < 0.6 else n for name, n in zip("abc", x.shape, strict=True)
        ]
        fusion = trace(lambda a: chain(fw, a), TensorSpec(sizes, "float64"))
        check(fusion)
        assert_same(evaluate(parse_fusion(str(fusion)), x)[0], chain(np, x))


# --- rejections ---------------------------------------------------------------------------------

F = TensorSpec((2, 3), "float32")
N = TensorSpec(("n", 3), "float32")


@pytest.mark.parametrize(
    ("fn", "spec", "message"),
    [
        (
            lambda x: fw.reshape(x, (4,)),
            F,
            r"shape \(2, 3\) has 6 elements and \(4,\) has 4: a res",
        ),
        (lambda x: fw.reshape(x, (-1, -1)), F, r"reshape to \(-1, -1\): only one size may be -1"),
        (
            lambda x: fw.reshape(x, (-1, 4)),
            F,
            r"the 6 elements do not divide by the other sizes' 4",
        ),
        (lambda x: fw.reshape(x, (-1, 2)), N, r"3\*n elements do not divide .*multiple_of"),
        (lambda x: fw.reshape(x, (2, -3)), F, r"reshape: size -3 in shape \(2, -3\) is negative"),
        (lambda x: fw.reshape(x, (2, 3.0)), F, r"reshape: size 3.0 in shape .*sizes are integers"),
        (lambda x: fw.squeeze(x, 0), F, r"squeeze: axis 0 of shape \(2, 3\) has size 2; only axes"),
        (lambda x: fw.broadcast_to(x, (3,)), F, r"\(2, 3\) does not broadcast to \(3,\): each"),
        (
            lambda x: fw.permute_dims(x, (0, 0)),
            F,
            r"axes=\(0, 0\) for an array of rank 2: name every",
        ),
        (lambda x: fw.moveaxis(x, (0, 1), 0), F, r"moveaxis: 2 sources for 1 destinations"),
        (lambda x: fw.roll(x, (1, 2)), F, r"roll: shift=\(1, 2\) without axes"),
        (lambda x: fw.roll(x, (1, 2), axis=0), F, r"roll: 2 shifts for 1 axes"),
        (lambda x: fw.repeat(x, -1), F, r"repeat: repeats=-1: the count must not be negative"),
        (lambda x: fw.repeat(x, [1, 2]), F, r"repeat: repeats=\[1, 2\] is list; it must be an int"),
        (lambda x: fw.tile(x, (-1,)), F, r"tile: repetitions=\(-1,\): counts must not be negative"),
        (lambda x: fw.concat([]), F, r"concat of no arrays: give at least one"),
        (
            lambda x: fw.concat([x, x.T]),
            F,
            r"concat along axis 0: array 1 has shape \(3, 2\), array",
        ),
        (lambda x: fw.stack([x, x.T]), F, r"stack: array 1 has shape \(3, 2\).*must be equal"),
        (lambda x: fw.unstack(x), N, r"unstack: axis 0 has symbolic size n: the number of results"),
        (
            lambda x: fw.pad(x, ((1, 2),) * 3),
            F,
            r"pad: pad_width=.* for an array of rank 2: give n",
        ),
        (lambda x: fw.pad(x, -2), F, r"pad: axis 0 of size 2 with \(-2, -2\) leaves -2 elements"),
        (lambda x: fw.pad(x, 1, "odd"), F, r"pad: mode='odd'; use one of constant, edge, wrap"),
        (lambda x: fw.pad(x[:0], 1, "edge"), F, r"axis 0 has size 0, so mode 'edge' has nothing"),
        (
            lambda x: fw.pad(x, 1, constant_values=x),
            F,
            r"it must be one real Python scalar",
        ),
        (lambda x: fw.insert(x, x, (0, 1)), F, r"insert: axis 1: 3 elements from 1 on may not fit"),
        (
            lambda x: fw.insert(x, x[0], (0, 1)),
            F,
            r"a block of rank 1 at 2 starts in an array of ran",
        ),
        (lambda x: fw.insert(x, x[:1], (5, 0)), N, r"1 elements from 5 on may not fit size n"),
    ],
)
def test_rejections(fn: object, spec: TensorSpec, message: str):
    with pytest.raises(UserError, match=message):
        trace(fn, spec)


def test_a_mask_is_padded_with_false_unless_told_otherwise() -> None:
    x = np.array([[True, False], [True, True]])
    for given in ({}, {"constant_values": 1}, {"constant_values": True}):
        fusion = trace(lambda m, g=given: fw.pad(m, 1, **g), TensorSpec((2, 2), "bool"))
        assert np.array_equal(evaluate(fusion, x)[0], np.pad(x, 1, **given))
    with pytest.raises(UserError, match="pad"):
        trace(lambda m: fw.pad(m, 1, constant_values=2), TensorSpec((2, 2), "bool"))
