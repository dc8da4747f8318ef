# ruff: noqa: F811  (a fixture and its uses)
"""Tensor maps on their way to kernels: encoded by the driver, kept, patched when addresses move."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_cuda import FakeDriver
from fake_fixtures import gpu, torch  # noqa: F401
from fake_torch import CUDA, FakeTorch, Tensor, TorchDevice, tensor

sys.path.insert(0, str(Path(__file__).parents[1] / "sim"))

from product_cases import assert_close, inputs_of, kernel_of
from product_kernels import Product, Ring

import fusewright as fw
from fusewright.core.expr import Int, Var
from fusewright.cuda.compile import Compiled
from fusewright.errors import InternalError
from fusewright.kir.ir import Kernel, TensorMap
from fusewright.kir.text import parse_kernel
from fusewright.runtime import tensor_maps
from fusewright.runtime.launch import ArgumentBlock, LoadedKernel, parameters
from fusewright.runtime.plan import CallPlan, PlanTemplate

CASE = Product()


def _plan(gpu: FakeDriver, kernel: Kernel, launches: int = 1) -> CallPlan:
    """A program of launches of the kernel on two arrays and a result each."""
    specs = [fw.TensorSpec((64, 64), "bfloat16")] * 2
    wide = fw.trace(lambda x, w: fw.astype(x, "float32") + fw.astype(w, "float32"), *specs)
    program = fw.compile(wide)
    (launch,) = program.host.launches
    gpu.register(kernel)
    own = replace(launch, kernel=kernel, values=())
    host = replace(program.host, launches=(own,) * launches)
    return CallPlan(PlanTemplate(host, [LoadedKernel(b"code", kernel)] * launches, ()), ())


class Arrays:
    """Device memory of one call."""

    def __init__(self, gpu: FakeDriver, seed: int) -> None:
        x, w, self.expected = inputs_of(CASE, seed)
        self.y = np.zeros(4096, np.float32)
        self._gpu, self._sources = gpu, (x, w, self.y)
        self.addresses = [gpu._cuMemAllocAsync(a.nbytes, 0) for a in self._sources]
        for address, a in zip(self.addresses, self._sources, strict=True):
            gpu._cuMemcpyHtoD(address, a.ctypes.data, a.nbytes)

    def check(self) -> None:
        self._gpu._cuMemcpyDtoH(self.y.ctypes.data, self.addresses[2], self.y.nbytes)
        assert_close(CASE, self.y, self.expected)


@pytest.mark.parametrize("graph", [False, True])
def test_maps_follow_the_addresses_of_each_call(gpu: FakeDriver, graph: bool) -> None:
    plan = _plan(gpu, kernel_of(CASE), launches=2 if graph else 1)
    calls = [Arrays(gpu, seed) for seed in range(3)]
    for a in (*calls, *calls):
        plan.enqueue(a.addresses, 0, 0, graph=graph)
        a.check()
    assert gpu.calls["cuTensorMapEncodeTiled"] == 6  # two maps of three calls, whatever repeats


def test_a_call_with_the_same_addresses_writes_nothing(
    gpu: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = _plan(gpu, kernel_of(CASE))
    a = Arrays(gpu, 0)
    plan.enqueue(a.addresses, 0, 0, graph=False)
    monkeypatch.setattr(plan, "_write_addresses", None)
    plan.enqueue(a.addresses, 0, 0, graph=False)
    a.check()


def test_maps_that_move_cost_about_as_much_as_addresses_do(gpu: FakeDriver) -> None:
    """Two maps: 6 times the two addresses and the result's, 28 times byte by byte."""
    plan = _plan(gpu, kernel_of(CASE))
    calls = [tuple(Arrays(gpu, seed).addresses) for seed in range(2)]

    def cost(write: Callable[[Sequence[int]], None]) -> float:
        found: list[float] = []
        for _ in range(7):
            start = time.process_time()
            for _ in range(500):
                write(calls[0])
                write(calls[1])
            found.append(time.process_time() - start)
        return min(found)

    assert cost(plan._write) < 15 * cost(plan._write_addresses)


def test_maps_lie_behind_the_scalars_of_an_argument_block() -> None:
    head = "kernel product {"
    kernel = parse_kernel(Product().text().replace(head, f"{head} argument alpha: float32"))
    block = ArgumentBlock(parameters(kernel))
    one, two = bytes(range(128)), bytes(range(128, 256))
    values: list[Any] = [16, 32, 48, 1.5, one, two]
    block.fill(values)
    assert [block.contents(k) for k in range(6)] == values


