"""Segments: the groups of a cut as fusions of their own, one kernel each."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from fusewright.dtypes import DType
from fusewright.fusion.ir import (
    Constant,
    Fusion,
    Input,
    Pointwise,
    Scalar,
    Tensor,
    topological,
    with_operands,
)
from fusewright.fusion.literals import is_parameter, values_in_text
from fusewright.fusion.passes.cse import op_key
from fusewright.fusion.passes.fold_crops import is_crop
from fusewright.fusion.rematerialisable import is_rematerialisable
from fusewright.fusion.rounded import is_short, rounded_values
from fusewright.host.moves import Moves
from fusewright.host.reads import reads_of, within
from fusewright.host.subspans import VECTOR_ALIGNMENT, Range, Subspan, natural
from fusewright.schedule.graph import Dataflow


@dataclass(frozen=True, slots=True)
class Segment:
    """One kernel's fusion, and where its inputs and outputs lie: sites of the whole program's
    tensors. A value that is written to several sites is an output several times. `fills`: what the
    kernel fills beside that. `rounded`: the outputs, by position, of which 16 bits or fewer are
    kept in the end."""

    fusion: Fusion
    reads: tuple[Subspan, ...]
    writes: tuple[Subspan, ...]
    fills: Moves | None = None
    rounded: frozenset[int] = frozenset()

    def dataflow(self) -> Dataflow:
        """A dataflow to schedule, whose outputs know where they lie inside of other memory, and
        what is kept of them."""
        flow = Dataflow(self.fusion)
        for k, (stage, site) in enumerate(zip(flow.outputs, self.writes, strict=True)):
            stage.is_rounded = k in self.rounded
            if not is_usual(site):
                stage.strides, stage.alignment = site.strides, site.alignment
                stage.begins_anywhere = bool(site.places)
        return flow

    @property
    def places(self) -> tuple[Subspan, ...]:
        """Where the integers lie that say where its kernel writes."""
        return tuple(p for s in self.writes for p in s.places)

    @property
    def decided_by(self) -> object:
        """What a schedule is chosen by: groups of which this is equal get the same."""
        return structure_of(self.fusion)[0], self.layouts

    @property
    def spelled_by(self) -> object:
        """What groups that are decided alike are told apart by: names, and the values of scalars.
        The dataflows of groups of which this is equal, too, are."""
        return tuple(t.name for t in self.fusion.values), structure_of(self.fusion)[1]

    @property
    def layouts(self) -> tuple[object, ...]:
        """What its kernel must know of what it writes: where that lies, None for memory that is as
        usual, and whether more than 16 bits of it are kept."""
        layouts = (None if is_usual(s) else s.layout for s in self.writes)
        return tuple(("rounded", x) if k in self.rounded else x for k, x in enumerate(layouts))


def is_usual(site: Subspan) -> bool:
    """Whether a site is all of a root, as aligned as roots usually are."""
    return site.is_whole and site.alignment >= VECTOR_ALIGNMENT


def segments(
    fusion: Fusion,
    items: Sequence[tuple[Tensor, ...] | Moves],
    sites: Mapping[Tensor, Sequence[Subspan]],
    joined: Sequence[Tensor] = (),
) -> tuple[Segment | Moves, ...]:
    """The segments of groups in execution order, moves between them. `sites`: where values lie,
    those without an entry in memory of their own; a value that several groups compute is stored by
    the first of them, one of those `joined` by none: others write its pieces there."""
    wanted = stored_values(fusion, [x for x in items if not isinstance(x, Moves)])
    wanted |= dict.fromkeys(sites)
    wanted |= {p.tensor: None for found in sites.values() for s in found for p in s.places}
    wanted |= {s.tensor: None for x in items if isinstance(x, Moves) for s in x.reads}
    made: set[Tensor] = set(joined)
    fine = rounded_values(fusion)
    out: list[Segment | Moves] = []
    for group in items:
        if isinstance(group, Moves):
            out.append(group)
            continue
        outputs = tuple(t for t in group if t in wanted and t not in made)
        made.update(outputs)
        out.append(_segment(group, outputs, sites, fine))
    return tuple(out)


def stored_values(fusion: Fusion, groups: Sequence[tuple[Tensor, ...]]) -> dict[Tensor, None]:
    """The values that have memory: outputs, and what one group makes and another reads."""
    wanted: dict[Tensor, None] = dict.fromkeys(fusion.outputs)
    for g in groups:
        members = set(g)
        for t in g:
            wanted |= {
                o: None for o in t.op.operands if o not in members and not is_rematerialisable(o)
            }
    return wanted


def _segment(
    group: tuple[Tensor, ...],
    outputs: tuple[Tensor, ...],
    sites: Mapping[Tensor, Sequence[Subspan]],
    fine: Collection[Tensor],
) -> Segment:
    """The segment of a group. A crop that is all of what is read of a value, and stored too, is a
    copy of that, which its readers see: they are tied to it as formation tied them."""
    members = set(group)
    external: dict[Tensor, None] = {}
    for t in group:
        if isinstance(t.op, Input):
            external[t] = None
        for o in t.op.operands:
            if o not in members and not is_rematerialisable(o):
                external[o] = None
    made: dict[Tensor, Tensor] = {}
    inputs: list[Tensor] = []
    reads: list[Subspan] = []
    for position, r in enumerate(reads_of(group, list(external))):
        known = r.value in sites and r.value not in members
        site = sites[r.value][0] if known else natural(r.value)
        if r.crops:
            site = site.part(r.box)
        op = _as_input(site, position)
        bound = Tensor(r.value.name, site.shape, r.value.dtype, op, r.value.source)
        made |= {c: _cropped(c, r.box, bound) for c in r.crops} or {r.value: bound}
        inputs.append(bound)
        reads.append(site)
    for t in outputs:
        if t in made and isinstance(made[t].op, Input):
            made[t] = t.with_op(Pointwise((made[t],), "copy"))
    for t in group:
        if t not in made:
            _copy(t, made)
    stores = [(t, site) for t in outputs for site in sites.get(t, (natural(t),))]
    results = tuple(made[t] for t, _ in stores)
    whole = Fusion(tuple(inputs), results, topological(results, tuple(inputs)))
    _name_apart(whole)
    rounded = frozenset(k for k, (t, _) in enumerate(stores) if t in fine and not is_short(t.dtype))
    return Segment(whole, tuple(reads), tuple(site for _, site in stores), rounded=rounded)


def _name_apart(fusion: Fusion) -> None:
    """Gives the second and later parts of one value that a kernel reads names of their own."""
    taken = {t.name for t in fusion.values}
    seen: set[str] = set()
    for t in fusion.inputs:
        name, number = t.name, 0
        while t.name in seen or (number and t.name in taken):
            number += 1
            t.name = f"{name}_{number}"
        seen.add(t.name)


def _cropped(crop: Tensor, box: Sequence[Range], bound: Tensor) -> Tensor:
    """A move inside of the box of its operand that is bound: the binding where it is a crop that
    takes all of it."""
    if is_crop(crop) and crop.shape == bound.shape:
        return bound
    op = with_operands(within(crop, box), (bound,))
    return crop.with_op(op)


def _as_input(site: Subspan, position: int) -> Input:
    op = site.root.op
    alignment = op.alignment if isinstance(op, Input) and site.is_whole else site.alignment
    return Input((), position, site.strides, alignment)


def _copy(t: Tensor, made: dict[Tensor, Tensor]) -> Tensor:
    """The tensor rebuilt over the segment's inputs; literals are copied along."""
    if t not in made:
        operands = tuple(_copy(o, made) for o in t.op.operands)
        made[t] = t.with_op(with_operands(t.op, operands))
    return made[t]


