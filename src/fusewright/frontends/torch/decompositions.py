"""torch's own decompositions for operators that are not taken whole."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from functools import cache
from typing import Any

from fusewright.frontends.torch.foreach import foreach_rules
from fusewright.frontends.torch.library import aten, torch
from fusewright.frontends.torch.pointwise import take_compilers_operators
from fusewright.frontends.torch.table import LOWERINGS
from fusewright.frontends.torch.upsampling import upsampling_rules

_WHOLE = (
    "baddbmm",
    "embedding_dense_backward",
    "_scaled_dot_product_flash_attention_for_cpu",
    "grid_sampler_2d",
    "lstm",
    "gru",
    "index_add",
    "index_copy",
    "max_pool2d_with_indices",
    "addmm",
    "addmv",
    "mv",
    "dot",
    "vdot",
    "unfold_backward",
)
"""Operators whose decomposition would be slower than torch's own kernel."""


@cache
def _core() -> Mapping[Any, Any]:
    """torch's core decompositions, which it looks up one by one: 80 ms that every graph would
    take."""
    return dict(importlib.import_module("torch._decomp").core_aten_decompositions().items())


def decompositions() -> dict[Any, Any]:
    """torch's core decompositions, without the operators that are taken whole or left to torch."""
    take_compilers_operators()
    whole = {getattr(aten, name) for name in _WHOLE if hasattr(aten, name)}
    table = {
        op: rule
        for op, rule in _core().items()
        if op not in LOWERINGS and getattr(op, "overloadpacket", None) not in whole
    }
    table |= foreach_rules() | upsampling_rules()
    table[aten.native_dropout.default] = _native_dropout
    table[aten._weight_norm_interface_backward.default] = _weight_norm_backward
    table[aten._efficientzerotensor.default] = _zeros
    return table


def _zeros(size: Any, **options: Any) -> Any:
    """Zeros in memory, as a kernel can read them."""
    return torch.zeros(size, **{k: v for k, v in options.items() if v is not None})


def _weight_norm_backward(dw: Any, v: Any, g: Any, norms: Any, dim: int) -> tuple[Any, Any]:
    """The gradients of v and g in w = g * v / norms, with norms over all axes but `dim`."""
    axes = [k for k in range(v.ndim) if k != dim % v.ndim]
    wide, own, over = (x.to(norms.dtype) for x in (dw, v, g))
    along = (wide * own).sum(axes, keepdim=True)
    dv = over / norms * (wide - own * (along / (norms * norms)))
    return dv.to(v.dtype), (along / norms).to(g.dtype)


def _native_dropout(x: Any, p: float, train: bool | None) -> Any:
    """The mask is torch's, from its generator; the product is ours."""
    if train is False or p == 0:
        return x.clone(), torch.ones_like(x, dtype=torch.bool)
    if p == 1:
        return torch.zeros_like(x), torch.zeros_like(x, dtype=torch.bool)
    mask = torch.ops.aten.bernoulli.p(torch.empty_like(x, dtype=torch.bool), 1.0 - p)
    return x * mask * (1.0 / (1.0 - p)), mask
