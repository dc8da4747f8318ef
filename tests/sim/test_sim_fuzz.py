"""Random kernels: the detector against the per-thread reference, also after deletions."""

from __future__ import annotations

import dataclasses
import random

import numpy as np
import pytest
from sim_kernels import Builder
from sim_reference import racing_pairs

from fusewright.core.atoms import xor
from fusewright.core.conditions import TRUE, equal, less, prove, substitute_condition
from fusewright.core.expr import Int, Var
from fusewright.core.substitution import evaluate
from fusewright.dtypes import float16, float32
from fusewright.kir import ir
from fusewright.sim import machine
from fusewright.sim.machine import analyse
from fusewright.sim.order import Change
from fusewright.sim.verify import syncs_of


def random_kernel(rng: random.Random, *, copies: bool = False) -> ir.Kernel:
    """One block of 64 threads, two shared buffers that may overlap, one global buffer; with
    asynchronous copies on request."""
    b = Builder(1, 64)
    b.copies = copies
    g = b.param("g", 512)
    b.halves = b.param("halves", 512, float16) if copies else g
    buffers = [b.shared("s", 256, float32, 0)]
    buffers.append(b.shared("h", 256, float16, rng.choice((None, 0, 256, 1024))))
    buffers.append(g)
    body(b, buffers, rng, depth=0, loops=[])
    return b.kernel()


def body(b: Builder, buffers: list[ir.Buffer], rng: random.Random, depth: int, loops: list[Var]):
    for _ in range(rng.randint(2, 5)):
        if b.copies and rng.random() < 0.5:
            asynchronous(b, buffers, rng, loops)
            continue
        choice = rng.random()
        if choice < 0.2:
            b.sync(ir.BlockSync)
        elif choice < 0.35:
            b.sync(ir.WarpSync)
        elif choice < 0.5 and depth < 2:
            inner = b.nested()
            if rng.random() < 0.6:
                var = Var(f"i{depth}_{rng.randrange(10**6)}", 0, 3)
                body(inner, buffers, rng, depth + 1, [*loops, var])
                b.loop(var, rng.randint(0, 3), inner)
            else:
                warp_only(inner, buffers, rng, loops)
                b.add(ir.If(less(b.tx, 32), tuple(inner.body)))
        else:
            access(b, buffers, rng, loops)


def warp_only(b: Builder, buffers: list[ir.Buffer], rng: random.Random, loops: list[Var]) -> None:
    """What may stand where only one of the two warps is: no BlockSync."""
    for _ in range(rng.randint(1, 3)):
        if b.copies and rng.random() < 0.4:
            asynchronous(b, buffers, rng, loops)
        elif rng.random() < 0.4:
            b.sync(ir.WarpSync)
        else:
            access(b, buffers, rng, loops)


