"""What a schedule predicts of its kernel, against the kernel and against what ptxas reports."""

from __future__ import annotations

import random

import pytest
from smem_cases import bind, chain, copies, flip, padded, reordered, shared, simple

import fusewright as fw
from fusewright.errors import ScheduleError
from fusewright.kir.analysis.occupancy import blocks_by_memory, blocks_by_registers, register_cap
from fusewright.kir.prediction import Prediction
from fusewright.target import target_of

TARGET = target_of("sm_90a")


def random_schedule(seed: int) -> fw.Schedule:
    """One of the chains of shared tensors, of some size, on some threads, partly promoted."""
    rng = random.Random(seed)
    h = rng.choice((5, 32, 33, 70, 200))
    fusion, names = rng.choice(
        [
            (simple(h, h + 1, flip), "ab"),
            (reordered(h, flip), "abc"),
            (chain(h, 3, [flip]), "abc"),
            (chain(h, 4, [flip, fw.negative]), "abcd"),
            (copies(h, flip), "ab"),
            (padded((min(h, 16), 3, 5), flip), "ab"),
        ]
    )
    kept = [n for n in names if rng.random() < 0.7]
    s = shared(fusion, *kept, promote=[n for n in kept if rng.random() < 0.5])
    if fusion.inputs or len(kept) < len(names):
        for n in names:
            s[n].set_memory(fw.SHARED)
    return bind(s)


@pytest.mark.parametrize("seed", range(16))
def test_a_prediction_is_what_lowering_makes(seed: int) -> None:
    s = random_schedule(seed)
    p, k = s.predict(), s.lower()
    assert p.shared_nbytes == k.launch.shared_nbytes == max(b.offset + b.nbytes for b in k.smem)
    assert p.shared_nbytes <= p.shared_nbytes_without_reuse
    assert p.shared_nbytes_without_reuse >= sum(b.nbytes for b in k.smem)
    assert p.nthreads == k.ir.nthreads
    assert p.blocks_per_sm == k.ir.min_blocks > 0
    assert f"__launch_bounds__({p.nthreads}, {p.blocks_per_sm})" in k.cuda
    assert p.registers <= p.register_cap
    assert p.blocks_per_sm <= blocks_by_memory(TARGET, p.nthreads, p.shared_nbytes)
    assert p.blocks_per_sm <= blocks_by_registers(TARGET, p.nthreads, p.register_cap)


@pytest.mark.parametrize("seed", range(0, 16, 5))
def test_the_compiler_keeps_the_cap(seed: int) -> None:
    pytest.importorskip("cuda.bindings")
    s = random_schedule(seed)
    p, used = s.predict(), s.lower().resources()
    assert used.registers <= p.register_cap and used.spill_stores == 0
    assert blocks_by_registers(TARGET, p.nthreads, used.registers) >= p.blocks_per_sm


def test_the_figures_of_one_schedule() -> None:
    s = bind(shared(chain(72, 3, [flip]), "a", "b", "c", promote=("a", "b")))
    assert s.predict() == Prediction(
        nthreads=74,
        shared_nbytes=296,
        shared_nbytes_without_reuse=884,
        registers=32,
        register_cap=32,
        blocks_per_sm=21,
        warps_per_sm=63,
        limited_by="threads",
    )


def test_registers_limit_a_thread_that_holds_much() -> None:
    s = fw.Schedule(copies(16384))
    for t in s.tensors:
        if t not in s.inputs:
            t.split(0, 64).parallelize(0, fw.TIDx)
    p = s.predict()
    assert (p.nthreads, p.limited_by) == (256, "registers")
    assert p.registers == 120 <= p.register_cap == 128 and p.blocks_per_sm == 2


def test_a_request_is_imposed() -> None:
    s = bind(shared(chain(72, 3, [flip]), "a", "b", "c")).launch(min_blocks=20)
    p = s.predict()
    assert (p.blocks_per_sm, p.limited_by) == (20, "request")
    assert s.lower().ir.min_blocks == 20
    assert p.register_cap == register_cap(TARGET, 74, 20) == 32


def test_a_request_beyond_the_multiprocessor_is_refused() -> None:
    s = bind(shared(chain(72, 3, [flip]), "a", "b", "c")).launch(min_blocks=40)
    message = r"40 blocks of 74 threads and \d+ bytes of shared memory do not fit .* holds 21"
    with pytest.raises(ScheduleError, match=message):
        s.predict()
    with pytest.raises(ScheduleError, match=message):
        s.lower()


# --- the multiprocessor -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("nthreads", "registers", "blocks"),
    [(1024, 64, 1), (1024, 32, 2), (256, 255, 1), (256, 128, 2), (128, 40, 12), (32, 33, 48)],
)
def test_blocks_by_registers(nthreads: int, registers: int, blocks: int) -> None:
    """Figures of NVIDIA's occupancy calculator for 65536 registers in four partitions."""
    assert blocks_by_registers(TARGET, nthreads, registers) == blocks


@pytest.mark.parametrize("nthreads", [32, 96, 128, 256, 1024])
@pytest.mark.parametrize("blocks", [1, 2, 3, 8])
def test_the_cap_is_the_most_that_fits(nthreads: int, blocks: int) -> None:
    cap = register_cap(TARGET, nthreads, blocks)
    if cap:
        assert blocks_by_registers(TARGET, nthreads, cap) >= blocks
    if cap < TARGET.max_registers_per_thread:
        assert blocks_by_registers(TARGET, nthreads, cap + 8) < blocks


def test_shared_memory_of_a_block_has_its_reserve() -> None:
    """228 KiB a multiprocessor, 1 KiB reserved for each block."""
    assert blocks_by_memory(TARGET, 128, 227 * 1024) == 1
    assert blocks_by_memory(TARGET, 128, 227 * 1024 + 1) == 0
    assert blocks_by_memory(TARGET, 128, 113 * 1024) == 2
    assert blocks_by_memory(TARGET, 128, 113 * 1024 + 1) == 1
