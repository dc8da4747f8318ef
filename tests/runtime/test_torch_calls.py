"""Calls with torch tensors: results, promises, and what a steady call costs."""

from __future__ import annotations

import gc
import sys
import tracemalloc
from types import SimpleNamespace

import numpy as np
import pytest
from fake_cuda import FakeDriver
from fake_fixtures import gpu, torch
from fake_torch import CUDA, FakeTorch, Parameter, Tensor, TorchDevice, tensor

import fusewright as fw
from fusewright.core import expr as expr_module, substitution as substitution_module
from fusewright.errors import UserError
from fusewright.frontends import fuse as fuse_module
from fusewright.runtime import executor as executor_module
from fusewright.runtime.config import config

__all__ = ["gpu", "torch"]  # fixtures


def softmax(x):
    e = fw.exp(x - fw.max(x, axis=-1, keepdims=True))
    return e / fw.sum(e, axis=-1, keepdims=True)


def expected(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(len(shape)).normal(size=shape).astype(np.float32)


def chain(x):
    """Kernels that cannot be one: each sums what the last one made over the other axis."""
    for axis in (0, 1, 0, 1):
        x = x - fw.sum(x, axis=axis, keepdims=True) * 0.25
    return x


def chained(x: np.ndarray) -> np.ndarray:
    for axis in (0, 1, 0, 1):
        x = x - x.sum(axis, keepdims=True) * 0.25
    return x


def test_a_call_returns_tensors_on_the_current_stream(gpu: FakeDriver, torch: FakeTorch) -> None:
    f = fw.fuse(softmax)
    x = normal(6, 40)
    for _ in range(3):
        y = f(tensor(x))
        assert isinstance(y, Tensor) and y.shape == (6, 40) and y.stride() == (40, 1)
        np.testing.assert_allclose(y.array, expected(x), rtol=1e-5)
    assert {stream for _, stream in gpu.launched} == {77}
    assert len(gpu.launched) == 3


def test_a_steady_call_asks_the_driver_for_one_launch(gpu: FakeDriver, torch: FakeTorch) -> None:
    f = fw.fuse(softmax)
    x = tensor(normal(6, 40))
    f(x)
    f(x)
    gpu.calls.clear()
    torch.allocations.clear()
    f(x)
    assert dict(gpu.calls) == {"cuLaunchKernelEx": 1}
    assert torch.allocations == [(6, 40)]


def test_kernels_of_a_chain_share_one_arena(gpu: FakeDriver, torch: FakeTorch) -> None:
    f = fw.fuse(chain)
    x = normal(24, 40)
    with config(execution="stream"):
        y = f(tensor(x))
        np.testing.assert_allclose(y.array, chained(x), rtol=1e-3, atol=1e-3)
        torch.allocations.clear()
        f(tensor(x))
    program = f.program(tensor(x))
    assert len(program.launches) >= 3
    assert torch.allocations == [(24, 40), (program.host.stats["peak_bytes"],)]


def test_graphs_replay_while_addresses_repeat(
    gpu: FakeDriver, torch: FakeTorch, monkeypatch: pytest.MonkeyPatch
) -> None:
    f = fw.fuse(chain)
    x = tensor(normal(24, 40))
    pool: dict[tuple[int, ...], Tensor] = {}
    allocate = torch.empty_strided

    def same(shape, strides, *, dtype, device):
        if shape not in pool:
            pool[shape] = allocate(shape, strides, dtype=dtype, device=device)
        return pool[shape]

    monkeypatch.setattr(torch, "empty_strided", same)
    f(x)
    gpu.calls.clear()
    for _ in range(5):
        y = f(x)
    assert dict(gpu.calls) == {"cuGraphLaunch": 5}
    np.testing.assert_allclose(y.array, chained(x.array), rtol=1e-3, atol=1e-3)


def test_moving_addresses_update_the_oldest_graph(gpu: FakeDriver, torch: FakeTorch) -> None:
    f = fw.fuse(chain)
    xs = [normal(24, 40) + k for k in range(9)]
    tensors = [tensor(x) for x in xs]
    launches = len(f.program(tensors[0]).launches)
    kept = [f(t) for t in tensors]  # all results alive: no two calls have the same addresses
    for x, y in zip(xs, kept, strict=True):
        np.testing.assert_allclose(y.array, chained(x), rtol=1e-3, atol=1e-2)
    assert gpu.calls["cuGraphInstantiate"] == 4
    assert gpu.calls["cuGraphExecKernelNodeSetParams"] == 5 * launches
    assert gpu.calls["cuLaunchKernelEx"] == 0


def test_graph_edges_are_those_of_the_host_program(gpu: FakeDriver, torch: FakeTorch) -> None:
    f = fw.fuse(chain)
    x = tensor(normal(24, 40))
    f(x)
    host = f.program(x).host
    nodes = [after for _, _, after in gpu.graphs[0]]
    assert [(p, c) for c, after in enumerate(nodes) for p in sorted(after)] == [
        (e.producer, e.consumer) for e in host.edges
    ]


def test_pieces_of_a_join_are_branches_of_the_graph(gpu: FakeDriver, torch: FakeTorch) -> None:
    def f(x, y, z):
        c = fw.concat([softmax(x), softmax(y), softmax(z)], axis=1)
        return c, softmax(c * 2)

    fused = fw.fuse(f)
    xs = [normal(24, 40), normal(24, 8) * 2, normal(24, 3)]
    with config(execution="graph"):
        joined, again = fused(*(tensor(x) for x in xs))
    want = np.concatenate([expected(x) for x in xs], axis=1)
    np.testing.assert_allclose(joined.array, want, rtol=1e-5)
    np.testing.assert_allclose(again.array, expected(want * 2), rtol=1e-5)
    assert [after for _, _, after in gpu.graphs[0]] == [(), (), (), (0, 1, 2)]


def test_ten_thousand_calls_keep_nothing(gpu: FakeDriver, torch: FakeTorch) -> None:
    """Steady calls, with a driver that only counts: no object outlives its call."""
    fused = fw.fuse(lambda x: x * 2 + 1)
    x = tensor(normal(2, 4))
    torch.empty_strided = lambda shape, strides, dtype, device: x
    gpu._cuLaunchKernelEx = lambda *a: None

    def objects_after(calls: int) -> int:
        for _ in range(calls):
            fused(x)
        gc.collect()
        return len(gc.get_objects())

    objects_after(100)
    tracemalloc.start()
    before, nbytes = objects_after(100), tracemalloc.get_traced_memory()[0]
    after, grown = objects_after(10_000), tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert after - before < 20 and grown - nbytes < 20_000


def test_new_sizes_keep_a_bounded_number_of_plans(
    gpu: FakeDriver, torch: FakeTorch, monkeypatch
) -> None:
    monkeypatch.setattr(executor_module, "MAX_PLANS", 8)
    monkeypatch.setattr(fuse_module, "MAX_CALLS", 8)
    fused = fw.fuse(lambda x: x * 2 + 1, dynamic=True)
    for n in range(2, 40):
        x = normal(3, n + 3)
        np.testing.assert_array_equal(fused(tensor(x)).array, x * 2 + 1)
    assert len(fused.program(tensor(x)).calls.executor._plans) <= 8 and len(fused._calls) <= 8


def test_a_new_size_does_no_expression_arithmetic(
    gpu: FakeDriver, torch: FakeTorch, monkeypatch
) -> None:
    """What a size decides is one generated function: nothing is substituted into expressions."""
    fused = fw.fuse(chain, dynamic=True)
    fused(tensor(normal(6, 40)))
    before = gpu.calls["cuGraphLaunch"] + gpu.calls["cuLaunchKernelEx"]
    gpu._run = lambda *a: None

    def refuse(*args):
        raise AssertionError("an expression was rebuilt for a new size")

    monkeypatch.setattr(expr_module, "sum_of", refuse)
    monkeypatch.setattr(substitution_module, "substitute", refuse)
    fused(tensor(normal(7, 44)))
    assert gpu.calls["cuGraphLaunch"] + gpu.calls["cuLaunchKernelEx"] > before


def test_execution_is_chosen_by_config(gpu: FakeDriver, torch: FakeTorch) -> None:
    f = fw.fuse(chain)
    x = tensor(normal(24, 40))
    with config(execution="stream"):
        f(x)
    assert gpu.calls["cuGraphLaunch"] == 0
    with config(execution="graph"):
        f(x)
    assert gpu.calls["cuGraphLaunch"] == 1


def test_a_capturing_stream_is_given_launches(gpu: FakeDriver, torch: FakeTorch) -> None:
    f = fw.fuse(chain)
    x = tensor(normal(24, 40))
    f(x)
    gpu.calls.clear()
    torch.captured = True
    f(x)
    assert set(gpu.calls) == {"cuLaunchKernelEx"}


def test_raises_where_gradients_would_be_lost(gpu: FakeDriver, torch: FakeTorch) -> None:
    x = tensor(normal(6, 40))
    run = fw.fuse(softmax).program(x)
    x.requires_grad = True
    run(x)  # under no_grad
    torch.grad = True
    for _ in range(2):  # a call that is bound, and one that is not yet
        with pytest.raises(UserError, match=r"require gradients, which a program does not record"):
            run(x)
    x.requires_grad = False
    run(x)


def test_raises_for_forward_mode_tangents(gpu: FakeDriver, torch: FakeTorch) -> None:
    f = fw.fuse(softmax)
    x = tensor(normal(6, 40))
    f(x)
    torch.autograd.forward_ad._current_level = 0
    f(x)
    x.tangent = x
    with pytest.raises(UserError, match="gradients"):
        f(x)


def test_parameters_and_keywords_are_bound_too(gpu: FakeDriver, torch: FakeTorch) -> None:
    f = fw.fuse(lambda x, scale, flag=None: x * scale if flag is None else x + scale)
    x = normal(4, 8)
    p = Parameter(tensor(x).array)
    for scale in (2.0, -0.0, 0.0, 3):
        np.testing.assert_array_equal(f(p, scale).array, x * scale)
        np.testing.assert_array_equal(f(p, scale=scale).array, x * scale)
        np.testing.assert_array_equal(f(p, flag=1, scale=scale).array, x + scale)
    gpu.calls.clear()
    np.testing.assert_array_equal(f(p, scale=-0.0).array, x * -0.0)
    assert np.signbit(f(p, scale=-0.0).array).tolist() == np.signbit(x * -0.0).tolist()
    assert dict(gpu.calls) == {"cuLaunchKernelEx": 2}


def test_strided_tensors_run_where_they_are(gpu: FakeDriver, torch: FakeTorch) -> None:
    f = fw.fuse(lambda x, y: x + y)
    x = tensor(normal(8, 6), strides=(1, 8))
    y = tensor(normal(8, 6), strides=(10, 1))
    z = Tensor(np.broadcast_to(tensor(normal(6)).array, (8, 6)))
    np.testing.assert_array_equal(f(x, y).array, x.array + y.array)
    np.testing.assert_array_equal(f(x, z).array, x.array + z.array)
    assert f(x, y).stride() == (1, 8) and f(y, x).stride() == (6, 1)


def test_misaligned_tensors_run_where_they_are(gpu: FakeDriver, torch: FakeTorch) -> None:
    f = fw.fuse(lambda x: x * 2)
    whole = tensor(normal(65))
    x = Tensor(whole.array[1:])
    assert x.data_ptr() % 16 == 4
    np.testing.assert_array_equal(f(x).array, x.array * 2)
    assert f.program(x).fusion.inputs[0].op.alignment == 4
    np.testing.assert_array_equal(f(Tensor(whole.array[:64])).array, whole.array[:64] * 2)
    assert f.program(Tensor(whole.array[:64])).fusion.inputs[0].op.alignment == 16


def test_a_program_copies_what_its_specs_do_not_allow(gpu: FakeDriver, torch: FakeTorch) -> None:
    p = fw.compile(fw.trace(softmax, fw.TensorSpec((8, 6), "float32")))
    x = tensor(normal(8, 6), strides=(1, 8))
    np.testing.assert_allclose(p(x)[0].array, expected(x.array), rtol=1e-5)
    assert p.copies == 1
    np.testing.assert_allclose(p(tensor(x.array))[0].array, expected(x.array), rtol=1e-5)
    assert p.copies == 1


def test_results_go_where_out_says(gpu: FakeDriver, torch: FakeTorch) -> None:
    f = fw.fuse(lambda x: {"a": x + 1, "b": [x * 2]})
    x = tensor(normal(8, 6))
    a = tensor(np.zeros((8, 6), np.float32))
    made = f(x, out={"a": a, "b": [None]})
    assert made["a"] is a and isinstance(made["b"][0], Tensor)
    np.testing.assert_array_equal(a.array, x.array + 1)
    np.testing.assert_array_equal(made["b"][0].array, x.array * 2)
    strided = tensor(np.zeros((8, 6), np.float32), strides=(1, 8))
    f(x, out={"a": strided, "b": [a]})
    np.testing.assert_array_equal(strided.array, x.array + 1)


def test_out_may_overlap_an_argument(gpu: FakeDriver, torch: FakeTorch) -> None:
    f = fw.fuse(lambda x: x + fw.flip(x, axis=0))
    x = tensor(normal(8, 6))
    want = x.array + x.array[::-1]
    assert f(x, out=x) is x
    np.testing.assert_array_equal(x.array, want)


@pytest.mark.parametrize(
    ("out", "message"),
    [
        (lambda: tensor(np.zeros((6, 8), np.float32)), r"out= 0 is float32\[6, 8\], the result is"),
        (lambda: tensor(np.zeros((8, 6), np.int32)), r"out= 0 is int32\[8, 6\]"),
        (lambda: np.zeros((8, 6), np.float32), "out= 0 is numpy on cpu, the arguments are torch"),
        (lambda: [tensor(np.zeros((8, 6), np.float32))], "does not have the structure"),
        (
            lambda: Tensor(np.broadcast_to(np.zeros(6, np.float32), (8, 6))),
            "several elements share memory",
        ),
    ],
)
def test_rejects_an_out_that_does_not_fit(gpu: FakeDriver, torch: FakeTorch, out, message) -> None:
    with pytest.raises(UserError, match=message):
        fw.fuse(softmax)(tensor(normal(8, 6)), out=out())


def test_rejects_arrays_of_two_libraries_or_devices(gpu: FakeDriver, torch: FakeTorch) -> None:
    f = fw.fuse(lambda x, y: x + y)
    x = tensor(normal(4))
    with pytest.raises(
        UserError, match="argument 0 is a torch array on cuda:0, argument 1 a numpy array on cpu"
    ):
        f(x, normal(4))
    with pytest.raises(UserError, match="argument 1 a torch array on cuda:1"):
        f(x, tensor(normal(4), device=TorchDevice("cuda", 1)))
    with pytest.raises(UserError, match="device='sim' takes host arrays"):
        fw.fuse(softmax, device="sim")(x)


def test_another_device_runs_in_its_own_context(gpu: FakeDriver, torch: FakeTorch) -> None:
    f = fw.fuse(softmax)
    x = tensor(normal(6, 40), device=TorchDevice("cuda", 1))
    assert repr(f(x).device) == "cuda:1"
    f(x)
    assert gpu.context == 1, "the caller's context is back"
    assert gpu.launched[-1][1] == 78


def test_a_failing_launch_says_which(gpu: FakeDriver, torch: FakeTorch, monkeypatch) -> None:
    gpu.refuse = "cuLaunchKernelEx"
    gpu.cuGetErrorString = lambda status: (0, b"illegal address")
    f = fw.fuse(softmax)
    monkeypatch.setattr("importlib.import_module", lambda name: gpu)
    with pytest.raises(fw.InternalError, match=r"launch of fw_.*failed: illegal address \(700\)"):
        f(tensor(normal(6, 40)))


def test_sizes_marked_dynamic_share_a_program(gpu: FakeDriver, torch: FakeTorch, caplog) -> None:
    f = fw.fuse(softmax, dynamic=True)
    caplog.set_level("INFO", "fusewright.recompiles")
    for n in (2, 17, 40, 100):
        x = normal(3 + n % 5, n)
        if x.shape[0] != n:
            np.testing.assert_allclose(f(tensor(x)).array, expected(x), rtol=1e-5)
    assert caplog.records == []
    np.testing.assert_allclose(f(tensor(normal(1, 8))).array, expected(normal(1, 8)), rtol=1e-5)
    assert "softmax: compile 2, for TensorSpec((1, n0), float32)" in caplog.text


def test_zero_size_results_need_no_launch(gpu: FakeDriver, torch: FakeTorch) -> None:
    f = fw.fuse(lambda x: x * 2)
    assert f(tensor(np.zeros((0, 5), np.float32))).shape == (0, 5)
    assert gpu.launched == []


def test_zero_dimensional_tensors(gpu: FakeDriver, torch: FakeTorch) -> None:
    f = fw.fuse(lambda x, y: (x * 2, fw.sum(y) * x))
    a, b = f(tensor(np.float32(3)), tensor(normal(5, 5)))
    assert a.array == 6 and a.shape == ()
    np.testing.assert_allclose(b.array, normal(5, 5).sum() * 3, rtol=1e-5)


def test_required_layouts_of_results(gpu: FakeDriver, torch: FakeTorch) -> None:
    f = fw.fuse(lambda x: (x * 2, x + 1), out_layouts=[(1, 0), None])
    x = normal(8, 6)
    a, b = f(tensor(x))
    assert a.shape == (8, 6) and a.stride() == (1, 8) and b.stride() == (6, 1)
    np.testing.assert_array_equal(a.array, x * 2)
    target = tensor(np.zeros((8, 6), np.float32), strides=(1, 8))
    got, _ = f(tensor(x), out=(target, None))
    np.testing.assert_array_equal(target.array, x * 2)
    assert got.data_ptr() == target.data_ptr()


def test_numpy_arrays_travel_through_the_gpu(gpu: FakeDriver) -> None:
    f = fw.fuse(softmax)
    x = normal(6, 40)
    y = f(x)
    assert isinstance(y, np.ndarray)
    np.testing.assert_allclose(y, expected(x), rtol=1e-5)
    np.testing.assert_allclose(f(x[::-1, ::2]), expected(x[::-1, ::2]), rtol=1e-5)
    assert gpu.memory == {}, "device memory given back"


def test_device_memory_is_given_back_when_a_copy_fails(gpu: FakeDriver, monkeypatch) -> None:
    gpu.refuse = "cuMemcpyDtoH"
    gpu.cuGetErrorString = lambda status: (0, b"lost")
    f = fw.fuse(softmax)
    f.program(normal(6, 40))
    monkeypatch.setattr("importlib.import_module", lambda name: gpu)
    with pytest.raises(fw.InternalError, match="copy from the device failed: lost"):
        f(normal(6, 40))
    assert gpu.memory == {}


def test_ranges_name_the_kernels(gpu: FakeDriver, torch: FakeTorch, monkeypatch) -> None:
    marks: list[str] = []
    torch.cuda.nvtx = SimpleNamespace(
        range_push=marks.append, range_pop=lambda: marks.append("end")
    )
    monkeypatch.setenv("FUSEWRIGHT_NVTX", "1")
    fw.fuse(softmax)(tensor(normal(6, 40)))
    assert len(marks) == 2 and marks[0].startswith("fw_") and marks[1] == "end"


def test_ranges_without_a_library_say_what_to_install(gpu: FakeDriver, monkeypatch) -> None:
    monkeypatch.setenv("FUSEWRIGHT_NVTX", "1")
    monkeypatch.setitem(sys.modules, "nvtx", None)
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    with pytest.raises(UserError, match=r"FUSEWRIGHT_NVTX=1 needs torch or the nvtx package"):
        fw.fuse(softmax)(normal(6, 40))


def test_the_fake_device_is_cuda_zero() -> None:
    assert repr(CUDA) == "cuda:0"


# --- results in the memory of arguments ---------------------------------------------------------


def append(cache, x, start=3):
    return fw.insert(cache, softmax(x), (start, 0))


def appended(cache: np.ndarray, x: np.ndarray) -> np.ndarray:
    out = cache.copy()
    out[3 : 3 + len(x)] = expected(x)
    return out


def pair() -> tuple[Tensor, Tensor]:
    return tensor(normal(40, 8)), tensor(normal(6, 8))


def test_out_that_is_an_argument_is_changed_in_place(gpu: FakeDriver, torch: FakeTorch) -> None:
    f = fw.fuse(append)
    for _ in range(2):
        cache, x = pair()
        want = appended(cache.array, x.array)
        torch.allocations.clear()
        torch.changed.clear()
        gpu.launched.clear()
        assert f(cache, x, out=cache) is cache
        np.testing.assert_allclose(cache.array, want, rtol=1e-5)
        assert torch.allocations == [] and len(gpu.launched) == 1, "the block is all that is made"
        assert torch.changed == [cache], "torch knows that the tensor changed"


def test_a_call_without_out_keeps_its_arguments(gpu: FakeDriver, torch: FakeTorch) -> None:
    f = fw.fuse(append)
    cache, x = pair()
    f(cache, x, out=cache)
    before = cache.array.copy()
    y = f(cache, x)
    np.testing.assert_array_equal(cache.array, before)
    np.testing.assert_allclose(y.array, appended(before, x.array), rtol=1e-5)


def test_elementwise_results_replace_their_argument(gpu: FakeDriver, torch: FakeTorch) -> None:
    f = fw.fuse(lambda x, y: x * 2 + y)
    x, y = tensor(normal(8, 6)), tensor(normal(8, 6) + 1)
    want = x.array * 2 + y.array
    torch.allocations.clear()
    f(x, y, out=x)
    np.testing.assert_array_equal(x.array, want)
    assert torch.allocations == []


def test_donated_tensors_hold_the_result(gpu: FakeDriver, torch: FakeTorch) -> None:
    f = fw.fuse(append, donate=("cache",))
    for _ in range(3):  # the first call compiles, later ones are bound
        cache, x = pair()
        want = appended(cache.array, x.array)
        torch.allocations.clear()
        torch.changed.clear()
        y = f(cache, x)
        assert y is cache and torch.allocations == [] and torch.changed == [cache]
        np.testing.assert_allclose(y.array, want, rtol=1e-5)
    assert f.program(cache, x).copies == 0


def test_donated_tensors_that_others_share_are_copied(gpu: FakeDriver, torch: FakeTorch) -> None:
    """Arguments that overlap, wholly or in part, are never written over."""
    f = fw.fuse(lambda d, e: (fw.insert(d, d[:2] * 2, (0, 0)), fw.sum(e, axis=0)), donate=("d",))
    whole = tensor(normal(12, 8))
    one, other = Tensor(whole.array[:8]), Tensor(whole.array[4:])
    apart = tensor(normal(8, 8))
    for d, e in [(one, apart), (one, one), (one, other), (other, one), (one, one)]:
        before, want = e.array.copy(), d.array.copy()
        want[:2] *= 2
        y, total = f(d, e)
        np.testing.assert_array_equal(y.array, want)
        np.testing.assert_allclose(total.array, before.sum(0), rtol=1e-4, atol=1e-5)
        if e is not apart:
            np.testing.assert_array_equal(e.array, before)
            assert y is not d
    assert f.program(one, apart).copies == 4


def test_out_that_several_arguments_share_is_written_last(
    gpu: FakeDriver, torch: FakeTorch
) -> None:
    f = fw.fuse(lambda x, y: (fw.insert(x, softmax(y[2:5]), (4, 0)), fw.sum(y, axis=0)))
    whole = tensor(normal(12, 8))
    x, y = Tensor(whole.array[:8]), Tensor(whole.array[4:])
    for a, b in [(x, x), (x, y)]:
        want, total = a.array.copy(), b.array.sum(0)
        want[4:7] = expected(b.array[2:5])
        made = f(a, b, out=(a, None))
        assert made[0] is a
        np.testing.assert_allclose(a.array, want, rtol=1e-5)
        np.testing.assert_allclose(made[1].array, total, rtol=1e-4, atol=1e-5)


def test_rejects_parameters_that_are_not_there(gpu: FakeDriver, torch: FakeTorch) -> None:
    with pytest.raises(UserError, match="donate: there is no parameter 'y'; use some of cache, x"):
        fw.fuse(append, donate=("y",))
    with pytest.raises(
        UserError, match=r"donate='cache' is str; .*pass a tuple of names: \('cache',\)"
    ):
        fw.fuse(append, donate="cache")


def test_rejects_an_out_that_loses_a_gradient(gpu: FakeDriver, torch: FakeTorch) -> None:
    cache, x = pair()
    y = tensor(np.zeros((40, 8), np.float32))
    y.requires_grad = torch.grad = True
    with pytest.raises(UserError, match="require gradients"):
        fw.fuse(append)(cache, x, out=y)
    torch.grad = False
    assert fw.fuse(append)(cache, x, out=y) is y


def test_donated_pieces_of_a_structure(gpu: FakeDriver, torch: FakeTorch) -> None:
    f = fw.fuse(lambda state, g: {"m": state["m"] * 0.9 + g}, donate=("state",))
    m, g = tensor(normal(8, 6)), tensor(normal(8, 6))
    want = m.array * np.float32(0.9) + g.array
    assert f({"m": m}, g=g)["m"] is m
    np.testing.assert_allclose(m.array, want, rtol=1e-6)


def test_structures_of_tensors_are_bound_like_arguments(gpu: FakeDriver, torch: FakeTorch) -> None:
    @fw.fuse
    def f(state, pair, scale):
        return {"sum": state["m"] + state["more"][0] * scale, "last": pair[1] * 2}

    a, b, c = (tensor(normal(8, 6)) for _ in range(3))
    for scale in (2.0, 2.0, 3.0):
        out = f({"m": a, "more": [b, None]}, (b, c), scale)
        np.testing.assert_allclose(out["sum"].array, a.array + b.array * np.float32(scale))
        np.testing.assert_allclose(out["last"].array, c.array * 2)
    assert len(f._calls) == 2, "one for each scale"
    wide = tensor(normal(8, 12))
    out = f({"m": a, "more": [b, None]}, (b, wide), 2.0)
    np.testing.assert_allclose(out["last"].array, wide.array * 2)
    out = f({"m": a, "more": (b, None)}, (b, c), 2.0)
    assert len(f._calls) == 4, "a tuple is another structure than a list"
    np.testing.assert_allclose(out["last"].array, c.array * 2)


def test_structures_beside_out_take_the_general_way(gpu: FakeDriver, torch: FakeTorch) -> None:
    f = fw.fuse(lambda state: state["m"] * 2)
    m, into = tensor(normal(8, 6)), tensor(normal(8, 6))
    assert f({"m": m}, out=into) is into
    assert f({"m": m}, out=m) is m
    np.testing.assert_allclose(m.array, into.array)
    assert f._calls == {}


def test_calls_of_known_types_look_at_addresses_only(
    gpu: FakeDriver, torch: FakeTorch, monkeypatch: pytest.MonkeyPatch
) -> None:
    f = fw.fuse(lambda x, y: (x + y, x * y))
    x, y = normal(6, 40), normal(6, 40) + 1
    assert f.bound((tensor(x), tensor(y))) is None  # not called yet
    f(tensor(x), tensor(y))
    bound = f.bound((tensor(x), tensor(y)))
    assert bound is not None
    alike = bound.alike
    assert alike is not None
    monkeypatch.setattr(fuse_module, "call_key", None)
    made = alike([tensor(y), tensor(x)])
    assert made is not None
    np.testing.assert_allclose(made[0].array, x + y, rtol=1e-6)
    np.testing.assert_allclose(made[1].array, x * y, rtol=1e-6)


def test_calls_of_known_types_are_left_where_more_than_types_differs(
    gpu: FakeDriver, torch: FakeTorch
) -> None:
    f = fw.fuse(lambda x, y: (x + y, x * y))
    pair = tensor(normal(6, 40)), tensor(normal(6, 40))
    f(*pair)
    bound = f.bound(pair)
    assert bound is not None
    alike = bound.alike
    assert alike is not None
    before = len(gpu.launched)
    assert alike([pair[0], SimpleNamespace(data_ptr=lambda: 1 << 20 | 4)]) is None
    with config(execution="stream"):
        assert alike(pair) is None
    torch.autograd.forward_ad._current_level = 0
    assert alike(pair) is None
    torch.autograd.forward_ad._current_level = -1
    assert len(gpu.launched) == before and alike(pair) is not None


def test_calls_with_other_results_or_arguments_are_not_bound(
    gpu: FakeDriver, torch: FakeTorch
) -> None:
    x = tensor(normal(6, 40))
    for fn in (lambda x: x + 1, lambda x: [x + 1, x + 1]):
        f = fw.fuse(fn)
        f(x)
        bound = f.bound((x,))
        assert bound is not None and bound.alike is bound.steps() is None
    f = fw.fuse(lambda t: [t[0] + 1])
    f((x,))
    bound = f.bound(((x,),))
    assert bound is not None and bound.alike is bound.steps() is None
