"""`fw.fuse` on numpy arrays: structures, sizes, layouts, results in place, and what it refuses."""

from __future__ import annotations

import threading
from collections import namedtuple

import numpy as np
import pytest

import fusewright as fw
from fusewright.errors import UserError
from fusewright.programs import calls
from fusewright.runtime.config import active, config


def softmax(x, axis=-1):
    e = fw.exp(x - fw.max(x, axis=axis, keepdims=True))
    return e / fw.sum(e, axis=axis, keepdims=True)


def expected(x: np.ndarray, axis: int = -1) -> np.ndarray:
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(len(shape)).normal(size=shape).astype(np.float32)


@pytest.fixture(autouse=True)
def quiet() -> None:
    """The oracle has been announced."""
    calls._said.set()


@pytest.mark.parametrize("device", ["auto", "sim"])
def test_arguments_keep_their_structure(device: str) -> None:
    Pair = namedtuple("Pair", "left right")

    def f(p, *, extra=None, scale=2):
        made = {"sum": p.left + p.right, "list": [p.left * scale, None]}
        return made, (extra["k"] if extra else 3)

    g = fw.fuse(f, device=device)
    a, b = normal(3, 4), normal(3, 4) + 1
    made, three = g(Pair(a, b))
    assert three == 3 and made["list"][1] is None
    np.testing.assert_array_equal(made["sum"], a + b)
    np.testing.assert_array_equal(made["list"][0], a * 2)
    made, k = g(Pair(a, b), extra={"k": a}, scale=3)
    np.testing.assert_array_equal(made["list"][0], a * 3)
    np.testing.assert_array_equal(k, a)


def test_a_decorator_keeps_the_functions_name_and_doc() -> None:
    @fw.fuse(device="sim")
    def twice(x):
        """Doubles."""
        return x * 2

    assert (twice.__name__, twice.__doc__) == ("twice", "Doubles.")
    assert "twice" in str(twice.explain(normal(4)))
    np.testing.assert_array_equal(twice(normal(4)), normal(4) * 2)


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x.T,
        lambda x: x[::-1, ::2],
        lambda x: np.broadcast_to(x[0], x.shape),
        lambda x: x[:0],
        lambda x: x[0, 0],
        lambda x: np.frombuffer(b"\0" * 1 + x.tobytes(), np.uint8)[1:].view(np.float32),
        lambda x: np.lib.stride_tricks.sliding_window_view(x, 3, axis=1),
    ],
)
def test_arrays_of_any_layout(view) -> None:
    x = view(normal(6, 10))
    f = fw.fuse(lambda x: x * 2 + 1, device="sim")
    got = f(x)
    assert got.shape == x.shape
    np.testing.assert_array_equal(got, x * 2 + 1)


def test_numpy_scalars_are_arrays_of_their_dtype() -> None:
    f = fw.fuse(lambda x, y: x + y, device="sim")
    assert f(normal(3), np.float16(1)).dtype == np.float32
    assert f(normal(3).astype(np.float16), np.float32(1)).dtype == np.float32
    assert f(normal(3).astype(np.float16), 1.0).dtype == np.float16


def test_python_scalars_are_told_apart() -> None:
    f = fw.fuse(lambda x, s: x * s, device="sim")
    x = np.arange(4, dtype=np.float32)
    assert np.signbit(f(x, -0.0)).all() and not np.signbit(f(x, 0.0)).any()
    for _ in range(3):
        assert np.isnan(f(x, float("nan"))).all()
    assert f(x.astype(np.int32), 1).dtype == np.int32
    assert len(f._programs) == 4, "NaN does not compile again"


def test_the_first_structure_does_not_serve_another() -> None:
    f = fw.fuse(lambda t: t["a"] - t["b"], device="sim")
    a, b = normal(4), normal(4) + 5
    np.testing.assert_array_equal(f({"a": a, "b": b}), a - b)
    np.testing.assert_array_equal(f({"b": b, "a": a}), a - b)


def test_equal_keys_of_other_types_are_told_apart() -> None:
    f = fw.fuse(lambda t: next(iter(t.values())) + len(repr(*t)), device="sim")
    x = normal(4)
    for key in (1, True, 1.0, 0.0, -0.0):
        np.testing.assert_array_equal(f({key: x}), x + np.float32(len(repr(key))))


