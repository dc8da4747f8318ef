"""Layer norm with its gradients, as a training step needs them."""

import numpy as np

import fusewright as fw


@fw.fuse(device="sim")
def forward(x, weight, bias):
    return fw.nn.layer_norm_forward(x, (x.shape[-1],), weight, bias)


@fw.fuse(device="sim")
def backward(dy, mean, rstd, x, weight):
    dx, dweight, dbias = fw.nn.layer_norm_backward(dy, mean, rstd, x, (x.shape[-1],), weight)
    return dx, dweight, dbias


rng = np.random.default_rng(0)
x, dy = (rng.standard_normal((32, 64)).astype(np.float32) for _ in range(2))
weight, bias = np.ones(64, np.float32), np.zeros(64, np.float32)
y, mean, rstd = forward(x, weight, bias)
dx, dweight, dbias = backward(dy, mean, rstd, x, weight)
assert np.allclose(y.mean(axis=-1), 0, atol=1e-5)
assert np.allclose(dbias, dy.sum(axis=0), atol=1e-4)

# The gradient predicts how the result changes along any direction.
step = 1e-2 * rng.standard_normal(x.shape).astype(np.float32)
up, down = (forward(x + sign * step, weight, bias)[0] for sign in (1, -1))
assert np.isclose(((up - down) * dy).sum() / 2, (dx * step).sum(), rtol=2e-2)
