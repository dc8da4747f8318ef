"""Reductions and scans of which only a part is read are computed for that part."""

from __future__ import annotations

from collections.abc import Mapping

from fusewright.core.expr import ZERO, add
from fusewright.fusion.ir import (
    Broadcast,
    Fusion,
    Permute,
    Pointwise,
    Reduce,
    Reshape,
    Resize,
    Scan,
    Tensor,
    with_operands,
)
from fusewright.fusion.passes.fold_crops import crop_of, is_crop, padded
from fusewright.fusion.passes.hoist_crops import WHOLE, Edges, edges_of_operand
from fusewright.fusion.passes.rebuild import rebuild

Readers = Mapping[Tensor, tuple[Tensor, ...]]
Readings = Mapping[Tensor, Tensor]
"""For values of a fusion, those that its readers read instead."""


def crop_reductions(fusion: Fusion) -> Fusion:
    """Move a crop in front of the reductions that it looks through, along the axes they keep, and
    of scans, also where it leaves what they begin with along their axis.

    rewrite:  layer_norm(x)[:, -1:]             ->  layer_norm(x[:, -1:])
              cumulative_sum(x, axis=1)[:, :k]  ->  cumulative_sum(x[:, :k], axis=1)
    checks:   nothing but the crop reads what is then computed in part
    order:    behind decompose, which spells norms in reductions; before hoist_crops, which takes
              the crops on through views
    """
    return _in_part(fusion, {t: t for t in fusion.values if is_crop(t)})


def crop_shifts(fusion: Fusion) -> Fusion:
    """The same of what shifts take off one end, where they pad the other: what is left is computed
    in part, and put into its place.

    rewrite:  shift(softmax(x), 3, axis=0)  ->  pad(softmax(x[:-3]), 3)
    checks:   nothing but the shift reads what is then computed in part
    order:    as another form of the fusion, whose predicted time decides: hoist_moves computes the
              whole result in one kernel, of which a part is replaced
    """
    crops = {t: crop for t in fusion.values if (crop := crop_of(t)) is not None}
    return _in_part(fusion, crops)


def _in_part(fusion: Fusion, crops: Mapping[Tensor, Tensor]) -> Fusion:
    """The values that crop others first, by what they crop them to, of values in part."""
    uses, outputs = fusion.uses(), set(fusion.outputs)
    parts = {t: _CroppedPart(uses, outputs, t, crop) for t, crop in crops.items()}
    found = {t: part for t, part in parts.items() if part.spares_some()}
    now: dict[Tensor, Tensor] = {}

    def replace(t: Tensor, operands: tuple[Tensor, ...]) -> Tensor | None:
        now.update(zip(t.op.operands, operands, strict=True))
        if t not in found:
            return None
        made = found[t].made(now)
        return made if crops[t] is t else padded(made, t)

    return rebuild(fusion, replace) if found else fusion


class _CroppedPart:
    """The values that the `crop` of a reader alone needs, each with what is taken off it. What
    these are computed from may be replaced itself."""

    def __init__(self, uses: Readers, outputs: set[Tensor], reader: Tensor, crop: Tensor) -> None:
        assert isinstance(crop.op, Resize)
        self._uses = uses
        self._outputs = outputs
        self._reader = reader
        self._whole = crop.op.operands[0]
        self._taken = tuple(zip(crop.op.low, crop.op.high, strict=True))
        self._edges: dict[Tensor, Edges] = {}
        self._known: dict[Tensor, Tensor] = {}

    def spares_some(self) -> bool:
        """Whether a reduction or a scan is computed in part."""
        return self._visit(self._whole, self._taken, {self._reader}) and any(
            isinstance(t.op, Reduce | Scan) for t in self._edges
        )

    def made(self, now: Readings) -> Tensor:
        """The crop as what it is a crop of, computed in part, of values as they are by `now`."""
        return self._value(self._whole, self._taken, now)

    def _visit(self, root: Tensor, edges: Edges, readers: set[Tensor]) -> bool:
        """Notes the values behind a crop as far as nothing else reads them: users before what they
        use. False where the first one is read elsewhere, or two users need different parts."""
        waiting = [(root, edges)]
        inside = set(readers)
        asked: dict[Tensor, Edges] = {}
        while waiting:
            t, own = waiting.pop()
            if asked.setdefault(t, own) != own:
                return False
            if t in self._edges or t in self._outputs or not self._is_own(t, inside):
                continue
            below = [_edges_below(t, k, own) for k in range(len(t.op.operands))]
            if not below or any(b is None for b in below):
                continue
            self._edges[t] = own
            inside.add(t)
            waiting += [(o, b) for o, b in zip(t.op.operands, below, strict=True) if b is not None]
        return root in self._edges

    def _is_own(self, t: Tensor, inside: set[Tensor]) -> bool:
        return all(u in inside for u in self._uses[t])

    def _value(self, t: Tensor, edges: Edges, now: Readings) -> Tensor:
        """A value without what is taken off it."""
        if all(e == WHOLE for e in edges):
            return now[t]
        if t in self._known:
            return self._known[t]
        shape = tuple(add(n, *e) for n, e in zip(t.shape, edges, strict=True))
        if self._edges.get(t) != edges:
            low, high = tuple(a for a, _ in edges), tuple(b for _, b in edges)
            fill = t.dtype.numpy.type(0).item()
            return Tensor("", shape, t.dtype, Resize((now[t],), low, high, fill), t.source)
        operands = tuple(
            self._value(o, _edges_below(t, k, edges) or (), now)
            for k, o in enumerate(t.op.operands)
        )
        made = Tensor("", shape, t.dtype, with_operands(t.op, operands), t.source)
        self._known[t] = made
        return made


def _edges_below(t: Tensor, position: int, edges: Edges) -> Edges | None:
    """What to take off an operand, so that a value lacks these edges; None where the operand has to
    be whole."""
    match t.op:
        case Pointwise():
            return edges
        case Reduce():
            kept = iter(edges)
            rank = t.op.operands[position].ndim
            return tuple(WHOLE if a in t.op.axes else next(kept) for a in range(rank))
        case Scan():
            before = edges[t.op.axis][1 if t.op.reverse else 0]
            return edges if before == ZERO else None
        case Permute() | Broadcast() | Reshape():
            return edges_of_operand(t, edges)
        case _:
            return None
