"""Blocks that take turns or gather, on a device: sums, bits, delays, streams, replays, failures."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "schedule"))
sys.path.insert(0, str(Path(__file__).parents[1] / "sim"))

from late_blocks import delayed
from semaphore_suite import SUITE
from test_grid_turns import COLUMNS, ROWS, WAYS, column_schedule, full_sum, total
from test_split_products import MODES, gated, product, split_schedule, with_bias
from turn_cases import CASES, TurnCase

import fusewright as fw
from fusewright.cuda.compile import compile_cubin
from fusewright.cuda.emit import emit
from fusewright.errors import InternalError, ScheduleError
from fusewright.runtime import device, state
from fusewright.runtime.device import check
from fusewright.runtime.launch import LoadedKernel, run
from fusewright.target import target_of

RUNS = 1000


def on_device(torch, array: np.ndarray):
    if array.dtype == fw.bfloat16.numpy:
        return torch.from_numpy(array.view(np.int16)).cuda().view(torch.bfloat16)
    return torch.from_numpy(array).cuda()


def values(splits: int) -> np.ndarray:
    return np.random.default_rng(splits).standard_normal((ROWS, COLUMNS)).astype(np.float32)


def kernel_of(mode: str, splits: int) -> fw.Kernel:
    try:
        return column_schedule(total, splits, mode=mode).lower(device.architecture())
    except ScheduleError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("splits", [1, 2, 3, 5, 33])
@pytest.mark.parametrize(("mode", "fn"), WAYS)
def test_device_and_simulator_agree(mode: str, fn, splits: int) -> None:
    kernel = column_schedule(fn, splits, mode=mode).lower(device.architecture())
    x = values(splits)
    (got,) = kernel(x, device="cuda")
    want = kernel.simulate(x, check_races=False).outputs[0]
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
    if fn is total:
        assert got.tobytes() == want.tobytes()


@pytest.mark.parametrize("mode", ["vector", "slices"])
@pytest.mark.parametrize("splits", [2, 33])
def test_full_sums(mode: str, splits: int) -> None:
    kernel = full_sum(splits, mode).lower(device.architecture())
    x = np.random.default_rng(0).standard_normal(splits * 640).astype(np.float32)
    (got,) = kernel(x, device="cuda")
    np.testing.assert_allclose(got, x.astype(np.float64).sum(), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("mode", ["vector", "tma", "slices"])
def test_no_delay_of_a_block_changes_a_bit(mode: str) -> None:
    kernel, x = kernel_of(mode, 5), values(5)
    target = target_of(device.architecture())
    text = emit(kernel.ir, target)
    found: set[bytes] = set()
    for seed in range(8):
        late = delayed(text, seed)
        code = compile_cubin(late, target, name=kernel.name, contract=True).cubin
        loaded = LoadedKernel(code, kernel.ir)
        for _ in range(16):
            (y,) = run(loaded, [x.reshape(-1), np.zeros(COLUMNS, np.float32)])
            found.add(y.tobytes())
    assert len(found) == 1


@pytest.mark.parametrize("mode", ["vector", "tma", "slices"])
def test_a_thousand_runs_give_the_same_bits(mode: str) -> None:
    torch = pytest.importorskip("torch")
    p = fw.compile(column_schedule(total, 5, mode=mode), device.architecture())
    x = torch.from_numpy(values(5)).cuda()
    (first,) = p(x)
    assert all(torch.equal(p(x)[0], first) for _ in range(RUNS))


def judge_of(torch, case: TurnCase, first):
    """A function that says on the device whether a result is wrong: whether it differs from the
    first in a bit or, where parts are added as blocks come, is off by more than its roundings."""
    if case.repeats_itself:
        return lambda r: (r != first).any()
    values, limit = case.wanted()
    wanted = torch.from_numpy(values).cuda()
    return lambda r: (~((r.double().reshape(wanted.shape) - wanted).abs() <= limit)).any()


@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_kind_of_sum_is_right_and_repeats_itself(case: TurnCase) -> None:
    """A thousand runs, half of them on either of two streams at once. Sums in the order of arrival
    are right in each."""
    torch = pytest.importorskip("torch")
    if not device.architecture().startswith("sm_90"):
        pytest.skip("there are neither products by warpgroups nor clusters")
    p = case.compile(device.architecture())
    tensors = [on_device(torch, a) for a in case.arrays()]
    (first,) = p(*tensors)
    case.assert_right(first.float().cpu().numpy())
    is_wrong = judge_of(torch, case, first)
    torch.cuda.synchronize()
    streams = [torch.cuda.Stream() for _ in range(2)]
    wrong = torch.zeros((), dtype=torch.int64, device="cuda")
    for _ in range(10):
        results = []
        for _ in range(RUNS // 20):
            for s in streams:
                with torch.cuda.stream(s):
                    results += p(*tensors)
        torch.cuda.synchronize()
        wrong += torch.stack([is_wrong(r) for r in results]).sum()
        torch.cuda.synchronize()  # before the streams write to the memory of these results again
    assert int(wrong) == 0


@pytest.mark.parametrize("mode", ["vector", "slices"])
def test_two_streams_do_not_meet(mode: str) -> None:
    torch = pytest.importorskip("torch")
    p = fw.compile(column_schedule(total, 5, mode=mode), device.architecture())
    x = torch.from_numpy(values(5)).cuda()
    (first,) = p(x)
    torch.cuda.synchronize()
    streams = [torch.cuda.Stream() for _ in range(2)]
    results = []
    for _ in range(RUNS):
        for s in streams:
            with torch.cuda.stream(s):
                results += p(x)
    torch.cuda.synchronize()
    assert all(torch.equal(r, first) for r in results)


@pytest.mark.parametrize("mode", ["vector", "tma", "slices"])
def test_replays_of_two_captures_do_not_meet(mode: str) -> None:
    torch = pytest.importorskip("torch")
    p = fw.compile(column_schedule(total, 5, mode=mode), device.architecture())
    x = torch.from_numpy(values(5)).cuda()
    (first,) = p(x)
    torch.cuda.synchronize()
    graphs, results = [], []
    for _ in range(2):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            results += p(x)
        graphs.append(graph)
    streams = [torch.cuda.Stream() for _ in graphs]
    for _ in range(RUNS):
        for graph, s in zip(graphs, streams, strict=True):
            with torch.cuda.stream(s):
                graph.replay()
    torch.cuda.synchronize()
    assert all(torch.equal(r, first) for r in results)


@pytest.mark.parametrize("case", [c for c in CASES if c.is_typical], ids=str)
def test_after_a_launch_that_failed_there_is_new_state(
    case: TurnCase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What an aborted launch leaves in the semaphores, the next call does not find."""
    torch = pytest.importorskip("torch")
    p = case.compile(device.architecture())
    tensors = [on_device(torch, a) for a in case.arrays()]
    (first,) = p(*tensors)
    first = first.clone()
    case.assert_right(first.float().cpu().numpy())
    is_wrong = judge_of(torch, case, first)
    torch.cuda.synchronize()
    given: list[int] = []

    def spoiled(states: state.States, nbytes: int, stream: int) -> int:
        given.append(address(states, nbytes, stream))
        check(device.driver().cuMemsetD8(given[-1], 1, nbytes), "cuMemsetD8")
        raise InternalError("this launch is aborted")

    address = state.States.address
    if p.host.stats["state_bytes"]:
        with monkeypatch.context() as m:
            m.setattr(state.States, "address", spoiled)
            with pytest.raises(InternalError, match="is aborted"):
                p(*tensors)
        assert given
    for _ in range(3):
        assert not bool(is_wrong(p(*tensors)[0]))


