"""Parts of programs put together: constants, methods of arrays and of classes, structures."""

from __future__ import annotations

import copy
import inspect
import pickle
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest

import fusewright as fw
from fusewright.fusion import ops, trees
from fusewright.fusion.methods import Methods
from fusewright.fusion.text import parse_fusion
from fusewright.runtime.arrays import describe

MEAN = np.array([0.485, 0.456, 0.406], np.float32)
X = np.random.default_rng(0).standard_normal((5, 3)).astype(np.float32)


def shifted(x: Any) -> Any:
    return (x - MEAN) / fw.asarray([0.5, 0.25, 2.0])


WANTED = (X - MEAN) / np.array([0.5, 0.25, 2.0], np.float32)


# --- constants ----------------------------------------------------------------------------------


@pytest.mark.parametrize("device", ["sim", "auto"])
@pytest.mark.filterwarnings("ignore:no GPU")
def test_arrays_of_a_closure_are_constants(device: str) -> None:
    f = fw.fuse(shifted, device=device)
    np.testing.assert_allclose(f(X), WANTED, rtol=1e-6)
    np.testing.assert_allclose(f(X[:2]), WANTED[:2], rtol=1e-6)


def test_constants_are_inputs_that_calls_leave_out() -> None:
    fusion = fw.trace(shifted, "f32[n,3]")
    assert [str(t.dtype) for t in fusion.inputs] == ["float32"] * 3
    program = fw.compile(fusion)
    np.testing.assert_allclose(fw.evaluate(fusion, X)[0], WANTED, rtol=1e-6)
    np.testing.assert_allclose(program(X, device="sim")[0], WANTED, rtol=1e-6)
    result = program.simulate(X)
    assert result.races == []
    np.testing.assert_allclose(result.outputs[0], WANTED, rtol=1e-6)
    assert fw.verify(program).ok and fw.verify(program, X).ok
    (given,) = program(X, 2 * MEAN, np.ones(3, np.float32), device="sim")
    np.testing.assert_allclose(given, X - 2 * MEAN, rtol=1e-5)


def test_constants_keep_the_elements_of_the_trace() -> None:
    table = np.arange(3, dtype=np.float32)
    f = fw.fuse(lambda x: x + table, device="sim")
    np.testing.assert_array_equal(f(X), X + np.arange(3, dtype=np.float32))
    table[:] = 100
    np.testing.assert_array_equal(f(X), X + np.arange(3, dtype=np.float32))


def test_equal_constants_are_one_and_scalars_are_literals() -> None:
    other = MEAN.copy()
    fusion = fw.trace(lambda x: x * MEAN + MEAN - other + np.array(2.0, np.float32), "f32[4,3]")
    assert len(fusion.inputs) == 2


@pytest.mark.parametrize(
    "dtype", ["bool", "int8", "int64", "uint16", "float16", "float64", ml_dtypes.bfloat16]
)
def test_constants_of_every_kind_of_element(dtype: Any, tmp_path: Path) -> None:
    data = np.array([[0, 1], [3, 2]]).astype(dtype)
    fusion = fw.trace(lambda x: (fw.astype(x + 1, "float32"), data), "f32[2,2]")
    x = np.zeros((2, 2), np.float32)
    program = fw.compile(fusion)
    loaded = fw.load(program.save(tmp_path / "p.fw"))
    for made in (program, loaded, copy.deepcopy(program), pickle.loads(pickle.dumps(program))):
        got = made(x, device="sim")[1]
        assert got.dtype == data.dtype
        np.testing.assert_array_equal(got.astype(np.float64), data.astype(np.float64))


def test_fusions_with_constants_are_copied_and_printed() -> None:
    fusion = fw.trace(shifted, "f32[n,3]")
    for made in (copy.deepcopy(fusion), pickle.loads(pickle.dumps(fusion))):
        np.testing.assert_allclose(fw.evaluate(made, X)[0], WANTED, rtol=1e-6)
    read = parse_fusion(str(fusion))
    assert str(read) == str(fusion)  # the text has no elements: calls give them
    got = fw.evaluate(read, X, MEAN, np.array([0.5, 0.25, 2.0], np.float32))[0]
    np.testing.assert_allclose(got, WANTED, rtol=1e-6)


def test_constants_as_positions_results_and_alone() -> None:
    at = np.array([2, 0, 1])
    f = fw.fuse(lambda x: (fw.take(x, at, axis=1), at), device="sim")
    got, same = f(X)
    np.testing.assert_array_equal(got, X[:, at])
    np.testing.assert_array_equal(same, at)
    np.testing.assert_array_equal(fw.fuse(lambda: fw.asarray(MEAN) * 2, device="sim")(), MEAN * 2)


