"""Common subexpressions: equal ops of equal operands are computed once."""

from __future__ import annotations

import dataclasses
from functools import cache

from fusewright.core.expr import Var
from fusewright.core.substitution import substitute
from fusewright.dtypes import scalar_text
from fusewright.fusion import ir
from fusewright.fusion.ir import Fusion, Op, Tensor


def cse(fusion: Fusion) -> Fusion:
    """Replaces every value by the first one that is computed the same way.

    rewrite:  a = f(x); b = f(x)   ->   a = f(x)   with b's readers reading a
              return f(x), f(x)    ->   a = f(x); b = copy(a); return a, b
    checks:   two outputs stay two, as whoever called may write to one of them
    order:    first of all, so that patterns and cuts see each value once
    """
    first: dict[object, Tensor] = {}
    new: dict[Tensor, Tensor] = {}
    wanted, stored = set(fusion.outputs), set[Tensor]()
    for t in fusion.values:
        op = ir.with_operands(t.op, tuple(new[o] for o in t.op.operands))
        key = (op_key(op), op.operands, t.shape, t.dtype)
        found = None if isinstance(op, ir.Input) else first.get(key)
        if found is None or (t in wanted and found in stored):
            new[t] = t.with_op(op) if found is None or _is_copy(op) else _copy(t, found)
            first.setdefault(key, new[t])
        else:
            new[t] = found
        if t in wanted:
            stored.add(new[t])
    if all(new[t] is t for t in fusion.values):
        return fusion
    outputs = tuple(new[t] for t in fusion.outputs)
    values = ir.topological(outputs, fusion.inputs)
    return dataclasses.replace(fusion, outputs=outputs, values=values)


def _is_copy(op: Op) -> bool:
    return isinstance(op, ir.Pointwise) and op.fn == "copy"


def _copy(t: Tensor, found: Tensor) -> Tensor:
    """A copy of a value in the place of an output that is computed the same way."""
    return Tensor(t.name, t.shape, t.dtype, ir.Pointwise((found,), "copy"), t.source)


def op_key(op: Op) -> tuple[object, ...]:
    """Equal for ops of one kind with equal attributes, whatever their operands. The coordinates of
    an index map are its own: maps that read the same places are equal."""
    if isinstance(op, ir.IndexMap):
        places = dict(zip(op.coordinates, _coordinates(len(op.coordinates)), strict=True))
        return ("IndexMap", len(places), tuple(substitute(e, places) for e in op.index))
    fields = [
        (name, _field(getattr(op, name))) for name in op.__dataclass_fields__ if name != "operands"
    ]
    return (type(op).__name__, *fields)


@cache
def _coordinates(rank: int) -> tuple[Var, ...]:
    return tuple(Var(f"i{k}") for k in range(rank))


def _field(value: object) -> object:
    """A field as a key: 1, 1.0 and True are different, and so are 0.0 and -0.0."""
    if isinstance(value, bool | int | float):
        return (type(value).__name__, scalar_text(value))
    return value
