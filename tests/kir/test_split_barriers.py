"""Split barriers: threads arrive behind the last access of a buffer that promotion frees, and wait
before the next first write; where that pays, and what the static order makes of them."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from sync_kernels import kernel, outline, syncs

from fusewright.core.node import walk
from fusewright.cuda.compile import compile_cubin
from fusewright.cuda.emit import emit
from fusewright.kir.analysis.accesses import shared_allocs
from fusewright.kir.analysis.fences import unfenced
from fusewright.kir.analysis.hazards import sync_orders, unordered
from fusewright.kir.analysis.ownership import shared_nbytes
from fusewright.kir.analysis.split_barriers import split_barriers
from fusewright.kir.ir import BlockSync, Kernel, Load, MbarInit, MbarWait
from fusewright.kir.passes.pack_shared import pack_shared
from fusewright.kir.passes.place_syncs import place_syncs
from fusewright.kir.passes.promote import promote
from fusewright.kir.passes.prune_syncs import prune_syncs
from fusewright.kir.passes.split_syncs import LEAST_OPERATIONS
from fusewright.kir.pipeline import PipelineOptions, run_pipeline
from fusewright.sim.machine import simulate
from fusewright.sim.verify import Case, ReplayReport, verify_kernel
from fusewright.target import target_of

TARGET = target_of("sm_90a")
LOAD = "t[0] = load x[tx + 64]"


def exchange(
    between: str = LOAD,
    around: tuple[str, str] = ("", ""),
    asked: str = "ab",
    head: str = "",
    block: str = "tx < 64",
) -> Kernel:
    """a is read backwards, then b is written and read backwards, with `between` on either way."""
    asks = {name: " promote" if name in asked else "" for name in "ab"}
    return kernel(
        f"""shared a: float32[64] align 16{asks["a"]}
        shared b: float32[64] align 16{asks["b"]}
        r[0] = load x[tx]
        t[0] = copy(0.5:float32)
        {around[0]}
        store a[tx] = r[0]
        r[1] = load a[63 - tx]
        {between}
        r[1] = add(r[1], t[0])
        store b[tx] = r[1]
        r[0] = load b[63 - tx]
        {between}
        r[0] = add(r[0], t[0])
        {around[1]}
        store y[64*bx + tx] = r[0]""",
        head=head,
        block=block,
    )


def final(k: Kernel, without: str = "") -> Kernel:
    return run_pipeline(k, TARGET, PipelineOptions(spec=3, without=without))


def total(k: Kernel) -> int:
    return max((a.offset or 0) + shared_nbytes(a.buffer) for _, a in shared_allocs(k))


def arrays(k: Kernel) -> dict[object, np.ndarray]:
    x = np.random.default_rng(0).normal(size=4096).astype(np.float32)
    return dict(zip(k.params, (x, np.zeros(4096, np.float32)), strict=True))


def output(k: Kernel, n: int | None = None) -> np.ndarray:
    found = arrays(k)
    symbols = dict.fromkeys(k.symbols, n or 0)
    simulate(k, found, symbols=symbols, check_races=False, blocks=None)
    return found[k.params[1]]


def report(k: Kernel, n: int | None = None) -> ReplayReport:
    symbols = dict.fromkeys(k.symbols, n or 0)
    return verify_kernel(k, Case(arrays(k), symbols=symbols, outputs=k.params[1:]))


# --- where a split barrier is bought --------------------------------------------------------------


def test_a_load_between_splits_the_sync() -> None:
    before = exchange(asked="a")
    k = final(before)
    assert outline(k) == "ilsBl<l>sBlls"
    assert total(k) == 256 + 8, (
        "the mbarrier is memory like all other, and shares its own with none"
    )
    found = report(k)
    assert found.ok and len(found.necessary) == 5
    np.testing.assert_array_equal(output(k), output(before))


def test_the_reason_stands_at_all_three_statements() -> None:
    init, _, arrive, wait, _ = syncs(final(exchange(asked="a")))
    whys = {s.why for s in (init, arrive, wait)}
    assert len(whys) == 1 and re.match(r"reuse smem a: access L\S+ -> first write of b", whys.pop())


@pytest.mark.parametrize(
    ("operations", "order"), [(LEAST_OPERATIONS - 1, "B(l)BsB"), (LEAST_OPERATIONS, "B(l)<()>sB")]
)
def test_enough_work_between_splits_the_sync(operations: int, order: str) -> None:
    """Neither: the work of a thread hides a barrier, or one at which all meet is cheaper."""
    body = f"""shared a: float32[64] align 16 promote
    shared b: float32[64] align 16
    store a[tx] = r[0]
    for (i < 2) {{ r[1] = load a[63 - tx - i*tx//64] }}
    for (j < {operations}) {{ r[1] = mul(r[1], r[1]) }}
    store b[tx] = r[1]
    r[0] = load b[63 - tx]
    store y[64*bx + tx] = r[0]"""
    k = promote(place_syncs(kernel(body), TARGET), TARGET)
    expected = order if operations >= LEAST_OPERATIONS else order.replace("(l)", "(l)()")
    assert outline(k).removeprefix("i") == f"s{expected}ls"


def test_nothing_between_takes_a_full_sync() -> None:
    k = final(exchange("", asked="a"))
    assert outline(k) == "lsBlBsBls" and total(k) == 256


def test_a_sync_that_stands_between_is_used() -> None:
    k = place_syncs(exchange(asked="a"), TARGET)
    load = next(i for i, s in enumerate(k.body) if isinstance(s, Load) and s.dst.buffer.name == "t")
    there = replace(k, body=(*k.body[:load], BlockSync(99, "there"), *k.body[load:]))
    promoted = promote(there, TARGET)
    assert outline(there) == outline(promoted) == "lsBlBlsBlls"


@pytest.mark.parametrize(
    ("start", "stop"), [("if (bx < 2) {", "}"), ("for (i < 4) { for (j < i) {", "}}")]
)
def test_where_runs_cannot_be_counted_the_sync_is_a_full_one(start: str, stop: str) -> None:
    k = final(exchange(around=(start, stop)))
    assert not split_barriers(k) and total(k) == 256
    assert any(s.why.startswith("reuse") and isinstance(s, BlockSync) for s in syncs(k))


def test_one_warp_meets_as_before() -> None:
    k = final(replace(exchange(block="tx < 32"), name="k"))
    assert "<" not in outline(k) and not split_barriers(k)


def test_without_mbarriers_that_wait_the_sync_is_a_full_one() -> None:
    k = run_pipeline(exchange(), target_of("sm_80"), PipelineOptions(spec=3))
    assert not split_barriers(k) and total(k) == 256


def test_the_switch_buys_full_syncs() -> None:
    k = final(exchange(), without="split")
    assert not split_barriers(k) and total(k) == 256


def test_a_sync_for_the_mbarrier_is_not_bought_for_one_run() -> None:
    """A thread reads what it wrote, so nothing orders the start of an mbarrier before an arrival;
    in a loop one sync ahead of it serves all iterations."""
    body = """shared a: float32[64] align 16 promote
    shared b: float32[64] align 16 promote
    START
    store a[tx] = r[0]
    r[1] = load a[tx]
    t[0] = load x[tx]
    store b[63 - tx] = r[1]
    r[0] = load b[63 - tx]
    t[0] = load x[tx + 64]
    STOP"""
    around = {"": "", "for (i < 9) {": "}"}
    once, often = (
        promote(place_syncs(kernel(body.replace("START", a).replace("STOP", b)), TARGET), TARGET)
        for a, b in around.items()
    )
    assert (outline(once), outline(often)) == ("sllBsll", "iiB(sl<l>sl<l>)")


def _large(kbytes: int, between: str) -> Kernel:
    n = kbytes * 256
    trips = n // 1024
    body = f"""shared a: float32[{n}] align 128
    shared b: float32[{n}] align 128
    for (i < {trips}) {{ store a[tx + 1024*i] = r[0] }}
    for (i < {trips}) {{ r[0] = load a[{n - 1} - tx - 1024*i] }}
    {between}
    for (i < {trips}) {{ store b[tx + 1024*i] = r[0] }}
    for (i < {trips}) {{ r[0] = load b[{n - 1} - tx - 1024*i] }}"""
    return place_syncs(kernel(body, block="tx < 1024"), TARGET)


@pytest.mark.parametrize(
    ("kbytes", "between", "order"),
    [
        (120, LOAD, "(s)B(l)<l>(s)B(l)"),
        (120, "", "(s)B(l)B(s)B(l)"),
        (112, LOAD, "(s)B(l)<l>(s)B(l)"),
        (113, LOAD, "(s)B(l)lB(s)B(l)"),  # 8 bytes more, and a second block does not fit
        (16, LOAD, "(s)B(l)l(s)B(l)"),
    ],
)
def test_unasked_it_is_split_unless_that_costs_a_block(
    kbytes: int, between: str, order: str
) -> None:
    k = promote(_large(kbytes, between), TARGET)
    assert outline(k).removeprefix("i") == order


# --- phases ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("start", "stop", "parity"),
    [
        ("for (i < n) {", "}", "i%2"),
        ("for (i < n) { for (j < 3) {", "}}", "(3*i + j)%2"),
        ("for (i < 3) { for (j < n) {", "}}", "(i*n + j)%2"),
    ],
)
def test_phases_follow_the_loops_around(start: str, stop: str, parity: str) -> None:
    """Also for no iteration, one, and a loop that goes on as long as there is work."""
    before = exchange(around=(start, stop), head="symbol n in [0, 10000]")
    k = final(before)
    assert "(sBl<l>sBl<l>)" in outline(k) and total(k) == 256 + 16
    assert {str(s.parity) for s in walk(k) if isinstance(s, MbarWait)} == {parity}
    assert not unordered(k)
    for n in (0, 1, 2, 3, 6):
        np.testing.assert_array_equal(output(k, n), output(before, n))
        assert not report(k, n).missing, n
    assert report(k, 3).ok


@pytest.mark.parametrize("trips", [0, 1])
def test_loops_of_none_and_one_iteration(trips: int) -> None:
    before = exchange(around=(f"for (i < {trips}) {{", "}"))
    k = final(before)
    assert len(split_barriers(k)) == trips
    np.testing.assert_array_equal(output(k), output(before))
    assert report(k).ok


# --- the static order -----------------------------------------------------------------------------

PAIR = """shared a: float32[64]
shared gate: uint64[1]
mbar_init #0 gate[0] count 64 by thread 0
block_sync #1
for (i < 4) {
  store a[tx] = r[0]
  mbar_arrive #2 gate[0]
  r[1] = load x[tx]
  mbar_wait #3 gate[0] parity i%2
  r[2] = load a[63 - tx]
  block_sync #4
}
store y[tx] = r[2]"""


def test_what_lies_before_the_arrival_is_ordered_before_what_lies_behind_the_wait() -> None:
    k = kernel(PAIR)
    (pair,) = split_barriers(k)
    assert not unordered(k)
    orders = sync_orders(k)
    mine = orders[pair.wait.id]
    assert mine and orders[pair.arrive.id] == mine and orders[pair.init.id] == mine
    assert "RAW smem a: store L7.0 -> load L7.4" in [str(h) for h in mine]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("parity i%2", "parity 0"),
        ("parity i%2", "parity (i + 1)%2"),
        ("count 64", "count 32"),
        ("mbar_arrive #2 gate[0]", "mbar_arrive #2 gate[0] per_warp"),
        ("parity i%2", "parity i%2 by thread 0"),
        ("mbar_arrive #2 gate[0]", "if (bx < 2) { mbar_arrive #2 gate[0] }"),
        ("uint64[1]", "uint64[2]\nmbar_init #9 gate[0] count 64 by thread 0"),
        ("  store a[tx]", "  mbar_arrive #9 gate[0]\n  store a[tx]"),
        ("i < 4) {\n", "i < 4) {\nmbar_wait #9 gate[0] parity i%2\n"),
        ("block_sync #1\n", "mbar_invalidate #9 gate[0] by thread 0\nblock_sync #1\n"),
    ],
)
def test_other_uses_of_an_mbarrier_order_nothing(old: str, new: str) -> None:
    """Whatever the machine may make of it, the static order trusts one protocol only."""
    assert old in PAIR
    k = kernel(PAIR.replace(old, new, 1))
    assert split_barriers(k) == ()
    assert "RAW smem a" in " ".join(map(str, unordered(k)))


def test_an_arrival_in_front_of_the_write_orders_nothing() -> None:
    lines = PAIR.splitlines()
    write, arrive = lines.index("  store a[tx] = r[0]"), lines.index("  mbar_arrive #2 gate[0]")
    lines[write], lines[arrive] = lines[arrive], lines[write]
    k = kernel("\n".join(lines))
    assert split_barriers(k) and "RAW smem a" in " ".join(map(str, unordered(k)))


def test_the_start_of_the_mbarrier_needs_a_sync_of_its_own() -> None:
    k = kernel(PAIR.replace("block_sync #1\n", ""))
    assert {h.before_buffer.name for h in unordered(k)} == {"gate"}
    placed = place_syncs(k, TARGET)
    assert outline(placed) == "iB" + outline(k)[1:] and not unordered(placed)


# --- pruning --------------------------------------------------------------------------------------


@pytest.mark.parametrize("copies", ["", "cp_async c[tx] = x[tx]\n"])
def test_a_pair_that_orders_nothing_goes_with_its_mbarrier_and_the_sync_of_that(
    copies: str,
) -> None:
    """In kernels with asynchronous copies syncs are pruned by trial."""
    ends = "async_commit #7 kind(cp_async)\nasync_wait #8 kind(cp_async)\n" if copies else ""
    body = PAIR.replace("63 - tx", "tx").replace("\n  block_sync #4", "")
    k = pack_shared(kernel(f"shared c: float32[64]\n{copies}{ends}{body}"), TARGET)
    assert outline(k).count("B") == 1
    pruned = prune_syncs(k, TARGET)
    kinds = [type(s).__name__ for s in syncs(pruned)]
    assert kinds == (["AsyncCommit", "AsyncWait"] if copies else [])
    assert not any(a.buffer.name == "gate" for _, a in shared_allocs(pruned))


@pytest.mark.parametrize("copies", ["", "cp_async c[tx] = x[tx]\n"])
def test_a_pair_that_orders_single_warps_becomes_a_warp_sync(copies: str) -> None:
    ends = "async_commit #7 kind(cp_async)\nasync_wait #8 kind(cp_async)\n" if copies else ""
    body = PAIR.replace("63 - tx", "tx ^ 1")
    k = pack_shared(kernel(f"shared c: float32[64]\n{copies}{ends}{body}"), TARGET)
    pruned = prune_syncs(k, TARGET)
    assert outline(pruned).endswith("(slWlW)s")
    assert not split_barriers(pruned) and not unordered(pruned)
    assert not any(isinstance(s, MbarInit) for s in syncs(pruned))


def test_a_pair_that_is_needed_stays() -> None:
    k = pack_shared(kernel(PAIR), TARGET)
    assert prune_syncs(k, TARGET) is k


# --- other witnesses ------------------------------------------------------------------------------


def test_each_statement_left_out_alone_is_reported() -> None:
    k = final(exchange(around=("for (i < 5) {", "}")))
    found = report(k)
    assert found.ok and len(found.necessary) == len(syncs(k)) == 8
    alone = {w.split(" ")[1]: w for w in found.witnesses}
    assert "no mbarrier is initialised" in alone["mbar_init"]
    assert "deadlock" in alone["mbar_arrive"]
    assert "race" in alone["mbar_wait"] or "rule" in alone["mbar_wait"]


def test_a_proxy_fence_stands_before_the_arrival() -> None:
    """The writers' fence comes before what hands their bytes on."""
    body = PAIR.replace("for (i < 4) {", "for (i < 1) {").replace("i%2", "0")
    body = body.replace("r[2] = load a[63 - tx]", "bulk_store y[0] = a[0] size 64 by thread 0")
    body += "\nasync_commit #5 kind(bulk)\nasync_wait #6 kind(bulk)"
    k = run_pipeline(
        kernel(body.replace("store y[tx] = r[2]", "")), TARGET, PipelineOptions(spec=0)
    )
    kinds = [type(s).__name__ for s in syncs(k)]
    assert kinds.index("ProxyFence") < kinds.index("MbarArrive") < kinds.index("MbarWait")
    assert not unfenced(k)
    behind = replace(k, body=tuple(s for s in k.body if type(s).__name__ != "ProxyFence"))
    assert unfenced(behind)


def test_every_part_reaches_the_machine_code() -> None:
    k = final(exchange(around=("for (i < n) {", "}"), head="symbol n in [0, 10000]"))
    compiled = compile_cubin(emit(k, TARGET), TARGET, name=k.name)
    found = {int(n) for n in re.findall(r"// fw-sync (\d+)", compiled.ptx)}
    assert found == {s.id for s in syncs(k)}
