"""Matrix products of hand-written kernels on a device, against float64 references."""

from __future__ import annotations

import numpy as np
import pytest
from product_cases import PRODUCTS, RINGS, assert_close, inputs_of, kernel_of
from product_kernels import Product, Ring

from fusewright.cuda.compile import compile_cubin
from fusewright.cuda.emit import emit
from fusewright.runtime.launch import LoadedKernel, run
from fusewright.target import target_of

TARGET = target_of("sm_90a")


@pytest.mark.parametrize("case", [*PRODUCTS, *RINGS], ids=str)
def test_products_agree_with_float64(case: Product | Ring) -> None:
    """Twice, with other values; what a kernel forgets to write stays poison."""
    kernel = kernel_of(case)
    compiled = compile_cubin(emit(kernel, TARGET), TARGET, name=kernel.name)
    loaded = LoadedKernel(compiled.cubin, kernel)
    for seed in range(2):
        x, w, expected = inputs_of(case, seed)
        y = np.zeros(expected.size, kernel.params[2].dtype.numpy)
        (found,) = run(loaded, [x, w, y])
        assert_close(case, found, expected)


def test_a_ring_repeats_itself_bit_by_bit() -> None:
    case = RINGS[2]
    kernel = kernel_of(case)
    loaded = LoadedKernel(
        compile_cubin(emit(kernel, TARGET), TARGET, name=kernel.name).cubin, kernel
    )
    x, w, expected = inputs_of(case)
    y = np.zeros(expected.size, kernel.params[2].dtype.numpy)
    (first,) = run(loaded, [x, w, y])
    for _ in range(50):
        (again,) = run(loaded, [x, w, y])
        assert again.tobytes() == first.tobytes()