def test_views_and_odd_layouts_become_constants() -> None:
    big = np.arange(12, dtype=">f4").reshape(3, 4)
    for c in (big.T, big[::2], big[:, ::-1], np.broadcast_to(np.float32(2), (2, 3))):
        f = fw.fuse(lambda x, c=c: x + fw.sum(fw.asarray(c), axis=None) + c.sum(), device="sim")
        np.testing.assert_allclose(f(X), X + 2 * c.sum(dtype=np.float64), rtol=1e-6)
    np.testing.assert_array_equal(fw.fuse(lambda x: x + big.T[0], device="sim")(X), X + big.T[0])


def test_schedules_by_hand_have_constants() -> None:
    s = fw.Schedule(fw.trace(shifted, "f32[5,3]"))
    np.testing.assert_allclose(fw.compile(s)(X, device="sim")[0], WANTED, rtol=1e-6)


@pytest.mark.parametrize(
    ("fn", "message"),
    [
        (lambda x: x + np.array(["a", "b", "c"]), r"add: a numpy array of shape \(3,\): dtype"),
        (lambda x: x + np.array([1, None, 2]), r"a numpy array of shape \(3,\): dtype"),
        (lambda x: x + np.ma.masked_array(MEAN), r"masked array; fill the mask first"),
        (lambda x: x + np.ones(3, np.complex64), r"complex numbers"),
        (lambda x: x + np.ones(4, np.float32), r"axis 1 has sizes 3 and 4"),
    ],
)
def test_what_can_be_no_constant(fn: Callable[[Any], Any], message: str) -> None:
    with pytest.raises(fw.FusewrightError, match=message):
        fw.trace(fn, "f32[5,3]")


NUMPY: dict[str, tuple[Callable[..., Any], tuple[np.ndarray, ...]]] = {
    "linear": (fw.nn.linear, (np.ones((2, 3), np.float32), np.ones(2, np.float32))),
    "layer_norm": (lambda x, w, b: fw.nn.layer_norm(x, (3,), w, b), (MEAN, MEAN)),
    "rms_norm": (lambda x, w: fw.nn.rms_norm(x, (3,), w), (MEAN,)),
    "group_norm": (lambda x, w, b: fw.nn.group_norm(x, 1, w, b), (MEAN, MEAN)),
    "cross_entropy": (
        lambda x, t, w: fw.nn.cross_entropy(x, t, weight=w),
        (np.array([0, 1, 2, 0, 1]), MEAN),
    ),
    "attention": (lambda x, k, v: fw.nn.scaled_dot_product_attention(x, k, v), (X, X)),
    "where": (lambda x, c, y: fw.where(c, x, y), (X > 0, X)),
    "concat": (lambda x, y: fw.concat([x, y, X]), (X,)),
    "matmul": (lambda x, y: y @ x, (X.T,)),
    "insert": (lambda x, y: fw.insert(x, y, (1, 0)), (X[:2],)),
    "embedding": (lambda x, t: fw.nn.embedding(t, x), (np.array([[0, 1], [4, 2]]),)),
}


@pytest.mark.parametrize("name", NUMPY)
def test_numpy_arrays_stand_wherever_arrays_do(name: str) -> None:
    fn, others = NUMPY[name]
    specs = [fw.TensorSpec(a.shape, a.dtype) for a in (X, *others)]
    want = fw.evaluate(fw.trace(fn, *specs), X, *others)
    fusion = fw.trace(lambda x: fn(x, *others), specs[0])
    got = fw.evaluate(fusion, X)
    simulated = fw.compile(fusion).simulate(X)
    assert simulated.races == []
    for a, b, c in zip(got, want, simulated.outputs, strict=True):
        np.testing.assert_array_equal(a, b)
        np.testing.assert_allclose(c, b, rtol=1e-4, atol=1e-5)


def test_values_of_another_trace_are_refused() -> None:
    kept: list[Any] = []
    fw.trace(lambda x: kept.append(x) or x, "f32[3]")
    with pytest.raises(fw.UserError, match="captured from outside, where it is a value of another"):
        fw.trace(lambda x: x + kept[0], "f32[3]")


# --- methods of arrays --------------------------------------------------------------------------