@dataclass(frozen=True, slots=True)
class ScalarParameter:
    """A scalar that a kernel takes as a parameter; `text` tells 2 from 2.0 and 0.0 from -0.0."""

    value: Scalar
    dtype: DType
    text: str


def parameter(value: Scalar, dtype: DType) -> ScalarParameter:
    """The parameter for a literal of a compute dtype."""
    return ScalarParameter(value, dtype, f"{type(value).__name__} {value!r}")


def structure_of(fusion: Fusion) -> tuple[object, tuple[ScalarParameter, ...]]:
    """(key, parameters): the key is equal for fusions that differ only in the names of their
    tensors and in the values of the scalars that kernels take as parameters. A literal that one op
    needs in the text and another reads as a parameter is both."""
    number = {t: i for i, t in enumerate(fusion.values)}
    parameters: dict[ScalarParameter, int] = {}
    out: list[object] = []
    in_text = values_in_text(fusion)
    for t in fusion.values:
        kind: object = op_key(t.op)
        if isinstance(t.op, Constant) and is_parameter(t.op.value):
            p = parameter(t.op.value, t.dtype.compute)
            text = p.text if t in in_text else None
            kind = ("parameter", parameters.setdefault(p, len(parameters)), text)
        out.append((kind, tuple(number[o] for o in t.op.operands), t.shape, t.dtype))
    out.append(tuple(number[t] for t in fusion.inputs))
    out.append(tuple(number[t] for t in fusion.outputs))
    return tuple(out), tuple(parameters)
