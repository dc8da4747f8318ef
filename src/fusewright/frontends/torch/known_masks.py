"""Masks of attention that no argument decides.

Models build the mask of an attention from positions, so that it depends on sizes alone: all of it
is allowed, or what is not after a row. torch's fast kernels take no mask, or know a causal one;
with a tensor of booleans they compute the forbidden half, too, or leave the work to products and a
softmax. What such a mask is made of is computed once, when the graph is compiled, and the attention
is told what was found.

rewrite:  attention(q, k, v, mask) -> attention(q, k, v)                  where all of it is allowed
          attention(q, k, v, mask) -> attention(q, k, v, is_causal=True)  where it is causal
"""

from __future__ import annotations

import importlib
import logging
import operator
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from fusewright.frontends.torch.calls import tensors_of
from fusewright.frontends.torch.library import TorchDispatchMode, fx, torch

_log = logging.getLogger("fusewright.torch")

_fake: Any = importlib.import_module("torch._subclasses.fake_tensor")
_transforms: Any = importlib.import_module("torch._C._functorch")

Shape = Literal["full", "causal"]
ATTENTION = torch.nn.functional.scaled_dot_product_attention
MASK, CAUSAL = 3, 5
"""Positions of the arguments `attn_mask` and `is_causal`."""
MOST_NBYTES = 2**30
"""Masks are not looked at that take more to make: all tensors that they are made of together."""
_UPDATES = {operator.setitem, operator.delitem} | {
    getattr(operator, name) for name in fx.graph.inplace_methods
}
_NESTS = ("_vmap_increment_nesting", "_vmap_decrement_nesting")
"""What opens and closes a vmap, within which masks of one pair of positions are mapped over all."""


def tell_known_masks(module: Any) -> None:
    """Replaces masks in a graph of torch functions, in place, and drops what only they read."""
    calls = module.graph.find_nodes(op="call_function", target=ATTENTION)
    given = {n: _argument(n, MASK, "attn_mask", None) for n in calls}
    masks = {n: mask for n, mask in given.items() if isinstance(mask, fx.Node)}
    if not masks or _updates_constants(module.graph):
        return
    shapes: dict[Any, Shape | None] = {
        mask: _shape(module.graph, mask) for mask in dict.fromkeys(masks.values())
    }
    for n, mask in masks.items():
        if (shape := shapes[mask]) is not None:
            _replace(n, shape)
    told = [shape for shape in shapes.values() if shape is not None]
    if told:
        _log.info("masks of attention that sizes decide: %s", ", ".join(told))
        for mask in masks.values():
            _drop(mask)
        module.recompile()


def _drop(mask: Any) -> None:
    """Drops a mask that nobody reads any more, and what only it read. What else of the graph has no
    readers may write, or open a vmap, and stays."""
    waiting, dropped = [mask], set[Any]()
    while waiting:
        n = waiting.pop()
        if n.op in ("call_function", "call_method") and not n.users and n not in dropped:
            dropped.add(n)
            waiting += n.all_input_nodes
            n.graph.erase_node(n)


def _updates_constants(graph: Any) -> bool:
    """Whether a node writes to what no argument decides, so that values depend on the order of
    nodes that nothing else connects."""
    known: set[Any] = set()
    for n in graph.nodes:
        if n.op not in ("call_function", "call_method"):
            continue
        if all(p in known for p in n.all_input_nodes):
            known.add(n)
        written = _written(n)
        if written is not None and written in known:
            return True
    return False


def _written(node: Any) -> Any | None:
    """The node whose value a call of a torch function changes, by torch's names of functions and
    methods that do."""
    if "out" in node.kwargs:
        return node.kwargs["out"]
    if node.op == "call_method":
        updates = node.target.endswith("_") and not node.target.endswith("__")
    elif getattr(node.target, "__module__", "") == operator.setitem.__module__:
        updates = node.target in _UPDATES
    else:
        updates = getattr(node.target, "__name__", "").endswith("_")
    return node.args[0] if updates and node.args else None


def _argument(call: Any, position: int, name: str, default: Any) -> Any:
    if len(call.args) > position:
        return call.args[position]
    return call.kwargs.get(name, default)


def _replace(call: Any, shape: Shape) -> None:
    """The call without its mask; `dropout_p`, which stands between the two, stays."""
    names = ("attn_mask", "dropout_p", "is_causal")
    given = dict(zip(names, call.args[MASK:], strict=False)) | call.kwargs
    del given["attn_mask"]
    call.args, call.kwargs = call.args[:MASK], given | {"is_causal": shape == "causal"}


def _shape(graph: Any, mask: Any) -> Shape | None:
    """What a mask allows, where no argument decides it."""
    made_of = _made_of(graph, mask)
    if made_of is None or sum(map(_nbytes, made_of)) > MOST_NBYTES:
        return None
    value = _value(made_of, mask)
    return None if value is None else shape_of(value)


def _made_of(graph: Any, mask: Any) -> list[Any] | None:
    """The nodes that a mask is made of, in order; None where an argument is among them."""
    found: set[Any] = set()
    waiting = [mask]
    while waiting:
        n = waiting.pop()
        if n.op not in ("call_function", "call_method"):
            return None
        if n not in found:
            found.add(n)
            waiting += n.all_input_nodes
    return [n for n in graph.nodes if n in found or getattr(n.target, "__name__", "") in _NESTS]


def _nbytes(node: Any) -> int:
    """Bytes of a node's result; more than any limit where its sizes are symbols."""
    total = 0
    for t in tensors_of(node.meta.get("example_value")):
        if not all(isinstance(size, int) for size in t.shape):
            return MOST_NBYTES + 1
        total += t.numel() * t.dtype.itemsize
    return total


class _Repeatable(TorchDispatchMode):
    """Refuses operators that give something else the next time."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if torch.Tag.nondeterministic_seeded in func.tags:
            raise _NotRepeatableError(str(func))
        return func(*args, **(kwargs or {}))


class _NotRepeatableError(Exception):
    pass


def _value(nodes: Iterable[Any], mask: Any) -> Any | None:
    """The mask as a tensor; None where its nodes cannot be computed ahead."""
    level = _transforms.maybe_current_level()
    known: dict[Any, Any] = {}
    try:
        with _fake.unset_fake_temporarily(), torch.no_grad(), _Repeatable():
            for n in nodes:
                args, kwargs = fx.node.map_arg((n.args, n.kwargs), known.__getitem__)
                call = n.target if n.op == "call_function" else getattr(args[0], n.target)
                known[n] = call(*(args if n.op == "call_function" else args[1:]), **kwargs)
    except Exception as e:
        _log.debug("a mask of attention is not known ahead: %s: %s", type(e).__name__, e)
        while _transforms.maybe_current_level() != level:
            _transforms._vmap_decrement_nesting()
        return None
    return known[mask]


def shape_of(mask: Any) -> Shape | None:
    """What a mask allows: all, or for each row the columns up to its own. Booleans allow where they
    are true; a mask that is added, where it is 0, and forbids with -inf or the least finite value,
    beside which nothing is left of an exponential."""
    allowed = mask
    if mask.dtype != torch.bool:
        allowed = mask == 0
        if not bool((allowed | (mask <= torch.finfo(mask.dtype).min)).all()):
            return None
    if bool(allowed.all()):
        return "full"
    rows, columns = mask.shape[-2:]
    if rows != columns:
        return None
    causal = torch.ones(rows, columns, dtype=torch.bool, device=mask.device).tril()
    return "causal" if bool((allowed == causal).all()) else None
