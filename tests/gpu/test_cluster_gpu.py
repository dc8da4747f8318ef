"""Clusters on a device: reductions through other blocks' shared memory, launches, graphs, files."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "schedule"))
sys.path.insert(0, str(Path(__file__).parents[1] / "sim"))

from async_suite import Case, arrays_of, packed
from references import on_device
from test_cluster_shares import columns_in_clusters, full_sum, several_sums, total, total_and_more
from test_sim_cluster import SUITE

import fusewright as fw
from fusewright.runtime import device
from fusewright.sim.machine import simulate
from fusewright.target import target_of

torch = pytest.importorskip("torch")


@pytest.fixture(autouse=True)
def needs_clusters() -> None:
    if not target_of(device.architecture()).has_cluster:
        pytest.skip("this device has no clusters")


def normal(shape, dtype, seed: int):
    generator = torch.Generator(device="cuda").manual_seed(seed)
    return torch.randn(shape, generator=generator, device="cuda").to(dtype)


def poisoned(like):
    return torch.full_like(like, float("nan"))


def assert_close(got, want, dtype) -> None:
    """`want` in float64; its largest value sets what a rounding of the result may be off by."""
    bound = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}[dtype]
    error = (got.double() - want).abs()
    assert bool(torch.isfinite(got).all())
    assert float((error - bound * want.abs()).max()) <= bound * 2e-2 * float(want.abs().max())


def compiled(fn, *tensors) -> fw.Program:
    names = {torch.float32: "float32", torch.float16: "float16", torch.bfloat16: "bfloat16"}
    specs = [fw.TensorSpec(tuple(t.shape), names[t.dtype]) for t in tensors]
    return fw.compile(fw.trace(fn, *specs), target=device.architecture())


# --- rows ---------------------------------------------------------------------------------------

ROWS = [(160, 57344), (160, 57345), (133, 99999), (1000, 65536), (257, 131072), (2048, 131072)]
DTYPES = [torch.bfloat16, torch.float16, torch.float32]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", ROWS, ids=str)
def test_softmax_agrees_with_torch_and_repeats_bitwise(shape, dtype) -> None:
    program = compiled(lambda x: fw.nn.softmax(x, axis=-1), normal(shape, dtype, 0))
    assert any(k.launch.cluster > 1 for k in program.kernels)
    for seed in (1, 2):
        x = 3 * normal(shape, dtype, seed)
        (y,) = program(x, out=[poisoned(x)])
        assert_close(y, torch.softmax(x.double(), -1), dtype)
        (again,) = program(x, out=[poisoned(x)])
        assert torch.equal(again, y)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", ROWS[:5], ids=str)
def test_layer_norm_agrees_with_torch(shape, dtype) -> None:
    n = shape[1:]
    w, b = normal(n, dtype, 3), normal(n, dtype, 4)
    program = compiled(lambda x, w, b: fw.nn.layer_norm(x, n, w, b), normal(shape, dtype, 0), w, b)
    assert any(k.launch.cluster > 1 for k in program.kernels)
    for seed in (1, 2):
        x = 5 + 2 * normal(shape, dtype, seed)
        (y,) = program(x, w, b, out=[poisoned(x)])
        want = torch.nn.functional.layer_norm(x.double(), n, w.double(), b.double())
        assert_close(y, want, dtype)


def group_norm_silu(x, w, b):
    return fw.nn.silu(fw.nn.group_norm(x, 32, w, b))


@pytest.mark.parametrize("shape", [(16, 512, 64, 64), (9, 512, 61, 67)], ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_group_norm_and_silu_agree_with_torch(shape, dtype) -> None:
    w, b = normal((512,), dtype, 3), normal((512,), dtype, 4)
    program = compiled(group_norm_silu, normal(shape, dtype, 0), w, b)
    assert any(k.launch.cluster > 1 for k in program.kernels)
    for seed in (1, 2):
        x = 1 + normal(shape, dtype, seed)
        (y,) = program(x, w, b, out=[poisoned(x)])
        want = torch.nn.functional.group_norm(x.double(), 32, w.double(), b.double())
        assert_close(y, torch.nn.functional.silu(want), dtype)


def test_softmax_of_extreme_rows_agrees_with_torch() -> None:
    x = normal((160, 57344), torch.float32, 0)
    x[0] = -float("inf")
    x[0, 57343] = 0.0  # in the last slice alone
    x[1] = 1e4
    x[2, 0] = 88.0
    program = compiled(lambda x: fw.nn.softmax(x, axis=-1), x)
    (y,) = program(x, out=[poisoned(x)])
    assert_close(y, torch.softmax(x.double(), -1), torch.float32)


# --- schedules by hand --------------------------------------------------------------------------


@pytest.mark.parametrize("size", range(2, 9))
@pytest.mark.parametrize("threads", [32, 96, 512])
def test_row_sums_in_clusters_of_every_size_agree_with_numpy(size: int, threads: int) -> None:
    rows, n = 517, 10007
    s = fw.Schedule(fw.trace(lambda x: fw.sum(x, axis=1), fw.TensorSpec((rows, n), "float32")))
    s.inputs[0].cache_after()
    t = s.outputs[0].split(1, size, inner=False).split(2, threads)
    t.parallelize(0, fw.BIDx).parallelize(1, fw.ClusterX).parallelize(3, fw.TIDx)
    s.transform_like(t).inline_most()
    kernel = s.lower(device.architecture())
    assert kernel.launch.cluster == size
    x = np.random.default_rng(size).standard_normal((rows, n)).astype(np.float32)
    (y,) = kernel(x, device="cuda")
    np.testing.assert_allclose(y, x.astype(np.float64).sum(1), atol=2e-3)


@pytest.mark.parametrize(
    "case", [c for c in SUITE if not c.wrong and c.name != "not_read"], ids=lambda c: c.name
)
def test_the_device_does_what_the_simulator_does(case: Case) -> None:
    kernel = packed(case.kernel())
    arrays = arrays_of(kernel)
    given = [a.copy() for a in arrays.values()]
    simulate(kernel, arrays)
    for _ in range(20):
        results = on_device(kernel, given)
        wanted = [arrays[b] for b in kernel.params][-len(results) :]
        for got, want in zip(results, wanted, strict=True):
            written = ~np.isnan(got)
            assert written.any()
            np.testing.assert_array_equal(got[written], want[written])


# --- launches -----------------------------------------------------------------------------------


def test_a_captured_graph_computes_from_new_inputs() -> None:
    f = fw.fuse(lambda x: fw.nn.softmax(x, axis=-1), device="cuda")
    x = normal((160, 57344), torch.bfloat16, 0)
    f(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = f(x)
    for seed in (1, 2):
        x.copy_(normal((160, 57344), torch.bfloat16, seed))
        y.fill_(float("nan"))
        graph.replay()
        assert_close(y, torch.softmax(x.double(), -1), torch.bfloat16)


@pytest.mark.parametrize("execution", ["graph", "stream"])
def test_clusters_among_other_kernels_agree_with_torch(execution: str) -> None:
    def fn(x):
        for _ in range(3):
            x = fw.nn.softmax(x, axis=-1) * 1000.0
            x = x - fw.sum(x, axis=0, keepdims=True) * (1.0 / 160)
        return x

    x = normal((160, 57344), torch.float32, 0)
    with fw.config(execution=execution):
        program = compiled(fn, x)
        assert len(program.launches) > 1
        (y,) = program(x, out=[poisoned(x)])
    want = x.double()
    for _ in range(3):
        want = torch.softmax(want, -1) * 1000.0
        want = want - want.sum(0, keepdim=True) / 160
    assert float((y.double() - want).abs().max()) < 1e-4 * float(want.abs().max())


def test_a_loaded_program_keeps_its_clusters_and_results(tmp_path: Path) -> None:
    x = normal((160, 57344), torch.bfloat16, 0)
    program = compiled(lambda x: fw.nn.softmax(x, axis=-1), x)
    loaded = fw.load(program.save(tmp_path / "softmax.fw"))
    assert [k.launch.cluster for k in loaded.kernels] == [k.launch.cluster for k in program.kernels]
    (y,) = loaded(x, out=[poisoned(x)])
    assert torch.equal(y, program(x)[0])


SHARED_OUT = {
    **{f"{n} blocks": lambda n=n: columns_in_clusters(total, n) for n in (2, 3, 5, 8)},
    "and more": lambda: columns_in_clusters(total_and_more, 4),
    "edges": lambda: columns_in_clusters(total, 4, shape=(13, 260)),
    "several sums": several_sums,
    "full sum": lambda: full_sum(5),
}


@pytest.mark.parametrize("name", SHARED_OUT)
def test_reductions_that_blocks_share_out(name: str) -> None:
    """The simulator's bits, where sums alone are computed, in each of a hundred runs."""
    kernel = SHARED_OUT[name]().lower(device.architecture())
    (x,) = kernel.inputs
    shape = [int(str(e)) for e in x.shape]
    array = np.random.default_rng(len(name)).standard_normal(shape).astype(np.float32)
    want = kernel.simulate(array, check_races=False).outputs[0]
    found = {kernel(array, device="cuda")[0].tobytes() for _ in range(100)}
    assert len(found) == 1
    got = np.frombuffer(found.pop(), np.float32).reshape(want.shape)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
    if name != "and more":
        assert got.tobytes() == want.tobytes()
