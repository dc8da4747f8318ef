"""How often the lanes of a warp part on a condition."""

from __future__ import annotations

import pytest

from fusewright.core.conditions import Cond, less
from fusewright.core.expr import Int, Var
from fusewright.dtypes import int32
from fusewright.kir.analysis.uniformity import (
    is_block_uniform,
    is_warp_uniform,
    only_issuer,
    parting_share,
)
from fusewright.kir.ir import Buffer, Dim, Kernel, Memory, Reg, RegVar, Role
from fusewright.kir.text import parse_kernel
from fusewright.kir.traverse import walk_statements

TX, BX, N = Var("tx", 0, 127), Var("bx", 0, 999), Var("n", 2)


def _kernel(nthreads: int = 128) -> Kernel:
    tx = Dim(TX, Int(nthreads))
    return Kernel("k", (), (), (N,), (Dim(BX, Int(1000)),), (tx,), ())


@pytest.mark.parametrize(
    ("condition", "block", "warp", "low", "high"),
    [
        (less(BX, 500), True, True, 0, 0),
        (less(TX, 64), False, True, 0, 0),
        (less(TX % 2, 1), False, False, 1, 1),
        (less(TX, 48), False, False, 0.25, 0.25),
        (less(128 * BX + TX, 64016), False, False, 0, 0.01),
        (less((128 * BX + TX) % 64, 32), False, True, 0, 0),
        (less((128 * BX + TX) % 40, 20), False, False, 0.9, 1),
        (less(TX, N), False, False, 0, 0.1),
        (less(RegVar(Reg(Buffer("r", int32, Int(1), Memory.LOCAL)), 0, 9), 3), False, False, 1, 1),
    ],
)
def test_who_agrees(condition: Cond, block: bool, warp: bool, low: float, high: float) -> None:
    kernel = _kernel()
    assert is_block_uniform(condition, kernel) is block
    assert is_warp_uniform(condition, kernel) is warp
    assert low <= parting_share(condition, kernel) <= high


def test_a_last_warp_that_is_not_full() -> None:
    assert parting_share(less(TX, 40), _kernel(48)) == 0.5


# --- roles of one thread --------------------------------------------------------------------------


def _role(body: str) -> tuple[Role, Kernel]:
    kernel = parse_kernel(
        f"""kernel k {{
        param x: float32[1024] align 16
        grid (bx < 1)
        block (tx < 64)
        shared s: float32[256] align 16
        shared full: uint64[2]
        roles {{
        role warps 1..2 {{
        {body}
        }}
        }}
        }}"""
    )
    return next(s for s in walk_statements(kernel) if isinstance(s, Role)), kernel


EXPECT = "mbar_expect #0 full[0] nbytes 512 by thread 32"
LOAD = "bulk_load s[0] = x[128*bx] size 128 on full[0] by thread 32"


@pytest.mark.parametrize(
    ("body", "issuer"),
    [
        (f"{EXPECT}\n{LOAD}", 32),
        (f"for (i < 2) {{ if (bx < i) {{ {EXPECT}\n{LOAD} }} }}", 32),
        (f"if (tx < 33) {{ {EXPECT}\n{LOAD} }}", None),
        (LOAD.replace("128*bx", "4*tx"), None),
        (f"{EXPECT}\n{LOAD.replace('thread 32', 'thread 33')}", None),
        (f"{EXPECT}\nmbar_wait #1 full[0] parity 0", None),
        (f"{EXPECT}\nlocal r: float32[1]\nr[0] = load s[0]", None),
    ],
)
def test_roles_of_one_thread(body: str, issuer: int | None) -> None:
    assert only_issuer(*_role(body)) == issuer
