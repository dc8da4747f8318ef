"""`from_torch`: a torch function as a fusion."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from fusewright.errors import UnsupportedError, UserError
from fusewright.frontends.torch.calls import refusal, tensors_of, trace_node
from fusewright.frontends.torch.control import take_control_flow
from fusewright.frontends.torch.decompositions import decompositions
from fusewright.frontends.torch.library import torch
from fusewright.frontends.torch.options import Options
from fusewright.fusion.array import Array
from fusewright.fusion.ir import Fusion, TensorSpec
from fusewright.fusion.trace import trace


def from_torch(fn: Callable[..., Any], *args: Any) -> Fusion:
    """What a torch function computes on tensors like `args`, results in the order of the function's
    own structure. `fw.compile` makes it a program that is called with tensors.

    Raises UserError for tensors that the function does not take as arguments, and
    UnsupportedError that names every operator that cannot be fused, with the reasons.
    """
    module = _module(fn, args)
    take_control_flow(module, Options(products="always"))
    graph = module.graph
    arguments = [n for n in graph.nodes if n.op == "placeholder"]
    calls = [n for n in graph.nodes if n.op == "call_function"]
    for n in graph.nodes:
        if n.op == "get_attr" and n.users:
            raise UserError(
                f"from_torch: the tensor {n.target} is captured from outside; pass it as an "
                "argument (torch.func.functional_call does so for a module)"
            )
    refused = {f"{n.target}: {why}": None for n in calls if (why := refusal(n)) is not None}
    if refused:
        raise UnsupportedError(f"from_torch: cannot fuse {'; '.join(refused)}")
    (output,) = (n for n in graph.nodes if n.op == "output")

    def traced(*arrays: Array) -> list[Array]:
        values: dict[Any, Any] = dict(zip(arguments, arrays, strict=True))
        for n in calls:
            values[n] = trace_node(n, values)
        return [values[n] for n in output.args[0]]

    specs = [TensorSpec(tuple(t.shape), t.dtype) for t in _tensors(args)]
    return trace(traced, *specs)


def _module(fn: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """The module of the functional aten graph over the tensors among the arguments, with example
    values."""
    pytree = torch.utils._pytree
    leaves, spec = pytree.tree_flatten(args)
    places = [k for k, x in enumerate(leaves) if isinstance(x, torch.Tensor)]

    def flat(*tensors: Any) -> list[Any]:
        filled = list(leaves)
        for k, t in zip(places, tensors, strict=True):
            filled[k] = t
        return list(tensors_of(pytree.tree_leaves(fn(*pytree.tree_unflatten(filled, spec)))))

    make_fx = importlib.import_module("torch.fx.experimental.proxy_tensor").make_fx

    def traced(call: Callable[..., Any], rules: dict[Any, Any]) -> Any:
        tracer = make_fx(
            torch.func.functionalize(call),
            decomposition_table=rules,
            tracing_mode="fake",
            _allow_non_fake_inputs=True,
        )
        return tracer(*(leaves[k] for k in places))

    with torch.no_grad():
        return traced(traced(flat, decompositions()), {})  # decompositions write in place


def _tensors(args: tuple[Any, ...]) -> list[Any]:
    return list(tensors_of(torch.utils._pytree.tree_leaves(args)))
