"""Functions of other frameworks as fusions. The frameworks are imported when they are asked for."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from fusewright.arguments import FUNCTION, takes
from fusewright.fusion.ir import Fusion


@takes(fn=FUNCTION)
def from_torch(fn: Callable[..., Any], *args: Any) -> Fusion:
    """What a torch function computes on tensors like `args`. `fw.compile` makes it a program that
    is called with tensors.

    Raises UserError for tensors that the function does not take as arguments, and UnsupportedError
    that names every operator that cannot be fused.
    """
    return importlib.import_module("fusewright.frontends.torch").from_torch(fn, *args)
