"""Arrays of jax: they come out as themselves, and are never written to."""

from __future__ import annotations

import gc
import sys
import types
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
from fake_cuda import FakeDriver
from fake_fixtures import gpu
from test_device_arrays import content, filled

import fusewright as fw
from fusewright.runtime.arrays import describe
from fusewright.runtime.memory import DeviceArray

__all__ = ["gpu"]  # a fixture


class FakeArray:
    """An array of a stand-in for jax, on the host or on a device."""

    def __init__(self, memory: Any) -> None:
        self.memory = memory
        self.shape, self.dtype = memory.shape, memory.dtype

    def is_deleted(self) -> bool:
        return False

    def __dlpack__(self, **how: Any) -> object:
        return self.memory.__dlpack__(**how)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.memory.__dlpack_device__()


class FakeTracer(FakeArray):
    """What stands for an array inside of a transform."""


class Key(FakeArray):
    """An array that is no array of numbers."""

    def __dlpack_device__(self) -> tuple[int, int]:
        raise AttributeError("no DLPack")


@pytest.fixture
def jax(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    made = types.SimpleNamespace(
        Array=FakeArray,
        core=types.SimpleNamespace(Tracer=FakeTracer),
        numpy=types.SimpleNamespace(from_dlpack=FakeArray),
        devices=lambda kind: [kind],
        device_put=lambda x, device: FakeArray(np.array(x)),
    )
    monkeypatch.setitem(sys.modules, "jax", made)
    yield made


def test_on_the_host(jax: Any) -> None:
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    for device in ("sim", "auto"):
        y, many = fw.fuse(lambda v: (v * 2, {"t": v.T}), device=device)(FakeArray(x))
        assert isinstance(y, FakeArray) and np.array_equal(y.memory, 2 * x)
        assert isinstance(many["t"], FakeArray) and np.array_equal(many["t"].memory, x.T)


def test_on_a_device_results_are_handed_over_by_dlpack(gpu: FakeDriver, jax: Any) -> None:
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    y = fw.fuse(lambda v: v * 2 + 1, device="cuda")(FakeArray(filled(x)))
    assert isinstance(y, FakeArray) and isinstance(y.memory, DeviceArray)
    np.testing.assert_array_equal(content(y.memory), x * 2 + 1)


def test_refusals(jax: Any) -> None:
    x = np.zeros((3, 4), np.float32)
    with pytest.raises(fw.UserError, match=r"inside of a transform of jax.*fw.grad and fw.vmap"):
        describe(FakeTracer(x))
    with pytest.raises(fw.UserError, match=r"cannot be shared: no DLPack; pass one of numbers"):
        describe(Key(x))
    f = fw.fuse(lambda v: v + 1, device="sim")
    with pytest.raises(fw.UserError, match=r"out= is an array of jax, which never changes"):
        f(FakeArray(x), out=FakeArray(x))
    with pytest.raises(fw.UserError, match=r"argument 0 is a jax array on cpu, argument 1 a numpy"):
        fw.fuse(lambda a, b: a + b, device="sim")(FakeArray(x), x)


def test_memory_of_jax_is_not_written(gpu: FakeDriver, jax: Any) -> None:
    def stored(c: Any, v: Any) -> Any:
        return fw.insert(c, v, (1, 0))

    c, v = np.zeros((3, 4), np.float32), np.ones((1, 4), np.float32)
    cache, row = FakeArray(filled(c)), FakeArray(filled(v))
    got = fw.fuse(stored, device="cuda", donate=("c",))(cache, row)
    assert content(got.memory).sum() == 4 and content(cache.memory).sum() == 0
    program = fw.compile(fw.trace(stored, "f32[3,4]", "f32[1,4]"), donate=("c",))
    with pytest.raises(fw.UserError, match=r"compiled with donate=, and arrays of jax never"):
        program(cache, row, device="cuda")
    del got, cache, row
    gc.collect()  # what the traceback held is freed where it was allocated


# --- jax itself, where it is installed ----------------------------------------------------------


@pytest.fixture(scope="module")
def real() -> Any:
    return pytest.importorskip("jax")


def _same(jax: Any, got: Any, expected: Any) -> None:
    """Arrays of jax of the same dtypes and about the same elements, in the same structure."""
    left, right = jax.tree.flatten(got), jax.tree.flatten(expected)
    assert left[1] == right[1]
    for a, b in zip(left[0], right[0], strict=True):
        assert isinstance(a, jax.Array) and a.dtype == b.dtype
        wide = [np.asarray(x).astype(np.float64) for x in (a, b)]
        np.testing.assert_allclose(*wide, rtol=1e-5, atol=1e-5)


def _normal(jax: Any, seed: int = 0) -> Any:
    return jax.random.normal(jax.random.PRNGKey(seed), (8, 33))


@pytest.mark.parametrize("device", ["sim", "auto"])
def test_jax_in_and_out(real: Any, device: str) -> None:
    jnp, x, y = real.numpy, _normal(real), _normal(real, 1)
    run = partial(fw.fuse, device=device)
    _same(real, run(lambda v: fw.nn.softmax(v, axis=-1))(x), real.nn.softmax(x, axis=-1))
    both = run(lambda p: {"b": p["a"].T, "c": [p["a"] * 2]})({"a": x})
    _same(real, both, {"b": x.T, "c": [x * 2]})
    _same(real, run(lambda v: v + 1)(x[::2, 1:].T), x[::2, 1:].T + 1)  # a view
    _same(real, run(lambda v, s: v * s)(x, jnp.float32(3)), x * 3)
    _same(real, run(lambda v: fw.argmax(v, axis=1))(x), jnp.argmax(x, axis=1))
    gradient = run(fw.value_and_grad(lambda v: fw.sum(fw.sin(v) * v)))
    _same(real, gradient(x), real.value_and_grad(lambda v: jnp.sum(jnp.sin(v) * v))(x))
    dots = run(fw.vmap(lambda a, b: fw.sum(a * b)))
    _same(real, dots(x, y), real.vmap(lambda a, b: jnp.sum(a * b))(x, y))
    _same(real, real.jit(jnp.dot)(run(lambda v: v * 2)(x), run(lambda v: v.T)(y)), 2 * x @ y.T)


@pytest.mark.parametrize(
    "dtype",
    ["float32", "float16", "bfloat16", "float8_e4m3fn", "int32", "int8", "uint8", "uint32", "bool"],
)
def test_dtypes_of_jax_come_back(real: Any, dtype: str) -> None:
    x = real.numpy.asarray(np.arange(12).reshape(3, 4) % 5).astype(dtype)
    _same(real, fw.fuse(lambda v: fw.flip(v, axis=1), device="sim")(x), x[:, ::-1])


def test_jax_of_64_bits(real: Any) -> None:
    """What jax has depends on its own switch: without, results of 64 bits become 32."""
    f = fw.fuse(lambda v: (v * 2, fw.astype(v, "float64")), device="sim")
    x = real.numpy.arange(4, dtype="int32")
    assert [a.dtype.name for a in f(x)] == ["int32", "float32"]
    with real.enable_x64(True):
        wide = real.numpy.arange(4, dtype="int64")
        assert [a.dtype.name for a in f(wide)] == ["int64", "float64"]


def test_arrays_of_jax_in_a_program_are_constants(real: Any) -> None:
    """As under jax.jit: they never change."""
    x, y, rows = _normal(real), _normal(real, 1), real.numpy.asarray([3, 1, 1])
    run = partial(fw.fuse, device="sim")
    _same(real, run(lambda v: v + y)(x), x + y)
    _same(real, run(lambda v: y - v)(x), y - x)
    _same(real, run(lambda v: v @ y.T)(x), x @ y.T)
    _same(real, run(lambda v: fw.where(v > 0, v, y))(x), real.numpy.where(x > 0, x, y))
    _same(real, run(lambda v: v[rows])(x), x[rows])
    with pytest.raises(fw.UserError, match=r"add: the array of jax, key<fry>\(\), is none: JAX"):
        run(lambda v: v + real.random.key(0))(x)
    with pytest.raises(fw.UserError, match=r"add: an operand is inside of a transform of jax"):
        real.jit(lambda q: fw.fuse(lambda v: v + q, device="sim")(np.ones(3, np.float32)))(x)


def test_arguments_of_jax_keep_their_elements(real: Any) -> None:
    x, row = _normal(real), _normal(real, 1)[:1]
    before = np.asarray(x).copy()
    f = fw.fuse(lambda c, v: fw.insert(c, v, (1, 0)), donate=("c",), device="sim")
    _same(real, f(x, row), x.at[1:2].set(row))
    np.testing.assert_array_equal(np.asarray(x), before)


def test_what_jax_cannot_do_says_so(real: Any) -> None:
    x = _normal(real)
    f = fw.fuse(lambda v: fw.sum(v), device="sim")
    for inside in (real.jit(f), real.grad(f), real.vmap(f)):
        with pytest.raises(fw.UserError, match=r"inside of a transform of jax.*call it outside"):
            inside(x)
    outside = real.ShapeDtypeStruct((), "float32")
    _same(real, real.jit(lambda v: real.pure_callback(f, outside, v))(x), x.sum())
    gone = real.numpy.ones(3)
    gone.delete()
    with pytest.raises(fw.UserError, match=r"jax, float32\(3,\), was deleted, as donate_argnums"):
        f(gone)
    with pytest.raises(fw.UserError, match=r"key<fry>\(\), cannot be shared"):
        f(real.random.key(0))
