# ruff: noqa: E501  (kernel texts, one case a line)
"""Every check of asynchronous work, syncs and roles refuses what it is there to refuse."""

from __future__ import annotations

import pytest

from fusewright.errors import SpecError
from fusewright.kir.ir import Kernel
from fusewright.kir.spec import check_kernel
from fusewright.kir.sync_spec import SYNC_CHECKS
from fusewright.kir.text import parse_kernel, print_kernel

HEADER = """kernel k {
  param x: float32[4096] align 16
  param h: float16[64] align 4
  param y: float32[4096] align 16
  grid (bx < 4)
  block (tx < 128)
  local r: float32[8]
  shared s: float32[256] align 128
  shared t: float16[64] align 4
  shared b: uint64[4]
"""
GOOD = """
  cp_async s[4*tx] = x[4*tx] width 4 if (tx < 64) zero_fill .no_allocate
  async_commit #0 kind(cp_async)  // tile
  async_wait #1 kind(cp_async) keep(1)
  mbar_init #2 b[bx] count 1 by thread 0
  proxy_fence #3 space(shared)
  roles {
    role warps 0..1 {
      if (bx == 0) {
        mbar_wait #4 b[0] parity bx % 2 by thread 0
      }
      mbar_expect #5 b[0] nbytes 1024 by thread 0
      bulk_load s[0] = x[256*bx] size 256 on b[0] by thread 0
    }
    role warps 1..3 {
      if (tx < 96) {
        named_sync #6 barrier(15) nthreads(64)
      }
      mbar_arrive #7 b[tx // 32] per_warp
    }
  }
  bulk_reduce.add y[0] = s[0] size 64 by thread 3
  async_wait #8 kind(bulk) reads_only(true)
"""

