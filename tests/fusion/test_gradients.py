"""Gradients: against differences in float64, rule by rule and through whole programs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fusewright as fw
from fusewright.core.functions import FUNCTIONS
from fusewright.fusion import build
from fusewright.fusion.array import Array
from fusewright.fusion.transforms.pointwise_adjoints import FLAT, RULES

S = fw.TensorSpec
STEP = 1e-6
RNG = np.random.default_rng(5)


def values(fn: Callable[..., Any], *arrays: np.ndarray) -> list[np.ndarray]:
    specs = [S(a.shape, a.dtype.name) for a in arrays]
    return fw.evaluate(fw.trace(fn, *specs), *arrays)


def check(fn: Callable[..., Any], *arrays: np.ndarray) -> None:
    """Every partial derivative of a sum of the result, each element with a weight of its own,
    against central differences."""

    def loss(*xs: Any) -> Any:
        y = fn(*xs)
        weights = np.sin(1.0 + np.arange(int(np.prod(y.shape)))).reshape(y.shape)
        return fw.sum(y * fw.asarray(weights))

    numbers = tuple(range(len(arrays)))
    found = values(lambda *xs: fw.grad(loss, numbers)(*xs), *arrays)
    for n, (a, g) in enumerate(zip(arrays, found, strict=True)):
        assert g.shape == a.shape
        for at in np.ndindex(a.shape):
            ends: list[Any] = []
            for sign in (1, -1):
                moved = [x.copy() for x in arrays]
                moved[n][at] += sign * STEP
                ends += values(loss, *moved)
            slope = (ends[0] - ends[1]) / (2 * STEP)
            np.testing.assert_allclose(g[at], slope, rtol=2e-5, atol=2e-6, err_msg=f"{n} {at}")


def draw(*shape: int, low: float = -1.0, high: float = 1.0) -> np.ndarray:
    return RNG.uniform(low, high, shape)


# --- scalar functions ---------------------------------------------------------------------------

UNARY: dict[str, tuple[Callable[[Any], Any], float, float]] = {
    "neg": (lambda x: -x, -1, 1),
    "abs": (fw.abs, 0.1, 1),
    "sqrt": (fw.sqrt, 0.2, 2),
    "rsqrt": (lambda x: 1 / fw.sqrt(x), 0.2, 2),
    "exp": (fw.exp, -1, 1),
    "exp2": (fw.exp2, -1, 1),
    "expm1": (fw.expm1, -1, 1),
    "log": (fw.log, 0.2, 2),
    "log2": (fw.log2, 0.2, 2),
    "log10": (fw.log10, 0.2, 2),
    "log1p": (fw.log1p, -0.5, 1),
    "sin": (fw.sin, -1, 1),
    "cos": (fw.cos, -1, 1),
    "tan": (fw.tan, -1, 1),
    "asin": (fw.asin, -0.8, 0.8),
    "acos": (fw.acos, -0.8, 0.8),
    "atan": (fw.atan, -1, 1),
    "sinh": (fw.sinh, -1, 1),
    "cosh": (fw.cosh, -1, 1),
    "tanh": (fw.tanh, -1, 1),
    "asinh": (fw.asinh, -1, 1),
    "acosh": (fw.acosh, 1.2, 2),
    "atanh": (fw.atanh, -0.8, 0.8),
    "erf": (fw.erf, -1, 1),
    "reciprocal": (fw.reciprocal, 0.2, 1),
    "cast": (lambda x: fw.astype(x, fw.float64) * 2, -1, 1),
    "copy": (fw.copy, -1, 1),
}
BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b,
    "pow": lambda a, b: a**b,
    "rem": fw.remainder,
    "atan2": fw.atan2,
    "max": fw.maximum,
    "min": fw.minimum,
    "hypot": fw.hypot,
    "copysign": fw.copysign,
    "logaddexp": fw.logaddexp,
    "where": lambda a, b: fw.where(a > b, a * a, b),
    "fma": lambda a, b: fw.fma(a, b, a),
}


@pytest.mark.parametrize("name", UNARY)
def test_functions_of_one_operand(name: str) -> None:
    fn, low, high = UNARY[name]
    check(fn, draw(7, low=low, high=high))


@pytest.mark.parametrize("name", BINARY)
def test_functions_of_two_operands(name: str) -> None:
    check(BINARY[name], draw(5, low=0.3, high=2), draw(5, low=0.3, high=2))


def test_every_function_of_floats_has_a_rule_or_says_that_it_has_none() -> None:
    without = {
        *("signbit", "isnan", "isinf", "isfinite", "logical_not", "nextafter", "philox"),
        *("bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_not", "shl", "shr"),
        "bitcast",
        *("eq", "ne", "lt", "le", "gt", "ge", "and", "or", "xor"),
    }
    made_by_passes = {
        n for n in FUNCTIONS if n.endswith(("_approx", "_added", "_bfloat16", "_set"))
    }
    assert {*RULES, *FLAT, *without, *made_by_passes} == set(FUNCTIONS)
    assert {*UNARY, *BINARY, "floordiv"} == RULES


@pytest.mark.parametrize("fn", [fw.floor, fw.ceil, fw.trunc, fw.round, fw.sign])
def test_steps_pass_nothing_on(fn: Callable[[Any], Any]) -> None:
    (g,) = values(fw.grad(lambda x: fw.sum(fn(x) * 3 + x)), draw(4, low=0.1, high=0.4))
    np.testing.assert_array_equal(g, np.ones(4))


@pytest.mark.parametrize(
    ("fn", "x", "want"),
    [
        (fw.std, [1.0, 1.0], [0.0, 0.0]),
        (lambda x: fw.sum(fw.std(x, axis=1)), [[1.0, 1.0], [1.0, 3.0]], [[0, 0], [-0.5, 0.5]]),
        (lambda x: fw.sum(fw.nn.normalize(x, axis=0, eps=0.5)), [0.0, 0.0], [2.0, 2.0]),
        (lambda x: fw.sum(fw.nn.normalize(x, 3.0, axis=0, eps=0.5)), [0.0, 0.0], [2.0, 2.0]),
        (lambda x: fw.nn.cosine_similarity(x, fw.ones_like(x), axis=0), [0.0, 0.0], None),
    ],
)
def test_roots_of_sums_have_no_slope_at_zero(fn: Callable[[Any], Any], x: Any, want: Any) -> None:
    (g,) = values(fw.grad(fn), np.array(x))
    assert np.isfinite(g).all()
    if want is not None:
        np.testing.assert_allclose(g, want)


@pytest.mark.parametrize("power", [1.5, 2.0, 3.0])
def test_norms(power: float) -> None:
    check(lambda x: fw.nn.normalize(x, power, axis=1), draw(3, 4, low=0.2))
    check(lambda x: fw.grad(lambda x: fw.sum(fw.nn.normalize(x, power) ** 3))(x), draw(2, 3))


def test_kinks_are_those_of_torch() -> None:
    x = np.array([0.0, 2.0])
    (g,) = values(fw.grad(lambda x: fw.sum(fw.abs(x))), x)
    np.testing.assert_array_equal(g, [0, 1])
    a, b = values(fw.grad(lambda a, b: fw.sum(fw.maximum(a, b)), (0, 1)), x, x)
    np.testing.assert_array_equal([a, b], np.full((2, 2), 0.5))
    (g,) = values(fw.grad(lambda x: fw.max(x)), np.array([1.0, 3.0, 3.0]))
    np.testing.assert_array_equal(g, [0, 0.5, 0.5])


# --- moves, sums, products ----------------------------------------------------------------------

MOVES: dict[str, Callable[[Any], Any]] = {
    "broadcast of an axis": lambda x: fw.broadcast_to(x[:, :1], (3, 4)) * x,
    "new axes": lambda x: fw.expand_dims(x, 1) * fw.broadcast_to(x, (2, 3, 4))[:1],
    "permutation": lambda x: fw.permute_dims(fw.stack([x, x * 2]), (2, 0, 1)),
    "reshape": lambda x: fw.reshape(x, (2, 6)) ** 2,
    "pad": lambda x: fw.pad(x, ((1, 2), (0, 1)), constant_values=3.0) ** 2,
    "crop": lambda x: x[1:, :-1] ** 2,
    "steps": lambda x: x[::2, 1::2] ** 2,
    "steps backwards": lambda x: x[::-2, ::-1] ** 2,
    "flip": lambda x: fw.flip(x) ** 2,
    "roll": lambda x: fw.roll(x, (1, -1), axis=(0, 1)) ** 2,
    "repeat": lambda x: fw.repeat(x, 3, axis=1) ** 2,
    "tile": lambda x: fw.tile(x, (2, 1)) ** 2,
    "reflections": lambda x: fw.pad(x, ((2, 1), (2, 3)), mode="reflect") ** 2,
    "edges": lambda x: fw.pad(x, ((2, 1), (0, 3)), mode="edge") ** 2,
    "concatenation": lambda x: fw.concat([x, x * x, x[:1]], axis=0),
    "insertion": lambda x: fw.insert(x, x[:2, :2] ** 2, (1, 1)),
    "sum": lambda x: fw.sum(x**2, axis=0),
    "mean and variance": lambda x: fw.mean(x, axis=1) * fw.var(x, axis=1, correction=1),
    "maximum": lambda x: fw.max(x, axis=1) ** 2,
    "minimum": lambda x: fw.min(x) ** 2,
    "product": lambda x: fw.prod(x, axis=0),
    "product of all": fw.prod,
    "cumulative sum": lambda x: fw.cumulative_sum(x, axis=1) ** 2,
    "cumulative sum with a first zero": lambda x: (
        fw.cumulative_sum(x, axis=0, include_initial=True) ** 2
    ),
    "cumulative product": lambda x: fw.cumulative_prod(x, axis=1) ** 2,
    "cumulative product with a first one": lambda x: (
        fw.cumulative_prod(x, axis=0, include_initial=True) ** 2
    ),
    "cumulative maximum": lambda x: fw.cumulative_max(x, axis=1) ** 2,
    "cumulative minimum": lambda x: fw.cumulative_min(fw.flip(x, axis=0), axis=0) ** 2,
    "taken rows": lambda x: fw.take(x, fw.asarray([2, 0, -1, 2]), axis=0) ** 2,
    "taken columns": lambda x: fw.take(x, fw.asarray([1, 1, 3]), axis=1) ** 2,
    "taken along": lambda x: (
        fw.take_along_axis(x, fw.asarray([[1, 1], [0, 3], [2, -1]]), axis=1) ** 2
    ),
    "softmax": fw.nn.softmax,
    "log softmax": lambda x: fw.nn.log_softmax(x, axis=0),
    "layer norm": lambda x: fw.nn.layer_norm(x, (4,)),
    "gelu": fw.nn.gelu,
}


@pytest.mark.parametrize("name", MOVES)
def test_moves_and_sums(name: str) -> None:
    check(MOVES[name], draw(3, 4, low=0.2, high=1.5))


@pytest.mark.parametrize(
    "shapes", [((3, 4), (4, 2)), ((2, 3, 4), (4, 2)), ((4,), (4, 3)), ((3, 4), (4,))]
)
def test_products(shapes: tuple[tuple[int, ...], ...]) -> None:
    check(lambda a, b: (a @ b) ** 2, *(draw(*s) for s in shapes))


def test_a_product_with_zeros_is_differentiated_without_division() -> None:
    (g,) = values(fw.grad(lambda x: fw.prod(x)), np.array([2.0, 0.0, 3.0]))
    np.testing.assert_array_equal(g, [0, 6, 0])


@pytest.mark.parametrize("zeros", [(1,), (0, 3), (4,), (0, 1, 2, 3, 4)])
@pytest.mark.parametrize("ways", [(e, r) for e in (False, True) for r in (False, True)])
def test_cumulative_products_with_zeros(zeros: tuple[int, ...], ways: tuple[bool, bool]) -> None:
    x = draw(2, 5, low=0.5, high=2)
    x[:, list(zeros)] = 0
    exclusive, reverse = ways

    def fn(x: Any) -> Any:
        t = build.scan("mul", x.tensor, 1, exclusive=exclusive, reverse=reverse)
        return fw.sin(Array(t))

    check(fn, x)


@pytest.mark.parametrize("fn", ["max", "min"])
@pytest.mark.parametrize("ways", [(e, r) for e in (False, True) for r in (False, True)])
def test_cumulative_extremes_in_all_ways(fn: str, ways: tuple[bool, bool]) -> None:
    exclusive, reverse = ways

    def extremes(x: Any) -> Any:
        y = Array(build.scan(fn, x.tensor, 0, exclusive=exclusive, reverse=reverse))
        return fw.where(fw.isfinite(y), y, 0.0) ** 2

    check(extremes, draw(6, 2))


def test_of_equal_cumulative_extremes_the_later_one_counts() -> None:
    x = np.array([1.0, 3.0, 3.0, 2.0])
    (g,) = values(fw.grad(lambda x: fw.sum(fw.cumulative_max(x))), x)
    np.testing.assert_array_equal(g, [1, 1, 2, 0])  # as torch.cummax


def test_kernels_of_cumulative_gradients() -> None:
    def loss(x: Any) -> Any:
        return fw.sum(fw.cumulative_prod(x, axis=1) * x + fw.cumulative_max(x, axis=0))

    fusion = fw.trace(fw.grad(loss), "f32[5,37]")
    x = draw(5, 37, low=-2, high=2).astype(np.float32)
    x[2, 5] = 0
    result = fw.compile(fusion).simulate(x)
    assert result.races == []
    (want,) = fw.evaluate(fusion, x)
    np.testing.assert_allclose(result.outputs[0], want, rtol=1e-4, atol=1e-4)


def test_index_maps_over_several_axes_go_back_by_a_table() -> None:
    check(lambda x: fw.sum(x[:, :3] * fw.eye(3, dtype=fw.float64), axis=1) ** 2, draw(3, 4))


# --- programs -----------------------------------------------------------------------------------


def test_a_step_of_training_is_one_program() -> None:
    """Forward and backward of a small network in the simulator, beside its oracle."""

    def loss(p: dict[str, Any], x: Any, y: Any) -> Any:
        h = fw.nn.gelu(fw.nn.layer_norm(x @ p["w"], (16,)))
        return fw.mean((h @ p["v"] - y) ** 2)

    def step(p: dict[str, Any], x: Any, y: Any) -> Any:
        value, g = fw.value_and_grad(loss)(p, x, y)
        return value, {k: p[k] - 0.1 * g[k] for k in p}

    specs = {"w": S((8, 16), "float32"), "v": S((16, 3), "float32")}
    fusion = fw.trace(step, specs, S((12, 8), "float32"), S((12, 3), "float32"))
    arrays = [RNG.standard_normal([int(str(e)) for e in t.shape]).astype(np.float32)
              for t in fusion.inputs]  # fmt: skip
    result = fw.compile(fusion).simulate(*arrays)
    assert result.races == []
    for got, want in zip(result.outputs, fw.evaluate(fusion, *arrays), strict=True):
        np.testing.assert_allclose(got, want, rtol=2e-4, atol=2e-5)


def test_the_value_comes_with_its_gradient_and_what_is_beside_it() -> None:
    x = draw(3)

    def fn(x: Any) -> Any:
        (value, aux), g = fw.value_and_grad(lambda x: (fw.sum(x * x), x + 1), has_aux=True)(x)
        again, other = fw.grad(lambda x: (fw.sum(x * x), x + 1), has_aux=True)(x)
        return value, aux, g, again, other

    value, aux, g, again, other = values(fn, x)
    np.testing.assert_allclose(value, (x * x).sum())
    np.testing.assert_array_equal(aux, x + 1)
    np.testing.assert_array_equal(other, aux)
    np.testing.assert_array_equal(g, 2 * x)
    np.testing.assert_array_equal(again, g)


def test_gradients_of_gradients() -> None:
    x = draw(4, low=0.5)
    second = fw.grad(lambda x: fw.sum(fw.grad(lambda y: fw.sum(y**3))(x)))
    (g,) = values(second, x)
    np.testing.assert_allclose(g, 6 * x, rtol=1e-12)


def test_cotangents_of_several_results() -> None:
    def fn(x: Any) -> Any:
        (a, b), back = fw.vjp(lambda x: (fw.sin(x), x[:2] * 3), x)
        return (*back((a * 0 + 2, b * 0 + 1)), a)

    x = draw(3)
    g, a = values(fn, x)
    np.testing.assert_allclose(g, 2 * np.cos(x) + [3, 3, 0], rtol=1e-12)
    np.testing.assert_allclose(a, np.sin(x))


def test_values_from_outside_and_stopped_ones_are_constants() -> None:
    def fn(x: Any) -> Any:
        outside = x * 2
        g = fw.grad(lambda y: fw.sum(y * outside * fw.stop_gradient(y)))(x)
        return g, fw.grad(lambda y: fw.sum(outside))(x)

    x = draw(3)
    g, nothing = values(fn, x)
    np.testing.assert_allclose(g, 2 * x * x, rtol=1e-12)
    np.testing.assert_array_equal(nothing, np.zeros(3))


def test_a_rule_of_ones_own_takes_the_place_of_the_ops() -> None:
    clipped = fw.custom_vjp(
        lambda x: fw.exp(x),
        lambda x: ((y := fw.exp(x)), y),
        lambda y, g: (fw.clip(g * y, -1.0, 1.0),),
    )
    x = np.array([0.0, 3.0])
    g, y = values(lambda x: (fw.grad(lambda x: fw.sum(clipped(x)))(x), clipped(x)), x)
    np.testing.assert_array_equal(g, [1, 1])
    np.testing.assert_allclose(y, np.exp(x))


def test_half_precision_gradients_have_the_dtype_of_their_argument() -> None:
    fusion = fw.trace(
        fw.grad(lambda x, w: fw.sum(fw.astype(x @ w, fw.float32) ** 2), (0, 1)),
        S((4, 8), "bfloat16"),
        S((8, 2), "bfloat16"),
    )
    assert [t.dtype for t in fusion.outputs] == [fw.bfloat16] * 2


# --- rejections ---------------------------------------------------------------------------------

X = S((3,), "float32")
REJECTED: dict[str, tuple[Callable[..., Any], type[Exception], str]] = {
    "a result of rank 1": (fw.grad(lambda x: x), fw.UserError, r"returned float32\(3,\); it must"),
    "an integer result": (fw.grad(lambda x: fw.argmax(x)), fw.UserError, "returned int64"),
    "an integer argument": (
        lambda x: fw.grad(fw.sum)(fw.astype(x, fw.int32)),
        fw.UserError,
        r"an argument is int32\(3,\); gradients are with respect to floats",
    ),
    "a number that no argument has": (
        lambda x: fw.grad(fw.sum, 1)(x),
        fw.UserError,
        r"grad\(argnums=1\): the call has 1 positional",
    ),
    "a number that is none": (
        lambda x: fw.grad(fw.sum, "x")(x),  # type: ignore[arg-type]
        fw.UserError,
        "argnums='x' is str; it must be an integer",
    ),
    "a step to the next float": (
        fw.grad(lambda x: fw.sum(fw.nextafter(x, x))),
        fw.UnsupportedError,
        "nextafter has no derivative here",
    ),
    "a cotangent of another shape": (
        lambda x: fw.vjp(fw.exp, x)[1](fw.zeros((2,))),
        fw.UserError,
        r"a cotangent is float32\(2,\), its value is float32\(3,\)",
    ),
    "a cotangent of another structure": (
        lambda x: fw.vjp(fw.exp, x)[1]((x, x)),
        fw.UserError,
        "the cotangent .* has another structure than the result",
    ),
    "a rule with too few cotangents": (
        fw.grad(lambda x: fw.sum(fw.custom_vjp(fw.exp, lambda x: (x, x), lambda s, g: ())(x))),
        fw.UserError,
        "backward returned 0 cotangents for 1 arguments",
    ),
    "a rule whose forward saves nothing": (
        fw.grad(lambda x: fw.sum(fw.custom_vjp(fw.exp, fw.exp, lambda s, g: (g,))(x))),
        fw.UserError,
        r"forward returned .*; return a pair of the result and what is saved",
    ),
    "a rule whose forward returns a row for each part of a pair": (
        fw.grad(lambda x: fw.sum(fw.custom_vjp(fw.exp, lambda x: x[:2], lambda s, g: (g,))(x))),
        fw.UserError,
        "forward returned .*; return a pair of the result and what is saved",
    ),
    "a rule without cotangents": (
        fw.grad(lambda x: fw.sum(fw.custom_vjp(fw.exp, lambda x: (x, x), lambda s, g: None)(x))),
        fw.UserError,
        "backward returned None; return a tuple with one cotangent, or None, for each argument",
    ),
}


@pytest.mark.parametrize("what", REJECTED)
def test_what_has_no_gradient_is_refused(what: str) -> None:
    fn, error, message = REJECTED[what]
    with pytest.raises(error, match=message):
        fw.trace(fn, X)
