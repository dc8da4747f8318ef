"""Which pairs of accesses must be ordered, and which syncs order them."""

from __future__ import annotations

import time

import pytest
from sync_kernels import kernel

from fusewright.core.conditions import equal, less
from fusewright.core.expr import Var, floordiv
from fusewright.kir.analysis.hazards import hazards, sync_orders, unordered
from fusewright.kir.analysis.uniformity import is_block_uniform, is_warp_uniform

S = "shared s: float32[64]\n"


def _kinds(body: str, **more: str) -> list[tuple[str, str, int]]:
    return [(h.kind, h.scope.value, h.distance) for h in hazards(kernel(body, **more))]


@pytest.mark.parametrize(
    ("index", "expected"),
    [
        ("tx", []),
        ("(tx + 1) % 64", [("RAW", "block", 0)]),
        ("tx ^ 1", [("RAW", "warp", 0)]),
        ("tx ^ 32", [("RAW", "block", 0)]),
        ("0", [("RAW", "block", 0)]),
        ("tx // 32 * 32", [("RAW", "warp", 0)]),
    ],
)
def test_store_then_load(index: str, expected: list[tuple[str, str, int]]) -> None:
    assert _kinds(S + f"store s[tx] = r[0]\nr[0] = load s[{index}]") == expected


def test_the_other_orders() -> None:
    assert _kinds(S + "r[0] = load s[63 - tx]\nstore s[tx] = r[0]") == [("WAR", "block", 0)]
    assert _kinds(S + "store s[63 - tx] = r[0]\nstore s[tx] = r[0]") == [("WAW", "block", 0)]
    assert _kinds(S + "r[0] = load s[63 - tx]\nr[0] = load s[tx]") == []


def test_same_owner_in_two_loops_needs_no_sync_and_shifted_by_one_does() -> None:
    body = """shared s: float32[256]
    for (i < 4) { store s[tx + 64*i] = r[0] }
    for (j < 4) { r[0] = load s[INDEX] }"""
    assert _kinds(body.replace("INDEX", "tx + 64*j")) == []
    assert ("RAW", "block", 0) in _kinds(body.replace("INDEX", "(tx + 64*j + 1) % 256"))


def test_vectors_are_owned_by_the_bytes_they_cover() -> None:
    body = "shared s: float32[256]\nstore s[4*tx] = r[0..4]\nr[0..W] = load s[INDEX]"
    assert _kinds(body.replace("W", "4").replace("INDEX", "4*tx")) == []
    assert _kinds(body.replace("W", "2").replace("INDEX", "4*tx + 2")) == []
    assert _kinds(body.replace("W", "2").replace("INDEX", "2*tx")) == [("RAW", "block", 0)]


def test_a_loop_carries_the_way_back() -> None:
    body = S + "for (i < 4) { store s[tx] = r[0]\nr[0] = load s[63 - tx] }"
    assert _kinds(body) == [("WAR", "block", 1), ("RAW", "block", 0), ("RAW", "block", 1)]


def test_two_stages_are_carried_over_two_iterations() -> None:
    body = """shared s: float32[128]
    for (i < 4) { store s[tx + 64*(i % 2)] = r[0]\nr[0] = load s[63 - tx + 64*(i % 2)] }"""
    found = [h for h in hazards(kernel(body)) if h.kind == "WAR"]
    assert [(h.carried, h.distance) for h in found] == [((4,), 2)]


def test_a_store_only_in_the_first_iteration_is_not_hit_by_earlier_loads() -> None:
    body = S + "for (i < 4) { if (i == 0) { store s[tx] = r[0] }\nr[0] = load s[63 - tx] }"
    assert [h.kind for h in hazards(kernel(body))] == ["RAW", "RAW"]


def test_an_example_names_threads_and_byte() -> None:
    (h,) = hazards(kernel(S + "store s[tx] = r[0]\nr[0] = load s[tx // 64 + 5]"))
    assert h.example is not None
    assert h.example.before_thread == 5 and h.example.after_thread != 5 and h.example.byte == 20


def test_hazards_read_like_sentences() -> None:
    (h,) = hazards(kernel(S + "store s[tx] = r[0]\nr[0] = load s[63 - tx]"))
    assert str(h) == "RAW smem s: store L4 -> load L5"


def test_packed_addresses_make_hazards_between_buffers() -> None:
    body = """shared a: float32[64] offset 0
    shared b: float32[64] offset PLACE
    r[0] = load a[63 - tx]
    store b[tx] = r[0]"""
    assert _kinds(body.replace("PLACE", "0")) == [("WAR", "block", 0)]
    assert _kinds(body.replace("PLACE", "256")) == []


def test_branches_on_one_uniform_condition_exclude_each_other() -> None:
    body = S + "if (CONDITION) { store s[tx] = r[0] } else { r[0] = load s[63 - tx] }"
    assert _kinds(body.replace("CONDITION", "bx == 0")) == []
    assert _kinds(body.replace("CONDITION", "tx < 40")) == [("RAW", "block", 0)]


def test_masks_decide_which_threads_collide() -> None:
    assert _kinds(S + "store s[tx] = r[0] if (tx < 1)\nr[0] = load s[tx]") == []
    assert _kinds(S + "store s[tx] = r[0] if (tx < 8)\nr[0] = load s[0] if (tx < 8)") == [
        ("RAW", "warp", 0)
    ]


def test_symbols_in_predicates_are_assumed_to_let_everything_pass() -> None:
    found = _kinds(
        S + "store s[tx] = r[0] if (tx < n)\nr[0] = load s[63 - tx] if (tx < n)",
        head="symbol n in [2, 64]",
    )
    assert found == [("RAW", "block", 0)]


