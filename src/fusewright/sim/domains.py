"""Which blocks of a launch wait for each other: those that share a semaphore run side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from fusewright.core.expr import Var, variables
from fusewright.kir import ir
from fusewright.kir.semaphores import SEMAPHORE_STATEMENTS
from fusewright.kir.traverse import walk_statements
from fusewright.sim.compute import PER_BLOCK, UNIFORM, Array, Scope, Value


def domains_of(
    kernel: ir.Kernel, extents: Sequence[int], symbols: Mapping[Var, int]
) -> Array | None:
    """The linear numbers of the blocks, a row for each domain; None for a kernel without
    semaphores. Blocks whose semaphores depend on more than their place in the grid are one domain,
    and the blocks of a cluster are in one, side by side."""
    used = [s for s in walk_statements(kernel) if isinstance(s, SEMAPHORE_STATEMENTS)]
    if not used:
        return None
    nblocks = int(np.prod(extents, dtype=np.int64)) * kernel.cluster_size
    scope, values = _places(kernel, extents, symbols)
    label = np.arange(nblocks) // kernel.cluster_size
    for s in used:
        if any(v not in scope.slots for v in variables(s.index)):
            return np.arange(nblocks)[None, :]
        cell = np.broadcast_to(scope.expression(s.index)(values), (nblocks,))
        label = _joined(label, cell)
    sizes = np.unique(label, return_counts=True)[1]
    if nblocks == 0 or (sizes != sizes[0]).any():
        return np.arange(nblocks)[None, :]
    return np.argsort(label, kind="stable").reshape(len(sizes), -1)


def _places(
    kernel: ir.Kernel, extents: Sequence[int], symbols: Mapping[Var, int]
) -> tuple[Scope, list[Value]]:
    """The coordinates of all blocks, and the sizes."""
    scope, values = Scope(), list[Value]()
    for v, size in symbols.items():
        scope.bind(v, UNIFORM)
        values.append(size)
    size = kernel.cluster_size
    cluster, rank = np.divmod(np.arange(int(np.prod(extents, dtype=np.int64)) * size), size)
    for d in kernel.cluster:
        scope.bind(d.var, PER_BLOCK)
        values.append(rank)
    stride = 1
    for d, extent in zip(kernel.grid, extents, strict=True):
        scope.bind(d.var, PER_BLOCK)
        values.append(cluster // stride % extent)
        stride *= extent
    return scope, values


def _joined(label: Array, cell: Array) -> Array:
    """Labels of blocks, equal for those of one label and those of one cell."""
    while True:
        smallest = np.full(int(cell.max(initial=0)) + 1, len(label))
        np.minimum.at(smallest, cell, label)
        new = smallest[cell]
        whole = np.full(len(label), len(label))
        np.minimum.at(whole, label, new)
        new = whole[label]
        if np.array_equal(new, label):
            return label
        label = new
