"""Products whose values are known, on arrays: what simulator and device must both compute."""

from __future__ import annotations

import numpy as np
from product_kernels import Product, Ring, packed

from fusewright.dtypes import dtype_of
from fusewright.kir import ir
from fusewright.kir.text import parse_kernel

PRODUCTS = (
    Product(),
    Product(n=8, k=16, swizzle=32),
    Product(n=256, k=128),
    Product(n=72, k=32, swizzle=64),
    Product(n=64, k=128, dtype="float16"),
    Product(b_major="mn_major"),
    Product(a_major="mn_major"),
    Product(n=192, k=48, a_major="mn_major", b_major="mn_major"),
    Product(n=96, k=32, swizzle=64, b_major="mn_major"),
    Product(n=48, k=64, swizzle=32, a_major="mn_major", b_major="mn_major"),
)
RINGS = (
    Ring(256, 256, 512, 1),
    Ring(256, 512, 512, 3),
    Ring(200, 328, 264, 2),
    Ring(128, 256, 64, 1),
    Ring(384, 256, 1024, 2, stages=3),
    Ring(256, 128, 320, 1, tile_n=128, dtype="float16"),
)


def kernel_of(case: Product | Ring) -> ir.Kernel:
    return packed(parse_kernel(case.text()))


def inputs_of(case: Product | Ring, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """x, w and their product in float64, as the kernel stores it."""
    dtype = dtype_of(case.dtype).numpy
    rng = np.random.default_rng(seed)
    m = case.m if isinstance(case, Ring) else 64
    a, b = (rng.standard_normal((n, case.k)).astype(dtype) for n in (m, case.n))
    expected = a.astype(np.float64) @ b.astype(np.float64).T
    if isinstance(case, Product):
        a = a if case.a_major == "k_major" else a.T
        b = b if case.b_major == "k_major" else b.T
    return np.ascontiguousarray(a).reshape(-1), np.ascontiguousarray(b).reshape(-1), expected


def assert_close(case: Product | Ring, y: np.ndarray, expected: np.ndarray) -> None:
    """Within the rounding of float32 sums, and of the stored dtype."""
    unit = 2.0**-8 if isinstance(case, Ring) else 2.0**-22
    limit = unit * np.abs(expected) + 2.0**-20 * case.k**0.5 * 8
    error = np.abs(y.astype(np.float64).reshape(expected.shape) - expected)
    assert (error <= limit).all(), (
        f"{error.max()} at {np.unravel_index(error.argmax(), error.shape)}"
    )
