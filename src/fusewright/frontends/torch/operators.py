"""Fused functions as operators of torch, so that torch.compile keeps a call as one node."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fusewright.dtypes import DType
from fusewright.errors import UserError
from fusewright.frontends.fuse import Fused
from fusewright.frontends.torch.library import torch
from fusewright.frontends.torch.promotion import torch_dtype
from fusewright.fusion import trees
from fusewright.fusion.ir import TensorSpec, constant_shape
from fusewright.fusion.trace import trace_call

ResultTypes = list[tuple[tuple[int, ...], DType]]


def custom_op(fused: Fused, name: str) -> Callable[..., Any]:
    """Registers a fused function of tensors as the torch operator `name` ("library::name"); returns
    a function that calls it: one tensor for one result, else a list.

    The call works under torch.compile and on fake tensors, and raises UserError where a gradient
    would be lost. Registering a name twice raises torch's own error.
    """

    def compute(tensors: list[Any]) -> list[Any]:
        made = trees.flatten(fused(*tensors))[0]
        return [made[k] for k in range(len(made))]

    operator = torch.library.custom_op(
        name, compute, mutates_args=(), schema="(Tensor[] tensors) -> Tensor[]"
    )

    def like(tensors: list[Any]) -> list[Any]:
        device = tensors[0].device
        return [
            torch.empty(shape, dtype=torch_dtype(dtype), device=device)
            for shape, dtype in _result_types(fused, tensors)
        ]

    operator.register_fake(like)

    def call(*tensors: Any) -> Any:
        if torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
            raise UserError(
                f"{name} records no gradient, and an argument requires one; call it under "
                "torch.no_grad() or detach the argument"
            )
        made = operator(list(tensors))
        return made[0] if len(made) == 1 else made

    return call


def _result_types(fused: Fused, tensors: list[Any]) -> ResultTypes:
    """Shape and dtype of each result for tensors of these types; symbolic sizes become numbers."""
    specs = [TensorSpec(tuple(int(n) for n in t.shape), t.dtype) for t in tensors]
    found: ResultTypes = []
    for t in trace_call(fused.fn, *specs).fusion.outputs:
        shape = constant_shape(t)
        assert shape is not None
        found.append((shape, t.dtype))
    return found
