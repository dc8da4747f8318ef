"""What a host program asks for beyond need: edges that no byte asks for, a peak above the bound.

Bytes are counted one by one, from the extents and steps of bindings at the sizes of one call, so
that nothing of `host/accesses` is believed.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fusewright.core.expr import Var, constant_value
from fusewright.core.substitution import evaluate
from fusewright.host.assemble import HostProgram
from fusewright.host.ir import Binding, Edge, EdgeKind

PEAK = 1.05
"""The most bytes between launches over those that must live at one time."""

Sizes = Mapping[Var, int]


def needless_edge(host: HostProgram, sizes: Sizes) -> str | None:
    """An edge between launches that share no byte which one of them writes. One of kind MAYBE may
    be needless at these sizes, where a symbol or the device says which bytes: it gives that as its
    reason."""
    for e in host.edges:
        if _shares_written_byte(host, e, sizes):
            continue
        if e.kind is not EdgeKind.MAYBE:
            return f"edge: {e} shares no byte"
        if "may overlap" not in e.why and "the device decides" not in e.why:
            return f"edge: {e} gives no reason"
        if not _is_undecided(host, e):
            return f"edge: {e} depends on nothing that is unknown"
    return None


def high_peak(host: HostProgram, sizes: Sizes) -> str | None:
    """A peak above the bound, where no launch stands on a branch of its own."""
    peak, least = (evaluate(x, sizes) for x in (host.arena.nbytes, host.arena.lower_bound))
    if host.branches.count > 1 or peak <= PEAK * least:
        return None
    return f"peak: {peak} bytes between launches, {least} live at one time"


def _shares_written_byte(host: HostProgram, e: Edge, sizes: Sizes) -> bool:
    pairs = (
        (a, b)
        for a in host.launches[e.producer].bindings
        for b in host.launches[e.consumer].bindings
        if a.root is b.root and (a.access.writes or b.access.writes)
    )
    return any(np.intersect1d(_bytes(a, sizes), _bytes(b, sizes)).size for a, b in pairs)


def _bytes(b: Binding, sizes: Sizes) -> np.ndarray:
    """The numbers of the bytes of its root that a binding touches; of one that lies where only the
    device knows, all that it may."""
    start = evaluate(b.offset, sizes)
    if b.anywhere:
        return np.arange(start, start + evaluate(b.nbytes, sizes))
    at = np.arange(start, start + b.width)
    for extent, step in b.axes:
        n, s = evaluate(extent, sizes), evaluate(step, sizes)
        at = np.unique(at[:, None] + s * np.arange(n))
    return at


def _is_undecided(host: HostProgram, e: Edge) -> bool:
    """Whether what two launches touch depends on a size of the call, or on the device."""
    touched = (*host.launches[e.producer].bindings, *host.launches[e.consumer].bindings)
    return any(b.anywhere or _has_symbol(b) for b in touched)


def _has_symbol(b: Binding) -> bool:
    parts = (b.offset, b.nbytes, *(x for axis in b.axes for x in axis))
    return any(constant_value(x) is None for x in parts)
