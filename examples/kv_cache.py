"""A step of decoding writes one row into a cache of keys: with `donate`, on a GPU, in place."""

import numpy as np

import fusewright as fw


@fw.fuse(device="sim", donate=("cache",))
def append(cache, key, position):
    return fw.insert(cache, key[:, None, :], (0, position, 0))


HEADS, LENGTH, WIDTH = 4, 32, 16
cache = np.zeros((HEADS, LENGTH, WIDTH), np.float32)
rng = np.random.default_rng(0)
for position in range(3):
    key = rng.standard_normal((HEADS, WIDTH)).astype(np.float32)
    cache = append(cache, key, position)
    assert np.array_equal(cache[:, position], key)
assert not cache[:, 3:].any()