REFUSED: list[tuple[str, str, str]] = [
    ("roles", "role warps 0..1 { warp_sync #0 }", "a role stands directly in roles"),
    ("roles", "roles { warp_sync #0 }", "only role statements stand directly in roles"),
    ("roles", "roles { role warps 0..2 { warp_sync #0 } role warps 1..3 { warp_sync #1 } }", "warps 1 .. 2 are not behind warp 2"),
    ("roles", "roles { role warps 3..5 { warp_sync #0 } }", "within the 4 whole warps"),
    ("roles", "roles { role warps 2..2 { warp_sync #0 } }", "warps 2 .. 1 are not behind"),
    ("roles", "roles { role warps 0..2 { block_sync #0 } }", "a role has only some of its warps"),
    ("roles", "if (tx < 64) { roles { role warps 0..2 { mbar_arrive #0 b[0] } } }", "all threads of the block come to roles, but may disagree on 'tx < 64'"),
    ("named barriers", "named_sync #0 barrier(0) nthreads(128)", "barrier 0 is not one of 1 .. 15"),
    ("named barriers", "named_sync #0 barrier(16) nthreads(128)", "barrier 16 is not one of"),
    ("named barriers", "barrier_arrive #0 barrier(1) nthreads(40)", "40 threads are not a positive number of whole warps"),
    ("named barriers", "barrier_arrive #0 barrier(1) nthreads(160)", "of at most 128"),
    ("named barriers", "barrier_arrive #0 barrier(1) nthreads(64) named_sync #1 barrier(1) nthreads(128)", "barrier 1 waits for 64 threads elsewhere, here for 128"),
    ("operands", "cp_async s[tx] = x[tx] width 8", "8 elements of float32 are 32 bytes, not one of 4, 8, 16"),
    ("operands", "cp_async t[tx] = h[tx]", "1 elements of float16 are 2 bytes"),
    ("operands", "cp_async t[4*tx] = h[4*tx] width 4", "t is aligned to 4 bytes, the access to 8"),
    ("operands", "cp_async s[4*tx + 1] = x[4*tx] width 4", "the index 4*tx + 1 is not a multiple of the width 4"),
    ("operands", "cp_async s[tx] = h[tx]", "float16 meets float32; a copy keeps the dtype"),
    ("operands", "cp_async y[tx] = x[tx]", "y lives in global memory where the statement wants shared"),
    ("operands", "cp_async s[tx] = x[tx] .no_allocate", "only copies of 16 bytes pass by"),
    ("operands", "cp_async s[tx] = x[tx] .streaming", "cache policy streaming does not apply"),
    ("operands", "bulk_store y[0] = s[0] size 5 by thread 0", "20 bytes are not a positive multiple of 16"),
    ("operands", "bulk_store y[2] = s[0] size 4 by thread 0", "the index 2 is not at a multiple of 16 bytes"),
    ("operands", "bulk_store s[0] = x[0] size 4 by thread 0", "s lives in shared memory where the statement wants global"),
    ("operands", "bulk_reduce.mul y[0] = s[0] size 4 by thread 0", "there is no bulk reduction 'mul' of float32"),
    ("operands", "bulk_reduce.max y[0] = s[0] size 4 by thread 0", "there is no bulk reduction 'max' of float32"),
    ("operands", "async_wait #0 kind(cp_async) keep(-1)", "it keeps -1 groups"),
    ("operands", "async_wait #0 kind(cp_async) reads_only(true)", "groups of kind cp_async have no wait for reads"),
    ("operands", "proxy_fence #0 space(local)", "registers are not seen by the async proxy"),
    ("mbarriers", "mbar_init #0 s[0] count 1 by thread 0", "s is float32 in shared memory; mbarriers are uint64"),
    ("mbarriers", "mbar_init #0 b[4] count 1 by thread 0", "slot 4 may lie outside of the 4 mbarriers of b"),
    ("operands", "mbar_init #0 b[0] count 0 by thread 0", "0 arrivals a phase are not 1 .."),
    ("operands", "mbar_expect #0 b[0] nbytes 2000000 by thread 0", "2000000 bytes a phase are not"),
    ("single issuers", "mbar_init #0 b[0] count 1 by thread 128", "thread 128 issues it, but only threads 0 .. 127 come here"),
    ("single issuers", "roles { role warps 1..2 { mbar_expect #0 b[0] nbytes 16 by thread 0 } }", "only threads 32 .. 63 come here"),
    ("single issuers", "if (tx == 0) { bulk_store y[0] = s[0] size 4 by thread 0 }", "'tx == 0' around it asks for threads again"),
    ("blocking", "if (tx < 64) { named_sync #0 barrier(1) nthreads(64) }", "give the warps that run it a Role"),
    ("blocking", "roles { role warps 0..2 { if (tx < 32) { mbar_wait #0 b[0] parity 0 } } }", "the warps of its role may disagree on 'tx < 32'"),
    ("blocking", "mbar_wait #0 b[tx // 32] parity 0", "the threads of a block wait together, but may disagree on tx//32"),
    ("blocking", "mbar_wait #0 b[0] parity tx % 2", "may disagree on tx%2"),
    ("blocking", "if (tx < 40) { barrier_arrive #0 barrier(1) nthreads(64) }", "a warp arrives as one, but its lanes may disagree on tx < 40"),
    ("blocking", "mbar_arrive #0 b[tx % 4]", "its lanes may disagree on tx%4"),
]  # fmt: skip


def kernel_of(body: str) -> Kernel:
    return parse_kernel(f"{HEADER}{body}\n}}")


def test_a_good_kernel_passes_and_prints() -> None:
    kernel = kernel_of(GOOD)
    check_kernel(kernel, "lowered")
    text = print_kernel(kernel)
    assert print_kernel(parse_kernel(text)) == text
    assert "async_commit #0 kind(cp_async)  // tile" in text
    assert "mbar_wait #4 b[0] parity bx%2 by thread 0" in text


@pytest.mark.parametrize(("name", "body", "message"), REFUSED)
def test_what_breaks_a_rule_is_refused(name: str, body: str, message: str) -> None:
    with pytest.raises(SpecError) as error:
        check_kernel(kernel_of(body), "lowered")
    assert f"check '{name}'" in str(error.value)
    assert message in str(error.value)


def test_every_check_has_a_rejection() -> None:
    assert {c.name for c in SYNC_CHECKS} == {case[0] for case in REFUSED}
