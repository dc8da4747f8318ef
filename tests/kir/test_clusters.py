# ruff: noqa: E501  (kernel texts, one case a line)
"""Clusters through the kernel IR: text, checks, expansion, placement, pruning, packing."""

from __future__ import annotations

import math

import numpy as np
import pytest
from sync_kernels import syncs

from fusewright.core.expr import Int
from fusewright.errors import SpecError
from fusewright.kir.analysis.hazards import sync_orders, unordered
from fusewright.kir.cluster_spec import CLUSTER_CHECKS
from fusewright.kir.clusters import cluster_barriers, exported_buffers
from fusewright.kir.ir import (
    Alloc,
    Body,
    ClusterArrive,
    ClusterWait,
    For,
    Kernel,
    Load,
    MbarExpect,
    RemoteStore,
    Store,
)
from fusewright.kir.passes.expand_reductions import expand_reductions, group_of
from fusewright.kir.passes.pack_shared import pack_shared
from fusewright.kir.passes.place_syncs import place_syncs
from fusewright.kir.passes.prune_syncs import prune_syncs
from fusewright.kir.pipeline import PipelineOptions, run_pipeline
from fusewright.kir.spec import Stage, check_kernel
from fusewright.kir.text import parse_kernel, print_kernel
from fusewright.kir.traverse import walk_statements
from fusewright.memory import Memory
from fusewright.schedule.block_reduction import are_shared_out, cluster_meeting
from fusewright.sim.machine import simulate
from fusewright.target import target_of

TARGET = target_of("sm_90a")


def kernel(body: str, *, cluster: str = "cluster (cx < 2)", block: str = "tx < 64") -> Kernel:
    return parse_kernel(f"""kernel k {{
      param x: float32[4096] align 16
      param y: float32[4096] align 16
      grid (bx < 2)
      block ({block})
      {cluster}
      local r: float32[4]
      shared s: float32[64] align 16
      {body}
    }}""")


EXCHANGE = """
  r[0] = load x[64*cx + tx]
  remote_store s[tx] of block 1 - cx = r[0] if (tx < 60)
  r[1] = load s[tx] if (tx < 60) else 0.0:float32
  store y[128*bx + 64*cx + tx] = r[1]
"""


def test_text() -> None:
    k = kernel("cluster_arrive #0 relaxed(true)\ncluster_wait #1" + EXCHANGE)
    text = print_kernel(k)
    assert "  block (tx < 64)\n  cluster (cx < 2)\n" in text
    assert "remote_store s[tx] of block -cx + 1 = r[0] if (tx < 60)" in text
    assert "cluster_arrive #0 relaxed(true)\n  cluster_wait #1\n" in text
    assert print_kernel(parse_kernel(text)) == text
    assert (k.cluster_size, k.nthreads) == (2, 64)
    assert kernel("", cluster="").cluster_size == 1


# --- checks -------------------------------------------------------------------------------------

