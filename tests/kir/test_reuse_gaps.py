"""One test for each known gap of nvFuser's reuse and sync passes, as kernels that its design gets
wrong or needs more for. M numbers are about memory, S numbers about syncs; the order of passes,
liveness from first write to last read, a stack of buffers and a `hasBlockSync` list are its design.

The gaps that need asynchronous copies (M2, S1 with bulk loads) are tested with those.
"""

from __future__ import annotations

import pytest
from sync_kernels import kernel, outline, syncs

from fusewright.kir.analysis.accesses import shared_allocs
from fusewright.kir.analysis.hazards import unordered
from fusewright.kir.analysis.ownership import shared_nbytes
from fusewright.kir.ir import BlockSync, Kernel, WarpSync
from fusewright.kir.passes.expand_reductions import expand_reductions
from fusewright.kir.passes.pack_shared import pack_shared
from fusewright.kir.passes.place_syncs import place_syncs
from fusewright.kir.passes.promote import promote
from fusewright.kir.passes.prune_syncs import prune_syncs
from fusewright.kir.pipeline import run_pipeline
from fusewright.target import target_of

TARGET = target_of("sm_90a")


def built(k: Kernel) -> Kernel:
    """The passes from hazards to pruned syncs; nothing is left unordered."""
    k = prune_syncs(pack_shared(promote(place_syncs(k, TARGET), TARGET), TARGET), TARGET)
    assert not unordered(k)
    return k


def offsets(k: Kernel) -> dict[str, int | None]:
    return {a.buffer.name: a.offset for _, a in shared_allocs(k)}


def total(k: Kernel) -> int:
    return max((a.offset or 0) + shared_nbytes(a.buffer) for _, a in shared_allocs(k))


def test_m1_reuse_sees_the_syncs_of_the_data_flow() -> None:
    """c takes a's place behind the sync that b's readers need; asking for it costs nothing more."""
    body = """shared a: float32[64]PROMOTE
    shared b: float32[64]
    shared c: float32[64]
    store a[tx] = r[0]
    r[0] = load a[63 - tx]
    store b[tx] = r[0]
    r[0] = load b[63 - tx]
    store c[tx] = r[0]
    r[0] = load c[63 - tx]"""
    for promoted in ("", " promote"):
        k = built(kernel(body.replace("PROMOTE", promoted)))
        assert outline(k) == "sBlsBlsBl"
        assert offsets(k)["a"] == offsets(k)["c"]


def test_m3_an_alias_that_lives_on_is_not_forgotten_by_promotion() -> None:
    """b is written over a in place and read at the end. c, promoted for, must leave it alone."""
    k = built(
        kernel(
            """shared a: float32[64] promote
            shared b: float32[64]
            shared c: float32[64]
            store a[tx] = r[0]
            r[0] = load a[tx]
            store b[tx] = r[0]
            store c[tx] = r[0]
            r[0] = load c[63 - tx]
            r[1] = load b[tx]"""
        )
    )
    at = offsets(k)
    assert at["a"] == at["b"] and abs((at["c"] or 0) - (at["b"] or 0)) == 256
    assert outline(k) == "slssBll"


def test_m4_a_reduction_inside_warps_is_no_sync_of_the_block() -> None:
    """The sum over tx is shuffles: the rows of other warps are still being read when b is
    written. b shares one element with a, which one thread owns in both, and all of it behind a
    sync that somebody asks for."""
    body = """shared a: float32[128]PROMOTE
    shared b: float32[128]
    store a[32*ty + tx] = r[0]
    r[0] = load a[127 - 32*ty - tx]
    t[0] = thread_reduce.add(r[0]) over (tx) identity 0.0:float32
    store b[32*ty + tx] = t[0]
    r[0] = load b[127 - 32*ty - tx]"""
    block = "tx < 32, ty < 4"

    def made(promoted: str) -> Kernel:
        return built(expand_reductions(kernel(body.replace("PROMOTE", promoted), block=block)))

    assert offsets(made("")) == {"a": 0, "b": 508} and outline(made("")) == "sBlsBl"
    assert offsets(made(" promote")) == {"a": 0, "b": 0}
    assert outline(made(" promote")) == "sBlBsBl"


