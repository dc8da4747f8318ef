"""`explain`: compile a model once and say what was fused and why the rest was not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fusewright.frontends.torch.calls import tensors_of
from fusewright.frontends.torch.dynamo import compiler
from fusewright.frontends.torch.library import torch
from fusewright.frontends.torch.options import options_of
from fusewright.frontends.torch.report import GraphReport, TorchReport


def explain(
    model: Callable[..., Any],
    *args: Any,
    options: Mapping[str, Any] | None = None,
    **kwargs: Any,
) -> TorchReport:
    """Runs a model on arguments, forward and, where gradients are recorded, backward; `str` of the
    result is readable. Gradients of parameters are left as they are.

    Raises UserError for options that do not exist.
    """
    graphs: list[GraphReport] = []
    run = torch.compile(model, backend=compiler(options_of(options), graphs.append))
    result = run(*args, **kwargs)
    leaves = torch.utils._pytree.tree_leaves(result)
    differentiable = [t for t in tensors_of(leaves) if t.requires_grad]
    if differentiable:
        total = sum(t.float().sum() for t in differentiable)
        torch.autograd.grad(total, _leaves(total), allow_unused=True)
    return TorchReport(graphs)


def _leaves(total: Any) -> list[Any]:
    """The tensors whose gradients a backward pass would accumulate, wherever the model holds them:
    parameters, arguments, or what a function closes over."""
    found: dict[Any, Any] = {}
    seen, stack = set[Any](), [total.grad_fn]
    while stack:
        node = stack.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            found[node] = node.variable
        stack.extend(n for n, _ in node.next_functions)
    return list(found.values())
