"""Sums to which blocks add by the copy engine in any order: what commutes, what does not, zeros."""

from __future__ import annotations

import numpy as np
import pytest
from semaphore_suite import ALL_HEAD
from test_sim_semaphores import case_of

from fusewright.errors import SpecError, UnsupportedError
from fusewright.kir import ir
from fusewright.kir.analysis.grid import check_blocks
from fusewright.kir.spec import check_kernel
from fusewright.kir.text import parse_kernel, print_kernel
from fusewright.sim import verify
from fusewright.sim.machine import SimResult, simulate

HEAD = (
    ALL_HEAD.replace("scratch (w)", "zeroed (w)")
    .replace("w: float32[4*3*64]", "w: float32[4*64]")
    .replace("  local r", "  shared s: float32[64] align 16 offset 0\n  local r")
)
FILL = "r[0] = load x[192*bx + 64*by + tx]\nstore s[tx] = r[0]\nproxy_fence #4 space(shared)\n"
MEET = "block_sync #1\n"
ADD = "bulk_reduce.add w[64*bx] = s[0] size 64 by thread 0\n"
DONE = "async_commit #6 kind(bulk)\nasync_wait #7 kind(bulk)\n"
GUARDED = "guarded(w) first(64*bx) size(64) issuer(0)"
HAND = f"semaphore_arrive #0 semaphore(f) index(bx) period(6) {GUARDED}\n"
HAND += f"semaphore_acquire #3 semaphore(f) index(bx) value(3) {GUARDED}\n"
HAND += "semaphore_leave #5 semaphore(f) index(bx) period(6) issuer(0)\n"
KNOW = "block_sync #2\n"
TAKE = "r[0] = load w[64*bx + tx]\n"
CLEAR = "r[1] = copy(0.0:float32)\nstore w[64*bx + tx] = r[1]\n"
STORE = "store y[64*bx + tx] = r[0]\n"
NAMES = ("FILL", "MEET", "ADD", "DONE", "HAND", "KNOW", "SHARE")
SHARE = "if (64*by < 3*tx + 1 && 3*tx < 64*by + 64) {\n" + TAKE + CLEAR + STORE + "}\n"


def summed(**changed: str) -> ir.Kernel:
    """The sum with some of its parts replaced."""
    parts = (changed.get(name, globals()[name]) for name in NAMES)
    return parse_kernel(HEAD + "".join(parts) + "}")


def run(kernel: ir.Kernel, seed: int = 0) -> SimResult:
    case = case_of(kernel)
    zeros = {b: np.zeros(int(str(b.size)), np.float32) for b in kernel.zeroed}
    return simulate(kernel, case.arrays | zeros, outputs=case.outputs, seed=seed)


def messages(kernel: ir.Kernel) -> str:
    return " | ".join(r.message for r in run(kernel).races)


def test_additions_commute_and_leave_zeros() -> None:
    kernel = summed()
    check_kernel(kernel, "lowered")
    check_blocks(kernel)
    assert print_kernel(parse_kernel(print_kernel(kernel))) == print_kernel(kernel)
    wanted = np.arange(768, dtype=np.float32).reshape(4, 3, 64).sum(axis=1).ravel()
    for seed in range(4):
        result = run(kernel, seed)
        assert result.races == []
        assert np.array_equal(result.outputs[0], wanted)


def test_each_sync_of_a_sum_is_needed() -> None:
    kernel = summed()
    zeros = {b: np.zeros(int(str(b.size)), np.float32) for b in kernel.zeroed}
    case = case_of(kernel)
    case = verify.Case(case.arrays | zeros, outputs=case.outputs)
    report = verify.verify_kernel(kernel, case, blocks=None)
    assert not report.missing and not report.redundant
    assert sorted(s.id for s in report.necessary) == [0, 1, 2, 3, 4, 5, 6, 7]
    found = verify.weakenings_of(kernel, case, blocks=None)
    assert [str(w.weaker) for w in found if w.race is None] == []


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"ADD": ADD + "r[0] = load s[tx]\nstore w[64*bx + tx] = r[0] if (by == 1)\n"},
         "write after write of w"),
        ({"ADD": "if (by == 1) {\n" + ADD.replace("add", "max") + "} else {\n" + ADD + "}\n"},
         "write after write of w"),
        ({"SHARE": SHARE.replace(CLEAR, "")}, "w[0] is not zero when the kernel ends"),
        ({"SHARE": TAKE + CLEAR + "if (64*by < 3*tx + 1 && 3*tx < 64*by + 64) {\n" + STORE + "}\n"},
         "of w"),
    ],
)  # fmt: skip
def test_what_does_not_commute_is_a_race(changed: dict[str, str], message: str) -> None:
    """A plain store among the additions, another function, and shares that overlap."""
    assert message in messages(summed(**changed))


@pytest.mark.parametrize(
    "changed",
    [
        {"SHARE": TAKE + CLEAR + STORE},
        {"SHARE": SHARE.replace("3*tx < 64*by + 64", "3*tx < 64*by + 65")},
        {"SHARE": SHARE.replace("store w[64*bx + tx]", "store w[64*bx + (tx ^ 1)]")},
        {"ADD": ADD.replace("add", "max")},
        {"MEET": MEET + "store w[64*bx + tx] = r[0] if (by == 1)\n"},
    ],
)
def test_shares_that_are_not_known_to_be_apart_are_refused(changed: dict[str, str]) -> None:
    with pytest.raises(UnsupportedError, match="where blocks may meet"):
        check_blocks(summed(**changed))


def test_sums_begin_at_zero() -> None:
    text = print_kernel(summed()).replace("zeroed (w)", "scratch (w)")
    with pytest.raises(SpecError, match="in any order, which does not begin at zero"):
        check_kernel(parse_kernel(text), "lowered")


def alone(second: str) -> ir.Kernel:
    """Blocks without semaphores."""
    return parse_kernel(f"""
    kernel sums {{
      param x: float32[256] align 16
      param y: float32[64] align 16
      grid (bx < 4)
      block (tx < 64)
      shared s: float32[64] align 16 offset 0
      local r: float32[1]
      r[0] = load x[64*bx + tx]
      store s[tx] = r[0]
      proxy_fence #0 space(shared)
      block_sync #1
      {second}
      async_commit #2 kind(bulk)
      async_wait #3 kind(bulk)
    }}""")


@pytest.mark.parametrize(
    ("second", "is_right"),
    [
        ("bulk_reduce.add y[0] = s[0] size 64 by thread 0", True),
        ("bulk_store y[0] = s[0] size 64 by thread 0", False),
        ("if (bx == 2) { bulk_store y[0] = s[0] size 64 by thread 0 } else "
         "{ bulk_reduce.add y[0] = s[0] size 64 by thread 0 }", False),
        ("if (bx == 2) { store y[tx] = r[0] } else "
         "{ bulk_reduce.add y[0] = s[0] size 64 by thread 0 }", False),
    ],
)  # fmt: skip
def test_blocks_without_an_order(second: str, is_right: bool) -> None:
    kernel = alone(second)
    arrays = {b: np.zeros(int(str(b.size)), np.float32) for b in kernel.params}
    arrays[kernel.params[0]][:] = np.arange(256)
    found = simulate(kernel, arrays)
    assert (found.races == []) is is_right
    if is_right:
        assert np.array_equal(arrays[kernel.params[1]], np.arange(256).reshape(4, 64).sum(axis=0))
    else:
        assert any("blocks have no order" in r.message for r in found.races)
