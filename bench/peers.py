"""Peers that are installed or not: hand-written kernels of quack and liger for the cases that they
have one for."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, TypeAlias

from bench.cases import Case

Call: TypeAlias = Callable[..., Any]


class Absent(Exception):
    """A peer that is not installed, or has no kernel for a case."""


QUACK: dict[str, tuple[str, str, Callable[[Call, list[Any]], Any]]] = {
    "softmax": ("quack.softmax", "softmax", lambda f, a: f(a[0])),
    "rms_norm": ("quack.rmsnorm", "rmsnorm", lambda f, a: f(a[0], a[1], eps=1e-6)),
    "layer_norm": (
        "quack.layernorm",
        "layernorm",
        lambda f, a: f(a[0], a[1].float(), a[2].float()),
    ),
    "cross_entropy": (
        "quack.cross_entropy",
        "cross_entropy",
        lambda f, a: f(a[0], a[1], reduction="mean"),
    ),
}
LIGER: dict[str, tuple[str, str, Callable[[Call, list[Any]], Any]]] = {
    "softmax": ("liger_kernel.ops.softmax", "LigerSoftmaxFunction", lambda f, a: f(a[0])),
    "rms_norm": (
        "liger_kernel.ops.rms_norm",
        "LigerRMSNormFunction",
        lambda f, a: f(a[0], a[1], 1e-6, 0.0, "llama", False),
    ),
    "layer_norm": (
        "liger_kernel.ops.layer_norm",
        "LigerLayerNormFunction",
        lambda f, a: f(a[0], a[1], a[2], 1e-5),
    ),
    "cross_entropy": (
        "liger_kernel.ops.cross_entropy",
        "LigerCrossEntropyFunction",
        lambda f, a: f(a[0], a[1], None)[0],
    ),
    "swiglu": (
        "liger_kernel.ops.swiglu",
        "LigerSiLUMulFunction",
        lambda f, a: f(a[0], a[1]),
    ),
}
PEERS = {"quack": QUACK, "liger": LIGER}


def make(peer: str, case: Case, arrays: list[Any]) -> Callable[[], Any]:
    """A call of the peer's kernel on a case's arrays. Raises Absent where there is none."""
    if peer not in PEERS:
        raise Absent(f"there is no peer {peer!r}; use compile, max_autotune, eager, quack, liger")
    kind = max((k for k in PEERS[peer] if is_kind(case.name, k)), key=len, default="")
    if not kind:
        raise Absent(f"{peer} has no kernel for {case.name}")
    module, name, call = PEERS[peer][kind]
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as e:
        raise Absent(f"{peer} is not installed: {e}") from e
    fn = getattr(found, "apply", found)
    return lambda: call(fn, arrays)


def is_kind(name: str, kind: str) -> bool:
    """Whether a case is a kind of function as it stands: `softmax_8192x4096` is a softmax,
    `softmax_backward_8192x4096` is not."""
    rest = name.removeprefix(f"{kind}_")
    return rest != name and rest[:1].isdigit()
