"""Segments: the groups of a cut as fusions of their own, one kernel each."""

from __future__ import annotations

from dataclasses import dataclass

from fusewright.dtypes import DType
from fusewright.fusion.ir import (
    Constant,
    Fusion,
    Input,
    Scalar,
    Tensor,
    contiguous_strides,
    topological,
    with_operands,
)
from fusewright.fusion.passes.share import op_key
from fusewright.host.form import Cut
from fusewright.host.groups import is_leaf
from fusewright.kir.reading import is_parameter

ARENA_ALIGNMENT = 256


@dataclass(frozen=True, slots=True)
class Segment:
    """One kernel's fusion, and the tensors of the whole program behind its inputs and outputs."""

    fusion: Fusion
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]


def segments(fusion: Fusion, cut: Cut) -> tuple[Segment, ...]:
    """The segments of a cut, in execution order."""
    wanted: dict[Tensor, None] = dict.fromkeys(fusion.outputs)
    for group in cut.groups:
        members = set(group)
        for t in group:
            wanted |= {o: None for o in t.op.operands if o not in members and not is_leaf(o)}
    return tuple(_segment(group, wanted) for group in cut.groups)


def _segment(group: tuple[Tensor, ...], wanted: dict[Tensor, None]) -> Segment:
    members = set(group)
    external: dict[Tensor, None] = {}
    for t in group:
        if isinstance(t.op, Input):
            external[t] = None
        for o in t.op.operands:
            if o not in members and not is_leaf(o):
                external[o] = None
    made: dict[Tensor, Tensor] = {}
    for position, t in enumerate(external):
        op = _as_input(t, position)
        made[t] = Tensor(t.name, t.shape, t.dtype, op)
    for t in group:
        if t not in made:
            _copy(t, made)
    outputs = tuple(t for t in group if t in wanted)
    inputs = tuple(made[t] for t in external)
    results = tuple(made[t] for t in outputs)
    return Segment(Fusion(inputs, results, topological(results, inputs)), tuple(external), outputs)


def _as_input(t: Tensor, position: int) -> Input:
    if isinstance(t.op, Input):
        return Input((), position, t.op.strides, t.op.alignment)
    return Input((), position, contiguous_strides(t.shape), ARENA_ALIGNMENT)


def _copy(t: Tensor, made: dict[Tensor, Tensor]) -> Tensor:
    """The tensor rebuilt over the segment's inputs; literals are copied along."""
    if t not in made:
        operands = tuple(_copy(o, made) for o in t.op.operands)
        made[t] = Tensor(t.name, t.shape, t.dtype, with_operands(t.op, operands))
    return made[t]


@dataclass(frozen=True, slots=True)
class Parameter:
    """A scalar that a kernel takes as a parameter; `text` tells 2 from 2.0 and 0.0 from -0.0."""

    value: Scalar
    dtype: DType
    text: str


def parameter(value: Scalar, dtype: DType) -> Parameter:
    """The parameter for a literal of a compute dtype."""
    return Parameter(value, dtype, f"{type(value).__name__} {value!r}")


def structure_of(fusion: Fusion) -> tuple[object, tuple[Parameter, ...]]:
    """(key, parameters): the key is equal for fusions that differ only in the names of their
    tensors and in the values of the scalars that kernels take as parameters."""
    number = {t: i for i, t in enumerate(fusion.values)}
    parameters: dict[Parameter, int] = {}
    out: list[object] = []
    for t in fusion.values:
        kind: object = op_key(t.op)
        if isinstance(t.op, Constant) and is_parameter(t.op.value):
            p = parameter(t.op.value, t.dtype.compute)
            kind = ("parameter", parameters.setdefault(p, len(parameters)))
        out.append((kind, tuple(number[o] for o in t.op.operands), t.shape, t.dtype))
    out.append(tuple(number[t] for t in fusion.inputs))
    out.append(tuple(number[t] for t in fusion.outputs))
    return tuple(out), tuple(parameters)
