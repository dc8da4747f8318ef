"""Numbers of a call with torch tensors on a device: one program, and one graph for all values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from fake_cuda import FakeDriver
from fake_fixtures import gpu, torch
from fake_torch import FakeTorch, tensor

import fusewright as fw
from fusewright.errors import UserError
from fusewright.runtime import torch_calls as torch_calls_module
from fusewright.runtime.config import config

__all__ = ["gpu", "torch"]  # fixtures


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def append(cache, new, at):
    return fw.insert(cache, new * 2, (at, 0))


def attend(keys, k, q, at):
    keys = fw.insert(keys, k, (at, 0))
    seen = keys[: at + 1]
    return keys, fw.nn.softmax(q @ seen.T, axis=-1) @ seen


def attended(keys: np.ndarray, q: np.ndarray, at: int) -> np.ndarray:
    scores = q @ keys[: at + 1].T
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True) @ keys[: at + 1]


def test_steps_write_into_the_cache_and_compile_once(gpu: FakeDriver, torch: FakeTorch) -> None:
    f = fw.fuse(append, donate=("cache",), dynamic={"at": ()})
    cache, expected = tensor(normal(64, 8)), normal(64, 8)
    for at in (0, 5, 62, 5):
        new = normal(2, 8, seed=at)
        expected[at : at + 2] = new * 2
        made = f(cache, tensor(new), at)
        assert made is cache and np.array_equal(cache.array, expected)
    assert len(f._programs) == 1 and len(f._calls) == 1
    assert {name for name, _ in gpu.launched} == {f.program(cache, tensor(new), 0).kernels[0].name}
    with pytest.raises(UserError, match="2 elements from at on must fit size 64: at is 63"):
        f(cache, tensor(new), 63)


@pytest.mark.parametrize("execution", ["stream", "graph"])
def test_one_graph_is_updated_for_all_steps(
    gpu: FakeDriver, torch: FakeTorch, execution: Any
) -> None:
    f = fw.fuse(attend, donate=("keys",), dynamic={"at": ()})
    keys, expected = tensor(np.zeros((32, 8), np.float32)), np.zeros((32, 8), np.float32)
    with config(execution=execution):
        for at in range(32):
            k, q = normal(1, 8, seed=at), normal(4, 8, seed=at + 100)
            expected[at] = k[0]
            made, out = f(keys, tensor(k), tensor(q), at)
            assert made is keys and np.array_equal(keys.array, expected)
            np.testing.assert_allclose(out.array, attended(expected, q, at), rtol=1e-4, atol=1e-5)
    assert len(f._programs) == 1
    if execution == "graph":
        assert gpu.calls["cuGraphInstantiate"] == 4  # then those are updated in turn
        assert gpu.calls["cuGraphLaunch"] == 32


def test_programs_take_numbers_beside_tensors(gpu: FakeDriver, torch: FakeTorch) -> None:
    specs = fw.TensorSpec((64, 8), "float32"), fw.TensorSpec((2, 8), "float32")
    p = fw.compile(fw.trace(append, *specs, fw.Sym("at")))
    c, v = normal(64, 8), normal(2, 8)
    for at in (3, 40):
        expected = c.copy()
        expected[at : at + 2] = v * 2
        assert np.array_equal(p(tensor(c), tensor(v), at)[0].array, expected)
        assert np.array_equal(p(c, v, at)[0], expected)
    assert len(p.calls._bound) == 1
    with pytest.raises(UserError, match="must fit size 64: at is 63; at may be at most 62"):
        p(tensor(c), tensor(v), 63)


def test_results_whose_size_is_a_number(
    gpu: FakeDriver, torch: FakeTorch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch_calls_module, "MAX_PLANS", 3)
    f = fw.fuse(lambda x, n: x[:n] + 1, dynamic={"n": ()})
    x = normal(16, 8)
    for n in (1, 16, 4, 0, 4):
        assert np.array_equal(f(tensor(x), n).array, x[:n] + 1)
        out = tensor(np.zeros((n, 8), np.float32))
        assert f(tensor(x), n, out=out) is out and np.array_equal(out.array, x[:n] + 1)
    with pytest.raises(
        UserError, match=r"out= 0 is float32\[4, 8\], the result is float32\[2, 8\]"
    ):
        f(tensor(x), 2, out=tensor(np.zeros((4, 8), np.float32)))


def test_numbers_inside_of_structures(gpu: FakeDriver, torch: FakeTorch) -> None:
    f = fw.fuse(lambda x, at: x[at[0] : at[1]] * 2, dynamic={"at": ()})
    x = normal(16, 8)
    for at in ((0, 3), (2, 9), (5, 5)):
        assert np.array_equal(f(tensor(x), at).array, x[at[0] : at[1]] * 2)
    assert len(f._programs) == 1


def test_a_function_that_needs_the_values_has_a_program_for_each(
    gpu: FakeDriver, torch: FakeTorch
) -> None:
    def doubled(x: Any, times: int) -> Any:
        for _ in range(times):
            x = x * 2
        return x

    f = fw.fuse(doubled, dynamic=True)
    x = normal(16, 8)
    for times in (1, 3, 2, 3):
        np.testing.assert_array_equal(f(tensor(x), times).array, x * 2**times)
    assert len(f._programs) == len(f._calls) == 3


def test_what_is_measured_is_given_the_numbers_of_its_call(gpu: FakeDriver) -> None:
    class Clock:
        device = "Simulated GPU"

        def __call__(self, runs: list[Any]) -> list[float]:
            for r in runs:
                r()
            return [float(len(runs) - k) for k in range(len(runs))]

    f = fw.fuse(attend, dynamic={"at": ()})
    args = (normal(32, 8), normal(1, 8), normal(4, 8), 5)
    assert any(t.is_winner and not t.is_default for t in fw.tune(f, *args, clock=Clock()).timed)
    (tuned,) = {c.program for c in f._programs.values()}
    assert f.program(*args[:3], 17) is tuned
    assert fw.benchmark(f, *args, clock=Clock()).is_measured
    assert fw.benchmark(tuned, *args, clock=Clock()).is_measured
    with pytest.raises(UserError, match="the number at is argument 3"):
        fw.benchmark(tuned, *args[:3], clock=Clock())


def test_a_position_on_the_device_writes_its_block(gpu: FakeDriver, torch: FakeTorch) -> None:
    f = fw.fuse(append, donate=("cache",))
    cache, expected = tensor(normal(64, 8)), normal(64, 8)
    for at in (0, 5, 62, 99, -7):
        new = normal(2, 8, seed=at + 9)
        first = min(max(at, 0), 62)
        expected[first : first + 2] = new * 2
        made = f(cache, tensor(new), tensor(np.asarray(at)))
        assert made is cache and np.array_equal(cache.array, expected)
    assert len(f._programs) == 1 and len({name for name, _ in gpu.launched}) == 1
    other = tensor(expected.copy())
    into = fw.fuse(append)
    assert into(other, tensor(new), tensor(np.asarray(8)), out=other) is other
    expected[8:10] = new * 2
    assert np.array_equal(other.array, expected)


def test_appending_in_a_loop_that_the_device_ends(gpu: FakeDriver, torch: FakeTorch) -> None:
    def filled(cache, x):
        def body(state):
            k, c = state
            return k + 1, fw.insert(c, fw.slice(x, (k, 0), (1, 8)) * 2, (k, 0))

        return fw.while_loop(lambda s: s[0] < 6, body, (2, cache))[1]

    f = fw.fuse(filled, donate=("cache",))
    cache, x = tensor(normal(16, 8)), normal(16, 8, seed=1)
    expected = cache.array.copy()
    expected[2:6] = x[2:6] * 2
    with config(execution="stream"):
        made = f(cache, tensor(x))
    assert made is cache and np.array_equal(cache.array, expected)
