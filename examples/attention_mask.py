"""Attention scores with a causal mask and a bias by distance: one kernel from scores to weights."""

import numpy as np

import fusewright as fw

HEADS, LENGTH = 4, 48


@fw.fuse(device="sim")
def weights(scores, slopes):
    row, column = fw.arange(LENGTH)[:, None], fw.arange(LENGTH)[None, :]
    distance = fw.astype(row - column, fw.float32)
    biased = scores - slopes[:, None, None] * distance
    return fw.nn.softmax(fw.where(column <= row, biased, -fw.inf), axis=-1)


scores = np.random.default_rng(0).standard_normal((HEADS, LENGTH, LENGTH)).astype(np.float32)
slopes = np.float32(2.0) ** -np.arange(1, HEADS + 1, dtype=np.float32)
w = weights(scores, slopes)
assert np.allclose(w.sum(axis=-1), 1, atol=1e-5)
assert not np.triu(w[0], 1).any()
print(weights.explain(scores, slopes))