def test_m5_what_is_never_read_is_still_written_somewhere() -> None:
    """w is dead, but its writes must not land in a, which is alive."""
    k = built(
        kernel(
            """shared a: float32[64]
            shared w: float32[64]
            store a[tx] = r[0]
            store w[63 - tx] = r[1]
            r[0] = load a[tx]"""
        )
    )
    assert sorted(map(str, offsets(k).values())) == ["0", "256"]


def test_m6_holes_are_filled_and_alignment_is_each_buffer_s_own() -> None:
    """low lives throughout, small and late fit into the hole that big leaves beside it."""
    k = built(
        kernel(
            """shared low: float32[8]
            shared big: float32[128]
            shared small: float32[8] align 8
            shared late: float32[64]
            store low[tx] = r[0] if (tx < 8)
            store big[tx] = r[0]
            store big[tx + 64] = r[0]
            r[0] = load big[127 - tx]
            store small[tx] = r[0] if (tx < 8)
            r[0] = load small[7 - tx] if (tx < 8)
            store late[tx] = r[0]
            r[0] = load late[63 - tx]
            r[1] = load low[7 - tx] if (tx < 8)"""
        )
    )
    assert total(k) == 512 + 32
    assert outline(k) == "sssBlsWlsBll"


@pytest.mark.parametrize(
    ("dtype", "size", "store"), [("float16", 128, "store b[2*tx] = h[0..2]"), ("float64", 32, "")]
)
def test_m7_reuse_without_a_sync_across_sizes_and_element_widths(
    dtype: str, size: int, store: str
) -> None:
    """A thread's float32 and the pair of float16 in the same four bytes have one owner; a float64
    lies in the bytes of two."""
    store = store or "store b[tx] = h[0] if (tx < 32)"
    k = built(
        kernel(
            f"""shared a: float32[64]
            shared b: {dtype}[{size}]
            local h: {dtype}[2]
            for (i < 4) {{
              store a[tx] = r[0]
              r[0] = load a[tx]
            }}
            for (i < 4) {{ {store} }}"""
        )
    )
    assert not syncs(k)
    assert total(k) == (256 if dtype == "float16" else 512)


def test_m8_an_unsuited_candidate_does_not_end_the_search() -> None:
    """Both a and b are dead when c is written. b, the nearer, has other owners; a has the same."""
    k = built(
        kernel(
            """shared a: float32[64]
            shared b: float32[64]
            shared c: float32[64]
            store a[tx] = r[0]
            store b[63 - tx] = r[0]
            r[0] = load a[tx]
            r[1] = load b[63 - tx]
            store c[tx] = r[0]
            r[0] = load c[tx]"""
        )
    )
    assert offsets(k)["c"] == offsets(k)["a"] != offsets(k)["b"]
    assert not syncs(k)


def test_m9_promotion_asks_for_no_more_than_a_warp_where_a_warp_is_enough() -> None:
    body = """shared a: float32[64] promote
    shared b: float32[64]
    store a[tx] = r[0]
    r[0] = load a[tx ^ 1]
    store b[tx] = r[0]
    r[0] = load b[tx ^ 1]"""
    k = built(kernel(body))
    assert offsets(k) == {"a": 0, "b": 0}
    assert [type(s) for s in syncs(k)] == [WarpSync] * 3


def test_m9_a_kernel_that_would_not_fit_is_promoted_unasked() -> None:
    body = """shared a: float32[30720]
    shared b: float32[30720]
    for (i < 480) { store a[tx + 64*i] = r[0] }
    for (i < 480) { r[0] = load a[30719 - tx - 64*i] }
    for (i < 480) { store b[tx + 64*i] = r[0] }
    for (i < 480) { r[0] = load b[30719 - tx - 64*i] }"""
    k = built(kernel(body))
    assert total(k) == 120 * 1024 and outline(k) == "(s)B(l)B(s)B(l)"


