"""Bodies of loops and branches: functions recorded as fusions of their own.

What a function uses that was there before it was recorded is an operand of the whole region: the
body reads it, and what it is computed from is computed once, outside. Literals, sizes and
coordinates are made again inside.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from fusewright.arguments import shown
from fusewright.core.expr import Expr
from fusewright.dtypes import data_dtype_of
from fusewright.errors import UserError
from fusewright.fusion import build, ir, trees
from fusewright.fusion.array import Array, as_tensor, check_array
from fusewright.fusion.derivatives import in_order, needed_by
from fusewright.fusion.ir import Fusion, Tensor
from fusewright.fusion.known import Known
from fusewright.fusion.operands import check_scalar, check_size
from fusewright.fusion.rematerialisable import is_rematerialisable
from fusewright.fusion.trees import Tree
from fusewright.fusion.value_names import give_names

VECTOR_ALIGNMENT = 16
"""Bytes to which values between launches are aligned at least."""


def arrays_in(op: str, structure: Any) -> tuple[list[Array], Tree]:
    """The arrays of a structure from left to right, and the structure without them; Python numbers,
    sizes and numbers of the call become arrays of rank 0 of the dtypes that they have without
    one."""
    found, tree = trees.flatten(trees.map_static(_as_array, structure))
    return [_as_array(x) if _is_number(x) else check_array(op, x) for x in found], tree


def _as_array(value: Any) -> Any:
    if value is None or isinstance(value, str):
        return value
    return _PlainNumber(cast("Any", value).item() if isinstance(value, np.generic) else value)


def _is_number(x: object) -> bool:
    return isinstance(x, Expr | np.generic)


class _PlainNumber(Array):
    """A Python number, a size or a number of the call as an array, which may still become one of
    another dtype."""

    def __init__(self, value: bool | int | float | Expr) -> None:
        self.value = value
        kind = int if isinstance(value, Expr) else type(value)
        super().__init__(as_tensor(value, data_dtype_of(kind)))


@dataclass(frozen=True, slots=True)
class Recorded:
    """A function on values of its own, `inputs`, and what it returned; `since`: what is older
    belongs to the program around it."""

    inputs: tuple[Tensor, ...]
    results: tuple[Array, ...]
    tree: Tree
    since: int


def record(
    op: str, fn: Callable[..., Any], args: Sequence[tuple[Sequence[Tensor], Tree]]
) -> Recorded:
    """Runs a function whose arguments have the types of these values in these structures. Raises
    UserError where it takes another number of arguments, or returns something that is no array."""
    since = ir.births()
    flat = [[_stand_in(t) for t in values] for values, _ in args]
    given = [
        trees.unflatten(tree, [Array(t) for t in values])
        for values, (_, tree) in zip(flat, args, strict=True)
    ]
    check_takes(op, fn, len(given))
    names = _names(fn, given)
    inputs = tuple(t for values in flat for t in values)
    for t, name in zip(inputs, names, strict=True):
        t.name = name
    results, tree = arrays_in(f"result of {op}'s function", fn(*given))
    return Recorded(inputs, tuple(results), tree, since)


def check_takes(op: str, fn: Callable[..., Any], count: int) -> None:
    """UserError where a function does not take this number of arguments."""
    try:
        signature = inspect.signature(fn)
    except (TypeError, ValueError):  # a function of C may have none
        return
    try:
        signature.bind(*(None,) * count)
    except TypeError as e:
        label = getattr(fn, "__name__", "the function")
        raise UserError(
            f"{op} calls {label}{signature} with {count} arguments: {e}; give it as many "
            f"parameters as fw.{op} says"
        ) from None


def _stand_in(t: Tensor) -> Tensor:
    strides = ir.contiguous_strides(t.shape)
    return Tensor("", t.shape, t.dtype, ir.Input((), -1, strides, VECTOR_ALIGNMENT))


def _names(fn: Callable[..., Any], args: Sequence[Any]) -> list[str]:
    """A name for every array, from the function's parameters where it has a signature."""
    try:
        found = list(inspect.signature(fn).bind(*args).arguments.items())
    except (TypeError, ValueError):
        found = [(f"x{k}", a) for k, a in enumerate(args)]
    named = [p for name, value in found for p in trees.paths(trees.flatten(value)[1], name)]
    count = sum(trees.count(trees.flatten(a)[1]) for a in args)
    return named if len(named) == count else [f"x{k}" for k in range(count)]


def was_number(x: Array) -> bool:
    """Whether an array stands for a Python number, which takes the dtype of what it meets."""
    return isinstance(x, _PlainNumber)