def asynchronous(b: Builder, buffers: list[ir.Buffer], rng: random.Random, loops: list[Var]):
    """A copy, a commit or a wait."""
    kind, t = ir.AsyncKind.CP_ASYNC, b.tx
    choice = rng.random()
    if choice < 0.3:
        b.add(ir.AsyncCommit(next(b.ids), "", kind))
    elif choice < 0.55:
        b.add(ir.AsyncWait(next(b.ids), "", kind, rng.choice((0, 0, 1, 2))))
    else:
        dst = rng.choice(buffers[:2])
        width = 4 // dst.dtype.nbytes
        index = rng.choice((t, 63 - t, t // 2, xor(t, 1), *(t + 64 * v for v in loops)))
        predicate = rng.choice((TRUE, TRUE, less(t, 40)))
        g = buffers[2] if dst.dtype is float32 else b.halves
        source = rng.choice((t, t + 128))
        where = (dst, (index % 64) * width, g, source * width)
        b.add(ir.CpAsync(*where, width, predicate, rng.random() < 0.3))


def access(b: Builder, buffers: list[ir.Buffer], rng: random.Random, loops: list[Var]) -> None:
    t = b.tx
    buffer = rng.choice(buffers)
    width = rng.choice((1, 1, 1, 2))
    index = rng.choice(
        (
            t,
            xor(t, 1),
            63 - t,
            t // 32,
            t % 32,
            (t + 32) % 64,
            (t + 1) % 64,
            t // 2,
            Int(5),
            32 + t % 2,
        )
    )
    index = index * width
    if loops and rng.random() < 0.6:
        index = index + (rng.choice(loops) % rng.choice((2, 3))) * rng.choice((2, 64))
    predicate = rng.choice(
        (None, None, less(t, 32), less(31, t), equal(t % 32, 0), equal(t, 0), less(t % 32, 4))
    )
    reg = b.reg(f"r{buffer.dtype}", 0, 4, buffer.dtype)
    keywords = {} if predicate is None else {"predicate": predicate}
    if rng.random() < 0.5:
        b.load(reg, buffer, index, width, **keywords)
    else:
        b.store(buffer, index, reg, width, **keywords)


def assert_agrees_with_all_pairs(seed: int, *, copies: bool = False) -> tuple[bool, int]:
    """Compare one kernel and its single deletions; whether it was clean, and the deletions."""
    kernel = random_kernel(random.Random(seed), copies=copies)
    found = analyse(kernel, {p: np.zeros(512, p.dtype.numpy) for p in kernel.params})
    expected = racing_pairs(kernel)
    reported = [r for r in found.races() if r.kind == "race"]
    assert bool(reported) == bool(expected), f"seed {seed}"
    for r in reported:
        pair = frozenset(id(s) for s in r.statements)
        assert pair in expected, f"seed {seed}: {r}"
    twice = any(r.kind == "race" for r in found.execution.findings.list())
    assert found.detector is not None
    syncs = syncs_of(kernel)
    for s in syncs:
        races = racing_pairs(kernel, frozenset({s}))
        without = bool(found.detector.unordered(Change(frozenset({s})))) or twice
        assert without == bool(races), f"seed {seed} without sync {s.id}"
    for s in syncs[:3]:
        for direction in ("up", "down"):
            moved = dataclasses.replace(kernel, body=swapped(kernel.body, s, direction))
            change = Change(moved=s, direction=direction)
            changed = bool(found.detector.unordered(change)) or twice
            assert changed == bool(racing_pairs(moved)), f"seed {seed}, sync {s.id} {direction}"
    return not expected, len(syncs)


def swapped(body: ir.Body, sync: ir.Statement, direction: str) -> ir.Body:
    """The body with the sync exchanged with its neighbour; unchanged where there is none."""
    out = list(body)
    for i, s in enumerate(out):
        if s is sync:
            other = i - 1 if direction == "up" else i + 1
            if 0 <= other < len(out):
                out[i], out[other] = out[other], out[i]
            return tuple(out)
        if isinstance(s, ir.For):
            out[i] = dataclasses.replace(s, body=swapped(s.body, sync, direction))
        elif isinstance(s, ir.If):
            out[i] = dataclasses.replace(s, then=swapped(s.then, sync, direction))
    return tuple(out)


@pytest.mark.parametrize("part", range(4))
def test_detector_agrees_with_all_pairs(part: int) -> None:
    results = [assert_agrees_with_all_pairs(1000 * part + i) for i in range(40)]
    clean = sum(c for c, _ in results)
    assert 3 <= clean <= 37, "the generator must make both clean and racy kernels"


@pytest.mark.parametrize("part", range(3))
def test_detector_agrees_with_all_pairs_on_copies(part: int) -> None:
    results = [assert_agrees_with_all_pairs(5000 + 1000 * part + i, copies=True) for i in range(40)]
    clean = sum(c for c, _ in results)
    assert 3 <= clean <= 37, "the generator must make both clean and racy kernels"


@pytest.mark.fuzz
def test_detector_agrees_with_all_pairs_on_copies_at_length() -> None:
    for seed in range(20_000, 22_000):
        assert_agrees_with_all_pairs(seed, copies=True)


@pytest.mark.fuzz
def test_detector_agrees_with_all_pairs_at_length() -> None:
    for seed in range(10_000, 12_000):
        assert_agrees_with_all_pairs(seed)


def cross_block_kernel(rng: random.Random) -> ir.Kernel:
    """Three blocks of 32 threads that read and write one global buffer."""
    b = Builder(3, 32)
    g = b.param("g", 512)
    b.compute("copy", b.reg("v", 0, 4), ir.Imm(0.0, float32))
    for _ in range(rng.randint(1, 4)):
        width = rng.choice((1, 1, 2))
        t, own = b.tx, b.bx * 64
        index = rng.choice((own + t, own + 31 - t, own + t + 32, t + 200, own + 64 + t, b.bx + 300))
        predicate = rng.choice((TRUE, TRUE, less(t, 5), equal(b.bx, 1), equal(t, 0)))
        if rng.random() < 0.4:
            b.load(b.reg("v", 0, 4), g, index * width, width, predicate=predicate)
        else:
            b.store(g, index * width, b.reg("v", 0, 4), width, predicate)
        if rng.random() < 0.3:
            b.sync()
    return b.kernel()


def blocks_meet(kernel: ir.Kernel) -> bool:
    """Whether two blocks touch one element, one of them writing."""
    touched: dict[int, dict[int, bool]] = {}
    bx, tx = kernel.grid[0].var, kernel.block[0].var
    for s in kernel.body:
        if not isinstance(s, ir.Load | ir.Store):
            continue
        for block in range(3):
            for thread in range(32):
                values = {bx: block, tx: thread}
                if prove(substitute_condition(s.predicate, values)):
                    for k in range(s.width):
                        place = touched.setdefault(evaluate(s.index, values) + k, {})
                        place[block] = place.get(block, False) or isinstance(s, ir.Store)
    return any(len(blocks) > 1 and any(blocks.values()) for blocks in touched.values())


def test_ownership_agrees_with_brute_force(monkeypatch: pytest.MonkeyPatch) -> None:
    clean = 0
    for seed in range(300):
        rng = random.Random(seed)
        kernel = cross_block_kernel(rng)
        monkeypatch.setattr(machine, "BATCH_NBYTES", rng.choice((1, 256, 1 << 17)))
        result = machine.simulate(kernel, {kernel.params[0]: np.zeros(512, np.float32)})
        reported = any("blocks have no order" in r.message for r in result.races)
        assert reported == blocks_meet(kernel), f"seed {seed}"
        clean += not reported
    assert 30 < clean < 270
