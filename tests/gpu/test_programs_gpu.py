"""Programs on a device: torch tensors and numpy arrays, streams, graphs, capture, devices."""

from __future__ import annotations

import os
import threading

import numpy as np
import pytest

import fusewright as fw
from fusewright.errors import UserError
from fusewright.runtime.config import config

torch = pytest.importorskip("torch")


def softmax(x):
    e = fw.exp(x - fw.max(x, axis=-1, keepdims=True))
    return e / fw.sum(e, axis=-1, keepdims=True)


def chain(x):
    """Kernels that cannot be one: each sums what the last one made over the other axis."""
    for axis in (0, 1) * 4:
        x = x - fw.sum(x, axis=axis, keepdims=True) * (1.0 / 1024)
    return x


def chained(x):
    for axis in (0, 1) * 4:
        x = x - x.sum(axis, keepdim=True) * (1.0 / 1024)
    return x


def normal(*shape: int, dtype=None, device: str = "cuda"):
    generator = torch.Generator(device=device).manual_seed(len(shape))
    x = torch.randn(shape, generator=generator, device=device)
    return x if dtype is None else x.to(dtype)


def assert_close(got, want, tolerance: float = 2e-5) -> None:
    torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("shape", [(64, 1000), (3, 7), (1, 5000), (4096, 33), (2, 3, 130)])
def test_softmax_of_tensors_agrees_with_torch(shape) -> None:
    f = fw.fuse(softmax, device="cuda")
    x = normal(*shape)
    for _ in range(3):
        assert_close(f(x), torch.softmax(x, -1))


def test_numpy_arrays_travel_through_the_gpu() -> None:
    x = np.random.default_rng(0).normal(size=(37, 211)).astype(np.float32)
    e = np.exp(x - x.max(-1, keepdims=True))
    np.testing.assert_allclose(fw.fuse(softmax)(x), e / e.sum(-1, keepdims=True), rtol=2e-5)
    p = fw.compile(fw.trace(softmax, fw.TensorSpec((37, 211), "float32")))
    np.testing.assert_allclose(p.run_cuda(x)[0], e / e.sum(-1, keepdims=True), rtol=2e-5)


@pytest.mark.parametrize("execution", ["graph", "stream"])
def test_chains_agree_with_torch_as_graph_and_as_launches(execution: str) -> None:
    f = fw.fuse(chain, device="cuda")
    with config(execution=execution):
        kept = []
        for k in range(12):
            x = normal(512, 640) + k
            y = f(x)
            assert_close(y, chained(x), 1e-3)
            kept.append(y)  # addresses keep moving
        x = normal(512, 640)
        want = chained(x)
        for _ in range(8):  # and repeat
            assert_close(f(x), want, 1e-3)


def test_results_are_bitwise_equal_from_run_to_run() -> None:
    f = fw.fuse(lambda x: (fw.sum(x), softmax(x)), device="cuda")
    x = normal(1024, 4096)
    first = [y.clone() for y in f(x)]
    for _ in range(10):
        assert all(torch.equal(a, b) for a, b in zip(first, f(x), strict=True))


def test_work_is_ordered_on_the_current_stream() -> None:
    f = fw.fuse(chain, device="cuda")
    x = normal(512, 640)
    f(x)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        y = torch.zeros_like(x)
        torch.cuda._sleep(20_000_000)
        y.copy_(x)
        z = f(y)
        w = z * 2
    stream.synchronize()
    assert_close(w, chained(x) * 2, 1e-3)


@pytest.mark.parametrize("fn", [softmax, chain])
def test_legal_under_graph_capture(fn) -> None:
    f = fw.fuse(fn, device="cuda")
    x = normal(256, 320)
    f(x)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = f(x)
    x.copy_(normal(256, 320) * 2)
    graph.replay()
    torch.cuda.synchronize()
    assert_close(y, f(x), 1e-5)


def test_inference_mode_is_served_and_gradients_flow_or_are_refused() -> None:
    f = fw.fuse(softmax, device="cuda")
    x = normal(16, 64).requires_grad_()
    with torch.inference_mode():
        assert_close(f(x), torch.softmax(x, -1))
    with torch.no_grad():
        assert_close(f(x), torch.softmax(x, -1))
    weights = normal(16, 64)
    (found,) = torch.autograd.grad((f(x) * weights).sum(), x)
    (want,) = torch.autograd.grad((torch.softmax(x, -1) * weights).sum(), x)
    assert_close(found, want)
    program = fw.compile(fw.trace(softmax, fw.TensorSpec((16, 64), "float32")))
    with pytest.raises(UserError, match="require gradients"):
        program(x)


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x.t(),
        lambda x: x[:, 1:],
        lambda x: x[::2],
        lambda x: x[:, ::3],
        lambda x: x[:1].expand(40, -1),
        lambda x: x.flatten()[3:643].view(10, 64),
        lambda x: x[:0],
        lambda x: x[0],
        lambda x: x[0, 0],
    ],
)
def test_views_run_where_they_are(view) -> None:
    f = fw.fuse(lambda x: (x * 2, fw.sum(x)), device="cuda")
    x = view(normal(48, 72))
    doubled, total = f(x)
    assert_close(doubled, x * 2)
    assert_close(total, x.sum(), 1e-3)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64", "int32", "int64", "bool"])
