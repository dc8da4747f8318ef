"""Heat in a plate: four neighbours of every point, one read and one write of the plate a step."""

import numpy as np

import fusewright as fw


@fw.fuse(device="sim")
def step(t):
    edge = fw.pad(t, 1, mode="edge")
    around = edge[:-2, 1:-1] + edge[2:, 1:-1] + edge[1:-1, :-2] + edge[1:-1, 2:]
    return t + 0.2 * (around - 4.0 * t)


t = np.zeros((40, 56), np.float32)
t[10:20, 10:20] = 100
for _ in range(3):
    after = step(t)
    assert np.isclose(after.sum(), t.sum(), rtol=1e-5), "no heat is lost"
    assert after.max() <= t.max() + 1e-3
    t = after
