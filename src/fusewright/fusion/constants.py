"""Arrays that a traced function uses and that are none of its arguments.

Data that the function captured, or made with `fw.asarray`, are inputs of the fusion behind those of
the arguments. They hold their elements, as they were when the function was traced, and calls leave
them out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from fusewright.fusion import build, ir
from fusewright.fusion.ir import Tensor
from fusewright.fusion.known import Known

T = TypeVar("T")


def with_constants(
    inputs: tuple[Tensor, ...], outputs: tuple[Tensor, ...]
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Inputs and outputs where captured data are inputs too, equal ones once; data of rank 0 are
    literals."""
    values = ir.topological(outputs, inputs)
    if not any(isinstance(t, Known) for t in values):
        return inputs, outputs
    new: dict[Tensor, Tensor] = {}
    held: dict[tuple[object, ...], Tensor] = {}
    for t in values:
        if not isinstance(t, Known):
            operands = tuple(new.get(o, o) for o in t.op.operands)
            new[t] = t.with_op(ir.with_operands(t.op, operands))
        elif t.dtype.is_complex:
            new[t] = t
        elif t.ndim == 0:
            new[t] = build.constant(t.data.item(), t.dtype)
            new[t].name = t.name
        else:
            key = t.dtype, t.data.shape, t.data.tobytes()
            if key not in held:
                held[key] = t.at(len(inputs) + len(held))
            new[t] = held[key]
    return (*inputs, *held.values()), tuple(new[t] for t in outputs)


def constants_of(inputs: Sequence[Tensor]) -> list[Any]:
    """The data of the inputs that calls leave out."""
    return [t.data for t in inputs if isinstance(t, Known)]


def completed(inputs: Sequence[Tensor], given: Sequence[T], held: Sequence[T]) -> list[T]:
    """What a call gives, and behind it the constants where these are exactly what is missing."""
    is_call = held and len(given) == len(inputs) - len(held)
    return [*given, *held] if is_call else list(given)