def test_every_dtype_comes_back_bitwise(dtype: str) -> None:
    x = (normal(33, 65) * 4).to(getattr(torch, dtype))
    y = fw.fuse(lambda x: fw.where(x == x, x, x), device="cuda")(x)
    assert torch.equal(x, y)


def test_out_is_written_in_place() -> None:
    f = fw.fuse(softmax, device="cuda")
    x = normal(64, 128)
    y = torch.empty_like(x)
    assert f(x, out=y) is y
    assert_close(y, torch.softmax(x, -1))
    want = torch.softmax(x, -1)
    assert f(x, out=x) is x
    assert_close(x, want)


def test_dynamic_sizes_share_a_program() -> None:
    f = fw.fuse(softmax, device="cuda", dynamic=True)
    for n in (2, 17, 100, 1000, 4099, 70000):
        x = normal(5, n)
        assert_close(f(x), torch.softmax(x, -1))
    assert len(f._programs) == 1


def test_more_elements_than_an_int_counts() -> None:
    n = 2**31 + 4096
    if torch.cuda.mem_get_info()[0] < 3 * n:
        pytest.skip("not enough memory")
    x = torch.arange(n, dtype=torch.int32, device="cuda").to(torch.int8)
    y = fw.fuse(lambda x: x + 1, device="cuda")(x)
    assert torch.equal(y[-5000:], x[-5000:] + 1) and torch.equal(y[:5000], x[:5000] + 1)


def test_results_stay_on_the_device_of_their_arguments() -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("one device")
    f = fw.fuse(chain, device="cuda")
    for index in (1, 0, 1):
        x = normal(128, 192, device="cpu").to(f"cuda:{index}")
        y = f(x)
        assert y.device == x.device
        assert_close(y, chained(x), 1e-3)
    assert torch.cuda.current_device() == 0


def test_threads_without_a_context_compute_right() -> None:
    f = fw.fuse(chain, device="cuda")
    x = normal(256, 320)
    want = chained(x)
    f(x)
    problems: list[BaseException] = []

    def work() -> None:
        try:
            for _ in range(20):
                assert_close(f(x), want, 1e-3)
        except BaseException as e:
            problems.append(e)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert problems == []


def test_a_saved_program_runs(tmp_path, monkeypatch) -> None:
    x = normal(64, 200)
    p = fw.compile(fw.trace(softmax, fw.TensorSpec((64, 200), "float32")))
    q = fw.load(p.save(tmp_path / "softmax.fw"))
    assert_close(q(x)[0], torch.softmax(x, -1))


def test_device_memory_does_not_grow() -> None:
    f = fw.fuse(chain, device="cuda")
    x = normal(256, 320)
    for _ in range(3):
        f(x)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    for k in range(50):
        f(x)
        fw.fuse(lambda x, k=k: x + k, device="cuda")
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() == before


def test_cupy_arrays_give_cupy_arrays() -> None:
    cupy = pytest.importorskip("cupy")
    x = cupy.random.standard_normal((32, 65), dtype=cupy.float32)
    y = fw.fuse(softmax, device="cuda")(x[::-1])
    assert isinstance(y, cupy.ndarray)
    e = cupy.exp(x[::-1] - x[::-1].max(-1, keepdims=True))
    cupy.testing.assert_allclose(y, e / e.sum(-1, keepdims=True), rtol=2e-5)


def test_arrays_that_only_describe_themselves_are_served() -> None:
    class Described:
        def __init__(self, tensor) -> None:
            self.tensor = tensor
            self.__cuda_array_interface__ = tensor.__cuda_array_interface__

    x = normal(32, 64)
    torch.cuda.synchronize()
    y = fw.fuse(softmax, device="cuda")(Described(x))
    assert_close(torch.as_tensor(y, device="cuda"), torch.softmax(x, -1))


def test_launches_are_asynchronous_here() -> None:
    assert os.environ.get("CUDA_LAUNCH_BLOCKING", "0") == "0", "timings and capture need async"
