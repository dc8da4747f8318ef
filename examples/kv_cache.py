"""A step of decoding writes one row into a cache of keys, in place with `donate` on a GPU, and
reads the rows up to it. Where it lies is a number of each call: one program serves all steps."""

import numpy as np

import fusewright as fw


@fw.fuse(device="sim", donate=("keys",), dynamic={"position": ()})
def attend(keys, key, query, position):
    keys = fw.insert(keys, key[:, None, :], (0, position, 0))
    seen = keys[:, : position + 1]
    weights = fw.nn.softmax(query[:, None, :] @ seen.mT, axis=-1)
    return keys, (weights @ seen)[:, 0]


HEADS, LENGTH, WIDTH = 4, 32, 16
keys = np.zeros((HEADS, LENGTH, WIDTH), np.float32)
rng = np.random.default_rng(0)
for position in range(3):
    key, query = rng.standard_normal((2, HEADS, WIDTH)).astype(np.float32)
    keys, out = attend(keys, key, query, position)
    assert np.array_equal(keys[:, position], key)
assert np.array_equal(out.shape, (HEADS, WIDTH)) and not keys[:, 3:].any()
assert repr(attend) == "<fused attend on sim: 1 program>"
