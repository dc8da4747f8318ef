"""A new asynchronous statement is a class, a spelling and a rule of the simulator: all else follows
from what the class says of itself."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import pytest
from sync_kernels import kernel, syncs

from fusewright.core.expr import Expr, Int, Var
from fusewright.core.node import rewrite
from fusewright.cuda import ptx
from fusewright.cuda.emit import SPELLINGS, emit
from fusewright.cuda.writer import Writer
from fusewright.errors import SpecError, UnsupportedError
from fusewright.kir.analysis.fences import unfenced
from fusewright.kir.ir import (
    Alloc,
    AsyncWait,
    BlockSync,
    Buffer,
    Kernel,
    Memory,
    ProxyFence,
    Statement,
)
from fusewright.kir.passes.prune_syncs import faults
from fusewright.kir.pipeline import PipelineOptions, run_pipeline
from fusewright.kir.rules import lives_in
from fusewright.kir.spec import check_kernel
from fusewright.kir.syntax import TEMPLATES, derive
from fusewright.kir.text import parse_kernel, print_kernel
from fusewright.kir.traits import AsyncKind, MemoryUse, with_group
from fusewright.sim.accesses import elements_of, reach_of
from fusewright.sim.asynchrony import issued_by
from fusewright.sim.frame import BatchFrame, Run, Step
from fusewright.sim.machine import simulate
from fusewright.sim.statements import MEANINGS
from fusewright.sim.trace import SyncEvent
from fusewright.sim.verify import Case, verify_kernel
from fusewright.target import target_of

TARGET = target_of("sm_90a")


@dataclass(frozen=True, slots=True, eq=False)
class ScatterRows(Statement):
    """Thread `issuer` copies `rows` rows of `size` elements, `pitch` apart in shared memory, one
    behind the other to global memory in the async proxy; completes with its group of kind BULK."""

    to: Buffer
    at: Expr
    tile: Buffer
    rows: int
    size: int
    pitch: int
    issuer: int

    def memory_uses(self) -> tuple[MemoryUse, ...]:
        row = Var("row", 0, self.rows - 1)
        read = MemoryUse(
            self.tile,
            False,
            row * self.pitch,
            self.size,
            issuer=self.issuer,
            completes=with_group(AsyncKind.BULK, is_read=True),
            in_async_proxy=True,
            run=row,
        )
        written = replace(
            read,
            buffer=self.to,
            writes=True,
            index=self.at + row * self.size,
            completes=with_group(AsyncKind.BULK),
        )
        return read, written

    def group(self) -> AsyncKind:
        return AsyncKind.BULK

    def issuing_thread(self) -> int:
        return self.issuer

    def problems(self) -> Iterator[str]:
        yield from lives_in(self.to, Memory.GLOBAL)
        if self.pitch < self.size:
            yield f"rows of {self.size} elements are {self.pitch} apart"


def spelling(w: Writer, s: ScatterRows) -> None:
    text = f"cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], {4 * s.size};"
    for read, written in zip(*(u.runs for u in s.memory_uses()), strict=True):
        to = ptx.in_global(w.address(written.buffer, written.index))
        tile = ptx.shared(w.address(read.buffer, read.index))
        line = ptx.assembly(text, [to, tile])
        w.issued(s.issuer, lambda line=line: w.line(line))


def meaning(s: ScatterRows, run: Run) -> Step:
    rows = [[reach_of(s, u, run) for u in use.runs] for use in s.memory_uses()]

    def step(f: BatchFrame) -> None:
        mask, some = issued_by(f, s.issuer)
        if not some:
            return
        issue = f.record(SyncEvent(s, mask))
        for source, target in zip(*rows, strict=True):
            start = source.positions(f, mask, issue)[0][:, s.issuer]
            place = target.positions(f, mask, issue)[0][:, s.issuer]
            for k in range(s.size):
                elements_of(f, s.to)[place + k] = elements_of(f, s.tile)[start + k]

    return step


@pytest.fixture(autouse=True)
def tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """The three places in which a class of statements has an entry."""
    monkeypatch.setitem(TEMPLATES, ScatterRows, derive(ScatterRows))
    monkeypatch.setitem(SPELLINGS, ScatterRows, spelling)
    monkeypatch.setitem(MEANINGS, ScatterRows, meaning)


SCATTER = "scatter_rows to(y) at(0) tile(s) rows(4) size(32) pitch(64) issuer(0)"
FILL = "r[0] = load x[tx]\nstore s[64*(tx // 32) + tx % 32] = r[0]"
BESIDE = """r[2] = load x[tx + 128]
store s[64*(tx // 32) + 32 + tx % 32] = r[2]
r[3] = load s[64*(tx // 32) + 63 - tx % 32]
store y[tx + 128] = r[3]"""
OVER = BESIDE.replace(" + 32 + tx", " + tx").replace("63", "31")
OTHER = """shared u: float32[256] align 16
r[2] = load x[tx + 128]
store u[tx] = r[2]
r[3] = load u[127 - tx]
store y[tx + 128] = r[3]"""


def of(*parts: str) -> Kernel:
    """A kernel of one block of 128 threads, without syncs."""
    k = kernel("\n".join(("shared s: float32[256] align 16", *parts)), "tx < 128")
    return replace(k, grid=tuple(replace(d, extent=Int(1)) for d in k.grid))


def final(k: Kernel) -> Kernel:
    return run_pipeline(k, TARGET, PipelineOptions(spec=3))


def arrays_of(k: Kernel) -> dict[Buffer, np.ndarray]:
    x, y = k.params
    return {x: np.arange(4096, dtype=np.float32), y: np.zeros(4096, np.float32)}


def check_syncs(k: Kernel) -> None:
    """None is missing and none redundant, for the machine model and for the analyses."""
    report = verify_kernel(k, Case(arrays_of(k), outputs=k.params[1:]), blocks=None)
    assert not report.missing and not report.redundant
    assert not faults(k)
    for s in syncs(k):
        assert faults(rewrite(k, lambda n, s=s: () if n is s else n)), s


def test_it_prints_and_parses() -> None:
    k = of(FILL, SCATTER)
    assert SCATTER in print_kernel(k)
    assert print_kernel(parse_kernel(print_kernel(k))) == print_kernel(k)


@pytest.mark.parametrize("rest", [BESIDE, OVER, OTHER], ids=["beside", "over", "other"])
def test_its_syncs_are_inferred_and_its_results_right(rest: str) -> None:
    k = final(of(FILL, SCATTER, rest))
    check_syncs(k)
    arrays = arrays_of(k)
    x, y = arrays.values()
    assert not simulate(k, arrays).races
    assert np.array_equal(y[:128], x[:128])
    back = x[128:256].reshape(4, 32)[:, ::-1].ravel()
    assert np.array_equal(y[128:256], x[255:127:-1] if rest is OTHER else back)


def test_it_is_fenced_and_what_it_reads_is_waited_for_where_that_is_overwritten() -> None:
    """The bytes between its rows belong to nobody: there the threads go on."""
    beside, over = final(of(FILL, SCATTER, BESIDE)), final(of(FILL, SCATTER, OVER))
    for k in (beside, over):
        assert [s.space for s in syncs(k) if isinstance(s, ProxyFence)] == [Memory.SHARED]
        assert [s.reads_only for s in syncs(k) if isinstance(s, AsyncWait)] == [True]
        assert unfenced(rewrite(k, lambda n: () if isinstance(n, ProxyFence) else n))
    order = [type(s) for s in over.body]
    stores = [i for i, s in enumerate(over.body) if "store s" in _text(s)]
    assert stores[0] < order.index(ScatterRows) < order.index(AsyncWait) < stores[1]
    stores = [i for i, s in enumerate(beside.body) if "store s" in _text(s)]
    assert stores[1] < [type(s) for s in beside.body].index(AsyncWait)
    assert sum(isinstance(s, BlockSync) for s in syncs(over)) == 2


def _text(s: Statement) -> str:
    return TEMPLATES[type(s)].pieces[0].print(s) + str(getattr(getattr(s, "dst", None), "name", ""))


def test_memory_is_reused_only_behind_its_wait() -> None:
    k = final(of(FILL, SCATTER, OTHER))
    s, t = (a for a in k.body if isinstance(a, Alloc) and a.buffer.memory is Memory.SHARED)
    assert s.offset is not None and t.offset is not None
    meet = s.offset < t.offset + 512 and t.offset < s.offset + 1024
    waits = [i for i, x in enumerate(k.body) if isinstance(x, AsyncWait)]
    assert not meet or waits[0] < k.body.index(t)


def test_its_own_rules_and_its_feature_are_asked_for() -> None:
    with pytest.raises(SpecError, match=r"check 'operands'.*rows of 32 elements are 16 apart"):
        check_kernel(of(FILL, SCATTER.replace("pitch(64)", "pitch(16)")), "lowered")
    with pytest.raises(SpecError, match=r"thread 200 issues it, but only threads 0 \.\. 127 come"):
        check_kernel(of(FILL, SCATTER.replace("issuer(0)", "issuer(200)")), "lowered")
    k = final(of(FILL, SCATTER))
    with pytest.raises(UnsupportedError, match=r"needs compute capability 9\.0, which sm_80"):
        emit(k, target_of("sm_80"))


def test_it_is_spelled_and_what_it_writes_is_not_constant() -> None:
    text = emit(final(of(FILL, SCATTER)), TARGET)
    assert text.count("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], 128;") == 4
    assert "const float* x, float* y" in text


def test_it_says_what_it_does_with_what_it_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ScatterRows, "memory_uses", lambda self: ())
    with pytest.raises(SpecError, match="it names the buffer y and does not say what for"):
        check_kernel(of(FILL, SCATTER), "lowered")
