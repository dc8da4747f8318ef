"""Packing of arguments, launch shapes, and what happens without a GPU."""

from __future__ import annotations

import ctypes
import struct

import ml_dtypes
import numpy as np
import pytest

from fusewright.core.expr import Int, Var
from fusewright.cuda.emit import parameters
from fusewright.dtypes import bfloat16, float32, float64, int8, uint64
from fusewright.errors import InternalError, UserError
from fusewright.kir.ir import Alloc, Argument, Buffer, Dim, Kernel, Memory
from fusewright.runtime import device
from fusewright.runtime.launch import (
    ArgumentBlock,
    LoadedKernel,
    PackedLaunch,
    argument_bits,
    launch_of,
)

N = Var("n", 2)
M = Var("m", 2, 1000)


def kernel(grid: int = 128, shared: int = 0) -> Kernel:
    x = Buffer("x", float32, N, Memory.GLOBAL)
    tile = Buffer("tile", float32, Int(shared or 1), Memory.SHARED)
    arguments = (Argument("a", bfloat16), Argument("b", int8), Argument("c", float64))
    blocks = (N + (grid - 1)) // grid
    return Kernel(
        name="k",
        params=(x,),
        arguments=arguments,
        symbols=(N, M),
        grid=(Dim(Var("bx", 0), blocks), Dim(Var("by", 0), M)),
        block=(Dim(Var("tx", 0, 127), Int(128)),),
        body=(Alloc(tile, offset=1024),) if shared else (),
    )


def test_arguments_are_packed_by_their_types() -> None:
    k = kernel()
    block = ArgumentBlock(parameters(k))
    scalars = [argument_bits(v, a) for v, a in zip((1.5, -3, 2.25), k.arguments, strict=True)]
    values = [0x7F00_1234_5678, *scalars, 2**33, 77]
    block.fill(values)
    assert [block.contents(i) for i in range(6)] == values
    table = (ctypes.c_void_p * 6).from_address(block.address)
    raw = [ctypes.string_at(table[i], 8) for i in range(6)]
    assert np.frombuffer(raw[1][:2], ml_dtypes.bfloat16)[0] == 1.5
    assert np.frombuffer(raw[2][:1], np.int8)[0] == -3
    assert np.frombuffer(raw[3], np.float64)[0] == 2.25
    assert np.frombuffer(raw[4], np.int64)[0] == 2**33
    assert np.frombuffer(raw[5][:4], np.int32)[0] == 77


def test_a_second_filling_replaces_the_first() -> None:
    block = ArgumentBlock(parameters(kernel()))
    block.fill([1, 2, 3, 4.0, 5, 6])
    block.fill([9, 8, 7, 6.0, 5, 4])
    assert [block.contents(i) for i in range(6)] == [9, 8, 7, 6.0, 5, 4]


def test_a_kernel_without_parameters_still_has_a_table() -> None:
    block = ArgumentBlock(())
    block.fill([])
    assert block.address


def test_scalars_are_rounded_to_their_type() -> None:
    assert argument_bits(0.1, Argument("a", bfloat16)) == 0x3DCD
    assert argument_bits(2**64 - 1, Argument("a", uint64)) == 2**64 - 1


def test_launch_shapes_follow_the_sizes() -> None:
    assert launch_of(kernel(), {N: 1000, M: 3}) == PackedLaunch((8, 3, 1), (128, 1, 1), 0)
    assert launch_of(kernel(shared=256), {N: 2, M: 3}).shared_nbytes == 2048


def test_rejects_grids_the_hardware_does_not_take() -> None:
    with pytest.raises(InternalError, match=r"kernel k: grid \(2147483648, 3, 1\) exceeds"):
        launch_of(kernel(grid=1), {N: 2**31, M: 3})
    with pytest.raises(InternalError, match="exceeds"):
        launch_of(kernel(), {N: 2, M: 70000})


def test_rejects_values_that_do_not_fit_their_slot() -> None:
    block = ArgumentBlock(parameters(kernel()))
    with pytest.raises(struct.error, match="byte format requires"):
        block.fill([0, 0, 300, 0.0, 0, 0])
    with pytest.raises(ValueError, match="shorter"):
        block.fill([0])


@pytest.mark.skipif(device.has_gpu(), reason="this machine has a GPU")
def test_without_a_gpu_the_message_says_what_works() -> None:
    with pytest.raises(UserError, match="no CUDA device was found; run with device='sim'"):
        LoadedKernel(b"", kernel())


def test_a_failed_probe_is_not_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", missing)
    assert device.has_gpu.__wrapped__() is False


@pytest.mark.parametrize(("init", "count", "found"), [(0, 2, True), (0, 0, False), (100, 0, False)])
def test_the_probe_asks_for_devices(
    monkeypatch: pytest.MonkeyPatch, init: int, count: int, found: bool
) -> None:
    class Library:
        def cuInit(self, flags: int) -> int:
            return init

        def cuDeviceGetCount(self, pointer) -> int:
            pointer._obj.value = count
            return 0

    monkeypatch.setattr(ctypes, "CDLL", lambda name: Library())
    assert device.has_gpu.__wrapped__() is found