PAIR = "cluster_arrive #0\ncluster_wait #1"
REFUSED: list[tuple[str, Stage, str, dict[str, str], str]] = [
    ("cluster", "lowered", "", {"cluster": "cluster (cx < 9)"}, "cluster extent 9 is not a constant from 2 to 8"),
    ("cluster", "lowered", "", {"cluster": "cluster (cx < 1)"}, "cluster extent 1 is not"),
    ("cluster", "lowered", "", {"cluster": "cluster (cx < 2, cy < 2)"}, "the cluster has 2 dimensions; it has one"),
    ("cluster", "lowered", "", {"cluster": "cluster (cz < 2)"}, "which is cx"),
    ("cluster", "lowered", "", {"block": "tx < 48"}, "48 threads a block; the blocks of a cluster have whole warps"),
    ("cluster statements", "lowered", PAIR, {"cluster": ""}, "the kernel has no cluster"),
    ("cluster statements", "lowered", "roles { role warps 0..1 { " + PAIR + " } }", {}, "all threads of the cluster meet, but a role has"),
    ("exchanges of blocks", "lowered", "shared f: uint64[2]\nmbar_arrive #0 f[cx] of block 0 per_warp", {}, "blocks of a cluster do this for each other, but may disagree on 'cx'"),
    ("operands", "lowered", "remote_store y[tx] of block cx = r[0]", {}, "y lives in global memory; blocks share shared"),
    ("cluster barriers", "lowered", "cluster_arrive #0", {}, "no wait follows in the same body"),
    ("cluster barriers", "lowered", "cluster_wait #0", {}, "no arrival comes before it in the same body"),
    ("cluster barriers", "lowered", "cluster_arrive #0\n" + PAIR.replace("0", "2") + "\ncluster_wait #3", {}, "no wait follows"),
    ("cluster barriers", "lowered", "cluster_arrive #0\nfor (i < 2) { cluster_wait #1 }", {}, "no wait follows"),
    ("cluster barriers", "lowered", "cluster_arrive #0\nfor (i < 2) { cluster_arrive #2\ncluster_wait #3 }\ncluster_wait #1", {}, "no wait follows"),
    ("cluster barriers", "lowered", "for (i < cx + 1) { " + PAIR + " }", {}, "blocks of a cluster meet inside, but may run cx + 1 trips"),
    ("convergence", "lowered", "if (cx == 0) { " + PAIR + " }", {}, "the threads of a cluster meet here, but may disagree on 'cx == 0'"),
    ("convergence", "lowered", "if (tx == 0) { " + PAIR + " }", {}, "may disagree on 'tx == 0'"),
    ("convergence", "lowered", "if (cx == 0) { r[0] = thread_reduce.add(r[0]) over (cx) identity 0.0:float32 }", {}, "the threads of a cluster meet here"),
    ("operands", "lowered", "shared h: float16[4]\nshared f: uint64[1]\nlocal v: float16[1]\nremote_store h[0] of block cx = v[0] on f", {}, "elements of h have 2 bytes; mbarriers count 4 or 8 a store"),
    ("counted stores", "lowered", "shared f: uint64[1]\nremote_store s[0] of block cx = r[0] on f\nremote_store s[1] of block cx = r[0]", {}, "mbarriers count other stores to s"),
    ("mbarriers", "lowered", "shared f: uint32[1]\nremote_store s[0] of block cx = r[0] on f", {}, "f is uint32 in shared memory; mbarriers are uint64"),
    ("mbarriers", "lowered", "shared f: uint64[1]\nremote_store s[0] of block cx = r[0] on f slot 1", {}, "slot 1 may lie outside of the 1 mbarriers"),
    ("operands", "lowered", "local h: float16[1]\nremote_store s[tx] of block cx = h[0]", {}, "a store keeps the dtype"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "stage", "body", "more", "message"), REFUSED)
def test_what_breaks_a_rule_is_refused(
    name: str, stage: Stage, body: str, more: dict[str, str], message: str
) -> None:
    with pytest.raises(SpecError) as error:
        check_kernel(kernel(body, **more), stage)
    assert f"check '{name}'" in str(error.value)
    assert message in str(error.value)


def test_memory_that_blocks_write_is_not_shared() -> None:
    text = """kernel k {
      grid (bx < 1)
      block (tx < 32)
      cluster (cx < 2)
      local r: float32[1]
      shared s: float32[32] align 16 offset 0
      shared t: float32[32] align 16 offset OFFSET
      r[0] = copy(0.0:float32)
      remote_store s[tx] of block cx = r[0]
    }"""
    check_kernel(parse_kernel(text.replace("OFFSET", "128")), "packed")
    with pytest.raises(SpecError, match="blocks of the cluster write s; t shares its bytes"):
        check_kernel(parse_kernel(text.replace("OFFSET", "64")), "packed")


def test_old_targets_have_no_clusters() -> None:
    with pytest.raises(SpecError, match="clusters of 2 blocks; sm_89 has clusters of 1"):
        check_kernel(kernel(""), "lowered", target=target_of("sm_89"))


def test_every_check_has_a_rejection() -> None:
    assert {c.name for c in CLUSTER_CHECKS} <= {r[0] for r in REFUSED} | {
        "memory that blocks share"
    }


def test_blocks_may_disagree_where_they_do_not_meet() -> None:
    check_kernel(kernel("if (cx == 0) { block_sync #0\nr[0] = shuffle.xor(r[0], 1) }"), "lowered")


# --- passes -------------------------------------------------------------------------------------


def placed(body: str) -> Kernel:
    k = place_syncs(kernel(body), TARGET)
    check_kernel(k, "synced", target=TARGET)
    assert unordered(k) == ()
    return k


