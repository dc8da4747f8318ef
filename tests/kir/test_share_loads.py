"""Loads that bring the same are one, and kernels compute the same."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from random_kernels import random_kernel, run

from fusewright.kir.ir import Kernel, Load
from fusewright.kir.passes.share_loads import share_loads
from fusewright.kir.passes.simplify import simplify
from fusewright.kir.passes.unroll import unroll
from fusewright.kir.spec import check_kernel
from fusewright.kir.text import parse_kernel, print_kernel

FIRST = "a[0..4] = load x[4*tx]"
AGAIN = "b[0..4] = load x[4*tx]"
USE = "store y[tx] = c[0]"


def _kernel(*body: str) -> Kernel:
    head = [f"local {r}: float32[4]" for r in "abc"]
    return parse_kernel(
        "kernel k {\nparam x: float32[512] align 16\nparam y: float32[512] align 16\n"
        "grid (bx < 1)\nblock (tx < 64)\n" + "\n".join((*head, *body)) + "\n}"
    )


def _lines(*body: str) -> list[str]:
    """What becomes of a body, without its registers."""
    changed = share_loads(_kernel(*body))
    check_kernel(changed, "lowered")
    found = [x.strip() for x in print_kernel(changed).split("\n\n")[1].splitlines()[:-1]]
    return [x for x in found if "local" not in x]


def test_what_is_loaded_again_is_read_where_it_is() -> None:
    found = _lines(FIRST, AGAIN, "c[0] = add(a[1], b[2])", USE)
    assert found == [FIRST, "c[0] = add(a[1], a[2])", USE]


def test_a_load_may_fill_other_registers_of_the_same_buffer() -> None:
    single = ("a[0] = load x[tx]", "a[1] = load x[tx + 8]", "a[2] = load x[tx]")
    found = _lines(*single, "c[0] = mul(a[1], a[2])", USE)
    assert found == [*single[:2], "c[0] = mul(a[1], a[0])", USE]


@pytest.mark.parametrize(
    "between",
    [
        ("a[2] = mul(a[0], a[0])",),  # the register holds something else by then
        ("store y[tx] = a[0]",),  # which may be the same memory
        ("a[0..4] = load x[4*tx + 4]",),
    ],
)
def test_what_may_have_changed_is_loaded_again(between: tuple[str, ...]) -> None:
    body = [FIRST, *between, AGAIN, "c[0] = add(b[1], b[2])", USE]
    assert _lines(*body) == body


@pytest.mark.parametrize(
    "other",
    [
        "b[0..4] = load x[4*tx + 4]",
        "b[0..4] = load x[4*tx] if (tx < 9) else 0.0:float32",
        "b[0..4] = load y[4*tx]",
    ],
)
def test_other_loads_stay(other: str) -> None:
    body = [FIRST, other, "c[0] = add(a[1], b[2])", USE]
    assert _lines(*body) == body


def test_loads_under_other_conditions_stay() -> None:
    body = [f"{r}[0..4] = load x[4*tx] if (tx < {n}) else 0.0:float32" for r, n in ("a5", "b9")]
    body += ["c[0] = add(a[1], b[2])", USE]
    assert _lines(*body) == body
    body[1] = body[1].replace("9", "5")
    assert _lines(*body) == [body[0], "c[0] = add(a[1], a[2])", USE]


def test_what_the_kernel_writes_is_loaded_again() -> None:
    body = ["a[0] = load y[tx]", "b[0] = load y[tx]", "c[0] = add(a[0], b[0])", USE]
    assert _lines(*body) == body


def test_positions_that_registers_hold_may_be_others() -> None:
    at = "given p[0] in [0, 31]: "
    kernel = _kernel(
        "local p: int32[1]",
        "p[0] = copy(3:int32)",
        at + "a[0] = load x[p[0]]",
        "p[0] = copy(5:int32)",
        at + "b[0] = load x[p[0]]",
    )
    *body, first, change, second = kernel.body
    assert isinstance(first, Load) and isinstance(second, Load)
    same = replace(kernel, body=(*body, first, change, replace(second, index=first.index)))
    assert share_loads(same) is same


@pytest.mark.parametrize("seed", range(150))
def test_random_kernels_compute_the_same(seed: int) -> None:
    kernel = simplify(unroll(random_kernel(seed)))
    changed = share_loads(kernel)
    check_kernel(simplify(changed), "lowered")
    assert np.array_equal(run(kernel), run(changed), equal_nan=True)
