"""Where the tensors of a graph lie, as one call of it shows, and which views need not be made.

A view is sizes, strides and a distance from the start of another tensor. What only our kernels read
is an address; what plain operators of torch read is made without a call of an operator.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any, cast

from fusewright.frontends.torch.calls import is_getitem, is_view, whole
from fusewright.frontends.torch.library import fx, torch
from fusewright.frontends.torch.plain_strides import is_dense
from fusewright.frontends.torch.region import FusedRegion


@dataclass(frozen=True, slots=True)
class Lying:
    """How a tensor lay in the memory at an address; strides and offset in elements."""

    memory: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    dtype: Any

    @property
    def nbytes(self) -> int:
        """The distance from the start of the memory in bytes."""
        return self.offset * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class ViewPlace:
    """A view by the tensor whose memory it shows, and the elements between their starts."""

    root: Any
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    distance: int
    nbytes: int
    """The distance in bytes."""


class Observer(fx.Interpreter):  # type: ignore[name-defined, misc]
    """Runs a graph node by node, and notes how its tensors lie."""

    def __init__(self, module: Any) -> None:
        super().__init__(module)  # pyright: ignore[reportUnknownMemberType]
        self.extra_traceback = False  # what an operator raises is the caller's, as it is
        self.found: dict[Any, Lying] = {}
        self.may_require_grad = False
        """Whether an argument of the graph requires gradients, or shows one that does."""

    def called(self, boxed: list[Any]) -> Any:
        """The graph's results for a list of arguments, which is emptied."""
        names = [n for n in self.module.graph.nodes if n.op == "placeholder"]
        known = dict(zip(names, boxed, strict=True))
        boxed.clear()
        for n, x in known.items():
            self._note(n, x)
            if isinstance(x, torch.Tensor):
                base = x._base
                self.may_require_grad |= x.requires_grad or (
                    base is not None and base.requires_grad
                )
        try:
            return self.run(initial_env=known, enable_io_processing=False)
        finally:
            self.env = {}  # no call keeps what it made

    def run_node(self, n: Any) -> Any:
        made = fx.Interpreter.run_node(self, n)
        self._note(n, made)
        return made

    def _note(self, n: Any, x: Any) -> None:
        if type(x) not in (torch.Tensor, torch.nn.Parameter) or x.layout is not torch.strided:
            return
        if x.is_neg() or x.is_conj() or x._is_zerotensor():  # the last one has no memory
            return
        memory = x.untyped_storage().data_ptr()
        self.found[n] = Lying(
            memory, tuple(x.shape), tuple(x.stride()), x.storage_offset(), x.dtype
        )


def places_of(
    graph: Any, found: Mapping[Any, Lying], reads_addresses: Callable[[Any], bool]
) -> dict[Any, ViewPlace]:
    """The views that need no call of torch, each by its root.

    checks:   sizes and strides of a view and its root are plain numbers, and were as torch said
              when it traced the graph; all that reads the view, and views of it, are calls that
              read addresses, or operators that write to nothing and return new tensors, or the
              caller, if nothing else of that memory is an argument or a result: so nobody can
              write to it through another tensor, which torch counts for all views together
    """
    nodes = list(graph.nodes)
    places: dict[Any, ViewPlace] = {}
    for n in nodes:
        if is_view(n) and (place := _place(n, found)) is not None:
            places[n] = place
    returned = _shown_once(nodes)

    def fits(n: Any, u: Any) -> bool:
        if u.op == "output":
            return whole(n) in returned
        return u in kept or reads_addresses(u) or is_plain(u)

    kept: dict[Any, ViewPlace] = {}
    for n in reversed(nodes):
        if is_view(n) and isinstance(n.meta.get("val"), list | tuple):
            if all(u in kept for u in n.users):
                kept[n] = ViewPlace(whole(n), (), (), 0, 0)  # only its elements are shown
        elif n in places and all(fits(n, u) for u in n.users):
            kept[n] = places[n]
    return {n: kept[n] for n in nodes if n in kept}


