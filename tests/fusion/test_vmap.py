"""vmap: a mapped function does for every slice what the function does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fusewright as fw
from fusewright.fusion.ir import Insert, Region

S = fw.TensorSpec
RNG = np.random.default_rng(3)


def check(fn: Callable[..., Any], *arrays: np.ndarray, in_axes: Any = 0, out_axes: int = 0) -> None:
    """The oracle of the mapped function against that of the function on each slice; the kernels of
    the mapped function against its oracle."""
    specs = [S(a.shape, a.dtype.name) for a in arrays]
    fusion = fw.trace(fw.vmap(fn, in_axes, out_axes), *specs)
    found = fw.evaluate(fusion, *arrays)
    axes = in_axes if isinstance(in_axes, tuple) else (in_axes,) * len(arrays)
    count = next(a.shape[k] for a, k in zip(arrays, axes, strict=True) if k is not None)
    rows: list[list[np.ndarray]] = []
    for n in range(count):
        slices = [a if k is None else np.take(a, n, k) for a, k in zip(arrays, axes, strict=True)]
        single = fw.trace(fn, *(S(s.shape, s.dtype.name) for s in slices))
        rows.append(fw.evaluate(single, *slices))
    for k, got in enumerate(found):
        want = np.stack([r[k] for r in rows], out_axes)
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
    result = fw.compile(fusion).simulate(*arrays)
    assert result.races == []
    for got, want in zip(result.outputs, found, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def draw(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


OPS: dict[str, Callable[[Any], Any]] = {
    "functions": lambda x: fw.where(x > 0, fw.exp(x), x * 2),
    "a sum": lambda x: fw.sum(x, axis=0),
    "a sum of all": fw.sum,
    "softmax": fw.nn.softmax,
    "layer norm": lambda x: fw.nn.layer_norm(x, (5,)),
    "a broadcast": lambda x: x[:, :1] + x[0],
    "a permutation": lambda x: x.T,
    "a reshape": lambda x: fw.reshape(x, (-1,)),
    "a pad": lambda x: fw.pad(x, ((1, 0), (0, 2)), constant_values=1.0),
    "a crop": lambda x: x[1:, 2:4],
    "steps and flips": lambda x: fw.flip(x[::2], axis=1),
    "a roll": lambda x: fw.roll(x, 2, axis=1),
    "a concatenation": lambda x: fw.concat([x, x * 2], axis=1),
    "a scan": lambda x: fw.cumulative_sum(x, axis=1),
    "rows of all": lambda x: fw.take(x, fw.asarray([2, 0, -1]), axis=0),
    "columns of a table": lambda x: fw.take(
        fw.asarray(np.arange(6.0, dtype=np.float32)), fw.argmax(x, axis=1)
    ),
    "rows of its own": lambda x: fw.take(x, fw.argmax(x, axis=0) - 1, axis=0),
    "columns of its own": lambda x: fw.take(x, fw.argmax(x, axis=1), axis=1),
    "along an axis": lambda x: fw.take_along_axis(x, fw.argmax(x, axis=1, keepdims=True), axis=1),
    "a coordinate": lambda x: x + fw.arange(5, dtype=fw.float32),
    "what no slice reaches": lambda x: fw.arange(4, dtype=fw.float32),
    "a product": lambda x: x @ x.T,
    "a gradient": lambda x: fw.grad(lambda y: fw.sum(fw.sin(y) * y))(x),
}


@pytest.mark.parametrize("name", OPS)
def test_every_slice_gets_what_the_function_does(name: str) -> None:
    check(OPS[name], draw(3, 4, 5))


@pytest.mark.parametrize(
    ("in_axes", "shapes"),
    [
        ((0, None), ((3, 4), (4, 2))),
        ((None, 2), ((4,), (4, 2, 3))),
        ((1, -1), ((4, 3), (4, 2, 3))),
    ],
)
def test_arguments_have_axes_of_their_own(in_axes: Any, shapes: Any) -> None:
    check(lambda a, b: a @ b, *(draw(*s) for s in shapes), in_axes=in_axes)


def test_results_are_stacked_where_it_is_asked_for() -> None:
    check(lambda x: x * 2, draw(3, 4, 5), in_axes=1, out_axes=-1)


def test_maps_of_maps_and_gradients_of_maps() -> None:
    check(lambda x: fw.vmap(lambda r: r / fw.sum(r))(x), np.abs(draw(2, 3, 4)) + 1)
    x = draw(3, 4)

    def per_row(x: Any) -> Any:
        return fw.grad(lambda x: fw.sum(fw.vmap(lambda r: fw.max(r) ** 2)(x)))(x)

    (g,) = fw.evaluate(fw.trace(per_row, S(x.shape, "float32")), x)
    want = np.where(x == x.max(1, keepdims=True), 2 * x.max(1, keepdims=True), 0)
    np.testing.assert_allclose(g, want, rtol=1e-6)


def test_rules_of_ones_own_hold_for_every_slice() -> None:
    twice = fw.custom_vjp(fw.exp, lambda x, w: (x * w, (x, w)), lambda s, g: (g * s[1] * 2, g))

    def fn(x: Any, w: Any) -> Any:
        def loss(x: Any, w: Any) -> Any:
            rows = fw.vmap(lambda r, w: fw.sum(twice(r, w) + fw.stop_gradient(r) * r), (0, None))
            return fw.sum(rows(x, w))

        return fw.grad(loss, (0, 1))(x, w)

    x, w = draw(3, 4), draw(4)
    of_x, of_w = fw.evaluate(fw.trace(fn, S(x.shape, "float32"), S(w.shape, "float32")), x, w)
    np.testing.assert_allclose(of_x, 2 * w + x, rtol=1e-6)
    np.testing.assert_allclose(of_w, np.full(4, 3.0), rtol=1e-6)


REGIONS: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...], Any]] = {
    "a loop": (
        lambda v: fw.fori_loop(0, 3, lambda i, c: fw.sin(c) + v, v),
        ((3, 4),),
        0,
    ),
    "a loop along another axis": (
        lambda v: fw.fori_loop(0, 3, lambda i, c: fw.cumulative_sum(c), v),
        ((3, 4),),
        1,
    ),
    "its index": (
        lambda v: fw.fori_loop(0, 4, lambda i, c: c + v[i] * (i + 1), v[0] * 0),
        ((3, 4),),
        0,
    ),
    "a block at its index": (
        lambda v: fw.fori_loop(
            0, 4, lambda i, c: fw.insert(c, v[i : i + 1] * 2, (i,)), fw.zeros_like(v)
        ),
        ((3, 4),),
        0,
    ),
    "a recurrence": (
        lambda h, xs, w: fw.scan(lambda h, a: ((n := fw.tanh(h @ w + a)), n * 2), h, xs),
        ((3, 4), (3, 5, 4), (4, 4)),
        (0, 0, None),
    ),
    "a recurrence from behind, of scalars": (
        lambda h, xs: fw.scan(lambda h, a: (h * 0.5 + a, fw.sum(a)), h, xs, reverse=True),
        ((3, 4), (3, 5, 4)),
        0,
    ),
    "slices that all share": (
        lambda h, xs: fw.scan(lambda h, a: (h * 0.5 + a, a * 2), h, xs),
        ((3, 4), (5, 4)),
        (0, None),
    ),
    "a start that all share": (
        lambda h, xs: fw.scan(lambda h, a: (h * 0.5 + a, h), h, xs),
        ((4,), (3, 5, 4)),
        (None, 0),
    ),
    "a counter beside": (
        lambda h: fw.scan(lambda c, _: ((c[0] + 1, c[1] * 0.5), c[0]), (0, h), None, length=3),
        ((3, 4),),
        0,
    ),
    "a branch that all take": (
        lambda q, v: fw.cond(q[0] > 0, lambda v: v * 2, lambda v: v - 1, v),
        ((1,), (3, 4)),
        (None, 0),
    ),
    "branches of their own": (
        lambda v: fw.cond(fw.sum(v) > 0, lambda v: (v * 2, fw.sum(v)), lambda v: (v - 1, v[0]), v),
        ((5, 4),),
        0,
    ),
    "branches that read nothing": (
        lambda v: fw.cond(v > 0, lambda: fw.ones((2,)), lambda: fw.zeros((2,))),
        ((5,),),
        0,
    ),
    "ends of their own": (
        lambda v: fw.while_loop(
            lambda s: fw.sum(s[1] * s[1]) > 0.1, lambda s: (s[0] + 1, s[1] / 2), (0, v)
        ),
        ((4, 3),),
        0,
    ),
    "an end that all share": (
        lambda v: fw.while_loop(lambda s: s[0] < 4, lambda s: (s[0] + 1, fw.sin(s[1])), (0, v)),
        ((3, 4),),
        0,
    ),
    "a loop in a loop": (
        lambda v: fw.fori_loop(
            0, 2, lambda i, c: fw.fori_loop(0, 3, lambda j, d: d * 0.5 + v[j] * i, c), v
        ),
        ((3, 4),),
        0,
    ),
    "a map in a map": (
        lambda v: fw.vmap(lambda e: fw.fori_loop(0, 3, lambda i, c: c * e, e))(v),
        ((3, 4),),
        0,
    ),
    "a gradient of a loop": (
        lambda v: fw.grad(lambda v: fw.sum(fw.fori_loop(0, 3, lambda i, c: fw.sin(c) * v, v)))(v),
        ((3, 4),),
        0,
    ),
}


@pytest.mark.parametrize("name", REGIONS)
def test_loops_and_branches_run_for_all_slices(name: str) -> None:
    fn, shapes, in_axes = REGIONS[name]
    check(fn, *(draw(*s) for s in shapes), in_axes=in_axes)


def test_a_loop_whose_trips_each_slice_has_for_itself() -> None:
    def fn(k: Any, v: Any) -> Any:
        return fw.fori_loop(0, k, lambda i, c: c * 0.5 + i, v)

    counts = np.array([0, 3, 1])
    check(fn, counts, draw(3, 4))


def test_results_of_one_loop_are_mapped_in_one_loop() -> None:
    fn, shapes, _ = REGIONS["a recurrence from behind, of scalars"]
    values = fw.trace(fw.vmap(fn), *(S(s, "float32") for s in shapes)).values
    assert len({t.op.bodies for t in values if isinstance(t.op, Region)}) == 1


def test_gradients_of_mapped_loops() -> None:
    def loop(v: Any) -> Any:
        return fw.sum(fw.fori_loop(0, 3, lambda i, c: fw.sin(c) * v, v))

    def of_all(x: Any) -> Any:
        return fw.grad(lambda x: fw.sum(fw.vmap(loop)(x)))(x)

    x = draw(3, 4)
    spec = S(x.shape, "float32")
    (first,) = fw.evaluate(fw.trace(of_all, spec), x)
    (second,) = fw.evaluate(fw.trace(fw.vmap(fw.grad(loop)), spec), x)
    np.testing.assert_allclose(first, second, rtol=1e-6)
    assert np.abs(first).max() > 0.1


def test_a_block_at_a_place_that_all_share_is_one_block() -> None:
    fusion = fw.trace(
        fw.vmap(lambda c, v, i: fw.insert(c, v, (i,)), (0, 0, None)),
        S((3, 8), "float32"), S((3, 2), "float32"), S((), "int64"),
    )  # fmt: skip
    assert sum(isinstance(t.op, Insert) for t in fusion.values) == 1
    c, v, at = draw(3, 8), draw(3, 2), np.array(5)
    want = c.copy()
    want[:, 5:7] = v
    np.testing.assert_array_equal(fw.evaluate(fusion, c, v, at)[0], want)


def test_a_mapped_program_is_one_kernel() -> None:
    fusion = fw.trace(fw.vmap(lambda r: fw.nn.softmax(r)), S((64, 512), "float32"))
    assert len(fw.compile(fusion).kernels) == 1


X = S((3, 4), "float32")
REJECTED: dict[str, tuple[Callable[..., Any], str]] = {
    "sizes that differ": (
        lambda x: fw.vmap(lambda a, b: a, (0, 1))(x, x),
        "the mapped axes have sizes 3 and 4",
    ),
    "an axis that is not there": (lambda x: fw.vmap(fw.exp, 2)(x), "vmap: axis 2"),
    "too few axes": (
        lambda x: fw.vmap(fw.add, (0,))(x, x),
        r"in_axes=\(0,\)\): the call has 2 positional arguments",
    ),
    "no axis": (lambda x: fw.vmap(fw.exp, None)(x), "no argument has an axis to map over"),
    "an axis that is no integer": (
        lambda x: fw.vmap(fw.exp, ("x",))(x),  # type: ignore[list-item]
        "in_axes='x' is str; it must be an integer",
    ),
}


@pytest.mark.parametrize("what", REJECTED)
def test_what_cannot_be_mapped_is_refused(what: str) -> None:
    fn, message = REJECTED[what]
    with pytest.raises(fw.UserError, match=message):
        fw.trace(fn, X)
