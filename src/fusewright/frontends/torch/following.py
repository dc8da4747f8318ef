"""What operators compute element by element of a product's result: facts that decide whether one
kernel computes both."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from fusewright.core.instructions import INSTRUCTIONS
from fusewright.errors import FusewrightError
from fusewright.frontends.torch.calls import hint, is_getitem, is_view, tensors_of, trace_node
from fusewright.frontends.torch.library import aten, prims
from fusewright.frontends.torch.table import ELEMENTWISE, overloads
from fusewright.fusion.array import Array
from fusewright.fusion.ir import Pointwise, TensorSpec, constant_shape
from fusewright.fusion.trace import trace

CASTS = (prims.convert_element_type.default, *overloads(aten._to_copy))


@dataclass(frozen=True, slots=True)
class Following:
    """For each place of a product's result: instructions of what is computed of it, bytes of
    tensors of as many places that are read for that (`loaded`), and of values that unfused
    operators or the caller read (`stored`); bytes of a value that other fused operators read, such
    as reductions, 0 if none do (`reduced`), and those of them that are not `stored` anyway."""

    instructions: float
    loaded: int
    stored: int
    reduced: int
    handed_on: int


def following(product: Any, reasons: Mapping[Any, str]) -> Following:
    """What follows a product whose readers are all elementwise. `reasons` are those of the nodes
    that cannot be fused."""
    cone = _cone(product, reasons)
    beside = _beside(cone, reasons)
    computed = [n for n in product.graph.nodes if n in beside or (n in cone and n is not product)]
    own = dict.fromkeys((product, *computed))
    read = dict.fromkeys(n for x in computed for n in x.all_input_nodes if n not in own)
    loaded = sum(_itemsize(n) for n in read if _places(n) == _places(product))
    stored: list[int] = []
    reduced: list[int] = []
    for x in cone:
        others = [u for u in x.users if u not in cone]
        fused = [u for u in others if u.op == "call_function" and u not in reasons]
        if len(fused) < len(others):
            stored.append(_itemsize(x))
        if fused:
            reduced.append(_itemsize(x))
    given = max(reduced, default=0)
    return Following(
        _instructions(product, computed, tuple(read)),
        loaded,
        sum(stored),
        given,
        0 if given in stored else given,
    )


def readers_beyond(node: Any) -> Iterator[Any]:
    """Who reads a result, also through views, and through casts, which readers do themselves: a
    kernel that a cast had to itself would be none."""
    for n in node.users:
        if n.target in CASTS or _is_view_of_tensor(n):
            yield from readers_beyond(n)
        else:
            yield n


def _cone(product: Any, reasons: Mapping[Any, str]) -> dict[Any, None]:
    """The product, and what is computed of it element by element and of nothing else that depends
    on it."""
    cone: dict[Any, None] = {product: None}
    behind: dict[Any, None] = {}
    for n in product.graph.nodes:
        read = [x for x in n.all_input_nodes if x in cone or x in behind]
        if not read:
            continue
        joins = _is_elementwise(n, reasons) and _places(n) == _places(product)
        if joins and not any(x in behind for x in read):
            cone[n] = None
        else:
            behind[n] = None
    return cone


def _beside(cone: Mapping[Any, None], reasons: Mapping[Any, str]) -> dict[Any, None]:
    """What is computed element by element for the values of a cone alone, of other tensors."""
    found: dict[Any, None] = {}
    places = max(map(_places, cone))
    for n in reversed(next(iter(cone)).graph.nodes):
        if n in cone or not n.users or any(u not in cone and u not in found for u in n.users):
            continue
        if _is_elementwise(n, reasons) and _places(n) == places:
            found[n] = None
    return found


def _is_elementwise(n: Any, reasons: Mapping[Any, str]) -> bool:
    """Whether a fused operator computes an element of one of each operand, or is a view."""
    known = n.target in CASTS or n.target in ELEMENTWISE or _is_view_of_tensor(n)
    return known and n not in reasons


def _is_view_of_tensor(n: Any) -> bool:
    has_value = any(True for _ in tensors_of(n.meta.get("val")))
    return is_view(n) and not is_getitem(n) and has_value


def _places(n: Any) -> int:
    """The elements of a tensor; 0 for other values."""
    value = n.meta.get("val")
    return prod(map(hint, value.shape)) if hasattr(value, "shape") else 0


def _itemsize(n: Any) -> int:
    return n.meta["val"].dtype.itemsize


def _instructions(product: Any, computed: Sequence[Any], read: Sequence[Any]) -> float:
    """Instructions of the fast forms of functions, as 16 bits of a result need; none where the
    operators cannot be traced together."""
    arrays = [n for n in (product, *read) if hasattr(n.meta.get("val"), "shape")]

    def traced(*operands: Array) -> list[Array]:
        known: dict[Any, Any] = dict(zip(arrays, operands, strict=True))
        known |= {n: hint(n.meta["val"]) for n in read if n not in known}
        for x in computed:
            known[x] = trace_node(x, known)
        return [known[x] for x in computed]

    try:
        values = [n.meta["val"] for n in arrays]
        fusion = trace(traced, *(TensorSpec(tuple(map(hint, t.shape)), t.dtype) for t in values))
    except FusewrightError:
        return 0.0
    places = _places(product)
    sized = (t for t in fusion.values if prod(constant_shape(t) or ()) == places)
    named = (t.op.fn for t in sized if isinstance(t.op, Pointwise))
    return sum(INSTRUCTIONS.get(fn, (1, 1))[1] for fn in named)
