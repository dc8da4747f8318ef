"""What torch asks of elements on the host, and raises for, where kernels ask nothing.

torch's operators on host memory look at every index and every integer divisor. Kernels do not:
they count a negative index from the end, and have some quotient by 0. The oracle computes host
tensors, so it asks too: a call that breaks a condition is left to torch, whose exception is the
caller's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from fusewright.dtypes import DType, dtype_of
from fusewright.frontends.torch.library import aten, fx, torch
from fusewright.frontends.torch.promotion import cast_to
from fusewright.frontends.torch.table import overloads, positional
from fusewright.fusion import ops
from fusewright.fusion.array import Array

Condition = Callable[..., "Array | None"]
"""Of an operator's positional arguments, after the dtype of its result: a bool array that is true
where torch computes; None where it always does."""


def _index_from_front(out: DType, x: Array, dim: int, index: Array) -> Array:
    return index >= 0


def _row_from_front(out: DType, weight: Array, indices: Array, *rest: object) -> Array:
    return indices >= 0


def _is_divided(out: DType, x: object, divisor: object) -> Array | None:
    return ops.not_equal(cast_to(divisor, out), 0) if out.is_integer else None


_CONDITIONS: dict[Any, Condition] = {
    aten.gather.default: _index_from_front,
    aten.embedding.default: _row_from_front,
    **dict.fromkeys(
        [o for packet in (aten.div, aten.remainder, aten.fmod) for o in overloads(packet)],
        _is_divided,
    ),
}
"""That an index is not beyond the axis is what the oracle asks of every gather (`checked`)."""


def asks(node: Any) -> bool:
    """Whether a call on host tensors may raise for what elements they have."""
    value = node.meta.get("val")
    if node.target not in _CONDITIONS or not isinstance(value, torch.Tensor):
        return False
    if _CONDITIONS[node.target] is not _is_divided:
        return True
    return dtype_of(value.dtype).is_integer and isinstance(node.args[1], fx.Node)


def preconditions(nodes: Iterable[Any], values: Mapping[Any, Any]) -> list[Array]:
    """What must be true for nodes of a graph, for the traced values of all that they read: bools
    without axes."""
    found: list[Array] = []
    for n in nodes:
        condition = _CONDITIONS.get(n.target)
        if condition is None:
            continue
        args = fx.node.map_arg(n.args, values.__getitem__)
        kwargs = dict(fx.node.map_arg(n.kwargs, values.__getitem__))
        out = dtype_of(n.meta["val"].dtype)
        made = condition(out, *positional(n.target, args, kwargs))
        if made is not None:
            found.append(ops.all(made))
    return found
