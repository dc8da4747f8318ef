"""Operands of products that no tensor map takes are stored in rows that one takes."""

from __future__ import annotations

from collections.abc import Callable

from fusewright.core.expr import constant_value
from fusewright.fusion import build
from fusewright.fusion.ir import (
    Broadcast,
    Fusion,
    MatMul,
    Permute,
    Pointwise,
    Tensor,
    with_operands,
)
from fusewright.fusion.passes.rebuild import rebuild

Unfit = Callable[[Tensor, int], int | None]
"""For a product and the position of an operand of it that has to be stored first, which of the
operand's last two axes is to be the fastest there; None for one that is read where it lies."""


def store_operands(fusion: Fusion, unfit: Unfit, row_nbytes: int) -> Fusion:
    """Store what a product cannot read where it lies, in rows of a multiple of `row_nbytes` bytes.

    rewrite:  MatMul(a, b)  ->  MatMul(pad(a, rows of 64 n)[:, :k], b)    for k = 4100: rows of 4160
    checks:   only operands that are `unfit`; of a repeated one what is repeated
    order:    behind the folding of crops and moves, which would take the crop and the pad together
    """
    stored: dict[tuple[Tensor, int], Tensor] = {}

    def replace(t: Tensor, operands: tuple[Tensor, ...]) -> Tensor | None:
        if not isinstance(t.op, MatMul):
            return None
        axes = [unfit(t, position) for position in (0, 1)]
        if axes == [None, None]:
            return None
        pairs = zip(operands, axes, strict=True)
        a, b = (o if axis is None else _stored(o, axis, row_nbytes, stored) for o, axis in pairs)
        return build.value(t.shape, t.dtype, with_operands(t.op, (a, b)))

    return rebuild(fusion, replace)


def _stored(
    o: Tensor, fastest: int, row_nbytes: int, known: dict[tuple[Tensor, int], Tensor]
) -> Tensor:
    """The operand read out of memory of its own, in which axis `fastest` (-1 or -2) has stride 1.
    Products that share an operand share what is stored."""
    if isinstance(o.op, Broadcast) and _only_repeats_batches(o):
        source = _stored(o.op.operands[0], fastest, row_nbytes, known)
        return build.value(o.shape, o.dtype, Broadcast((source,), o.op.axes))
    if (o, fastest) not in known:
        rows = o if fastest == -1 else _swapped(o)
        known[o, fastest] = _padded(rows, row_nbytes // rows.dtype.nbytes)
    found = known[o, fastest]
    return found if fastest == -1 else build.swap_last(found)


def _swapped(o: Tensor) -> Tensor:
    """The value with its last two axes exchanged, which a transposed value already has below it."""
    back = build.swap_last(o)
    if isinstance(o.op, Permute) and isinstance(back.op, Permute) and o.op.axes == back.op.axes:
        return o.op.operands[0]
    return back


def _only_repeats_batches(o: Tensor) -> bool:
    """Whether a broadcast leaves the last two axes as they are."""
    assert isinstance(o.op, Broadcast)
    source = o.op.operands[0]
    rank = source.ndim
    return (
        rank >= 2 and o.op.axes[-2:] == (rank - 2, rank - 1) and o.shape[-2:] == source.shape[-2:]
    )


def _padded(rows: Tensor, unit: int) -> Tensor:
    """The value stored in rows of a multiple of `unit` elements, of which it is the first ones."""
    size = constant_value(rows.shape[-1])
    more = 0 if size is None else -size % unit
    if not more:
        return build.value(rows.shape, rows.dtype, Pointwise((rows,), "copy"))
    none = [0] * rows.ndim
    wide = build.resize(rows, none, [*none[:-1], more], 0)
    return build.resize(wide, none, [*none[:-1], -more], 0)