def like(op: str, what: str, result: Array, wanted: Tensor) -> Tensor:
    """A result as the value that takes its place; a Python number takes its dtype. Raises UserError
    for another shape or dtype, and for a number that the dtype cannot hold."""
    if isinstance(result, _PlainNumber) and not wanted.ndim:
        if isinstance(result.value, Expr):
            check_size(op, result.value, wanted.dtype)
        else:
            check_scalar(f"{op}, {what}", result.value, wanted.dtype)
        return as_tensor(result.value, wanted.dtype)
    t = result.tensor
    if t.shape != wanted.shape or t.dtype is not wanted.dtype:
        raise UserError(
            f"{op}: {what} is {wanted.dtype}{build.shape_text(wanted.shape)}, and the function "
            f"returned {t.dtype}{build.shape_text(t.shape)} for it; shapes and dtypes stay: "
            "cast with fw.astype, reshape, or start from an array of the result's type"
        )
    return t


def check_same_structure(op: str, wanted: tuple[str, Tree], found: tuple[str, Tree]) -> None:
    """Raises UserError where two structures of arrays differ."""
    if trees.key(wanted[1]) != trees.key(found[1]):
        first, second = (_structure_text(tree) for _, tree in (wanted, found))
        raise UserError(
            f"{op}: {wanted[0]} has the structure {first}, {found[0]} {second}; both must have the "
            "same tuples, lists and dicts"
        )


def _structure_text(tree: Tree) -> str:
    return shown(trees.unflatten(tree, [_Star()] * trees.count(tree)))


class _Star:
    """An array in the text of a structure."""

    def __repr__(self) -> str:
        return "*"


# --- fusions ------------------------------------------------------------------------------------


def closed(
    bodies: Sequence[tuple[Sequence[Tensor], Sequence[Tensor]]], since: int
) -> tuple[list[Tensor], tuple[Fusion, ...]]:
    """What bodies, each of inputs and outputs, use of the program around them, and the bodies as
    fusions that take it behind their own inputs."""
    captured: dict[Tensor, None] = {}
    for inputs, outputs in bodies:
        captured |= dict.fromkeys(_captured(inputs, outputs, since))
    shared = list(captured)
    return shared, tuple(_fusion(inputs, shared, outputs) for inputs, outputs in bodies)


def _captured(inputs: Sequence[Tensor], outputs: Sequence[Tensor], since: int) -> list[Tensor]:
    """The values around a body that it reads, in the order in which it comes upon them."""
    own = set(inputs)
    found: dict[Tensor, None] = {}
    seen: set[Tensor] = set()
    stack = list(reversed(outputs))
    while stack:
        t = stack.pop()
        if t in seen or t in own:
            continue
        seen.add(t)
        if (t.born < since and not is_rematerialisable(t)) or (isinstance(t, Known) and t.ndim):
            found[t] = None
            continue
        if isinstance(t.op, ir.Input) and not isinstance(t, Known):
            raise UserError(
                f"the array {t!r} is a value of another loop's or branch's function, which ended; "
                "return it from there"
            )
        stack.extend(reversed(needed_by(t)))
    return list(found)


def _fusion(
    inputs: Sequence[Tensor], shared: Sequence[Tensor], outputs: Sequence[Tensor]
) -> Fusion:
    """The fusion of a body, of values of its own."""
    new: dict[Tensor, Tensor] = {}
    taken: set[str] = set()
    for k, t in enumerate((*inputs, *shared)):
        name = t.name or f"x{k}"
        while name in taken:
            name += "_"
        taken.add(name)
        alignment = t.op.alignment if t in inputs and isinstance(t.op, ir.Input) else 16
        op = ir.Input((), k, ir.contiguous_strides(t.shape), alignment)
        new[t] = Tensor(name, t.shape, t.dtype, op)
    count = len(new)
    for t in in_order(outputs, tuple(new)):
        if isinstance(t, Known):
            new[t] = build.constant(t.data.item(), t.dtype)
            continue
        op = ir.with_operands(t.op, tuple(new[o] for o in t.op.operands))
        name = "" if t.name in taken else t.name
        taken.add(name)
        new[t] = Tensor(name, t.shape, t.dtype, op, t.source)
        if t.rule is not None:
            new[t].rule = t.rule.among(new)
    made: list[Tensor] = []
    for t in outputs:
        is_own = new[t] not in made and not isinstance(new[t].op, ir.Input)
        made.append(new[t] if is_own else build.pointwise("copy", new[t]))
    first = tuple(new.values())[:count]
    values = ir.topological(tuple(made), first)
    give_names(values)
    return Fusion(first, tuple(made), values)
