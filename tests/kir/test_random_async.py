"""Random kernels some of whose stores are asynchronous copies: inferred, right, none redundant."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from random_sync_kernels import Shape, random_kernel

from fusewright.core.node import Node, rewrite, walk
from fusewright.kir.analysis.hazards import unordered
from fusewright.kir.analysis.ownership import shared_nbytes
from fusewright.kir.analysis.unfinished import unfinished
from fusewright.kir.ir import Alloc, CpAsync, Kernel, Memory, Store
from fusewright.kir.passes.complete_async import complete_async
from fusewright.kir.passes.pack_shared import offsets_apart, pack_shared
from fusewright.kir.passes.place_fences import place_fences
from fusewright.kir.passes.place_syncs import place_syncs
from fusewright.kir.passes.prune_syncs import faults, prune_syncs
from fusewright.sim.machine import simulate
from fusewright.sim.verify import Case, verify_kernel
from fusewright.target import target_of

TARGET = target_of("sm_90a")
PASSES = (complete_async, place_syncs, pack_shared, place_fences, prune_syncs)


def random_async_kernel(seed: int, shape: Shape) -> Kernel:
    """A random kernel in which half of the stores to shared memory copy from `x` instead."""
    k = random_kernel(seed, shape)
    rng = random.Random(seed)
    x, tx = k.params[0], k.block[0].var

    def edit(n: Node) -> Node:
        if isinstance(n, Store) and n.dst.memory is Memory.SHARED and rng.random() < 0.5:
            return CpAsync(n.dst, n.index, x, tx, n.width, n.predicate)
        return n

    return rewrite(k, edit)


def output(k: Kernel) -> np.ndarray:
    x, y = np.random.default_rng(0).normal(size=(2, 64)).astype(np.float32)
    simulate(k, dict(zip(k.params, (x, y), strict=True)), check_races=False)
    return y


def assert_sound(seed: int, shape: Shape) -> None:
    k = random_async_kernel(seed, shape)
    final = k
    for p in PASSES:
        final = p(final, TARGET)
    if any(h.is_simultaneous for h in unordered(final)):
        return
    assert not faults(final) and not unfinished(final)
    assert np.array_equal(output(k), output(final)), seed
    apart = offsets_apart(k)
    total = max(a.offset + shared_nbytes(a.buffer) for a in _shared(final))
    assert total <= max(o + shared_nbytes(b) for b, o in apart.items())
    x = np.random.default_rng(1).normal(size=64).astype(np.float32)
    arrays = dict(zip(final.params, (x, np.zeros(64, np.float32)), strict=True))
    report = verify_kernel(final, Case(arrays, outputs=(final.params[1],)))
    assert not report.missing, (seed, report.missing[0])
    assert not report.redundant, (seed, report.redundant)


def _shared(k: Kernel) -> list[Alloc]:
    return [n for n in walk(k) if isinstance(n, Alloc) and n.buffer.memory is Memory.SHARED]


SHAPE = Shape(buffers=3, statements=8, depth=2, has_branches=False)


@pytest.mark.parametrize("seed", range(16))
def test_random_asynchronous_kernels(seed: int) -> None:
    assert_sound(seed, SHAPE)


def test_a_copy_that_nothing_reads_keeps_its_bytes_until_it_is_complete() -> None:
    assert_sound(18, replace(SHAPE, buffers=5))


@pytest.mark.fuzz
@pytest.mark.parametrize("start", range(0, 400, 50))
def test_many_random_asynchronous_kernels(start: int) -> None:
    for seed in range(start, start + 50):
        assert_sound(seed, replace(SHAPE, buffers=2 + seed % 5))