METHODS: dict[str, tuple[Callable[[Any], Any], Callable[[np.ndarray], Any]]] = {
    "sum": (lambda x: x.sum(axis=0), lambda x: x.sum(axis=0)),
    "prod": (lambda x: x.prod(1), lambda x: x.prod(1)),
    "mean": (lambda x: x.mean(), lambda x: x.mean()),
    "max": (lambda x: x.max(1, keepdims=True), lambda x: x.max(1, keepdims=True)),
    "min": (lambda x: x.min(axis=-1), lambda x: x.min(axis=-1)),
    "var": (lambda x: x.var(0, correction=1), lambda x: x.var(0, ddof=1)),
    "std": (lambda x: x.std(0), lambda x: x.std(0)),
    "any": (lambda x: (x > 1).any(0), lambda x: (x > 1).any(0)),
    "all": (lambda x: (x > -9).all(), lambda x: (x > -9).all()),
    "argmax": (lambda x: x.argmax(1), lambda x: x.argmax(1)),
    "argmin": (lambda x: x.argmin(0), lambda x: x.argmin(0)),
    "cumsum": (lambda x: x.cumsum(0), lambda x: x.cumsum(0)),
    "cumprod": (lambda x: x.cumprod(axis=1), lambda x: x.cumprod(axis=1)),
    "argsort": (lambda x: x.argsort(0), lambda x: x.argsort(0)),
    "diagonal": (
        lambda x: x.diagonal(1) + x.diagonal()[:2],
        lambda x: x.diagonal(1) + x[[0, 1], [0, 1]],
    ),
    "reshape": (lambda x: x.reshape(3, -1) + x.reshape((3, 5)), lambda x: 2 * x.reshape(3, 5)),
    "flatten": (lambda x: x.flatten(), lambda x: x.flatten()),
    "ravel": (lambda x: x.ravel(), lambda x: x.ravel()),
    "transpose": (lambda x: x.transpose() + x.transpose(1, 0) + x.T, lambda x: 3 * x.T),
    "swapaxes": (lambda x: x.swapaxes(0, -1), lambda x: x.swapaxes(0, -1)),
    "squeeze": (lambda x: x[None].squeeze() + x[None].squeeze(0), lambda x: 2 * x),
    "repeat": (lambda x: x.repeat(2, axis=0), lambda x: x.repeat(2, axis=0)),
    "take": (lambda x: x.take(np.array([1, 0]), axis=1), lambda x: x[:, [1, 0]]),
    "astype": (lambda x: x.astype("int32"), lambda x: x.astype(np.int32)),
    "clip": (lambda x: x.clip(-1, 1).clip(max=0.5), lambda x: x.clip(-1, 0.5)),
    "round": (lambda x: x.round(), lambda x: x.round()),
    "abs": (lambda x: x.abs(), np.abs),
    "conj": (lambda x: x.conj(), np.conj),
    "copy": (lambda x: x.copy(), lambda x: x),
    "dot": (lambda x: x.dot(x.T), lambda x: x @ x.T),
}


@pytest.mark.parametrize("name", METHODS)
def test_methods_are_operations(name: str) -> None:
    ours, theirs = METHODS[name]
    (got,) = fw.evaluate(fw.trace(ours, "f32[5,3]"), X)
    want = np.asarray(theirs(X))
    assert got.shape == want.shape and got.dtype.kind == want.dtype.kind
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def test_every_method_is_tried() -> None:
    named = {n for n, _ in inspect.getmembers(Methods, inspect.isfunction) if n[0] != "_"}
    assert named - {"item", "tolist"} == set(METHODS)


def test_parameters_of_methods_are_those_of_the_functions() -> None:
    same = set(METHODS) & set(ops.__all__) - {"round", "reshape", "repeat", "take", "clip"}
    for name in same:
        theirs = inspect.signature(getattr(fw, name)).parameters
        ours = inspect.signature(getattr(Methods, name)).parameters
        assert set(ours) - {"self"} <= set(theirs), name


def test_values_of_known_data() -> None:
    x = fw.asarray([[1.0, 2.0]])
    assert x.tolist() == [[1.0, 2.0]] and x.sum().item() == 3.0
    with pytest.raises(fw.UserError, match=r"tolist\(\) of the traced array"):
        fw.trace(lambda x: x.tolist(), "f32[3]")
    with pytest.raises(fw.UserError, match="give sizes or axes one by one, or in one tuple"):
        fw.trace(lambda x: x.reshape((3,), 1), "f32[3]")
    with pytest.raises(fw.UserError, match="swapaxes: axis 9 of an array of rank 1"):
        fw.trace(lambda x: x.swapaxes(9, 0), "f32[3]")


