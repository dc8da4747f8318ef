"""Norms of rows, scheduled by hand: who computes what is said, the barrier is placed and proved."""

import numpy as np

import fusewright as fw


def norm(x):
    return fw.name(fw.sqrt(fw.name(fw.sum(x * x, axis=-1), "total")), "norm")


fusion = fw.trace(norm, "f32[64,1024]")
s = fw.Schedule(fusion)
x_c = s["x"].cache_after()  # x is read once, into registers
total = s["total"]
total.split(1, 4).split(1, 128)  # 1024 -> 2 x 128 x 4
part = total.rfactor([1, 3])  # each thread sums its 2 x 4 first
part.parallelize(0, fw.BIDx).parallelize(2, fw.TIDx)
s.transform_like(part)
x_c.parallelize(-1, fw.Vectorize)
s.inline_most()

kernel = s.lower("sm_90a")
x = np.random.default_rng(0).standard_normal((64, 1024)).astype(np.float32)
result = kernel.simulate(x)
assert np.allclose(result.outputs[0], np.linalg.norm(x, axis=-1), rtol=1e-5)
assert result.races == [] and fw.verify(kernel).ok
print(s)
print([sync.why for sync in kernel.syncs])
