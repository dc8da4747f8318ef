"""Peers that are installed or not: hand-written kernels of quack and liger for the cases that they
have one for."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from bench.cases import Case


class Absent(Exception):
    """A peer that is not installed, or has no kernel for a case."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """A peer's function: where it stands, and its arguments, made once from a case's arrays."""

    module: str
    name: str
    arguments: Callable[[list[Any]], tuple[Any, ...]]


QUACK: dict[str, Kernel] = {
    "softmax": Kernel("quack.softmax", "softmax", lambda a: (a[0],)),
    "rms_norm": Kernel(
        "quack.rmsnorm", "rmsnorm", lambda a: (a[0], a[1], None, None, None, None, 1e-6)
    ),
    "layer_norm": Kernel(
        "quack.rmsnorm", "layernorm_fwd", lambda a: (a[0], a[1].float(), a[2].float(), 1e-5)
    ),
    "cross_entropy": Kernel("quack.cross_entropy", "cross_entropy_fwd", lambda a: (a[0], a[1])),
}
LIGER: dict[str, Kernel] = {
    "softmax": Kernel("liger_kernel.ops.softmax", "LigerSoftmaxFunction", lambda a: (a[0],)),
    "rms_norm": Kernel(
        "liger_kernel.ops.rms_norm",
        "LigerRMSNormFunction",
        lambda a: (a[0], a[1], 1e-6, 0.0, "llama", False),
    ),
    "layer_norm": Kernel(
        "liger_kernel.ops.layer_norm",
        "LigerLayerNormFunction",
        lambda a: (a[0], a[1], a[2], 1e-5),
    ),
    "silu_mul": Kernel("liger_kernel.ops.swiglu", "LigerSiLUMulFunction", lambda a: (a[0], a[1])),
}
"""Its cross entropy is left out: it overwrites the logits with their gradient."""
PEERS = {"quack": QUACK, "liger": LIGER}


def make(peer: str, case: Case, arrays: list[Any]) -> Callable[[], Any]:
    """A call of the peer's kernel on a case's arrays. Raises Absent where there is none."""
    if peer not in PEERS:
        raise Absent(f"there is no peer {peer!r}; use compile, max_autotune, eager, quack, liger")
    kind = max((k for k in PEERS[peer] if is_kind(case.name, k)), key=len, default="")
    if not kind:
        raise Absent(f"{peer} has no kernel for {case.name}")
    kernel = PEERS[peer][kind]
    try:
        found = getattr(importlib.import_module(kernel.module), kernel.name)
    except (ImportError, AttributeError) as e:
        raise Absent(f"{peer} is not installed: {e}") from e
    fn = getattr(found, "apply", found)
    arguments = kernel.arguments(arrays)
    return lambda: fn(*arguments)


def is_kind(name: str, kind: str) -> bool:
    """Whether a case is a kind of function as it stands: `softmax_8192x4096` is a softmax,
    `softmax_backward_8192x4096` is not."""
    rest = name.removeprefix(f"{kind}_")
    return rest != name and rest[:1].isdigit()
