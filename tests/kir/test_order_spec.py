# ruff: noqa: E501  (kernel texts, one case a line)
"""The check of a finished kernel: conflicting accesses are ordered, and roles that share bytes have
a protocol between them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from sync_kernels import kernel

sys.path.insert(0, str(Path(__file__).parents[1] / "sim"))

from async_suite import SUITE, Case, packed

from fusewright.errors import SpecError
from fusewright.kir.analysis.role_conflicts import unguarded
from fusewright.kir.order_spec import ORDER_CHECKS
from fusewright.kir.spec import check_kernel

COPY = """shared a: float32[64] align 16 offset 0
cp_async a[tx] = x[tx]
async_commit #0 kind(cp_async)
async_wait #1 kind(cp_async)
block_sync #2
r[0] = load a[63 - tx]
store y[64*bx + tx] = r[0]"""
BULK = """shared a: float32[64] align 16 offset 0
store a[tx] = r[0]
proxy_fence #0 space(shared)
block_sync #1
bulk_store y[64*bx] = a[0] size 64 by thread 0
async_commit #2 kind(bulk)
async_wait #3 kind(bulk)"""
ROLES = """shared a: float32[64] align 16 offset 0
roles {
  role warps 0..1 {
    store a[tx] = r[0]
    barrier_arrive #0 barrier(1) nthreads(64)
  }
  role warps 1..2 {
    named_sync #1 barrier(1) nthreads(64)
    r[0] = load a[tx - 32]
    store y[64*bx + tx] = r[0]
  }
}"""
RING = """shared a: float32[64] align 16 offset 0
shared full: uint64[1] offset 256
shared free: uint64[1] offset 264
mbar_init #0 full[0] count 32 by thread 0
mbar_init #1 free[0] count 32 by thread 0
block_sync #2
roles {
  role warps 0..1 {
    for (i < 4) {
      mbar_wait #3 free[0] parity (i + 1)%2
      store a[tx] = r[0]
      mbar_arrive #4 full[0]
    }
  }
  role warps 1..2 {
    for (j < 4) {
      mbar_wait #5 full[0] parity j%2
      r[1] = load a[tx - 32]
      mbar_arrive #6 free[0]
    }
    store y[64*bx + tx] = r[1]
  }
}"""
THIRD = ROLES.replace(
    "barrier(1) nthreads(64)\n    r[0]", "barrier(2) nthreads(64)\n    r[0]"
).replace(
    "r[0]\n  }\n}",
    """r[0]
  }
  role warps 2..3 {
    named_sync #2 barrier(1) nthreads(64)
    barrier_arrive #3 barrier(2) nthreads(64)
  }
}""",
)
ACCEPTED = {"copy": COPY, "bulk": BULK, "roles": ROLES, "ring": RING, "third": THIRD}

REFUSED = [
    ("order", COPY, "block_sync #2\n", "", "no sync orders RAW smem a: store L6 -> load L7"),
    ("order", COPY, "block_sync #2", "warp_sync #2", "no sync orders RAW smem a"),
    ("order", COPY, "async_wait #1 kind(cp_async)\n", "", "of L4 may not be complete when L7 runs"),
    ("order", BULK, "proxy_fence #0 space(shared)\n", "", "no proxy fence makes RAW smem a"),
    ("order", BULK, "async_wait #3 kind(bulk)", "", "may not be complete when the kernel ends"),
    ("hand-overs of roles", ROLES, "    named_sync #1 barrier(1) nthreads(64)\n", "", "neither arrives"),
    ("hand-overs of roles", ROLES, "    barrier_arrive #0 barrier(1) nthreads(64)\n", "", "one role writes a at L4.0.0 and another reads a at L"),
    ("hand-overs of roles", ROLES, "named_sync #1 barrier(1)", "named_sync #1 barrier(2)", "the same bytes"),
    ("hand-overs of roles", THIRD, "    named_sync #2 barrier(1) nthreads(64)\n", "", "the same bytes"),
]  # fmt: skip


@pytest.mark.parametrize("name", ACCEPTED)
def test_finished_kernels_pass(name: str) -> None:
    check_kernel(kernel(ACCEPTED[name], block="tx < 96" if name == "third" else "tx < 64"), "final")


@pytest.mark.parametrize(("name", "text", "old", "new", "message"), REFUSED)
def test_what_is_not_ordered_is_refused(
    name: str, text: str, old: str, new: str, message: str
) -> None:
    assert old in text
    k = kernel(text.replace(old, new), block="tx < 96" if text is THIRD else "tx < 64")
    check_kernel(k, "packed")
    with pytest.raises(SpecError, match=f"check '{name}'.*({message})"):
        check_kernel(k, "final")


def test_both_checks_have_rejections() -> None:
    assert {c.name for c in ORDER_CHECKS} == {case[0] for case in REFUSED}


def test_arrivals_before_and_waits_behind_the_accesses_are_no_protocol() -> None:
    lines = ROLES.splitlines()
    for i in (3, 7):
        lines[i], lines[i + 1] = lines[i + 1], lines[i]
    with pytest.raises(SpecError, match="hand-overs of roles"):
        check_kernel(kernel("\n".join(lines)), "final")


def test_roles_may_keep_to_bytes_of_their_own() -> None:
    text = ROLES.replace("float32[64] align", "float32[96] align").replace("a[tx - 32]", "a[tx]")
    text = text.replace("    barrier_arrive #0 barrier(1) nthreads(64)\n", "")
    k = kernel(text.replace("    named_sync #1 barrier(1) nthreads(64)\n", ""))
    assert unguarded(k) == ()


WITH_ROLES = [c for c in SUITE if "roles" in c.text and not c.wrong]


@pytest.mark.parametrize("case", WITH_ROLES, ids=lambda c: c.name)
def test_what_the_machine_model_finds_right_is_not_refused(case: Case) -> None:
    assert unguarded(packed(case.kernel())) == ()