@pytest.mark.parametrize("dynamic", [True, {"x": (0, 1)}, {0: (-1,)}])
def test_symbolic_sizes_serve_other_sizes(dynamic, caplog: pytest.LogCaptureFixture) -> None:
    f = fw.fuse(softmax, device="sim", dynamic=dynamic)
    rows = 3
    for columns in (8, 24, 40):
        x = normal(rows, columns)
        np.testing.assert_allclose(f(x), expected(x), rtol=1e-5)
    assert len(f._programs) == 1


def test_equal_sizes_share_a_symbol_until_they_differ() -> None:
    f = fw.fuse(lambda x, y: x + y, device="sim", dynamic=True)
    np.testing.assert_array_equal(f(normal(5), normal(5)), normal(5) * 2)
    np.testing.assert_array_equal(f(normal(9), normal(9)), normal(9) * 2)
    assert len(f._programs) == 1
    np.testing.assert_array_equal(f(normal(5), normal(1)), normal(5) + normal(1))
    assert len(f._programs) == 2
    with pytest.raises(UserError):
        f(normal(5), normal(6))


def test_a_compile_that_is_not_the_first_is_logged(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level("DEBUG", "fusewright.recompiles")
    f = fw.fuse(softmax, device="sim")
    f(normal(2, 8))
    assert caplog.records == []
    f(normal(2, 9))
    assert [r.levelname for r in caplog.records] == ["INFO"]
    monkeypatch.setenv("FUSEWRIGHT_LOG", "recompiles")
    f(normal(2, 10))
    assert caplog.records[-1].levelname == "WARNING"
    assert "softmax: compile 3, for TensorSpec((2, 10), float32)" in caplog.text


@pytest.mark.parametrize(
    ("dynamic", "message"),
    [
        ({"z": (0,)}, "there is no parameter 'z'; use True, or a mapping from x, axis"),
        ({7: (0,)}, "there is no parameter 7"),
    ],
)
def test_rejects_marks_of_parameters_that_do_not_exist(dynamic, message: str) -> None:
    with pytest.raises(UserError, match=message):
        fw.fuse(softmax, dynamic=dynamic)


def test_rejects_marks_of_axes_that_do_not_exist() -> None:
    with pytest.raises(UserError, match="'x' has rank 2, there is no axis 2"):
        fw.fuse(softmax, dynamic={"x": (2,)})(normal(2, 3))


def test_results_go_where_out_says() -> None:
    f = fw.fuse(lambda x: (x + 1, x * 2), device="sim")
    x, y = normal(4, 6), np.zeros((6, 4), np.float32).T
    a, b = f(x, out=(y, None))
    assert a is y
    np.testing.assert_array_equal(y, x + 1)
    np.testing.assert_array_equal(b, x * 2)
    f(x, out=(x, None))
    np.testing.assert_array_equal(x, y)


def test_results_without_elements_and_results_given_twice_go_where_out_says() -> None:
    empty = np.empty((17, 0), np.float32, order="F")
    f = fw.fuse(lambda x: x + 1, device="sim")
    assert f(np.zeros((17, 0), np.float32), out=empty) is empty

    def twice(x):
        y = x + 1
        return y, y

    x, y = normal(4, 6), np.zeros((4, 6), np.float32)
    a, b = fw.fuse(twice, device="sim")(x, out=(y, y))
    assert a is b is y
    np.testing.assert_array_equal(y, x + 1)
    with pytest.raises(UserError, match="out= 1 and 0 take one and the same result; pass one"):
        fw.fuse(twice, device="sim")(x, out=(y, np.zeros_like(y)))


READ_ONLY = np.zeros((4, 6), np.float32)
READ_ONLY.flags.writeable = False


@pytest.mark.parametrize(
    ("out", "message"),
    [
        (np.zeros((4, 6), np.float32), "does not have the structure of the result"),
        ((np.zeros((4, 6), np.float32),), "does not have the structure"),
        ((np.zeros((4, 5), np.float32), None), r"out= 0 is float32\[4, 5\], the result is"),
        ((np.zeros((4, 6), np.float64), None), r"out= 0 is float64\[4, 6\]"),
        (([1, 2], None), "does not have the structure"),
        ((np.zeros((4, 6), np.float32), READ_ONLY), r"out= 1 is read-only"),
        ((3, None), r"builtins\.int is not an array"),
    ],
)
def test_rejects_an_out_that_does_not_fit(out, message: str) -> None:
    with pytest.raises(UserError, match=message):
        fw.fuse(lambda x: (x + 1, x * 2), device="sim")(normal(4, 6), out=out)


def test_required_layouts_of_results() -> None:
    f = fw.fuse(lambda x: x * 2, device="sim", out_layouts=[(2, 0, 1)])
    x = normal(3, 4, 5)
    y = f(x)
    assert y.strides == (16, 4, 48)
    np.testing.assert_array_equal(y, x * 2)
    with pytest.raises(UserError, match=r"\(0, 1\) is not an order of the 3 axes"):
        fw.fuse(lambda x: x, device="sim", out_layouts=[(0, 1)])(x)
    with pytest.raises(UserError, match="out_layouts has 1 orders for 2 outputs"):
        fw.fuse(lambda x: (x, x), device="sim", out_layouts=[None])(x)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: fw.fuse(softmax, device="tpu"), "use 'auto', 'cuda' or 'sim'"),
        (lambda: fw.fuse(softmax)(object()), "is not an array; pass a numpy, torch, cupy or jax"),
        (lambda: fw.fuse(softmax)([[1.0, object()]]), "is not an array"),
        (lambda: fw.fuse(softmax)(np.zeros(3, ">f4")), "not in the machine's byte order"),
        (lambda: fw.fuse(softmax)(np.array(["a"])), "dtype|type"),
    ],
)
def test_rejects_what_it_cannot_take(call, message: str) -> None:
    with pytest.raises(UserError, match=message):
        call()