def made_as_views(
    places: Mapping[Any, ViewPlace],
    results: Mapping[Any, tuple[Sequence[int], Sequence[int]]],
    reads_addresses: Callable[[Any], bool],
) -> dict[Any, Any]:
    """The views as which results of regions can be allocated, whose sizes and strides are given: so
    the view that an operator of torch reads first costs nothing.

    checks:   nobody reads the result but calls that read addresses, and other views of it; the view
              begins where the result does, and shows each of its elements once
    """
    found: dict[Any, Any] = {}
    for view, place in places.items():
        r = place.root
        if r not in results or r in found:
            continue
        shape, strides = results[r]
        whole_of_it = place.distance == 0 and prod(place.shape) == prod(shape)
        dense = is_dense(shape, strides) and is_dense(place.shape, place.strides)
        is_read = any(not reads_addresses(u) and u not in places for u in view.users)
        unseen = all(reads_addresses(u) or u in places for u in r.users)
        if whole_of_it and dense and is_read and unseen and not is_getitem(view):
            found[r] = view
    return found


def rooted_in(
    places: Mapping[Any, ViewPlace],
    views: Mapping[Any, Any],
    results: Mapping[Any, tuple[Sequence[int], Sequence[int]]],
) -> dict[Any, ViewPlace]:
    """The places where results are made as `views` of them: each result is then a view of that one,
    as all other views of it are."""
    made = set(views.values())
    out = {
        v: replace(p, root=views.get(p.root, p.root)) for v, p in places.items() if v not in made
    }
    for r, view in views.items():
        shape, strides = results[r]
        out[r] = ViewPlace(view, tuple(shape), tuple(strides), 0, 0)
    return out


def _shown_once(nodes: Sequence[Any]) -> dict[Any, None]:
    """What is made in the graph, and shown by one of its results."""
    results = [whole(r) for n in nodes if n.op == "output" for r in _nodes(n.args[0])]
    count = Counter(results)
    return {r: None for r in results if count[r] == 1 and _is_new(r)}


def _nodes(value: Any) -> list[Any]:
    if isinstance(value, fx.Node):
        return [value]
    if isinstance(value, list | tuple):
        return [n for v in cast("Sequence[Any]", value) for n in _nodes(v)]
    return []


def _is_new(node: Any) -> bool:
    """Whether a node's tensor has memory of its own."""
    source = node.args[0] if is_getitem(node) else node
    return isinstance(source.target, FusedRegion) or is_plain(source)


def _place(view: Any, found: Mapping[Any, Lying]) -> ViewPlace | None:
    root = whole(view)
    if not (_is_known(root, found) and _is_known(view, found)):
        return None
    x, base = found[view], found[root]
    if x.memory != base.memory or x.dtype is not base.dtype:
        return None
    distance = x.offset - base.offset
    return ViewPlace(root, x.shape, x.strides, distance, distance * x.dtype.itemsize)


def _is_known(node: Any, found: Mapping[Any, Lying]) -> bool:
    """Whether a tensor lay as torch said beforehand."""
    value = node.meta.get("val")
    if node not in found or not isinstance(value, torch.Tensor):
        return False
    numbers: Sequence[Any] = (*value.shape, *value.stride())
    if not all(isinstance(x, int) for x in numbers):
        return False
    x = found[node]
    return (x.shape, x.strides) == (tuple(value.shape), tuple(value.stride()))


def is_plain(node: Any) -> bool:
    """Whether a node is an operator that writes to nothing, and returns tensors of their own."""
    if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
        return False
    schema = node.target._schema
    if is_view(node) or schema.is_mutable:
        return False
    return not any(x.alias_info for x in (*schema.arguments, *schema.returns))


def moves_memory(graph: Any) -> bool:
    """Whether an operator gives tensors other memory, so that addresses do not stay."""
    names = [getattr(getattr(n.target, "_schema", None), "name", "") for n in graph.nodes]
    return any("resize" in name or name.split("::")[-1].startswith("set_") for name in names)