def shape(k: Kernel) -> str:
    """Arrivals `a` (relaxed `r`), waits `w`, remote stores `S`, others `.`, at the top level."""
    out = ""
    for s in k.body:
        match s:
            case ClusterArrive():
                out += "r" if s.relaxed else "a"
            case ClusterWait():
                out += "w"
            case RemoteStore():
                out += "S"
            case _:
                out += "."
    return out


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (EXCHANGE, "r...wSaw.."),
        # nobody reads what is stored: the blocks still must not exit before
        ("remote_store s[tx] of block 1 - cx = r[0]", "r..wSaw"),
        # two stores before any load share both barriers
        ("shared t: float32[64]\nremote_store s[tx] of block 0 = r[0] if (cx == 1)\n"
         "remote_store t[tx] of block 1 - cx = r[0]\nr[1] = load s[tx]\nr[2] = load t[tx]",
         "r...wSSaw.."),
        # a second use of the buffer waits for the loads
        ("remote_store s[tx] of block 1 - cx = r[0]\nr[1] = load s[tx]\n"
         "remote_store s[tx] of block 1 - cx = r[1]\nr[2] = load s[tx]", "r..wSaw.awSaw."),
        # another buffer does not
        ("shared t: float32[64]\nremote_store s[tx] of block 1 - cx = r[0]\nr[1] = load s[tx]\n"
         "remote_store t[tx] of block 1 - cx = r[1]\nr[2] = load t[tx]", "r...wSaw.Saw."),
    ],
)  # fmt: skip
def test_placement(body: str, expected: str) -> None:
    assert shape(placed(body)) == expected


def test_a_block_sync_is_enough_for_memory_of_ones_own() -> None:
    k = placed("store s[tx] = r[0]\nr[1] = load s[63 - tx]")
    assert [type(s).__name__ for s in syncs(k)] == ["BlockSync"]


def test_a_cluster_barrier_serves_the_block_too() -> None:
    body = """
      shared t: float32[64]
      store t[tx] = r[0]
      remote_store s[tx] of block 1 - cx = r[0]
      r[1] = load s[tx]
      r[2] = load t[63 - tx]
    """
    assert shape(placed(body)) == "r....wSaw.."


def test_in_a_loop_the_barrier_before_the_store_lets_all_begin() -> None:
    k = placed("for (i < 3) { remote_store s[tx] of block 1 - cx = r[0]\nr[0] = load s[63 - tx] }")
    assert shape(k) == "..."
    loop = k.body[-1]
    assert shape(loop) == "awSaw."  # type: ignore[arg-type]


def test_a_branch_is_divided_around_a_barrier() -> None:
    k = placed("if (tx < 40) { remote_store s[tx] of block 1 - cx = r[0]\nr[0] = load s[tx] }")
    assert shape(k) == "r..w.aw."


def test_a_block_that_reads_what_no_other_writes_does_not_wait_for_it() -> None:
    k = placed("if (cx == 0) { remote_store s[tx] of block 1 = r[0]\nr[0] = load s[tx] }")
    assert shape(k) == "r..w.aw"


def test_why_and_what_it_orders() -> None:
    k = placed(EXCHANGE)
    begin, meet = cluster_barriers(k)
    assert begin[0].why == "START: blocks have begun -> remote store of s L3"
    assert meet[1].why.startswith("RAW smem s: store L3 -> load L4")
    orders = sync_orders(k)
    assert {h.kind for h in orders[begin[0].id]} == {"START"}
    assert {h.kind for h in orders[meet[0].id]} == {"RAW", "EXIT"}
    assert str(orders[meet[1].id][1]) == "EXIT: remote store of s L5 -> blocks exit"


def test_pruning_takes_both_statements_of_a_barrier() -> None:
    k = kernel("cluster_arrive #7\ncluster_wait #8" + EXCHANGE)
    k = place_syncs(k, TARGET)
    assert [s.id for s in syncs(prune_syncs(k, TARGET))] == [7, 8, 9, 10]
    useless = kernel(EXCHANGE + "cluster_arrive #0\ncluster_wait #1")
    both = place_syncs(useless, TARGET)
    assert {0, 1}.isdisjoint(s.id for s in syncs(prune_syncs(both, TARGET)))


