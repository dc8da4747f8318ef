"""The detector's own evidence: known verdicts, deletions, and every rule of the model flipped."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable

import numpy as np
import pytest
from sim_kernels import Builder, softmax
from sim_suite import SUITE, SYNCHRONOUS_RULES, Case, exchange_in_global, run, verdict, write_read

from fusewright.core.conditions import less
from fusewright.core.expr import Var
from fusewright.dtypes import float32, int32
from fusewright.errors import UserError
from fusewright.kir import ir
from fusewright.sim import machine, verify
from fusewright.sim.machine import simulate
from fusewright.sim.model import MODEL

NAMES = [c.name for c in SUITE]


@pytest.mark.parametrize("case", SUITE, ids=NAMES)
def test_verdict(case: Case) -> None:
    assert verdict(case.make(())) == case.verdict


@pytest.mark.parametrize("case", [c for c in SUITE if c.needed], ids=lambda c: c.name)
def test_a_needed_sync_left_out_is_a_race(case: Case) -> None:
    for number in case.needed:
        kinds = verdict(case.make((number,)))
        assert "race" in kinds, f"{case.name} without sync {number}"
    for number in case.redundant:
        assert verdict(case.make((number,))) == case.verdict


@pytest.mark.parametrize("case", SUITE, ids=NAMES)
def test_verify_agrees_with_running_without(case: Case) -> None:
    kernel = case.make(())
    arrays = {p: np.zeros(int(str(p.size)), np.float32) for p in kernel.params}
    report = verify.verify_kernel(kernel, verify.Case(arrays), blocks=None)
    if "race" in case.verdict:
        assert report.missing
        assert not report.ok
        return
    assert tuple(s.id for s in report.necessary) == case.needed
    assert tuple(s.id for s in report.redundant) == case.redundant
    assert len(report.witnesses) == len(case.needed)


FLIPPED = [dataclasses.replace(MODEL, **{f: not getattr(MODEL, f)}) for f in SYNCHRONOUS_RULES]


@pytest.mark.parametrize("model", FLIPPED, ids=SYNCHRONOUS_RULES)
def test_a_flipped_rule_changes_some_verdict(model: object) -> None:
    wrong = [
        c.name
        for c in SUITE
        if verdict(c.make(()), model) != c.verdict  # type: ignore[arg-type]
        or any("race" not in verdict(c.make((n,)), model) for n in c.needed)  # type: ignore[arg-type]
    ]
    assert wrong


def test_a_race_report_names_both_accesses() -> None:
    (race,) = run(write_read((0,))).races
    text = str(race)
    assert race.kind == "race"
    assert "read after write of s[0] without an order between thread 0 and thread 63" in text
    assert "write of s[0] (bytes 0..3) by thread 0 of block 0 in `store s[tx] = v[0]`" in text
    assert "read of s[0] (bytes 0..3) by thread 63 of block 0 in `v[0] = load s[-tx + 63]`" in text
    assert "syncs between them: none" in text
    assert text.endswith("cases: 2, seed: 0")


def test_a_weak_sync_between_is_named() -> None:
    kernel = next(c for c in SUITE if c.name == "warp_sync_is_too_weak").make(())
    (race,) = run(kernel).races
    assert "syncs between them: warp_sync #0" in str(race)


def test_global_exchange_is_reported_in_its_block() -> None:
    (race,) = run(exchange_in_global((0,))).races
    assert race.second is not None
    assert race.second.block == 0
    assert "of g[0]" in race.message


def test_cross_block_report_names_both_blocks() -> None:
    kernel = next(c for c in SUITE if c.name == "block_reads_its_neighbour").make(())
    messages = [r.message for r in run(kernel).races]
    assert any("block 1 writes what block 0 reads, g[64], in" in m for m in messages)


def test_cross_block_report_names_the_statement_that_was_there() -> None:
    b = Builder(2, 32)
    g = b.param("g", 128)
    b.compute("copy", b.reg("v"), ir.Imm(0.0, float32))
    b.store(g, b.bx * 64 + b.tx, b.reg("v"))
    b.store(g, 32 + b.bx * 64 + b.tx, b.reg("v"))
    b.store(g, 32 + b.tx, b.reg("v"), predicate=less(0, b.bx))
    (race,) = [r for r in run(b.kernel()).races if "no order" in r.message]
    assert race.statements == (b.body[2], b.body[3])
    assert "block 1 writes what block 0 writes, g[32]" in race.message


def test_blocks_that_meet_in_one_statement() -> None:
    kernel = next(c for c in SUITE if c.name == "blocks_write_one_place").make(())
    (race,) = run(kernel).races
    assert race.statements == (kernel.body[-1], kernel.body[-1])


@pytest.mark.parametrize("node", [ir.BlockSync, ir.WarpSync])
def test_a_barrier_that_some_threads_miss_diverges(node: type[ir.SyncStatement]) -> None:
    b = Builder(1, 64)
    b.add(ir.If(less(b.tx, 20), (node(0, "x"),)))
    (finding,) = run(b.kernel()).races
    assert finding.kind == "divergence"
    assert "only 20 of" in finding.message
    assert "thread 20 of block 0 does not" in finding.message


def test_a_barrier_that_only_some_blocks_reach_is_fine() -> None:
    b = Builder(4, 64)
    v = b.reg("v")
    b.compute("copy", v, ir.Imm(0.0, float32))
    s = b.shared("s", 64)
    inner = b.nested()
    inner.store(s, b.tx, v)
    inner.sync()
    inner.load(v, s, 63 - b.tx)
    b.add(ir.If(less(b.bx, 2), tuple(inner.body)))
    assert verdict(b.kernel()) == frozenset()


def test_blocks_of_all_kinds_are_analysed() -> None:
    """Only block 5 of 8 skips the barrier; a detector that looked at block 0 would miss it."""
    b = Builder(8, 64)
    v = b.reg("v")
    b.compute("copy", v, ir.Imm(0.0, float32))
    s = b.shared("s", 64)
    b.store(s, b.tx, v)
    b.add(ir.If(less(b.bx, 5), (ir.BlockSync(0, "RAW"),), ()))
    b.add(ir.If(less(5, b.bx), (ir.BlockSync(1, "RAW"),), ()))
    b.load(v, s, 63 - b.tx)
    (race,) = run(b.kernel()).races
    assert race.first is not None
    assert race.first.block == 5


def test_data_dependent_addresses_fold_over_blocks() -> None:
    """Every block has other shared addresses; one of them makes two threads meet."""
    b = Builder(16, 64)
    p = b.param("p", 16 * 64, int32)
    v, i = b.reg("v"), b.reg("i", dtype=int32)
    b.compute("copy", v, ir.Imm(0.0, float32))
    s = b.shared("s", 64)
    b.load(i, p, b.bx * 64 + b.tx)
    where = ir.RegVar(i, 0, 63)
    b.store(s, where, v)
    rng = np.random.default_rng(3)
    table = np.stack([rng.permutation(64) for _ in range(16)]).astype(np.int32)
    assert simulate(b.kernel(), {p: table.reshape(-1)}).races == []
    table[11, 40] = table[11, 2]
    (race,) = simulate(b.kernel(), {p: table.reshape(-1)}).races
    assert race.first is not None
    assert race.second is not None
    assert (race.first.block, race.first.thread, race.second.thread) == (11, 2, 40)


def test_moving_a_sync_over_what_it_orders_is_reported() -> None:
    kernel = softmax(2, 512)
    x, y = kernel.params
    arrays = {x: np.zeros(1024, np.float32), y: np.zeros(1024, np.float32)}
    moves = verify.moves_of(kernel, verify.Case(arrays, outputs=[y]))
    broken = {(m.sync.id, m.direction) for m in moves if m.race is not None}
    assert broken == {(0, "up"), (0, "down"), (2, "up"), (2, "down")}


def test_redundant_pairs_are_judged_one_at_a_time() -> None:
    """Two barriers in a row: either may go, not both; the first in program order goes."""
    b = Builder(1, 64)
    v = b.reg("v")
    b.compute("copy", v, ir.Imm(0.0, float32))
    s = b.shared("s", 64)
    b.store(s, b.tx, v)
    b.sync()
    b.sync()
    b.load(v, s, 63 - b.tx)
    report = verify.verify_kernel(b.kernel(), verify.Case({}))
    assert [s.id for s in report.redundant] == [0]
    assert [s.id for s in report.necessary] == [1]
    assert "1 necessary, 1 redundant, 0 missing" in str(report)


def test_a_sync_needed_by_one_case_is_necessary() -> None:
    b = Builder(1, 64)
    n, i = Var("n", 0, 8), Var("i", 0, 7)
    v = b.reg("v")
    b.compute("copy", v, ir.Imm(0.0, float32))
    s = b.shared("s", 64)
    inner = b.nested()
    inner.store(s, b.tx, v)
    inner.sync()
    inner.load(v, s, 63 - b.tx)
    inner.sync()
    b.add(ir.For(i, n, tuple(inner.body)))
    kernel = b.kernel(symbols=(n,))
    once = verify.verify_kernel(kernel, verify.Case({}, symbols={n: 1}))
    both = verify.verify_kernel(kernel, [verify.Case({}, symbols={n: k}) for k in (1, 3)])
    assert [s.id for s in once.redundant] == [1]
    assert both.ok
    assert [s.id for s in both.necessary] == [0, 1]


def test_verify_without_a_case_is_refused() -> None:
    with pytest.raises(UserError, match="got no case"):
        verify.verify_kernel(write_read(()), [])


def test_an_unwritten_shared_element_is_reported() -> None:
    b = Builder(1, 64)
    s = b.shared("s", 64)
    v = b.reg("v")
    b.compute("copy", v, ir.Imm(0.0, float32))
    b.store(s, b.tx, v, predicate=less(b.tx, 60))
    b.load(v, s, b.tx)
    (finding,) = run(b.kernel()).races
    assert finding.kind == "uninitialised"
    assert "s[60] was never written in block 0" in finding.message
    assert finding.count == 4


def test_findings_do_not_depend_on_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same kernel in one batch and in many gives the same text."""
    kernel = next(c for c in SUITE if c.name == "block_reads_its_neighbour").make(())
    g = kernel.params[0]
    texts = []
    for nbytes in (1 << 17, 1):
        monkeypatch.setattr(machine, "BATCH_NBYTES", nbytes)
        found = simulate(kernel, {g: np.zeros(256, np.float32)})
        texts.append([r.message for r in found.races])
    assert texts[0]
    assert texts[0] == texts[1]


def test_a_thousand_row_softmax_is_judged_in_time() -> None:
    """1024 blocks of 128 threads with all checks, and all deletions: the design's 0.2 s each, of a
    processor, as others may use it."""
    kernel = softmax(1024, 1024)
    x, y = kernel.params
    arrays = {x: np.ones(1 << 20, np.float32), y: np.empty(1 << 20, np.float32)}

    def best_of(times: int, action: Callable[[], object]) -> float:
        found: list[float] = []
        for _ in range(times):
            start = time.process_time()
            action()
            found.append(time.process_time() - start)
        return min(found)

    case = verify.Case(arrays, outputs=[y])
    assert best_of(3, lambda: simulate(kernel, arrays, outputs=[y])) < 0.2
    assert best_of(3, lambda: verify.verify_kernel(kernel, case, blocks=None)) < 0.2
