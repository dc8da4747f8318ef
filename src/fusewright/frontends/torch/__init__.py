"""The door to PyTorch: `torch.compile(model, backend="fusewright")`, and what it did.

Loaded by torch through its entry point, or by the first use of `fw.from_torch`; never by
`import fusewright`.
"""

from __future__ import annotations

import importlib

for _family in (
    *("pointwise", "reductions", "movement", "creation", "norms", "products"),
    *("ordering", "pooling", "interpolation"),
):
    importlib.import_module(f"fusewright.frontends.torch.{_family}")

from fusewright.frontends.torch.dynamo import backend as backend  # noqa: E402
from fusewright.frontends.torch.explaining import explain as explain  # noqa: E402
from fusewright.frontends.torch.importing import from_torch as from_torch  # noqa: E402
from fusewright.frontends.torch.operators import custom_op as custom_op  # noqa: E402

__all__ = ["backend", "custom_op", "explain", "from_torch"]