def test_memory_that_blocks_write_lies_apart() -> None:
    body = """
      shared t: float32[64]
      store t[tx] = r[0]
      r[1] = load t[63 - tx]
      remote_store s[tx] of block 1 - cx = r[1]
      r[2] = load s[tx]
      shared u: float32[64]
      store u[tx] = r[2]
      r[3] = load u[63 - tx]
      store y[128*bx + 64*cx + tx] = r[3]
    """
    k = pack_shared(place_syncs(kernel(body), TARGET), TARGET)
    offsets = {
        a.buffer.name: a.offset for a in k.body if isinstance(a, Alloc) and a.offset is not None
    }
    assert offsets == {"t": 0, "u": 0, "s": 256}
    assert [b.name for b in exported_buffers(k)] == ["s"]
    check_kernel(k, "packed", target=TARGET)


# --- reductions ---------------------------------------------------------------------------------


def reduction(block: tuple[int, ...], size: int, dims: str, fn: str = "add") -> Kernel:
    names = ("tx", "ty", "tz")[: len(block)]
    extents = ", ".join(f"{n} < {e}" for n, e in zip(names, block, strict=True))
    weights = [math.prod(block[:i]) for i in range(len(block))]
    at = " + ".join(f"{w}*{n}" for w, n in zip(weights, names, strict=True))
    n = math.prod(block)
    return parse_kernel(f"""kernel reduce {{
      param x: float32[{2 * size * n}]
      param y: float32[{2 * size * n}]
      grid (bx < 2)
      block ({extents})
      cluster (cx < {size})
      local r: float32[1]
      r[0] = load x[{size * n}*bx + {n}*cx + {at}]
      r[0] = thread_reduce.{fn}(r[0]) over ({dims}) identity {"0.0" if fn == "add" else "-inf"}:float32
      store y[{size * n}*bx + {n}*cx + {at}] = r[0]
    }}""")


