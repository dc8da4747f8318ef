"""Memory accesses, exchanges, barriers and launches on a device."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from cuda_kernels import (
    NTHREADS,
    copy_kernel,
    dims,
    elementwise,
    glob,
    kernel,
    local,
    reversed_kernel,
    warp_sum_kernel,
)
from references import inputs, narrowed, on_device

from fusewright.core.conditions import less
from fusewright.core.expr import Int, Var, ceildiv
from fusewright.dtypes import ALL, DType, bfloat16, float16, float32, int32, uint8
from fusewright.errors import InternalError, UserError
from fusewright.kir.ir import (
    Alloc,
    Arg,
    Argument,
    Buffer,
    Cache,
    Compute,
    Dim,
    Imm,
    Index,
    Kernel,
    Load,
    Memory,
    Reg,
    Store,
)

STORES = [p for p in Cache if p not in (Cache.LAST_USE, Cache.NON_COHERENT)]


@pytest.mark.parametrize("width", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("policy", Cache, ids=str)
def test_copies_of_every_width_and_policy_are_exact(width: int, policy: Cache) -> None:
    x = inputs(uint8, 4096, 1)
    store = policy if policy in STORES else Cache.DEFAULT
    k = copy_kernel(uint8, uint8, width, 4096, load=policy, store=store)
    (y,) = on_device(k, [x, np.zeros_like(x)])
    np.testing.assert_array_equal(y, x)


@pytest.mark.parametrize("target", [t for t in ALL if t.is_float and t.nbytes < 4], ids=str)
@pytest.mark.parametrize("width", [1, 2, 4])
def test_stores_narrow_in_pairs(target: DType, width: int) -> None:
    x = inputs(float32, 2048, 2)
    (y,) = on_device(copy_kernel(float32, target, width, 2048), [x, np.zeros(2048, target.numpy)])
    expected = narrowed(x, target)
    np.testing.assert_array_equal(y.astype(np.float64), expected.astype(np.float64))


def test_a_barrier_orders_a_reversal_in_shared_memory() -> None:
    x = inputs(float32, NTHREADS, 3)
    (y,) = on_device(reversed_kernel(), [x, np.zeros_like(x)])
    np.testing.assert_array_equal(y, x[::-1])


@pytest.mark.parametrize(
    "dtype", [t for t in ALL if t.is_integer or t in (float16, bfloat16, float32)], ids=str
)
def test_exchanges_between_lanes_sum_a_warp(dtype: DType) -> None:
    x = np.random.default_rng(4).integers(0, 2, NTHREADS).astype(dtype.numpy)
    (y,) = on_device(warp_sum_kernel(dtype), [x, np.zeros_like(x)])
    expected = np.repeat(x.astype(np.int64).reshape(-1, 32).sum(1), 32)
    np.testing.assert_array_equal(y.astype(np.int64), expected)


def scaled_kernel() -> tuple[Kernel, Var]:
    """`y[i] = (x[i] where i < n - 3, else 9) * scale + i` for a symbolic n."""
    n = Var("n", 2)
    bx, tx = Var("bx", 0), Var("tx", 0, NTHREADS - 1)
    i = bx * NTHREADS + tx
    x, y = (Buffer(name, float32, n, Memory.GLOBAL) for name in "xy")
    r, scale = local("r", "float32"), Argument("scale", float16)
    body = (
        Alloc(r),
        Load(Reg(r), x, i, predicate=less(i, n - 3), fill=Imm(9.0, float32)),
        Compute("mul", Reg(r), (Reg(r), Arg(scale))),
        Compute("add", Reg(r), (Reg(r), Index(i, float32))),
        Store(y, i, Reg(r), predicate=less(i, n)),
    )
    grid = (Dim(bx, ceildiv(n, NTHREADS)),)
    k = kernel("scaled", (x, y), body, symbols=(n,), arguments=(scale,), **{**dims(), "grid": grid})
    return dataclasses.replace(k, block=(Dim(tx, Int(NTHREADS)),)), n


@pytest.mark.parametrize("size", [4, 128, 1000, 4097])
def test_symbols_arguments_predicates_and_fills_have_their_values(size: int) -> None:
    k, n = scaled_kernel()
    x = np.arange(size, dtype=np.float32)
    (y,) = on_device(k, [x, np.zeros_like(x)], arguments=[0.3], sizes={n: size})
    filled = np.where(np.arange(size) < size - 3, x, np.float32(9))
    expected = filled * np.float32(np.float16(0.3)) + np.arange(size, dtype=np.float32)
    np.testing.assert_array_equal(y, expected)


def test_large_shared_memory_is_allowed() -> None:
    nbytes = 100 * 1024
    x, y, r = glob("x", "int32", NTHREADS), glob("y", "int32", NTHREADS), local("r", "int32")
    tile = Buffer("tile", int32, Int(NTHREADS), Memory.SHARED)
    block = dims()
    tx = block["block"][0].var
    body = (
        Alloc(tile, offset=nbytes),
        Alloc(r),
        Load(Reg(r), x, tx),
        Store(tile, tx, Reg(r)),
        Load(Reg(r), tile, tx),
        Store(y, tx, Reg(r)),
    )
    values = inputs(int32, NTHREADS, 5)
    (got,) = on_device(kernel("large", (x, y), body, **block), [values, np.zeros_like(values)])
    np.testing.assert_array_equal(got, values)


def test_elements_that_are_not_written_show_as_poison() -> None:
    y, r = glob("y", "int32", 4), local("r", "int32")
    body = (Alloc(r), Compute("copy", Reg(r), (Imm(3, int32),)), Store(y, Int(2), Reg(r)))
    (got,) = on_device(kernel("partial", (y,), body), [np.zeros(4, np.int32)])
    np.testing.assert_array_equal(got, [-1, -1, 3, -1])


def test_arrays_of_another_size_are_refused() -> None:
    x = np.ones(256, np.float32)
    with pytest.raises(UserError, match="needs 200 elements of float32, got 256 of float32"):
        on_device(elementwise("neg", float32, 200), [x, x])


def test_a_write_outside_of_a_buffer_is_found() -> None:
    y, r = glob("y", "int32", 4), local("r", "int32")
    body = (Alloc(r), Compute("copy", Reg(r), (Imm(3, int32),)), Store(y, Int(5), Reg(r)))
    with pytest.raises(InternalError, match="wrote outside of buffer y"):
        on_device(kernel("outside", (y,), body), [np.zeros(4, np.int32)])