def test_gathered_addresses_may_be_anywhere() -> None:
    assert _kinds(S + "store s[tx] = r[0]\nr[0] = load s[g[0]]") == [("RAW", "block", 0)]


def test_two_threads_writing_one_place_in_one_statement_is_beyond_any_sync() -> None:
    (h,) = hazards(kernel(S + "store s[tx // 2] = r[0]"))
    assert h.is_simultaneous and h.kind == "WAW"
    k = kernel(S + "store s[tx // 2] = r[0]\nblock_sync #0")
    assert unordered(k) != ()


def test_global_memory_written_and_read_in_the_launch() -> None:
    body = "store y[64*bx + tx] = r[0]\nr[0] = load y[64*bx + INDEX]"
    assert _kinds(body.replace("INDEX", "tx")) == []
    assert _kinds(body.replace("INDEX", "63 - tx")) == [("RAW", "block", 0)]


@pytest.mark.parametrize(
    ("first", "expected"),
    [(255, [("RAW", "block", 0)]), (256, []), (-64, []), (-63, [("RAW", "block", 0)])],
)
def test_addresses_that_cannot_be_compared_may_lie_apart(first: int, expected: list) -> None:
    """Four blocks write 256 elements; what is read in front of them, or behind, is none of theirs,
    also where it depends on the block."""
    body = f"store y[64*bx + tx + 64] = r[0]\nr[0] = load y[{first + 64} + INDEX]"
    assert _kinds(body.replace("INDEX", "tx")) == expected
    wide = "".join(f"store y[64*bx + tx + {n}] = r[0]\n" for n in (0, 512))
    assert _kinds(f"{wide}r[0] = load y[128*bx + tx + 1024]") == []


def test_global_stores_at_addresses_that_cannot_be_compared_are_trusted() -> None:
    body = "store y[n*tx] = r[0]\nstore y[n*tx + 1] = r[0]"
    assert _kinds(body, head="symbol n in [2, 64]") == []


def test_a_sync_under_a_branch_does_not_order_what_is_outside() -> None:
    body = S + "store s[tx] = r[0]\nif (bx == 0) { block_sync #0 }\nr[0] = load s[63 - tx]"
    assert len(unordered(kernel(body))) == 1


def test_a_sync_in_a_loop_that_may_not_run_does_not_order_what_is_outside() -> None:
    body = S + "store s[tx] = r[0]\nfor (i < n) { block_sync #0 }\nr[0] = load s[63 - tx]"
    assert len(unordered(kernel(body, head="symbol n in [0, 9]"))) == 1
    assert unordered(kernel(body, head="symbol n in [1, 9]")) == ()


def test_a_warp_sync_orders_lanes_only() -> None:
    body = S + "store s[tx] = r[0]\nwarp_sync #0\nr[0] = load s[INDEX]"
    assert unordered(kernel(body.replace("INDEX", "tx ^ 1"))) == ()
    assert len(unordered(kernel(body.replace("INDEX", "tx ^ 32")))) == 1


def test_a_shuffle_orders_no_memory() -> None:
    body = S + "store s[tx] = r[0]\nr[0] = shuffle.xor(r[0], 1)\nr[0] = load s[tx ^ 1]"
    assert len(unordered(kernel(body))) == 1


def test_a_sync_before_the_load_orders_all_but_the_last_iteration() -> None:
    body = """shared s: float32[128]
    for (i < 2) { block_sync #0\nstore s[tx + 64*i] = r[0] }
    r[0] = load s[INDEX]"""
    assert unordered(kernel(body.replace("INDEX", "63 - tx"))) == ()
    assert len(unordered(kernel(body.replace("INDEX", "127 - tx")))) == 1


def test_sync_orders_lists_the_pairs_of_each_sync() -> None:
    body = S + "for (i < 4) { store s[tx] = r[0]\nblock_sync #7\nr[0] = load s[63 - tx]\n}"
    table = sync_orders(kernel(body))
    assert [(h.kind, h.distance) for h in table[7]] == [("RAW", 0), ("RAW", 1)]


def test_uniform_conditions() -> None:
    k = kernel("", block="tx < 64, ty < 2", head="symbol n in [2, 64]")
    tx = k.block[0].var
    n, bx = k.symbols[0], k.grid[0].var
    assert is_block_uniform(less(bx, n), k) and not is_block_uniform(less(tx, n), k)
    assert is_warp_uniform(equal(floordiv(tx, 32), 1), k)
    assert is_warp_uniform(less(floordiv(tx, 32) + bx, n), k)
    assert not is_warp_uniform(less(tx, n), k)
    assert is_warp_uniform(less(tx, 32), k) and not is_warp_uniform(less(tx, 31), k)
    assert not is_warp_uniform(less(floordiv(tx + bx, 32), n), k)
    assert is_block_uniform(less(Var("i", 0, 3), 2), k)


def test_a_kernel_with_a_reduction_tree_is_checked_in_milliseconds() -> None:
    lines = ["shared s: float32[256]", "store s[tx] = r[0]"]
    for step in (128, 64, 32, 16, 8, 4, 2, 1):
        lines += [f"t[0] = load s[tx + {step}] if (tx < {step})"]
        lines += [f"store s[tx] = t[0] if (tx < {step})"]
    k = kernel("\n".join(lines), block="tx < 256")
    hazards(k)
    start = time.perf_counter()
    hazards(k)
    assert time.perf_counter() - start < 0.1
