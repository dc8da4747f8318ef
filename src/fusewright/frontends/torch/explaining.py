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
        inputs = _leaves(model, args, kwargs)
        torch.autograd.grad(total, inputs, allow_unused=True)
    return TorchReport(graphs)


def _leaves(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """The parameters and arguments that want gradients."""
    parameters = list(model.parameters()) if isinstance(model, torch.nn.Module) else []
    given = list(tensors_of(torch.utils._pytree.tree_leaves((args, kwargs))))
    return [t for t in (*parameters, *given) if t.requires_grad]
