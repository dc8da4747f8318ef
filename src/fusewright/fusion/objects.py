"""Objects as structures of arguments: dataclasses, registered classes, and owners of methods.

A dataclass is its fields. Of a registered class its author says what the children are. The owner of
a method is its attributes: arrays, and structures of them, are arguments of every call, numbers and
strings part of what a program is made for, and everything else stays the same object.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

from fusewright.arguments import FUNCTION, instance_of, takes
from fusewright.errors import UserError
from fusewright.fusion.ir import TensorSpec

Opened: TypeAlias = tuple[type, tuple[Any, ...], tuple[Any, ...]]
"""A kind, what tells structures of this kind apart, and the children."""

_PACKAGE = __name__.partition(".")[0]
_ARRAYS = ("__array__", "__dlpack__", "__cuda_array_interface__", "data_ptr")


@dataclass(frozen=True, slots=True, eq=False)
class MethodOwner:
    """The object that a method is called on."""

    instance: Any


class _Same:
    """An object that is equal to itself only."""

    __slots__ = ("value",)

    def __init__(self, value: object) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.value is self.value

    def __hash__(self) -> int:
        return id(self.value)

    def __repr__(self) -> str:
        return f"<{type(self.value).__name__} {id(self.value):#x}>"


@dataclass(frozen=True, slots=True)
class _Registered:
    flatten: Callable[[Any], tuple[Iterable[Any], Any]]
    unflatten: Callable[[Any, tuple[Any, ...]], Any]


_registered: dict[type, _Registered] = {}


@takes(cls=instance_of(type, words="a class"), flatten=FUNCTION, unflatten=FUNCTION)
def register_pytree(
    cls: type,
    flatten: Callable[[Any], tuple[Iterable[Any], Any]],
    unflatten: Callable[[Any, tuple[Any, ...]], Any],
) -> None:
    """Has objects of a class taken apart where arguments and results are: `flatten(x)` returns the
    children, arrays or structures of them, and a hashable description of the rest, and
    `unflatten(rest, children)` the object. Dataclasses need no registration.

    Raises UserError for a class that is a structure already.
    """
    if cls in _registered or issubclass(cls, tuple | list | Mapping):
        raise UserError(
            f"register_pytree: {cls.__name__} is a structure already; register a class of your "
            "own, once"
        )
    _registered[cls] = _Registered(flatten, unflatten)


def is_structure(x: object) -> bool:
    """Whether an object is taken apart where arguments are."""
    kind = type(x)
    return kind in _registered or kind is MethodOwner or _is_record(x)


def _is_record(x: object) -> bool:
    if isinstance(x, type) or not dataclasses.is_dataclass(x) or is_array(x):
        return False
    return type(x).__module__.partition(".")[0] != _PACKAGE  # those of the package are leaves


def is_array(x: object) -> bool:
    """Whether a value is an array, or stands for one."""
    return isinstance(x, TensorSpec) or any(hasattr(type(x), name) for name in _ARRAYS)


def opened(x: object, flat: Callable[[object], list[Any] | None]) -> Opened:
    """A structure taken apart; `flat` gives the leaves of an attribute."""
    kind = type(x)
    if isinstance(x, MethodOwner):
        return _opened_owner(x.instance, flat)
    if kind in _registered:
        children, rest = _registered[kind].flatten(x)
        try:
            hash(rest)
        except TypeError:
            raise UserError(
                f"{kind.__name__}: the description that its flatten returns is not hashable: "
                f"{rest!r}; return a tuple of plain values"
            ) from None
        return kind, (rest,), tuple(children)
    names = tuple(f.name for f in dataclasses.fields(cast("Any", x)))
    return kind, names, tuple(getattr(x, name) for name in names)


def _opened_owner(instance: Any, flat: Callable[[object], list[Any] | None]) -> Opened:
    names: list[str] = []
    children: list[Any] = []
    rest: list[tuple[str, _Same]] = []
    attributes = cast("dict[str, Any]", vars(instance))
    for name, value in attributes.items():
        leaves = flat(value)
        if leaves is not None and all(map(is_array, leaves)):
            names.append(name)
            children.append(value)
        else:
            rest.append((name, _Same(value)))
    cls = cast("object", type(instance))
    return MethodOwner, (cls, tuple(names), tuple(rest)), tuple(children)


def closed(kind: type, keys: tuple[Any, ...], items: list[Any]) -> Any:
    """The object of a kind with these children."""
    if kind in _registered:
        return _registered[kind].unflatten(keys[0], tuple(items))
    if kind is MethodOwner:
        cls, names, rest = keys
        found: dict[str, Any] = {name: same.value for name, same in rest}
        instance = object.__new__(cls)
        cast("dict[str, Any]", vars(instance)).update(found | dict(zip(names, items, strict=True)))
        return MethodOwner(instance)
    made = cast("Any", object.__new__(kind))
    for name, value in zip(keys, items, strict=True):
        object.__setattr__(made, name, value)
    return made


def has_constructor(kind: type) -> bool:
    """Whether a call of the class with its children by name puts an object together."""
    if kind in _registered or not dataclasses.is_dataclass(kind):
        return False
    return all(f.init for f in dataclasses.fields(kind)) and not hasattr(kind, "__post_init__")


def steps(kind: type, keys: tuple[Any, ...]) -> tuple[str, ...]:
    """The names of the children; none where these are numbered."""
    if kind in _registered:
        return ()
    return keys[1] if kind is MethodOwner else keys
