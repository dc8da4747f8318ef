"""torch's modules, untyped. torch is an optional guest: this module is loaded with torch only."""

from __future__ import annotations

import importlib
from typing import Any

torch: Any = importlib.import_module("torch")
fx: Any = importlib.import_module("torch.fx")
TorchDispatchMode: Any = importlib.import_module("torch.utils._python_dispatch").TorchDispatchMode
aten: Any = torch.ops.aten
prims: Any = torch.ops.prims