BLOCKS = [
    ((32,), "tx, cx"), ((256,), "tx, cx"), ((1024,), "tx, cx"), ((96,), "tx, cx"),
    ((8, 16), "tx, cx"), ((8, 16), "ty, cx"), ((64, 2), "tx, cx"), ((64,), "cx"),
    ((24, 4), "tx, cx"), ((4, 8, 2), "tx, tz, cx"), ((2, 16), "ty, cx"), ((64,), "tx"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("block", "dims", "size"),
    [
        *((block, dims, 3) for block, dims in BLOCKS),  # ranks are no bits
        *((block, dims, 8) for block, dims in BLOCKS),  # the most that every target has
        ((8, 16), "ty, cx", 2), ((96,), "tx, cx", 4),
    ],
)  # fmt: skip
def test_reductions_over_a_cluster(block: tuple[int, ...], dims: str, size: int) -> None:
    k = run_pipeline(reduction(block, size, dims), TARGET, PipelineOptions(spec=3))
    x = np.random.default_rng(size).integers(-9, 9, int(str(k.params[0].size))).astype(np.float32)
    y = np.zeros_like(x)
    arrays = dict(zip(k.params, (x.copy(), y), strict=True))
    result = simulate(k, arrays, outputs=k.params[1:])
    assert result.races == []
    cube = x.reshape(2, size, *reversed(block))
    order = ("cx", *("tz", "ty", "tx")[3 - len(block) :])
    axes = tuple(1 + order.index(d) for d in dims.split(", "))
    want = np.broadcast_to(cube.sum(axis=axes, keepdims=True), cube.shape)
    assert np.array_equal(y.reshape(cube.shape), want)


def sums_of_threads(block: tuple[int, int], size: int, count: int) -> Kernel:
    """Every thread has `count` values, each added up over the second dimension and the cluster."""
    n = count * math.prod(block)
    at = f"{size * n}*bx + {n}*cx + {count}*(tx + {block[0]}*ty)"
    reduce = "thread_reduce.add(r[{0}]) over (ty, cx) identity 0.0:float32"
    lines = [f"r[{i}] = load x[{at} + {i}]" for i in range(count)]
    lines += [f"r[{i}] = {reduce.format(i)}" for i in range(count)]
    lines += [f"store y[{at} + {i}] = r[{i}]" for i in range(count)]
    body = "\n".join(lines)
    return parse_kernel(f"""kernel reduce {{
      param x: float32[{2 * size * n}]
      param y: float32[{2 * size * n}]
      grid (bx < 2)
      block (tx < {block[0]}, ty < {block[1]})
      cluster (cx < {size})
      local r: float32[{count}]
      {body}
    }}""")


@pytest.mark.parametrize("size", [3, 8])
@pytest.mark.parametrize("count", [1, 8, 19])
@pytest.mark.parametrize(
    "block", [(6, 32), (8, 32), (32, 8), (1, 256), (2, 16), (5, 96), (48, 2), (4, 8)]
)
def test_sums_of_many_threads_and_blocks(block: tuple[int, int], count: int, size: int) -> None:
    """Right, no races, and what threads hand each other is what the model counts."""
    start = sums_of_threads(block, size, count)
    group = group_of(start, ("ty",))
    expected = cluster_meeting(count, group.lanes, group.rest, size)
    k = run_pipeline(start, TARGET)
    x = np.random.default_rng(count).integers(-9, 9, int(str(k.params[0].size)))
    x, y = x.astype(np.float32), np.zeros(x.size, np.float32)
    result = simulate(k, dict(zip(k.params, (x, y), strict=True)), outputs=k.params[1:])
    assert result.races == []
    cube = x.reshape(2, size, block[1], block[0], count)
    want = np.broadcast_to(cube.sum(axis=(1, 2), keepdims=True), cube.shape)
    assert np.array_equal(y.reshape(cube.shape), want)
    expanded = expand_reductions(start)
    sent = [s for s in walk_statements(expanded) if isinstance(s, RemoteStore)]
    shares = are_shared_out(count, group.lanes, group.rest, size)
    assert {s.dst.name.rstrip("0123456789") for s in sent} == {"handed" if shares else "workspace"}
    assert expected.barriers == (3 if shares else 1)
    if shares:
        assert expected.through_shared == moved(expanded.body, group.lanes)


def moved(body: Body, lanes: int, trips: int = 1) -> float:
    """Elements that a thread hands to others by way of shared memory: `lanes` of a warp share the
    stores of partials."""
    total = 0.0
    for s in body:
        match s:
            case For(extent=Int(value=n)):
                total += moved(s.body, lanes, trips * n)
            case Load(src=buffer) | RemoteStore(dst=buffer) if buffer.memory is Memory.SHARED:
                total += trips
            case Store(dst=buffer) if buffer.memory is Memory.SHARED:
                total += trips / (lanes if buffer.name.startswith("workspace") else 1)
            case _:
                pass
    return total


def test_columns_of_a_cluster_hand_on_sums() -> None:
    """Of 6 by 32 threads of 8 blocks each would load 256 partials of each of 8 columns."""
    shared, loads = cluster_meeting(8, 1, 32, 8), 8 * 32 * 8
    assert shared.barriers == 3
    assert shared.through_shared < loads / 20
    rows = cluster_meeting(1, 32, 8, 8)  # a row of 8 warps: one exchange is enough
    assert rows.barriers == 1


def test_all_blocks_get_the_same_bits() -> None:
    k = run_pipeline(reduction((160,), 4, "tx, cx"), TARGET)
    x = np.random.default_rng(0).standard_normal(1280).astype(np.float32)
    y = np.zeros_like(x)
    simulate(k, dict(zip(k.params, (x, y), strict=True)))
    assert len(set(y[:640].tolist())) == 1
    assert len(set(y[640:].tolist())) == 1


def test_one_value_for_each_block_and_warp() -> None:
    k = expand_reductions(reduction((256,), 4, "tx, cx"))
    (store,) = (s for s in walk_statements(k) if isinstance(s, RemoteStore))
    assert str(store.dst.size) == "32"
    assert str(store.rank) == "tx%32"
    assert str(store.predicate) == "tx%32 < 4"


def _two_reductions() -> Kernel:
    text = print_kernel(reduction((64,), 2, "tx, cx"))
    line = next(x for x in text.splitlines() if "thread_reduce" in x)
    again = line.replace("add", "max").replace("0.0", "-inf")
    return parse_kernel(text.replace(line, f"{line}\n{again}"))


def test_two_reductions_need_one_barrier_and_two_mbarriers() -> None:
    """One lets all begin; each reduction has memory of its own, whose bytes an mbarrier counts."""
    k = run_pipeline(_two_reductions(), TARGET)
    assert [p[0].relaxed for p in cluster_barriers(k)] == [True]
    assert [s.nbytes for s in walk_statements(k) if isinstance(s, MbarExpect)] == [16, 16]
    assert [type(s).__name__ for s in syncs(k)].count("MbarWait") == 2


def test_without_counting_they_need_three_barriers() -> None:
    k = run_pipeline(_two_reductions(), TARGET, PipelineOptions(without="counting"))
    assert [p[0].relaxed for p in cluster_barriers(k)] == [True, False, False]
    assert len(syncs(k)) == 6
