"""The door to PyTorch: `torch.compile(model, backend="fusewright")`, and what it did."""

from __future__ import annotations

import importlib

for _family in ("pointwise", "reductions", "movement", "creation", "norms"):
    importlib.import_module(f"fusewright.frontends.torch.{_family}")

from fusewright.frontends.torch.dynamo import backend  # noqa: E402

__all__ = ["backend"]
