"""Steps of a reduction whose results nobody else needs.

    p = sum(x, 2);  r = sum(p, 1);  s = sum(r, 0)   ->   p = sum(x, 2);  s = sum(p, (0, 1))

A reduction goes in the steps of another one, so that one kernel has the first step of both. That
may be cut once more, so that more blocks take part: what is left are a few partial results, and
each step behind them would be a launch.
"""

from __future__ import annotations

from fusewright.fusion import build
from fusewright.fusion.ir import Fusion, Reduce, Tensor
from fusewright.fusion.passes.rebuild import rebuild


def merge_steps(fusion: Fusion) -> Fusion:
    """Reduces partial results at once, unless something else needs a step between.

    rewrite:  f(f(f(x, P), Q), R)   ->   f(f(x, P), Q + R)
    checks:   one function in one dtype; the step between is no output, and has one reader
    order:    after split_reductions, which makes the first steps
    """
    uses, outputs = fusion.uses(), set(fusion.outputs)

    def replace(t: Tensor, operands: tuple[Tensor, ...]) -> Tensor | None:
        step = t.op.operands[0] if isinstance(t.op, Reduce) else None
        if step is None or len(uses[step]) != 1 or step in outputs:
            return None
        between = operands[0]
        if not (_follows(t, step) and isinstance(between.op, Reduce)):
            return None
        assert isinstance(t.op, Reduce)
        (partial,) = between.op.operands
        kept = [a for a in range(partial.ndim) if a not in between.op.axes]
        axes = sorted((*between.op.axes, *(kept[a] for a in t.op.axes)))
        return build.reduce(t.op.fn, partial, tuple(axes))

    return rebuild(fusion, replace)


def _follows(t: Tensor, step: Tensor) -> bool:
    """Whether a reduction goes on with a step that goes on with partial results itself."""
    return _same(t, step) and isinstance(step.op, Reduce) and _same(step, step.op.operands[0])


def _same(t: Tensor, before: Tensor) -> bool:
    return (
        isinstance(t.op, Reduce)
        and isinstance(before.op, Reduce)
        and t.op.fn == before.op.fn
        and t.dtype is before.dtype
    )
