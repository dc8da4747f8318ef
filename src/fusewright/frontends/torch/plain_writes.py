"""Writes to parts of tensors, as torch functionalises them, in fewer operators.

`cache[:, :, p] = k` becomes a copy of `k` over the old content, which is only read for its type,
and a scatter along each axis, also along those that are taken whole. What is left here are `k` and
one scatter for each axis of which a part is written, so that a region reads no more than it needs.
"""

from __future__ import annotations

from typing import Any

from fusewright.frontends.torch.calls import is_view, readers, whole, writes
from fusewright.frontends.torch.library import aten

_COPY = aten.copy.default
_FILL = aten.fill.Scalar
_SLICE = aten.slice.Tensor
_SCATTER = aten.slice_scatter.default


def plain_writes(graph: Any) -> None:
    """Drops what does nothing from writes to parts of tensors.

    rewrite:  copy(old, x)                      ->  x, in the type and shape of `old`
              fill(old, 0)                      ->  full(.., 0), in the type and shape of `old`
              slice(x, d, 0, end)               ->  x where that is all of the axis
              slice_scatter(x, y, d, 0, end)    ->  y where that is all of the axis
              views that nobody reads then are gone, so that nobody seems to read the old content
    checks:   sizes are equal, symbolic ones by their formulas, and strides, which a scatter alone
              does not see; results of the graph, and what shows their memory, stay new tensors; so
              does what is copied from an argument that is written, until that may have happened
    order:    before the graph is cut into regions, which would read the old content
    """
    for n in list(graph.nodes):
        if n.op != "call_function" or any(u.op == "output" for u in readers(n)):
            continue
        with graph.inserting_before(n):
            made = _plain(graph, n)
        if made is not None:
            n.replace_all_uses_with(made)
            graph.erase_node(n)
    for n in reversed(list(graph.nodes)):
        if is_view(n) and not n.users:
            graph.erase_node(n)


def _plain(graph: Any, n: Any) -> Any:
    """What stands for a node, None for itself."""
    if n.target is _FILL:
        return _filled(graph, n)
    if n.target is _SLICE and _is_like(n.args[0], n):
        return n.args[0]
    if n.target not in (_COPY, _SCATTER) or _is_kept_apart(n.args[1], n):
        return None
    if n.target is _COPY:
        return _spread(graph, n.args[1], n)
    return n.args[1] if _is_like(n.args[1], n) else None


def _is_kept_apart(x: Any, n: Any) -> bool:
    """Whether a copy of `x` must not be `x`: a write to an argument reads the copy, maybe behind
    another one that changes `x`."""
    is_read_late = any(writes(u) for u in readers(n))
    return is_read_late and any(writes(u) for u in readers(whole(x)))


def _spread(graph: Any, x: Any, n: Any) -> Any:
    """A value in the type and shape of a copy of it; None where it lies in another order and
    somebody may see that, and for another shape that is not made of numbers."""
    wanted, given = n.meta["val"], x.meta["val"]
    if wanted.device != given.device or not _is_only_scattered(n):
        return x if _is_like(x, n) else None
    if _sizes(wanted) != _sizes(given):
        if not _is_fixed(wanted):
            return None
        x = graph.call_function(aten.expand.default, (x, list(wanted.shape)))
        x.meta = {"val": given.expand(wanted.shape)}
    if wanted.dtype != given.dtype:
        x = graph.call_function(aten._to_copy.default, (x,), {"dtype": wanted.dtype})
        x.meta = dict(n.meta)
    return x


def _filled(graph: Any, n: Any) -> Any:
    """A number in every element of a shape, where that is made of numbers."""
    wanted = n.meta["val"]
    if not _is_fixed(wanted) or not _is_only_scattered(n):
        return None
    options = {"dtype": wanted.dtype, "device": wanted.device, "pin_memory": False}
    made = graph.call_function(aten.full.default, (list(wanted.shape), n.args[1]), options)
    made.meta = dict(n.meta)
    return made


def _is_only_scattered(n: Any) -> bool:
    """Whether all who read a value are scatters that put it into another one."""
    return all(u.target in SCATTERS and u.args[0] is not n for u in n.users)


def _is_fixed(x: Any) -> bool:
    return all(type(size) is int for size in x.shape)


def _is_like(a: Any, b: Any) -> bool:
    """Whether two nodes have values of one type, shape and strides."""
    x, y = a.meta["val"], b.meta["val"]
    alike = x.dtype == y.dtype and x.device == y.device and _sizes(x) == _sizes(y)
    return alike and tuple(map(str, x.stride())) == tuple(map(str, y.stride()))


def _sizes(x: Any) -> tuple[str, ...]:
    """The shape, formulas as texts."""
    return tuple(map(str, x.shape))


def write_parts(graph: Any, copy: Any) -> None:
    """Has a scatter write to the part of an argument that it changes.

    rewrite:  n = select_scatter(x, y, d, i); copy_(x, n)  ->  copy_(select(x, d, i), y)
              (uses of n read x)
    checks:   nobody reads the old content behind n, and n is no result of the graph, which is for
              the caller to check; what shows the argument itself is copied before it is written
    """
    target, made = copy.args[:2]
    with graph.inserting_before(made):
        part, source = target, made
        while (found := _part_of(graph, part, source, made)) is not None:
            part, source = found
        if source is made:
            return
        if source.target is aten.full.default:
            graph.call_function(aten.fill_.Scalar, (part, source.args[1]))
        else:
            if whole(source) is target:
                source = graph.call_function(aten.clone.default, (source,))
            graph.call_function(aten.copy_.default, (part, source))
    graph.erase_node(copy)
    made.replace_all_uses_with(target)


SCATTERS = {
    aten.select_scatter.default: aten.select.int,
    aten.slice_scatter.default: aten.slice.Tensor,
}
"""Operators that replace a part, and the view that shows the part."""


def _part_of(graph: Any, part: Any, made: Any, last: Any) -> tuple[Any, Any] | None:
    """The view of `part` that a scatter into it changes, and what is written there; None for what
    is no such scatter, and for one but the `last` that others read."""
    view = SCATTERS.get(made.target)
    if view is None or made.kwargs or not _shows(made.args[0], part):
        return None
    if made is not last and len(made.users) != 1:
        return None
    source, rest = made.args[1], made.args[2:]
    node = graph.call_function(view, (part, *rest))
    node.meta = dict(source.meta)
    return node, source


def _shows(old: Any, part: Any) -> bool:
    """Whether a node is the tensor, or the same view of it."""
    if old is part:
        return True
    same = old.op == "call_function" and old.target is part.target and old.args[1:] == part.args[1:]
    return same and old.target in SCATTERS.values() and _shows(old.args[0], part.args[0])