@pytest.mark.parametrize(
    "case", [c for c in SUITE if not c.wrong], ids=lambda c: c.name.replace(" ", "_")
)
def test_hand_written_turns(case) -> None:
    kernel = case.kernel()
    target = target_of(device.architecture())
    x = np.arange(768, dtype=np.float32)
    code = compile_cubin(emit(kernel, target), target, name=kernel.name).cubin
    (y,) = run(LoadedKernel(code, kernel), [x, np.zeros(256, np.float32)])
    np.testing.assert_array_equal(y, x.reshape(4, 3, 64).sum(axis=1).ravel())


@pytest.mark.parametrize("splits", [2, 3, 5, 33])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("fn", [product, with_bias, gated])
def test_split_products(fn, mode: str, splits: int) -> None:
    """A ragged depth, and the same bits in every run."""
    if not device.architecture().startswith("sm_90"):
        pytest.skip("there are no products by warpgroups")
    k = 64 * splits * 2 - 104
    kernel = split_schedule(fn, splits, mode, shape=(100, 72, k)).lower(device.architecture())
    rng = np.random.default_rng(splits)
    shapes = {product: ((100, k), (k, 72)), with_bias: ((100, k), (k, 72), (72,))}
    shapes[gated] = ((100, k), (k, 72), (k, 72))
    arrays = [rng.standard_normal(s).astype(fw.bfloat16.numpy) for s in shapes[fn]]
    (got,) = kernel(*arrays, device="cuda")
    want = kernel.simulate(*arrays, check_races=False).outputs[0]
    scale = np.abs(want.astype(np.float64)).max()
    error = np.abs(got.astype(np.float64) - want.astype(np.float64)).max()
    assert error <= 2**-7 * scale
    for _ in range(RUNS // 10):
        assert kernel(*arrays, device="cuda")[0].tobytes() == got.tobytes()


@pytest.mark.parametrize("shape", [(256, 256, 131072), (64, 4096, 28672), (128, 128, 65536)])
def test_products_of_a_long_depth(shape: tuple[int, int, int]) -> None:
    """Sparse operands of small integers: sums are exact however blocks share the depth."""
    if not device.architecture().startswith("sm_90"):
        pytest.skip("there are no products by warpgroups")
    m, n, k = shape
    rng = np.random.default_rng(0)
    x = (rng.integers(-1, 2, (m, k)) * (rng.random((m, k)) < 0.02)).astype(fw.bfloat16.numpy)
    w = (rng.integers(-1, 2, (k, n)) * (rng.random((k, n)) < 0.02)).astype(fw.bfloat16.numpy)
    program = fw.compile(fw.trace(fw.matmul, *(fw.TensorSpec(a.shape, "bfloat16") for a in (x, w))))
    (got,) = program.run_cuda(x, w)
    want = (x.astype(np.float32) @ w.astype(np.float32)).astype(fw.bfloat16.numpy)
    assert got.tobytes() == want.tobytes()
    for _ in range(RUNS // 10):
        assert program.run_cuda(x, w)[0].tobytes() == got.tobytes()