# --- structures ---------------------------------------------------------------------------------


@dataclass
class Layer:
    weight: Any
    bias: Any
    eps: float = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Nested:
    layer: Layer
    rest: dict[str, Any] = field(default_factory=dict)


class Pair(NamedTuple):
    a: Any
    b: Any


class Two:
    def __init__(self, a: Any, b: Any, word: str) -> None:
        self.a, self.b, self.word = a, b, word


fw.register_pytree(Two, lambda t: ((t.a, t.b), t.word), lambda word, ab: Two(*ab, word))


def test_dataclasses_are_arguments_and_results() -> None:
    @fw.fuse(device="sim")
    def apply(p: Nested, x: Any) -> Nested:
        y = x * p.layer.weight + p.layer.bias + p.layer.eps
        return Nested(layer=Layer(y, p.rest["k"], p.layer.eps), rest={"sum": y.sum(1)})

    got = apply(Nested(layer=Layer(MEAN, X[0]), rest={"k": X[1]}), X)
    want = X * MEAN + X[0] + 0.5
    assert isinstance(got, Nested) and isinstance(got.layer, Layer) and got.layer.eps == 0.5
    np.testing.assert_allclose(got.layer.weight, want, rtol=1e-6)
    np.testing.assert_allclose(got.rest["sum"], want.sum(1), rtol=1e-5)
    np.testing.assert_array_equal(got.layer.bias, X[1])


def test_plain_values_of_dataclasses_are_part_of_the_program() -> None:
    f = fw.fuse(lambda p, x: x * p.weight + p.eps, device="sim")
    for eps in (0.5, 2.0, 0.5):
        got = f(Layer(MEAN, None, eps), X)
        np.testing.assert_allclose(got, X * MEAN + np.float32(eps), rtol=1e-6)
    assert len(f._programs) == 2


def test_fields_name_the_inputs() -> None:
    specs = Nested(layer=Layer("f32[3]", None), rest={"k": fw.TensorSpec((3,), "float32")})
    fusion = fw.trace(lambda p: p.layer.weight + p.rest["k"], specs)
    assert [t.name for t in fusion.inputs] == ["p_layer_weight", "p_rest_k"]


def test_results_go_where_out_says() -> None:
    f = fw.fuse(lambda x: Layer(x + 1, x * 2, 0.0), device="sim")
    out = Layer(np.empty_like(X), np.empty_like(X), 0.0)
    made = f(X, out=out)
    assert made.weight is out.weight
    np.testing.assert_array_equal(out.bias, X * 2)
    with pytest.raises(fw.UserError, match="does not have the structure of the result"):
        f(X, out=(out.weight, out.bias))


def test_registered_classes() -> None:
    f = fw.fuse(lambda t: Two(t.b, t.a + len(t.word), t.word * 2), device="sim")
    got = f(Two(X, X[0], "abc"))
    assert got.word == "abcabc"
    np.testing.assert_array_equal(got.b, X + 3)
    f(Two(X, X[0], "ab"))
    assert len(f._programs) == 2
    (name, *_) = fw.trace(lambda t: t.a, Two("f32[2]", None, "w")).inputs
    assert name.name == "t_0"


@pytest.mark.parametrize(
    ("cls", "message"),
    [
        (Two, "Two is a structure already"),
        (dict, "dict is a structure already"),
        (Pair, "Pair is a structure already"),
        ("Two", "cls='Two' is str; it must be a class"),
    ],
)
def test_what_cannot_be_registered(cls: Any, message: str) -> None:
    with pytest.raises(fw.UserError, match=message):
        fw.register_pytree(cls, lambda x: ((), None), lambda rest, items: None)


def test_records_of_the_package_are_leaves() -> None:
    """Descriptions of arrays are dataclasses, and stand for arrays."""
    info = describe(X)
    assert trees.flatten([info, {"k": info}])[0] == [info, info]


def test_descriptions_are_hashable() -> None:
    with pytest.raises(fw.UserError, match="the description that its flatten returns is not"):
        fw.fuse(lambda t: t.a)(Two(X, X, ["w"]))  # type: ignore[arg-type]


def test_structures_as_compilers_of_python_put_them_together() -> None:
    kinds: list[type] = []
    leaves, tree = trees.flatten({"l": Layer(1.5, X), "p": Pair(X, None)})
    made = trees.decoded(trees.encoded(tree, kinds), leaves, kinds)
    assert made["l"].bias is X and isinstance(made["p"], Pair) and made["l"].weight == 1.5
    with pytest.raises(fw.UserError, match="torch cannot follow how it is put together"):
        trees.encoded(trees.flatten(Two(X, X, "w"))[1], kinds)


