"""Where barriers are put, and that random kernels come out ordered."""

from __future__ import annotations

import pytest
from random_sync_kernels import Shape, random_kernel
from sync_kernels import kernel, outline, syncs

from fusewright.errors import InternalError
from fusewright.kir.analysis.hazards import unordered
from fusewright.kir.ir import BlockSync, Kernel, WarpSync
from fusewright.kir.passes.place_syncs import place_syncs
from fusewright.target import target_of

TARGET = target_of("sm_90a")
S = "shared s: float32[64]\n"


def _placed(body: str, **more: str) -> Kernel:
    k = place_syncs(kernel(body, **more), TARGET)
    assert unordered(k) == ()
    return k


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("store s[tx] = r[0]\nr[0] = load s[tx]", "sl"),
        ("store s[tx] = r[0]\nr[0] = load s[63 - tx]", "sBl"),
        ("store s[tx] = r[0]\nr[0] = load s[tx ^ 1]", "sWl"),
        ("store s[tx] = r[0]\nr[0] = load s[tx ^ 1]\nr[0] = load s[63 - tx]", "sBll"),
        ("for (i < 4) { store s[tx] = r[0]\nr[0] = load s[63 - tx] }", "(BsBl)"),
        ("store s[tx] = r[0]\nfor (i < 4) { r[0] = load s[63 - tx] }", "sB(l)"),
        ("for (i < 4) { store s[tx] = r[0] }\nr[0] = load s[63 - tx]", "(s)Bl"),
        ("for (i < 4) { r[0] = load s[63 - tx]\nstore s[tx] = r[0] }", "(BlBs)"),
        ("if (bx == 0) { store s[tx] = r[0]\nr[0] = load s[63 - tx] }", "[sBl]"),
        ("if (bx == 0) { store s[tx] = r[0] }\nr[0] = load s[63 - tx]", "[s]Bl"),
    ],
)
def test_placement(body: str, expected: str) -> None:
    assert outline(_placed(S + body)) == expected


def test_two_buffers_share_one_sync() -> None:
    body = """shared a: float32[64]
    shared b: float32[64]
    store a[tx] = r[0]
    store b[tx] = r[0]
    r[0] = load a[63 - tx]
    r[0] = load b[63 - tx]"""
    assert outline(_placed(body)) == "ssBll"


def test_one_sync_an_iteration_with_two_stages() -> None:
    body = """shared s: float32[128]
    for (i < n) { store s[tx + 64*(i % 2)] = r[0]\nr[0] = load s[63 - tx + 64*(i % 2)] }"""
    assert outline(_placed(body, head="symbol n in [1, 100]")) == "(sBl)"


def test_the_sync_inside_serves_what_is_outside() -> None:
    body = (
        S
        + """for (i < 4) { store s[tx] = r[0]\nr[0] = load s[63 - tx] }
    store s[tx] = r[0]"""
    )
    assert outline(_placed(body)) == "(sBlB)s"


def test_placed_outside_inner_loops() -> None:
    body = """shared s: float32[256]
    for (k < 3) {
      for (i < 4) { store s[tx + 64*i] = r[0] }
      for (j < 4) { r[0] = load s[255 - tx - 64*j] }
    }"""
    assert outline(_placed(body)) == "(B(s)B(l))"


def test_a_divergent_branch_is_divided_around_the_sync() -> None:
    body = S + "if (tx < 40) { store s[tx] = r[0]\nr[1] = load x[tx]\nr[0] = load s[39 - tx] }"
    assert outline(_placed(body)) == "[sl]B[l]"


def test_a_divergent_branch_changes_place_with_a_loop_inside() -> None:
    body = S + "if (tx < 40) { for (i < 3) { store s[tx] = r[0]\nr[0] = load s[39 - tx] } }"
    assert outline(_placed(body)) == "(B[s]B[l])"


def test_both_branches_of_a_divergent_condition() -> None:
    body = S + "if (tx < 40) { store s[tx] = r[0] } else { r[0] = load s[tx - 40] }"
    assert outline(_placed(body)) == "[s]B[l]"


def test_a_warp_sync_may_stand_where_whole_warps_go() -> None:
    body = S + "if (tx // 32 == 1) { store s[tx] = r[0]\nr[0] = load s[tx ^ 1] }"
    assert outline(_placed(body)) == "[sWl]"


def test_a_branch_that_changes_its_own_condition_cannot_be_divided() -> None:
    body = (
        S
        + """given g[0] in [0, 63]: if (g[0] < 40) {
      store s[tx] = r[0]
      g[0] = add(g[0], g[0])
      r[0] = load s[63 - tx]
    }"""
    )
    with pytest.raises(InternalError, match=r"writes g, which its condition reads"):
        place_syncs(kernel(body), TARGET)


def test_nothing_to_do_returns_the_same_kernel() -> None:
    k = kernel(S + "store s[tx] = r[0]\nr[0] = load s[tx]")
    assert place_syncs(k, TARGET) is k


def test_syncs_that_exist_are_used_and_numbers_go_on() -> None:
    k = _placed(S + "store s[tx] = r[0]\nblock_sync #4\nr[0] = load s[63 - tx]\nstore s[tx] = r[0]")
    assert [s.id for s in syncs(k)] == [4, 5]


def test_why_names_the_hazard() -> None:
    (sync,) = syncs(_placed(S + "store s[tx] = r[0]\nr[0] = load s[63 - tx]"))
    assert isinstance(sync, BlockSync) and sync.why == "RAW smem s: store L4 -> load L5"


def test_lanes_of_a_warp_get_a_warp_sync() -> None:
    (sync,) = syncs(_placed(S + "store s[tx] = r[0]\nr[0] = load s[tx ^ 2]"))
    assert isinstance(sync, WarpSync)


def test_an_unfixable_race_gets_no_sync() -> None:
    k = place_syncs(kernel(S + "store s[tx // 2] = r[0]"), TARGET)
    assert syncs(k) == [] and len(unordered(k)) == 1


def test_global_memory_needs_syncs_too() -> None:
    body = "store y[64*bx + tx] = r[0]\nr[0] = load y[64*bx + 63 - tx]"
    assert outline(_placed(body)) == "sBl"


@pytest.mark.parametrize("seed", range(40))
def test_random_kernels_are_ordered(seed: int) -> None:
    k = place_syncs(random_kernel(seed, Shape(buffers=3, statements=12)), TARGET)
    assert not [h for h in unordered(k) if not h.is_simultaneous]
