"""What accesses are found and which byte ranges they are given."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from sync_kernels import kernel

from fusewright.core.conditions import less
from fusewright.core.expr import Int, Var
from fusewright.errors import InternalError
from fusewright.kir.analysis.accesses import accesses
from fusewright.kir.analysis.lanes import holds, split_unknown, thread_values
from fusewright.kir.ir import BlockSync, Dim, Kernel


def test_only_memory_that_threads_share_and_that_is_written() -> None:
    k = kernel(
        "shared s: float32[64]\nr[0] = load x[tx]\nstore s[tx] = r[0]\n"
        "r[1] = load s[tx]\nstore y[tx] = r[1]"
    )
    assert [(a.buffer.name, a.writes) for a in accesses(k)] == [
        ("s", True),
        ("s", False),
        ("y", True),
    ]


def test_ranges_are_bytes_by_loop_and_thread() -> None:
    k = kernel("shared s: float16[256]\nfor (i < 4) {\nr[0] = load s[64*i + tx]\n}")
    ranges = accesses(k)[0].ranges
    assert ranges is not None
    expected = 2 * (64 * np.arange(4)[:, None] + np.arange(64))
    assert np.array_equal(np.broadcast_to(ranges.lo, (4, 64)), expected)


def test_linear_thread_number_runs_along_x_first() -> None:
    k = kernel("", block="tx < 4, ty < 8, tz < 2")
    tx, ty, tz = (thread_values(k)[d.var] for d in k.block)
    assert np.array_equal(tx + 4 * (ty + 8 * tz), np.arange(64))


def test_a_predicate_on_threads_is_exact_and_one_on_symbols_is_not() -> None:
    k = kernel(
        "shared s: float32[64]\nstore s[tx] = r[0] if (tx < 10)\nstore s[tx] = r[0] if (tx < n)",
        head="symbol n in [2, 64]",
    )
    first, second = (a.ranges for a in accesses(k))
    assert first is not None and second is not None
    assert first.mask.is_exact and int(np.sum(first.mask.may)) == 10
    assert not second.mask.is_exact and bool(np.all(second.mask.may))


def test_the_other_branch_has_the_contrary_mask() -> None:
    k = kernel("shared s: float32[64]\nif (tx < 10) {\n} else {\nstore s[tx] = r[0]\n}")
    ranges = accesses(k)[0].ranges
    assert ranges is not None and int(np.sum(ranges.mask.may)) == 54


@pytest.mark.parametrize("index", ["tx + 64*(k % 2)", "tx + 64*((k // 3) % 2)"])
def test_a_symbolic_loop_with_periodic_addresses_is_two_periods(index: str) -> None:
    k = kernel(
        f"shared s: float32[128]\nfor (k < n) {{\nstore s[{index}] = r[0]\n}}",
        head="symbol n in [2, 1000]",
    )
    access = accesses(k)[0]
    period = 2 if "//" not in index else 6
    assert access.trips == (2 * period + 1,) and access.ranges is not None


@pytest.mark.parametrize(("limits", "trips"), [("[2, 1000]", 1000), ("[2, 9999]", 0)])
def test_a_symbolic_loop_whose_addresses_grow_has_as_many_trips_as_at_most(
    limits: str, trips: int
) -> None:
    k = kernel(
        "shared s: float32[8192]\nfor (k < n) {\nstore s[tx + 8*k] = r[0]\n}",
        head=f"symbol n in {limits}",
    )
    (access,) = accesses(k)
    assert access.trips == (trips,) and (access.ranges is not None) == (trips > 0)
    assert access.stands_for_all == (False,)


def test_gathered_addresses_are_not_known() -> None:
    k = kernel("shared s: float32[64]\nr[0] = load s[g[0]]")
    assert accesses(k)[0].ranges is None


def test_what_all_threads_of_a_block_share_is_set_aside() -> None:
    k = kernel("store y[64*bx + tx] = r[0]")
    ranges = accesses(k)[0].ranges
    assert ranges is not None and ranges.unknown == (((k.grid[0].var,), 64),)


def test_a_term_that_mixes_threads_and_symbols_is_not_split() -> None:
    tx, n = Var("tx", 0, 3), Var("n", 2, 8)
    known = {tx: np.arange(4)}
    assert split_unknown(n * tx, known, frozenset()) is None
    assert split_unknown((n + tx) // 2, known, frozenset()) is None
    split = split_unknown(n * 4 + tx, known, frozenset())
    assert split is not None and split[0] == tx


def test_unknown_parts_of_a_condition_may_hold_and_need_not() -> None:
    tx, n = Var("tx", 0, 3), Var("n", 2, 8)
    both = holds(less(tx, n), {tx: np.arange(4)})
    assert bool(both.may) and not bool(both.must)


def test_a_block_extent_must_be_constant() -> None:
    k = kernel("")
    n = Var("n", 1, 64)
    bad = Kernel(k.name, (), (), (n,), k.grid, (Dim(Var("tx", 0, n - 1), n),), k.body)
    with pytest.raises(InternalError, match="block extent n of tx is not constant"):
        thread_values(bad)


def test_a_constant_is_known_everywhere() -> None:
    assert split_unknown(Int(3), {}, frozenset()) == (Int(3), ())


def test_a_statement_that_a_pass_left_alone_is_enumerated_once() -> None:
    """Its ranges, and those of an equal statement of another kernel, are one object."""
    text = "shared s: float32[64]\nstore s[tx] = r[0]\nr[0] = load s[63 - tx]"
    first = kernel(text)
    ends_differ = kernel(text + "\nstore s[tx] = r[0]")
    synced = replace(first, body=(*first.body[:2], BlockSync(0, ""), *first.body[2:]))
    mine, moved = accesses(first), accesses(synced)
    assert [a.order for a in mine] != [a.order for a in moved]
    assert all(a.ranges is b.ranges for a, b in zip(mine, moved, strict=True))
    others = [a.ranges for a in accesses(ends_differ)]
    assert others[0] is mine[0].ranges and others[2] is mine[0].ranges
