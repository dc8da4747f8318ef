"""Constant scalars on the host, as the numbers that they are.

`x / torch.tensor(8.0).sqrt()` computes its divisor on the host, and torch takes a tensor without
axes from there beside others on a device. A kernel has no such operand, but may hold the number.

rewrite:  c = sqrt(constant), on the host;  div(x, c)   ->   div(x, 2.83)
checks:   the scalar is computed of constants of the module alone, by operators that give the same
          each time and write to nothing; what reads it computes on a device, and gives the same
          type for the number
order:    before the graph is cut into regions
"""

from __future__ import annotations

import logging
from functools import reduce
from typing import Any

from fusewright.frontends.torch.calls import tensors_of
from fusewright.frontends.torch.library import fx, torch
from fusewright.frontends.torch.table import LOWERINGS

_fake = torch._subclasses.fake_tensor
_log = logging.getLogger(__name__)


def plain_scalars(module: Any) -> None:
    """Replaces constant scalars on the host in an aten graph with example values."""
    with _fake.unset_fake_temporarily(), torch.no_grad():
        _replace_scalars(module)


def _replace_scalars(module: Any) -> None:
    graph = module.graph
    written = {a for n in graph.nodes if _writes(n) for a in n.all_input_nodes}
    known: dict[Any, Any] = {}
    for n in list(graph.nodes):
        if n in written:
            continue
        if n.op == "get_attr":
            value = reduce(getattr, n.target.split("."), module)
            if _is_scalar(value):
                known[n] = value
        elif _is_computable(n, known):
            value = _value(n, known)
            if value is not None:
                known[n] = value
        else:
            _read_numbers(n, known)


def _writes(n: Any) -> bool:
    schema = getattr(n.target, "_schema", None)
    return schema is not None and bool(schema.is_mutable)


def _is_scalar(value: Any) -> bool:
    is_tensor = isinstance(value, torch.Tensor) and not isinstance(value, _fake.FakeTensor)
    return is_tensor and value.ndim == 0 and value.device.type == "cpu" and not value.is_complex()


def _is_computable(n: Any, known: dict[Any, Any]) -> bool:
    """Whether a node makes a scalar on the host of those that are known."""
    operands = n.all_input_nodes
    if n.op != "call_function" or not operands or not all(o in known for o in operands):
        return False
    tags, made = getattr(n.target, "tags", ()), n.meta.get("val")
    if _writes(n) or torch.Tag.nondeterministic_seeded in tags:
        return False
    return isinstance(made, torch.Tensor) and made.ndim == 0 and made.device.type == "cpu"


def _value(n: Any, known: dict[Any, Any]) -> Any | None:
    try:
        args, kwargs = fx.node.map_arg((n.args, n.kwargs), known.__getitem__)
        return n.target(*args, **kwargs)
    except Exception as e:  # torch raises it where the graph is called
        _log.debug("%s is not known ahead: %s: %s", n.name, type(e).__name__, e)
        return None


def _read_numbers(n: Any, known: dict[Any, Any]) -> None:
    """Has a node that computes on a device read numbers for the scalars that are known."""
    made = n.meta.get("val")
    if n.op != "call_function" or n.target not in LOWERINGS or not isinstance(made, torch.Tensor):
        return
    if made.device.type == "cpu" or not any(o in known for o in n.all_input_nodes):
        return

    def told(o: Any) -> Any:
        return known[o].item() if o in known else o

    args, kwargs = fx.node.map_arg((n.args, n.kwargs), told)
    if _type(n.target, args, kwargs) == (made.shape, made.dtype, made.device):
        n.args, n.kwargs = args, kwargs


def _type(target: Any, args: Any, kwargs: Any) -> tuple[Any, Any, Any] | None:
    """The shape, the dtype and the device of a call's result; None where it is refused."""

    def example(o: Any) -> Any:
        return o.meta["val"]

    given, named = fx.node.map_arg((args, kwargs), example)
    modes = {t.fake_mode for t in tensors_of(given) if hasattr(t, "fake_mode")}
    if len(modes) != 1:
        return None
    try:
        with modes.pop():
            made = target(*given, **named)
    except Exception as e:  # it takes a tensor only
        _log.debug("%s takes no number: %s: %s", target, type(e).__name__, e)
        return None
    return made.shape, made.dtype, made.device