@pytest.mark.parametrize("result", [(), None, [], {"a": (), "b": None}, 3])
@pytest.mark.parametrize("device", ["sim", "auto"])
def test_a_function_may_return_no_array(result: object, device: str) -> None:
    f = fw.fuse(lambda x: result, device=device)
    assert f(normal(2, 3)) == result
    assert "0 kernels" in str(f.explain(normal(2, 3)))


def test_without_a_gpu_the_oracle_computes_and_says_so_once() -> None:
    calls._said.clear()
    f = fw.fuse(softmax)
    with pytest.warns(UserWarning, match="no GPU: fusewright computes with its numpy oracle"):
        f(normal(2, 3))
    f(normal(2, 3))
    with pytest.raises(UserError, match="no CUDA device was found; run with device='sim'"):
        fw.fuse(softmax, device="cuda")(normal(2, 3))


def test_many_threads_compile_once() -> None:
    f = fw.fuse(softmax, device="sim")
    x = normal(4, 16)
    results: list[np.ndarray] = []
    threads = [threading.Thread(target=lambda: results.append(f(x))) for _ in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(f._programs) == 1
    assert all(np.array_equal(r, results[0]) for r in results) and len(results) == 6


def test_config_holds_for_its_block_and_thread() -> None:
    before = active()
    with config(execution="stream") as here:
        assert here.execution == active().execution == "stream"
        with config(deterministic=True):
            assert (active().execution, active().deterministic) == ("stream", True)
        seen: list[object] = []
        t = threading.Thread(target=lambda: seen.append(active()))
        t.start()
        t.join()
        assert seen == [before]
    assert active() is before
    config(execution="graph").as_default()
    assert active().execution == "graph"
    config(execution="auto").as_default()
    assert active() is before


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"speed": 1}, r"config\(speed=...\): there is no such choice; use \['execution'"),
        ({"deterministic": 1.5}, r"config\(deterministic=1.5\): use one of \(True, False\)"),
        ({"execution": "fast"}, r"config\(execution='fast'\): use one of \('auto', 'graph'"),
    ],
)
def test_rejects_choices_that_do_not_exist(changes, message: str) -> None:
    with pytest.raises(UserError, match=message):
        config(**changes)


def test_a_program_of_sums_by_arrival_is_not_run_where_results_are_to_repeat() -> None:
    """What was compiled under `deterministic=False` is compiled again under True, which refuses."""

    def by_arrival(s: fw.Schedule) -> None:
        t = s.outputs[0]
        t.split(1, 32).split(0, 128).reorder({2: 1, 1: 2})
        t.parallelize(0, fw.BIDy).parallelize(1, fw.BIDx).parallelize(2, fw.TIDx)
        t.request_serial_grid_reduction("arrival")

    columns = fw.fuse(fw.kernel(lambda x: fw.sum(x, axis=0), schedule=by_arrival), device="sim")
    x = np.random.default_rng(0).standard_normal((96, 512)).astype(np.float32)
    with fw.config(deterministic=False):
        np.testing.assert_allclose(columns(x), x.sum(axis=0), rtol=1e-5, atol=1e-5)
    with pytest.raises(fw.ScheduleError, match="deterministic"):
        columns(x)
