"""What lowering refuses as one kernel, in two halves: each becomes a kernel, or several."""

from __future__ import annotations

from collections.abc import Sequence

from fusewright.fusion.ir import Input, Tensor
from fusewright.fusion.passes.own_outputs import own_outputs
from fusewright.fusion.rematerialisable import is_rematerialisable
from fusewright.fusion.sizes import nbytes_estimate
from fusewright.host.form import connected
from fusewright.host.products import behind_product, product_first
from fusewright.host.segment import Segment, segments
from fusewright.host.subspans import Subspan
from fusewright.schedule.products import has_instructions


def halves_of(segment: Segment) -> list[Segment] | None:
    """The segments of the two halves; None for a segment that is not cut."""
    whole = own_outputs(segment.fusion)  # an input that is also stored is a value of one half
    inner = [
        t
        for t in whole.values
        if t not in whole.inputs and (not is_rematerialisable(t) or t in whole.outputs)
    ]
    if len(inner) < 2:
        return None
    inner = product_first(inner)
    cut = behind_product(inner)
    if cut is None and any(map(has_instructions, inner)):
        return None
    cut = cut or _cheapest_cut(inner)
    groups = (*connected(inner[:cut]), *connected(inner[cut:]))
    outer: dict[Tensor, list[Subspan]] = {}
    for t, site in zip(
        (*whole.inputs, *whole.outputs), (*segment.reads, *segment.writes), strict=True
    ):
        outer.setdefault(t, []).append(site)
    return [s for s in segments(whole, groups, outer) if isinstance(s, Segment)]


def _cheapest_cut(values: Sequence[Tensor]) -> int:
    """The place, in the middle half of program order, across which values of the fewest bytes are
    read, inputs of both sides counted too; of equal ones the nearest to the middle."""
    last = {o: k for k, t in enumerate(values) for o in t.op.operands if not is_rematerialisable(o)}
    begin = {t: k for k, t in enumerate(values)}
    for k, t in reversed(list(enumerate(values))):
        begin |= {o: k for o in t.op.operands if o in last and isinstance(o.op, Input)}
    crossing = [0] * len(values)
    for t, end in last.items():
        for k in range(begin.get(t, 0) + 1, end + 1):
            crossing[k] += nbytes_estimate(t)
    count = len(values)
    places = range(max(count // 4, 1), max(count - count // 4, 2))
    return min(places, key=lambda k: (crossing[k], abs(2 * k - count)))