# --- methods of classes -------------------------------------------------------------------------


class Model:
    def __init__(self, weight: np.ndarray, act: Callable[[Any], Any]) -> None:
        self.weight = weight
        self.scale = 2.0
        self.act = act
        self.extra = {"bias": np.zeros(3, np.float32)}

    @fw.fuse(device="sim")
    def forward(self, x: Any) -> Any:
        return self.act(x * self.weight * self.scale) + self.extra["bias"]

    @fw.fuse
    def helper(self, x: Any) -> Any:
        return x + self.weight

    @fw.fuse(device="sim")
    def twice(self, x: Any) -> Any:
        return self.helper(self.helper(x))


def test_methods_see_their_object_as_it_is() -> None:
    m = Model(MEAN, fw.abs)
    np.testing.assert_allclose(m.forward(X), np.abs(X * MEAN * 2), rtol=1e-6)
    m.weight = MEAN + 1
    m.extra["bias"] += 7
    np.testing.assert_allclose(m.forward(X), np.abs(X * (MEAN + 1) * 2) + 7, rtol=1e-6)
    assert len(Model.forward._programs) == 1, "new arrays need no compile"
    m.scale = 3.0
    np.testing.assert_allclose(m.forward(X), np.abs(X * (MEAN + 1) * 3) + 7, rtol=1e-6)
    other = Model(MEAN, fw.floor)
    np.testing.assert_allclose(other.forward(X), np.floor(X * MEAN * 2), rtol=1e-6)
    assert m.forward(X[:1]).shape == (1, 3)


def test_methods_explain_themselves_and_call_each_other() -> None:
    m = Model(MEAN, fw.abs)
    assert "forward: 1 kernel" in str(m.forward.explain(X))
    assert len(m.forward.program(X).kernels) == 1
    assert repr(m.forward).startswith("<fused forward on sim: ")
    np.testing.assert_allclose(m.twice(X), X + MEAN + MEAN, rtol=1e-6)
    assert Model.forward.name == "forward"


def test_methods_of_dataclasses_and_copies() -> None:
    @dataclass
    class Scale:
        by: Any

        @fw.fuse(device="sim")
        def __call__(self, x: Any) -> Any:
            return x * self.by

    s = Scale(MEAN)
    np.testing.assert_allclose(s(X), X * MEAN, rtol=1e-6)
    t = copy.deepcopy(s)
    t.by = t.by + 1
    np.testing.assert_allclose(t(X), X * (MEAN + 1), rtol=1e-6)


class Activation(Enum):
    RELU = 1
    TANH = 2


def test_what_is_named_is_a_part_of_the_structure() -> None:
    """Dtypes, classes, members of enums and ranges choose a program, as numbers and texts do."""

    @fw.fuse(device="sim")
    def f(x: Any, named: Any) -> Any:
        match named:
            case Activation():
                return fw.nn.relu(x) if named is Activation.RELU else fw.tanh(x)
            case range():
                return sum(x[k] for k in named)
        return x.astype(named)

    x = np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3)
    assert np.allclose(f(x, Activation.TANH), np.tanh(x), atol=1e-6)
    assert np.array_equal(f(x, Activation.RELU), np.maximum(x, 0))
    assert np.allclose(f(x, range(1, 3)), x[1] + x[2])
    for named, dtype in ((np.float16, "f2"), (np.dtype("f8"), "f8"), (fw.int8, "i1"), (int, "i8")):
        assert f(x, named).dtype == dtype
    nested = {"kind": Activation.RELU, "x": [x, np.float16]}
    leaves, tree = trees.flatten(nested)
    assert trees.leaves(nested) == leaves and trees.unflatten(tree, leaves) == nested


def test_an_attribute_that_is_a_dtype_is_asked_for_at_every_call() -> None:
    class Cast:
        to: Any = None

        @fw.fuse(device="sim")
        def run(self, x: Any) -> Any:
            return x.astype(self.to)

    cast = Cast()
    for to in (np.float16, np.float64, np.float16):
        cast.to = to
        assert cast.run(np.ones(3, np.float32)).dtype == to


def test_functions_are_bound_ahead() -> None:
    with pytest.raises(fw.UserError, match=r"function is not an array.*functools.partial"):
        fw.fuse(lambda x, f: f(x), device="sim")(np.ones(3, np.float32), fw.exp)
