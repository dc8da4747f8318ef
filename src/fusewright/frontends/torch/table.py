"""The table of aten operators that can be fused, and how one call of them is traced.

A lowering is a function `(out, *args, **kwargs)` with the operator's own arguments: arrays where
torch has tensors, integers or shape expressions where it has sizes. `out` has the dtype of each
result, as torch promotes. A lowering that cannot take its arguments raises FusewrightError, which
leaves the call to torch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

from fusewright.dtypes import DType
from fusewright.frontends.torch.library import aten
from fusewright.fusion.array import Array

Dtypes: TypeAlias = tuple[DType, ...]
Result: TypeAlias = "Array | tuple[Array | None, ...]"
Lowering: TypeAlias = Callable[..., Result]
L = TypeVar("L", bound=Lowering)

LOWERINGS: dict[Any, Lowering] = {}
VIEWS: dict[Any, None] = {}
CREATIONS: dict[Any, None] = {}
ELEMENTWISE: dict[Any, None] = {}
OWN: dict[Any, None] = {}
"""Operators that no kernel of torch computes, so that each is worth a region."""


def overloads(packet: Any) -> list[Any]:
    """The overloads of an operator that return new tensors (not the `out=` forms)."""
    found = [getattr(packet, name) for name in packet.overloads()]
    return [o for o in found if not o._schema.is_mutable]


def lowers(*targets: Any) -> Callable[[L], L]:
    """Enters a lowering for overloads; for a packet, all its functional ones."""

    def enter(lowering: L) -> L:
        for target in targets:
            several = overloads(target) if hasattr(target, "overloads") else [target]
            LOWERINGS.update(dict.fromkeys(several, lowering))
        return lowering

    return enter


def lowers_view(*targets: Any) -> Callable[[L], L]:
    """`lowers`, for operators whose result shares its operand's memory in torch, and for those that
    copy it instead, as bodies of control flow do (`select` and `select_copy`)."""

    def enter(lowering: L) -> L:
        VIEWS.update(dict.fromkeys(targets))
        copies = (c for target in targets if (c := _copying(target)) is not None)
        return lowers(*targets, *copies)(lowering)

    return enter


def _copying(target: Any) -> Any:
    """The operator that gives a copy of what a view shows; None where there is none."""
    packet = getattr(aten, f"{target._schema.name.split('::')[1]}_copy", None)
    return None if packet is None else getattr(packet, target._overloadname, None)


def lowers_elementwise(*targets: Any) -> Callable[[L], L]:
    """`lowers`, for operators of which an element of the result takes one of each operand."""

    def enter(lowering: L) -> L:
        for target in targets:
            several = overloads(target) if hasattr(target, "overloads") else [target]
            ELEMENTWISE.update(dict.fromkeys(several))
        return lowers(*targets)(lowering)

    return enter


def lowers_own(*targets: Any) -> Callable[[L], L]:
    """`lowers`, for operators that a graph has only because kernels here compute them."""

    def enter(lowering: L) -> L:
        OWN.update(dict.fromkeys(targets))
        return lowers(*targets)(lowering)

    return enter


def lowers_creation(*targets: Any) -> Callable[[L], L]:
    """`lowers`, for operators that read no elements, so that repeating them costs no memory."""

    def enter(lowering: L) -> L:
        CREATIONS.update(dict.fromkeys(targets))
        return lowers(*targets)(lowering)

    return enter


def positional(target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """The arguments with those that were given by name at their places. Keyword-only ones stay in
    `kwargs`, which loses the others."""
    given = list(args)
    for argument in target._schema.arguments[len(args) :]:
        if argument.kwarg_only or argument.name not in kwargs:
            break
        given.append(kwargs.pop(argument.name))
    return tuple(given)
