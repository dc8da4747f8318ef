"""Partitions are chosen again once it is known which kernel makes the partial results.

The passes cut a reduction by what the program shows: which rows are reduced beside it, and which
inputs are large. Formation decides: a kernel may hold more inputs, or refuse the rows. The same
choice, from the facts of the group as it formed, then gives the number of parts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from fusewright.core.expr import constant_value
from fusewright.fusion import build
from fusewright.fusion.inputs_behind import fast_kept
from fusewright.fusion.ir import Fusion, Parts, Reduce, Scan, Tensor
from fusewright.fusion.partition import Partition
from fusewright.fusion.partitioning import (
    PartitionFacts,
    beside_rows,
    fill_rows,
    held_of,
    to_fill,
)
from fusewright.fusion.passes.cse import cse
from fusewright.fusion.passes.rebuild import rebuild
from fusewright.fusion.passes.split_reductions import reduce_in_parts
from fusewright.fusion.rematerialisable import is_rematerialisable
from fusewright.host.form import Formation, form
from fusewright.host.products import has_products
from fusewright.target import Target


def formed(
    fusion: Fusion, target: Target, shortest: int = 1, *, scans_apart: bool = False
) -> tuple[Fusion, Formation]:
    """The groups of a prepared fusion, and the fusion with the partitions that they ask for: where
    these are others, it is cut again. No group walks over rows of fewer elements than `shortest`;
    with `scans_apart` no group scans what it computes of reductions of its own.
    """

    def groups(f: Fusion) -> Formation:
        return form(f, shortest, reductions_before_scans(f) if scans_apart else frozenset())

    formation = groups(fusion)
    uses = fusion.uses()
    wanted: dict[Tensor, Partition | None] = {}
    for group in formation.groups:
        if has_products(dict.fromkeys(group)):
            continue  # parts of tiles, as instructions have them
        partials = [t for t in group if _is_partial(t, uses) and t not in fusion.outputs]
        for t, partition in _partitions(group, partials, target).items():
            wanted |= dict.fromkeys(uses[t], partition)
    if not wanted:
        return fusion, formation

    def replace(t: Tensor, operands: tuple[Tensor, ...]) -> Tensor | None:
        return _cut_again(t, operands[0].op.operands[0], wanted[t]) if t in wanted else None

    again = cse(rebuild(fusion, replace))
    return again, groups(again)


def reductions_before_scans(fusion: Fusion) -> frozenset[Tensor]:
    """The reductions of which something is computed that is scanned."""
    before: set[Tensor] = set()
    for t in reversed(fusion.values):
        if isinstance(t.op, Scan) or t in before:
            before.update(t.op.operands)
    return frozenset(t for t in before if isinstance(t.op, Reduce))


def _is_partial(t: Tensor, uses: Mapping[Tensor, tuple[Tensor, ...]]) -> bool:
    """Whether a value holds results of parts that nothing but a reduction over the parts reads."""
    if not isinstance(t.op, Reduce) or not isinstance((cut := t.op.operands[0]).op, Parts):
        return False
    place = cut.op.axes[0]
    if t.op.axes != tuple(place + a for a in cut.op.partition.place_axes) or not uses[t]:
        return False
    readers = all(isinstance(u.op, Reduce) for u in uses[cut])
    return readers and all(
        isinstance(u.op, Reduce) and u.op.fn == t.op.fn and u.op.axes == (place,) for u in uses[t]
    )


def _partitions(
    group: tuple[Tensor, ...], partials: list[Tensor], target: Target
) -> dict[Tensor, Partition | None]:
    """Of partial results that one kernel makes, those that another partition suits better; None
    for none at all."""
    read = {o for t in group for o in t.op.operands if not is_rematerialisable(o)}
    inputs = read.difference(group)
    reductions = [t for t in group if isinstance(t.op, Reduce)]
    cut = [t for t in reductions if _reads_parts(t, group)]
    if any(t not in partials for t in cut):
        return {}  # of other uses of the parts, which stay as they are
    rows = [_row_sizes(t) for t in reductions if t not in cut]
    out: dict[Tensor, Partition | None] = {}
    for t in partials:
        cut = t.op.operands[0].op
        assert isinstance(cut, Parts)
        facts = PartitionFacts.of(cut.operands[0], cut.axes)
        if facts is None:
            continue
        if rows and cut.partition.is_strip:
            continue  # of what the kernel holds
        if rows:
            row, fast = rows[0]
            held = held_of(inputs, facts.total, row, len(partials))
            clusters = target.max_cluster
            found = beside_rows(facts, held, row, target, fast=fast, max_cluster=clusters)
        else:
            found = to_fill(facts, target) or fill_rows(facts)
        out |= {} if found == cut.partition else {t: found}
    return out


def _row_sizes(row: Tensor) -> tuple[int, int]:
    """The elements of the row that a reduction reduces, and of how many results in it."""
    assert isinstance(row.op, Reduce)
    sizes = [constant_value(e) or 0 for e in row.op.operands[0].shape]
    fast = math.prod(sizes[a] for a in fast_kept(row, lambda v: v.op.operands))
    return math.prod(sizes[a] for a in row.op.axes) * fast, fast


def _reads_parts(t: Tensor, group: tuple[Tensor, ...]) -> bool:
    """Whether a value is computed from parts in its kernel, not from their results."""
    stack, seen = list(t.op.operands), {t}
    while stack:
        o = stack.pop()
        if isinstance(o.op, Parts):
            return True
        if o in group and o not in seen and not isinstance(o.op, Reduce):
            seen.add(o)
            stack.extend(o.op.operands)
    return False


def _cut_again(t: Tensor, parts: Tensor, partition: Partition | None) -> Tensor:
    assert isinstance(t.op, Reduce) and isinstance(parts.op, Parts)
    (source,), axes = parts.op.operands, parts.op.axes
    if partition is None:
        return build.reduce(t.op.fn, source, axes)
    return reduce_in_parts(t.op.fn, build.parts(source, axes, partition, parts.op.fill))
