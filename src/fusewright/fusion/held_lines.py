"""Lines that a block holds in shared memory, so that they may be read at any place of theirs."""

from __future__ import annotations

from fusewright.core.expr import constant_value
from fusewright.fusion.inputs_behind import holds_fast_axis, inputs_behind
from fusewright.fusion.ir import IndexMap, Pointwise, Scan, Tensor, is_alone
from fusewright.target import SECTOR_NBYTES

HELD_NBYTES = 96 * 1024
"""Of shared memory, of which a block has 99 KiB on targets with the least of it (sm_86)."""


def moved_line(t: Tensor) -> int | None:
    """The axis along which alone a map reads its operand at other places, all of as many, where a
    block can hold lines of it: one, or side by side as many as fill a sector of the narrowest
    input. None for other values."""
    if not isinstance(t.op, IndexMap) or t.shape != t.op.operands[0].shape:
        return None
    (source,), op = t.op.operands, t.op
    moved = [a for a, e in enumerate(op.index) if e != op.coordinates[a]]
    size = constant_value(source.shape[moved[0]]) if len(moved) == 1 else None
    if size is None:
        return None
    inputs = inputs_behind(source, lambda v: v.op.operands)
    narrow = min((b.source.dtype.nbytes for b in inputs), default=source.dtype.nbytes)
    is_row = holds_fast_axis(source, moved, lambda v: v.op.operands)
    columns = 1 if is_row else SECTOR_NBYTES // narrow
    return moved[0] if size * source.dtype.nbytes * columns <= HELD_NBYTES else None


def is_scanned(t: Tensor, axis: int) -> bool:
    """Whether a value is computed element by element of scans along one of its axes."""
    stack, seen = [t], {t}
    while stack:
        v = stack.pop()
        if isinstance(v.op, Scan) and v.op.axis == axis:
            return True
        if isinstance(v.op, Pointwise) and not is_alone(v):
            stack += [o for o in v.op.operands if o not in seen and o.shape == t.shape]
            seen.update(v.op.operands)
    return False
