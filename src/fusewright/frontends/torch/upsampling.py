"""Upsampling as torch differentiates it.

Where torch traces a function for a compiler, it spells upsampling by gathers before it derives, and
the derivative of a gather is a scatter: one for nearest neighbours, four for bilinear ones, sixteen
for bicubic ones, each of which torch's kernels sort. Derived whole, it has one kernel of torch's;
and where nearest neighbours are repeated a whole number of times, the derivative is a sum of these.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Generator, Sequence
from typing import Any

from fusewright.frontends.torch.library import aten, torch

_NEAREST = tuple(
    f"{kind}{d}d" for kind in ("upsample_nearest", "_upsample_nearest_exact") for d in (1, 2, 3)
)
_BETWEEN = (
    "upsample_linear1d",
    "upsample_bilinear2d",
    "upsample_trilinear3d",
    "upsample_bicubic2d",
)

Rule = Callable[..., Any]


@contextlib.contextmanager
def derived_whole(inputs: Sequence[Any]) -> Generator[None]:
    """Has torch derive upsampling of functions of such inputs before it is spelled by gathers;
    torch traces one function at a time. Not where sizes are symbols: what torch derives whole
    makes numbers of them."""
    if any(isinstance(x, torch.SymInt) for x in inputs):
        yield
        return
    keys = torch._C.DispatchKey.Autograd, torch._C.DispatchKey.CompositeImplicitAutograd
    taken: list[tuple[Any, Any, Any]] = []
    for packet in (getattr(aten, name) for name in (*_NEAREST, *_BETWEEN)):
        for op in (packet.default, packet.vec):
            taken += [(op, key, op.py_kernels.pop(key)) for key in keys if key in op.py_kernels]
            op._dispatch_cache.clear()
    try:
        yield
    finally:
        for op, key, kernel in taken:
            op.py_kernels[key] = kernel
            op._dispatch_cache.clear()


def upsampling_rules() -> dict[Any, Rule]:
    """Decompositions of nearest neighbours: repeats and sums of these where each element is
    repeated a whole number of times, else gathers, and torch's gradient."""
    known = importlib.import_module("torch._decomp").decomposition_table
    rules: dict[Any, Rule] = {}
    for name in _NEAREST:
        op, back = getattr(aten, name).default, getattr(aten, f"{name}_backward").default
        rules[op] = _repeated_or(known[op])
        rules[back] = _summed
    return rules


def _repeated_or(otherwise: Rule) -> Rule:
    """The rule of nearest neighbours."""

    def rule(x: Any, output_size: Sequence[Any], *scales: float | None) -> Any:
        times = _times(x.shape[2:], output_size, scales)
        if times is None:
            return otherwise(x, output_size, *scales)
        pairs = [n for pair in zip(x.shape[2:], times, strict=True) for n in pair]
        wide = x.reshape(*x.shape[:2], *(n for size in x.shape[2:] for n in (size, 1)))
        return _as(wide.expand(*x.shape[:2], *pairs).reshape(*x.shape[:2], *output_size), x)

    return rule


def _summed(
    dy: Any, output_size: Sequence[Any], input_size: Sequence[Any], *scales: float | None
) -> Any:
    """The gradient of nearest neighbours that are repeated; torch's kernel for others."""
    times = _times(input_size[2:], output_size, scales)
    if times is None:
        return NotImplemented
    pairs = [n for pair in zip(input_size[2:], times, strict=True) for n in pair]
    axes = [3 + 2 * k for k in range(len(times))]
    return _as(dy.reshape(*dy.shape[:2], *pairs).sum(axes), dy)


def _times(
    sizes: Sequence[Any], wanted: Sequence[Any], scales: Sequence[float | None]
) -> list[int] | None:
    """How often each element is repeated along each axis; None where that is no whole number, or
    no scale says the same."""
    if not all(isinstance(n, int) and n > 0 for n in (*sizes, *wanted)):
        return None
    if any(m % n for n, m in zip(sizes, wanted, strict=True)):
        return None
    times = [m // n for n, m in zip(sizes, wanted, strict=True)]
    given = [s or t for s, t in zip(scales or [None] * len(times), times, strict=True)]
    return times if given == times else None


def _as(made: Any, like: Any) -> Any:
    """A result in the memory format of an operand, as torch's kernels lay it out."""
    suggested = importlib.import_module("torch._prims_common").suggest_memory_format(like)
    return made.contiguous(memory_format=suggested)
