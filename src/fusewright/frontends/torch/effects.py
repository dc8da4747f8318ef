"""The order that nodes of a graph must keep beyond reading each other's results.

Operators that write to their arguments, and calls that are not of plain operators, stay where they
are among all nodes. Operators that draw random numbers stay in order among themselves.
"""

from __future__ import annotations

import operator
from typing import Any

from fusewright.frontends.torch.control_calls import ControlFlow
from fusewright.frontends.torch.library import torch

_WAIT = "_c10d_functional::wait_tensor"
"""The operator of torch that waits for a collective; it is there only where torch has them."""

_PURE: tuple[Any, ...] = (operator.getitem, operator.mul, operator.mod)


def predecessors(graph: Any) -> dict[Any, list[Any]]:
    """For each node those that must come before it: what it reads, and what it may not overtake."""
    found: dict[Any, list[Any]] = {}
    barrier: Any = None
    since: list[Any] = []
    drawn: Any = None
    for n in graph.nodes:
        before = list(n.all_input_nodes)
        if n.op in ("call_function", "call_module", "call_method"):
            if barrier is not None:
                before.append(barrier)
            if _is_barrier(n):
                before += since
                barrier, since = n, []
            elif _is_random(n):
                before += [] if drawn is None else [drawn]
                drawn = n
            since.append(n)
        found[n] = list(dict.fromkeys(p for p in before if p is not n))
    return found


def is_wait(node: Any) -> bool:
    """Whether a node only waits until a collective of torch has its result."""
    return _is_operator(node) and node.target._schema.name == _WAIT


def _is_operator(node: Any) -> bool:
    return node.op == "call_function" and isinstance(node.target, torch._ops.OpOverload)


def _is_barrier(node: Any) -> bool:
    if _is_operator(node):
        return node.target._schema.is_mutable
    if node.op == "call_function" and node.target in _PURE:
        return False
    if isinstance(node.target, ControlFlow):
        return False
    return not _is_symbolic(node)


def _is_symbolic(node: Any) -> bool:
    """Whether a node computes with sizes only."""
    return isinstance(node.meta.get("val"), torch.SymInt | torch.SymFloat | torch.SymBool)


def _is_random(node: Any) -> bool:
    return _is_operator(node) and torch.Tag.nondeterministic_seeded in node.target.tags
