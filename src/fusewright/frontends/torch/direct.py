"""Operators of torch by their fastest function.

`torch.ops.aten.mm.default(a, b)` looks its arguments up in a schema; `torch.mm(a, b)`, which was
generated for its signatures, calls the same operator in two thirds of the time. Which overload that
is follows from the arguments, and some functions are more than one operator: so each is tried on
tensors without memory, and taken where exactly the operator arrives, with these arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from itertools import chain
from typing import Any, cast

from fusewright.frontends.torch.calls import is_view, tensors_of
from fusewright.frontends.torch.library import TorchDispatchMode, fx, torch


def reinterpreted() -> Callable[..., Any] | None:
    """What makes a tensor of sizes, strides and elements behind the first one of another tensor's
    memory without a call of an operator; None where torch has it not."""
    guards = getattr(getattr(torch._C, "_dynamo", None), "guards", None)
    return getattr(guards, "_reinterpret_tensor", None)


class Directly:
    """The fastest functions for the calls of a graph, whose nodes carry example values."""

    def __init__(self) -> None:
        self._known: dict[Hashable, Callable[..., Any]] = {}

    def of(self, node: Any) -> Callable[..., Any]:
        """What is called for a node."""
        target = node.target
        if not isinstance(target, torch._ops.OpOverload):
            return target
        key = target, _kinds(node.args), tuple((k, _kinds(v)) for k, v in node.kwargs.items())
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = _function(node)
        return found


def _kinds(value: Any) -> Hashable:
    """What of an argument decides which overload a function calls."""
    if isinstance(value, list | tuple):
        return tuple(map(_kinds, cast("Sequence[Any]", value)))
    if isinstance(value, fx.Node):
        node: Any = value
        return "node", cast("type[object]", type(node.meta.get("val")))
    return cast("type[object]", type(value))


def _function(node: Any) -> Callable[..., Any]:
    target = node.target
    plain = getattr(target, "_op", target) if type(target) is torch._ops.OpOverload else target
    if target.namespace != "aten" or not _has_plain_values(node):
        return plain
    name = target._schema.name.split("::")[1]
    for owner in (torch._C._VariableFunctions, torch._C.TensorBase):
        function = getattr(owner, name, None)
        if function is not None and _is_the_same(function, node):
            return function
    return plain


def _has_plain_values(node: Any) -> bool:
    """Whether a node reads tensors, and all that it reads and makes has plain sizes."""
    read = list(tensors_of([p.meta.get("val") for p in node.all_input_nodes]))
    return bool(read) and all(
        isinstance(n, int)
        for t in chain(read, tensors_of(node.meta.get("val")))
        for n in (*t.shape, *t.stride())
    )


class _Arriving(TorchDispatchMode):  # type: ignore[misc]
    """Notes which operators arrive, and computes nothing; a view must be one."""

    def __init__(self, node: Any) -> None:
        super().__init__()  # pyright: ignore[reportUnknownMemberType]
        self.calls: list[tuple[Any, Sequence[Any], Mapping[str, Any]]] = []
        self._is_view = is_view(node)
        self._result = node.meta.get("val")  # operators that only check or write have none

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        if func.namespace != "prim":  # what torch asks a view that it has made
            self.calls.append((func, args, kwargs or {}))
        return func(*args, **(kwargs or {})) if self._is_view else self._result


def _is_the_same(function: Callable[..., Any], node: Any) -> bool:
    """Whether a function, given a node's arguments, calls its operator with them, once."""
    arriving = _Arriving(node)
    try:
        args = fx.node.map_arg(tuple(node.args), _example)
        kwargs = fx.node.map_arg(dict(node.kwargs), _example)
        with torch.no_grad(), arriving:
            function(*args, **kwargs)
        ((func, given, named),) = arriving.calls
        wanted = _by_name(node.target, args, kwargs)
        return func is node.target and _are_same(_by_name(func, given, named), wanted)
    except Exception:  # it takes other arguments, or an example is missing, or has no elements
        return False


def _example(node: Any) -> Any:
    return node.meta["val"]


def _by_name(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of an operator by name, those that are left out too."""
    found = {
        a.name: args[k] if k < len(args) else a.default_value if a.has_default_value() else None
        for k, a in enumerate(target._schema.arguments)
    }
    return {**found, **kwargs}


def _are_same(a: Any, b: Any) -> bool:
    """Whether arguments are the same tensors, and equal beside that."""
    if isinstance(a, torch.Tensor) or isinstance(b, torch.Tensor):
        return a is b
    if isinstance(a, dict):
        x, y = cast("dict[str, Any]", a), cast("dict[str, Any]", b)
        return x.keys() == y.keys() and all(_are_same(x[k], y[k]) for k in x)
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        x, y = list(cast("Sequence[Any]", a)), list(cast("Sequence[Any]", b))
        return len(x) == len(y) and all(map(_are_same, x, y))
    x, y = cast("object", a), cast("object", b)
    return type(x) is type(y) and x == y
