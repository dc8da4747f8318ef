"""Rows quantised to 8-bit floats, each with a scale of its own, and back."""

import numpy as np

import fusewright as fw

LARGEST = 448.0  # of float8_e4m3


@fw.fuse(device="sim")
def quantised(x):
    scale = fw.maximum(fw.max(fw.abs(x), axis=-1, keepdims=True) / LARGEST, 1e-12)
    return fw.astype(x / scale, fw.float8_e4m3), scale


@fw.fuse(device="sim")
def restored(q, scale):
    return fw.astype(q, fw.float32) * scale


x = np.random.default_rng(0).standard_normal((16, 256)).astype(np.float32)
q, scale = quantised(x)
assert q.dtype.itemsize == 1 and scale.shape == (16, 1)
error = np.abs(restored(q, scale) - x).max() / np.abs(x).max()
assert error < 2**-4
print(f"{x.nbytes} bytes became {q.nbytes + scale.nbytes}, the largest error is {error:.1%}")
