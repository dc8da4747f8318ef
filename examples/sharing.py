"""Arrays of other libraries come in and go out by DLPack, without copies where they can."""

import importlib.util

import numpy as np

import fusewright as fw


@fw.fuse(device="sim")
def scaled(x, y):
    return x * 2.0 + y


x = np.arange(6, dtype=np.float32).reshape(2, 3)
for name in ("torch", "jax", "cupy"):
    if importlib.util.find_spec(name) is None:
        print(f"{name} is not installed")
        continue
    if name == "torch":
        import torch

        tensor = torch.from_numpy(x)
        made = scaled(tensor, tensor)
        assert isinstance(made, torch.Tensor)
    elif name == "jax":
        import jax.numpy as jnp

        made = scaled(jnp.asarray(x), jnp.asarray(x))
    else:
        import cupy

        if not cupy.is_available():
            continue
        made = cupy.asnumpy(fw.fuse(scaled.fn)(cupy.asarray(x), cupy.asarray(x)))
    assert np.allclose(np.asarray(made), 3 * x)
assert np.allclose(fw.asarray(x).numpy(), x)
