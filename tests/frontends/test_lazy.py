"""The package as an array namespace: hypothesis' own array strategies draw the arrays, and
array-api-strict says what the functions give."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import array_api_strict as strict
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from hypothesis.extra.array_api import make_strategies_namespace

import fusewright as fw
from fusewright.errors import UserError

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # hypothesis tells that there are no complex dtypes
    XPS = make_strategies_namespace(fw, api_version="2024.12")

# array-api-strict warns of every division by zero
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

BOUNDED = settings(max_examples=12, deadline=None, derandomize=True, database=None)
SHAPES = XPS.array_shapes(min_dims=0, max_dims=3, min_side=1, max_side=4)
FLOATS = st.sampled_from([fw.float32, fw.float64])
INTEGERS = st.sampled_from([fw.int8, fw.int32, fw.int64, fw.uint8, fw.uint16])
MODERATE = {"min_value": -8, "max_value": 8}


def _strict(x: Any) -> Any:
    return strict.asarray(np.asarray(x))


def _assert_agrees(actual: Any, expected: Any) -> None:
    got, want = np.asarray(actual), np.asarray(expected)
    assert (got.dtype, got.shape) == (want.dtype, want.shape)
    if want.dtype.kind == "f":
        tolerance = 8 * np.finfo(want.dtype).eps
        np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance)
    else:
        np.testing.assert_array_equal(got, want)


UNARY = """abs acos acosh asin asinh atan atanh ceil cos cosh exp expm1 floor isfinite isinf isnan
log log10 log1p log2 negative positive reciprocal round sign signbit sin sinh sqrt square tan tanh
trunc""".split()  # noqa: SIM905
BINARY = """add atan2 copysign divide equal floor_divide greater greater_equal hypot less less_equal
logaddexp maximum minimum multiply not_equal subtract""".split()  # noqa: SIM905
INTEGER = """add bitwise_and bitwise_or bitwise_xor equal less maximum minimum multiply subtract
""".split()  # noqa: SIM905
REDUCE = ["all", "any", "count_nonzero", "max", "mean", "min", "prod", "std", "sum", "var"]


@pytest.mark.parametrize("name", UNARY)
@given(data=st.data())
@BOUNDED
def test_unary_functions(name: str, data: st.DataObject):
    x = data.draw(XPS.arrays(data.draw(FLOATS), SHAPES, elements=MODERATE))
    _assert_agrees(getattr(fw, name)(x), getattr(strict, name)(_strict(x)))


@pytest.mark.parametrize("name", BINARY)
@given(data=st.data())
@BOUNDED
def test_binary_functions_promote_and_broadcast(name: str, data: st.DataObject):
    shapes = data.draw(XPS.mutually_broadcastable_shapes(2, max_dims=3, max_side=3)).input_shapes
    a, b = (data.draw(XPS.arrays(data.draw(FLOATS), s, elements=MODERATE)) for s in shapes)
    _assert_agrees(getattr(fw, name)(a, b), getattr(strict, name)(_strict(a), _strict(b)))


@pytest.mark.parametrize("name", INTEGER)
@given(data=st.data())
@BOUNDED
def test_integer_functions_promote(name: str, data: st.DataObject):
    elements = {"min_value": 0, "max_value": 100}
    a, b = (data.draw(XPS.arrays(data.draw(INTEGERS), (3,), elements=elements)) for _ in range(2))
    _assert_agrees(getattr(fw, name)(a, b), getattr(strict, name)(_strict(a), _strict(b)))


@pytest.mark.parametrize("name", REDUCE)
@given(data=st.data())
@BOUNDED
def test_reductions(name: str, data: st.DataObject):
    x = data.draw(XPS.arrays(data.draw(FLOATS), SHAPES, elements={"min_value": -2, "max_value": 2}))
    axis = data.draw(st.none() | XPS.valid_tuple_axes(x.ndim))
    keepdims = data.draw(st.booleans())
    if axis == ():
        return
    expected = getattr(strict, name)(_strict(x), axis=axis, keepdims=keepdims)
    _assert_agrees(getattr(fw, name)(x, axis=axis, keepdims=keepdims), expected)


@given(data=st.data())
@BOUNDED
def test_basic_indices(data: st.DataObject):
    x = data.draw(XPS.arrays(fw.int32, SHAPES))
    key = data.draw(XPS.indices(x.shape, allow_newaxis=True))
    _assert_agrees(x[key], np.asarray(x)[key])


# --- arrays as values ---------------------------------------------------------------------------


def test_asarray_of_python_values_has_default_dtypes():
    for obj, dtype in ((True, fw.bool), (3, fw.int64), (0.5, fw.float32)):
        assert fw.asarray(obj).dtype == fw.asarray([obj]).dtype == dtype
    assert fw.asarray([[1, 2], [3, 4]], dtype=fw.bfloat16).dtype == fw.bfloat16
    assert np.asarray(fw.asarray([1.5], dtype=fw.bfloat16)).dtype == ml_dtypes.bfloat16


def test_asarray_keeps_the_dtype_of_arrays_and_copies():
    source = np.array([1.0, 2.0])
    kept, shared = fw.asarray(source), fw.asarray(source, copy=False)
    source[0] = 9
    assert kept.dtype == fw.float64
    assert (float(kept[0]), float(shared[0])) == (1.0, 9.0)
    assert float(fw.asarray(kept, dtype=fw.float32)[1]) == 2.0


def test_values_come_out():
    x = fw.asarray([1.0, 2.0, 3.0])
    assert x.__array_namespace__() is fw and x.device == "host" and x.to_device("host") is x
    assert [float(v) for v in x * 2] == [2.0, 4.0, 6.0]
    assert bool(fw.any(x > 2)) and int(fw.argmax(x)) == 2
    np.testing.assert_array_equal(np.from_dlpack(fw.from_dlpack(x + 1)), [2, 3, 4])
    total = 0.0
    while float(fw.sum(x)) < 100:  # Python may loop on known values
        x = x * 2
        total += 1
    assert total == 5


def test_assignment_changes_known_data_only_there():
    x = fw.asarray([1, 2, 3])
    y, doubled = x[1:], x * 2
    x[1] = 7
    x[fw.asarray([True, False, False])] = 5
    for a, expected in ((x, [5, 7, 3]), (y, [2, 3]), (doubled, [2, 4, 6])):
        np.testing.assert_array_equal(np.asarray(a), expected)


# --- dtypes and inspection ----------------------------------------------------------------------

NAMES = ["bool", "int8", "int64", "uint8", "uint32", "uint64", "float32", "float64"]


@pytest.mark.parametrize("a", NAMES)
@pytest.mark.parametrize("b", NAMES)
def test_dtype_functions_follow_the_standard(a: str, b: str):
    x, y = getattr(fw, a), getattr(fw, b)
    p, q = getattr(strict, a), getattr(strict, b)
    assert fw.can_cast(x, y) == strict.can_cast(p, q)
    for kind in ("bool", "signed integer", "unsigned integer", "integral", "real floating"):
        assert fw.isdtype(x, (kind, y)) == strict.isdtype(p, (kind, q))
    try:
        expected = strict.result_type(p, q)
    except TypeError:
        return
    assert str(fw.result_type(x, y)) == str(expected).rsplit(".", 1)[-1]


def test_limits():
    for name in ("float32", "float64"):
        ours, theirs = fw.finfo(getattr(fw, name)), strict.finfo(getattr(strict, name))
        for field in ("bits", "eps", "max", "min", "smallest_normal"):
            assert getattr(ours, field) == getattr(theirs, field)
    assert (fw.iinfo(fw.int8).min, fw.iinfo(fw.zeros(1, dtype=fw.uint16)).max) == (-128, 65535)


def test_inspection():
    info = fw.__array_namespace_info__()
    assert fw.__array_api_version__ == "2024.12"
    assert info.default_dtypes()["real floating"] == fw.float32
    assert list(info.dtypes(kind="bool")) == ["bool"]
    assert info.devices() == [info.default_device()]
    assert info.capabilities()["boolean indexing"]


def test_diff():
    x = np.array([[1, 4, 9], [2, 2, 7]])
    for axis, n in ((-1, 1), (0, 1), (1, 2), (1, 0)):
        _assert_agrees(fw.diff(fw.asarray(x), axis=axis, n=n), np.diff(x, n, axis))
    joined = fw.diff(fw.asarray(x), prepend=fw.zeros((2, 1), dtype=fw.int64))
    _assert_agrees(joined, np.diff(x, prepend=0))


# --- rejections ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: fw.asarray([1], device="cuda"), r"asarray\(device='cuda'\): the only device here"),
        (lambda: fw.asarray([1], copy=False), r"asarray\(copy=False\) of list: its elements must"),
        (lambda: fw.asarray(["a"]), r"dtype .* is not supported; use one of bool"),
        (lambda: fw.zeros(1).to_device("cuda"), r"to_device\(device='cuda'\): the only"),
        (lambda: fw.finfo(fw.int8), r"finfo of int8: it is not a float dtype; use iinfo"),
        (lambda: fw.iinfo(fw.float32), r"iinfo of float32: it is not an integer dtype"),
        (lambda: fw.isdtype(fw.int8, "number"), r"isdtype: kind 'number' is unknown; use one of"),
        (lambda: fw.result_type(1, 2.0), r"result_type of Python scalars only: give at least one"),
        (lambda: fw.result_type(fw.int8, 0.5), r"result_type: the Python float 0.5 with an array"),
        (lambda: bool(fw.asarray([1, 2])), r"bool\(\) of .*exactly one element; reduce it first"),
        (lambda: fw.diff(fw.asarray([1, 2]), n=-1), r"diff: n=-1: the number of times must not"),
    ],
)
def test_rejections(call: Any, message: str):
    with pytest.raises(UserError, match=message):
        call()


def test_known_data_prints_its_elements() -> None:
    assert str(fw.asarray([1.0, 2.5]) * 2) == "[2. 5.]"
    assert str(fw.arange(3)) == "[0 1 2]"
    seen: list[str] = []
    fw.trace(lambda x: seen.append(str(x)) or x, "f32[4]")
    assert seen == ["Array(x: float32[4])"]


def test_dtypes_equal_their_spellings_elsewhere() -> None:
    same = (np.float32, np.dtype("f4"), "float32", float, copy.deepcopy(fw.float32))
    assert all(fw.float32 == v and v == fw.float32 for v in same)
    other = (np.float64, "int32", "a text", np.dtype("i4"), int, str, None, 4, 1.5, [], object())
    assert all(fw.float32 != v for v in other)
    assert fw.complex64 == np.complex64 and fw.bfloat16 == ml_dtypes.bfloat16
    assert {fw.float32: 1}.get(copy.copy(fw.float32)) == 1  # equal dtypes are one key


def test_sizes_one_by_one_are_refused() -> None:
    with pytest.raises(fw.UserError, match=r"dtype 3 .*sizes go into one tuple"):
        fw.zeros(2, 3)
    with pytest.raises(fw.UserError, match=r"max: axis is an array.*it is fw.maximum"):
        fw.max(fw.ones(3), fw.ones(3))


def test_what_is_nested_without_end_is_refused() -> None:
    endless: list[object] = []
    endless.append(endless)
    with pytest.raises(fw.UserError, match=r"asarray of a list"):
        fw.asarray(endless)
    with pytest.raises(fw.UserError):
        fw.trace(lambda x: fw.asarray([x, endless]), "f32[3]")
