"""Reductions of what another reduction has reduced already.

    r = sum(x, 1);  s = sum(x, (0, 1))   ->   r = sum(x, 1);  s = sum(r, 0)
    r = max(x, 1);  s = sum(x, (0, 1))   ->   r = max(x, 1);  s = sum(sum(x, 1), 0)

so that x is read once: reductions over the same axes are one kernel.
"""

from __future__ import annotations

import math

from fusewright.fusion import build
from fusewright.fusion.ir import Fusion, Reduce, Tensor, constant_shape
from fusewright.fusion.partitioning import LEAST_TOTAL
from fusewright.fusion.passes.cse import cse
from fusewright.fusion.passes.match import is_call, reduced_axes
from fusewright.fusion.passes.rebuild import rebuild

LEAST_REDUCED = 8
"""Elements that the first reduction makes one of, at least: its result may have to be stored."""


def nest_reductions(fusion: Fusion) -> Fusion:
    """Reduces in the steps of other reductions of the same value, which are over fewer axes.

    checks:   constant sizes; steps are stored in what they are computed in
    order:    after share (reductions of one value) and chunk_reductions (whose pairs reduce one
              value), before reductions are split in parts
    """
    found: dict[Tensor, list[Tensor]] = {}
    for t in fusion.values:
        if isinstance(t.op, Reduce):
            found.setdefault(_before_casts(t.op.operands[0]), []).append(t)
    chains: dict[Tensor, list[tuple[int, ...]]] = {}
    for source, reductions in found.items():
        sizes = constant_shape(source)
        if sizes is not None and math.prod(sizes) >= LEAST_TOTAL:
            for t in reductions:
                chain = _chain(t, reductions, sizes)
                if len(chain) > 1:
                    chains[t] = chain
    if not chains:
        return fusion

    def replace(t: Tensor, operands: tuple[Tensor, ...]) -> Tensor | None:
        if t not in chains:
            return None
        assert isinstance(t.op, Reduce)
        out = build.cast(operands[0], t.dtype.compute)
        kept = list(range(out.ndim))
        for axes in chains[t]:
            out = build.reduce(t.op.fn, out, tuple(k for k, a in enumerate(kept) if a in axes))
            kept = [a for a in kept if a not in axes]
        return build.cast(out, t.dtype)

    return cse(rebuild(fusion, replace))


def _chain(t: Tensor, others: list[Tensor], sizes: tuple[int, ...]) -> list[tuple[int, ...]]:
    """The axes of the reductions that lead to one, each with those of the one before: every time
    the one that leaves the least to do."""
    chain = [reduced_axes(t)]
    while True:
        inside = [reduced_axes(r) for r in others if set(reduced_axes(r)) < set(chain[0])]
        counts = [math.prod(sizes[a] for a in axes) for axes in inside]
        if max(counts, default=0) < LEAST_REDUCED:
            return chain
        chain.insert(0, inside[counts.index(max(counts))])


def _before_casts(t: Tensor) -> Tensor:
    while is_call(t, "cast"):
        t = t.op.operands[0]
    return t
