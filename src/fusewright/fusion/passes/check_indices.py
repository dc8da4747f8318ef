"""Gathers whose kernels look whether every index is one of the axis."""

from __future__ import annotations

from dataclasses import replace

from fusewright.fusion.ir import Fusion, Region, Take, TakeAlong, Tensor
from fusewright.fusion.passes.rebuild import rebuild


def check_indices(fusion: Fusion) -> Fusion:
    """Have kernels stop at an index that the program promised to be inside of its axis, in bodies
    of regions too.

    rewrite:  Take(x, i, mode="promise")  ->  Take(x, i, mode="raise", place="net.py:12 take")
    checks:   only where the caller asks, as looking costs a branch an index
    order:    first of all, so that programs that look have texts, and keys, of their own
    """
    bodies: dict[Fusion, Fusion] = {}

    def checked(body: Fusion) -> Fusion:
        if body not in bodies:
            bodies[body] = check_indices(body)
        return bodies[body]

    def looked(t: Tensor, operands: tuple[Tensor, ...]) -> Tensor | None:
        if isinstance(t.op, Take | TakeAlong) and t.op.mode == "promise":
            place = t.op.place or str(t.source or t.name)
            return t.with_op(replace(t.op, operands=operands, mode="raise", place=place))
        if not isinstance(t.op, Region):
            return None
        # Results of one call share the tuple of its bodies.
        pairs = regions.setdefault(t.op.bodies, tuple(map(checked, t.op.bodies)))
        if all(a is b for a, b in zip(pairs, t.op.bodies, strict=True)):
            return None
        return t.with_op(replace(t.op, operands=operands, bodies=pairs))

    regions: dict[tuple[Fusion, ...], tuple[Fusion, ...]] = {}
    return rebuild(fusion, looked)
