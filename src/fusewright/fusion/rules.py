"""What arguments that stand for programs must be."""

from __future__ import annotations

from typing import Any

from fusewright.arguments import INTEGER, instance_of, optional, several
from fusewright.fusion.ir import Fusion


def traced_first(value: Any) -> str:
    """The way out where a function stands for what it computes."""
    if not callable(value) or isinstance(value, type):
        return ""
    name = getattr(value, "__name__", "f")
    name = name if name.isidentifier() else "f"
    return f"trace it first: fw.trace({name}, fw.TensorSpec(shape, dtype), ...)"


FUSION = instance_of(Fusion, words="a fusion, which fw.trace returns", hint=traced_first)
ORDERS = several(
    optional(several(INTEGER, "axes")),
    "a list of an order of axes, such as (1, 0), or None for every output",
)