def test_sizes_and_strides_are_those_of_the_call() -> None:
    n = Var("n", 1, 512, 8)
    text = Ring(128, 128, 64, 1, 3, 64).text()
    (x, *_) = parse_kernel(text).maps
    shaped = TensorMap(x.name, x.buffer, (n, n // 8), (Int(1), n), x.box, x.swizzle)
    assert tensor_maps.shape_of(shaped, {n: 24}) == tensor_maps.MapShape(
        "xm", "BFLOAT16", (24, 3), (48,), (64, 128), 128
    )


@pytest.mark.parametrize(
    ("address", "strides"), [(0x1008, (128,)), (0x1000, (120,))], ids=["address", "stride"]
)
def test_what_no_map_takes_is_our_fault(
    gpu: FakeDriver, address: int, strides: tuple[int, ...]
) -> None:
    shape = tensor_maps.MapShape("xm", "BFLOAT16", (64, 64), strides, (64, 64), 128)
    with pytest.raises(InternalError, match=r"tensor map xm: the address 0x100[08]"):
        tensor_maps.encoded(address, shape)


def test_only_so_many_maps_are_kept(gpu: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensor_maps, "MAX_KNOWN", 2)
    shape = tensor_maps.MapShape("xm", "BFLOAT16", (64, 64), (128,), (64, 64), 128)
    for address in (16, 32, 16, 48, 16):
        tensor_maps.encoded(address, shape)
    assert gpu.calls["cuTensorMapEncodeTiled"] == 4


# --- whole programs -------------------------------------------------------------------------------


class Call:
    """Operands of a product of 128 x 64 by 64 x 64 on a device of torch."""

    def __init__(self, seed: int, device: TorchDevice = CUDA) -> None:
        rng = np.random.default_rng(seed)
        self.x, self.w = (
            rng.normal(size=n).astype(fw.float16.numpy) for n in ((128, 64), (64, 64))
        )
        self.arrays = [tensor(a, device=device) for a in (self.x, self.w)]

    def check(self, y: Tensor) -> None:
        expected = self.x.astype(np.float64) @ self.w.astype(np.float64)
        np.testing.assert_allclose(y.array.astype(np.float64), expected, rtol=2e-3, atol=2e-2)


def _program() -> fw.Program:
    specs = [fw.TensorSpec(n, "float16") for n in ((128, 64), (64, 64))]
    program = fw.compile(fw.trace(fw.matmul, *specs))
    assert [len(k.ir.maps) for k in program.kernels] == [3]
    return program


def test_maps_of_a_loaded_program_are_made_anew(
    gpu: FakeDriver, torch: FakeTorch, tmp_path: Path
) -> None:
    made = _program()
    made.kernels[0].adopt(Compiled(b"code", "", "", 0.0))
    program = fw.load(made.save(tmp_path / "product.fw"))
    for call in (Call(0), Call(1)):
        call.check(*program(*call.arrays))
    assert gpu.calls["cuTensorMapEncodeTiled"] >= 3


def test_maps_are_written_into_what_is_captured(gpu: FakeDriver, torch: FakeTorch) -> None:
    """Nothing but launches reaches the driver then, each with maps of its own addresses."""
    program, calls = _program(), [Call(seed) for seed in range(3)]
    calls[0].check(*program(*calls[0].arrays))
    torch.captured = True
    gpu.calls.clear()
    for call in calls[1:]:
        call.check(*program(*call.arrays))
    assert set(gpu.calls) == {"cuLaunchKernelEx", "cuTensorMapEncodeTiled"}


def test_maps_of_one_device_are_not_those_of_another(gpu: FakeDriver, torch: FakeTorch) -> None:
    program = fw.fuse(fw.matmul)
    for index in (0, 1, 0, 1):
        call = Call(index, TorchDevice("cuda", index))
        y = program(*call.arrays)
        assert repr(y.device) == f"cuda:{index}"
        call.check(y)


@pytest.mark.parametrize(
    ("strides", "promotion"), [((8192,), "L2_256B"), ((8208,), "L2_128B"), ((128, 8224), "L2_128B")]
)
def test_rows_inside_of_lines_are_fetched_by_lines(
    gpu: FakeDriver, monkeypatch: pytest.MonkeyPatch, strides: tuple[int, ...], promotion: str
) -> None:
    """Two lines at once are what the next box reads only where rows begin at lines."""
    asked: list[str] = []
    encode = gpu._cuTensorMapEncodeTiled

    def noted(*arguments: Any) -> Any:
        asked.append(arguments[-2])
        return encode(*arguments)

    monkeypatch.setattr(gpu, "_cuTensorMapEncodeTiled", noted)
    rank = len(strides) + 1
    shape = tensor_maps.MapShape(
        "x", "BFLOAT16", (64,) * rank, strides, (64, *[8] * (rank - 1)), 128
    )
    tensor_maps.encoded(4096, shape)
    assert asked == [f"CU_TENSOR_MAP_L2_PROMOTION_{promotion}"]