def test_m10_a_persistent_loop_shares_operands_and_epilogue() -> None:
    """In every tile c takes a's place and the next tile's a takes c's: both turns are ordered."""
    body = """shared a: float32[64] promote
    shared c: float32[64] promote
    for (tile < 8) {
      store a[tx] = r[0]
      r[0] = load a[63 - tx]
      store c[tx] = r[0]
      r[0] = load c[63 - tx]
    }"""
    k = built(kernel(body))
    assert offsets(k) == {"a": 0, "c": 0}
    assert outline(k) == "(sBlBsBlB)"


def test_m11_the_base_is_aligned_to_what_the_widest_swizzle_needs() -> None:
    """Offsets are multiples of 1024 from a base that is aligned to 1024 in the CUDA text too."""
    body = """shared small: float32[3]
    shared tile: float32[256] align 1024
    store small[0] = r[0] if (tx < 1)
    store tile[tx] = r[0]
    block_sync #0
    r[0] = load tile[63 - tx]
    r[1] = load small[0]"""
    k = built(kernel(body))
    assert offsets(k) == {"small": 1024, "tile": 0}


def test_s1_a_reader_that_needs_no_sync_does_not_end_the_wait_of_another() -> None:
    """The first reader reads what its own thread wrote; b, written before it, still waits for a
    sync in front of its own reader."""
    k = built(
        kernel(
            """shared a: float32[64]
            shared b: float32[64]
            store a[tx] = r[0]
            store b[tx] = r[0]
            r[0] = load a[tx]
            r[1] = load b[63 - tx]"""
        )
    )
    assert outline(k) == "sslBl"


def test_s6_buffers_at_one_address_are_one_place() -> None:
    """Written by hand: two names, the same bytes, a loop around them. The way back from b's read
    to a's write needs a sync although no buffer is read and written across threads there."""
    body = """shared a: float32[64] offset 0
    shared b: float32[64] offset 0
    for (i < 3) {
      store a[tx] = r[0]
      block_sync #0
      r[0] = load a[63 - tx]
      block_sync #1
      store b[tx] = r[0]
      block_sync #2
      r[0] = load b[63 - tx]
      BACK
    }"""
    assert not unordered(kernel(body.replace("BACK", "block_sync #3")))
    found = unordered(kernel(body.replace("BACK", "")))
    assert [str(h) for h in found] == [
        "WAR smem b/a: load L5.6 -> store L5.0, next iteration",
    ]


def test_s9_what_threads_own_needs_no_sync_and_one_sync_serves_both_directions() -> None:
    """Two halves in turns: the sync that publishes one half also stands between the last reads of
    the other and its next writes."""
    body = """shared a: float32[128]
    for (i < 6) {
      store a[64*(i % 2) + tx] = r[0]
      r[0] = load a[64*(i % 2) + 63 - tx]
    }"""
    k = built(kernel(body))
    assert outline(k) == "(sBl)" and [type(s) for s in syncs(k)] == [BlockSync]
    own = built(kernel(body.replace("63 - tx", "tx")))
    assert not syncs(own)


def test_the_whole_pipeline_keeps_these_promises() -> None:
    """Promotion through every pass: one block sync bought, the reads of b stay in their warp."""
    k = kernel(
        """shared a: float32[64] promote
        shared b: float32[64]
        r[0] = load x[tx]
        store a[tx] = r[0]
        r[0] = load a[63 - tx]
        store b[tx ^ 1] = r[0]
        r[0] = load b[tx]
        store y[tx] = r[0]"""
    )
    final = run_pipeline(k, TARGET)
    assert outline(final) == "lsBlBsWls" and offsets(final) == {"a": 0, "b": 0}
    assert not unordered(final)
